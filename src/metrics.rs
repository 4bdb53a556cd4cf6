//! Counters and histograms, under kube-apiserver's names where it has one. Labels never carry what a client chose:
//! paths, names and resources are unbounded.
// apiserver: pkg/endpoints/filters/metrics.go, pkg/endpoints/metrics/metrics.go

pub(crate) mod controllers;
pub(crate) mod jwt;
mod known;
pub(crate) mod service_accounts;
mod token_cache;

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{
    Encoder as _, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder, exponential_buckets,
};

use known::CachedMetricVec;
pub(crate) use token_cache::{GaugeGuard, TokenCacheMetrics};

use crate::clock::UnixTime;

/// What authentication comes to.
const RESULTS: [&str; 3] = ["success", "failure", "error"];
/// What [`compressed_username`] says of most.
const USERNAMES: [&str; 2] = ["other", "email_id"];
/// What [`verb_label`] says.
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

/// How many requests are being answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InProgressRequests {
    /// Those that are answered soon.
    pub(crate) requests: i64,
    /// Watches, logs, tunnels, and what else may last.
    pub(crate) long_running: i64,
}

/// Everything that is counted. One for the process.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    /// By `result`: success, failure, error.
    pub(crate) authentication_attempts: CachedMetricVec<IntCounterVec>,
    /// By `result`.
    pub(crate) authentication_duration: CachedMetricVec<HistogramVec>,
    /// By `username`, compressed to a handful.
    pub(crate) authenticated_user_requests: CachedMetricVec<IntCounterVec>,
    /// What is remembered of tokens.
    pub(crate) token_cache: TokenCacheMetrics,
    /// Webhooks that could not be asked because their certificate has a common name alone.
    pub(crate) webhook_missing_san: IntCounter,
    /// The remaining lifetime of client certificates.
    pub(crate) client_certificate_expiration: Histogram,
    /// By verb, with the code of most.
    requests: CachedMetricVec<IntCounterVec>,
    /// By `verb`; long-running requests are left out, as upstream does.
    pub(crate) request_duration: CachedMetricVec<HistogramVec>,
    /// By `request_kind`: readOnly, mutating.
    pub(crate) inflight: CachedMetricVec<IntGaugeVec>,
    /// By `verb`.
    pub(crate) longrunning: CachedMetricVec<IntGaugeVec>,
    /// Handshakes that did not end well.
    pub(crate) tls_handshake_errors: IntCounter,
    /// By `reason`: `max_connections`, `unauthenticated_limit`, `descriptors`.
    pub(crate) refused_connections: IntCounterVec,
    /// Connections that were ended because their client took back too many requests.
    pub(crate) reset_limit_closed_connections: IntCounter,
    /// By `cause`: connect, broken, timeout, `refused_identity`, `unasked_switch`, `answer_too_large`.
    pub(crate) backend_errors: IntCounterVec,
    /// Identities that no header can carry.
    pub(crate) unencodable_identities: IntCounter,
    /// Panics, each of which ended what it was about and nothing else.
    pub(crate) panics: IntCounter,
    /// By cluster, resource and `source`: watch, live, spared.
    pub(crate) lookups: IntCounterVec,
    /// By cluster and resource.
    pub(crate) stale_watches: IntGaugeVec,
    /// By cluster and `result`: success, failure.
    pub(crate) service_account_key_fetches: IntCounterVec,
    /// Credentials that named the gateway's own user, by method.
    pub(crate) reserved_identities: IntCounterVec,
    /// By cluster, endpoint and result.
    pub(crate) self_checks: IntCounterVec,
    /// By cluster and endpoint.
    pub(crate) endpoint_trusted: IntGaugeVec,
    /// What is counted of service-account tokens.
    pub(crate) service_accounts: service_accounts::ServiceAccountMetrics,
    /// What is counted of controllers.
    pub(crate) controllers: controllers::ControllerMetrics,
    /// What is counted of issuers of JSON Web Tokens.
    pub(crate) jwt: jwt::JwtMetrics,
    /// By `result`: success, failure.
    config_reloads: IntCounterVec,
    config_last_reload_successful: IntGauge,
    config_last_success: IntGauge,
    config_generation: IntGauge,
}

impl Metrics {
    /// All at zero.
    pub(crate) fn new() -> Self {
        // Each name and label is a constant of this function; a test builds them all.
        #[expect(clippy::expect_used, reason = "constant names, built by a test")]
        Self::build().expect("metric names are valid and unique")
    }

