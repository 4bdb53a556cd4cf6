//! The stages of a request as types: `Received → Routed → Identified → Impersonated → Scheduled → Authorized → Admitted`. Each has
//! private fields and takes the stage before it by value; only [`Admitted`] can be forwarded. Code that skips a stage does not
//! compile.

mod shares;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::poll_immediate;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, Uri};
use http_body::Body as _;
use portcullis_http::body::Body;
use portcullis_http::hop_by_hop::strip_hop_by_hop;
use portcullis_http::identity::{EncodedIdentity, Identity};
use portcullis_http::transport::Incoming;
use portcullis_kubernetes::user::UserInfo;
use portcullis_system::clock::{Clock, UnixTime};
use tokio::time::{Instant, timeout_at};

use super::error_map::Refusal;
use crate::audit::ClusterAudit;
use crate::authn::ProvenIdentity;
use crate::authz::impersonation::WantedUser;
use crate::authz::{AccessRefusal, AllowedAccess, AuthzTrace};
use crate::backend::Backend;
use crate::cluster::Cluster;
use crate::cluster::settings::ClusterOrigin;
use crate::limits::{InflightPermit, flow_of};
use crate::request::credentials::{Credentials, ImpersonateHeaders};
use crate::request::info::RequestInfo;
use crate::request::wellformed::{self, MalformedRequest};
use crate::traces::{ActiveSpan, SpanScope};

/// The type of what the gateway sends and asks for itself.
pub(in crate::pipeline) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A well-formed request, which every server parses alike.
pub(crate) struct Received {
    request: Box<Request<Incoming>>,
    cut_prefix: Option<Box<str>>,
}

/// The cluster, the meaning and the deadline of a request.
#[derive(Clone)]
pub(crate) struct Route {
    /// The cluster that decides the request.
    pub(crate) cluster: Arc<Cluster>,
    /// The meaning of the request's method and path.
    pub(crate) info: Arc<RequestInfo>,
    /// The deadline of the response; `None` for a long-running request.
    pub(crate) deadline: Option<Instant>,
}

/// A request with a route, from which the credentials are removed.
pub(crate) struct Routed {
    data: Box<StageData>,
    credentials: Credentials,
    impersonate: ImpersonateHeaders,
}

/// A request whose client is authenticated.
pub(crate) struct Identified {
    data: Box<StageData>,
    identity: Identity,
    impersonate: ImpersonateHeaders,
    authentication: AuthenticationRecord,
}

/// How a client was authenticated.
pub(super) struct AuthenticationRecord {
    /// When the authentication began.
    pub(super) began: UnixTime,
    /// How long it took.
    pub(super) took: Duration,
    /// Annotations for the audit.
    pub(super) annotations: BTreeMap<String, String>,
}

/// A request with the identity under which it is made, in a form that HTTP headers carry byte for byte.
pub(crate) struct Impersonated {
    data: Box<StageData>,
    identity: EncodedIdentity,
    /// The client's own identity.
    requester: Identity,
    /// `Impersonate-*` headers that the backend authorizes; empty if the gateway does.
    impersonate: ImpersonateHeaders,
    /// The user that they ask for, by name alone.
    asked: Option<Identity>,
    /// The verb of constrained impersonation, if the client acts as another user by it.
    constraint: Option<&'static str>,
}

/// A request that has its place among those in flight, if they are limited.
pub(crate) struct Scheduled {
    request: Impersonated,
    permit: Option<InflightPermit>,
}

/// A request that the gateway's own authorizers allow. The backend authorizes it as well.
pub(crate) struct Authorized(Impersonated);

/// A request that may be forwarded.
pub(crate) struct Admitted(Authorized);

/// A write that webhooks have reviewed.
#[derive(Default)]
pub(crate) struct ReviewedWrite {
    /// The method; `None` for the client's.
    pub(crate) method: Option<Method>,
    /// The path and query; `None` for the client's.
    pub(crate) target: Option<PathAndQuery>,
    /// The content type of the body; `None` for the client's.
    pub(crate) content_type: Option<HeaderValue>,
    /// The body.
    pub(crate) body: Bytes,
    /// Whether the gateway reads the response, so that it must be JSON and not compressed.
    pub(crate) is_read: bool,
    /// The deadline; `None` for the client's.
    pub(crate) deadline: Option<Instant>,
}

