//! Shadow webhooks are called beside the requests that they see: no request waits for one, and none fails because of one.

use std::sync::Arc;

use http::HeaderMap;
use portcullis_admission::phases::ShadowCall;
use portcullis_admission::review::ReviewRequest;
use portcullis_admission::{CallError, Caller, Event, Webhook, WebhookResponse};
use portcullis_limits::fair_limiter::Shares;

use super::ClusterAdmission;
use super::callers::{BUSY, CallFailure};

/// The memory of all reviews that wait for shadow webhooks of a cluster, in KiB, and of those of one flow. Reviews beyond it are
/// not sent.
// threat: silent-webhook
pub(super) const MEMORY_SHARES: Shares = Shares::new(64 << 10, 16 << 10);
/// The least that a call takes of it: its task, beside its review.
const MEMORY_PER_CALL: usize = 4;

/// Calls shadow webhooks for the requests of one client.
pub(super) struct ShadowCaller {
    admission: Arc<ClusterAdmission>,
    flow: Arc<str>,
}

impl ShadowCaller {
    pub(super) fn new(admission: &Arc<ClusterAdmission>, flow: &str) -> Self {
        Self { admission: Arc::clone(admission), flow: flow.into() }
    }

    /// Starts a call, if there is memory for it.
    pub(super) fn start(self, call: ShadowCall) {
        let size = (call.size() >> 10).saturating_add(MEMORY_PER_CALL);
        let Some(memory) = self.admission.shadow_memory.try_acquire(Arc::clone(&self.flow), size) else {
            return call.fail(BUSY, &self);
        };
        let runtime = self.admission.callers.runtime().clone();
        runtime.spawn(async move {
            call.run(&self).await;
            drop(memory);
        });
    }
}

impl Caller for ShadowCaller {
    async fn call(&self, webhook: &Webhook, review: &ReviewRequest) -> Result<WebhookResponse, CallError> {
        let called = self.admission.callers.call(webhook, review, HeaderMap::new(), &self.flow, None).await;
        called.map_err(|failure| match failure {
            CallFailure::Webhook(error) => error,
            CallFailure::Busy => CallError::Failed(BUSY.to_owned()),
        })
    }

    fn note(&self, event: Event<'_>) {
        self.admission.metrics.admission.note(&event);
        let Event::Shadow { webhook, would, took, .. } = event else { return };
        let (would, message) = would.parts();
        let cluster = &self.admission.cluster;
        tracing::info!(cluster, webhook = webhook.name, would, message, ?took, "shadow webhook");
    }
}
