//! Objects as JSON: reading a client's body without ambiguity, and carrying changes over from one object to another.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Fields of `metadata` that the API server sets.
pub(super) const SERVER_FIELDS: [&str; 5] =
    ["uid", "creationTimestamp", "resourceVersion", "generation", "selfLink"];
/// The fields that each manager of an object has set.
pub(super) const MANAGED_FIELDS: &str = "managedFields";
/// The longest part of a key that an error shows.
const MAX_SHOWN_KEY: usize = 100;

/// The value of a JSON text that every parser reads alike: no key twice, also in another case, and nothing after the value.
// threat: ambiguous-body
pub(super) fn parse_unambiguous(text: &[u8]) -> Result<Value, String> {
    serde_json::from_slice::<Unambiguous>(text).map(|read| read.0).map_err(|error| error.to_string())
}

struct Unambiguous(Value);

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UnambiguousVisitor).map(Self)
    }
}

struct UnambiguousVisitor;

impl<'de> Visitor<'de> for UnambiguousVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        // Go reads larger ones as floats, or refuses them.
        i64::try_from(value).map(Value::from).map_err(|_| E::custom("an integer is larger than 64 bits"))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Unambiguous(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let (mut map, mut known) = (Map::new(), HashSet::new());
        while let Some(key) = entries.next_key::<String>()? {
            if !known.insert(folded(&key)) {
                let shown: String = key.chars().take(MAX_SHOWN_KEY).collect();
                return Err(A::Error::custom(format!("the key {shown:?} is there twice")));
            }
            let Unambiguous(value) = entries.next_value()?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// The form of a name that it has in common with those that differ in case only: Go's `encoding/json` compares names by a fold of
/// Unicode, in which a long s is an s.
// Go: encoding/json/fold.go, foldName
pub(super) fn folded(name: &str) -> String {
    name.to_lowercase().replace('ſ', "s")
}

/// A field of `metadata`; empty if it is absent.
pub(super) fn metadata<'a>(object: &'a Value, field: &str) -> &'a str {
    object
        .get("metadata")
        .and_then(|metadata| metadata.get(field))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Sets a field of `metadata`; removes it if the value is empty. `false` if there is no place for it.
pub(super) fn set_metadata(object: &mut Value, field: &str, value: &str) -> bool {
    let Some(object) = object.as_object_mut() else { return false };
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if metadata.is_null() {
        *metadata = Value::Object(Map::new());
    }
    let Some(metadata) = metadata.as_object_mut() else { return false };
    if value.is_empty() {
        metadata.remove(field);
    } else {
        metadata.insert(field.to_owned(), value.into());
    }
    true
}

/// Removes the fields that the API server sets.
pub(super) fn remove_server_fields(object: &mut Value) {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    if let Some(metadata) = metadata {
        for field in SERVER_FIELDS.into_iter().chain([MANAGED_FIELDS]) {
            metadata.remove(field);
        }
    }
}

/// Removes `managedFields`, which the API server makes anew.
pub(super) fn remove_managed_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove(MANAGED_FIELDS);
    }
}

/// The `managedFields` of an object, if it has any.
pub(super) fn managed_fields(object: &Value) -> Option<&Value> {
    let managed = object.get("metadata")?.get(MANAGED_FIELDS)?;
    managed.as_array().is_some_and(|entries| !entries.is_empty()).then_some(managed)
}

/// Whether two lists of `managedFields` say the same, except for the times.
pub(super) fn is_managed_alike(one: Option<&Value>, other: Option<&Value>) -> bool {
    let entries = |managed: Option<&Value>| {
        let entries = managed.and_then(Value::as_array).into_iter().flatten();
        let mut entries: Vec<String> = entries
            .map(|entry| {
                let mut entry = entry.clone();
                entry.as_object_mut().map(|entry| entry.remove("time"));
                entry.to_string()
            })
            .collect();
        entries.sort_unstable();
        entries
    };
    entries(one) == entries(other)
}

/// Gives these fields of `metadata` the values that they have in `from`. Without `from`, or if it has none, they are removed.
pub(super) fn keep_server_fields(object: &mut Value, from: Option<&Value>, fields: &[&str]) {
    let from = from.and_then(|from| from.get("metadata"));
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    for field in fields {
        match from.and_then(|from| from.get(field)).filter(|value| !value.is_null()) {
            Some(value) => metadata.insert((*field).to_owned(), value.clone()),
            None => metadata.remove(*field),
        };
    }
}