/// The facts about an authenticated request that its audit and its span name.
pub(super) struct AuditedRoute<'a> {
    /// The meaning of the request's method and path.
    pub(super) info: &'a Arc<RequestInfo>,
    /// The audit of the cluster.
    pub(super) audit: Option<&'a Arc<ClusterAudit>>,
    /// Whether the addresses in the request's header are trusted.
    pub(super) is_from_front_proxy: bool,
    /// Who configures the cluster, and so names its users.
    pub(super) origin: &'a ClusterOrigin,
    /// How the client was authenticated.
    pub(super) authentication: &'a mut AuthenticationRecord,
}

/// The data of a request from `Routed` on. The stages box it, so that a move is cheap.
pub(crate) struct StageData {
    request: Box<Request<Body>>,
    cut_prefix: Option<Box<str>>,
    route: Route,
    is_from_front_proxy: bool,
}

/// The parts of an admitted request, to forward it.
pub(crate) struct ForwardParts {
    /// The backend of the cluster that decided the request.
    pub(crate) backend: Arc<Backend>,
    pub(crate) request: Box<Request<Body>>,
    /// The path prefix by which the cluster was found. Redirects to the client get it back.
    pub(crate) cut_prefix: Option<Box<str>>,
    pub(crate) info: Arc<RequestInfo>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) identity: EncodedIdentity,
    /// The client's own identity, by which its use of connections is bounded.
    pub(crate) requester: Identity,
    /// Whether it acts as another user by a verb of constrained impersonation.
    pub(crate) is_constrained: bool,
    /// Whether an authenticated front proxy sent the request; its `X-Forwarded-For` is trusted.
    pub(crate) is_from_front_proxy: bool,
    /// `Impersonate-*` headers that the backend authorizes.
    pub(crate) impersonate: ImpersonateHeaders,
}

impl Received {
    /// Accepts a well-formed request.
    pub(crate) fn accept(request: Box<Request<Incoming>>) -> Result<Self, MalformedRequest> {
        wellformed::check(&request)?;
        Ok(Self { request, cut_prefix: None })
    }

    pub(crate) fn request(&self) -> &Request<Incoming> {
        &self.request
    }

    /// Cuts off the first `prefix` bytes of the path, by which the cluster was found. The rest stays unchanged.
    pub(crate) fn cut_prefix(&mut self, prefix: usize) {
        let uri = self.request.uri_mut();
        let target = uri.path_and_query().map(PathAndQuery::as_str);
        let Some((cut, rest)) = target.and_then(|target| target.split_at_checked(prefix)) else {
            return;
        };
        self.cut_prefix = Some(cut.into());
        let rest = if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") };
        let mut parts = std::mem::take(uri).into_parts();
        // The rest of a valid request target is valid.
        parts.path_and_query = rest.parse().ok();
        *uri = Uri::from_parts(parts).unwrap_or_default();
    }

    /// Removes credentials and `Impersonate-*` headers from the request, so that they cannot be forwarded.
    // threat: forged-identity-headers
    pub(crate) fn take_credentials(self, route: Route) -> Routed {
        let Self { mut request, cut_prefix } = self;
        let authn = &route.cluster.authn;
        let (credentials, impersonate) =
            Credentials::take_from(request.headers_mut(), |name| authn.is_front_proxy_header(name));
        let (head, incoming) = request.into_parts();
        let body = if incoming.is_end_stream() { Body::empty() } else { Body::from_client(incoming) };
        let request = Box::new(Request::from_parts(head, body));
        let data = StageData { request, cut_prefix, route, is_from_front_proxy: false };
        Routed { data: Box::new(data), credentials, impersonate }
    }
}

impl StageData {
    /// The cluster that decides the request.
    pub(crate) fn cluster(&self) -> &Arc<Cluster> {
        &self.route.cluster
    }

    /// The meaning of the request's method and path.
    pub(crate) fn info(&self) -> &Arc<RequestInfo> {
        &self.route.info
    }

