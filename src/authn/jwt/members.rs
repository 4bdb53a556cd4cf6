//! The members of a JSON object one by one, each of which is a text, or hardly anything: what nobody asked for is
//! passed over and never built.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What a name stands for.
pub(super) enum Member {
    /// A text.
    Text(String),
    /// True or false.
    Bool(bool),
    /// `null`.
    Null,
    /// A number, a list or an object.
    Other,
}

/// Calls `each` with the members of an object, in the order in which they are written and as often as they are.
pub(super) fn read(json: &[u8], each: impl FnMut(String, Member)) -> serde_json::Result<()> {
    let mut json = serde_json::Deserializer::from_slice(json);
    json.deserialize_map(Object(each))?;
    json.end()
}

struct Object<F>(F);

impl<'de, F: FnMut(String, Member)> Visitor<'de> for Object<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((name, member)) = map.next_entry()? {
            (self.0)(name, member);
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Member {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(AnyMember)
    }
}

struct AnyMember;

impl<'de> Visitor<'de> for AnyMember {
    type Value = Member;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_str<E>(self, text: &str) -> Result<Member, E> {
        Ok(Member::Text(text.to_owned()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Member, E> {
        Ok(Member::Bool(value))
    }

    fn visit_unit<E>(self) -> Result<Member, E> {
        Ok(Member::Null)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Member, E> {
        Ok(Member::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Member, E> {
        Ok(Member::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Member, E> {
        Ok(Member::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Member, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Member::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Member, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Member::Other)
    }
}
