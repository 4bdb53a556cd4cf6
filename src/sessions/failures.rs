//! Why sessions are not recorded, or not all of them: one line of the log for each cause, and a count.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_limits::fair_limiter::Refused;
use portcullis_limits::rate::{Rate, RateLimits};
use portcullis_system::sync::lock;
use tokio::time::Instant;
use tracing::error;

use crate::metrics::Metrics;

/// One line for each cluster and cause.
const LINES: Rate = Rate { interval: Duration::from_mins(1), burst: 1 };
/// The number of pairs of a cluster and a cause with lines of their own.
const MAX_SOURCES: usize = 1024;

/// Why a session, or a part of it, is not recorded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordingFailure {
    /// The store has refused an object.
    #[error("{0}")]
    Store(#[from] io::Error),
    /// The store does not answer.
    #[error("the directory does not answer")]
    TimedOut,
    /// Too many other recordings wait for the store.
    #[error("too many recordings wait for the directory")]
    Busy(#[from] Refused),
    /// More came than could be stored.
    #[error("lines are left out: the directory takes them too slowly")]
    Slow,
    /// The stream cannot be decoded.
    #[error("the stream cannot be read: {0}")]
    Unreadable(&'static str),
    /// The configuration has no directory.
    #[error("no directory is configured")]
    NoDirectory,
    /// The system has no random numbers.
    #[error("no random number for the name of the recording")]
    NoRandomNumbers,
    /// A fault of the gateway.
    #[error("the task that records has panicked")]
    Panicked,
}

impl RecordingFailure {
    /// The `cause` label.
    fn cause(&self) -> &'static str {
        match self {
            Self::Store(error) => match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "full",
                io::ErrorKind::NotFound => "missing",
                io::ErrorKind::PermissionDenied => "denied",
                _ => "store",
            },
            Self::TimedOut => "timeout",
            Self::Busy(_) => "busy",
            Self::Slow => "slow",
            Self::Unreadable(_) => "unreadable",
            Self::NoDirectory | Self::NoRandomNumbers | Self::Panicked => "internal",
        }
    }
}

/// Logs and counts failures.
#[derive(Debug)]
pub(super) struct FailureLog {
    lines: Mutex<RateLimits<(Arc<str>, &'static str)>>,
    metrics: Arc<Metrics>,
}

impl FailureLog {
    pub(super) fn new(metrics: &Arc<Metrics>) -> Self {
        Self { lines: RateLimits::new(LINES, MAX_SOURCES).into(), metrics: Arc::clone(metrics) }
    }

    /// Counts a failure, and logs it unless the last line of the cluster about its cause is too recent.
    pub(super) fn note(&self, cluster: &Arc<str>, directory: &str, failure: &RecordingFailure) {
        let cause = failure.cause();
        self.metrics.sessions.recording_failed(cause);
        if let Some(suppressed) = self.permit_line(cluster, cause) {
            let suppressed = (suppressed > 0).then_some(suppressed);
            error!(cluster = &**cluster, directory, cause, suppressed, %failure, "a session is not recorded, or not all of it");
        }
    }

    /// Permits a line; returns how many were suppressed since the last one.
    fn permit_line(&self, cluster: &Arc<str>, cause: &'static str) -> Option<u64> {
        lock(&self.lines).take(&(Arc::clone(cluster), cause), Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cause_has_one_line_however_many_sessions_it_concerns() {
        let log = FailureLog::new(&Arc::new(Metrics::new()));
        let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
        let lines = |cluster, cause| (0..100).filter_map(|_| log.permit_line(cluster, cause)).count();
        assert_eq!((lines(&one, "full"), lines(&one, "slow"), lines(&other, "full")), (1, 1, 1));
        tokio::time::advance(LINES.interval).await;
        assert_eq!(log.permit_line(&one, "full"), Some(99), "what was suppressed is counted");
    }
}
