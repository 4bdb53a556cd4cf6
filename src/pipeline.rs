//! The request path, from request to response, top to bottom. Its order is fixed: a request is never forwarded before
//! it is authenticated and authorized, and never with a credential of the client.
//!
//! `docs/request-path.md` describes the same path in prose; a test compares the names of the stages.

mod access_log;
mod admission;
mod audit;
pub(crate) mod audit_id;
mod credential_end;
mod error_map;
mod finished;
pub(crate) mod forward;
mod forward_error;
pub(crate) mod health;
mod post_process;
mod respond;
mod scope;
mod session;
mod stages;
mod token_review;

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::Either;
use http::header::{HOST, HeaderValue, USER_AGENT};
use http::uri::{Authority, PathAndQuery};
use http::{Method, Request, Response};
use portcullis_go::url::decode_path;
use portcullis_http::body::Body;
use portcullis_http::hop_by_hop;
use portcullis_http::loop_detection::ForwardingLoop;
use portcullis_http::transport::{ExchangeBuffers, Incoming};
use portcullis_kubernetes::status::Status;
use portcullis_kubernetes::user::UserInfo;
use portcullis_limits::byte_ledger::ByteLedger;
use portcullis_system::clock::{Clock, UnixTime};
use tokio::time::Instant;
use tracing::info;

use admission::Admission;
pub(crate) use admission::converted_autoscaler;
use audit::{AuditedRequest, Facts};
use credential_end::{StreamCredential, StreamParts};
use error_map::Refusal;
use finished::{FinishedIfWriting, WriteInProgress};
use forward::{ForwardContext, Tunnel};
use health::HealthChecks;
use post_process::PostProcess;
use respond::RefusalRenderer;
use scope::RequestScope;
use session::SessionRequest;
use stages::{Admitted, AuthenticationRecord, Identified, Received, Route, Routed, within};

use crate::audit::ClusterAudit;
use crate::authn::trace::{AuthnTrace, TraceRecord};
use crate::authn::{AuthnError, AuthnInput, ProvenIdentity};
use crate::backend::pools::Pools;
use crate::listener::{Connection, RequestHandler};
use crate::metrics::Metrics;
use crate::request::deadline;
use crate::request::info::RequestInfo;
use crate::request::wellformed::MalformedRequest;
use crate::state::{Live, Snapshot};
use crate::telemetry::{ClientLogThrottle, LogPermit};
use crate::traces::{TracedRequest, Tracer};

/// The gateway of one worker thread: shared state, and its own connections to the backends.
pub(crate) struct Gateway {
    /// The current configuration.
    pub(crate) live: Arc<Live>,
    /// Connections to the backends.
    pub(crate) pools: Arc<Pools>,
    /// The health checks.
    pub(crate) health: Arc<HealthChecks>,
    /// The clock.
    pub(crate) clock: Clock,
    /// The metrics.
    pub(crate) metrics: Arc<Metrics>,
    /// Limits the log lines that one client causes.
    pub(crate) throttle: Arc<ClientLogThrottle>,
    /// Begins spans, if requests are traced.
    pub(crate) tracer: Option<Arc<Tracer>>,
    /// The bytes that streams and connections hold.
    pub(crate) ledger: ByteLedger,
}

