//! When each watch ends during a graceful shutdown: one after the other, so that not all clients come to the other
//! replicas at once.
// apiserver: pkg/server/genericapiserver.go, RunWithContext — the rate at which watches are drained

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// So many watches end each second, and more only if the grace period is too short for all of them.
const MIN_WATCHES_PER_SECOND: u32 = 200;

/// The order in which the watches of all connections end.
#[derive(Debug, Default)]
pub(crate) struct WatchTermination {
    pace: OnceLock<Pace>,
    ended: AtomicU32,
}

#[derive(Debug)]
struct Pace {
    begins: Instant,
    interval: Duration,
    grace: Duration,
}

impl WatchTermination {
    /// Lets `watches` end within `grace` from now on. Without a grace period they end with the shutdown's.
    pub(crate) fn begin(&self, watches: u32, grace: Duration) {
        if grace.is_zero() {
            return;
        }
        let interval = (grace / watches.max(1)).min(Duration::from_secs(1) / MIN_WATCHES_PER_SECOND);
        // A shutdown begins once.
        self.pace.set(Pace { begins: Instant::now(), interval, grace }).ok();
    }

    /// When the watch that asks is to end, the next in the order; `None` if watches have no grace period.
    pub(super) fn next(&self) -> Option<Instant> {
        let pace = self.pace.get()?;
        let index = self.ended.fetch_add(1, Ordering::Relaxed);
        let after = pace.interval.checked_mul(index).unwrap_or(pace.grace);
        Some(pace.begins + after.min(pace.grace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many watches have ended after each fifth of ten seconds.
    fn ended(watches: u32) -> Vec<usize> {
        let termination = WatchTermination::default();
        termination.begin(watches, Duration::from_secs(10));
        let begins = termination.pace.get().unwrap().begins;
        let ends: Vec<_> = (0..watches).map(|_| termination.next().unwrap()).collect();
        let ended_by =
            |second| ends.iter().filter(|end| **end <= begins + Duration::from_secs(second)).count();
        [2, 4, 6, 8, 10].map(ended_by).to_vec()
    }

    #[tokio::test(start_paused = true)]
    async fn watches_are_spread_over_the_grace_period() {
        for (watches, expected) in [
            (1, [1, 1, 1, 1, 1]),
            (400, [400, 400, 400, 400, 400]),
            (1000, [401, 801, 1000, 1000, 1000]),
            (20_000, [4001, 8001, 12_001, 16_001, 20_000]),
        ] {
            assert_eq!(ended(watches), expected, "{watches} watches");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_comes_late_ends_with_the_last() {
        let termination = WatchTermination::default();
        termination.begin(1000, Duration::from_secs(1));
        let last = termination.pace.get().unwrap().begins + Duration::from_secs(1);
        let late: Vec<_> = (0..2000).filter_map(|_| termination.next()).skip(1000).collect();
        assert!(late.len() == 1000 && late.iter().all(|end| *end == last));
    }

    #[test]
    fn without_a_grace_period_they_have_no_order() {
        let termination = WatchTermination::default();
        termination.begin(1000, Duration::ZERO);
        assert_eq!(termination.next(), None);
    }
}
