//! Dispatches functions by name and arguments: operators, conversions and optionals; the rest is in `libraries`.

use std::cmp::Ordering;
use std::sync::Arc;

use super::equality::{equal, if_comparable, order, same};
use super::eval::{EvalResult, Halt, Machine, error, no_such_overload};
use super::libraries::{lists, time};
use super::native::Native;
use super::price::LIST;
use super::signatures::Overload;
use super::value::{Datum, ListValue};
use super::{float, libraries, number, price};

/// Calls a function; the target of a member function is the first value.
///
/// `only` is the overload that the checker selected, for functions whose overloads are separate functions.
pub(super) fn call(
    machine: &mut Machine<'_>,
    function: &str,
    values: &[Datum],
    only: Option<&Overload>,
) -> EvalResult {
    price::charge(machine, function, only, values)?;
    let result = match only {
        Some(only) if !is_one_function(function) && !only.takes(values) => Err(Halt::Unsuited),
        _ => match (function, values, only) {
            ("sum", [Datum::List(list)], Some(only)) if list.items.is_empty() => {
                Ok(lists::zero(&only.result))
            }
            _ => dispatch(machine, function, values),
        },
    };
    match result {
        // Selects the reference's error text.
        Err(Halt::Unsuited) => unsuited(machine, function, values),
        result => result,
    }
}

fn dispatch(machine: &mut Machine<'_>, function: &str, values: &[Datum]) -> EvalResult {
    match (function, values) {
        ("!_", [Datum::Bool(value)]) => Ok(Datum::Bool(!value)),
        ("-_", [Datum::Int(value)]) => integer(value.checked_neg()),
        ("-_", [Datum::Double(value)]) => Ok(Datum::Double(-value)),
        ("-_", [Datum::Native(Native::Duration(value))]) => time::negate(*value),
        ("_==_", [Datum::Root(_), right]) if !matches!(right, Datum::Root(_) | Datum::Null) => {
            no_such_overload()
        }
        ("_==_", [left, right]) => Ok(Datum::Bool(same(machine, left, right)?)),
        ("_!=_", [left, right]) => Ok(Datum::Bool(!if_comparable(same(machine, left, right), false)?)),
        ("_<_", [left, right]) => ordered(left, right, Ordering::is_lt),
        ("_<=_", [left, right]) => ordered(left, right, Ordering::is_le),
        ("_>_", [left, right]) => ordered(left, right, Ordering::is_gt),
        ("_>=_", [left, right]) => ordered(left, right, Ordering::is_ge),
        ("@in", [needle, range]) => contains(machine, needle, range),
        ("_+_", [left, right]) => add(machine, left, right),
        ("_-_" | "_*_" | "_/_" | "_%_", [left, right]) => arithmetic(function, left, right),
        ("dyn", [value]) => Ok(value.clone()),
        ("type", [value]) => Ok(Datum::Type(value.type_name().into())),
        ("size", [Datum::String(text)]) => {
            // Counting characters is cheap, but not free.
            machine.charge(text.len() / 100)?;
            Ok(Datum::Int(length(text.chars().count())))
        }
        ("size", [value @ (Datum::Bytes(_) | Datum::List(_) | Datum::Map(_))]) => {
            Ok(Datum::Int(length(value.size())))
        }
        ("bool" | "bytes" | "double" | "int" | "string" | "uint", [value]) => convert(function, value),
        ("optional.none", []) => Ok(Datum::Optional(None)),
        ("optional.of", [value]) => Ok(some(value.clone())),
        ("optional.ofNonZeroValue", [value]) => {
            Ok(if is_zero(value) { Datum::Optional(None) } else { some(value.clone()) })
        }
        ("optional.unwrap" | "unwrapOpt", [Datum::List(list)]) => {
            machine.charge(list.items.len().saturating_sub(1))?;
            let mut held = Vec::new();
            for item in list.items.iter() {
                match item {
                    Datum::Optional(Some(value)) => held.push(value.as_ref().clone()),
                    Datum::Optional(None) => {}
                    _ => return Err(Halt::Unsuited),
                }
            }
            Ok(Datum::list(held))
        }
        ("hasValue", [Datum::Optional(held)]) => Ok(Datum::Bool(held.is_some())),
        ("value", [Datum::Optional(held)]) => match held {
            Some(value) => Ok(value.as_ref().clone()),
            None => error("optional.none() dereference"),
        },
        _ => libraries::call(machine, function, values),
    }
}

/// Operators and methods of the standard library have one implementation for all overloads.
fn is_one_function(function: &str) -> bool {
    function.starts_with(['_', '!', '-'])
        || ["@in", "size", "contains", "startsWith", "endsWith", "matches", "sort", "flatten"]
            .contains(&function)
}

