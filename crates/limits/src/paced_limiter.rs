//! How often something may begin, such as requests: those that come faster wait, and their owners take turns.
//!
//! A [`Rate`](crate::rate::Rate) refuses, or hands out times in the order of arrival: who floods it takes the turns of all who come
//! later. Here a place in a short window is what is shared, by the rules of the [`FairLimiter`]: the next one to begin is of the
//! owner with the fewest in the window. Who leaves the queue takes no turn.
//!
//! Places become free one after the other, at the pace: those who begin together do not come together again with each window.

use std::sync::Mutex;
use std::time::Duration;

use portcullis_system::sync::lock;
use tokio::time::{Instant, sleep_until};

use crate::fair_limiter::{Entry, FairLimiter, Permit, Refused, Shares, Waiting};
use crate::{Owner, OwnerKey};

/// The windows of a second. All that a window permits may begin at once and takes the thread for so long: short windows permit little.
const WINDOWS: u32 = 100;
/// The windows of a second at a slow pace: each permits several, of which one owner leaves half to others.
const FEW_WINDOWS: u32 = 20;
/// What a window permits at least if it is shorter.
const SEVERAL: u32 = 10;

/// How many may begin in a second, and how many may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// All of them; at least one.
    pub per_second: u32,
    /// Those that wait, of all owners and of one.
    pub waiting: usize,
    /// Those of one owner.
    pub waiting_per_owner: usize,
}

impl Pace {
    /// What begins in a window. One owner leaves half of it to the others, where it can be halved.
    fn shares(self) -> Shares {
        let total = usize::try_from(self.in_window()).unwrap_or(usize::MAX);
        Shares::new(total, total.div_ceil(2)).with_queue(self.waiting, self.waiting_per_owner)
    }

    fn in_window(self) -> u32 {
        (self.per_second / FEW_WINDOWS).clamp(1, SEVERAL).max(self.per_second / WINDOWS)
    }

    fn window(self) -> Duration {
        self.interval() * self.in_window()
    }

    /// From one place that becomes free to the next.
    fn interval(self) -> Duration {
        Duration::from_secs(1) / self.per_second.max(1)
    }
}

/// Beginnings, of which each owner has at most half while others come.
#[derive(Debug)]
pub struct PacedLimiter<O: OwnerKey = Owner> {
    places: FairLimiter<O>,
    ends: Ends,
}

/// When places become free.
#[derive(Debug)]
struct Ends {
    window: Duration,
    interval: Duration,
    /// Of the place that becomes free last.
    last: Mutex<Option<Instant>>,
}

impl Ends {
    fn of(pace: Pace) -> Self {
        Self { window: pace.window(), interval: pace.interval(), last: Mutex::default() }
    }

    /// Of a place that is taken now: a window later, and not together with another one.
    fn next(&self) -> Instant {
        let mut last = lock(&self.last);
        let window = Instant::now() + self.window;
        let end = last.map_or(window, |last| window.max(last + self.interval));
        *last = Some(end);
        end
    }

    fn hold<O: OwnerKey>(&self, permit: Permit<O>) {
        let end = self.next();
        tokio::spawn(async move {
            sleep_until(end).await;
            drop(permit);
        });
    }
}

/// What becomes of one that comes.
#[derive(Debug)]
pub enum Beginning<'a, O: OwnerKey = Owner> {
    /// It has begun.
    Begun,
    /// It waits for its turn.
    Waiting(WaitingTurn<'a, O>),
}

/// One that waits. It leaves the queue, and takes no turn, when it is dropped.
#[derive(Debug)]
pub struct WaitingTurn<'a, O: OwnerKey = Owner> {
    waiting: Waiting<'a, O>,
    ends: &'a Ends,
}

impl<O: OwnerKey> PacedLimiter<O> {
    /// Nothing has begun yet.
    pub fn new(pace: Pace) -> Self {
        Self { places: FairLimiter::new(pace.shares()), ends: Ends::of(pace) }
    }

    /// Begins, or waits. Within a runtime of Tokio.
    // threat: tenant-requests
    pub fn begin(&self, owner: O) -> Result<Beginning<'_, O>, Refused> {
        Ok(match self.places.enter(owner, 1)? {
            Entry::Permit(permit) => {
                self.ends.hold(permit);
                Beginning::Begun
            }
            Entry::Waiting(waiting) => Beginning::Waiting(WaitingTurn { waiting, ends: &self.ends }),
        })
    }
}

