//! Durations and timestamps: conversions, arithmetic, and their parts in a time zone.

mod zone;

use std::cmp::Ordering;

use portcullis_go::duration::parse_duration;
use portcullis_go::time::{Date, Time};

use crate::eval::{EvalResult, Halt, Machine, error};
use crate::native::Native;
use crate::number;
use crate::value::Datum;

pub(crate) use zone::zone_names;

/// A duration in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Duration(pub(crate) i64);

/// A point in time. The offset that it was written in is printed, but not compared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timestamp(Time);

const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

/// The years 1 to 9999, in seconds since 1970.
const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

impl Timestamp {
    /// The timestamp, if its year is one of 1 to 9999.
    fn checked(time: Time) -> Result<Self, Halt> {
        if SECONDS.contains(&time.seconds) { Ok(Self(time)) } else { error("timestamp overflow") }
    }

    fn key(&self) -> (i64, u32) {
        (self.0.seconds, self.0.nanoseconds)
    }

    /// Whether it is the zero value of Go.
    pub(crate) fn is_zero(&self) -> bool {
        self.key() == (*SECONDS.start(), 0)
    }

    /// The text in UTC.
    pub(crate) fn in_utc(&self) -> String {
        Time { offset: 0, ..self.0 }.to_string()
    }

    // cel-go: common/types/overflow.go — addTimeDurationChecked
    fn plus(&self, duration: Duration) -> Result<Self, Halt> {
        let nanoseconds = i64::from(self.0.nanoseconds) + duration.0 % SECOND;
        let seconds = self.0.seconds + duration.0 / SECOND + nanoseconds.div_euclid(SECOND);
        let nanoseconds = u32::try_from(nanoseconds.rem_euclid(SECOND)).unwrap_or(0);
        Self::checked(Time { seconds, nanoseconds, offset: self.0.offset })
    }