impl RequestHandler for Gateway {
    fn handle(
        self: &Arc<Self>,
        connection: Arc<Connection>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Body>> + Send + use<> {
        let gateway = Arc::clone(self);
        // Before the future is polled, so that a request that its client resets at once is also logged and counted.
        let mut scope = RequestScope::begin(&connection, &request, &gateway.metrics, &gateway.throttle);
        let renderer = RefusalRenderer::of(&request);
        let buffers = request.body().buffers().cloned();
        let request = Box::new(request);
        let (is_read, is_head) = (request.method().is_safe(), request.method() == Method::HEAD);
        let write = scope.write.clone();
        let own_write = write.clone();
        let handling = async move {
            // One snapshot for the whole request, released before the response body streams.
            let endpoints_version = gateway.live.endpoints_version();
            let snapshot = gateway.live.snapshot();
            // A task does this after each change; a request may come first.
            gateway.pools.retain_endpoints(endpoints_version, snapshot.endpoints());
            let result = {
                // Pinned here, so that the futures around it hold a pointer: each of them would move it, and be as large again.
                let handling = pin!(gateway.respond(&snapshot, &connection, &mut scope, request));
                let handling = unless_revoked(buffers, own_write, handling);
                AssertUnwindSafe(handling).catch_unwind().await
            };
            let result = result.unwrap_or_else(|_| {
                gateway.metrics.panics.inc();
                Err(Refusal::Panic)
            });
            if connection.http2 && scope.is_unauthenticated() {
                // apiserver: pkg/endpoints/filters/authentication.go — one request per unauthenticated connection
                connection.close_gracefully();
            }
            let awaited = scope.audited.as_ref().filter(|audited| audited.is_awaited()).cloned();
            let response =
                scope.finish(result, &renderer, &connection, snapshot.strict_transport_security.as_ref());
            match awaited {
                Some(awaited) => {
                    Box::pin(awaited.store_before_end(response, is_head, snapshot.request_timeout)).await
                }
                None => response,
            }
        };
        // A read has no write to finish, and needs no allocation.
        if is_read { Either::Left(handling) } else { Either::Right(FinishedIfWriting::new(handling, write)) }
    }

    fn ledger(&self) -> &ByteLedger {
        &self.ledger
    }

    // threat: log-flood
    fn note_reset_limit(&self, peer: SocketAddr) {
        self.metrics.connections.reset_limit_closed.inc();
        if let Some(LogPermit { suppressed }) = self.throttle.permit_client(peer.ip()) {
            info!(%peer, suppressed, "connection closed: client exceeded the stream reset limit (HTTP/2 rapid reset)");
        }
    }
}

/// Handles a request, unless its owner has to give up memory. Then all that the request holds is dropped; not while a reviewed write
/// is on its way, which ends soon.
// threat: buffered-bytes-flood
async fn unless_revoked(
    buffers: Option<Arc<ExchangeBuffers>>,
    write: WriteInProgress,
    handling: impl Future<Output = Result<Response<Body>, Refusal>>,
) -> Result<Response<Body>, Refusal> {
    let Some(buffers) = buffers else { return handling.await };
    let revoked = async {
        buffers.revoked().await;
        if write.is_on_its_way() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        () = revoked => {
            let is_sent = write.may_be_stored();
            Err(if is_sent { Refusal::GivenUpAfterSending } else { Refusal::TooManyBufferedBytes })
        }
        result = handling => result,
    }
}

impl Gateway {
    /// Runs the stages in order; each takes the one before it by value.
    async fn respond(
        &self,
        snapshot: &Snapshot,
        connection: &Arc<Connection>,
        scope: &mut RequestScope,
        request: Box<Request<Incoming>>,
    ) -> Result<Response<Body>, Refusal> {
        let mut received = Received::accept(request)?;
        refuse_while_draining(snapshot, connection, &received)?;
        let route = self.route(snapshot, connection, scope, &mut received)?;
        self.refuse_loop(&route, received.request())?;
        scope.allowed_origin = snapshot.allowed_origins.find(received.request().headers());
        if scope.allowed_origin.is_some() && received.request().method() == Method::OPTIONS {
            return Ok(respond::to_preflight(scope.log.audit_id().clone()));
        }
        // From here on no credential is in the request, so none can be forwarded.
        let routed = received.take_credentials(route);
        let mut identified = self.authenticate(snapshot, connection, scope, routed).await?;
        scope.set_owner(identified.count_buffers(connection));
        self.trace(scope, &mut identified);
        self.audit(connection, scope, &mut identified).await?;
        // After the audit, as for the limit of requests in flight: a refusal of an authenticated client is an event.
        identified.count_connection(connection)?;
        let client = connection.info.peer.ip();
        scope.count_request(identified.count_request(client).await?);
        let on_user = |user: &UserInfo| scope.end_if_denied(user);
        let mut impersonated = identified.impersonate(client, &self.clock, scope.spans(), on_user).await?;
        scope.note_impersonated(&impersonated);
        if impersonated.identity().is_unauthenticated() {
            // Also of an impersonated user: the request takes a connection that anonymous clients need.
            impersonated.set_deadline(scope.log.started() + snapshot.request_timeout);
        }
        let mut scheduled = impersonated.schedule(client, scope.spans()).await?;
        scope.hold(scheduled.take_permit());
        let on_decision = |decided: &_| scope.note_authorization(decided);
        let authorized = scheduled.authorize(client, scope.spans(), on_decision).await?;
        if let Some(response) = self.health.respond(&authorized) {
            return Ok(respond::with_common_headers(response, scope.log.audit_id().clone()));
        }
        let post_process = PostProcess::of(&authorized, client);
        let response = match admission::begin(authorized) {
            Admission::Admitted(admitted) => Box::pin(self.forward(admitted, connection, scope)).await?,
            Admission::Pending(review) => Box::pin(review.forward(self, connection, scope)).await?,
        };
        post_process.apply(response, (&self.health, &self.clock), connection).await
    }

