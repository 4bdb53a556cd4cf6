//! The API client of what runs beside requests: controllers and endpoint discovery. Every request has a deadline, every
//! response a maximum size, tighter than those of [`kube_client`](super::kube_client).
//!
//! An API server that accepts requests and never answers must not block its caller for ever, and one that sends an
//! endless response must not exhaust the memory of a process that also serves other clusters.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::io;
use http::Request;
use http_body::{Body as HttpBody, Frame, SizeHint};
use kube::client::Body;
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tower::{BoxError, service_fn};

use super::response_size::{ResponseSize, ResponseTooLarge};

/// The deadline for the head of a response, and for the end of a response that is not a watch.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum silence of a watch: kube-apiserver sends a bookmark each minute.
const WATCH_IDLE_TIMEOUT: Duration = Duration::from_secs(150);
/// The maximum size of a response with one object, unless the request sets a lower one ([`MaxBytes`]).
const MAX_OBJECT: usize = 4 * 1024 * 1024;
/// The maximum size of a list page with a limit of more than one object.
const MAX_PAGE: usize = 8 * 1024 * 1024;
/// The maximum size of a list page with one object, and of a watch event. etcd stores objects of 1.5 MiB, in which Go's
/// JSON encodes each `<`, `>` and `&` as six bytes.
const MAX_SINGLE: usize = 16 * 1024 * 1024;

/// Why the client aborted a response, beside its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum ResponseError {
    #[error("the API server does not answer in time")]
    TimedOut,
}

/// A request extension that sets a maximum response size below [`MAX_OBJECT`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct MaxBytes(pub(crate) usize);

/// Sends a request and discards the body of its response.
pub(crate) async fn send(client: &kube::Client, request: Request<Vec<u8>>) -> kube::Result<()> {
    let answer = pin!(client.request_stream(request).await?);
    // The request has succeeded, even if the body breaks off.
    io::copy_buf(answer, &mut io::sink()).await.ok();
    Ok(())
}

/// Applies these bounds to `client`. Must be called within a tokio runtime.
// threat: pending-requests-flood, endless-response
pub(crate) fn bounded(client: kube::Client) -> kube::Client {
    let service = service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let bounds = ResponseBounds::of(&request);
            let deadline = Instant::now() + REQUEST_TIMEOUT;
            let response = timeout(REQUEST_TIMEOUT, client.send(request)).await;
            let response = response.map_err(|_| ResponseError::TimedOut)??;
            Ok::<_, BoxError>(response.map(|body| BoundedBody::new(body, bounds, deadline)))
        }
    });
    kube::Client::new(service, "default")
}

/// The bounds of a response.
#[derive(Debug, Clone, Copy)]
struct ResponseBounds {
    is_watch: bool,
    max_bytes: usize,
}

impl ResponseBounds {
    fn of(request: &Request<Body>) -> Self {
        let value = |name: &str| {
            let query = request.uri().query().unwrap_or_default();
            let mut pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let is_watch = value("watch").is_some();
        let max_bytes = match value("limit") {
            limit if is_watch || limit == Some("1") => MAX_SINGLE,
            Some(_) => MAX_PAGE,
            None => request.extensions().get().map_or(MAX_OBJECT, |MaxBytes(max_bytes)| *max_bytes),
        };
        Self { is_watch, max_bytes }
    }
}

/// A body that fails when its sender is silent for too long, or sends too much.
struct BoundedBody {
    body: Body,
    is_watch: bool,
    size: ResponseSize,
    deadline: Pin<Box<Sleep>>,
}

impl BoundedBody {
    fn new(body: Body, bounds: ResponseBounds, deadline: Instant) -> Self {
        let ResponseBounds { is_watch, max_bytes } = bounds;
        let deadline = if is_watch { Instant::now() + WATCH_IDLE_TIMEOUT } else { deadline };
        let size = ResponseSize::new(is_watch, max_bytes);
        Self { body, is_watch, size, deadline: Box::pin(sleep_until(deadline)) }
    }

    fn check(&mut self, data: &Bytes) -> Result<(), ResponseTooLarge> {
        if self.is_watch {
            self.deadline.as_mut().reset(Instant::now() + WATCH_IDLE_TIMEOUT);
        }
        self.size.add(data)
    }
}

impl HttpBody for BoundedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                ready!(self.deadline.as_mut().poll(cx));
                return Poll::Ready(Some(Err(ResponseError::TimedOut.into())));
            }
        };
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                let checked = frame.data_ref().map_or(Ok(()), |data| self.check(data));
                Some(checked.map(|()| frame).map_err(Into::into))
            }
            Some(Err(error)) => Some(Err(error.into())),
            None => None,
        })
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