    /// The deadline of the response; `None` for a long-running request.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.route.deadline
    }

    /// The query, not decoded.
    pub(crate) fn query(&self) -> Option<&str> {
        self.request.uri().query()
    }

    /// The method, the path and the header, without credentials.
    pub(crate) fn request(&self) -> &Request<Body> {
        &self.request
    }

    /// The same request with another body.
    fn with_body(&self, body: Body) -> Self {
        let mut request = Box::new(Request::new(body));
        request.method_mut().clone_from(self.request.method());
        request.uri_mut().clone_from(self.request.uri());
        request.headers_mut().clone_from(self.request.headers());
        *request.version_mut() = self.request.version();
        Self {
            request,
            cut_prefix: self.cut_prefix.clone(),
            route: self.route.clone(),
            is_from_front_proxy: self.is_from_front_proxy,
        }
    }
}

impl Routed {
    /// The credentials to authenticate.
    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Takes the credentials, to authenticate them again.
    pub(super) fn take_credentials(&mut self) -> Credentials {
        std::mem::take(&mut self.credentials)
    }

    /// Sets a deadline for a request that has none.
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.data.route.deadline.get_or_insert(deadline);
    }

    /// Sets the identity of the client. Only an authenticator chain creates a [`ProvenIdentity`].
    pub(super) fn identify(self, proven: ProvenIdentity, authentication: AuthenticationRecord) -> Identified {
        let Self { mut data, credentials: _, impersonate } = self;
        data.is_from_front_proxy = proven.is_by_front_proxy();
        Identified { data, identity: proven.into_identity(), impersonate, authentication }
    }
}

impl Identified {
    /// What an audit event takes from the request, whose body it may observe.
    pub(super) fn audit_view(&mut self) -> (&mut Request<Body>, AuditedRoute<'_>, &Identity) {
        let StageData { request, route, is_from_front_proxy, .. } = &mut *self.data;
        let route = AuditedRoute {
            info: &route.info,
            audit: route.cluster.audit.as_ref(),
            is_from_front_proxy: *is_from_front_proxy,
            origin: &route.cluster.settings.origin,
            authentication: &mut self.authentication,
        };
        (request, route, &self.identity)
    }

    /// Decides the identity under which the request is made: the client's own, or that of a user whom it may impersonate.
    /// With `--impersonation=backend` the backend decides, and receives the client's `Impersonate-*` headers, if they mean the same
    /// to every reader.
    /// `on_user` records the impersonated user, once the deny list is known to permit it.
    // apiserver: pkg/server/config.go, DefaultBuildHandlerChain — impersonation follows authentication
    // threat: unauthorized-impersonation, revoked-credential, trimmed-names
    pub(super) async fn impersonate(
        self,
        client: IpAddr,
        clock: &Clock,
        spans: Option<&SpanScope>,
        on_user: impl Fn(&UserInfo),
    ) -> Result<Impersonated, Refusal> {
        let Self { data, identity: requester, impersonate, authentication: _ } = self;
        impersonate.check_known()?;
        let mode = data.cluster().backend.identity();
        let revocation = data.cluster().authn.chain.revocation();
        let Some(impersonator) = data.cluster().deciding_impersonator() else {
            let mut asked = None;
            if let Some(wanted) = WantedUser::of(impersonate.headers())? {
                // The backend must read the same user as the deny list and the log, whichever protocol the header comes by.
                let whole = Identity::from(wanted.user()).encode(mode);
                whole.map_err(Refusal::UnencodableImpersonation)?;
                let user = wanted.deniable();
                revocation.check_user(&user, clock.now()).map_err(Refusal::RevokedImpersonation)?;
                on_user(&user);
                asked = Some(Identity::from(UserInfo::named(user.name)));
            }
            let identity = requester.clone().encode(mode)?;
            return Ok(Impersonated { data, identity, requester, impersonate, asked, constraint: None });
        };
        let wanted = if impersonate.is_empty() { None } else { WantedUser::of(impersonate.headers())? };
        let mut constraint = None;
        let identity = match wanted {
            None => requester.clone().encode(mode)?,
            Some(wanted) => {
                let flow = flow_of(&requester, client);
                // apiserver: pkg/server/config.go, DefaultBuildHandlerChain
                let span = spans.and_then(|spans| spans.stage("constrainedimpersonation", &[]));
                let trace = AuthzTrace::within(span.as_deref().map(ActiveSpan::scope).or(spans));
                let deciding = impersonator.impersonate(&flow, &requester, &wanted, data.info(), &trace);
                let impersonated = within(data.deadline(), deciding).await??;
                constraint = impersonated.constraint();
                let user = impersonated.identity;
                if revocation.has_deny_list() {
                    revocation.check_user(&user, clock.now()).map_err(Refusal::RevokedImpersonation)?;
                }
                on_user(&user);
                user.encode(mode).map_err(Refusal::UnencodableImpersonation)?
            }
        };
        let impersonate = ImpersonateHeaders::default();
        Ok(Impersonated { data, identity, requester, impersonate, asked: None, constraint })
    }
}

