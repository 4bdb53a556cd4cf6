//! The limit on HTTP/2 streams that a client resets before their responses (rapid reset, CVE-2023-44487). Each costs
//! the backend work, and `SETTINGS_MAX_CONCURRENT_STREAMS` does not count it. Occasional resets are normal: clients
//! cancel requests. So a connection may reset twice its stream limit at once (`activity`), and then ten streams a second.
//! `http2` also limits the streams that are reset before h2 has returned them.

use std::time::Duration;

/// The interval after which a client may reset one more stream.
const RESET_INTERVAL: Duration = Duration::from_millis(100);

/// The resets of one connection, as a leaky bucket.
#[derive(Debug, Default)]
pub(super) struct StreamResetLimiter {
    /// When the bucket will be empty, since the connection was opened.
    used_until: Duration,
}

impl StreamResetLimiter {
    /// Counts a reset at `now` after the connection was opened. Returns true if the limit of `burst` resets is
    /// exceeded.
    // threat: floods
    pub(super) fn record_reset(&mut self, now: Duration, burst: u32) -> bool {
        self.used_until = self.used_until.max(now) + RESET_INTERVAL;
        self.used_until > now + RESET_INTERVAL * burst
    }

    /// Counts a response, which makes up for one reset.
    pub(super) fn record_response(&mut self) {
        self.used_until = self.used_until.saturating_sub(RESET_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_responses_make_up_for_resets() {
        let mut limiter = StreamResetLimiter::default();
        let start = Duration::from_secs(5);
        assert!((0..4).all(|_| !limiter.record_reset(start, 4)));
        assert!(limiter.record_reset(start, 4));
        limiter.record_response();
        limiter.record_response();
        assert!(!limiter.record_reset(start, 4), "responses make up for resets");
        assert!(limiter.record_reset(start, 4));
        assert!(!limiter.record_reset(start + 2 * RESET_INTERVAL, 4), "so does time");
        assert!((0..4).all(|_| !limiter.record_reset(start * 10, 4)), "but not beyond the burst");
        assert!(limiter.record_reset(start * 10, 4));
    }
}
