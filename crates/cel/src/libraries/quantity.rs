//! Quantities of resources, such as `500m` and `2Gi`.
//!
//! Follows `k8s.io/apimachinery/pkg/api/resource`: a quantity is a 64-bit integer with a decimal exponent as long as
//! possible, and then a number of any size. Only the first has a value as an integer.
//!
//! In 0.26, `add` and `sub` change a large quantity: `[quantity('1.5Gi')].all(q, q.add(q) == q)` is true. Comparing a
//! small quantity with a large one makes it large.

mod amount;
mod parse;

use std::cmp::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use amount::Amount;

use crate::cel_go::Rules;
use crate::evaluation::{EvalResult, Evaluation, Halt, error, unsupported};
use crate::library::{Call, Library};
use crate::native::{Native, unconvertible};
use crate::number;
use crate::price::{self, Price, tenth};
use crate::value::Datum;

/// A quantity.
#[derive(Debug)]
struct Quantity {
    /// A large amount is that of all sums which began with it.
    amount: Arc<Mutex<Amount>>,
    /// A result of `add` or `sub`, which the reference compares only from the left.
    is_computed: bool,
}

/// The functions of quantities, from Kubernetes.
#[derive(Debug)]
pub(crate) struct Quantities;

const SIGNATURES: &str = "
quantity | (string) -> kubernetes.Quantity
isQuantity | (string) -> bool
asInteger | kubernetes.Quantity.() -> int
asApproximateFloat | kubernetes.Quantity.() -> double
isInteger | kubernetes.Quantity.() -> bool
sign | (kubernetes.Quantity) -> int
add | kubernetes.Quantity.(kubernetes.Quantity) -> kubernetes.Quantity | kubernetes.Quantity.(int) -> kubernetes.Quantity
sub | kubernetes.Quantity.(kubernetes.Quantity) -> kubernetes.Quantity | kubernetes.Quantity.(int) -> kubernetes.Quantity
isLessThan | kubernetes.Quantity.(kubernetes.Quantity) -> bool
isGreaterThan | kubernetes.Quantity.(kubernetes.Quantity) -> bool
compareTo | kubernetes.Quantity.(kubernetes.Quantity) -> int
";

impl Library for Quantities {
    fn signatures(&self) -> &'static str {
        SIGNATURES
    }

    // apiserver: pkg/cel/library/cost.go — CallCost
    fn price(&self, call: &Call<'_>) -> Price {
        match call.function {
            "quantity" | "isQuantity" => Price::Units(tenth(call.size(0))),
            "compareTo" | "isLessThan" | "isGreaterThan" => {
                Price::Units(1 + price::compared(call.values) / 10)
            }
            _ => Price::ONE,
        }
    }

    // apiserver: pkg/cel/library/quantity.go
    fn call(&self, evaluation: &mut Evaluation<'_>, call: &Call<'_>) -> EvalResult {
        let function = call.function;
        match call.values {
            [Datum::String(text)] => construct(function, text),
            [value] => match value.native::<Quantity>() {
                Some(quantity) => {
                    let amount = quantity.lock();
                    evaluation.charge(amount.size())?;
                    accessor(&amount, function)
                }
                None => Err(Halt::Unsuited),
            },
            [left, right] => match (left.native(), right) {
                (Some(left), Datum::Int(value)) if matches!(function, "add" | "sub") => {
                    binary(evaluation, function, left, &Amount::Small { value: *value, exponent: 0 })
                }
                (Some(left), right) => match right.native::<Quantity>() {
                    Some(right) => {
                        let right = right.lock().clone();
                        binary(evaluation, function, left, &right)
                    }
                    None => Err(Halt::Unsuited),
                },
                (None, _) => Err(Halt::Unsuited),
            },
            _ => Err(Halt::Unsuited),
        }
    }
}

/// Why a text is not read as a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantityError {
    /// It is none.
    Invalid,
    /// It has more digits or a larger exponent than this crate reads.
    TooLarge,
}

/// A quantity as Kubernetes prints it after it has read this text.
pub fn canonical(text: &str) -> Result<String, QuantityError> {
    parse::canonical(text).map_err(|problem| {
        if problem == parse::TOO_LARGE { QuantityError::TooLarge } else { QuantityError::Invalid }
    })
}

fn construct(function: &str, text: &str) -> EvalResult {
    match (function, parse::parse(text)) {
        ("quantity", Ok(amount)) => Ok(Datum::of_native(Quantity::new(amount, false))),
        // It is one in the reference.
        ("quantity" | "isQuantity", Err(problem @ parse::TOO_LARGE)) => unsupported(problem),
        ("quantity", Err(problem)) => error(problem),
        ("isQuantity", parsed) => Ok(Datum::Bool(parsed.is_ok())),
        _ => Err(Halt::Unsuited),
    }
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

fn binary(evaluation: &mut Evaluation<'_>, function: &str, left: &Quantity, right: &Amount) -> EvalResult {
    evaluation.charge(left.lock().aligning_price(right))?;
    Ok(match function {
        "compareTo" => Datum::Int(number::signum(left.compare(right))),
        "isLessThan" => Datum::Bool(left.compare(right).is_lt()),
        "isGreaterThan" => Datum::Bool(left.compare(right).is_gt()),
        "add" => Datum::of_native(left.sum(evaluation.rules(), right, Amount::plus)),
        "sub" => Datum::of_native(left.sum(evaluation.rules(), right, Amount::minus)),
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

    // apimachinery: pkg/api/resource/quantity.go — Cmp
    fn compare(&self, right: &Amount) -> Ordering {
        let mut left = self.lock();
        if matches!(right, Amount::Large { .. }) {
            let (unscaled, exponent) = left.parts();
            *left = Amount::Large { unscaled, exponent };
        }
        left.compare(right)
    }

    /// The result of `add` or `sub`, which may share a large amount with the left operand.
    // apimachinery: pkg/api/resource/quantity.go — Add, Sub
    fn sum(&self, rules: &Rules, right: &Amount, sum: fn(&Amount, &Amount) -> Amount) -> Self {
        let mut left = self.lock();
        let result = sum(&left, right);
        if matches!(*left, Amount::Small { .. }) || !rules.sums_change_quantities {
            return Self::new(result, true);
        }
        *left = result;
        Self { amount: Arc::clone(&self.amount), is_computed: true }
    }

    /// The number, as digits and exponent.
    fn text(&self) -> String {
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

impl Native for Quantity {
    fn type_name(&self) -> &'static str {
        "kubernetes.Quantity"
    }

    fn go_type(&self) -> &'static str {
        if self.is_computed { "*cel.Quantity" } else { "cel.Quantity" }
    }

    fn shown(&self) -> Option<String> {
        Some(self.text())
    }

    fn go_round_trip(&self) -> Result<(), String> {
        Err(unconvertible("*resource.Quantity", &self.text()))
    }

    fn comparison_price(&self, other: &dyn Native) -> usize {
        other.downcast::<Self>().map_or(0, |other| {
            let other = other.lock().clone();
            self.lock().aligning_price(&other)
        })
    }

    fn equals(&self, other: &dyn Native) -> Option<bool> {
        let other = other.downcast::<Self>().filter(|other| !other.is_computed)?;
        let right = other.lock().clone();
        Some(self.lock().compare(&right).is_eq())
    }
}
