//! The objects in protobuf that no dry run shows in JSON: tokens, evictions, bindings and reviews about the client itself. A field that is not known here, or that is
//! there twice, makes the object unreadable, so that webhooks see everything that the API server reads.
// apimachinery: pkg/apis/meta/v1/generated.proto; api: authentication/v1, authorization/v1, policy/v1 and core/v1

use portcullis_go::time::format_utc;
use portcullis_kubernetes::encoding::Envelope;
use prost::encoding::{WireType, decode_key, decode_varint};
use serde_json::{Map, Value};

/// The fields of a message: the number and the name of each.
type Schema = &'static [(u32, &'static str, Field)];

/// What a field has, and when JSON has it.
#[derive(Clone, Copy)]
enum Field {
    /// Text, unless it is empty.
    Text,
    /// Text, also if it is empty.
    Pointer,
    Texts,
    /// A number, unless it is 0.
    Number,
    /// A number, also if it is 0.
    NumberPointer,
    Bool,
    /// Pairs of a key and a value.
    Pairs,
    Time,
    /// A message, unless it is empty.
    Message(Schema),
    Messages(Schema),
}

use Field::{Bool, Message, Messages, Number, NumberPointer, Pairs, Pointer, Text, Texts, Time};

const PAIR: Schema = &[(1, "key", Text), (2, "value", Pointer)];
const TIMESTAMP: Schema = &[(1, "seconds", NumberPointer), (2, "nanos", Number)];
const OWNER: Schema = &[
    (1, "kind", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "controller", Bool),
    (7, "blockOwnerDeletion", Bool),
];
// Without `managedFields`, which no client sends with these objects.
const METADATA: Schema = &[
    (1, "name", Text),
    (2, "generateName", Text),
    (3, "namespace", Text),
    (4, "selfLink", Text),
    (5, "uid", Text),
    (6, "resourceVersion", Text),
    (7, "generation", Number),
    (8, "creationTimestamp", Time),
    (9, "deletionTimestamp", Time),
    (10, "deletionGracePeriodSeconds", NumberPointer),
    (11, "labels", Pairs),
    (12, "annotations", Pairs),
    (13, "ownerReferences", Messages(OWNER)),
    (14, "finalizers", Texts),
];
const PRECONDITIONS: Schema = &[(1, "uid", Pointer), (2, "resourceVersion", Pointer)];
const DELETE_OPTIONS: Schema = &[
    (1, "gracePeriodSeconds", NumberPointer),
    (2, "preconditions", Message(PRECONDITIONS)),
    (3, "orphanDependents", Bool),
    (4, "propagationPolicy", Pointer),
    (5, "dryRun", Texts),
    (6, "ignoreStoreReadErrorWithClusterBreakingPotential", Bool),
];
const BOUND_OBJECT: Schema =
    &[(1, "kind", Text), (2, "apiVersion", Text), (3, "name", Text), (4, "uid", Text)];
const TOKEN_SPEC: Schema = &[
    (1, "audiences", Texts),
    (3, "boundObjectRef", Message(BOUND_OBJECT)),
    (4, "expirationSeconds", NumberPointer),
];
const TOKEN_STATUS: Schema = &[(1, "token", Text), (2, "expirationTimestamp", Time)];
// The API server fills in the user; a client leaves it empty.
const USER_STATUS: Schema = &[(1, "userInfo", Message(USER))];
const USER: Schema = &[(1, "username", Text), (2, "uid", Text), (3, "groups", Texts)];
const RULES_SPEC: Schema = &[(1, "namespace", Text)];
// Without the rules, which the API server sets.
const RULES_STATUS: Schema = &[(3, "incomplete", Bool), (4, "evaluationError", Text)];
const TARGET: Schema = &[
    (1, "kind", Text),
    (2, "namespace", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "resourceVersion", Text),
    (7, "fieldPath", Text),
];

