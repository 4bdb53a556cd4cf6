//! `portcullis check`: resolves the configuration and builds a snapshot of it as `serve` does, without serving.

mod admission;
mod audit;
mod sessions;

use std::process::ExitCode;
use std::sync::Arc;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use portcullis_go::time;
use portcullis_kubernetes::user::GATEWAY;
use portcullis_openid::jwt::keys::JwsAlgorithm;
use portcullis_pki::issuance::authority::CertificateAuthority;
use portcullis_tools::output::{Output, print};
use serde::Serialize;

use super::serve::errors_of_refused;
use super::{failed, misconfigured};
use crate::authn::anonymous::AnonymousAuth;
use crate::authn::oidc::settings::JwtAuthenticator;
use crate::authn::revocation::crls::IssuerCrl;
use crate::authn::settings::{Authentication, RequestHeaderConfig};
use crate::authz::settings::{AuthorizationWebhook, AuthorizerSettings, FailurePolicy};
use crate::backend::settings::Endpoint;
use crate::cluster::authenticators::ClusterDeps;
use crate::cluster::settings::{Cluster, Routes};
use crate::config::ConfigError;
use crate::config::flags::{MetricsAddress, ServeFlags};
use crate::controllers::settings::ControllerSettings;
use crate::limits::settings::LimitSettings;
use crate::state::effective_config::EffectiveConfig;
use crate::state::snapshot::Snapshot;
use audit::AuditReport;
use sessions::SessionReport;

/// The examples of `portcullis check --help`.
pub(super) const EXAMPLE: &str = "\
Examples:
  portcullis check --config gateway.yaml
  portcullis check --client-ca-file clients-ca.crt --backend-kubeconfig backend.kubeconfig";

/// The flags of `portcullis check`: those of `serve`, and the output format.
#[derive(Debug, Clone, Args)]
#[command(args_override_self = true)]
pub(super) struct CheckFlags {
    /// How to print the result.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
    // Last: the command's own flags are first in its help.
    #[command(flatten)]
    pub(super) serve: ServeFlags,
}

/// The configuration that `serve` would run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CheckReport {
    serving: String,
    metrics: Option<String>,
    /// The page of the clusters: its URL and its address.
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<String>,
    request_timeout_seconds: u64,
    clusters: Vec<ClusterReport>,
    warnings: Vec<String>,
}

/// One cluster: its routes, endpoints and authenticators.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ClusterReport {
    name: String,
    #[serde(rename = "match")]
    routes: Option<RoutesReport>,
    endpoints: Vec<String>,
    identity: String,
    impersonation: String,
    /// The clients, by User-Agent, whose watches the API servers must not compress.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    uncompressed_watches: Vec<String>,
    authenticators: Vec<String>,
    /// The request headers in which front proxies name users.
    front_proxy_headers: Vec<String>,
    /// The gateway's own authorizers; empty if the backend alone decides.
    authorizers: Vec<AuthorizerReport>,
    tokens: usize,
    #[serde(rename = "clientCRLs")]
    client_crls: Vec<CrlReport>,
    /// The number of entries; `None` without a deny list.
    credential_deny_list_entries: Option<usize>,
    issuers: Vec<IssuerReport>,
    admission_mode: Option<String>,
    /// The admission webhooks that the gateway calls; empty if the backend alone admits requests.
    admission_webhooks: Vec<admission::WebhookReport>,
    /// The admission policies that the gateway evaluates.
    admission_policies: Vec<admission::PolicyReport>,
    /// Which requests are audited; `None`: none.
    audit: Option<AuditReport>,
    /// Which sessions are recorded and limited; `None`: none.
    sessions: Option<SessionReport>,
    /// The limits on requests in flight, if there are any.
    limits: Option<LimitReport>,
    controllers: Vec<&'static str>,
    signers: Vec<SignerReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    published_signers: Vec<String>,
    leader_election: Option<String>,
}

/// An authorizer of the gateway.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AuthorizerReport {
    #[serde(rename = "type")]
    mode: &'static str,
    webhook: Option<WebhookReport>,
}

/// The webhook of an authorizer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WebhookReport {
    name: String,
    url: String,
    match_conditions: usize,
    failure_policy: &'static str,
    subject_access_review_version: &'static str,
    timeout: String,
}

