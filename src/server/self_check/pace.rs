//! The intervals between self-checks of an endpoint: short after a change, doubling while the outcome stays the same.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem::{Discriminant, discriminant};
use std::time::Duration;

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

/// The last outcome, and the interval if it occurs again.
#[derive(Debug, Default)]
pub(super) struct CheckSchedule(Option<(Discriminant<CheckOutcome>, Duration)>);

impl CheckSchedule {
    /// The interval after an outcome.
    pub(super) fn after(&mut self, outcome: &CheckOutcome) -> Duration {
        let (first, last) = match outcome {
            CheckOutcome::Passed(_) => (FIRST_RECHECK_INTERVAL, CHECK_INTERVAL),
            CheckOutcome::Unreachable(_) => (MIN_RETRY_BACKOFF, MAX_UNREACHABLE_BACKOFF),
            CheckOutcome::Failed(_) | CheckOutcome::Inconclusive(_) => (MIN_RETRY_BACKOFF, MAX_RETRY_BACKOFF),
        };
        let kind = discriminant(outcome);
        let wait = self.0.filter(|(before, _)| *before == kind).map_or(first, |(_, wait)| wait);
        self.0 = Some((kind, last.min(wait * 2)));
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AcceptedIdentity, SelfCheckFailure};
    use super::*;
    use crate::backend::endpoint::ConnectError;

    /// The intervals after `times` outcomes of the same kind, in milliseconds.
    fn intervals(
        schedule: &mut CheckSchedule,
        times: usize,
        outcome: impl Fn() -> CheckOutcome,
    ) -> Vec<u128> {
        (0..times).map(|_| schedule.after(&outcome()).as_millis()).collect()
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
}