    /// Sends an admitted request to the backend.
    async fn forward(
        &self,
        admitted: Admitted,
        connection: &Connection,
        scope: &RequestScope,
    ) -> Result<Response<Body>, Refusal> {
        let context = self.forward_context(connection, scope);
        let is_read = admitted.is_read();
        let session = SessionRequest::of(&admitted, context.client, context.audit_id);
        // The last step that refuses a request because of its header.
        let prepared = forward::prepare(admitted, context)?;
        let session = match session {
            Some(session) => Some(Box::pin(scope.permit_session(*session, &self.metrics)).await?),
            None => None,
        };
        if !is_read {
            scope.write.note_sent();
        }
        let tunnel = || Tunnel {
            guard: scope.tunnel_guard(connection),
            end: scope.tunnel_end(connection),
            session: scope.session(session, &self.metrics),
        };
        let sending = Box::pin(forward::send(&self.pools, prepared, context, tunnel));
        // A reviewed write is no stream, whatever its header says, and what it has stored is compared.
        let end = if scope.write.is_on_its_way() { None } else { scope.stream_end() };
        let Some(mut end) = end else { return Ok(sending.await?) };
        // Also a request whose body never ends, or that is never answered.
        let response = tokio::select! {
            biased;
            response = sending => response?,
            () = &mut end => return Err(scope.ended()),
        };
        Ok(response.map(|body| body.revoke_when(end)))
    }

