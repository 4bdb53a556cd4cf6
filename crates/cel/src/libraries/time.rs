//! Durations and timestamps: conversions, and their parts in a time zone.

mod zone;

use portcullis_go::duration::parse_duration;
use portcullis_go::time::{Date, Time};

use crate::evaluation::{EvalResult, Evaluation, Halt, error};
use crate::library::{Call, Library};
use crate::number;
use crate::time::{Duration, SECOND, Timestamp};
use crate::value::Datum;

pub(crate) use zone::zone_names;

/// The functions of durations and timestamps, from CEL itself.
#[derive(Debug)]
pub(crate) struct Times;

const SIGNATURES: &str = "
duration | (duration) -> duration | (int) -> duration | (string) -> duration
timestamp | (timestamp) -> timestamp | (int) -> timestamp | (string) -> timestamp
getDate | timestamp.() -> int | timestamp.(string) -> int
getDayOfMonth | timestamp.() -> int | timestamp.(string) -> int
getDayOfWeek | timestamp.() -> int | timestamp.(string) -> int
getDayOfYear | timestamp.() -> int | timestamp.(string) -> int
getFullYear | timestamp.() -> int | timestamp.(string) -> int
getHours | timestamp.() -> int | timestamp.(string) -> int | duration.() -> int
getMilliseconds | timestamp.() -> int | timestamp.(string) -> int | duration.() -> int
getMinutes | timestamp.() -> int | timestamp.(string) -> int | duration.() -> int
getMonth | timestamp.() -> int | timestamp.(string) -> int
getSeconds | timestamp.() -> int | timestamp.(string) -> int | duration.() -> int
";

/// Nanoseconds.
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

impl Library for Times {
    fn signatures(&self) -> &'static str {
        SIGNATURES
    }

    fn call(&self, evaluation: &mut Evaluation<'_>, call: &Call<'_>) -> EvalResult {
        match (call.function, call.values) {
            ("duration", [value]) => duration(evaluation, value),
            ("timestamp", [value]) => timestamp(evaluation, value),
            (part, [Datum::Duration(duration)]) => duration_part(*duration, part),
            (part, [Datum::Timestamp(timestamp)]) => timestamp_part(timestamp, part, 0),
            (part, [Datum::Timestamp(timestamp), Datum::String(name)]) => {
                // A name from a token may be long.
                evaluation.charge(name.len() / 100)?;
                let offset = zone::offset(evaluation, name, timestamp.seconds())?;
                timestamp_part(timestamp, part, offset)
            }
            _ => Err(Halt::Unsuited),
        }
    }
}

fn duration(evaluation: &mut Evaluation<'_>, value: &Datum) -> EvalResult {
    match value {
        Datum::Duration(_) => Ok(value.clone()),
        Datum::String(text) => {
            // Any number of parts may be valid.
            evaluation.charge(text.len() / 10)?;
            match parse_duration(text) {
                Ok(nanoseconds) => Ok(Datum::Duration(Duration(nanoseconds))),
                Err(_) => unconverted("string", "google.protobuf.Duration"),
            }
        }
        // The reference declares this conversion, and does not implement it.
        Datum::Int(_) if evaluation.rules().duration_of_int => unconverted("int", "google.protobuf.Duration"),
        _ => Err(Halt::Unsuited),
    }
}

fn timestamp(evaluation: &mut Evaluation<'_>, value: &Datum) -> EvalResult {
    let time = match value {
        Datum::Timestamp(_) => return Ok(value.clone()),
        Datum::String(text) => {
            evaluation.charge(text.len() / 100)?;
            match Time::parse_rfc3339(text) {
                Some(time) => time,
                None => return unconverted("string", "google.protobuf.Timestamp"),
            }
        }
        Datum::Int(seconds) => Time { seconds: *seconds, nanoseconds: 0, offset: 0 },
        _ => return Err(Halt::Unsuited),
    };
    Timestamp::checked(time).map_or_else(|| error("timestamp overflow"), |time| Ok(Datum::Timestamp(time)))
}

fn unconverted(from: &str, to: &str) -> EvalResult {
    error(format!("type conversion error from '{from}' to '{to}'"))
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
    let Date { year, month, day, year_day, week_day, hour, minute, second } = timestamp.date_in(offset);
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
        "getMilliseconds" => i64::from(timestamp.nanoseconds() / 1_000_000),
        _ => return Err(Halt::Unsuited),
    }))
}
