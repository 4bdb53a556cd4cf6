//! JSON as Go reads it: into structures, and any value of untrusted origin.
//!
//! [`JsonValue`] is the only type for such a value. [`serde_json::Value`] must not be deserialized from untrusted text:
//! with the feature `raw_value` it replaces an object whose first member is `$serde_json::private::RawValue` by the JSON
//! in that member's text, so that `{"$serde_json::private::RawValue": "[\"admins\"]"}` becomes a list, which it is for no
//! other parser. Here no member name has a meaning.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IntoDeserializer as _, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Number, Value};

/// Deserializes a struct from a JSON object only. A derived `Deserialize` also accepts an array of its fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(Members(PhantomData))
    }
}

struct Members<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

/// The same by go-jose's rules: duplicate member names are errors, also of unknown members, whose values may have any
/// type.
// go-jose v2: json/decode.go, decodeState.object
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DistinctObject<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for DistinctObject<T> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(DistinctObjectVisitor(PhantomData))
    }
}

struct DistinctObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for DistinctObjectVisitor<T> {
    type Value = DistinctObject<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<DistinctObject<T>, A::Error> {
        let members = DistinctMembers { members: map, names: HashSet::new() };
        T::deserialize(MapAccessDeserializer::new(members)).map(DistinctObject)
    }
}

struct DistinctMembers<A> {
    members: A,
    names: HashSet<String>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for DistinctMembers<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        let Some(name) = self.members.next_key::<String>()? else { return Ok(None) };
        if self.names.contains(&name) {
            // The message of serde's derived code.
            return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
        }
        let key = seed.deserialize(name.as_str().into_deserializer())?;
        self.names.insert(name);
        Ok(Some(key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.members.next_value_seed(seed)
    }
}

/// Any JSON value.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonValue(pub Value);

/// Any JSON object; the last of several members with one name counts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JsonObject(pub Map<String, Value>);

// threat: claims-other-reading
impl<'de> Deserialize<'de> for JsonValue {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(ValueVisitor).map(Self)
    }
}

impl<'de> Deserialize<'de> for JsonObject {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(ObjectVisitor).map(Self)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut object = Map::new();
        while let Some((name, JsonValue(value))) = members.next_entry()? {
            object.insert(name, value);
        }
        Ok(object)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(JsonValue(value)) = values.next_element()? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Value, A::Error> {
        ObjectVisitor.visit_map(members).map(Value::Object)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_those_that_are_written() {
        let value = json!({"a": [null, true, -1, u64::MAX, 1.5, "\u{e9}", {"b": {}}], "": []});
        let read = |text: &str| serde_json::from_str(text).map(|JsonValue(value)| value).ok();
        assert_eq!(read(&value.to_string()), Some(value));
        assert_eq!(read(r#"{"a": 1, "a": 2}"#), Some(json!({"a": 2})));
        for name in ["$serde_json::private::RawValue", "$serde_json::private::Number"] {
            let mut object = Map::new();
            object.insert(name.to_owned(), json!("[5]"));
            assert_eq!(read(&Value::Object(object.clone()).to_string()), Some(Value::Object(object.clone())));
            let JsonObject(whole) = serde_json::from_str(&Value::Object(object.clone()).to_string()).unwrap();
            assert_eq!(whole, object);
        }
        for text in ["", "1e400", "[1,]", "{\"a\"}", "01", "[] []", &"[".repeat(200)] {
            assert_eq!(read(text), None, "{text}");
        }
        assert!(serde_json::from_str::<JsonObject>("[]").is_err());
    }
}
