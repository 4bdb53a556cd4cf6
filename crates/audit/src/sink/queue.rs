//! The buffer in front of a backend, bounded in events and in bytes, and how batches are collected from it.
//!
//! What is being stored counts in the bound of bytes until it is stored or given up, so that the memory of a sink is bounded
//! however slow its backend is.
// apiserver: plugin/pkg/audit/buffered/buffered.go

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::oneshot::Sender;
use tokio::time::{Instant, timeout_at};

use super::lines::{Chunk, Lines, Reports};
use super::observer::{DropCause, Losses};
use super::options::BatchOptions;

/// The events that wait for one backend or are being stored have at most this many bytes together. Events of later stages
/// in blocking modes may take [`HARD_LIMIT`] times as many, since they cannot wait.
pub(super) const MAX_BYTES: usize = 64 << 20;
/// How often the bounds fit into those of events that cannot wait.
pub(super) const HARD_LIMIT: usize = 2;
/// How long after a batch the next one is collected, unless a request waits for it: a thread that is woken for each event
/// costs more than the event.
const PAUSE: Duration = Duration::from_millis(10);
/// What an event counts beside its text.
const OVERHEAD: usize = 128;

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

/// The buffer.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    max_bytes: usize,
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
    lines: Lines,
    options: QueueOptions,
    /// The bytes that wait or are being stored.
    held_bytes: usize,
    /// The events that wait or are being stored.
    held_events: usize,
    /// Whether an event found no room for its bytes, or a batch left events behind because of theirs: then nothing waits for
    /// more events.
    is_pressed: bool,
    /// The events that wait and for which a request waits.
    awaited: usize,
    /// How many wait in [`Queue::flush`].
    flushes: usize,
    /// Whether nothing uses the sink any longer.
    closed: bool,
    /// The number of events at which the collector is notified; `None` while it does not wait.
    wake_at: Option<usize>,
    /// How many events the collector takes out of the buffer at once, while it waits for them.
    collecting: usize,
    /// When the last batch was taken, if it left nothing.
    taken: Option<Instant>,
}

/// An event was added.
struct Pushed {
    size: usize,
    /// Whether the collector has to be notified.
    wakes: bool,
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
    events: usize,
    bytes: usize,
    queue: Arc<Queue>,
}

impl Queue {
    pub(super) fn new(options: QueueOptions, losses: Losses) -> Self {
        Self::with_max_bytes(options, losses, MAX_BYTES)
    }

    pub(super) fn with_max_bytes(options: QueueOptions, losses: Losses, max_bytes: usize) -> Self {
        let state = State {
            lines: Lines::default(),
            options,
            held_bytes: 0,
            held_events: 0,
            is_pressed: false,
            awaited: 0,
            flushes: 0,
            closed: false,
            wake_at: None,
            collecting: 0,
            taken: None,
        };
        Self {
            state: Mutex::new(state),
            max_bytes,
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
        self.lock().held_events
    }

    /// Adds an event if there is room, in `times` the bounds. Counts it as lost if not.
    pub(super) fn push_now(&self, line: &[u8], times: usize) -> bool {
        let pushed = self.lock().push(line, &mut None, times, self.max_bytes);
        match pushed {
            Ok(pushed) => {
                self.pushed(&pushed);
                true
            }
            Err(cause) => {
                self.work.notify_one();
                self.losses.add(cause, 1, &"audit buffer queue blocked");
                false
            }
        }
    }

    /// Adds an event as soon as there is room. Counts it as lost if the wait is cancelled. `stored` takes whether it was
    /// stored; dropped without a value, it was not.
    pub(super) async fn push(&self, line: &[u8], mut stored: Option<Sender<bool>>) {
        let mut waiting = Waiting { losses: &self.losses, cancelled: true };
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            let pushed = self.lock().push(line, &mut stored, 1, self.max_bytes);
            if let Ok(pushed) = pushed {
                self.pushed(&pushed);
                break;
            }
            self.work.notify_one();
            room.await;
        }
        waiting.cancelled = false;
    }

    /// Whether the bounds are kept.
    pub(super) fn has_room(&self) -> bool {
        self.lock().room_for(0, 1, self.max_bytes).is_ok()
    }

    /// Waits until the bounds are kept.
    pub(super) async fn room(&self) {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if self.has_room() {
                return;
            }
            room.await;
        }
    }

    fn pushed(&self, pushed: &Pushed) {
        self.changed(1, pushed.size, 1);
        if pushed.wakes {
            self.work.notify_one();
        }
    }

    fn changed(&self, events: usize, bytes: usize, sign: i64) {
        let signed = |number: usize| i64::try_from(number).unwrap_or(i64::MAX).saturating_mul(sign);
        self.losses.observer().queue_changed(self.losses.sink(), signed(events), signed(bytes));
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
                        let chunks = state.take();
                        drop(state);
                        self.room.notify_waiters();
                        return Some(Batch::new(chunks, Arc::clone(self)));
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
        state.closed && state.held_events == 0
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
            if self.lock().held_events == 0 {
                return;
            }
            idle.await;
        }
    }
}

