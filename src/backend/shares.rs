//! A bound on requests of one sort, each with a weight, of which no client can use up more than its share, neither of the
//! places nor of the queue for them. One that has used up its share waits behind its own requests and takes nothing from the others.

// threat: anonymous-lockout

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How many requests there may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShareLimits {
    /// In progress at once, by weight.
    pub(crate) places: usize,
    /// Of these, those of one client.
    pub(crate) places_per_client: usize,
    /// Waiting for places.
    pub(crate) queue: usize,
    /// Of these, those of one client.
    pub(crate) queue_per_client: usize,
    /// How long one waits.
    pub(crate) wait: Duration,
}

/// Places for requests, shared by clients that are told apart by `K`.
pub(crate) struct FairShares<K> {
    limits: ShareLimits,
    places: Arc<Semaphore>,
    queue: Semaphore,
    clients: Mutex<HashMap<K, Arc<ClientShare>>>,
}

/// What one client has in progress and in the queue.
struct ClientShare {
    places: Arc<Semaphore>,
    queue: Semaphore,
}

/// The places of one request; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct SharePermit {
    _own: OwnedSemaphorePermit,
    _shared: OwnedSemaphorePermit,
}

/// There is no place, and none became free in time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SharesExhausted;

impl<K: Hash + Eq> FairShares<K> {
    pub(crate) fn new(limits: ShareLimits) -> Self {
        Self {
            limits,
            places: Arc::new(Semaphore::new(limits.places)),
            queue: Semaphore::new(limits.queue),
            clients: Mutex::default(),
        }
    }

    /// Waits for as many places as the request weighs.
    pub(crate) async fn acquire(&self, client: K, weight: u32) -> Result<SharePermit, SharesExhausted> {
        let share = self.share_of(client);
        if let Ok(own) = Arc::clone(&share.places).try_acquire_many_owned(weight)
            && let Ok(shared) = Arc::clone(&self.places).try_acquire_many_owned(weight)
        {
            return Ok(SharePermit { _own: own, _shared: shared });
        }
        let _own_turn = share.queue.try_acquire().map_err(|_| SharesExhausted)?;
        let _turn = self.queue.try_acquire().map_err(|_| SharesExhausted)?;
        let waiting = async {
            // In this order: one that waits for its own requests keeps no place from others.
            let own =
                Arc::clone(&share.places).acquire_many_owned(weight).await.map_err(|_| SharesExhausted)?;
            let shared =
                Arc::clone(&self.places).acquire_many_owned(weight).await.map_err(|_| SharesExhausted)?;
            Ok(SharePermit { _own: own, _shared: shared })
        };
        timeout(self.limits.wait, waiting).await.unwrap_or(Err(SharesExhausted))
    }

    fn share_of(&self, client: K) -> Arc<ClientShare> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = clients.get(&client) {
            return Arc::clone(share);
        }
        // Those that have nothing in progress are forgotten, so that there are no more than requests.
        clients.retain(|_, share| !share.is_unused(&self.limits));
        let share = Arc::new(ClientShare {
            places: Arc::new(Semaphore::new(self.limits.places_per_client)),
            queue: Semaphore::new(self.limits.queue_per_client),
        });
        clients.insert(client, Arc::clone(&share));
        share
    }
}

impl ClientShare {
    fn is_unused(self: &Arc<Self>, limits: &ShareLimits) -> bool {
        Arc::strong_count(self) == 1 && self.places.available_permits() == limits.places_per_client
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
        places: 4,
        places_per_client: 2,
        queue: 3,
        queue_per_client: 2,
        wait: Duration::from_secs(5),
    };

    fn shares() -> Arc<FairShares<&'static str>> {
        Arc::new(FairShares::new(LIMITS))
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_uses_up_its_share_leaves_the_others_theirs() {
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
            "its part of the queue is full, too"
        );
        let _others = [shares.acquire("b", 1).await.unwrap(), shares.acquire("c", 1).await.unwrap()];
        for waiting in waiting {
            assert_eq!(waiting.await.unwrap(), Err(SharesExhausted), "it gives up in time");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_that_is_given_back_is_taken_by_the_next() {
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
    async fn all_clients_together_are_bounded() {
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
    async fn a_heavy_request_takes_the_place_of_several() {
        let shares = shares();
        let heavy = shares.acquire("a", 2).await.unwrap();
        assert_eq!(shares.acquire("a", 1).await.err(), Some(SharesExhausted));
        assert_eq!(
            shares.acquire("b", 3).await.err(),
            Some(SharesExhausted),
            "it weighs more than any client may have"
        );
        drop(heavy);
        shares.acquire("a", 1).await.unwrap();
    }

    #[tokio::test]
    async fn clients_that_have_left_are_forgotten() {
        let shares = FairShares::new(LIMITS);
        for number in 0..100 {
            shares.acquire(number, 1).await.unwrap();
        }
        assert_eq!(shares.clients.lock().unwrap().len(), 1);
    }
}
