//! The wall clock and the time zone of a machine, both injected.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;

/// Tells the time since 1970 that old log files are named after and judged by, and the time zone of legacy lines.
#[derive(Clone)]
pub struct WallClock {
    now: Arc<dyn Fn() -> Duration + Send + Sync>,
    zone: TimeZone,
}

impl WallClock {
    /// A clock with the time zone of the machine.
    pub fn new(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { now: Arc::new(now), zone: TimeZone::try_system().unwrap_or(TimeZone::UTC) }
    }

    /// The same clock in UTC.
    #[must_use]
    pub fn in_utc(self) -> Self {
        Self { zone: TimeZone::UTC, ..self }
    }

    pub(super) fn now(&self) -> Duration {
        (self.now)()
    }

    pub(super) fn zone(&self) -> &TimeZone {
        &self.zone
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WallClock").field("zone", &self.zone).finish_non_exhaustive()
    }
}
