//! What follows from the decisions of all policies: the refusal, warnings, audit annotations and metrics.
// apiserver: pkg/admission/plugin/policy/validating/dispatcher.go, Dispatch

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use serde::Serialize;

use super::decision::{AuditValue, PolicyDecisions, Verdict};
use super::shared::{RefusedObject, without_values};
use super::{policy_failure, refuses};
use crate::phases::annotations::Annotations;
use crate::review::encode;
use crate::{
    Attributes, Event, PolicyAction, PolicyBinding, PolicyCheck, PolicyCheckError, Reason, ShadowOutcome,
    SharedObjects, Surroundings, ValidatingPolicy, ValidationAction,
};

const FAILURES_KEY: &str = "validation.policy.admission.k8s.io/validation_failure";
const MAX_FAILURES: usize = 50;
const MAX_ANNOTATION_BYTES: usize = 10 * 1024;

/// What the policies have found so far.
pub(super) struct Findings<'a, S> {
    attributes: &'a Attributes,
    objects: &'a SharedObjects,
    surroundings: &'a S,
    /// Whether what is found has no effect: it is kept for [`Findings::would`].
    is_shadow: bool,
    /// The first warning, or validation that the audit log is to show, of a shadow policy.
    warning: Option<String>,
    /// The first refusal.
    refusal: Option<(String, Reason)>,
    /// Validations that the audit log is to show.
    failures: Vec<Failure>,
    /// What the evaluation has cost.
    pub(super) cost: u64,
    /// The audit annotations of the current policy.
    values: Vec<(String, Vec<String>)>,
}

/// A validation in the audit log. The order of the fields is that of the text.
// dispatcher.go, ValidationFailureValue
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Failure {
    message: String,
    policy: String,
    binding: String,
    expression_index: usize,
    validation_actions: Vec<&'static str>,
}

impl<'a, S: Surroundings> Findings<'a, S> {
    pub(super) fn new(
        attributes: &'a Attributes,
        objects: &'a SharedObjects,
        surroundings: &'a S,
        is_shadow: bool,
    ) -> Self {
        let (warning, refusal, failures, values) = (None, None, Vec::new(), Vec::new());
        Self { attributes, objects, surroundings, is_shadow, warning, refusal, failures, values, cost: 0 }
    }

    /// A policy, or its binding, cannot be matched with the request.
    // addConfigError
    pub(super) fn misconfigured(
        &mut self,
        policy: &ValidatingPolicy,
        binding: Option<&PolicyBinding>,
        status: &Status,
    ) {
        let what = if binding.is_some() { "binding" } else { "policy" };
        let error = status.message.as_deref().unwrap_or_default();
        let error = format!("failed to configure {what}: {error}");
        if refuses(policy) {
            self.refuse(policy, binding, &error, Reason::Invalid);
        } else {
            self.ignored(policy, &error);
        }
    }

    /// The decisions of a policy under a binding.
    pub(super) fn add(
        &mut self,
        policy: &ValidatingPolicy,
        binding: &PolicyBinding,
        found: &PolicyDecisions,
    ) {
        self.cost = found.cost;
        for (index, decision) in found.decisions.iter().enumerate() {
            let note = |action, error| self.note((policy, binding), action, error, decision.took);
            match &decision.verdict {
                Verdict::Admit => {}
                Verdict::Ignored(message) => {
                    note(PolicyAction::Allow, PolicyCheckError::of(message));
                    self.ignored(policy, without_values(message));
                }
                Verdict::Deny { message, reason } => {
                    let error = PolicyCheckError::of(message);
                    for action in &binding.actions {
                        let noted = match action {
                            ValidationAction::Deny => PolicyAction::Deny,
                            ValidationAction::Warn => PolicyAction::Warn,
                            ValidationAction::Audit => PolicyAction::Audit,
                        };
                        self.note((policy, binding), noted, error, decision.took);
                        match action {
                            ValidationAction::Deny => self.refuse(policy, Some(binding), message, *reason),
                            ValidationAction::Warn => self.warn(policy, binding, message),
                            ValidationAction::Audit => self.fail(policy, binding, index, message),
                        }
                    }
                }
            }
        }
        for (key, value) in &found.annotations {
            match value {
                AuditValue::Excluded => {}
                AuditValue::Text(text) => self.keep(key, text),
                AuditValue::Failed(message, took) => {
                    let error = PolicyCheckError::of(message);
                    self.note((policy, binding), PolicyAction::Deny, error, *took);
                    self.refuse(policy, Some(binding), message, Reason::Invalid);
                }
            }
        }
    }

