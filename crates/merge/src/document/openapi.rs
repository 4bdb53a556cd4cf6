//! Schemas as OpenAPI v3 writes them, as far as they matter here.
//!
//! A schema is read piece by piece, and what does not matter is not kept: not even an enumeration that is the whole document.

use std::fmt;

use portcullis_go::json::{JsonValue, Object};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::value::RawValue;
use serde_json::{Number, Value};

/// The largest value of an extension, in bytes of text. A schema with the kinds of all groups has some thousand.
const MAX_EXTENSION: usize = 64 << 10;

/// The largest default that is kept, in bytes. A default matters for keys alone, and is compared with each element of a list.
pub(super) const MAX_DEFAULT: usize = 1 << 10;

/// What matters of a schema. What is rare is behind a pointer: a hostile document has many small schemas.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Schema {
    #[serde(rename = "$ref", default, deserialize_with = "text")]
    reference: Option<Box<str>>,
    #[serde(rename = "type", default, deserialize_with = "first_text")]
    pub(crate) kind: Option<Box<str>>,
    pub(crate) format: Option<Box<str>>,
    #[serde(default, deserialize_with = "brief")]
    pub(crate) default: Option<Box<RawValue>>,
    pub(crate) items: Option<Items>,
    #[serde(rename = "allOf")]
    all_of: Option<AllOf>,
    pub(crate) properties: Option<Properties>,
    #[serde(rename = "additionalProperties")]
    pub(crate) additional_properties: Option<AdditionalProperties>,
    #[serde(rename = "x-kubernetes-int-or-string", default, deserialize_with = "is_true")]
    pub(crate) int_or_string: bool,
    #[serde(rename = "x-kubernetes-embedded-resource", default, deserialize_with = "is_true")]
    pub(crate) embedded_resource: bool,
    #[serde(rename = "x-kubernetes-preserve-unknown-fields", default, deserialize_with = "present")]
    pub(crate) preserve_unknown_fields: Option<Box<RawValue>>,
    #[serde(rename = "x-kubernetes-list-type", default, deserialize_with = "present")]
    pub(crate) list_type: Option<Box<RawValue>>,
    #[serde(rename = "x-kubernetes-list-map-keys", default, deserialize_with = "present")]
    pub(crate) list_map_keys: Option<Box<RawValue>>,
    #[serde(rename = "x-kubernetes-patch-strategy", default, deserialize_with = "present")]
    pub(crate) patch_strategy: Option<Box<RawValue>>,
    #[serde(rename = "x-kubernetes-patch-merge-key", default, deserialize_with = "present")]
    pub(crate) patch_merge_key: Option<Box<RawValue>>,
    #[serde(rename = "x-kubernetes-map-type", default, deserialize_with = "present")]
    pub(crate) map_type: Option<Box<RawValue>>,
    #[serde(rename = "x-kubernetes-group-version-kind", default, deserialize_with = "present")]
    pub(crate) kinds: Option<Box<RawValue>>,
}

/// The value of a key, if it is there. Its text has been read before, and is kept instead of a value, which takes many times as much.
pub(crate) fn value(of: Option<&RawValue>) -> Option<Value> {
    read(of?).ok()
}

/// A value as kube-openapi reads it.
fn read(raw: &RawValue) -> Result<Value, serde_json::Error> {
    let JsonValue(mut value) = serde_json::from_str::<JsonValue>(raw.get())?;
    make_doubles(&mut value);
    Ok(value)
}

impl Schema {
    /// The reference of the schema itself; empty if it has none.
    pub(crate) fn reference(&self) -> &str {
        let own = self.reference.as_deref().unwrap_or_default();
        // A fragment without content is none.
        own.strip_suffix('#').unwrap_or(own)
    }

    /// Whether the schema allows everything and says nothing about it. It is then what the built-in type for such values is.
    pub(crate) fn says_nothing(&self) -> bool {
        let Self {
            kind, items, properties, additional_properties, list_type, patch_strategy, map_type, ..
        } = self;
        kind.as_deref().is_none_or(str::is_empty)
            && items.is_none()
            && properties.is_none()
            && additional_properties.is_none()
            && list_type.is_none()
            && patch_strategy.is_none()
            && map_type.is_none()
    }

    /// The schema that this one refers to, itself or as any of `allOf`.
    // apiserver: pkg/cel/openapi/resolver/refs.go — refOf
    pub(crate) fn refers_to(&self) -> Option<&str> {
        let wrapped = self.all_of.as_ref().map(AllOf::first_reference).unwrap_or_default();
        let own = self.reference();
        let reference = if own.is_empty() { wrapped } else { own };
        reference.rsplit('/').next().filter(|name| !name.is_empty())
    }

    /// The type that the schema refers to, itself or as the only one of `allOf`.
    pub(crate) fn type_name(&self) -> Option<&str> {
        let own = self.reference();
        let reference = match &self.all_of {
            Some(AllOf { count: 1, first, .. }) if own.is_empty() => first.reference(),
            _ => own,
        };
        reference.rsplit('/').next().filter(|name| !name.is_empty())
    }
}

/// A reference that is no text is none.
fn text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<str>>, D::Error> {
    let raw = Box::<RawValue>::deserialize(from)?;
    if !raw.get().starts_with('"') {
        return Ok(None);
    }
    match read(&raw).map_err(de::Error::custom)? {
        Value::String(text) => Ok(Some(text.into())),
        _ => Ok(None),
    }
}

