//! Objects in bodies, as audit events hold them: as JSON, and the parts of their metadata that the event names.
//!
//! A body is read as Go reads it where that decides which object an event names: of a key that is there twice, the last
//! value counts, and a client cannot hide a name behind another.

use std::borrow::Cow;
use std::fmt;
use std::io::Read as _;
use std::sync::Arc;

use flate2::read::GzDecoder;
use http::HeaderValue;
use prost::Message;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_saphyr::DuplicateKeyPolicy;

use portcullis_kubernetes::encoding::{Envelope, TypeMeta};

const UNREADABLE_YAML: &str = "YAML that cannot be read";
/// The longest YAML that is read. Its parser is slower than that of JSON.
const MAX_YAML_BYTES: usize = 256 << 10;

/// The encoding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Protobuf,
    Yaml,
    /// One that is not read, such as CBOR or compressed bytes.
    Other,
}

impl Encoding {
    /// The encoding that a `Content-Type` header names; without one it is JSON.
    pub(super) fn of(content_type: Option<&HeaderValue>) -> Self {
        let value = content_type.map(HeaderValue::as_bytes).unwrap_or_default();
        let media_type = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        match media_type.to_ascii_lowercase().as_slice() {
            b"" | b"application/json" => Self::Json,
            b"application/vnd.kubernetes.protobuf" => Self::Protobuf,
            b"application/yaml" | b"application/apply-patch+yaml" => Self::Yaml,
            media_type if media_type.ends_with(b"+json") => Self::Json,
            _ => Self::Other,
        }
    }
}

/// The metadata by which an event names an object. Empty texts are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) resource_version: String,
}

/// The metadata of an object; `None` if it cannot be read.
pub(super) fn metadata(encoding: Encoding, body: &[u8]) -> Option<Metadata> {
    match encoding {
        Encoding::Json => json_metadata(body),
        Encoding::Protobuf => Some(protobuf_metadata(body)?.1),
        Encoding::Yaml => json_metadata(yaml_as_json(body)?.as_bytes()),
        Encoding::Other => None,
    }
}

/// An object as JSON; `None` if it is not valid JSON, which no API server reads; the reason, if it is not shown otherwise.
pub(super) fn as_json(
    encoding: Encoding,
    body: &[u8],
    omit_managed_fields: bool,
) -> Result<Option<Arc<RawValue>>, &'static str> {
    let text = match encoding {
        Encoding::Json => String::from_utf8_lossy(body).into_owned(),
        Encoding::Protobuf => return protobuf_as_json(body).map(Some).ok_or("protobuf that cannot be read"),
        Encoding::Yaml => yaml_as_json(body).ok_or(UNREADABLE_YAML)?,
        Encoding::Other => return Err("an encoding that is not read"),
    };
    let Ok(object) = RawValue::from_string(text) else { return Ok(None) };
    let object = if omit_managed_fields { without_managed_fields(&object).unwrap_or(object) } else { object };
    Ok(Some(object.into()))
}

/// A patch as JSON; the reason, if it is not shown. The API server refuses one that it cannot decode, before it records it. YAML that it
/// may decode, and this does not, is shown as its text.
// apiserver: pkg/endpoints/handlers/patch.go, validateAndTranscodePatch
pub(super) fn patch(encoding: Encoding, body: &[u8]) -> Result<Arc<RawValue>, &'static str> {
    let json = match encoding {
        Encoding::Json => {
            let text = String::from_utf8_lossy(body).into_owned();
            return RawValue::from_string(text).map(Into::into).map_err(|_| "a patch that is no JSON");
        }
        // JSON stays as it is.
        // apimachinery: pkg/util/yaml/decoder.go, IsJSONBuffer
        Encoding::Yaml => match serde_json::from_slice::<&RawValue>(body) {
            Ok(json) => return Ok(json.to_owned().into()),
            Err(_) => yaml_as_json(body),
        },
        Encoding::Protobuf | Encoding::Other => return Err("an encoding that is not read"),
    };
    let shown = match json {
        Some(json) => RawValue::from_string(json),
        None if may_be_read_elsewhere(body) => {
            to_raw_value(std::str::from_utf8(body).map_err(|_| UNREADABLE_YAML)?)
        }
        None => return Err(UNREADABLE_YAML),
    };
    shown.map(Into::into).map_err(|_| UNREADABLE_YAML)
}

