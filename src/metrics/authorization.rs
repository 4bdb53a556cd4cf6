//! Metrics of authorization at the gateway.
// apiserver: pkg/authorization/{metrics,cel}/metrics.go, plugin/pkg/authorizer/webhook/metrics/metrics.go,
// pkg/endpoints/filters/metrics.go

use std::time::Duration;

use prometheus::{DEFAULT_BUCKETS, HistogramVec, IntCounterVec, exponential_buckets};

use super::registrar::Registrar;

/// Metrics of the gateway's own authorizers.
#[derive(Debug)]
pub(crate) struct AuthorizationMetrics {
    attempts: IntCounterVec,
    durations: HistogramVec,
    decisions: IntCounterVec,
    webhook_evaluations: IntCounterVec,
    webhook_durations: HistogramVec,
    fail_open: IntCounterVec,
    condition_errors: IntCounterVec,
    condition_exclusions: IntCounterVec,
    condition_durations: HistogramVec,
}

/// The result of a request to a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WebhookResult {
    /// A decision.
    Success,
    /// It was late.
    Timeout,
    /// It failed.
    Error,
}

impl WebhookResult {
    /// That of a failed request.
    pub(crate) fn failed(is_timeout: bool) -> Self {
        if is_timeout { Self::Timeout } else { Self::Error }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Timeout => "timeout",
            Self::Error => "error",
        }
    }
}

impl AuthorizationMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        Ok(Self {
            attempts: registrar.counters(
                "authorization_attempts_total",
                "Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', \
                 'no-opinion' or 'error'.",
                &["result"],
            )?,
            durations: registrar.histograms(
                "authorization_duration_seconds",
                "Authorization duration in seconds broken out by result.",
                &["result"],
                exponential_buckets(0.001, 2.0, 15)?,
            )?,
            decisions: registrar.counters(
                "apiserver_authorization_decisions_total",
                "Total number of terminal decisions made by an authorizer split by authorizer type, name, and \
                 decision.",
                &["type", "name", "decision"],
            )?,
            webhook_evaluations: registrar.counters(
                "apiserver_authorization_webhook_evaluations_total",
                "Round-trips to authorization webhooks.",
                &["name", "result"],
            )?,
            webhook_durations: registrar.histograms(
                "apiserver_authorization_webhook_duration_seconds",
                "Request latency in seconds.",
                &["name", "result"],
                DEFAULT_BUCKETS.to_vec(),
            )?,
            fail_open: registrar.counters(
                "apiserver_authorization_webhook_evaluations_fail_open_total",
                "NoOpinion results due to webhook timeout or error.",
                &["name", "result"],
            )?,
            condition_errors: registrar.counters(
                "apiserver_authorization_match_condition_evaluation_errors_total",
                "Total number of errors when an authorization webhook encounters a match condition error split by \
                 authorizer type and name.",
                &["type", "name"],
            )?,
            condition_exclusions: registrar.counters(
                "apiserver_authorization_match_condition_exclusions_total",
                "Total number of exclusions when an authorization webhook is skipped because match conditions \
                 exclude it.",
                &["type", "name"],
            )?,
            condition_durations: registrar.histograms(
                "apiserver_authorization_match_condition_evaluation_seconds",
                "Authorization match condition evaluation time in seconds, split by authorizer type and name.",
                &["type", "name"],
                vec![0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25],
            )?,
        })
    }

    /// The authorization of a request.
    pub(crate) fn attempt(&self, result: &str, took: Duration) {
        self.attempts.with_label_values(&[result]).inc();
        self.durations.with_label_values(&[result]).observe(took.as_secs_f64());
    }

    /// A decision of one authorizer.
    pub(crate) fn decided(&self, kind: &str, name: &str, decision: &str) {
        self.decisions.with_label_values(&[kind, name, decision]).inc();
    }

    /// A request to a webhook.
    pub(crate) fn webhook_answered(&self, name: &str, result: WebhookResult, took: Duration) {
        self.webhook_evaluations.with_label_values(&[name, result.label()]).inc();
        self.webhook_durations.with_label_values(&[name, result.label()]).observe(took.as_secs_f64());
    }

    /// A webhook that failed left the decision to the next authorizer.
    pub(crate) fn failed_open(&self, name: &str, result: WebhookResult) {
        self.fail_open.with_label_values(&[name, result.label()]).inc();
    }

    /// The conditions of a webhook were evaluated.
    pub(crate) fn conditions_evaluated(&self, name: &str, took: Duration) {
        self.condition_durations.with_label_values(&["Webhook", name]).observe(took.as_secs_f64());
    }

    /// The conditions of a webhook exclude a request.
    pub(crate) fn excluded_by_conditions(&self, name: &str) {
        self.condition_exclusions.with_label_values(&["Webhook", name]).inc();
    }

    /// The conditions of a webhook failed.
    pub(crate) fn conditions_failed(&self, name: &str) {
        self.condition_errors.with_label_values(&["Webhook", name]).inc();
    }
}
