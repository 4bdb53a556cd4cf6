//! Metrics of the Kubernetes objects that tokens are validated against.

use prometheus::{IntCounterVec, IntGaugeVec};

use super::registrar::Registrar;

/// Metrics of the Kubernetes objects that tokens are validated against.
#[derive(Debug)]
pub(crate) struct TokenObjectMetrics {
    /// By cluster, resource and `source`: `watch`, `live`, `rate_limited`.
    pub(crate) lookups: IntCounterVec,
    /// By cluster and resource.
    pub(crate) stale_watches: IntGaugeVec,
    /// By cluster and `result`: success, failure.
    pub(crate) key_fetches: IntCounterVec,
}

impl TokenObjectMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        Ok(Self {
            lookups: registrar.counters(
                "portcullis_lookups_total",
                "Lookups of objects by authenticators, by source: watch (cache), live (a read), or rate_limited (not read: lookups for unverified tokens exceeded their rate limit).",
                &["cluster", "resource", "source"],
            )?,
            stale_watches: registrar.gauges(
                "portcullis_stale_watches",
                "Watches of token objects without a sign of life for 20s: each token costs a read until the watch recovers.",
                &["cluster", "resource"],
            )?,
            key_fetches: registrar.counters(
                "portcullis_service_account_key_fetches_total",
                "Fetches of the service-account token keys from the API server (/openid/v1/jwks), by cluster and result.",
                &["cluster", "result"],
            )?,
        })
    }
}
