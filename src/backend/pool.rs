//! The connections of one worker thread to one endpoint: HTTP/2 in lanes where the backend speaks it, and HTTP/1.1.
//! [`SharingClass`] decides which requests may share a connection.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use http::header::{HOST, HeaderValue};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper_util::rt::TokioIo;
use portcullis_http::body::{Body, EndGuard};
use portcullis_http::hop_by_hop;
use portcullis_http::limits::{MAX_HEADER_BYTES, MAX_HEADER_LINES, MAX_INFORMATIONAL_RESPONSES};
use portcullis_http::transport::{self, TransportError};
use portcullis_limits::fair_limiter::{FairLimiter, Permit, Shares};
use portcullis_system::sync::lock;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, timeout};

use super::author::RequestAuthor;
use super::balance::LoadTicket;
use super::counts::{Counted, LaneKind};
use super::dials::ConnectionPlace;
use super::http2::{Http2Stream, Lane};
use super::lanes::Lanes;
use super::policy::PermittedConnection;
pub(crate) use super::sharing::SharingClass;
use crate::backend::endpoint::{AlpnOffer, ConnectError, ConnectionTrust, Endpoint, EndpointStream};
use crate::limits::FlowName;

/// How long idle HTTP/1.1 connections are kept: less than the 90 s after which kube-apiserver closes them.
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);
/// How long requests beyond the limits below wait.
pub(super) const QUEUE_TIMEOUT: Duration = Duration::from_secs(5);
/// Anonymous requests, each of which takes a connection.
const ANONYMOUS: Shares = Shares::new(32, 8).with_queue(512, 128);
/// Requests with a large header, each of which takes a connection; in KiB, because the connection's buffer holds the
/// header. They include the watches of a user with that many groups.
const LARGE_HEADERS: Shares = Shares::new(32 << 10, 8 << 10).with_queue(256, 64);
/// Relayed requests of users without a lane, each of which takes a connection.
const RELAYED: Shares = Shares::new(512, 64).with_queue(256, 64);
/// Attempts to connect for one request or one user. An attempt at an endpoint that hangs takes 15 s.
const CONNECTS: Shares = Shares::new(64, 32).with_queue(1024, 512);
/// Requests that wait for a connection over HTTP/2 that requests of several users will share. None queues.
const WAITING: Shares = Shares::new(1024, 512);
/// The same for the connections of one user alone, whose requests must not take the places of all.
const RELAYED_WAITING: Shares = Shares::new(1024, 256);
/// How long the rest of a request may take after the end of its response, before its connection is closed.
// Go: net/http/transport.go, maxWriteWaitBeforeConnReuse
const WRITE_WAIT_TIMEOUT: Duration = Duration::from_millis(50);
/// Connection attempts for one request, when connections close before their first use.
const MAX_DIALS: usize = 3;
/// How long HTTP/2 is not offered again to a backend that has chosen HTTP/1.1.
const HTTP1_ONLY_INTERVAL: Duration = Duration::from_mins(1);

/// Why a request has no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// No endpoint could be connected to.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// No endpoint is trusted.
    #[error("no endpoint of the backend has passed the identity self-check")]
    NotTrusted,
    /// The share of connections to API servers is in use, of the client or of all.
    #[error("the client, or all clients together, have as many connections to API servers as they may have")]
    NoPlace,
    /// Too many requests that need a connection of their own are in progress.
    #[error("too many requests that need a connection of their own are in progress")]
    Busy,
    /// Every usable endpoint has as many requests in progress as it may have.
    #[error("every usable endpoint has the most requests in progress that the gateway sends to one")]
    Overloaded,
    /// The backend stated that it did not process the request.
    #[error("the backend did not process the request: {0}")]
    NotProcessed(#[source] TransportError),
    /// The connection broke after at least a part of the request was sent.
    #[error("the connection to the backend broke: {0}")]
    Broken(#[source] TransportError),
    /// The backend sent more informational responses than a request may have.
    #[error(
        "the backend sent more than {MAX_INFORMATIONAL_RESPONSES} informational (1xx) responses to one request"
    )]
    TooManyInformational,
    /// The endpoint answers neither the request nor its probes; another one does.
    #[error("the endpoint does not answer its readiness probes")]
    Silent,
}

