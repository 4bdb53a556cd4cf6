//! How soon an endpoint is asked again: soon after a change, ever more rarely while it says the same.

use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use super::Finding;

/// How often a good endpoint is asked. One that has just become good is asked again soon: what it says of its identity
/// headers may be of the time before it was restarted.
const FIRST_RECHECK_INTERVAL: Duration = Duration::from_secs(1);
const CHECK_INTERVAL: Duration = Duration::from_mins(1);
/// How soon a bad one is asked again: a young API server forbids everything until its roles are loaded.
const MIN_RETRY_BACKOFF: Duration = Duration::from_millis(100);
const MAX_RETRY_BACKOFF: Duration = Duration::from_secs(10);
/// How long one that was away may be there again before it is asked.
const MAX_UNREACHABLE_BACKOFF: Duration = Duration::from_secs(1);

/// What was found last, and how long to wait if it is found again.
#[derive(Debug, Default)]
pub(super) struct CheckSchedule(Option<(Discriminant<Finding>, Duration)>);

impl CheckSchedule {
    /// How long to wait after a finding.
    pub(super) fn after(&mut self, finding: &Finding) -> Duration {
        let (first, last) = match finding {
            Finding::Good(_) => (FIRST_RECHECK_INTERVAL, CHECK_INTERVAL),
            Finding::Away(_) => (MIN_RETRY_BACKOFF, MAX_UNREACHABLE_BACKOFF),
            Finding::Bad(_) | Finding::Unknown(_) => (MIN_RETRY_BACKOFF, MAX_RETRY_BACKOFF),
        };
        let kind = discriminant(finding);
        let wait = self.0.filter(|(before, _)| *before == kind).map_or(first, |(_, wait)| wait);
        self.0 = Some((kind, last.min(wait * 2)));
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Accepted, Fault};
    use super::*;

    /// The pauses after `times` findings of the same kind, in milliseconds.
    fn pauses(pace: &mut CheckSchedule, times: usize, finding: impl Fn() -> Finding) -> Vec<u128> {
        (0..times).map(|_| pace.after(&finding()).as_millis()).collect()
    }

    #[test]
    fn what_has_changed_is_looked_at_soon() {
        let away = || Finding::Away(String::new());
        let unknown = || Finding::Unknown(String::new());
        let forbidden = || Finding::Bad(Fault::Forbidden);
        let good = || Finding::Good(Accepted::Whole);
        let mut pace = CheckSchedule::default();
        assert_eq!(pauses(&mut pace, 6, away), [100, 200, 400, 800, 1000, 1000]);
        // A server that starts: it is not ready, then its roles are not loaded, then it is good.
        assert_eq!(pauses(&mut pace, 9, unknown), [100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000]);
        assert_eq!(pauses(&mut pace, 2, forbidden), [100, 200]);
        assert_eq!(pauses(&mut pace, 8, good), [1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]);
        assert_eq!(pauses(&mut pace, 1, away), [100]);
    }
}
