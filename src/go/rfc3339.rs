//! Times as Go's `time` parses and prints them in RFC 3339. It accepts a few more forms, but not all of ISO 8601.

use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;
use k8s_openapi::jiff::civil::{Date, DateTime, Time};

use crate::clock::UnixTime;

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// A time that Go parses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rfc3339Time {
    since_epoch: SignedDuration,
    text: String,
}

/// The text is not an RFC 3339 time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an RFC 3339 time")]
pub(crate) struct InvalidTimestamp;

/// Formats a time for logs and output: RFC 3339, UTC, whole seconds.
pub(crate) fn format(time: UnixTime) -> String {
    format_utc(i64::try_from(time.as_secs()).unwrap_or(i64::MAX))
}

/// A time in seconds since 1970 as Go prints it, in UTC and whole seconds.
pub(crate) fn format_utc(seconds: i64) -> String {
    let civil = EPOCH.saturating_add(SignedDuration::from_secs(seconds));
    civil.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Rfc3339Time {
    /// Parses a time.
    // Go: time/format.go, Parse with the layout RFC3339
    pub(crate) fn parse(text: &str) -> Result<Self, InvalidTimestamp> {
        let mut rest = TimestampReader(text.as_bytes());
        let (civil, nanoseconds) = rest.civil().ok_or(InvalidTimestamp)?;
        let (east, zone) = rest.zone().filter(|_| rest.0.is_empty()).ok_or(InvalidTimestamp)?;
        let since_epoch = civil.duration_since(EPOCH).saturating_sub(SignedDuration::from_mins(east))
            + SignedDuration::from_nanos(nanoseconds);
        Ok(Self { since_epoch, text: format!("{}{zone}", civil.strftime("%Y-%m-%dT%H:%M:%S")) })
    }

    /// The time until the expiration; `None` if that has passed.
    // cluster-bootstrap: util/secrets/secrets.go, GetExpiration
    pub(crate) fn remaining(&self, now: UnixTime) -> Option<Duration> {
        let now = SignedDuration::try_from(now).unwrap_or(SignedDuration::MAX);
        let remaining = Duration::try_from(self.since_epoch.saturating_sub(now)).ok()?;
        (!remaining.is_zero()).then_some(remaining)
    }

    /// The time of the expiration; times before 1970 are cut to 1970.
    pub(crate) fn at(&self) -> UnixTime {
        Duration::try_from(self.since_epoch).unwrap_or_default()
    }

    /// The time as Go formats it: whole seconds, in its own time zone.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

/// The unread bytes.
struct TimestampReader<'a>(&'a [u8]);

impl TimestampReader<'_> {
    fn civil(&mut self) -> Option<(DateTime, i64)> {
        let year = self.number(4)?;
        let month = self.after(b'-')?.number(2)?;
        let day = self.after(b'-')?.number(2)?;
        // Go accepts an hour of one digit.
        let hour = self.after(b'T')?;
        let hour =
            if hour.0.get(1).is_some_and(u8::is_ascii_digit) { hour.number(2) } else { hour.number(1) }?;
        let minute = self.after(b':')?.number(2)?;
        let second = self.after(b':')?.number(2)?;
        let nanoseconds = self.fraction();
        let small = |number: i64| i8::try_from(number).ok();
        let date = Date::new(i16::try_from(year).ok()?, small(month)?, small(day)?).ok()?;
        let time = Time::new(small(hour)?, small(minute)?, small(second)?, 0).ok()?;
        Some((DateTime::from_parts(date, time), nanoseconds))
    }

    /// Parses a fraction after a point or a comma; ignores digits beyond nanoseconds.
    fn fraction(&mut self) -> i64 {
        let [b'.' | b',', digits @ ..] = self.0 else { return 0 };
        let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, rest) = digits.split_at(length);
        if length == 0 {
            return 0;
        }
        self.0 = rest;
        let padded = digits.iter().copied().chain(std::iter::repeat(b'0')).take(9);
        padded.fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
    }

    /// Minutes east of UTC, and the zone as Go formats it.
    fn zone(&mut self) -> Option<(i64, String)> {
        if self.after(b'Z').is_some() {
            return Some((0, "Z".to_owned()));
        }
        let (sign, direction) = if self.after(b'+').is_some() { ('+', 1) } else { ('-', -1) };
        if sign == '-' {
            self.after(b'-')?;
        }
        let (hours, minutes) = (self.number(2)?, self.after(b':')?.number(2)?);
        // Go: 24 hours and 60 minutes are taken.
        if hours > 24 || minutes > 60 {
            return None;
        }
        let minutes = hours * 60 + minutes;
        let text = match minutes {
            0 => "Z".to_owned(),
            minutes => format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60),
        };
        Some((direction * minutes, text))
    }

    fn after(&mut self, byte: u8) -> Option<&mut Self> {
        let (first, rest) = self.0.split_first()?;
        if *first != byte {
            return None;
        }
        self.0 = rest;
        Some(self)
    }

    fn number(&mut self, digits: usize) -> Option<i64> {
        let (digits, rest) = self.0.split_at_checked(digits)?;
        self.0 = rest;
        digits
            .iter()
            .try_fold(0, |number, byte| byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0')))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds, nanoseconds, and the time as Go formats it.
    type Read = (i64, i32, &'static str);

    /// The results of Go 1.26.
    const CASES: &[(&str, Option<Read>)] = &[
        ("2033-11-14T22:13:21Z", Some((2_015_619_201, 0, "2033-11-14T22:13:21Z"))),
        ("2033-11-14T5:13:21Z", Some((2_015_558_001, 0, "2033-11-14T05:13:21Z"))),
        ("2033-11-14T22:13:21,5Z", Some((2_015_619_201, 500_000_000, "2033-11-14T22:13:21Z"))),
        ("2033-11-14T22:13:21.123456789123Z", Some((2_015_619_201, 123_456_789, "2033-11-14T22:13:21Z"))),
        ("2033-11-14T22:13:21.0000000001Z", Some((2_015_619_201, 0, "2033-11-14T22:13:21Z"))),
        ("2033-11-14T22:13:21.5+01:00", Some((2_015_615_601, 500_000_000, "2033-11-14T22:13:21+01:00"))),
        ("2033-11-14T5:13:21.5+01:00", Some((2_015_554_401, 500_000_000, "2033-11-14T05:13:21+01:00"))),
        ("2033-11-14T22:13:21+24:00", Some((2_015_532_801, 0, "2033-11-14T22:13:21+24:00"))),
        ("2033-11-14T22:13:21+24:59", Some((2_015_529_261, 0, "2033-11-14T22:13:21+24:59"))),
        ("2033-11-14T22:13:21+23:60", Some((2_015_532_801, 0, "2033-11-14T22:13:21+24:00"))),
        ("2033-11-14T22:13:21-00:00", Some((2_015_619_201, 0, "2033-11-14T22:13:21Z"))),
        ("2033-11-14T22:13:21+00:00", Some((2_015_619_201, 0, "2033-11-14T22:13:21Z"))),
        ("0000-01-01T00:00:00Z", Some((-62_167_219_200, 0, "0000-01-01T00:00:00Z"))),
        ("9999-12-31T23:59:59-24:00", Some((253_402_387_199, 0, "9999-12-31T23:59:59-24:00"))),
        ("1969-12-31T23:59:59Z", Some((-1, 0, "1969-12-31T23:59:59Z"))),
        ("", None),
        ("garbage", None),
        ("2033-11-14T22:13:21.Z", None),
        ("2033-11-14T22:13:21,Z", None),
        ("2033-11-14T22:13:21+25:00", None),
        ("2033-11-14T22:13:21+00:61", None),
        ("2033-11-14T22:13:21+0100", None),
        ("2033-11-14T22:13:21+01", None),
        ("2033-11-14T22:13:21+01:0", None),
        ("2033-11-14T22:13:21-1:00", None),
        ("2033-11-14T22:13:21.5 +01:00", None),
        ("2033-11-14T22:13:21Z07:00", None),
        ("2033-11-14T22:13:21", None),
        ("2033-11-14T22:13:21z", None),
        ("2033-11-14t22:13:21Z", None),
        ("2033-11-14 22:13:21Z", None),
        ("2033-11-14T22:13:21Z\n", None),
        (" 2033-11-14T22:13:21Z", None),
        ("+2033-11-14T22:13:21Z", None),
        ("2033-11-14", None),
        ("2033-02-29T22:13:21Z", None),
        ("2033-00-14T22:13:21Z", None),
        ("2033-11-00T22:13:21Z", None),
        ("2033-1-14T22:13:21Z", None),
        ("2033-11-4T22:13:21Z", None),
        ("2033-11-14T 5:13:21Z", None),
        ("2033-11-14T24:00:00Z", None),
        ("2033-11-14T22:3:21Z", None),
        ("2033-11-14T22:60:21Z", None),
        ("2033-11-14T22:13:1Z", None),
        ("2033-11-14T22:13:60Z", None),
        ("2033-11-14T22:13:21Zé", None),
    ];

    #[test]
    fn expirations_are_parsed_as_go_parses_them() {
        let mut wrong = Vec::new();
        for (text, expected) in CASES {
            let read = Rfc3339Time::parse(text).ok();
            let read = read.as_ref().map(|read| {
                // Before 1970, Go counts nanoseconds up and this type down; no case has both.
                (read.since_epoch.as_secs(), read.since_epoch.subsec_nanos(), read.as_str())
            });
            if read != *expected {
                wrong.push(format!("{text:?}: {read:?}, not {expected:?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn the_remaining_time_is_exact_to_the_nanosecond() {
        let end = Rfc3339Time::parse("2033-11-14T22:13:21.5Z").unwrap();
        let at = Duration::from_millis(2_015_619_201_500);
        let (nanosecond, hour) = (Duration::from_nanos(1), Duration::from_hours(1));
        assert_eq!(end.at(), at);
        assert_eq!(end.remaining(at.saturating_sub(nanosecond)), Some(nanosecond));
        assert_eq!(end.remaining(at.saturating_sub(hour)), Some(hour));
        assert_eq!(end.remaining(at), None);
        assert_eq!(end.remaining(at + nanosecond), None);
        let early = Rfc3339Time::parse("1969-11-14T22:13:21Z").unwrap();
        assert_eq!((early.at(), early.remaining(Duration::ZERO)), (Duration::ZERO, None));
    }
}
