//! One listening socket and one acceptor, which passes each connection to the worker with the fewest. A socket for each
//! worker (`SO_REUSEPORT`) would distribute long watches unevenly and hide a second gateway on the same port.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_http::peer::enable_tcp_keep_alive;
use portcullis_limits::Owner;
use portcullis_system::sync::lock;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::connection::{ConnectionOrigin, OpenConnectionCount, TooManyConnections};
use super::connection_quota::{ConnectionQuota, QuotaExceeded, QuotaSlot};
use super::settings::ProxyProtocol;
use super::worker::Worker;
use crate::descriptors::ClientShares;
use crate::metrics::Metrics;

/// How long [`drain_backlog`] may accept connections, since clients may never stop connecting.
const BACKLOG_TIMEOUT: Duration = Duration::from_millis(100);
/// The minimum interval between two log lines of a [`CoalescedWarning`].
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// The pause after the process has run out of file descriptors.
const OUT_OF_DESCRIPTORS_BACKOFF: Duration = Duration::from_millis(100);
/// The accept backlog; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// A bound socket.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: std::net::TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds the address; port 0 picks a free one.
    pub(crate) fn bind(address: SocketAddr, permit_port_sharing: bool) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // As Go does on Unix: otherwise a restart would wait for old connections to leave TIME_WAIT.
        socket.set_reuse_address(true)?;
        if permit_port_sharing {
            socket.set_reuse_port(true)?;
        }
        if address.is_ipv6() && address.ip().is_unspecified() {
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let socket: std::net::TcpListener = socket.into();
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// The bound address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Registers the socket with the current runtime.
    pub(crate) fn register(self) -> io::Result<TcpListener> {
        TcpListener::from_std(self.socket)
    }
}

/// Enforces `--max-connections` and the shares of networks, tenants and users in it.
#[derive(Debug)]
pub(crate) struct ConnectionLimiter {
    max_connections: usize,
    quota: Arc<ConnectionQuota>,
    /// The load balancers' connections before their PROXY protocol header. They have a quota of their own: until then
    /// the client's network, by which the other one decides, is unknown.
    unnamed: Arc<ConnectionQuota>,
    /// The open connections of each worker.
    open: Vec<Arc<OpenConnectionCount>>,
    metrics: Arc<Metrics>,
    refused: Mutex<HashMap<&'static str, CoalescedWarning>>,
}

// threat: floods
impl ConnectionLimiter {
    /// A limiter with these shares.
    pub(crate) fn new(shares: ClientShares, workers: &[Worker], metrics: Arc<Metrics>) -> Self {
        Self {
            max_connections: shares.total,
            unnamed: ConnectionQuota::unauthenticated(shares.unauthenticated),
            quota: ConnectionQuota::new(shares, Some(metrics.connections.by_owner.clone())),
            open: workers.iter().map(Worker::open_count).collect(),
            metrics,
            refused: Mutex::default(),
        }
    }

    /// The limits of a listener without workers, whose connections all count against one quota.
    pub(crate) fn without_workers(max_connections: usize, metrics: Arc<Metrics>) -> Self {
        Self {
            max_connections: usize::MAX,
            quota: ConnectionQuota::unauthenticated(max_connections),
            unnamed: ConnectionQuota::unauthenticated(max_connections),
            open: Vec::new(),
            metrics,
            refused: Mutex::default(),
        }
    }

    /// Takes a quota slot for a new connection, which is not open yet. `None`: it is refused.
    pub(crate) fn admit(
        &self,
        peer: SocketAddr,
        proxy_protocol: Option<&Arc<ProxyProtocol>>,
    ) -> Option<ConnectionOrigin> {
        if let Some(settings) = ProxyProtocol::for_peer(proxy_protocol, peer.ip()) {
            let slot = self.admit_unnamed(peer)?;
            return Some(ConnectionOrigin::LoadBalancer { peer, slot, settings });
        }
        let slot = self.admit_beside(peer, self.open_connections())?;
        Some(ConnectionOrigin::Client { peer, slot })
    }

