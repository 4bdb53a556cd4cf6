//! HTTP/2 connections to one endpoint, and their streams. Streams are counted here: h2 queues past the peer's limit.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, Shared};
use h2::client::{Connection, ResponseFuture, SendRequest};
use http::{Request, Response};
use http_body::Body as _;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_util::task::AbortOnDropHandle;

use super::pool::{SendError, Sent, lock};
use crate::backend::endpoint::{ConnectError, Endpoint};
use crate::http::body::{Body, EndGuard};
use crate::http::transport::{
    CorkedStream, Http2Body, Http2KeepAlive, Incoming, TransportError, UncorkOnPoll, send_body,
    set_content_length,
};

/// The share of a connection's streams that is used before another connection is opened.
const FILL_PERCENT: usize = 80;
/// A connection's window is a stream's times the streams it may carry: stalled readers block nobody else.
const STREAMS: u32 = 256;
const MAX_STREAMS: usize = 256;
/// Streams that are taken to be allowed until the backend has said how many are.
const INITIAL_STREAMS: usize = 100;
/// How long a backend that speaks HTTP/2 may take to say so. Less than a check waits for its answer.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(5);
/// Far more than is passed on: h2 ends the connection of everybody when an answer's header is some times larger than
/// this. Behind `services/proxy` anyone can send one, of 10 MiB in lines of four bytes, which count as 35 each.
const MAX_ANSWER_HEADER: u32 = 32 << 20;
/// Bytes of one upload that wait for a backend.
const SEND_BUFFER: usize = 1 << 20;

/// Connections for requests of one kind.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Flow-control window of each stream, in bytes.
    window: u32,
    connections: Mutex<Vec<Arc<Http2>>>,
    pub(crate) connecting: Mutex<Option<Connecting>>,
}

pub(crate) type Connecting = Shared<BoxFuture<'static, Result<(), ConnectError>>>;

struct Http2 {
    sender: SendRequest<Bytes>,
    /// Streams in use.
    streams: AtomicUsize,
    /// The task that carries it. If that has panicked, h2 must not be asked any more: it would panic too.
    carrier: JoinHandle<()>,
}

/// One stream of a connection, in use until it is dropped.
pub(crate) struct Stream {
    connection: Arc<Http2>,
}

impl Lane {
    pub(crate) fn new(window: u32) -> Self {
        Self { window, connections: Mutex::default(), connecting: Mutex::default() }
    }

    /// A stream on the least loaded connection that has room, if there is one.
    pub(crate) fn pick(&self) -> Option<Stream> {
        let mut connections = lock(&self.connections);
        connections.retain(|connection| !connection.carrier.is_finished());
        loop {
            let loads = connections.iter().map(|connection| connection.streams.load(Ordering::Relaxed));
            let (least, load) = loads.enumerate().min_by_key(|(_, load)| *load)?;
            let connection = connections.get(least)?;
            let Ok(sender) = connection.sender() else {
                connections.swap_remove(least);
                continue;
            };
            let limit = sender.current_max_send_streams().min(MAX_STREAMS);
            if load >= (limit.saturating_mul(FILL_PERCENT) / 100).max(1) {
                return None;
            }
            connection.streams.fetch_add(1, Ordering::Relaxed);
            return Some(Stream { connection: Arc::clone(connection) });
        }
    }

    /// Whether any of its connections carries a request.
    pub(crate) fn is_in_use(&self) -> bool {
        let in_use = |connection: &Arc<Http2>| connection.streams.load(Ordering::Relaxed) > 0;
        lock(&self.connections).iter().any(in_use)
    }

    /// How many connections it has, with room or without.
    pub(crate) fn open(&self) -> usize {
        let is_open =
            |connection: &&Arc<Http2>| !connection.carrier.is_finished() && connection.sender().is_ok();
        lock(&self.connections).iter().filter(is_open).count()
    }

