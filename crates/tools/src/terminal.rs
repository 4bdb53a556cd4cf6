//! Formatting for terminals: dates, ages, and untrusted text without control characters.

use std::borrow::Cow;

use portcullis_go::time;
use portcullis_system::clock::UnixTime;
use portcullis_system::text::is_obeyed;
pub use portcullis_system::text::sanitized;

/// The name, quoted if it could be mistaken for another one: `"alice "` for `alice`.
pub fn plain(name: &str) -> Cow<'_, str> {
    let misleads =
        name.is_empty() || name.trim() != name || name.starts_with('"') || name.chars().any(is_obeyed);
    if misleads { Cow::Owned(format!("{name:?}")) } else { Cow::Borrowed(name) }
}

/// A date and its distance from now.
pub fn when(date: i64, now: UnixTime) -> String {
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
    format!("{} ({away})", time::format_since_epoch(date))
}

/// An age in the units of kubectl, coarser as it grows.
// apimachinery: pkg/util/duration/duration.go, HumanDuration
pub fn age(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let both = |large: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small}{small_unit}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => both(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => both(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => both(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => both(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_as_coarse_as_kubectl_has_them() {
        let cases = [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (599, "9m59s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (10_860, "3h1m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (691_200, "8d"),
            (31_536_000, "365d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
            (252_288_000, "8y"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(age(seconds), expected, "{seconds}");
        }
    }

    #[test]
    fn a_name_that_would_be_read_as_another_is_quoted() {
        let cases = [
            ("alice", "alice"),
            ("a b", "a b"),
            ("Zoë", "Zoë"),
            ("alice ", "\"alice \""),
            ("\talice", "\"\\talice\""),
            ("", "\"\""),
            ("a\nb", "\"a\\nb\""),
            ("a\u{202e}b", "\"a\\u{202e}b\""),
            ("\"alice \"", "\"\\\"alice \\\"\""),
        ];
        for (name, expected) in cases {
            assert_eq!(plain(name), expected);
        }
    }

    #[test]
    fn no_text_moves_the_cursor_or_turns_the_line() {
        assert_eq!(sanitized("a\u{1b}[2Jb\u{202e}c\r\nd é"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}\u{fffd}d é");
    }
}
