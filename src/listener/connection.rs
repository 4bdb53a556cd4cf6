//! One connection: the TLS handshake, the facts for its requests, HTTP/1.1 or HTTP/2 by ALPN, and its part in a
//! graceful shutdown.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::HeaderValue;
use portcullis_http::body::BodyEnd;
use portcullis_http::limits::MAX_HEADER_BYTES;
use portcullis_http::peer::client_network;
use portcullis_http::transport::{ConnectionBuffers, CorkedStream, Role, UncorkOnPoll};
use portcullis_limits::Owner;
use portcullis_limits::byte_ledger::ByteLedger;
use prometheus::IntGauge;
use rustls::ServerConfig;
use tokio::io::AsyncRead;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::server::TlsStream;
use tracing::debug;

use super::RequestHandler;
use super::acceptor::ConnectionLimiter;
use super::activity::{AcceptedRequest, ActivityStream, ConnectionActivity, RequestGuard};
use super::driver::{ConnectionDriver, HttpConnection};
use super::http1;
use super::http2::Http2ServerConnection;
use super::proxy_protocol::header::ProxyHeader;
use super::settings::{ClientLimits, ProxyProtocol};
use super::watches::WatchTermination;
use crate::authn::ConnInfo;
use crate::authn::x509::UnverifiedChain;
use crate::listener::connection_quota::QuotaSlot;
use crate::listener::handshake_failure;
use crate::listener::http_on_tls_port::accept_tls;
use crate::metrics::{GaugeGuard, Metrics};

/// The phase of the server's shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ShutdownPhase {
    /// No shutdown has begun.
    Serving,
    /// `/readyz` fails, and the server still accepts connections and requests.
    NotReady,
    /// Connections close after their requests in progress.
    Draining,
    /// All remaining watches end.
    EndingWatches,
    /// All remaining connections are closed.
    Abort,
}

/// The server's shutdown, as connections observe it.
#[derive(Debug, Clone)]
pub(crate) struct ShutdownSignals {
    /// The current phase.
    pub(crate) phase: watch::Receiver<ShutdownPhase>,
    /// The times at which watches end.
    pub(crate) watches: Arc<WatchTermination>,
}

/// How long a connection without a request stays open while the server drains, so that a request already in flight is
/// answered.
pub(super) const DRAIN_LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// A client's connection, shared by its requests.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The facts by which requests are authenticated and routed.
    pub(crate) info: ConnInfo,
    /// The client's IP address, for `X-Forwarded-For`.
    pub(crate) address: HeaderValue,
    /// Whether ALPN selected HTTP/2.
    pub(crate) http2: bool,
    /// The `notAfter` of the client's certificate, in seconds since 1970.
    pub(crate) certificate_not_after: Option<i64>,
    pub(super) activity: Arc<ConnectionActivity>,
    open: OpenConnection,
    phase: watch::Receiver<ShutdownPhase>,
    watches: Arc<WatchTermination>,
    /// Where it counts beside `--max-connections`; `None` if nowhere.
    quota: Option<(Arc<QuotaSlot>, Arc<ConnectionLimiter>)>,
    /// Whether a request has authenticated at a cluster of a tenant, or of the operator, which counts from then on.
    authenticated: [AtomicBool; 2],
    /// What it holds beside its streams, over HTTP/2.
    buffers: OnceLock<Arc<ConnectionBuffers>>,
    /// Whether what it holds counts for an authenticated client.
    has_owner: AtomicBool,
}

/// As many connections are open as there may be, of the tenant or of all clients.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TooManyConnections {
    /// The cluster of a tenant has as many as it may have.
    #[error("the clients of the cluster have as many connections as those of one tenant may have")]
    OfTenant,
    /// All places are taken.
    #[error("all connections are in use, and no other client has more of them")]
    OfAll,
}

impl Connection {
    /// The connection of a client of another listener, for a request that the gateway makes in its name. It has no
    /// certificate, and counts against no limit of this listener.
    pub(crate) fn internal(peer: SocketAddr, server_name: String, shutdown: &ShutdownSignals) -> Arc<Self> {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        Arc::new(Self {
            address: HeaderValue::try_from(peer.ip().to_string())
                .unwrap_or_else(|_| HeaderValue::from_static("")),
            info: ConnInfo::new(peer, Some(server_name), UnverifiedChain::new(Vec::new())),
            http2: false,
            certificate_not_after: None,
            activity: ConnectionActivity::new(true, &ClientLimits::default()),
            open: OpenConnection::new(&Arc::default()),
            phase: shutdown.phase.clone(),
            watches: Arc::clone(&shutdown.watches),
            quota: None,
            authenticated: Default::default(),
            buffers: OnceLock::new(),
            has_owner: AtomicBool::new(false),
        })
    }

