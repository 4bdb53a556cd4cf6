//! The controllers that `portcullis serve` runs beside the gateway if it is asked to: one set for each cluster.
//!
//! A controller is an async function `run(Context) -> Infallible`: it reads and writes objects of one cluster and never
//! ends by itself. Which name stands for which function is told in `server/controllers.rs`. What a controller must keep:
//! - It works on one replica at a time (`election`); when the lease is lost or the gateway drains, its future is
//!   dropped between two awaits. So every write is one request, under the `resourceVersion` that was read, and what runs
//!   on another thread (`spawn_blocking`) writes nothing itself. A write in flight has a moment to end
//!   (`Context::writes`).
//! - It must not block: it shares threads with the controllers of all clusters. The lease is renewed on another thread,
//!   over connections of its own.
//! - A panic is caught, logged and counted, and the function is called again after a while.
//! - Failures are its own: it logs them and tries again. `worker` has the watch, the queue and the loop for that.

pub(crate) mod bootstrap_signer;
mod client;
pub(crate) mod csr;
mod election;
mod name;
mod problems;
pub(crate) mod queue;
pub mod settings;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod token_cleaner;
pub(crate) mod worker;

use std::convert::Infallible;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use crate::backend::Backend;
use crate::backend::kube_client;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::tasks::Supervisor;
use election::Stop;
pub(crate) use name::selected;
use problems::ProblemLog;
use settings::{Controllers, Name};

/// What a controller works with. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    /// The cluster's name, for logs and metrics.
    pub(crate) cluster: Arc<str>,
    /// This replica, among those that may lead.
    pub(crate) identity: Arc<str>,
    /// Speaks to its API server as `system:portcullis`.
    pub(crate) client: kube::Client,
    /// What the controllers of this cluster run by.
    pub(crate) settings: Arc<Controllers>,
    /// What is counted.
    pub(crate) metrics: Arc<Metrics>,
    /// Tells what has expired.
    pub(crate) clock: Clock,
    /// The writes in flight; closed once none is to begin.
    pub(crate) writes: TaskTracker,
    /// Held while a page of a list is in memory.
    pub(crate) lists: Arc<Semaphore>,
    /// What was logged and is not over yet.
    pub(crate) problems: Arc<ProblemLog>,
}

impl Context {
    /// One whose connections live on the runtime that this is called within.
    fn new(of: &ClusterControllers, identity: &Arc<str>, metrics: &Arc<Metrics>, clock: &Clock) -> Self {
        Self {
            cluster: Arc::clone(&of.cluster),
            identity: Arc::clone(identity),
            client: client::bounded(kube_client::client(&of.backend)),
            settings: Arc::clone(&of.settings),
            metrics: Arc::clone(metrics),
            clock: clock.clone(),
            writes: TaskTracker::new(),
            lists: Arc::new(Semaphore::new(1)),
            problems: Arc::default(),
        }
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

/// Calls the function that a name stands for.
pub(crate) type Start = fn(Name, Context) -> BoxFuture<'static, Infallible>;

/// The controllers of one cluster.
#[derive(Debug, Clone)]
pub(crate) struct ClusterControllers {
    /// Its name.
    pub(crate) cluster: Arc<str>,
    /// Its API server.
    pub(crate) backend: Arc<Backend>,
    /// What they run by.
    pub(crate) settings: Arc<Controllers>,
}

impl ClusterControllers {
    /// Whether the controllers that run for `self` can go on for `other`.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.cluster == other.cluster
            && Arc::ptr_eq(&self.backend, &other.backend)
            && self.settings == other.settings
    }

    /// Runs them on `workers` once the API server is trusted and for as long as this replica leads, until `stop`; gives
    /// the lease up then. Must be called within another runtime, which renews the lease.
    pub(crate) async fn run(
        self,
        metrics: Arc<Metrics>,
        clock: Clock,
        start: Start,
        stop: CancellationToken,
        workers: Handle,
    ) {
        if stop.run_until_cancelled(self.backend.until_trusted()).await.is_none() {
            return;
        }
        let identity = identity().into();
        let context = Context::new(&self, &identity, &metrics, &clock);
        let of_work = {
            let (of, metrics, clock) = (self.clone(), Arc::clone(&metrics), clock.clone());
            workers.spawn(async move { Context::new(&of, &identity, &metrics, &clock) }).await
        };
        // It fails only when that runtime ends, and all with it.
        let Ok(of_work) = of_work else { return };
        let supervisor = Supervisor { cluster: Some(&self.cluster), metrics: &metrics, stop: Some(&stop) };
        let work = |stopping| work_on(&workers, of_work.clone(), start, stopping);
        supervisor.run("leader election", || election::lead(&context, &stop, work)).await;
    }
}

/// All controllers of a cluster, at work on another runtime until they are to stop, and until they have.
async fn work_on(workers: &Handle, context: Context, start: Start, mut stopping: Stop) {
    let (writes, stopped) = (TaskTracker::new(), CancellationToken::new());
    let context = Context { writes: writes.clone(), ..context };
    let resting = stopped.clone();
    let working = workers.spawn(async move { work(&context, start, &resting).await });
    // When this is dropped, too.
    let _abort = AbortOnDrop(working.abort_handle());
    let grace = stopping.asked().await;
    stopped.cancel();
    writes.close();
    // What was written has its answer, and its line in the log.
    timeout(grace, writes.wait()).await.ok();
    working.abort();
    working.await.ok();
}

/// Ends a task that would otherwise go on by itself.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// All controllers of a cluster, each kept at work.
async fn work(context: &Context, start: Start, stop: &CancellationToken) {
    let supervisor =
        Supervisor { cluster: Some(&context.cluster), metrics: &context.metrics, stop: Some(stop) };
    let names: Vec<&str> = context.settings.names.iter().map(|name| name.alias()).collect();
    info!(cluster = &*context.cluster, controllers = names.join(","), "controllers begin");
    let each = context.settings.names.iter().map(|name| {
        supervisor.run(name.alias(), move || start(*name, context.clone()).map(|never| match never {}))
    });
    join_all(each).await;
}

/// The host's name and something unique, as in client-go's users.
// kubernetes: cmd/kube-controller-manager/app/controllermanager.go, Run
fn identity() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}_{}", uuid::Uuid::new_v4())
}
