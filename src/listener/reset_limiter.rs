//! How many requests a client may take back before they are answered. Each costs the backend work that the limit on
//! streams does not count any more (CVE-2023-44487); a client that gives up now and then is no attacker.

use std::time::Duration;

/// One more may be taken back each time this has passed.
const RESET_INTERVAL: Duration = Duration::from_millis(100);

/// What a client may still take back, as the time until which all of it was used.
#[derive(Debug, Default)]
pub(super) struct StreamResetLimiter {
    used_until: Duration,
}

impl StreamResetLimiter {
    /// A request was taken back, `now` after the connection was opened. Whether that were more than `most` at once.
    // threat: floods
    pub(super) fn exceeded(&mut self, now: Duration, most: u32) -> bool {
        self.used_until = self.used_until.max(now) + RESET_INTERVAL;
        self.used_until > now + RESET_INTERVAL * most
    }

    /// A request was answered: who lets most be answered may take back more.
    pub(super) fn regain(&mut self) {
        self.used_until = self.used_until.saturating_sub(RESET_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_regained_with_time_and_with_answers() {
        let mut allowance = StreamResetLimiter::default();
        let start = Duration::from_secs(5);
        assert!((0..4).all(|_| !allowance.exceeded(start, 4)));
        assert!(allowance.exceeded(start, 4));
        allowance.regain();
        allowance.regain();
        assert!(!allowance.exceeded(start, 4), "answers make up for it");
        assert!(allowance.exceeded(start, 4));
        assert!(!allowance.exceeded(start + 2 * RESET_INTERVAL, 4), "so does time");
        assert!((0..4).all(|_| !allowance.exceeded(start * 10, 4)), "but no more than all of it");
        assert!(allowance.exceeded(start * 10, 4));
    }
}
