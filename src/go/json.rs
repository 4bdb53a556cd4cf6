//! JSON as Go reads it into structures.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, IntoDeserializer as _, MapAccess, Visitor,
};

/// A structure that is written as an object and never as a list of its members, which what is derived for it takes too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Object<T>(pub(crate) T);

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

/// The same, as go-jose reads it: no name comes twice, not even one that stands for nothing in the structure. What such a
/// name has as its value may be of any form.
// go-jose v2: json/decode.go, decodeState.object
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DistinctObject<T>(pub(crate) T);

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
            // The words of what is derived for a field.
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
