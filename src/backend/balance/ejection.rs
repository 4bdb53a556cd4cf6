//! When an endpoint that fails gets no new requests: back-off that doubles, and one trial request at its end.

use std::time::Duration;

use tokio::time::Instant;

/// The first ejection, and the longest. The longest is short, because a server that has returned should have its share
/// of the load within a minute.
const FIRST_EJECTION: Duration = Duration::from_secs(1);
const MAX_EJECTION: Duration = Duration::from_secs(10);
/// Broken connections in a row that eject an endpoint. One is routine: servers close connections as they like.
const MAX_BROKEN: u32 = 3;
/// How long a trial keeps other requests away. A trial may be a request that waits long for its response.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Why an endpoint was ejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EjectionCause {
    /// It could not be connected to.
    Connect,
    /// Connections broke before a response.
    Broken,
}

/// Whether new requests may go to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EjectionState {
    /// They may, or one may as a trial.
    Good,
    /// They go elsewhere.
    Ejected,
}

/// The failures of an endpoint since its last response.
#[derive(Debug, Default)]
pub(super) struct Ejection {
    broken: u32,
    ejections: u32,
    until: Option<Instant>,
    /// When it was ejected last, whether it has answered since or not.
    last: Option<Instant>,
    trial: Option<Instant>,
    connect_total: u64,
    broken_total: u64,
    returns: u64,
}

impl Ejection {
    pub(super) fn state(&self, now: Instant) -> EjectionState {
        let is_ejected = self.until.is_some_and(|until| now < until);
        let is_tried = self.trial.is_some_and(|since| now.duration_since(since) < TRIAL_TIMEOUT);
        if is_ejected || is_tried { EjectionState::Ejected } else { EjectionState::Good }
    }

    pub(super) fn begin_trial(&mut self, now: Instant) {
        if self.until.is_some() {
            self.trial = Some(now);
        }
    }

    pub(super) fn succeed(&mut self) {
        self.returns += u64::from(self.ejections > 0);
        (self.broken, self.ejections, self.until, self.trial) = (0, 0, None, None);
    }

    /// Records a failure. `random` spreads the end of the ejection, so that several gateways do not return at once.
    pub(super) fn fail(&mut self, cause: EjectionCause, now: Instant, random: u64) -> bool {
        // Requests that were on their way when the endpoint was ejected are no further evidence.
        if self.until.is_some_and(|until| now < until) {
            return false;
        }
        if cause == EjectionCause::Broken {
            self.broken = self.broken.saturating_add(1);
            if self.broken < MAX_BROKEN && self.until.is_none() {
                return false;
            }
        }
        let doubled = FIRST_EJECTION.saturating_mul(1 << self.ejections.min(8)).min(MAX_EJECTION);
        // Between three quarters and the whole.
        let parts = u32::try_from(random % 256).unwrap_or_default() + 768;
        self.until = Some(now + doubled * parts / 1024);
        self.last = Some(now);
        self.ejections = self.ejections.saturating_add(1);
        self.trial = None;
        match cause {
            EjectionCause::Connect => self.connect_total += 1,
            EjectionCause::Broken => self.broken_total += 1,
        }
        true
    }

    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    pub(super) fn last(&self) -> Option<Instant> {
        self.last
    }

    /// How often a response has ended a series of ejections.
    pub(super) fn returns(&self) -> u64 {
        self.returns
    }

    pub(super) fn count(&self, cause: EjectionCause) -> u64 {
        match cause {
            EjectionCause::Connect => self.connect_total,
            EjectionCause::Broken => self.broken_total,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ejections_double_up_to_a_limit_and_end_with_a_response() {
        let mut ejection = Ejection::default();
        let mut now = Instant::now();
        let mut spans = Vec::new();
        for _ in 0..6 {
            assert_eq!(ejection.state(now), EjectionState::Good);
            assert!(ejection.fail(EjectionCause::Connect, now, 255));
            assert!(!ejection.fail(EjectionCause::Connect, now, 255), "already ejected");
            assert_eq!(ejection.state(now), EjectionState::Ejected);
            let until = ejection.until().unwrap();
            spans.push((until - now).as_millis());
            now = until;
        }
        assert_eq!(spans, [999, 1998, 3996, 7992, 9990, 9990]);
        ejection.succeed();
        assert!(ejection.fail(EjectionCause::Connect, now, 0));
        assert_eq!((ejection.until().unwrap() - now).as_millis(), 750, "three quarters of the first");
        assert_eq!(ejection.returns(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn only_broken_connections_in_a_row_eject() {
        let mut ejection = Ejection::default();
        let now = Instant::now();
        for _ in 0..2 * MAX_BROKEN {
            assert!(!ejection.fail(EjectionCause::Broken, now, 0));
            ejection.succeed();
        }
        let outcomes: Vec<bool> = (0..3).map(|_| ejection.fail(EjectionCause::Broken, now, 0)).collect();
        assert_eq!(outcomes, [false, false, true]);
        assert_eq!(ejection.returns(), 0, "it was not away");
    }

    #[tokio::test(start_paused = true)]
    async fn one_trial_at_a_time_follows_an_ejection() {
        let mut ejection = Ejection::default();
        let now = Instant::now();
        ejection.fail(EjectionCause::Connect, now, 0);
        let end = ejection.until().unwrap();
        ejection.begin_trial(end);
        assert_eq!(ejection.state(end), EjectionState::Ejected, "others wait for its outcome");
        assert_eq!(ejection.state(end + TRIAL_TIMEOUT), EjectionState::Good, "but not forever");
        ejection.succeed();
        assert_eq!(ejection.state(end), EjectionState::Good);
    }
}
