//! THE request path, from a request to its answer, top to bottom. Nothing here is configurable by reordering.
//!
//! `docs/request-path.md` tells the same story in prose; a test compares the names of the stages.

mod access_log;
mod error_map;
pub(crate) mod forward;
pub(crate) mod health;
mod log_throttle;
mod stages;
mod token_review;

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use arc_swap::ArcSwap;
use futures_util::FutureExt as _;
use futures_util::future::poll_immediate;
use http::header::{HOST, HeaderValue, USER_AGENT};
use http::uri::{Authority, PathAndQuery};
use http::{Request, Response};
use tokio::time::{Instant, timeout_at};

use access_log::Exchange;
use error_map::Refusal;
pub(crate) use log_throttle::LogThrottle;

use crate::authn::trace::Remarks;
use crate::authn::{AuthnError, AuthnInput, Proven};
use crate::backend::pools::Pools;
use crate::clock::Clock;
use crate::go::url::decode_path;
use crate::http::body::Body;
use crate::http::status::Status;
use crate::http::transport::Incoming;
use crate::listener::{Connection, Handler};
use crate::metrics::Metrics;
use crate::pipeline::stages::{Admitted, Authorized, Identified, Received, Routed};
use crate::pipeline::token_review::Reviewing;
use crate::request::deadline;
use crate::request::info::RequestInfo;
use crate::request::wellformed::Malformed;
use crate::state::snapshot::Snapshot;
use forward::Context;
use health::Health;

/// The gateway of one worker thread: what is shared by all, and connections to the backend of its own.
pub(crate) struct Gateway {
    /// The configuration in force.
    pub(crate) snapshot: Arc<ArcSwap<Snapshot>>,
    /// Connections to the API servers.
    pub(crate) pools: Pools,
    /// What probes are told.
    pub(crate) health: Arc<Health>,
    /// The time.
    pub(crate) clock: Clock,
    /// What is counted.
    pub(crate) metrics: Arc<Metrics>,
    /// What clients may cause to be logged.
    pub(crate) throttle: Arc<LogThrottle>,
}

impl Handler for Gateway {
    fn handle(
        self: &Arc<Self>,
        connection: Arc<Connection>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Body>> + Send + use<> {
        let gateway = Arc::clone(self);
        // Noted at once, also if its client takes it back before anything comes of it.
        let mut exchange = Exchange::begin(&connection, &request, &gateway.metrics, &gateway.throttle);
        let request = Box::new(request);
        async move {
            // Once per request: everything below sees one generation. It is gone before the body streams.
            let snapshot = gateway.snapshot.load_full();
            let answering = gateway.answer(&snapshot, &connection, &mut exchange, request);
            let answered = AssertUnwindSafe(answering).catch_unwind().await.unwrap_or_else(|_| {
                gateway.metrics.panics.inc();
                Err(Refusal::Panic)
            });
            exchange.finish(answered, &connection, snapshot.strict_transport_security.as_ref())
        }
    }
}

impl Gateway {
    /// The stages, in order; each takes what the one before it made.
    async fn answer(
        &self,
        snapshot: &Snapshot,
        connection: &Connection,
        exchange: &mut Exchange,
        request: Box<Request<Incoming>>,
    ) -> Result<Response<Body>, Refusal> {
        self.pools.keep(snapshot.generation, snapshot.targets());
        let received = Received::accept(request)?;
        if snapshot.shutdown.send_retry_after && connection.is_leaving() && !is_exempt(received.request()) {
            return Err(Refusal::ShuttingDown);
        }
        let routed = route(snapshot, connection, exchange, received)?;
        let identified = self.authenticate(snapshot, connection, exchange, routed).await?;
        let authorized = impersonate(identified)?;
        let cluster = authorized.cluster();
        let asked = health::Asked::by(authorized.info().path())
            .filter(|asked| !authorized.is_impersonating() && !asked.is_about_another_than(&cluster.name));
        if let Some(health::Asked::Root(endpoint)) = asked
            && authorized.info().verb() == "get"
        {
            return Ok(exchange.own(self.health.root(endpoint, Some(&cluster.name), authorized.query())));
        }
        let admitted = admit(authorized);
        let is_watch = admitted.is_watch();
        let reviewing = Reviewing::of(&admitted);
        let client = connection.info.peer.ip();
        let context = Context { peer: connection.address.clone(), client, audit_id: exchange.audit_id() };
        let sending = forward::send(&self.pools, admitted, context, || Box::new(connection.keep_open()));
        let answer = Box::pin(sending).await?;
        Ok(match asked {
            Some(health::Asked::Single(endpoint, name)) => self.health.in_place_of(answer, endpoint, &name),
            _ if let Some(reviewing) = reviewing => {
                Box::pin(reviewing.answer(answer, self.clock.now())).await?
            }
            _ if is_watch => answer.map(|body| body.ending(connection.watch_end())),
            _ => answer,
        })
    }

