//! Durations as Go's `time.ParseDuration` parses them, including its error texts, and as Go prints them.

use std::fmt::Write as _;

/// Why a text is not a duration, in Go's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Not in the form of a duration, or out of range.
    #[error("time: invalid duration {}", quote(.0))]
    Invalid(String),
    /// A number without a unit.
    #[error("time: missing unit in duration {}", quote(.0))]
    MissingUnit(String),
    /// An unknown unit.
    #[error("time: unknown unit {} in duration {}", quote(.unit), quote(.text))]
    UnknownUnit {
        /// The text at the place of the unit.
        unit: String,
        /// The whole text.
        text: String,
    },
}

/// Parses a duration as Go does, in nanoseconds: `1h30m`, `1.5s`, `-10ms`.
// time: ParseDuration
pub fn parse_duration(text: &str) -> Result<i64, DurationError> {
    let invalid = || DurationError::Invalid(text.to_owned());
    let negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (whole, after) = cut(rest, |c| c.is_ascii_digit());
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => cut(after, |c| c.is_ascii_digit()),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        // As in Go, an overflow takes precedence over an unknown unit.
        let count = if whole.is_empty() { 0 } else { whole.parse::<u64>().map_err(|_| invalid())? };
        if count > MAX_NANOSECONDS {
            return Err(invalid());
        }
        let (unit, after) = cut(after, |c| c != '.' && !c.is_ascii_digit());
        rest = after;
        if unit.is_empty() {
            return Err(DurationError::MissingUnit(text.to_owned()));
        }
        let Some(nanoseconds) = unit_length(unit) else {
            return Err(DurationError::UnknownUnit { unit: unit.to_owned(), text: text.to_owned() });
        };
        total = count
            .checked_mul(nanoseconds)
            .and_then(|sum| sum.checked_add(fraction_of(fraction, nanoseconds)))
            .filter(|sum| *sum <= MAX_NANOSECONDS)
            .and_then(|sum| total.checked_add(sum))
            .filter(|sum| *sum <= MAX_NANOSECONDS)
            .ok_or_else(invalid)?;
    }
    if negative {
        // i64::MIN has no positive counterpart.
        return Ok(0_i64.checked_sub_unsigned(total).unwrap_or(i64::MIN));
    }
    i64::try_from(total).map_err(|_| invalid())
}

/// Formats nanoseconds as Go does: `1h30m0s`, `1.5s`, `-10ms`.
// time: Duration.String
pub fn format_duration(nanoseconds: i64) -> String {
    const SECOND: u64 = 1_000_000_000;
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let magnitude = nanoseconds.unsigned_abs();
    let (count, fraction) = match magnitude {
        0 => return "0s".to_owned(),
        1..1_000 => return format!("{sign}{magnitude}ns"),
        1_000..1_000_000 => (magnitude, (1_000, "µs")),
        1_000_000..SECOND => (magnitude, (1_000_000, "ms")),
        _ => (magnitude % (60 * SECOND), (SECOND, "s")),
    };
    let (unit, name) = fraction;
    let minutes = magnitude / (60 * SECOND);
    let larger = match (minutes / 60, minutes % 60) {
        (0, 0) => String::new(),
        (0, minutes) => format!("{minutes}m"),
        (hours, minutes) => format!("{hours}h{minutes}m"),
    };
    let width = usize::try_from(unit.ilog10()).unwrap_or_default();
    let digits = format!("{:0width$}", count % unit);
    let digits = digits.trim_end_matches('0');
    let point = if digits.is_empty() { "" } else { "." };
    format!("{sign}{larger}{}{point}{digits}{name}", count / unit)
}

/// Largest magnitude of a duration in nanoseconds.
const MAX_NANOSECONDS: u64 = 1 << 63;

fn unit_length(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// The fraction of a number in nanoseconds; digits beyond the range are ignored. Counts in floating point like Go, and
/// so may come out a nanosecond lower.
// time: leadingFraction, ParseDuration
#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "Go's own conversions; the fraction is less than one unit"
)]
fn fraction_of(digits: &str, unit: u64) -> u64 {
    let (mut value, mut scale): (u64, f64) = (0, 1.0);
    for digit in digits.bytes().map(|digit| u64::from(digit - b'0')) {
        let next = value.checked_mul(10).and_then(|value| value.checked_add(digit));
        // Go stops before the product could exceed 63 bits.
        match next.filter(|next| value <= (MAX_NANOSECONDS - 1) / 10 && *next <= MAX_NANOSECONDS) {
            Some(next) => value = next,
            None => break,
        }
        scale *= 10.0;
    }
    (value as f64 * (unit as f64 / scale)) as u64
}

