//! The intervals between self-checks of an endpoint: short after a change, doubling while the outcome stays the same.

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

    /// The intervals after `times` outcomes of the same kind, in milliseconds.
    fn intervals(
        schedule: &mut CheckSchedule,
        times: usize,
        outcome: impl Fn() -> CheckOutcome,
    ) -> Vec<u128> {
        (0..times).map(|_| schedule.after(&outcome()).as_millis()).collect()
    }

    #[test]
    fn a_changed_outcome_is_rechecked_soon() {
        let unreachable = || CheckOutcome::Unreachable(String::new());
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
