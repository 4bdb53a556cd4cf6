//! Reads and writes JSON by pointer. A missing field reads as null, and no operation panics.

use serde_json::{Value, json};

/// The string at a JSON pointer; empty if there is none.
pub(super) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Writes at a JSON pointer and creates the objects on the way. Null removes the field. The pointer has no escapes.
pub(super) fn set(object: &mut Value, pointer: &str, value: impl Into<Value>) {
    let keys = pointer.rsplit('/').filter(|key| !key.is_empty());
    json_patch::merge(object, &keys.fold(value.into(), |inner, key| json!({key: inner})));
}
