//! What a controller has to work on: each item once, never twice at a time, again after a while if it failed. A plain
//! value: time is given, nothing waits here.
//!
//! Follows client-go's `util/workqueue`: an item that comes while it is worked on is kept for afterwards; attempts back
//! off for each item, and all retries of a flow together are limited. Where that queue has one line, this one has a lane
//! for each flow, taken in turn, and a bound on what waits: a client that makes items by the thousand waits for itself.

mod delays;
mod lanes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use delays::DelayedItems;
use lanes::FlowLanes;

/// How many items wait for their turn, and how many for another attempt. What is more is forgotten.
// A kubelet's request is there for minutes, and few clusters have more than 15,000 nodes. An item takes up to
// 1 KiB, if its name is as long as may be and its requester has no other: docs/controllers.md has the sum.
pub(crate) const MAX_WAITING: usize = 50_000;

/// What an item belongs to: flows are worked on in turn, and are paced apart.
pub(crate) type FlowId = u64;

/// What is worked on, by its key.
pub(crate) trait WorkItem: Clone + Ord {
    /// Equal for all items that one client made.
    fn flow(&self) -> FlowId {
        0
    }
}

/// How many flows' paces are remembered before those that are over are looked for.
const MAX_PACED: usize = 10_000;

/// What an attempt came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptOutcome {
    /// Nothing is left to do until something changes.
    Done,
    /// Nothing went wrong; look again after this time.
    After(Duration),
    /// It failed; try again later, and later with each failure in a row.
    Retry,
}

/// How retries are held back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetryPolicy {
    /// After the first failure of an item; doubled with each further one.
    pub(crate) first: Duration,
    /// At most.
    pub(crate) longest: Duration,
    /// Between any two retries, once there were more than `burst`.
    pub(crate) each: Duration,
    /// How many retries may be close to each other.
    pub(crate) burst: u32,
}

impl RetryPolicy {
    /// That of the certificate controllers: 200 ms to 1000 s, and 10 in a second after a burst of 100.
    // kubernetes: pkg/controller/certificates/certificate_controller.go, NewCertificateController
    pub(crate) const CERTIFICATES: Self = Self {
        first: Duration::from_millis(200),
        longest: Duration::from_secs(1000),
        each: Duration::from_millis(100),
        burst: 100,
    };
}

/// A queue of items, by their keys.
#[derive(Debug)]
pub(crate) struct WorkQueue<K> {
    pace: RetryPolicy,
    most: usize,
    ready: FlowLanes<(K, Instant)>,
    /// In `ready`, or to be put there once it is not worked on any more.
    wanted: BTreeSet<K>,
    working: BTreeSet<K>,
    delayed: DelayedItems<K>,
    failures: BTreeMap<K, u32>,
    /// When the limit of a flow's retries would be used up to nothing again; in the future.
    // A bucket of `burst` that fills by one each `each`: the generic cell rate algorithm.
    replete: BTreeMap<FlowId, Instant>,
    forgotten: u64,
}

// threat: pending-requests-flood
impl<K: WorkItem> WorkQueue<K> {
    /// An empty queue.
    pub(crate) fn new(pace: RetryPolicy) -> Self {
        Self::bounded(pace, MAX_WAITING)
    }

    fn bounded(pace: RetryPolicy, most: usize) -> Self {
        Self {
            pace,
            most,
            ready: FlowLanes::default(),
            wanted: BTreeSet::new(),
            working: BTreeSet::new(),
            delayed: DelayedItems::default(),
            failures: BTreeMap::new(),
            replete: BTreeMap::new(),
            forgotten: 0,
        }
    }

    /// Something about an item has changed. Says whether it was not known to be waiting.
    pub(crate) fn add(&mut self, key: K, now: Instant) -> bool {
        if !self.wanted.insert(key.clone()) {
            return false;
        }
        if !self.working.contains(&key) {
            self.push(key, now);
        }
        true
    }

    /// The flow that has the most items waits for what is too many.
    fn push(&mut self, key: K, now: Instant) {
        self.ready.push(key.flow(), (key, now));
        if self.ready.len() > self.most
            && let Some((forgotten, _)) = self.ready.shorten()
        {
            self.wanted.remove(&forgotten);
            self.failures.remove(&forgotten);
            self.forgotten += 1;
        }
    }

    /// How many items were forgotten since this was last asked: they have to be found again.
    pub(crate) fn take_forgotten(&mut self) -> u64 {
        std::mem::take(&mut self.forgotten)
    }

    /// Moves what was put off until now to what can be worked on; says how many were not waiting there already.
    pub(crate) fn ripen(&mut self, now: Instant) -> usize {
        let mut added = 0;
        while let Some(key) = self.delayed.take(now) {
            added += usize::from(self.add(key, now));
        }
        added
    }