/// Limits on requests in flight; 0: none.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LimitReport {
    max_requests_inflight: usize,
    max_mutating_requests_inflight: usize,
    inflight_queue_length_limit: usize,
    inflight_queue_timeout: String,
}

/// A CRL of a client CA.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CrlReport {
    issuer: String,
    number: Option<String>,
    this_update: String,
    next_update: String,
    revoked: usize,
}

/// A signer of certificates.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SignerReport {
    name: String,
    authority: String,
    not_after: String,
}

/// An issuer of JSON Web Tokens.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct IssuerReport {
    url: String,
    #[serde(rename = "discoveryURL")]
    discovery_url: Option<String>,
    audiences: Vec<String>,
    algorithms: Vec<&'static str>,
    claim_validation_rules: usize,
    user_validation_rules: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RoutesReport {
    server_names: Vec<String>,
    path_prefix: Option<String>,
}

/// The configuration errors, for `--output`.
#[derive(Debug, Serialize)]
pub(super) struct CheckErrors<'a> {
    pub(super) errors: &'a [ConfigError],
}

pub(super) fn run(flags: &CheckFlags) -> ExitCode {
    // Also what `serve` would leave out.
    let checked = EffectiveConfig::load(&flags.serve).and_then(|config| match errors_of_refused(&config) {
        refused if refused.0.is_empty() => Ok(config),
        refused => Err(refused),
    });
    let config = match checked {
        Ok(config) => config,
        Err(errors) => {
            if let Some(text) = flags.output.rendered(&CheckErrors { errors: &errors.0 }) {
                print(&text);
            }
            return misconfigured(&errors);
        }
    };
    // Never driven: the tasks that a snapshot spawns stay queued.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.to_string()),
    };
    let deps = ClusterDeps::idle(runtime.handle());
    if let Err(error) = Snapshot::build(&config, None, &deps) {
        return failed(&error.to_string());
    }
    let report = CheckReport::of(config);
    print(&flags.output.rendered(&report).unwrap_or_else(|| report.table()))
}

impl CheckReport {
    fn of(config: EffectiveConfig) -> Self {
        let EffectiveConfig { settings, warnings, .. } = config;
        Self {
            serving: format!("https://{}", settings.serving.address),
            metrics: match settings.operation.metrics {
                MetricsAddress::On(address) => Some(format!("http://{address}/metrics")),
                MetricsAddress::Off => None,
            },
            page: settings.page.as_ref().map(|page| format!("{} at {}", page.origin, page.address)),
            request_timeout_seconds: settings.operation.request_timeout.as_secs(),
            clusters: settings
                .clusters
                .into_iter()
                .map(Arc::unwrap_or_clone)
                .map(ClusterReport::of)
                .collect(),
            warnings,
        }
    }

    fn table(&self) -> String {
        let mut rows = vec![
            ("serves", vec![self.serving.clone()]),
            ("metrics", vec![self.metrics.clone().unwrap_or_else(|| "off".to_owned())]),
            ("page", self.page.iter().cloned().collect()),
            ("timeout", vec![format!("{}s", self.request_timeout_seconds)]),
            ("warning", self.warnings.clone()),
        ];
        for cluster in &self.clusters {
            rows.push(("", vec![String::new()]));
            rows.extend(cluster.rows());
        }
        rows.push(("", vec![String::new()]));
        let lines = rows.iter().flat_map(|(title, values)| {
            let titles = std::iter::once(*title).chain(std::iter::repeat(""));
            titles
                .zip(values)
                .map(|(title, value)| format!("{title:<9} {value}").trim_end().to_owned() + "\n")
        });
        lines.chain(std::iter::once("the configuration is good\n".to_owned())).collect()
    }
}

