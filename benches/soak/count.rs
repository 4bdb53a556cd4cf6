//! What is counted while it lasts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

#[derive(Default)]
pub(crate) struct Count {
    opened: AtomicU64,
    dropped: AtomicU64,
    events: AtomicU64,
    lost: AtomicU64,
    requests: AtomicU64,
    failed: AtomicU64,
    broken_off: AtomicU64,
    reloads: AtomicU64,
    ineffective: AtomicU64,
    latest: AtomicU64,
}

/// The counts at one time.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Counted {
    pub(crate) open: u64,
    pub(crate) dropped: u64,
    pub(crate) events: u64,
    pub(crate) lost: u64,
    pub(crate) requests: u64,
    pub(crate) failed: u64,
    /// What clients began and did not end.
    pub(crate) broken_off: u64,
    pub(crate) reloads: u64,
    pub(crate) ineffective: u64,
    /// How much later than due the latest event of any watch came, in milliseconds.
    pub(crate) latest: u64,
}

impl Count {
    pub(crate) fn watch_opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    /// A watch ended that should not have.
    pub(crate) fn watch_dropped(&self, why: &str) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        eprintln!("a watch was dropped: {why}");
    }

    /// An event came, `late`, and `lost` before it did not.
    pub(crate) fn event(&self, lost: u64, late: Duration) {
        self.events.fetch_add(1, Ordering::Relaxed);
        self.lost.fetch_add(lost, Ordering::Relaxed);
        self.latest.fetch_max(u64::try_from(late.as_millis()).unwrap(), Ordering::Relaxed);
    }

    pub(crate) fn request(&self, good: bool) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.failed.fetch_add(u64::from(!good), Ordering::Relaxed);
    }

    pub(crate) fn broken_off(&self) {
        self.broken_off.fetch_add(1, Ordering::Relaxed);
    }

    /// A reload is in force; `effective` if all that is new counts, and all that is old does not.
    pub(crate) fn reloaded(&self, effective: bool) {
        self.reloads.fetch_add(1, Ordering::Relaxed);
        self.ineffective.fetch_add(u64::from(!effective), Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Counted {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let dropped = read(&self.dropped);
        Counted {
            open: read(&self.opened) - dropped,
            dropped,
            events: read(&self.events),
            lost: read(&self.lost),
            requests: read(&self.requests),
            failed: read(&self.failed),
            broken_off: read(&self.broken_off),
            reloads: read(&self.reloads),
            ineffective: read(&self.ineffective),
            latest: read(&self.latest),
        }
    }
}
