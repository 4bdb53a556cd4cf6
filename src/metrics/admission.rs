//! Metrics of admission webhooks and policies.
// apiserver: pkg/admission/metrics/metrics.go, pkg/admission/plugin/policy/validating/metrics/metrics.go

use std::time::Duration;

use portcullis_admission::{
    CallOutcome, ConditionsOf, Event, Operation, Phase, PolicyCheckError, Webhook, WebhookKind,
};
use prometheus::{HistogramVec, IntCounterVec};

use super::registrar::Registrar;

/// Larger codes count as this one.
// metrics.go, ObserveWebhook
const MAX_CODE: u16 = 600;

const MUTATION_LABELS: &[&str] = &["policy", "policy_binding", "error_type"];
const POLICY_LABELS: &[&str] = &["policy", "policy_binding", "error_type", "enforcement_action"];

/// Metrics of admission webhooks and policies, under kube-apiserver's names.
#[derive(Debug)]
pub(crate) struct AdmissionMetrics {
    steps: HistogramVec,
    controllers: HistogramVec,
    webhooks: HistogramVec,
    rejections: IntCounterVec,
    fail_open: IntCounterVec,
    requests: IntCounterVec,
    condition_errors: IntCounterVec,
    condition_exclusions: IntCounterVec,
    condition_durations: HistogramVec,
    shadow: IntCounterVec,
    policy_checks: IntCounterVec,
    policy_durations: HistogramVec,
    mutation_checks: IntCounterVec,
    mutation_durations: HistogramVec,
    policies_ignored: IntCounterVec,
    shadow_policies: IntCounterVec,
    stored_differences: IntCounterVec,
    managed_fields: IntCounterVec,
}

/// What became of an object that the API server has stored otherwise than it was reviewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoredDifference {
    /// The webhooks allow it.
    Allowed,
    /// The webhooks refuse it, and the write is undone.
    Undone,
    /// The webhooks refuse it, and it could not be undone.
    Kept,
}