    fn forward_context<'a>(
        &'a self,
        connection: &'a Connection,
        scope: &'a RequestScope,
    ) -> ForwardContext<'a> {
        ForwardContext {
            peer: &connection.address,
            client: connection.info.peer.ip(),
            audit_id: scope.log.audit_id(),
            gateway_id: &self.live.gateway_id,
            spans: scope.spans(),
        }
    }

    /// Finds the cluster, the `RequestInfo` and the deadline of a request. Refuses requests that kube-apiserver refuses
    /// before it authenticates.
    // apiserver: pkg/server/config.go, DefaultBuildHandlerChain — RequestInfo and the deadline are outside authentication
    fn route(
        &self,
        snapshot: &Snapshot,
        connection: &Connection,
        scope: &mut RequestScope,
        received: &mut Received,
    ) -> Result<Route, Refusal> {
        let request = received.request();
        let server_name = connection.info.server_name.as_deref();
        let found = snapshot.router.route(server_name, host(request), request.uri().path())?;
        let cluster = Arc::clone(found.cluster);
        if found.prefix > 0 {
            received.cut_prefix(found.prefix);
        }
        let uri = received.request().uri();
        let path = decode_path(uri.path()).map_err(|_| MalformedRequest::BadEscape)?;
        let info = RequestInfo::parse(received.request().method(), &path, uri.query()).map_err(|error| {
            let target = uri.path_and_query().map_or("", PathAndQuery::as_str);
            let message = error.message(uri.path(), uri.query());
            Refusal::RequestInfo(Box::new(Status::internal_error_text(target, &message)))
        })?;
        let info = Arc::new(info);
        scope.note_route(&cluster, &info);
        let timeout = deadline::deadline(&info, uri.query(), snapshot.request_timeout);
        if let (Err(bad), Some(audit)) = (&timeout, &cluster.audit) {
            let began = self.clock.now().saturating_sub(scope.log.started().elapsed());
            let facts = self.facts(connection, scope, began, (audit, &info));
            scope.audited = AuditedRequest::failed(facts, received.request(), bad.to_string());
        }
        let timeout = timeout?;
        let deadline = timeout.map(|timeout| scope.log.started() + timeout);
        Ok(Route { cluster, info, deadline })
    }

    /// Refuses a request that this gateway has sent to the same cluster before, in the chain of servers that it comes from.
    fn refuse_loop(&self, route: &Route, request: &Request<Incoming>) -> Result<(), ForwardingLoop> {
        let cluster = route.cluster.backend.cluster_name();
        self.live.gateway_id.check(request.headers(), cluster, request.method(), request.uri().path())
    }

    /// Authenticates the client, and records the result in the log and the metrics. Keeps a credential with which the response
    /// is to end.
    async fn authenticate(
        &self,
        snapshot: &Snapshot,
        connection: &Arc<Connection>,
        scope: &mut RequestScope,
        mut routed: Routed,
    ) -> Result<Identified, Refusal> {
        let authn = &routed.cluster().authn;
        let authn_ends = authn.ends_streams;
        let trace = AuthnTrace::default();
        let input = AuthnInput {
            conn: &connection.info,
            credentials: routed.credentials(),
            path: routed.info().path(),
            audiences: &authn.audiences,
            generation: snapshot.generation,
            now: self.clock.now(),
            trace: &trace,
        };
        let began = input.now;
        scope.log.note_certificate(connection.certificate_not_after, began);
        let started = Instant::now();
        let verdict = within_deadline(routed.deadline(), authn.chain.authenticate(&input)).await;
        let took = started.elapsed();
        let TraceRecord { warnings, annotations, .. } = trace.take();
        scope.note_authentication(&verdict, took, warnings);
        if verdict.is_err() {
            self.audit_failed_authentication(connection, scope, began, &routed);
        }
        let proven = verdict?;
        if proven.user().is_unauthenticated() {
            // Also for a long-running request: it occupies a connection that other anonymous clients need.
            routed.set_deadline(scope.log.started() + snapshot.request_timeout);
        }
        let is_upgrade = || hop_by_hop::requested_upgrade(routed.request().headers()).is_some();
        scope.is_stream = routed.info().is_long_running() || is_upgrade();
        let ends = authn_ends && scope.is_stream && !proven.user().is_unauthenticated();
        scope.credential = ends.then(|| {
            let credentials = routed.take_credentials();
            let parts = StreamParts {
                live: &self.live,
                clock: &self.clock,
                metrics: &self.metrics,
                connection,
                cluster: &routed.cluster().name,
                path: routed.info().path(),
            };
            StreamCredential::new(&parts, credentials, &proven)
        });
        Ok(routed.identify(proven, AuthenticationRecord { began, took, annotations }))
    }

    /// Begins the span of a request whose client is authenticated: only some users may continue their own trace.
    // apiserver: pkg/server/config.go, DefaultBuildHandlerChain — WithTracing follows authentication
    fn trace(&self, scope: &mut RequestScope, identified: &mut Identified) {
        let Some(tracer) = &self.tracer else { return };
        let (request, route, user) = identified.audit_view();
        let began = route.authentication.began;
        let traced = TracedRequest {
            method: request.method(),
            headers: request.headers(),
            info: route.info,
            audit_id: scope.log.audit_id(),
            began,
            owner: scope.owner(),
        };
        let span = tracer.begin(&traced, route.origin.operator_user(user));
        // Authentication has decided whether the request is traced, so it is recorded afterwards.
        span.scope().record("authentication", began, began + route.authentication.took);
        scope.span = Some(Box::new(span));
    }

    /// Begins the audit of a request whose client is authenticated.
    // apiserver: pkg/server/config.go, DefaultBuildHandlerChain — audit follows authentication, before impersonation
    async fn audit(
        &self,
        connection: &Connection,
        scope: &mut RequestScope,
        identified: &mut Identified,
    ) -> Result<(), Refusal> {
        let deadline = identified.deadline();
        let (request, route, user) = identified.audit_view();
        let Some(audit) = route.audit else { return Ok(()) };
        let mut facts = self.facts(connection, scope, route.authentication.began, (audit, route.info));
        facts.is_from_front_proxy = route.is_from_front_proxy;
        let annotations = std::mem::take(&mut route.authentication.annotations);
        scope.audited = AuditedRequest::begin(facts, user, annotations, request);
        let Some(audited) = &scope.audited else { return Ok(()) };
        let Some(storing) = audited.store_received() else { return Ok(()) };
        // Boxed: the future of every request would be as large.
        within(deadline, Box::pin(storing)).await?.map_err(|not_stored| {
            let target = request.uri().path_and_query().map_or("", PathAndQuery::as_str);
            Refusal::AuditNotStored(Box::new(Status::internal_error_text(target, &not_stored.to_string())))
        })
    }

    fn audit_failed_authentication(
        &self,
        connection: &Connection,
        scope: &mut RequestScope,
        began: UnixTime,
        routed: &Routed,
    ) {
        let Some(audit) = &routed.cluster().audit else { return };
        let facts = self.facts(connection, scope, began, (audit, routed.info()));
        let has_certificate = connection.certificate_not_after.is_some();
        let authorization = routed.credentials().authorization.as_deref();
        let message = audit::attempted(authorization, routed.query(), has_certificate);
        scope.audited = AuditedRequest::failed(facts, routed.request(), message);
    }

    /// The facts by which a request is audited. No front proxy is known yet.
    fn facts<'a>(
        &'a self,
        connection: &Connection,
        scope: &RequestScope,
        received: UnixTime,
        (audit, info): (&'a Arc<ClusterAudit>, &'a Arc<RequestInfo>),
    ) -> Facts<'a> {
        Facts {
            audit,
            metrics: &self.metrics,
            received,
            audit_id: scope.log.audit_id().clone(),
            peer: connection.info.peer.ip(),
            info,
            is_from_front_proxy: false,
        }
    }
}

