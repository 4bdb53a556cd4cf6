//! Connections to one endpoint, of one worker thread. HTTP/2 where the backend speaks it, in two lanes: long streams
//! (watch, logs, proxy) have connections of their own, so that a flood of watches does not take the streams of short
//! requests, and windows sized such that stalled readers cannot use up a connection's. HTTP/1.1 connections of their
//! own carry anonymous requests: kube-apiserver closes an HTTP/2 connection that carries one.
//!
//! Streams are counted here: hyper queues silently past the peer's limit.

use std::future::Future as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use http::header::{HOST, HeaderValue};
use http::{Request, Response, Uri};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::body::{Body, EndGuard, Reset};
use crate::clusters::target::{ConnectError, Offer, Target};
use crate::corked::{Corked, Draining};

/// The share of a connection's streams that is used before another connection is opened.
const FILL_PERCENT: usize = 80;
/// Windows of a short request's response and of a long stream. A connection's window is a stream's times the streams
/// it may carry: stalled readers block nobody else.
const SHORT_WINDOW: u32 = 256 * 1024;
const LONG_WINDOW: u32 = 64 * 1024;
const STREAMS: u32 = 256;
const MOST_STREAMS: usize = 256;
/// Idle HTTP/1.1 connections are kept for less than the 90 s after which kube-apiserver closes them.
const IDLE: Duration = Duration::from_mins(1);
/// Connections that requests of nobody in particular may hold at once, and how long one waits for its turn: without a
/// bound, each anonymous stream of one client would open a connection.
const ANONYMOUS_CONNECTIONS: usize = 32;
const ANONYMOUS_PATIENCE: Duration = Duration::from_secs(5);
/// How many may wait for their turn: there is no other bound on what nobody in particular may ask for.
const ANONYMOUS_QUEUE: usize = 512;
/// How long what is left of a request may take once its answer has ended.
// Go: net/http/transport.go, maxWriteWaitBeforeConnReuse
const LAST_OF_REQUEST: Duration = Duration::from_millis(50);
/// How long a backend that speaks HTTP/2 may take to say so. Less than a check waits for its answer.
const BEGINNING: Duration = Duration::from_secs(5);
/// A connection that is gone before it was used is made anew this often.
const DIALS: usize = 3;
/// How long a backend that chose HTTP/1.1 is not asked for HTTP/2 again.
const HTTP1_ONLY: Duration = Duration::from_mins(1);
/// Far more than is passed on: h2 ends the connection of everybody when an answer's header is some times larger than
/// this. Behind `services/proxy` anyone can send one, of 10 MiB in lines of four bytes, which count as 35 each.
const MAX_ANSWER_HEADER: u32 = 32 << 20;
const MAX_HEADER_BYTES: usize = (1 << 20) + 4096;
const MAX_HEADER_LINES: usize = 4096;

/// Which connections a request may share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Answered soon.
    Short,
    /// May last for hours.
    Long,
    /// Made by nobody in particular.
    Anonymous,
}

