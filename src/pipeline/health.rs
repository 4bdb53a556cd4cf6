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

use arc_swap::ArcSwap;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::go::quote::Quoted;
use crate::go::url::query;
use crate::http::body::Body;
use crate::listener::Drain;
use crate::state::snapshot::Snapshot;

const NOSNIFF: HeaderName = HeaderName::from_static("x-content-type-options");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const CLUSTER: &str = "cluster-";
/// How long the start waits for issuers of tokens: until they are known, good tokens are refused.
const ISSUERS_GRACE: Duration = Duration::from_secs(30);

/// One of the three endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// Deprecated upstream, and the same as `/livez` here.
    Healthz,
    /// Whether the process should go on: never about an API server.
    Livez,
    /// Whether requests should come.
    Readyz,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    /// All checks of an endpoint.
    Root(Endpoint),
    /// One check of ours.
    Single(Endpoint, String),
}

/// What the checks look at.
#[derive(Debug)]
pub(crate) struct Health {
    current: Arc<ArcSwap<Snapshot>>,
    drain: watch::Receiver<Drain>,
    started: Instant,
    /// Whether every API server was looked at that there was then. One that is added later does not undo it.
    looked: AtomicBool,
    /// Whether every issuer of tokens was known once.
    known: AtomicBool,
}

