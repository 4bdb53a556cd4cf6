//! Decodes a file into wire types. Rejects unknown fields, duplicate fields and values of another type.
//!
//! Follows `k8s.io/apimachinery/pkg/runtime/serializer/json/json.go` with strict decoding.

use portcullis_go::quote::Quoted;
use portcullis_kubernetes::strict::{self, DecodeError as StrictError};
use portcullis_kubernetes::yaml::{self, KeyLines};
use serde_json::Value;

use super::{ConfigKind, GROUP};

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
    Ok((decode_value(&document.value)?, document.lines))
}

/// Decodes a parsed document, or one inside another.
pub(in crate::config) fn decode_value<T: ConfigKind>(document: &Value) -> Result<T, DecodeError> {
    let bad = |problem: String| {
        let fix = format!("begin with apiVersion: {GROUP}/v1 and kind: {}", T::KIND);
        DecodeError { problem, fix }
    };
    let text_of = |key: &str| document.get(key).and_then(Value::as_str).unwrap_or_default();
    let (kind, version) = (text_of("kind"), text_of("apiVersion"));
    let missing = [("Kind", kind), ("apiVersion", version)].into_iter().find(|(_, value)| value.is_empty());
    if let Some((key, _)) = missing {
        return Err(bad(format!("Object '{key}' is missing")));
    }
    if kind != T::KIND || !T::API_VERSIONS.contains(&version) {
        let problem = format!("no kind {} is registered for version {}", Quoted(kind), Quoted(version));
        return Err(bad(problem));
    }
    let read = strict::decode(document, |known| T::prune(document, known));
    read.map_err(|StrictError { problem, fix, .. }| DecodeError { problem, fix })
}
