//! To the backend and back. [`prepare`] makes an [`Admitted`](super::stages::Admitted) request, which only the earlier
//! stages can make, into the one that the backend receives; [`send`] streams it, and its answer, both ways.
//!
//! Redirects are passed on and never followed; a body is never looked at. A client that leaves drops the response here,
//! which cancels the stream to the backend.

mod forwarded;
mod prefix;
mod prepare;
mod upgrade;

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use tokio::time::{Instant, timeout_at};

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use prepare::write_trusted_headers;
pub(crate) use prepare::{PrepareError, Prepared, prepare};

use crate::backend::Backend;
use crate::backend::pool::SendError;
use crate::backend::pools::Pools;
use crate::backend::sharing::{self, SharingClass};
use crate::http::body::{Body, EndGuard};
use crate::http::hop_by_hop;
use crate::http::limits::MAX_HEADER_LIST_SIZE;
use crate::http::transport::BodyError;
use crate::request::info::RequestInfo;

/// The id that the audit logs of the gateway and the backend share.
pub(crate) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// How much of a body Go's server reads before it answers, if no handler has read it.
// Go: net/http/server.go, maxPostHandlerReadBytes
const MAX_BUFFERED_BODY: u64 = 256 << 10;
/// How long after the deadline of its request the body of the backend's own 504 may end. The backend's clock for a
/// request starts after the gateway's, so that answer comes around the gateway's deadline.
const TIMEOUT_ANSWER_GRACE: Duration = Duration::from_secs(5);
/// Set by kube-apiserver once it has authenticated a request.
const FLOW_SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");

