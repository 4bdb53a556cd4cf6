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

use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::clock::Clock;
use crate::controllers::settings::ControllerName;
use crate::controllers::{ClusterControllers, ControllerContext, bootstrap_signer, csr, token_cleaner};
use crate::listener::Drain;
use crate::metrics::Metrics;
use crate::state::snapshot::Snapshot;

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

/// What controllers are run by.
pub(super) struct Running {
    /// Says which are to run.
    pub(super) current: Arc<ArcSwap<Snapshot>>,
    /// Tells of each new snapshot.
    pub(super) swapped: Arc<Notify>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
}

/// The controllers of a cluster, at work.
struct AtWork {
    of: ClusterControllers,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl AtWork {
    /// Ends the work, gives the lease up.
    async fn end(self) {
        self.stop.cancel();
        // It ends by itself, or has panicked and was logged.
        self.task.await.ok();
    }
}

impl Running {
    /// Starts the thread. When the server drains, all controllers end and give their leases up, and what is returned
    /// tells of it; when it aborts, they are gone at once.
    pub(super) fn start(self, mut drain: watch::Receiver<Drain>) -> io::Result<Receiver<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let workers = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("controllers")
            .on_thread_start(be_nice)
            .enable_all()
            .build()?;
        let (ended, ending) = channel();
        std::thread::Builder::new().name("leases".to_owned()).spawn(move || {
            let mut aborted = drain.clone();
            runtime.block_on(async {
                tokio::select! {
                    () = self.follow(&mut drain, workers.handle()) => {}
                    _ = aborted.wait_for(|phase| *phase == Drain::Abort) => {}
                }
            });
            // A signature in the making may take as long as it likes: nobody waits for it.
            workers.shutdown_background();
            ended.send(()).ok();
        })?;
        Ok(ending)
    }

    /// Runs what is to run, until the server drains.
    async fn follow(self, drain: &mut watch::Receiver<Drain>, workers: &Handle) {
        let mut at_work: BTreeMap<Arc<str>, AtWork> = BTreeMap::new();
        let mut ending = JoinSet::new();
        loop {
            let wanted = self.current.load().controllers.clone();
            let mut before = std::mem::take(&mut at_work);
            for of in wanted {
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
            tokio::select! {
                () = self.swapped.notified() => {}
                _ = drain.wait_for(|phase| *phase >= Drain::Leaving) => break,
            }
        }
        // Those that were ended just before give their leases up, too.
        for left in at_work.into_values() {
            ending.spawn(left.end());
        }
        while ending.join_next().await.is_some() {}
    }

    /// Begins a cluster's work, once what was there before has ended: without a lease nothing else keeps them apart.
    fn begin(&self, of: ClusterControllers, before: Option<AtWork>, workers: Handle) -> AtWork {
        let stop = CancellationToken::new();
        let (metrics, clock) = (Arc::clone(&self.metrics), self.clock.clone());
        let (next, until) = (of.clone(), stop.clone());
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                before.end().await;
            }
            next.run(metrics, clock, start, until, workers).await;
        });
        AtWork { of, stop, task }
    }
}
