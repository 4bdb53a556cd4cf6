//! The intervals between self-checks of an endpoint: short after a change, doubling while the outcome stays the same, and
//! doubling while it changes again and again.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use tokio::time::Instant;

use super::CheckOutcome;

/// The first interval after a check has passed. The identity headers that the API server publishes may still be those
/// of the time before its restart.
const FIRST_RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The interval while checks pass.
const CHECK_INTERVAL: Duration = Duration::from_mins(1);
/// The first retry is early: an API server that is starting forbids everything until its roles are loaded.
const MIN_RETRY_BACKOFF: Duration = Duration::from_millis(100);
const MAX_RETRY_BACKOFF: Duration = Duration::from_secs(10);
/// The longest interval while the endpoint is unreachable.
const MAX_UNREACHABLE_BACKOFF: Duration = Duration::from_secs(1);

/// The shortest interval between two checks of an endpoint.
const MIN_RECHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How many changes of an endpoint are checked at that interval: those of two restarts. Each further one doubles it.
const FREE_CHANGES: u32 = 8;
const MAX_CHANGE_BACKOFF: Duration = Duration::from_secs(10);
/// Enough to reach [`MAX_CHANGE_BACKOFF`].
const MAX_DOUBLINGS: u32 = 7;
/// After that time without a change, the changes before count no longer.
const STABLE_AFTER: Duration = Duration::from_mins(1);

/// Intervals from which on checks are spread.
const MIN_SPREAD_INTERVAL: Duration = Duration::from_secs(10);
/// How many checks begin at once; each further one waits for [`STAGGER`] longer.
const FIRST_CHECKS: u32 = 16;
const STAGGER: Duration = Duration::from_millis(2);

/// How long the first check of an endpoint waits, which is the `position`th of those that a reload adds: hundreds of TLS
/// handshakes at once would delay those of the endpoints that are in use.
pub(super) fn stagger(position: usize) -> Duration {
    let position = u32::try_from(position).unwrap_or(u32::MAX);
    STAGGER.saturating_mul(position.saturating_sub(FIRST_CHECKS))
}

/// The interval, up to a tenth shorter or longer for different endpoints: checks that began together drift apart.
pub(super) fn spread(wait: Duration, cluster: &str, endpoint: &str) -> Duration {
    if wait < MIN_SPREAD_INTERVAL {
        return wait;
    }
    let mut hasher = DefaultHasher::new();
    (cluster, endpoint).hash(&mut hasher);
    let [one, two, ..] = hasher.finish().to_le_bytes();
    wait.mul_f64(0.9 + 0.2 * f64::from(u16::from_le_bytes([one, two])) / f64::from(u16::MAX))
}

/// When the next check is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NextCheck {
    /// The earliest time, also if one is requested.
    pub(super) soonest: Duration,
    /// If none is requested.
    pub(super) latest: Duration,
}

/// The last outcome and the interval if it occurs again, and how often the endpoint has changed of late.
#[derive(Debug, Default)]
pub(super) struct CheckSchedule {
    last: Option<(Discriminant<CheckOutcome>, Duration)>,
    changes: u32,
    last_change: Option<Instant>,
}

impl CheckSchedule {
    /// The interval after an outcome. A check that `was_requested`, because a connection ended or a request failed, is a
    /// change of the endpoint as another outcome is: one that passes and closes is not checked again and again at once.
    // threat: restless-endpoint
    pub(super) fn after(&mut self, outcome: &CheckOutcome, was_requested: bool, now: Instant) -> NextCheck {
        let (first, last) = match outcome {
            CheckOutcome::Passed(_) => (FIRST_RECHECK_INTERVAL, CHECK_INTERVAL),
            CheckOutcome::Unreachable(_) => (MIN_RETRY_BACKOFF, MAX_UNREACHABLE_BACKOFF),
            CheckOutcome::Failed(_) | CheckOutcome::Inconclusive(_) => (MIN_RETRY_BACKOFF, MAX_RETRY_BACKOFF),
        };
        let kind = discriminant(outcome);
        let is_same = self.last.is_none_or(|(before, _)| before == kind);
        let wait = self.last.filter(|(before, _)| *before == kind).map_or(first, |(_, wait)| wait);
        self.last = Some((kind, last.min(wait * 2)));
        if was_requested || !is_same {
            self.note_change(now);
        }
        let soonest = self.soonest();
        NextCheck { soonest, latest: wait.max(soonest) }
    }

    fn note_change(&mut self, now: Instant) {
        if self.last_change.is_some_and(|last| now.duration_since(last) >= STABLE_AFTER) {
            self.changes = 0;
        }
        self.changes = self.changes.saturating_add(1);
        self.last_change = Some(now);
    }

