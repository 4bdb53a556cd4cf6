//! The optional controllers of `portcullis serve`: one set for each cluster.
//!
//! A controller is an async function `run(ControllerContext) -> Infallible`: it reads and writes objects of one cluster
//! and never returns. `server/controllers.rs` maps names to functions. Every controller must obey these rules:
//! - It runs on one replica at a time (`election`). When the replica loses the lease or the gateway drains, the future
//!   is dropped at an await. So every write is a single request with the `resourceVersion` of the read, and code on
//!   another thread (`spawn_blocking`) never writes. A write in flight gets a short time to complete
//!   (`ControllerContext::writes`).
//! - It must not block: it shares threads with the controllers of all clusters. The elector renews the lease on another
//!   thread, over its own connections.
//! - It may panic: the caller logs and counts the panic, and calls the function again after a back-off.
//! - It handles its own failures: it logs them and retries. `worker` provides the watch, the queue and the loop.

mod api_version;
pub(crate) mod bootstrap_signer;
mod bounded_store;
pub(crate) mod csr;
mod election;
mod expiration;
mod name;
pub(crate) mod pod_certificates;
mod problems;
pub(crate) mod queue;
mod request_feed;
pub(crate) mod settings;
pub(crate) mod signing_log;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod token_cleaner;
pub(crate) mod token_keys;
pub(crate) mod trust_bundles;
pub(crate) mod worker;

use std::convert::Infallible;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use portcullis_limits::cache_budget::CacheShare;
use portcullis_system::clock::Clock;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use crate::backend::Backend;
use crate::backend::bounded_client::bounded;
use crate::backend::kube_client;
use crate::metrics::Metrics;
use crate::tasks::{MAX_RESTART_BACKOFF, Supervisor};
use bounded_store::{MAX_BYTES, MAX_TENANT_BYTES};
use election::StopSignal;
pub(crate) use name::selected;
use problems::ProblemLog;
use settings::{ControllerName, ControllerSettings};

/// The dependencies of a controller. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ControllerContext {
    /// The cluster's name, for logs and metrics.
    pub(crate) cluster: Arc<str>,
    /// The identity of this replica in leader election.
    pub(crate) identity: Arc<str>,
    /// A client of the cluster's API server, as `system:portcullis`.
    pub(crate) client: kube::Client,
    /// The settings of this cluster's controllers.
    pub(crate) settings: Arc<ControllerSettings>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
    /// The writes in flight; closed when no further write may begin.
    pub(crate) writes: TaskTracker,
    /// Held while a page of a list is in memory; one page per cluster.
    pub(crate) lists: Arc<Semaphore>,
    /// The memory of the objects of one resource that a controller watches.
    pub(crate) max_stored_bytes: usize,
    /// What they may take of the caches of the cluster.
    pub(crate) caches: CacheShare,
    /// The problems that were logged and persist.
    pub(crate) problems: Arc<ProblemLog>,
}

impl ControllerContext {
    /// The context for `of`. Its connections live on the current runtime.
    fn new(of: &ClusterControllers, identity: &Arc<str>, metrics: &Arc<Metrics>, clock: &Clock) -> Self {
        Self {
            cluster: Arc::clone(&of.cluster),
            identity: Arc::clone(identity),
            client: bounded(kube_client::client(&of.backend)),
            settings: Arc::clone(&of.settings),
            metrics: Arc::clone(metrics),
            clock: clock.clone(),
            writes: TaskTracker::new(),
            lists: Arc::new(Semaphore::new(1)),
            caches: of.backend.caches().clone(),
            max_stored_bytes: if of.backend.is_of_tenant() { MAX_TENANT_BYTES } else { MAX_BYTES },
            problems: Arc::default(),
        }
    }
}

impl std::fmt::Debug for ControllerContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControllerContext").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

/// Starts the controller of a name.
pub(crate) type StartController = fn(ControllerName, ControllerContext) -> BoxFuture<'static, Infallible>;

