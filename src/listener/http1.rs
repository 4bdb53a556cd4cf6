//! The HTTP/1.1 server: requests, unread request bodies, and keep-alive.

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
use portcullis_http::body::Body;
use portcullis_http::limits::{MAX_HEADER_BYTES, MAX_HEADER_LINES};
use portcullis_http::transport::{
    Direction, ExchangeBuffers, Http1Stream, Http1Upload, Incoming, TransportError,
};

use super::RequestHandler;
use super::connection::Connection;
use super::driver::{ClientStream, HttpConnection};

/// Serves the requests of a connection.
// threat: floods
pub(super) fn serve<H: RequestHandler>(
    stream: ClientStream,
    connection: Arc<Connection>,
    handler: Arc<H>,
) -> impl HttpConnection {
    // All exchanges of the connection, one after the other.
    let buffers = Arc::<ExchangeBuffers>::default();
    buffers.register(handler.ledger(), connection.network());
    buffers.await_header(true);
    let counted = Arc::clone(&buffers);
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let (handler, connection) = (Arc::clone(&handler), Arc::clone(&connection));
        let buffers = Arc::clone(&counted);
        // Boxed: hyper moves the future, and reserves its size for the life of the connection.
        Box::pin(async move {
            buffers.await_header(false);
            let response = serve_request(&handler, connection, request, &buffers).await;
            buffers.await_header(true);
            Ok::<Response<Body>, Infallible>(response)
        })
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_headers(MAX_HEADER_LINES)
        .max_buf_size(MAX_HEADER_BYTES);
    let stream = Http1Stream::new(stream, Arc::clone(&buffers));
    let http = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
    Http1ServerConnection { http: Box::pin(http), buffers }
}

/// Handles a request, and discards the unread rest of its body before the response is sent.
async fn serve_request<H: RequestHandler>(
    handler: &Arc<H>,
    connection: Arc<Connection>,
    request: Request<hyper::body::Incoming>,
    buffers: &Arc<ExchangeBuffers>,
) -> Response<Body> {
    let version = request.version();
    let waits_for_continue = request.headers().contains_key(EXPECT);
    let mut unread = None;
    let request = request.map(|body| {
        if body.is_end_stream() {
            return Incoming::Http1(body);
        }
        let (upload, remainder) = Http1Upload::new(body, buffers);
        unread = Some(remainder);
        Incoming::Upload(upload)
    });
    connection.activity.note_body(unread.is_some());
    let mut response = handler.handle(Arc::clone(&connection), request).await;
    let owner = response.body_mut().take_owner();
    buffers.set_owner(|| owner.unwrap_or_else(|| connection.network()));
    response.body_mut().count_response_over_http1(buffers);
    // Whatever the backend's version. hyper keeps the connection of an HTTP/1.0 client alive if the response says
    // HTTP/1.1. Without a known length the end of the connection must delimit the body.
    let has_length = || response.body().size_hint().exact().is_some();
    let is_delimited = version != Version::HTTP_10 || has_length();
    *response.version_mut() = if is_delimited { Version::HTTP_11 } else { Version::HTTP_10 };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        connection.activity.note_upgrade();
    } else if let Some(unread) = unread
        && !unread.discard(waits_for_continue).await
    {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// An HTTP/1.1 connection, which ends when what it holds must be given up.
struct Http1ServerConnection<S>
where
    S: HttpService<hyper::body::Incoming>,
{
    http: Pin<Box<http1::UpgradeableConnection<TokioIo<Http1Stream<ClientStream>>, S>>>,
    buffers: Arc<ExchangeBuffers>,
}

impl<S> HttpConnection for Http1ServerConnection<S>
where
    S: HttpService<hyper::body::Incoming, ResBody = Body, Error = Infallible, Future: Send> + Send,
{
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        let this = self.get_mut();
        if this.buffers.poll_revoked(Direction::Response, cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        this.http.as_mut().poll(cx).map_err(TransportError::from)
    }

    fn graceful_shutdown(self: Pin<&mut Self>) {
        self.get_mut().http.as_mut().graceful_shutdown();
    }
}
