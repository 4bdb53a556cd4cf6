//! Resolves the limits on requests in flight.

use super::ConfigResolver;
use crate::config::error::ConfigError;
use crate::config::flags::LimitFlags;
use crate::config::sections::MergedSection;
use crate::limits::settings::LimitSettings;

const MAX: &str = "max-requests-inflight";
const QUEUE_LENGTH: &str = "inflight-queue-length-limit";
const QUEUE_TIMEOUT: &str = "inflight-queue-timeout";

impl ConfigResolver<'_> {
    /// The limits of a cluster. Warns of queues that nothing fills.
    pub(super) fn limits(&mut self, given: &MergedSection<LimitFlags>) -> Option<LimitSettings> {
        let flags = &given.values;
        let key = given.key(QUEUE_TIMEOUT);
        let queue_timeout = self.duration(&key, &flags.inflight_queue_timeout)?;
        if queue_timeout.is_zero() {
            let error = ConfigError::new(key, "must be positive");
            let fix = format!("give 15s, or turn the queues off with {} 0", given.key(QUEUE_LENGTH));
            return self.fail(error.fix(fix));
        }
        let settings = LimitSettings {
            max_requests_inflight: number(flags.max_requests_inflight),
            max_mutating_requests_inflight: number(flags.max_mutating_requests_inflight),
            queue_length_limit: number(flags.inflight_queue_length_limit),
            queue_timeout,
        };
        if settings.queue_length_limit > 0 && !settings.is_limited() {
            self.warn_of_no_effect(given, QUEUE_LENGTH, MAX);
        } else if settings.queue_length_limit == 0 && given.is_given(QUEUE_TIMEOUT) {
            self.warn_of_no_effect(given, QUEUE_TIMEOUT, QUEUE_LENGTH);
        }
        Some(settings)
    }
}

/// A number of requests, as a size.
pub(super) fn number(given: u32) -> usize {
    usize::try_from(given).unwrap_or(usize::MAX)
}
