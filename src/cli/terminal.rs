//! What commands print for people: dates, and texts that a stranger may have written.

use crate::clock::{self, UnixTime};

/// The text with a mark instead of each character that a terminal would obey.
pub(super) fn harmless(text: &str) -> String {
    let is_obeyed = |c: char| {
        c.is_control() || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if is_obeyed(c) { '\u{fffd}' } else { c }).collect()
}

/// A date, and how far away it is.
pub(super) fn when(date: i64, now: UnixTime) -> String {
    let Ok(seconds) = u64::try_from(date) else { return format!("{date} (before 1970)") };
    let date = UnixTime::from_secs(seconds);
    let distance = |apart: UnixTime| {
        let seconds = apart.as_secs();
        let units = [(86_400, "d"), (3600, "h"), (60, "m")];
        let unit = units.into_iter().find(|(length, _)| seconds >= 2 * length);
        unit.map_or_else(|| format!("{seconds}s"), |(length, unit)| format!("{}{unit}", seconds / length))
    };
    let away = match date.checked_sub(now) {
        Some(ahead) => format!("in {}", distance(ahead)),
        None => format!("{} ago", distance(now.saturating_sub(date))),
    };
    format!("{} ({away})", clock::rfc3339(date))
}
