//! Pins in a client's own body: fields of `metadata` are set in the bytes that the client has sent, and every other byte stays,
//! so that the API server reads the same request as in the dry run.
//!
//! A field that the client has set stays: the dry run has shown that it is the pin. There is no result for a body in which
//! two parsers may find another `metadata`.

use std::ops::Range;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use portcullis_go::json::encode;
use portcullis_go::json::raw::{JsonType, check, decode, elements, members, string};
use portcullis_go::time::format_utc;
use portcullis_kubernetes::encoding::Envelope;
use prost::Message;
use serde_json::{Value, json};

use super::document::{MANAGED_FIELDS, folded};

/// The encoding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Protobuf,
    /// YAML, CBOR, or one that only the API server knows.
    Other,
}

/// A field of `metadata`, and its value.
pub(super) type Pin<'a> = (&'static str, &'a str);

/// The most operations of a JSON patch.
// apiserver: pkg/endpoints/handlers/patch.go, maxJSONPatchOperations
const MAX_OPERATIONS: usize = 10_000;

impl Encoding {
    /// The encoding of an object in a body: JSON also without a content type, as for kube-apiserver.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut types = headers.get_all(CONTENT_TYPE).iter();
        let only = match (types.next(), types.next()) {
            (None, _) => return Self::Json,
            (Some(only), None) => only.to_str().unwrap_or_default(),
            // Servers differ in which one counts.
            (Some(_), Some(_)) => return Self::Other,
        };
        match only.split(';').next().unwrap_or_default().trim() {
            "application/json" => Self::Json,
            "application/vnd.kubernetes.protobuf" => Self::Protobuf,
            _ => Self::Other,
        }
    }

    /// An object with these fields of `metadata`, or a merge patch that sets them.
    pub(super) fn with_metadata(self, body: &[u8], pins: &[Pin<'_>]) -> Option<Bytes> {
        match self {
            Self::Json => with_metadata(body, pins),
            Self::Protobuf => protobuf_with_metadata(body, pins),
            Self::Other => None,
        }
    }

    /// Whether a body may have this in a text. One in a text with escapes, or in a form that the gateway does not read, may be any.
    pub(super) fn may_mention(self, body: &[u8], part: &str) -> bool {
        let is_plain = match self {
            Self::Json => checked(body).is_some_and(|text| !text.contains(&b'\\')),
            Self::Protobuf => Envelope::is_begun_by(body),
            Self::Other => false,
        };
        !is_plain || body.windows(part.len()).any(|window| window == part.as_bytes())
    }

    /// The `metadata` that the client has sent, in an object without its other fields: of protobuf only the name and what the API
    /// server sets.
    pub(super) fn metadata(self, body: &[u8]) -> Option<Value> {
        let metadata = match self {
            Self::Json => {
                let top = distinct_members(checked(body)?)?;
                decode(body.get(find(&top, "metadata")??)?).ok()?
            }
            Self::Protobuf => Object::decode(Envelope::read(body)?.raw.as_slice()).ok()?.metadata?.to_json(),
            Self::Other => return None,
        };
        metadata.is_object().then(|| json!({"metadata": metadata}))
    }
}

/// A JSON text that is valid, in the characters that every parser reads.
fn checked(text: &[u8]) -> Option<&[u8]> {
    (check(text).is_ok() && std::str::from_utf8(text).is_ok()).then_some(text)
}

/// Whether a patch leaves the type of the object as it is: a JSON patch, or one that is merged.
// threat: unreviewed-write
pub(super) fn keeps_type(patch: &[u8], is_json_patch: bool, object: &Value) -> bool {
    const TYPE: [&str; 2] = ["apiVersion", "kind"];
    let names_type = |name: &str| TYPE.iter().any(|known| folded(known) == folded(name));
    let Some(text) = checked(patch) else { return false };
    if is_json_patch {
        let keeps = |range| text.get(range).is_some_and(|operation| !points_to(operation, names_type));
        return JsonType::of(text) == JsonType::Array && elements(text).into_iter().all(keeps);
    }
    let is_same = |name: &String, range: Range<usize>| {
        let value = text.get(range).unwrap_or_default().trim_ascii();
        let is_text = JsonType::of(value) == JsonType::String;
        is_text && TYPE.contains(&name.as_str()) && object.get(name) == Some(&string(value).into())
    };
    JsonType::of(text) == JsonType::Object
        && members(text).into_iter().all(|(name, range)| !names_type(&name) || is_same(&name, range))
}

