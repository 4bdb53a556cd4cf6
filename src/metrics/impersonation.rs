//! Metrics of impersonation.
// apiserver: pkg/endpoints/filters/impersonation/metrics/metrics.go

use std::time::Duration;

use prometheus::{HistogramVec, exponential_buckets};

use super::cached_vec::CachedMetricVec;
use super::registrar::Registrar;

/// The modes of impersonation, and that of a refused one. Most attempts are in the first: the modes are compared in order.
const MODES: [&str; 6] = ["legacy", "user-info", "serviceaccount", "associated-node", "arbitrary-node", ""];
const ALLOWED: &[&str] = &["allowed"];
const DENIED: &[&str] = &["denied"];

/// Metrics of impersonation, by mode and decision. The mode of a refused impersonation is empty. The numbers of attempts and
/// questions are those that their histograms count.
#[derive(Debug)]
pub(crate) struct ImpersonationMetrics {
    /// By decision: allowed and denied.
    attempts: [CachedMetricVec<HistogramVec>; 2],
    authorizations: HistogramVec,
}

impl ImpersonationMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        let labels = &["mode", "decision"];
        let buckets = || exponential_buckets(0.001, 2.0, 15);
        let attempts = registrar.histograms(
            "apiserver_impersonation_attempts_duration_seconds",
            "Latency of impersonation attempts in seconds split by mode and decision.",
            labels,
            buckets()?,
        )?;
        registrar.observations(
            "apiserver_impersonation_attempts_total",
            "Total number of impersonation attempts split by mode and decision.",
            labels,
            &attempts,
        )?;
        let authorizations = registrar.histograms(
            "apiserver_impersonation_authorization_attempts_duration_seconds",
            "Latency of authorization checks made by the impersonation handler in seconds split by mode and \
             decision.",
            labels,
            buckets()?,
        )?;
        registrar.observations(
            "apiserver_impersonation_authorization_attempts_total",
            "Total number of authorization checks made by the impersonation handler split by mode and decision.",
            labels,
            &authorizations,
        )?;
        let attempts =
            [ALLOWED, DENIED].map(|decision| CachedMetricVec::new(attempts.clone(), &MODES, decision));
        Ok(Self { attempts, authorizations })
    }

    /// An attempt of a request to impersonate.
    pub(crate) fn attempt(&self, mode: &str, is_allowed: bool, took: Duration) {
        let [allowed, denied] = &self.attempts;
        let attempts = if is_allowed { allowed } else { denied };
        attempts.of(mode).observe(took.as_secs_f64());
    }

    /// A question to the authorizer.
    pub(crate) fn authorization(&self, mode: &str, decision: &str, took: Duration) {
        self.authorizations.with_label_values(&[mode, decision]).observe(took.as_secs_f64());
    }
}
