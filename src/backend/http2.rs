//! HTTP/2 connections to one endpoint. This module counts their streams itself, because h2 queues requests beyond the
//! peer's limit.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use futures_util::future::{BoxFuture, Shared};
use h2::RecvStream;
use h2::client::{Connection, ResponseFuture, SendRequest};
use http::{Request, Response};
use http_body::Body as _;
use portcullis_http::body::{Body, EndGuard};
use portcullis_http::limits::MAX_INFORMATIONAL_RESPONSES;
use portcullis_http::transport::{
    ConnectionBuffers, CorkedStream, Http2Body, Http2KeepAlive, Incoming, Role, SentBytes, StreamWindows,
    TransportError, UncorkOnPoll, send_body, set_content_length,
};
use portcullis_system::sync::lock;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_util::task::AbortOnDropHandle;

use super::balance::LoadTicket;
use super::counts::{EndpointCounts, LaneKind};
use super::pool::{SendError, SendOutcome};
use crate::backend::endpoint::{ConnectError, ConnectionTrust, Endpoint, EndpointStream};

/// How full a connection is, in percent of its streams, when another one is opened.
const FILL_PERCENT: usize = 80;
/// The most streams of a connection, for which its window has room.
const MAX_STREAMS: u32 = 256;
/// The assumed stream limit until the backend's SETTINGS arrive.
const INITIAL_MAX_STREAMS: usize = 100;
/// How long the backend's first SETTINGS frame may take. Shorter than the timeout of the self-check.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of one upload that wait to be sent: as many as the window of kube-apiserver.
const SEND_BUFFER_BYTES: usize = 256 << 10;

/// The connections for requests that may share one.
#[derive(Debug)]
pub(crate) struct Lane {
    kind: LaneKind,
    /// Whether the windows of its streams are wide while a connection has few. Those of long streams are always narrow: their
    /// readers may stall.
    has_wide_windows: bool,
    /// The user who alone uses it, if so.
    user: Option<Box<str>>,
    connections: Mutex<Vec<Arc<Http2Connection>>>,
    /// The connection attempt in progress.
    pub(crate) connecting: Mutex<Option<ConnectAttempt>>,
}

/// A connection attempt that all requests of a lane wait for together.
pub(crate) type ConnectAttempt = Shared<BoxFuture<'static, Result<(), ConnectError>>>;

struct Http2Connection {
    sender: SendRequest<SentBytes>,
    trust: ConnectionTrust,
    /// Streams in use.
    streams: Arc<AtomicUsize>,
    /// Where they are counted for the endpoint.
    counts: (Arc<EndpointCounts>, LaneKind),
    /// Whether a stream was reserved since idle connections were last closed.
    was_used: AtomicBool,
    /// Whether the gateway closes it, because it is idle.
    is_closing: Arc<AtomicBool>,
    /// Whether it ends with a response that breaks a limit: a server may go on sending after the stream is reset.
    may_end: bool,
    /// Drives the connection. After its panic every call of `sender` would panic too.
    task: JoinHandle<()>,
}

/// A reserved stream of a connection, counted until it is dropped.
pub(crate) struct Http2Stream {
    connection: Arc<Http2Connection>,
    /// Counts the request at its endpoint.
    ticket: Option<LoadTicket>,
}

impl Lane {
    /// A lane of short requests.
    pub(crate) fn of_short_requests(kind: LaneKind) -> Self {
        Self { has_wide_windows: true, ..Self::of_streams(kind, None) }
    }

    /// A lane of long streams, of one user or of many.
    pub(crate) fn of_streams(kind: LaneKind, user: Option<Box<str>>) -> Self {
        let (connections, connecting) = (Mutex::default(), Mutex::default());
        Self { kind, has_wide_windows: false, user, connections, connecting }
    }

    /// Reserves a stream on the least loaded connection, unless all are full.
    pub(crate) fn reserve(&self) -> Option<Http2Stream> {
        let mut connections = lock(&self.connections);
        connections.retain(|connection| !connection.task.is_finished() && connection.trust.holds());
        loop {
            let loads = connections.iter().map(|connection| connection.streams.load(Ordering::Relaxed));
            let (least, load) = loads.enumerate().min_by_key(|(_, load)| *load)?;
            let connection = connections.get(least)?;
            let Ok(sender) = connection.sender() else {
                connections.swap_remove(least);
                continue;
            };
            let limit =
                sender.current_max_send_streams().min(usize::try_from(MAX_STREAMS).unwrap_or(usize::MAX));
            if load >= (limit.saturating_mul(FILL_PERCENT) / 100).max(1) {
                return None;
            }
            connection.was_used.store(true, Ordering::Relaxed);
            return Some(Http2Stream::begin(connection));
        }
    }

