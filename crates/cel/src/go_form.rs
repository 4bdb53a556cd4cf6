//! The values of Go that the objects of patches hold, as far as patches and expressions see them.
//!
//! The reference converts each field of an object to a value of Go, but a list or a map that an expression makes only to the depth
//! of its elements. What lies deeper stays a value of CEL, which no JSON has.
// apiserver: pkg/cel/mutation/dynamic/objects.go

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use portcullis_go::quote::Quoted;

use super::evaluation::Halt;
use super::value::{Datum, GoForm, ListValue, MapKey, Message, MessageKind};

/// A value of Go.
#[derive(Debug)]
pub(super) enum GoValue {
    Nil,
    /// A truth value, an integer, a double or a text.
    Scalar(Datum),
    /// What was read from JSON, as it is.
    Raw(Datum),
    /// The same, read through values of CEL: its nulls are those of CEL.
    Read(Datum),
    List(Vec<Self>),
    Map(BTreeMap<Arc<str>, Self>),
    /// A value of a type that is none of JSON.
    Other(Datum),
    /// An error in the place of a value.
    Error(String),
}

/// Why an object has no value of Go.
#[derive(Debug)]
pub(super) enum Unconverted {
    /// It has a key that is not a text.
    Key(String),
    /// The evaluation ends.
    Halt(Halt),
}

impl From<Halt> for Unconverted {
    fn from(halt: Halt) -> Self {
        Self::Halt(halt)
    }
}

/// Converts values. `charge` is told of the elements of each list or map before they are converted.
pub(super) struct Converter<C>(pub(super) C);

type Fields = BTreeMap<Arc<str>, GoValue>;

impl<C: FnMut(usize) -> Result<(), Halt>> Converter<C> {
    /// The fields of an object.
    // ObjectVal.ConvertToNative
    pub(super) fn fields(&mut self, object: &Message) -> Result<Fields, Unconverted> {
        (self.0)(object.fields.len())?;
        let fields = object.fields.iter().map(|(name, value)| match self.field(value) {
            Ok(value) => Ok((Arc::clone(name), value)),
            Err(Unconverted::Key(text)) => {
                Err(Unconverted::Key(format!("fail to convert field {}: {text}", Quoted(name))))
            }
            Err(halt) => Err(halt),
        });
        fields.collect()
    }

    // convertField
    fn field(&mut self, value: &Datum) -> Result<GoValue, Unconverted> {
        match opened(value) {
            Some(Datum::List(list)) if list.form == GoForm::Values => {
                return Ok(GoValue::List(self.items(list)?));
            }
            Some(Datum::Map(map)) if map.form == GoForm::Values => {
                (self.0)(map.entries.len())?;
                let entries = map.entries.iter().map(|(key, value)| Ok((text_key(key)?, self.value(value)?)));
                return Ok(GoValue::Map(entries.collect::<Result<_, Unconverted>>()?));
            }
            _ => {}
        }
        match value {
            Datum::List(list) if matches!(list.form, GoForm::Plain | GoForm::Typed) => {
                Ok(GoValue::Read(value.clone()))
            }
            Datum::List(list) => {
                (self.0)(list.items.len())?;
                let items = list.items.iter().map(|item| self.field(item));
                Ok(GoValue::List(items.collect::<Result<_, Unconverted>>()?))
            }
            Datum::Map(_) => Ok(GoValue::Read(value.clone())),
            other => Ok(self.value(other)?),
        }
    }

    fn items(&mut self, list: &ListValue) -> Result<Vec<GoValue>, Halt> {
        (self.0)(list.items.len())?;
        list.items.iter().map(|item| self.value(item)).collect()
    }

    /// The value of Go that a value of CEL has.
    // cel-go: common/types — Value
    pub(super) fn value(&mut self, value: &Datum) -> Result<GoValue, Halt> {
        Ok(match value {
            Datum::Bool(_) | Datum::Int(_) | Datum::Double(_) | Datum::String(_) => {
                GoValue::Scalar(value.clone())
            }
            Datum::Type(name) => GoValue::Scalar(Datum::String(Arc::clone(name))),
            Datum::Optional(None) => GoValue::Nil,
            Datum::Optional(Some(held)) => self.value(held)?,
            Datum::List(list) if list.form == GoForm::Plain => GoValue::Raw(value.clone()),
            Datum::List(list) if list.form == GoForm::Sum => GoValue::List(self.items(list)?),
            Datum::Map(map) if map.form == GoForm::Plain => GoValue::Raw(value.clone()),
            Datum::Message(object) if object.kind != MessageKind::JsonPatch => match self.fields(object) {
                Ok(fields) => GoValue::Map(fields),
                Err(Unconverted::Key(text)) => GoValue::Error(text),
                Err(Unconverted::Halt(halt)) => return Err(halt),
            },
            Datum::Failed(text) => GoValue::Error(text.to_string()),
            Datum::Null
            | Datum::Uint(_)
            | Datum::Bytes(_)
            | Datum::List(_)
            | Datum::Map(_)
            | Datum::Duration(_)
            | Datum::Timestamp(_)
            | Datum::Root(_)
            | Datum::Native(_)
            | Datum::Message(_) => GoValue::Other(value.clone()),
        })
    }
}