/// Whether YAML that is not read here may be read by the API server: it is long, or has aliases.
fn may_be_read_elsewhere(body: &[u8]) -> bool {
    body.len() > MAX_YAML_BYTES || body.contains(&b'*')
}

/// The bytes of a compressed body.
pub(super) fn decompress(body: &[u8], limit: usize) -> Result<Vec<u8>, &'static str> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    let read = GzDecoder::new(body).take(limit.saturating_add(1)).read_to_end(&mut bytes);
    match read.map(u64::try_from) {
        Ok(Ok(length)) if length <= limit => Ok(bytes),
        Ok(_) => Err("larger than 3145728 bytes"),
        Err(_) => Err("compressed bytes that cannot be read"),
    }
}

pub(super) fn yaml_as_json(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok().filter(|text| text.len() <= MAX_YAML_BYTES)?;
    let options = serde_saphyr::options! {
        // Without aliases an object is no larger than its text.
        budget: serde_saphyr::budget! { max_aliases: 0, max_total_scalar_bytes: MAX_YAML_BYTES },
        duplicate_keys: DuplicateKeyPolicy::LastWins,
    };
    let value: serde_json::Value = serde_saphyr::from_str_with_options(text, options).ok()?;
    serde_json::to_string(&value).ok()
}

/// A body of YAML as JSON, and any other as it is, so that YAML is read only once; the reason, if it cannot be read.
pub(super) fn without_yaml(
    encoding: Encoding,
    body: &[u8],
) -> Result<(Encoding, Cow<'_, [u8]>), &'static str> {
    match encoding {
        Encoding::Yaml => {
            let json = yaml_as_json(body).ok_or(UNREADABLE_YAML)?;
            Ok((Encoding::Json, json.into_bytes().into()))
        }
        _ => Ok((encoding, body.into())),
    }
}

/// Removes the managed fields of an object, of the items of a list, and of the objects in the rows of a table.
// apiserver: pkg/audit/request.go, copyWithoutManagedFields
fn without_managed_fields(object: &RawValue) -> Option<Box<RawValue>> {
    let edited = edit_object(object.get(), &mut |key, value| match key {
        "items" => Some(edit_list(value, edit_metadata)),
        "rows" => Some(edit_list(value, edit_row)),
        _ => Some(value.to_owned()),
    })?;
    RawValue::from_string(edit_metadata(&edited)).ok()
}

/// The row without the managed fields of its object.
fn edit_row(row: &str) -> String {
    let edited = edit_object(row, &mut |key, value| {
        Some(if key == "object" { edit_metadata(value) } else { value.to_owned() })
    });
    edited.unwrap_or_else(|| row.to_owned())
}

/// The object without the managed fields in its metadata; any other value as it is.
fn edit_metadata(object: &str) -> String {
    let edited = edit_object(object, &mut |key, value| {
        if key != "metadata" {
            return Some(value.to_owned());
        }
        let kept = edit_object(value, &mut |key, value| (key != "managedFields").then(|| value.to_owned()));
        Some(kept.unwrap_or_else(|| value.to_owned()))
    });
    edited.unwrap_or_else(|| object.to_owned())
}

/// The object with each value that `edit` returns, in order; `None` if it is no object.
fn edit_object(object: &str, edit: &mut dyn FnMut(&str, &str) -> Option<String>) -> Option<String> {
    let Fields(fields) = serde_json::from_str(object).ok()?;
    let mut out = String::with_capacity(object.len());
    for (key, value) in fields {
        let Some(value) = edit(&key, value.get()) else { continue };
        out.push(if out.is_empty() { '{' } else { ',' });
        out.push_str(&serde_json::to_string(&key).ok()?);
        out.push(':');
        out.push_str(&value);
    }
    out.push_str(if out.is_empty() { "{}" } else { "}" });
    Some(out)
}

/// The list with each item as `edit` returns it; any other value as it is.
fn edit_list(list: &str, edit: fn(&str) -> String) -> String {
    let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(list) else { return list.to_owned() };
    let items: Vec<String> = items.iter().map(|item| edit(item.get())).collect();
    format!("[{}]", items.join(","))
}

/// The fields of an object as they are, in order.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = entries.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(FieldsVisitor)
    }
}

