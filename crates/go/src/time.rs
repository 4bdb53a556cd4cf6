//! Times as Go's package `time` reads and prints them in the layout of RFC 3339, and their dates in the calendar.

use std::fmt;
use std::time::Duration;

const DAY: i64 = 24 * 60 * 60;

/// The last second that a text of RFC 3339 can have: 9999-12-31T23:59:59Z.
const LAST_SECOND: i64 = 253_402_300_799;

/// A point in time, with the offset that its text is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time {
    /// Seconds since 1970 in UTC.
    pub seconds: i64,
    /// The nanoseconds of the second.
    pub nanoseconds: u32,
    /// The offset from UTC, in seconds to the east.
    pub offset: i32,
}

/// A date and a time of day. All parts count from 1 where people do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date {
    /// The year; 0 is the year before 1.
    pub year: i64,
    /// The month.
    pub month: i64,
    /// The day of the month.
    pub day: i64,
    /// The day of the year.
    pub year_day: i64,
    /// The day of the week, from Sunday as 0.
    pub week_day: i64,
    /// The hour.
    pub hour: i64,
    /// The minute.
    pub minute: i64,
    /// The second.
    pub second: i64,
}

impl Date {
    /// The date of a number of seconds since 1970.
    pub fn of(seconds: i64) -> Self {
        let (days, rest) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
        // Years begin in March here, so that the leap day is the last; an era has 400 of them.
        let shifted = days.saturating_add(719_468);
        let (era, era_day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let era_year = (era_day - era_day / 1460 + era_day / 36_524 - era_day / 146_096) / 365;
        let march_day = era_day - (365 * era_year + era_year / 4 - era_year / 100);
        let march_month = (5 * march_day + 2) / 153;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = era_year + era * 400 + i64::from(month <= 2);
        Self {
            year,
            month,
            day: march_day - (153 * march_month + 2) / 5 + 1,
            year_day: days - days_until(year, 1, 1) + 1,
            week_day: (days.saturating_add(4)).rem_euclid(7),
            hour: rest / 3600,
            minute: rest / 60 % 60,
            second: rest % 60,
        }
    }
}

/// The days from 1970 until a date.
fn days_until(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, era_year) = (year.div_euclid(400), year.rem_euclid(400));
    let march_day = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + era_year * 365 + era_year / 4 - era_year / 100 + march_day - 719_468
}

impl Time {
    /// Reads a text in the layout of RFC 3339, with all that Go accepts beyond it: one digit for the hour, a comma before
    /// the fraction, and offsets of up to 24 hours and 60 minutes. Leap seconds and small letters are not accepted.
    // time: Parse
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        let mut reader = Reader(text.as_bytes());
        let year = reader.number(4)?;
        reader.literal(b'-')?;
        let month = reader.number(2).filter(|month| (1..=12).contains(month))?;
        reader.literal(b'-')?;
        let day = reader.number(2).filter(|day| (1..=days_in(year, month)).contains(day))?;
        reader.literal(b'T')?;
        let hour = reader.number(2).or_else(|| reader.number(1)).filter(|hour| *hour < 24)?;
        reader.literal(b':')?;
        let minute = reader.number(2).filter(|minute| *minute < 60)?;
        reader.literal(b':')?;
        let second = reader.number(2).filter(|second| *second < 60)?;
        let nanoseconds = reader.fraction();
        let offset = reader.offset()?;
        if !reader.0.is_empty() {
            return None;
        }
        let seconds = days_until(year, month, day) * DAY + hour * 3600 + minute * 60 + second;
        Some(Self { seconds: seconds - i64::from(offset), nanoseconds, offset })
    }

    /// The time since 1970; zero for times before.
    pub fn since_epoch(&self) -> Duration {
        u64::try_from(self.seconds).map_or(Duration::ZERO, |seconds| Duration::new(seconds, self.nanoseconds))
    }

    /// The duration from `now`, a time since 1970, until this time; `None` if it has passed.
    pub fn remaining(&self, now: Duration) -> Option<Duration> {
        self.since_epoch().checked_sub(now).filter(|remaining| !remaining.is_zero())
    }

    /// The layout `time.RFC3339`: without the fraction of the second.
    pub fn in_whole_seconds(&self) -> String {
        Self { nanoseconds: 0, ..*self }.to_string()
    }

    /// The date in another offset than the own one.
    pub fn date_in(&self, offset: i64) -> Date {
        Date::of(self.seconds.saturating_add(offset))
    }
}

