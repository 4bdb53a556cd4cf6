//! The `kube` client for the gateway's own reads and writes. It has its own connections, uses trusted endpoints only,
//! and sends requests as `system:portcullis`.
//!
//! Every response has a maximum size. Every request has a deadline for the head of its response and, unless it is a watch, for the whole response. After a
//! missed deadline the next request gets a new connection, because the old one may be frozen.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::uri::PathAndQuery;
use http::{Method, Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use portcullis_http::body::Body;
use portcullis_http::https_client::GATEWAY_USER_AGENT;
use portcullis_http::identity::{Identity, IdentityMode};
use portcullis_http::identity_headers::write_identity;
use portcullis_kubernetes::user::UserInfo;
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tower::{BoxError, Service};

use super::pool::SharingClass;
use super::pools::Pools;
use super::response_size::ResponseSize;
use crate::backend::Backend;

/// How long the head of a response may take: of a watch or a single object, which authentication waits for.
const PROMPT_HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for all other requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// If a request is dropped after this long without response data, its connection gets no further requests.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a whole response may take, unless it is a watch.
// apiserver: pkg/server/options/server_run_options.go, RequestTimeout — kube-apiserver itself gives up then
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(1);

/// The largest responses that are read.
#[derive(Debug, Clone, Copy)]
struct ResponseSizes {
    /// Of a page of a list. The caller asks for smaller ones then.
    page: usize,
    /// Of another response: of an object, or a document of the API server.
    other: usize,
    /// Of an event of a watch. etcd stores objects of 1.5 MiB, in which Go's JSON encodes each `<`, `>` and `&` as six bytes.
    event: usize,
}

impl ResponseSizes {
    const OF_OPERATOR: Self = Self { page: 64 << 20, other: 32 << 20, event: 16 << 20 };
    /// Each tenant's API servers choose what they send, and it is parsed at once on a thread that serves all clusters.
    // threat: tenant-lists
    const OF_TENANT: Self = Self { page: 12 << 20, other: 8 << 20, event: 10 << 20 };

    fn of(backend: &Backend) -> Self {
        if backend.is_of_tenant() { Self::OF_TENANT } else { Self::OF_OPERATOR }
    }
}

/// A client for the API servers of one cluster. Must be called within the tokio runtime that drives its connections.
pub(crate) fn client(backend: &Arc<Backend>) -> kube::Client {
    kube::Client::new(BackendService(Arc::new(OwnConnections::new(backend))), "default")
}

/// A request extension: the user as whom a request is sent, in place of the gateway's own.
#[derive(Debug, Clone)]
pub(crate) struct RequestIdentity(pub(crate) Identity);

/// The API server did not respond in time.
#[derive(Debug, thiserror::Error)]
#[error("no response from the API server within {0:?}")]
struct ResponseTimeout(Duration);

/// A response body broke off. Hides the source of the error from `kube`, which takes some for a regular end of a watch.
#[derive(Debug, thiserror::Error)]
#[error("the response broke off: {0}")]
struct IncompleteBody(String);

/// The connections of one client.
struct OwnConnections {
    backend: Arc<Backend>,
    pools: ArcSwap<Pools>,
}

impl OwnConnections {
    fn new(backend: &Arc<Backend>) -> Self {
        Self { backend: Arc::clone(backend), pools: ArcSwap::from_pointee(pools(backend)) }
    }

    /// Uses the connections of `frozen` for no new request. Responses in progress continue.
    fn abandon(&self, frozen: &Arc<Pools>) {
        self.pools.compare_and_swap(frozen, Arc::new(pools(&self.backend)));
    }
}

fn pools(backend: &Backend) -> Pools {
    let pools = Pools::default();
    follow_endpoints(&pools, backend);
    pools
}

/// Keeps the connections of the endpoints of now.
fn follow_endpoints(pools: &Pools, backend: &Backend) {
    // Before the list is read.
    let version = backend.endpoints_version();
    pools.retain_endpoints(version, backend.endpoints().iter().cloned());
}

/// Sends requests as `system:portcullis`; in identity mode `impersonate`, as the user of the gateway's own credential.
/// A [`RequestIdentity`] replaces both.
struct BackendService(Arc<OwnConnections>);

// threat: silent-backend, endless-response
impl Service<Request<kube::client::Body>> for BackendService {
    type Response = Response<TimedBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<TimedBody>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let connections = Arc::clone(&self.0);
        Box::pin(async move {
            let backend = &connections.backend;
            let (mut head, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
            let query = head.uri.query();
            let has = |wanted: fn(&str) -> bool| query.is_some_and(|query| query.split('&').any(wanted));
            let is_watch = has(|pair| pair == "watch=true");
            let sizes = ResponseSizes::of(backend);
            let max_bytes = match is_watch {
                true => sizes.event,
                false if has(|pair| pair.starts_with("limit=")) => sizes.page,
                false => sizes.other,
            };
            let is_prompt = is_watch || (head.method == Method::GET && query.is_none());
            head.uri = backend.uri(None, path)?;
            head.headers.insert(http::header::USER_AGENT, GATEWAY_USER_AGENT);
            let user = match (head.extensions.remove::<RequestIdentity>(), backend.identity()) {
                (Some(RequestIdentity(user)), _) => Some(user),
                (None, IdentityMode::RequestHeader) => Some(Identity::from(UserInfo::portcullis())),
                (None, IdentityMode::Impersonate) => None,
            };
            if let Some(user) = user {
                write_identity(&mut head.headers, &user.encode(backend.identity())?);
            }
            backend.add_credential(&mut head.headers);
            let class = if is_watch { SharingClass::Long } else { SharingClass::Short };
            let request = Box::new(Request::from_parts(head, Body::bytes(body)));
            let began = Instant::now();
            let pools = connections.pools.load_full();
            follow_endpoints(&pools, backend);
            let limit = if is_prompt { PROMPT_HEAD_TIMEOUT } else { HEAD_TIMEOUT };
            let mut in_flight = InFlight {
                connections: Arc::clone(&connections),
                pools,
                last_progress: began,
                is_over: false,
            };
            let response = timeout(limit, in_flight.pools.send(backend, request, class)).await;
            let response = response.map_err(|_| ResponseTimeout(limit))?;
            in_flight
                .record_progress(response.as_ref().map_or(true, |response| response.body().is_end_stream()));
            let deadline = (!is_watch).then(|| Box::pin(sleep_until(began + RESPONSE_TIMEOUT)));
            let size = ResponseSize::new(is_watch, max_bytes);
            Ok(response?.map(|body| TimedBody { body, deadline, size, in_flight }))
        })
    }
}

/// A request and its response. If the caller drops it after [`SILENCE_TIMEOUT`] without data, its connections are
/// abandoned.
struct InFlight {
    connections: Arc<OwnConnections>,
    pools: Arc<Pools>,
    /// When the request began, or when data last arrived.
    last_progress: Instant,
    is_over: bool,
}

impl InFlight {
    /// Records that data has arrived.
    fn record_progress(&mut self, is_over: bool) {
        (self.last_progress, self.is_over) = (Instant::now(), is_over);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.is_over && self.last_progress.elapsed() >= SILENCE_TIMEOUT {
            self.connections.abandon(&self.pools);
        }
    }
}

/// The body of a response, with its deadline and its maximum size.
struct TimedBody {
    body: Body,
    deadline: Option<Pin<Box<Sleep>>>,
    size: ResponseSize,
    in_flight: InFlight,
}

impl http_body::Body for TimedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let is_over = !matches!(frame, Some(Ok(_))) || self.body.is_end_stream();
            self.in_flight.record_progress(is_over);
            return Poll::Ready(frame.map(|frame| {
                let frame = frame.map_err(|error| IncompleteBody(error.to_string()))?;
                frame.data_ref().map_or(Ok(()), |data| self.size.add(data))?;
                Ok(frame)
            }));
        }
        let is_late = self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready());
        if !is_late {
            return Poll::Pending;
        }
        Poll::Ready(Some(Err(ResponseTimeout(RESPONSE_TIMEOUT).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
