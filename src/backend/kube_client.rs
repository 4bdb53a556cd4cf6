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
use http::header::AUTHORIZATION;
use http::uri::{PathAndQuery, Scheme};
use http::{Method, Request, Response, Uri};
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tower::{BoxError, Service};

use super::pool::Kind;
use super::pools::Pools;
use crate::backend::probe::OURSELVES;
use crate::backend::upstream::Upstream;
use crate::http::body::Body;
use crate::http::identity_headers::write_identity;
use crate::user::{IdentityMode, UserInfo};

/// How long the head of an answer may take: of a watch and of a single object, for which tokens wait, and of all else.
const PROMPT_HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// After how long without an answer a request that is given up says something about its connection.
const SILENCE: Duration = Duration::from_secs(3);
/// How long an answer may take as a whole, unless it is a watch.
// apiserver: pkg/server/options/server_run_options.go, RequestTimeout — kube-apiserver itself gives up then
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// A client for the API server of one cluster. Must be called within a tokio runtime, which its connections live on.
pub(crate) fn client(upstream: &Arc<Upstream>) -> kube::Client {
    kube::Client::new(Own(Arc::new(Connections::new(upstream))), "default")
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
struct Connections {
    upstream: Arc<Upstream>,
    pools: ArcSwap<Pools>,
}

impl Connections {
    fn new(upstream: &Arc<Upstream>) -> Self {
        Self { upstream: Arc::clone(upstream), pools: ArcSwap::from_pointee(pools(upstream)) }
    }

    /// Uses the connections of `silent` no more. Answers that are on their way there go on.
    fn abandon(&self, silent: &Arc<Pools>) {
        self.pools.compare_and_swap(silent, Arc::new(pools(&self.upstream)));
    }
}

fn pools(upstream: &Upstream) -> Pools {
    let pools = Pools::default();
    pools.keep(1, upstream.targets().iter());
    pools
}

/// Sends requests as `system:portcullis`; where identities are impersonated, as what the gateway's credential is.
struct Own(Arc<Connections>);

// threat: silent-backend
impl Service<Request<kube::client::Body>> for Own {
    type Response = Response<Answer>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Answer>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let connections = Arc::clone(&self.0);
        Box::pin(async move {
            let upstream = &connections.upstream;
            let (mut head, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let path = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
            let query = head.uri.query();
            let is_watch = query.is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"));
            let is_prompt = is_watch || (head.method == Method::GET && query.is_none());
            head.uri = Uri::builder()
                .scheme(Scheme::HTTPS)
                .authority(upstream.authority.clone())
                .path_and_query(format!("{}{path}", upstream.path_prefix()))
                .build()?;
            head.headers.insert(http::header::USER_AGENT, OURSELVES);
            if upstream.identity() == IdentityMode::RequestHeader {
                write_identity(&mut head.headers, &UserInfo::portcullis().into(), upstream.identity())?;
            }
            if let Some(authorization) = &upstream.authorization {
                head.headers.insert(AUTHORIZATION, authorization.clone());
            }
            let kind = if is_watch { Kind::Long } else { Kind::Short };
            let request = Box::new(Request::from_parts(head, Body::bytes(body)));
            let began = Instant::now();
            let pools = connections.pools.load_full();
            let within = if is_prompt { PROMPT_HEAD_TIMEOUT } else { HEAD_TIMEOUT };
            let mut exchange =
                Unfinished { connections: Arc::clone(&connections), pools, last: began, is_over: false };
            let answer = timeout(within, exchange.pools.send(upstream, request, kind)).await;
            let answer = answer.map_err(|_| NoAnswer(within))?;
            exchange.heard(answer.as_ref().map_or(true, |answer| answer.body().is_end_stream()));
            let deadline = (!is_watch).then(|| Box::pin(sleep_until(began + ANSWER_TIMEOUT)));
            Ok(answer?.map(|body| Answer { body, deadline, exchange }))
        })
    }
}

/// A request and its answer. If it is given up in silence, which its caller may do sooner than is done here, its connections
/// are used no more.
struct Unfinished {
    connections: Arc<Connections>,
    pools: Arc<Pools>,
    /// When it began, or something last came.
    last: Instant,
    is_over: bool,
}

impl Unfinished {
    /// Something has come.
    fn heard(&mut self, is_over: bool) {
        (self.last, self.is_over) = (Instant::now(), is_over);
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_over && self.last.elapsed() >= SILENCE {
            self.connections.abandon(&self.pools);
        }
    }
}

/// The body of an answer.
struct Answer {
    body: Body,
    deadline: Option<Pin<Box<Sleep>>>,
    exchange: Unfinished,
}

impl http_body::Body for Answer {
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
