//! Worker threads, each with its own single-threaded runtime, and the connections that they serve.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustls::ServerConfig;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::warn;

use super::RequestHandler;
use super::acceptor::ConnectionLimiter;
use super::connection::{
    AcceptedConnection, ConnectionOrigin, OpenConnection, OpenConnectionCount, ShutdownPhase, ShutdownSignals,
};
use super::settings::ClientLimits;
use crate::metrics::Metrics;
use crate::tasks::RuntimeThread;

/// A thread that serves connections.
#[derive(Debug)]
pub(crate) struct Worker {
    sender: mpsc::UnboundedSender<AcceptedConnection<std::net::TcpStream>>,
    open: Arc<OpenConnectionCount>,
    runtime: Handle,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts a thread. `settings` returns the TLS configuration and the limits for each new connection; `background`
    /// is spawned on the thread's runtime.
    pub(crate) fn start<H: RequestHandler>(
        name: String,
        handler: Arc<H>,
        settings: impl Fn() -> (Arc<ServerConfig>, ClientLimits) + Send + 'static,
        background: impl Future<Output = ()> + Send + 'static,
        metrics: Arc<Metrics>,
        shutdown: ShutdownSignals,
    ) -> io::Result<Self> {
        let (sender, mut receiver) = mpsc::unbounded_channel::<AcceptedConnection<std::net::TcpStream>>();
        let open = Arc::new(OpenConnectionCount::default());
        let counted = Arc::clone(&open);
        let thread = RuntimeThread::new()?;
        let runtime = thread.handle().clone();
        let thread = thread.start(name, async move || {
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
                let (tls, limits) = settings();
                tokio::spawn(connection.serve(tls, Arc::clone(&handler), limits, metrics, shutdown.clone()));
            }
            // The acceptor is gone. The runtime drops every task when this future ends, so it waits for the
            // connections.
            while counted.count() > 0 {
                tokio::select! {
                    () = counted.changed.notified() => {}
                    _ = &mut aborting => return,
                }
            }
        })?;
        Ok(Self { sender, open, runtime, thread })
    }

    /// Passes a connection to the worker. It is counted at once: otherwise a burst would go to one worker.
    pub(super) fn hand_over(
        &self,
        stream: std::net::TcpStream,
        origin: ConnectionOrigin,
        limiter: Arc<ConnectionLimiter>,
    ) {
        let peer = origin.peer();
        let accepted = AcceptedConnection { stream, origin, limiter, open: OpenConnection::new(&self.open) };
        if self.sender.send(accepted).is_err() {
            warn!(%peer, "worker thread ended, connection dropped");
        }
    }

    /// The runtime of the thread.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// The number of open connections and tunnels.
    pub(super) fn open_connections(&self) -> usize {
        self.open.count()
    }

    /// The counter of open connections and tunnels.
    pub(super) fn open_count(&self) -> Arc<OpenConnectionCount> {
        Arc::clone(&self.open)
    }

    /// Waits for the thread, which ends with its last connection or at [`ShutdownPhase::Abort`].
    pub(crate) fn join(self) {
        drop(self.sender);
        if self.thread.join().is_err() {
            warn!("worker thread panicked");
        }
    }
}