    fn soonest(&self) -> Duration {
        let doublings = self.changes.saturating_sub(FREE_CHANGES).min(MAX_DOUBLINGS);
        MAX_CHANGE_BACKOFF.min(MIN_RECHECK_INTERVAL * (1 << doublings))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::super::{AcceptedIdentity, SelfCheckFailure};
    use super::*;
    use crate::backend::endpoint::ConnectError;

    /// The intervals after `times` outcomes of the same kind, in milliseconds.
    fn intervals(
        schedule: &mut CheckSchedule,
        times: usize,
        outcome: impl Fn() -> CheckOutcome,
    ) -> Vec<u128> {
        let next = |_| schedule.after(&outcome(), false, Instant::now()).latest.as_millis();
        (0..times).map(next).collect()
    }

    #[test]
    fn the_checks_of_many_clusters_are_spread() {
        let waits: Vec<u128> = (0..500)
            .map(|index| spread(CHECK_INTERVAL, &format!("c{index}"), "10.0.0.1:6443").as_millis())
            .collect();
        assert!(waits.iter().all(|wait| (54_000..=66_000).contains(wait)));
        // In each of the twelve seconds fall some, and in none of them a fifth.
        for second in 54..66_u128 {
            let within = waits.iter().filter(|wait| **wait / 1000 == second).count();
            assert!((1..100).contains(&within), "{within} of 500 in second {second}");
        }
        assert_eq!(spread(Duration::from_secs(1), "c", "e"), Duration::from_secs(1));
        assert_eq!([0, 16, 17, 500].map(|at| stagger(at).as_millis()), [0, 0, 2, 968]);
    }

    #[test]
    fn a_changed_outcome_is_rechecked_soon() {
        let error = ConnectError::Tcp { address: String::new(), cause: String::new() };
        let unreachable = || CheckOutcome::Unreachable(error.clone());
        let inconclusive = || CheckOutcome::Inconclusive(String::new());
        let forbidden = || CheckOutcome::Failed(SelfCheckFailure::ReviewForbidden);
        let passed = || CheckOutcome::Passed(AcceptedIdentity::Complete);
        let mut schedule = CheckSchedule::default();
        assert_eq!(intervals(&mut schedule, 6, unreachable), [100, 200, 400, 800, 1000, 1000]);
        // An API server that starts: not ready, then without roles, then ready.
        assert_eq!(
            intervals(&mut schedule, 9, inconclusive),
            [100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000]
        );
        assert_eq!(intervals(&mut schedule, 2, forbidden), [100, 200]);
        assert_eq!(intervals(&mut schedule, 8, passed), [1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]);
        assert_eq!(intervals(&mut schedule, 1, unreachable), [100]);
    }

    /// The checks in a time, of an endpoint that after each check changes at once, or is the same.
    async fn checks(
        schedule: &mut CheckSchedule,
        time: Duration,
        was_requested: bool,
        outcomes: &[fn() -> CheckOutcome],
    ) -> usize {
        let began = Instant::now();
        let mut count = 0;
        while began.elapsed() < time {
            let outcome = outcomes[count % outcomes.len()]();
            let next = schedule.after(&outcome, was_requested, Instant::now());
            count += 1;
            sleep(if was_requested { next.soonest } else { next.latest }).await;
        }
        count
    }

    const MINUTE: Duration = Duration::from_mins(1);

    fn passes() -> CheckOutcome {
        CheckOutcome::Passed(AcceptedIdentity::Complete)
    }

    fn fails() -> CheckOutcome {
        CheckOutcome::Failed(SelfCheckFailure::ReviewNotFound)
    }

    fn says_nothing() -> CheckOutcome {
        CheckOutcome::Inconclusive(String::new())
    }

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_that_changes_again_and_again_is_checked_ever_less_often() {
        // One that passes and closes the connection; ones whose outcome is never the same.
        type Outcomes = &'static [fn() -> CheckOutcome];
        let cases: [(bool, Outcomes); 3] =
            [(true, &[passes]), (false, &[fails, says_nothing]), (true, &[passes, fails, says_nothing])];
        for (was_requested, outcomes) in cases {
            let mut schedule = CheckSchedule::default();
            let first = checks(&mut schedule, MINUTE, was_requested, outcomes).await;
            assert!((8..30).contains(&first), "{first} checks in the first minute");
            let later = checks(&mut schedule, 10 * MINUTE, was_requested, outcomes).await;
            assert!((55..=61).contains(&later), "{later} checks in ten more minutes");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_that_was_stable_for_a_while_is_checked_at_once_again() {
        let mut schedule = CheckSchedule::default();
        checks(&mut schedule, MINUTE, true, &[passes]).await;
        let restless = schedule.after(&passes(), true, Instant::now());
        assert_eq!(restless.soonest, MAX_CHANGE_BACKOFF);
        checks(&mut schedule, 2 * MINUTE, false, &[passes]).await;
        let restarted = schedule.after(&passes(), true, Instant::now());
        assert_eq!(restarted.soonest, MIN_RECHECK_INTERVAL);
        // An API server that restarts twice within a minute: its connection ends, it is not ready, then ready.
        let mut schedule = CheckSchedule::default();
        let began = Instant::now();
        let says = |schedule: &mut CheckSchedule, outcome: CheckOutcome, was_requested| {
            schedule.after(&outcome, was_requested, Instant::now()).soonest
        };
        for _ in 0..2 {
            assert_eq!(says(&mut schedule, says_nothing(), true), MIN_RECHECK_INTERVAL);
            assert_eq!(says(&mut schedule, fails(), false), MIN_RECHECK_INTERVAL);
            assert_eq!(says(&mut schedule, passes(), false), MIN_RECHECK_INTERVAL);
        }
        assert!(began.elapsed() < MINUTE);
    }
}
