//! Connections to one endpoint, of one worker thread: HTTP/2 where the backend speaks it, in lanes, and HTTP/1.1. Which
//! request travels on which is [`SharingClass`]'s to say.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use http::header::{HOST, HeaderValue};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper_util::rt::TokioIo;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::http2::{Lane, Stream};
use super::lanes::Lanes;
use super::shares::{FairShares, ShareLimits, SharePermit, SharesExhausted};
pub(crate) use super::sharing::SharingClass;
use crate::backend::endpoint::{ConnectError, Endpoint, Offer};
use crate::http::body::{Body, EndGuard};
use crate::http::hop_by_hop;
use crate::http::limits::{MAX_HEADER_BYTES, MAX_HEADER_LINES};
use crate::http::transport::{self, TransportError};

/// Idle HTTP/1.1 connections are kept for less than the 90 s after which kube-apiserver closes them.
const IDLE: Duration = Duration::from_mins(1);
/// Each anonymous request takes a connection, and there is no other bound on how many of them a client makes.
const ANONYMOUS: ShareLimits = ShareLimits {
    places: 32,
    places_per_client: 8,
    queue: 512,
    queue_per_client: 128,
    wait: Duration::from_secs(5),
};
/// So does each request with a large header, which counts by the KiB: the connection's buffer holds it for as long. A
/// user's watches are among them, if it has that many groups.
const ALONE: ShareLimits = ShareLimits {
    places: 32 << 10,
    places_per_client: 8 << 10,
    queue: 256,
    queue_per_client: 64,
    wait: Duration::from_secs(5),
};
/// So does each relayed request of a user past those that have a lane.
const RELAYED: ShareLimits = ShareLimits {
    places: 512,
    places_per_client: 64,
    queue: 256,
    queue_per_client: 64,
    wait: Duration::from_secs(5),
};
/// How long what is left of a request may take once its answer has ended.
// Go: net/http/transport.go, maxWriteWaitBeforeConnReuse
const LAST_OF_REQUEST: Duration = Duration::from_millis(50);
/// A connection that is gone before it was used is made anew this often.
const DIALS: usize = 3;
/// How long a backend that chose HTTP/1.1 is not asked for HTTP/2 again.
const HTTP1_ONLY: Duration = Duration::from_mins(1);

/// Why a request got no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// No endpoint was seen to take identities as they are.
    #[error("no endpoint of the API server was seen to take identities from this gateway")]
    NotTrusted,
    /// Too many requests that need a connection each are in progress.
    #[error("too many requests that need a connection each are in progress")]
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
    endpoint: Arc<Endpoint>,
    lanes: Lanes,
    http1: Mutex<Vec<IdleHttp1>>,
    /// Set while the backend is taken to speak HTTP/1.1 alone.
    http1_only: Mutex<Option<Instant>>,
    anonymous: FairShares<IpAddr>,
    alone: FairShares<String>,
    relayed: FairShares<String>,
}

pub(crate) struct Http1 {
    sender: http1::SendRequest<Body>,
    /// The task that carries it.
    carrier: JoinHandle<()>,
}

struct IdleHttp1 {
    connection: Http1,
    since: Instant,
}

/// A place for one request.
pub(crate) enum Lease {
    /// A stream.
    Http2(Stream),
    /// A connection.
    Http1(Http1, Option<SharePermit>),
}

impl Pool {
    /// A pool without connections.
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Arc<Self> {
        Arc::new(Self {
            endpoint,
            lanes: Lanes::new(),
            http1: Mutex::default(),
            http1_only: Mutex::default(),
            anonymous: FairShares::new(ANONYMOUS),
            alone: FairShares::new(ALONE),
            relayed: FairShares::new(RELAYED),
        })
    }

    pub(crate) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// How many connections there are for such requests, good or bad.
    pub(crate) fn open(&self, kind: SharingClass<'_>) -> usize {
        let lane = self.lanes.of(kind).map_or(0, |lane| lane.open());
        lane.max(lock(&self.http1).len())
    }

    /// Waits for a place on a connection; nothing of a request is at stake until there is one.
    pub(crate) async fn reserve(self: &Arc<Self>, kind: SharingClass<'_>) -> Result<Lease, SendError> {
        let Some(lane) = self.lanes.of(kind) else {
            let place = self.place(kind).await?;
            return Ok(Lease::Http1(self.some_http1().await?, place));
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
            self.connect_http2(&lane).await?;
            // One more that has no room was filled by those who waited for it too: the next may have some.
            if lane.open() <= before {
                dials -= 1;
            }
        }
        Err(SendError::Connect(self.endpoint.hung_up()))
    }

