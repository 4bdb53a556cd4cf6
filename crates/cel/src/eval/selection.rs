//! Selection of fields and elements, and the optionals that it goes through.

use std::sync::Arc;

use crate::evaluation::{EvalResult, Halt, error, no_such_overload, sound};
use crate::number;
use crate::value::{Datum, Message, MessageKind};

/// What a chain of selections has reached.
///
/// The reference opens an optional where a chain starts, and is optional itself from a `?` on. An optional that is found in
/// a list or a map on the way is a value like others, without fields.
// cel-go: interpreter/attributes.go — applyQualifiers
pub(super) enum Reached {
    Value(Datum),
    Optional(Option<Datum>),
}

impl Reached {
    /// The start of a chain. An optional that is computed, and not selected from a variable, holds a plain value: its keys
    /// have no escapes.
    ///
    /// `converts`: whether the reference converts what an optional holds to a value of Go and back.
    pub(super) fn root(value: Datum, converts: bool) -> Self {
        let opened = |held: Datum| if converts { held.opened() } else { held };
        match value {
            Datum::Optional(held) => Self::Optional(held.map(Arc::unwrap_or_clone).map(opened)),
            value => Self::Value(value),
        }
    }

    pub(super) fn into_datum(self) -> EvalResult {
        match self {
            Self::Value(value) => sound(value),
            Self::Optional(found) => Ok(Datum::Optional(found.map(Arc::new))),
        }
    }

    /// `target.field` and `target[index]`, and with `optional` those with a `?`.
    pub(super) fn qualified(self, key: &Datum, optional: bool) -> Result<Self, Halt> {
        let (target, optional) = match self {
            Self::Optional(None) => return Ok(self),
            Self::Optional(Some(target)) => (target, true),
            Self::Value(target) => (target, optional),
        };
        let found = lookup(&target, key, optional)?;
        if optional {
            return Ok(Self::Optional(found));
        }
        found.map(Self::Value).map_or_else(|| missing(&target, key), Ok)
    }

    /// `has`: whether a field is present; through an optional, the field itself.
    pub(super) fn tested(self, key: &Datum) -> Result<Self, Halt> {
        Ok(match self {
            Self::Optional(Some(target)) => Self::Optional(lookup(&target, key, true)?),
            Self::Value(target) => Self::Value(Datum::Bool(lookup(&target, key, true)?.is_some())),
            absent @ Self::Optional(None) => absent,
        })
    }

    /// Whether this is a variable of the environment of this type.
    pub(super) fn is_root_of(&self, type_name: &str) -> bool {
        matches!(self, Self::Value(Datum::Root(root)) if root.type_name == type_name)
    }

    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Self::Optional(None))
    }
}

fn missing<T>(target: &Datum, key: &Datum) -> Result<T, Halt> {
    error(match target {
        Datum::List(_) => format!("index out of bounds: {}", key.shown()),
        _ => format!("no such key: {}", key.shown()),
    })
}

/// What a selection finds. `tests`: whether it may find nothing.
fn lookup(target: &Datum, index: &Datum, tests: bool) -> Result<Option<Datum>, Halt> {
    if !index.is_index() {
        return error(format!("invalid qualifier type: {}", index.go_type()));
    }
    match target {
        Datum::Map(map) => map.find(index).map(sound).transpose(),
        Datum::Failed(text) => error(&**text),
        Datum::Message(message) if message.kind == MessageKind::JsonPatch => part(message, index, tests),
        Datum::Root(root) => match index {
            Datum::String(name) => Ok(root.find(name)),
            _ => no_such_overload(),
        },
        Datum::List(list) => {
            let at = match index {
                Datum::Int(at) => usize::try_from(*at).ok(),
                Datum::Uint(at) => usize::try_from(*at).ok(),
                Datum::Double(at) => match number::exact_int(*at) {
                    Some(at) => usize::try_from(at).ok(),
                    None => {
                        return error(format!("unsupported index value {} in list", index.shown()));
                    }
                },
                other => return error(format!("unsupported index type '{}' in list", other.type_name())),
            };
            Ok(at.and_then(|at| list.get(at)))
        }
        _ => Ok(None),
    }
}

/// A part of an operation of a patch. One that is empty counts as absent where it is tested.
// apiserver: pkg/cel/mutation/jsonpatch.go — Get, IsSet
fn part(operation: &Message, index: &Datum, tests: bool) -> Result<Option<Datum>, Halt> {
    let found = match index {
        Datum::String(name) if matches!(&**name, "op" | "path" | "from" | "value") => {
            operation.fields.get(name)
        }
        other => {
            let what = if tests { "field" } else { "indexer" };
            let shown = match other {
                Datum::String(name) => name.to_string(),
                other => format!("%!s({}={})", other.go_type(), other.shown()),
            };
            return error(format!("unsupported {what}: {shown}"));
        }
    };
    let is_value = matches!(index, Datum::String(name) if &**name == "value");
    Ok(match found {
        Some(Datum::String(text)) if tests && text.is_empty() && !is_value => None,
        None if !tests => Some(Datum::Null),
        found => found.cloned(),
    })
}
