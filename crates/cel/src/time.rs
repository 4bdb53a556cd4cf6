//! Durations and timestamps, which are types of CEL itself.

use std::cmp::Ordering;

use portcullis_go::time::{Date, Time};

use super::number;

/// A duration in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Duration(pub(super) i64);

/// A point in time. The offset that it was written in is printed, but not compared.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timestamp(Time);

/// Nanoseconds.
pub(super) const SECOND: i64 = 1_000_000_000;

/// The years 1 to 9999, in seconds since 1970.
const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

impl Timestamp {
    /// The timestamp, if its year is one of 1 to 9999.
    pub(super) fn checked(time: Time) -> Option<Self> {
        SECONDS.contains(&time.seconds).then_some(Self(time))
    }

    /// The seconds since 1970.
    pub(super) fn seconds(&self) -> i64 {
        self.0.seconds
    }

    /// The nanoseconds beyond the second.
    pub(super) fn nanoseconds(&self) -> u32 {
        self.0.nanoseconds
    }

    /// The day and the hour at an offset of seconds to the east of UTC.
    pub(super) fn date_in(&self, offset: i64) -> Date {
        self.0.date_in(offset)
    }

    /// The text, in the offset that the timestamp was written in.
    pub(super) fn shown(&self) -> String {
        self.0.to_string()
    }

    fn key(&self) -> (i64, u32) {
        (self.0.seconds, self.0.nanoseconds)
    }

    /// Whether it is the zero value of Go.
    pub(super) fn is_zero(&self) -> bool {
        self.key() == (*SECONDS.start(), 0)
    }

    /// The text in UTC.
    pub(super) fn in_utc(&self) -> String {
        Time { offset: 0, ..self.0 }.to_string()
    }

    /// The later timestamp, if its year is one of 1 to 9999.
    // cel-go: common/types/overflow.go — addTimeDurationChecked
    pub(super) fn plus(&self, duration: Duration) -> Option<Self> {
        let nanoseconds = i64::from(self.0.nanoseconds) + duration.0 % SECOND;
        let seconds = self.0.seconds + duration.0 / SECOND + nanoseconds.div_euclid(SECOND);
        let nanoseconds = u32::try_from(nanoseconds.rem_euclid(SECOND)).unwrap_or(0);
        Self::checked(Time { seconds, nanoseconds, offset: self.0.offset })
    }

    /// The time since another timestamp.
    // cel-go: common/types/overflow.go — subtractTimeChecked: the seconds alone must not overflow
    pub(super) fn since(&self, other: &Self) -> Option<Duration> {
        let seconds = (self.0.seconds - other.0.seconds).checked_mul(SECOND)?;
        let nanoseconds = i64::from(self.0.nanoseconds) - i64::from(other.0.nanoseconds);
        seconds.checked_add(nanoseconds).map(Duration)
    }
}

impl PartialEq for Timestamp {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Timestamp {}

impl PartialOrd for Timestamp {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timestamp {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl Duration {
    /// The number of units, as Go counts them in floating point: it rounds where a double cannot hold the fraction.
    // time: Duration.Hours, Minutes, Seconds
    pub(super) fn count(self, unit: i64) -> f64 {
        let whole = number::double(i128::from(self.0 / unit));
        whole + number::double(i128::from(self.0 % unit)) / number::double(i128::from(unit))
    }

    /// The text in seconds.
    pub(super) fn shown(self) -> String {
        format!("{}s", self.count(SECOND))
    }
}
