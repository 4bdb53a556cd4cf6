//! One listening socket, one acceptor, which hands each connection to the worker with the fewest. A socket per worker
//! (`SO_REUSEPORT`) would skew long watches between workers and hide a second gateway on the same port.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tracing::{info, warn};

use super::settings::Limits;
use super::worker::Worker;
use crate::backend::endpoint::keep_alive;
use crate::listener::unauthenticated_quota::{QuotaSlot, UnauthenticatedQuota};
use crate::metrics::Metrics;

/// The part of all connections on which nobody need have proven who he is, and its bounds: each costs a handshake's
/// memory and up to 1 MiB of a header, and a few there must be.
const UNAUTHENTICATED_SHARE: usize = 4;
const MAX_UNAUTHENTICATED: usize = 2048;
const MIN_UNAUTHENTICATED: usize = 16;
/// How long it may take to hand over what the kernel has accepted: clients that go on connecting are no reason to stay.
const BACKLOG_TIMEOUT: Duration = Duration::from_millis(100);
/// How often the log says that connections are refused.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// How long the acceptor waits when the process is out of file descriptors.
const OUT_OF_DESCRIPTORS_BACKOFF: Duration = Duration::from_millis(100);
/// Connections the kernel holds for us until they are accepted; it caps the number by `net.core.somaxconn`.
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
        // As Go does on Unix: a restart need not wait for old connections to leave TIME_WAIT.
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

    /// The address that was bound.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The socket, registered with the runtime that this is called in.
    pub(crate) fn register(self) -> io::Result<TcpListener> {
        TcpListener::from_std(self.socket)
    }
}

/// Decides which connections are served.
#[derive(Debug)]
pub(crate) struct ConnectionLimiter {
    most: usize,
    quota: Arc<UnauthenticatedQuota>,
    metrics: Arc<Metrics>,
}

// threat: floods
impl ConnectionLimiter {
    /// The gate of the process.
    pub(crate) fn new(limits: &Limits, metrics: Arc<Metrics>) -> Self {
        let possible = most_connections();
        let most = limits.max_connections.map_or(possible, NonZeroUsize::get);
        if most > possible {
            warn!(
                max_connections = most,
                possible, "the limit of open files does not allow so many connections"
            );
        }
        let quota = (most / UNAUTHENTICATED_SHARE).clamp(most.min(MIN_UNAUTHENTICATED), MAX_UNAUTHENTICATED);
        Self { most, quota: UnauthenticatedQuota::new(quota), metrics }
    }

    /// The connection's place among the newcomers, if it is to be served.
    fn admit(&self, peer: IpAddr, workers: &[Worker]) -> Option<QuotaSlot> {
        let full = workers.iter().map(Worker::open_connections).sum::<usize>() >= self.most;
        let admitted = self.quota.admit(peer, full);
        if admitted.is_none() {
            let reason = if full { "max_connections" } else { "unauthenticated_limit" };
            self.metrics.connections.refused.with_label_values(&[reason]).inc();
        }
        admitted
    }
}

/// Hands over what the kernel has already accepted, and closes the socket: what is left in its queue would be reset.
/// Between the two a few more may arrive; see `net.ipv4.tcp_migrate_req` for them.
pub(crate) fn accept_the_rest(listener: TcpListener, workers: &[Worker], limiter: &ConnectionLimiter) {
    // The system is asked, not the runtime, which may not have been told of all of them yet.
    let Ok(listener) = listener.into_std() else { return };
    let enough = Instant::now() + BACKLOG_TIMEOUT;
    while let (Ok((stream, peer)), true) = (listener.accept(), Instant::now() < enough) {
        if stream.set_nonblocking(true).is_ok() {
            hand_over(stream, peer, workers, limiter);
        }
    }
}

/// Gives a connection to the worker with the fewest, if there is room for it.
fn hand_over(
    stream: std::net::TcpStream,
    peer: SocketAddr,
    workers: &[Worker],
    limiter: &ConnectionLimiter,
) -> bool {
    let Some(slot) = limiter.admit(peer.ip(), workers) else { return false };
    // Latency of small frames matters more than packet counts.
    stream.set_nodelay(true).ok();
    keep_alive(&stream);
    if let Some(worker) = workers.iter().min_by_key(|worker| worker.open_connections()) {
        worker.hand_over(stream, peer, slot);
    }
    true
}

/// Hands connections to workers until the future is dropped.
pub(crate) async fn accept_into(
    listener: &TcpListener,
    workers: &[Worker],
    limiter: &ConnectionLimiter,
) -> Infallible {
    let mut refused = RepeatCounter::default();
    let mut failed = RepeatCounter::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if let Ok(stream) = stream.into_std()
                    && !hand_over(stream, peer, workers, limiter)
                    && let Some(times) = refused.now()
                {
                    warn!(%peer, times, most = limiter.most, "too many connections, refused");
                }
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                // EMFILE and its kin pass when connections end; accepting at once again would only spin.
                limiter.metrics.connections.refused.with_label_values(&["descriptors"]).inc();
                if let Some(times) = failed.now() {
                    warn!(%error, times, "cannot accept connections, waiting");
                }
                tokio::time::sleep(OUT_OF_DESCRIPTORS_BACKOFF).await;
            }
        }
    }
}

/// Something that is told from time to time, however often it happens.
#[derive(Debug, Default)]
struct RepeatCounter {
    told: Option<Instant>,
    times: u64,
}

impl RepeatCounter {
    /// It has happened. How often it did since it was told last, if it is to be told.
    fn now(&mut self) -> Option<u64> {
        self.times += 1;
        if self.told.is_some_and(|told| told.elapsed() < LOG_INTERVAL) {
            return None;
        }
        self.told = Some(Instant::now());
        Some(std::mem::take(&mut self.times))
    }
}

/// Errors about a connection that was gone before it was accepted, not about the listener.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}

/// Raises the soft limit of open files to the hard one: each connection takes two.
pub(crate) fn raise_file_limit() {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: before.maximum, maximum: before.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => info!(open_files = ?before.maximum, "raised the limit of open files"),
        Err(error) => warn!(%error, open_files = ?before.current, "cannot raise the limit of open files"),
    }
}

/// How many connections the limit of open files allows, with one to the backend for each, and an eighth to spare.
fn most_connections() -> usize {
    let files = getrlimit(Resource::Nofile).current.and_then(|files| usize::try_from(files).ok());
    files.map_or(usize::MAX, |files| (files - files / 8) / 2)
}
