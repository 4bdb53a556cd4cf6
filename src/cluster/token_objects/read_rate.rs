//! The rate limit on live reads that unauthenticated clients can cause with made-up tokens, for all clients and for each one.

use std::sync::Mutex;
use std::time::Duration;

use portcullis_limits::Owner;
use portcullis_limits::rate::{Bucket, Rate, RateLimits};
use portcullis_system::sync::lock;
use tokio::time::Instant;

/// Reads of all clients.
const RATE: Rate = Rate { interval: Duration::from_millis(100), burst: 20 };
/// Reads of one client.
// threat: token-flood
const OWN_RATE: Rate = Rate { interval: Duration::from_millis(200), burst: 10 };
/// The number of clients with a limit of their own; further ones share one.
const MAX_OWNERS: usize = 1024;

/// Token buckets of reads.
#[derive(Debug)]
pub(super) struct ReadRateLimiter(Mutex<ReadBuckets>);

#[derive(Debug)]
struct ReadBuckets {
    all: Bucket,
    own: RateLimits,
}

impl ReadRateLimiter {
    /// Full buckets.
    pub(super) fn new() -> Self {
        let own = RateLimits::new(OWN_RATE, MAX_OWNERS);
        Self(Mutex::new(ReadBuckets { all: Bucket::default(), own }))
    }

    /// Takes a read of this client; `false` if none is left.
    pub(super) fn take(&self, owner: &Owner) -> bool {
        let now = Instant::now();
        let ReadBuckets { all, own } = &mut *lock(&self.0);
        own.take(owner, now).is_some() && all.take(RATE, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u8) -> Owner {
        Owner::Network([10, 0, 0, number].into())
    }

    #[tokio::test(start_paused = true)]
    async fn the_buckets_empty_and_refill() {
        let limiter = ReadRateLimiter::new();
        let reads =
            || (0..1000).filter(|number| limiter.take(&client(u8::try_from(number % 250).unwrap()))).count();
        assert_eq!(reads(), 20);
        tokio::time::advance(Duration::from_millis(350)).await;
        assert_eq!(reads(), 3);
        tokio::time::advance(Duration::from_hours(1)).await;
        assert_eq!(reads(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_floods_leaves_reads_to_others() {
        let limiter = ReadRateLimiter::new();
        assert_eq!((0..1000).filter(|_| limiter.take(&client(1))).count(), 10);
        for _ in 0..100 {
            tokio::time::advance(Duration::from_millis(200)).await;
            assert_eq!((0..100).filter(|_| limiter.take(&client(1))).count(), 1);
            assert!(limiter.take(&client(2)));
        }
    }
}
