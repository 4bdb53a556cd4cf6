//! `/healthz`, `/livez` and `/readyz`: what probes ask. The gateway answers the three roots itself. A single check of
//! its own is answered once the API server has let the request through, since it authorises; any other single check is
//! the API server's. On the listener for metrics all of the gateway's are answered to everybody.
// apiserver: pkg/server/healthz/healthz.go

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::go::quote::Quoted;
use crate::go::url::query;
use crate::http::body::Body;
use crate::listener::ShutdownPhase;
use crate::pipeline::stages::Authorized;
use crate::state::Live;

const NOSNIFF: HeaderName = HeaderName::from_static("x-content-type-options");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const CLUSTER_CHECK_PREFIX: &str = "cluster-";
/// How long the start waits for issuers of tokens: until they are known, good tokens are refused.
const ISSUERS_GRACE: Duration = Duration::from_secs(30);

/// One of the three endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HealthEndpoint {
    /// Deprecated upstream, and the same as `/livez` here.
    Healthz,
    /// Whether the process should go on: never about an API server.
    Livez,
    /// Whether requests should come.
    Readyz,
}

/// A request that the gateway's health checks answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HealthRequest {
    /// For all checks of an endpoint.
    Root(HealthEndpoint),
    /// For one check of an endpoint.
    Single(SingleCheck),
}

/// One check of an endpoint, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SingleCheck {
    endpoint: HealthEndpoint,
    name: String,
}

/// What the checks look at.
#[derive(Debug)]
pub(crate) struct Health {
    live: Arc<Live>,
    phase: watch::Receiver<ShutdownPhase>,
    started: Instant,
    /// Whether every API server was looked at that there was then. One that is added later does not undo it.
    all_checked: AtomicBool,
    /// Whether every issuer of tokens was known once.
    issuers_found: AtomicBool,
}

/// One check: its name, and why it fails.
type Check = (Cow<'static, str>, Result<(), String>);

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
    /// The health request of a path; `None` if the path is not of the health checks.
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

    /// The health request that a client makes under its own identity.
    fn of(request: &Authorized) -> Option<Self> {
        if request.is_impersonating() { None } else { Self::of_path(request.info().path()) }
    }
}