    /// Takes a quota slot for an open connection whose client is known now.
    pub(super) fn admit_named(&self, client: SocketAddr) -> Option<QuotaSlot> {
        self.admit_beside(client, self.open_connections().saturating_sub(1))
    }

    fn admit_beside(&self, client: SocketAddr, open: usize) -> Option<QuotaSlot> {
        let full = open >= self.max_connections;
        let slot = self.quota.admit(client.ip(), full);
        if slot.is_none() {
            self.refuse(client.ip(), if full { "max_connections" } else { "unauthenticated_limit" }, None);
        }
        slot
    }

    /// Takes a quota slot for a connection of a load balancer, until its header names the client.
    // threat: silent-load-balancer
    fn admit_unnamed(&self, peer: SocketAddr) -> Option<QuotaSlot> {
        let slot = self.unnamed.admit(peer.ip(), false);
        if slot.is_none() {
            self.refuse(peer.ip(), "unauthenticated_limit", None);
        }
        slot
    }

    /// Counts a connection on which a request has authenticated for its owner. If all places are taken, a connection of the
    /// owner with the most is closed.
    pub(super) fn authenticate(
        &self,
        slot: &QuotaSlot,
        client: IpAddr,
        owner: Owner,
    ) -> Result<(), TooManyConnections> {
        let cluster = match &owner {
            Owner::Tenant(cluster) | Owner::Flow { cluster, .. } => Some(Arc::clone(cluster)),
            Owner::Gateway | Owner::Network(_) => None,
        };
        match slot.authenticate(owner) {
            Ok(None) => Ok(()),
            Ok(Some(displaced)) => {
                self.note_displaced(&displaced);
                Ok(())
            }
            Err(QuotaExceeded::Tenant) => {
                self.refuse(client, "tenant_limit", cluster.as_deref());
                Err(TooManyConnections::OfTenant)
            }
            Err(QuotaExceeded::Leaving) => Err(TooManyConnections::OfAll),
            Err(QuotaExceeded::Authenticated) => {
                self.refuse(client, "authenticated_limit", cluster.as_deref());
                Err(TooManyConnections::OfAll)
            }
        }
    }

    fn note_displaced(&self, owner: &Owner) {
        let (kind, cluster, user) = match owner {
            Owner::Flow { cluster, name } => ("user", &**cluster, Some(&**name)),
            Owner::Tenant(cluster) => ("tenant", &**cluster, None),
            Owner::Gateway | Owner::Network(_) => return,
        };
        self.metrics.connections.displaced.with_label_values(&[kind]).inc();
        if let Some(times) = self.record("displaced") {
            warn!(
                cluster,
                user, times, "all connections are in use, one of the client with the most is closed"
            );
        }
    }

    fn open_connections(&self) -> usize {
        self.open.iter().map(|open| open.count()).sum()
    }

    fn refuse(&self, peer: IpAddr, limit: &'static str, cluster: Option<&str>) {
        self.metrics.connections.refused.with_label_values(&[limit]).inc();
        if let Some(times) = self.record(limit) {
            warn!(%peer, cluster, times, limit, "too many connections, refused");
        }
    }

    /// Counts a connection whose PROXY protocol header was accepted.
    pub(super) fn count_proxied(&self) {
        self.metrics.connections.proxied.inc();
    }

    /// Counts a connection that is closed because of its PROXY protocol header, or for want of one.
    pub(super) fn refuse_header(
        &self,
        peer: SocketAddr,
        reason: &'static str,
        error: &impl std::fmt::Display,
    ) {
        self.metrics.connections.proxy_protocol_errors.with_label_values(&[reason]).inc();
        // A health check that opens a connection and closes it is no fault.
        if reason == "closed" {
            debug!(%peer, %error, "connection closed before its PROXY protocol header");
        } else if let Some(times) = self.record(reason) {
            warn!(%peer, times, reason, %error, "PROXY protocol header refused, connection closed");
        }
    }

