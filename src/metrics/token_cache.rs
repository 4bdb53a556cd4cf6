//! Metrics of the token caches. All caches share them, as in kube-apiserver.
// apiserver: pkg/authentication/token/cache/stats.go

use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge};

use super::gauge_guard::GaugeGuard;
use super::registrar::Registrar;

/// The series, resolved once: a cache hit must cost next to nothing. Cheap to clone.
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

impl TokenCacheMetrics {
    pub(super) fn new(registrar: &Registrar, panics: &IntCounter) -> prometheus::Result<Self> {
        let requests = registrar.counters(
            "authentication_token_cache_request_total",
            "Token cache lookups, by whether the token was cached.",
            &["status"],
        )?;
        let duration = registrar.histograms(
            "authentication_token_cache_request_duration_seconds",
            "Duration of token cache lookups, including the wait for an authenticator on a miss.",
            &["status"],
            prometheus::DEFAULT_BUCKETS.to_vec(),
        )?;
        let fetches = registrar.counters(
            "authentication_token_cache_fetch_total",
            "Authentications of tokens that were not cached.",
            &["status"],
        )?;
        let active = registrar.gauges(
            "authentication_token_cache_active_fetch_count",
            "Authentications of uncached tokens in progress (in_flight), and requests that wait for one (blocked).",
            &["status"],
        )?;
        Ok(Self {
            hits: requests.with_label_values(&["hit"]),
            hit_duration: duration.with_label_values(&["hit"]),
            misses: requests.with_label_values(&["miss"]),
            miss_duration: duration.with_label_values(&["miss"]),
            fetched: fetches.with_label_values(&["ok"]),
            failed: fetches.with_label_values(&["error"]),
            in_flight: active.with_label_values(&["in_flight"]),
            blocked: active.with_label_values(&["blocked"]),
            panics: panics.clone(),
        })
    }

    /// Records a cache hit.
    pub(crate) fn hit(&self, took: Duration) {
        self.hits.inc();
        self.hit_duration.observe(took.as_secs_f64());
    }

    /// Records a cache miss, with the time that the request waited for the result.
    pub(crate) fn miss(&self, took: Duration) {
        self.misses.inc();
        self.miss_duration.observe(took.as_secs_f64());
    }

    /// Records the end of an authentication. An unknown token does not count as an error.
    pub(crate) fn fetched(&self, is_error: bool) {
        if is_error { &self.failed } else { &self.fetched }.inc();
    }

    /// Records an authenticator that panicked.
    pub(crate) fn panicked(&self) {
        self.panics.inc();
    }

    /// Counts a request that waits for an authentication.
    pub(crate) fn blocked(&self) -> GaugeGuard {
        GaugeGuard::new(&self.blocked)
    }

    /// Counts an authentication in progress.
    pub(crate) fn in_flight(&self) -> GaugeGuard {
        GaugeGuard::new(&self.in_flight)
    }
}
