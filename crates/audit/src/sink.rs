//! The backends that store events: a log file and a webhook, each with its mode.

use std::sync::Arc;

use crate::event::Event;

/// Everything that events of a cluster are stored in: no backend, a log, a webhook, or both.
#[derive(Debug, Clone, Default)]
pub struct Sinks {}

/// An event that had to be stored could not be. The request is refused.
#[derive(Debug, Clone, thiserror::Error)]
#[error("failed to store audit event")]
pub struct NotStored;

impl Sinks {
    /// Whether there is no backend: nothing is audited.
    pub fn is_empty(&self) -> bool {
        true
    }

    /// Waits until there is room for the events of one more request: in `blocking` and `blocking-strict`, while the
    /// backend is slower than the requests. In `batch` it never waits. Long-running requests do not wait either.
    pub async fn ready(&self) {}

    /// Stores the event of the stage `RequestReceived`: in `blocking` and `blocking-strict` it waits for the backend. Only
    /// `blocking-strict` returns an error, and only if a backend has failed.
    pub async fn store_first(&self, event: Arc<Event>) -> Result<(), NotStored> {
        let _ = event;
        Ok(())
    }

    /// Stores the event of a later stage, without waiting. It is called from destructors.
    pub fn store(&self, event: Arc<Event>) {
        let _ = event;
    }

    /// Waits until everything that was handed over is stored, or given up.
    pub async fn flush(&self) {}
}
