//! How often something may happen: one in each interval, and a burst of them at once.
//!
//! The generic cell rate algorithm: a bucket is the time at which it will be full again.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::{Owner, OwnerKey};

/// One in each interval, and `burst` at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// After which one more is permitted.
    pub interval: Duration,
    /// How many are permitted at once after a pause; at least one.
    pub burst: u32,
}

impl Rate {
    /// What a full bucket holds, in time.
    fn capacity(self) -> Duration {
        self.interval.saturating_mul(self.burst.max(1))
    }
}

/// A token bucket that is full at first.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bucket {
    full_at: Option<Instant>,
}

impl Bucket {
    /// Takes one, if there is one.
    pub fn take(&mut self, rate: Rate, now: Instant) -> bool {
        let full_at = self.full_at(now) + rate.interval;
        let is_there = full_at <= now + rate.capacity();
        if is_there {
            self.full_at = Some(full_at);
        }
        is_there
    }

    /// Takes one, also in advance. Returns how long until it is there.
    pub fn reserve(&mut self, rate: Rate, now: Instant) -> Duration {
        let full_at = self.full_at(now).checked_add(rate.interval).unwrap_or(now);
        self.full_at = Some(full_at);
        full_at.saturating_duration_since(now).saturating_sub(rate.capacity())
    }

    /// Whether nothing was taken that was not refilled.
    pub fn is_full(&self, now: Instant) -> bool {
        self.full_at(now) <= now
    }

    fn full_at(&self, now: Instant) -> Instant {
        self.full_at.map_or(now, |full_at| full_at.max(now))
    }
}

/// A bucket for each owner, of a bounded number of owners; further ones share one.
#[derive(Debug)]
pub struct RateLimits<O = Owner> {
    rate: Rate,
    max_owners: usize,
    own: HashMap<O, Allowance>,
    shared: Allowance,
}

#[derive(Debug, Default)]
struct Allowance {
    bucket: Bucket,
    refused: u64,
}

impl Allowance {
    fn take(&mut self, rate: Rate, now: Instant) -> Option<u64> {
        if self.bucket.take(rate, now) {
            return Some(std::mem::take(&mut self.refused));
        }
        self.refused += 1;
        None
    }
}

impl<O: OwnerKey> RateLimits<O> {
    /// Full buckets.
    pub fn new(rate: Rate, max_owners: usize) -> Self {
        Self { rate, max_owners, own: HashMap::new(), shared: Allowance::default() }
    }

    /// Takes one of this owner. `None` if it has none left; else how often it was refused since the last one.
    pub fn take(&mut self, owner: &O, now: Instant) -> Option<u64> {
        let rate = self.rate;
        self.of(owner, now).take(rate, now)
    }

    /// Takes one of this owner, also in advance. Returns how long until it is there.
    pub fn reserve(&mut self, owner: &O, now: Instant) -> Duration {
        let rate = self.rate;
        self.of(owner, now).bucket.reserve(rate, now)
    }

    fn of(&mut self, owner: &O, now: Instant) -> &mut Allowance {
        if self.own.len() >= self.max_owners && !self.own.contains_key(owner) {
            self.forget_full(now);
            if self.own.len() >= self.max_owners {
                return &mut self.shared;
            }
        }
        self.own.entry(owner.clone()).or_default()
    }

    /// Removes full buckets. The next one that is taken of the shared bucket reports what was refused of them.
    fn forget_full(&mut self, now: Instant) {
        let unreported = &mut self.shared.refused;
        self.own.retain(|_, allowance| {
            let is_kept = !allowance.bucket.is_full(now);
            *unreported += if is_kept { 0 } else { allowance.refused };
            is_kept
        });
    }

    /// The number of owners with a bucket of their own.
    pub fn owners(&self) -> usize {
        self.own.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    const RATE: Rate = Rate { interval: Duration::from_secs(1), burst: 20 };

    #[test]
    fn one_owner_has_its_rate_and_what_was_refused_is_counted() {
        let (now, mut limits) = (Instant::now(), RateLimits::new(RATE, 10));
        assert_eq!((0..100).filter(|_| limits.take(&"a", now).is_some()).count(), 20);
        assert_eq!(limits.take(&"b", now), Some(0), "another one is not affected");
        assert_eq!(limits.take(&"a", now + RATE.interval), Some(80));
        assert_eq!(limits.take(&"a", now + RATE.interval), None);
    }

    #[test]
    fn owners_beyond_the_bound_share_one_bucket_and_idle_ones_make_room() {
        let (now, mut limits) = (Instant::now(), RateLimits::new(RATE, 100));
        for owner in 0..100 {
            (0..=20).for_each(|_| {
                limits.take(&owner, now);
            });
        }
        assert_eq!((0..1000).filter(|index| limits.take(&(5000 + index), now).is_some()).count(), 20);
        assert_eq!(limits.owners(), 100);
        let later = now + RATE.capacity();
        assert_eq!((0..50).filter(|index| limits.take(&(5000 + index), later).is_some()).count(), 50);
        assert_eq!(limits.owners(), 50, "full buckets are forgotten");
    }

    #[test]
    fn what_is_taken_in_advance_comes_at_the_rate() {
        let (now, mut bucket) = (Instant::now(), Bucket::default());
        let rate = Rate { interval: Duration::from_millis(100), burst: 3 };
        let waits: Vec<_> = (0..6).map(|_| bucket.reserve(rate, now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200, 300]);
        let later = now + Duration::from_mins(1);
        let waits: Vec<_> = (0..4).map(|_| bucket.reserve(rate, later).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100], "a pause refills to the burst, not beyond");
    }

    proptest! {
        // Random owners at random times, one of which asks in a loop: in every window each of the others gets what it asks
        // for within its rate, and the greedy one never more than burst and interval permit.
        #[test]
        fn an_owner_that_asks_in_a_loop_takes_nothing_from_the_others(steps in proptest::collection::vec((0_u64..3000, 0_u8..4), 1..200)) {
            let (start, mut limits) = (Instant::now(), RateLimits::new(RATE, 8));
            let (mut now, mut taken, mut last) = (start, 0_u32, HashMap::new());
            for (pause, calm) in steps {
                now += Duration::from_millis(pause);
                taken += u32::try_from((0..50).filter(|_| limits.take(&u8::MAX, now).is_some()).count()).unwrap();
                let is_calm = last.insert(calm, now).is_none_or(|last| now - last >= RATE.interval);
                prop_assert!(limits.take(&calm, now).is_some() || !is_calm);
                let permitted = u128::from(RATE.burst) + now.duration_since(start).as_millis() / RATE.interval.as_millis();
                prop_assert!(u128::from(taken) <= permitted);
            }
            prop_assert_eq!(limits.shared.refused, 0);
        }
    }
}
