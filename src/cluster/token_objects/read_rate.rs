//! The rate limit on live reads that unauthenticated clients can cause with made-up tokens.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use portcullis_system::sync::lock;

/// The time in which one read is added.
const READ_INTERVAL: Duration = Duration::from_millis(100);
/// The size of the burst.
const MAX_READS: u32 = 20;

/// A token bucket of reads.
#[derive(Debug)]
pub(super) struct ReadRateLimiter(Mutex<Bucket>);

#[derive(Debug)]
struct Bucket {
    left: u32,
    since: Instant,
}

impl ReadRateLimiter {
    /// A full bucket.
    pub(super) fn new() -> Self {
        Self(Mutex::new(Bucket { left: MAX_READS, since: Instant::now() }))
    }

    /// Takes a read from the bucket; `false` if it is empty.
    pub(super) fn take(&self) -> bool {
        let mut bucket = lock(&self.0);
        let gained = bucket.since.elapsed().as_millis() / READ_INTERVAL.as_millis();
        if gained > 0 {
            let gained = u32::try_from(gained).unwrap_or(MAX_READS);
            bucket.left = bucket.left.saturating_add(gained).min(MAX_READS);
            bucket.since = Instant::now();
        }
        let is_allowed = bucket.left > 0;
        bucket.left = bucket.left.saturating_sub(1);
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_bucket_empties_and_refills() {
        let limiter = ReadRateLimiter::new();
        assert_eq!((0..1000).filter(|_| limiter.take()).count(), 20);
        tokio::time::advance(Duration::from_millis(350)).await;
        assert_eq!((0..1000).filter(|_| limiter.take()).count(), 3);
        tokio::time::advance(Duration::from_hours(1)).await;
        assert_eq!((0..1000).filter(|_| limiter.take()).count(), 20);
    }
}