    /// Who sent it.
    async fn authenticate(
        &self,
        snapshot: &Snapshot,
        connection: &Connection,
        exchange: &mut Exchange,
        mut routed: Routed,
    ) -> Result<Identified, Refusal> {
        let cluster = routed.cluster();
        let remarks = Remarks::default();
        let input = AuthnInput {
            conn: &connection.info,
            credentials: routed.credentials(),
            path: routed.info().path(),
            audiences: &cluster.audiences,
            generation: snapshot.generation,
            now: self.clock.now(),
            remarks: &remarks,
        };
        exchange.note_certificate(connection.certificate_ends, input.now);
        let started = Instant::now();
        let verdict = in_time(routed.deadline(), cluster.chain.authenticate(&input)).await;
        exchange.note_authentication(&verdict, started.elapsed(), remarks.take().warnings);
        let proven = verdict?;
        if proven.user().is_unauthenticated() {
            // Each takes a place that other clients without a credential need, also a request that may run long.
            routed.end_by(exchange.started() + snapshot.request_timeout);
        } else {
            connection.note_known();
        }
        Ok(Identified::new(routed, proven))
    }
}

/// A verdict until the deadline, if there is one: an issuer or a webhook may let everybody wait. Who is not known by
/// then is not known.
// apiserver: pkg/authentication/token/cache/cached_token_authenticator.go — waits until the request's context is done
// threat: anonymous-lockout
async fn in_time(
    deadline: Option<Instant>,
    verdict: impl Future<Output = Result<Proven, AuthnError>>,
) -> Result<Proven, AuthnError> {
    let Some(deadline) = deadline else { return verdict.await };
    let mut verdict = pin!(verdict);
    // Almost every verdict is there at once, and needs no timer.
    if let Some(verdict) = poll_immediate(verdict.as_mut()).await {
        return verdict;
    }
    let late =
        |_| Err(AuthnError::Unavailable("the request's time was up before it was authenticated".to_owned()));
    timeout_at(deadline, verdict).await.unwrap_or_else(late)
}

/// Which cluster the request is for, what it means there, and until when it must be answered. What kube-apiserver
/// refuses before it authenticates is refused here.
// apiserver: pkg/server/config.go, DefaultBuildHandlerChain — RequestInfo and the deadline are outside authentication
fn route(
    snapshot: &Snapshot,
    connection: &Connection,
    exchange: &mut Exchange,
    mut received: Received,
) -> Result<Routed, Refusal> {
    let request = received.request();
    let server_name = connection.info.server_name.as_deref();
    let route = snapshot.router.route(server_name, host(request), request.uri().path())?;
    let cluster = Arc::clone(route.cluster);
    exchange.note_cluster(&cluster);
    if route.prefix > 0 {
        received.cut_path(route.prefix);
    }
    let uri = received.request().uri();
    let path = decode_path(uri.path()).map_err(|_| Malformed::BadEscape)?;
    let info = RequestInfo::parse(received.request().method(), &path, uri.query()).map_err(|error| {
        let target = uri.path_and_query().map_or("", PathAndQuery::as_str);
        let message = error.message(uri.path(), uri.query());
        Refusal::RequestInfo(Box::new(Status::internal_error_text(target, &message)))
    })?;
    exchange.note_info(&info);
    let timeout = deadline::deadline(&info, uri.query(), snapshot.request_timeout)?;
    let deadline = timeout.map(|timeout| exchange.started() + timeout);
    Ok(Routed::new(received, cluster, info, deadline))
}

/// Whether a request is answered as ever while the server tells others to come back later.
// apiserver: pkg/server/filters/with_retry_after.go
fn is_exempt(request: &Request<Incoming>) -> bool {
    let path = request.uri().path();
    let agent = request.headers().get(USER_AGENT).map(HeaderValue::as_bytes).unwrap_or_default();
    ["/readyz", "/livez", "/healthz", "/metrics"].iter().any(|root| path.starts_with(root))
        || agent.starts_with(b"kube-apiserver/")
}

/// The host the client asks for; the request is well-formed, so there is one at most.
fn host(request: &Request<Incoming>) -> Option<&str> {
    let authority = request.uri().authority().map(Authority::as_str);
    authority.or_else(|| request.headers().get(HOST)?.to_str().ok())
}

/// As whom it may be made. Until the gateway authorises `Impersonate-*` itself, the backend does; forwarding refuses
/// where it cannot.
fn impersonate(identified: Identified) -> Result<Authorized, Refusal> {
    identified.impersonate().check_known()?;
    if identified.impersonate().is_empty() {
        return Ok(Authorized::as_oneself(identified));
    }
    Ok(Authorized::by_backend(identified))
}

/// What webhooks make of it: there are none yet.
fn admit(authorized: Authorized) -> Admitted {
    Admitted::without_webhooks(authorized)
}
