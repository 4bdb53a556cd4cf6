//! The operators, conversions and `size` of CEL itself.

use std::cmp::Ordering;

use crate::arithmetic::{self, integer, unsigned};
use crate::equality::{equal, if_comparable, order, same};
use crate::evaluation::{EvalResult, Evaluation, Halt, error};
use crate::float;
use crate::library::{Call, Library};
use crate::number::{self, length};
use crate::price::{self, Price, tenth};
use crate::types::Type;
use crate::value::Datum;

/// The functions of CEL itself, other than those of strings and times.
#[derive(Debug)]
pub(crate) struct Standard;

const SIGNATURES: &str = "
!_ | (bool) -> bool
-_ | (double) -> double | (int) -> int
@in | (A, list(A)) -> bool | (A, map(A, B)) -> bool
_==_ | (A, A) -> bool
_!=_ | (A, A) -> bool
_%_ | (int, int) -> int | (uint, uint) -> uint
_*_ | (double, double) -> double | (int, int) -> int | (uint, uint) -> uint
_/_ | (double, double) -> double | (int, int) -> int | (uint, uint) -> uint
_+_ | (bytes, bytes) -> bytes | (double, double) -> double | (duration, duration) -> duration | (duration, timestamp) -> timestamp | (timestamp, duration) -> timestamp | (int, int) -> int | (list(A), list(A)) -> list(A) | (string, string) -> string | (uint, uint) -> uint
_-_ | (double, double) -> double | (duration, duration) -> duration | (int, int) -> int | (timestamp, duration) -> timestamp | (timestamp, timestamp) -> duration | (uint, uint) -> uint
_<_ | COMPARED
_<=_ | COMPARED
_>_ | COMPARED
_>=_ | COMPARED
_[_] | (list(A), int) -> A | (map(A, B), A) -> B | (optional_type(list(V)), int) -> optional_type(V) | (optional_type(map(K, V)), K) -> optional_type(V)
_[?_] | (list(V), int) -> optional_type(V) | (optional_type(list(V)), int) -> optional_type(V) | (map(K, V), K) -> optional_type(V) | (optional_type(map(K, V)), K) -> optional_type(V)
bool | (bool) -> bool | (string) -> bool
bytes | (bytes) -> bytes | (string) -> bytes
double | (double) -> double | (int) -> double | (string) -> double | (uint) -> double
dyn | (A) -> dyn
int | (int) -> int | (double) -> int | (duration) -> int | (string) -> int | (timestamp) -> int | (uint) -> int
string | (string) -> string | (bool) -> string | (bytes) -> string | (double) -> string | (duration) -> string | (int) -> string | (timestamp) -> string | (uint) -> string
type | (A) -> type(A)
uint | (uint) -> uint | (double) -> uint | (int) -> uint | (string) -> uint
size | (bytes) -> int | bytes.() -> int | (list(A)) -> int | list(A).() -> int | (map(A, B)) -> int | map(A, B).() -> int | (string) -> int | string.() -> int
";