impl AdmissionMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        let buckets = || vec![0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
        let webhook_buckets = vec![0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
        let condition_labels = &["name", "kind", "type", "operation"];
        Ok(Self {
            steps: registrar.histograms(
                "apiserver_admission_step_admission_duration_seconds",
                "Admission sub-step latency histogram in seconds, broken out for each operation and API resource and \
                 step type (validate or admit).",
                &["type", "operation", "rejected"],
                buckets(),
            )?,
            controllers: registrar.histograms(
                "apiserver_admission_controller_admission_duration_seconds",
                "Admission controller latency histogram in seconds, identified by name and broken out for each operation \
                 and API resource and type (validate or admit).",
                &["name", "type", "operation", "rejected"],
                buckets(),
            )?,
            webhooks: registrar.histograms(
                "apiserver_admission_webhook_admission_duration_seconds",
                "Admission webhook latency histogram in seconds, identified by name and broken out for each operation \
                 and API resource and type (validate or admit).",
                &["name", "type", "operation", "rejected"],
                webhook_buckets,
            )?,
            rejections: registrar.counters(
                "apiserver_admission_webhook_rejection_count",
                "Admission webhook rejection count, identified by name and broken out for each admission type \
                 (validating or admit) and operation. Additional labels specify an error type (calling_webhook_error or \
                 apiserver_internal_error if an error occurred; no_error otherwise) and optionally a non-zero rejection \
                 code if the webhook rejects the request with an HTTP status code (honored by the apiserver when the code \
                 is greater or equal to 400). Codes greater than 600 are truncated to 600, to keep the metrics \
                 cardinality bounded.",
                &["name", "type", "operation", "error_type", "rejection_code"],
            )?,
            fail_open: registrar.counters(
                "apiserver_admission_webhook_fail_open_count",
                "Admission webhook fail open count, identified by name and broken out for each admission type \
                 (validating or admit).",
                &["name", "type"],
            )?,
            requests: registrar.counters(
                "apiserver_admission_webhook_request_total",
                "Admission webhook request total, identified by name and broken out for each admission type (validating \
                 or admit) and operation. Additional labels specify whether the request was rejected or not and an HTTP \
                 status code. Codes greater than 600 are truncated to 600, to keep the metrics cardinality bounded.",
                &["name", "type", "operation", "code", "rejected"],
            )?,
            condition_errors: registrar.counters(
                "apiserver_admission_match_condition_evaluation_errors_total",
                "Admission match condition evaluation errors count, identified by name of resource containing the match \
                 condition and broken out for each kind containing matchConditions (webhook or policy), operation and \
                 admission type (validate or admit).",
                condition_labels,
            )?,
            condition_exclusions: registrar.counters(
                "apiserver_admission_match_condition_exclusions_total",
                "Admission match condition evaluation exclusions count, identified by name of resource containing the \
                 match condition and broken out for each kind containing matchConditions (webhook or policy), operation \
                 and admission type (validate or admit).",
                condition_labels,
            )?,
            condition_durations: registrar.histograms(
                "apiserver_admission_match_condition_evaluation_seconds",
                "Admission match condition evaluation time in seconds, identified by name and broken out for each kind \
                 containing matchConditions (webhook or policy), operation and type (validate or admit).",
                condition_labels,
                vec![0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25],
            )?,
            shadow: registrar.counters(
                "portcullis_admission_shadow_webhook_total",
                "Calls of shadow webhooks by what they would have done: allow, change, deny, fail or unfinished.",
                &["name", "type", "operation", "would"],
            )?,
            policy_checks: registrar.counters(
                "apiserver_validating_admission_policy_check_total",
                "Validation admission policy check total, labeled by policy and further identified by binding and \
                 enforcement action taken.",
                POLICY_LABELS,
            )?,
            policy_durations: registrar.histograms(
                "apiserver_validating_admission_policy_check_duration_seconds",
                "Validation admission latency for individual validation expressions in seconds, labeled by policy and \
                 further including binding and enforcement action taken.",
                POLICY_LABELS,
                vec![0.000_000_5, 0.001, 0.01, 0.1, 1.0],
            )?,
            mutation_checks: registrar.counters(
                "apiserver_mutating_admission_policy_check_total",
                "Mutation admission policy check total, labeled by policy and further identified by binding.",
                MUTATION_LABELS,
            )?,
            mutation_durations: registrar.histograms(
                "apiserver_mutating_admission_policy_check_duration_seconds",
                "Mutation admission latency for individual mutation expressions in seconds, labeled by policy and \
                 binding.",
                MUTATION_LABELS,
                vec![0.000_000_5, 0.001, 0.01, 0.1, 1.0],
            )?,
            policies_ignored: registrar.counters(
                "portcullis_admission_policy_fail_open_total",
                "Errors of an admission policy that its failurePolicy ignored, also of requests that it could not be shown.",
                &["policy"],
            )?,
            shadow_policies: registrar.counters(
                "portcullis_admission_shadow_policy_total",
                "Evaluations of shadow policies by what they would have done: allow, change, warn, deny or fail.",
                &["policy", "operation", "would"],
            )?,
            stored_differences: registrar.counters(
                "portcullis_admission_stored_differences_total",
                "Objects that the API server has stored otherwise than webhooks had reviewed them, by the outcome of \
                 another review: allowed, undone, or kept if webhooks refuse the object and it could not be undone.",
                &["outcome"],
            )?,
            managed_fields: registrar.counters(
                "portcullis_admission_managed_fields_writes_total",
                "Writes after those that webhooks have changed, which set the managedFields of the client's own request, \
                 by outcome: written or refused.",
                &["outcome"],
            )?,
        })
    }

    /// An object is stored that was not reviewed.
    pub(crate) fn stored_otherwise(&self, difference: StoredDifference) {
        let outcome = match difference {
            StoredDifference::Allowed => "allowed",
            StoredDifference::Undone => "undone",
            StoredDifference::Kept => "kept",
        };
        self.stored_differences.with_label_values(&[outcome]).inc();
    }

    /// The managers of an object are set after its write.
    pub(crate) fn managed_fields_written(&self, accepted: bool) {
        let outcome = if accepted { "written" } else { "refused" };
        self.managed_fields.with_label_values(&[outcome]).inc();
    }

    /// A phase has ended.
    pub(crate) fn step(&self, phase: Phase, operation: Operation, rejected: bool, took: Duration) {
        let labels = [step_type(phase), operation.as_str(), text(rejected)];
        self.steps.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// Counts an event.
    pub(crate) fn note(&self, event: &Event<'_>) {
        match event {
            Event::Called { webhook, operation, outcome, took } => {
                self.called(webhook, *operation, outcome, *took);
            }
            Event::FailedOpen { webhook, .. } => {
                self.fail_open.with_label_values(&[&webhook.name, kind(webhook)]).inc();
            }
            Event::ConditionFailed(of, operation) => {
                self.condition_errors.with_label_values(&condition(of, *operation)).inc();
            }
            Event::ConditionExcluded(webhook, operation) => {
                let labels = condition(&ConditionsOf::Webhook(webhook), *operation);
                self.condition_exclusions.with_label_values(&labels).inc();
            }
            Event::ConditionsEvaluated(of, operation, took) => {
                let durations = self.condition_durations.with_label_values(&condition(of, *operation));
                durations.observe(took.as_secs_f64());
            }
            Event::Shadow { webhook, operation, would, .. } => {
                let (would, _) = would.parts();
                self.shadow
                    .with_label_values(&[&webhook.name, kind(webhook), operation.as_str(), would])
                    .inc();
            }
            Event::PolicyChecked(check) => {
                let (error, action) = (check.error.as_str(), check.action.as_str());
                let labels = [check.policy, check.binding, error, action];
                self.policy_checks.with_label_values(&labels).inc();
                self.policy_durations.with_label_values(&labels).observe(check.took.as_secs_f64());
            }
            Event::PolicyMutated(check) => {
                let error = check.error.map_or("no_error", PolicyCheckError::as_str);
                let labels = [check.policy, check.binding, error];
                self.mutation_checks.with_label_values(&labels).inc();
                self.mutation_durations.with_label_values(&labels).observe(check.took.as_secs_f64());
            }
            Event::PolicyIgnored(policy, _) => {
                self.policies_ignored.with_label_values(&[&policy.name]).inc();
            }
            Event::ShadowPolicy { policy, operation, would, .. } => {
                let (would, _) = would.parts();
                self.shadow_policies.with_label_values(&[&policy.name, operation.as_str(), would]).inc();
            }
            Event::PluginEnded { plugin, operation, rejected, took } => {
                let kind = step_type(plugin.phase());
                let labels = [plugin.name(), kind, operation.as_str(), text(*rejected)];
                self.controllers.with_label_values(&labels).observe(took.as_secs_f64());
            }
            Event::Warning(_) | Event::Annotation(_) | Event::Explained { .. } => {}
        }
    }

    // metrics.go, ObserveWebhook and ObserveWebhookRejection
    fn called(&self, webhook: &Webhook, operation: Operation, outcome: &CallOutcome, took: Duration) {
        let (error_type, code) = match outcome {
            CallOutcome::Cancelled => return,
            CallOutcome::Allowed => (None, 200),
            CallOutcome::Denied(code) => (Some("no_error"), *code),
            CallOutcome::Failed(code) => (Some("calling_webhook_error"), *code),
            CallOutcome::Internal | CallOutcome::Unconverted => (Some("apiserver_internal_error"), 500),
        };
        let (name, kind, operation, rejected) =
            (webhook.name.as_str(), kind(webhook), operation.as_str(), text(error_type.is_some()));
        let code = code.min(MAX_CODE).to_string();
        self.webhooks.with_label_values(&[name, kind, operation, rejected]).observe(took.as_secs_f64());
        self.requests.with_label_values(&[name, kind, operation, &code, rejected]).inc();
        if let Some(error_type) = error_type {
            let code = if error_type == "no_error" { &code } else { "0" };
            self.rejections.with_label_values(&[name, kind, operation, error_type, code]).inc();
        }
    }
}

fn text(flag: bool) -> &'static str {
    if flag { "true" } else { "false" }
}

/// The phase of a webhook in labels.
fn kind(webhook: &Webhook) -> &'static str {
    match webhook.kind {
        WebhookKind::Mutating => "admit",
        WebhookKind::Validating => "validating",
    }
}

/// A phase in the labels of steps and plugins.
fn step_type(phase: Phase) -> &'static str {
    match phase {
        Phase::Mutating => "admit",
        Phase::Validating => "validate",
    }
}

fn condition<'a>(of: &ConditionsOf<'a>, operation: Operation) -> [&'a str; 4] {
    match of {
        ConditionsOf::Webhook(webhook) => {
            let phase = match webhook.kind {
                WebhookKind::Mutating => Phase::Mutating,
                WebhookKind::Validating => Phase::Validating,
            };
            [&webhook.name, "webhook", step_type(phase), operation.as_str()]
        }
        ConditionsOf::Policy(scope) => [&scope.name, "policy", "validate", operation.as_str()],
    }
}
