//! A concurrency limit with fair shares: a limit on weighted requests in progress and in the queue, for all clients and
//! for each one. A client that has used up its share waits behind its own requests, and delays no other client.

// threat: anonymous-lockout

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use portcullis_system::sync::lock;

/// The limits of a [`FairShares`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShareLimits {
    /// The total weight of the requests in progress.
    pub(crate) permits: usize,
    /// The same for one client.
    pub(crate) permits_per_client: usize,
    /// The number of waiting requests.
    pub(crate) queue: usize,
    /// The same for one client.
    pub(crate) queue_per_client: usize,
    /// How long a request waits.
    pub(crate) queue_timeout: Duration,
}

/// Limits concurrent requests; `K` identifies a client.
pub(crate) struct FairShares<K> {
    limits: ShareLimits,
    permits: Arc<Semaphore>,
    queue: Semaphore,
    clients: Mutex<HashMap<K, Arc<ClientShare>>>,
}

/// The share of one client.
struct ClientShare {
    permits: Arc<Semaphore>,
    queue: Semaphore,
}

/// The permits of one request, released on drop.
#[derive(Debug)]
pub(crate) struct SharePermit {
    _own: OwnedSemaphorePermit,
    _shared: OwnedSemaphorePermit,
}

/// The queue is full, or no permit became free in time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SharesExhausted;

impl<K: Hash + Eq> FairShares<K> {
    pub(crate) fn new(limits: ShareLimits) -> Self {
        Self {
            limits,
            permits: Arc::new(Semaphore::new(limits.permits)),
            queue: Semaphore::new(limits.queue),
            clients: Mutex::default(),
        }
    }

    /// As many permits as the request weighs, if they are free.
    pub(crate) fn try_acquire(&self, client: K, weight: u32) -> Result<SharePermit, SharesExhausted> {
        self.try_acquire_in(&self.share_of(client), weight).ok_or(SharesExhausted)
    }

    fn try_acquire_in(&self, share: &ClientShare, weight: u32) -> Option<SharePermit> {
        let own = Arc::clone(&share.permits).try_acquire_many_owned(weight).ok()?;
        let shared = Arc::clone(&self.permits).try_acquire_many_owned(weight).ok()?;
        Some(SharePermit { _own: own, _shared: shared })
    }

    /// Waits for as many permits as the request weighs.
    pub(crate) async fn acquire(&self, client: K, weight: u32) -> Result<SharePermit, SharesExhausted> {
        let share = self.share_of(client);
        if let Some(permit) = self.try_acquire_in(&share, weight) {
            return Ok(permit);
        }
        let _own_slot = share.queue.try_acquire().map_err(|_| SharesExhausted)?;
        let _slot = self.queue.try_acquire().map_err(|_| SharesExhausted)?;
        let waiting = async {
            // In this order: a client that waits for its own requests holds no shared permit.
            let own =
                Arc::clone(&share.permits).acquire_many_owned(weight).await.map_err(|_| SharesExhausted)?;
            let shared =
                Arc::clone(&self.permits).acquire_many_owned(weight).await.map_err(|_| SharesExhausted)?;
            Ok(SharePermit { _own: own, _shared: shared })
        };
        timeout(self.limits.queue_timeout, waiting).await.unwrap_or(Err(SharesExhausted))
    }

    fn share_of(&self, client: K) -> Arc<ClientShare> {
        let mut clients = lock(&self.clients);
        if let Some(share) = clients.get(&client) {
            return Arc::clone(share);
        }
        // Removes the shares of clients without requests, which bounds their number.
        clients.retain(|_, share| !share.is_unused(&self.limits));
        let share = Arc::new(ClientShare {
            permits: Arc::new(Semaphore::new(self.limits.permits_per_client)),
            queue: Semaphore::new(self.limits.queue_per_client),
        });
        clients.insert(client, Arc::clone(&share));
        share
    }
}

impl ClientShare {
    fn is_unused(self: &Arc<Self>, limits: &ShareLimits) -> bool {
        Arc::strong_count(self) == 1 && self.permits.available_permits() == limits.permits_per_client
    }
}

impl<K> fmt::Debug for FairShares<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FairShares").field("limits", &self.limits).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ShareLimits = ShareLimits {
        permits: 4,
        permits_per_client: 2,
        queue: 3,
        queue_per_client: 2,
        queue_timeout: Duration::from_secs(5),
    };

    fn shares() -> Arc<FairShares<&'static str>> {
        Arc::new(FairShares::new(LIMITS))
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_uses_up_its_share_takes_nothing_from_others() {
        let shares = shares();
        let _held = [shares.acquire("a", 1).await.unwrap(), shares.acquire("a", 1).await.unwrap()];
        let waiting: Vec<_> = (0..2)
            .map(|_| {
                let shares = Arc::clone(&shares);
                tokio::spawn(async move { shares.acquire("a", 1).await.map(drop) })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(
            shares.acquire("a", 1).await.err(),
            Some(SharesExhausted),
            "its share of the queue is full, too"
        );
        let _others = [shares.acquire("b", 1).await.unwrap(), shares.acquire("c", 1).await.unwrap()];
        for waiting in waiting {
            assert_eq!(waiting.await.unwrap(), Err(SharesExhausted), "it times out");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_released_permit_goes_to_the_next_request() {
        let shares = shares();
        let (first, _second) = (shares.acquire("a", 1).await.unwrap(), shares.acquire("a", 1).await.unwrap());
        let waiting = tokio::spawn({
            let shares = Arc::clone(&shares);
            async move { shares.acquire("a", 1).await.map(drop) }
        });
        tokio::task::yield_now().await;
        drop(first);
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn all_clients_together_are_limited() {
        let shares = shares();
        let mut held = Vec::new();
        for client in ["a", "b", "c", "d"] {
            held.push(shares.acquire(client, 1).await.unwrap());
        }
        assert_eq!(shares.acquire("e", 1).await.err(), Some(SharesExhausted));
        held.clear();
        shares.acquire("e", 1).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_heavy_request_counts_as_several() {
        let shares = shares();
        let heavy = shares.acquire("a", 2).await.unwrap();
        assert_eq!(shares.acquire("a", 1).await.err(), Some(SharesExhausted));
        assert_eq!(
            shares.acquire("b", 3).await.err(),
            Some(SharesExhausted),
            "it weighs more than one client may have"
        );
        drop(heavy);
        shares.acquire("a", 1).await.unwrap();
    }

    #[tokio::test]
    async fn shares_of_clients_without_requests_are_removed() {
        let shares = FairShares::new(LIMITS);
        for number in 0..100 {
            shares.acquire(number, 1).await.unwrap();
        }
        assert_eq!(shares.clients.lock().unwrap().len(), 1);
    }
}