/// Refuses requests with 429 during the shutdown, if so configured, so that clients retry at another replica.
// apiserver: pkg/server/filters/with_retry_after.go
fn refuse_while_draining(
    snapshot: &Snapshot,
    connection: &Connection,
    received: &Received,
) -> Result<(), Refusal> {
    let refuses = snapshot.shutdown.send_retry_after && connection.is_draining();
    if refuses && !is_exempt_from_retry_after(received.request()) {
        return Err(Refusal::ShuttingDown);
    }
    Ok(())
}

/// Whether a request is exempt from the 429 responses during the shutdown.
fn is_exempt_from_retry_after(request: &Request<Incoming>) -> bool {
    let path = request.uri().path();
    let agent = request.headers().get(USER_AGENT).map(HeaderValue::as_bytes).unwrap_or_default();
    ["/readyz", "/livez", "/healthz", "/metrics"].iter().any(|root| path.starts_with(root))
        || agent.starts_with(b"kube-apiserver/")
}

/// The requested host. A well-formed request has at most one.
fn host(request: &Request<Incoming>) -> Option<&str> {
    let authority = request.uri().authority().map(Authority::as_str);
    authority.or_else(|| request.headers().get(HOST)?.to_str().ok())
}

/// Waits for the verdict, but not beyond the deadline: an issuer or a webhook may not answer.
// apiserver: pkg/authentication/token/cache/cached_token_authenticator.go — waits until the request's context is done
// threat: anonymous-lockout
async fn within_deadline(
    deadline: Option<Instant>,
    verdict: impl Future<Output = Result<ProvenIdentity, AuthnError>>,
) -> Result<ProvenIdentity, AuthnError> {
    within(deadline, verdict).await.unwrap_or_else(|_| {
        Err(AuthnError::Unavailable("authentication did not finish before the request's deadline".to_owned()))
    })
}
