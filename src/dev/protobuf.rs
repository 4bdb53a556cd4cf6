//! Request bodies in Kubernetes' protobuf envelope, which kubectl sends for its built-in types and which has no
//! fallback to JSON. Decoded straight to JSON, for the types and fields that kubectl writes and the backend reads;
//! answers are always JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::encoding::{WireType, decode_key, decode_varint};
use serde_json::{Map, Value};

use super::json::set;
use crate::http::encoding::Envelope;

/// Message, then its fields: number, JSON name, and a type unless it is text. `[…]` repeats, `{…}` maps from text.
// From the generated.proto files of k8s.io/api and k8s.io/apimachinery 1.36.
#[rustfmt::skip]
const MESSAGES: &[&str] = &[
    "ObjectMeta 1:name 3:namespace 6:resourceVersion 11:labels={text} 12:annotations={text}",
    "DeleteOptions 5:dryRun=[text]",
    "ConfigMap 1:metadata=ObjectMeta 2:data={text} 3:binaryData={bytes} 4:immutable=bool",
    "Secret 1:metadata=ObjectMeta 2:data={bytes} 3:type 4:stringData={text} 5:immutable=bool",
    "ServiceAccount 1:metadata=ObjectMeta 4:automountServiceAccountToken=bool",
    "Namespace 1:metadata=ObjectMeta",
    "CertificateSigningRequest 1:metadata=ObjectMeta 2:spec=CsrSpec 3:status=CsrStatus",
    "CsrSpec 1:request=bytes 5:usages=[text] 7:signerName 8:expirationSeconds=int",
    "CsrStatus 1:conditions=[CsrCondition]",
    "CsrCondition 1:type 2:reason 3:message 6:status",
    "SelfSubjectReview 1:metadata=ObjectMeta",
    "SelfSubjectAccessReview 1:metadata=ObjectMeta 2:spec=AccessSpec",
    "AccessSpec 1:resourceAttributes=ResourceAttributes 2:nonResourceAttributes=NonResourceAttributes",
    "ResourceAttributes 1:namespace 2:verb 3:group 4:version 5:resource 6:subresource 7:name",
    "NonResourceAttributes 1:path 2:verb",
];

/// The object in an envelope; `None` if it is none, or of a type that is not known here.
pub(super) fn decode(body: &[u8]) -> Option<Value> {
    let Envelope { meta, raw, .. } = Envelope::read(body)?;
    let mut object = value(&meta.kind, Wire::Bytes(&raw)).filter(Value::is_object)?;
    set(&mut object, "/apiVersion", meta.api_version);
    set(&mut object, "/kind", meta.kind);
    Some(object)
}

/// The fields of a message that are wanted; the others are passed over.
fn fields(wanted: &str, mut bytes: &[u8]) -> Option<Map<String, Value>> {
    let mut object = Map::new();
    while !bytes.is_empty() {
        let (number, wire) = next_field(&mut bytes)?;
        let known = wanted.split_whitespace().find_map(|field| {
            let (known, rest) = field.split_once(':')?;
            (known.parse() == Ok(number)).then(|| rest.split_once('=').unwrap_or((rest, "text")))
        });
        let Some((field, kind)) = known else { continue };
        if let Some(item) = kind.strip_prefix('[').and_then(|kind| kind.strip_suffix(']')) {
            let items = object.entry(field).or_insert_with(|| Value::Array(Vec::new()));
            items.as_array_mut()?.push(value(item, wire)?);
        } else if let Some(item) = kind.strip_prefix('{').and_then(|kind| kind.strip_suffix('}')) {
            let Wire::Bytes(bytes) = wire else { return None };
            let mut entry = fields(&format!("1:key 2:value={item}"), bytes)?;
            let mut part = |name| entry.remove(name).unwrap_or_else(|| "".into());
            let entries = object.entry(field).or_insert_with(|| Value::Object(Map::new()));
            entries.as_object_mut()?.insert(part("key").as_str()?.to_owned(), part("value"));
        } else {
            object.insert(field.to_owned(), value(kind, wire)?);
        }
    }
    // Go writes fields that are not set as empty ones.
    object.retain(|_, value| value.as_str() != Some(""));
    Some(object)
}

fn value(kind: &str, wire: Wire<'_>) -> Option<Value> {
    Some(match (kind, wire) {
        ("bool", Wire::Number(number)) => (number != 0).into(),
        ("int", Wire::Number(number)) => number.cast_signed().into(),
        ("text", Wire::Bytes(bytes)) => str::from_utf8(bytes).ok()?.into(),
        ("bytes", Wire::Bytes(bytes)) => STANDARD.encode(bytes).into(),
        (name, Wire::Bytes(bytes)) => {
            let message = MESSAGES.iter().filter_map(|line| line.split_once(' '));
            fields(message.into_iter().find(|(known, _)| *known == name)?.1, bytes)?.into()
        }
        (_, Wire::Number(_)) => return None,
    })
}

#[derive(Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Takes the next field from the front.
fn next_field<'a>(bytes: &mut &'a [u8]) -> Option<(u32, Wire<'a>)> {
    let (number, wire_type) = decode_key(bytes).ok()?;
    let value = decode_varint(bytes).ok()?;
    let wire = match wire_type {
        WireType::Varint => Wire::Number(value),
        WireType::LengthDelimited => {
            let (taken, rest) = bytes.split_at_checked(usize::try_from(value).ok()?)?;
            *bytes = rest;
            Wire::Bytes(taken)
        }
        // No type that is known here has a fixed-size number.
        _ => return None,
    };
    Some((number, wire))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
    }

    fn envelope(kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
        [&b"k8s\0"[..], &field(1, &meta), &field(2, raw)].concat()
    }

    #[test]
    fn secret_reads_as_its_json() {
        let label = [field(1, b"a/b"), field(2, b"c")].concat();
        let metadata = [field(1, b"s"), field(3, b""), field(8, b""), field(11, &label)].concat();
        let data = [field(1, b"k"), field(2, b"\xff")].concat();
        let raw = [field(1, &metadata), field(2, &data), field(3, b"Opaque"), vec![5 << 3, 0]].concat();
        let want = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "immutable": false, "data": {"k": "/w=="},
            "metadata": {"name": "s", "labels": {"a/b": "c"}},
        });
        assert_eq!(decode(&envelope("Secret", &raw)), Some(want));
    }

    #[test]
    fn what_is_no_known_object_is_refused() {
        let good = envelope("ConfigMap", &field(1, &field(1, b"n")));
        assert!(decode(&good).is_some());
        for end in 0..good.len() {
            assert!(decode(&good[..end]).is_none_or(|object| object["metadata"].is_null()), "cut at {end}");
        }
        assert_eq!(decode(&envelope("Pod", &[])), None);
        assert_eq!(decode(b"{}"), None);
    }
}
