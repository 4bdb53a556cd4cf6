//! The injected wall clock: decisions are functions of (input, snapshot, now).

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::go::rfc3339;

/// Seconds and nanoseconds since 1970-01-01T00:00:00Z.
pub type UnixTime = Duration;

/// A source of the current time. Cheap to clone.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> UnixTime + Send + Sync>);

impl Clock {
    /// The system clock. A time before 1970 reads as 1970, when no certificate is valid yet.
    pub fn system() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the one place that reads the system's clock")]
        Self(Arc::new(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
    }

    /// A clock that a test controls.
    pub fn from_fn(now: impl Fn() -> UnixTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The current time.
    pub fn now(&self) -> UnixTime {
        (self.0)()
    }
}

/// Formats a time for logs and output: RFC 3339, UTC, whole seconds.
pub(crate) fn rfc3339(time: UnixTime) -> String {
    rfc3339::format_utc(i64::try_from(time.as_secs()).unwrap_or(i64::MAX))
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}
