//! The health endpoints `/healthz`, `/livez` and `/readyz`. The gateway responds to the three roots itself. A request
//! for a single check, such as `/readyz/ping`, goes to the backend, which authorizes it; [`HealthChecks::merge_check`]
//! then adds the gateway's own check. The admin listener serves the gateway's checks without authentication.
// apiserver: pkg/server/healthz/healthz.go

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use portcullis_go::quote::Quoted;
use portcullis_go::url::query;
use portcullis_http::body::Body;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::controllers::token_keys;
use crate::listener::ShutdownPhase;
use crate::pipeline::stages::Authorized;
use crate::state::Live;

const NOSNIFF: HeaderName = HeaderName::from_static("x-content-type-options");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const CLUSTER_CHECK_PREFIX: &str = "cluster-";
/// How long health checks wait after the start for the first self-checks, and for token issuers, whose tokens are refused until
/// discovery succeeds.
// threat: start-blockers
const START_PERIOD: Duration = Duration::from_secs(30);
/// Shown to clients of a cluster without its error, and on its own by the admin listener alone.
const MANAGEMENT_CHECK: &str = "management-cluster";

/// In place of the reason of a failure.
const REASON_WITHHELD: &str = "reason withheld";

/// A health endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HealthEndpoint {
    /// Deprecated in Kubernetes; the same checks as `/livez`, without its grace period.
    Healthz,
    /// Whether the process should keep running; never depends on a backend's health.
    Livez,
    /// Whether the process should receive requests.
    Readyz,
}

/// A request to a health endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HealthRequest {
    /// All checks of an endpoint.
    Root(HealthEndpoint),
    /// One check of an endpoint.
    Single(SingleCheck),
}

/// A check of an endpoint, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SingleCheck {
    endpoint: HealthEndpoint,
    name: String,
}

/// The gateway's health checks.
#[derive(Debug)]
pub(crate) struct HealthChecks {
    live: Arc<Live>,
    phase: watch::Receiver<ShutdownPhase>,
    started: Instant,
    /// Whether the first self-checks of all backends have finished. Backends that a reload adds do not reset it.
    all_checked: AtomicBool,
    /// The same for readiness, for which the clusters of Secrets count, too: they come by the first reload.
    all_checked_for_readiness: AtomicBool,
    /// Whether the tokens of all issuers could be verified once.
    issuers_initialized: AtomicBool,
    /// When the Secrets of the management cluster were first seen in force; the start, if there was no management cluster. One
    /// that a reload adds or changes does not reset it: the gateway goes on to serve what it serves.
    clusters_known: OnceLock<Instant>,
}

/// The name of a check, and the error if it fails.
type CheckResult = (Cow<'static, str>, Result<(), String>);

impl HealthEndpoint {
    fn name(self) -> &'static str {
        match self {
            Self::Healthz => "healthz",
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }
}

impl HealthRequest {
    /// Parses a path; `None` if it is not the path of a health endpoint.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        let path = path.strip_prefix('/')?;
        let (root, single) = path.split_once('/').map_or((path, None), |(root, single)| (root, Some(single)));
        let endpoint = match root {
            "healthz" => HealthEndpoint::Healthz,
            "livez" => HealthEndpoint::Livez,
            "readyz" => HealthEndpoint::Readyz,
            _ => return None,
        };
        Some(match single {
            None => Self::Root(endpoint),
            Some(name) => Self::Single(SingleCheck { endpoint, name: name.to_owned() }),
        })
    }

    /// The health request of a client that does not impersonate.
    fn of(request: &Authorized) -> Option<Self> {
        if request.is_impersonating() { None } else { Self::of_path(request.info().path()) }
    }
}

impl SingleCheck {
    /// The requested single check; `None` for a check of another cluster than the one that authenticated the client.
    pub(super) fn of(request: &Authorized) -> Option<Self> {
        match HealthRequest::of(request)? {
            // The error names the management cluster, which is not the client's concern.
            HealthRequest::Single(check) if check.name == MANAGEMENT_CHECK => None,
            HealthRequest::Single(check) if !check.is_of_another_cluster(&request.cluster().name) => {
                Some(check)
            }
            HealthRequest::Single(_) | HealthRequest::Root(_) => None,
        }
    }

    fn is_of_another_cluster(&self, cluster: &str) -> bool {
        let rest = self.name.strip_prefix(CLUSTER_CHECK_PREFIX);
        rest.and_then(|rest| rest.split('/').next()).is_some_and(|name| name != cluster)
    }
}

/// Sets a flag that is never reset.
fn latch(flag: &AtomicBool, is_set: bool) {
    if is_set {
        flag.store(true, Ordering::Relaxed);
    }
}

impl HealthChecks {
    pub(crate) fn new(live: Arc<Live>, phase: watch::Receiver<ShutdownPhase>) -> Self {
        let [all_checked, all_checked_for_readiness, issuers_initialized] = [false; 3].map(AtomicBool::new);
        Self {
            live,
            phase,
            started: Instant::now(),
            all_checked,
            all_checked_for_readiness,
            issuers_initialized,
            clusters_known: OnceLock::new(),
        }
    }

