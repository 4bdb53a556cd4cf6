//! Controllers, on threads of their own: those of the snapshot in force run, others end. Here every name has its
//! function.
//!
//! Leases are renewed on a thread on which nothing else runs, so that no amount of work costs one. The threads that work
//! have a lower priority than all others of the process: what clients of one cluster leave there to be done, pending
//! requests by the thousand, must not slow the requests of all.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::clock::Clock;
use crate::controllers::settings::ControllerName;
use crate::controllers::{ClusterControllers, ControllerContext, bootstrap_signer, csr, token_cleaner};
use crate::listener::ShutdownPhase;
use crate::metrics::Metrics;
use crate::state::Live;
use crate::tasks::RuntimeThread;

/// How many threads work, beside those that verify and sign.
const WORKERS: usize = 2;
/// The nice value of their threads; that of all others is 0, unless the whole process was started with another.
#[cfg(target_os = "linux")]
const NICE: i32 = 5;

/// The function that a name stands for.
fn start(name: ControllerName, context: ControllerContext) -> BoxFuture<'static, Infallible> {
    match name {
        ControllerName::CsrSigning => Box::pin(csr::signing::run(context)),
        ControllerName::CsrApproving => Box::pin(csr::approving::run(context)),
        ControllerName::CsrCleaner => Box::pin(csr::cleaning::run(context)),
        ControllerName::TokenCleaner => Box::pin(token_cleaner::run(context)),
        ControllerName::BootstrapSigner => Box::pin(bootstrap_signer::run(context)),
    }
}

/// Lowers the priority of the calling thread; where that cannot be, work goes on as it is.
// threat: pending-requests-flood
fn be_nice() {
    // On Linux "the calling process" is the calling thread.
    #[cfg(target_os = "linux")]
    rustix::process::setpriority_process(None, NICE).ok();
}

/// Runs the controllers of every cluster.
pub(super) struct ControllerRunner {
    pub(super) live: Arc<Live>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
}

/// The running controllers of a cluster.
struct RunningControllers {
    of: ClusterControllers,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl RunningControllers {
    /// Ends the work, gives the lease up.
    async fn end(self) {
        self.stop.cancel();
        // It ends by itself, or has panicked and was logged.
        self.task.await.ok();
    }
}

impl ControllerRunner {
    /// Starts the thread. When the server drains, all controllers end and give their leases up, and what is returned
    /// tells of it; when it aborts, they are gone at once.
    pub(super) fn start(self, mut phase: watch::Receiver<ShutdownPhase>) -> io::Result<Receiver<()>> {
        let workers = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("controllers")
            .on_thread_start(be_nice)
            .enable_all()
            .build()?;
        let (ended, ending) = channel();
        RuntimeThread::new()?.start("leases", async move || {
            let mut aborted = phase.clone();
            tokio::select! {
                () = self.follow(&mut phase, workers.handle()) => {}
                _ = aborted.wait_for(|phase| *phase == ShutdownPhase::Abort) => {}
            }
            // Not waited for: a signature in progress may take any time.
            workers.shutdown_background();
            ended.send(()).ok();
        })?;
        Ok(ending)
    }

    /// Runs what is to run, until the server drains.
    async fn follow(self, phase: &mut watch::Receiver<ShutdownPhase>, workers: &Handle) {
        let mut at_work: BTreeMap<Arc<str>, RunningControllers> = BTreeMap::new();
        let mut ending = JoinSet::new();
        let mut generations = self.live.subscribe();
        loop {
            let snapshot = self.live.snapshot();
            let mut before = std::mem::take(&mut at_work);
            for of in snapshot.clusters().iter().filter_map(|cluster| cluster.controllers.clone()) {
                let known = before.remove(&of.cluster);
                let next = match known {
                    Some(known) if known.of.is_unchanged_from(&of) => known,
                    known => self.begin(of, known, workers.clone()),
                };
                at_work.insert(Arc::clone(&next.of.cluster), next);
            }
            for (cluster, gone) in before {
                info!(cluster = &*cluster, "controllers end");
                ending.spawn(gone.end());
            }
            while ending.try_join_next().is_some() {}
            drop(snapshot);
            tokio::select! {
                Ok(()) = generations.changed() => {}
                _ = phase.wait_for(|phase| *phase >= ShutdownPhase::NotReady) => break,
            }
        }
        // Those that were ended just before give their leases up, too.
        for left in at_work.into_values() {
            ending.spawn(left.end());
        }
        while ending.join_next().await.is_some() {}
    }

    /// Begins a cluster's work, once what was there before has ended: without a lease nothing else keeps them apart.
    fn begin(
        &self,
        of: ClusterControllers,
        before: Option<RunningControllers>,
        workers: Handle,
    ) -> RunningControllers {
        let stop = CancellationToken::new();
        let (metrics, clock) = (Arc::clone(&self.metrics), self.clock.clone());
        let (next, until) = (of.clone(), stop.clone());
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                before.end().await;
            }
            next.run(metrics, clock, start, until, workers).await;
        });
        RunningControllers { of, stop, task }
    }
}