/// The reference's error if no overload accepts the values. Operators depend on a trait of the first operand; functions
/// of the standard library omit their name, all others print it with the argument types.
fn unsuited(machine: &Machine<'_>, function: &str, values: &[Datum]) -> EvalResult {
    use Datum::{Bool, Bytes, Double, Int, List, String, Uint};
    let Some(first) = values.first() else { return no_such_overload() };
    // The reference compiles a call with a literal pattern to another function.
    let literal_pattern =
        matches!(values.get(1), Some(String(pattern)) if !machine.patterns().is_new(pattern));
    // In the reference, strings and times treat an operator as a method call.
    let receiver = matches!(first, String(_) | Datum::Native(Native::Duration(_) | Native::Timestamp(_)));
    let named = match function {
        "_+_" => !receiver && !matches!(first, Int(_) | Uint(_) | Double(_) | Bytes(_) | List(_)),
        "_-_" | "_*_" | "_/_" => !receiver && !matches!(first, Int(_) | Uint(_) | Double(_)),
        "_%_" => !receiver && !matches!(first, Int(_) | Uint(_)),
        "_<_" | "_<=_" | "_>_" | "_>=_" => {
            !receiver && !matches!(first, Bool(_) | Int(_) | Uint(_) | Double(_) | Bytes(_))
        }
        "-_" => !receiver && !matches!(first, Bool(_) | Int(_) | Double(_)),
        "!_" | "@in" | "_==_" | "_!=_" | "contains" | "startsWith" | "endsWith" => false,
        "matches" | "find" | "findAll" if literal_pattern => false,
        "size" | "sort" | "matches" => !receiver,
        "@sortByAssociatedKeys" if !matches!(first, List(_)) => true,
        "flatten" => {
            let parameters = if matches!(first, Datum::Map(_)) { "(dyn, dyn)" } else { "" };
            let depth = values.get(1).map_or("", Datum::type_name);
            return error(format!("no such overload: {}{parameters}.flatten({depth})", first.type_name()));
        }
        _ => {
            let types: Vec<&str> = values.iter().map(Datum::type_name).collect();
            return error(format!("no such overload: {function}({})", types.join(", ")));
        }
    };
    if named { error(format!("no such overload: {function}")) } else { no_such_overload() }
}

/// A value as error messages print it.
pub(super) fn shown(value: &Datum) -> String {
    match value {
        Datum::Bool(value) => value.to_string(),
        Datum::Int(value) => value.to_string(),
        Datum::Uint(value) => value.to_string(),
        Datum::Double(value) => number::text(*value),
        Datum::String(value) => value.to_string(),
        other => other.type_name().to_owned(),
    }
}

