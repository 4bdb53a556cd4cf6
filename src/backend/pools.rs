//! The connections of one worker thread: a pool for each endpoint, and the order in which endpoints are tried.

use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Request, Response};

use super::pool::{Pool, SendError, Sent, Upgrading};
use super::shares::{Full, Place, ShareLimits, Shares};
use super::sharing::Kind;
use crate::backend::endpoint::Target;
use crate::backend::upstream::Upstream;
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
    known: Mutex<Known>,
    reading: Shares<IpAddr>,
}

impl Default for Pools {
    fn default() -> Self {
        Self { known: Mutex::default(), reading: Shares::new(READING) }
    }
}

#[derive(Debug, Default)]
struct Known {
    generation: u64,
    /// The endpoints of that generation.
    used: Vec<Arc<Target>>,
    pools: Vec<Arc<Pool>>,
}

impl Pools {
    /// Forgets, once for each generation of the configuration, the endpoints that are no longer in it. Streams that
    /// are open go on to their end.
    pub(crate) fn keep<'a>(&self, generation: u64, used: impl Iterator<Item = &'a Arc<Target>>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // A request that began before a reload may come by after it.
        if generation <= known.generation {
            return;
        }
        let Known { used: kept, pools, .. } = &mut *known;
        *kept = used.map(Arc::clone).collect();
        pools.retain(|pool| contains(kept, pool.target()));
        known.generation = generation;
    }

    fn of(&self, target: &Arc<Target>) -> Arc<Pool> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = known.pools.iter().find(|pool| Arc::ptr_eq(pool.target(), target)) {
            return Arc::clone(pool);
        }
        let pool = Pool::new(Arc::clone(target));
        // A request that began before a reload has a pool to itself: nobody else would come to use its connections.
        if contains(&known.used, target) {
            known.pools.push(Arc::clone(&pool));
        }
        pool
    }

    /// Sends a request. It is tried again on another connection when none of it was written; whether it may be sent
    /// twice is the caller's to know.
    pub(crate) async fn send(
        &self,
        upstream: &Upstream,
        mut request: Box<Request<Body>>,
        kind: Kind<'_>,
    ) -> Result<Response<Body>, SendError> {
        let mut left: Option<usize> = None;
        loop {
            let (pool, lease) = self
                .first(upstream, |pool| async move {
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
    pub(crate) async fn room_to_read(&self, client: IpAddr, bytes: u64) -> Result<Place, SendError> {
        let weight = u32::try_from(bytes.div_ceil(1 << 10)).map_err(|_| SendError::Busy)?;
        self.reading.acquire(client, weight).await.map_err(|Full| SendError::Busy)
    }

    /// A connection for one upgrade.
    pub(crate) async fn upgrading(
        &self,
        upstream: &Upstream,
        kind: Kind<'_>,
    ) -> Result<Upgrading, SendError> {
        self.first(upstream, |pool| async move { pool.upgrading(kind).await }).await
    }

    /// What the first endpoint gives that can be reached.
    async fn first<T, F>(&self, upstream: &Upstream, reserve: impl Fn(Arc<Pool>) -> F) -> Result<T, SendError>
    where
        F: Future<Output = Result<T, SendError>>,
    {
        // That one cannot be reached at all says more than that it could not be checked.
        let trouble = upstream.targets().iter().find_map(|target| target.last_trouble());
        let mut outcome = Err(trouble.map_or(SendError::NotTrusted, SendError::Connect));
        for target in upstream.candidates() {
            outcome = reserve(self.of(target)).await;
            match &outcome {
                Err(SendError::Connect(error)) => tracing::debug!(%error, "endpoint passed over"),
                _ => break,
            }
        }
        outcome
    }
}

fn contains(targets: &[Arc<Target>], target: &Arc<Target>) -> bool {
    targets.iter().any(|one| Arc::ptr_eq(one, target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::upstream::testing::upstream;

    #[test]
    fn nothing_is_kept_of_endpoints_that_are_no_longer_configured() {
        let (before, after) = (upstream(), upstream());
        let target = &before.targets()[0];
        let pools = Pools::default();
        pools.keep(1, before.targets().iter());
        let kept = pools.of(target);
        assert!(Arc::ptr_eq(&kept, &pools.of(target)), "requests share it");
        pools.keep(2, after.targets().iter());
        // A request that began before the reload.
        assert!(!Arc::ptr_eq(&kept, &pools.of(target)));
        pools.keep(1, before.targets().iter());
        assert!(pools.known.lock().unwrap().pools.is_empty());
    }
}
