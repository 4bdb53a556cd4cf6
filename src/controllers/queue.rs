//! What a controller has to work on: each item once, never twice at a time, again after a while if it failed. A plain
//! value: time is given, nothing waits here.
//!
//! Follows client-go's `util/workqueue`: an item that comes while it is worked on is kept for afterwards; attempts back
//! off for each item, and all retries together are limited.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// What an attempt came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing is left to do until something changes.
    Done,
    /// Nothing went wrong; look again after this time.
    After(Duration),
    /// It failed; try again later, and later with each failure in a row.
    Retry,
}

/// How retries are held back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// After the first failure of an item; doubled with each further one.
    pub(crate) first: Duration,
    /// At most.
    pub(crate) longest: Duration,
    /// Between any two retries, once there were more than `burst`.
    pub(crate) each: Duration,
    /// How many retries may be close to each other.
    pub(crate) burst: u32,
}

impl Pace {
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
pub(crate) struct Queue<K> {
    pace: Pace,
    ready: VecDeque<(K, Instant)>,
    /// In `ready`, or to be put there once it is not worked on any more.
    wanted: BTreeSet<K>,
    working: BTreeSet<K>,
    /// What is put off, and until when; each item once.
    delayed: BTreeSet<(Instant, K)>,
    until: BTreeMap<K, Instant>,
    failures: BTreeMap<K, u32>,
    /// When the limit of all retries would be used up to nothing again.
    // A bucket of `burst` that fills by one each `each`: the generic cell rate algorithm.
    replete: Option<Instant>,
}

impl<K: Clone + Ord> Queue<K> {
    /// An empty queue.
    pub(crate) fn new(pace: Pace) -> Self {
        Self {
            pace,
            ready: VecDeque::new(),
            wanted: BTreeSet::new(),
            working: BTreeSet::new(),
            delayed: BTreeSet::new(),
            until: BTreeMap::new(),
            failures: BTreeMap::new(),
            replete: None,
        }
    }

    /// Something about an item has changed. Says whether it was not known to be waiting.
    pub(crate) fn add(&mut self, key: K, now: Instant) -> bool {
        if !self.wanted.insert(key.clone()) {
            return false;
        }
        if !self.working.contains(&key) {
            self.ready.push_back((key, now));
        }
        true
    }

    /// Moves what was put off until now to what can be worked on; says how many were not waiting there already.
    pub(crate) fn ripen(&mut self, now: Instant) -> usize {
        let mut added = 0;
        while self.due().is_some_and(|at| at <= now) {
            let Some((_, key)) = self.delayed.pop_first() else { break };
            self.until.remove(&key);
            added += usize::from(self.add(key, now));
        }
        added
    }

    /// When something that was put off is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.delayed.first().map(|(at, _)| *at)
    }

    /// How many can be worked on.
    pub(crate) fn len(&self) -> usize {
        self.ready.len()
    }

    /// The next to work on, with the time since when it waits. It must be given to [`done`](Self::done) afterwards.
    pub(crate) fn take(&mut self) -> Option<(K, Instant)> {
        let (key, since) = self.ready.pop_front()?;
        self.wanted.remove(&key);
        self.working.insert(key.clone());
        Some((key, since))
    }

    /// What was taken is worked on no more.
    pub(crate) fn done(&mut self, key: K, outcome: Outcome, now: Instant) {
        self.working.remove(&key);
        if self.wanted.contains(&key) {
            self.ready.push_back((key.clone(), now));
        }
        match outcome {
            Outcome::Done => {
                self.failures.remove(&key);
            }
            Outcome::After(time) => {
                self.failures.remove(&key);
                self.put_off(key, time, now);
            }
            Outcome::Retry => {
                let delay = self.failed(&key).max(self.turn(now));
                self.put_off(key, delay, now);
            }
        }
    }

    fn put_off(&mut self, key: K, time: Duration, now: Instant) {
        let Some(at) = now.checked_add(time) else { return };
        // One wait is enough: whoever looks earlier sees what there is to do.
        // client-go: util/workqueue/delaying_queue.go, insert
        match self.until.get(&key) {
            Some(&earlier) if earlier <= at => return,
            Some(&later) => {
                self.delayed.remove(&(later, key.clone()));
            }
            None => {}
        }
        self.until.insert(key.clone(), at);
        self.delayed.insert((at, key));
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

    /// How long one more retry has to wait for all the others.
    // client-go: util/workqueue/default_rate_limiters.go, TypedBucketRateLimiter
    fn turn(&mut self, now: Instant) -> Duration {
        let replete = self.replete.map_or(now, |replete| replete.max(now)) + self.pace.each;
        self.replete = Some(replete);
        (replete - now).saturating_sub(self.pace.each * self.pace.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> (Queue<&'static str>, Instant) {
        (Queue::new(Pace::CERTIFICATES), Instant::now())
    }

    fn taken(queue: &mut Queue<&'static str>) -> Option<&'static str> {
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
        queue.done("a", Outcome::Done, now);
        assert_eq!(taken(&mut queue), Some("a"));
        queue.done("a", Outcome::Done, now);
        assert_eq!((taken(&mut queue), queue.due()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_double_the_wait_up_to_the_longest() {
        let (mut queue, mut now) = queue();
        queue.add("a", now);
        let mut waits = Vec::new();
        for _ in 0..15 {
            queue.take().unwrap();
            queue.done("a", Outcome::Retry, now);
            let due = queue.due().unwrap();
            waits.push((due - now).as_millis());
            assert_eq!(queue.ripen(due - Duration::from_millis(1)), 0);
            assert_eq!(queue.ripen(due), 1);
            now = due;
        }
        let expected: Vec<u128> = (0..15_u32).map(|n| (200 * 2_u128.pow(n)).min(1_000_000)).collect();
        assert_eq!(waits, expected);
        queue.take().unwrap();
        queue.done("a", Outcome::Done, now);
        queue.add("a", now);
        queue.take().unwrap();
        queue.done("a", Outcome::Retry, now);
        assert_eq!(queue.due().unwrap() - now, Duration::from_millis(200), "a success is a new beginning");
    }

    #[tokio::test(start_paused = true)]
    async fn all_retries_together_are_ten_in_a_second_after_a_hundred() {
        let mut queue = Queue::new(Pace::CERTIFICATES);
        let now = Instant::now();
        for key in 0..130 {
            queue.add(key, now);
            queue.take().unwrap();
            queue.done(key, Outcome::Retry, now);
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
        queue.done("a", Outcome::After(Duration::from_secs(5)), now);
        assert_eq!(queue.due(), Some(now + Duration::from_secs(5)));
        assert!(queue.add("a", now), "what changes meanwhile is looked at meanwhile");
        assert_eq!(queue.ripen(now + Duration::from_secs(5)), 0, "and it waits once");
    }
}
