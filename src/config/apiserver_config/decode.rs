//! Decodes a file into wire types. Rejects unknown fields, duplicate fields and values of another type.
//!
//! Follows `k8s.io/apimachinery/pkg/runtime/serializer/json/json.go` with strict decoding.

use serde_json::Value;

use super::{ConfigKind, GROUP, VERSIONS};
use crate::config::yaml::{self, KeyLines};
use crate::go::quote::Quoted;

/// Why a file cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::config) struct DecodeError {
    /// The problem.
    pub(in crate::config) problem: String,
    /// How to fix it.
    pub(in crate::config) fix: String,
}

/// Decodes YAML or JSON. Also returns the lines of the fields.
pub(in crate::config) fn decode<T: ConfigKind>(text: &[u8]) -> Result<(T, KeyLines), DecodeError> {
    let envelope = || format!("begin with apiVersion: {GROUP}/v1 and kind: {}", T::KIND);
    let bad = |problem: String, fix: String| DecodeError { problem, fix };
    if text.is_empty() && T::EMPTY_IS_DEFAULT {
        return Ok((T::default(), KeyLines::default()));
    }
    if text.is_empty() {
        return Err(bad("empty config data".to_owned(), envelope()));
    }
    let document = yaml::parse(text).map_err(|problem| {
        bad(problem, "give one YAML document; indent by spaces, write each key once".to_owned())
    })?;
    let text_of = |key: &str| document.value.get(key).and_then(Value::as_str).unwrap_or_default();
    let (kind, version) = (text_of("kind"), text_of("apiVersion"));
    let missing = [("Kind", kind), ("apiVersion", version)].into_iter().find(|(_, value)| value.is_empty());
    if let Some((key, _)) = missing {
        return Err(bad(format!("Object '{key}' is missing"), envelope()));
    }
    let known = version.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix('/'));
    if kind != T::KIND || !known.is_some_and(|version| VERSIONS.contains(&version)) {
        let problem = format!("no kind {} is registered for version {}", Quoted(kind), Quoted(version));
        return Err(bad(problem, envelope()));
    }
    Ok((strictly(&document.value)?, document.lines))
}

fn strictly<T: ConfigKind>(document: &Value) -> Result<T, DecodeError> {
    let read: T = serde_path_to_error::deserialize(without_nulls(document)).map_err(|error| DecodeError {
        problem: format!("{}: {}", error.path(), error.inner()),
        fix: "give a value of the expected type; quote strings that YAML reads as another type".to_owned(),
    })?;
    // Serializing writes every known field, so a field that it does not write is unknown.
    let known = serde_json::to_value(&read).unwrap_or_default();
    let mut unknown = Vec::new();
    find_unknown(document, &known, "", &mut unknown);
    if unknown.is_empty() {
        return Ok(read);
    }
    let unknown: Vec<String> =
        unknown.iter().map(|field| format!("unknown field {}", Quoted(field))).collect();
    Err(DecodeError {
        problem: format!("strict decoding error: {}", unknown.join(", ")),
        fix: "remove the unknown field, or correct its spelling or indentation".to_owned(),
    })
}

/// Removes fields that are `null`, which Go treats as absent.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let given = fields.iter().filter(|(_, value)| !value.is_null());
            Value::Object(given.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        scalar => scalar.clone(),
    }
}

fn find_unknown(given: &Value, known: &Value, path: &str, unknown: &mut Vec<String>) {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => {
            for (key, value) in given {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match known.get(key) {
                    Some(known) => find_unknown(value, known, &path, unknown),
                    None => unknown.push(path),
                }
            }
        }
        (Value::Array(given), Value::Array(known)) => {
            for (index, (value, known)) in given.iter().zip(known).enumerate() {
                find_unknown(value, known, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}
