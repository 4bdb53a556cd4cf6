//! Forwards a request to the backend and returns its response. [`prepare()`] turns an
//! [`Admitted`](super::stages::Admitted) request into the one that the backend receives; [`send`] streams it and its
//! response. [`rehearse()`] sends dry runs and reads of a request that is not admitted yet.
//!
//! Redirects are returned to the client and never followed; bodies are never inspected. When a client disconnects, the
//! response is dropped, which cancels the stream to the backend.

mod forwarded;
mod prefix;
mod prepare;
mod rehearse;
mod shutting_down;
mod upgrade;

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use portcullis_http::body::{Body, BodyEnd, EndGuard, Replay};
use portcullis_http::hop_by_hop;
use portcullis_http::limits::{MAX_HEADER_LIST_SIZE, header_list_size};
use portcullis_http::loop_detection::GatewayId;
use tokio::time::{Instant, timeout_at};

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use prepare::write_trusted_headers;
pub(crate) use prepare::{Prepared, prepare};
pub(crate) use rehearse::{
    Rehearsal, RehearsalError, RehearsalResponse, rehearse, rewritten_target, rewritten_target_at,
    without_timeout,
};

use crate::backend::Backend;
use crate::backend::balance::{Load, RetryCause};
use crate::backend::pool::SendError;
use crate::backend::pools::{Attempt, Pools};
use crate::backend::sharing::{self, SharingClass};
use crate::pipeline::audit_id::AUDIT_ID;
use crate::pipeline::forward_error::ForwardError;
use crate::pipeline::session::SessionObserver;
use crate::request::info::RequestInfo;
use crate::traces::SpanScope;

/// How often a request is sent again that was not processed. With `--goaway-chance` each connection of a burst may end under it.
// Go: golang.org/x/net/http2/transport.go, RoundTripOpt
const MAX_RESENDS: usize = 6;
/// The bytes of an unread request body that Go's server reads before it responds.
// Go: net/http/server.go, maxPostHandlerReadBytes
const MAX_BUFFERED_BODY: u64 = 256 << 10;
/// How long after the request's deadline the body of the backend's own 504 may end. The backend's deadline is slightly
/// later than the gateway's, so its response arrives around the gateway's deadline.
const TIMEOUT_RESPONSE_GRACE_PERIOD: Duration = Duration::from_secs(5);
/// kube-apiserver sets this header on responses to requests that it has authenticated.
const FLOW_SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");

/// The facts about a request that do not come from its header.
#[derive(Clone, Copy)]
pub(crate) struct ForwardContext<'a> {
    /// The client's address for `X-Forwarded-For`.
    pub(crate) peer: &'a HeaderValue,
    /// The client's address, by which anonymous requests are grouped on connections.
    pub(crate) client: IpAddr,
    /// The audit ID of the request.
    pub(crate) audit_id: &'a HeaderValue,
    /// This gateway, which the request names from now on.
    pub(crate) gateway_id: &'a GatewayId,
    /// The span of the request, if requests are traced. Each request to the backend has one within it.
    pub(crate) spans: Option<&'a SpanScope>,
}

/// What an upgraded connection needs for its life.
pub(super) struct Tunnel {
    /// Dropped at its end.
    pub(super) guard: EndGuard,
    /// Completes when it is to end.
    pub(super) end: BodyEnd,
    /// Observes the session in it, if that is audited or under a session policy.
    pub(super) session: Option<SessionObserver>,
}

impl Tunnel {
    /// For a request that upgrades no connection.
    fn none() -> Self {
        Self { guard: Box::new(()), end: Box::pin(std::future::pending()), session: None }
    }
}