fn json_metadata(body: &[u8]) -> Option<Metadata> {
    let read = |body: &[u8]| {
        let mut metadata = Metadata::default();
        let mut reader = serde_json::Deserializer::from_slice(body);
        ObjectSeed(&mut metadata).deserialize(&mut reader).ok()?;
        reader.end().ok()?;
        Some(metadata)
    };
    read(body).or_else(|| read(with_replacements(body).as_bytes()))
}

/// The text with U+FFFD for what Go replaces by it: bytes that are no UTF-8, and halves of surrogate pairs.
// Go: encoding/json/decode.go, unquoteBytes
fn with_replacements(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let mut out = String::with_capacity(text.len());
    let mut rest: &str = &text;
    while let Some(at) = rest.find('\\') {
        let (plain, escape) = rest.split_at(at);
        out.push_str(plain);
        let length = match (unit(escape), escape.get(6..).and_then(unit)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                out.push('\u{fffd}');
                rest = escape.get(6..).unwrap_or_default();
                continue;
            }
            // The escaped character may be a backslash.
            _ => 1 + escape.chars().nth(1).map_or(0, char::len_utf8),
        };
        let (escape, tail) = escape.split_at_checked(length).unwrap_or((escape, ""));
        out.push_str(escape);
        rest = tail;
    }
    out + rest
}

/// The UTF-16 code unit of the escape at the beginning of a text.
fn unit(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok())?
}

/// Reads the metadata of an object into the same place each time that it is there, as Go does.
struct ObjectSeed<'a>(&'a mut Metadata);
struct MetadataSeed<'a>(&'a mut Metadata);

