//! Optionals, from cel-go. The evaluator makes the calls of `or` and `orValue`, which do not evaluate their argument
//! where the target has a value.

use std::sync::Arc;

use crate::evaluation::{EvalResult, Evaluation, Halt, error};
use crate::library::{Call, Library};
use crate::value::{Datum, MessageKind};

/// The functions of optionals.
#[derive(Debug)]
pub(crate) struct Optionals;

const SIGNATURES: &str = "
optional.none | () -> optional_type(V)
optional.of | (V) -> optional_type(V)
optional.ofNonZeroValue | (V) -> optional_type(V)
optional.unwrap | (list(optional_type(V))) -> list(V)
unwrapOpt | list(optional_type(V)).() -> list(V)
hasValue | optional_type(V).() -> bool
or | optional_type(V).(optional_type(V)) -> optional_type(V)
orValue | optional_type(V).(V) -> V
value | optional_type(V).() -> V
";

impl Library for Optionals {
    fn signatures(&self) -> &'static str {
        SIGNATURES
    }

    fn call(&self, evaluation: &mut Evaluation<'_>, call: &Call<'_>) -> EvalResult {
        match (call.function, call.values) {
            ("optional.none", []) => Ok(Datum::Optional(None)),
            ("optional.of", [value]) => Ok(some(value.clone())),
            ("optional.ofNonZeroValue", [value]) => {
                Ok(if is_zero(value) { Datum::Optional(None) } else { some(value.clone()) })
            }
            ("optional.unwrap" | "unwrapOpt", [Datum::List(list)]) => {
                evaluation.charge(list.items.len().saturating_sub(1))?;
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
            _ => Err(Halt::Unsuited),
        }
    }
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
        Datum::Message(message) => message.kind != MessageKind::JsonPatch && message.fields.is_empty(),
        Datum::Duration(duration) => duration.0 == 0,
        Datum::Timestamp(timestamp) => timestamp.is_zero(),
        _ => false,
    }
}