impl GoValue {
    /// The value of CEL that is made of it again.
    // cel-go: common/types/provider.go — NativeToValue
    pub(super) fn into_datum(self) -> Datum {
        match self {
            Self::Nil => Datum::Null,
            Self::List(items) => {
                Datum::listed(items.into_iter().map(Self::into_datum).collect(), GoForm::Plain)
            }
            Self::Map(fields) => {
                let entries =
                    fields.into_iter().map(|(name, value)| (MapKey::String(name), value.into_datum()));
                Datum::mapped(entries.collect(), GoForm::Plain)
            }
            Self::Other(value @ (Datum::Native(_) | Datum::Root(_))) => value.opened(),
            Self::Scalar(value) | Self::Raw(value) | Self::Read(value) | Self::Other(value) => value,
            Self::Error(text) => Datum::Failed(text.into()),
        }
    }
}

/// The name of the type in Go.
impl fmt::Display for GoValue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Nil => "<nil>",
            Self::Scalar(Datum::Bool(_)) => "bool",
            Self::Scalar(Datum::Int(_)) => "int64",
            Self::Scalar(Datum::Double(_)) => "float64",
            Self::Scalar(_) => "string",
            Self::Raw(Datum::Map(_)) | Self::Read(Datum::Map(_)) | Self::Map(_) => "map[string]interface {}",
            Self::Raw(_) | Self::Read(_) | Self::List(_) => "[]interface {}",
            Self::Error(_) => "*types.Err",
            Self::Other(value) => match value {
                Datum::Null => "structpb.NullValue",
                Datum::Uint(_) => "uint64",
                Datum::Bytes(_) => "[]uint8",
                Datum::Duration(_) => "time.Duration",
                Datum::Timestamp(_) => "time.Time",
                // The lists and maps of `request` and `namespaceObject` hold texts, but for a few.
                Datum::List(list) if matches!(list.form, GoForm::Texts | GoForm::Typed) => "[]string",
                Datum::List(_) => "[]ref.Val",
                Datum::Map(map) if map.form == GoForm::Typed => "map[string]string",
                Datum::Map(_) => "map[ref.Val]ref.Val",
                Datum::Native(native) => match native.go_round_trip() {
                    Ok(()) => "*cel.Format",
                    Err(text) => {
                        let named = text.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
                        return out.write_str(named.map_or("*types.Err", |(name, _)| name));
                    }
                },
                other => other.go_type(),
            },
        })
    }
}

/// What an optional holds, if it holds something; else the value itself.
fn opened(value: &Datum) -> Option<&Datum> {
    match value {
        Datum::Optional(held) => held.as_deref().and_then(opened),
        other => Some(other),
    }
}

fn text_key(key: &MapKey) -> Result<Arc<str>, Unconverted> {
    let text = match key {
        MapKey::String(text) => return Ok(Arc::clone(text)),
        MapKey::Int(number) => character(u32::try_from(*number).ok()),
        MapKey::Uint(number) => character(u32::try_from(*number).ok()),
        MapKey::Null => "%!q(types.Null=0)".to_owned(),
        MapKey::Bool(_) | MapKey::Double(_) => {
            let key = key.datum();
            format!("%!q({}={})", key.go_type(), key.shown())
        }
    };
    let kind = key.datum().go_type();
    Err(Unconverted::Key(format!("map key {text} is of type {kind}, not string")))
}

/// A number as Go quotes it, which is as a character.
fn character(code: Option<u32>) -> String {
    let character = code.and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER);
    let quoted = match character {
        '"' => "\"".to_owned(),
        '\'' => "\\'".to_owned(),
        other => Quoted(other.encode_utf8(&mut [0; 4])).to_string().trim_matches('"').to_owned(),
    };
    format!("'{quoted}'")
}
