//! Metrics of impersonation.
// apiserver: pkg/endpoints/filters/impersonation/metrics/metrics.go

use std::time::Duration;

use prometheus::{HistogramVec, IntCounterVec, exponential_buckets};

use super::registrar::Registrar;

/// Metrics of impersonation, by mode and decision. The mode of a refused impersonation is empty.
#[derive(Debug)]
pub(crate) struct ImpersonationMetrics {
    attempts: IntCounterVec,
    attempt_durations: HistogramVec,
    authorizations: IntCounterVec,
    authorization_durations: HistogramVec,
}

impl ImpersonationMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        let labels = &["mode", "decision"];
        let buckets = || exponential_buckets(0.001, 2.0, 15);
        Ok(Self {
            attempts: registrar.counters(
                "apiserver_impersonation_attempts_total",
                "Total number of impersonation attempts split by mode and decision.",
                labels,
            )?,
            attempt_durations: registrar.histograms(
                "apiserver_impersonation_attempts_duration_seconds",
                "Latency of impersonation attempts in seconds split by mode and decision.",
                labels,
                buckets()?,
            )?,
            authorizations: registrar.counters(
                "apiserver_impersonation_authorization_attempts_total",
                "Total number of authorization checks made by the impersonation handler split by mode and decision.",
                labels,
            )?,
            authorization_durations: registrar.histograms(
                "apiserver_impersonation_authorization_attempts_duration_seconds",
                "Latency of authorization checks made by the impersonation handler in seconds split by mode and \
                 decision.",
                labels,
                buckets()?,
            )?,
        })
    }

    /// An attempt of a request to impersonate.
    pub(crate) fn attempt(&self, mode: &str, decision: &str, took: Duration) {
        self.attempts.with_label_values(&[mode, decision]).inc();
        self.attempt_durations.with_label_values(&[mode, decision]).observe(took.as_secs_f64());
    }

    /// A question to the authorizer.
    pub(crate) fn authorization(&self, mode: &str, decision: &str, took: Duration) {
        self.authorizations.with_label_values(&[mode, decision]).inc();
        self.authorization_durations.with_label_values(&[mode, decision]).observe(took.as_secs_f64());
    }
}
