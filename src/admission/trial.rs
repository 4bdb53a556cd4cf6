//! Calls the webhooks of a configuration for one request, without a cluster: what each of them would do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::HeaderMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use portcullis_admission::phases::ShadowCall;
use portcullis_admission::review::ReviewRequest;
use portcullis_admission::{
    Attributes, CallError, CallOutcome, Caller, Event, Objects, ShadowOutcome, Surroundings, Webhook,
    WebhookKind, WebhookResponse, Webhooks, phases,
};
use portcullis_cel::{AccessDecision, AccessReview};
use portcullis_system::sync::lock;
use rustls::crypto::CryptoProvider;
use serde_json::Value;
use tokio::runtime::Handle;

use super::callers::{BUSY, CallFailure, Callers};
use super::settings::AdmissionSettings;
use super::with_shadows;

/// A trial of webhooks.
#[derive(Debug)]
pub(crate) struct Trial {
    webhooks: Webhooks,
    callers: Callers,
}

/// What the webhooks have done.
#[derive(Debug, Default)]
pub(crate) struct TrialResult {
    /// The calls, in order. A webhook that is not here does not match, or was not reached.
    pub(crate) calls: Vec<TrialCall>,
    /// Warnings for the client.
    pub(crate) warnings: Vec<String>,
    /// The object after the mutating phase.
    pub(crate) object: Option<Value>,
    /// The refusal of the request.
    pub(crate) refusal: Option<Box<meta::Status>>,
}

/// The call of a webhook.
#[derive(Debug)]
pub(crate) struct TrialCall {
    pub(crate) webhook: String,
    pub(crate) phase: &'static str,
    pub(crate) result: String,
    pub(crate) took: Duration,
}

impl Trial {
    pub(crate) fn new(
        settings: &AdmissionSettings,
        provider: &Arc<CryptoProvider>,
        runtime: &Handle,
    ) -> Result<Self, rustls::Error> {
        Ok(Self {
            webhooks: with_shadows(settings),
            callers: Callers::build(settings, provider, runtime, None)?,
        })
    }

    /// Runs both phases. `labels` are those of the namespace.
    pub(crate) async fn run(
        &self,
        attributes: &Attributes,
        mut objects: Objects,
        labels: BTreeMap<String, String>,
    ) -> TrialResult {
        let surroundings = TrialSurroundings { callers: &self.callers, labels, result: Mutex::default() };
        let Webhooks { mutating, validating } = &self.webhooks;
        let mutated = phases::mutate(mutating, attributes, &mut objects, None, &surroundings).await;
        let ended = match mutated {
            Ok(_) => phases::validate(validating, attributes, &mut objects, None, &surroundings).await,
            Err(status) => Err(status),
        };
        let result = std::mem::take(&mut *lock(&surroundings.result));
        TrialResult { object: objects.object, refusal: ended.err(), ..result }
    }
}

struct TrialSurroundings<'a> {
    callers: &'a Callers,
    labels: BTreeMap<String, String>,
    result: Mutex<TrialResult>,
}

impl Caller for TrialSurroundings<'_> {
    async fn call(&self, webhook: &Webhook, review: &ReviewRequest) -> Result<WebhookResponse, CallError> {
        self.callers.call(webhook, review, HeaderMap::new(), "", None).await.map_err(
            |failure| match failure {
                CallFailure::Webhook(error) => error,
                CallFailure::Busy => CallError::Failed(BUSY.to_owned()),
            },
        )
    }

    fn note(&self, event: Event<'_>) {
        let mut result = lock(&self.result);
        match event {
            Event::Called { webhook, outcome, took, .. } => {
                let text = match outcome {
                    CallOutcome::Allowed => "allowed".to_owned(),
                    CallOutcome::Denied(code) => format!("denied ({code})"),
                    CallOutcome::Failed(_) => "failed".to_owned(),
                    CallOutcome::Internal => "its patch cannot be applied".to_owned(),
                    CallOutcome::Cancelled => "cancelled".to_owned(),
                };
                result.calls.push(TrialCall::of(webhook, text, took));
            }
            Event::Shadow { webhook, would, took, .. } => {
                let text = match would {
                    ShadowOutcome::Allow => "shadow: would allow".to_owned(),
                    ShadowOutcome::Change => "shadow: would change".to_owned(),
                    ShadowOutcome::Deny(status) => {
                        format!("shadow: would deny: {}", status.message.as_deref().unwrap_or_default())
                    }
                    ShadowOutcome::Fail(error) => format!("shadow: {error}"),
                    ShadowOutcome::Unfinished => "shadow: not finished".to_owned(),
                };
                result.calls.push(TrialCall::of(webhook, text, took));
            }
            Event::ConditionExcluded(webhook, _) => {
                result.calls.push(TrialCall::of(
                    webhook,
                    "excluded by matchConditions".to_owned(),
                    Duration::ZERO,
                ));
            }
            Event::FailedOpen { webhook, error } => {
                result.calls.push(TrialCall::of(webhook, format!("ignored: {error}"), Duration::ZERO));
            }
            Event::Warning(text) => result.warnings.push(text.to_owned()),
            Event::Annotation(_) | Event::ConditionFailed(..) | Event::ConditionsEvaluated(..) => {}
        }
    }
}

impl Surroundings for TrialSurroundings<'_> {
    async fn namespace_labels(&self, _: &str) -> Result<BTreeMap<String, String>, Box<meta::Status>> {
        Ok(self.labels.clone())
    }

    async fn authorize(&self, _: &AccessReview) -> AccessDecision {
        let error = "there is no cluster to ask".to_owned();
        AccessDecision { allowed: false, reason: String::new(), error: Some(error) }
    }

    fn is_late(&self) -> bool {
        false
    }

    async fn shadow(&self, call: ShadowCall) {
        call.run(self).await;
    }
}

impl TrialCall {
    fn of(webhook: &Webhook, result: String, took: Duration) -> Self {
        let phase = match webhook.kind {
            WebhookKind::Mutating => "mutating",
            WebhookKind::Validating => "validating",
        };
        Self { webhook: webhook.name.clone(), phase, result, took }
    }
}
