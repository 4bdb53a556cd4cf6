//! Metrics of requests and their responses.
// apiserver: pkg/endpoints/metrics/metrics.go

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec};

use super::cached_vec::CachedMetricVec;
use super::exemplars::{Exemplar, Exemplars};
use super::registrar::Registrar;

/// The values of the label `verb`, as [`verb_label`] returns them.
const VERBS: [&str; 12] = [
    "GET",
    "LIST",
    "WATCH",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "DELETECOLLECTION",
    "CONNECT",
    "HEAD",
    "OPTIONS",
    "other",
];

const DURATION: &str = "apiserver_request_duration_seconds";
const DURATION_BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];

/// The numbers of requests in progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InProgressRequests {
    /// Requests that are not long-running.
    pub(crate) requests: i64,
    /// Watches, logs, tunnels and other long-running requests.
    pub(crate) long_running: i64,
}

/// Metrics of requests.
#[derive(Debug)]
pub(crate) struct RequestMetrics {
    /// By `verb` and `code`; the counters of code 200 are cached.
    total: CachedMetricVec<IntCounterVec>,
    /// By `verb`; without long-running requests, as in kube-apiserver.
    duration: CachedMetricVec<HistogramVec>,
    /// Of `duration`.
    exemplars: Exemplars,
    /// By `request_kind`: readOnly, mutating.
    pub(crate) inflight: CachedMetricVec<IntGaugeVec>,
    /// By `verb`.
    pub(crate) longrunning: CachedMetricVec<IntGaugeVec>,
}

impl RequestMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        Ok(Self {
            total: CachedMetricVec::new(
                registrar.counters(
                    "apiserver_request_total",
                    "Counter of requests broken out by verb and HTTP response code.",
                    &["verb", "code"],
                )?,
                &VERBS,
                &["200"],
            ),
            duration: CachedMetricVec::new(
                registrar.histograms(
                    DURATION,
                    "Response latency in seconds by verb, without long-running requests.",
                    &["verb"],
                    DURATION_BUCKETS.to_vec(),
                )?,
                &VERBS,
                &[],
            ),
            exemplars: Exemplars::new(DURATION, DURATION_BUCKETS.to_vec()),
            inflight: CachedMetricVec::new(
                registrar.gauges(
                    "apiserver_current_inflight_requests",
                    "Requests in progress that are not long-running, by kind.",
                    &["request_kind"],
                )?,
                &["readOnly", "mutating"],
                &[],
            ),
            longrunning: CachedMetricVec::new(
                registrar.gauges(
                    "apiserver_longrunning_requests",
                    "Long-running requests in progress, by verb.",
                    &["verb"],
                )?,
                &VERBS,
                &[],
            ),
        })
    }

    /// Counts a response.
    pub(crate) fn ended(&self, verb: &'static str, code: u16) {
        match code {
            200 => self.total.of(verb).inc(),
            code => self.total.all().with_label_values(&[verb, code.to_string().as_str()]).inc(),
        }
    }

    /// Records how long a request that is not long-running took. `exemplar` is its span, if it is sampled.
    pub(crate) fn answered(&self, verb: &'static str, took: Duration, exemplar: Option<Exemplar>) {
        let took = took.as_secs_f64();
        self.duration.of(verb).observe(took);
        if let Some(exemplar) = exemplar {
            self.exemplars.record(verb, took, exemplar);
        }
    }

    /// The exemplars of the durations.
    pub(super) fn exemplars(&self) -> &Exemplars {
        &self.exemplars
    }

    /// Sums the gauges of requests in progress.
    pub(crate) fn in_progress(&self) -> InProgressRequests {
        let sum = |gauges: &IntGaugeVec| -> i64 {
            let families = Collector::collect(gauges);
            let values = families.iter().flat_map(MetricFamily::get_metric);
            let sum: f64 = values.map(|metric| metric.get_gauge().get_value()).sum();
            #[expect(clippy::cast_possible_truncation, clippy::as_conversions, reason = "whole numbers")]
            let sum = sum as i64;
            sum
        };
        InProgressRequests { requests: sum(self.inflight.all()), long_running: sum(self.longrunning.all()) }
    }
}

/// Maps a request verb to the value of the label `verb`.
// apiserver: pkg/endpoints/metrics/metrics.go, CleanVerb
pub(crate) fn verb_label(verb: &str) -> &'static str {
    match verb {
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        "proxy" => "CONNECT",
        "head" => "HEAD",
        "options" => "OPTIONS",
        _ => "other",
    }
}
