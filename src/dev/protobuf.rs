//! Request bodies in Kubernetes' protobuf envelope, which kubectl sends for its built-in types and which has no
//! fallback to JSON. Decoded straight to JSON, for the types that kubectl writes here; answers are always JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value};

use super::json::set;

/// Message, then its fields: number, JSON name, and a type unless it is text. `[…]` repeats, `{…}` maps from text.
// From the generated.proto files of k8s.io/api and k8s.io/apimachinery 1.36.
#[rustfmt::skip]
const MESSAGES: &[&str] = &[
    "TypeMeta 1:apiVersion 2:kind",
    "ObjectMeta 1:name 2:generateName 3:namespace 5:uid 6:resourceVersion 8:creationTimestamp=time \
        9:deletionTimestamp=time 11:labels={text} 12:annotations={text} 13:ownerReferences=[OwnerReference] \
        14:finalizers=[text]",
    "OwnerReference 1:kind 3:name 4:uid 5:apiVersion 6:controller=bool 7:blockOwnerDeletion=bool",
    "DeleteOptions 1:gracePeriodSeconds=int 2:preconditions=Preconditions 4:propagationPolicy 5:dryRun=[text]",
    "Preconditions 1:uid 2:resourceVersion",
    "ConfigMap 1:metadata=ObjectMeta 2:data={text} 3:binaryData={bytes} 4:immutable=bool",
    "Secret 1:metadata=ObjectMeta 2:data={bytes} 3:type 4:stringData={text} 5:immutable=bool",
    "ServiceAccount 1:metadata=ObjectMeta 2:secrets=[ObjectReference] 3:imagePullSecrets=[LocalObjectReference] \
        4:automountServiceAccountToken=bool",
    "ObjectReference 1:kind 2:namespace 3:name 4:uid 5:apiVersion 6:resourceVersion 7:fieldPath",
    "LocalObjectReference 1:name",
    "Namespace 1:metadata=ObjectMeta 2:spec=NamespaceSpec 3:status=NamespaceStatus",
    "NamespaceSpec 1:finalizers=[text]",
    "NamespaceStatus 1:phase",
    "CertificateSigningRequest 1:metadata=ObjectMeta 2:spec=CsrSpec 3:status=CsrStatus",
    "CsrSpec 1:request=bytes 2:username 3:uid 4:groups=[text] 5:usages=[text] 6:extra={values} 7:signerName \
        8:expirationSeconds=int",
    "CsrStatus 1:conditions=[CsrCondition] 2:certificate=bytes",
    "CsrCondition 1:type 2:reason 3:message 4:lastUpdateTime=time 5:lastTransitionTime=time 6:status",
    "SelfSubjectReview 1:metadata=ObjectMeta",
    "SelfSubjectAccessReview 1:metadata=ObjectMeta 2:spec=AccessSpec",
    "SubjectAccessReview 1:metadata=ObjectMeta 2:spec=AccessSpec",
    "AccessSpec 1:resourceAttributes=ResourceAttributes 2:nonResourceAttributes=NonResourceAttributes 3:user \
        4:groups=[text] 5:extra={values} 6:uid",
    "ResourceAttributes 1:namespace 2:verb 3:group 4:version 5:resource 6:subresource 7:name",
    "NonResourceAttributes 1:path 2:verb",
    "SelfSubjectRulesReview 1:metadata=ObjectMeta 2:spec=RulesSpec",
    "RulesSpec 1:namespace",
];

