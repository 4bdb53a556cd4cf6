//! The buffer in front of a backend, bounded in events and in bytes, and how batches are collected from it.
//!
//! What is being stored counts in the bound of bytes until it is stored or given up, so that the memory of a sink is bounded
//! however slow its backend is.
// apiserver: plugin/pkg/audit/buffered/buffered.go

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::oneshot::Sender;
use tokio::time::{Instant, timeout_at};

use super::buffer::{Buffer, Displaced, Entry, Taken};
use super::lines::{Chunk, Reports};
use super::load::Load;
use super::observer::{DropCause, Losses};
use super::options::BatchOptions;
use super::owner::{EventOwner, PerGroup};

/// The events that wait for one backend or are being stored have at most this many bytes together. Events of later stages
/// in blocking modes may take [`HARD_LIMIT`] times as many, since they cannot wait.
pub(super) const MAX_BYTES: usize = 64 << 20;
/// How often the bounds fit into those of events that cannot wait.
pub(super) const HARD_LIMIT: usize = 2;
/// How long after a batch the next one is collected, unless a request waits for it: a thread that is woken for each event
/// costs more than the event.
const PAUSE: Duration = Duration::from_millis(10);

/// How batches are collected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct QueueOptions {
    pub(super) batch: BatchOptions,
    /// A larger batch is split.
    pub(super) max_batch_bytes: usize,
    /// Whether a batch may have more events than `batch` says, if they wait anyway and are not throttled. Under load, events
    /// then wait for up to [`PAUSE`].
    pub(super) takes_all: bool,
}

/// The buffer, and those that wait for it.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Notifies the collector.
    work: Notify,
    /// Notifies those that wait for room.
    room: Notify,
    /// Notifies those that wait until nothing is left.
    idle: Notify,
    losses: Losses,
}

#[derive(Debug)]
struct State {
    buffer: Buffer,
    options: QueueOptions,
    max_bytes: usize,
    /// How many wait in [`Queue::flush`].
    flushes: usize,
    /// Whether nothing uses the sink any longer.
    closed: bool,
    /// The number of events at which the collector is notified; `None` while it does not wait.
    wake_at: Option<usize>,
    /// Whether the collector waits until less is being stored.
    waits_for_storage: bool,
    /// How many events the collector takes out of the buffer at once, while it waits for them.
    collecting: usize,
    /// When the last batch was taken, if it left nothing.
    taken: Option<Instant>,
}

/// An event was added.
struct Pushed {
    load: Load,
    /// Whether the collector has to be notified.
    wakes: bool,
    displaced: Vec<Displaced>,
}

/// What the collector does next.
enum Step {
    Take,
    Wait(Option<Instant>),
    Closed,
}

/// Events that are being stored. They leave the bounds when this is dropped.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) chunks: Vec<Chunk>,
    loads: PerGroup<Load>,
    queue: Arc<Queue>,
}

impl Queue {
    pub(super) fn new(options: QueueOptions, losses: Losses) -> Self {
        Self::with_max_bytes(options, losses, MAX_BYTES)
    }

    pub(super) fn with_max_bytes(options: QueueOptions, losses: Losses, max_bytes: usize) -> Self {
        let state = State {
            buffer: Buffer::default(),
            options,
            max_bytes,
            flushes: 0,
            closed: false,
            wake_at: None,
            waits_for_storage: false,
            collecting: 0,
            taken: None,
        };
        Self {
            state: Mutex::new(state),
            work: Notify::new(),
            room: Notify::new(),
            idle: Notify::new(),
            losses,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn losses(&self) -> &Losses {
        &self.losses
    }

    pub(super) fn options(&self) -> QueueOptions {
        self.lock().options
    }

    pub(super) fn set_options(&self, options: QueueOptions) {
        self.lock().options = options;
        self.work.notify_one();
    }

    /// The events that wait or are being stored.
    pub(super) fn held(&self) -> usize {
        self.lock().buffer.held().all().events
    }

    /// Adds an event if there is room for it in the share of its owner, in `times` the bounds. Counts it as lost if not.
    pub(super) fn push_now(&self, owner: &EventOwner, line: &[u8], times: usize) -> bool {
        self.push_awaited(owner, line, times, None)
    }

    /// The same; `stored` is as in [`Self::push`].
    pub(super) fn push_awaited(
        &self,
        owner: &EventOwner,
        line: &[u8],
        times: usize,
        mut stored: Option<Sender<bool>>,
    ) -> bool {
        let pushed = self.lock().push(owner, line, &mut stored, times);
        match pushed {
            Ok(pushed) => {
                self.pushed(pushed);
                true
            }
            Err(cause) => {
                self.work.notify_one();
                self.lost(cause, owner);
                false
            }
        }
    }

    /// Adds an event as soon as there is room for it in the share of its owner. Counts it as lost if the wait is cancelled.
    /// `stored` takes whether it was stored; dropped without a value, it was not.
    pub(super) async fn push(&self, owner: &EventOwner, line: &[u8], mut stored: Option<Sender<bool>>) {
        let mut waiting = Waiting { losses: &self.losses, owner, cancelled: true };
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            let pushed = self.lock().push_first(owner, line, &mut stored);
            if let Ok(pushed) = pushed {
                self.pushed(pushed);
                break;
            }
            self.work.notify_one();
            room.await;
        }
        waiting.cancelled = false;
    }

    /// Whether the bounds are kept, or this owner is within its part of them.
    pub(super) fn has_room(&self, owner: &EventOwner) -> bool {
        let mut state = self.lock();
        let max = state.bounds(1);
        !matches!(state.buffer.entry(owner, 0, max), Entry::Full(_))
    }

    /// Waits for [`Self::has_room`].
    pub(super) async fn room(&self, owner: &EventOwner) {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if self.has_room(owner) {
                return;
            }
            room.await;
        }
    }