/// Why a prepared request has no answer from the backend.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForwardError {
    /// There is no connection, or it broke.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The deadline of the request has passed.
    #[error("the backend did not answer within the allotted timeout")]
    Timeout,
    /// The backend answered 401 before it read the identity headers: it may no longer accept the gateway.
    #[error(
        "the backend answered 401 before it took the identity headers; the self-check looks whether it still accepts the \
         gateway"
    )]
    RefusedIdentity,
    /// The backend switched protocols unasked, or to another one.
    #[error("the backend switched to a protocol that was not asked for")]
    UnaskedSwitch,
    /// The client's body broke off or is malformed.
    #[error("the request body broke off: {0}")]
    RequestBody(#[source] BodyError),
    /// The header of the answer is larger than clients accept, or a body that the gateway reads is larger than it may be.
    #[error("the backend's answer is too large")]
    AnswerTooLarge,
    /// A body that the gateway reads broke off.
    #[error("the backend's answer broke off: {0}")]
    Answer(#[source] BodyError),
}

/// The facts about a request that do not come from its header.
#[derive(Debug)]
pub(crate) struct ForwardContext {
    /// The client's address, as `X-Forwarded-For` has it.
    pub(crate) peer: HeaderValue,
    /// The client's address, by which anonymous requests share connections.
    pub(crate) client: IpAddr,
    /// The id of the request in both audit logs.
    pub(crate) audit_id: HeaderValue,
}

/// Sends a request and returns the backend's answer, its body still to come. `tunnel` is kept for as long as an upgraded
/// connection lives.
pub(crate) async fn send(
    pools: &Pools,
    prepared: Prepared,
    context: ForwardContext,
    tunnel: impl FnOnce() -> EndGuard,
) -> Result<Response<Body>, ForwardError> {
    let Prepared { backend, request, header_size, info, identity, deadline, upgrade, prefixes } = prepared;
    let authenticated = (!identity.is_unauthenticated()).then_some(identity.name.as_str());
    let class = SharingClass::of(&info, authenticated, context.client, header_size);
    let is_answered_whole = matches!(class, SharingClass::Anonymous { .. }) && !info.is_long_running();
    let tunnel_deadline = if authenticated.is_none() { deadline } else { None };
    let is_upgrade = upgrade.is_some();

    // Pinned, and what is rare is boxed: the future of a request is moved, and this is most of it.
    let sending = pin!(async {
        // A silent client must not hold one of the few connections of anonymous requests: its body comes first.
        let request = match class {
            SharingClass::Anonymous { client } => Box::pin(with_body(pools, client, request)).await?,
            _ => request,
        };
        if let Some((protocol, client)) = upgrade {
            let connection = Box::pin(pools.upgrading(&backend, class)).await?;
            let guard = tunnel();
            return Box::pin(upgrade::tunnel(connection, *request, protocol, client, tunnel_deadline, guard))
                .await;
        }
        let mut response = deliver(pools, &backend, request, class).await?;
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
    check_answer(&backend, &response, &info)?;
    // The far end of an upgrade answers for itself, also when it refuses.
    if !is_upgrade {
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
    backend: &Backend,
    response: &Response<Body>,
    info: &RequestInfo,
) -> Result<(), ForwardError> {
    if hop_by_hop::header_list_size(response.headers()) > MAX_HEADER_LIST_SIZE {
        return Err(ForwardError::AnswerTooLarge);
    }
    if response.status() == StatusCode::UNAUTHORIZED && may_refuse_the_gateway(response.headers(), info) {
        backend.request_recheck();
        // Without priority and fairness an aggregated API server's 401 looks the same.
        if sharing::extension_group(info.path()).is_none() {
            return Err(ForwardError::RefusedIdentity);
        }
    }
    Ok(())
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
    backend: &Backend,
    mut request: Box<Request<Body>>,
    class: SharingClass<'_>,
) -> Result<Response<Body>, ForwardError> {
    if request.body().is_end_stream() {
        let is_retried = request.method().is_safe() && !matches!(class, SharingClass::Alone { .. });
        let mut again = Box::new(Request::new(Body::empty()));
        again.method_mut().clone_from(request.method());
        again.uri_mut().clone_from(request.uri());
        again.headers_mut().clone_from(request.headers());
        return match pools.send(backend, request, class).await {
            Err(SendError::NotProcessed(error)) => {
                tracing::debug!(%error, "sending a request again");
                Ok(Box::pin(pools.send(backend, again, class)).await?)
            }
            Err(SendError::Broken(error)) if is_retried => {
                tracing::debug!(%error, "sending a read again");
                Ok(Box::pin(pools.send(backend, again, class)).await?)
            }
            result => Ok(result?),
        };
    }
    let failed = Arc::new(AtomicBool::new(false));
    request.body_mut().set_failure_flag(Arc::clone(&failed));
    match pools.send(backend, request, class).await {
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
    let length = body.size_hint().upper().unwrap_or(MAX_BUFFERED_BODY).min(MAX_BUFFERED_BODY);
    let _room = pools.room_to_read(client, length).await?;
    let body = body.read_up_to(MAX_BUFFERED_BODY).await.map_err(ForwardError::RequestBody)?;
    Ok(Box::new(Request::from_parts(head, body)))
}

/// The answer to an anonymous request, which has given its place back if it is short.
async fn with_answer(response: Response<Body>) -> Result<Response<Body>, ForwardError> {
    let (head, body) = response.into_parts();
    let body = body.read_up_to(MAX_BUFFERED_BODY).await.map_err(ForwardError::Answer)?;
    Ok(Response::from_parts(head, body))
}

/// Whether a 401 may say that the backend does not believe the gateway. Behind its own authentication an answer carries
/// the flow schema, unless it is relayed from a pod or a node.
// apiserver: pkg/server/filters/priority-and-fairness.go — not for long-running requests that are no watches
fn may_refuse_the_gateway(headers: &HeaderMap, info: &RequestInfo) -> bool {
    let proxied = info.is_relayed()
        || info.verb() == "proxy"
        || info.resource().is_some_and(|resource| resource.subresource == "proxy");
    !proxied && !headers.contains_key(FLOW_SCHEMA_UID)
}
