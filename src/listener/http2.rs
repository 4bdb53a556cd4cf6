//! The HTTP/2 server: each request runs in its own task.
//!
//! Of the requests of a connection one begins in each poll. A client may send hundreds at once, and their tasks would take the
//! thread until each of them has been polled, while other connections wait. So those have their turn between two of its requests.
//! Requests with a body or a large header do not wait: their bytes count from the time when they begin.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::server::{Builder, Handshake, SendResponse};
use h2::{Reason, RecvStream};
use http::{Method, Request, Response};
use http_body::Body as _;
use portcullis_http::limits::{MAX_HEADER_BYTES, header_list_size};
use portcullis_http::transport::{
    ConnectionBuffers, CorkedStream, Direction, ExchangeBuffers, Http2Body, Http2KeepAlive, Incoming,
    ResponseAccount, SentBytes, StreamWindows, UploadGuard, send_response_body, set_content_length,
};
use tokio::time::timeout;
use tracing::debug;

use super::RequestHandler;
use super::activity::AcceptedRequest;
use super::connection::Connection;
use super::date::set_date;
use super::driver::ClientStream;
use super::settings::ClientLimits;

/// Buffered bytes of one response, for a client that reads more slowly than its window suggests.
const SEND_BUFFER: usize = 128 << 10;
/// The overhead of short frames of request bodies that nothing has read. HTTP/2 ends the connection beyond that: one body in a
/// narrow window stays within it if its frames have 16 bytes.
const MAX_SHORT_FRAMES: usize = 1 << 20;
/// A request body that may be longer counts, and so does a larger header.
const MAX_UNCOUNTED_BODY: u64 = 4 << 10;
const MAX_UNCOUNTED_HEADER: usize = 16 << 10;
/// How long the rest of a request body may come after the end of the response, before it is refused. libcurl before 8 loses the
/// response if the end of the stream and its reset come together, as h2 would send them.
const UNREAD_LINGER: Duration = Duration::from_millis(100);
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
    buffers: Arc<ConnectionBuffers>,
    windows: StreamWindows,
    /// The requests that have not begun, the oldest first. Only those that count nowhere wait, and not more than `max_waiting`, of which
    /// the client may have reset some. If the connection ends, they end as if they had not come.
    waiting: VecDeque<WaitingRequest<H>>,
    /// The streams that a client may have open.
    max_waiting: usize,
    /// Whether the graceful shutdown was requested during the HTTP/2 handshake.
    shutdown_requested: bool,
}

/// A request, its exchange and the sender of its response.
type WaitingRequest<H> = (Exchange<H>, Request<RecvStream>, SendResponse<SentBytes>);

enum Http2ServerState {
    Handshaking(Handshake<CorkedStream<ClientStream>, SentBytes>),
    Serving(h2::server::Connection<CorkedStream<ClientStream>, SentBytes>, Http2KeepAlive<ClientStream>),
}

impl<H: RequestHandler> Http2ServerConnection<H> {
    // threat: floods
    pub(super) fn new(
        corked: CorkedStream<ClientStream>,
        handler: Arc<H>,
        connection: Arc<Connection>,
        limits: ClientLimits,
    ) -> Self {
        let windows = StreamWindows::wide();
        let handshake = Builder::new()
            .max_concurrent_streams(limits.http2_max_streams)
            .initial_window_size(windows.current())
            .initial_connection_window_size(StreamWindows::of_connection(limits.http2_max_streams.min(1024)))
            .max_send_buffer_size(SEND_BUFFER)
            .data_frame_budget(MAX_SHORT_FRAMES)
            .max_header_list_size(u32::try_from(MAX_HEADER_BYTES).unwrap_or(u32::MAX))
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(Some(MAX_LOCAL_RESETS))
            .handshake(corked.clone());
        Self {
            state: Http2ServerState::Handshaking(handshake),
            buffers: corked.buffers(),
            windows,
            corked,
            handler,
            connection,
            waiting: VecDeque::new(),
            max_waiting: usize::try_from(limits.http2_max_streams).unwrap_or(usize::MAX),
            shutdown_requested: false,
        }
    }

    /// Begins the request that has waited longest, if none has begun in this poll, and those beyond `max_waiting`.
    // threat: floods
    fn begin_waiting(&mut self, has_begun: bool) {
        let beyond = self.waiting.len().saturating_sub(self.max_waiting);
        let count = beyond.max(usize::from(!has_begun)).min(self.waiting.len());
        for (exchange, request, respond) in self.waiting.drain(..count) {
            exchange.begin(request, respond);
        }
        if self.waiting.is_empty() {
            // An idle connection keeps no memory of a burst.
            self.waiting = VecDeque::new();
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
        let mut has_begun = false;
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
                    if this.buffers.poll_revoked(cx).is_ready() {
                        debug!(peer = %this.connection.info.peer, "connection closed: it holds too many buffered bytes");
                        return Poll::Ready(Ok(()));
                    }
                    let set = |window| connection.set_initial_window_size(window).is_ok();
                    this.windows.adjust(this.buffers.uploads(), set);
                    let accepted = match connection.poll_accept(cx) {
                        Poll::Ready(Some(accepted)) => accepted,
                        Poll::Ready(None) => return Poll::Ready(Ok(())),
                        Poll::Pending => {
                            this.begin_waiting(has_begun);
                            if !this.waiting.is_empty() {
                                cx.waker().wake_by_ref();
                            }
                            return Poll::Pending;
                        }
                    };
                    let (request, mut respond) = accepted?;
                    if this.connection.refuses_requests() {
                        respond.send_reset(Reason::REFUSED_STREAM);
                        continue;
                    }
                    let exchange = Exchange {
                        handler: Arc::clone(&this.handler),
                        connection: Arc::clone(&this.connection),
                        upload: (!request.body().is_end_stream()).then(|| this.buffers.begin_upload()),
                        buffers: Arc::clone(&this.buffers),
                        header: header_list_size(request.headers()),
                        accepted: this.connection.accept_request(),
                    };
                    let is_first = !has_begun && this.waiting.is_empty();
                    has_begun |= is_first;
                    if is_first || exchange.may_count() {
                        exchange.begin(request, respond);
                    } else {
                        this.waiting.push_back((exchange, request, respond));
                    }
                }
            }
        }
    }
}

