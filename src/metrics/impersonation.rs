//! Metrics of impersonation.
// apiserver: pkg/endpoints/filters/impersonation/metrics/metrics.go

use std::time::Duration;

use prometheus::{HistogramVec, IntCounterVec, exponential_buckets};

use super::cached_vec::CachedMetricVec;
use super::registrar::Registrar;

/// The modes of impersonation, and that of a refused one.
const MODES: [&str; 6] = ["", "associated-node", "arbitrary-node", "serviceaccount", "user-info", "legacy"];
const ALLOWED: &[&str] = &["allowed"];
const DENIED: &[&str] = &["denied"];

/// Metrics of impersonation, by mode and decision. The mode of a refused impersonation is empty.
#[derive(Debug)]
pub(crate) struct ImpersonationMetrics {
    /// By decision: allowed and denied.
    attempts: [CachedMetricVec<IntCounterVec>; 2],
    attempt_durations: [CachedMetricVec<HistogramVec>; 2],
    authorizations: IntCounterVec,
    authorization_durations: HistogramVec,
}

impl ImpersonationMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        let labels = &["mode", "decision"];
        let buckets = || exponential_buckets(0.001, 2.0, 15);
        let attempts = registrar.counters(
            "apiserver_impersonation_attempts_total",
            "Total number of impersonation attempts split by mode and decision.",
            labels,
        )?;
        let attempt_durations = registrar.histograms(
            "apiserver_impersonation_attempts_duration_seconds",
            "Latency of impersonation attempts in seconds split by mode and decision.",
            labels,
            buckets()?,
        )?;
        Ok(Self {
            attempts: [ALLOWED, DENIED]
                .map(|decision| CachedMetricVec::new(attempts.clone(), &MODES, decision)),
            attempt_durations: [ALLOWED, DENIED]
                .map(|decision| CachedMetricVec::new(attempt_durations.clone(), &MODES, decision)),
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
    pub(crate) fn attempt(&self, mode: &str, is_allowed: bool, took: Duration) {
        let Self { attempts: [allowed, denied], attempt_durations: [allowed_in, denied_in], .. } = self;
        let (attempts, durations) = if is_allowed { (allowed, allowed_in) } else { (denied, denied_in) };
        attempts.of(mode).inc();
        durations.of(mode).observe(took.as_secs_f64());
    }

    /// A question to the authorizer.
    pub(crate) fn authorization(&self, mode: &str, decision: &str, took: Duration) {
        self.authorizations.with_label_values(&[mode, decision]).inc();
        self.authorization_durations.with_label_values(&[mode, decision]).observe(took.as_secs_f64());
    }
}
