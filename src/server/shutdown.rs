//! Graceful shutdown, step by step: fail `/readyz`, serve on for the delay, refuse what is new, end watches one after
//! the other while other requests finish, end the rest with the grace period.
//!
//! Watches do not wait for other requests: one of these may take longer than a pod has.
// apiserver: pkg/server/genericapiserver.go, RunWithContext

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use crate::config::settings::Shutdown;
use crate::listener::{ShutdownPhase, WatchTermination, Worker};
use crate::metrics::Metrics;

/// How long a watch may take to end, and its client to be told.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// What may happen meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// Nothing is in progress any more.
    Idle,
    /// Somebody asks to end at once.
    Force,
}

/// Ends a shutdown at once; of use as soon as there is a server.
#[derive(Debug, Clone)]
pub struct ForceShutdown(Sender<Event>);

impl ForceShutdown {
    /// Waits for nothing any more.
    pub fn trigger(&self) {
        // A server that is gone needs no haste.
        self.0.send(Event::Force).ok();
    }
}

/// Where the events of a shutdown arrive.
#[derive(Debug)]
pub(super) struct Events {
    sender: Sender<Event>,
    receiver: Receiver<Event>,
}

/// What a shutdown waits for.
#[derive(Debug)]
pub(super) struct Ending {
    /// The workers, once no more connections are accepted.
    pub(super) workers: Receiver<Vec<Worker>>,
    /// Once no controller works and all leases are given up.
    pub(super) controllers: Receiver<()>,
    pub(super) events: Events,
}

impl Events {
    pub(super) fn new() -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver }
    }

    pub(super) fn force_shutdown(&self) -> ForceShutdown {
        ForceShutdown(self.sender.clone())
    }

    /// Waits for an event; `None` if there was none in time.
    fn within(&self, patience: Duration) -> Option<Event> {
        self.receiver.recv_timeout(patience).ok()
    }
}

/// Goes through the steps. `workers` come when the acceptor has given up accepting.
pub(super) fn run(
    settings: Shutdown,
    drain: &watch::Sender<ShutdownPhase>,
    watches: &WatchTermination,
    Ending { workers, controllers, events }: Ending,
    metrics: &Metrics,
) {
    let Shutdown { delay, send_retry_after, grace_period, watch_termination_grace_period } = settings;
    drain.send_replace(ShutdownPhase::NotReady);
    if !delay.is_zero() {
        info!(?delay, "shutting down: /readyz fails, everything is served for the delay");
        if events.within(delay) == Some(Event::Force) {
            warn!("asked to end at once");
            drain.send_replace(ShutdownPhase::Abort);
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
        "shutting down: no new connections, requests in progress may finish"
    );
    // Logs and tunnels are counted with the watches, which makes these end a little sooner.
    watches.begin(
        u32::try_from(in_progress.long_running).unwrap_or_default(),
        watch_termination_grace_period.min(grace_period),
    );
    drain.send_replace(ShutdownPhase::Draining);
    let joining = join(workers, events.sender.clone());
    match events.within(grace_period) {
        Some(Event::Idle) => {}
        Some(Event::Force) => warn!("asked to end at once"),
        None => {
            let left = metrics.requests.in_progress();
            warn!(
                requests = left.requests,
                long_running = left.long_running,
                "the grace period is over: watches end, other requests are cut off"
            );
            drain.send_replace(ShutdownPhase::EndingWatches);
            events.within(LAST_BYTES);
        }
    }
    // They were told long ago; if nothing was in progress, only just.
    controllers.recv_timeout(LAST_BYTES).ok();
    drain.send_replace(ShutdownPhase::Abort);
    if joining.join().is_err() {
        warn!("a thread panicked while shutting down");
    }
}

/// Waits for the workers on a thread of its own, and says when the last one has ended.
fn join(workers: Receiver<Vec<Worker>>, idle: Sender<Event>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        if let Ok(workers) = workers.recv() {
            workers.into_iter().for_each(Worker::join);
        }
        idle.send(Event::Idle).ok();
    })
}