    /// Waits after `accept` has failed, unless the error concerns one connection.
    pub(crate) async fn wait_after(&self, error: &io::Error) {
        if is_connection_error(error) {
            return;
        }
        // EMFILE and ENFILE pass when connections end; an immediate retry would spin.
        self.metrics.connections.refused.with_label_values(&["descriptors"]).inc();
        if let Some(times) = self.record("descriptors") {
            warn!(%error, times, "cannot accept connections, waiting");
        }
        tokio::time::sleep(OUT_OF_DESCRIPTORS_BACKOFF).await;
    }

    /// Counts an event; returns the count since its last log line when one is due.
    fn record(&self, event: &'static str) -> Option<u64> {
        lock(&self.refused).entry(event).or_default().record()
    }
}

/// Accepts the connections in the kernel's backlog, which would be reset when the socket closes, and closes the socket.
/// A few more may arrive between the two steps; `net.ipv4.tcp_migrate_req` covers them.
pub(crate) fn drain_backlog(
    listener: TcpListener,
    workers: &[Worker],
    limiter: &Arc<ConnectionLimiter>,
    proxy_protocol: Option<&Arc<ProxyProtocol>>,
) {
    // Accepts from the socket itself: the readiness that the runtime knows may lag behind the backlog.
    let Ok(listener) = listener.into_std() else { return };
    let deadline = Instant::now() + BACKLOG_TIMEOUT;
    while let (Ok((stream, peer)), true) = (listener.accept(), Instant::now() < deadline) {
        if stream.set_nonblocking(true).is_ok() {
            hand_over(stream, peer, workers, limiter, proxy_protocol);
        }
    }
}

/// Passes a connection to the worker with the fewest, unless a limit refuses it.
fn hand_over(
    stream: std::net::TcpStream,
    peer: SocketAddr,
    workers: &[Worker],
    limiter: &Arc<ConnectionLimiter>,
    proxy_protocol: Option<&Arc<ProxyProtocol>>,
) {
    let Some(origin) = limiter.admit(peer, proxy_protocol) else { return };
    // The latency of small frames matters more than the number of packets.
    stream.set_nodelay(true).ok();
    enable_tcp_keep_alive(&stream);
    if let Some(worker) = workers.iter().min_by_key(|worker| worker.open_connections()) {
        worker.hand_over(stream, origin, Arc::clone(limiter));
    }
}

/// Accepts connections and passes them to workers until the future is dropped. `proxy_protocol` returns the setting in
/// force for each new connection.
pub(crate) async fn accept_into(
    listener: &TcpListener,
    workers: &[Worker],
    limiter: &Arc<ConnectionLimiter>,
    proxy_protocol: impl Fn() -> Option<Arc<ProxyProtocol>>,
) -> Infallible {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if let Ok(stream) = stream.into_std() {
                    hand_over(stream, peer, workers, limiter, proxy_protocol().as_ref());
                }
            }
            Err(error) => limiter.wait_after(&error).await,
        }
    }
}

/// Coalesces the log lines of a repeated event into one for each [`LOG_INTERVAL`].
#[derive(Debug, Default)]
struct CoalescedWarning {
    last_logged: Option<Instant>,
    times: u64,
}

impl CoalescedWarning {
    /// Counts an event; returns the count since the last log line when one is due.
    fn record(&mut self) -> Option<u64> {
        self.times += 1;
        if self.last_logged.is_some_and(|logged| logged.elapsed() < LOG_INTERVAL) {
            return None;
        }
        self.last_logged = Some(Instant::now());
        Some(std::mem::take(&mut self.times))
    }
}

/// Whether the error concerns one connection, which was closed before it was accepted, and not the listener.
fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}