/// The kinds, each with the groups and versions in which it is the same message.
const OBJECTS: [(&[&str], &str, Schema); 5] = [
    (
        &["authentication.k8s.io/v1"],
        "TokenRequest",
        &[
            (1, "metadata", Message(METADATA)),
            (2, "spec", Message(TOKEN_SPEC)),
            (3, "status", Message(TOKEN_STATUS)),
        ],
    ),
    (
        &["policy/v1", "policy/v1beta1"],
        "Eviction",
        &[(1, "metadata", Message(METADATA)), (2, "deleteOptions", Message(DELETE_OPTIONS))],
    ),
    (&["v1"], "Binding", &[(1, "metadata", Message(METADATA)), (2, "target", Message(TARGET))]),
    (
        &["authentication.k8s.io/v1", "authentication.k8s.io/v1beta1"],
        "SelfSubjectReview",
        &[(1, "metadata", Message(METADATA)), (2, "status", Message(USER_STATUS))],
    ),
    (
        &["authorization.k8s.io/v1"],
        "SelfSubjectRulesReview",
        &[
            (1, "metadata", Message(METADATA)),
            (2, "spec", Message(RULES_SPEC)),
            (3, "status", Message(RULES_STATUS)),
        ],
    ),
];

/// An object in protobuf as JSON.
pub(super) fn read(body: &[u8]) -> Result<Value, String> {
    let Envelope { meta, raw, .. } = Envelope::read(body).ok_or("it is no object in protobuf")?;
    let known = OBJECTS
        .iter()
        .find(|(versions, kind, _)| *kind == meta.kind && versions.contains(&meta.api_version.as_str()));
    let (_, _, schema) = known.ok_or("the gateway does not know its kind in protobuf")?;
    let mut object = message(schema, &raw)?;
    object.insert("apiVersion".to_owned(), meta.api_version.into());
    object.insert("kind".to_owned(), meta.kind.into());
    Ok(Value::Object(object))
}

/// What stands in a field.
enum Content<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn message(schema: Schema, mut bytes: &[u8]) -> Result<Map<String, Value>, String> {
    let mut object = Map::new();
    let mut known = Vec::new();
    while !bytes.is_empty() {
        let (number, wire) = decode_key(&mut bytes).map_err(|error| error.to_string())?;
        let value = decode_varint(&mut bytes).map_err(|error| error.to_string())?;
        let content = match wire {
            WireType::Varint => Content::Number(value),
            WireType::LengthDelimited => {
                let length = usize::try_from(value).map_err(|error| error.to_string())?;
                let (content, rest) = bytes.split_at_checked(length).ok_or("it is cut off")?;
                bytes = rest;
                Content::Bytes(content)
            }
            _ => return Err(format!("field {number} has another type")),
        };
        let field = schema.iter().find(|(known, ..)| *known == number);
        let (_, name, field) = field.ok_or_else(|| format!("the gateway does not know field {number}"))?;
        if known.contains(&number) && !matches!(field, Texts | Pairs | Messages(_)) {
            return Err(format!("{name} is there twice"));
        }
        known.push(number);
        add(&mut object, name, *field, &content)?;
    }
    Ok(object)
}

/// Adds what stands in a field to the object.
fn add(
    object: &mut Map<String, Value>,
    name: &str,
    field: Field,
    content: &Content<'_>,
) -> Result<(), String> {
    let value = match (field, content) {
        (Text | Pointer | Texts, Content::Bytes(bytes)) => Value::from(text(name, bytes)?),
        (Number | NumberPointer, Content::Number(number)) => Value::from(number.cast_signed()),
        (Bool, Content::Number(flag)) => Value::from(*flag != 0),
        (Time, Content::Bytes(bytes)) => {
            let time = message(TIMESTAMP, bytes)?;
            time.get("seconds").and_then(Value::as_i64).map_or(Value::Null, |time| format_utc(time).into())
        }
        (Pairs, Content::Bytes(bytes)) => Value::Object(message(PAIR, bytes)?),
        (Message(schema) | Messages(schema), Content::Bytes(bytes)) => Value::Object(message(schema, bytes)?),
        _ => return Err(format!("{name} has another type")),
    };
    let is_empty = match (field, &value) {
        (Text, Value::String(text)) => text.is_empty(),
        (Number, number) => number.as_i64() == Some(0),
        (Message(_), Value::Object(fields)) => fields.is_empty(),
        (Time, value) => value.is_null(),
        _ => false,
    };
    match field {
        _ if is_empty => {}
        Texts | Messages(_) => {
            let list = object.entry(name).or_insert_with(|| Value::Array(Vec::new()));
            if let Some(list) = list.as_array_mut() {
                list.push(value);
            }
        }
        Pairs => {
            let key = value.get("key").and_then(Value::as_str).unwrap_or_default().to_owned();
            let pairs = object.entry(name).or_insert_with(|| Value::Object(Map::new()));
            let value = value.get("value").cloned().unwrap_or_else(|| "".into());
            if pairs.as_object_mut().and_then(|pairs| pairs.insert(key, value)).is_some() {
                return Err(format!("a key of {name} is there twice"));
            }
        }
        _ => {
            object.insert(name.to_owned(), value);
        }
    }
    Ok(())
}