impl ClusterReport {
    fn of(cluster: Cluster) -> Self {
        let Cluster {
            name,
            origin: _,
            release: _,
            routes,
            authentication,
            backend,
            impersonation,
            uncompressed_watches,
            authorization,
            admission,
            audit,
            sessions,
            limits,
            controllers,
        } = cluster;
        let controllers = controllers.as_deref();
        let published = controllers.iter().flat_map(|run| &run.published);
        let address = |endpoint: &Endpoint| format!("https://{}{}", endpoint.address, backend.path_prefix);
        let named = |value: Option<PossibleValue>| value.map(|value| value.get_name().to_owned());
        let identity = backend.identity.to_possible_value();
        Self {
            name,
            routes: match routes {
                Routes::Everything => None,
                Routes::Matching { server_names, path_prefix } => {
                    Some(RoutesReport { server_names, path_prefix })
                }
            },
            endpoints: backend.endpoints.iter().map(address).collect(),
            identity: named(identity).unwrap_or_default(),
            impersonation: named(impersonation.to_possible_value()).unwrap_or_default(),
            uncompressed_watches: uncompressed_watches.0,
            authenticators: authenticators(&authentication),
            front_proxy_headers: front_proxy_headers(&authentication),
            authorizers: authorization
                .iter()
                .flat_map(|authorization| &authorization.authorizers)
                .map(AuthorizerReport::of)
                .collect(),
            issuers: authentication.jwt.iter().map(|issuer| IssuerReport::of(issuer)).collect(),
            admission_mode: admission.as_ref().and_then(|settings| named(settings.mode.to_possible_value())),
            admission_webhooks: admission.as_deref().map(admission::reports).unwrap_or_default(),
            admission_policies: admission.as_deref().map(admission::policy_reports).unwrap_or_default(),
            audit: audit.as_deref().map(AuditReport::of),
            sessions: sessions.as_deref().map(SessionReport::of),
            limits: limits.is_limited().then(|| LimitReport::of(&limits)),
            client_crls: authentication
                .revocation
                .crls
                .iter()
                .flat_map(|crls| crls.lists())
                .map(CrlReport::of)
                .collect(),
            credential_deny_list_entries: authentication
                .revocation
                .deny_list
                .as_ref()
                .map(|loaded| loaded.list().count()),
            tokens: authentication.static_tokens.map_or(0, |tokens| tokens.count()),
            controllers: controllers.iter().flat_map(|run| &run.names).map(|name| name.alias()).collect(),
            signers: controllers.map(SignerReport::all).unwrap_or_default(),
            published_signers: published.map(|signer| signer.name.clone()).collect(),
            leader_election: controllers
                .and_then(|run| run.election.as_ref())
                .map(|election| format!("{}/{}", election.namespace, election.name)),
        }
    }

    fn impersonation_line(&self) -> String {
        if self.impersonation == "backend" {
            return "decided by the backend".to_owned();
        }
        let user = if self.identity == "requestHeader" { GATEWAY } else { "the user of the kubeconfig" };
        format!("decided by the gateway; {user} needs create on subjectaccessreviews (deploy/rbac.yaml)")
    }

    /// The authorizers in order, and the decision after the last one.
    fn authorization_line(&self) -> String {
        let asked = self.authorizers.iter().take_while(|authorizer| authorizer.mode != "AlwaysAllow");
        let asked: Vec<String> = asked.map(AuthorizerReport::line).collect();
        match (asked.as_slice(), asked.len() == self.authorizers.len()) {
            ([], _) => "by the backend alone".to_owned(),
            (asked, true) => {
                format!("{}; a request that none of them allows is refused", asked.join(", then "))
            }
            (asked, false) => format!("{}, then the backend", asked.join(", then ")),
        }
    }