/// A key that is there, whatever its value.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    let raw = Box::<RawValue>::deserialize(from)?;
    if raw.get().len() > MAX_EXTENSION {
        return Err(de::Error::custom(format_args!(
            "an extension has more than {} KiB",
            MAX_EXTENSION >> 10
        )));
    }
    read(&raw).map_err(de::Error::custom)?;
    Ok(Some(raw))
}

/// The same of a value that is not kept if it is long.
fn brief<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    let raw = Box::<RawValue>::deserialize(from)?;
    if raw.get().len() > MAX_DEFAULT {
        return Ok(None);
    }
    read(&raw).map_err(de::Error::custom)?;
    Ok(Some(raw))
}

/// An extension that is on, or not there; any other value is as if it were not there.
fn is_true<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    Ok(Box::<RawValue>::deserialize(from)?.get() == "true")
}

/// Turns numbers into doubles, as kube-openapi reads them all.
fn make_doubles(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(double) = number.as_f64().and_then(Number::from_f64) {
                *number = double;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_doubles),
        Value::Object(fields) => fields.values_mut().for_each(make_doubles),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// The first of the types: there is one alone since OpenAPI v3.
fn first_text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<str>>, D::Error> {
    struct First;
    impl<'de> Visitor<'de> for First {
        type Value = Option<Box<str>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("string or array")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
            Ok(Some(text.into()))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            let first = items.next_element::<Option<Box<str>>>()?.flatten();
            while items.next_element::<Option<Box<str>>>()?.is_some() {}
            Ok(first)
        }
    }
    from.deserialize_any(First)
}

#[derive(Debug)]
pub(crate) enum Items {
    One(Box<Schema>),
    /// There is another number of schemas, or something else.
    Other,
}

impl<'de> Deserialize<'de> for Items {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Items;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a schema")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Items, A::Error> {
                Schema::deserialize(MapAccessDeserializer::new(map)).map(Box::new).map(Items::One)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Items, A::Error> {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Items::Other)
            }

            fn visit_bool<E>(self, _: bool) -> Result<Items, E> {
                Ok(Items::Other)
            }

            fn visit_u64<E>(self, _: u64) -> Result<Items, E> {
                Ok(Items::Other)
            }

            fn visit_i64<E>(self, _: i64) -> Result<Items, E> {
                Ok(Items::Other)
            }

            fn visit_f64<E>(self, _: f64) -> Result<Items, E> {
                Ok(Items::Other)
            }

            fn visit_str<E>(self, _: &str) -> Result<Items, E> {
                Ok(Items::Other)
            }
        }
        from.deserialize_any(Any)
    }
}

#[derive(Debug)]
pub(crate) enum AdditionalProperties {
    Schema(Box<Schema>),
    Allowed(bool),
}

impl<'de> Deserialize<'de> for AdditionalProperties {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct SchemaOrBool;
        impl<'de> Visitor<'de> for SchemaOrBool {
            type Value = AdditionalProperties;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("object or bool")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let schema = Schema::deserialize(MapAccessDeserializer::new(map))?;
                Ok(AdditionalProperties::Schema(Box::new(schema)))
            }

            fn visit_bool<E>(self, allowed: bool) -> Result<Self::Value, E> {
                Ok(AdditionalProperties::Allowed(allowed))
            }
        }
        from.deserialize_any(SchemaOrBool)
    }
}

/// How many schemas there are, the reference of the first one, and the first reference of any.
#[derive(Debug)]
struct AllOf {
    count: usize,
    first: Box<Reference>,
    /// One of a later schema.
    later: Option<Box<str>>,
}

impl AllOf {
    fn first_reference(&self) -> &str {
        let later = self.later.as_deref().unwrap_or_default();
        Some(self.first.reference()).filter(|first| !first.is_empty()).unwrap_or(later)
    }
}

#[derive(Debug, Default, Deserialize)]
struct Reference {
    #[serde(rename = "$ref", default, deserialize_with = "text")]
    reference: Option<Box<str>>,
}

impl Reference {
    fn reference(&self) -> &str {
        let own = self.reference.as_deref().unwrap_or_default();
        own.strip_suffix('#').unwrap_or(own)
    }
}

impl<'de> Deserialize<'de> for AllOf {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Counted;
        impl<'de> Visitor<'de> for Counted {
            type Value = AllOf;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of schemas")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<AllOf, A::Error> {
                let first = items.next_element::<Option<Object<Reference>>>()?;
                let mut count = usize::from(first.is_some());
                let mut later = None;
                while let Some(next) = items.next_element::<Option<Object<Reference>>>()? {
                    count += 1;
                    later = later.or_else(|| next?.0.reference);
                }
                Ok(AllOf { count, first: Box::new(first.flatten().unwrap_or_default().0), later })
            }
        }
        from.deserialize_seq(Counted)
    }
}

/// The properties of an object, sorted by name.
#[derive(Debug)]
pub(crate) struct Properties(pub(crate) Vec<(Box<str>, Schema)>);

impl<'de> Deserialize<'de> for Properties {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Properties;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of schemas")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Properties, A::Error> {
                let mut pairs: Vec<(Box<str>, Schema)> = Vec::new();
                while let Some((name, schema)) = map.next_entry::<_, Option<Object<Schema>>>()? {
                    pairs.push((name, schema.unwrap_or_default().0));
                }
                pairs.sort_by(|(left, _), (right, _)| left.cmp(right));
                if let Some([(name, _), _]) =
                    pairs.array_windows().find(|[(left, _), (right, _)]| left == right)
                {
                    return Err(de::Error::custom(format!("duplicate property {name}")));
                }
                Ok(Properties(pairs))
            }
        }
        from.deserialize_map(Pairs)
    }
}
