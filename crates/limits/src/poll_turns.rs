//! Processor time of futures that compute much: only so many are polled at once, and those that wait take turns.
//!
//! A turn is one poll. A future that waits for the network holds none, and whatever it computes between two waits is in one: its
//! user need not say where it computes. Groups take turns, such as the clusters of a process, and within a group its owners.
//! How long a poll may last is for the future to bound.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use crate::fair_limiter::{FairLimiter, Permit, Refused, Shares};
use crate::{Owner, OwnerKey};

/// The turns of all groups. Cheap to clone: a clone is the same.
#[derive(Debug, Clone)]
pub struct PollTurns<G: OwnerKey> {
    groups: FairLimiter<G>,
}

/// The turns of one group. Cheap to clone: a clone is the same.
pub struct GroupTurns<G: OwnerKey, O: OwnerKey = Owner> {
    group: G,
    groups: FairLimiter<G>,
    owners: FairLimiter<(O, Stage)>,
}

/// Futures that have begun do not wait behind those of their owner that have not: other owners may wait for what a future
/// that has begun holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    New,
    Begun,
}

/// As many wait as there are futures, whose number is for their users to bound.
const fn shares(places: usize) -> Shares {
    Shares::new(places, places).with_queue(usize::MAX, usize::MAX)
}

impl<G: OwnerKey> PollTurns<G> {
    /// So many futures are polled at once.
    pub fn new(places: usize) -> Self {
        Self { groups: FairLimiter::new(shares(places)) }
    }

    /// The places, for computing that is no poll.
    pub fn places(&self) -> &FairLimiter<G> {
        &self.groups
    }

    /// The turns of a group.
    pub fn of_group<O: OwnerKey>(&self, group: G) -> GroupTurns<G, O> {
        let owners = FairLimiter::new(self.groups.shares());
        GroupTurns { group, groups: self.groups.clone(), owners }
    }
}

impl<G: OwnerKey, O: OwnerKey> GroupTurns<G, O> {
    /// Polls a future in turns of this owner.
    pub async fn run<F: Future>(&self, owner: O, work: F) -> Result<F::Output, Refused> {
        let mut work = pin!(work);
        let mut stage = Stage::New;
        loop {
            let turn = self.turn((owner.clone(), stage)).await?;
            let polled = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
            drop(turn);
            if let Poll::Ready(output) = polled {
                return Ok(output);
            }
            stage = Stage::Begun;
            woken().await;
        }
    }

    /// A place of the group, and then one of all: a group has no more in the queue of all than it may have places.
    async fn turn(&self, owner: (O, Stage)) -> Result<(Permit<G>, Permit<(O, Stage)>), Refused> {
        let in_group = self.owners.acquire_untimed(owner, 1).await?;
        let place = self.groups.acquire_untimed(self.group.clone(), 1).await?;
        Ok((place, in_group))
    }
}

