//! The worker threads, each a runtime of its own, and the connections that they carry.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use rustls::ServerConfig;
use tokio::sync::mpsc;
use tracing::warn;

use super::Handler;
use super::connection::{Accepted, Open, OpenCount, ShutdownPhase, ShutdownSignals};
use super::settings::Limits;
use super::unauthenticated_quota::QuotaSlot;
use crate::metrics::Metrics;
use crate::tasks::RuntimeThread;

/// A thread that carries connections.
#[derive(Debug)]
pub(crate) struct Worker {
    sender: mpsc::UnboundedSender<Accepted<std::net::TcpStream>>,
    open: Arc<OpenCount>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts a thread. `terms` gives the TLS configuration and the limits of each new connection; `background` runs beside
    /// the connections for as long as the thread does.
    pub(crate) fn start<H: Handler>(
        name: String,
        handler: Arc<H>,
        terms: impl Fn() -> (Arc<ServerConfig>, Limits) + Send + 'static,
        background: impl Future<Output = ()> + Send + 'static,
        metrics: Arc<Metrics>,
        shutdown: ShutdownSignals,
    ) -> io::Result<Self> {
        let (sender, mut receiver) = mpsc::unbounded_channel::<Accepted<std::net::TcpStream>>();
        let open = Arc::new(OpenCount::default());
        let counted = Arc::clone(&open);
        let thread = RuntimeThread::new()?.start(name, async move || {
            tokio::spawn(background);
            let mut phase = shutdown.phase.clone();
            let mut aborting = pin!(phase.wait_for(|phase| *phase == ShutdownPhase::Abort));
            loop {
                let accepted = tokio::select! {
                    received = receiver.recv() => match received { Some(received) => received, None => break },
                    _ = &mut aborting => return,
                };
                let Ok(connection) = accepted.register() else {
                    continue;
                };
                let metrics = Arc::clone(&metrics);
                let (tls, limits) = terms();
                tokio::spawn(connection.serve(tls, Arc::clone(&handler), limits, metrics, shutdown.clone()));
            }
            // No more connections come; the runtime, and every task on it, goes when the last one has ended.
            while counted.count.load(Ordering::Relaxed) > 0 {
                tokio::select! {
                    () = counted.changed.notified() => {}
                    _ = &mut aborting => return,
                }
            }
        })?;
        Ok(Self { sender, open, thread })
    }

    /// Gives the worker a connection. It counts from now on, or all that come at once would go to one worker.
    pub(super) fn hand_over(&self, stream: std::net::TcpStream, peer: SocketAddr, slot: QuotaSlot) {
        let accepted = Accepted { stream, peer, slot, open: Open::new(&self.open) };
        if self.sender.send(accepted).is_err() {
            warn!(%peer, "the worker has ended, connection dropped");
        }
    }

    /// How many connections and tunnels it carries.
    pub(super) fn open_connections(&self) -> usize {
        self.open.count.load(Ordering::Relaxed)
    }

    /// Waits for the thread; it ends when its connections have, or at [`ShutdownPhase::Abort`].
    pub(crate) fn join(self) {
        drop(self.sender);
        if self.thread.join().is_err() {
            warn!("a worker thread panicked");
        }
    }
}