    #[inline]
    fn pushed(&self, pushed: Pushed) {
        self.changed(pushed.load, 1);
        if pushed.wakes {
            self.work.notify_one();
        }
        for Displaced { line, cause } in pushed.displaced {
            self.changed(line.load, -1);
            self.lost(cause, &line.owner);
        }
    }

    fn lost(&self, cause: DropCause, owner: &EventOwner) {
        self.losses.add(cause, [(owner.cluster(), 1)], &"audit buffer queue blocked");
    }

    fn changed(&self, load: Load, sign: i64) {
        let signed = |number: usize| i64::try_from(number).unwrap_or(i64::MAX).saturating_mul(sign);
        let (events, bytes) = (signed(load.events), signed(load.bytes));
        self.losses.observer().queue_changed(self.losses.sink(), events, bytes);
    }

    /// The next batch, as soon as it is large enough, old enough, or waited for. `None` once the queue is closed and
    /// nothing is being stored.
    // apiserver: buffered.go, collectEvents
    pub(super) async fn collect(self: &Arc<Self>) -> Option<Batch> {
        let mut started = Instant::now();
        let mut was_empty = false;
        loop {
            let work = self.work.notified();
            let until = {
                let mut state = self.lock();
                match state.step(&mut started, &mut was_empty) {
                    Step::Take => {
                        if let Some(taken) = state.take() {
                            drop(state);
                            self.room.notify_waiters();
                            return Some(Batch::new(taken, Arc::clone(self)));
                        }
                        None
                    }
                    Step::Closed => return None,
                    Step::Wait(until) => until,
                }
            };
            match until {
                Some(until) => {
                    let _elapsed = timeout_at(until, work).await;
                }
                None => work.await,
            }
        }
    }

    /// No sender is left: the collector does not wait for more.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.work.notify_one();
    }

    /// There is a sender again.
    pub(super) fn reopen(&self) {
        self.lock().closed = false;
    }

    /// Whether nothing is there or can come.
    pub(super) fn is_finished(&self) -> bool {
        let state = self.lock();
        state.closed && state.is_idle()
    }

    /// Waits until nothing waits and nothing is being stored. Batches are not collected meanwhile.
    pub(super) async fn flush(&self) {
        self.lock().flushes += 1;
        let _flush = Flush(self);
        self.work.notify_one();
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable();
            if self.lock().is_idle() {
                return;
            }
            idle.await;
        }
    }
}

impl State {
    /// The bounds of the events that wait, and of the bytes of all.
    fn bounds(&self, times: usize) -> Load {
        let events = self.options.batch.buffer_size.max(1).saturating_mul(times);
        Load { events: events.saturating_add(self.collecting), bytes: self.max_bytes.saturating_mul(times) }
    }

    /// Whether nothing waits and nothing is being stored.
    fn is_idle(&self) -> bool {
        self.buffer.held().all().events == 0
    }

    /// Adds an event. What it displaces is lost.
    fn push(
        &mut self,
        owner: &EventOwner,
        line: &[u8],
        stored: &mut Option<Sender<bool>>,
        times: usize,
    ) -> Result<Pushed, DropCause> {
        let max = self.bounds(times);
        let displaced = match self.buffer.entry(owner, line.len(), max) {
            Entry::Room => Vec::new(),
            Entry::WithinPart => self.buffer.displace(owner, line.len(), max),
            Entry::Full(cause) => return Err(cause),
        };
        self.buffer.push(owner, line, stored.take());
        let waiting = self.buffer.held().waiting;
        let is_large = waiting.text() >= self.options.max_batch_bytes;
        let is_hurried = self.buffer.awaited() > 0 || is_large || self.buffer.is_pressed();
        let is_due = self.wake_at.is_some_and(|at| waiting.events >= at || is_hurried);
        let wakes = is_due && self.wake_at.take().is_some();
        Ok(Pushed { load: Load::of(1, line.len()), wakes, displaced })
    }

    /// Adds an event that can wait. One within the part of its owner does not wait for the others, and takes the room of events
    /// that cannot wait, so that nothing is lost that others wait for.
    fn push_first(
        &mut self,
        owner: &EventOwner,
        line: &[u8],
        stored: &mut Option<Sender<bool>>,
    ) -> Result<Pushed, DropCause> {
        let max = self.bounds(1);
        let times = match self.buffer.entry(owner, line.len(), max) {
            Entry::Room => 1,
            Entry::WithinPart => HARD_LIMIT,
            Entry::Full(cause) => return Err(cause),
        };
        self.push(owner, line, stored, times)
    }

