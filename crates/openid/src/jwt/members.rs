//! Reads the members of a JSON object one by one, without building the values that no caller needs.
//!
//! Matches how Go's `encoding/json` decodes an object into a struct: member names match fields case-insensitively,
//! every occurrence must have the right type, the last one wins, and `null` leaves the field unchanged.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Calls `each` for every member of an object, in source order and with duplicates.
// threat: claims-other-reading
pub fn read(json: &[u8], each: impl FnMut(&str, &RawValue)) -> serde_json::Result<()> {
    let mut json = serde_json::Deserializer::from_slice(json);
    json.deserialize_map(MemberVisitor(each))?;
    json.end()
}

/// Whether Go matches a member name to a field name, which must be lower case.
// Go: encoding/json/fold.go
pub fn is_field(name: &str, field: &str) -> bool {
    let folded = name.chars().map(|character| match character {
        '\u{17F}' => 's',
        '\u{212A}' => 'k',
        other => other.to_ascii_lowercase(),
    });
    folded.eq(field.chars())
}

/// The value of a member; `None` for `null`.
pub fn value<T: DeserializeOwned>(member: &RawValue) -> serde_json::Result<Option<T>> {
    serde_json::from_str(member.get())
}

/// Fails on a duplicate name in an object at any depth, and on a number outside the range of a double.
// go-jose: json/decode.go
pub(super) fn check_unambiguous(json: &[u8]) -> serde_json::Result<()> {
    serde_json::from_slice(json).map(|UnambiguousJson| ())
}

struct MemberVisitor<F>(F);

#[derive(Deserialize)]
struct MemberName<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, F: FnMut(&str, &RawValue)> Visitor<'de> for MemberVisitor<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((MemberName(name), member)) = map.next_entry::<_, &RawValue>()? {
            (self.0)(&name, member);
        }
        Ok(())
    }
}

struct UnambiguousJson;

impl<'de> Deserialize<'de> for UnambiguousJson {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for UnambiguousJson {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self, A::Error> {
        let mut names = HashSet::new();
        while let Some((name, Self)) = object.next_entry::<String, Self>()? {
            if !names.insert(name) {
                return Err(A::Error::custom("duplicate member name"));
            }
        }
        Ok(self)
    }
}
