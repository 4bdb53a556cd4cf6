//! One limit with its queues, shared by all worker threads: a [`FairQueue`] behind one short lock.
//!
//! A place travels to a waiting request inside its channel. If the request is gone by then, the channel gives the place
//! back, and it goes to the next one: no wake-up is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_system::sync::lock;
use prometheus::Histogram;
use prometheus::IntGauge;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::LimitExceeded;
use super::fair_queue::{FairQueue, QueueBounds, Queued, Ticket};
use super::flow::FlowName;
use super::settings::LimitSettings;
use crate::metrics::{GaugeGuard, LimitMetrics};

/// The limit on one class of requests of one cluster.
#[derive(Debug)]
pub(super) struct ClassLimiter {
    /// Without a limit, requests do not even take the lock.
    is_limited: AtomicBool,
    state: Mutex<LimiterState>,
    in_service: IntGauge,
    waiting: IntGauge,
    wait: Histogram,
}

#[derive(Debug)]
struct LimiterState {
    queue: FairQueue<oneshot::Sender<Place>>,
    queue_timeout: Duration,
}

/// The place of one request, returned on drop.
#[derive(Debug)]
pub(super) struct Place {
    /// `None` once the place was returned.
    limiter: Option<Arc<ClassLimiter>>,
    flow: FlowName,
    _counted: GaugeGuard,
}

/// A request in the queue. It leaves the queue when it is dropped.
struct Waiting<'a> {
    limiter: &'a ClassLimiter,
    flow: FlowName,
    ticket: Ticket,
    place: oneshot::Receiver<Place>,
    until: Instant,
    started: Instant,
    _counted: GaugeGuard,
}

/// What becomes of a request at once.
enum Entry<'a> {
    Place(Place),
    /// It is exempt, and all places are taken.
    Beyond,
    Waiting(Waiting<'a>),
}

impl ClassLimiter {
    pub(super) fn new(cluster: &str, kind: &str, metrics: &LimitMetrics) -> Self {
        let state = LimiterState { queue: FairQueue::new(), queue_timeout: Duration::ZERO };
        let labels = [cluster, kind];
        Self {
            is_limited: AtomicBool::new(false),
            state: Mutex::new(state),
            in_service: metrics.in_service.with_label_values(&labels),
            waiting: metrics.waiting.with_label_values(&labels),
            wait: metrics.wait.with_label_values(&labels),
        }
    }

    /// Puts a limit in force, and hands out the places that it adds.
    pub(super) fn apply(self: &Arc<Self>, limit: usize, settings: &LimitSettings) {
        let bounds = QueueBounds { limit, queue_length: settings.queue_length_limit };
        let granted: Vec<_> = {
            let mut state = lock(&self.state);
            state.queue.set_bounds(bounds);
            state.queue_timeout = settings.queue_timeout;
            self.is_limited.store(limit > 0, Ordering::Relaxed);
            // Within the lock, so that no new request takes a place before those that wait.
            std::iter::from_fn(|| state.queue.next()).collect()
        };
        for (flow, waiter) in granted {
            self.hand_out(Some((flow, waiter)));
        }
    }