    fn rows(&self) -> Vec<(&'static str, Vec<String>)> {
        let matching = match &self.routes {
            None => vec!["every request".to_owned()],
            Some(RoutesReport { server_names, path_prefix }) => {
                let prefix = path_prefix.iter().map(|prefix| format!("{prefix}/…"));
                server_names.iter().cloned().chain(prefix).collect()
            }
        };
        let mut rows = vec![
            ("cluster", vec![self.name.clone()]),
            ("match", matching),
            ("backend", self.endpoints.clone()),
            ("identity", vec![self.identity.clone()]),
            ("Impersonate-*", vec![self.impersonation_line()]),
            ("clients", self.authenticators.clone()),
            ("authorization", vec![self.authorization_line()]),
        ];
        if !self.front_proxy_headers.is_empty() {
            let headers = self.front_proxy_headers.join(", ");
            let warning = "each must remove these headers of its clients, or they choose their own identity";
            rows.insert(rows.len() - 1, ("fronts", vec![headers, format!("{warning} (docs/fronts.md)")]));
        }
        let denied = self
            .credential_deny_list_entries
            .map(|entries| format!("deny list, {entries} entr{}", if entries == 1 { "y" } else { "ies" }));
        let revocation: Vec<_> = self.client_crls.iter().map(CrlReport::line).chain(denied).collect();
        if !revocation.is_empty() {
            rows.push(("revocation", revocation));
        }
        if let Some(mode) = &self.admission_mode {
            rows.push((
                "admission",
                admission::rows(mode, &self.admission_webhooks, &self.admission_policies),
            ));
        }
        if let Some(audit) = &self.audit {
            rows.push(("audit", audit.rows()));
        }
        if let Some(sessions) = &self.sessions {
            rows.push(("sessions", sessions.rows()));
        }
        if !self.uncompressed_watches.is_empty() {
            let clients = self.uncompressed_watches.join(", ");
            rows.push(("watches", vec![format!("not compressed for {clients}")]));
        }
        if let Some(limits) = &self.limits {
            rows.push(("limits", vec![limits.line()]));
        }
        if !self.controllers.is_empty() {
            let lease = match &self.leader_election {
                Some(lease) => format!(", while the lease {lease} is held"),
                None => ", on every replica".to_owned(),
            };
            rows.push(("runs", vec![self.controllers.join(", ") + &lease]));
            rows.push(("signs", self.signers.iter().map(SignerReport::line).collect()));
            if !self.published_signers.is_empty() {
                rows.push(("publishes", vec![format!("the CAs of {}", self.published_signers.join(", "))]));
            }
        }
        rows
    }
}

impl AuthorizerReport {
    fn of(authorizer: &AuthorizerSettings) -> Self {
        match authorizer {
            AuthorizerSettings::AlwaysAllow => Self { mode: "AlwaysAllow", webhook: None },
            AuthorizerSettings::AlwaysDeny => Self { mode: "AlwaysDeny", webhook: None },
            AuthorizerSettings::Webhook(webhook) => {
                Self { mode: "Webhook", webhook: Some(WebhookReport::of(webhook)) }
            }
        }
    }

    fn line(&self) -> String {
        let Some(WebhookReport { name, url, match_conditions: count, failure_policy, .. }) = &self.webhook
        else {
            return self.mode.to_owned();
        };
        let plural = if *count == 1 { "" } else { "s" };
        format!("{} {name:?} ({url}, {count} condition{plural}, failurePolicy {failure_policy})", self.mode)
    }
}

impl WebhookReport {
    fn of(webhook: &AuthorizationWebhook) -> Self {
        Self {
            name: webhook.name.clone(),
            url: webhook.url.clone(),
            match_conditions: webhook.match_conditions.len(),
            failure_policy: match webhook.failure_policy {
                FailurePolicy::NoOpinion => "NoOpinion",
                FailurePolicy::Deny => "Deny",
            },
            subject_access_review_version: webhook.version.api_version(),
            timeout: format!("{:?}", webhook.timeout),
        }
    }
}

impl LimitReport {
    fn of(limits: &LimitSettings) -> Self {
        Self {
            max_requests_inflight: limits.max_requests_inflight,
            max_mutating_requests_inflight: limits.max_mutating_requests_inflight,
            inflight_queue_length_limit: limits.queue_length_limit,
            inflight_queue_timeout: format!("{:?}", limits.queue_timeout),
        }
    }

    fn line(&self) -> String {
        let limit = |limit: usize| if limit == 0 { "any number of".to_owned() } else { limit.to_string() };
        let (reads, writes) = (limit(self.max_requests_inflight), limit(self.max_mutating_requests_inflight));
        let beyond = match self.inflight_queue_length_limit {
            0 => "429 beyond".to_owned(),
            length => format!("{length} wait per flow, for up to {}", self.inflight_queue_timeout),
        };
        format!("{reads} reads and {writes} writes in flight; {beyond}")
    }
}

impl CrlReport {
    fn of(list: &IssuerCrl) -> Self {
        Self {
            issuer: list.issuer.clone(),
            number: list.number.as_ref().map(ToString::to_string),
            this_update: time::format_utc(list.this_update),
            next_update: time::format_utc(list.next_update),
            revoked: list.count(),
        }
    }

