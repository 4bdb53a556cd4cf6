//! HTTP/2 with a client: each request on a task of its own.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::{Builder, Handshake, SendResponse};
use h2::{Reason, RecvStream};
use http::{Method, Request, Response};
use http_body::Body as _;
use tracing::debug;

use super::Handler;
use super::connection::Connection;
use super::date::set_date;
use super::driver::Stream;
use super::settings::Limits;
use crate::http::limits::MAX_HEADER_BYTES;
use crate::http::transport::{
    CorkedStream, Http2Body, Http2KeepAlive, Incoming, send_body, set_content_length,
};

/// Flow-control window of a request body, as kube-apiserver's.
// apiserver: pkg/server/secure_serving.go, resourceBody99Percentile
const STREAM_WINDOW: u32 = 256 * 1024;
/// Bytes of one response that wait for a client whose window is larger than what it reads.
const SEND_BUFFER: usize = 128 * 1024;
/// Streams that a client has taken back, of which nobody knows yet.
const MAX_PENDING_RESETS: usize = 20;
/// Errors of a client that are each told to it.
const MAX_LOCAL_RESETS: usize = 128;

/// A connection, to be polled to its end.
pub(super) struct Http2<H> {
    state: State,
    corked: CorkedStream<Stream>,
    handler: Arc<H>,
    connection: Arc<Connection>,
    /// Asked to end before it had begun.
    is_ending: bool,
}

enum State {
    Beginning(Handshake<CorkedStream<Stream>, Bytes>),
    Serving(h2::server::Connection<CorkedStream<Stream>, Bytes>, Http2KeepAlive<Stream>),
}

impl<H: Handler> Http2<H> {
    // threat: floods
    pub(super) fn new(
        corked: CorkedStream<Stream>,
        handler: Arc<H>,
        connection: Arc<Connection>,
        limits: Limits,
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
        Self { state: State::Beginning(handshake), corked, handler, connection, is_ending: false }
    }

    /// Takes no more requests and ends once those in progress are answered: GOAWAY.
    pub(super) fn graceful_shutdown(&mut self) {
        match &mut self.state {
            State::Beginning(_) => self.is_ending = true,
            State::Serving(connection, _) => connection.graceful_shutdown(),
        }
    }

    /// Takes no more requests and ends those in progress, because the client asks too much: GOAWAY.
    // threat: ignored-goaway
    pub(super) fn calm_down(&mut self) {
        if let State::Serving(connection, _) = &mut self.state {
            connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
        }
    }
}

impl<H: Handler> Future for Http2<H> {
    type Output = Result<(), h2::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        let this = self.get_mut();
        loop {
            match &mut this.state {
                State::Beginning(handshake) => {
                    let mut connection = ready!(Pin::new(handshake).poll(cx))?;
                    if this.is_ending {
                        connection.graceful_shutdown();
                    }
                    let keep_alive = Http2KeepAlive::new(this.corked.clone(), connection.ping_pong());
                    this.state = State::Serving(connection, keep_alive);
                }
                State::Serving(connection, keep_alive) => {
                    if keep_alive.poll_dead(cx).is_ready() {
                        debug!(peer = %this.connection.info.peer, "the client is gone");
                        return Poll::Ready(Ok(()));
                    }
                    let Some(accepted) = ready!(connection.poll_accept(cx)) else {
                        return Poll::Ready(Ok(()));
                    };
                    let (request, mut respond) = accepted?;
                    if this.connection.is_closing() {
                        respond.send_reset(Reason::REFUSED_STREAM);
                        continue;
                    }
                    let (handler, connection) = (Arc::clone(&this.handler), Arc::clone(&this.connection));
                    tokio::spawn(Box::pin(answer(handler, connection, request, respond)));
                }
            }
        }
    }
}

/// Answers one request, unless its client takes it back.
async fn answer<H: Handler>(
    handler: Arc<H>,
    connection: Arc<Connection>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let (head, stream) = request.into_parts();
    let is_head = head.method == Method::HEAD;
    let incoming = Incoming::Http2(Http2Body::new(&head.headers, stream, None));
    let response = {
        // Boxed, so that what answering takes is not kept as long as the answer lasts.
        let mut answering = Box::pin(handler.handle(connection, Request::from_parts(head, incoming)));
        // What is taken back at once does not even begin.
        let answering = poll_fn(|cx| match respond.poll_reset(cx) {
            Poll::Ready(_) => Poll::Ready(None),
            Poll::Pending => answering.as_mut().poll(cx).map(Some),
        });
        let Some(response) = answering.await else { return };
        response
    };
    let (mut head, body) = response.into_parts();
    if !body.is_end_stream() {
        set_content_length(&mut head.headers, &body);
    }
    // To HEAD a body is only described.
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
        debug!(%error, "an answer was not sent to its end");
    }
}