    /// Sends a request where a place was reserved for it.
    pub(crate) async fn send(
        self: &Arc<Self>,
        lease: Lease,
        mut request: Box<Request<Body>>,
    ) -> Result<Sent, SendError> {
        match lease {
            Lease::Http2(stream) => stream.send(request).await,
            Lease::Http1(mut connection, place) => {
                let uri = to_origin_form(&mut request);
                let sent = connection.sender.try_send_request(*request).await;
                let guard = ReturnHttp1 { held: Some((connection, place)), pool: Arc::clone(self) };
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

    /// A place among the requests that need a connection each.
    async fn place(&self, kind: SharingClass<'_>) -> Result<Option<SharePermit>, SendError> {
        let place = match kind {
            SharingClass::Anonymous { client } => self.anonymous.acquire(client, 1).await,
            SharingClass::Alone { user, header } => {
                let weight = u32::try_from(header.div_ceil(1 << 10)).map_err(|_| SendError::Busy)?;
                self.alone.acquire(user.to_owned(), weight).await
            }
            // One past the users that have a lane each.
            SharingClass::Relayed { user } => self.relayed.acquire(user.to_owned(), 1).await,
            SharingClass::Short | SharingClass::Long | SharingClass::Extension { .. } => return Ok(None),
        };
        place.map(Some).map_err(|SharesExhausted| SendError::Busy)
    }

    fn speaks_http1_only(&self) -> bool {
        let mut only = lock(&self.http1_only);
        if only.is_some_and(|since| since.elapsed() >= HTTP1_ONLY) {
            *only = None;
        }
        only.is_some()
    }

    /// Waits for a connection; everyone who needs one waits for the same attempt.
    async fn connect_http2(self: &Arc<Self>, lane: &Arc<Lane>) -> Result<(), ConnectError> {
        let attempt = {
            let mut connecting = lock(&lane.connecting);
            if let Some(attempt) = connecting.as_ref().filter(|attempt| attempt.peek().is_none()) {
                attempt.clone()
            } else {
                // On a task of its own: it must not stop halfway because the client that asked for it leaves. It takes
                // itself away, so that nobody is told the outcome of an attempt that was over before they came.
                let (pool, lane) = (Arc::clone(self), Arc::clone(lane));
                let task = tokio::spawn(async move {
                    let outcome = pool.open_http2(&lane).await;
                    lock(&lane.connecting).take();
                    outcome
                });
                let attempt = async move { task.await.unwrap_or(Ok(())) }.boxed().shared();
                *connecting = Some(attempt.clone());
                attempt
            }
        };
        attempt.await
    }

    async fn open_http2(&self, lane: &Lane) -> Result<(), ConnectError> {
        let stream = self.endpoint.connect(Offer::Either).await?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            *lock(&self.http1_only) = Some(Instant::now());
            let connection = self.begin_http1(TokioIo::new(stream)).await?;
            self.keep_http1(connection);
            return Ok(());
        }
        lane.begin(stream, &self.endpoint).await
    }

    async fn some_http1(&self) -> Result<Http1, ConnectError> {
        match self.idle_http1() {
            Some(connection) => Ok(connection),
            None => Box::pin(self.dial_http1()).await,
        }
    }

    async fn dial_http1(&self) -> Result<Http1, ConnectError> {
        self.begin_http1(TokioIo::new(self.endpoint.connect(Offer::Http1).await?)).await
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
        let (sender, connection) = handshake.map_err(|error| self.endpoint.http_error(&error))?;
        let endpoint = Arc::clone(&self.endpoint);
        let carrier = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "HTTP/1.1 connection to the backend ended");
            }
            endpoint.http1_ended();
        });
        Ok(Http1 { sender, carrier })
    }

    /// A connection for one upgrade: never shared, never pooled.
    pub(crate) async fn upgrading(&self, kind: SharingClass<'_>) -> Result<Upgrading, SendError> {
        let place = match kind {
            SharingClass::Anonymous { .. } | SharingClass::Alone { .. } => self.place(kind).await?,
            // Each takes a connection of the client's, too.
            _ => None,
        };
        let stream = self.endpoint.connect(Offer::Http1).await?;
        let handshake = http1_builder().handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| self.endpoint.http_error(&error))?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "connection to the backend ended before its upgrade");
            }
        });
        Ok(Upgrading { sender, place })
    }
}

/// A connection that waits for its upgrade.
pub(crate) struct Upgrading {
    sender: http1::SendRequest<Body>,
    place: Option<SharePermit>,
}

impl Upgrading {
    /// Asks for the upgrade. What is returned beside the answer is held as long as the connection lives.
    pub(crate) async fn send(
        mut self,
        mut request: Request<Body>,
    ) -> Result<(Response<Incoming>, Option<SharePermit>), SendError> {
        to_origin_form(&mut request);
        let response =
            self.sender.send_request(request).await.map_err(|error| SendError::Broken(error.into()))?;
        Ok((response, self.place))
    }
}

/// Makes the target what an origin server is sent over HTTP/1.1, where the host has a header of its own. Over HTTP/2 it
/// has none beside `:authority`: some servers take both for a contradiction. Returns the target as it was.
// RFC 9112, section 3.2; RFC 9113, sections 8.2.3 and 8.3.1
fn to_origin_form(request: &mut Request<Body>) -> Uri {
    let host = request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().insert(HOST, host);
    }
    hop_by_hop::join_cookies(request.headers_mut());
    let origin = request.uri().path_and_query().cloned().map_or_else(Uri::default, Uri::from);
    std::mem::replace(request.uri_mut(), origin)
}

/// What became of a request.
pub(crate) enum Sent {
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
            response.map(|body| Body::from_backend(transport::Incoming::Http1(body), guard)),
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
    held: Option<(Http1, Option<SharePermit>)>,
    pool: Arc<Pool>,
}

impl Drop for ReturnHttp1 {
    fn drop(&mut self) {
        let Some((mut connection, place)) = self.held.take() else {
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
            drop(place);
        });
    }
}

fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.max_headers(MAX_HEADER_LINES).max_buf_size(MAX_HEADER_BYTES);
    builder
}

/// The pool's lists stay whole even if a holder panicked: each change is one step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for IdleHttp1 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IdleHttp1")
    }
}