    /// When something that was put off is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.delayed.due()
    }

    /// How many can be worked on.
    pub(crate) fn len(&self) -> usize {
        self.ready.len()
    }

    /// The next to work on, with the time since when it waits. It must be given to [`done`](Self::done) afterwards.
    pub(crate) fn take(&mut self) -> Option<(K, Instant)> {
        let (key, since) = self.ready.take()?;
        self.wanted.remove(&key);
        self.working.insert(key.clone());
        Some((key, since))
    }

    /// What was taken is worked on no more.
    pub(crate) fn done(&mut self, key: K, outcome: AttemptOutcome, now: Instant) {
        self.working.remove(&key);
        if self.wanted.contains(&key) {
            self.push(key.clone(), now);
        }
        match outcome {
            AttemptOutcome::Done => {
                self.failures.remove(&key);
            }
            AttemptOutcome::After(time) => {
                self.failures.remove(&key);
                self.put_off(key, time, now);
            }
            AttemptOutcome::Retry => {
                let delay = self.failed(&key).max(self.turn(key.flow(), now));
                self.put_off(key, delay, now);
            }
        }
    }

    /// Puts an item off; the flow that has the most such items loses the one that is due last of what is too many.
    fn put_off(&mut self, key: K, time: Duration, now: Instant) {
        let Some(at) = now.checked_add(time) else { return };
        self.delayed.insert(key, at);
        if self.delayed.len() > self.most
            && let Some(forgotten) = self.delayed.shorten()
        {
            self.failures.remove(&forgotten);
            self.forgotten += 1;
        }
    }

    /// How long an item that failed once more rests.
    // client-go: util/workqueue/default_rate_limiters.go, TypedItemExponentialFailureRateLimiter
    fn failed(&mut self, key: &K) -> Duration {
        let failures = self.failures.entry(key.clone()).or_default();
        let factor = 2_u32.checked_pow(*failures);
        *failures = failures.saturating_add(1);
        let delay = factor.and_then(|factor| self.pace.first.checked_mul(factor));
        delay.unwrap_or(self.pace.longest).min(self.pace.longest)
    }

    /// How long one more retry has to wait for all the others of its flow.
    // client-go: util/workqueue/default_rate_limiters.go, TypedBucketRateLimiter
    fn turn(&mut self, flow: FlowId, now: Instant) -> Duration {
        if !self.replete.contains_key(&flow) && self.replete.len() >= MAX_PACED {
            self.replete.retain(|_, replete| *replete > now);
        }
        let replete = self.replete.get(&flow).map_or(now, |replete| (*replete).max(now)) + self.pace.each;
        self.replete.insert(flow, replete);
        (replete - now).saturating_sub(self.pace.each * self.pace.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl WorkItem for &'static str {}

    /// A flow, and a number in it.
    impl WorkItem for (FlowId, u32) {
        fn flow(&self) -> FlowId {
            self.0
        }
    }

    fn queue() -> (WorkQueue<&'static str>, Instant) {
        (WorkQueue::new(RetryPolicy::CERTIFICATES), Instant::now())
    }

    fn taken(queue: &mut WorkQueue<&'static str>) -> Option<&'static str> {
        queue.take().map(|(key, _)| key)
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_is_there_once_and_worked_on_once_at_a_time() {
        let (mut queue, now) = queue();
        assert!(queue.add("a", now) && !queue.add("a", now) && queue.add("b", now));
        assert_eq!(taken(&mut queue), Some("a"));
        assert!(queue.add("a", now), "it has changed since it was taken");
        assert_eq!(taken(&mut queue), Some("b"));
        assert_eq!(taken(&mut queue), None, "a is worked on");
        queue.done("a", AttemptOutcome::Done, now);
        assert_eq!(taken(&mut queue), Some("a"));
        queue.done("a", AttemptOutcome::Done, now);
        assert_eq!((taken(&mut queue), queue.due()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_double_the_wait_up_to_the_longest() {
        let (mut queue, mut now) = queue();
        queue.add("a", now);
        let mut waits = Vec::new();
        for _ in 0..15 {
            queue.take().unwrap();
            queue.done("a", AttemptOutcome::Retry, now);
            let due = queue.due().unwrap();
            waits.push((due - now).as_millis());
            assert_eq!(queue.ripen(due - Duration::from_millis(1)), 0);
            assert_eq!(queue.ripen(due), 1);
            now = due;
        }
        let expected: Vec<u128> = (0..15_u32).map(|n| (200 * 2_u128.pow(n)).min(1_000_000)).collect();
        assert_eq!(waits, expected);
        queue.take().unwrap();
        queue.done("a", AttemptOutcome::Done, now);
        queue.add("a", now);
        queue.take().unwrap();
        queue.done("a", AttemptOutcome::Retry, now);
        assert_eq!(queue.due().unwrap() - now, Duration::from_millis(200), "a success is a new beginning");
    }

    #[tokio::test(start_paused = true)]
    async fn all_retries_together_are_ten_in_a_second_after_a_hundred() {
        let mut queue = WorkQueue::new(RetryPolicy::CERTIFICATES);
        let now = Instant::now();
        for number in 0..130 {
            let key = (7, number);
            queue.add(key, now);
            queue.take().unwrap();
            queue.done(key, AttemptOutcome::Retry, now);
        }
        assert_eq!(queue.ripen(now + Duration::from_millis(200)), 102, "the burst, and two more");
        assert_eq!(queue.ripen(now + Duration::from_secs(1)), 8);
        assert_eq!(queue.ripen(now + Duration::from_secs(3)), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_to_be_looked_at_again_comes_again() {
        let (mut queue, now) = queue();
        queue.add("a", now);
        queue.take().unwrap();
        queue.done("a", AttemptOutcome::After(Duration::from_secs(5)), now);
        assert_eq!(queue.due(), Some(now + Duration::from_secs(5)));
        assert!(queue.add("a", now), "what changes meanwhile is looked at meanwhile");
        assert_eq!(queue.ripen(now + Duration::from_secs(5)), 0, "and it waits once");
    }

    #[tokio::test(start_paused = true)]
    async fn flows_are_worked_on_in_turn_however_many_items_one_of_them_has() {
        let mut queue = WorkQueue::new(RetryPolicy::CERTIFICATES);
        let now = Instant::now();
        for number in 0..10_000 {
            queue.add((1, number), now);
        }
        queue.add((2, 0), now);
        queue.add((3, 0), now);
        let flows: Vec<FlowId> = (0..6).map(|_| queue.take().unwrap().0.flow()).collect();
        assert_eq!(flows, [1, 2, 3, 1, 1, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_one_flow_put_off_no_retry_of_another() {
        let mut queue = WorkQueue::new(RetryPolicy::CERTIFICATES);
        let now = Instant::now();
        for number in 0..10_000 {
            queue.add((1, number), now);
            queue.take().unwrap();
            queue.done((1, number), AttemptOutcome::Retry, now);
        }
        queue.add((2, 0), now);
        queue.take().unwrap();
        queue.done((2, 0), AttemptOutcome::Retry, now);
        queue.ripen(now + Duration::from_millis(200));
        let flows: BTreeSet<FlowId> =
            std::iter::from_fn(|| queue.take()).map(|(key, _)| key.flow()).collect();
        assert_eq!(flows, BTreeSet::from([1, 2]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_much_is_forgotten_of_the_flow_that_has_most() {
        let mut queue = WorkQueue::bounded(RetryPolicy::CERTIFICATES, 100);
        let now = Instant::now();
        for number in 0..1000 {
            queue.add((1, number), now);
            if number % 100 == 0 {
                queue.add((2, number), now);
            }
        }
        assert_eq!((queue.len(), queue.wanted.len()), (100, 100));
        assert_eq!((queue.take_forgotten(), queue.take_forgotten()), (910, 0));
        let taken: Vec<_> = std::iter::from_fn(|| queue.take()).map(|(key, _)| key).collect();
        assert_eq!(taken.iter().filter(|(flow, _)| *flow == 2).count(), 10);
        assert!(taken.contains(&(1, 999)), "those that came last are there");
        // What failed is bounded, too.
        for number in 0..1000 {
            queue.add((3, number), now);
            queue.take().unwrap();
            queue.done((3, number), AttemptOutcome::Retry, now);
        }
        assert_eq!((queue.delayed.len(), queue.failures.len()), (100, 100));
        assert_eq!(queue.take_forgotten(), 900);
    }
    #[tokio::test(start_paused = true)]
    async fn what_fails_too_often_is_forgotten_of_the_flow_that_fails_most() {
        let mut queue = WorkQueue::bounded(RetryPolicy::CERTIFICATES, 100);
        let now = Instant::now();
        let fail = |queue: &mut WorkQueue<(FlowId, u32)>, key| {
            queue.add(key, now);
            queue.take().unwrap();
            queue.done(key, AttemptOutcome::Retry, now);
        };
        for number in 0..1000 {
            fail(&mut queue, (1, number));
        }
        fail(&mut queue, (2, 0));
        for number in 1000..2000 {
            fail(&mut queue, (1, number));
        }
        assert_eq!(queue.take_forgotten(), 1901);
        assert_eq!(queue.due(), Some(now + Duration::from_millis(200)));
        assert_eq!(queue.ripen(now + Duration::from_mins(10)), 100);
        let kept: Vec<_> = std::iter::from_fn(|| queue.take()).map(|(key, _)| key).collect();
        assert!(kept.contains(&(2, 0)) && kept.contains(&(1, 0)), "{kept:?}");
    }
}