/// Sends a request and returns the backend's response with a streaming body. `tunnel` returns what an upgraded
/// connection needs.
pub(super) async fn send(
    pools: &Pools,
    prepared: Prepared,
    context: ForwardContext<'_>,
    tunnel: impl FnOnce() -> Tunnel,
) -> Result<Response<Body>, ForwardError> {
    let Prepared {
        backend,
        request,
        header_size,
        info,
        owner,
        author,
        is_constrained,
        deadline,
        upgrade,
        prefixes,
        span,
    } = prepared;
    let authenticated = owner.as_ref().map(|client| client.name.as_str());
    let class = SharingClass::of(&info, authenticated, context.client, header_size);
    let buffers_response = matches!(class, SharingClass::Anonymous { .. }) && !info.is_long_running();
    let tunnel_deadline = if authenticated.is_none() { deadline } else { None };
    let is_upgrade = upgrade.is_some();
    let load = if is_upgrade || info.is_long_running() { Load::Long } else { Load::Short };
    let is_movable = info.verb() == "watch" && !info.is_relayed();

    // Pinned, with the rare parts boxed, to keep the future of a request small: it is moved several times.
    let sending = pin!(async {
        // A slow client must not hold one of the few connections for anonymous requests, so its body is buffered first.
        let request = match class {
            SharingClass::Anonymous { client } => {
                Box::pin(buffer_request_body(pools, client, request)).await?
            }
            _ => request,
        };
        let mut attempt = Attempt::new(load, author);
        attempt.is_constrained = is_constrained;
        if let Some((protocol, client)) = upgrade {
            let connection = Box::pin(pools.connect_for_upgrade(&backend, class, attempt)).await?;
            let tunnel = tunnel();
            let tunnel = upgrade::tunnel(connection, *request, protocol, client, tunnel_deadline, tunnel);
            return Ok(Box::new(Box::pin(tunnel).await?));
        }
        attempt.is_movable = is_movable;
        attempt.may_be_refused = shutting_down::may_be_refused(request.method(), &info);
        let mut response = send_with_retry(pools, &backend, request, class, attempt).await?;
        if buffers_response {
            response = Box::new(Box::pin(buffer_response_body(*response)).await?);
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(ForwardError::UnaskedSwitch);
        }
        Ok(response)
    });
    let sent = match deadline {
        Some(deadline) => timeout_at(deadline, sending).await.unwrap_or(Err(ForwardError::Timeout)),
        None => sending.await,
    };
    // It ends here: the body streams for as long as it likes.
    if let Some(mut span) = span {
        match &sent {
            Ok(response) => span.note_status(response.status().as_u16()),
            Err(_) => span.fail(),
        }
    }
    let mut response = sent?;
    check_response(&backend, &response, &info)?;
    // `upgrade::tunnel` has set the headers of a response to an upgrade, even if the backend refuses the upgrade.
    if !is_upgrade {
        hop_by_hop::strip_hop_by_hop(response.headers_mut());
        response.headers_mut().insert(AUDIT_ID, context.audit_id.clone());
        if let Some(prefixes) = prefixes {
            prefixes.restore_location(response.headers_mut());
        }
    }
    let deadline = body_deadline(response.status(), deadline);
    Ok(response.map(|body| body.with_deadline(deadline)))
}

/// Refuses a response that must not reach the client.
// threat: raw-pipe
fn check_response(
    backend: &Backend,
    response: &Response<Body>,
    info: &RequestInfo,
) -> Result<(), ForwardError> {
    if header_list_size(response.headers()) > MAX_HEADER_LIST_SIZE {
        return Err(ForwardError::ResponseTooLarge);
    }
    // The address of an endpoint may have become that of a gateway.
    if response.status() == StatusCode::LOOP_DETECTED && may_reject_gateway(response.headers(), info) {
        backend.request_recheck();
    }
    if response.status() == StatusCode::UNAUTHORIZED && may_reject_gateway(response.headers(), info) {
        backend.request_recheck();
        // Without priority and fairness an aggregated API server's 401 looks the same.
        if sharing::extension_group(info.path()).is_none() {
            return Err(ForwardError::RefusedIdentity);
        }
    }
    Ok(())
}

/// The deadline of a response body.
fn body_deadline(status: StatusCode, deadline: Option<Instant>) -> Option<Instant> {
    let grace =
        if status == StatusCode::GATEWAY_TIMEOUT { TIMEOUT_RESPONSE_GRACE_PERIOD } else { Duration::ZERO };
    Some(deadline? + grace)
}

