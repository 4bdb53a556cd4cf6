//! The gateway's own reads and writes, as `kube` makes them: over its own connections to whichever endpoint is
//! trusted, with the credential of the backend, under a user of its own.
//!
//! Every request has a deadline: until the head of its answer, and, unless it is a watch, until the end. After one that
//! was missed the next request gets a new connection, since a frozen one would answer none.

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
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tower::{BoxError, Service};

use super::pool::SharingClass;
use super::pools::Pools;
use crate::backend::Backend;
use crate::backend::probe::GATEWAY_USER_AGENT;
use crate::http::body::Body;
use crate::http::identity_headers::write_identity;
use crate::user::{Identity, IdentityMode, UserInfo};

/// How long the head of an answer may take: of a watch and of a single object, for which tokens wait, and of all else.
const PROMPT_HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// After how long without an answer a request that is given up says something about its connection.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an answer may take as a whole, unless it is a watch.
// apiserver: pkg/server/options/server_run_options.go, RequestTimeout — kube-apiserver itself gives up then
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// A client for the API server of one cluster. Must be called within a tokio runtime, which its connections live on.
pub(crate) fn client(backend: &Arc<Backend>) -> kube::Client {
    kube::Client::new(BackendService(Arc::new(OwnConnections::new(backend))), "default")
}

/// The API server did not answer in time.
#[derive(Debug, thiserror::Error)]
#[error("no answer of the API server within {0:?}")]
struct NoAnswer(Duration);

/// An answer ended before its end. It hides its cause from `kube`, which takes some for the end.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off: {0}")]
struct BrokenOff(String);

/// The connections of one client.
struct OwnConnections {
    backend: Arc<Backend>,
    pools: ArcSwap<Pools>,
}

impl OwnConnections {
    fn new(backend: &Arc<Backend>) -> Self {
        Self { backend: Arc::clone(backend), pools: ArcSwap::from_pointee(pools(backend)) }
    }

    /// Uses the connections of `silent` no more. Answers that are on their way there go on.
    fn abandon(&self, silent: &Arc<Pools>) {
        self.pools.compare_and_swap(silent, Arc::new(pools(&self.backend)));
    }
}

fn pools(backend: &Backend) -> Pools {
    let pools = Pools::default();
    pools.keep(1, backend.endpoints().iter());
    pools
}

/// Sends requests as `system:portcullis`; where identities are impersonated, as what the gateway's credential is.
struct BackendService(Arc<OwnConnections>);

// threat: silent-backend
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
            let is_watch = query.is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"));
            let is_prompt = is_watch || (head.method == Method::GET && query.is_none());
            head.uri = backend.uri(None, path)?;
            head.headers.insert(http::header::USER_AGENT, GATEWAY_USER_AGENT);
            if backend.identity() == IdentityMode::RequestHeader {
                let identity = Identity::from(UserInfo::portcullis()).encode(backend.identity())?;
                write_identity(&mut head.headers, &identity);
            }
            backend.add_credential(&mut head.headers);
            let kind = if is_watch { SharingClass::Long } else { SharingClass::Short };
            let request = Box::new(Request::from_parts(head, Body::bytes(body)));
            let began = Instant::now();
            let pools = connections.pools.load_full();
            let within = if is_prompt { PROMPT_HEAD_TIMEOUT } else { HEAD_TIMEOUT };
            let mut exchange =
                InFlight { connections: Arc::clone(&connections), pools, last: began, is_over: false };
            let answer = timeout(within, exchange.pools.send(backend, request, kind)).await;
            let answer = answer.map_err(|_| NoAnswer(within))?;
            exchange.heard(answer.as_ref().map_or(true, |answer| answer.body().is_end_stream()));
            let deadline = (!is_watch).then(|| Box::pin(sleep_until(began + ANSWER_TIMEOUT)));
            Ok(answer?.map(|body| TimedBody { body, deadline, exchange }))
        })
    }
}

/// A request and its answer. If it is given up in silence, which its caller may do sooner than is done here, its connections
/// are used no more.
struct InFlight {
    connections: Arc<OwnConnections>,
    pools: Arc<Pools>,
    /// When it began, or something last came.
    last: Instant,
    is_over: bool,
}

impl InFlight {
    /// Something has come.
    fn heard(&mut self, is_over: bool) {
        (self.last, self.is_over) = (Instant::now(), is_over);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.is_over && self.last.elapsed() >= SILENCE_TIMEOUT {
            self.connections.abandon(&self.pools);
        }
    }
}

/// The body of an answer.
struct TimedBody {
    body: Body,
    deadline: Option<Pin<Box<Sleep>>>,
    exchange: InFlight,
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
            self.exchange.heard(is_over);
            return Poll::Ready(
                frame.map(|frame| frame.map_err(|error| BrokenOff(error.to_string()).into())),
            );
        }
        let is_late = self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready());
        if !is_late {
            return Poll::Pending;
        }
        Poll::Ready(Some(Err(NoAnswer(ANSWER_TIMEOUT).into())))
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
