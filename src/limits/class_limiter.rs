//! The limit on one class of requests of one cluster, with its queues: a [`FairLimiter`] of flows, and its metrics.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portcullis_limits::fair_limiter::{Entry, FairLimiter, Permit, Refused, Shares, Waiting};
use portcullis_system::sync::lock;
use prometheus::Histogram;
use prometheus::IntGauge;
use tokio::time::Instant;

use super::LimitExceeded;
use super::flow::FlowName;
use super::settings::LimitSettings;
use crate::metrics::{GaugeGuard, LimitMetrics};

/// The flows whose queues fit into the queue of all flows, as in a default priority level of kube-apiserver.
// apiserver: pkg/apis/flowcontrol/bootstrap/default.go, Queues
const FULL_QUEUES: usize = 64;
/// One flow leaves this part of the places to the others, so that a user with slow requests cannot take them all.
const RESERVED_PART: usize = 10;

/// The limit on one class of requests of one cluster.
#[derive(Debug)]
pub(super) struct ClassLimiter {
    /// Without a limit, requests do not even take the lock.
    is_limited: AtomicBool,
    places: FairLimiter<FlowName>,
    queue_timeout: Mutex<Duration>,
    in_service: IntGauge,
    waiting: IntGauge,
    wait: Histogram,
}

/// The place of one request, returned on drop.
#[derive(Debug)]
pub(super) struct Place {
    _permit: Permit<FlowName>,
    _counted: GaugeGuard,
}

impl From<Refused> for LimitExceeded {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Full => Self::Concurrency,
            Refused::QueueFull => Self::QueueFull,
            Refused::TimedOut => Self::TimedOut,
        }
    }
}

impl ClassLimiter {
    pub(super) fn new(cluster: &str, kind: &str, metrics: &LimitMetrics) -> Self {
        let labels = [cluster, kind];
        Self {
            is_limited: AtomicBool::new(false),
            places: FairLimiter::new(shares(0, 0)),
            queue_timeout: Mutex::default(),
            in_service: metrics.in_service.with_label_values(&labels),
            waiting: metrics.waiting.with_label_values(&labels),
            wait: metrics.wait.with_label_values(&labels),
        }
    }

    /// Puts a limit in force, and hands out the places that it adds.
    pub(super) fn apply(&self, limit: usize, settings: &LimitSettings) {
        *lock(&self.queue_timeout) = settings.queue_timeout;
        self.is_limited.store(limit > 0, Ordering::Relaxed);
        self.places.set_shares(shares(limit, settings.queue_length_limit));
    }

    pub(super) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    /// Waits for a place; `None` for an exempt request beyond the limit.
    // threat: inflight-flood
    pub(super) async fn acquire(
        &self,
        flow: FlowName,
        is_exempt: bool,
        deadline: Option<Instant>,
    ) -> Result<Option<Place>, LimitExceeded> {
        if is_exempt {
            let permit = self.places.try_acquire_beyond_share(flow, 1);
            return Ok(permit.map(|permit| self.place(permit)));
        }
        match self.places.enter(flow, 1)? {
            Entry::Permit(permit) => Ok(Some(self.place(permit))),
            // Boxed: few requests wait, and the future of each request is moved several times.
            Entry::Waiting(waiting) => Box::pin(self.wait(waiting, deadline)).await.map(Some),
        }
    }

    async fn wait(
        &self,
        waiting: Waiting<'_, FlowName>,
        deadline: Option<Instant>,
    ) -> Result<Place, LimitExceeded> {
        let started = Instant::now();
        let until = started + *lock(&self.queue_timeout);
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        let counted = GaugeGuard::new(&self.waiting);
        let permit = waiting.permit(until).await;
        drop(counted);
        self.wait.observe(started.elapsed().as_secs_f64());
        Ok(self.place(permit?))
    }

    fn place(&self, permit: Permit<FlowName>) -> Place {
        Place { _permit: permit, _counted: GaugeGuard::new(&self.in_service) }
    }
}

/// The shares of a limit, 0 for none, with queues of this length, 0 for none. Without queues any flow may take every place, as
/// in kube-apiserver.
fn shares(limit: usize, queue_length: usize) -> Shares {
    if limit == 0 {
        return Shares::new(usize::MAX, usize::MAX);
    }
    if queue_length == 0 {
        return Shares::new(limit, limit);
    }
    let per_flow = limit.saturating_sub(limit.div_ceil(RESERVED_PART)).max(1);
    Shares::new(limit, per_flow).with_queue(queue_length.saturating_mul(FULL_QUEUES), queue_length)
}

#[cfg(test)]
impl ClassLimiter {
    /// The requests in service, the waiting ones, and the flows that are known.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let usage = self.places.usage();
        (usage.in_service, usage.waiting, usage.owners)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_queues_one_flow_leaves_a_tenth_of_the_places_to_others() {
        for (limit, expected) in [(1, 1), (2, 1), (3, 2), (9, 8), (10, 9), (11, 9), (400, 360)] {
            assert_eq!(shares(limit, 5), Shares::new(limit, expected).with_queue(320, 5));
            assert_eq!(shares(limit, 0), Shares::new(limit, limit), "as kube-apiserver without queues");
        }
    }
}