impl State {
    fn push(
        &mut self,
        line: &[u8],
        stored: &mut Option<Sender<bool>>,
        times: usize,
        max_bytes: usize,
    ) -> Result<Pushed, DropCause> {
        let size = line.len() + OVERHEAD;
        self.room_for(size, times, max_bytes)
            .inspect_err(|cause| self.is_pressed |= *cause == DropCause::BufferBytes)?;
        self.held_bytes += size;
        self.held_events += 1;
        self.awaited += usize::from(stored.is_some());
        self.lines.push(line, stored.take());
        let is_large = self.lines.bytes() >= self.options.max_batch_bytes;
        let is_due = self.wake_at.is_some_and(|at| self.lines.len() >= at || self.awaited > 0 || is_large);
        Ok(Pushed { size, wakes: is_due && self.wake_at.take().is_some() })
    }

    /// Whether another event of this size keeps the bounds. One is always taken.
    fn room_for(&self, size: usize, times: usize, max_bytes: usize) -> Result<(), DropCause> {
        let max_events = self.options.batch.buffer_size.max(1).saturating_mul(times);
        if self.lines.len() >= max_events.saturating_add(self.collecting) {
            return Err(DropCause::BufferEvents);
        }
        let full = self.held_bytes.saturating_add(size) > max_bytes.saturating_mul(times);
        if full && self.held_bytes > 0 { Err(DropCause::BufferBytes) } else { Ok(()) }
    }

    fn step(&mut self, started: &mut Instant, was_empty: &mut bool) -> Step {
        let BatchOptions { max_size, max_wait, .. } = self.options.batch;
        let waits = max_size > 1 && !max_wait.is_zero();
        self.wake_at = None;
        self.collecting = 0;
        if self.lines.is_empty() {
            if self.closed && self.held_events == 0 {
                return Step::Closed;
            }
            *was_empty = true;
            self.wake_at = Some(1);
            self.collecting = max_size.max(1);
            return Step::Wait(None);
        }
        let is_large = self.lines.bytes() >= self.options.max_batch_bytes || self.is_pressed;
        let is_hurried = self.awaited > 0 || self.flushes > 0 || self.closed || is_large;
        if is_hurried {
            return Step::Take;
        }
        if !waits {
            return self.pause().unwrap_or(Step::Take);
        }
        if self.lines.len() >= max_size {
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
    fn pause(&mut self) -> Option<Step> {
        let QueueOptions { batch, takes_all, .. } = self.options;
        let many = batch.buffer_size / 2;
        if !takes_all || batch.throttle.is_some() || self.lines.len() >= many {
            return None;
        }
        let until = self.taken? + PAUSE;
        if until <= Instant::now() {
            return None;
        }
        self.wake_at = Some(many);
        Some(Step::Wait(Some(until)))
    }

    /// Takes a batch, of at least one event.
    fn take(&mut self) -> Vec<Chunk> {
        let QueueOptions { batch, max_batch_bytes, takes_all } = self.options;
        let max = if takes_all && batch.throttle.is_none() { usize::MAX } else { batch.max_size.max(1) };
        let (chunks, is_pressed) = self.lines.take(max, max_batch_bytes);
        // What is left behind has waited as long.
        self.is_pressed = is_pressed;
        self.awaited -= chunks.iter().map(Chunk::awaited).sum::<usize>();
        self.taken = self.lines.is_empty().then(Instant::now);
        chunks
    }
}

impl Batch {
    fn new(chunks: Vec<Chunk>, queue: Arc<Queue>) -> Self {
        let events = chunks.iter().map(Chunk::len).sum();
        let text: usize = chunks.iter().map(|chunk| chunk.text().len()).sum();
        Self { chunks, events, bytes: text + events * OVERHEAD, queue }
    }

    /// Frees the lines, which are stored from a copy. They count in the bounds until the batch is dropped. Returns the requests
    /// that wait for them.
    pub(super) fn release(&mut self) -> Vec<Reports> {
        let reports = self.chunks.iter_mut().map(Chunk::take_reports).collect();
        self.queue.lock().lines.recycle(self.chunks.drain(..));
        reports
    }

    pub(super) fn len(&self) -> usize {
        self.events
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let queue = &self.queue;
        queue.changed(self.events, self.bytes, -1);
        let mut state = queue.lock();
        state.lines.recycle(self.chunks.drain(..));
        state.held_bytes -= self.bytes;
        state.held_events -= self.events;
        let is_idle = state.held_events == 0;
        let is_closed = state.closed;
        drop(state);
        queue.room.notify_waiters();
        if is_idle && is_closed {
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
    cancelled: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.cancelled {
            self.losses.add(DropCause::Cancelled, 1, &"the request has ended before there was room");
        }
    }
}