/// One check: its name, and why it fails.
type Check = (Cow<'static, str>, Result<(), String>);

impl Endpoint {
    fn name(self) -> &'static str {
        match self {
            Self::Healthz => "healthz",
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }
}

impl Asked {
    /// What a path asks the gateway for; `None` if it is no business of the gateway.
    pub(crate) fn by(path: &str) -> Option<Self> {
        let path = path.strip_prefix('/')?;
        let (root, single) = path.split_once('/').map_or((path, None), |(root, single)| (root, Some(single)));
        let endpoint = match root {
            "healthz" => Endpoint::Healthz,
            "livez" => Endpoint::Livez,
            "readyz" => Endpoint::Readyz,
            _ => return None,
        };
        match single {
            None => Some(Self::Root(endpoint)),
            Some(name) => Some(Self::Single(endpoint, name.to_owned())),
        }
    }

    /// Whether it is about another cluster than this: then it is no business of those who are let in to this one.
    pub(crate) fn is_about_another_than(&self, cluster: &str) -> bool {
        match self {
            Self::Root(_) => false,
            Self::Single(_, check) => check
                .strip_prefix(CLUSTER)
                .and_then(|rest| rest.split('/').next())
                .is_some_and(|name| name != cluster),
        }
    }
}

impl Health {
    pub(crate) fn new(current: Arc<ArcSwap<Snapshot>>, drain: watch::Receiver<Drain>) -> Self {
        let (looked, known) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { current, drain, started: Instant::now(), looked, known }
    }

    /// The answer to a root. Users of a `cluster` are told of that one alone.
    pub(crate) fn root(
        &self,
        endpoint: Endpoint,
        cluster: Option<&str>,
        query: Option<&str>,
    ) -> Response<Body> {
        root(endpoint, &self.checks(endpoint), &self.informative(endpoint, cluster), query)
    }

    /// The answer to a single check, if it is one of the gateway's.
    pub(crate) fn single(&self, endpoint: Endpoint, name: &str) -> Option<Response<Body>> {
        let mut checks = self.checks(endpoint);
        checks.extend(self.informative(endpoint, None));
        let (_, outcome) = checks.into_iter().find(|(known, _)| known == name)?;
        Some(single(&outcome))
    }

    /// Whether an API server, which was asked for a single check and has let the request through, knows nothing of
    /// it; then ours is put in the place of what it said. A check that both have fails if either does.
    pub(crate) fn in_place_of(
        &self,
        theirs: Response<Body>,
        endpoint: Endpoint,
        name: &str,
    ) -> Response<Body> {
        let answers = match theirs.status() {
            StatusCode::NOT_FOUND => true,
            StatusCode::OK => self.fails(endpoint, name),
            _ => false,
        };
        if !answers {
            return theirs;
        }
        let Some(ours) = self.single(endpoint, name) else { return theirs };
        let (head, _) = theirs.into_parts();
        let (mut answer, body) = ours.into_parts();
        for kept in [crate::pipeline::forward::AUDIT_ID, http::header::CACHE_CONTROL] {
            if let Some(value) = head.headers.get(&kept) {
                answer.headers.insert(kept, value.clone());
            }
        }
        Response::from_parts(answer, body)
    }

    fn fails(&self, endpoint: Endpoint, name: &str) -> bool {
        self.checks(endpoint).iter().any(|(known, outcome)| known == name && outcome.is_err())
    }

    /// The checks that decide.
    fn checks(&self, endpoint: Endpoint) -> Vec<Check> {
        let snapshot = self.current.load();
        let clusters = snapshot.router.clusters();
        let mut checks: Vec<Check> = vec![("ping".into(), Ok(()))];
        let looked = self.looked.load(Ordering::Relaxed)
            || clusters.iter().all(|cluster| cluster.upstream.is_checked());
        self.looked.store(looked, Ordering::Relaxed);
        let grace = endpoint == Endpoint::Livez && self.started.elapsed() < snapshot.livez_grace_period;
        let hook = if looked || grace { Ok(()) } else { Err("not finished".to_owned()) };
        checks.push(("poststarthook/self-check".into(), hook));
        if endpoint == Endpoint::Readyz {
            let usable = clusters.iter().any(|cluster| trouble(cluster).is_none());
            let clusters = if usable { Ok(()) } else { Err("no API server can be used".to_owned()) };
            checks.push(("clusters".into(), clusters));
            let known = self.known.load(Ordering::Relaxed)
                || snapshot.methods.iter().all(|methods| methods.issuers().are_known());
            self.known.store(known, Ordering::Relaxed);
            let waited = self.started.elapsed() >= ISSUERS_GRACE;
            let issuers = if known || waited { Ok(()) } else { Err("not finished".to_owned()) };
            checks.push(("poststarthook/token-issuers".into(), issuers));
            let ending = *self.drain.borrow() > Drain::Serving;
            let shutdown = if ending { Err("process is shutting down".to_owned()) } else { Ok(()) };
            checks.push(("shutdown".into(), shutdown));
        }
        checks
    }

    /// The checks that do not decide: one cluster of several must not take the others out of service, nor an issuer of
    /// tokens those who have other credentials.
    fn informative(&self, endpoint: Endpoint, only: Option<&str>) -> Vec<Check> {
        if endpoint != Endpoint::Readyz {
            return Vec::new();
        }
        let snapshot = self.current.load();
        let mut checks: Vec<Check> = Vec::new();
        for (cluster, methods) in snapshot.router.clusters().iter().zip(&snapshot.methods) {
            if only.is_some_and(|only| only != cluster.name) {
                continue;
            }
            let name = format!("{CLUSTER}{}", cluster.name);
            for (index, (_, health)) in methods.issuers().health().enumerate() {
                checks.push((format!("{name}/issuer-{index}").into(), health));
            }
            checks.push((name.into(), trouble(cluster).map_or(Ok(()), Err)));
        }
        checks
    }
}

/// Why no request can go to a cluster.
fn trouble(cluster: &Cluster) -> Option<String> {
    let targets = cluster.upstream.targets();
    if targets.iter().any(|target| target.is_trusted() && target.last_trouble().is_none()) {
        return None;
    }
    let of_each = targets.iter().map(|target| match target.last_trouble() {
        Some(error) => error.to_string(),
        None => format!("{} was not seen to take identities", target.address()),
    });
    Some(of_each.collect::<Vec<_>>().join("; "))
}

// handleRootHealth
fn root(endpoint: Endpoint, checks: &[Check], informative: &[Check], query: Option<&str>) -> Response<Body> {
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
