//! The injected wall clock: decisions are functions of (input, snapshot, now). Unit tests pass [`Clock::from_fn`], and
//! pause tokio's clock (`start_paused`) for timeouts; a `Server` always has the system's.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}
