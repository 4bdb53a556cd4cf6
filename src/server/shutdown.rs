//! The graceful shutdown sequence: fail `/readyz`, keep serving for the delay, stop accepting (or, with
//! `--shutdown-send-retry-after`, respond to new requests with 429), end watches one after the other while other
//! requests finish, abort the rest after the grace period.
//!
//! Watches do not wait for other requests to finish: that may take longer than a pod has.
// apiserver: pkg/server/genericapiserver.go, RunWithContext

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use crate::config::settings::Shutdown;
use crate::listener::{ShutdownPhase, WatchTermination, Worker};
use crate::metrics::Metrics;

/// How long watches may take to end after the grace period, and controllers to release their leases.
const FINAL_STEP_TIMEOUT: Duration = Duration::from_secs(2);

/// An event during a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShutdownEvent {
    /// No request is in progress.
    Idle,
    /// The caller forces the shutdown.
    Force,
}

/// Ends a graceful shutdown at once, also one that has not begun.
#[derive(Debug, Clone)]
pub struct ForceShutdown(Sender<ShutdownEvent>);

impl ForceShutdown {
    /// Aborts all connections instead of waiting.
    pub fn trigger(&self) {
        // Fails only if the server is gone already.
        self.0.send(ShutdownEvent::Force).ok();
    }
}

/// The channel of shutdown events.
#[derive(Debug)]
pub(super) struct ShutdownEvents {
    sender: Sender<ShutdownEvent>,
    receiver: Receiver<ShutdownEvent>,
}

/// The parts of the server that a shutdown waits for.
#[derive(Debug)]
pub(super) struct ShutdownHandles {
    /// Receives the workers once no more connections are accepted.
    pub(super) workers: Receiver<Vec<Worker>>,
    /// Receives a message once all controllers have stopped and released their leases.
    pub(super) controllers: Receiver<()>,
    /// The events.
    pub(super) events: ShutdownEvents,
}

impl ShutdownEvents {
    pub(super) fn new() -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver }
    }

    pub(super) fn force_shutdown(&self) -> ForceShutdown {
        ForceShutdown(self.sender.clone())
    }

    /// Waits for an event; `None` on timeout.
    fn within(&self, limit: Duration) -> Option<ShutdownEvent> {
        self.receiver.recv_timeout(limit).ok()
    }
}

/// Runs the sequence to its end.
pub(super) fn run(
    settings: Shutdown,
    phase: &watch::Sender<ShutdownPhase>,
    watches: &WatchTermination,
    ShutdownHandles { workers, controllers, events }: ShutdownHandles,
    metrics: &Metrics,
) {
    let Shutdown { delay, send_retry_after, grace_period, watch_termination_grace_period } = settings;
    phase.send_replace(ShutdownPhase::NotReady);
    if !delay.is_zero() {
        info!(?delay, "shutting down: /readyz fails, requests are served for the delay");
        if events.within(delay) == Some(ShutdownEvent::Force) {
            warn!("graceful shutdown cut short: forced");
            phase.send_replace(ShutdownPhase::Abort);
            // The requests that end now still have audit events.
            let _joining = join(workers, events.sender.clone());
            events.within(FINAL_STEP_TIMEOUT);
            return;
        }
    }
    let in_progress = metrics.requests.in_progress();
    info!(
        requests = in_progress.requests,
        long_running = in_progress.long_running,
        ?grace_period,
        ?watch_termination_grace_period,
        send_retry_after,
        "shutting down: no new requests, requests in progress may finish"
    );
    // Includes logs and tunnels, so that watches end a little earlier than necessary.
    watches.begin(
        u32::try_from(in_progress.long_running).unwrap_or_default(),
        watch_termination_grace_period.min(grace_period),
    );
    phase.send_replace(ShutdownPhase::Draining);
    let joining = join(workers, events.sender.clone());
    match events.within(grace_period) {
        Some(ShutdownEvent::Idle) => {}
        Some(ShutdownEvent::Force) => warn!("graceful shutdown cut short: forced"),
        None => {
            let left = metrics.requests.in_progress();
            warn!(
                requests = left.requests,
                long_running = left.long_running,
                "grace period expired: watches end, other requests are cut off"
            );
            phase.send_replace(ShutdownPhase::EndingWatches);
            events.within(FINAL_STEP_TIMEOUT);
        }
    }
    // They have been stopping since the first step, which may have been just now.
    controllers.recv_timeout(FINAL_STEP_TIMEOUT).ok();
    phase.send_replace(ShutdownPhase::Abort);
    if joining.join().is_err() {
        warn!("a thread panicked while shutting down");
    }
}

/// Joins the workers on a thread of its own, and sends [`ShutdownEvent::Idle`] when the last one has ended.
fn join(workers: Receiver<Vec<Worker>>, idle: Sender<ShutdownEvent>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        if let Ok(workers) = workers.recv() {
            workers.into_iter().for_each(Worker::join);
        }
        idle.send(ShutdownEvent::Idle).ok();
    })
}