/// Completes with the next poll of the task, for which the work has left its waker.
async fn woken() {
    let mut is_woken = false;
    poll_fn(|_| if std::mem::replace(&mut is_woken, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

impl<G: OwnerKey, O: OwnerKey> Clone for GroupTurns<G, O> {
    fn clone(&self) -> Self {
        Self { group: self.group.clone(), groups: self.groups.clone(), owners: self.owners.clone() }
    }
}

impl<G: OwnerKey, O: OwnerKey> fmt::Debug for GroupTurns<G, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupTurns").field("group", &self.group).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use tokio::sync::Notify;
    use tokio::task::{JoinHandle, yield_now};
    use tokio::time::sleep;

    use super::*;

    type Turns = GroupTurns<&'static str, &'static str>;

    /// The polls, in their order.
    type Polls = Arc<Mutex<Vec<&'static str>>>;

    /// Holds the only place until it is notified.
    fn hold(turns: &PollTurns<&'static str>) -> Permit<&'static str> {
        turns.places().try_acquire("held", 1).unwrap()
    }

    /// A future that is polled `polls` times, and notes each of them.
    fn begin(
        turns: &Turns,
        owner: &'static str,
        name: &'static str,
        polls: usize,
        seen: &Polls,
    ) -> JoinHandle<()> {
        let (turns, seen) = (turns.clone(), Arc::clone(seen));
        tokio::spawn(async move {
            let work = async {
                for left in (0..polls).rev() {
                    seen.lock().unwrap().push(name);
                    if left > 0 {
                        yield_now().await;
                    }
                }
            };
            turns.run(owner, work).await.unwrap();
        })
    }

    async fn settle() {
        for _ in 0..100 {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn groups_take_turns_and_owners_within_them() {
        let all = PollTurns::new(1);
        let (one, other): (Turns, Turns) = (all.of_group("one"), all.of_group("other"));
        let seen = Polls::default();
        let held = hold(&all);
        let mut running: Vec<_> = (0..5).map(|_| begin(&one, "flood", "flood", 1, &seen)).collect();
        settle().await;
        running.push(begin(&one, "calm", "calm", 1, &seen));
        running.push(begin(&other, "calm", "other", 1, &seen));
        settle().await;
        drop(held);
        for running in running {
            running.await.unwrap();
        }
        // The first two of the flood came before the others.
        assert_eq!(*seen.lock().unwrap(), ["flood", "other", "flood", "calm", "flood", "flood", "flood"]);
    }

    #[tokio::test]
    async fn one_that_has_begun_does_not_wait_behind_those_of_its_owner_that_have_not() {
        let all = PollTurns::new(1);
        let turns: Turns = all.of_group("one");
        let seen = Polls::default();
        let wakes = Arc::new(Notify::new());
        let fetching = tokio::spawn({
            let (turns, seen, wakes) = (turns.clone(), Arc::clone(&seen), Arc::clone(&wakes));
            async move {
                let work = async {
                    wakes.notified().await;
                    seen.lock().unwrap().push("fetched");
                };
                turns.run("flood", work).await.unwrap();
            }
        });
        settle().await;
        let held = hold(&all);
        let flood: Vec<_> = (0..5).map(|_| begin(&turns, "flood", "flood", 1, &seen)).collect();
        settle().await;
        wakes.notify_one();
        settle().await;
        drop(held);
        fetching.await.unwrap();
        for running in flood {
            running.await.unwrap();
        }
        // The first two of the flood came before it was woken.
        assert_eq!(seen.lock().unwrap().iter().position(|name| *name == "fetched"), Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_future_that_waits_has_no_turn() {
        let all = PollTurns::new(1);
        let turns: Turns = all.of_group("one");
        let waits = tokio::spawn({
            let turns = turns.clone();
            async move { turns.run("slow", sleep(Duration::from_hours(1))).await }
        });
        settle().await;
        assert_eq!(all.groups.usage().in_service, 0);
        let seen = Polls::default();
        begin(&turns, "slow", "quick", 3, &seen).await.unwrap();
        assert_eq!(seen.lock().unwrap().len(), 3);
        assert_eq!(waits.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn one_that_is_dropped_gives_back_its_turn_and_its_position() {
        let all = PollTurns::new(1);
        let turns: Turns = all.of_group("one");
        let seen = Polls::default();
        let held = hold(&all);
        let running: Vec<_> = (0..3).map(|_| begin(&turns, "a", "a", 1, &seen)).collect();
        settle().await;
        running.iter().for_each(JoinHandle::abort);
        settle().await;
        drop(held);
        begin(&turns, "b", "b", 1, &seen).await.unwrap();
        assert_eq!(*seen.lock().unwrap(), ["b"]);
        assert_eq!((all.groups.usage().in_service, turns.owners.usage().in_service), (0, 0));
    }

    #[tokio::test]
    async fn a_panic_gives_back_the_turn() {
        let all = PollTurns::new(1);
        let turns: Turns = all.of_group("one");
        let panics = tokio::spawn({
            let turns = turns.clone();
            async move { turns.run("a", async { panic!("it panics") }).await.map(|(): ()| ()) }
        });
        assert!(panics.await.unwrap_err().is_panic());
        assert_eq!((all.groups.usage().in_service, turns.owners.usage().in_service), (0, 0));
    }

    /// With real threads: never more polls at once than there are places.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn only_so_many_are_polled_at_once() {
        const PLACES: usize = 2;
        let all = PollTurns::new(PLACES);
        let (polled, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let running: Vec<_> = (0..40)
            .map(|number| {
                let turns: Turns = all.of_group(if number % 2 == 0 { "one" } else { "other" });
                let (polled, most) = (Arc::clone(&polled), Arc::clone(&most));
                tokio::spawn(async move {
                    let work = async {
                        for _ in 0..20 {
                            most.fetch_max(polled.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            std::thread::yield_now();
                            polled.fetch_sub(1, Ordering::SeqCst);
                            yield_now().await;
                        }
                    };
                    turns.run("a", work).await.unwrap();
                })
            })
            .collect();
        for running in running {
            running.await.unwrap();
        }
        let most = most.load(Ordering::SeqCst);
        assert!((1..=PLACES).contains(&most), "{most} at once");
    }
}
