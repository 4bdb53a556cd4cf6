//! Metrics of API servers as backends: forwarded requests and self-checks.

use std::sync::OnceLock;

use portcullis_limits::budget::Budget;
use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::cluster_histogram::ClusterHistogram;
use super::registrar::Registrar;

/// Every value of the label `cause` of retries.
pub(crate) const RETRY_CAUSES: [&str; 4] = ["not_written", "not_processed", "broken", "silent"];
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

/// Every value of the label `lane` of connections.
pub(crate) const LANES: [&str; 6] = ["short", "watch", "extension", "relayed", "http1", "tunnel"];

/// Every value of the label `result` of attempts to connect.
pub(crate) const DIAL_RESULTS: [&str; 6] = ["connected", "connect", "timeout", "tls", "http", "local"];

/// Few: each cluster has them.
const CONNECTION_BUCKETS: [f64; 5] = [0.005, 0.05, 0.5, 1.0, 5.0];

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
    /// By cluster and endpoint.
    pub(crate) returns: IntCounterVec,
    /// By cluster, endpoint and kind of request.
    pub(crate) picks: IntCounterVec,
    /// By cluster, endpoint and lane.
    pub(crate) connections: IntGaugeVec,
    /// By cluster, endpoint and lane.
    pub(crate) streams: IntGaugeVec,
    /// By cluster, endpoint and result.
    pub(crate) dials: IntCounterVec,
    /// By cluster and endpoint.
    pub(crate) waiting: IntGaugeVec,
    /// By cluster.
    dial_duration: HistogramVec,
    /// By cluster.
    connection_wait: HistogramVec,
    /// By cluster, cause and result.
    pub(crate) retries: IntCounterVec,
    /// By cluster.
    discovery_up: IntGaugeVec,
    /// By cluster.
    discovered: IntGaugeVec,
    /// The places for connections of the process, of which each exposition takes over the numbers.
    places: OnceLock<Budget>,
    /// By the kind of the owner.
    open_by_owner: IntGaugeVec,
    max_connections: IntGauge,
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
                "Requests sent again to the backend, or refused that by the retry budget, by cluster, cause and result.",
                &["cluster", "cause", "result"],
            )?,
            returns: registrar.counters(
                "portcullis_endpoint_returns_total",
                "Times an endpoint answered again after it had got no new requests, by cluster and endpoint.",
                &["cluster", "endpoint"],
            )?,
            picks: registrar.counters(
                "portcullis_endpoint_picks_total",
                "Requests for which an endpoint was chosen, by cluster, endpoint and kind.",
                &["cluster", "endpoint", "kind"],
            )?,
            connections: registrar.gauges(
                "portcullis_endpoint_connections",
                "Open connections to an endpoint, by cluster, endpoint and lane.",
                &["cluster", "endpoint", "lane"],
            )?,
            streams: registrar.gauges(
                "portcullis_endpoint_streams",
                "HTTP/2 streams in use at an endpoint, by cluster, endpoint and lane.",
                &["cluster", "endpoint", "lane"],
            )?,
            dials: registrar.counters(
                "portcullis_endpoint_dials_total",
                "Attempts to connect to an endpoint for requests, by cluster, endpoint and result.",
                &["cluster", "endpoint", "result"],
            )?,
            waiting: registrar.gauges(
                "portcullis_endpoint_waiting_requests",
                "Requests that wait for a connection to an endpoint, by cluster and endpoint.",
                &["cluster", "endpoint"],
            )?,
            dial_duration: registrar.histograms(
                "portcullis_backend_dial_duration_seconds",
                "Time to establish TCP and TLS with an endpoint of a cluster, without failed attempts.",
                &["cluster"],
                CONNECTION_BUCKETS.to_vec(),
            )?,
            connection_wait: registrar.histograms(
                "portcullis_backend_connection_wait_duration_seconds",
                "Time that requests have waited for a connection to an endpoint of a cluster, if none was free.",
                &["cluster"],
                CONNECTION_BUCKETS.to_vec(),
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
            places: OnceLock::new(),
            open_by_owner: registrar.gauges(
                "portcullis_backend_connections",
                "Open connections to API servers, with those being made, by whose share they count in: gateway, tenant or user.",
                &["owner"],
            )?,
            max_connections: registrar.gauge(
                "portcullis_backend_max_connections",
                "The most connections to API servers that the limit of open files allows.",
            )?,
        })
    }

    /// Exposes the places for connections of the process; those of a second one are not exposed.
    pub(crate) fn expose_connections(&self, places: Budget) {
        self.places.get_or_init(|| places);
    }

    /// Takes over the numbers of connections.
    pub(super) fn update(&self) {
        let Some(places) = self.places.get() else { return };
        let usage = places.usage();
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let by_owner = [
            ("gateway", usage.privileged),
            ("tenant", usage.tenants),
            ("user", usage.others + usage.networks),
        ];
        for (owner, count) in by_owner {
            self.open_by_owner.with_label_values(&[owner]).set(number(count));
        }
        self.max_connections.set(number(places.shares().total()));
    }

    /// The timings of a cluster's backend.
    pub(crate) fn timings(&self, cluster: &str) -> BackendTimings {
        BackendTimings {
            dial: ClusterHistogram::new(&self.dial_duration, cluster),
            connection_wait: ClusterHistogram::new(&self.connection_wait, cluster),
        }
    }

    /// Removes the timings of a cluster that was removed.
    pub(crate) fn forget_cluster(&self, cluster: &str) {
        for cause in RETRY_CAUSES {
            for result in ["sent", "over_budget"] {
                self.retries.remove_label_values(&[cluster, cause, result]).ok();
            }
        }
        // A cluster to which no connection was made has none.
        self.dial_duration.remove_label_values(&[cluster]).ok();
        self.connection_wait.remove_label_values(&[cluster]).ok();
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

    /// Removes the series of an endpoint that was removed. Addresses come and go by discovery: even its counters would
    /// stay forever.
    pub(crate) fn forget_endpoint(&self, labels: &[String; 2]) {
        // An endpoint that was never checked, or never used, lacks some of them.
        self.endpoint_trusted.remove_label_values(labels).ok();
        self.moved_watches.remove_label_values(labels).ok();
        self.waiting.remove_label_values(labels).ok();
        self.returns.remove_label_values(labels).ok();
        let [cluster, endpoint] = labels;
        let of = |value: &'static str| [cluster.as_str(), endpoint, value];
        for kind in ["request", "watch"] {
            self.endpoint_in_flight.remove_label_values(&of(kind)).ok();
            self.picks.remove_label_values(&of(kind)).ok();
        }
        for lane in LANES {
            self.connections.remove_label_values(&of(lane)).ok();
            self.streams.remove_label_values(&of(lane)).ok();
        }
        for result in DIAL_RESULTS {
            self.dials.remove_label_values(&of(result)).ok();
        }
        for result in ["ready", "not_ready", "silent"] {
            self.probes.remove_label_values(&of(result)).ok();
        }
        for cause in ["connect", "broken"] {
            self.ejections.remove_label_values(&of(cause)).ok();
        }
        for result in SELF_CHECK_RESULTS {
            self.self_checks.remove_label_values(&of(result)).ok();
        }
    }
}

/// How long connections to one backend take. The default exposes nothing.
#[derive(Debug, Default)]
pub(crate) struct BackendTimings {
    /// Until TCP and TLS are established.
    pub(crate) dial: ClusterHistogram,
    /// Until a request has a connection, if none was free.
    pub(crate) connection_wait: ClusterHistogram,
}
