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
    /// By cluster, endpoint and kind of request.
    pub(crate) endpoint_in_flight: IntGaugeVec,
    /// By cluster, endpoint and result.
    pub(crate) probes: IntCounterVec,
    /// By cluster, endpoint and cause.
    pub(crate) ejections: IntCounterVec,
    /// By cluster and result.
    pub(crate) retries: IntCounterVec,
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
            endpoint_in_flight: registrar.gauges(
                "portcullis_endpoint_requests_in_flight",
                "Requests in progress at an endpoint, by cluster, endpoint and kind.",
                &["cluster", "endpoint", "kind"],
            )?,
            probes: registrar.counters(
                "portcullis_endpoint_probes_total",
                "Readiness probes of endpoints, by cluster, endpoint and result.",
                &["cluster", "endpoint", "result"],
            )?,
            ejections: registrar.counters(
                "portcullis_endpoint_ejections_total",
                "Times an endpoint got no new requests for a while, by cluster, endpoint and cause.",
                &["cluster", "endpoint", "cause"],
            )?,
            retries: registrar.counters(
                "portcullis_backend_retries_total",
                "Requests sent again to the backend, or refused that by the retry budget, by cluster and result.",
                &["cluster", "result"],
            )?,
        })
    }

    /// Removes the gauge of an endpoint that was removed from the configuration.
    pub(crate) fn forget_endpoint(&self, labels: &[String; 2]) {
        // An endpoint that was never checked has no gauge.
        self.endpoint_trusted.remove_label_values(labels).ok();
        let [cluster, endpoint] = labels;
        for kind in ["request", "watch"] {
            self.endpoint_in_flight.remove_label_values(&[cluster.as_str(), endpoint, kind]).ok();
        }
    }
}
