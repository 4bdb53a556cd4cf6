//! The connections of one worker thread: a pool per endpoint, failover between endpoints, and retries of requests that
//! were not written.

use std::future::Future;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};

use super::pool::{Pool, SendError, SendOutcome, UpgradeConnection};
use super::shares::{FairShares, ShareLimits, SharePermit, SharesExhausted};
use super::sharing::SharingClass;
use crate::backend::Backend;
use crate::backend::endpoint::Endpoint;
use crate::http::body::Body;
use crate::sync::lock;

/// Bodies of anonymous requests, which are read completely before they are sent, in KiB.
const BODY_BUFFER_LIMITS: ShareLimits = ShareLimits {
    permits: 64 << 10,
    permits_per_client: 8 << 10,
    queue: 512,
    queue_per_client: 128,
    queue_timeout: Duration::from_secs(5),
};

/// A pool for each endpoint in use.
#[derive(Debug)]
pub(crate) struct Pools {
    /// The generation of `current`, to be read without its lock.
    generation: AtomicU64,
    current: Mutex<KnownPools>,
    body_buffers: FairShares<IpAddr>,
}

impl Default for Pools {
    fn default() -> Self {
        Self {
            generation: AtomicU64::new(0),
            current: Mutex::default(),
            body_buffers: FairShares::new(BODY_BUFFER_LIMITS),
        }
    }
}

#[derive(Debug, Default)]
struct KnownPools {
    generation: u64,
    /// The endpoints of that generation.
    endpoints: Vec<Arc<Endpoint>>,
    pools: Vec<Arc<Pool>>,
}

impl Pools {
    /// Drops, once per generation of the configuration, the pools of endpoints that are no longer in it. Open streams
    /// continue to their end. Costs one load when the generation is known.
    pub(crate) fn retain_endpoints<'a>(
        &self,
        generation: u64,
        endpoints: impl Iterator<Item = &'a Arc<Endpoint>>,
    ) {
        if generation <= self.generation.load(Ordering::Acquire) {
            return;
        }
        let mut known = lock(&self.current);
        // Never back to an older generation.
        if generation <= known.generation {
            return;
        }
        let KnownPools { endpoints: current, pools, .. } = &mut *known;
        *current = endpoints.map(Arc::clone).collect();
        pools.retain(|pool| contains(current, pool.endpoint()));
        known.generation = generation;
        self.generation.store(generation, Ordering::Release);
    }

    fn of(&self, endpoint: &Arc<Endpoint>) -> Arc<Pool> {
        let mut known = lock(&self.current);
        if let Some(pool) = known.pools.iter().find(|pool| Arc::ptr_eq(pool.endpoint(), endpoint)) {
            return Arc::clone(pool);
        }
        let pool = Pool::new(Arc::clone(endpoint));
        // A request of an older generation gets a pool that is not kept: no later request would use its connections.
        if contains(&known.endpoints, endpoint) {
            known.pools.push(Arc::clone(&pool));
        }
        pool
    }

    /// Sends a request. Tries another connection if nothing of the request was written; a request of which a part was
    /// written is for the caller to retry.
    pub(crate) async fn send(
        &self,
        backend: &Backend,
        mut request: Box<Request<Body>>,
        class: SharingClass<'_>,
    ) -> Result<Response<Body>, SendError> {
        let mut attempts_left: Option<usize> = None;
        loop {
            let (pool, connection) = self
                .first_reachable(backend, |pool| async move {
                    let connection = pool.reserve(class).await?;
                    Ok((pool, connection))
                })
                .await?;
            let (unsent, error) = match pool.send(connection, request).await? {
                SendOutcome::Response(response) => return Ok(response),
                SendOutcome::NotWritten(request, error) => (request, error),
            };
            // All idle connections may have been closed, as they are when the API server restarts.
            let attempts = attempts_left.unwrap_or_else(|| pool.open_connections(class) + 1);
            if attempts == 0 {
                return Err(SendError::Broken(error));
            }
            attempts_left = Some(attempts - 1);
            request = unsent;
        }
    }

    /// Reserves memory for the body of an anonymous request while it is read and until it is sent.
    pub(crate) async fn reserve_body_buffer(
        &self,
        client: IpAddr,
        bytes: u64,
    ) -> Result<SharePermit, SendError> {
        let weight = u32::try_from(bytes.div_ceil(1 << 10)).map_err(|_| SendError::Busy)?;
        self.body_buffers.acquire(client, weight).await.map_err(|SharesExhausted| SendError::Busy)
    }

    /// Connects for one upgrade.
    pub(crate) async fn connect_for_upgrade(
        &self,
        backend: &Backend,
        class: SharingClass<'_>,
    ) -> Result<UpgradeConnection, SendError> {
        self.first_reachable(backend, |pool| async move { pool.connect_for_upgrade(class).await }).await
    }

    /// Calls `reserve` with the pools of the trusted endpoints in turn, until one can be connected to.
    async fn first_reachable<T, F>(
        &self,
        backend: &Backend,
        reserve: impl Fn(Arc<Pool>) -> F,
    ) -> Result<T, SendError>
    where
        F: Future<Output = Result<T, SendError>>,
    {
        // A connection error tells the operator more than "not trusted".
        let last_error = backend.endpoints().iter().find_map(|endpoint| endpoint.last_error());
        let mut outcome = Err(last_error.map_or(SendError::NotTrusted, SendError::Connect));
        for endpoint in backend.candidates() {
            outcome = reserve(self.of(endpoint)).await;
            match &outcome {
                Err(SendError::Connect(error)) => tracing::debug!(%error, "endpoint skipped"),
                _ => break,
            }
        }
        outcome
    }
}

fn contains(endpoints: &[Arc<Endpoint>], endpoint: &Arc<Endpoint>) -> bool {
    endpoints.iter().any(|one| Arc::ptr_eq(one, endpoint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::testing::backend;

    #[test]
    fn pools_of_removed_endpoints_are_dropped() {
        let (before, after) = (backend(), backend());
        let endpoint = &before.endpoints()[0];
        let pools = Pools::default();
        pools.retain_endpoints(1, before.endpoints().iter());
        let kept = pools.of(endpoint);
        assert!(Arc::ptr_eq(&kept, &pools.of(endpoint)), "requests share it");
        pools.retain_endpoints(2, after.endpoints().iter());
        // A request of the generation before.
        assert!(!Arc::ptr_eq(&kept, &pools.of(endpoint)));
        pools.retain_endpoints(1, before.endpoints().iter());
        assert!(pools.current.lock().unwrap().pools.is_empty());
    }
}