/// A time since 1970 in the layout `time.RFC3339`, in UTC.
pub fn format_since_epoch(time: Duration) -> String {
    format_utc(i64::try_from(time.as_secs()).unwrap_or(LAST_SECOND))
}

/// A time in seconds since 1970 in the layout `time.RFC3339`, in UTC. Times after the year 9999 are shown as its end.
pub fn format_utc(seconds: i64) -> String {
    Time { seconds: seconds.min(LAST_SECOND), nanoseconds: 0, offset: 0 }.to_string()
}

/// The layout `time.RFC3339Nano`.
impl fmt::Display for Time {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Date { year, month, day, hour, minute, second, .. } = self.date_in(self.offset.into());
        write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        if self.nanoseconds > 0 {
            let digits = format!("{:09}", self.nanoseconds);
            write!(out, ".{}", digits.trim_end_matches('0'))?;
        }
        if self.offset == 0 {
            return out.write_str("Z");
        }
        let minutes = self.offset.abs() / 60;
        write!(out, "{}{:02}:{:02}", if self.offset < 0 { '-' } else { '+' }, minutes / 60, minutes % 60)
    }
}

fn days_in(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The rest of a text.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    /// A number of exactly this many digits, of which more may follow.
    fn number(&mut self, digits: usize) -> Option<i64> {
        let (head, rest) = self.0.split_at_checked(digits)?;
        let mut number = 0;
        for byte in head {
            number = number * 10 + i64::from(char::from(*byte).to_digit(10)?);
        }
        self.0 = rest;
        Some(number)
    }

    fn literal(&mut self, wanted: u8) -> Option<()> {
        self.0 = self.0.strip_prefix(&[wanted])?;
        Some(())
    }

    /// The nanoseconds of a fraction, if there is one; digits beyond the ninth are ignored.
    fn fraction(&mut self) -> u32 {
        let [b'.' | b',', digits @ ..] = self.0 else { return 0 };
        let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let Some((fraction, rest)) = digits.split_at_checked(length).filter(|_| length > 0) else { return 0 };
        self.0 = rest;
        let padded = fraction.iter().copied().chain(std::iter::repeat(b'0'));
        padded.take(9).fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'))
    }

    fn offset(&mut self) -> Option<i32> {
        if self.literal(b'Z').is_some() {
            return Some(0);
        }
        let [sign @ (b'+' | b'-'), rest @ ..] = self.0 else { return None };
        let negative = *sign == b'-';
        self.0 = rest;
        let hours = self.number(2).filter(|hours| *hours <= 24)?;
        self.literal(b':')?;
        let minutes = self.number(2).filter(|minutes| *minutes <= 60)?;
        let offset = i32::try_from((hours * 60 + minutes) * 60).ok()?;
        Some(if negative { -offset } else { offset })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Seconds, nanoseconds, and the time as Go formats it.
    type Read = (i64, u32, &'static str);

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
            let time = Time::parse_rfc3339(text);
            let read = time.map(|time| (time.seconds, time.nanoseconds, time.in_whole_seconds()));
            let read =
                read.as_ref().map(|(seconds, nanoseconds, text)| (*seconds, *nanoseconds, text.as_str()));
            if read != *expected {
                wrong.push(format!("{text:?}: {read:?}, not {expected:?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn the_remaining_time_is_exact_to_the_nanosecond() {
        let end = Time::parse_rfc3339("2033-11-14T22:13:21.5Z").unwrap();
        let at = Duration::from_millis(2_015_619_201_500);
        let (nanosecond, hour) = (Duration::from_nanos(1), Duration::from_hours(1));
        assert_eq!(end.since_epoch(), at);
        assert_eq!(end.remaining(at.saturating_sub(nanosecond)), Some(nanosecond));
        assert_eq!(end.remaining(at.saturating_sub(hour)), Some(hour));
        assert_eq!(end.remaining(at), None);
        assert_eq!(end.remaining(at + nanosecond), None);
        let early = Time::parse_rfc3339("1969-11-14T22:13:21Z").unwrap();
        assert_eq!((early.since_epoch(), early.remaining(Duration::ZERO)), (Duration::ZERO, None));
    }

    #[test]
    fn times_that_no_text_can_have_are_shown_as_the_last() {
        assert_eq!(format_utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(format_utc(i64::MAX), "9999-12-31T23:59:59Z");
        assert_eq!(format_since_epoch(Duration::MAX), "9999-12-31T23:59:59Z");
    }

    #[test]
    fn times_are_read_and_printed_as_go_does() {
        // The right side was printed by Go: time.Parse(time.RFC3339, …), then Unix and Format(time.RFC3339Nano).
        const CASES: &[(&str, Option<(i64, &str)>)] = &[
            ("1970-01-01T00:00:00Z", Some((0, "1970-01-01T00:00:00Z"))),
            ("2020-02-29T23:59:59.120Z", Some((1_583_020_799, "2020-02-29T23:59:59.12Z"))),
            ("2020-01-01T00:00:00+05:30", Some((1_577_817_000, "2020-01-01T00:00:00+05:30"))),
            ("2020-01-01T0:00:00,123Z", Some((1_577_836_800, "2020-01-01T00:00:00.123Z"))),
            ("2020-01-01T00:00:00+24:60", Some((1_577_746_800, "2020-01-01T00:00:00+25:00"))),
            ("2020-01-01T00:00:00-00:00", Some((1_577_836_800, "2020-01-01T00:00:00Z"))),
            ("0000-12-31T23:59:59-00:01", Some((-62_135_596_741, "0000-12-31T23:59:59-00:01"))),
            ("9999-12-31T23:59:59.9999999999Z", Some((253_402_300_799, "9999-12-31T23:59:59.999999999Z"))),
            ("2019-02-29T00:00:00Z", None),
            ("1900-02-29T00:00:00Z", None),
            ("2020-01-01t00:00:00Z", None),
            ("2020-01-01T00:00:00z", None),
            ("2020-01-01T24:00:00Z", None),
            ("1972-06-30T23:59:60Z", None),
            ("2020-01-01T00:00:00", None),
            ("2020-01-01T00:00:00.Z", None),
            ("2020-01-01T00:00:00+25:00", None),
            ("2020-01-01T00:00:00+0530", None),
            ("2020-01-01T00:00:00Z ", None),
            ("2020-01-01", None),
            ("", None),
        ];
        for (text, expected) in CASES {
            let found = Time::parse_rfc3339(text).map(|time| (time.seconds, time.to_string()));
            let found = found.as_ref().map(|(seconds, text)| (*seconds, text.as_str()));
            assert_eq!(found, *expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_time_reads_as_itself(seconds in -62_135_596_800_i64..=253_402_300_799, nanoseconds in 0_u32..1_000_000_000) {
            let read = Time::parse_rfc3339(&Time { seconds, nanoseconds, offset: 0 }.to_string());
            prop_assert_eq!(read.map(|time| (time.seconds, time.nanoseconds)), Some((seconds, nanoseconds)));
        }

        #[test]
        fn no_text_and_no_date_panics(text in "[0-9T:Z.,+-]{0,40}", seconds in any::<i64>()) {
            let _time = Time::parse_rfc3339(&text);
            let _date = Date::of(seconds);
        }
    }
}
