//! How many requests of a cluster are in progress, for the status of clusters. Limits have counts of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The requests of one cluster in progress, of every generation of the configuration.
#[derive(Debug, Default)]
pub(crate) struct ClusterActivity {
    counts: [AtomicUsize; 4],
}

/// A kind of request, in the order of [`ActivityCounts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ActivityKind {
    ReadOnly,
    Mutating,
    Watch,
    /// Long-running, and no watch: logs and tunnels.
    Stream,
}

/// The numbers of requests in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ActivityCounts {
    pub(crate) read_only: usize,
    pub(crate) mutating: usize,
    pub(crate) watches: usize,
    pub(crate) streams: usize,
}

/// A request in progress, until it is dropped.
#[derive(Debug)]
pub(crate) struct ActivityGuard {
    activity: Arc<ClusterActivity>,
    kind: ActivityKind,
}

impl ClusterActivity {
    /// Counts a request until the guard is dropped.
    pub(crate) fn enter(self: &Arc<Self>, kind: ActivityKind) -> ActivityGuard {
        self.count(kind).fetch_add(1, Ordering::Relaxed);
        ActivityGuard { activity: Arc::clone(self), kind }
    }

    /// The numbers of now.
    pub(crate) fn counts(&self) -> ActivityCounts {
        let of = |kind| self.count(kind).load(Ordering::Relaxed);
        ActivityCounts {
            read_only: of(ActivityKind::ReadOnly),
            mutating: of(ActivityKind::Mutating),
            watches: of(ActivityKind::Watch),
            streams: of(ActivityKind::Stream),
        }
    }

    fn count(&self, kind: ActivityKind) -> &AtomicUsize {
        let [read_only, mutating, watches, streams] = &self.counts;
        match kind {
            ActivityKind::ReadOnly => read_only,
            ActivityKind::Mutating => mutating,
            ActivityKind::Watch => watches,
            ActivityKind::Stream => streams,
        }
    }
}

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        self.activity.count(self.kind).fetch_sub(1, Ordering::Relaxed);
    }
}