/// Whether an operation of a JSON patch may be about the whole object, or a field of it with such a name.
fn points_to(operation: &[u8], is_named: impl Fn(&str) -> bool) -> bool {
    let Some(members) = distinct_members(operation) else { return true };
    members.into_iter().filter(|(name, _)| matches!(name.as_str(), "path" | "from")).any(|(_, range)| {
        let pointer = operation.get(range).unwrap_or_default().trim_ascii();
        let pointer = if JsonType::of(pointer) == JsonType::String { string(pointer) } else { String::new() };
        let first = pointer.strip_prefix('/').and_then(|rest| rest.split('/').next());
        first.is_none_or(|first| is_named(&first.replace("~1", "/").replace("~0", "~")))
    })
}

type Members = Vec<(String, Range<usize>)>;

/// The members of an object, if no two of them have one name, also in another case.
// threat: ambiguous-body
fn distinct_members(text: &[u8]) -> Option<Members> {
    if JsonType::of(text) != JsonType::Object {
        return None;
    }
    let members = members(text);
    let mut names: Vec<String> = members.iter().map(|(name, _)| folded(name)).collect();
    names.sort_unstable();
    (!names.iter().zip(names.iter().skip(1)).any(|(one, next)| one == next)).then_some(members)
}

/// A member by its name. `None` if only a name in another case is there, which some parsers take for it.
#[expect(clippy::option_option, reason = "absent is not unreadable")]
fn find(members: &Members, name: &str) -> Option<Option<Range<usize>>> {
    match members.iter().find(|(other, _)| folded(other) == name.to_lowercase()) {
        None => Some(None),
        Some((other, range)) => (other == name).then(|| Some(range.clone())),
    }
}

