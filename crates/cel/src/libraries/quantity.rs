//! Quantities of resources, such as `500m` and `2Gi`.
//!
//! Follows `k8s.io/apimachinery/pkg/api/resource`: a quantity is a 64-bit integer with a decimal exponent as long as
//! possible, and then a number of any size. Only the first has a value as an integer.
//!
//! As there, `add` and `sub` change a large quantity: `[quantity('1.5Gi')].all(q, q.add(q) == q)` is true. Comparing a
//! small quantity with a large one makes it large.

mod parse;

use std::cmp::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use num_bigint::BigInt;
use num_traits::{Pow, Signed, ToPrimitive};

use crate::eval::{EvalResult, Halt, Machine, error};
use crate::native::Native;
use crate::number;
use crate::value::Datum;

/// A quantity.
#[derive(Debug)]
pub(crate) struct Quantity {
    /// A large amount is that of all sums which began with it.
    amount: Arc<Mutex<Amount>>,
    /// A result of `add` or `sub`, which the reference compares only from the left.
    is_computed: bool,
}

/// An unscaled number and a decimal exponent.
#[derive(Debug, Clone)]
enum Amount {
    /// `value × 10^exponent`.
    Small { value: i64, exponent: i32 },
    /// `unscaled × 10^exponent`.
    Large { unscaled: BigInt, exponent: i32 },
}

// apiserver: pkg/cel/library/quantity.go
pub(crate) fn call(machine: &mut Machine<'_>, function: &str, values: &[Datum]) -> EvalResult {
    match (function, values) {
        ("isQuantity", [Datum::String(text)]) => {
            match parse::parse(text) {
                // It is one in the reference.
                Err(problem @ parse::TOO_LARGE) => error(problem),
                parsed => Ok(Datum::Bool(parsed.is_ok())),
            }
        }
        ("quantity", [Datum::String(text)]) => match parse::parse(text) {
            Ok(amount) => Ok(quantity(Quantity::new(amount, false))),
            Err(problem) => error(problem),
        },
        (_, [Datum::Native(Native::Quantity(quantity))]) => {
            let amount = quantity.lock();
            machine.charge(amount.size())?;
            accessor(&amount, function)
        }
        (_, [Datum::Native(Native::Quantity(left)), Datum::Native(Native::Quantity(right))]) => {
            let right = right.lock().clone();
            left.lock().charge(machine, &right)?;
            binary(function, left, &right)
        }
        ("add" | "sub", [Datum::Native(Native::Quantity(left)), Datum::Int(value)]) => {
            let right = Amount::Small { value: *value, exponent: 0 };
            left.lock().charge(machine, &right)?;
            binary(function, left, &right)
        }
        _ => Err(Halt::Unsuited),
    }
}

fn quantity(quantity: Quantity) -> Datum {
    Datum::Native(Native::Quantity(Arc::new(quantity)))
}

fn accessor(amount: &Amount, function: &str) -> EvalResult {
    match function {
        "isInteger" => Ok(Datum::Bool(amount.as_integer().is_some())),
        "asInteger" => match amount.as_integer() {
            Some(value) => Ok(Datum::Int(value)),
            None => error("cannot convert value to integer"),
        },
        "asApproximateFloat" => Ok(Datum::Double(amount.as_float())),
        "sign" => Ok(Datum::Int(amount.sign())),
        _ => Err(Halt::Unsuited),
    }
}

fn binary(function: &str, left: &Quantity, right: &Amount) -> EvalResult {
    Ok(match function {
        "compareTo" => number::signum(left.compare(right)),
        "isLessThan" => Datum::Bool(left.compare(right).is_lt()),
        "isGreaterThan" => Datum::Bool(left.compare(right).is_gt()),
        "add" => quantity(left.sum(right, Amount::plus)),
        "sub" => quantity(left.sum(right, Amount::minus)),
        _ => return Err(Halt::Unsuited),
    })
}

impl Quantity {
    fn new(amount: Amount, is_computed: bool) -> Self {
        Self { amount: Arc::new(Mutex::new(amount)), is_computed }
    }