/// The connections of one worker thread to one endpoint.
#[derive(Debug)]
pub(crate) struct Pool {
    endpoint: Arc<Endpoint>,
    lanes: Lanes,
    http1: Mutex<Vec<IdleHttp1>>,
    /// When the backend last chose HTTP/1.1.
    http1_only: Mutex<Option<Instant>>,
    anonymous: FairLimiter<IpAddr>,
    large_headers: FairLimiter<FlowName>,
    relayed: FairLimiter<FlowName>,
    /// The attempts to connect, but those of the lanes that all users share, which are few.
    connects: FairLimiter<FlowName>,
    waiting: FairLimiter<FlowName>,
    relayed_waiting: FairLimiter<FlowName>,
}

pub(crate) struct Http1Connection {
    sender: http1::SendRequest<Body>,
    trust: ConnectionTrust,
    place: ConnectionPlace,
    /// Drives the connection.
    task: JoinHandle<()>,
}

struct IdleHttp1 {
    connection: Http1Connection,
    since: Instant,
}

impl IdleHttp1 {
    fn is_usable(&self) -> bool {
        let is_open = self.connection.sender.is_ready() && self.connection.trust.holds();
        is_open && self.since.elapsed() < IDLE_TIMEOUT
    }
}

/// A connection, or a stream of one, that is reserved for one request.
pub(crate) enum ReservedConnection {
    /// A stream of an HTTP/2 connection.
    Http2(Http2Stream),
    /// An HTTP/1.1 connection, and the permit to use it.
    Http1(Http1Connection, Option<OwnConnectionPermit>),
}

/// The permit of a request to use a connection alone, until it is dropped.
pub(crate) enum OwnConnectionPermit {
    OfAddress { _permit: Permit<IpAddr> },
    OfFlow { _permit: Permit<FlowName> },
}

impl Pool {
    /// A pool without connections.
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Arc<Self> {
        Arc::new(Self {
            endpoint,
            lanes: Lanes::new(),
            http1: Mutex::default(),
            http1_only: Mutex::default(),
            anonymous: FairLimiter::new(ANONYMOUS),
            large_headers: FairLimiter::new(LARGE_HEADERS),
            relayed: FairLimiter::new(RELAYED),
            connects: FairLimiter::new(CONNECTS),
            waiting: FairLimiter::new(WAITING),
            relayed_waiting: FairLimiter::new(RELAYED_WAITING),
        })
    }

    pub(crate) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Closes idle connections: those over HTTP/2 that have had no request since the last call.
    pub(crate) fn close_idle(&self) {
        self.lanes.close_idle();
        lock(&self.http1).retain(IdleHttp1::is_usable);
    }

    /// The number of open connections that requests of this class may use.
    pub(crate) fn open_connections(&self, class: SharingClass<'_>) -> usize {
        let lane = self.lanes.existing_lane(class).map_or(0, |lane| lane.open_connections());
        lane.max(lock(&self.http1).len())
    }

    /// Reserves a connection or a stream, and connects where none is free. Sends nothing of a request. Those of the gateway
    /// itself need no place among the requests that wait.
    // threat: hung-endpoint
    pub(crate) async fn reserve(
        self: &Arc<Self>,
        class: SharingClass<'_>,
        author: &RequestAuthor,
    ) -> Result<ReservedConnection, SendError> {
        let Some(lane) = self.lanes.lane_for(class, || author.flow_name()) else {
            let permit = self.acquire_share(class, author).await?;
            return Ok(ReservedConnection::Http1(self.idle_or_new_http1(author).await?, permit));
        };
        let mut dials = MAX_DIALS;
        while dials > 0 {
            if self.speaks_http1_only() {
                return Ok(ReservedConnection::Http1(self.idle_or_new_http1(author).await?, None));
            }
            if let Some(stream) = lane.reserve() {
                return Ok(ReservedConnection::Http2(stream));
            }
            let waiting = self.begin_waiting(class, author);
            if waiting.is_none() && !author.is_gateway() {
                return Err(self.endpoint.too_many_waiting_error().into());
            }
            let before = lane.open_connections();
            self.connect_http2(&lane, class, author).await?;
            // Other waiting requests filled the new connection: this attempt does not count.
            if lane.open_connections() <= before {
                dials -= 1;
            }
        }
        Err(SendError::Connect(self.endpoint.closed_early_error()))
    }