impl<'de> DeserializeSeed<'de> for ObjectSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ObjectSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(key) = entries.next_key::<Key>()? {
            if key == Key::Metadata {
                entries.next_value_seed(MetadataSeed(self.0))?;
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for MetadataSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MetadataSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metadata")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let metadata = self.0;
        while let Some(key) = entries.next_key::<Key>()? {
            let field = match key {
                Key::Name => &mut metadata.name,
                Key::Namespace => &mut metadata.namespace,
                Key::Uid => &mut metadata.uid,
                Key::ResourceVersion => &mut metadata.resource_version,
                Key::Metadata | Key::Other => {
                    entries.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            // Null changes nothing.
            if let Some(value) = entries.next_value::<Option<String>>()? {
                *field = value;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum Key {
    Metadata,
    Name,
    Namespace,
    Uid,
    ResourceVersion,
    #[serde(other)]
    Other,
}

/// An object of any kind in protobuf: all have their metadata in the first field.
// k8s.io/api: */generated.proto
#[derive(Clone, PartialEq, Message)]
struct ObjectMessage {
    #[prost(message, optional, tag = "1")]
    metadata: Option<MetadataMessage>,
}

// apimachinery: pkg/apis/meta/v1/generated.proto, ObjectMeta
#[derive(Clone, PartialEq, Eq, Message)]
struct MetadataMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
    #[prost(string, tag = "6")]
    resource_version: String,
}

fn protobuf_metadata(body: &[u8]) -> Option<(TypeMeta, Metadata)> {
    let Envelope { meta, raw, .. } = Envelope::read(body)?;
    let read = ObjectMessage::decode(raw.as_slice()).ok()?.metadata.unwrap_or_default();
    let MetadataMessage { name, namespace, uid, resource_version } = read;
    Some((meta, Metadata { name, namespace, uid, resource_version }))
}

/// What is known of an object in protobuf without its schema.
fn protobuf_as_json(body: &[u8]) -> Option<Arc<RawValue>> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct IdentifiedObject {
        kind: String,
        api_version: String,
        metadata: Metadata,
    }
    let (TypeMeta { api_version, kind }, metadata) = protobuf_metadata(body)?;
    to_raw_value(&IdentifiedObject { kind, api_version, metadata }).ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn name(body: &str) -> Option<String> {
        metadata(Encoding::Json, body.as_bytes()).map(|metadata| metadata.name)
    }

    #[test]
    fn a_name_is_read_as_go_reads_it() {
        for (body, expected) in [
            (r#"{"metadata":{"name":"a"}}"#, Some("a")),
            (
                r#"{"spec":{"metadata":{"name":"b"}},"metadata":{"labels":{"name":"c"},"name":"a"}}"#,
                Some("a"),
            ),
            // Of two, the last counts; two objects are one.
            (r#"{"metadata":{"name":"b","name":"a"}}"#, Some("a")),
            (r#"{"metadata":{"name":"b"},"metadata":{"name":"a"}}"#, Some("a")),
            (r#"{"metadata":{"name":"a"},"metadata":{"namespace":"b"}}"#, Some("a")),
            (r#"{"metadata":{"name":"a"},"metadata":null}"#, Some("a")),
            (r#"{"metadata":{"name":"a","name":null}}"#, Some("a")),
            (r#"{"Metadata":{"name":"a"}}"#, Some("")),
            (r#"{"metadata":{"name":"\u0061"}}"#, Some("a")),
            ("{}", Some("")),
            ("null", Some("")),
            // The API server reads none of these.
            (r#"{"metadata":{"name":5}}"#, None),
            (r#"{"metadata":[]}"#, None),
            (r#"{"metadata":{"name":"a"}} {}"#, None),
            (r#"{"metadata":{"name":"a""#, None),
            ("[]", None),
        ] {
            assert_eq!(name(body).as_deref(), expected, "{body}");
        }
        // Deep nesting elsewhere hides nothing.
        let deep = format!(r#"{{"a":{}1{},"metadata":{{"name":"a"}}}}"#, "[".repeat(5000), "]".repeat(5000));
        assert_eq!(name(&deep).as_deref(), Some("a"));
        // Go replaces what is no character.
        for body in [
            r#"{"\ud800":1,"metadata":{"name":"a"}}"#,
            r#"{"metadata":{"name":"a","\udfff":1}}"#,
            r#"{"metadata":{"name":"a","uid":"\ud800"}}"#,
            r#"{"metadata":{"name":"a","uid":"\ud800\\ud800\ud83d\ude00\ud83d\u0061"}}"#,
        ] {
            assert_eq!(name(body).as_deref(), Some("a"), "{body}");
        }
        let key = [br#"{""#.as_slice(), b"\xff", br#"":1,"metadata":{"name":"a"}}"#].concat();
        assert_eq!(metadata(Encoding::Json, &key).unwrap().name, "a");
        let replaced = name(r#"{"metadata":{"name":"\ud800b\\ud800\ud83d\ude00\ud83d\u0061"}}"#);
        assert_eq!(replaced.unwrap(), "\u{fffd}b\\ud800\u{1f600}\u{fffd}a");
        let invalid = [br#"{"a":""#.as_slice(), b"\xff", br#"","metadata":{"name":"a"}}"#].concat();
        assert_eq!(metadata(Encoding::Json, &invalid).unwrap().name, "a");
    }

    #[test]
    fn a_name_is_read_from_protobuf_and_yaml() {
        let object = ObjectMessage {
            metadata: Some(MetadataMessage { name: "a".to_owned(), ..MetadataMessage::default() }),
        };
        let bytes = Envelope::of("v1", "Pod", &object).to_bytes();
        assert_eq!(metadata(Encoding::Protobuf, &bytes).unwrap().name, "a");
        let shown = as_json(Encoding::Protobuf, &bytes, false).unwrap().unwrap();
        assert_eq!(shown.get(), r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}"#);
        assert_eq!(metadata(Encoding::Yaml, b"metadata:\n  name: a\n").unwrap().name, "a");
        assert_eq!(metadata(Encoding::Other, b"{}"), None);
        assert_eq!(
            metadata(Encoding::Yaml, b"a: 1\na: 2\nmetadata: {name: b}\nmetadata: {name: a}\n").unwrap().name,
            "a"
        );
        // An alias may make an object of any size of a small text.
        assert_eq!(yaml_as_json(b"a: &a [1]\nb: [*a, *a]\n"), None);
        assert_eq!(yaml_as_json(b"a: &a [1]\n").unwrap(), r#"{"a":[1]}"#);
    }

    #[test]
    fn managed_fields_are_removed() {
        let meta = || json!({"name": "a", "managedFields": [1]});
        let object = json!({
            "metadata": meta(),
            "items": [{"metadata": meta()}, 1],
            "rows": [{"object": {"metadata": meta()}}],
        });
        let text = serde_json::to_vec(&object).unwrap();
        let kept = as_json(Encoding::Json, &text, false).unwrap().unwrap();
        assert_eq!(kept.get().as_bytes(), text);
        let shown = as_json(Encoding::Json, &text, true).unwrap().unwrap();
        let meta = || json!({"name": "a"});
        assert_eq!(
            serde_json::from_str::<Value>(shown.get()).unwrap(),
            json!({"metadata": meta(), "items": [{"metadata": meta()}, 1], "rows": [{"object": {"metadata": meta()}}]})
        );
    }

    #[test]
    fn a_patch_is_shown_as_json() {
        let shown =
            |encoding, body: &str| patch(encoding, body.as_bytes()).map(|patch| patch.get().to_owned());
        let json = r#"[{"op":"test"}]"#;
        assert_eq!(shown(Encoding::Json, json).unwrap(), json);
        assert_eq!(shown(Encoding::Yaml, "a: \"b\"\n").unwrap(), r#"{"a":"b"}"#);
        // JSON is YAML; the API server passes it on as it is.
        let json = r#" {"b":1, "a":[2]}"#;
        assert_eq!(shown(Encoding::Yaml, json).unwrap(), json.trim());
        assert_eq!(shown(Encoding::Yaml, "{a: b}").unwrap(), r#"{"a":"b"}"#);
        // The API server may read these, and the gateway does not: an event without them would hide what was written.
        let long = format!("a: b\n#{}", "x".repeat(MAX_YAML_BYTES));
        for text in ["a: &x b\nc: *x\n", &long] {
            assert_eq!(shown(Encoding::Yaml, text).unwrap(), serde_json::to_string(text).unwrap());
        }
        for (encoding, body) in
            [(Encoding::Json, "{"), (Encoding::Yaml, "{"), (Encoding::Yaml, "a: ["), (Encoding::Other, "{}")]
        {
            assert!(shown(encoding, body).is_err(), "{encoding:?} {body}");
        }
    }

    #[test]
    fn encodings_are_told_by_the_content_type() {
        for (content_type, expected) in [
            ("", Encoding::Json),
            ("application/json; charset=utf-8", Encoding::Json),
            ("application/merge-patch+json", Encoding::Json),
            ("Application/vnd.kubernetes.protobuf;stream=watch", Encoding::Protobuf),
            ("application/yaml", Encoding::Yaml),
            ("application/cbor", Encoding::Other),
            ("text/plain", Encoding::Other),
        ] {
            assert_eq!(
                Encoding::of(Some(&HeaderValue::from_static(content_type))),
                expected,
                "{content_type}"
            );
        }
        assert_eq!(Encoding::of(None), Encoding::Json);
    }
}