fn with_metadata(body: &[u8], pins: &[Pin<'_>]) -> Option<Bytes> {
    let text = checked(body)?;
    let top = distinct_members(text)?;
    // A strategic merge patch has directives, by which a field may be dropped.
    if top.iter().any(|(name, _)| name.starts_with('$')) {
        return None;
    }
    let start = text.iter().position(|byte| *byte == b'{')? + 1;
    let Some(metadata) = find(&top, "metadata")? else {
        let comma = if top.is_empty() { "" } else { "," };
        let metadata = pins.iter().map(|pin| member(*pin)).collect::<Vec<_>>().join(",");
        return Some(replaced(text, vec![(start..start, format!("\"metadata\":{{{metadata}}}{comma}"))]));
    };
    let inner = distinct_members(text.get(metadata.clone())?)?;
    if inner.iter().any(|(name, _)| name.starts_with('$')) {
        return None;
    }
    let (mut edits, mut added) = (Vec::new(), Vec::new());
    for (field, value) in pins {
        let Some(range) = find(&inner, field)? else {
            added.push(member((field, value)));
            continue;
        };
        let range = metadata.start + range.start..metadata.start + range.end;
        let own = text.get(range.clone())?;
        match JsonType::of(own) {
            // Also one of the client's own: the API server has accepted it in the dry run, and reads "00" as none.
            JsonType::String | JsonType::Null => edits.push((range, quoted(value))),
            _ => return None,
        }
    }
    if !added.is_empty() {
        let (at, comma) = (metadata.start + 1, if inner.is_empty() { "" } else { "," });
        edits.push((at..at, format!("{}{comma}", added.join(","))));
    }
    Some(replaced(text, edits))
}

fn quoted(value: &str) -> String {
    String::from_utf8(encode(&value)).unwrap_or_default()
}

fn member((field, value): Pin<'_>) -> String {
    format!("\"{field}\":{}", quoted(value))
}

/// The text with these ranges replaced, which are apart.
fn replaced(text: &[u8], mut edits: Vec<(Range<usize>, String)>) -> Bytes {
    edits.sort_by_key(|(range, _)| range.start);
    let mut out = text.to_vec();
    for (range, by) in edits.into_iter().rev() {
        out.splice(range, by.into_bytes());
    }
    out.into()
}

/// A JSON patch whose last operation sets the `resourceVersion`.
pub(super) fn with_last_operation(body: &[u8], version: &str) -> Option<Bytes> {
    let text = checked(body)?.trim_ascii_end();
    let count = elements(text).len();
    if JsonType::of(text) != JsonType::Array || count >= MAX_OPERATIONS {
        return None;
    }
    let comma = if count == 0 { "" } else { "," };
    let value = quoted(version);
    let operation =
        format!("{comma}{{\"op\":\"add\",\"path\":\"/metadata/resourceVersion\",\"value\":{value}}}");
    let end = text.len().checked_sub(1)?;
    Some(replaced(text, vec![(end..end, operation)]))
}

/// The JSON text of an object with other `managedFields`. `None` if it has none.
pub(super) fn with_managed_fields(body: &[u8], managed: &[Value]) -> Option<Bytes> {
    let metadata = find(&distinct_members(checked(body)?)?, "metadata")??;
    let own = find(&distinct_members(body.get(metadata.clone())?)?, MANAGED_FIELDS)??;
    let range = metadata.start + own.start..metadata.start + own.end;
    // Of custom resources the API server sorts the fields.
    let is_typed = body.get(range.clone())?.starts_with(b"[{\"manager\"");
    let entries: Vec<String> = managed.iter().filter_map(|entry| managed_entry(entry, is_typed)).collect();
    Some(replaced(body, vec![(range, format!("[{}]", entries.join(",")))]))
}

/// An entry of `managedFields` in the order of Go's fields, or sorted.
// apimachinery: pkg/apis/meta/v1/types.go, ManagedFieldsEntry
fn managed_entry(entry: &Value, is_typed: bool) -> Option<String> {
    const ORDER: [&str; 7] =
        ["manager", "operation", "apiVersion", "time", "fieldsType", "fieldsV1", "subresource"];
    let entry = entry.as_object()?;
    if !is_typed {
        return String::from_utf8(encode(entry)).ok();
    }
    let member = |field: &str| {
        let value = String::from_utf8(encode(entry.get(field)?)).ok()?;
        Some(format!("\"{field}\":{value}"))
    };
    Some(format!("{{{}}}", ORDER.into_iter().filter_map(member).collect::<Vec<_>>().join(",")))
}

/// The first field of every object of Kubernetes.
// apimachinery: pkg/apis/meta/v1/generated.proto, ObjectMeta
#[derive(Clone, PartialEq, Message)]
struct Object {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
}

#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "5")]
    uid: Option<String>,
    #[prost(string, optional, tag = "6")]
    resource_version: Option<String>,
    #[prost(int64, optional, tag = "7")]
    generation: Option<i64>,
    #[prost(message, optional, tag = "8")]
    creation_timestamp: Option<Timestamp>,
}

// apimachinery: pkg/apis/meta/v1/generated.proto, Timestamp
#[derive(Clone, Copy, PartialEq, Message)]
struct Timestamp {
    #[prost(int64, optional, tag = "1")]
    seconds: Option<i64>,
}

impl Metadata {
    /// Go writes fields that are not set as well.
    fn to_json(&self) -> Value {
        let text =
            |text: &Option<String>| text.as_ref().filter(|text| !text.is_empty()).map(|text| json!(text));
        let created = self.creation_timestamp.and_then(|time| time.seconds);
        let fields = [
            ("name", text(&self.name)),
            ("uid", text(&self.uid)),
            ("resourceVersion", text(&self.resource_version)),
            ("generation", self.generation.filter(|generation| *generation != 0).map(Value::from)),
            ("creationTimestamp", created.map(|seconds| format_utc(seconds).into())),
        ];
        let set = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Value::Object(set.collect())
    }
}

