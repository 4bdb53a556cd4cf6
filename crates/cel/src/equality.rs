//! Equality and order of values.
//!
//! What is nested in a value is charged as it is compared; the reference compares it for nothing. The value itself is in
//! the price of the call ([`crate::price`]), or is charged by [`equal`] and [`compare`] where a function compares many.

use std::cmp::Ordering;
use std::sync::Arc;

use super::evaluation::{Evaluation, Halt, no_such_overload};
use super::value::{Datum, GoForm, MapValue, Message, MessageKind};
use super::{number, price};

/// `==` of one of many values.
pub(super) fn equal(evaluation: &mut Evaluation<'_>, left: &Datum, right: &Datum) -> Result<bool, Halt> {
    let shorter = price::size(left).min(price::size(right));
    match left {
        // A container needs more work than a text, but may have the length of a scalar.
        Datum::List(_) | Datum::Map(_) => evaluation.charge(price::tenth(shorter))?,
        _ => evaluation.charge(shorter / 10)?,
    }
    same(evaluation, left, right)
}

/// `==` of values whose length is paid for.
pub(super) fn same(evaluation: &mut Evaluation<'_>, left: &Datum, right: &Datum) -> Result<bool, Halt> {
    Ok(match (left, right) {
        (Datum::Null, Datum::Null) => true,
        (Datum::Bool(left), Datum::Bool(right)) => left == right,
        (
            Datum::Int(_) | Datum::Uint(_) | Datum::Double(_),
            Datum::Int(_) | Datum::Uint(_) | Datum::Double(_),
        ) => numeric_order(left, right) == Some(Ordering::Equal),
        (Datum::String(left), Datum::String(right)) | (Datum::Type(left), Datum::Type(right)) => {
            left == right
        }
        (Datum::Bytes(left), Datum::Bytes(right)) => left == right,
        (Datum::Optional(left), Datum::Optional(right)) => match (left, right) {
            (Some(left), Some(right)) => match (&**left, &**right) {
                // Outside of an optional, `null` is compared first.
                (Datum::Native(_) | Datum::Root(_), Datum::Null) => return no_such_overload(),
                (left, right) => same(evaluation, left, right)?,
            },
            (left, right) => left.is_none() && right.is_none(),
        },
        (Datum::List(left), Datum::List(right)) => same_items(evaluation, &left.items, &right.items)?,
        (Datum::Map(left), Datum::Map(right)) => same_entries(evaluation, left, right)?,
        (Datum::Root(left), Datum::Root(right)) => Arc::ptr_eq(left, right),
        (Datum::Failed(text), _) | (Datum::Root(_) | Datum::Native(_), Datum::Failed(text)) => {
            return Err(Halt::Error(text.to_string()));
        }
        (Datum::Message(left), Datum::Message(right)) => same_messages(evaluation, left, right)?,
        (Datum::Duration(left), Datum::Duration(right)) => left == right,
        (Datum::Timestamp(left), Datum::Timestamp(right)) => left == right,
        (Datum::Native(left), Datum::Native(right)) => {
            // In addition to one unit of the call.
            evaluation.charge(left.comparison_price(&**right))?;
            match left.equals(&**right) {
                Some(equal) => equal,
                None => return no_such_overload(),
            }
        }
        (Datum::Native(_) | Datum::Root(_), right) if !matches!(right, Datum::Null) => {
            return no_such_overload();
        }
        _ => false,
    })
}