/// Sends a request. It is retried, at another endpoint if there is one, when the backend reports that it did not process
/// the request, with its body if that is not too long. A read is also retried if the connection broke, which the backend may have closed just
/// before, or if the endpoint answers no probe either, unless the request has a connection of its own: its large header
/// may be the cause. A request is retried once per further endpoint, but at least once, and at most [`MAX_RESENDS`] times if it was
/// never processed, within the cluster's budget. An API server that shuts down says so in a response ([`shutting_down`]).
/// `backend::pools` sends requests again that were not written at all.
// threat: redirects
// threat: retry-floods
async fn send_with_retry(
    pools: &Pools,
    backend: &Backend,
    mut request: Box<Request<Body>>,
    class: SharingClass<'_>,
    mut attempt: Attempt,
) -> Result<Box<Response<Body>>, ForwardError> {
    backend.retries(class).deposit();
    if request.body().is_end_stream() {
        let is_read = request.method().is_safe() && !matches!(class, SharingClass::Alone { .. });
        attempt.leaves_silence = is_read;
        let mut retries = further_endpoints(backend);
        let mut resends = MAX_RESENDS;
        loop {
            let again = without_body(&request);
            let error = match pools.send_attempt(backend, request, class, &mut attempt).await {
                Ok(response) => {
                    let (response, is_refused) = read_refusal(response, &attempt).await?;
                    if !is_refused || !may_send_elsewhere(backend, class, &mut attempt, &mut resends) {
                        return Ok(response);
                    }
                    request = again;
                    continue;
                }
                Err(error @ SendError::NotProcessed(_)) => error,
                Err(error @ (SendError::Broken(_) | SendError::Silent)) if is_read => error,
                Err(error) => return Err(error.into()),
            };
            // The budget has paid for the retry of a request that was given up.
            let is_paid = matches!(error, SendError::Silent);
            let (left, cause) = match error {
                SendError::NotProcessed(_) => (&mut resends, RetryCause::NotProcessed),
                _ => (&mut retries, RetryCause::Broken),
            };
            if !is_paid && (*left == 0 || !backend.retries(class).withdraw(cause, Instant::now())) {
                return Err(error.into());
            }
            *left = left.saturating_sub(1);
            attempt.leaves_silence = retries > 0;
            tracing::debug!(%error, "retrying a request");
            request = again;
        }
    }
    Box::pin(send_with_body(pools, backend, request, class, attempt)).await
}

