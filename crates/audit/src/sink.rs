//! The backends that store events: a log file and a webhook, each with its mode.
//!
//! [`SinkRegistry`] opens them; [`Sinks`] are those of one cluster in one generation of the configuration. In front of each
//! backend is a buffer that is bounded in events and in bytes: a backend that is slow, hangs or fails costs events, which
//! are counted and logged, or, in blocking modes, time. It never costs unbounded memory, and never blocks a thread.
//!
//! Beyond kube-apiserver: the events of one buffer have at most 64 MiB; a webhook gets at most 64 lists at a time, none
//! larger than `max_batch_size` or 10 MiB (one event may be larger).

mod clock;
mod log;
mod log_file;
mod observer;
mod options;
mod queue;
mod registry;
#[cfg(test)]
mod tests;
mod throttle;
mod webhook;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use jiff::tz::TimeZone;

use crate::event::{EncodedEvent, Event, Level};
pub use clock::WallClock;
pub use observer::{DropCause, NoObserver, Observer, Plugin, SinkKind};
pub use options::{
    BatchOptions, Format, LogOptions, Mode, RotationOptions, STANDARD_OUTPUT, ThrottleOptions,
    TruncateOptions, WebhookOptions,
};
use queue::{HARD_LIMIT, Queue, Record};
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

    /// Waits until there is room for the events of one more request: in `blocking` and `blocking-strict`, while the
    /// backend is slower than the requests. In `batch` it never waits. Long-running requests do not wait either.
    pub async fn ready(&self) {
        for outlet in self.outlets().filter(|outlet| outlet.mode != Mode::Batch) {
            outlet.queue.room().await;
        }
    }

    /// Stores the event of the stage `RequestReceived`: in `blocking` and `blocking-strict` it waits for the backend. Only
    /// `blocking-strict` returns an error, and only if a backend has failed. Dropping the future takes nothing back.
    // apiserver: pkg/audit/union.go; all backends work at the same time here
    pub fn store_first<'a>(&'a self, event: &Event) -> impl Future<Output = Result<(), NotStored>> + use<'a> {
        let lines = self.0.as_ref().map(|outlets| {
            outlets.observer.event();
            let mut encodings = Encodings::new(event, self.outlets().count());
            let mut line =
                |outlet: &Option<Outlet>| outlet.as_ref().and_then(|outlet| outlet.line(&mut encodings));
            (outlets, line(&outlets.log), line(&outlets.webhook))
        });
        async move {
            let Some((outlets, log, webhook)) = lines else { return Ok(()) };
            let store = async |outlet: &Option<Outlet>, line| match outlet {
                Some(outlet) => outlet.store_first(line).await,
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

    /// Stores the event of a later stage, without waiting. It is called from destructors.
    pub fn store(&self, event: &Event) {
        let Some(outlets) = &self.0 else { return };
        outlets.observer.event();
        let mut encodings = Encodings::new(event, self.outlets().count());
        for outlet in self.outlets() {
            if let Some(line) = outlet.line(&mut encodings) {
                outlet.store(line);
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
    fn line(&self, encodings: &mut Encodings<'_>) -> Option<Bytes> {
        encodings.backends = encodings.backends.saturating_sub(1);
        let mut json = None;
        if let Some(TruncateOptions { max_event_size, .. }) = self.truncate {
            let whole = encodings.json();
            let is_cut = whole.size() > max_event_size && encodings.event.level >= Level::Request;
            let fitting = if is_cut { encodings.truncated() } else { whole };
            if fitting.size() > max_event_size {
                let losses = self.queue.losses();
                losses.add(DropCause::TooLarge, 1, &"event is too large even after truncating");
                return None;
            }
            if is_cut {
                self.queue.losses().observer().truncated(self.kind);
            }
            json = Some(fitting);
        }
        Some(match self.format {
            Format::Json => json.unwrap_or_else(|| encodings.json()).into_line(),
            Format::Legacy => encodings.event.legacy_line(&self.zone).into(),
        })
    }

    async fn store_first(&self, line: Option<Bytes>) -> Result<(), NotStored> {
        let Some(line) = line else { return Ok(()) };
        if self.mode == Mode::Batch {
            self.store(line);
            return Ok(());
        }
        let (record, stored) = Record::awaited(line);
        self.queue.push(record).await;
        let stored = stored.await.unwrap_or(false);
        if stored || self.mode != Mode::BlockingStrict { Ok(()) } else { Err(NotStored) }
    }

    fn store(&self, line: Bytes) {
        let times = if self.mode == Mode::Batch { 1 } else { HARD_LIMIT };
        self.queue.push_now(Record::new(line), times);
    }
}

/// The encodings of an event, made at most once for all backends.
struct Encodings<'a> {
    event: &'a Event,
    json: Option<EncodedEvent>,
    truncated: Option<EncodedEvent>,
    /// The backends that have yet to get the event. What the last of them gets is not shared.
    backends: usize,
}

impl<'a> Encodings<'a> {
    fn new(event: &'a Event, backends: usize) -> Self {
        Self { event, json: None, truncated: None, backends }
    }

    fn json(&mut self) -> EncodedEvent {
        let json = self.json.take().unwrap_or_else(|| self.event.encode());
        self.json = (self.backends > 0).then(|| json.clone());
        json
    }

    fn truncated(&mut self) -> EncodedEvent {
        let json = self.truncated.take().unwrap_or_else(|| self.event.truncated().encode());
        self.truncated = (self.backends > 0).then(|| json.clone());
        json
    }
}

impl fmt::Debug for Sinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.outlets()).finish()
    }
}