    /// Begins HTTP/2 on a new connection.
    pub(crate) async fn begin(
        &self,
        stream: TlsStream<TcpStream>,
        endpoint: &Arc<Endpoint>,
    ) -> Result<(), ConnectError> {
        let corked = CorkedStream::new(stream);
        let heard = corked.next_read();
        let (sender, mut connection) = h2::client::Builder::new()
            .enable_push(false)
            .initial_max_send_streams(INITIAL_STREAMS)
            .initial_window_size(self.window)
            .initial_connection_window_size(self.window.saturating_mul(STREAMS))
            .max_header_list_size(MAX_ANSWER_HEADER)
            .max_send_buffer_size(SEND_BUFFER)
            // An answer to a request that was cancelled counts as an error of the backend.
            .max_local_error_reset_streams(None)
            .handshake(corked.clone())
            .await
            .map_err(|error| endpoint.http_error(&error))?;
        let keep_alive = Http2KeepAlive::new(corked.clone(), connection.ping_pong());
        let mut driven = Box::pin(UncorkOnPoll::new(Driven { connection, keep_alive }, corked));
        // A backend begins by saying what it allows, unless it does not accept our certificate: over TLS 1.3 that comes
        // out now.
        let told = async {
            if heard.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            ended = &mut driven => {
                return Err(ended.map_or_else(|error| endpoint.http_error(&error), |()| endpoint.hung_up()));
            }
            told = timeout(SETTINGS_TIMEOUT, told) => told.map_err(|_| endpoint.mute(SETTINGS_TIMEOUT))?,
        }
        let endpoint = Arc::clone(endpoint);
        let carrier = tokio::spawn(async move {
            if let Err(error) = driven.await {
                tracing::debug!(%error, "HTTP/2 connection to the backend ended");
            }
            // Whoever answers next may have been started anew, and with other flags.
            endpoint.request_recheck();
        });
        lock(&self.connections).push(Arc::new(Http2 { sender, streams: AtomicUsize::new(0), carrier }));
        Ok(())
    }
}

impl Http2 {
    /// What opens a stream, unless the connection takes no more.
    fn sender(&self) -> Result<SendRequest<Bytes>, h2::Error> {
        let mut sender = self.sender.clone();
        // A new one has nothing to wait for.
        match sender.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(sender),
        }
    }
}

impl Stream {
    /// Sends a request on it.
    pub(crate) async fn send(self, request: Box<Request<Body>>) -> Result<Sent, SendError> {
        let mut sender = match self.connection.sender() {
            Ok(sender) => sender,
            Err(error) => return Ok(Sent::NotWritten(request, error.into())),
        };
        let (mut head, body) = request.into_parts();
        let has_body = !body.is_end_stream();
        if has_body {
            set_content_length(&mut head.headers, &body);
        }
        let (response, stream) =
            sender.send_request(Request::from_parts(head, ()), !has_body).map_err(broken)?;
        if !has_body {
            return answer(response, None, Box::new(self)).await;
        }
        // An upload may go on after its answer: the stream is in use until the later of the two has ended.
        let shared = Arc::new(self);
        let sending = send_body(body.with_guard(Box::new(Arc::clone(&shared))), stream);
        let task = tokio::spawn(async move {
            if let Err(error) = sending.await {
                tracing::debug!(%error, "a request body was not sent to its end");
            }
        });
        answer(response, Some(AbortOnDropHandle::new(task)), Box::new(shared)).await
    }
}

async fn answer(
    response: ResponseFuture,
    upload: Option<AbortOnDropHandle<()>>,
    permit: EndGuard,
) -> Result<Sent, SendError> {
    let (head, stream) = response.await.map_err(broken)?.into_parts();
    let incoming = Incoming::Http2(Http2Body::new(&head.headers, stream, upload));
    Ok(Sent::Answered(Response::from_parts(head, Body::from_backend(incoming, permit))))
}

/// What it means for a request that its stream broke. The backend itself may say that it did nothing about it: of a
/// stream that it refused, or of one past the last that it took before it went away.
// RFC 9113, sections 6.8 and 8.7
fn broken(error: h2::Error) -> SendError {
    let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    let gone = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
    let is_unprocessed = error.is_remote() && (refused || gone);
    let error = TransportError::from(error);
    if is_unprocessed { SendError::NotProcessed(error) } else { SendError::Broken(error) }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection that ends when the backend is gone.
struct Driven {
    connection: Connection<CorkedStream<TlsStream<TcpStream>>, Bytes>,
    keep_alive: Http2KeepAlive<TlsStream<TcpStream>>,
}

impl Future for Driven {
    type Output = Result<(), h2::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        let this = self.get_mut();
        if this.keep_alive.poll_dead(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.connection).poll(cx)
    }
}

impl std::fmt::Debug for Http2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http2").field("streams", &self.streams).finish_non_exhaustive()
    }
}
