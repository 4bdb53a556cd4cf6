//! The backends that store events: a log file and a webhook, each with its mode.
//!
//! [`SinkRegistry`] opens them; [`Sinks`] are those of one cluster in one generation of the configuration. In front of each
//! backend is a buffer that is bounded in events and in bytes: a backend that is slow, hangs or fails costs events, which
//! are counted and logged, or, in blocking modes, time. It never costs unbounded memory, and never blocks a thread.
//!
//! Each event has an [`EventOwner`], in whose share of the buffer it waits: an owner that makes more events than the backend
//! takes loses its own, or waits for itself alone.
//!
//! A `blocking-strict` backend that cannot store the first event refuses the request: `Outlet::store_first`.
//!
//! Beyond kube-apiserver: the events of one buffer have at most 64 MiB; a webhook gets at most 64 lists at a time, none
//! larger than `max_batch_size` or 10 MiB (one event may be larger).

mod buffer;
mod clock;
mod lanes;
mod lines;
mod load;
mod log;
mod log_file;
mod observer;
mod options;
mod owner;
mod queue;
mod registry;
#[cfg(test)]
mod tests;
mod throttle;
mod webhook;

use std::cell::OnceCell;
use std::fmt;
use std::sync::Arc;

use jiff::tz::TimeZone;
use tokio::sync::oneshot;

use crate::event::{EncodedEvent, Event, Level};
pub use clock::WallClock;
pub use observer::{DropCause, NoObserver, Observer, Plugin, SinkKind};
pub use options::{
    BatchOptions, Format, LogOptions, Mode, RotationOptions, STANDARD_OUTPUT, ThrottleOptions,
    TruncateOptions, WebhookOptions,
};
pub use owner::EventOwner;
use queue::{HARD_LIMIT, Queue};
use registry::SinkUser;
pub use registry::{Generation, SinkError, SinkRegistry};
pub use webhook::{Post, PostError};

/// Everything that events of a cluster are stored in: no backend, a log, a webhook, or both. Cheap to clone. The backends
/// store what they have and end after the last clone is dropped.
#[derive(Clone, Default)]
pub struct Sinks(Option<Arc<Outlets>>);

struct Outlets {
    log: Option<Outlet>,
    webhook: Option<Outlet>,
    observer: Arc<dyn Observer>,
}

/// The way of a cluster's events into one backend.
#[derive(Debug)]
struct Outlet {
    kind: SinkKind,
    mode: Mode,
    format: Format,
    truncate: Option<TruncateOptions>,
    zone: TimeZone,
    queue: Arc<Queue>,
    _user: Arc<SinkUser>,
}

/// An event that had to be stored could not be. The request is refused.
#[derive(Debug, Clone, thiserror::Error)]
#[error("failed to store audit event")]
pub struct NotStored;

/// An event that backends are storing, of those that requests wait for.
#[derive(Debug, Default)]
pub struct Storing(Vec<oneshot::Receiver<bool>>);

impl Storing {
    /// Waits until all have stored it, or have given up. Dropping it takes nothing back.
    pub async fn finished(self) {
        for stored in self.0 {
            // Dropped without a value, it was not stored.
            let _ = stored.await;
        }
    }
}

impl Sinks {
    fn new(log: Option<Outlet>, webhook: Option<Outlet>, observer: Arc<dyn Observer>) -> Self {
        let is_empty = log.is_none() && webhook.is_none();
        Self((!is_empty).then(|| Arc::new(Outlets { log, webhook, observer })))
    }

    /// Whether there is no backend: nothing is audited.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether no request ever waits for a backend.
    pub fn never_wait(&self) -> bool {
        self.outlets().all(|outlet| outlet.mode == Mode::Batch)
    }

    /// Whether [`Self::ready`] would not wait.
    pub fn has_room(&self, owner: &EventOwner) -> bool {
        self.waited_for().all(|outlet| outlet.queue.has_room(owner))
    }

    /// Waits until there is room for the events of one more request of this owner: in `blocking` and `blocking-strict`, while
    /// the backend is slower than its requests. In `batch` it never waits. Long-running requests do not wait either.
    pub async fn ready(&self, owner: &EventOwner) {
        for outlet in self.waited_for() {
            outlet.queue.room(owner).await;
        }
    }

    fn waited_for(&self) -> impl Iterator<Item = &Outlet> {
        self.outlets().filter(|outlet| outlet.mode != Mode::Batch)
    }