/// Operations of patches are equal if their parts are. Objects are equal if Go holds the same values for their fields.
// apiserver: pkg/cel/mutation/jsonpatch.go, pkg/cel/mutation/dynamic/objects.go — Equal
fn same_messages(evaluation: &mut Evaluation<'_>, left: &Message, right: &Message) -> Result<bool, Halt> {
    if left.kind != right.kind || left.fields.len() != right.fields.len() {
        return Ok(false);
    }
    if left.kind != MessageKind::JsonPatch {
        return alike_fields(evaluation, left, right);
    }
    for (name, value) in &left.fields {
        match right.fields.get(name) {
            Some(other) if equal(evaluation, value, other)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn alike_fields(evaluation: &mut Evaluation<'_>, left: &Message, right: &Message) -> Result<bool, Halt> {
    evaluation.charge(left.fields.len() / 10)?;
    if left.kind != right.kind || left.fields.len() != right.fields.len() {
        return Ok(false);
    }
    for (name, value) in &left.fields {
        match right.fields.get(name) {
            Some(other) if alike(evaluation, value, other)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Whether Go holds two values in the same way: a number is of one type, and a list that an expression makes is equal to itself
/// alone.
// go: reflect.DeepEqual
fn alike(evaluation: &mut Evaluation<'_>, left: &Datum, right: &Datum) -> Result<bool, Halt> {
    evaluation.charge(price::size(left).min(price::size(right)) / 10)?;
    Ok(match (left, right) {
        (Datum::Null, Datum::Null) | (Datum::Optional(None), Datum::Optional(None)) => true,
        (Datum::Bool(left), Datum::Bool(right)) => left == right,
        (Datum::Int(left), Datum::Int(right)) => left == right,
        (Datum::Uint(left), Datum::Uint(right)) => left == right,
        (Datum::Double(left), Datum::Double(right)) => numeric_equal(*left, *right),
        (Datum::String(left), Datum::String(right)) | (Datum::Type(left), Datum::Type(right)) => {
            left == right
        }
        (Datum::Bytes(left), Datum::Bytes(right)) => left == right,
        (Datum::Duration(left), Datum::Duration(right)) => left == right,
        // The zone counts.
        (Datum::Timestamp(left), Datum::Timestamp(right)) => left == right && left.shown() == right.shown(),
        (Datum::Optional(Some(left)), Datum::Optional(Some(right))) => alike(evaluation, left, right)?,
        (Datum::List(left), Datum::List(right)) => {
            let is_same = Arc::ptr_eq(&left.items, &right.items);
            // Go makes a list of each use, and one of a variable of a macro.
            if is_same && matches!(left.form, GoForm::Plain | GoForm::Typed) {
                return incomparable("lists of a variable");
            }
            is_same
        }
        (Datum::Map(left), Datum::Map(right)) if [left.form, right.form] == [GoForm::Typed; 2] => {
            return incomparable("maps of a variable");
        }
        (Datum::Map(left), Datum::Map(right)) if left.form == right.form => {
            if left.entries.len() != right.entries.len() {
                return Ok(false);
            }
            for (key, value) in left.entries.iter() {
                let other = right.entries.get(key).filter(|_| !key.is_nan());
                let is_alike = match other {
                    Some(other) if left.form == GoForm::Plain => alike_json(evaluation, value, other)?,
                    Some(other) => alike(evaluation, value, other)?,
                    None => false,
                };
                if !is_alike {
                    return Ok(false);
                }
            }
            true
        }
        (Datum::Message(left), Datum::Message(right)) => alike_fields(evaluation, left, right)?,
        // Those of Go have more than the value, such as the text that it is from.
        (Datum::Native(left), Datum::Native(right)) if left.type_name() == right.type_name() => {
            return incomparable(left.type_name());
        }
        _ => false,
    })
}

/// Whether the two are equal in the reference is not known here.
fn incomparable<T>(what: &str) -> Result<T, Halt> {
    Err(Halt::Unsupported(format!("objects that hold {what} cannot be compared here")))
}

/// The same of what was read from JSON.
fn alike_json(evaluation: &mut Evaluation<'_>, left: &Datum, right: &Datum) -> Result<bool, Halt> {
    match (left, right) {
        (Datum::List(left), Datum::List(right)) => {
            evaluation.charge(left.items.len() / 10)?;
            if left.items.len() != right.items.len() {
                return Ok(false);
            }
            for (left, right) in left.items.iter().zip(right.items.iter()) {
                if !alike_json(evaluation, left, right)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        _ => alike(evaluation, left, right),
    }
}

/// Equality of doubles, where a NaN equals nothing.
fn numeric_equal(left: f64, right: f64) -> bool {
    left.partial_cmp(&right) == Some(Ordering::Equal)
}

fn same_items(evaluation: &mut Evaluation<'_>, left: &[Datum], right: &[Datum]) -> Result<bool, Halt> {
    if left.len() != right.len() {
        return Ok(false);
    }
    for (left, right) in left.iter().zip(right) {
        if !if_comparable(equal(evaluation, left, right), true)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A verdict, or `otherwise` for values that cannot be compared.
///
/// Elements of lists and maps count as equal then in `==` of their containers, and as different in functions of lists.
// cel-go: common/types/list.go — Equal, Contains
pub(super) fn if_comparable(verdict: Result<bool, Halt>, otherwise: bool) -> Result<bool, Halt> {
    match verdict {
        Err(halt) if !halt.is_final() => Ok(otherwise),
        verdict => verdict,
    }
}

fn same_entries(evaluation: &mut Evaluation<'_>, left: &MapValue, right: &MapValue) -> Result<bool, Halt> {
    if left.entries.len() != right.entries.len() {
        return Ok(false);
    }
    for ((key, value), (other_key, other)) in left.entries.iter().zip(right.entries.iter()) {
        // Nearly always, the keys are the same and in the same order.
        let aligned = key == other_key && !key.is_nan() && !right.escaped;
        let key = key.datum();
        evaluation.charge(price::size(&key) / 100)?;
        let found = if aligned { Some(other.clone()) } else { right.find(&key) };
        match found {
            Some(other) if if_comparable(equal(evaluation, value, &other), true)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// The order of two of many values.
pub(super) fn compare(
    evaluation: &mut Evaluation<'_>,
    left: &Datum,
    right: &Datum,
) -> Result<Ordering, Halt> {
    evaluation.charge(price::size(left).min(price::size(right)) / 10)?;
    order(left, right)
}

/// The order of two values of one type, or of two numbers of any types.
pub(super) fn order(left: &Datum, right: &Datum) -> Result<Ordering, Halt> {
    Ok(match (left, right) {
        (Datum::Bool(left), Datum::Bool(right)) => left.cmp(right),
        (
            Datum::Int(_) | Datum::Uint(_) | Datum::Double(_),
            Datum::Int(_) | Datum::Uint(_) | Datum::Double(_),
        ) => match numeric_order(left, right) {
            Some(order) => order,
            None => return Err(Halt::Error("NaN values cannot be ordered".to_owned())),
        },
        (Datum::String(left), Datum::String(right)) => left.cmp(right),
        (Datum::Bytes(left), Datum::Bytes(right)) => left.cmp(right),
        (Datum::Duration(left), Datum::Duration(right)) => left.cmp(right),
        (Datum::Timestamp(left), Datum::Timestamp(right)) => left.cmp(right),
        _ => return Err(Halt::Unsuited),
    })
}

/// The order of two numbers of any types; `None` for a NaN, or if a value is not a number.
fn numeric_order(left: &Datum, right: &Datum) -> Option<Ordering> {
    match (left, right) {
        (Datum::Double(left), Datum::Double(right)) => left.partial_cmp(right),
        (Datum::Double(left), right) => against(*left, whole(right)?),
        (left, Datum::Double(right)) => against(*right, whole(left)?).map(Ordering::reverse),
        (left, right) => Some(whole(left)?.cmp(&whole(right)?)),
    }
}

/// Compares a double with an integer as doubles, as the reference does.
fn against(left: f64, right: i128) -> Option<Ordering> {
    left.partial_cmp(&number::double(right))
}

fn whole(number: &Datum) -> Option<i128> {
    match number {
        Datum::Int(number) => Some(i128::from(*number)),
        Datum::Uint(number) => Some(i128::from(*number)),
        _ => None,
    }
}
