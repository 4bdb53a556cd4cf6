//! The HTTP/2 server: each request runs in its own task.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::{Builder, Handshake, SendResponse};
use h2::{Reason, RecvStream};
use http::{Method, Request, Response};
use http_body::Body as _;
use portcullis_http::limits::MAX_HEADER_BYTES;
use portcullis_http::transport::{
    CorkedStream, Http2Body, Http2KeepAlive, Incoming, send_body, set_content_length,
};
use tracing::debug;

use super::RequestHandler;
use super::connection::Connection;
use super::date::set_date;
use super::driver::ClientStream;
use super::settings::ClientLimits;

/// The flow-control window of a request body, as in kube-apiserver.
// apiserver: pkg/server/secure_serving.go, resourceBody99Percentile
const STREAM_WINDOW: u32 = 256 * 1024;
/// Buffered bytes of one response, for a client that reads more slowly than its window suggests.
const SEND_BUFFER: usize = 128 * 1024;
/// Streams that the client has reset before h2 returned them from `poll_accept`.
const MAX_PENDING_RESETS: usize = 20;
/// Streams that h2 may reset because of errors of the client.
const MAX_LOCAL_RESETS: usize = 128;

/// An HTTP/2 connection; poll it to its end.
pub(super) struct Http2ServerConnection<H> {
    state: Http2ServerState,
    corked: CorkedStream<ClientStream>,
    handler: Arc<H>,
    connection: Arc<Connection>,
    /// Whether the graceful shutdown was requested during the HTTP/2 handshake.
    shutdown_requested: bool,
}

enum Http2ServerState {
    Handshaking(Handshake<CorkedStream<ClientStream>, Bytes>),
    Serving(h2::server::Connection<CorkedStream<ClientStream>, Bytes>, Http2KeepAlive<ClientStream>),
}

impl<H: RequestHandler> Http2ServerConnection<H> {
    // threat: floods
    pub(super) fn new(
        corked: CorkedStream<ClientStream>,
        handler: Arc<H>,
        connection: Arc<Connection>,
        limits: ClientLimits,
    ) -> Self {
        let handshake = Builder::new()
            .max_concurrent_streams(limits.http2_max_streams)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(STREAM_WINDOW.saturating_mul(limits.http2_max_streams.min(1024)))
            .max_send_buffer_size(SEND_BUFFER)
            .max_header_list_size(u32::try_from(MAX_HEADER_BYTES).unwrap_or(u32::MAX))
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(Some(MAX_LOCAL_RESETS))
            .handshake(corked.clone());
        Self {
            state: Http2ServerState::Handshaking(handshake),
            corked,
            handler,
            connection,
            shutdown_requested: false,
        }
    }

    /// Sends GOAWAY; the connection ends after the responses in progress.
    pub(super) fn graceful_shutdown(&mut self) {
        match &mut self.state {
            Http2ServerState::Handshaking(_) => self.shutdown_requested = true,
            Http2ServerState::Serving(connection, _) => connection.graceful_shutdown(),
        }
    }

    /// Sends GOAWAY with `ENHANCE_YOUR_CALM` and resets the streams in progress.
    // threat: ignored-goaway
    pub(super) fn abrupt_shutdown(&mut self) {
        if let Http2ServerState::Serving(connection, _) = &mut self.state {
            connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
        }
    }
}

impl<H: RequestHandler> Future for Http2ServerConnection<H> {
    type Output = Result<(), h2::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        let this = self.get_mut();
        loop {
            match &mut this.state {
                Http2ServerState::Handshaking(handshake) => {
                    let mut connection = ready!(Pin::new(handshake).poll(cx))?;
                    if this.shutdown_requested {
                        connection.graceful_shutdown();
                    }
                    let keep_alive = Http2KeepAlive::new(this.corked.clone(), connection.ping_pong());
                    this.state = Http2ServerState::Serving(connection, keep_alive);
                }
                Http2ServerState::Serving(connection, keep_alive) => {
                    if keep_alive.poll_dead(cx).is_ready() {
                        debug!(peer = %this.connection.info.peer, "connection closed: no reply to keep-alive pings");
                        return Poll::Ready(Ok(()));
                    }
                    let Some(accepted) = ready!(connection.poll_accept(cx)) else {
                        return Poll::Ready(Ok(()));
                    };
                    let (request, mut respond) = accepted?;
                    if this.connection.refuses_requests() {
                        respond.send_reset(Reason::REFUSED_STREAM);
                        continue;
                    }
                    let (handler, connection) = (Arc::clone(&this.handler), Arc::clone(&this.connection));
                    tokio::spawn(Box::pin(serve_request(handler, connection, request, respond)));
                }
            }
        }
    }
}

/// Handles one request, unless its client resets the stream.
async fn serve_request<H: RequestHandler>(
    handler: Arc<H>,
    connection: Arc<Connection>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let (head, stream) = request.into_parts();
    let is_head = head.method == Method::HEAD;
    let incoming = Incoming::Http2(Http2Body::new(&head.headers, stream, None));
    let response = {
        // Boxed, so that its memory is freed before the response body streams.
        let mut handling = Box::pin(handler.handle(connection, Request::from_parts(head, incoming)));
        // The reset is polled first: a stream that is already reset is not handled.
        let response = poll_fn(|cx| match respond.poll_reset(cx) {
            Poll::Ready(_) => Poll::Ready(None),
            Poll::Pending => handling.as_mut().poll(cx).map(Some),
        });
        let Some(response) = response.await else { return };
        response
    };
    let (mut head, body) = response.into_parts();
    if !body.is_end_stream() {
        set_content_length(&mut head.headers, &body);
    }
    // A response to HEAD has the header of a body but not the body.
    let is_empty = is_head || body.is_end_stream();
    set_date(&mut head.headers);
    let sent = match respond.send_response(Response::from_parts(head, ()), is_empty) {
        Ok(_) if is_empty => return,
        Ok(stream) => send_body(body, stream).await.map_err(|error| error.to_string()),
        Err(error) => {
            respond.send_reset(Reason::INTERNAL_ERROR);
            Err(error.to_string())
        }
    };
    if let Err(error) = sent {
        debug!(%error, "response aborted");
    }
}
