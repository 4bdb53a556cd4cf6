//! Time zones: names of the tz database, which is bundled, and offsets such as `-08:00`.
//!
//! The reference reads the database of its evaluation, which has more files than zones (`posix/UTC`, `localtime`) and a
//! zone `Local`. None of these is a zone here.

use std::collections::BTreeMap;
use std::sync::{LazyLock, OnceLock};

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use portcullis_go::number::atoi;

use crate::evaluation::{Evaluation, Halt, error, unsupported};
use crate::number;
use crate::time::{Duration, SECOND};

/// The zones by their names, each parsed when it is used first. The names bound the memory.
static ZONES: LazyLock<BTreeMap<String, OnceLock<Option<TimeZone>>>> = LazyLock::new(|| {
    let names = TimeZoneDatabase::bundled();
    names.available().map(|name| (name.to_string(), OnceLock::new())).collect()
});

/// The names of the zones.
pub(crate) fn zone_names() -> Vec<String> {
    ZONES.keys().cloned().collect()
}

/// The seconds that a zone is to the east of UTC at a time.
// cel-go: common/stdlib/standard.go — inTimeZone
pub(super) fn offset(evaluation: &mut Evaluation<'_>, name: &str, seconds: i64) -> Result<i64, Halt> {
    match name.split_once(':') {
        Some((hours, minutes)) => fixed(name, hours, minutes),
        None => named(evaluation, name, seconds),
    }
}

/// The offset that hours and minutes make. Like the reference, bounds neither, and wraps around as Go's integers do.
fn fixed(name: &str, hours: &str, minutes: &str) -> Result<i64, Halt> {
    let read = |text| atoi(text).map_err(|error| Halt::Error(error.to_string()));
    let (hours, minutes) = (read(hours)?.wrapping_mul(60), read(minutes)?);
    let total = if name.starts_with('-') { hours.wrapping_sub(minutes) } else { hours.wrapping_add(minutes) };
    let length = Duration(total.wrapping_mul(60 * SECOND));
    Ok(number::truncated_int(length.count(SECOND)).unwrap_or_default())
}

// time: LoadLocation
fn named(evaluation: &mut Evaluation<'_>, name: &str, seconds: i64) -> Result<i64, Halt> {
    if name.is_empty() || name == "UTC" {
        return Ok(0);
    }
    // What Go finds in the files of an API server's machine.
    let is_of_machine = ["posix/", "right/"].iter().any(|folder| name.starts_with(folder));
    if is_of_machine || ["Local", "localtime", "posixrules"].contains(&name) {
        return unsupported(format!("the time zone '{name}' of an API server is not known here"));
    }
    if name.contains("..") || name.starts_with(['/', '\\']) {
        return error("time: invalid location name");
    }
    let Some(zone) = ZONES.get(name) else { return unknown(evaluation, name) };
    let load = || TimeZoneDatabase::bundled().get(name).ok();
    let Some(zone) = zone.get_or_init(load) else { return error(format!("unknown time zone {name}")) };
    // The last day of 9999 is beyond the library's range, and within no change of any zone.
    let time = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
    Ok(zone.to_offset(time).seconds().into())
}

fn unknown(evaluation: &mut Evaluation<'_>, name: &str) -> Result<i64, Halt> {
    evaluation.charge_reading(name.len())?;
    let directory = format!("{}/", name.trim_end_matches('/'));
    let within = ZONES.range(directory.clone()..).next();
    if within.is_some_and(|(known, _)| known.starts_with(&directory)) {
        return error("is a directory");
    }
    error(format!("unknown time zone {name}"))
}
