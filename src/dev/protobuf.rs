//! Decodes request bodies in Kubernetes' protobuf envelope to JSON. kubectl sends its built-in types so, and does not
//! retry with JSON. The table has the fields that kubectl writes and the backend reads. Responses are always JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::encoding::{WireType, decode_key, decode_varint};
use serde_json::{Map, Value, json};

use portcullis_kubernetes::encoding::Envelope;

/// One message per line, with the number, JSON name and type of its fields. The default type is `text`; `[…]` is a
/// repeated field, `{…}` a map from text.
// k8s.io/api and k8s.io/apimachinery 1.36: generated.proto
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

/// Decodes an object; `None` if the bytes are malformed or the type is not in the table.
pub(super) fn decode(body: &[u8]) -> Option<Value> {
    let Envelope { meta, raw, .. } = Envelope::read(body)?;
    let mut object = message(&meta.kind, &raw)?;
    object.insert("apiVersion".to_owned(), meta.api_version.into());
    object.insert("kind".to_owned(), meta.kind.into());
    Some(object.into())
}

fn message(name: &str, bytes: &[u8]) -> Option<Map<String, Value>> {
    fields(MESSAGES.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?, bytes)
}

/// Decodes the fields of a message and skips those that its line of the table does not have.
fn fields(known: &str, mut bytes: &[u8]) -> Option<Map<String, Value>> {
    let mut object = Map::new();
    while !bytes.is_empty() {
        let (number, wire) = next_field(&mut bytes)?;
        let field = known.split(' ').find_map(|field| field.strip_prefix(&format!("{number}:")));
        let Some(field) = field else { continue };
        let (name, kind) = field.split_once('=').unwrap_or((field, "text"));
        if let Some(item) = kind.strip_prefix('[').and_then(|kind| kind.strip_suffix(']')) {
            let items = object.entry(name).or_insert_with(|| json!([]));
            items.as_array_mut()?.push(value(item, wire)?);
        } else if let Some(item) = kind.strip_prefix('{').and_then(|kind| kind.strip_suffix('}')) {
            let entry = fields(&format!("1:key 2:value={item}"), wire.bytes)?;
            let part = |name| entry.get(name).cloned().unwrap_or_else(|| "".into());
            let entries = object.entry(name).or_insert_with(|| json!({}));
            entries.as_object_mut()?.insert(part("key").as_str()?.to_owned(), part("value"));
        } else {
            object.insert(name.to_owned(), value(kind, wire)?);
        }
    }
    // Go writes unset fields as empty ones.
    object.retain(|_, value| value.as_str() != Some(""));
    Some(object)
}

fn value(kind: &str, wire: WireValue<'_>) -> Option<Value> {
    Some(match kind {
        "bool" => (wire.number != 0).into(),
        "int" => wire.number.cast_signed().into(),
        "text" => str::from_utf8(wire.bytes).ok()?.into(),
        "bytes" => STANDARD.encode(wire.bytes).into(),
        name => message(name, wire.bytes)?.into(),
    })
}

/// A varint, or a length with its bytes. The table has no field of a fixed-size type.
#[derive(Clone, Copy)]
struct WireValue<'a> {
    number: u64,
    bytes: &'a [u8],
}

/// Takes the next field from the front.
fn next_field<'a>(bytes: &mut &'a [u8]) -> Option<(u32, WireValue<'a>)> {
    let (field, wire_type) = decode_key(bytes).ok()?;
    let number = decode_varint(bytes).ok()?;
    let length = match wire_type {
        WireType::Varint => 0,
        WireType::LengthDelimited => usize::try_from(number).ok()?,
        _ => return None,
    };
    let (content, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some((field, WireValue { number, bytes: content }))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn malformed_and_unknown_objects_are_refused() {
        let good = envelope("ConfigMap", &field(1, &field(1, b"n")));
        assert!(decode(&good).is_some());
        for end in 0..good.len() {
            assert!(decode(&good[..end]).is_none_or(|object| object["metadata"].is_null()), "cut at {end}");
        }
        assert_eq!(decode(&envelope("Pod", &[])), None);
        assert_eq!(decode(b"{}"), None);
    }
}
