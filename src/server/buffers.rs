//! Looks at what the buffers of streams and connections hold, a few times each second, so that the owner with the most gives way
//! when all hold too much.
// threat: buffered-bytes-flood

use std::sync::Arc;
use std::time::Duration;

use portcullis_limits::Owner;
use portcullis_limits::byte_ledger::{ByteLedger, Ended, Sample};
use portcullis_limits::rate::{Rate, RateLimits};
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::metrics::Metrics;

/// The interval between two looks.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
/// The same while half of the limit is in use.
const BUSY_SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// The log lines about one owner, and the owners with lines of their own.
const LOG_RATE: Rate = Rate { interval: Duration::from_secs(10), burst: 1 };
const MAX_LOGGED_OWNERS: usize = 64;

/// Keeps what buffers hold within `--max-buffered-bytes`.
#[derive(Debug)]
pub(super) struct BufferLimiter {
    pub(super) ledger: ByteLedger,
    pub(super) metrics: Arc<Metrics>,
}

impl BufferLimiter {
    /// Never returns.
    pub(super) async fn run(&self) {
        let mut lines = RateLimits::new(LOG_RATE, MAX_LOGGED_OWNERS);
        loop {
            let (sample, limit) = (self.ledger.sample(), self.ledger.total());
            self.record(&sample, limit, &mut lines);
            sleep(if sample.held > limit / 2 { BUSY_SAMPLE_INTERVAL } else { SAMPLE_INTERVAL }).await;
        }
    }

    fn record(&self, sample: &Sample, limit: usize, lines: &mut RateLimits) {
        let (metrics, gauge) = (&self.metrics.limits, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        metrics.buffered_bytes.set(gauge(sample.held));
        metrics.max_buffered_bytes.set(gauge(limit));
        // Those that were told before may not have ended yet.
        let ended = sample.gave_way.iter().filter(|(_, ended)| ended.holders > 0);
        for (owner, Ended { holders, bytes }) in ended {
            let (kind, name) = shown(owner);
            metrics
                .buffer_resets
                .with_label_values(&[kind])
                .inc_by(u64::try_from(*holders).unwrap_or(u64::MAX));
            let Some(suppressed) = lines.take(owner, Instant::now()) else { continue };
            let (held, suppressed) = (sample.held, Some(suppressed).filter(|lines| *lines > 0));
            warn!(
                kind,
                name,
                streams = holders,
                bytes,
                held,
                limit,
                suppressed,
                "streams reset: buffers hold more than --max-buffered-bytes, and this owner's hold the most"
            );
        }
    }
}

/// The kind of an owner, and its name.
fn shown(owner: &Owner) -> (&'static str, String) {
    match owner {
        Owner::Gateway => ("gateway", String::new()),
        Owner::Tenant(cluster) => ("tenant", cluster.to_string()),
        Owner::Flow { cluster, name } if name.is_empty() => ("api_server", cluster.to_string()),
        Owner::Flow { cluster, name } => ("user", format!("{name} of {cluster}")),
        Owner::Network(address) => ("network", address.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use portcullis_limits::byte_ledger::Holder;

    use super::*;

    #[derive(Default)]
    struct Stream(AtomicUsize);

    impl Holder for Stream {
        fn held(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }

        fn give_way(&self) -> bool {
            self.0.swap(0, Ordering::Relaxed) > 0
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_largest_owner_gives_way_within_one_interval() {
        let (ledger, metrics) = (ByteLedger::new(1000), Arc::new(Metrics::new()));
        let (flood, calm) = (Arc::new(Stream(900.into())), Arc::new(Stream(100.into())));
        let owners = [Owner::Tenant("flood".into()), Owner::flow("prod", "alice")];
        let [of_flood, of_calm] = owners;
        let _registered = [ledger.register(of_flood, &flood), ledger.register(of_calm, &calm)];
        let limiter = BufferLimiter { ledger, metrics: Arc::clone(&metrics) };
        let running = tokio::spawn(async move { limiter.run().await });
        sleep(SAMPLE_INTERVAL * 2).await;
        assert_eq!(
            (metrics.limits.buffered_bytes.get(), metrics.limits.max_buffered_bytes.get()),
            (1000, 1000)
        );
        assert_eq!(flood.held(), 900);
        flood.0.store(901, Ordering::Relaxed);
        sleep(BUSY_SAMPLE_INTERVAL * 2).await;
        assert_eq!((flood.held(), calm.held()), (0, 100));
        assert_eq!(metrics.limits.buffer_resets.with_label_values(&["tenant"]).get(), 1);
        running.abort();
    }
}