    fn step(&mut self, started: &mut Instant, was_empty: &mut bool) -> Step {
        let BatchOptions { max_size, max_wait, .. } = self.options.batch;
        let waits = max_size > 1 && !max_wait.is_zero();
        self.wake_at = None;
        self.waits_for_storage = false;
        self.collecting = 0;
        let waiting = self.buffer.held().waiting;
        if waiting.events == 0 {
            if self.closed && self.is_idle() {
                return Step::Closed;
            }
            *was_empty = true;
            self.wake_at = Some(1);
            self.collecting = max_size.max(1);
            return Step::Wait(None);
        }
        let is_large = waiting.text() >= self.options.max_batch_bytes || self.buffer.is_pressed();
        let is_hurried = self.buffer.awaited() > 0 || self.flushes > 0 || self.closed || is_large;
        if is_hurried {
            return Step::Take;
        }
        if !waits {
            return self.pause(waiting.events).unwrap_or(Step::Take);
        }
        if waiting.events >= max_size {
            return Step::Take;
        }
        let now = Instant::now();
        // Upstream's timer also runs while there are no events.
        if std::mem::take(was_empty) {
            let periods = now.duration_since(*started).as_nanos() / max_wait.as_nanos();
            *started += max_wait.saturating_mul(u32::try_from(periods).unwrap_or(u32::MAX));
        }
        let until = started.checked_add(max_wait);
        if until.is_some_and(|until| until <= now) {
            return Step::Take;
        }
        self.wake_at = Some(max_size);
        self.collecting = max_size;
        Step::Wait(until)
    }

    /// Waits a little if there was a batch a moment ago, but not until the buffer is half full.
    fn pause(&mut self, waiting: usize) -> Option<Step> {
        let QueueOptions { batch, takes_all, .. } = self.options;
        let many = batch.buffer_size / 2;
        if !takes_all || batch.throttle.is_some() || waiting >= many {
            return None;
        }
        let until = self.taken? + PAUSE;
        if until <= Instant::now() {
            return None;
        }
        self.wake_at = Some(many);
        Some(Step::Wait(Some(until)))
    }

    /// Takes a batch, of at least one event; `None` if too much is being stored.
    fn take(&mut self) -> Option<Taken> {
        let QueueOptions { batch, max_batch_bytes, takes_all } = self.options;
        let max = if takes_all && batch.throttle.is_none() { usize::MAX } else { batch.max_size.max(1) };
        let taken = self.buffer.take(max, max_batch_bytes, self.max_bytes);
        if taken.chunks.is_empty() {
            self.waits_for_storage = true;
            return None;
        }
        self.taken = (self.buffer.held().waiting.events == 0).then(Instant::now);
        Some(taken)
    }
}

impl Batch {
    fn new(taken: Taken, queue: Arc<Queue>) -> Self {
        let Taken { chunks, loads } = taken;
        Self { chunks, loads, queue }
    }

    /// Frees the lines, which are stored from a copy. They count in the bounds until the batch is dropped. Returns the requests
    /// that wait for them.
    pub(super) fn release(&mut self) -> Vec<Reports> {
        let reports = self.chunks.iter_mut().map(Chunk::take_reports).collect();
        self.queue.lock().buffer.recycle(self.chunks.drain(..));
        reports
    }

    /// The events of each cluster.
    pub(super) fn clusters(&self) -> BTreeMap<Arc<str>, u64> {
        let mut clusters = BTreeMap::new();
        self.chunks.iter().for_each(|chunk| chunk.add_clusters(&mut clusters));
        clusters
    }

    fn load(&self) -> Load {
        self.loads.iter().fold(Load::default(), |sum, (_, load)| sum + *load)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.load().events
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let queue = &self.queue;
        queue.changed(self.load(), -1);
        let mut state = queue.lock();
        state.buffer.recycle(self.chunks.drain(..));
        state.buffer.stored(&self.loads);
        let is_idle = state.is_idle();
        let is_awaited = (is_idle && state.closed) || state.waits_for_storage;
        drop(state);
        queue.room.notify_waiters();
        if is_awaited {
            queue.work.notify_one();
        }
        if is_idle {
            queue.idle.notify_waiters();
        }
    }
}

/// Counts a flush while it waits.
struct Flush<'a>(&'a Queue);

impl Drop for Flush<'_> {
    fn drop(&mut self) {
        self.0.lock().flushes -= 1;
    }
}

/// Counts an event as lost if the wait for its room is cancelled.
struct Waiting<'a> {
    losses: &'a Losses,
    owner: &'a EventOwner,
    cancelled: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.cancelled {
            let lost = [(self.owner.cluster(), 1)];
            self.losses.add(DropCause::Cancelled, lost, &"the request has ended before there was room");
        }
    }
}
