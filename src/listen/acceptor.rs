//! One listening socket, one acceptor, which hands each connection to the worker with the fewest. A socket per worker
//! (`SO_REUSEPORT`) would skew long watches between workers and hide a second gateway on the same port.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tracing::{info, warn};

use super::connection::Worker;
use crate::clusters::target::keep_alive;

/// How long the acceptor waits when the process is out of file descriptors.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(100);
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

/// Hands connections to workers until the future is dropped.
pub(crate) async fn accept_into(listener: &TcpListener, workers: &[Worker]) -> Infallible {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Latency of small frames matters more than packet counts.
                stream.set_nodelay(true).ok();
                keep_alive(&stream);
                let Ok(stream) = stream.into_std() else { continue };
                if let Some(worker) = workers.iter().min_by_key(|worker| worker.open_connections()) {
                    worker.hand_over(stream, peer);
                }
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                // EMFILE and its kin pass when connections end; accepting at once again would only spin.
                warn!(%error, "cannot accept connections, waiting");
                tokio::time::sleep(OUT_OF_DESCRIPTORS).await;
            }
        }
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
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: before.maximum, maximum: before.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => info!(open_files = ?before.maximum, "raised the limit of open files"),
        Err(error) => warn!(%error, open_files = ?before.current, "cannot raise the limit of open files"),
    }
}
