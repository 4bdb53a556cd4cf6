//! Metrics of client connections.

use prometheus::{IntCounter, IntCounterVec};

use super::registrar::Registrar;

/// Metrics of client connections.
#[derive(Debug)]
pub(crate) struct ConnectionMetrics {
    /// TLS handshakes that failed.
    pub(crate) tls_handshake_errors: IntCounter,
    /// By `reason`: `max_connections`, `unauthenticated_limit`, `tenant_limit`, `descriptors`.
    pub(crate) refused: IntCounterVec,
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
        Ok(Self {
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
}
