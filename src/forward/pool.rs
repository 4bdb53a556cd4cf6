//! Connections to one endpoint, of one worker thread. HTTP/2 where the backend speaks it, in three lanes: watches have
//! connections of their own, so that a flood of them does not take the streams of short requests, and windows sized such
//! that stalled readers cannot use up a connection's. So has what is relayed from pods (logs, proxy): whoever runs one
//! decides how it comes in frames, and h2 ends a connection when too many small ones wait for a reader. HTTP/1.1
//! connections of their own carry anonymous requests: kube-apiserver closes an HTTP/2 connection that carries one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use http::header::{HOST, HeaderValue};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper_util::rt::TokioIo;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::body::{Body, EndGuard};
use super::http2::{Lane, Stream};
use crate::clusters::target::{ConnectError, Offer, Target};
use crate::transport::{self, TransportError};

/// Windows of a short request's response and of a long stream, in bytes.
const SHORT_WINDOW: u32 = 256 * 1024;
const LONG_WINDOW: u32 = 64 * 1024;
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
/// A connection that is gone before it was used is made anew this often.
const DIALS: usize = 3;
/// How long a backend that chose HTTP/1.1 is not asked for HTTP/2 again.
const HTTP1_ONLY: Duration = Duration::from_mins(1);
const MAX_HEADER_BYTES: usize = (1 << 20) + 4096;
const MAX_HEADER_LINES: usize = 4096;

/// Which connections a request may share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Answered soon.
    Short,
    /// May last for hours.
    Long,
    /// So may this, and the API server only passes it on.
    Relayed,
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
    NotProcessed(#[source] TransportError),
    /// The connection broke after the request had been sent, at least in part.
    #[error("the connection to the backend broke: {0}")]
    Broken(#[source] TransportError),
}

/// The connections of one worker to one endpoint.
#[derive(Debug)]
pub(crate) struct Pool {
    target: Arc<Target>,
    short: Lane,
    long: Lane,
    relayed: Lane,
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
            short: Lane::new(SHORT_WINDOW),
            long: Lane::new(LONG_WINDOW),
            relayed: Lane::new(LONG_WINDOW),
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
        if kind == Kind::Anonymous {
            let permit = self.anonymous_permit().await?;
            return Ok(Lease::Http1(self.some_http1().await?, Some(permit)));
        }
        let lane = self.lane(kind);
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
        mut request: Box<Request<Body>>,
    ) -> Result<Sent, SendError> {
        match lease {
            Lease::Http2(stream) => stream.send(request).await,
            Lease::Http1(mut connection, permit) => {
                let uri = to_origin_form(&mut request);
                let sent = connection.sender.try_send_request(*request).await;
                let guard = ReturnHttp1 { held: Some((connection, permit)), pool: Arc::clone(self) };
                let mut settled = settle(sent, Box::new(guard))?;
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
        self.lane(kind).begin(stream, &self.target).await
    }

    fn lane(&self, kind: Kind) -> &Lane {
        match kind {
            Kind::Short | Kind::Anonymous => &self.short,
            Kind::Long => &self.long,
            Kind::Relayed => &self.relayed,
        }
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
        let response =
            self.sender.send_request(request).await.map_err(|error| SendError::Broken(error.into()))?;
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
    NotWritten(Box<Request<Body>>, TransportError),
}

fn settle(
    sent: Result<Response<Incoming>, TrySendError<Request<Body>>>,
    guard: EndGuard,
) -> Result<Sent, SendError> {
    match sent {
        Ok(response) => Ok(Sent::Answered(
            response.map(|body| Body::of_response(transport::Incoming::Http1(body), guard)),
        )),
        Err(mut error) => match error.take_message() {
            Some(request) => Ok(Sent::NotWritten(Box::new(request), error.into_error().into())),
            None => Err(SendError::Broken(error.into_error().into())),
        },
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
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for IdleHttp1 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IdleHttp1")
    }
}
