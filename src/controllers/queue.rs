//! The work queue of a controller: each item is queued once, is never processed twice at a time, and is retried with
//! back-off. A plain data structure: the caller passes the time, and nothing here waits.
//!
//! Follows client-go's `util/workqueue`: an item that is added while it is processed is queued again afterwards; each
//! item has a back-off, and a rate limit covers all retries of a flow. Unlike client-go's queue, this one has a lane
//! for each flow, served round-robin, and a bounded length: a client that creates thousands of items delays only
//! itself.

mod delays;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use portcullis_limits::rate::{Rate, RateLimits};
use portcullis_limits::turn_queue::{End, TurnQueue};

use delays::DelayedItems;

/// The maximum number of queued items, and of items that wait for a retry. The queue drops items beyond it.
// A kubelet's request exists for minutes, and few clusters have more than 15,000 nodes. An item takes up to
// 1 KiB, if its name has the maximum length and its requester no other item: docs/controllers.md has the sum.
pub(crate) const MAX_WAITING: usize = 50_000;

/// The flow of an item. Flows are served round-robin, and each has its own retry rate limit.
pub(crate) type FlowId = u64;

/// The key of an object to process.
pub(crate) trait WorkItem: Clone + Ord {
    /// The flow of the item: equal for all items that one client created.
    fn flow(&self) -> FlowId {
        0
    }
}

/// A longer lane serves its newest item first: its oldest items are late in any case, and a client that shares the lane
/// with a flood should not be late, too.
const MAX_FIFO_LENGTH: usize = 100;

/// The result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptOutcome {
    /// Done until the object changes.
    Done,
    /// Succeeded; process the item again after this time.
    After(Duration),
    /// Failed; retry with a back-off that grows with each failure in a row.
    Retry,
}

/// Back-off and rate limit of retries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetryPolicy {
    /// The back-off after the first failure of an item; doubled with each further one.
    pub(crate) base_delay: Duration,
    /// The maximum back-off of an item.
    pub(crate) max_delay: Duration,
    /// The retries of a flow.
    pub(crate) rate: Rate,
}

impl RetryPolicy {
    /// The policy of the certificate controllers: 200 ms to 1000 s; 10 retries per second after a burst of 100.
    // kubernetes: pkg/controller/certificates/certificate_controller.go, NewCertificateController
    pub(crate) const CERTIFICATES: Self = Self {
        base_delay: Duration::from_millis(200),
        max_delay: Duration::from_secs(1000),
        rate: Rate { interval: Duration::from_millis(100), burst: 100 },
    };
}

/// A queue of work items.
#[derive(Debug)]
pub(crate) struct WorkQueue<K> {
    retry_policy: RetryPolicy,
    capacity: usize,
    ready: TurnQueue<(K, Instant), FlowId>,
    /// Items in `ready`, and items in `working` that go there when they are done (client-go: `dirty`).
    wanted: BTreeSet<K>,
    working: BTreeSet<K>,
    delayed: DelayedItems<K>,
    failures: BTreeMap<K, u32>,
    /// The retries of each flow.
    retries: RateLimits<FlowId>,
    forgotten: u64,
}

// threat: pending-requests-flood
impl<K: WorkItem> WorkQueue<K> {
    /// An empty queue.
    pub(crate) fn new(retry_policy: RetryPolicy) -> Self {
        Self::bounded(retry_policy, MAX_WAITING)
    }

    fn bounded(retry_policy: RetryPolicy, capacity: usize) -> Self {
        Self {
            retry_policy,
            capacity,
            ready: TurnQueue::default(),
            wanted: BTreeSet::new(),
            working: BTreeSet::new(),
            delayed: DelayedItems::default(),
            failures: BTreeMap::new(),
            retries: RateLimits::new(retry_policy.rate, capacity),
            forgotten: 0,
        }
    }

    /// Adds an item that has changed; returns `false` if it is already queued.
    pub(crate) fn add(&mut self, key: K, now: Instant) -> bool {
        if !self.wanted.insert(key.clone()) {
            return false;
        }
        if !self.working.contains(&key) {
            self.push(key, now);
        }
        true
    }

    /// Queues an item. Beyond the capacity, the flow with the most items loses one.
    fn push(&mut self, key: K, now: Instant) {
        self.ready.push(key.flow(), (key, now));
        if self.ready.len() > self.capacity
            && let Some((forgotten, _)) = self.ready.drop_of_longest(End::Oldest)
        {
            self.wanted.remove(&forgotten);
            self.failures.remove(&forgotten);
            self.forgotten += 1;
        }
    }

    /// The number of items dropped since the last call; the caller has to list the objects again.
    pub(crate) fn take_forgotten(&mut self) -> u64 {
        std::mem::take(&mut self.forgotten)
    }

    /// Queues the delayed items that are due; returns how many were not queued already.
    pub(crate) fn queue_due(&mut self, now: Instant) -> usize {
        let mut added = 0;
        while let Some(key) = self.delayed.take(now) {
            added += usize::from(self.add(key, now));
        }
        added
    }