    /// Sends a request on a reserved connection.
    pub(crate) async fn send(
        self: &Arc<Self>,
        reserved: ReservedConnection,
        mut request: Box<Request<Body>>,
        ticket: LoadTicket,
    ) -> Result<SendOutcome, SendError> {
        match reserved {
            ReservedConnection::Http2(stream) => stream.send(request, ticket).await,
            ReservedConnection::Http1(mut connection, permit) => {
                let uri = to_origin_form(&mut request);
                let exceeded = limit_informational_responses(&mut request);
                request.body_mut().count_over_http1();
                let mut ending = AbortOnDrop(Some(connection.task.abort_handle()));
                let sent = tokio::select! {
                    biased;
                    () = exceeded.notified() => return Err(SendError::TooManyInformational),
                    sent = connection.sender.try_send_request(*request) => sent,
                };
                ending.0 = None;
                let guard = ReturnToPool {
                    held: Some((connection, permit)),
                    pool: Arc::clone(self),
                    _ticket: ticket,
                };
                let mut outcome = http1_outcome(sent, Box::new(guard))?;
                if let SendOutcome::NotWritten(request, _) = &mut outcome {
                    // The next connection may use HTTP/2, which needs the whole URI.
                    *request.uri_mut() = uri;
                    request.headers_mut().remove(HOST);
                }
                Ok(outcome)
            }
        }
    }

    /// Acquires a permit for a request that needs a connection of its own.
    async fn acquire_share(
        &self,
        class: SharingClass<'_>,
        author: &RequestAuthor,
    ) -> Result<Option<OwnConnectionPermit>, SendError> {
        let until = Instant::now() + QUEUE_TIMEOUT;
        let of_flow = match class {
            SharingClass::Anonymous { client } => {
                let permit = self.anonymous.acquire(client, 1, until).await.map_err(|_| SendError::Busy)?;
                return Ok(Some(OwnConnectionPermit::OfAddress { _permit: permit }));
            }
            SharingClass::Alone { header, .. } => {
                self.large_headers.acquire(author.flow_name(), header.div_ceil(1 << 10), until).await
            }
            // A user without a lane.
            SharingClass::Relayed { .. } => self.relayed.acquire(author.flow_name(), 1, until).await,
            SharingClass::Short | SharingClass::Long | SharingClass::Extension { .. } => return Ok(None),
        };
        let permit = of_flow.map_err(|_| SendError::Busy)?;
        Ok(Some(OwnConnectionPermit::OfFlow { _permit: permit }))
    }

    /// A place among the requests that wait for a connection over HTTP/2.
    // threat: hung-endpoint
    fn begin_waiting(&self, class: SharingClass<'_>, author: &RequestAuthor) -> Option<Permit<FlowName>> {
        let places = match class {
            SharingClass::Relayed { .. } => &self.relayed_waiting,
            _ => &self.waiting,
        };
        places.try_acquire(author.flow_name(), 1)
    }

    fn speaks_http1_only(&self) -> bool {
        let mut only = lock(&self.http1_only);
        if only.is_some_and(|since| since.elapsed() >= HTTP1_ONLY_INTERVAL) {
            *only = None;
        }
        only.is_some()
    }

