//! HTTP/1.1 with a client: each request, what is left of its body, and the end of the connection.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{CONNECTION, EXPECT};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body as _;
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};

use super::Handler;
use super::connection::Connection;
use super::driver::{Serving, Stream};
use crate::http::body::Body;
use crate::http::limits::MAX_HEADER_BYTES;
use crate::http::transport::{Http1Upload, Incoming, TransportError};
use crate::request::wellformed::MAX_HEADER_LINES;

/// Answers the requests of a connection.
// threat: floods
pub(super) fn serve<H: Handler>(
    stream: Stream,
    connection: Arc<Connection>,
    handler: Arc<H>,
) -> impl Serving {
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let (handler, connection) = (Arc::clone(&handler), Arc::clone(&connection));
        // Boxed: hyper moves it about, and keeps room for one as long as the connection lives.
        Box::pin(async move { Ok::<Response<Body>, Infallible>(answer(&handler, connection, request).await) })
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_headers(MAX_HEADER_LINES)
        .max_buf_size(MAX_HEADER_BYTES);
    builder.serve_connection(TokioIo::new(stream), service).with_upgrades()
}

/// Answers a request over HTTP/1.1, and reads what was left of its body before the answer goes out.
async fn answer<H: Handler>(
    handler: &Arc<H>,
    connection: Arc<Connection>,
    request: Request<hyper::body::Incoming>,
) -> Response<Body> {
    let version = request.version();
    let waits_for_continue = request.headers().contains_key(EXPECT);
    let mut unread = None;
    let request = request.map(|body| {
        if body.is_end_stream() {
            return Incoming::Http1(body);
        }
        let (upload, remainder) = Http1Upload::new(body);
        unread = Some(remainder);
        Incoming::Upload(upload)
    });
    connection.activity.note_body(unread.is_some());
    let mut response = handler.handle(Arc::clone(&connection), request).await;
    // hyper tells a client of HTTP/1.0 that its connection goes on if the answer is one of HTTP/1.1; it does not if the
    // length of the answer is not known, which only the end of the connection tells then.
    if version == Version::HTTP_10 {
        let goes_on = response.body().size_hint().exact().is_some();
        *response.version_mut() = if goes_on { Version::HTTP_11 } else { Version::HTTP_10 };
    }
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        connection.activity.note_upgrade();
    } else if let Some(unread) = unread
        && !unread.discard(waits_for_continue).await
    {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

impl<S> Serving for http1::UpgradeableConnection<TokioIo<Stream>, S>
where
    S: HttpService<hyper::body::Incoming, ResBody = Body, Error = Infallible, Future: Send> + Send,
{
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Future::poll(self, cx).map_err(TransportError::from)
    }

    fn graceful_shutdown(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}
