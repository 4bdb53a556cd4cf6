//! What the backends report: for metrics, and for the log.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use portcullis_limits::rate::{Bucket, Rate};
use tokio::time::Instant;
use tracing::error;

/// How long after a line about lost events there is no further one; the next one counts those in between.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// How many clusters a line names.
const MAX_LOGGED_CLUSTERS: usize = 8;

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

    /// Events of a cluster are lost.
    fn dropped(&self, sink: SinkKind, cause: DropCause, cluster: &str, events: u64) {
        let _ = (sink, cause, cluster, events);
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
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Log, Self::Webhook];

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
    observer: Arc<dyn Observer>,
    /// By the cause.
    unlogged: Mutex<[UnloggedLosses; DropCause::ALL.len()]>,
}

/// The losses since the last line about them. However many clusters lose events, there is one line in an interval.
#[derive(Debug, Default)]
struct UnloggedLosses {
    lines: Bucket,
    clusters: BTreeMap<Arc<str>, u64>,
}

impl Losses {
    pub(super) fn new(sink: SinkKind, name: String, observer: Arc<dyn Observer>) -> Self {
        Self { sink, name, observer, unlogged: Mutex::default() }
    }

    pub(super) fn observer(&self) -> &dyn Observer {
        &*self.observer
    }

    pub(super) fn sink(&self) -> SinkKind {
        self.sink
    }

    /// Events are lost, so many of each of these clusters.
    pub(super) fn add<'a>(
        &self,
        cause: DropCause,
        lost: impl IntoIterator<Item = (&'a Arc<str>, u64), IntoIter: Clone>,
        error: &dyn fmt::Display,
    ) {
        let plugin = cause.plugin(self.sink);
        let lost = lost.into_iter().filter(|(_, events)| *events > 0);
        if lost.clone().next().is_none() {
            return;
        }
        for (cluster, events) in lost.clone() {
            self.observer.error(plugin, events);
            self.observer.dropped(self.sink, cause, cluster, events);
        }
        let Some(clusters) = self.to_log(cause, lost) else { return };
        error!(
            sink = self.sink.as_str(),
            name = %self.name,
            plugin = plugin.as_str(),
            cause = cause.as_str(),
            lost = clusters.values().sum::<u64>(),
            clusters = most_affected(&clusters),
            %error,
            "audit events are lost"
        );
    }

    /// The events that were lost since the last line, if there is to be one.
    fn to_log<'a>(
        &self,
        cause: DropCause,
        lost: impl Iterator<Item = (&'a Arc<str>, u64)>,
    ) -> Option<BTreeMap<Arc<str>, u64>> {
        let mut unlogged = self.unlogged.lock().unwrap_or_else(PoisonError::into_inner);
        let at = DropCause::ALL.iter().position(|known| *known == cause)?;
        let UnloggedLosses { lines, clusters } = unlogged.get_mut(at)?;
        for (cluster, events) in lost {
            match clusters.get_mut(cluster) {
                Some(known) => *known += events,
                None => _ = clusters.insert(Arc::clone(cluster), events),
            }
        }
        let rate = Rate { interval: LOG_INTERVAL, burst: 1 };
        lines.take(rate, Instant::now()).then(|| std::mem::take(clusters))
    }
}

/// The clusters with the most losses, as text.
fn most_affected(clusters: &BTreeMap<Arc<str>, u64>) -> String {
    let mut sorted: Vec<_> = clusters.iter().collect();
    sorted.sort_by_key(|(_, events)| std::cmp::Reverse(**events));
    let named = sorted.iter().take(MAX_LOGGED_CLUSTERS);
    let mut text =
        named.map(|(cluster, events)| format!("{cluster}: {events}")).collect::<Vec<_>>().join(", ");
    if let Some(others) = sorted.len().checked_sub(MAX_LOGGED_CLUSTERS).filter(|others| *others > 0) {
        // Writing to a string does not fail.
        _ = write!(text, ", and {others} more");
    }
    text
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
        let losses = Losses::new(SinkKind::Log, String::new(), Arc::new(NoObserver));
        let permit = |cause, events| {
            let logged = losses.to_log(cause, [(&Arc::from("c"), events)].into_iter());
            logged.map(|clusters| clusters.values().sum())
        };
        assert_eq!(permit(DropCause::Failed, 2), Some(2));
        assert_eq!(permit(DropCause::Failed, 3), None);
        assert_eq!(permit(DropCause::TooLarge, 1), Some(1));
        tokio::time::advance(LOG_INTERVAL / 2).await;
        assert_eq!(permit(DropCause::Failed, 4), None);
        tokio::time::advance(LOG_INTERVAL / 2).await;
        assert_eq!(permit(DropCause::Failed, 5), Some(12));
        assert_eq!(permit(DropCause::Failed, 1), None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_line_in_an_interval_names_the_clusters_with_the_most_losses() {
        let losses = Losses::new(SinkKind::Log, String::new(), Arc::new(NoObserver));
        let add = |cluster: &str, events| {
            losses.to_log(DropCause::BufferEvents, [(&Arc::from(cluster), events)].into_iter())
        };
        assert_eq!(add("flood", 1).map(|clusters| most_affected(&clusters)).as_deref(), Some("flood: 1"));
        for number in 0..9 {
            assert_eq!(add(&format!("tenant-{number}"), number + 1), None, "however many clusters");
        }
        assert_eq!(add("flood", 700), None);
        tokio::time::advance(LOG_INTERVAL).await;
        assert_eq!(
            add("flood", 77).map(|clusters| most_affected(&clusters)).as_deref(),
            Some(
                "flood: 777, tenant-8: 9, tenant-7: 8, tenant-6: 7, tenant-5: 6, tenant-4: 5, tenant-3: 4, tenant-2: 3, \
                 and 2 more"
            )
        );
    }
}
