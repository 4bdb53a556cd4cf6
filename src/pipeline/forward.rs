//! To the backend and back: strip hop-by-hop headers, write identity last, stream both ways, tunnel upgrades.
//!
//! [`send`] takes an [`Admitted`] request, which only the earlier stages can make. Redirects are passed on and never
//! followed; a body is never looked at; a client that goes away drops the response here, which cancels the stream to
//! the backend.

mod forwarded;
mod prefix;
mod upgrade;

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TRAILER};
use http::uri::{PathAndQuery, Scheme};
use http::{Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use tokio::time::{Instant, timeout_at};

use prefix::Prefixes;

use crate::backend::pool::SendError;
use crate::backend::pools::Pools;
use crate::backend::sharing::{self, Kind};
use crate::backend::upstream::Upstream;
use crate::http::body::{Body, EndGuard};
use crate::http::identity_headers::RequestHeaderNames;
use crate::http::transport::{BodyError, Incoming};
use crate::http::{hop_by_hop, identity_headers};
use crate::pipeline::stages::{Admitted, Outbound};
use crate::request::info::RequestInfo;
use crate::user::{Identity, IdentityMode, UnencodableIdentity};

/// The id that the audit logs of the gateway and the backend share.
pub(crate) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// The largest header that kube-apiserver takes over HTTP/2.
// Go: net/http DefaultMaxHeaderBytes
const MAX_HEADER_LIST: usize = 1 << 20;
/// How much of a body Go's server waits for before it answers, if nothing has read it.
// Go: net/http/server.go, maxPostHandlerReadBytes
const ANONYMOUS_BODY: u64 = 256 << 10;
/// How much later than its request the body of the backend's own 504 may end. The backend's clock for a request starts
/// after the gateway's, so that answer comes when the gateway's deadline has passed, or a moment before.
const TIMEOUT_ANSWER_GRACE: Duration = Duration::from_secs(5);
/// Set by kube-apiserver once it has authenticated a request.
const FLOW_SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");

/// Why a request has no answer from the backend.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForwardError {
    /// No header can carry the identity.
    #[error(transparent)]
    UnencodableIdentity(#[from] UnencodableIdentity),
    /// There is no connection, or it broke.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The backend took longer than the request may.
    #[error("the backend did not answer within the allotted timeout")]
    Timeout,
    /// The backend answered 401 itself; whether it still accepts the gateway is the self-check's to find out.
    #[error(
        "the backend answered 401 before it took the identity headers; the self-check looks whether it still accepts the \
         gateway"
    )]
    RefusedIdentity,
    /// The backend switched protocols unasked, or to another one.
    #[error("the backend switched to a protocol that was not asked for")]
    UnaskedSwitch,
    /// The client's body broke off or was no body; nobody can answer it.
    #[error("the request body broke off: {0}")]
    RequestBody(#[source] BodyError),
    /// The client acts as someone else, and the backend is told identities by the headers that say so.
    #[error("impersonation is not available with identity mode impersonate")]
    Impersonation,
    /// With the identity the header is larger than the backend accepts.
    #[error("the request header is larger than the backend accepts")]
    HeaderTooLarge,
    /// The header of the backend's answer is larger than a client can be expected to take, or a body that is read here
    /// is larger than it may be.
    #[error("the backend's answer is too large")]
    AnswerTooLarge,
    /// A body that is read here broke off.
    #[error("the backend's answer broke off: {0}")]
    Answer(#[source] BodyError),
    /// The path might lead out of the backend's prefix.
    #[error("the path has a dot segment, and the backend's URL has a path that it might lead out of")]
    DotSegment,
    /// The path, behind the backend's prefix, is no URI.
    #[error("the request target cannot be sent: {0}")]
    Target(#[source] http::Error),
}

/// What is known of the exchange beside the request.
#[derive(Debug)]
pub(crate) struct Context {
    /// The client's address, as `X-Forwarded-For` has it.
    pub(crate) peer: HeaderValue,
    /// The client's address, by which it has its share of what anonymous requests may use.
    pub(crate) client: IpAddr,
    /// The id of the request in both audit logs.
    pub(crate) audit_id: HeaderValue,
}

/// Sends an admitted request and returns the backend's answer, its body still to come. `tunnel` is kept for as long
/// as an upgraded connection lives.
pub(crate) async fn send(
    pools: &Pools,
    admitted: Admitted,
    context: Context,
    tunnel: impl FnOnce() -> EndGuard,
) -> Result<Response<Body>, ForwardError> {
    let Outbound { upstream, mut request, cut, info, deadline, user, by_front_proxy, impersonate } =
        admitted.into_outbound();
    if !upstream.path_prefix().is_empty() && prefix::has_dot_segment(info.path()) {
        return Err(ForwardError::DotSegment);
    }
    let protocol = hop_by_hop::requested_upgrade(request.headers());
    let client = protocol.as_ref().map(|_| hyper::upgrade::on(&mut *request));
    let upgrading = client.is_some();

    let names = upstream.identity_headers.load_full();
    vouch(request.headers_mut(), &user, upstream.identity(), names.as_deref(), &context, by_front_proxy)?;
    if let Some(impersonate) = impersonate {
        // Whoever is told identities by these very headers would take the client's for ours.
        if upstream.identity() == IdentityMode::Impersonate {
            return Err(ForwardError::Impersonation);
        }
        impersonate.restore_into(request.headers_mut());
    }
    if let Some(authorization) = &upstream.authorization {
        request.headers_mut().insert(AUTHORIZATION, authorization.clone());
    }
    let request = readdress(request, &upstream)?;
    let header = sharing::header_size(&request);
    if header > MAX_HEADER_LIST {
        return Err(ForwardError::HeaderTooLarge);
    }
    let prefixes = prefixes_of(&upstream, &request, cut);
    let known = (!user.is_unauthenticated()).then_some(user.name.as_str());
    let kind = Kind::of(&info, known, context.client, header);
    let is_answered_whole = matches!(kind, Kind::Anonymous { .. }) && !info.is_long_running();
    let tunnel_deadline = if known.is_none() { deadline } else { None };

    // Pinned, and what is rare is boxed: the future of a request is moved about, and this is the most of it.
    let sending = pin!(async {
        // A place is not for clients to hold by saying nothing: the backend, too, would wait for such a body.
        let request = match kind {
            Kind::Anonymous { client } => Box::pin(with_body(pools, client, request)).await?,
            _ => request,
        };
        if let (Some(protocol), Some(client)) = (protocol, client) {
            let connection = Box::pin(pools.upgrading(&upstream, kind)).await?;
            let guard = tunnel();
            return Box::pin(upgrade::tunnel(connection, *request, protocol, client, tunnel_deadline, guard))
                .await;
        }
        let mut response = deliver(pools, &upstream, request, kind).await?;
        if is_answered_whole {
            response = Box::pin(with_answer(response)).await?;
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(ForwardError::UnaskedSwitch);
        }
        Ok(response)
    });
    let mut response = match deadline {
        Some(deadline) => timeout_at(deadline, sending).await.map_err(|_| ForwardError::Timeout)??,
        None => sending.await?,
    };
    check_answer(&upstream, &response, &info)?;
    // The far end of an upgrade answers for itself, also when it refuses.
    if !upgrading {
        hop_by_hop::strip_hop_by_hop(response.headers_mut());
        response.headers_mut().insert(AUDIT_ID, context.audit_id);
        if let Some(prefixes) = prefixes {
            prefixes.restore_location(response.headers_mut());
        }
    }
    let deadline = body_deadline(response.status(), deadline);
    Ok(response.map(|body| body.with_deadline(deadline)))
}

/// Refuses an answer that is not passed on.
// threat: raw-pipe
fn check_answer(
    upstream: &Upstream,
    response: &Response<Body>,
    info: &RequestInfo,
) -> Result<(), ForwardError> {
    if hop_by_hop::header_list_size(response.headers()) > MAX_HEADER_LIST {
        return Err(ForwardError::AnswerTooLarge);
    }
    if response.status() == StatusCode::UNAUTHORIZED && may_be_about_us(response.headers(), info) {
        upstream.doubt();
        // Without priority and fairness an aggregated API server's 401 looks the same.
        if sharing::extension_group(info.path()).is_none() {
            return Err(ForwardError::RefusedIdentity);
        }
    }
    Ok(())
}

/// How paths differ on both sides of the gateway; nothing if they do not.
fn prefixes_of(upstream: &Upstream, request: &Request<Body>, cut: Option<Box<str>>) -> Option<Prefixes> {
    if cut.is_none() && upstream.path_prefix().is_empty() {
        return None;
    }
    let authority = request.uri().authority()?.clone();
    Some(Prefixes { authority, backend: upstream.path_prefix().to_owned(), client: cut })
}

/// When the body of an answer breaks off.
fn body_deadline(status: StatusCode, deadline: Option<Instant>) -> Option<Instant> {
    let grace = if status == StatusCode::GATEWAY_TIMEOUT { TIMEOUT_ANSWER_GRACE } else { Duration::ZERO };
    Some(deadline? + grace)
}

/// Sends; without a body a request is sent once more if the backend says that it did not process it, and a read also
/// if the connection broke under it, since it may have been closed just before. One that travels alone is not: its header
/// may be why.
// threat: redirects
async fn deliver(
    pools: &Pools,
    upstream: &Upstream,
    mut request: Box<Request<Body>>,
    kind: Kind<'_>,
) -> Result<Response<Body>, ForwardError> {
    if request.body().is_end_stream() {
        let is_retried = request.method().is_safe() && !matches!(kind, Kind::Alone { .. });
        let mut again = Box::new(Request::new(Body::empty()));
        again.method_mut().clone_from(request.method());
        again.uri_mut().clone_from(request.uri());
        again.headers_mut().clone_from(request.headers());
        return match pools.send(upstream, request, kind).await {
            Err(SendError::NotProcessed(error)) => {
                tracing::debug!(%error, "sending a request again");
                Ok(Box::pin(pools.send(upstream, again, kind)).await?)
            }
            Err(SendError::Broken(error)) if is_retried => {
                tracing::debug!(%error, "sending a read again");
                Ok(Box::pin(pools.send(upstream, again, kind)).await?)
            }
            result => Ok(result?),
        };
    }
    let failed = Arc::new(AtomicBool::new(false));
    request.body_mut().set_failure_flag(Arc::clone(&failed));
    match pools.send(upstream, request, kind).await {
        // The backend's stream broke because the client's did.
        Err(SendError::Broken(error) | SendError::NotProcessed(error)) if failed.load(Ordering::Relaxed) => {
            Err(ForwardError::RequestBody(error.into()))
        }
        result => Ok(result?),
    }
}

/// An anonymous request once its body is there, or so much of it that the backend answers without the rest.
// threat: anonymous-lockout
async fn with_body(
    pools: &Pools,
    client: IpAddr,
    request: Box<Request<Body>>,
) -> Result<Box<Request<Body>>, ForwardError> {
    if request.body().is_end_stream() {
        return Ok(request);
    }
    let (head, body) = request.into_parts();
    let length = body.size_hint().upper().unwrap_or(ANONYMOUS_BODY).min(ANONYMOUS_BODY);
    let _room = pools.room_to_read(client, length).await?;
    let body = body.read_up_to(ANONYMOUS_BODY).await.map_err(ForwardError::RequestBody)?;
    Ok(Box::new(Request::from_parts(head, body)))
}

/// The answer to an anonymous request, which has given its place back if it is short.
async fn with_answer(response: Response<Body>) -> Result<Response<Body>, ForwardError> {
    let (head, body) = response.into_parts();
    let body = body.read_up_to(ANONYMOUS_BODY).await.map_err(ForwardError::Answer)?;
    Ok(Response::from_parts(head, body))
}

/// Makes a client's header the gateway's own: it says who the request is made by and where it came from, and nothing
/// of that is the client's word. `named` are headers that the backend reads identities from beside the standard ones.
// threat: connection-nomination
pub(crate) fn vouch(
    headers: &mut HeaderMap,
    user: &Identity,
    mode: IdentityMode,
    named: Option<&RequestHeaderNames>,
    context: &Context,
    by_front_proxy: bool,
) -> Result<(), UnencodableIdentity> {
    // Before identity is written, or a client could nominate our headers in Connection.
    hop_by_hop::strip_hop_by_hop(headers);
    // Those of a request are not passed on.
    headers.remove(TRAILER);
    forwarded::note_sender(headers, context, by_front_proxy);
    if let Some(names) = named {
        identity_headers::strip_named(headers, names);
    }
    identity_headers::write_identity(headers, user, mode)
}

/// Points the request at the backend. The bytes of path and query stay as they are; the client's host stays too,
/// except for a server that is reached by its own name.
fn readdress(
    request: Box<Request<Incoming>>,
    upstream: &Upstream,
) -> Result<Box<Request<Body>>, ForwardError> {
    let (mut head, incoming) = request.into_parts();
    let client_host = head.headers.remove(HOST);
    let authority = match upstream.identity() {
        IdentityMode::Impersonate => upstream.authority.clone(),
        IdentityMode::RequestHeader => head
            .uri
            .authority()
            .cloned()
            .or_else(|| client_host.and_then(|host| http::uri::Authority::try_from(host.as_bytes()).ok()))
            .unwrap_or_else(|| upstream.authority.clone()),
    };
    let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let path = match upstream.path_prefix() {
        // A query alone is a target over HTTP/1.1 only.
        "" if path.as_str().starts_with('?') => {
            PathAndQuery::try_from(format!("/{}", path.as_str())).map_err(|_| ForwardError::HeaderTooLarge)?
        }
        "" => path,
        // With the prefix it may be longer than any path.
        prefix => {
            PathAndQuery::try_from(format!("{prefix}{path}")).map_err(|_| ForwardError::HeaderTooLarge)?
        }
    };
    head.uri = Uri::builder()
        .scheme(Scheme::HTTPS)
        .authority(authority)
        .path_and_query(path)
        .build()
        .map_err(ForwardError::Target)?;
    head.version = Version::HTTP_11;
    let body = if incoming.is_end_stream() { Body::empty() } else { Body::from_client(incoming) };
    if body.is_end_stream() && !head.method.is_safe() {
        // Without it a receiver of HTTP/1.1 cannot tell an empty body from none.
        head.headers.entry(CONTENT_LENGTH).or_insert(HeaderValue::from_static("0"));
    }
    head.extensions.clear();
    Ok(Box::new(Request::from_parts(head, body)))
}

/// Whether a 401 may say that the backend does not believe the gateway. Behind its own authentication an answer carries
/// the flow schema, unless it is relayed from a pod or a node.
// apiserver: pkg/server/filters/priority-and-fairness.go — not for long-running requests that are no watches
fn may_be_about_us(headers: &HeaderMap, info: &RequestInfo) -> bool {
    let proxied = info.is_relayed()
        || info.verb() == "proxy"
        || info.resource().is_some_and(|resource| resource.subresource == "proxy");
    !proxied && !headers.contains_key(FLOW_SCHEMA_UID)
}