/// Appends the fields: a message that is there twice is merged.
// protobuf: the encoding, "Last One Wins"
fn protobuf_with_metadata(body: &[u8], pins: &[Pin<'_>]) -> Option<Bytes> {
    let mut envelope = Envelope::read(body)?;
    Object::decode(envelope.raw.as_slice()).ok()?;
    let mut metadata = Metadata::default();
    for (field, value) in pins {
        let place = match *field {
            "name" => &mut metadata.name,
            "resourceVersion" => &mut metadata.resource_version,
            _ => return None,
        };
        *place = Some((*value).to_owned());
    }
    if metadata != Metadata::default() {
        Object { metadata: Some(metadata) }.encode(&mut envelope.raw).ok()?;
    }
    Some(envelope.to_bytes().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: [Pin<'static>; 1] = [("resourceVersion", "5")];

    #[test]
    fn a_pin_is_set_in_the_clients_own_text() {
        let cases = [
            ("{}", Some(r#"{"metadata":{"resourceVersion":"5"}}"#)),
            (r#" { "a": 1.50 }"#, Some(r#" {"metadata":{"resourceVersion":"5"}, "a": 1.50 }"#)),
            (r#"{"metadata": {}}"#, Some(r#"{"metadata": {"resourceVersion":"5"}}"#)),
            (
                r#"{"x":[null,{"a":null}],"metadata":{ "name":"n"}}"#,
                Some(r#"{"x":[null,{"a":null}],"metadata":{"resourceVersion":"5", "name":"n"}}"#),
            ),
            (r#"{"metad\u0061ta":{}}"#, Some(r#"{"metad\u0061ta":{"resourceVersion":"5"}}"#)),
            // One of the client's own is replaced, whatever the API server would read in it.
            (r#"{"metadata":{"resourceVersion":"4"}}"#, Some(r#"{"metadata":{"resourceVersion":"5"}}"#)),
            (r#"{"metadata":{"resourceVersion":"00"}}"#, Some(r#"{"metadata":{"resourceVersion":"5"}}"#)),
            (r#"{"metadata":{"resourceVersion":null}}"#, Some(r#"{"metadata":{"resourceVersion":"5"}}"#)),
            (r#"{"metadata":{"resourceVersion":"0"}}"#, Some(r#"{"metadata":{"resourceVersion":"5"}}"#)),
            (
                r#"{"metadata":{"resourceVersion":""},"a":{"a":1,"a":2}}"#,
                Some(r#"{"metadata":{"resourceVersion":"5"},"a":{"a":1,"a":2}}"#),
            ),
            // Where is it?
            (r#"{"metadata":{},"metadata":{}}"#, None),
            (r#"{"metadata":{},"Metadata":{}}"#, None),
            (r#"{"Metadata":{}}"#, None),
            (r#"{"metadata":{"resourceversion":"4"}}"#, None),
            (r#"{"metadata":{"a":1,"a":2}}"#, None),
            (r#"{"metadata":null}"#, None),
            (r#"{"metadata":{"resourceVersion":4}}"#, None),
            (r#"{"$patch":"replace"}"#, None),
            (r#"{"metadata":{"$retainKeys":["name"]}}"#, None),
            ("[]", None),
            ("{} {}", None),
            ("a: b", None),
            ("", None),
        ];
        for (text, expected) in cases {
            let pinned = Encoding::Json.with_metadata(text.as_bytes(), &VERSION);
            assert_eq!(pinned.as_deref(), expected.map(str::as_bytes), "{text}");
        }
        assert_eq!(Encoding::Json.with_metadata(b"{\"a\":\"\xff\"}", &VERSION), None);
        assert_eq!(Encoding::Other.with_metadata(b"{}", &VERSION), None);
        let two = Encoding::Json.with_metadata(b"{\"metadata\":{\"x\":1}}", &[("name", "n"), VERSION[0]]);
        let two: Value = serde_json::from_slice(&two.unwrap()).unwrap();
        assert_eq!(two, json!({"metadata": {"x": 1, "name": "n", "resourceVersion": "5"}}));
        let two = Encoding::Json.with_metadata(b"{\"metadata\":{}}", &[("name", "n"), VERSION[0]]);
        let two: Value = serde_json::from_slice(&two.unwrap()).unwrap();
        assert_eq!(two, json!({"metadata": {"name": "n", "resourceVersion": "5"}}));
    }

    #[test]
    fn a_json_patch_sets_the_version_last() {
        let last = r#"{"op":"add","path":"/metadata/resourceVersion","value":"5"}"#;
        let cases = [
            ("[]", Some(format!("[{last}]"))),
            (
                r#"[{"op":"test","path":"/a","value":null}] "#,
                Some(format!(r#"[{{"op":"test","path":"/a","value":null}},{last}]"#)),
            ),
            ("null", None),
            ("{}", None),
            ("[] []", None),
        ];
        for (text, expected) in cases {
            let pinned = with_last_operation(text.as_bytes(), "5");
            assert_eq!(pinned.as_deref(), expected.as_deref().map(str::as_bytes), "{text}");
        }
        let many = format!("[{}{{}}]", "{},".repeat(MAX_OPERATIONS - 1));
        assert_eq!(with_last_operation(many.as_bytes(), "5"), None);
    }

    #[test]
    fn a_pin_is_appended_to_protobuf() {
        let object = |name: &str, version: Option<&str>| {
            let metadata = Metadata {
                name: Some(name.to_owned()),
                resource_version: version.map(str::to_owned),
                ..Metadata::default()
            };
            Envelope::of("v1", "Pod", &Object { metadata: Some(metadata) }).to_bytes()
        };
        // Also in the place of the client's own.
        for (name, version) in [("", None), ("own", Some("4")), ("own", Some("00"))] {
            let pinned =
                Encoding::Protobuf.with_metadata(&object(name, version), &[("name", "n"), VERSION[0]]);
            let metadata = Encoding::Protobuf.metadata(&pinned.unwrap()).unwrap();
            assert_eq!(metadata, json!({"metadata": {"name": "n", "resourceVersion": "5"}}));
        }
        assert_eq!(Encoding::Protobuf.with_metadata(b"{}", &VERSION), None);
    }

    #[test]
    fn managers_are_replaced_in_the_response() {
        let body = br#"{"kind":"X","metadata":{"name":"n","managedFields":[{"manager":"o"}]},"a":1}"#;
        let managed = [json!({"manager": "m", "fieldsV1": {"f:a": {}}, "operation": "Apply"})];
        let shown = with_managed_fields(body, &managed).unwrap();
        let expected = r#"{"kind":"X","metadata":{"name":"n","managedFields":[{"manager":"m","operation":"Apply","fieldsV1":{"f:a":{}}}]},"a":1}"#;
        assert_eq!(shown, expected);
        assert_eq!(with_managed_fields(b"{\"metadata\":{}}", &managed), None);
    }

    /// The API server decodes a patched object as the type that the patch leaves in it.
    #[test]
    fn a_patch_that_may_change_the_type_is_found() {
        let object = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler"});
        for (is_json_patch, patch, expected) in [
            (false, r#"{"spec":{"apiVersion":"v2"},"metadata":{"labels":{"kind":"x"}}}"#, true),
            (false, r#"{"apiVersion":"autoscaling/v1","kind":"HorizontalPodAutoscaler"}"#, true),
            (false, r#"{"apiVersion":"autoscaling/v2"}"#, false),
            (false, r#"{"apiVersion":"autoscaling/v1","apiVersion":"autoscaling/v2"}"#, false),
            (false, r#"{"\u0061piVersion":"autoscaling/v2"}"#, false),
            (false, r#"{"apiversion":"autoscaling/v1"}"#, false),
            (false, r#"{"Kind":null}"#, false),
            (false, r#"{"kind":null}"#, false),
            (false, "{\"apiVer\u{17f}ion\":\"autoscaling/v1\"}", false),
            (false, "[]", false),
            (false, "spec: {}", false),
            (true, "[]", true),
            (true, r#"[{"op":"add","path":"/spec/apiVersion","value":1}]"#, true),
            (true, r#"[{"op":"add","path":"/metadata/labels/kind","value":"x"}]"#, true),
            (true, r#"[{"op":"replace","path":"/apiVersion","value":"autoscaling/v2"}]"#, false),
            (true, r#"[{"op":"remove","path":"/Kind"}]"#, false),
            (true, r#"[{"op":"move","from":"/kind","path":"/metadata/labels/a"}]"#, false),
            (true, r#"[{"op":"replace","path":"","value":{}}]"#, false),
            (true, r#"[{"op":"replace","path":"apiVersion","value":"v2"}]"#, false),
            (true, r#"[{"op":"add","path":null,"value":1}]"#, false),
            (true, r#"[{"op":"add","path":"/spec/a","path":"/apiVersion","value":1}]"#, false),
            (true, r#"[{"op":"add","path":"/spec/a","Path":"/apiVersion","value":1}]"#, false),
            (true, r"[1]", false),
            (true, r#"{"spec":{}}"#, false),
        ] {
            assert_eq!(keeps_type(patch.as_bytes(), is_json_patch, &object), expected, "{patch}");
        }
    }
}
