//! Counters of the soak test.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

#[derive(Default)]
pub(crate) struct Counters {
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

/// The values of the counters at one time.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Counts {
    pub(crate) open: u64,
    pub(crate) dropped: u64,
    pub(crate) events: u64,
    pub(crate) lost: u64,
    pub(crate) requests: u64,
    pub(crate) failed: u64,
    /// Requests, responses and handshakes that clients aborted.
    pub(crate) broken_off: u64,
    pub(crate) reloads: u64,
    pub(crate) ineffective: u64,
    /// Maximum delay of a watch event, in milliseconds.
    pub(crate) latest: u64,
}

impl Counters {
    pub(crate) fn watch_opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a watch that ended before the client closed it.
    pub(crate) fn watch_dropped(&self, reason: &str) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        eprintln!("a watch was dropped: {reason}");
    }

    /// Counts an event with its delay, and the `lost` events before it.
    pub(crate) fn event(&self, lost: u64, delay: Duration) {
        self.events.fetch_add(1, Ordering::Relaxed);
        self.lost.fetch_add(lost, Ordering::Relaxed);
        self.latest.fetch_max(u64::try_from(delay.as_millis()).unwrap(), Ordering::Relaxed);
    }

    pub(crate) fn request(&self, succeeded: bool) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.failed.fetch_add(u64::from(!succeeded), Ordering::Relaxed);
    }

    pub(crate) fn broken_off(&self) {
        self.broken_off.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a reload. It is `effective` if all new credentials are accepted and all old ones are rejected.
    pub(crate) fn reloaded(&self, effective: bool) {
        self.reloads.fetch_add(1, Ordering::Relaxed);
        self.ineffective.fetch_add(u64::from(!effective), Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let dropped = read(&self.dropped);
        Counts {
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