impl SingleCheck {
    /// The single check that a client asks for. One of another cluster is none: the client is authenticated for its own.
    pub(super) fn of(request: &Authorized) -> Option<Self> {
        match HealthRequest::of(request)? {
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

impl Health {
    pub(crate) fn new(live: Arc<Live>, phase: watch::Receiver<ShutdownPhase>) -> Self {
        let (all_checked, issuers_found) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { live, phase, started: Instant::now(), all_checked, issuers_found }
    }

    /// The answer to a GET of a root. Clients of a cluster see the informative checks of that cluster alone.
    pub(super) fn answer(&self, request: &Authorized) -> Option<Response<Body>> {
        match HealthRequest::of(request)? {
            HealthRequest::Root(endpoint) if request.info().verb() == "get" => {
                Some(self.root(endpoint, Some(&request.cluster().name), request.query()))
            }
            HealthRequest::Root(_) | HealthRequest::Single(_) => None,
        }
    }

    /// The answer to a root. Users of a `cluster` are told of that one alone.
    pub(crate) fn root(
        &self,
        endpoint: HealthEndpoint,
        cluster: Option<&str>,
        query: Option<&str>,
    ) -> Response<Body> {
        root(endpoint, &self.checks(endpoint), &self.informative(endpoint, cluster), query)
    }

    /// The answer to a single check, if it is one of the gateway's.
    pub(crate) fn single(&self, check: &SingleCheck) -> Option<Response<Body>> {
        let mut checks = self.checks(check.endpoint);
        checks.extend(self.informative(check.endpoint, None));
        let (_, outcome) = checks.into_iter().find(|(name, _)| *name == check.name)?;
        Some(single(&outcome))
    }

    /// Replaces the backend's answer to a single check by the gateway's where the backend has no such check: it has let
    /// the request through, so the client may see it. A check that both have fails if either fails.
    pub(super) fn stand_in(&self, theirs: Response<Body>, check: &SingleCheck) -> Response<Body> {
        let answers = match theirs.status() {
            StatusCode::NOT_FOUND => true,
            StatusCode::OK => self.fails(check),
            _ => false,
        };
        if !answers {
            return theirs;
        }
        let Some(ours) = self.single(check) else { return theirs };
        let (head, _) = theirs.into_parts();
        let (mut answer, body) = ours.into_parts();
        for kept in [crate::pipeline::forward::AUDIT_ID, http::header::CACHE_CONTROL] {
            if let Some(value) = head.headers.get(&kept) {
                answer.headers.insert(kept, value.clone());
            }
        }
        Response::from_parts(answer, body)
    }

    fn fails(&self, check: &SingleCheck) -> bool {
        self.checks(check.endpoint).iter().any(|(name, outcome)| *name == check.name && outcome.is_err())
    }

    /// The checks that decide.
    fn checks(&self, endpoint: HealthEndpoint) -> Vec<Check> {
        let snapshot = self.live.peek();
        let clusters = snapshot.clusters();
        let mut checks: Vec<Check> = vec![("ping".into(), Ok(()))];
        let all_checked = self.all_checked.load(Ordering::Relaxed)
            || clusters.iter().all(|cluster| cluster.backend.is_checked());
        self.all_checked.store(all_checked, Ordering::Relaxed);
        let grace = endpoint == HealthEndpoint::Livez && self.started.elapsed() < snapshot.livez_grace_period;
        let hook = if all_checked || grace { Ok(()) } else { Err("not finished".to_owned()) };
        checks.push(("poststarthook/self-check".into(), hook));
        if endpoint == HealthEndpoint::Readyz {
            let usable = clusters.iter().any(|cluster| trouble(cluster).is_none());
            let clusters = if usable { Ok(()) } else { Err("no API server can be used".to_owned()) };
            checks.push(("clusters".into(), clusters));
            let known = self.issuers_found.load(Ordering::Relaxed)
                || snapshot.clusters().iter().all(|cluster| cluster.authn.issuers.are_known());
            self.issuers_found.store(known, Ordering::Relaxed);
            let waited = self.started.elapsed() >= ISSUERS_GRACE;
            let issuers = if known || waited { Ok(()) } else { Err("not finished".to_owned()) };
            checks.push(("poststarthook/token-issuers".into(), issuers));
            let ending = *self.phase.borrow() > ShutdownPhase::Serving;
            let shutdown = if ending { Err("process is shutting down".to_owned()) } else { Ok(()) };
            checks.push(("shutdown".into(), shutdown));
        }
        checks
    }

    /// The checks that do not decide: one cluster of several must not take the others out of service, nor an issuer of
    /// tokens those who have other credentials.
    fn informative(&self, endpoint: HealthEndpoint, only: Option<&str>) -> Vec<Check> {
        if endpoint != HealthEndpoint::Readyz {
            return Vec::new();
        }
        let snapshot = self.live.peek();
        let mut checks: Vec<Check> = Vec::new();
        for cluster in snapshot.clusters() {
            if only.is_some_and(|only| only != cluster.name) {
                continue;
            }
            let name = format!("{CLUSTER_CHECK_PREFIX}{}", cluster.name);
            for (index, (_, health)) in cluster.authn.issuers.health().enumerate() {
                checks.push((format!("{name}/issuer-{index}").into(), health));
            }
            checks.push((name.into(), trouble(cluster).map_or(Ok(()), Err)));
        }
        checks
    }
}

/// Why no request can go to a cluster.
fn trouble(cluster: &Cluster) -> Option<String> {
    let endpoints = cluster.backend.endpoints();
    if endpoints.iter().any(|endpoint| endpoint.is_trusted() && endpoint.last_error().is_none()) {
        return None;
    }
    let of_each = endpoints.iter().map(|endpoint| match endpoint.last_error() {
        Some(error) => error.to_string(),
        None => format!("{} was not seen to take identities", endpoint.address()),
    });
    Some(of_each.collect::<Vec<_>>().join("; "))
}

// handleRootHealth
fn root(
    endpoint: HealthEndpoint,
    checks: &[Check],
    informative: &[Check],
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
            writeln!(text, "[-]{name} failed: reason withheld")
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
    let mut response = answer(status, text);
    response.headers_mut().insert(NOSNIFF, HeaderValue::from_static("nosniff"));
    response
}

// adaptCheckToHandler
fn single(outcome: &Result<(), String>) -> Response<Body> {
    match outcome {
        Ok(()) => answer(StatusCode::OK, "ok".to_owned()),
        Err(cause) => {
            let mut response =
                answer(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {cause}\n"));
            response.headers_mut().insert(NOSNIFF, HeaderValue::from_static("nosniff"));
            response
        }
    }
}

fn answer(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Body::bytes(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response
}
