//! Metrics of API servers as backends: forwarded requests and self-checks.

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};

use super::registrar::Registrar;

/// Every value of the label `result` of self-checks.
pub(crate) const SELF_CHECK_RESULTS: [&str; 14] = [
    "ok",
    "uid_missing",
    "unreachable",
    "inconclusive",
    "unauthorized",
    "other_user",
    "impersonation_forbidden",
    "forbidden",
    "identity_changed",
    "review_not_found",
    "unexpected_response",
    "header_names_forbidden",
    "other_cluster",
    "forwarding_loop",
];

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
    /// By cluster and endpoint.
    pub(crate) moved_watches: IntCounterVec,
    /// By cluster and result.
    pub(crate) retries: IntCounterVec,
    /// By cluster.
    discovery_up: IntGaugeVec,
    /// By cluster.
    discovered: IntGaugeVec,
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
            moved_watches: registrar.counters(
                "portcullis_endpoint_moved_watches_total",
                "Watches ended at an endpoint so that their clients move to another one, by cluster and endpoint.",
                &["cluster", "endpoint"],
            )?,
            retries: registrar.counters(
                "portcullis_backend_retries_total",
                "Requests sent again to the backend, or refused that by the retry budget, by cluster and result.",
                &["cluster", "result"],
            )?,
            discovery_up: registrar.gauges(
                "portcullis_endpoint_discovery_up",
                "Whether the last attempt to find the endpoints of a cluster has succeeded, by DNS or EndpointSlices.",
                &["cluster"],
            )?,
            discovered: registrar.gauges(
                "portcullis_discovered_endpoints",
                "Endpoints of a cluster that discovery has found last, with those beyond the limit.",
                &["cluster"],
            )?,
        })
    }

    /// Exports the outcome of an attempt to find endpoints: their number, or `None` if it failed.
    pub(crate) fn note_discovery(&self, cluster: &str, found: Option<usize>) {
        self.discovery_up.with_label_values(&[cluster]).set(i64::from(found.is_some()));
        if let Some(found) = found {
            let found = i64::try_from(found).unwrap_or(i64::MAX);
            self.discovered.with_label_values(&[cluster]).set(found);
        }
    }

    /// Removes the gauges of a cluster without discovery.
    pub(crate) fn forget_discovery(&self, cluster: &str) {
        // A cluster whose discovery never ended an attempt has none.
        self.discovery_up.remove_label_values(&[cluster]).ok();
        self.discovered.remove_label_values(&[cluster]).ok();
    }

    /// Removes the series of an endpoint that was removed.
    pub(crate) fn forget_endpoint(&self, labels: &[String; 2]) {
        // An endpoint that was never checked has no gauge.
        self.endpoint_trusted.remove_label_values(labels).ok();
        self.moved_watches.remove_label_values(labels).ok();
        let [cluster, endpoint] = labels;
        for kind in ["request", "watch"] {
            self.endpoint_in_flight.remove_label_values(&[cluster.as_str(), endpoint, kind]).ok();
        }
        // Addresses come and go by discovery: their counters would stay forever.
        for result in ["ready", "not_ready", "silent"] {
            self.probes.remove_label_values(&[cluster.as_str(), endpoint, result]).ok();
        }
        for cause in ["connect", "broken"] {
            self.ejections.remove_label_values(&[cluster.as_str(), endpoint, cause]).ok();
        }
        for result in SELF_CHECK_RESULTS {
            self.self_checks.remove_label_values(&[cluster.as_str(), endpoint, result]).ok();
        }
    }
}
