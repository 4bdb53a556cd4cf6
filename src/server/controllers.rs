//! Runs the controllers of the snapshot in force, and stops those that a reload has removed.
//!
//! Leader election has a thread of its own, so that no amount of work loses a lease. The threads of the controllers
//! have a lower priority than all others: thousands of pending CSRs in one cluster must not slow down requests.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use futures_util::future::BoxFuture;
use portcullis_system::clock::Clock;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::controllers::settings::ControllerName;
use crate::controllers::{
    ClusterControllers, ControllerContext, bootstrap_signer, csr, pod_certificates, token_cleaner,
    trust_bundles,
};
use crate::listener::ShutdownPhase;
use crate::metrics::Metrics;
use crate::state::Live;
use crate::tasks::RuntimeThread;

/// The threads for controllers, without those that verify and sign.
const WORKER_THREADS: usize = 2;
/// The nice value of the controllers' threads. All others keep that of the process.
#[cfg(target_os = "linux")]
const NICE_VALUE: i32 = 5;

/// Runs the controller of this name.
fn run_controller(name: ControllerName, context: ControllerContext) -> BoxFuture<'static, Infallible> {
    match name {
        ControllerName::CsrSigning => Box::pin(csr::signing::run(context)),
        ControllerName::CsrApproving => Box::pin(csr::approving::run(context)),
        ControllerName::CsrCleaner => Box::pin(csr::cleaning::run(context)),
        ControllerName::TokenCleaner => Box::pin(token_cleaner::run(context)),
        ControllerName::BootstrapSigner => Box::pin(bootstrap_signer::run(context)),
        ControllerName::PodCertificateSigning => Box::pin(pod_certificates::run(context)),
        ControllerName::TrustBundlePublishing => Box::pin(trust_bundles::run(context)),
    }
}

/// Lowers the priority of the calling thread, if the system permits.
// threat: pending-requests-flood
fn lower_thread_priority() {
    // On Linux, "the calling process" of setpriority(2) is the calling thread.
    #[cfg(target_os = "linux")]
    rustix::process::setpriority_process(None, NICE_VALUE).ok();
}

/// Runs the controllers of every cluster.
pub(super) struct ControllerRunner {
    pub(super) live: Arc<Live>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
}

/// The running controllers of a cluster.
struct RunningControllers {
    controllers: ClusterControllers,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl RunningControllers {
    /// Stops the controllers and releases the lease.
    async fn stop(self) {
        self.stop.cancel();
        // An error is a panic that was logged.
        self.task.await.ok();
    }
}

impl ControllerRunner {
    /// Starts the threads. When the server shuts down, the controllers stop and release their leases, and the receiver
    /// gets a message. When it aborts, they end at once.
    pub(super) fn start(self, mut phase: watch::Receiver<ShutdownPhase>) -> io::Result<Receiver<()>> {
        let workers = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKER_THREADS)
            .thread_name("controllers")
            .on_thread_start(lower_thread_priority)
            .enable_all()
            .build()?;
        let (sender, stopped) = channel();
        RuntimeThread::new()?.start("leases", async move || {
            let mut aborted = phase.clone();
            tokio::select! {
                () = self.follow(&mut phase, workers.handle()) => {}
                _ = aborted.wait_for(|phase| *phase == ShutdownPhase::Abort) => {}
            }
            // Does not wait: a signature in progress may take any time.
            workers.shutdown_background();
            sender.send(()).ok();
        })?;
        Ok(stopped)
    }

    /// Runs the configured controllers until the server shuts down.
    async fn follow(self, phase: &mut watch::Receiver<ShutdownPhase>, workers: &Handle) {
        let mut running: BTreeMap<Arc<str>, RunningControllers> = BTreeMap::new();
        let mut stopping = JoinSet::new();
        let mut generations = self.live.subscribe();
        loop {
            let snapshot = self.live.snapshot();
            let mut before = std::mem::take(&mut running);
            for controllers in snapshot.clusters().iter().filter_map(|cluster| cluster.controllers.clone()) {
                let next = match before.remove(&controllers.cluster) {
                    Some(known) if known.controllers.is_unchanged_from(&controllers) => known,
                    known => self.start_after(known, controllers, workers.clone()),
                };
                running.insert(Arc::clone(&next.controllers.cluster), next);
            }
            for (cluster, removed) in before {
                info!(cluster = &*cluster, "controllers stop: no longer configured");
                stopping.spawn(removed.stop());
            }
            while stopping.try_join_next().is_some() {}
            drop(snapshot);
            tokio::select! {
                Ok(()) = generations.changed() => {}
                _ = phase.wait_for(|phase| *phase >= ShutdownPhase::NotReady) => break,
            }
        }
        for controllers in running.into_values() {
            stopping.spawn(controllers.stop());
        }
        // Includes those that a reload has removed just before.
        while stopping.join_next().await.is_some() {}
    }

    /// Starts the controllers of a cluster after `before` has stopped: without leader election nothing else keeps them
    /// from running at the same time.
    fn start_after(
        &self,
        before: Option<RunningControllers>,
        controllers: ClusterControllers,
        workers: Handle,
    ) -> RunningControllers {
        let stop = CancellationToken::new();
        let (metrics, clock) = (Arc::clone(&self.metrics), self.clock.clone());
        let (next, until) = (controllers.clone(), stop.clone());
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                before.stop().await;
            }
            next.run(metrics, clock, run_controller, until, workers).await;
        });
        RunningControllers { controllers, stop, task }
    }
}