    /// Closes the connections that have had no stream since the last call.
    pub(crate) fn close_idle(&self) {
        lock(&self.connections).retain(|connection| {
            let was_used = connection.was_used.swap(false, Ordering::Relaxed);
            let is_idle = !was_used && connection.streams.load(Ordering::Relaxed) == 0;
            // Dropping its last handle closes it.
            connection.is_closing.store(is_idle, Ordering::Relaxed);
            !is_idle
        });
    }

    /// Whether any connection carries a request.
    pub(crate) fn is_in_use(&self) -> bool {
        let in_use = |connection: &Arc<Http2Connection>| connection.streams.load(Ordering::Relaxed) > 0;
        lock(&self.connections).iter().any(in_use)
    }

    /// The number of open connections, full or not.
    pub(crate) fn open_connections(&self) -> usize {
        let is_open = |connection: &&Arc<Http2Connection>| {
            !connection.task.is_finished() && connection.sender().is_ok()
        };
        lock(&self.connections).iter().filter(is_open).count()
    }

    /// Starts HTTP/2 on a new connection, and adds it once the backend's SETTINGS have arrived.
    pub(crate) async fn add_connection(
        &self,
        EndpointStream { stream, trust, place, permitted }: EndpointStream,
        endpoint: &Arc<Endpoint>,
    ) -> Result<(), ConnectError> {
        let max_header_list = endpoint.buffers().max_header_list(self.kind);
        let corked =
            CorkedStream::new(stream, Role::Client, usize::try_from(max_header_list).unwrap_or(usize::MAX));
        let first_read = corked.next_read();
        let windows = if self.has_wide_windows { StreamWindows::wide() } else { StreamWindows::narrow() };
        let mut builder = h2::client::Builder::new();
        builder
            .enable_push(false)
            .initial_max_send_streams(INITIAL_MAX_STREAMS)
            .initial_window_size(windows.current())
            .initial_connection_window_size(StreamWindows::of_connection(MAX_STREAMS))
            .max_header_list_size(max_header_list)
            .max_send_buffer_size(SEND_BUFFER_BYTES)
            // h2 counts a response to a cancelled request as an error of the backend.
            .max_local_error_reset_streams(None);
        if let Some(overhead) = endpoint.buffers().max_short_frames() {
            builder.data_frame_budget(overhead);
        }
        let handshake = builder.handshake(corked.clone()).await;
        let (sender, mut connection) = handshake.map_err(|error| endpoint.http_error(&error))?;
        let keep_alive = Http2KeepAlive::new(corked.clone(), connection.ping_pong());
        let (buffers, streams) = (corked.buffers(), Arc::<AtomicUsize>::default());
        endpoint.buffers().register(self.user.as_deref(), &buffers);
        let driver = Http2Driver { connection, keep_alive, buffers, windows, streams: Arc::clone(&streams) };
        let mut driver = Box::pin(UncorkOnPoll::new(driver, corked));
        // A server sends SETTINGS first. One that refuses the client certificate over TLS 1.3 ends the connection here,
        // after the handshake.
        let settings = async {
            if first_read.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            ended = &mut driver => {
                return Err(ended.map_or_else(|error| endpoint.http_error(&error), |()| endpoint.closed_early_error()));
            }
            settings = timeout(SETTINGS_TIMEOUT, settings) => {
                settings.map_err(|_| endpoint.silence_error(SETTINGS_TIMEOUT))?;
            }
        }
        let endpoint = Arc::clone(endpoint);
        let may_end = endpoint.buffers().may_end(self.kind, self.user.as_deref());
        let counts = (Arc::clone(endpoint.counts()), self.kind);
        let counted = endpoint.counts().open_connection(self.kind);
        let is_closing = Arc::new(AtomicBool::new(false));
        let closing = Arc::clone(&is_closing);
        let task = tokio::spawn(async move {
            let ended = permitted.drive(driver).await;
            drop((counted, permitted, place));
            if let Some(Err(error)) = ended {
                tracing::debug!(%error, "HTTP/2 connection to the backend ended");
            }
            // The server may be restarting, with other flags.
            if !closing.load(Ordering::Relaxed) {
                endpoint.request_recheck();
            }
        });
        lock(&self.connections).push(Arc::new(Http2Connection {
            sender,
            trust,
            streams,
            counts,
            was_used: AtomicBool::new(true),
            is_closing,
            may_end,
            task,
        }));
        Ok(())
    }
}

impl Http2Connection {
    /// The handle that opens streams; fails once the connection is closing.
    fn sender(&self) -> Result<SendRequest<SentBytes>, h2::Error> {
        let mut sender = self.sender.clone();
        // A new clone has no pending stream to wait for.
        match sender.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(sender),
        }
    }
}

