//! Calls the webhooks of a configuration for one request, and evaluates its policies, without a cluster: what each of them would do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::HeaderMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use portcullis_admission::phases::ShadowCall;
use portcullis_admission::review::{ReviewRequest, internal_error};
use portcullis_admission::{
    AnyPolicy, Attributes, CallError, CallOutcome, Caller, Event, GroupVersionKind, GroupVersionResource,
    InlineCost, MatchError, MutatingPolicy, NoConversions, Objects, Policies, PolicyKind, PolicyScope,
    SchemaPurpose, ShadowOutcome, SkipReason, Surroundings, ValidatingPolicy, Webhook, WebhookKind,
    WebhookResponse, Webhooks, phases,
};
use portcullis_cel::{AccessDecision, AccessReview, ExplainedPart};
use portcullis_kubernetes::release::Release;
use portcullis_merge::Schemas;
use portcullis_system::sync::lock;
use rustls::crypto::CryptoProvider;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::callers::{BUSY, CallFailure, Callers};
use super::settings::AdmissionSettings;
use super::{NO_POLICIES, excludes_from_policies, policies_with_shadows, with_shadows};

/// A trial of webhooks.
#[derive(Debug)]
pub(crate) struct Trial {
    webhooks: Webhooks,
    policies: Policies,
    /// The release that the gateway emulates.
    release: Release,
    callers: Callers,
    /// What API servers publish.
    schemas: Vec<Arc<Schemas>>,
}

/// What the webhooks have done.
#[derive(Debug, Default)]
pub(crate) struct TrialResult {
    /// The calls, in order.
    pub(crate) calls: Vec<TrialCall>,
    /// The other webhooks.
    pub(crate) not_called: Vec<NotCalled>,
    /// Why validations of policies do not hold, and mutations fail.
    pub(crate) explanations: Vec<Explanation>,
    /// Warnings for the client.
    pub(crate) warnings: Vec<String>,
    /// The object after the mutating phase.
    pub(crate) object: Option<Value>,
    /// The refusal of the request.
    pub(crate) refusal: Option<Box<meta::Status>>,
}

/// Why a validation of a policy does not hold, or a mutation fails.
#[derive(Debug)]
pub(crate) struct Explanation {
    pub(crate) policy: String,
    /// The field of its `spec` with the expression.
    pub(crate) place: String,
    /// The expression, and its parts.
    pub(crate) parts: Vec<ExplainedPart>,
}

/// A webhook that was not called, or a policy that was not evaluated.
#[derive(Debug)]
pub(crate) struct NotCalled {
    pub(crate) name: String,
    pub(crate) phase: &'static str,
    pub(crate) reason: NotCalledReason,
}

/// Why a webhook was not called, or a policy not evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotCalledReason {
    /// This of a webhook does not match.
    Skipped(SkipReason),
    /// The rules or selectors of a policy do not match, or those of all its bindings.
    PolicyUnmatched,
    /// The request was refused before.
    RefusedBefore,
}

/// The call of a webhook, or the evaluation of a policy.
#[derive(Debug)]
pub(crate) struct TrialCall {
    pub(crate) name: String,
    pub(crate) phase: &'static str,
    pub(crate) result: String,
    pub(crate) took: Duration,
    /// Of a policy, in units of CEL.
    pub(crate) cost: Option<u64>,
}

impl Trial {
    pub(crate) fn new(
        settings: &AdmissionSettings,
        release: Release,
        provider: &Arc<CryptoProvider>,
        runtime: &Handle,
        schemas: Vec<Arc<Schemas>>,
    ) -> Result<Self, rustls::Error> {
        Ok(Self {
            webhooks: with_shadows(settings),
            policies: policies_with_shadows(settings),
            release,
            callers: Callers::build(settings, provider, runtime, None)?,
            schemas,
        })
    }

