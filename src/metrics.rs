//! Prometheus metrics, under kube-apiserver's names where it has the same metric.
//!
//! No label may carry a value that a client chooses (path, user name, resource): such values are unbounded.
// apiserver: pkg/endpoints/filters/metrics.go, pkg/endpoints/metrics/metrics.go

mod admission;
mod audit;
mod authentication;
mod authorization;
mod backend;
mod cached_vec;
mod cluster_histogram;
mod config;
mod connections;
pub(crate) mod controllers;
mod exemplars;
mod gauge_guard;
mod impersonation;
pub(crate) mod jwt;
mod limits;
mod observations;
mod open_metrics;
mod page;
mod process;
mod registrar;
mod requests;
mod revocation;
pub(crate) mod service_accounts;
mod sessions;
mod token_cache;
mod token_objects;
mod traces;

use prometheus::{Encoder as _, IntCounter, Registry, TextEncoder};

use admission::AdmissionMetrics;
pub(crate) use admission::StoredDifference;
use audit::AuditMetrics;
use authentication::AuthenticationMetrics;
pub(crate) use authentication::compressed_username;
use authorization::AuthorizationMetrics;
pub(crate) use authorization::WebhookResult;
use backend::BackendMetrics;
pub(crate) use backend::{BackendTimings, RETRY_CAUSES};
#[cfg(test)]
pub(crate) use backend::{DIAL_RESULTS, LANES};
use config::ConfigMetrics;
pub(crate) use config::StaleCluster;
use connections::ConnectionMetrics;
use controllers::ControllerMetrics;
pub(crate) use exemplars::Exemplar;
pub(crate) use gauge_guard::GaugeGuard;
use impersonation::ImpersonationMetrics;
use jwt::JwtMetrics;
pub(crate) use limits::LimitMetrics;
pub(crate) use open_metrics::Exposition;
use open_metrics::OpenMetrics;
use page::PageMetrics;
use process::ProcessMetrics;
use registrar::{MetricLabels, Registrar};
use requests::RequestMetrics;
pub(crate) use requests::verb_label;
use revocation::RevocationMetrics;
use service_accounts::ServiceAccountMetrics;
use sessions::SessionMetrics;
pub(crate) use token_cache::TokenCacheMetrics;
use token_objects::TokenObjectMetrics;
use traces::TraceMetrics;

/// All metrics of the process.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    /// The labels of every metric, by its name: dashboards and alerts are compared with them.
    pub(crate) labels: MetricLabels,
    pub(crate) authentication: AuthenticationMetrics,
    pub(crate) authorization: AuthorizationMetrics,
    /// Admission webhooks.
    pub(crate) admission: AdmissionMetrics,
    /// Audit.
    pub(crate) audit: AuditMetrics,
    /// Impersonation.
    pub(crate) impersonation: ImpersonationMetrics,
    pub(crate) token_cache: TokenCacheMetrics,
    pub(crate) token_objects: TokenObjectMetrics,
    pub(crate) service_accounts: ServiceAccountMetrics,
    pub(crate) jwt: JwtMetrics,
    pub(crate) requests: RequestMetrics,
    /// Limits on requests in flight.
    pub(crate) limits: LimitMetrics,
    /// Revocation.
    pub(crate) revocation: RevocationMetrics,
    pub(crate) sessions: SessionMetrics,
    pub(crate) connections: ConnectionMetrics,
    pub(crate) backend: BackendMetrics,
    pub(crate) controllers: ControllerMetrics,
    pub(crate) config: ConfigMetrics,
    /// The export of spans.
    pub(crate) traces: TraceMetrics,
    /// The page.
    pub(crate) page: PageMetrics,
    process: ProcessMetrics,
    /// Caught panics; each ends one request, connection or attempt.
    pub(crate) panics: IntCounter,
}

impl Metrics {
    /// All metrics, at zero.
    pub(crate) fn new() -> Self {
        // All names and labels are constants; a test builds them all.
        #[expect(clippy::expect_used, reason = "constant names, built by a test")]
        Self::build().expect("metric names are valid and unique")
    }

    fn build() -> prometheus::Result<Self> {
        let registrar = Registrar::default();
        let panics = registrar.counter(
            "portcullis_panics_total",
            "Caught panics; each ends one request, connection or attempt.",
        )?;
        Ok(Self {
            authentication: AuthenticationMetrics::new(&registrar)?,
            authorization: AuthorizationMetrics::new(&registrar)?,
            admission: AdmissionMetrics::new(&registrar)?,
            audit: AuditMetrics::new(&registrar)?,
            impersonation: ImpersonationMetrics::new(&registrar)?,
            token_cache: TokenCacheMetrics::new(&registrar, &panics)?,
            token_objects: TokenObjectMetrics::new(&registrar)?,
            service_accounts: ServiceAccountMetrics::new(&registrar)?,
            jwt: JwtMetrics::new(&registrar)?,
            requests: RequestMetrics::new(&registrar)?,
            limits: LimitMetrics::new(&registrar)?,
            revocation: RevocationMetrics::new(&registrar)?,
            sessions: SessionMetrics::new(&registrar)?,
            connections: ConnectionMetrics::new(&registrar)?,
            backend: BackendMetrics::new(&registrar)?,
            controllers: ControllerMetrics::new(&registrar)?,
            config: ConfigMetrics::new(&registrar)?,
            traces: TraceMetrics::new(&registrar)?,
            page: PageMetrics::new(&registrar)?,
            process: ProcessMetrics::new(&registrar)?,
            panics,
            labels: registrar.labels(),
            registry: registrar.finish(),
        })
    }

    /// The exposition in this format, and its content type.
    pub(crate) fn expose(&self, exposition: Exposition) -> (String, &'static str) {
        match exposition {
            Exposition::Text => self.render(),
            Exposition::OpenMetrics => {
                self.update();
                let exemplars = self.requests.exemplars();
                let metrics = OpenMetrics { families: &self.registry.gather(), exemplars };
                (metrics.to_string(), open_metrics::CONTENT_TYPE)
            }
        }
    }

    /// Takes over numbers that are counted elsewhere.
    fn update(&self) {
        self.traces.update();
        self.backend.update();
        self.sessions.update();
        self.process.update();
    }

    /// The exposition in text format 0.0.4, and its content type.
    pub(crate) fn render(&self) -> (String, &'static str) {
        self.update();
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "cannot render metrics");
        }
        (String::from_utf8_lossy(&text).into_owned(), prometheus::TEXT_FORMAT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kube_apiservers() {
        let metrics = Metrics::new();
        metrics.authentication.attempts.of("success").inc();
        metrics.authentication.user_requests.of(compressed_username("a@b")).inc();
        metrics.authentication.client_certificate_expiration.observe(-1.0);
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