pub(super) fn length(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

fn some(value: Datum) -> Datum {
    Datum::Optional(Some(Arc::new(value)))
}

fn is_zero(value: &Datum) -> bool {
    match value {
        Datum::Null | Datum::Bool(false) | Datum::Int(0) | Datum::Uint(0) => true,
        Datum::Double(value) => *value == 0.0,
        Datum::String(text) => text.is_empty(),
        Datum::Bytes(bytes) => bytes.is_empty(),
        Datum::List(list) => list.items.is_empty(),
        Datum::Map(map) => map.entries.is_empty(),
        Datum::Root(root) => root.fields.is_empty(),
        Datum::Native(Native::Duration(duration)) => duration.0 == 0,
        Datum::Native(Native::Timestamp(timestamp)) => timestamp.is_zero(),
        _ => false,
    }
}

fn ordered(left: &Datum, right: &Datum, holds: impl FnOnce(Ordering) -> bool) -> EvalResult {
    order(left, right).map(|order| Datum::Bool(holds(order)))
}

fn contains(machine: &mut Machine<'_>, needle: &Datum, range: &Datum) -> EvalResult {
    Ok(Datum::Bool(match range {
        Datum::List(list) => {
            let mut found = false;
            for item in list.items.iter() {
                found = if_comparable(equal(machine, needle, item), false)?;
                if found {
                    break;
                }
            }
            found
        }
        Datum::Map(map) => {
            machine.charge(price::size(needle) / 100)?;
            map.raw(needle).is_some()
        }
        _ => return Err(Halt::Unsuited),
    }))
}

fn integer(value: Option<i64>) -> EvalResult {
    value.map_or_else(|| error("integer overflow"), |value| Ok(Datum::Int(value)))
}

fn unsigned(value: Option<u64>) -> EvalResult {
    value.map_or_else(|| error("unsigned integer overflow"), |value| Ok(Datum::Uint(value)))
}

pub(super) fn add(machine: &mut Machine<'_>, left: &Datum, right: &Datum) -> EvalResult {
    match (left, right) {
        (Datum::Int(left), Datum::Int(right)) => integer(left.checked_add(*right)),
        (Datum::Uint(left), Datum::Uint(right)) => unsigned(left.checked_add(*right)),
        (Datum::Double(left), Datum::Double(right)) => Ok(Datum::Double(left + right)),
        (Datum::String(left), Datum::String(right)) => Ok(Datum::String(format!("{left}{right}").into())),
        (Datum::Bytes(left), Datum::Bytes(right)) => {
            Ok(Datum::Bytes([left.as_ref(), right.as_ref()].concat().into()))
        }
        (Datum::List(left), Datum::List(right)) => joined(machine, left, right),
        (Datum::Native(left), Datum::Native(right)) => time::add(left, right),
        _ => Err(Halt::Unsuited),
    }
}

fn joined(machine: &mut Machine<'_>, left: &ListValue, right: &ListValue) -> EvalResult {
    if right.items.is_empty() {
        return Ok(Datum::List(left.clone()));
    }
    if left.items.is_empty() {
        return Ok(Datum::List(right.clone()));
    }
    // The reference copies nothing. A few elements are cheaper than a list of them.
    machine.charge((left.items.len() + right.items.len()).saturating_sub(LIST))?;
    Ok(Datum::list(left.scattered().chain(right.scattered()).collect()))
}

fn arithmetic(operator: &str, left: &Datum, right: &Datum) -> EvalResult {
    match (operator, left, right) {
        ("_-_", Datum::Int(left), Datum::Int(right)) => integer(left.checked_sub(*right)),
        ("_-_", Datum::Uint(left), Datum::Uint(right)) => unsigned(left.checked_sub(*right)),
        ("_-_", Datum::Double(left), Datum::Double(right)) => Ok(Datum::Double(left - right)),
        ("_-_", Datum::Native(left), Datum::Native(right)) => time::subtract(left, right),
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

/// Conversions from strings, such as `int("1")`.
fn convert(to: &str, value: &Datum) -> EvalResult {
    match (to, value) {
        ("bool", Datum::Bool(_))
        | ("bytes", Datum::Bytes(_))
        | ("double", Datum::Double(_))
        | ("int", Datum::Int(_))
        | ("string", Datum::String(_))
        | ("uint", Datum::Uint(_)) => Ok(value.clone()),
        ("bool", Datum::String(text)) => match text.as_ref() {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(Datum::Bool(true)),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(Datum::Bool(false)),
            _ => parsed(to, None),
        },
        ("bytes", Datum::String(text)) => Ok(Datum::Bytes(text.as_bytes().into())),
        ("double", Datum::Int(value)) => Ok(Datum::Double(number::double(i128::from(*value)))),
        ("double", Datum::Uint(value)) => Ok(Datum::Double(number::double(i128::from(*value)))),
        ("double", Datum::String(text)) => parsed(to, float::parse(text).map(Datum::Double)),
        ("int", Datum::Uint(value)) => integer(i64::try_from(*value).ok()),
        // The reference rejects both ends of the range.
        ("int", Datum::Double(value)) => {
            integer(number::truncated_int(*value).filter(|value| *value != i64::MIN))
        }
        ("int", Datum::String(text)) => parsed(to, text.parse().ok().map(Datum::Int)),
        ("uint", Datum::Int(value)) => unsigned(u64::try_from(*value).ok()),
        ("uint", Datum::Double(value)) => unsigned(number::truncated_uint(*value)),
        // Rust accepts a sign there, Go does not.
        ("uint", Datum::String(text)) if text.starts_with('+') => parsed(to, None),
        ("uint", Datum::String(text)) => parsed(to, text.parse().ok().map(Datum::Uint)),
        ("string", Datum::Bool(_) | Datum::Int(_) | Datum::Uint(_)) => Ok(Datum::string(&shown(value))),
        ("string", Datum::Double(value)) => Ok(Datum::string(&number::text(*value))),
        ("string", Datum::Native(native @ (Native::Ip(_) | Native::Cidr(_)))) => {
            Ok(Datum::string(&native.shown()))
        }
        ("string", Datum::Bytes(bytes)) => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Datum::string(text)),
            Err(_) => error("invalid UTF-8 in bytes, cannot convert to string"),
        },
        ("int" | "string", Datum::Native(native)) => time::convert(to, native),
        _ => Err(Halt::Unsuited),
    }
}

fn parsed(to: &str, value: Option<Datum>) -> EvalResult {
    value.map_or_else(|| error(format!("type conversion error from 'string' to '{to}'")), Ok)
}
