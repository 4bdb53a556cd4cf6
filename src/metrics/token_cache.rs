//! What is counted of remembered tokens: every cache of them counts here, as upstream's do.
// apiserver: pkg/authentication/token/cache/stats.go

use std::time::Duration;

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

/// The series, looked up once: a hit must cost next to nothing. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct TokenCacheMetrics {
    hits: IntCounter,
    hit_duration: Histogram,
    misses: IntCounter,
    miss_duration: Histogram,
    fetched: IntCounter,
    failed: IntCounter,
    in_flight: IntGauge,
    blocked: IntGauge,
    panics: IntCounter,
}

/// Up by one until it is dropped.
#[derive(Debug)]
pub(crate) struct GaugeGuard(IntGauge);

impl TokenCacheMetrics {
    pub(super) fn new(
        requests: &IntCounterVec,
        duration: &HistogramVec,
        fetches: &IntCounterVec,
        active: &IntGaugeVec,
        panics: &IntCounter,
    ) -> Self {
        Self {
            hits: requests.with_label_values(&["hit"]),
            hit_duration: duration.with_label_values(&["hit"]),
            misses: requests.with_label_values(&["miss"]),
            miss_duration: duration.with_label_values(&["miss"]),
            fetched: fetches.with_label_values(&["ok"]),
            failed: fetches.with_label_values(&["error"]),
            in_flight: active.with_label_values(&["in_flight"]),
            blocked: active.with_label_values(&["blocked"]),
            panics: panics.clone(),
        }
    }

    /// A token was remembered.
    pub(crate) fn hit(&self, took: Duration) {
        self.hits.inc();
        self.hit_duration.observe(took.as_secs_f64());
    }

    /// A token was not, and somebody waited for it.
    pub(crate) fn miss(&self, took: Duration) {
        self.misses.inc();
        self.miss_duration.observe(took.as_secs_f64());
    }

    /// A lookup ended; a token that nobody knows is no error.
    pub(crate) fn fetched(&self, is_error: bool) {
        if is_error { &self.failed } else { &self.fetched }.inc();
    }

    /// A lookup panicked.
    pub(crate) fn panicked(&self) {
        self.panics.inc();
    }

    /// Somebody waits for a lookup.
    pub(crate) fn blocked(&self) -> GaugeGuard {
        GaugeGuard::new(&self.blocked)
    }

    /// A lookup is in progress.
    pub(crate) fn in_flight(&self) -> GaugeGuard {
        GaugeGuard::new(&self.in_flight)
    }
}

impl GaugeGuard {
    fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