/// Why a request got no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// No endpoint was seen to take identities as they are.
    #[error("no endpoint of the API server was seen to take identities from this gateway")]
    NotTrusted,
    /// Too many anonymous requests are in progress.
    #[error("too many anonymous requests are in progress")]
    Busy,
    /// The backend said that it did not process the request.
    #[error("the backend did not process the request: {0}")]
    NotProcessed(#[source] hyper::Error),
    /// The connection broke after the request had been sent, at least in part.
    #[error("the connection to the backend broke: {0}")]
    Broken(#[source] hyper::Error),
}

/// The connections of one worker to one endpoint.
#[derive(Debug)]
pub(crate) struct Pool {
    target: Arc<Target>,
    short: Lane,
    long: Lane,
    http1: Mutex<Vec<IdleHttp1>>,
    /// Set while the backend is taken to speak HTTP/1.1 alone.
    http1_only: Mutex<Option<Instant>>,
    anonymous: Arc<Semaphore>,
    anonymous_queue: Semaphore,
}

pub(super) struct Http1 {
    sender: http1::SendRequest<Body>,
    /// The task that carries it.
    carrier: JoinHandle<()>,
}

struct IdleHttp1 {
    connection: Http1,
    since: Instant,
}

#[derive(Debug, Default)]
struct Lane {
    connections: Mutex<Vec<Arc<Http2>>>,
    connecting: Mutex<Option<Connecting>>,
}

type Connecting = Shared<BoxFuture<'static, Result<(), ConnectError>>>;

struct Http2 {
    sender: http2::SendRequest<Body>,
    /// Streams in use.
    streams: AtomicUsize,
    /// Streams the backend allows.
    limit: AtomicUsize,
}

/// One stream of a connection; given back when dropped.
pub(super) struct Stream(Arc<Http2>);

/// A place for one request.
pub(super) enum Lease {
    /// A stream.
    Http2(Stream),
    /// A connection.
    Http1(Http1, Option<OwnedSemaphorePermit>),
}

impl Pool {
    /// A pool without connections.
    pub(crate) fn new(target: Arc<Target>) -> Arc<Self> {
        Arc::new(Self {
            target,
            short: Lane::default(),
            long: Lane::default(),
            http1: Mutex::default(),
            http1_only: Mutex::default(),
            anonymous: Arc::new(Semaphore::new(ANONYMOUS_CONNECTIONS)),
            anonymous_queue: Semaphore::new(ANONYMOUS_QUEUE),
        })
    }

    pub(super) fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// How many connections there are for such requests, good or bad.
    pub(super) fn open(&self, kind: Kind) -> usize {
        self.lane(kind).open().max(lock(&self.http1).len())
    }

    /// Waits for a place on a connection; nothing of a request is at stake until there is one.
    pub(super) async fn reserve(self: &Arc<Self>, kind: Kind) -> Result<Lease, SendError> {
        let lane = match kind {
            Kind::Short => &self.short,
            Kind::Long => &self.long,
            Kind::Anonymous => {
                let permit = self.anonymous_permit().await?;
                return Ok(Lease::Http1(self.some_http1().await?, Some(permit)));
            }
        };
        let mut dials = DIALS;
        while dials > 0 {
            if self.speaks_http1_only() {
                return Ok(Lease::Http1(self.some_http1().await?, None));
            }
            if let Some(stream) = lane.pick() {
                return Ok(Lease::Http2(stream));
            }
            let before = lane.open();
            self.connect_http2(kind).await?;
            // One more that has no room was filled by those who waited for it too: the next may have some.
            if lane.open() <= before {
                dials -= 1;
            }
        }
        Err(SendError::Connect(self.target.hung_up()))
    }

    /// Sends a request where a place was reserved for it.
    pub(super) async fn send(
        self: &Arc<Self>,
        lease: Lease,
        mut request: Request<Body>,
    ) -> Result<Sent, SendError> {
        match lease {
            Lease::Http2(stream) if request.body().is_end_stream() => {
                let sent = stream.0.sender.clone().try_send_request(request).await;
                settle(sent, Reset::Cut, Box::new(stream))
            }
            Lease::Http2(stream) => {
                // An upload may go on after its answer: the stream ends with the later of the two.
                let stream = Arc::new(stream);
                let shared: EndGuard = Box::new(Arc::clone(&stream));
                let request = request.map(|body| body.holding(shared));
                let sent = stream.0.sender.clone().try_send_request(request).await;
                settle(sent, Reset::EndOfAnswer, Box::new(stream))
            }
            Lease::Http1(mut connection, permit) => {
                let uri = to_origin_form(&mut request);
                let sent = connection.sender.try_send_request(request).await;
                let guard = ReturnHttp1 { held: Some((connection, permit)), pool: Arc::clone(self) };
                let mut settled = settle(sent, Reset::Never, Box::new(guard))?;
                if let Sent::NotWritten(request, _) = &mut settled {
                    // Another connection may speak HTTP/2, which wants it whole.
                    *request.uri_mut() = uri;
                    request.headers_mut().remove(HOST);
                }
                Ok(settled)
            }
        }
    }

    /// One of the connections for requests of nobody in particular.
    async fn anonymous_permit(&self) -> Result<OwnedSemaphorePermit, SendError> {
        if let Ok(permit) = Arc::clone(&self.anonymous).try_acquire_owned() {
            return Ok(permit);
        }
        let _place = self.anonymous_queue.try_acquire().map_err(|_| SendError::Busy)?;
        let waiting = Arc::clone(&self.anonymous).acquire_owned();
        match timeout(ANONYMOUS_PATIENCE, waiting).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(SendError::Busy),
        }
    }

    fn speaks_http1_only(&self) -> bool {
        let mut only = lock(&self.http1_only);
        if only.is_some_and(|since| since.elapsed() >= HTTP1_ONLY) {
            *only = None;
        }
        only.is_some()
    }

    /// Waits for a connection; everyone who needs one waits for the same attempt.
    async fn connect_http2(self: &Arc<Self>, kind: Kind) -> Result<(), ConnectError> {
        let attempt = {
            let mut connecting = lock(&self.lane(kind).connecting);
            if let Some(attempt) = connecting.as_ref().filter(|attempt| attempt.peek().is_none()) {
                attempt.clone()
            } else {
                // On a task of its own: it must not stop halfway because the client that asked for it leaves. It takes
                // itself away, so that nobody is told the outcome of an attempt that was over before they came.
                let pool = Arc::clone(self);
                let task = tokio::spawn(async move {
                    let outcome = pool.open_http2(kind).await;
                    lock(&pool.lane(kind).connecting).take();
                    outcome
                });
                let attempt = async move { task.await.unwrap_or(Ok(())) }.boxed().shared();
                *connecting = Some(attempt.clone());
                attempt
            }
        };
        attempt.await
    }

    async fn open_http2(&self, kind: Kind) -> Result<(), ConnectError> {
        let stream = self.target.connect(Offer::Either).await?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            *lock(&self.http1_only) = Some(Instant::now());
            let connection = self.begin_http1(TokioIo::new(stream)).await?;
            self.keep_http1(connection);
            return Ok(());
        }
        let window = if kind == Kind::Long { LONG_WINDOW } else { SHORT_WINDOW };
        // What hyper spawns writes, and the connection itself does not.
        let corked = Corked::new(stream);
        let heard = corked.heard();
        let (sender, connection) = http2::Builder::new(Draining(corked.clone()))
            .timer(TokioTimer::new())
            .initial_stream_window_size(window)
            .initial_connection_window_size(window.saturating_mul(STREAMS))
            .max_header_list_size(MAX_ANSWER_HEADER)
            // An answer to a request that was cancelled counts as an error of the backend.
            .max_local_error_reset_streams(None)
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(15))
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(corked))
            .await
            .map_err(|error| self.target.http_error(&error))?;
        let mut connection = Box::pin(connection);
        // A backend begins by saying what it allows, unless it does not accept our certificate: over TLS 1.3 that comes
        // out now.
        let told = async {
            if heard.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            ended = &mut connection => {
                return Err(ended.map_or_else(|error| self.target.http_error(&error), |()| self.target.hung_up()));
            }
            told = timeout(BEGINNING, told) => told.map_err(|_| self.target.mute(BEGINNING))?,
        }
        let http2 = Arc::new(Http2 {
            sender,
            streams: AtomicUsize::new(0),
            limit: AtomicUsize::new(connection.current_max_send_streams()),
        });
        lock(&self.lane(kind).connections).push(Arc::clone(&http2));
        let shared = Arc::downgrade(&http2);
        let driven = std::future::poll_fn(move |cx| {
            let polled = connection.as_mut().poll(cx);
            if let Some(http2) = shared.upgrade() {
                http2.limit.store(connection.current_max_send_streams(), Ordering::Relaxed);
            }
            polled
        });
        let target = Arc::clone(&self.target);
        tokio::spawn(async move {
            if let Err(error) = driven.await {
                tracing::debug!(%error, "HTTP/2 connection to the backend ended");
            }
            // Whoever answers next may have been started anew, and with other flags.
            target.doubt();
        });
        Ok(())
    }

    fn lane(&self, kind: Kind) -> &Lane {
        if kind == Kind::Long { &self.long } else { &self.short }
    }

    async fn some_http1(&self) -> Result<Http1, ConnectError> {
        match self.idle_http1() {
            Some(connection) => Ok(connection),
            None => Box::pin(self.dial_http1()).await,
        }
    }

    async fn dial_http1(&self) -> Result<Http1, ConnectError> {
        self.begin_http1(TokioIo::new(self.target.connect(Offer::Http1).await?)).await
    }

    fn idle_http1(&self) -> Option<Http1> {
        let mut idle = lock(&self.http1);
        idle.retain(|idle| idle.connection.sender.is_ready() && idle.since.elapsed() < IDLE);
        idle.pop().map(|idle| idle.connection)
    }

    fn keep_http1(&self, connection: Http1) {
        lock(&self.http1).push(IdleHttp1 { connection, since: Instant::now() });
    }

    async fn begin_http1<T>(&self, io: T) -> Result<Http1, ConnectError>
    where
        T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let handshake = http1_builder().handshake(io).await;
        let (sender, connection) = handshake.map_err(|error| self.target.http_error(&error))?;
        let target = Arc::clone(&self.target);
        let carrier = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "HTTP/1.1 connection to the backend ended");
            }
            target.http1_ended();
        });
        Ok(Http1 { sender, carrier })
    }

    /// A connection for one upgrade: never shared, never pooled.
    pub(super) async fn upgrading(&self, anonymous: bool) -> Result<Upgrading, SendError> {
        let permit = if anonymous { Some(self.anonymous_permit().await?) } else { None };
        let stream = self.target.connect(Offer::Http1).await?;
        let handshake = http1_builder().handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| self.target.http_error(&error))?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "connection to the backend ended before its upgrade");
            }
        });
        Ok(Upgrading { sender, permit })
    }
}

