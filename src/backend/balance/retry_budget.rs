//! How many requests may be sent again: a share of all requests, so that retries do not flood a failing cluster.
//!
//! Which ones may be is decided by `send_with_retry` in `pipeline/forward.rs`: reads whose connection broke, and what the API
//! server has not processed. `backend/pools.rs` sends again what was not written at all.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use portcullis_system::sync::lock;
use tokio::time::Instant;

use crate::metrics::RETRY_CAUSES;

/// One retry for each ten requests, and ten in each second for clusters with few requests.
const REQUESTS_PER_RETRY: u64 = 10;
const RETRIES_PER_SECOND: u64 = 10;
/// Unused retries that are kept: enough for the requests in progress on one connection of a server that dies.
const MAX_RETRIES: u64 = 256;

/// Why a request is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryCause {
    /// The connection closed before anything was written. Costs nothing of the budget.
    NotWritten,
    /// The API server stated that it did not process the request.
    NotProcessed,
    /// The connection broke under a read.
    Broken,
    /// The endpoint answers no probe either.
    Silent,
}

impl RetryCause {
    /// The value of the label `cause`.
    pub(crate) fn label(self) -> &'static str {
        let [not_written, not_processed, broken, silent] = RETRY_CAUSES;
        match self {
            Self::NotWritten => not_written,
            Self::NotProcessed => not_processed,
            Self::Broken => broken,
            Self::Silent => silent,
        }
    }
}

/// The retries of one cause since they were last read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RetryTotals {
    /// Why they were asked for.
    pub(crate) cause: RetryCause,
    /// Those that were sent again.
    pub(crate) granted: u64,
    /// Those for which no retry was left.
    pub(crate) refused: u64,
}

impl RetryTotals {
    const fn none(cause: RetryCause) -> Self {
        Self { cause, granted: 0, refused: 0 }
    }
}

const NO_RETRIES: [RetryTotals; 4] = [
    RetryTotals::none(RetryCause::NotWritten),
    RetryTotals::none(RetryCause::NotProcessed),
    RetryTotals::none(RetryCause::Broken),
    RetryTotals::none(RetryCause::Silent),
];

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
    totals: [RetryTotals; 4],
}

impl State {
    fn note(&mut self, cause: RetryCause, granted: u64, refused: u64) {
        if let Some(totals) = self.totals.iter_mut().find(|totals| totals.cause == cause) {
            totals.granted += granted;
            totals.refused += refused;
        }
    }
}

impl Default for RetryBudget {
    fn default() -> Self {
        let state = State { left: MAX_RETRIES * REQUESTS_PER_RETRY, refilled: None, totals: NO_RETRIES };
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
    pub(crate) fn withdraw(&self, cause: RetryCause, now: Instant) -> bool {
        self.withdraw_again(cause, now, &mut false)
    }

    /// Counts a request that is sent again at no cost, because nothing of it was written.
    pub(crate) fn note_not_written(&self) {
        lock(&self.state).note(RetryCause::NotWritten, 1, 0);
    }

    /// The same for a request that asks until it gets one: only its first refusal counts.
    pub(crate) fn withdraw_again(&self, cause: RetryCause, now: Instant, is_counted: &mut bool) -> bool {
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
            state.note(cause, 0, u64::from(!std::mem::replace(is_counted, true)));
            return false;
        }
        state.left -= REQUESTS_PER_RETRY;
        state.note(cause, 1, 0);
        true
    }

    /// The retries granted and refused since the last call, by their cause.
    pub(crate) fn take_totals(&self) -> [RetryTotals; 4] {
        std::mem::replace(&mut lock(&self.state).totals, NO_RETRIES)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn withdrawn(budget: &RetryBudget, now: Instant) -> u64 {
        (0..10_000).map_while(|_| budget.withdraw(RetryCause::Broken, now).then_some(1)).sum()
    }

    /// The retries granted and refused, all for one cause.
    fn totals(budget: &RetryBudget, cause: RetryCause) -> (u64, u64) {
        let totals = budget.take_totals();
        let others = totals.iter().filter(|totals| totals.cause != cause);
        assert_eq!(others.map(|totals| totals.granted + totals.refused).sum::<u64>(), 0);
        let found = totals.iter().find(|totals| totals.cause == cause).unwrap();
        (found.granted, found.refused)
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
        assert_eq!(totals(&budget, RetryCause::Broken), (2 * MAX_RETRIES + 20, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_asks_again_and_again_counts_as_one_refusal() {
        let budget = RetryBudget::default();
        let now = Instant::now();
        withdrawn(&budget, now);
        budget.take_totals();
        let mut counted = [false; 2];
        for _ in 0..20 {
            assert!(counted.iter_mut().all(|is_counted| !budget.withdraw_again(
                RetryCause::Silent,
                now,
                is_counted
            )));
        }
        assert_eq!(totals(&budget, RetryCause::Silent), (0, 2));
        assert!(budget.withdraw_again(RetryCause::Silent, now + Duration::from_secs(1), &mut counted[0]));
    }
}
