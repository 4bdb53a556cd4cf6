//! Parses quantities, and prints them in their canonical form.

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
    /// A power of ten with a letter of its own.
    Decimal(i32),
    /// A power of ten as an exponent.
    Exponent(i32),
    /// A power of two.
    Binary(u32),
}

/// The suffixes of the powers of ten, from [`NANO`] on in steps of three.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
/// The suffixes of the powers of 1024.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

// apimachinery: pkg/api/resource/quantity.go — ParseQuantity
pub(super) fn parse(text: &str) -> Result<Amount, &'static str> {
    if text.is_empty() {
        return Err(FORMAT);
    }
    Parts::read(text)?.amount(text)
}

/// A quantity as the reference prints it after it has read this text: in its canonical form, or as it is if it nearly has that.
// apimachinery: pkg/api/resource/quantity.go — ParseQuantity, MarshalJSON, CanonicalizeBytes
pub(super) fn canonical(text: &str) -> Result<String, &'static str> {
    if text.is_empty() {
        return Err(FORMAT);
    }
    let parts = Parts::read(text)?;
    let amount = parts.amount(text)?;
    if matches!(amount, Amount::Small { .. }) && parts.is_kept() {
        return Ok(text.to_owned());
    }
    let (unscaled, exponent) = amount.parts();
    if unscaled.is_zero() {
        return Ok("0".to_owned());
    }
    if matches!(parts.suffix, Suffix::Binary(_))
        && let Some(whole) = whole(&unscaled, exponent)
        && whole.abs() >= BigInt::from(1024)
    {
        let (number, power) = without_factors(whole, 1024);
        return Ok(format!("{number}{}", BINARY.get(power).unwrap_or(&"")));
    }
    let (mut number, zeros) = without_factors(unscaled, 10);
    let mut exponent = exponent.saturating_add(i32::try_from(zeros).unwrap_or(i32::MAX));
    while exponent % 3 != 0 {
        number *= 10;
        exponent -= 1;
    }
    Ok(match parts.suffix {
        Suffix::Exponent(_) if exponent == 0 => number.to_string(),
        Suffix::Exponent(_) => format!("{number}e{exponent}"),
        // The reference has no suffix for what is larger, and prints none.
        Suffix::Decimal(_) | Suffix::Binary(_) => {
            let place = usize::try_from((exponent - NANO) / 3).ok();
            format!("{number}{}", place.and_then(|place| DECIMAL.get(place)).unwrap_or(&""))
        }
    })
}

/// The amount, if it is a whole number.
fn whole(unscaled: &BigInt, exponent: i32) -> Option<BigInt> {
    let factor = BigInt::from(10).pow(exponent.unsigned_abs());
    if exponent >= 0 {
        return Some(unscaled * factor);
    }
    let quotient = unscaled / &factor;
    (&quotient * factor == *unscaled).then_some(quotient)
}

/// A number other than zero without the factors of this size, and how many it has.
// apimachinery: pkg/api/resource/math.go — removeBigIntFactors
fn without_factors(mut number: BigInt, factor: u32) -> (BigInt, usize) {
    let mut times = 0;
    while !number.is_zero() && (&number % factor).is_zero() {
        number /= factor;
        times += 1;
    }
    (number, times)
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

    /// The amount of the quantity, whose text has these parts.
    fn amount(&self, text: &str) -> Result<Amount, &'static str> {
        if self.whole.len() + self.fraction.len() > usize::try_from(MAX_DIGITS).unwrap_or(usize::MAX) {
            return Err(TOO_LARGE);
        }
        match self.small() {
            Some(amount) => Ok(amount),
            // The reference needs a digit only here.
            None if !has_digit(text) => Err(NUMBER),
            None => Ok(self.large()),
        }
    }

    /// Whether the reference takes the text for the canonical one, of a 64-bit integer.
    fn is_kept(&self) -> bool {
        let digits = self.digits();
        match self.suffix {
            Suffix::Binary(_) => digits.parse::<i64>().is_ok_and(|value| value & 7 != 0),
            Suffix::Decimal(exponent) | Suffix::Exponent(exponent) => {
                let exponent = exponent - i32::try_from(self.fraction.len()).unwrap_or(0);
                exponent % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0')
            }
        }
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
            Suffix::Decimal(exponent) | Suffix::Exponent(exponent) => (18 - whole - fraction, exponent, 1),
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
            Suffix::Decimal(power) | Suffix::Exponent(power) => exponent += power,
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
        let place = |list: &[&str]| list.iter().position(|suffix| *suffix == text);
        if let Some(place) = place(&DECIMAL).and_then(|place| i32::try_from(place).ok()) {
            return Ok(Self::Decimal((place - 3) * 3));
        }
        if let Some(place) = place(&BINARY).and_then(|place| u32::try_from(place).ok()) {
            return Ok(Self::Binary(place * 10));
        }
        let exponent: i64 = text.strip_prefix(['e', 'E']).and_then(|text| text.parse().ok()).ok_or(SUFFIX)?;
        match i32::try_from(exponent) {
            Ok(exponent) if exponent.unsigned_abs() <= MAX_DIGITS => Ok(Self::Exponent(exponent)),
            _ => Err(TOO_LARGE),
        }
    }
}

/// The digits at the beginning, and the rest.
fn split_digits(text: &str) -> (&str, &str) {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    text.split_at_checked(end).unwrap_or((text, ""))
}
