//! The validated limits of one cluster.

use std::time::Duration;

/// The limits on the requests of one cluster in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitSettings {
    /// Reads in flight; 0: no limit.
    pub max_requests_inflight: usize,
    /// Writes in flight; 0: no limit.
    pub max_mutating_requests_inflight: usize,
    /// Waiting requests of one flow; 0: no queues.
    pub queue_length_limit: usize,
    /// How long a request waits.
    pub queue_timeout: Duration,
}

impl LimitSettings {
    /// Whether any limit is set.
    pub fn is_limited(&self) -> bool {
        self.max_requests_inflight > 0 || self.max_mutating_requests_inflight > 0
    }
}