    /// Stores the event of the stage `RequestReceived`: in `blocking` and `blocking-strict` it waits for the backend. Only
    /// `blocking-strict` returns an error, and only if a backend has failed. Dropping the future takes nothing back.
    // apiserver: pkg/audit/union.go; all backends work at the same time here
    pub fn store_first<'a>(
        &'a self,
        owner: &'a EventOwner,
        event: &Event<'_>,
    ) -> impl Future<Output = Result<(), NotStored>> + use<'a> {
        let lines = self.0.as_ref().map(|outlets| {
            outlets.observer.event();
            let encodings = Encodings::new(event);
            let line = |outlet: &Option<Outlet>| Some(outlet.as_ref()?.line(owner, &encodings)?.to_vec());
            (outlets, line(&outlets.log), line(&outlets.webhook))
        });
        async move {
            let Some((outlets, log, webhook)) = lines else { return Ok(()) };
            let store = async |outlet: &Option<Outlet>, line| match outlet {
                Some(outlet) => outlet.store_first(owner, line).await,
                None => Ok(()),
            };
            let (log, webhook) = tokio::join!(store(&outlets.log, log), store(&outlets.webhook, webhook));
            let stored = log.and(webhook);
            if stored.is_err() {
                outlets.observer.rejected();
            }
            stored
        }
    }

    /// Stores the event of a later stage, for which the end of the response waits.
    // apiserver: pkg/endpoints/filters/audit.go, WithAudit; pkg/audit/union.go
    pub fn store_awaited(&self, owner: &EventOwner, event: &Event<'_>) -> Storing {
        let Some(outlets) = &self.0 else { return Storing::default() };
        outlets.observer.event();
        let encodings = Encodings::new(event);
        let store = |outlet: &Outlet| outlet.store_awaited(owner, outlet.line(owner, &encodings)?);
        Storing(self.outlets().filter_map(store).collect())
    }

    /// Stores an event for which no response waits.
    pub fn store(&self, owner: &EventOwner, event: &Event<'_>) {
        let Some(outlets) = &self.0 else { return };
        outlets.observer.event();
        let encodings = Encodings::new(event);
        for outlet in self.outlets() {
            if let Some(line) = outlet.line(owner, &encodings) {
                outlet.store(owner, line);
            }
        }
    }

    /// Waits until everything that was handed over is stored, or given up. Meanwhile no event waits for others.
    pub async fn flush(&self) {
        let Some(outlets) = &self.0 else { return };
        let flush = async |outlet: &Option<Outlet>| {
            if let Some(outlet) = outlet {
                outlet.queue.flush().await;
            }
        };
        tokio::join!(flush(&outlets.log), flush(&outlets.webhook));
    }

    fn outlets(&self) -> impl Iterator<Item = &Outlet> {
        self.0.iter().flat_map(|outlets| outlets.log.iter().chain(&outlets.webhook))
    }
}

impl Outlet {
    /// The event as this backend stores it; `None` if it is too large, which is no error even in `blocking-strict`.
    // apiserver: plugin/pkg/audit/truncate/truncate.go, ProcessEvents
    fn line<'a>(&self, owner: &EventOwner, encodings: &'a Encodings<'_>) -> Option<&'a [u8]> {
        let mut json = None;
        if let Some(TruncateOptions { max_event_size, .. }) = self.truncate {
            let whole = encodings.json();
            let is_cut = whole.len() > max_event_size && encodings.event.level >= Level::Request;
            let fitting = if is_cut { encodings.truncated() } else { whole };
            if fitting.len() > max_event_size {
                let losses = self.queue.losses();
                let lost = [(owner.cluster(), 1)];
                losses.add(DropCause::TooLarge, lost, &"event is too large even after truncating");
                return None;
            }
            if is_cut {
                self.queue.losses().observer().truncated(self.kind);
            }
            json = Some(fitting);
        }
        Some(match self.format {
            Format::Json => json.unwrap_or_else(|| encodings.json()),
            Format::Legacy => encodings.legacy(&self.zone),
        })
    }

    async fn store_first(&self, owner: &EventOwner, line: Option<Vec<u8>>) -> Result<(), NotStored> {
        let Some(line) = line else { return Ok(()) };
        if self.mode == Mode::Batch {
            self.store(owner, &line);
            return Ok(());
        }
        let (sender, stored) = oneshot::channel();
        self.queue.push(owner, &line, Some(sender)).await;
        let stored = stored.await.unwrap_or(false);
        if stored || self.mode != Mode::BlockingStrict { Ok(()) } else { Err(NotStored) }
    }

    fn store_awaited(&self, owner: &EventOwner, line: &[u8]) -> Option<oneshot::Receiver<bool>> {
        if self.mode == Mode::Batch {
            self.store(owner, line);
            return None;
        }
        let (sender, stored) = oneshot::channel();
        self.queue.push_awaited(owner, line, HARD_LIMIT, Some(sender));
        Some(stored)
    }

    fn store(&self, owner: &EventOwner, line: &[u8]) {
        let times = if self.mode == Mode::Batch { 1 } else { HARD_LIMIT };
        self.queue.push_now(owner, line, times);
    }
}

/// The encodings of an event, made at most once for all backends.
struct Encodings<'a> {
    event: &'a Event<'a>,
    json: OnceCell<EncodedEvent>,
    truncated: OnceCell<EncodedEvent>,
    /// A log alone has this format, so there is one time zone.
    legacy: OnceCell<String>,
}

impl<'a> Encodings<'a> {
    fn new(event: &'a Event<'a>) -> Self {
        Self { event, json: OnceCell::new(), truncated: OnceCell::new(), legacy: OnceCell::new() }
    }

    fn json(&self) -> &[u8] {
        self.json.get_or_init(|| self.event.encode()).line()
    }

    fn truncated(&self) -> &[u8] {
        self.truncated.get_or_init(|| self.event.truncated().encode()).line()
    }

    fn legacy(&self, zone: &TimeZone) -> &[u8] {
        self.legacy.get_or_init(|| self.event.legacy_line(zone)).as_bytes()
    }
}

impl fmt::Debug for Sinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.outlets()).finish()
    }
}