    /// The amount. Nothing else may be locked meanwhile: two quantities may share theirs.
    fn lock(&self) -> MutexGuard<'_, Amount> {
        self.amount.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is a result of `add` or `sub`.
    pub(crate) fn is_computed(&self) -> bool {
        self.is_computed
    }

    /// Charges a comparison.
    pub(crate) fn charge(&self, machine: &mut Machine<'_>, other: &Self) -> Result<(), Halt> {
        let other = other.lock().clone();
        self.lock().charge(machine, &other)
    }

    /// Whether two quantities are equal; `None` where the reference does not compare them.
    pub(crate) fn equals(&self, other: &Self) -> Option<bool> {
        let right = (!other.is_computed).then(|| other.lock().clone())?;
        Some(self.lock().compare(&right).is_eq())
    }

    // apimachinery: pkg/api/resource/quantity.go — Cmp
    fn compare(&self, right: &Amount) -> Ordering {
        let mut left = self.lock();
        if matches!(right, Amount::Large { .. }) {
            let (unscaled, exponent) = left.parts();
            *left = Amount::Large { unscaled, exponent };
        }
        left.compare(right)
    }

    /// The result of `add` or `sub`, which shares a large amount with the left operand.
    // apimachinery: pkg/api/resource/quantity.go — Add, Sub
    fn sum(&self, right: &Amount, sum: fn(&Amount, &Amount) -> Amount) -> Self {
        let mut left = self.lock();
        let result = sum(&left, right);
        if matches!(*left, Amount::Small { .. }) {
            return Self::new(result, true);
        }
        *left = result;
        Self { amount: Arc::clone(&self.amount), is_computed: true }
    }

    /// The number, as digits and exponent.
    pub(crate) fn shown(&self) -> String {
        let (unscaled, exponent) = self.lock().parts();
        let digits = unscaled.to_string();
        let reduced = digits.trim_end_matches('0');
        let zeros = i64::try_from(digits.len() - reduced.len()).unwrap_or(0);
        if reduced.is_empty() {
            "0e0".to_owned()
        } else {
            format!("{reduced}e{}", i64::from(exponent) + zeros)
        }
    }
}

impl Amount {
    fn parts(&self) -> (BigInt, i32) {
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
    fn size(&self) -> usize {
        match self {
            Self::Small { .. } => 0,
            Self::Large { unscaled, .. } => usize::try_from(unscaled.bits() / 512).unwrap_or(usize::MAX),
        }
    }

    /// Charges for reading two amounts, and for bringing them to one exponent.
    fn charge(&self, machine: &mut Machine<'_>, other: &Self) -> Result<(), Halt> {
        let digits = self.exponent().abs_diff(other.exponent());
        let aligning = usize::try_from(digits / 8).unwrap_or(usize::MAX);
        machine.charge(aligning.saturating_add(self.size()).saturating_add(other.size()))
    }

    /// The unscaled numbers with the lower exponent of both.
    fn aligned(&self, other: &Self) -> (BigInt, BigInt, i32) {
        let ((left, left_exponent), (right, right_exponent)) = (self.parts(), other.parts());
        let exponent = left_exponent.min(right_exponent);
        let scaled = |number: BigInt, from: i32| number * BigInt::from(10).pow(from.abs_diff(exponent));
        (scaled(left, left_exponent), scaled(right, right_exponent), exponent)
    }

    fn compare(&self, other: &Self) -> Ordering {
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
    fn plus(&self, other: &Self) -> Self {
        self.small_sum(other).unwrap_or_else(|| {
            let (left, right, exponent) = self.aligned(other);
            Self::Large { unscaled: left + right, exponent }
        })
    }

    // apimachinery: pkg/api/resource/quantity.go — Sub
    fn minus(&self, other: &Self) -> Self {
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
    fn as_integer(&self) -> Option<i64> {
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
    fn as_float(&self) -> f64 {
        let (unscaled, exponent) = self.parts();
        let base = unscaled.to_f64().unwrap_or(f64::NAN);
        if exponent == 0 { base } else { base * power_of_ten(exponent) }
    }

    fn sign(&self) -> i64 {
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
