//! Waiting with a limit, so that a failed test ends.

use std::future::Future;
use std::time::Duration;

/// How long anything here may take; reached only by a test that fails.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// The output of a future; panics after [`TEST_TIMEOUT`].
pub async fn in_time<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(TEST_TIMEOUT, future).await.expect("the future completes in time")
}

/// Waits until a condition holds; panics after [`TEST_TIMEOUT`].
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "{what} never happened");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