    /// Registers a request. The connection is not idle until the guard is dropped.
    pub(crate) fn begin_request(&self) -> RequestGuard {
        self.activity.begin_request()
    }

    /// Registers a request that is accepted and not begun.
    pub(super) fn accept_request(&self) -> AcceptedRequest {
        self.activity.accept_request()
    }

    /// Closes an HTTP/2 connection after the requests in progress: sends GOAWAY and refuses new streams.
    pub(crate) fn close_gracefully(&self) {
        self.activity.close();
    }

    /// Whether the connection refuses new streams, and closes after the responses in progress.
    pub(crate) fn refuses_requests(&self) -> bool {
        self.activity.refuses_requests()
    }

    /// Records that a request has authenticated at a cluster, that of a tenant if `is_of_tenant`. The first such request decides
    /// for whom the connection counts from then on; one at a cluster of the operator decides again after tenants. If too many
    /// are open, it is closed after its requests in progress, and counts as unauthenticated until then.
    // threat: tenant-connection-flood, connection-hoarding
    pub(crate) fn note_authenticated(
        &self,
        is_of_tenant: bool,
        owner: impl FnOnce() -> Owner,
    ) -> Result<(), TooManyConnections> {
        let Some((slot, limiter)) = &self.quota else { return Ok(()) };
        let [by_tenant, by_operator] = &self.authenticated;
        let is_known =
            by_operator.load(Ordering::Relaxed) || is_of_tenant && by_tenant.load(Ordering::Relaxed);
        if is_known {
            return Ok(());
        }
        limiter.authenticate(slot, self.info.peer.ip(), owner()).inspect_err(|_| self.activity.close())?;
        let known = if is_of_tenant { by_tenant } else { by_operator };
        known.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Completes when the connection gives way to that of another client, also if it is a tunnel.
    pub(crate) fn gave_way(&self) -> BodyEnd {
        Box::pin(self.activity.gave_way())
    }

    /// Counts what it holds beside its streams, for its network until a client authenticates.
    pub(super) fn count_buffers(&self, buffers: Arc<ConnectionBuffers>, ledger: &ByteLedger) {
        buffers.register(ledger, self.network());
        // It begins once.
        self.buffers.set(buffers).ok();
    }

    /// Counts it for this owner from now on, the first time.
    pub(crate) fn count_buffers_for(&self, owner: &Owner) {
        if let Some(buffers) = self.buffers.get()
            && !self.has_owner.swap(true, Ordering::Relaxed)
        {
            buffers.set_owner(owner.clone());
        }
    }

    /// The owner of what a client holds that is not authenticated.
    pub(super) fn network(&self) -> Owner {
        Owner::Network(client_network(self.info.peer.ip()))
    }

    /// Whether the server drains, so that clients should connect to another replica.
    pub(crate) fn is_draining(&self) -> bool {
        *self.phase.borrow() >= ShutdownPhase::Draining
    }

    /// Completes when a watch must end because the server shuts down.
    pub(crate) fn watch_end(&self) -> BodyEnd {
        let (phase, watches) = (self.phase.clone(), Arc::clone(&self.watches));
        Box::pin(async move {
            reached(phase.clone(), ShutdownPhase::Draining).await;
            // Boxed: only an ending watch needs this future.
            Box::pin(async move {
                let Some(end) = watches.next() else {
                    return reached(phase, ShutdownPhase::EndingWatches).await;
                };
                tokio::select! {
                    () = reached(phase, ShutdownPhase::EndingWatches) => {}
                    () = sleep_until(end) => {}
                }
            })
            .await;
        })
    }

    /// Counts the connection as open, and in its owner's share, for as long as the value lives: a tunnel outlives the HTTP
    /// connection.
    // threat: tenant-connection-flood
    pub(crate) fn keep_open(&self) -> OpenConnection {
        let mut open = self.open.clone();
        open.slot = self.quota.as_ref().map(|(slot, _)| Arc::clone(slot));
        open
    }
}

/// Waits until the server's shutdown has reached `phase`; forever if the sender is gone.
async fn reached(mut current: watch::Receiver<ShutdownPhase>, phase: ShutdownPhase) {
    if current.wait_for(|current| *current >= phase).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Counts one open connection of a worker, once, until it and all of its clones are dropped.
#[derive(Debug, Clone)]
pub(crate) struct OpenConnection {
    _counted: Arc<CountedConnection>,
    /// Counts the connection in the metrics.
    shown: Option<Arc<GaugeGuard>>,
    /// Counts it in its owner's share, once it is a tunnel.
    slot: Option<Arc<QuotaSlot>>,
}

#[derive(Debug)]
struct CountedConnection(Arc<OpenConnectionCount>);

/// The number of open connections of a worker.
#[derive(Debug, Default)]
pub(super) struct OpenConnectionCount {
    count: AtomicUsize,
    pub(super) changed: Notify,
}

impl OpenConnectionCount {
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl OpenConnection {
    pub(super) fn new(count: &Arc<OpenConnectionCount>) -> Self {
        count.count.fetch_add(1, Ordering::Relaxed);
        Self { _counted: Arc::new(CountedConnection(Arc::clone(count))), shown: None, slot: None }
    }

    /// Counts the connection in this metric, too.
    fn shown_by(mut self, gauge: &IntGauge) -> Self {
        self.shown = Some(Arc::new(GaugeGuard::new(gauge)));
        self
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let Self(count) = self;
        if count.count.fetch_sub(1, Ordering::Relaxed) == 1 {
            count.changed.notify_one();
        }
    }
}

/// The far end of a connection before its TLS handshake.
#[derive(Debug)]
pub(crate) enum ConnectionOrigin {
    /// The peer is the client.
    Client {
        peer: SocketAddr,
        /// Slot in the quota of unauthenticated connections.
        slot: QuotaSlot,
    },
    /// The peer is a load balancer, whose PROXY protocol header will name the client.
    LoadBalancer {
        peer: SocketAddr,
        /// Slot in the quota of connections whose client is unknown.
        slot: QuotaSlot,
        settings: Arc<ProxyProtocol>,
    },
}

impl ConnectionOrigin {
    /// The address at the other end of the TCP connection.
    pub(super) fn peer(&self) -> SocketAddr {
        match self {
            Self::Client { peer, .. } | Self::LoadBalancer { peer, .. } => *peer,
        }
    }

    /// The client, and its slot in the quota of unauthenticated connections. Reads the header of a load balancer; then
    /// the limits count the connection for the client that it names. `None`: the connection is refused.
    // threat: forged-proxy-header, silent-load-balancer
    pub(crate) async fn client<S: AsyncRead + Unpin>(
        self,
        stream: &mut S,
        limiter: &ConnectionLimiter,
        header_timeout: Duration,
    ) -> Option<(SocketAddr, QuotaSlot)> {
        let (peer, unnamed, settings) = match self {
            Self::Client { peer, slot } => return Some((peer, slot)),
            Self::LoadBalancer { peer, slot, settings } => (peer, slot, settings),
        };
        let header = tokio::select! {
            header = settings.read_header(stream, header_timeout) => header,
            () = unnamed.evicted() => {
                debug!(%peer, "connection closed: evicted before its PROXY protocol header");
                return None;
            }
        };
        let client = match header {
            Ok(ProxyHeader::Proxied(client)) => client,
            Ok(ProxyHeader::Local) => peer,
            Err(error) => {
                limiter.refuse_header(peer, error.reason(), &error);
                return None;
            }
        };
        debug!(%peer, %client, "PROXY protocol header read");
        let slot = limiter.admit_named(client)?;
        drop(unnamed);
        limiter.count_proxied();
        Some((client, slot))
    }
}

/// A connection before its TLS handshake.
pub(super) struct AcceptedConnection<S> {
    pub(super) stream: S,
    pub(super) origin: ConnectionOrigin,
    pub(super) limiter: Arc<ConnectionLimiter>,
    pub(super) open: OpenConnection,
}

impl AcceptedConnection<std::net::TcpStream> {
    /// Registers the socket with the current runtime.
    pub(super) fn register(self) -> io::Result<AcceptedConnection<TcpStream>> {
        let Self { stream, origin, limiter, open } = self;
        Ok(AcceptedConnection { stream: TcpStream::from_std(stream)?, origin, limiter, open })
    }
}

/// A connection whose client is known, before its TLS handshake.
struct NamedConnection {
    stream: TcpStream,
    /// The client.
    peer: SocketAddr,
    slot: QuotaSlot,
    limiter: Arc<ConnectionLimiter>,
    open: OpenConnection,
}

impl AcceptedConnection<TcpStream> {
    pub(super) async fn serve<H: RequestHandler>(
        self,
        tls: Arc<ServerConfig>,
        handler: Arc<H>,
        limits: ClientLimits,
        metrics: Arc<Metrics>,
        shutdown: ShutdownSignals,
    ) {
        // Boxed: most gateways have no such load balancer.
        let named = match self.origin {
            ConnectionOrigin::Client { peer, slot } => {
                let Self { stream, limiter, open, .. } = self;
                NamedConnection { stream, peer, slot, limiter, open }
            }
            ConnectionOrigin::LoadBalancer { .. } => {
                let named = Box::pin(self.named_by_load_balancer(&limits, shutdown.phase.clone()));
                let Some(named) = named.await else { return };
                named
            }
        };
        named.serve(tls, handler, limits, metrics, shutdown).await;
    }

    async fn named_by_load_balancer(
        self,
        limits: &ClientLimits,
        phase: watch::Receiver<ShutdownPhase>,
    ) -> Option<NamedConnection> {
        let Self { mut stream, origin, limiter, open } = self;
        let (peer, slot) = tokio::select! {
            client = origin.client(&mut stream, &limiter, limits.proxy_header_timeout) => client?,
            () = draining_long_enough(phase) => return None,
        };
        Some(NamedConnection { stream, peer, slot, limiter, open })
    }
}

/// Completes a short time after the server began to drain: until then handshakes in progress may finish.
async fn draining_long_enough(phase: watch::Receiver<ShutdownPhase>) {
    reached(phase, ShutdownPhase::Draining).await;
    sleep(DRAIN_LINGER_TIMEOUT).await;
}

impl NamedConnection {
    async fn serve<H: RequestHandler>(
        self,
        tls: Arc<ServerConfig>,
        handler: Arc<H>,
        limits: ClientLimits,
        metrics: Arc<Metrics>,
        ShutdownSignals { phase, watches }: ShutdownSignals,
    ) {
        let Self { stream, peer, slot, limiter, open } = self;
        let accepted = Instant::now();
        // Boxed, so that the memory of the handshake is freed before the connection serves requests.
        let handshake = accept_tls(tls, stream, peer, &limiter);
        let handshake = Box::pin(timeout(limits.header_timeout, handshake));
        let handshake = tokio::select! {
            handshake = handshake => handshake,
            () = draining_long_enough(phase.clone()) => return,
            () = slot.evicted() => return,
        };
        let stream = match handshake {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                metrics.connections.handshake_failed(handshake_failure::cause(&error));
                debug!(%peer, %error, "TLS handshake failed");
                return;
            }
            Err(_) => {
                metrics.connections.handshake_failed(handshake_failure::TIMEOUT);
                debug!(%peer, "TLS handshake timeout");
                return;
            }
        };
        metrics.connections.tls_handshake_duration.observe(accepted.elapsed().as_secs_f64());
        let (_, session) = stream.get_ref();
        let http2 = session.alpn_protocol() == Some(b"h2");
        let gauge = if http2 { &metrics.connections.open_http2 } else { &metrics.connections.open_http1 };
        let chain = session.peer_certificates().unwrap_or_default().to_vec();
        let info = ConnInfo::new(
            SocketAddr::new(peer.ip().to_canonical(), peer.port()),
            session.server_name().map(str::to_owned),
            UnverifiedChain::new(chain),
        );
        let activity = ConnectionActivity::new(!http2, &limits);
        slot.establish(&activity);
        let evicted = slot.evicted();
        let connection = Connection {
            certificate_not_after: info.peer_chain.leaf_not_after(),
            // The text of an address is always a valid header value.
            address: HeaderValue::try_from(info.peer.ip().to_string())
                .unwrap_or_else(|_| HeaderValue::from_static("")),
            info,
            http2,
            activity,
            open: open.shown_by(gauge),
            phase: phase.clone(),
            watches,
            quota: Some((Arc::new(slot), limiter)),
            authenticated: Default::default(),
            buffers: OnceLock::new(),
            has_owner: AtomicBool::new(false),
        };
        let connection = Arc::new(connection);
        let (informed, client) = (Arc::clone(&handler), connection.info.peer);
        let on_reset_limit = move || informed.note_reset_limit(client);
        let http = http_connection(stream, &connection, handler, limits);
        // A new task, so that the memory of this one is freed.
        tokio::spawn(async move {
            tokio::select! {
                () = ConnectionDriver::new(http, &connection, limits, &on_reset_limit).run(phase) => {}
                () = evicted => debug!(%peer, "connection closed: it gave way to another one"),
            }
        });
    }
}

/// Creates the HTTP/1.1 or HTTP/2 connection on a TLS stream.
fn http_connection<H: RequestHandler>(
    stream: TlsStream<TcpStream>,
    connection: &Arc<Connection>,
    handler: Arc<H>,
    limits: ClientLimits,
) -> Pin<Box<dyn HttpConnection>> {
    let stream = ActivityStream::new(stream, Arc::clone(&connection.activity));
    if connection.http2 {
        let corked = CorkedStream::new(stream, Role::Server, MAX_HEADER_BYTES);
        connection.count_buffers(corked.buffers(), handler.ledger());
        let http = Http2ServerConnection::new(corked.clone(), handler, Arc::clone(connection), limits);
        return Box::pin(UncorkOnPoll::new(http, corked));
    }
    Box::pin(http1::serve(stream, Arc::clone(connection), handler))
}