    fn line(&self) -> String {
        let Self { issuer, number, next_update, revoked, .. } = self;
        let number = number.as_ref().map(|number| format!(" number {number}")).unwrap_or_default();
        format!("CRL{number} of {issuer}, {revoked} revoked, next update {next_update}")
    }
}

impl SignerReport {
    /// The signers of requests, and those of pods.
    fn all(controllers: &ControllerSettings) -> Vec<Self> {
        let requests = controllers.signers.iter().map(|signer| (signer.name(), &signer.authority));
        let pods = controllers.pod_signers.iter().map(|signer| (signer.name.as_str(), &signer.authority));
        requests.chain(pods).map(|(name, authority)| Self::of(name, authority)).collect()
    }

    fn of(name: &str, authority: &CertificateAuthority) -> Self {
        Self {
            name: name.to_owned(),
            authority: authority.subject().to_string(),
            not_after: time::format_since_epoch(authority.not_after()),
        }
    }

    fn line(&self) -> String {
        let Self { name, authority, not_after } = self;
        format!("{name}, by {authority}, until {not_after}")
    }
}

impl IssuerReport {
    fn of(authenticator: &JwtAuthenticator) -> Self {
        let JwtAuthenticator { issuer, algorithms, claim_rules, user_rules, .. } = authenticator;
        Self {
            url: issuer.url.clone(),
            discovery_url: issuer.discovery_url.clone(),
            audiences: issuer.audiences.clone(),
            algorithms: algorithms.iter().map(|algorithm| algorithm.name()).collect(),
            claim_validation_rules: claim_rules.len(),
            user_validation_rules: user_rules.len(),
        }
    }

    fn line(&self) -> String {
        let rules = self.claim_validation_rules + self.user_validation_rules;
        let plural = if rules == 1 { "" } else { "s" };
        let Self { url, audiences, algorithms, .. } = self;
        let algorithms = match algorithms.len() {
            all if all == JwsAlgorithm::ALL.len() => "RSA or ECDSA".to_owned(),
            _ => algorithms.join(" or "),
        };
        format!(
            "tokens of {url} for {}, signed with {algorithms}, {rules} rule{plural}",
            audiences.join(" or ")
        )
    }
}

/// The headers in which a front proxy names users, as patterns.
fn front_proxy_headers(authentication: &Authentication) -> Vec<String> {
    let Some(RequestHeaderConfig { headers, .. }) = &authentication.request_header else {
        return Vec::new();
    };
    let names = [&headers.user, &headers.uid, &headers.group].into_iter().flatten().map(ToString::to_string);
    names.chain(headers.extra_prefixes.iter().map(|prefix| format!("{prefix}*"))).collect()
}

/// The enabled authenticators, in the order in which they run.
fn authenticators(authentication: &Authentication) -> Vec<String> {
    let mut methods = Vec::new();
    if let Some(request_header) = &authentication.request_header {
        let names = match request_header.allowed_names.as_slice() {
            [] => "any front proxy of its CA".to_owned(),
            names => format!("front proxies {}", names.join(", ")),
        };
        methods.push(format!("request headers, from {names}"));
    }
    if authentication.client_ca.is_some() {
        methods.push("client certificates".to_owned());
    }
    if authentication.pod_client_ca.is_some() {
        methods.push("client certificates of pods, for their service accounts".to_owned());
    }
    if let Some(tokens) = &authentication.static_tokens {
        let count = tokens.count();
        methods.push(format!("token file, {count} token{}", if count == 1 { "" } else { "s" }));
    }
    methods.extend(authentication.jwt.iter().map(|issuer| IssuerReport::of(issuer).line()));
    if let Some(webhook) = &authentication.webhook {
        methods.push(format!("webhook {}", webhook.url));
    }
    match &authentication.anonymous {
        AnonymousAuth::Disabled => {}
        AnonymousAuth::AllPaths => methods.push("anonymous".to_owned()),
        AnonymousAuth::Paths(paths) => {
            let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
            methods.push(format!("anonymous, at {}", paths.join(", ")));
        }
    }
    methods
}
