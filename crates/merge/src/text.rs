//! Values in messages, as Go's `fmt` shows what structured-merge-diff holds them in.

use std::fmt;

use portcullis_go::quote::Quoted;
use serde_json::{Number, Value};

/// A number as Go's JSON holds it: what is no integer of 64 bits is a double.
#[derive(Debug, Clone, Copy)]
pub(crate) enum GoNumber {
    Int(i64),
    Float(f64),
}

impl From<&Number> for GoNumber {
    fn from(number: &Number) -> Self {
        number.as_i64().map_or_else(|| Self::Float(number.as_f64().unwrap_or_default()), Self::Int)
    }
}

impl GoNumber {
    pub(crate) fn as_double(self) -> f64 {
        match self {
            #[expect(
                clippy::as_conversions,
                clippy::cast_precision_loss,
                reason = "numbers are compared as doubles if one is one"
            )]
            Self::Int(number) => number as f64,
            Self::Float(number) => number,
        }
    }
}

impl fmt::Display for GoNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(number) => write!(f, "{number}"),
            Self::Float(number) => {
                let scientific = format!("{number:e}");
                let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
                let exponent: i32 = exponent.parse().unwrap_or_default();
                if *number == 0.0 || (-4..6).contains(&exponent) {
                    return write!(f, "{number}");
                }
                let sign = if exponent < 0 { '-' } else { '+' };
                write!(f, "{mantissa}e{sign}{:02}", exponent.abs())
            }
        }
    }
}

/// A value as `%v` shows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plain<'a>(pub(crate) &'a Value);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Null => f.write_str("<nil>"),
            Value::Bool(truth) => write!(f, "{truth}"),
            Value::Number(number) => write!(f, "{}", GoNumber::from(number)),
            Value::String(text) => f.write_str(text),
            Value::Array(items) => {
                f.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    f.write_str(if at == 0 { "" } else { " " })?;
                    write!(f, "{}", Self(item))?;
                }
                f.write_str("]")
            }
            Value::Object(fields) => {
                f.write_str("map[")?;
                for (at, (name, value)) in fields.iter().enumerate() {
                    f.write_str(if at == 0 { "" } else { " " })?;
                    write!(f, "{name}:{}", Self(value))?;
                }
                f.write_str("]")
            }
        }
    }
}

/// A value as `%#v` shows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Syntax<'a>(pub(crate) &'a Value);

impl fmt::Display for Syntax<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Null => f.write_str("interface {}(nil)"),
            Value::Bool(truth) => write!(f, "{truth}"),
            Value::Number(number) => write!(f, "{}", GoNumber::from(number)),
            Value::String(text) => write!(f, "{}", Quoted(text)),
            Value::Array(items) => {
                f.write_str("[]interface {}{")?;
                for (at, item) in items.iter().enumerate() {
                    write!(f, "{}{}", if at == 0 { "" } else { ", " }, Self(item))?;
                }
                f.write_str("}")
            }
            Value::Object(fields) => {
                f.write_str("map[string]interface {}{")?;
                for (at, (name, value)) in fields.iter().enumerate() {
                    write!(f, "{}{}:{}", if at == 0 { "" } else { ", " }, Quoted(name), Self(value))?;
                }
                f.write_str("}")
            }
        }
    }
}

/// The type of a value as `%T` shows it.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// A value as a path names it.
// structured-merge-diff: value/value.go, ToString
#[derive(Debug, Clone, Copy)]
pub(crate) struct InPath<'a>(pub(crate) &'a Value);

impl fmt::Display for InPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Null => f.write_str("null"),
            Value::Bool(truth) => write!(f, "{truth}"),
            Value::Number(number) => write!(f, "{}", GoNumber::from(number)),
            Value::String(text) => write!(f, "{}", Quoted(text)),
            Value::Array(items) => {
                f.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    write!(f, "{}{}", if at == 0 { "" } else { "," }, Self(item))?;
                }
                f.write_str("]")
            }
            Value::Object(fields) => {
                fields.iter().try_for_each(|(name, value)| write!(f, "{name}={}", Self(value)))
            }
        }
    }
}