    /// Runs both phases. `labels` are those of the namespace.
    pub(crate) async fn run(
        &self,
        attributes: &Attributes,
        mut objects: Objects,
        labels: BTreeMap<String, String>,
    ) -> TrialResult {
        let surroundings = TrialSurroundings {
            callers: &self.callers,
            policies: &self.policies,
            schemas: &self.schemas,
            labels,
            inline_cost: InlineCost::default(),
            result: Mutex::default(),
        };
        let Webhooks { mutating, validating } = &self.webhooks;
        let GroupVersionResource { group, resource, .. } = &attributes.resource;
        let are_excluded = self.release.excludes_from_webhooks(group, resource);
        let (called_mutating, called_validating): (&[_], &[_]) =
            if are_excluded { (&[], &[]) } else { (mutating, validating) };
        let hides_policies = excludes_from_policies(&attributes.resource);
        let policies = if hides_policies { &NO_POLICIES } else { &self.policies };
        let mutating_policies = policies.mutating.iter().flat_map(|policy| {
            // First what it does, without effect.
            let shadow = Arc::new(MutatingPolicy::clone(policy).into_shadow());
            [Some(shadow), (!policy.scope.shadow).then(|| Arc::clone(policy))]
        });
        let mutating_policies: Vec<_> = mutating_policies.flatten().collect();
        let hooks = (mutating_policies.as_slice(), called_mutating);
        let mutated = phases::mutate(hooks, attributes, &mut objects, &NoConversions, &surroundings).await;
        let is_refused_before = mutated.is_err();
        let ended = match mutated {
            Ok(_) => {
                let policies = &policies.validating;
                let compared: Vec<_> = policies.iter().map(compared).collect();
                let mut validate = async |policies: &[Arc<ValidatingPolicy>], webhooks: &[Arc<Webhook>]| {
                    let hooks = (policies, webhooks);
                    phases::validate(hooks, attributes, &mut objects, &NoConversions, &surroundings).await
                };
                // First what each of them decides, without effect.
                validate(&compared, &[]).await.ok();
                let enforced: Vec<_> =
                    policies.iter().filter(|policy| !policy.scope.shadow).cloned().collect();
                validate(&enforced, called_validating).await
            }
            Err(status) => Err(status),
        };
        let mut result = std::mem::take(&mut *lock(&surroundings.result));
        let excluded = NotCalledReason::Skipped(SkipReason::Excluded);
        for webhook in mutating.iter().chain(validating) {
            result.note_skip(webhook, if are_excluded { excluded } else { NotCalledReason::RefusedBefore });
        }
        let unmatched = match () {
            () if hides_policies => excluded,
            () if is_refused_before => NotCalledReason::RefusedBefore,
            () => NotCalledReason::PolicyUnmatched,
        };
        for policy in &self.policies.mutating {
            let unmatched = if hides_policies { unmatched } else { NotCalledReason::PolicyUnmatched };
            result.note_other(&policy.scope.name, MUTATING_POLICY, unmatched);
        }
        for policy in &self.policies.validating {
            result.note_other(&policy.scope.name, POLICY, unmatched);
        }
        TrialResult { object: objects.object, refusal: ended.err(), ..result }
    }
}

/// The policy as one that is evaluated without effect, so that what it decides is reported.
fn compared(policy: &Arc<ValidatingPolicy>) -> Arc<ValidatingPolicy> {
    Arc::new(ValidatingPolicy::clone(policy).into_shadow())
}

impl TrialResult {
    /// Takes note of a webhook that is not called, unless it is known what became of it: of several rounds, the first one counts.
    fn note_skip(&mut self, webhook: &Webhook, reason: NotCalledReason) {
        self.note_other(&webhook.name, phase_of(webhook), reason);
    }

    fn note_other(&mut self, name: &str, phase: &'static str, reason: NotCalledReason) {
        let is_called = self.calls.iter().any(|call| call.name == name && call.phase == phase);
        if !is_called && !self.not_called.iter().any(|other| other.name == name && other.phase == phase) {
            self.not_called.push(NotCalled { name: name.to_owned(), phase, reason });
        }
    }
}

struct TrialSurroundings<'a> {
    callers: &'a Callers,
    policies: &'a Policies,
    schemas: &'a [Arc<Schemas>],
    labels: BTreeMap<String, String>,
    inline_cost: InlineCost,
    result: Mutex<TrialResult>,
}

