//! The connections of one worker thread: a pool for each endpoint, and the order in which endpoints are tried.

use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Request, Response};

use super::pool::{Pool, SendError, Sent, Upgrading};
use super::shares::{FairShares, ShareLimits, SharePermit, SharesExhausted};
use super::sharing::SharingClass;
use crate::backend::Backend;
use crate::backend::endpoint::Endpoint;
use crate::http::body::Body;

/// Bodies of anonymous requests that are read before they are sent, in KiB.
const READING: ShareLimits = ShareLimits {
    places: 64 << 10,
    places_per_client: 8 << 10,
    queue: 512,
    queue_per_client: 128,
    wait: Duration::from_secs(5),
};

/// A pool for each endpoint that was used.
#[derive(Debug)]
pub(crate) struct Pools {
    known: Mutex<KnownPools>,
    reading: FairShares<IpAddr>,
}

impl Default for Pools {
    fn default() -> Self {
        Self { known: Mutex::default(), reading: FairShares::new(READING) }
    }
}

#[derive(Debug, Default)]
struct KnownPools {
    generation: u64,
    /// The endpoints of that generation.
    used: Vec<Arc<Endpoint>>,
    pools: Vec<Arc<Pool>>,
}

impl Pools {
    /// Forgets, once for each generation of the configuration, the endpoints that are no longer in it. Streams that
    /// are open go on to their end.
    pub(crate) fn keep<'a>(&self, generation: u64, used: impl Iterator<Item = &'a Arc<Endpoint>>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // A request that began before a reload may come by after it.
        if generation <= known.generation {
            return;
        }
        let KnownPools { used: kept, pools, .. } = &mut *known;
        *kept = used.map(Arc::clone).collect();
        pools.retain(|pool| contains(kept, pool.endpoint()));
        known.generation = generation;
    }

    fn of(&self, endpoint: &Arc<Endpoint>) -> Arc<Pool> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = known.pools.iter().find(|pool| Arc::ptr_eq(pool.endpoint(), endpoint)) {
            return Arc::clone(pool);
        }
        let pool = Pool::new(Arc::clone(endpoint));
        // A request that began before a reload has a pool to itself: nobody else would come to use its connections.
        if contains(&known.used, endpoint) {
            known.pools.push(Arc::clone(&pool));
        }
        pool
    }

    /// Sends a request. It is tried again on another connection when none of it was written; whether it may be sent
    /// twice is the caller's to know.
    pub(crate) async fn send(
        &self,
        backend: &Backend,
        mut request: Box<Request<Body>>,
        kind: SharingClass<'_>,
    ) -> Result<Response<Body>, SendError> {
        let mut left: Option<usize> = None;
        loop {
            let (pool, lease) = self
                .first(backend, |pool| async move {
                    let lease = pool.reserve(kind).await?;
                    Ok((pool, lease))
                })
                .await?;
            let (unsent, error) = match pool.send(lease, request).await? {
                Sent::Answered(response) => return Ok(response),
                Sent::NotWritten(request, error) => (request, error),
            };
            // Any that there are may have been closed since they were used, as all are when the API server ends.
            let attempts = left.unwrap_or_else(|| pool.open(kind) + 1);
            if attempts == 0 {
                return Err(SendError::Broken(error));
            }
            left = Some(attempts - 1);
            request = unsent;
        }
    }

    /// Room for so many bytes of an anonymous request's body, while it comes.
    pub(crate) async fn room_to_read(&self, client: IpAddr, bytes: u64) -> Result<SharePermit, SendError> {
        let weight = u32::try_from(bytes.div_ceil(1 << 10)).map_err(|_| SendError::Busy)?;
        self.reading.acquire(client, weight).await.map_err(|SharesExhausted| SendError::Busy)
    }

    /// A connection for one upgrade.
    pub(crate) async fn upgrading(
        &self,
        backend: &Backend,
        kind: SharingClass<'_>,
    ) -> Result<Upgrading, SendError> {
        self.first(backend, |pool| async move { pool.upgrading(kind).await }).await
    }

    /// What the first endpoint gives that can be reached.
    async fn first<T, F>(&self, backend: &Backend, reserve: impl Fn(Arc<Pool>) -> F) -> Result<T, SendError>
    where
        F: Future<Output = Result<T, SendError>>,
    {
        // That one cannot be reached at all says more than that it could not be checked.
        let trouble = backend.endpoints().iter().find_map(|endpoint| endpoint.last_error());
        let mut outcome = Err(trouble.map_or(SendError::NotTrusted, SendError::Connect));
        for endpoint in backend.candidates() {
            outcome = reserve(self.of(endpoint)).await;
            match &outcome {
                Err(SendError::Connect(error)) => tracing::debug!(%error, "endpoint passed over"),
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
    fn nothing_is_kept_of_endpoints_that_are_no_longer_configured() {
        let (before, after) = (backend(), backend());
        let endpoint = &before.endpoints()[0];
        let pools = Pools::default();
        pools.keep(1, before.endpoints().iter());
        let kept = pools.of(endpoint);
        assert!(Arc::ptr_eq(&kept, &pools.of(endpoint)), "requests share it");
        pools.keep(2, after.endpoints().iter());
        // A request that began before the reload.
        assert!(!Arc::ptr_eq(&kept, &pools.of(endpoint)));
        pools.keep(1, before.endpoints().iter());
        assert!(pools.known.lock().unwrap().pools.is_empty());
    }
}