    /// The time since another timestamp.
    // cel-go: common/types/overflow.go — subtractTimeChecked: the seconds alone must not overflow
    fn since(&self, other: &Self) -> Option<Duration> {
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
    fn count(self, unit: i64) -> f64 {
        let whole = number::double(i128::from(self.0 / unit));
        whole + number::double(i128::from(self.0 % unit)) / number::double(i128::from(unit))
    }
}

pub(crate) fn call(machine: &mut Machine<'_>, function: &str, values: &[Datum]) -> EvalResult {
    match (function, values) {
        ("duration", [value]) => duration(machine, value),
        ("timestamp", [value]) => timestamp(machine, value),
        (part, [Datum::Native(Native::Duration(duration))]) => duration_part(*duration, part),
        (part, [Datum::Native(Native::Timestamp(timestamp))]) => timestamp_part(timestamp, part, 0),
        (part, [Datum::Native(Native::Timestamp(timestamp)), Datum::String(name)])
            if part.starts_with("get") =>
        {
            // A name from a token may be long.
            machine.charge(name.len() / 100)?;
            let offset = zone::offset(machine, name, timestamp.0.seconds)?;
            timestamp_part(timestamp, part, offset)
        }
        _ => Err(Halt::Unsuited),
    }
}

fn duration(machine: &mut Machine<'_>, value: &Datum) -> EvalResult {
    match value {
        Datum::Native(Native::Duration(_)) => Ok(value.clone()),
        Datum::String(text) => {
            // Any number of parts may be valid.
            machine.charge(text.len() / 10)?;
            match parse_duration(text) {
                Ok(nanoseconds) => Ok(of(Duration(nanoseconds))),
                Err(_) => unconverted("string", "google.protobuf.Duration"),
            }
        }
        // The reference declares this conversion, and does not implement it.
        Datum::Int(_) => unconverted("int", "google.protobuf.Duration"),
        _ => Err(Halt::Unsuited),
    }
}

fn timestamp(machine: &mut Machine<'_>, value: &Datum) -> EvalResult {
    let time = match value {
        Datum::Native(Native::Timestamp(_)) => return Ok(value.clone()),
        Datum::String(text) => {
            machine.charge(text.len() / 100)?;
            match Time::parse_rfc3339(text) {
                Some(time) => time,
                None => return unconverted("string", "google.protobuf.Timestamp"),
            }
        }
        Datum::Int(seconds) => Time { seconds: *seconds, nanoseconds: 0, offset: 0 },
        _ => return Err(Halt::Unsuited),
    };
    Timestamp::checked(time).map(at)
}

fn unconverted(from: &str, to: &str) -> EvalResult {
    error(format!("type conversion error from '{from}' to '{to}'"))
}

fn of(duration: Duration) -> Datum {
    Datum::Native(Native::Duration(duration))
}

fn at(timestamp: Timestamp) -> Datum {
    Datum::Native(Native::Timestamp(timestamp))
}

fn bounded(nanoseconds: Option<i64>) -> EvalResult {
    nanoseconds.map_or_else(|| error("integer overflow"), |nanoseconds| Ok(of(Duration(nanoseconds))))
}

/// `int(value)` and `string(value)`.
pub(crate) fn convert(to: &str, value: &Native) -> EvalResult {
    match (to, value) {
        ("int", Native::Duration(duration)) => Ok(Datum::Int(duration.0)),
        ("int", Native::Timestamp(timestamp)) => Ok(Datum::Int(timestamp.0.seconds)),
        ("string", Native::Duration(duration)) => Ok(Datum::string(&format!("{}s", duration.count(SECOND)))),
        ("string", Native::Timestamp(timestamp)) => Ok(Datum::string(&timestamp.0.to_string())),
        _ => Err(Halt::Unsuited),
    }
}

/// `-value`, which only values of no known type reach.
pub(crate) fn negate(duration: Duration) -> EvalResult {
    bounded(duration.0.checked_neg())
}

pub(crate) fn add(left: &Native, right: &Native) -> EvalResult {
    match (left, right) {
        (Native::Duration(left), Native::Duration(right)) => bounded(left.0.checked_add(right.0)),
        (Native::Duration(duration), Native::Timestamp(timestamp))
        | (Native::Timestamp(timestamp), Native::Duration(duration)) => timestamp.plus(*duration).map(at),
        _ => Err(Halt::Unsuited),
    }
}

pub(crate) fn subtract(left: &Native, right: &Native) -> EvalResult {
    match (left, right) {
        (Native::Duration(left), Native::Duration(right)) => bounded(left.0.checked_sub(right.0)),
        (Native::Timestamp(timestamp), Native::Duration(duration)) => match duration.0.checked_neg() {
            Some(negative) => timestamp.plus(Duration(negative)).map(at),
            None => error("integer overflow"),
        },
        (Native::Timestamp(left), Native::Timestamp(right)) => match left.since(right) {
            Some(duration) => Ok(of(duration)),
            None => error("integer overflow"),
        },
        _ => Err(Halt::Unsuited),
    }
}

fn duration_part(duration: Duration, part: &str) -> EvalResult {
    let unit = match part {
        "getHours" => HOUR,
        "getMinutes" => MINUTE,
        "getSeconds" => SECOND,
        "getMilliseconds" => return Ok(Datum::Int(duration.0 / 1_000_000)),
        _ => return Err(Halt::Unsuited),
    };
    Ok(Datum::Int(number::truncated_int(duration.count(unit)).unwrap_or_default()))
}

fn timestamp_part(timestamp: &Timestamp, part: &str, offset: i64) -> EvalResult {
    let Date { year, month, day, year_day, week_day, hour, minute, second } = timestamp.0.date_in(offset);
    Ok(Datum::Int(match part {
        "getFullYear" => year,
        "getMonth" => month - 1,
        "getDayOfYear" => year_day - 1,
        "getDayOfMonth" => day - 1,
        "getDate" => day,
        "getDayOfWeek" => week_day,
        "getHours" => hour,
        "getMinutes" => minute,
        "getSeconds" => second,
        "getMilliseconds" => i64::from(timestamp.0.nanoseconds / 1_000_000),
        _ => return Err(Halt::Unsuited),
    }))
}