/// Sends a request with a body, and again if the backend reports that it did not process it and the whole body is known.
async fn send_with_body(
    pools: &Pools,
    backend: &Backend,
    request: Box<Request<Body>>,
    class: SharingClass<'_>,
    mut attempt: Attempt,
) -> Result<Box<Response<Body>>, ForwardError> {
    let (head, body) = request.into_parts();
    let replay = Replay::new(body, pools.replay_memory(&attempt, backend));
    let mut resends = MAX_RESENDS;
    let mut next = replay.body().unwrap_or_else(Body::empty);
    loop {
        // Of this attempt alone: the body of the one before may still break off.
        attempt.body_failed = Arc::default();
        next.set_failure_flag(Arc::clone(&attempt.body_failed));
        let request = Box::new(Request::from_parts(head.clone(), next));
        match pools.send_attempt(backend, request, class, &mut attempt).await {
            Ok(response) => {
                let (response, is_refused) = read_refusal(response, &attempt).await?;
                // Not before it is known, since it breaks the body of this attempt off.
                let again = if is_refused { replay.body() } else { None };
                match again {
                    Some(body) if may_send_elsewhere(backend, class, &mut attempt, &mut resends) => {
                        next = body;
                    }
                    _ => return Ok(response),
                }
            }
            // The request body failed, which broke the stream to the backend.
            Err(SendError::Broken(error) | SendError::NotProcessed(error))
                if attempt.body_failed.load(Ordering::Relaxed) =>
            {
                return Err(ForwardError::RequestBody(error.into()));
            }
            Err(error @ SendError::NotProcessed(_)) => {
                let again = if resends == 0 { None } else { replay.body() };
                match again {
                    Some(body)
                        if backend.retries(class).withdraw(RetryCause::NotProcessed, Instant::now()) =>
                    {
                        next = body;
                    }
                    _ => return Err(error.into()),
                }
                resends -= 1;
                tracing::debug!(%error, "retrying a request with its body");
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The response, and whether it says that the API server shuts down and has not taken the request.
async fn read_refusal(
    response: Box<Response<Body>>,
    attempt: &Attempt,
) -> Result<(Box<Response<Body>>, bool), ForwardError> {
    let may_be = attempt.may_be_refused && shutting_down::may_be_refusal(&response);
    if !may_be {
        return Ok((response, false));
    }
    let read = Box::pin(shutting_down::read(*response)).await;
    read.map(|(response, is_refused)| (Box::new(response), is_refused)).map_err(ForwardError::ResponseBody)
}

/// Whether a request that an endpoint has refused may be sent to another one, which costs a retry.
fn may_send_elsewhere(
    backend: &Backend,
    class: SharingClass<'_>,
    attempt: &mut Attempt,
    resends: &mut usize,
) -> bool {
    let is_permitted = *resends > 0
        && attempt.leave_endpoint(backend)
        && backend.retries(class).withdraw(RetryCause::NotProcessed, Instant::now());
    if is_permitted {
        *resends -= 1;
        tracing::debug!("retrying a request: the API server shuts down and has not taken it");
    }
    is_permitted
}

/// How often a request may be retried at another endpoint, or at the only one.
fn further_endpoints(backend: &Backend) -> usize {
    backend.endpoints().len().max(2) - 1
}

/// The same request, which has no body.
fn without_body(request: &Request<Body>) -> Box<Request<Body>> {
    let mut again = Box::new(Request::new(Body::empty()));
    again.method_mut().clone_from(request.method());
    again.uri_mut().clone_from(request.uri());
    again.headers_mut().clone_from(request.headers());
    again
}

/// Buffers the body of an anonymous request, up to the size after which the backend responds without the rest. The
/// memory of a body that is buffered whole stays reserved until it is sent.
// threat: anonymous-lockout
async fn buffer_request_body(
    pools: &Pools,
    client: IpAddr,
    request: Box<Request<Body>>,
) -> Result<Box<Request<Body>>, ForwardError> {
    let size = request.body().size_hint();
    if request.body().is_end_stream() || size.lower() > MAX_BUFFERED_BODY {
        return Ok(request);
    }
    let (head, body) = request.into_parts();
    let length = size.upper().unwrap_or(MAX_BUFFERED_BODY).min(MAX_BUFFERED_BODY);
    let reserved = pools.reserve_body_buffer(client, length).await?;
    let mut body = body.read_up_to(MAX_BUFFERED_BODY).await.map_err(ForwardError::RequestBody)?;
    if body.size_hint().exact().is_some() {
        body = body.with_guard(Box::new(reserved));
    }
    Ok(Box::new(Request::from_parts(head, body)))
}

/// Buffers the response to an anonymous request. A short one releases its connection at once.
async fn buffer_response_body(response: Response<Body>) -> Result<Response<Body>, ForwardError> {
    let (head, body) = response.into_parts();
    let body = body.read_up_to(MAX_BUFFERED_BODY).await.map_err(ForwardError::ResponseBody)?;
    Ok(Response::from_parts(head, body))
}

/// Whether a 401 may mean that the backend rejects the gateway's credential. Responses to authenticated requests carry
/// the flow schema, unless the backend proxies them from a pod or a node.
// apiserver: pkg/server/filters/priority-and-fairness.go — not for long-running requests that are no watches
fn may_reject_gateway(headers: &HeaderMap, info: &RequestInfo) -> bool {
    !is_proxied(info) && !headers.contains_key(FLOW_SCHEMA_UID)
}

/// Whether the API server passes the request to a pod or a node, which chooses the response.
fn is_proxied(info: &RequestInfo) -> bool {
    info.is_relayed()
        || info.verb() == "proxy"
        || info.resource().is_some_and(|resource| resource.subresource == "proxy")
}