/// The controllers of one cluster.
#[derive(Debug, Clone)]
pub(crate) struct ClusterControllers {
    /// The name of the cluster.
    pub(crate) cluster: Arc<str>,
    /// The backend of the cluster.
    pub(crate) backend: Arc<Backend>,
    /// The settings of the controllers.
    pub(crate) settings: Arc<ControllerSettings>,
}

impl ClusterControllers {
    /// Whether controllers that run for `self` can keep running for `other`.
    pub(crate) fn is_unchanged_from(&self, other: &Self) -> bool {
        self.cluster == other.cluster
            && Arc::ptr_eq(&self.backend, &other.backend)
            && self.settings == other.settings
    }

    /// Waits until the API server is trusted, then runs the controllers on `workers` while this replica leads. On
    /// `stop` it releases the lease and returns. The calling runtime renews the lease and must not be that of
    /// `workers`.
    pub(crate) async fn run(
        self,
        metrics: Arc<Metrics>,
        clock: Clock,
        start: StartController,
        stop: CancellationToken,
        workers: Handle,
    ) {
        tokio::select! {
            () = self.lead(&metrics, clock, start, stop, &workers) => {}
            never = token_keys::follow(&self.cluster, &self.settings, &metrics, &workers) => match never {},
        }
    }

    async fn lead(
        &self,
        metrics: &Arc<Metrics>,
        clock: Clock,
        start: StartController,
        stop: CancellationToken,
        workers: &Handle,
    ) {
        if stop.run_until_cancelled(self.backend.until_trusted()).await.is_none() {
            return;
        }
        let identity = identity().into();
        let context = ControllerContext::new(self, &identity, metrics, &clock);
        let of_work = {
            let (of, metrics, clock) = (self.clone(), Arc::clone(metrics), clock.clone());
            workers.spawn(async move { ControllerContext::new(&of, &identity, &metrics, &clock) }).await
        };
        // The task fails only when the runtime of `workers` shuts down.
        let Ok(of_work) = of_work else { return };
        let supervisor = Supervisor {
            cluster: Some(&self.cluster),
            metrics,
            stop: Some(&stop),
            max_backoff: MAX_RESTART_BACKOFF,
        };
        let work = |stopping| work_on(workers, of_work.clone(), start, stopping);
        supervisor.run("leader election", || election::lead(&context, &stop, work)).await;
    }
}

/// Runs all controllers of a cluster on another runtime until `stopping`, and waits until they have stopped.
async fn work_on(
    workers: &Handle,
    context: ControllerContext,
    start: StartController,
    mut stopping: StopSignal,
) {
    let (writes, stopped) = (TaskTracker::new(), CancellationToken::new());
    let context = ControllerContext { writes: writes.clone(), ..context };
    let stop = stopped.clone();
    let working = workers.spawn(async move { work(&context, start, &stop).await });
    // Also stops the controllers when this future is dropped.
    let _abort = AbortOnDrop(working.abort_handle());
    let grace = stopping.requested().await;
    stopped.cancel();
    writes.close();
    // Writes in flight get their response, and their line in the log.
    timeout(grace, writes.wait()).await.ok();
    working.abort();
    working.await.ok();
}

/// Aborts a task on drop.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs all controllers of a cluster; restarts each one that panics.
async fn work(context: &ControllerContext, start: StartController, stop: &CancellationToken) {
    let supervisor = Supervisor {
        cluster: Some(&context.cluster),
        metrics: &context.metrics,
        stop: Some(stop),
        max_backoff: MAX_RESTART_BACKOFF,
    };
    let names: Vec<&str> = context.settings.names.iter().map(|name| name.alias()).collect();
    info!(cluster = &*context.cluster, controllers = names.join(","), "controllers started");
    let each = context.settings.names.iter().map(|name| {
        supervisor.run(name.alias(), move || start(*name, context.clone()).map(|never| match never {}))
    });
    join_all(each).await;
}

/// The host name and a unique suffix, as in kube-controller-manager.
// kubernetes: cmd/kube-controller-manager/app/controllermanager.go, Run
fn identity() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}_{}", uuid::Uuid::new_v4())
}