/// Changes `target` as `before` was changed into `after`. `target` is a sparse form of `before`: some values that `before` has
/// are absent from it.
pub(super) fn carry_over(target: &mut Value, before: &Value, after: &Value) {
    if before == after {
        return;
    }
    match (&mut *target, before, after) {
        (Value::Object(fields), Value::Object(old), Value::Object(new)) => {
            for key in old.keys().filter(|key| !new.contains_key(*key)) {
                fields.remove(key);
            }
            for (key, value) in new {
                let known = old.get(key);
                if known == Some(value) {
                    continue;
                }
                match (fields.get_mut(key), known) {
                    (Some(field), Some(known)) => carry_over(field, known, value),
                    _ => {
                        fields.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        (Value::Array(items), Value::Array(old), Value::Array(new))
            if items.len() <= old.len()
                && old.len() <= new.len()
                && !changes_beyond(items.len(), old, new) =>
        {
            for ((item, before), after) in items.iter_mut().zip(old).zip(new) {
                carry_over(item, before, after);
            }
            items.extend(new.iter().skip(old.len()).cloned());
        }
        _ => *target = after.clone(),
    }
}

/// Whether a change from `before` to `after` is not in `shown`, which has the old value instead.
pub(super) fn is_lost(before: &Value, after: &Value, shown: &Value) -> bool {
    if before == after {
        return false;
    }
    let (Value::Object(old), Value::Object(new), Value::Object(shown)) = (before, after, shown) else {
        return before == shown;
    };
    let is_lost_at = |key: &String| match (old.get(key), new.get(key), shown.get(key)) {
        (Some(old), Some(new), Some(shown)) => is_lost(old, new, shown),
        (old, new, shown) => old != new && old == shown,
    };
    old.keys().chain(new.keys()).any(is_lost_at)
}

/// Whether an item changes that only the server's list has.
fn changes_beyond(length: usize, old: &[Value], new: &[Value]) -> bool {
    old.iter().zip(new).skip(length).any(|(before, after)| before != after)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_bodies_that_every_parser_reads_alike_are_read() {
        let cases = [
            (r#"{"a": [1, -2.5, null, true, "x"], "b": {"a": {}}}"#, true),
            (r#"{"a": 1, "a": 2}"#, false),
            (r#"{"a": 1, "A": 2}"#, false),
            (r#"{"apiVersion": 1, "apiVer\u017fion": 2}"#, false),
            (r#"{"x": [{"key": 1, "KEY": 1}]}"#, false),
            ("{} {}", false),
            ("{}\n", true),
            ("{}x", false),
            ("", false),
            (r#"{"a": 18446744073709551615}"#, false),
            (r#"{"a": "\ud800"}"#, false),
            ("a: b", false),
        ];
        for (text, expected) in cases {
            let read = parse_unambiguous(text.as_bytes());
            assert_eq!(read.is_ok(), expected, "{text}: {read:?}");
        }
        let deep = "[".repeat(200) + &"]".repeat(200);
        assert!(parse_unambiguous(deep.as_bytes()).is_err());
        assert!(parse_unambiguous(b"{\"a\": \"\xff\"}").is_err());
    }

    #[test]
    fn changes_are_carried_over_to_a_sparse_object() {
        let before = json!({"a": 1, "default": 2, "list": [{"n": "x", "default": 1}, {"n": "server"}]});
        let sparse = json!({"a": 1, "list": [{"n": "x"}]});
        let cases = [
            ("nothing", before.clone(), sparse.clone()),
            (
                "a field",
                json!({"a": 2, "default": 2, "list": before["list"]}),
                json!({"a": 2, "list": [{"n": "x"}]}),
            ),
            ("a removal", json!({"default": 2, "list": before["list"]}), json!({"list": [{"n": "x"}]})),
            (
                "a default",
                json!({"a": 1, "default": 3, "list": before["list"]}),
                json!({"a": 1, "default": 3, "list": [{"n": "x"}]}),
            ),
            (
                "an item and one more",
                json!({"a": 1, "default": 2, "list": [{"n": "y", "default": 1}, {"n": "server"}, {"n": "z"}]}),
                json!({"a": 1, "list": [{"n": "y"}, {"n": "z"}]}),
            ),
            (
                "an item of the server",
                json!({"a": 1, "default": 2, "list": [{"n": "x", "default": 1}, {"n": "other"}]}),
                json!({"a": 1, "list": [{"n": "x", "default": 1}, {"n": "other"}]}),
            ),
            (
                "fewer items",
                json!({"a": 1, "default": 2, "list": [{"n": "server"}]}),
                json!({"a": 1, "list": [{"n": "server"}]}),
            ),
        ];
        for (name, after, expected) in cases {
            let mut target = sparse.clone();
            carry_over(&mut target, &before, &after);
            assert_eq!(target, expected, "{name}");
        }
    }

    #[test]
    fn a_change_is_lost_if_the_old_value_is_there() {
        let (before, after) =
            (json!({"a": 1, "b": {"c": 1}, "d": [1]}), json!({"a": 2, "b": {"e": 1}, "d": [1, 2]}));
        let cases = [
            (after.clone(), false),
            // Another form of the new values.
            (json!({"a": "2", "b": {"e": 3}, "d": [1, 2, 3]}), false),
            (json!({"a": 1, "b": {"e": 1}, "d": [1, 2]}), true),
            (json!({"a": 2, "b": {"c": 1, "e": 1}, "d": [1, 2]}), true),
            (json!({"a": 2, "b": {}, "d": [1, 2]}), true),
            (json!({"a": 2, "b": {"e": 1}, "d": [1]}), true),
        ];
        for (shown, expected) in cases {
            assert_eq!(is_lost(&before, &after, &shown), expected, "{shown}");
        }
    }

    #[test]
    fn metadata_is_set_where_there_is_a_place() {
        let mut object = json!({"metadata": null});
        assert!(set_metadata(&mut object, "resourceVersion", "1"));
        assert_eq!(object, json!({"metadata": {"resourceVersion": "1"}}));
        assert!(set_metadata(&mut object, "resourceVersion", ""));
        assert_eq!(object, json!({"metadata": {}}));
        assert!(
            !set_metadata(&mut json!([]), "uid", "1")
                && !set_metadata(&mut json!({"metadata": 1}), "uid", "1")
        );
    }
}