/// Waits for `future`, but not beyond the deadline.
pub(super) async fn within<T>(
    deadline: Option<Instant>,
    future: impl Future<Output = T>,
) -> Result<T, Refusal> {
    let Some(deadline) = deadline else { return Ok(future.await) };
    let mut future = pin!(future);
    // Almost every result is ready at once and needs no timer.
    if let Some(output) = poll_immediate(future.as_mut()).await {
        return Ok(output);
    }
    timeout_at(deadline, future).await.map_err(|_| Refusal::timeout())
}

impl Impersonated {
    /// The identity under which the request is made.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Sets a deadline for a request that has none.
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.data.route.deadline.get_or_insert(deadline);
    }

    /// The identity under which the request is made, if it is not the client's own.
    pub(crate) fn impersonated(&self) -> Option<&Identity> {
        (!self.identity.is_shared_with(&self.requester)).then_some(&*self.identity)
    }

    /// The client itself, never the user that it impersonates.
    pub(super) fn requester(&self) -> &Identity {
        &self.requester
    }

    /// The user as whom the client wants the request to be made, which the backend decides.
    pub(super) fn asked_of_backend(&self) -> Option<&Identity> {
        self.asked.as_ref()
    }

    /// The verb of constrained impersonation, if the client acts as another user by it.
    pub(super) fn constraint(&self) -> Option<&'static str> {
        self.constraint
    }

    /// Whether the backend authorizes `Impersonate-*` headers of the request.
    pub(crate) fn is_impersonating(&self) -> bool {
        !self.impersonate.is_empty()
    }
}

impl Scheduled {
    /// Takes the place among the requests in flight, to hold it until the response body has ended.
    pub(super) fn take_permit(&mut self) -> Option<InflightPermit> {
        self.permit.take()
    }

    /// Lets the gateway's own authorizers decide, if there are any. `on_decision` audits their decision.
    // apiserver: pkg/server/config.go, DefaultBuildHandlerChain — authorization follows impersonation
    // threat: authorization-bypass
    pub(super) async fn authorize(
        self,
        client: IpAddr,
        spans: Option<&SpanScope>,
        on_decision: impl Fn(&Result<AllowedAccess, AccessRefusal>),
    ) -> Result<Authorized, Refusal> {
        if let Some(authorizer) = &self.cluster().authorizer {
            let target = self.request.data.request.uri().path_and_query().map_or("", PathAndQuery::as_str);
            let flow = flow_of(&self.request.requester, client);
            let request = (&**self.info(), target);
            // apiserver: pkg/server/config.go, DefaultBuildHandlerChain
            let span = spans.and_then(|spans| spans.stage("authorization", &[]));
            let trace = AuthzTrace::within(span.as_deref().map(ActiveSpan::scope).or(spans));
            let deciding = authorizer.authorize_request(&flow, &self.request.identity, request, &trace);
            // Boxed: the future of every request would be as large.
            let decided = within(self.deadline(), Box::pin(deciding)).await?;
            on_decision(&decided);
            decided?;
        }
        Ok(Authorized(self.request))
    }
}

impl Authorized {
    /// Takes the body of the request, to read it.
    pub(super) fn take_body(&mut self) -> Body {
        std::mem::replace(self.0.data.request.body_mut(), Body::empty())
    }

