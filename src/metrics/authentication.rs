//! Metrics of authentication.
// apiserver: pkg/endpoints/filters/metrics.go

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, exponential_buckets};

use super::cached_vec::CachedMetricVec;
use super::registrar::Registrar;

/// The values of the label `result`.
const RESULTS: [&str; 3] = ["success", "failure", "error"];
/// The most frequent values of the label `username`, as [`compressed_username`] returns them.
const USERNAMES: [&str; 2] = ["other", "email_id"];

/// Metrics of authentication.
#[derive(Debug)]
pub(crate) struct AuthenticationMetrics {
    /// By `result`: success, failure, error.
    pub(crate) attempts: CachedMetricVec<IntCounterVec>,
    /// By `result`.
    pub(crate) duration: CachedMetricVec<HistogramVec>,
    /// By `username`, see [`compressed_username`].
    pub(crate) user_requests: CachedMetricVec<IntCounterVec>,
    /// The remaining lifetime of client certificates.
    pub(crate) client_certificate_expiration: Histogram,
    /// Credentials that named the gateway's own user, by method.
    pub(crate) reserved_identities: IntCounterVec,
    /// Webhook calls that failed because the serving certificate has a common name only.
    pub(crate) webhook_missing_san: IntCounter,
}

impl AuthenticationMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        Ok(Self {
            attempts: CachedMetricVec::new(
                registrar.counters(
                    "authentication_attempts",
                    "Counter of authenticated attempts.",
                    &["result"],
                )?,
                &RESULTS,
                &[],
            ),
            duration: CachedMetricVec::new(
                registrar.histograms(
                    "authentication_duration_seconds",
                    "Authentication duration in seconds broken out by result.",
                    &["result"],
                    exponential_buckets(0.001, 2.0, 15)?,
                )?,
                &RESULTS,
                &[],
            ),
            user_requests: CachedMetricVec::new(
                registrar.counters(
                    "authenticated_user_requests",
                    "Counter of authenticated requests broken out by username.",
                    &["username"],
                )?,
                &USERNAMES,
                &[],
            ),
            client_certificate_expiration: registrar.histogram(
                "apiserver_client_certificate_expiration_seconds",
                "Distribution of the remaining lifetime on the certificate used to authenticate a request.",
                expiration_buckets(),
            )?,
            reserved_identities: registrar.counters(
                "portcullis_reserved_identities_total",
                "Credentials refused because they name the gateway's own user, system:portcullis, by authentication method.",
                &["method"],
            )?,
            // apiserver: pkg/util/webhook/metrics.go
            webhook_missing_san: registrar.counter(
                "apiserver_webhooks_x509_missing_san_total",
                "Counter of connections to webhooks that failed for a certificate without a subject alternative name.",
            )?,
        })
    }
}

fn expiration_buckets() -> Vec<f64> {
    let (minute, hour, day) = (60.0, 3600.0, 86_400.0);
    vec![
        0.0,
        30.0 * minute,
        hour,
        2.0 * hour,
        6.0 * hour,
        12.0 * hour,
        day,
        2.0 * day,
        4.0 * day,
        7.0 * day,
        30.0 * day,
        90.0 * day,
        180.0 * day,
        365.0 * day,
    ]
}

/// Maps a user name to one of the few values of the label `username`, as kube-apiserver does.
// apiserver: pkg/endpoints/filters/metrics.go, compressUsername
pub(crate) fn compressed_username(name: &str) -> &'static str {
    match name {
        "admin" => "admin",
        "client" => "client",
        "kube_proxy" => "kube_proxy",
        "kubelet" => "kubelet",
        "system:serviceaccount:kube-system:default" => "system:serviceaccount:kube-system:default",
        name if name.contains('@') => "email_id",
        _ => "other",
    }
}