    /// Waits for a new HTTP/2 connection. All requests of a lane wait for the same attempt, which has its place: that one client
    /// has none left is no failure for another.
    async fn connect_http2(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        class: SharingClass<'_>,
        author: &RequestAuthor,
    ) -> Result<(), ConnectError> {
        let attempt = {
            let mut connecting = lock(&lane.connecting);
            if let Some(attempt) = connecting.as_ref().filter(|attempt| attempt.peek().is_none()) {
                attempt.clone()
            } else {
                let place = self.endpoint.connection_place(author)?;
                // In a task of its own, which the end of the first request does not cancel. It removes itself, so that
                // later requests do not see the outcome of an attempt that ended before they began.
                let (pool, lane) = (Arc::clone(self), Arc::clone(lane));
                let owner = match class {
                    SharingClass::Relayed { .. } => Some(author.flow_name()),
                    _ => None,
                };
                let task = tokio::spawn(async move {
                    let outcome = pool.open_http2(&lane, owner, place).await;
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

    /// `owner` is the flow of a lane that users do not share.
    async fn open_http2(
        &self,
        lane: &Lane,
        owner: Option<FlowName>,
        place: ConnectionPlace,
    ) -> Result<(), ConnectError> {
        let _attempt = self.begin_connect(owner).await?;
        let stream = self.endpoint.connect(AlpnOffer::Http2OrHttp1, place).await?;
        if stream.stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            *lock(&self.http1_only) = Some(Instant::now());
            let connection = self.begin_http1(stream).await?;
            self.keep_http1(connection);
            return Ok(());
        }
        lane.add_connection(stream, &self.endpoint).await
    }

    async fn idle_or_new_http1(&self, author: &RequestAuthor) -> Result<Http1Connection, ConnectError> {
        match self.idle_http1(author)? {
            Some(connection) => Ok(connection),
            None => Box::pin(self.dial_http1(author)).await,
        }
    }

    async fn dial_http1(&self, author: &RequestAuthor) -> Result<Http1Connection, ConnectError> {
        let _attempt = self.begin_connect((!author.is_gateway()).then(|| author.flow_name())).await?;
        // Another request may have ended meanwhile.
        if let Some(connection) = self.idle_http1(author)? {
            return Ok(connection);
        }
        let place = self.endpoint.connection_place(author)?;
        self.begin_http1(self.endpoint.connect(AlpnOffer::Http1Only, place).await?).await
    }

    /// Waits while too many attempts to connect are in progress, of all clients or of this one. `None` is no client.
    // threat: hung-endpoint
    async fn begin_connect(&self, owner: Option<FlowName>) -> Result<Option<Permit<FlowName>>, ConnectError> {
        let Some(owner) = owner else { return Ok(None) };
        let attempt = self.connects.acquire(owner, 1, Instant::now() + QUEUE_TIMEOUT).await;
        attempt.map(Some).map_err(|_| self.endpoint.too_many_waiting_error())
    }

    /// A kept connection, which counts in the share of this author from now on.
    fn idle_http1(&self, author: &RequestAuthor) -> Result<Option<Http1Connection>, ConnectError> {
        let mut idle = lock(&self.http1);
        idle.retain(IdleHttp1::is_usable);
        let Some(mut kept) = idle.pop() else { return Ok(None) };
        if !kept.connection.place.pass_to(author) {
            idle.push(kept);
            return Err(self.endpoint.no_place_error());
        }
        Ok(Some(kept.connection))
    }

    fn keep_http1(&self, connection: Http1Connection) {
        lock(&self.http1).push(IdleHttp1 { connection, since: Instant::now() });
    }

    async fn begin_http1(
        &self,
        EndpointStream { stream, trust, place, permitted }: EndpointStream,
    ) -> Result<Http1Connection, ConnectError> {
        let handshake = http1_builder().handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| self.endpoint.http_error(&error))?;
        let endpoint = Arc::clone(&self.endpoint);
        let counted = endpoint.counts().open_connection(LaneKind::Http1);
        let task = tokio::spawn(async move {
            let ended = permitted.drive(connection).await;
            drop((counted, permitted));
            if let Some(Err(error)) = ended {
                tracing::debug!(%error, "HTTP/1.1 connection to the backend ended");
            }
            endpoint.http1_closed();
        });
        Ok(Http1Connection { sender, trust, place, task })
    }

    /// Connects for one upgrade; the connection is never shared or pooled.
    pub(crate) async fn connect_for_upgrade(
        &self,
        class: SharingClass<'_>,
        author: &RequestAuthor,
        ticket: LoadTicket,
    ) -> Result<UpgradeConnection, SendError> {
        let permit = match class {
            SharingClass::Anonymous { .. } | SharingClass::Alone { .. } => {
                self.acquire_share(class, author).await?
            }
            // The share of connections bounds these, and an upgrade takes a client connection, too.
            _ => None,
        };
        let attempt = self.begin_connect(Some(author.flow_name())).await?;
        let place = self.endpoint.connection_place(author)?;
        let connected = self.endpoint.connect(AlpnOffer::Http1Only, place).await?;
        let EndpointStream { stream, place, permitted, .. } = connected;
        drop(attempt);
        let handshake = http1_builder().handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| self.endpoint.http_error(&error))?;
        let driven = permitted.clone();
        let task = tokio::spawn(async move {
            if let Some(Err(error)) = driven.drive(connection.with_upgrades()).await {
                tracing::debug!(%error, "connection to the backend ended before its upgrade");
            }
        });
        let counted = self.endpoint.counts().open_connection(LaneKind::Tunnel);
        let permit = UpgradePermit {
            permitted,
            _ending: AbortOnDrop(Some(task.abort_handle())),
            _share: permit,
            _ticket: ticket,
            _counted: counted,
            _place: place,
        };
        Ok(UpgradeConnection { sender, permit })
    }
}

/// A connection for one upgrade.
pub(crate) struct UpgradeConnection {
    sender: http1::SendRequest<Body>,
    permit: UpgradePermit,
}

/// What an upgraded connection holds for as long as it lives.
pub(crate) struct UpgradePermit {
    permitted: PermittedConnection,
    /// Ends the connection if it is not upgraded. It has ended already if it is.
    _ending: AbortOnDrop,
    _share: Option<OwnConnectionPermit>,
    _ticket: LoadTicket,
    _counted: Counted,
    _place: ConnectionPlace,
}

impl UpgradePermit {
    /// The connection itself, which the policy may close.
    pub(crate) fn connection(&self) -> PermittedConnection {
        self.permitted.clone()
    }
}

impl UpgradeConnection {
    /// Requests the upgrade. The caller holds the returned permit for as long as the connection lives.
    pub(crate) async fn send(
        mut self,
        mut request: Request<Body>,
    ) -> Result<(Response<Incoming>, UpgradePermit), SendError> {
        to_origin_form(&mut request);
        let exceeded = limit_informational_responses(&mut request);
        tokio::select! {
            biased;
            // The connection ends with its sender.
            () = exceeded.notified() => Err(SendError::TooManyInformational),
            response = self.sender.send_request(request) => {
                Ok((response.map_err(|error| SendError::Broken(error.into()))?, self.permit))
            }
        }
    }
}

/// Rewrites a request for HTTP/1.1: the target in origin form, and `Host`. HTTP/2 requests have no `Host`, because some
/// servers reject it beside `:authority`. Returns the original URI.
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

/// Ends a connection whose request is given up before it has a response, or that is not upgraded. hyper would keep it, with the
/// request's body, until the backend has read what was sent.
// threat: unread-upgrade
struct AbortOnDrop(Option<AbortHandle>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Counts the informational responses to a request over HTTP/1.1. Notifies when there are too many.
// threat: endless-informational-responses
fn limit_informational_responses(request: &mut Request<Body>) -> Arc<Notify> {
    let exceeded = Arc::new(Notify::new());
    let (notify, count) = (Arc::clone(&exceeded), AtomicUsize::new(0));
    hyper::ext::on_informational(request, move |_| {
        if count.fetch_add(1, Ordering::Relaxed) >= MAX_INFORMATIONAL_RESPONSES {
            notify.notify_one();
        }
    });
    exceeded
}

/// The outcome of sending a request.
pub(crate) enum SendOutcome {
    /// The backend responded.
    Response(Box<Response<Body>>),
    /// The connection was closed before anything was written; the request is returned whole.
    NotWritten(Box<Request<Body>>, TransportError),
}

fn http1_outcome(
    sent: Result<Response<Incoming>, TrySendError<Request<Body>>>,
    guard: EndGuard,
) -> Result<SendOutcome, SendError> {
    match sent {
        Ok(response) => {
            let response = response.map(|body| Body::from_backend(transport::Incoming::Http1(body), guard));
            Ok(SendOutcome::Response(Box::new(response)))
        }
        Err(mut error) => match error.take_message() {
            Some(request) => Ok(SendOutcome::NotWritten(Box::new(request), error.into_error().into())),
            None => Err(SendError::Broken(error.into_error().into())),
        },
    }
}

/// Returns an HTTP/1.1 connection to the pool when its response has ended, or closes it if it cannot carry another
/// request or the client is still sending a body. Releases the permit only after that.
struct ReturnToPool {
    held: Option<(Http1Connection, Option<OwnConnectionPermit>)>,
    pool: Arc<Pool>,
    /// Counts the request at its endpoint.
    _ticket: LoadTicket,
}

impl Drop for ReturnToPool {
    fn drop(&mut self) {
        let Some((mut connection, permit)) = self.held.take() else {
            return;
        };
        let pool = Arc::clone(&self.pool);
        // Without a runtime the process is ending, and the connection with it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            if let Ok(Ok(())) = timeout(WRITE_WAIT_TIMEOUT, connection.sender.ready()).await {
                pool.keep_http1(connection);
            } else {
                connection.task.abort();
                connection.task.await.ok();
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

impl std::fmt::Debug for IdleHttp1 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IdleHttp1")
    }
}