/// The object in an envelope; `None` if it is none, or of a type that is not known here.
pub(super) fn decode(body: &[u8]) -> Option<Value> {
    let mut envelope = Reader(body.strip_prefix(b"k8s\0")?);
    let (mut meta, mut raw) = (Value::Null, &[][..]);
    while !envelope.0.is_empty() {
        let (number, wire) = envelope.field()?;
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => meta = message("TypeMeta", bytes)?,
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let mut object = message(meta.get("kind")?.as_str()?, raw)?;
    for field in ["apiVersion", "kind"] {
        set(&mut object, &format!("/{field}"), meta.get(field)?.clone());
    }
    Some(object)
}

fn message(name: &str, bytes: &[u8]) -> Option<Value> {
    let fields = MESSAGES.iter().find_map(|line| line.split_once(' ').filter(|(known, _)| *known == name))?.1;
    let (mut object, mut reader) = (Value::Object(Map::new()), Reader(bytes));
    while !reader.0.is_empty() {
        let (number, wire) = reader.field()?;
        let known = fields.split_whitespace().find_map(|field| {
            let (known, rest) = field.split_once(':')?;
            (known.parse() == Ok(number)).then(|| rest.split_once('=').unwrap_or((rest, "text")))
        });
        let Some((field, kind)) = known else { continue };
        let place = object.as_object_mut()?.entry(field).or_insert(Value::Null);
        if let Some(item) = kind.strip_prefix('[').and_then(|kind| kind.strip_suffix(']')) {
            let mut items = std::mem::take(place).as_array_mut().map(std::mem::take).unwrap_or_default();
            items.push(value(item, wire)?);
            *place = items.into();
        } else if let Some(item) = kind.strip_prefix('{').and_then(|kind| kind.strip_suffix('}')) {
            let (key, entry) = map_entry(item, wire)?;
            if !place.is_object() {
                *place = Value::Object(Map::new());
            }
            place.as_object_mut()?.insert(key, entry);
        } else {
            *place = value(kind, wire)?;
        }
    }
    // Go writes fields that are not set as empty ones.
    object.as_object_mut()?.retain(|_, value| !value.is_null() && value.as_str() != Some(""));
    Some(object)
}

fn map_entry(kind: &str, wire: Wire<'_>) -> Option<(String, Value)> {
    let Wire::Bytes(bytes) = wire else { return None };
    let (mut key, mut entry, mut reader) = (String::new(), value(kind, Wire::Bytes(&[]))?, Reader(bytes));
    while !reader.0.is_empty() {
        let (number, wire) = reader.field()?;
        match number {
            1 => value("text", wire)?.as_str()?.clone_into(&mut key),
            2 => entry = value(kind, wire)?,
            _ => {}
        }
    }
    Some((key, entry))
}

fn value(kind: &str, wire: Wire<'_>) -> Option<Value> {
    Some(match (kind, wire) {
        ("bool", Wire::Number(number)) => (number != 0).into(),
        ("int", Wire::Number(number)) => number.cast_signed().into(),
        ("text", Wire::Bytes(bytes)) => str::from_utf8(bytes).ok()?.into(),
        ("bytes", Wire::Bytes(bytes)) => STANDARD.encode(bytes).into(),
        ("time", Wire::Bytes([])) => Value::Null,
        ("time", Wire::Bytes(bytes)) => match Reader(bytes).field()? {
            (1, Wire::Number(seconds)) => {
                Timestamp::from_second(seconds.cast_signed()).ok()?.to_string().into()
            }
            _ => Value::Null,
        },
        ("values", Wire::Bytes(bytes)) => {
            let (mut values, mut reader) = (Vec::new(), Reader(bytes));
            while !reader.0.is_empty() {
                let (_, wire) = reader.field()?;
                values.push(value("text", wire)?);
            }
            values.into()
        }
        (name, Wire::Bytes(bytes)) => message(name, bytes)?,
        (_, Wire::Number(_) | Wire::Other) => return None,
    })
}

#[derive(Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Other,
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// The next field. The end has to be looked for first; here it is as bad as anything that is no protobuf.
    fn field(&mut self) -> Option<(u64, Wire<'a>)> {
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.varint()?),
            1 => self.take(8).map(|_| Wire::Other)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Wire::Other)?,
            _ => return None,
        };
        Some((tag >> 3, wire))
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
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
        let metadata =
            [field(1, b"s"), field(2, b""), field(8, b""), field(14, b"a/b"), field(14, b"c/d")].concat();
        let data = [field(1, b"k"), field(2, b"\xff")].concat();
        let raw = [field(1, &metadata), field(2, &data), field(3, b"Opaque"), vec![5 << 3, 0]].concat();
        let want = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "immutable": false, "data": {"k": "/w=="},
            "metadata": {"name": "s", "finalizers": ["a/b", "c/d"]},
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
