//! Metrics of service-account tokens.
// kubernetes: pkg/serviceaccount/metrics.go

use prometheus::IntCounter;

use super::registrar::Registrar;

/// Metrics of service-account tokens. Clones share the same counters.
#[derive(Debug, Clone)]
pub(crate) struct ServiceAccountMetrics {
    /// Tokens without an audience.
    pub(crate) legacy: IntCounter,
    /// Tokens used after the time when the client should have replaced them.
    pub(crate) stale: IntCounter,
    /// Tokens used before the time when the client should replace them.
    pub(crate) valid: IntCounter,
    /// Tokens from secrets that Kubernetes generated for a service account.
    pub(crate) auto: IntCounter,
    /// Tokens from secrets that a user created.
    pub(crate) manual: IntCounter,
    /// Tokens from secrets that are marked invalid.
    pub(crate) invalid_auto: IntCounter,
}

impl ServiceAccountMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        Ok(Self {
            legacy: registrar.counter(
                "serviceaccount_legacy_tokens_total",
                "Service-account tokens without an audience.",
            )?,
            stale: registrar.counter(
                "serviceaccount_stale_tokens_total",
                "Service-account tokens used after the time when the client should have replaced them.",
            )?,
            valid: registrar.counter(
                "serviceaccount_valid_tokens_total",
                "Service-account tokens used before the time when the client should replace them.",
            )?,
            auto: registrar.counter(
                "serviceaccount_legacy_auto_token_uses_total",
                "Uses of tokens from secrets that Kubernetes generated for a service account.",
            )?,
            manual: registrar.counter(
                "serviceaccount_legacy_manual_token_uses_total",
                "Uses of tokens from secrets that a user created.",
            )?,
            invalid_auto: registrar.counter(
                "serviceaccount_invalid_legacy_auto_token_uses_total",
                "Uses of tokens from secrets that are marked invalid.",
            )?,
        })
    }
}
