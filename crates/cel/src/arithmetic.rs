//! The arithmetic of values, which stops at the ends of their ranges.

use super::evaluation::{EvalResult, Evaluation, Halt, error};
use super::price::LIST;
use super::time::{Duration, Timestamp};
use super::value::{Datum, GoForm, ListValue};

pub(super) fn integer(value: Option<i64>) -> EvalResult {
    value.map_or_else(|| error("integer overflow"), |value| Ok(Datum::Int(value)))
}

pub(super) fn unsigned(value: Option<u64>) -> EvalResult {
    value.map_or_else(|| error("unsigned integer overflow"), |value| Ok(Datum::Uint(value)))
}

pub(super) fn duration(nanoseconds: Option<i64>) -> EvalResult {
    nanoseconds
        .map_or_else(|| error("integer overflow"), |nanoseconds| Ok(Datum::Duration(Duration(nanoseconds))))
}

fn timestamp(time: Option<Timestamp>) -> EvalResult {
    time.map_or_else(|| error("timestamp overflow"), |time| Ok(Datum::Timestamp(time)))
}

/// `+`.
pub(super) fn add(evaluation: &mut Evaluation<'_>, left: &Datum, right: &Datum) -> EvalResult {
    match (left, right) {
        (Datum::Int(left), Datum::Int(right)) => integer(left.checked_add(*right)),
        (Datum::Uint(left), Datum::Uint(right)) => unsigned(left.checked_add(*right)),
        (Datum::Double(left), Datum::Double(right)) => Ok(Datum::Double(left + right)),
        (Datum::String(left), Datum::String(right)) => Ok(Datum::String(format!("{left}{right}").into())),
        (Datum::Bytes(left), Datum::Bytes(right)) => {
            Ok(Datum::Bytes([left.as_ref(), right.as_ref()].concat().into()))
        }
        (Datum::List(left), Datum::List(right)) => joined(evaluation, left, right),
        (Datum::Duration(left), Datum::Duration(right)) => duration(left.0.checked_add(right.0)),
        (Datum::Duration(duration), Datum::Timestamp(time))
        | (Datum::Timestamp(time), Datum::Duration(duration)) => timestamp(time.plus(*duration)),
        _ => Err(Halt::Unsuited),
    }
}

fn joined(evaluation: &mut Evaluation<'_>, left: &ListValue, right: &ListValue) -> EvalResult {
    if right.items.is_empty() {
        return Ok(Datum::List(left.clone()));
    }
    if left.items.is_empty() {
        return Ok(Datum::List(right.clone()));
    }
    // The reference copies nothing. A few elements are cheaper than a list of them.
    evaluation.charge((left.items.len() + right.items.len()).saturating_sub(LIST))?;
    Ok(Datum::listed(left.scattered().chain(right.scattered()).collect(), GoForm::Sum))
}

/// `-`, `*`, `/` and `%`.
pub(super) fn calculate(operator: &str, left: &Datum, right: &Datum) -> EvalResult {
    match (operator, left, right) {
        ("_-_", Datum::Int(left), Datum::Int(right)) => integer(left.checked_sub(*right)),
        ("_-_", Datum::Uint(left), Datum::Uint(right)) => unsigned(left.checked_sub(*right)),
        ("_-_", Datum::Double(left), Datum::Double(right)) => Ok(Datum::Double(left - right)),
        ("_-_", Datum::Duration(left), Datum::Duration(right)) => duration(left.0.checked_sub(right.0)),
        ("_-_", Datum::Timestamp(time), Datum::Duration(duration)) => match duration.0.checked_neg() {
            Some(negative) => timestamp(time.plus(Duration(negative))),
            None => error("integer overflow"),
        },
        ("_-_", Datum::Timestamp(left), Datum::Timestamp(right)) => {
            left.since(right).map_or_else(|| error("integer overflow"), |since| Ok(Datum::Duration(since)))
        }
        ("_*_", Datum::Int(left), Datum::Int(right)) => integer(left.checked_mul(*right)),
        ("_*_", Datum::Uint(left), Datum::Uint(right)) => unsigned(left.checked_mul(*right)),
        ("_*_", Datum::Double(left), Datum::Double(right)) => Ok(Datum::Double(left * right)),
        ("_/_", Datum::Int(_), Datum::Int(0)) | ("_/_", Datum::Uint(_), Datum::Uint(0)) => {
            error("division by zero")
        }
        ("_/_", Datum::Int(left), Datum::Int(right)) => integer(left.checked_div(*right)),
        ("_/_", Datum::Uint(left), Datum::Uint(right)) => unsigned(left.checked_div(*right)),
        ("_/_", Datum::Double(left), Datum::Double(right)) => Ok(Datum::Double(left / right)),
        ("_%_", Datum::Int(_), Datum::Int(0)) | ("_%_", Datum::Uint(_), Datum::Uint(0)) => {
            error("modulus by zero")
        }
        ("_%_", Datum::Int(left), Datum::Int(right)) => integer(left.checked_rem(*right)),
        ("_%_", Datum::Uint(left), Datum::Uint(right)) => unsigned(left.checked_rem(*right)),
        _ => Err(Halt::Unsuited),
    }
}