    /// The share in which what the client makes the gateway ask for counts.
    pub(super) fn share(&self, client: IpAddr) -> Cow<'_, str> {
        flow_of(&self.requester, client)
    }

    /// A request that only [`forward::rehearse`](super::forward::rehearse) sends: the same user, cluster and header.
    pub(super) fn rehearsal(&self, method: Method, target: PathAndQuery, body: Body) -> ForwardParts {
        let mut parts = Admitted(self.with_body(body)).into_parts();
        *parts.request.method_mut() = method;
        set_target(&mut parts.request, target);
        parts
    }

    /// The same without its body, to ask about it while it is forwarded.
    pub(super) fn copy_without_body(&self) -> Self {
        self.with_body(Body::empty())
    }

    fn with_body(&self, body: Body) -> Self {
        let Impersonated { data, identity, requester, impersonate, asked, constraint } = &self.0;
        Self(Impersonated {
            data: Box::new(data.with_body(body)),
            identity: identity.clone(),
            requester: requester.clone(),
            impersonate: impersonate.clone(),
            asked: asked.clone(),
            constraint: *constraint,
        })
    }
}

fn set_target(request: &mut Request<Body>, target: PathAndQuery) {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.path_and_query = Some(target);
    // Path and query are valid, and nothing else changes.
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
}

impl Admitted {
    /// Admits a request that no webhook matches, as it is.
    pub(in crate::pipeline) fn as_received(authorized: Authorized) -> Self {
        Self(authorized)
    }

    /// Admits the write that webhooks have reviewed in the place of the client's.
    pub(in crate::pipeline) fn reviewed(authorized: &Authorized, write: ReviewedWrite) -> Self {
        let mut admitted = authorized.with_body(Body::bytes(write.body));
        if write.deadline.is_some() {
            admitted.0.data.route.deadline = write.deadline;
        }
        let request = &mut admitted.0.data.request;
        if let Some(target) = write.target {
            set_target(request, target);
        }
        if let Some(method) = write.method {
            *request.method_mut() = method;
        }
        let headers = request.headers_mut();
        // A write is no upgrade, whatever its header says.
        strip_hop_by_hop(headers);
        // The body has a length of its own.
        for name in [CONTENT_LENGTH, TRANSFER_ENCODING, EXPECT] {
            headers.remove(name);
        }
        if let Some(content_type) = write.content_type {
            headers.insert(CONTENT_TYPE, content_type);
        }
        if write.is_read {
            headers.insert(ACCEPT, JSON);
            headers.remove(ACCEPT_ENCODING);
        }
        Self(admitted)
    }

    /// Admits the connection that webhooks have reviewed. `target` replaces the client's if they changed its options.
    pub(in crate::pipeline) fn reviewed_connection(
        mut authorized: Authorized,
        target: Option<PathAndQuery>,
    ) -> Self {
        if let Some(target) = target {
            set_target(&mut authorized.0.data.request, target);
        }
        Self(authorized)
    }

    /// Whether the API server stores nothing by it.
    pub(super) fn is_read(&self) -> bool {
        self.0.0.data.request.method().is_safe()
    }

    /// Splits the request into its parts, to forward it.
    pub(super) fn into_parts(self) -> ForwardParts {
        let Authorized(Impersonated { data, identity, requester, impersonate, asked: _, constraint }) =
            self.0;
        let StageData {
            mut request,
            cut_prefix,
            route: Route { cluster, info, deadline },
            is_from_front_proxy,
        } = *data;
        if info.verb() == "watch" && cluster.settings.uncompressed_watches.includes(request.headers()) {
            request.headers_mut().remove(ACCEPT_ENCODING);
        }
        let backend = Arc::clone(&cluster.backend);
        ForwardParts {
            backend,
            request,
            cut_prefix,
            info,
            deadline,
            identity,
            requester,
            is_constrained: constraint.is_some(),
            is_from_front_proxy,
            impersonate,
        }
    }
}

impl Deref for Routed {
    type Target = StageData;

    fn deref(&self) -> &StageData {
        &self.data
    }
}

impl Deref for Identified {
    type Target = StageData;

    fn deref(&self) -> &StageData {
        &self.data
    }
}

impl Deref for Impersonated {
    type Target = StageData;

    fn deref(&self) -> &StageData {
        &self.data
    }
}

impl Deref for Scheduled {
    type Target = Impersonated;

    fn deref(&self) -> &Impersonated {
        &self.request
    }
}

impl Deref for Authorized {
    type Target = Impersonated;

    fn deref(&self) -> &Impersonated {
        &self.0
    }
}

impl Deref for Admitted {
    type Target = Authorized;

    fn deref(&self) -> &Authorized {
        &self.0
    }
}
