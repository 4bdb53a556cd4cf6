//! Metrics of the limits on requests in flight.
// apiserver: pkg/endpoints/metrics/metrics.go, pkg/util/flowcontrol/metrics/metrics.go

use prometheus::{HistogramVec, IntCounterVec, IntGauge, IntGaugeVec};

use super::registrar::Registrar;

/// Metrics of the limits on requests in flight.
#[derive(Debug)]
pub(crate) struct LimitMetrics {
    /// By `cluster` and `request_kind`.
    pub(crate) in_service: IntGaugeVec,
    /// By `cluster` and `request_kind`.
    pub(crate) waiting: IntGaugeVec,
    /// By `cluster` and `request_kind`.
    pub(crate) wait: HistogramVec,
    /// By `cluster`, `request_kind` and `reason`.
    pub(crate) rejected: IntCounterVec,
    /// Of all clusters.
    pub(crate) process_in_service: IntGauge,
    /// Of all streams and connections.
    pub(crate) buffered_bytes: IntGauge,
    /// The limit on them.
    pub(crate) max_buffered_bytes: IntGauge,
    /// By `owner`: `tenant`, `user`, `network`, `api_server`.
    pub(crate) buffer_resets: IntCounterVec,
    /// By `verb` and `code`.
    pub(crate) terminations: IntCounterVec,
}

impl LimitMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        let kind = ["cluster", "request_kind"];
        Ok(Self {
            in_service: registrar.gauges(
                "portcullis_inflight_requests",
                "Requests that hold a place of --max-requests-inflight or --max-mutating-requests-inflight.",
                &kind,
            )?,
            waiting: registrar.gauges(
                "portcullis_inqueue_requests",
                "Requests that wait for a place of --max-requests-inflight or --max-mutating-requests-inflight.",
                &kind,
            )?,
            wait: registrar.histograms(
                "portcullis_inqueue_wait_duration_seconds",
                "Time that requests have waited in a queue, whether they got a place or not.",
                &kind,
                vec![0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0],
            )?,
            rejected: registrar.counters(
                "portcullis_inflight_rejected_requests_total",
                "Requests refused with 429 by a limit on requests in flight.",
                &["cluster", "request_kind", "reason"],
            )?,
            process_in_service: registrar.gauge(
                "portcullis_process_inflight_requests",
                "Requests of all clusters that hold a place of --max-requests-inflight-total.",
            )?,
            buffered_bytes: registrar.gauge(
                "portcullis_buffered_bytes",
                "Bytes in the buffers of streams and connections: bodies and headers that wait for their receiver.",
            )?,
            max_buffered_bytes: registrar.gauge(
                "portcullis_buffered_bytes_limit",
                "The value of --max-buffered-bytes, or what it is by default.",
            )?,
            buffer_resets: registrar.counters(
                "portcullis_buffer_limit_resets_total",
                "Streams and connections ended to keep to --max-buffered-bytes: those of the owner with the most bytes.",
                &["owner"],
            )?,
            terminations: registrar.counters(
                "apiserver_request_terminations_total",
                "Number of requests which the gateway terminated in self-defense.",
                &["verb", "code"],
            )?,
        })
    }
}
