//! What is counted of service-account tokens.
// kubernetes: pkg/serviceaccount/metrics.go

use prometheus::{IntCounter, Registry};

/// All that is counted. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct ServiceAccountMetrics {
    /// Tokens without an audience.
    pub(crate) legacy: IntCounter,
    /// Tokens past the time when they should have been replaced.
    pub(crate) stale: IntCounter,
    /// Tokens that are to be replaced at a time that is to come.
    pub(crate) valid: IntCounter,
    /// Tokens of secrets that were made for their service account.
    pub(crate) auto: IntCounter,
    /// Tokens of secrets that somebody made.
    pub(crate) manual: IntCounter,
    /// Tokens of secrets that are marked invalid.
    pub(crate) invalid_auto: IntCounter,
}

impl ServiceAccountMetrics {
    /// All at zero.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            prometheus::Result::Ok(counter)
        };
        Ok(Self {
            legacy: counter(
                "serviceaccount_legacy_tokens_total",
                "Service-account tokens without an audience.",
            )?,
            stale: counter(
                "serviceaccount_stale_tokens_total",
                "Service-account tokens that were used past the time when they should have been replaced.",
            )?,
            valid: counter(
                "serviceaccount_valid_tokens_total",
                "Service-account tokens that were used before the time when they should be replaced.",
            )?,
            auto: counter(
                "serviceaccount_legacy_auto_token_uses_total",
                "Uses of tokens in secrets that were made for their service account.",
            )?,
            manual: counter(
                "serviceaccount_legacy_manual_token_uses_total",
                "Uses of tokens in secrets that somebody made.",
            )?,
            invalid_auto: counter(
                "serviceaccount_invalid_legacy_auto_token_uses_total",
                "Uses of tokens in secrets that are marked invalid.",
            )?,
        })
    }
}
