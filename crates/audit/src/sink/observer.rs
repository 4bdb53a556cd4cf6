//! What the backends report: for metrics, and for the log.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::error;

/// How long after a line about lost events there is no further one; the next one counts those in between.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Takes what the backends report, for metrics. Its methods are called in the request path: they must not block.
pub trait Observer: Send + Sync + 'static {
    /// An event was made.
    // apiserver: pkg/audit/metrics.go, ObserveEvent
    fn event(&self) {}

    /// A request is refused, because its first event could not be stored.
    fn rejected(&self) {}

    /// Events were lost or could not be stored as they are.
    // apiserver: pkg/audit/metrics.go, HandlePluginError
    fn error(&self, plugin: Plugin, events: u64) {
        let _ = (plugin, events);
    }

    /// Events are lost.
    fn dropped(&self, sink: SinkKind, cause: DropCause, events: u64) {
        let _ = (sink, cause, events);
    }

    /// An event has lost its objects.
    fn truncated(&self, sink: SinkKind) {
        let _ = sink;
    }

    /// Events have joined or left those that wait or are being stored.
    fn queue_changed(&self, sink: SinkKind, events: i64, bytes: i64) {
        let _ = (sink, events, bytes);
    }
}

/// Reports nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl Observer for NoObserver {}

/// The part that failed, by kube-apiserver's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Plugin {
    /// The log.
    Log,
    /// The webhook.
    Webhook,
    /// The buffer in front of one of them.
    Buffered,
    /// The limit of an event's size.
    Truncate,
}

/// A kind of backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SinkKind {
    /// The log.
    Log,
    /// The webhook.
    Webhook,
}

/// Why an event is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropCause {
    /// Too many events wait.
    BufferEvents,
    /// The events that wait are too large.
    BufferBytes,
    /// The event is too large, even without its objects.
    TooLarge,
    /// The backend has failed.
    Failed,
    /// The request ended while it waited for room.
    Cancelled,
}

impl Plugin {
    /// The value of the label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Webhook => "webhook",
            Self::Buffered => "buffered",
            Self::Truncate => "truncate",
        }
    }
}

impl SinkKind {
    /// The value of the label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Webhook => "webhook",
        }
    }

    /// The plugin that the backend is.
    pub(super) fn plugin(self) -> Plugin {
        match self {
            Self::Log => Plugin::Log,
            Self::Webhook => Plugin::Webhook,
        }
    }
}

impl DropCause {
    /// All causes.
    pub const ALL: [Self; 5] =
        [Self::BufferEvents, Self::BufferBytes, Self::TooLarge, Self::Failed, Self::Cancelled];

    /// The value of the label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BufferEvents => "buffer_events",
            Self::BufferBytes => "buffer_bytes",
            Self::TooLarge => "too_large",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The plugin that kube-apiserver would blame.
    fn plugin(self, sink: SinkKind) -> Plugin {
        match self {
            Self::BufferEvents | Self::BufferBytes => Plugin::Buffered,
            Self::TooLarge => Plugin::Truncate,
            Self::Failed | Self::Cancelled => sink.plugin(),
        }
    }
}

/// Counts lost events, and logs them once in a while.
pub(super) struct Losses {
    sink: SinkKind,
    name: String,
    observer: std::sync::Arc<dyn Observer>,
    throttle: Mutex<Throttle>,
}

#[derive(Default)]
struct Throttle {
    /// By the cause: when it was logged, and the events since then.
    causes: [(Option<Instant>, u64); DropCause::ALL.len()],
}

impl Losses {
    pub(super) fn new(sink: SinkKind, name: String, observer: std::sync::Arc<dyn Observer>) -> Self {
        Self { sink, name, observer, throttle: Mutex::default() }
    }

    pub(super) fn observer(&self) -> &dyn Observer {
        &*self.observer
    }

    pub(super) fn sink(&self) -> SinkKind {
        self.sink
    }

    /// These events are lost.
    pub(super) fn add(&self, cause: DropCause, events: u64, error: &dyn fmt::Display) {
        if events == 0 {
            return;
        }
        let plugin = cause.plugin(self.sink);
        self.observer.error(plugin, events);
        self.observer.dropped(self.sink, cause, events);
        let Some(lost) = self.permit(cause, events) else { return };
        error!(
            sink = self.sink.as_str(),
            name = %self.name,
            plugin = plugin.as_str(),
            cause = cause.as_str(),
            lost,
            %error,
            "audit events are lost"
        );
    }

    /// The events that were lost since the last line, if there is to be one.
    fn permit(&self, cause: DropCause, events: u64) -> Option<u64> {
        let now = Instant::now();
        let mut throttle = self.throttle.lock().unwrap_or_else(PoisonError::into_inner);
        let at = DropCause::ALL.iter().position(|known| *known == cause)?;
        let (logged, lost) = throttle.causes.get_mut(at)?;
        *lost += events;
        if logged.is_some_and(|logged| now < logged + LOG_INTERVAL) {
            return None;
        }
        *logged = Some(now);
        Some(std::mem::take(lost))
    }
}

impl fmt::Debug for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Losses").field("sink", &self.sink).field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn losses_are_logged_once_in_a_while_by_their_cause() {
        let losses = Losses::new(SinkKind::Log, String::new(), std::sync::Arc::new(NoObserver));
        assert_eq!(losses.permit(DropCause::Failed, 2), Some(2));
        assert_eq!(losses.permit(DropCause::Failed, 3), None);
        assert_eq!(losses.permit(DropCause::TooLarge, 1), Some(1));
        tokio::time::advance(LOG_INTERVAL / 2).await;
        assert_eq!(losses.permit(DropCause::Failed, 4), None);
        tokio::time::advance(LOG_INTERVAL / 2).await;
        assert_eq!(losses.permit(DropCause::Failed, 5), Some(12));
        assert_eq!(losses.permit(DropCause::Failed, 1), None);
    }
}
