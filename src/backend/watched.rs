//! Objects of a cluster that the gateway watches for itself: a cache that says nothing once it may be stale, and the reflector
//! that keeps it up to date.

pub(crate) mod reflector;
pub(crate) mod watch_cache;

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::backend::Backend;
use crate::metrics::Metrics;
use crate::tasks::{MAX_RESTART_BACKOFF, Supervisor};
use reflector::Reflector;
use watch_cache::Cacheable;

/// Runs a reflector on `runtime`, from the moment that an endpoint of `backend` has passed the self-check.
pub(crate) fn spawn<K, V>(
    reflector: Reflector<K, V>,
    backend: &Arc<Backend>,
    runtime: &Handle,
    metrics: &Arc<Metrics>,
) -> AbortHandle
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + Sync + 'static,
    V: Cacheable + Send + Sync + 'static,
{
    let (backend, metrics) = (Arc::clone(backend), Arc::clone(metrics));
    let (is_of_tenant, share) = (backend.is_of_tenant(), backend.caches().clone());
    let watch = async move {
        // No request goes to an endpoint that has not passed the self-check.
        backend.until_trusted().await;
        let supervisor = Supervisor {
            cluster: Some(&reflector.cluster),
            metrics: &metrics,
            stop: None,
            max_backoff: MAX_RESTART_BACKOFF,
        };
        supervisor.run(reflector.resource, || reflector.run(is_of_tenant, &share)).await;
    };
    runtime.spawn(watch).abort_handle()
}
