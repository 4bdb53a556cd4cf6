//! Metrics of API servers as backends: forwarded requests and self-checks.

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};

use super::registrar::Registrar;

/// Metrics of API servers as backends.
#[derive(Debug)]
pub(crate) struct BackendMetrics {
    /// By `cause`, see `ForwardError::backend_cause`.
    pub(crate) errors: IntCounterVec,
    /// Requests refused because no header can carry their identity.
    pub(crate) unencodable_identities: IntCounter,
    /// By cluster, endpoint and result.
    pub(crate) self_checks: IntCounterVec,
    /// By cluster and endpoint.
    pub(crate) endpoint_trusted: IntGaugeVec,
}

impl BackendMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        Ok(Self {
            errors: registrar.counters(
                "portcullis_backend_errors_total",
                "Requests that failed at the backend, by cause.",
                &["cause"],
            )?,
            unencodable_identities: registrar.counter(
                "portcullis_unencodable_identities_total",
                "Requests refused because no header can carry their identity byte for byte.",
            )?,
            self_checks: registrar.counters(
                "portcullis_self_checks_total",
                "Self-checks of whether an API server accepts forwarded identities unchanged, by cluster, endpoint and result.",
                &["cluster", "endpoint", "result"],
            )?,
            endpoint_trusted: registrar.gauges(
                "portcullis_endpoint_trusted",
                "Whether the gateway forwards requests to an endpoint: 1 after a passed self-check.",
                &["cluster", "endpoint"],
            )?,
        })
    }

    /// Removes the gauge of an endpoint that was removed from the configuration.
    pub(crate) fn forget_endpoint(&self, labels: &[String; 2]) {
        // An endpoint that was never checked has no gauge.
        self.endpoint_trusted.remove_label_values(labels).ok();
    }
}