    /// Responds to a GET of a root. Clients of a cluster see the informative checks of that cluster alone.
    pub(super) fn respond(&self, request: &Authorized) -> Option<Response<Body>> {
        match HealthRequest::of(request)? {
            HealthRequest::Root(endpoint) if request.info().verb() == "get" => {
                Some(self.root(endpoint, Some(&request.cluster().name), request.query()))
            }
            HealthRequest::Root(_) | HealthRequest::Single(_) => None,
        }
    }

    /// Responds to a root, with the informative checks of `cluster`, or of all clusters.
    pub(crate) fn root(
        &self,
        endpoint: HealthEndpoint,
        cluster: Option<&str>,
        query: Option<&str>,
    ) -> Response<Body> {
        root(endpoint, &self.checks(endpoint), &self.informative(endpoint, cluster), query)
    }

    /// Responds to a single check, if the gateway has it.
    pub(crate) fn single(&self, check: &SingleCheck) -> Option<Response<Body>> {
        self.outcome(check).map(|outcome| single(&outcome))
    }

    /// The same without the reason of a failure, which names addresses of the clusters.
    pub(crate) fn single_without_reason(&self, check: &SingleCheck) -> Option<Response<Body>> {
        let outcome = self.outcome(check)?;
        Some(single(&outcome.map_err(|_| REASON_WITHHELD.to_owned())))
    }

    fn outcome(&self, check: &SingleCheck) -> Option<Result<(), String>> {
        let mut checks = self.checks(check.endpoint);
        checks.extend(self.informative(check.endpoint, None));
        checks.into_iter().find(|(name, _)| *name == check.name).map(|(_, outcome)| outcome)
    }

    /// Merges the gateway's check into the backend's response. A 404 means that the backend has authorized the request
    /// and does not have the check; the gateway's response replaces it. A check that both have fails if either fails.
    pub(super) fn merge_check(&self, response: Response<Body>, check: &SingleCheck) -> Response<Body> {
        let is_replaced = match response.status() {
            StatusCode::NOT_FOUND => true,
            StatusCode::OK => self.fails(check),
            _ => false,
        };
        if !is_replaced {
            return response;
        }
        let Some(replacement) = self.single(check) else { return response };
        let (head, _) = response.into_parts();
        let (mut new_head, body) = replacement.into_parts();
        for kept in [crate::pipeline::audit_id::AUDIT_ID, http::header::CACHE_CONTROL] {
            if let Some(value) = head.headers.get(&kept) {
                new_head.headers.insert(kept, value.clone());
            }
        }
        Response::from_parts(new_head, body)
    }

    fn fails(&self, check: &SingleCheck) -> bool {
        self.checks(check.endpoint).iter().any(|(name, outcome)| *name == check.name && outcome.is_err())
    }

    /// The checks that decide the status code.
    fn checks(&self, endpoint: HealthEndpoint) -> Vec<CheckResult> {
        let snapshot = self.live.peek();
        let clusters = snapshot.clusters();
        let mut checks: Vec<CheckResult> = vec![("ping".into(), Ok(()))];
        let management = snapshot.management.as_ref();
        let is_known = self.clusters_known.get().is_some();
        let missing = management.filter(|_| !is_known).and_then(|management| management.not_in_force());
        if missing.is_none() {
            let now = || if management.is_some() { Instant::now() } else { self.started };
            self.clusters_known.get_or_init(now);
        }
        let is_over = |since: &Instant| since.elapsed() >= START_PERIOD;
        let are_checked = clusters.iter().all(|cluster| cluster.backend.is_checked());
        latch(&self.all_checked, are_checked || is_over(&self.started));
        let known = self.clusters_known.get();
        let waited = known.is_some_and(is_over);
        latch(&self.all_checked_for_readiness, known.is_some() && are_checked || waited);
        let is_finished = match endpoint {
            HealthEndpoint::Readyz => &self.all_checked_for_readiness,
            HealthEndpoint::Livez | HealthEndpoint::Healthz => &self.all_checked,
        };
        let grace = endpoint == HealthEndpoint::Livez && self.started.elapsed() < snapshot.livez_grace_period;
        let is_finished = is_finished.load(Ordering::Relaxed) || grace;
        let hook = if is_finished { Ok(()) } else { Err("not finished".to_owned()) };
        checks.push(("poststarthook/self-check".into(), hook));
        if endpoint == HealthEndpoint::Readyz {
            checks.push(("clusters".into(), usable_cluster(clusters)));
            let are_initialized =
                || snapshot.clusters().iter().all(|cluster| cluster.authn.issuers.are_initialized());
            latch(&self.issuers_initialized, known.is_some() && are_initialized());
            let initialized = self.issuers_initialized.load(Ordering::Relaxed);
            let issuers = if initialized || waited { Ok(()) } else { Err("not finished".to_owned()) };
            checks.push(("poststarthook/token-issuers".into(), issuers));
            if management.is_some() {
                checks.push((MANAGEMENT_CHECK.into(), missing.map_or(Ok(()), Err)));
            }
            let ending = *self.phase.borrow() > ShutdownPhase::Serving;
            let shutdown = if ending { Err("process is shutting down".to_owned()) } else { Ok(()) };
            checks.push(("shutdown".into(), shutdown));
        }
        checks
    }