    pub(super) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    /// Waits for a place; `None` for an exempt request beyond the limit.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        flow: FlowName,
        is_exempt: bool,
        deadline: Option<Instant>,
    ) -> Result<Option<Place>, LimitExceeded> {
        match self.enter(flow, is_exempt, deadline)? {
            Entry::Place(place) => Ok(Some(place)),
            Entry::Beyond => Ok(None),
            // Boxed: few requests wait, and the future of each request is moved several times.
            Entry::Waiting(waiting) => Box::pin(waiting.place()).await.map(Some),
        }
    }

    fn enter(
        self: &Arc<Self>,
        flow: FlowName,
        is_exempt: bool,
        deadline: Option<Instant>,
    ) -> Result<Entry<'_>, LimitExceeded> {
        let mut state = lock(&self.state);
        let enters = if is_exempt { state.queue.enter_exempt(&flow) } else { state.queue.enter(&flow) };
        if enters {
            drop(state);
            return Ok(Entry::Place(self.place(flow)));
        }
        if is_exempt {
            return Ok(Entry::Beyond);
        }
        if state.queue.bounds().queue_length == 0 {
            return Err(LimitExceeded::Concurrency);
        }
        let (sender, place) = oneshot::channel();
        let Queued::Waits { ticket, evicted } = state.queue.wait(&flow, sender) else {
            return Err(LimitExceeded::QueueFull);
        };
        let started = Instant::now();
        let until = started + state.queue_timeout;
        drop(state);
        // Wakes its request, which is refused.
        drop(evicted);
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        let counted = GaugeGuard::new(&self.waiting);
        Ok(Entry::Waiting(Waiting { limiter: self, flow, ticket, place, until, started, _counted: counted }))
    }

    fn place(self: &Arc<Self>, flow: FlowName) -> Place {
        Place { limiter: Some(Arc::clone(self)), flow, _counted: GaugeGuard::new(&self.in_service) }
    }

    /// Returns a place, and hands it to the request whose turn it is.
    fn release(self: &Arc<Self>, flow: &FlowName) {
        let granted = {
            let mut state = lock(&self.state);
            state.queue.release(flow);
            state.queue.next()
        };
        self.hand_out(granted);
    }

    /// Sends a place to its request. If that is gone, the place goes to the next one. A loop, not a recursion, so that
    /// many requests that are gone do not exhaust the stack.
    fn hand_out(self: &Arc<Self>, mut granted: Option<(FlowName, oneshot::Sender<Place>)>) {
        while let Some((flow, waiter)) = granted {
            // Outside of the lock, which the waker must not hold up.
            let Err(unwanted) = waiter.send(self.place(flow)) else { return };
            let flow = unwanted.defuse();
            let mut state = lock(&self.state);
            state.queue.release(&flow);
            granted = state.queue.next();
        }
    }
}

impl Waiting<'_> {
    async fn place(mut self) -> Result<Place, LimitExceeded> {
        let received = timeout_at(self.until, &mut self.place).await;
        self.limiter.wait.observe(self.started.elapsed().as_secs_f64());
        match received {
            Ok(Ok(place)) => Ok(place),
            // Evicted for a request of a flow with a shorter queue.
            Ok(Err(_)) => Err(LimitExceeded::QueueFull),
            Err(_) => Err(LimitExceeded::TimedOut),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // A place that is already in the channel is dropped with it, and goes to the next request.
        let waiter = lock(&self.limiter.state).queue.leave_queue(&self.flow, self.ticket);
        drop(waiter);
    }
}

impl Place {
    /// The flow of a place that the caller returns itself.
    fn defuse(mut self) -> FlowName {
        self.limiter = None;
        FlowName::clone(&self.flow)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(limiter) = self.limiter.take() {
            limiter.release(&self.flow);
        }
    }
}

#[cfg(test)]
impl ClassLimiter {
    /// The requests in service, the waiting ones, and the flows that are known.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        lock(&self.state).queue.counts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    fn entered<'a>(limiter: &'a Arc<ClassLimiter>, flow: &str) -> Entry<'a> {
        limiter.enter(flow.into(), false, None).unwrap()
    }

    fn waiting<'a>(limiter: &'a Arc<ClassLimiter>, flow: &str) -> Waiting<'a> {
        let Entry::Waiting(waiting) = entered(limiter, flow) else { panic!("{flow} waits") };
        waiting
    }

    // On two threads: one has taken the request from the queue, and the other drops it before the place is sent.
    #[tokio::test]
    async fn a_place_for_requests_that_have_just_left_goes_to_the_next_one() {
        let limiter = Arc::new(ClassLimiter::new("prod", "readOnly", &Metrics::new().limits));
        let queue_timeout = Duration::from_secs(15);
        let settings = LimitSettings {
            max_requests_inflight: 1,
            max_mutating_requests_inflight: 0,
            queue_length_limit: 5,
            queue_timeout,
        };
        limiter.apply(1, &settings);
        let Entry::Place(place) = entered(&limiter, "alice") else { panic!("a place is free") };
        let leaving = waiting(&limiter, "bob");
        let mut next = waiting(&limiter, "carol");
        let flow = place.defuse();
        let granted = {
            let mut state = lock(&limiter.state);
            state.queue.release(&flow);
            state.queue.next()
        };
        assert_eq!(granted.as_ref().map(|(flow, _)| &**flow), Some("bob"));
        drop(leaving);
        limiter.hand_out(granted);
        let place = next.place.try_recv().expect("carol has the place");
        assert_eq!(limiter.counts(), (1, 0, 1));
        drop((next, place));
        assert_eq!(limiter.counts(), (0, 0, 0));
    }
}
