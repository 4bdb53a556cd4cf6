//! How many live reads somebody who makes tokens up can cause.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// One read is gained in this time.
const READ_INTERVAL: Duration = Duration::from_millis(100);
/// This many are there at most.
const MAX_READS: u32 = 20;

/// A number of reads that grows with time and is used up.
#[derive(Debug)]
pub(super) struct ReadRateLimiter(Mutex<State>);

#[derive(Debug)]
struct State {
    left: u32,
    since: Instant,
}

impl ReadRateLimiter {
    /// A full one.
    pub(super) fn new() -> Self {
        Self(Mutex::new(State { left: MAX_READS, since: Instant::now() }))
    }

    /// Uses up a read, if there is one.
    pub(super) fn take(&self) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gained = state.since.elapsed().as_millis() / READ_INTERVAL.as_millis();
        if gained > 0 {
            let gained = u32::try_from(gained).unwrap_or(MAX_READS);
            state.left = state.left.saturating_add(gained).min(MAX_READS);
            state.since = Instant::now();
        }
        let some = state.left > 0;
        state.left = state.left.saturating_sub(1);
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reads_are_used_up_and_come_back_with_time() {
        let budget = ReadRateLimiter::new();
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 20);
        tokio::time::advance(Duration::from_millis(350)).await;
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 3);
        tokio::time::advance(Duration::from_hours(1)).await;
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 20);
    }
}