    /// The checks that do not decide the status code: one unavailable cluster must not take the others out of service,
    /// nor one token issuer the clients with other credentials, nor an absent token of a signer's key those who need no
    /// certificate.
    fn informative(&self, endpoint: HealthEndpoint, only: Option<&str>) -> Vec<CheckResult> {
        if endpoint != HealthEndpoint::Readyz {
            return Vec::new();
        }
        let snapshot = self.live.peek();
        let mut checks: Vec<CheckResult> = Vec::new();
        for cluster in snapshot.clusters() {
            if only.is_some_and(|only| only != cluster.name) {
                continue;
            }
            let name = format!("{CLUSTER_CHECK_PREFIX}{}", cluster.name);
            for (index, (_, health)) in cluster.authn.issuers.health().enumerate() {
                checks.push((format!("{name}/issuer-{index}").into(), health));
            }
            let controllers = cluster.settings.controllers.as_deref();
            for (signer, key) in controllers.map(token_keys::states).unwrap_or_default() {
                checks.push((format!("{name}/signer-{signer}").into(), key));
            }
            checks.push((name.into(), unusable_reason(cluster).map_or(Ok(()), Err)));
        }
        checks
    }
}

/// Whether a cluster is usable. Where the operator of the gateway has clusters, one of these must be: a tenant, whose API
/// server may be on this machine, must not keep a replica in service that is cut off from them.
// threat: ready-by-tenant
fn usable_cluster(clusters: &[Arc<Cluster>]) -> Result<(), String> {
    let is_of_operator = |cluster: &&Arc<Cluster>| !cluster.settings.origin.is_of_tenant();
    let has_own = clusters.iter().any(|cluster| is_of_operator(&cluster));
    let mut deciding = clusters.iter().filter(|cluster| !has_own || is_of_operator(cluster));
    let is_usable = deciding.any(|cluster| unusable_reason(cluster).is_none());
    if is_usable { Ok(()) } else { Err("no usable API server".to_owned()) }
}

/// The reason why no endpoint of a cluster is usable; `None` if one is.
fn unusable_reason(cluster: &Cluster) -> Option<String> {
    let endpoints = cluster.backend.endpoints();
    if endpoints.iter().any(|endpoint| endpoint.is_trusted() && endpoint.last_error().is_none()) {
        return None;
    }
    let reasons = endpoints.iter().map(|endpoint| match endpoint.last_error() {
        Some(error) => error.to_string(),
        None => format!("{} has not passed the identity self-check", endpoint.address()),
    });
    Some(reasons.collect::<Vec<_>>().join("; "))
}

// handleRootHealth
fn root(
    endpoint: HealthEndpoint,
    checks: &[CheckResult],
    informative: &[CheckResult],
    query: Option<&str>,
) -> Response<Body> {
    let mut verbose = false;
    let mut excluded = BTreeSet::new();
    for (key, value) in query::pairs(query.unwrap_or_default()) {
        verbose |= key == "verbose";
        if key == "exclude" {
            excluded.insert(value.into_owned());
        }
    }
    let mut failed = false;
    let mut text = String::new();
    let all = checks.iter().map(|check| (check, true)).chain(informative.iter().map(|check| (check, false)));
    for ((name, outcome), decides) in all {
        // Writing to a String does not fail.
        let _written = if excluded.remove(name.as_ref()) {
            writeln!(text, "[+]{name} excluded: ok")
        } else if outcome.is_ok() {
            writeln!(text, "[+]{name} ok")
        } else {
            failed |= decides;
            writeln!(text, "[-]{name} failed: {REASON_WITHHELD}")
        };
    }
    if !excluded.is_empty() {
        let names: Vec<String> = excluded.iter().map(|name| Quoted(name).to_string()).collect();
        let names = names.join(",");
        let _written = writeln!(text, "warn: some health checks cannot be excluded: no matches for {names}");
    }
    let name = endpoint.name();
    let (status, text) = match (failed, verbose) {
        (true, _) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{text}{name} check failed\n")),
        (false, true) => (StatusCode::OK, format!("{text}{name} check passed\n")),
        (false, false) => (StatusCode::OK, "ok".to_owned()),
    };
    let mut response = text_response(status, text);
    response.headers_mut().insert(NOSNIFF, HeaderValue::from_static("nosniff"));
    response
}

// adaptCheckToHandler
fn single(outcome: &Result<(), String>) -> Response<Body> {
    match outcome {
        Ok(()) => text_response(StatusCode::OK, "ok".to_owned()),
        Err(cause) => {
            let mut response =
                text_response(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {cause}\n"));
            response.headers_mut().insert(NOSNIFF, HeaderValue::from_static("nosniff"));
            response
        }
    }
}

fn text_response(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Body::bytes(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response
}