/// A connection that waits for its upgrade.
pub(super) struct Upgrading {
    sender: http1::SendRequest<Body>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Upgrading {
    /// Asks for the upgrade. What is returned beside the answer is held as long as the connection lives.
    pub(super) async fn send(
        mut self,
        mut request: Request<Body>,
    ) -> Result<(Response<Incoming>, Option<OwnedSemaphorePermit>), SendError> {
        to_origin_form(&mut request);
        let response = self.sender.send_request(request).await.map_err(SendError::Broken)?;
        Ok((response, self.permit))
    }
}

/// Makes the target what an origin server is sent over HTTP/1.1, where the host has a header of its own. Over HTTP/2 it
/// has none beside `:authority`: some servers take both for a contradiction. Returns the target as it was.
// RFC 9112, section 3.2; RFC 9113, section 8.3.1
fn to_origin_form(request: &mut Request<Body>) -> Uri {
    let host = request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().insert(HOST, host);
    }
    let origin = request.uri().path_and_query().cloned().map_or_else(Uri::default, Uri::from);
    std::mem::replace(request.uri_mut(), origin)
}

/// What became of a request.
pub(super) enum Sent {
    /// It was answered.
    Answered(Response<Body>),
    /// The connection had been closed; the request is whole.
    NotWritten(Request<Body>, hyper::Error),
}

