//! A token bucket: how many batches are stored per second.
// client-go: util/flowcontrol/throttle.go; golang.org/x/time/rate

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::options::ThrottleOptions;

/// A token bucket that is full at first.
#[derive(Debug, Default)]
pub(super) struct TokenBucket {
    options: Option<ThrottleOptions>,
    /// The tokens at `counted`; those that were taken in advance are negative.
    tokens: f64,
    counted: Option<Instant>,
}

impl TokenBucket {
    /// Takes a token as soon as there is one. With other options than before, the bucket is a new one.
    pub(super) async fn take(&mut self, options: Option<ThrottleOptions>) {
        if let Some(until) = self.reserve(options, Instant::now()) {
            sleep_until(until).await;
        }
    }

    /// Takes a token; returns when it is there, if it is not yet.
    fn reserve(&mut self, options: Option<ThrottleOptions>, now: Instant) -> Option<Instant> {
        let Some(ThrottleOptions { qps, burst }) = options else {
            *self = Self::default();
            return None;
        };
        let (qps, burst) = (f64::from(qps), f64::from(burst.max(1)));
        match self.counted {
            Some(counted) if self.options == options => {
                let refilled = now.saturating_duration_since(counted).as_secs_f64() * qps;
                self.tokens = (self.tokens + refilled).min(burst);
            }
            _ => self.tokens = burst,
        }
        (self.options, self.counted) = (options, Some(now));
        self.tokens -= 1.0;
        let missing = (-self.tokens).max(0.0) / qps;
        let wait = Duration::try_from_secs_f64(missing).unwrap_or(Duration::MAX);
        (!wait.is_zero()).then(|| now.checked_add(wait)).flatten()
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
        tokio::time::sleep(Duration::from_mins(1)).await;
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
