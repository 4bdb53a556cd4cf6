//! How many may begin in a round of an event loop: of those that come together a few begin, and their owners take turns.
//!
//! A runtime polls its tasks in the order in which they became ready. A thousand that become ready together take the thread until
//! the last one is polled, and one that comes later waits for all of them, on each way from one socket to another. Here the next few
//! begin when the runtime has polled the tasks that were ready, and has asked for the events of its sockets. On an idle thread
//! nothing waits.

use tokio::task::yield_now;

use crate::fair_limiter::{FairLimiter, Shares};
use crate::{Owner, OwnerKey};

/// Beginnings on one thread, of which each owner has at most half in a round.
#[derive(Debug)]
pub struct RoundLimiter<O: OwnerKey = Owner>(FairLimiter<O>);

impl<O: OwnerKey> RoundLimiter<O> {
    /// So many begin in a round. As many wait as there are tasks, whose number is for their users to bound.
    pub fn new(in_round: usize) -> Self {
        Self(FairLimiter::new(Shares::new(in_round, in_round.div_ceil(2)).with_queue(usize::MAX, usize::MAX)))
    }

    /// Waits for the turn. Within a runtime of Tokio. One that leaves takes no turn.
    // threat: tenant-requests
    pub async fn begin(&self, owner: O) {
        // Never refused: the queue has no bound, and nothing in it is evicted.
        let Ok(permit) = self.0.acquire_untimed(owner, 1).await else { return };
        tokio::spawn(async move {
            yield_now().await;
            drop(permit);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use futures_util::FutureExt as _;
    use futures_util::future::join_all;
    use proptest::prelude::*;

    use super::*;

    /// Those that began, and the rounds between them.
    type Seen = Arc<Mutex<Vec<&'static str>>>;
    const ROUND: &str = "round";

    /// Lets all of these begin, each in a task of its own. Notes a round after each one of the runtime.
    async fn run(
        limiter: &Arc<RoundLimiter<&'static str>>,
        owners: &[&'static str],
    ) -> Vec<Vec<&'static str>> {
        let seen = Seen::default();
        let begin = |owner| {
            let (limiter, seen) = (Arc::clone(limiter), Arc::clone(&seen));
            tokio::spawn(async move {
                limiter.begin(owner).await;
                seen.lock().unwrap().push(owner);
            })
        };
        let mut running = join_all(owners.iter().copied().map(begin));
        while (&mut running).now_or_never().is_none() {
            seen.lock().unwrap().push(ROUND);
            yield_now().await;
        }
        let seen = seen.lock().unwrap();
        seen.split(|entry| *entry == ROUND).map(<[_]>::to_vec).filter(|round| !round.is_empty()).collect()
    }

    /// Until the last round has passed.
    async fn until_idle(limiter: &RoundLimiter<&'static str>) {
        while limiter.0.usage().in_service > 0 {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn one_that_floods_leaves_each_round_to_others() {
        let limiter = Arc::new(RoundLimiter::new(4));
        let owners: Vec<_> = std::iter::repeat_n("flood", 1000).chain(["calm"]).collect();
        let rounds = run(&limiter, &owners).await;
        let of_calm = rounds.iter().position(|round| round.contains(&"calm")).unwrap();
        assert!(of_calm <= 1, "{of_calm} rounds");
        // What a thread does between two events of a socket is bounded.
        assert!(rounds.iter().all(|round| round.len() <= 4), "{:?}", rounds.iter().map(Vec::len).max());
        until_idle(&limiter).await;
        assert_eq!(limiter.0.usage().owners, 0, "nothing is kept of idle owners");
    }

    #[tokio::test]
    async fn on_an_idle_thread_nothing_waits() {
        let limiter = RoundLimiter::new(4);
        for _ in 0..3 {
            for _ in 0..2 {
                assert_eq!(limiter.begin("a").now_or_never(), Some(()));
            }
            assert!(limiter.begin("a").now_or_never().is_none(), "half of a round");
            until_idle(&limiter).await;
        }
    }

    proptest! {
        #[test]
        fn all_begin_and_no_round_has_more_than_its_places(
            owners in prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..60),
            places in 1..6_usize,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let limiter = Arc::new(RoundLimiter::new(places));
            let rounds = runtime.block_on(run(&limiter, &owners));
            prop_assert!(rounds.iter().all(|round| round.len() <= places));
            let mut begun = rounds.concat();
            let mut expected = owners;
            begun.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(begun, expected);
        }
    }
}
