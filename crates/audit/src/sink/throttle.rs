//! A token bucket: how many batches are stored per second.
// client-go: util/flowcontrol/throttle.go; golang.org/x/time/rate

use std::time::Duration;

use portcullis_limits::rate::{Bucket, Rate};
use tokio::time::{Instant, sleep};

use super::options::ThrottleOptions;

/// A token bucket that is full at first. Batches have events of all owners, in turns: it needs no share for each of them.
#[derive(Debug, Default)]
pub(super) struct TokenBucket {
    options: Option<ThrottleOptions>,
    bucket: Bucket,
}

impl TokenBucket {
    /// Takes a token as soon as there is one. With other options than before, the bucket is a new one.
    pub(super) async fn take(&mut self, options: Option<ThrottleOptions>) {
        if self.options != options {
            *self = Self { options, bucket: Bucket::default() };
        }
        let Some(ThrottleOptions { qps, burst }) = options else { return };
        let interval = Duration::try_from_secs_f64(1.0 / f64::from(qps)).unwrap_or(Duration::MAX);
        let wait = self.bucket.reserve(Rate { interval, burst }, Instant::now());
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn after_the_burst_tokens_come_at_the_rate() {
        let options = |qps, burst| Some(ThrottleOptions { qps, burst });
        let (start, mut bucket, mut taken) = (Instant::now(), TokenBucket::default(), Vec::new());
        for _ in 0..6 {
            bucket.take(options(10.0, 3)).await;
            taken.push(start.elapsed().as_millis());
        }
        // tokio's timers round up to a millisecond.
        for (taken, expected) in taken.iter().zip([0, 0, 0, 100, 200, 300]) {
            assert!((expected..=expected + 3).contains(taken), "{taken} ≠ {expected}");
        }
        // A pause refills the bucket to the burst, not beyond.
        sleep(Duration::from_mins(1)).await;
        let start = Instant::now();
        for _ in 0..4 {
            bucket.take(options(10.0, 3)).await;
        }
        assert!((100..=103).contains(&start.elapsed().as_millis()));
        // Other options: a new bucket. None: no limit.
        let start = Instant::now();
        bucket.take(options(10.0, 1)).await;
        for _ in 0..100 {
            bucket.take(None).await;
        }
        assert!(start.elapsed().is_zero());
    }
}
