//! Parses quantities.

use num_bigint::BigInt;
use num_traits::{One, Pow, Signed, Zero};

use super::amount::Amount;

const FORMAT: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const NUMBER: &str = "unable to parse numeric part of quantity";
const SUFFIX: &str = "unable to parse quantity's suffix";
/// The largest exponent, and the largest number of digits. The reference has no bounds; comparing `1e1000000000` with
/// `1` does not end there.
const MAX_DIGITS: u32 = 1000;
pub(super) const TOO_LARGE: &str = "quantities have at most 1000 digits and exponents of at most 1000 here";
/// The exponent of the smallest amount.
const NANO: i32 = -9;

/// The parts of a quantity.
struct Parts<'a> {
    negative: bool,
    /// The digits before the point, without leading zeros.
    whole: &'a str,
    /// The digits after the point.
    fraction: &'a str,
    suffix: Suffix,
}

/// The unit of a quantity.
#[derive(Debug, Clone, Copy)]
enum Suffix {
    /// A power of ten.
    Decimal(i32),
    /// A power of two.
    Binary(u32),
}

// apimachinery: pkg/api/resource/quantity.go — ParseQuantity
pub(super) fn parse(text: &str) -> Result<Amount, &'static str> {
    if text.is_empty() {
        return Err(FORMAT);
    }
    let parts = Parts::read(text)?;
    if parts.whole.len() + parts.fraction.len() > usize::try_from(MAX_DIGITS).unwrap_or(usize::MAX) {
        return Err(TOO_LARGE);
    }
    match parts.small() {
        Some(amount) => Ok(amount),
        // The reference needs a digit only here.
        None if !has_digit(text) => Err(NUMBER),
        None => Ok(parts.large()),
    }
}

/// Whether there is a digit before the suffix.
fn has_digit(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    text.strip_prefix('.').unwrap_or(text).starts_with(|first: char| first.is_ascii_digit())
}

impl<'a> Parts<'a> {
    // apimachinery: pkg/api/resource/quantity.go — parseQuantityString
    fn read(text: &'a str) -> Result<Self, &'static str> {
        let negative = text.starts_with('-');
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text).trim_start_matches('0');
        let (whole, rest) = split_digits(digits);
        let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), split_digits);
        let suffix = if digits.is_empty() { Suffix::Decimal(0) } else { Suffix::read(rest)? };
        Ok(Self { negative, whole, fraction, suffix })
    }

    fn digits(&self) -> String {
        let whole = if self.whole.is_empty() { "0" } else { self.whole };
        format!("{whole}{}", self.fraction)
    }

    /// The amount as a 64-bit integer, where the reference has one.
    fn small(&self) -> Option<Amount> {
        let whole = i32::try_from(self.whole.len().max(1)).ok()?;
        let fraction = i32::try_from(self.fraction.len()).ok()?;
        let (precision, exponent, factor) = match self.suffix {
            Suffix::Decimal(exponent) => (18 - whole - fraction, exponent, 1),
            Suffix::Binary(power) if fraction == 0 => {
                let digits = i32::try_from(power * 3 / 10).ok()?;
                (15 - whole - digits - 1, 0, 1_i64.checked_shl(power)?)
            }
            Suffix::Binary(_) => return None,
        };
        let exponent = exponent - fraction;
        if precision < 0 || exponent < NANO {
            return None;
        }
        let value = self.digits().parse::<i64>().ok()?.checked_mul(factor)?;
        Some(Amount::Small { value: if self.negative { -value } else { value }, exponent })
    }

    /// The amount rounded up to nano units; one with a binary suffix is at most the largest 64-bit integer.
    fn large(&self) -> Amount {
        let mut unscaled: BigInt = self.digits().parse().unwrap_or_default();
        let mut exponent = -i32::try_from(self.fraction.len()).unwrap_or(0);
        match self.suffix {
            Suffix::Decimal(power) => exponent += power,
            Suffix::Binary(power) => unscaled <<= power,
        }
        if !unscaled.is_zero() {
            (unscaled, exponent) = (rounded_up(unscaled, exponent), NANO);
        }
        let most = BigInt::from(i64::MAX);
        if matches!(self.suffix, Suffix::Binary(_))
            && unscaled > &most * BigInt::from(10).pow(exponent.unsigned_abs())
        {
            (unscaled, exponent) = (most, 0);
        }
        Amount::Large { unscaled: if self.negative { -unscaled } else { unscaled }, exponent }
    }
}

/// The number of nano units, rounded up.
fn rounded_up(unscaled: BigInt, exponent: i32) -> BigInt {
    let factor = BigInt::from(10).pow(exponent.abs_diff(NANO));
    if exponent >= NANO {
        return unscaled * factor;
    }
    let quotient = &unscaled / &factor;
    let exact = &quotient * &factor == unscaled;
    if exact || unscaled.is_negative() { quotient } else { quotient + BigInt::one() }
}

impl Suffix {
    // apimachinery: pkg/api/resource/suffix.go
    fn read(text: &str) -> Result<Self, &'static str> {
        let letters = text.trim_start_matches(|letter: char| "eEinumkKMGTP".contains(letter));
        let (_, rest) = split_digits(letters.strip_prefix(['+', '-']).unwrap_or(letters));
        if !rest.is_empty() {
            return Err(FORMAT);
        }
        let decimal = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        let binary = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        let place = |list: &[&str]| list.iter().position(|suffix| *suffix == text);
        if let Some(place) = place(&decimal).and_then(|place| i32::try_from(place).ok()) {
            return Ok(Self::Decimal((place - 3) * 3));
        }
        if let Some(place) = place(&binary).and_then(|place| u32::try_from(place).ok()) {
            return Ok(Self::Binary(place * 10));
        }
        let exponent: i64 = text.strip_prefix(['e', 'E']).and_then(|text| text.parse().ok()).ok_or(SUFFIX)?;
        match i32::try_from(exponent) {
            Ok(exponent) if exponent.unsigned_abs() <= MAX_DIGITS => Ok(Self::Decimal(exponent)),
            _ => Err(TOO_LARGE),
        }
    }
}

/// The digits at the beginning, and the rest.
fn split_digits(text: &str) -> (&str, &str) {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    text.split_at_checked(end).unwrap_or((text, ""))
}
