//! Numbers: conversions between their types, and their texts.

use std::cmp::Ordering;

/// 2^63 and 2^64, exactly representable as doubles.
const TWO_63: f64 = 9_223_372_036_854_775_808.0;
const TWO_64: f64 = 18_446_744_073_709_551_616.0;

/// The `i64` that equals a double.
pub(super) fn exact_int(number: f64) -> Option<i64> {
    if number.fract() == 0.0 { truncated_int(number) } else { None }
}

/// The `u64` that equals a double.
pub(super) fn exact_uint(number: f64) -> Option<u64> {
    if number.fract() == 0.0 { truncated_uint(number) } else { None }
}

/// Truncates a double to an `i64`; `None` if out of range.
pub(super) fn truncated_int(number: f64) -> Option<i64> {
    #[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "used in this range alone")]
    (-TWO_63..TWO_63).contains(&number).then_some(number as i64)
}

/// Truncates a double to a `u64`; `None` if out of range.
pub(super) fn truncated_uint(number: f64) -> Option<u64> {
    #[expect(
        clippy::as_conversions,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "used in this range alone"
    )]
    (0.0..TWO_64).contains(&number).then_some(number as u64)
}

/// The nearest double.
pub(super) fn double(number: i128) -> f64 {
    #[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "rounding is what is asked for")]
    let nearest = number as f64;
    nearest
}

/// Formats a double with the shortest digits of Go's `%g`: with an exponent from 1e6 on.
pub(super) fn text(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number == 0.0 || (-4..6).contains(&exponent) {
        return format!("{number}");
    }
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// An order as the functions `compareTo` return it.
pub(super) fn signum(order: Ordering) -> i64 {
    match order {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    }
}

/// A length as an integer of CEL.
pub(super) fn length(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