/// One request and its response.
struct Exchange<H> {
    handler: Arc<H>,
    connection: Arc<Connection>,
    /// Of the connection.
    buffers: Arc<ConnectionBuffers>,
    /// `None` for a request without a body.
    upload: Option<UploadGuard>,
    /// The bytes of the request's header.
    header: usize,
    accepted: AcceptedRequest,
}

impl<H: RequestHandler> Exchange<H> {
    /// Whether the bytes of the request may count as soon as it begins.
    fn may_count(&self) -> bool {
        self.upload.is_some() || self.header > MAX_UNCOUNTED_HEADER
    }

    /// Handles the request in a task of its own.
    fn begin(self, request: Request<RecvStream>, respond: SendResponse<SentBytes>) {
        tokio::spawn(Box::pin(self.serve(request, respond)));
    }

    /// Handles the request, unless its client resets the stream.
    async fn serve(self, request: Request<RecvStream>, mut respond: SendResponse<SentBytes>) {
        let (head, stream) = request.into_parts();
        let is_head = head.method == Method::HEAD;
        let arrived = self.upload.is_some().then(Arc::<AtomicBool>::default);
        let body = Http2Body::new(&head.headers, stream, None).with_arrival_flag(arrived.clone());
        let mut incoming = Incoming::Http2(body);
        let exchange = self.count(&mut incoming);
        let response = {
            let request = Request::from_parts(head, incoming);
            // Boxed, so that its memory is freed before the response body streams.
            let mut handling = Box::pin(self.handler.handle(Arc::clone(&self.connection), request));
            // From here on the handler keeps the connection busy.
            drop(self.accepted);
            // The reset is polled first: a stream that is already reset is not handled.
            let response = poll_fn(|cx| match respond.poll_reset(cx) {
                Poll::Ready(_) => Poll::Ready(None),
                Poll::Pending => handling.as_mut().poll(cx).map(Some),
            });
            let Some(response) = response.await else { return };
            response
        };
        if let Some(exchange) = &exchange {
            exchange.set_header(0);
        }
        let (mut head, mut body) = response.into_parts();
        if !body.is_end_stream() {
            set_content_length(&mut head.headers, &body);
        }
        // A response to HEAD has the header of a body but not the body.
        let is_empty = is_head || body.is_end_stream();
        set_date(&mut head.headers);
        let owner = body.take_owner().unwrap_or_else(|| self.connection.network());
        let ledger = self.handler.ledger().clone();
        let mut account = ResponseAccount::new(exchange, Arc::clone(&self.buffers), ledger, owner);
        let size = header_list_size(&head.headers);
        if account.is_behind() {
            // Boxed: few responses wait.
            let waited = account.until_client_reads(size, &mut body, |cx| respond.poll_reset(cx));
            if let Err(error) = Box::pin(waited).await {
                debug!(%error, "response aborted before its header");
                respond.send_reset(Reason::ENHANCE_YOUR_CALM);
                return;
            }
        }
        account.note_header(size);
        let sent = match respond.send_response(Response::from_parts(head, ()), is_empty) {
            Ok(_) if is_empty => Ok(()),
            Ok(stream) => send_response_body(body, stream, account).await.map_err(|error| error.to_string()),
            Err(error) => {
                respond.send_reset(Reason::INTERNAL_ERROR);
                Err(error.to_string())
            }
        };
        if let Err(error) = sent {
            debug!(%error, "response aborted");
        } else if arrived.is_some_and(|arrived| !arrived.load(Ordering::Relaxed)) {
            // h2 resets the stream when the last handle is dropped.
            let reset = poll_fn(|cx| respond.poll_reset(cx));
            let _elapsed = timeout(UNREAD_LINGER, reset).await;
        }
    }

    /// Counts what the request holds while it is handled, for the client's network until it is authenticated. `None` if that is
    /// little: it counts no more than the rest of the stream.
    // threat: buffered-bytes-flood
    fn count(&self, incoming: &mut Incoming) -> Option<Arc<ExchangeBuffers>> {
        let length = incoming.size_hint().upper();
        let has_body = self.upload.is_some() && length.is_none_or(|length| length > MAX_UNCOUNTED_BODY);
        if !has_body && self.header <= MAX_UNCOUNTED_HEADER {
            return None;
        }
        let exchange = Arc::<ExchangeBuffers>::default();
        exchange.set_header(self.header);
        exchange.register(self.handler.ledger(), self.connection.network());
        incoming.count_in(&exchange, Direction::Request);
        Some(exchange)
    }
}