impl Http2Stream {
    fn begin(connection: &Arc<Http2Connection>) -> Self {
        connection.streams.fetch_add(1, Ordering::Relaxed);
        let (counts, lane) = &connection.counts;
        counts.begin_stream(*lane);
        Self { connection: Arc::clone(connection), ticket: None }
    }

    /// Sends a request on this stream, which holds the ticket to its end.
    pub(crate) async fn send(
        mut self,
        request: Box<Request<Body>>,
        ticket: LoadTicket,
    ) -> Result<SendOutcome, SendError> {
        self.ticket = Some(ticket);
        let connection = Arc::clone(&self.connection);
        let sent = self.send_and_receive(request).await;
        if matches!(sent, Err(SendError::TooManyInformational)) && connection.may_end {
            connection.task.abort();
        }
        sent
    }

    // threat: endless-informational-responses
    async fn send_and_receive(self, request: Box<Request<Body>>) -> Result<SendOutcome, SendError> {
        let mut sender = match self.connection.sender() {
            Ok(sender) => sender,
            Err(error) => return Ok(SendOutcome::NotWritten(request, error.into())),
        };
        let (mut head, body) = request.into_parts();
        let has_body = !body.is_end_stream();
        if has_body {
            set_content_length(&mut head.headers, &body);
        }
        let (response, stream) =
            sender.send_request(Request::from_parts(head, ()), !has_body).map_err(classify_error)?;
        if !has_body {
            return receive_response(response, None, Box::new(self)).await;
        }
        // An upload may outlast its response: the stream stays counted until both have ended.
        let (shared, buffers) = (Arc::new(self), body.buffers());
        let sending = send_body(body.with_guard(Box::new(Arc::clone(&shared))), stream, buffers);
        let task = tokio::spawn(async move {
            if let Err(error) = sending.await {
                tracing::debug!(%error, "a request body was not sent completely");
            }
        });
        receive_response(response, Some(AbortOnDropHandle::new(task)), Box::new(shared)).await
    }
}

/// Waits for the final response, beyond a bounded number of informational ones.
// threat: endless-informational-responses
async fn final_response(mut response: ResponseFuture) -> Result<Response<RecvStream>, SendError> {
    let mut informational = 0;
    poll_fn(|cx| {
        while let Some(received) = ready!(response.poll_informational(cx)) {
            received.map_err(classify_error)?;
            informational += 1;
            if informational > MAX_INFORMATIONAL_RESPONSES {
                return Poll::Ready(Err(SendError::TooManyInformational));
            }
        }
        Pin::new(&mut response).poll(cx).map_err(classify_error)
    })
    .await
}

async fn receive_response(
    response: ResponseFuture,
    upload: Option<AbortOnDropHandle<()>>,
    permit: EndGuard,
) -> Result<SendOutcome, SendError> {
    let (head, stream) = final_response(response).await?.into_parts();
    let incoming = Incoming::Http2(Http2Body::new(&head.headers, stream, upload));
    Ok(SendOutcome::Response(Box::new(Response::from_parts(head, Body::from_backend(incoming, permit)))))
}

/// Classifies the error of a stream. The backend has not processed the request if it refused the stream, or if GOAWAY
/// names an earlier stream as the last.
// RFC 9113, sections 6.8 and 8.7
fn classify_error(error: h2::Error) -> SendError {
    let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    let going_away = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
    let is_unprocessed = error.is_remote() && (refused || going_away);
    let error = TransportError::from(error);
    if is_unprocessed { SendError::NotProcessed(error) } else { SendError::Broken(error) }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        self.connection.streams.fetch_sub(1, Ordering::Relaxed);
        let (counts, lane) = &self.connection.counts;
        counts.end_stream(*lane);
    }
}

/// Drives a connection, and ends it when the backend no longer answers keep-alive pings, or holds too much memory.
struct Http2Driver {
    connection: Connection<CorkedStream<TlsStream<TcpStream>>, SentBytes>,
    keep_alive: Http2KeepAlive<TlsStream<TcpStream>>,
    buffers: Arc<ConnectionBuffers>,
    windows: StreamWindows,
    streams: Arc<AtomicUsize>,
}

impl Future for Http2Driver {
    type Output = Result<(), h2::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        let this = self.get_mut();
        if this.keep_alive.poll_dead(cx).is_ready() || this.buffers.poll_revoked(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let Self { connection, windows, streams, .. } = this;
        // Before the requests that have begun since are sent.
        let set = |window| connection.set_initial_window_size(window).is_ok();
        windows.adjust(streams.load(Ordering::Relaxed), set);
        Pin::new(&mut this.connection).poll(cx)
    }
}

impl std::fmt::Debug for Http2Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http2Connection").field("streams", &self.streams).finish_non_exhaustive()
    }
}
