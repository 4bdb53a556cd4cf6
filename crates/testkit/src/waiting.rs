//! Waiting with a limit, so that a failed test ends, and the current time.

use std::future::Future;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The limit of each wait, which only a failing test reaches.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// The output of a future; panics after [`TEST_TIMEOUT`].
pub async fn in_time<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(TEST_TIMEOUT, future).await.expect("the future completes in time")
}

/// Waits until a condition holds; panics after [`TEST_TIMEOUT`].
pub async fn until(what: &str, holds: impl FnMut() -> bool) {
    until_within(TEST_TIMEOUT, what, holds).await;
}

/// Waits until a condition holds; panics after this time.
pub(crate) async fn until_within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + limit;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "{what} never happened");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "tokens are judged by the real clock")]
pub fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}