fn text<'a>(name: &str, bytes: &'a [u8]) -> Result<&'a str, String> {
    std::str::from_utf8(bytes).map_err(|_| format!("{name} is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A field with a message or text of less than 128 bytes.
    fn part(number: u8, content: &[u8]) -> Vec<u8> {
        let mut part = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
        part.extend(content);
        part
    }

    fn body(version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [part(1, version.as_bytes()), part(2, kind.as_bytes())].concat();
        [b"k8s\0".to_vec(), part(1, &meta), part(2, raw), part(3, b""), part(4, b"")].concat()
    }

    #[test]
    fn tokens_evictions_and_bindings_are_read() {
        let label = [part(1, b"a"), part(2, b"b")].concat();
        let metadata =
            [part(1, b"n"), part(2, b""), vec![7 << 3, 0], part(8, b""), part(11, &label)].concat();
        let bound = [part(1, b"Pod"), part(3, b"p")].concat();
        let spec = [part(1, b"one"), part(1, b"two"), part(3, &bound), vec![4 << 3, 0x90, 0x1c]].concat();
        let status = [part(1, b""), part(2, b"")].concat();
        let token = [part(1, &metadata), part(2, &spec), part(3, &status)].concat();
        assert_eq!(
            read(&body("authentication.k8s.io/v1", "TokenRequest", &token)).unwrap(),
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {"name": "n", "labels": {"a": "b"}},
                "spec": {"audiences": ["one", "two"], "boundObjectRef": {"kind": "Pod", "name": "p"}, "expirationSeconds": 3600}})
        );
        let options = [vec![1 << 3, 0], part(2, &part(1, b"u")), vec![3 << 3, 0]].concat();
        assert_eq!(
            read(&body("policy/v1", "Eviction", &part(2, &options))).unwrap()["deleteOptions"],
            json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "u"}, "orphanDependents": false})
        );
        let binding = part(2, &[part(1, b"Node"), part(3, b"w")].concat());
        assert_eq!(
            read(&body("v1", "Binding", &binding)).unwrap()["target"],
            json!({"kind": "Node", "name": "w"})
        );
        let seconds = [&[8 << 3 | 2, 6, 8][..], &[0x80, 0xf2, 0xd6, 0xca, 0x06]].concat();
        let dated = read(&body("v1", "Binding", &part(1, &seconds))).unwrap();
        assert_eq!(dated["metadata"]["creationTimestamp"], "2026-01-01T00:00:00Z");
    }

    #[test]
    fn what_is_not_known_is_not_read() {
        let name = part(1, b"n");
        let twice = [part(11, &part(1, b"a")), part(11, &part(1, b"a"))].concat();
        for (what, version, kind, raw) in [
            ("another kind", "v1", "Pod", vec![]),
            ("another version", "v2", "Binding", vec![]),
            ("an unknown field", "v1", "Binding", part(3, b"")),
            ("a field of another type", "v1", "Binding", vec![1 << 3, 1]),
            ("a field of no type", "v1", "Binding", vec![1 << 3 | 5, 0, 0, 0, 0]),
            ("a field twice", "v1", "Binding", [part(1, &name), part(1, &name)].concat()),
            ("a key twice", "v1", "Binding", part(1, &twice)),
            ("managers", "v1", "Binding", part(1, &[17 << 3 | 2, 1, 0])),
            ("a message that is cut off", "v1", "Binding", vec![1 << 3 | 2, 9]),
            ("no UTF-8", "v1", "Binding", part(1, &part(1, b"\xff"))),
        ] {
            assert!(read(&body(version, kind, &raw)).is_err(), "{what}");
        }
        assert!(read(b"{}").is_err());
    }
}