    /// Takes note of an error that the failure policy ignores.
    fn ignored(&self, policy: &ValidatingPolicy, error: &str) {
        if !self.is_shadow {
            let error = policy_failure(&policy.scope, error);
            self.surroundings.note(Event::PolicyIgnored(&policy.scope, &error));
        }
    }

    fn note(
        &self,
        (policy, binding): (&ValidatingPolicy, &PolicyBinding),
        action: PolicyAction,
        error: PolicyCheckError,
        took: Duration,
    ) {
        if self.is_shadow {
            return;
        }
        let check = PolicyCheck { policy: &policy.scope.name, binding: &binding.name, action, error, took };
        self.surroundings.note(Event::PolicyChecked(check));
    }

    fn refuse(
        &mut self,
        policy: &ValidatingPolicy,
        binding: Option<&PolicyBinding>,
        message: &str,
        reason: Reason,
    ) {
        let with = binding.map(|binding| format!(" with binding '{}'", binding.name)).unwrap_or_default();
        let text =
            format!("ValidatingAdmissionPolicy '{}'{with} denied request: {message}", policy.scope.name);
        self.refusal.get_or_insert((text, reason));
    }

    fn warn(&mut self, policy: &ValidatingPolicy, binding: &PolicyBinding, message: &str) {
        let text = format!(
            "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {message}",
            policy.scope.name, binding.name
        );
        if self.is_shadow {
            self.warning.get_or_insert(text);
        } else {
            self.surroundings.note(Event::Warning(&text));
        }
    }

    fn fail(&mut self, policy: &ValidatingPolicy, binding: &PolicyBinding, index: usize, message: &str) {
        if self.is_shadow {
            self.warning.get_or_insert_with(|| message.to_owned());
            return;
        }
        let actions = binding.actions.iter().map(|action| action.as_str()).collect();
        self.failures.push(Failure {
            message: message.to_owned(),
            policy: policy.scope.name.clone(),
            binding: binding.name.clone(),
            expression_index: index,
            validation_actions: actions,
        });
    }

    /// Keeps the value of an annotation, once.
    // auditAnnotationCollector
    fn keep(&mut self, key: &str, text: &str) {
        let value = cut(text);
        match self.values.iter_mut().find(|(known, _)| known == key) {
            Some((_, values)) if values.contains(&value) => {}
            Some((_, values)) => values.push(value),
            None => self.values.push((key.to_owned(), vec![value])),
        }
    }

    /// Publishes the audit annotations of a policy.
    pub(super) fn publish(&mut self, policy: &ValidatingPolicy, annotations: &Annotations<'_, S>) {
        for (key, values) in std::mem::take(&mut self.values) {
            annotations.add(format!("{}/{key}", policy.scope.name), values.join(", "), false);
        }
    }

    /// What a shadow policy would have done.
    pub(super) fn would(self) -> ShadowOutcome {
        match (&self.refusal, self.warning) {
            (Some((message, reason)), _) => {
                ShadowOutcome::Deny(refusal(self.attributes, self.objects, message, *reason))
            }
            (None, Some(warning)) => ShadowOutcome::Warn(warning),
            (None, None) => ShadowOutcome::Allow,
        }
    }

    /// The refusal, if there is one.
    pub(super) fn finish(mut self, annotations: &Annotations<'_, S>) -> Result<(), Box<Status>> {
        if !self.failures.is_empty() {
            self.failures.truncate(MAX_FAILURES);
            let value = String::from_utf8_lossy(&encode(&self.failures)).into_owned();
            annotations.add(FAILURES_KEY.to_owned(), value, false);
        }
        match &self.refusal {
            Some((message, reason)) => Err(refusal(self.attributes, self.objects, message, *reason)),
            None => Ok(()),
        }
    }
}

/// The first bytes of a text.
fn cut(text: &str) -> String {
    let bytes = text.as_bytes();
    String::from_utf8_lossy(bytes.get(..MAX_ANNOTATION_BYTES).unwrap_or(bytes)).into_owned()
}

/// A refusal of a policy.
fn refusal(attributes: &Attributes, objects: &SharedObjects, message: &str, reason: Reason) -> Box<Status> {
    let object = RefusedObject::of(attributes, objects);
    object.status(object.is_forbidden(message), vec![message.to_owned()], reason.parts())
}
