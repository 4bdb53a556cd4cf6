//! The amount of a quantity.

use std::cmp::Ordering;

use num_bigint::BigInt;
use num_traits::{Pow, Signed, ToPrimitive};

/// An unscaled number and a decimal exponent.
#[derive(Debug, Clone)]
pub(super) enum Amount {
    /// `value × 10^exponent`.
    Small { value: i64, exponent: i32 },
    /// `unscaled × 10^exponent`.
    Large { unscaled: BigInt, exponent: i32 },
}

impl Amount {
    pub(super) fn parts(&self) -> (BigInt, i32) {
        match self {
            Self::Small { value, exponent } => (BigInt::from(*value), *exponent),
            Self::Large { unscaled, exponent } => (unscaled.clone(), *exponent),
        }
    }

    fn exponent(&self) -> i32 {
        match self {
            Self::Small { exponent, .. } | Self::Large { exponent, .. } => *exponent,
        }
    }

    /// The price of reading a large number: a unit for 150 digits.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Small { .. } => 0,
            Self::Large { unscaled, .. } => usize::try_from(unscaled.bits() / 512).unwrap_or(usize::MAX),
        }
    }

    /// The price of reading two amounts, and of bringing them to one exponent.
    pub(super) fn aligning_price(&self, other: &Self) -> usize {
        let digits = self.exponent().abs_diff(other.exponent());
        let aligning = usize::try_from(digits / 8).unwrap_or(usize::MAX);
        aligning.saturating_add(self.size()).saturating_add(other.size())
    }

    /// The unscaled numbers with the lower exponent of both.
    fn aligned(&self, other: &Self) -> (BigInt, BigInt, i32) {
        let ((left, left_exponent), (right, right_exponent)) = (self.parts(), other.parts());
        let exponent = left_exponent.min(right_exponent);
        let scaled = |number: BigInt, from: i32| number * BigInt::from(10).pow(from.abs_diff(exponent));
        (scaled(left, left_exponent), scaled(right, right_exponent), exponent)
    }

    pub(super) fn compare(&self, other: &Self) -> Ordering {
        if let (Self::Small { value, exponent }, Self::Small { value: other, exponent: of_other }) =
            (self, other)
            && exponent == of_other
        {
            return value.cmp(other);
        }
        let (left, right, _) = self.aligned(other);
        left.cmp(&right)
    }

    // apimachinery: pkg/api/resource/quantity.go — Add
    pub(super) fn plus(&self, other: &Self) -> Self {
        self.small_sum(other).unwrap_or_else(|| {
            let (left, right, exponent) = self.aligned(other);
            Self::Large { unscaled: left + right, exponent }
        })
    }

    // apimachinery: pkg/api/resource/quantity.go — Sub
    pub(super) fn minus(&self, other: &Self) -> Self {
        let negated = match other {
            // Go negates the smallest integer to itself.
            Self::Small { value, exponent } => {
                self.small_sum(&Self::Small { value: value.wrapping_neg(), exponent: *exponent })
            }
            Self::Large { .. } => None,
        };
        negated.unwrap_or_else(|| {
            let (left, right, exponent) = self.aligned(other);
            Self::Large { unscaled: left - right, exponent }
        })
    }

    /// The sum of two 64-bit integers, if it is one.
    // apimachinery: pkg/api/resource/amount.go — int64Amount.Add
    fn small_sum(&self, other: &Self) -> Option<Self> {
        let (Self::Small { value: left, exponent: left_exponent }, Self::Small { value: right, exponent }) =
            (self, other)
        else {
            return None;
        };
        if *right == 0 {
            return Some(self.clone());
        }
        if *left == 0 {
            return Some(other.clone());
        }
        let lower = *left_exponent.min(exponent);
        let scaled = |value: i64, from: i32| value.checked_mul(10_i64.checked_pow(from.abs_diff(lower))?);
        let value = scaled(*left, *left_exponent)?.checked_add(scaled(*right, *exponent)?)?;
        Some(Self::Small { value, exponent: lower })
    }

    // apimachinery: pkg/api/resource/amount.go — int64Amount.AsInt64
    pub(super) fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Small { value, exponent } => {
                let factor = 10_i64.checked_pow(u32::try_from(*exponent).ok()?);
                // Zero has no factor that is too large.
                if *value == 0 { Some(0) } else { value.checked_mul(factor?) }
            }
            Self::Large { .. } => None,
        }
    }

    // apimachinery: pkg/api/resource/quantity.go — AsApproximateFloat64
    pub(super) fn as_float(&self) -> f64 {
        let (unscaled, exponent) = self.parts();
        let base = unscaled.to_f64().unwrap_or(f64::NAN);
        if exponent == 0 { base } else { base * power_of_ten(exponent) }
    }

    pub(super) fn sign(&self) -> i64 {
        match self {
            Self::Small { value, .. } => value.signum(),
            Self::Large { unscaled, .. } => {
                i64::from(unscaled.is_positive()) - i64::from(unscaled.is_negative())
            }
        }
    }
}

/// A power of ten, with Go's rounding.
// Go: math/pow10.go
fn power_of_ten(exponent: i32) -> f64 {
    let exact = |exponent: u32| format!("1e{exponent}").parse().unwrap_or(f64::NAN);
    let size = exponent.unsigned_abs();
    match exponent {
        0..=308 => exact(size / 32 * 32) * exact(size % 32),
        -323..=-1 => format!("1e-{}", size / 32 * 32).parse::<f64>().unwrap_or(f64::NAN) / exact(size % 32),
        309.. => f64::INFINITY,
        _ => 0.0,
    }
}
