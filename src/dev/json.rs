//! Reading and writing in JSON objects by path, without a panic where something is missing.

use serde_json::{Map, Value};

/// What is at a JSON pointer; null where nothing is.
pub(super) fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    value.pointer(path).unwrap_or(&Value::Null)
}

/// The text at a JSON pointer; empty where none is.
pub(super) fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

/// Writes at a JSON pointer; values on the way that are not objects become objects.
pub(super) fn set(value: &mut Value, path: &str, new: impl Into<Value>) {
    let mut place = value;
    for part in path.split('/').skip(1) {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        let Some(fields) = place.as_object_mut() else {
            return;
        };
        place = fields.entry(part.replace("~1", "/")).or_insert(Value::Null);
    }
    *place = new.into();
}
