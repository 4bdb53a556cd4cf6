//! Parses doubles as Go's `strconv.ParseFloat` does.

/// The number of fraction bits of a double.
const FRACTION_BITS: i32 = 52;
/// The exponents of normal doubles.
const EXPONENTS: std::ops::RangeInclusive<i32> = -1022..=1023;

/// Parses a double: decimal or hexadecimal, with underscores between digits, or an infinity or NaN by name. `None` for
/// any other text, and on overflow.
// Go: internal/strconv/atof.go
pub(super) fn parse(text: &str) -> Option<f64> {
    let bare = text.strip_prefix(['+', '-']).unwrap_or(text);
    let value = if ["inf", "infinity"].iter().any(|name| bare.eq_ignore_ascii_case(name)) {
        f64::INFINITY
    } else if text.eq_ignore_ascii_case("nan") {
        f64::NAN
    } else {
        finite(bare)?
    };
    Some(if text.starts_with('-') { -value } else { value })
}

fn finite(bare: &str) -> Option<f64> {
    let hexadecimal = bare.strip_prefix("0x").or_else(|| bare.strip_prefix("0X"));
    let radix = if hexadecimal.is_some() { 16 } else { 10 };
    let digits = hexadecimal.unwrap_or(bare);
    if !underscores_are_placed(digits, radix) {
        return None;
    }
    let plain = digits.replace('_', "");
    let (mantissa, exponent) = match plain.split_once(if radix == 16 { ['p', 'P'] } else { ['e', 'E'] }) {
        Some((mantissa, exponent)) => (mantissa, read_exponent(exponent)?),
        None if radix == 16 => return None,
        None => (plain.as_str(), 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_number = whole.chars().chain(fraction.chars()).all(|digit| digit.is_digit(radix));
    if !is_number || whole.len() + fraction.len() == 0 {
        return None;
    }
    if radix == 16 {
        return hexadecimal_value(whole, fraction, exponent);
    }
    format!("{mantissa}e{exponent}").parse().ok().filter(|value: &f64| value.is_finite())
}

/// Whether each underscore stands between two digits, or between `0x` and the first digit.
// Go: internal/strconv/atoi.go, underscoreOK
fn underscores_are_placed(digits: &str, radix: u32) -> bool {
    let mut follows_digit = radix == 16;
    let mut follows_underscore = false;
    for character in digits.chars() {
        let is_digit = character.is_digit(radix);
        if if character == '_' { !follows_digit } else { follows_underscore && !is_digit } {
            return false;
        }
        (follows_digit, follows_underscore) = (is_digit, character == '_');
    }
    !follows_underscore
}

/// An exponent; it stops growing at 10,000, which is beyond every double.
fn read_exponent(text: &str) -> Option<i32> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let mut exponent = 0_i32;
    for digit in digits.chars() {
        let digit = i32::try_from(digit.to_digit(10)?).ok()?;
        exponent = if exponent < 10_000 { exponent * 10 + digit } else { exponent };
    }
    (!digits.is_empty()).then_some(if negative { -exponent } else { exponent })
}

/// Rounds to the nearest double, ties to even.
// Go: internal/strconv/atof.go, atofHex
fn hexadecimal_value(whole: &str, fraction: &str, exponent: i32) -> Option<f64> {
    let mut mantissa = 0_u64;
    // The exponent: the value is `mantissa * 2^power`.
    let mut power = exponent;
    let mut is_inexact = false;
    let in_whole = whole.chars().map(|digit| (digit, 0)).chain(fraction.chars().map(|digit| (digit, -4)));
    for (digit, places) in in_whole {
        let digit = u64::from(digit.to_digit(16)?);
        if mantissa >> 60 == 0 {
            mantissa = mantissa << 4 | digit;
            power = power.saturating_add(places);
        } else {
            is_inexact |= digit != 0;
            power = power.saturating_add(places + 4);
        }
    }
    if mantissa == 0 {
        return Some(0.0);
    }
    // Normalized to one bit before the binary point: the value is `mantissa * 2^(power - 63)` now.
    let shift = i32::try_from(mantissa.leading_zeros()).ok()?;
    mantissa <<= shift;
    power = power.saturating_add(63 - shift);
    let too_small = EXPONENTS.start().saturating_sub(power).max(0);
    let dropped = u32::try_from(too_small.saturating_add(63 - FRACTION_BITS)).ok()?;
    let kept = mantissa.checked_shr(dropped).unwrap_or(0);
    let lost = mantissa.checked_sub(kept.checked_shl(dropped).unwrap_or(0))?;
    let half = 1_u64.checked_shl(dropped - 1).unwrap_or(u64::MAX);
    let rounds_up = dropped <= 64 && (lost > half || lost == half && (is_inexact || kept & 1 == 1));
    let rounded = kept + u64::from(rounds_up);
    // Adds the hidden bit to the exponent, so that a rounding carry increments it.
    let exponent = u64::try_from(power.max(*EXPONENTS.start()) - EXPONENTS.start()).ok()?;
    let bits = exponent.checked_mul(1 << FRACTION_BITS)?.checked_add(rounded)?;
    let is_infinite = power > *EXPONENTS.end() || bits >= 0x7FF0_0000_0000_0000;
    if is_infinite { None } else { Some(f64::from_bits(bits)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expectations from Go's `ParseFloat`.
    #[test]
    fn doubles_are_those_of_go() {
        let cases: &[(&str, Option<f64>)] = &[
            ("1.5", Some(1.5)),
            ("+1.5", Some(1.5)),
            ("-1.5e3", Some(-1500.0)),
            (".5", Some(0.5)),
            ("5.", Some(5.0)),
            (".", None),
            ("", None),
            ("+", None),
            ("+-1", None),
            ("--1", None),
            ("1e", None),
            ("1e+", None),
            ("e5", None),
            (" 1", None),
            ("1 ", None),
            ("1e308", Some(1e308)),
            ("1e309", None),
            ("-1e309", None),
            ("1e-400", Some(0.0)),
            ("1_000.5", Some(1000.5)),
            ("1__0", None),
            ("_1", None),
            ("1_", None),
            ("1_.5", None),
            ("1._5", None),
            ("1_e5", None),
            ("1e_5", None),
            ("1e5_0", Some(1e50)),
            ("inf", Some(f64::INFINITY)),
            ("-Inf", Some(f64::NEG_INFINITY)),
            ("+iNfInItY", Some(f64::INFINITY)),
            ("infinit", None),
            ("in_f", None),
            ("+nan", None),
            ("-nan", None),
            ("nanx", None),
            ("0x1p0", Some(1.0)),
            ("0X1.8P1", Some(3.0)),
            ("-0x.8p0", Some(-0.5)),
            ("0x1", None),
            ("0xp0", None),
            ("0x.p0", None),
            ("0x_1p0", Some(1.0)),
            ("0x1_p0", None),
            ("0x1p1_0", Some(1024.0)),
            ("0x1p", None),
            ("0x1p1023", Some(f64::from_bits(0x7FE0_0000_0000_0000))),
            ("0x1p1024", None),
            ("0x1.fffffffffffff8p1023", None),
            ("0x1.fffffffffffff7fp1023", Some(f64::MAX)),
            ("0x1p-1074", Some(f64::from_bits(1))),
            ("0x1p-1075", Some(0.0)),
            ("0x1.8p-1075", Some(f64::from_bits(1))),
            ("0x1p-99999", Some(0.0)),
            ("0x10000000000000.8p0", Some(4_503_599_627_370_496.0)),
            ("0x10000000000000.80000000000001p0", Some(4_503_599_627_370_497.0)),
            ("0x20000000000001p0", Some(9_007_199_254_740_992.0)),
            ("0x20000000000001.0000000000000001p0", Some(9_007_199_254_740_994.0)),
            ("0x0.0000000000000000000001p88", Some(1.0)),
            ("0x0p99999", Some(0.0)),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text), *expected, "{text}");
        }
        for text in ["nan", "NaN", "NAN"] {
            assert!(parse(text).is_some_and(f64::is_nan), "{text}");
        }
        assert!(parse("-0x0p0").is_some_and(f64::is_sign_negative));
    }
}
