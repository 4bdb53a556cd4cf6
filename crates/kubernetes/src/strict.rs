//! Decodes values into wire types. Rejects unknown fields and values of another type.
//!
//! Follows `pkg/runtime/serializer/json/json.go` with strict decoding. A wire type has a default for every field, and
//! serializing it writes every field.

use portcullis_go::quote::Quoted;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Why a value cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    /// The path of the first field with an error, such as `authorizers[0].type`; empty for the whole value.
    pub field: String,
    /// The problem.
    pub problem: String,
    /// How to fix it.
    pub fix: String,
}

/// Decodes a value, whatever unknown fields it has.
pub fn decode_leniently<T: DeserializeOwned>(given: &Value) -> Result<T, DecodeError> {
    serde_path_to_error::deserialize(without_nulls(given)).map_err(|error| DecodeError {
        field: error.path().to_string(),
        problem: format!("{}: {}", error.path(), error.inner()),
        fix: "give a value of the expected type; quote strings that YAML reads as another type".to_owned(),
    })
}

/// Decodes a value. `prune` removes fields that this kind does not have from the known ones.
pub fn decode<T: Serialize + DeserializeOwned>(
    given: &Value,
    prune: impl FnOnce(&mut Value),
) -> Result<T, DecodeError> {
    let read: T = decode_leniently(given)?;
    // Serializing writes every known field, so a field that it does not write is unknown.
    let mut known = serde_json::to_value(&read).unwrap_or_default();
    prune(&mut known);
    if let Some(field) = find_list_as_map(given, &known, "") {
        let problem = format!("{field}: invalid type: sequence, expected a map");
        return Err(DecodeError { field, problem, fix: "give a map: keys with values".to_owned() });
    }
    let mut unknown = Vec::new();
    find_unknown(given, &known, "", &mut unknown);
    let Some(first) = unknown.first() else { return Ok(read) };
    let fields: Vec<String> =
        unknown.iter().map(|field| format!("unknown field {}", Quoted(field))).collect();
    Err(DecodeError {
        field: first.clone(),
        problem: format!("strict decoding error: {}", fields.join(", ")),
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

/// The first list in the place of a struct. `serde` reads the values of such a list as those of the fields in order.
fn find_list_as_map(given: &Value, known: &Value, path: &str) -> Option<String> {
    match (given, known) {
        (Value::Array(_), Value::Object(_)) => Some(path.to_owned()),
        (Value::Object(given), Value::Object(known)) => given.iter().find_map(|(key, value)| {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            find_list_as_map(value, known.get(key)?, &path)
        }),
        (Value::Array(given), Value::Array(known)) => {
            let mut items = given.iter().zip(known).enumerate();
            items.find_map(|(index, (value, known))| {
                find_list_as_map(value, known, &format!("{path}[{index}]"))
            })
        }
        _ => None,
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    struct Outer {
        inner: Inner,
        list: Vec<Inner>,
        any: Value,
        map: BTreeMap<String, String>,
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    struct Inner {
        text: String,
        number: Option<i32>,
    }

    #[test]
    fn only_known_fields_of_the_right_type_are_decoded() {
        let accepted = [
            json!({}),
            json!({"inner": null, "list": null}),
            json!({"inner": {"text": "a", "number": null}, "list": [{}, {"number": 1}]}),
            json!({"any": [{"text": [1]}], "map": {"a": "b"}}),
        ];
        for given in accepted {
            decode::<Outer>(&given, |_| ()).unwrap();
        }
        let refused = [
            (json!([]), ""),
            (json!({"inner": []}), "inner"),
            (json!({"inner": ["a", 1]}), "inner"),
            (json!({"list": [{}, ["a"]]}), "list[1]"),
            (json!({"list": {}}), "list"),
            (json!({"other": 1}), "other"),
            (json!({"list": [{"Text": "a"}]}), "list[0].Text"),
            (json!({"inner": {"text": 1}}), "inner.text"),
            (json!({"map": []}), "map"),
        ];
        for (given, field) in refused {
            assert_eq!(decode::<Outer>(&given, |_| ()).unwrap_err().field, field, "{given}");
        }
    }

    #[test]
    fn a_pruned_field_is_unknown() {
        let prune = |known: &mut Value| drop(known.as_object_mut().unwrap().remove("any"));
        let error = decode::<Outer>(&json!({"any": 1}), prune).unwrap_err();
        assert_eq!(error.problem, "strict decoding error: unknown field \"any\"");
    }
}