impl Library for Standard {
    fn signatures(&self) -> &'static str {
        SIGNATURES
    }

    // cel-go: interpreter/runtimecost.go — costCall
    fn price(&self, call: &Call<'_>) -> Price {
        let (first, second) = (call.size(0), call.size(1));
        Price::Units(match call.function {
            "_==_"
                if matches!(
                    call.values.first(),
                    Some(Datum::Native(_) | Datum::Duration(_) | Datum::Timestamp(_))
                ) =>
            {
                1
            }
            // The comparison charges the length.
            "_==_" | "_!=_" => tenth(first.min(second)),
            "_<_" | "_<=_" | "_>_" | "_>=_" => by_text(call, first.min(second)),
            "_+_" => by_text(call, first.saturating_add(second)),
            "bytes" | "string" => by_text(call, first),
            "@in" => match (call.only.and_then(|only| only.parameters.get(1)), call.values.get(1)) {
                (Some(Type::Named("list", _)), _) => second,
                (None, Some(Datum::List(_))) => second.max(1),
                _ => 1,
            },
            // One unit in the reference, however long the text is.
            "bool" | "double" | "int" | "uint" => tenth(first).max(1),
            _ => 1,
        })
    }

    fn call(&self, evaluation: &mut Evaluation<'_>, call: &Call<'_>) -> EvalResult {
        let function = call.function;
        match (function, call.values) {
            ("!_", [Datum::Bool(value)]) => Ok(Datum::Bool(!value)),
            ("-_", [Datum::Int(value)]) => integer(value.checked_neg()),
            ("-_", [Datum::Double(value)]) => Ok(Datum::Double(-value)),
            // Values of no known type alone reach it.
            ("-_", [Datum::Duration(value)]) => arithmetic::duration(value.0.checked_neg()),
            ("_==_", [left, right]) => Ok(Datum::Bool(same(evaluation, left, right)?)),
            ("_!=_", [left, right]) => Ok(Datum::Bool(!if_comparable(same(evaluation, left, right), false)?)),
            ("_<_", [left, right]) => ordered(left, right, Ordering::is_lt),
            ("_<=_", [left, right]) => ordered(left, right, Ordering::is_le),
            ("_>_", [left, right]) => ordered(left, right, Ordering::is_gt),
            ("_>=_", [left, right]) => ordered(left, right, Ordering::is_ge),
            ("@in", [needle, range]) => contains(evaluation, needle, range),
            ("_+_", [left, right]) => arithmetic::add(evaluation, left, right),
            ("_-_" | "_*_" | "_/_" | "_%_", [left, right]) => arithmetic::calculate(function, left, right),
            ("dyn", [value]) => Ok(value.clone()),
            // The reference makes a type of the type.
            ("type", [Datum::Message(_)]) => Ok(Datum::Type("type".into())),
            ("type", [value]) => Ok(Datum::Type(value.type_name().into())),
            ("size", [Datum::String(text)]) => {
                // Counting characters is cheap, but not free.
                evaluation.charge(text.len() / 100)?;
                Ok(Datum::Int(length(text.chars().count())))
            }
            ("size", [value @ (Datum::Bytes(_) | Datum::List(_) | Datum::Map(_))]) => {
                Ok(Datum::Int(length(value.size())))
            }
            ("bool" | "bytes" | "double" | "int" | "string" | "uint", [value]) => convert(function, value),
            _ => Err(Halt::Unsuited),
        }
    }

    /// Operators depend on a trait of the first operand.
    fn refusal(&self, _evaluation: &Evaluation<'_>, call: &Call<'_>) -> Halt {
        use Datum::{Bool, Bytes, Double, Int, List, Uint};
        let Some(first) = call.values.first() else { return Call::unnamed_refusal() };
        let has_trait = match call.function {
            "!_" | "@in" | "_==_" | "_!=_" => true,
            "_+_" => matches!(first, Int(_) | Uint(_) | Double(_) | Bytes(_) | List(_)),
            "_-_" | "_*_" | "_/_" => matches!(first, Int(_) | Uint(_) | Double(_)),
            "_%_" => matches!(first, Int(_) | Uint(_)),
            "_<_" | "_<=_" | "_>_" | "_>=_" => {
                matches!(first, Bool(_) | Int(_) | Uint(_) | Double(_) | Bytes(_))
            }
            "-_" => matches!(first, Bool(_) | Int(_) | Double(_)),
            "size" => false,
            _ => return call.refusal(),
        };
        if has_trait || call.is_on_receiver() { Call::unnamed_refusal() } else { call.named_refusal() }
    }

    fn has_one_implementation(&self, function: &str) -> bool {
        function.starts_with(['_', '!', '-']) || matches!(function, "@in" | "size")
    }
}

/// The price of a function that reads texts by one of its overloads, and costs one unit by the others.
fn by_text(call: &Call<'_>, length: usize) -> usize {
    let Call { only, values, .. } = call;
    let declared = only.and_then(|only| only.parameters.first());
    if matches!(declared, Some(Type::Named("string" | "bytes", _))) {
        // `string(string)` is one unit in the reference.
        let same = only.is_some_and(|only| values.len() == 1 && Some(&only.result) == declared);
        return if same { tenth(length).max(1) } else { tenth(length) };
    }
    match values.first() {
        Some(Datum::String(_) | Datum::Bytes(_)) => tenth(length).max(1),
        _ => 1,
    }
}

fn ordered(left: &Datum, right: &Datum, holds: impl FnOnce(Ordering) -> bool) -> EvalResult {
    order(left, right).map(|order| Datum::Bool(holds(order)))
}

fn contains(evaluation: &mut Evaluation<'_>, needle: &Datum, range: &Datum) -> EvalResult {
    Ok(Datum::Bool(match range {
        Datum::List(list) => {
            let mut found = false;
            for item in list.items.iter() {
                found = if_comparable(equal(evaluation, needle, item), false)?;
                if found {
                    break;
                }
            }
            found
        }
        Datum::Map(map) => {
            evaluation.charge(price::size(needle) / 100)?;
            map.raw(needle).is_some()
        }
        _ => return Err(Halt::Unsuited),
    }))
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
        ("string", Datum::Bool(_) | Datum::Int(_) | Datum::Uint(_)) => Ok(Datum::string(&value.shown())),
        ("string", Datum::Double(value)) => Ok(Datum::string(&number::text(*value))),
        ("string", Datum::Bytes(bytes)) => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Datum::string(text)),
            Err(_) => error("invalid UTF-8 in bytes, cannot convert to string"),
        },
        ("int", Datum::Duration(duration)) => Ok(Datum::Int(duration.0)),
        ("int", Datum::Timestamp(timestamp)) => Ok(Datum::Int(timestamp.seconds())),
        ("string", Datum::Duration(duration)) => Ok(Datum::string(&duration.shown())),
        ("string", Datum::Timestamp(timestamp)) => Ok(Datum::string(&timestamp.shown())),
        _ => Err(Halt::Unsuited),
    }
}

fn parsed(to: &str, value: Option<Datum>) -> EvalResult {
    value.map_or_else(|| error(format!("type conversion error from 'string' to '{to}'")), Ok)
}