fn settle(
    sent: Result<Response<Incoming>, TrySendError<Request<Body>>>,
    reset_is: Reset,
    guard: EndGuard,
) -> Result<Sent, SendError> {
    match sent {
        Ok(response) => Ok(Sent::Answered(response.map(|body| Body::of_response(body, reset_is, guard)))),
        Err(mut error) => {
            if let Some(request) = error.take_message() {
                return Ok(Sent::NotWritten(request, error.into_error()));
            }
            let error = error.into_error();
            Err(if is_unprocessed(&error) {
                SendError::NotProcessed(error)
            } else {
                SendError::Broken(error)
            })
        }
    }
}

/// Whether the backend itself says that it did nothing about the request: a stream it refused, or one past the last
/// that it took before it went away.
// RFC 9113, sections 6.8 and 8.7
fn is_unprocessed(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| {
        let refused = cause.is_reset() && cause.reason() == Some(h2::Reason::REFUSED_STREAM);
        let gone = cause.is_go_away() && cause.reason() == Some(h2::Reason::NO_ERROR);
        cause.is_remote() && (refused || gone)
    })
}

impl Lane {
    /// A stream on the least loaded connection that has room, if there is one.
    fn pick(&self) -> Option<Stream> {
        let mut connections = lock(&self.connections);
        connections.retain(|connection| !connection.sender.is_closed());
        let least = connections.iter().min_by_key(|connection| connection.streams.load(Ordering::Relaxed))?;
        let limit = least.limit.load(Ordering::Relaxed).min(MOST_STREAMS);
        let room = (limit.saturating_mul(FILL_PERCENT) / 100).max(1);
        if least.streams.load(Ordering::Relaxed) >= room {
            return None;
        }
        least.streams.fetch_add(1, Ordering::Relaxed);
        Some(Stream(Arc::clone(least)))
    }

    /// How many connections it has, with room or without.
    fn open(&self) -> usize {
        lock(&self.connections).iter().filter(|connection| !connection.sender.is_closed()).count()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Gives an HTTP/1.1 connection back once its response has ended, if it can carry another; else closes it, also if the
/// client goes on sending a body that has been answered. Only then may another be opened in its place.
struct ReturnHttp1 {
    held: Option<(Http1, Option<OwnedSemaphorePermit>)>,
    pool: Arc<Pool>,
}

impl Drop for ReturnHttp1 {
    fn drop(&mut self) {
        let Some((mut connection, permit)) = self.held.take() else {
            return;
        };
        let pool = Arc::clone(&self.pool);
        // Outside a runtime the process is ending, and so is the connection.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            if let Ok(Ok(())) = timeout(LAST_OF_REQUEST, connection.sender.ready()).await {
                pool.keep_http1(connection);
            } else {
                connection.carrier.abort();
                connection.carrier.await.ok();
            }
            drop(permit);
        });
    }
}

fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.max_headers(MAX_HEADER_LINES).max_buf_size(MAX_HEADER_BYTES);
    builder
}

/// The pool's lists stay whole even if a holder panicked: each change is one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for IdleHttp1 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IdleHttp1")
    }
}

impl std::fmt::Debug for Http2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http2").field("streams", &self.streams).finish_non_exhaustive()
    }
}