fn cut(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    let at = text.find(|c| !belongs(c)).unwrap_or(text.len());
    text.split_at_checked(at).unwrap_or((text, ""))
}

/// Quotes a text as Go's package `time` does: control characters and bytes beyond ASCII as `\x..`.
// time: quote
fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => {
                quoted.push('\\');
                quoted.push(char::from(byte));
            }
            b' '..=0x7f => quoted.push(char::from(byte)),
            _ => {
                // Writing to a String cannot fail.
                let _ = write!(quoted, "\\x{byte:02x}");
            }
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        // Expected values are Go's output.
        const CASES: &[(&str, Result<i64, &str>)] = &[
            ("0", Ok(0)),
            ("-0", Ok(0)),
            ("0s", Ok(0)),
            ("5s", Ok(5_000_000_000)),
            ("+5s", Ok(5_000_000_000)),
            ("-5s", Ok(-5_000_000_000)),
            ("1h30m", Ok(5_400_000_000_000)),
            ("1.5h", Ok(5_400_000_000_000)),
            (".5s", Ok(500_000_000)),
            ("1.s", Ok(1_000_000_000)),
            ("1us1µs1μs1ns", Ok(3_001)),
            ("0.1ns", Ok(0)),
            ("0.25h", Ok(900_000_000_000)),
            ("2562047h47m16.854775807s", Ok(i64::MAX)),
            ("9223372036854775807ns", Ok(i64::MAX)),
            ("-9223372036854775808ns", Ok(i64::MIN)),
            ("9223372036854775808ns", Err(r#"time: invalid duration "9223372036854775808ns""#)),
            ("99999999999999999999s", Err(r#"time: invalid duration "99999999999999999999s""#)),
            ("3000000h", Err(r#"time: invalid duration "3000000h""#)),
            ("foo", Err(r#"time: invalid duration "foo""#)),
            ("-", Err(r#"time: invalid duration "-""#)),
            (".s", Err(r#"time: invalid duration ".s""#)),
            (" 5s", Err(r#"time: invalid duration " 5s""#)),
            ("5s ", Err(r#"time: unknown unit "s " in duration "5s ""#)),
            ("5", Err(r#"time: missing unit in duration "5""#)),
            ("5.5", Err(r#"time: missing unit in duration "5.5""#)),
            ("1d", Err(r#"time: unknown unit "d" in duration "1d""#)),
            ("1S", Err(r#"time: unknown unit "S" in duration "1S""#)),
            ("1s-1s", Err(r#"time: unknown unit "s-" in duration "1s-1s""#)),
            ("1\"\\", Err(r#"time: unknown unit "\"\\" in duration "1\"\\""#)),
            ("1é\n", Err(r#"time: unknown unit "\xc3\xa9\x0a" in duration "1\xc3\xa9\x0a""#)),
        ];
        for (text, expected) in CASES {
            let found = parse_duration(text).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{text:?}");
        }
    }

    #[test]
    fn durations_are_written_as_go_writes_them() {
        // time/time_test.go, durationTests
        for (expected, nanoseconds) in [
            ("0s", 0),
            ("1ns", 1),
            ("1.1µs", 1_100),
            ("2.2ms", 2_200_000),
            ("3.3s", 3_300_000_000),
            ("30s", 30_000_000_000),
            ("4m5s", 245_000_000_000),
            ("4m5.001s", 245_001_000_000),
            ("5h6m7.001s", 18_367_001_000_000),
            ("5m0s", 300_000_000_000),
            ("1h0m0s", 3_600_000_000_000),
            ("8m0.000000001s", 480_000_000_001),
            ("2562047h47m16.854775807s", i64::MAX),
            ("-2562047h47m16.854775808s", i64::MIN),
            ("-30s", -30_000_000_000),
        ] {
            assert_eq!(format_duration(nanoseconds), expected);
        }
    }

    proptest! {
        #[test]
        fn written_durations_are_read_as_the_same(nanoseconds: i64) {
            prop_assert_eq!(parse_duration(&format_duration(nanoseconds)), Ok(nanoseconds));
        }

        #[test]
        fn durations_never_panic(text in "[-+]?[0-9.]{0,22}(ns|us|ms|s|m|h|é)?[0-9.]{0,22}[a-z]?") {
            let _duration = parse_duration(&text);
        }
    }
}
