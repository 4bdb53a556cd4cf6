//! Metrics of client connections.

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge};

use super::registrar::Registrar;

/// Metrics of client connections.
#[derive(Debug)]
pub(crate) struct ConnectionMetrics {
    /// Open connections over HTTP/1.1.
    pub(crate) open_http1: IntGauge,
    /// Open connections over HTTP/2.
    pub(crate) open_http2: IntGauge,
    /// Of handshakes that succeeded.
    pub(crate) tls_handshake_duration: Histogram,
    /// TLS handshakes that failed.
    tls_handshake_errors: IntCounter,
    /// By `cause`, see `listener::handshake_failure`.
    tls_handshake_failures: IntCounterVec,
    /// By `reason`: `max_connections`, `unauthenticated_limit`, `authenticated_limit`, `tenant_limit`, `descriptors`.
    pub(crate) refused: IntCounterVec,
    /// Open connections by the kind of the owner in whose share they count: `network`, `tenant`, `user`.
    pub(crate) by_owner: [IntGauge; 3],
    /// By the kind of the owner that had the most connections: `tenant`, `user`.
    pub(crate) displaced: IntCounterVec,
    /// Connections whose load balancer has named the client, and which were not refused.
    pub(crate) proxied: IntCounter,
    /// By `reason`: `malformed`, `unaccepted_version`, `timeout`, `closed`, `untrusted`.
    pub(crate) proxy_protocol_errors: IntCounterVec,
    /// HTTP/2 connections closed because the client exceeded the stream reset limit.
    pub(crate) reset_limit_closed: IntCounter,
    /// By `reason`: `expired`, `refused`.
    pub(crate) ended_streams: IntCounterVec,
}

impl ConnectionMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        let open = registrar.gauges(
            "portcullis_client_connections",
            "Open connections of clients, with their tunnels, by protocol.",
            &["protocol"],
        )?;
        let by_owner = registrar.gauges(
            "portcullis_client_connections_by_owner",
            "Open connections of clients by whose share they count in: that of a network until a request has authenticated, then of a tenant or a user.",
            &["owner"],
        )?;
        Ok(Self {
            by_owner: ["network", "tenant", "user"].map(|owner| by_owner.with_label_values(&[owner])),
            displaced: registrar.counters(
                "portcullis_displaced_connections_total",
                "Connections closed because their tenant or user had the most when another one needed room, by the kind of the owner.",
                &["owner"],
            )?,
            open_http1: open.with_label_values(&["http/1.1"]),
            open_http2: open.with_label_values(&["h2"]),
            tls_handshake_duration: registrar.histogram(
                "portcullis_tls_handshake_duration_seconds",
                "Time from the acceptance of a connection to the end of its TLS handshake, without failed ones.",
                vec![0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0],
            )?,
            tls_handshake_failures: registrar.counters(
                "portcullis_tls_handshake_failures_total",
                "TLS handshakes that failed, by cause.",
                &["cause"],
            )?,
            tls_handshake_errors: registrar
                .counter("apiserver_tls_handshake_errors_total", "Number of TLS handshakes that failed.")?,
            refused: registrar.counters(
                "portcullis_refused_connections_total",
                "Connections closed without service, or not accepted in time, by the limit that was reached.",
                &["reason"],
            )?,
            proxied: registrar.counter(
                "portcullis_proxy_protocol_connections_total",
                "Connections accepted with a PROXY protocol header.",
            )?,
            proxy_protocol_errors: registrar.counters(
                "portcullis_proxy_protocol_errors_total",
                "Connections closed because of a missing, malformed or unexpected PROXY protocol header.",
                &["reason"],
            )?,
            ended_streams: registrar.counters(
                "portcullis_streams_ended_with_credential_total",
                "Long-running responses that ended because their credential has expired or is refused.",
                &["reason"],
            )?,
            reset_limit_closed: registrar.counter(
                "portcullis_reset_limit_closed_connections_total",
                "Connections closed because the client exceeded the HTTP/2 stream reset limit.",
            )?,
        })
    }

    /// Counts a TLS handshake that failed.
    pub(crate) fn handshake_failed(&self, cause: &'static str) {
        self.tls_handshake_errors.inc();
        self.tls_handshake_failures.with_label_values(&[cause]).inc();
    }
}