impl TrialSurroundings<'_> {
    fn is_shadow(&self, policy: &PolicyScope) -> bool {
        let mut all = self.policies.all().map(AnyPolicy::scope);
        all.any(|known| known.shadow && (known.kind, &known.name) == (policy.kind, &policy.name))
    }
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
                    ShadowOutcome::Warn(text) => format!("shadow: would warn: {text}"),
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
            Event::ShadowPolicy { policy, would, took, cost, .. } => {
                let text = match would.parts() {
                    ("deny", message) => format!("denied: {message}"),
                    ("warn", message) => format!("warned: {message}"),
                    ("fail", message) => format!("failed: {message}"),
                    ("change", _) => "changed".to_owned(),
                    _ => "allowed".to_owned(),
                };
                let result_of = if self.is_shadow(policy) { format!("shadow: {text}") } else { text };
                let (name, phase) = (policy.name.clone(), phase_of_policy(policy));
                result.calls.push(TrialCall { name, phase, result: result_of, took, cost: Some(cost) });
            }
            // Once, of the evaluation that compares.
            Event::Explained { policy, place, parts } if policy.shadow => {
                let policy = policy.name.clone();
                result.explanations.push(Explanation { policy, place, parts });
            }
            Event::Warning(text) => result.warnings.push(text.to_owned()),
            Event::Annotation(_)
            | Event::Explained { .. }
            | Event::ConditionFailed(..)
            | Event::ConditionsEvaluated(..)
            | Event::PolicyChecked(_)
            | Event::PolicyMutated(_)
            | Event::PolicyIgnored(..)
            | Event::PluginEnded { .. } => {}
        }
    }
}

impl Surroundings for TrialSurroundings<'_> {
    fn inline_cost(&self) -> &InlineCost {
        &self.inline_cost
    }

    async fn namespace_labels(&self, _: &str) -> Result<BTreeMap<String, String>, MatchError> {
        Ok(self.labels.clone())
    }

    async fn namespace(&self, name: &str) -> Result<Value, MatchError> {
        let metadata = json!({"name": name, "labels": self.labels, "creationTimestamp": null});
        let (kind, spec) = ("Namespace", json!({"finalizers": ["kubernetes"]}));
        let status = json!({"phase": "Active"});
        Ok(json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec, "status": status}))
    }

    async fn schemas(
        &self,
        kind: &GroupVersionKind,
        purpose: SchemaPurpose,
    ) -> Result<Option<Arc<Schemas>>, Box<meta::Status>> {
        let GroupVersionKind { group, version, kind } = kind;
        match self.schemas.iter().find(|schemas| schemas.knows(group, version, kind)) {
            Some(known) => Ok(Some(Arc::clone(known))),
            // A JSON patch needs none.
            None if !purpose.is_merge => Ok(Schemas::read(NO_SCHEMAS).ok().map(Arc::new)),
            None => {
                let path =
                    if group.is_empty() { "api/v1".to_owned() } else { format!("apis/{group}/{version}") };
                Err(internal_error(&format!(
                    "an ApplyConfiguration is merged by the schema of {kind}: give it with --openapi; \
                     kubectl get --raw /openapi/v3/{path} writes it"
                )))
            }
        }
    }

    async fn authorize(&self, _: &AccessReview) -> Result<AccessDecision, Box<meta::Status>> {
        let error = "there is no cluster to ask".to_owned();
        Ok(AccessDecision { allowed: false, reason: String::new(), error: Some(error) })
    }

    fn note_skip(&self, webhook: &Webhook, reason: SkipReason) {
        lock(&self.result).note_skip(webhook, NotCalledReason::Skipped(reason));
    }

    fn wants_explanations(&self) -> bool {
        true
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
        Self { name: webhook.name.clone(), phase: phase_of(webhook), result, took, cost: None }
    }
}

const NO_SCHEMAS: &[u8] = br#"{"components": {"schemas": {}}}"#;

/// The phase of validating policies in the table.
pub(crate) const POLICY: &str = "policy";
/// That of mutating ones.
pub(crate) const MUTATING_POLICY: &str = "mutating policy";

fn phase_of_policy(policy: &PolicyScope) -> &'static str {
    match policy.kind {
        PolicyKind::Mutating => MUTATING_POLICY,
        PolicyKind::Validating => POLICY,
    }
}

fn phase_of(webhook: &Webhook) -> &'static str {
    match webhook.kind {
        WebhookKind::Mutating => "mutating",
        WebhookKind::Validating => "validating",
    }
}