    /// When the first delayed item is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.delayed.due()
    }

    /// The number of queued items.
    pub(crate) fn len(&self) -> usize {
        self.ready.len()
    }

    /// Takes the next item, with the time when it was queued. The caller passes it to [`done`](Self::done) afterwards.
    pub(crate) fn take(&mut self) -> Option<(K, Instant)> {
        let end = if self.ready.len_of_next() > MAX_FIFO_LENGTH { End::Newest } else { End::Oldest };
        let (key, since) = self.ready.take(end)?;
        self.wanted.remove(&key);
        self.working.insert(key.clone());
        Some((key, since))
    }

    /// Ends the attempt at an item that [`take`](Self::take) returned.
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
                self.delay(key, time, now);
            }
            // client-go: util/workqueue/default_rate_limiters.go, TypedBucketRateLimiter
            AttemptOutcome::Retry => {
                let delay = self.backoff(&key).max(self.retries.reserve(&key.flow(), now));
                self.delay(key, delay, now);
            }
        }
    }

    /// Delays an item. Beyond the capacity, the flow with the most delayed items loses the one that is due last.
    fn delay(&mut self, key: K, time: Duration, now: Instant) {
        let Some(at) = now.checked_add(time) else { return };
        self.delayed.insert(key, at);
        if self.delayed.len() > self.capacity
            && let Some(forgotten) = self.delayed.drop_last_of_longest()
        {
            self.failures.remove(&forgotten);
            self.forgotten += 1;
        }
    }

    /// Counts a failure of an item; returns its back-off.
    // client-go: util/workqueue/default_rate_limiters.go, TypedItemExponentialFailureRateLimiter
    fn backoff(&mut self, key: &K) -> Duration {
        let failures = self.failures.entry(key.clone()).or_default();
        let factor = 2_u32.checked_pow(*failures);
        *failures = failures.saturating_add(1);
        let delay = factor.and_then(|factor| self.retry_policy.base_delay.checked_mul(factor));
        delay.unwrap_or(self.retry_policy.max_delay).min(self.retry_policy.max_delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl WorkItem for &'static str {}

    /// A flow, and the number of an item in it.
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
    async fn an_item_is_queued_once_and_processed_once_at_a_time() {
        let (mut queue, now) = queue();
        assert!(queue.add("a", now) && !queue.add("a", now) && queue.add("b", now));
        assert_eq!(taken(&mut queue), Some("a"));
        assert!(queue.add("a", now), "changed since it was taken");
        assert_eq!(taken(&mut queue), Some("b"));
        assert_eq!(taken(&mut queue), None, "a is being processed");
        queue.done("a", AttemptOutcome::Done, now);
        assert_eq!(taken(&mut queue), Some("a"));
        queue.done("a", AttemptOutcome::Done, now);
        assert_eq!((taken(&mut queue), queue.due()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_double_the_back_off_up_to_the_maximum() {
        let (mut queue, mut now) = queue();
        queue.add("a", now);
        let mut waits = Vec::new();
        for _ in 0..15 {
            queue.take().unwrap();
            queue.done("a", AttemptOutcome::Retry, now);
            let due = queue.due().unwrap();
            waits.push((due - now).as_millis());
            assert_eq!(queue.queue_due(due - Duration::from_millis(1)), 0);
            assert_eq!(queue.queue_due(due), 1);
            now = due;
        }
        let expected: Vec<u128> = (0..15_u32).map(|n| (200 * 2_u128.pow(n)).min(1_000_000)).collect();
        assert_eq!(waits, expected);
        queue.take().unwrap();
        queue.done("a", AttemptOutcome::Done, now);
        queue.add("a", now);
        queue.take().unwrap();
        queue.done("a", AttemptOutcome::Retry, now);
        assert_eq!(queue.due().unwrap() - now, Duration::from_millis(200), "a success resets the back-off");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flow_has_ten_retries_per_second_after_a_burst_of_a_hundred() {
        let mut queue = WorkQueue::new(RetryPolicy::CERTIFICATES);
        let now = Instant::now();
        for number in 0..130 {
            let key = (7, number);
            queue.add(key, now);
            queue.take().unwrap();
            queue.done(key, AttemptOutcome::Retry, now);
        }
        assert_eq!(queue.queue_due(now + Duration::from_millis(200)), 102, "the burst, and two more");
        assert_eq!(queue.queue_due(now + Duration::from_secs(1)), 8);
        assert_eq!(queue.queue_due(now + Duration::from_secs(3)), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_with_a_delay_is_queued_again_when_it_is_due() {
        let (mut queue, now) = queue();
        queue.add("a", now);
        queue.take().unwrap();
        queue.done("a", AttemptOutcome::After(Duration::from_secs(5)), now);
        assert_eq!(queue.due(), Some(now + Duration::from_secs(5)));
        assert!(queue.add("a", now), "a change queues the item before it is due");
        assert_eq!(queue.queue_due(now + Duration::from_secs(5)), 0, "the item is queued only once");
    }

    #[tokio::test(start_paused = true)]
    async fn flows_are_served_round_robin_however_many_items_one_of_them_has() {
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
    async fn failures_of_one_flow_do_not_delay_retries_of_another() {
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
        queue.queue_due(now + Duration::from_millis(200));
        let flows: BTreeSet<FlowId> =
            std::iter::from_fn(|| queue.take()).map(|(key, _)| key.flow()).collect();
        assert_eq!(flows, BTreeSet::from([1, 2]));
    }

    #[tokio::test(start_paused = true)]
    async fn beyond_the_capacity_the_flow_with_the_most_items_loses_items() {
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
        assert!(taken.contains(&(1, 999)), "the newest items are kept");
        // Items that wait for a retry are bounded, too.
        for number in 0..1000 {
            queue.add((3, number), now);
            queue.take().unwrap();
            queue.done((3, number), AttemptOutcome::Retry, now);
        }
        assert_eq!((queue.delayed.len(), queue.failures.len()), (100, 100));
        assert_eq!(queue.take_forgotten(), 900);
    }

    #[tokio::test(start_paused = true)]
    async fn beyond_the_capacity_the_flow_with_the_most_retries_loses_retries() {
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
        assert_eq!(queue.queue_due(now + Duration::from_mins(10)), 100);
        let kept: Vec<_> = std::iter::from_fn(|| queue.take()).map(|(key, _)| key).collect();
        assert!(kept.contains(&(2, 0)) && kept.contains(&(1, 0)), "{kept:?}");
    }
}