impl<O: OwnerKey> WaitingTurn<'_, O> {
    /// Waits for the turn, at most until then.
    pub async fn begun(self, until: Instant) -> Result<(), Refused> {
        let permit = self.waiting.permit(until).await?;
        self.ends.hold(permit);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::future::join_all;
    use tokio::time::sleep;

    use super::*;

    const PACE: Pace = Pace { per_second: 200, waiting: 1000, waiting_per_owner: 400 };

    /// Begins, and says how long it has waited.
    async fn begin(
        limiter: Arc<PacedLimiter<&'static str>>,
        owner: &'static str,
    ) -> Result<Duration, Refused> {
        let came = Instant::now();
        match limiter.begin(owner)? {
            Beginning::Begun => {}
            Beginning::Waiting(turn) => turn.begun(came + Duration::from_secs(10)).await?,
        }
        Ok(came.elapsed())
    }

    /// Comes so often at once, each in a task of its own. Returns the waits.
    async fn flood(
        limiter: &Arc<PacedLimiter<&'static str>>,
        owner: &'static str,
        count: usize,
    ) -> Vec<Result<Duration, Refused>> {
        let tasks = (0..count).map(|_| tokio::spawn(begin(Arc::clone(limiter), owner)));
        join_all(tasks).await.into_iter().map(Result::unwrap).collect()
    }

    fn longest(waits: &[Result<Duration, Refused>]) -> Duration {
        waits.iter().map(|wait| wait.unwrap()).max().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn one_owner_has_half_and_several_have_all() {
        let limiter = Arc::new(PacedLimiter::new(PACE));
        let of_one = longest(&flood(&limiter, "a", 200).await);
        assert!((1900..2100).contains(&of_one.as_millis()), "{of_one:?}");
        let owners = ["a", "b", "c"];
        let all = join_all(owners.map(|owner| flood(&limiter, owner, 200))).await;
        for waits in &all {
            let of_each = longest(waits);
            assert!((2850..3150).contains(&of_each.as_millis()), "{of_each:?}");
        }
        sleep(Duration::from_secs(1)).await;
        assert_eq!(limiter.places.usage().owners, 0, "nothing is kept of idle owners");
    }

    // A hundred at once would take the thread for as long as others notice.
    #[tokio::test(start_paused = true)]
    async fn few_begin_at_once_at_a_fast_pace() {
        let limiter = Arc::new(PacedLimiter::new(Pace { per_second: 2000, ..PACE }));
        let waits = [flood(&limiter, "a", 300), flood(&limiter, "b", 300)];
        let waits = join_all(waits).await.into_iter().flatten();
        let mut begun = std::collections::BTreeMap::new();
        for wait in waits {
            *begun.entry(wait.unwrap().as_millis()).or_insert(0) += 1;
        }
        assert!(begun.values().all(|begun| *begun <= 20), "{begun:?}");
        // The first ones come together, and those behind them do not.
        assert!(begun.iter().filter(|(at, _)| **at > 0).all(|(_, begun)| *begun <= 3), "{begun:?}");
        let last = *begun.keys().last().unwrap();
        assert!((280..=330).contains(&last), "{last}");
    }

    // The number of owners that flood does not matter: the next turn is of the owner with the fewest.
    #[tokio::test(start_paused = true)]
    async fn an_owner_within_its_part_waits_a_window_at_most() {
        let limiter = Arc::new(PacedLimiter::new(PACE));
        let floods: Vec<_> = ["a", "b", "c", "d"]
            .map(|owner| {
                let limiter = Arc::clone(&limiter);
                tokio::spawn(async move { flood(&limiter, owner, 200).await })
            })
            .into();
        for _ in 0..30 {
            sleep(Duration::from_millis(97)).await;
            let wait = begin(Arc::clone(&limiter), "calm").await.unwrap();
            assert!(wait <= PACE.window() + Duration::from_millis(2), "{wait:?}");
        }
        floods.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_takes_no_turn_and_who_cannot_wait_is_refused() {
        let limiter = Arc::new(PacedLimiter::new(PACE));
        let waits = flood(&limiter, "a", 5 + 400 + 7).await;
        assert_eq!(waits.iter().filter(|wait| **wait == Err(Refused::QueueFull)).count(), 7);
        let left: Vec<_> = (0..300).map(|_| limiter.begin("a").unwrap()).collect();
        drop(left);
        // Five have begun.
        let after = flood(&limiter, "a", 6).await;
        assert!(longest(&after) <= PACE.window() * 2 + Duration::from_millis(4), "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pace_below_the_number_of_windows_holds_too() {
        let limiter = Arc::new(PacedLimiter::new(Pace { per_second: 2, ..PACE }));
        assert_eq!(longest(&flood(&limiter, "a", 5).await).as_millis() / 10, 200);
        let waits = flood(&limiter, "a", 30).await;
        let refused = waits.iter().filter(|wait| **wait == Err(Refused::TimedOut)).count();
        assert!((10..=11).contains(&refused), "{refused}");
    }
}
