//! Calls the webhooks of a configuration for one request, without a cluster: what each of them would do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::HeaderMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use portcullis_admission::phases::ShadowCall;
use portcullis_admission::review::ReviewRequest;
use portcullis_admission::{
    Attributes, CallError, CallOutcome, Caller, Event, GroupVersionResource, NoConversions, Objects,
    ShadowOutcome, SkipReason, Surroundings, Webhook, WebhookKind, WebhookResponse, Webhooks, phases,
};
use portcullis_cel::{AccessDecision, AccessReview};
use portcullis_kubernetes::release::Release;
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
    /// The release that the gateway emulates.
    release: Release,
    callers: Callers,
}

/// What the webhooks have done.
#[derive(Debug, Default)]
pub(crate) struct TrialResult {
    /// The calls, in order.
    pub(crate) calls: Vec<TrialCall>,
    /// The other webhooks.
    pub(crate) not_called: Vec<NotCalled>,
    /// Warnings for the client.
    pub(crate) warnings: Vec<String>,
    /// The object after the mutating phase.
    pub(crate) object: Option<Value>,
    /// The refusal of the request.
    pub(crate) refusal: Option<Box<meta::Status>>,
}

/// A webhook that was not called.
#[derive(Debug)]
pub(crate) struct NotCalled {
    pub(crate) webhook: String,
    pub(crate) phase: &'static str,
    /// `None` if another webhook has refused the request before.
    pub(crate) reason: Option<SkipReason>,
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
        release: Release,
        provider: &Arc<CryptoProvider>,
        runtime: &Handle,
    ) -> Result<Self, rustls::Error> {
        Ok(Self {
            webhooks: with_shadows(settings),
            release,
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
        let GroupVersionResource { group, resource, .. } = &attributes.resource;
        if self.release.excludes_from_webhooks(group, resource) {
            let mut result = TrialResult { object: objects.object, ..TrialResult::default() };
            for webhook in mutating.iter().chain(validating) {
                result.note_skip(webhook, Some(SkipReason::Excluded));
            }
            return result;
        }
        let mutated = phases::mutate(mutating, attributes, &mut objects, &NoConversions, &surroundings).await;
        let ended = match mutated {
            Ok(_) => {
                phases::validate((&[], validating), attributes, &mut objects, &NoConversions, &surroundings)
                    .await
            }
            Err(status) => Err(status),
        };
        let mut result = std::mem::take(&mut *lock(&surroundings.result));
        for webhook in mutating.iter().chain(validating) {
            result.note_skip(webhook, None);
        }
        TrialResult { object: objects.object, refusal: ended.err(), ..result }
    }
}

impl TrialResult {
    /// Takes note of a webhook that is not called, unless it is known what became of it: of several rounds, the first one counts.
    fn note_skip(&mut self, webhook: &Webhook, reason: Option<SkipReason>) {
        let phase = phase_of(webhook);
        let is_called = self.calls.iter().any(|call| call.webhook == webhook.name && call.phase == phase);
        if !is_called
            && !self.not_called.iter().any(|other| other.webhook == webhook.name && other.phase == phase)
        {
            self.not_called.push(NotCalled { webhook: webhook.name.clone(), phase, reason });
        }
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
                    CallOutcome::Unconverted => {
                        "not called: its rules match another version or group".to_owned()
                    }
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
            Event::Annotation(_)
            | Event::ConditionFailed(..)
            | Event::ConditionsEvaluated(..)
            | Event::PolicyChecked(_) => {}
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

    fn note_skip(&self, webhook: &Webhook, reason: SkipReason) {
        lock(&self.result).note_skip(webhook, Some(reason));
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
        Self { webhook: webhook.name.clone(), phase: phase_of(webhook), result, took }
    }
}

fn phase_of(webhook: &Webhook) -> &'static str {
    match webhook.kind {
        WebhookKind::Mutating => "mutating",
        WebhookKind::Validating => "validating",
    }
}
