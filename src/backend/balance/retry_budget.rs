//! How many requests may be sent again: a share of all requests, so that retries do not flood a failing cluster.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use crate::sync::lock;

/// One retry for each ten requests, and ten in each second for clusters with few requests.
const REQUESTS_PER_RETRY: u64 = 10;
const RETRIES_PER_SECOND: u64 = 10;
/// Unused retries that are kept: enough for the requests in progress on one connection of a server that dies.
const MAX_RETRIES: u64 = 256;

/// The retries that a cluster has left.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    /// Requests since the last withdrawal, added without a lock.
    requests: AtomicU64,
    /// In parts of a request, of which a retry costs [`REQUESTS_PER_RETRY`].
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    left: u64,
    refilled: Option<Instant>,
    granted: u64,
    refused: u64,
}

impl Default for RetryBudget {
    fn default() -> Self {
        let state = State { left: MAX_RETRIES * REQUESTS_PER_RETRY, refilled: None, granted: 0, refused: 0 };
        Self { requests: AtomicU64::new(0), state: Mutex::new(state) }
    }
}

impl RetryBudget {
    /// Counts a request.
    pub(crate) fn deposit(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that changes with requests.
    pub(crate) fn activity(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Takes one retry, if one is left.
    pub(crate) fn withdraw(&self, now: Instant) -> bool {
        self.withdraw_again(now, &mut false)
    }

    /// The same for a request that asks until it gets one: only its first refusal counts.
    pub(crate) fn withdraw_again(&self, now: Instant, is_counted: &mut bool) -> bool {
        let mut state = lock(&self.state);
        let millis = state.refilled.map_or(0, |then| now.saturating_duration_since(then).as_millis());
        let elapsed = u64::try_from(millis).unwrap_or(u64::MAX);
        let refill = elapsed.saturating_mul(RETRIES_PER_SECOND * REQUESTS_PER_RETRY) / 1000;
        // Time that is too short for a whole part stays for the next withdrawal.
        if refill > 0 || state.refilled.is_none() {
            state.refilled = Some(now);
        }
        let deposited = self.requests.swap(0, Ordering::Relaxed);
        let left = state.left.saturating_add(refill).saturating_add(deposited);
        state.left = left.min(MAX_RETRIES * REQUESTS_PER_RETRY);
        if state.left < REQUESTS_PER_RETRY {
            state.refused += u64::from(!std::mem::replace(is_counted, true));
            return false;
        }
        state.left -= REQUESTS_PER_RETRY;
        state.granted += 1;
        true
    }

    /// The retries granted and refused since the last call.
    pub(crate) fn take_totals(&self) -> (u64, u64) {
        let mut state = lock(&self.state);
        (std::mem::take(&mut state.granted), std::mem::take(&mut state.refused))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn withdrawn(budget: &RetryBudget, now: Instant) -> u64 {
        (0..10_000).map_while(|_| budget.withdraw(now).then_some(1)).sum()
    }

    #[tokio::test(start_paused = true)]
    async fn retries_are_a_share_of_the_requests_and_a_few_per_second() {
        let budget = RetryBudget::default();
        let now = Instant::now();
        assert_eq!(withdrawn(&budget, now), MAX_RETRIES);
        (0..100).for_each(|_| budget.deposit());
        assert_eq!(withdrawn(&budget, now), 10);
        assert_eq!(withdrawn(&budget, now + Duration::from_secs(1)), RETRIES_PER_SECOND);
        assert_eq!(withdrawn(&budget, now + Duration::from_hours(1)), MAX_RETRIES, "savings are bounded");
        let (granted, refused) = budget.take_totals();
        assert_eq!((granted, refused), (2 * MAX_RETRIES + 20, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_asks_again_and_again_counts_as_one_refusal() {
        let budget = RetryBudget::default();
        let now = Instant::now();
        withdrawn(&budget, now);
        budget.take_totals();
        let mut counted = [false; 2];
        for _ in 0..20 {
            assert!(counted.iter_mut().all(|is_counted| !budget.withdraw_again(now, is_counted)));
        }
        assert_eq!(budget.take_totals(), (0, 2));
        assert!(budget.withdraw_again(now + Duration::from_secs(1), &mut counted[0]));
    }
}
