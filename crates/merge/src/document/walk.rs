//! Walks through a document from schema to schema, so that one of them at a time is in memory as it was written.

use std::fmt;

use portcullis_go::json::Object;
use serde::de;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::openapi::Schema;
use crate::errors::SchemaError;

/// The most members of objects in a document, or colons in it. That of Kubernetes' core has 28,000.
const MAX_MEMBERS: usize = 250_000;

/// What each of them takes at most while a schema is read and turned into a type, in bytes.
const BYTES_PER_MEMBER: usize = 500;

/// How much memory it takes to read a document, at most, in bytes, beside its text and the types.
#[expect(clippy::naive_bytecount, reason = "one pass of many over the document is worth no dependency")]
pub(crate) fn memory(document: &[u8]) -> Result<usize, SchemaError> {
    // Each schema is at least a member of an object, and what else may be long is kept as text.
    let members = document.iter().filter(|byte| **byte == b':').count();
    if members > MAX_MEMBERS {
        return Err(SchemaError::TooLarge);
    }
    Ok(members * BYTES_PER_MEMBER + document.len())
}

/// Takes the schemas of a document.
pub(crate) trait Sink {
    /// Takes one, or says why the document is none to be read.
    fn add(&mut self, name: &str, schema: Schema) -> Result<(), String>;
}

/// Reads a document into a sink.
pub(crate) fn walk(document: &[u8], sink: &mut dyn Sink) -> Result<(), SchemaError> {
    memory(document)?;
    let mut json = serde_json::Deserializer::from_slice(document);
    Part::Document.of(sink).deserialize(&mut json)?;
    Ok(json.end()?)
}

/// A part of the document on the way to the schemas, which are converted one by one.
#[derive(Debug, Clone, Copy)]
enum Part {
    Document,
    Components,
    Schemas,
}

impl Part {
    fn of(self, sink: &mut dyn Sink) -> Walk<'_> {
        Walk { part: self, sink }
    }
}

struct Walk<'s> {
    part: Part,
    sink: &'s mut dyn Sink,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of an OpenAPI v3 document")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match (self.part, &*key) {
                (Part::Document, "components") => map.next_value_seed(Part::Components.of(self.sink))?,
                (Part::Components, "schemas") => map.next_value_seed(Part::Schemas.of(self.sink))?,
                (Part::Document | Part::Components, _) => {
                    map.next_value::<IgnoredAny>()?;
                }
                (Part::Schemas, name) => {
                    let schema = map.next_value::<Option<Object<Schema>>>()?;
                    let Object(schema) =
                        schema.ok_or_else(|| de::Error::custom(format!("schema {name} is null")))?;
                    self.sink.add(name, schema).map_err(de::Error::custom)?;
                }
            }
        }
        Ok(())
    }
}