    fn build() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let counters = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<IntCounterVec> {
            let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counters.clone()))?;
            Ok(counters)
        };
        let counter = |name: &str, help: &str| -> prometheus::Result<IntCounter> {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<IntGaugeVec> {
            let gauges = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(gauges.clone()))?;
            Ok(gauges)
        };
        let gauge = |name: &str, help: &str| -> prometheus::Result<IntGauge> {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let histograms = |name: &str,
                          help: &str,
                          labels: &[&str],
                          buckets: Vec<f64>|
         -> prometheus::Result<HistogramVec> {
            let histograms = HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), labels)?;
            registry.register(Box::new(histograms.clone()))?;
            Ok(histograms)
        };
        let (minute, hour, day) = (60.0, 3600.0, 86_400.0);
        let expiration = Histogram::with_opts(
            HistogramOpts::new(
                "apiserver_client_certificate_expiration_seconds",
                "Distribution of the remaining lifetime on the certificate used to authenticate a request.",
            )
            .buckets(vec![
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
            ]),
        )?;
        registry.register(Box::new(expiration.clone()))?;
        let panics = counter(
            "portcullis_panics_total",
            "Panics, each of which ended what it was about and nothing else.",
        )?;
        Ok(Self {
            authentication_attempts: CachedMetricVec::new(
                counters("authentication_attempts", "Counter of authenticated attempts.", &["result"])?,
                &RESULTS,
                &[],
            ),
            authentication_duration: CachedMetricVec::new(
                histograms(
                    "authentication_duration_seconds",
                    "Authentication duration in seconds broken out by result.",
                    &["result"],
                    exponential_buckets(0.001, 2.0, 15)?,
                )?,
                &RESULTS,
                &[],
            ),
            authenticated_user_requests: CachedMetricVec::new(
                counters(
                    "authenticated_user_requests",
                    "Counter of authenticated requests broken out by username.",
                    &["username"],
                )?,
                &USERNAMES,
                &[],
            ),
            token_cache: TokenCacheMetrics::new(
                &counters(
                    "authentication_token_cache_request_total",
                    "Tokens that were looked up in a cache of verdicts, by whether they were there.",
                    &["status"],
                )?,
                &histograms(
                    "authentication_token_cache_request_duration_seconds",
                    "How long that took, with the wait for a verdict that was not there.",
                    &["status"],
                    prometheus::DEFAULT_BUCKETS.to_vec(),
                )?,
                &counters(
                    "authentication_token_cache_fetch_total",
                    "Verdicts on tokens that were not in a cache.",
                    &["status"],
                )?,
                &gauges(
                    "authentication_token_cache_active_fetch_count",
                    "Verdicts in the making (in_flight), and requests that wait for one (blocked).",
                    &["status"],
                )?,
                &panics,
            ),
            // apiserver: pkg/util/webhook/metrics.go
            webhook_missing_san: counter(
                "apiserver_webhooks_x509_missing_san_total",
                "Counter of connections to webhooks that failed for a certificate without a subject alternative name.",
            )?,
            client_certificate_expiration: expiration,
            requests: CachedMetricVec::new(
                counters(
                    "apiserver_request_total",
                    "Counter of requests broken out by verb and HTTP response code.",
                    &["verb", "code"],
                )?,
                &VERBS,
                &["200"],
            ),
            request_duration: CachedMetricVec::new(
                histograms(
                    "apiserver_request_duration_seconds",
                    "Response latency in seconds by verb, long-running requests left out.",
                    &["verb"],
                    vec![
                        0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0,
                        8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
                    ],
                )?,
                &VERBS,
                &[],
            ),
            inflight: CachedMetricVec::new(
                gauges(
                    "apiserver_current_inflight_requests",
                    "Requests in progress that are not long-running, by kind.",
                    &["request_kind"],
                )?,
                &["readOnly", "mutating"],
                &[],
            ),
            longrunning: CachedMetricVec::new(
                gauges(
                    "apiserver_longrunning_requests",
                    "Long-running requests in progress, by verb.",
                    &["verb"],
                )?,
                &VERBS,
                &[],
            ),
            tls_handshake_errors: counter(
                "apiserver_tls_handshake_errors_total",
                "Number of TLS handshakes that did not end well.",
            )?,
            refused_connections: counters(
                "portcullis_refused_connections_total",
                "Connections that were closed unserved or not accepted in time, by what there were too many of.",
                &["reason"],
            )?,
            reset_limit_closed_connections: counter(
                "portcullis_reset_limit_closed_connections_total",
                "Connections that were ended because their client took back too many requests.",
            )?,
            backend_errors: counters(
                "portcullis_backend_errors_total",
                "Requests that got no answer from the backend, by cause.",
                &["cause"],
            )?,
            unencodable_identities: counter(
                "portcullis_unencodable_identities_total",
                "Requests refused because no header can carry their identity byte for byte.",
            )?,
            panics,
            lookups: counters(
                "portcullis_lookups_total",
                "Objects that authenticators asked for, by where the answer came from: watch, live, or spared (not read, since tokens that anybody can make up asked for too many).",
                &["cluster", "resource", "source"],
            )?,
            stale_watches: gauges(
                "portcullis_stale_watches",
                "Watches of objects that tokens are judged by of which nothing was heard for 20s: each token costs a read until something is.",
                &["cluster", "resource"],
            )?,
            service_account_key_fetches: counters(
                "portcullis_service_account_key_fetches_total",
                "Fetches of the keys of service-account tokens from the API server (/openid/v1/jwks), by cluster and result.",
                &["cluster", "result"],
            )?,
            reserved_identities: counters(
                "portcullis_reserved_identities_total",
                "Credentials that were refused because they name the gateway's own user, system:portcullis, by authentication method.",
                &["method"],
            )?,
            self_checks: counters(
                "portcullis_self_checks_total",
                "Checks whether an API server takes identities as they are, by cluster, endpoint and result.",
                &["cluster", "endpoint", "result"],
            )?,
            endpoint_trusted: gauges(
                "portcullis_endpoint_trusted",
                "Whether requests go to an endpoint: 1 once it was seen to take identities as they are.",
                &["cluster", "endpoint"],
            )?,
            service_accounts: service_accounts::ServiceAccountMetrics::new(&registry)?,
            controllers: controllers::ControllerMetrics::new(&registry)?,
            jwt: jwt::JwtMetrics {
                latency: histograms(
                    "apiserver_authentication_jwt_authenticator_latency_seconds",
                    "Latency of jwt authentication operations in seconds, of tokens that were not remembered.",
                    &["result", "jwt_issuer_hash"],
                    vec![0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0],
                )?,
                fetched: gauges(
                    "apiserver_authentication_jwt_authenticator_jwks_fetch_last_timestamp_seconds",
                    "When the keys of an issuer were last fetched, by result and issuer.",
                    &["result", "jwt_issuer_hash"],
                )?,
                key_set: gauges(
                    "apiserver_authentication_jwt_authenticator_jwks_fetch_last_key_set_info",
                    "The keys of an issuer that were last fetched, by their hash.",
                    &["jwt_issuer_hash", "hash"],
                )?,
                hashes: std::sync::Arc::default(),
                configured: std::sync::Arc::default(),
            },
            config_reloads: counters(
                "portcullis_config_reloads_total",
                "Configurations that were taken, the first one included, or refused.",
                &["result"],
            )?,
            config_last_reload_successful: gauge(
                "portcullis_config_last_reload_successful",
                "Whether the configuration in force is the one in the files: 1, or 0 when it was refused.",
            )?,
            config_last_success: gauge(
                "portcullis_config_last_reload_success_timestamp_seconds",
                "When the configuration in force was taken.",
            )?,
            config_generation: gauge(
                "portcullis_config_generation",
                "The number of the configuration in force.",
            )?,
            registry,
        })
    }

    /// A request has been answered.
    pub(crate) fn request_ended(&self, verb: &'static str, code: u16) {
        match code {
            200 => self.requests.of(verb).inc(),
            code => self.requests.all().with_label_values(&[verb, code.to_string().as_str()]).inc(),
        }
    }

    /// How many requests are being answered.
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

    /// An endpoint is no longer configured.
    pub(crate) fn forget_endpoint(&self, labels: &[String; 2]) {
        // It may never have been checked.
        self.endpoint_trusted.remove_label_values(labels).ok();
    }

    /// A configuration came into force.
    pub(crate) fn config_reloaded(&self, generation: u64, now: UnixTime) {
        self.config_reloads.with_label_values(&["success"]).inc();
        self.config_last_reload_successful.set(1);
        self.config_last_success.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        self.config_generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
    }

    /// A configuration was refused; the old one stays.
    pub(crate) fn config_refused(&self) {
        self.config_reloads.with_label_values(&["failure"]).inc();
        self.config_last_reload_successful.set(0);
    }

    /// The exposition, in the text format 0.0.4, and its content type.
    pub(crate) fn render(&self) -> (String, &'static str) {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "cannot render metrics");
        }
        (String::from_utf8_lossy(&text).into_owned(), prometheus::TEXT_FORMAT)
    }
}

/// The few user names that are told apart, as upstream does.
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

/// The verb as upstream's metrics have it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kube_apiservers() {
        let metrics = Metrics::new();
        metrics.authentication_attempts.of("success").inc();
        metrics.authenticated_user_requests.of(compressed_username("a@b")).inc();
        metrics.client_certificate_expiration.observe(-1.0);
        let (text, _) = metrics.render();
        for line in [
            "authentication_attempts{result=\"success\"} 1",
            "authenticated_user_requests{username=\"email_id\"} 1",
            "apiserver_client_certificate_expiration_seconds_bucket{le=\"0\"} 1",
            "serviceaccount_legacy_tokens_total 0",
            "serviceaccount_stale_tokens_total 0",
            "serviceaccount_valid_tokens_total 0",
            "serviceaccount_legacy_auto_token_uses_total 0",
            "serviceaccount_legacy_manual_token_uses_total 0",
            "serviceaccount_invalid_legacy_auto_token_uses_total 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }
}
