//! The times at which watches end during a graceful shutdown: one after another, so that their clients do not all
//! reconnect to the other replicas at once.
// apiserver: pkg/server/genericapiserver.go, RunWithContext — the rate at which watches are drained

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// More watches end each second only if the grace period is too short for all of them.
const MIN_WATCHES_PER_SECOND: u32 = 200;

/// Assigns the watches of all connections the times at which they end.
#[derive(Debug, Default)]
pub(crate) struct WatchTermination {
    schedule: OnceLock<TerminationSchedule>,
    ended: AtomicU32,
}

#[derive(Debug)]
struct TerminationSchedule {
    start: Instant,
    interval: Duration,
    grace: Duration,
}

impl WatchTermination {
    /// Spreads the ends of `watches` watches over `grace` from now. If `grace` is zero, all of them end at
    /// [`super::ShutdownPhase::EndingWatches`].
    pub(crate) fn begin(&self, watches: u32, grace: Duration) {
        if grace.is_zero() {
            return;
        }
        let interval = (grace / watches.max(1)).min(Duration::from_secs(1) / MIN_WATCHES_PER_SECOND);
        // The shutdown begins once, so the schedule is not set yet.
        self.schedule.set(TerminationSchedule { start: Instant::now(), interval, grace }).ok();
    }

    /// The end of the next watch; `None` if watches have no grace period.
    pub(super) fn next(&self) -> Option<Instant> {
        let schedule = self.schedule.get()?;
        let index = self.ended.fetch_add(1, Ordering::Relaxed);
        let after = schedule.interval.checked_mul(index).unwrap_or(schedule.grace);
        Some(schedule.start + after.min(schedule.grace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of watches that have ended after each fifth of a grace period of ten seconds.
    fn ended(watches: u32) -> Vec<usize> {
        let termination = WatchTermination::default();
        termination.begin(watches, Duration::from_secs(10));
        let start = termination.schedule.get().unwrap().start;
        let ends: Vec<_> = (0..watches).map(|_| termination.next().unwrap()).collect();
        let ended_by =
            |second| ends.iter().filter(|end| **end <= start + Duration::from_secs(second)).count();
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
    async fn a_watch_beyond_the_announced_number_ends_with_the_last() {
        let termination = WatchTermination::default();
        termination.begin(1000, Duration::from_secs(1));
        let last = termination.schedule.get().unwrap().start + Duration::from_secs(1);
        let late: Vec<_> = (0..2000).filter_map(|_| termination.next()).skip(1000).collect();
        assert!(late.len() == 1000 && late.iter().all(|end| *end == last));
    }

    #[test]
    fn without_a_grace_period_watches_have_no_schedule() {
        let termination = WatchTermination::default();
        termination.begin(1000, Duration::ZERO);
        assert_eq!(termination.next(), None);
    }
}
