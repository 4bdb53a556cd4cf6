//! Kubernetes objects in the encodings of kube-apiserver: JSON with Go's escapes, YAML, and protobuf in its envelope.
//!
//! JSON and protobuf have kube-apiserver's bytes. YAML has its value, with keys in its order; which strings are quoted
//! and where long ones are folded is the YAML library's choice (`D-yaml-style`).

use std::fmt;

use prost::Message;
use serde::Serialize;

/// Stands before every object in protobuf.
// apimachinery: pkg/runtime/serializer/protobuf/protobuf.go
const MAGIC: &[u8] = b"k8s\0";

/// JSON on one line.
pub fn json(object: &impl Serialize) -> Result<String, serde_json::Error> {
    serde_json::to_string(object).map(html_escape)
}

/// JSON with two blanks of indentation.
pub fn pretty_json(object: &impl Serialize) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(object).map(html_escape)
}

/// Escapes the characters that Go escapes beside the necessary ones. In JSON they occur in strings alone.
// Go: encoding/json, HTMLEscape
fn html_escape(json: String) -> String {
    const ESCAPED: [char; 5] = ['<', '>', '&', '\u{2028}', '\u{2029}'];
    if !json.contains(ESCAPED) {
        return json;
    }
    let mut out = String::with_capacity(json.len() + 64);
    for c in json.chars() {
        match c {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            c => out.push(c),
        }
    }
    out
}

/// YAML with sorted keys, since kube-apiserver makes it from JSON. Strings that YAML 1.1 or 1.2 would read as another
/// type are quoted, whatever a client has written into them.
pub fn yaml(object: &impl Serialize) -> Option<String> {
    let value = serde_json::to_value(object).ok()?;
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(&value, options).ok()
}

/// Wraps every object in protobuf. Go writes each field that is not a list, map or pointer, even if it is empty: in
/// `prost` such a field is `required`.
// apimachinery: pkg/runtime/generated.proto, Unknown
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct Envelope {
    /// The type of the object.
    #[prost(message, required, tag = "1")]
    pub meta: TypeMeta,
    /// The object in protobuf.
    #[prost(bytes = "vec", required, tag = "2")]
    pub raw: Vec<u8>,
    #[prost(string, required, tag = "3")]
    content_encoding: String,
    #[prost(string, required, tag = "4")]
    content_type: String,
}

/// The type of an object, `runtime.TypeMeta`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TypeMeta {
    /// The group and version, as in `apps/v1`.
    #[prost(string, required, tag = "1")]
    pub api_version: String,
    /// The kind.
    #[prost(string, required, tag = "2")]
    pub kind: String,
}

impl Envelope {
    /// Whether bytes begin as an object in protobuf does.
    pub fn is_begun_by(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// The envelope of an object.
    pub fn of(api_version: &str, kind: &str, object: &impl Message) -> Self {
        let meta = TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() };
        Self { meta, raw: object.encode_to_vec(), ..Self::default() }
    }

    /// `None` if the bytes are not a protobuf object.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        Self::decode(bytes.strip_prefix(MAGIC)?).ok()
    }

    /// The envelope after its magic number, as a body has it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MAGIC.len() + self.encoded_len());
        bytes.extend_from_slice(MAGIC);
        // A Vec takes every write.
        let _ = self.encode(&mut bytes);
        bytes
    }
}

// The object may be a TokenReview, which holds a token.
impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Envelope")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn json_strings_are_escaped_as_go_escapes_them() {
        let text = "\"\\\n\r\t\u{8}\u{c}\u{1}\u{7f}<>&\u{2028}\u{2029}é\u{1f600}/";
        let expected =
            "\"\\\"\\\\\\n\\r\\t\\b\\f\\u0001\u{7f}\\u003c\\u003e\\u0026\\u2028\\u2029é\u{1f600}/\"";
        assert_eq!(json(&text).unwrap(), expected);
        assert_eq!(pretty_json(&json!({"<": []})).unwrap(), "{\n  \"\\u003c\": []\n}");
    }

    fn read_back(text: &str) -> (String, Option<Value>) {
        let yaml = yaml(&json!({"a": {"m": text}, "z": [text]})).unwrap();
        let read = serde_saphyr::from_str(&yaml).ok();
        (yaml, read)
    }

    #[test]
    fn strings_that_look_like_other_yaml_stay_strings() {
        let texts = [
            "",
            "~",
            "null",
            "true",
            "yes",
            "n",
            "oFF",
            "123",
            "1.5",
            ".5",
            "1.",
            "-1",
            "+1",
            "0x1f",
            "0o7",
            "0b1",
            "0777",
            "089",
            "1e3",
            "1_000",
            "18446744073709551615",
            "-.inf",
            ".NaN",
            "1:30",
            "190:20:30",
            "2001-01-01",
            "2001-1-1T01:02:03Z",
            "2001-1-1 01:2:3",
            "=",
            "<<",
            "a: b",
            "x:",
            ":x",
            "- x",
            "-",
            "? x",
            "# c",
            "a #b",
            "@x",
            "`x",
            "]x",
            "[x]",
            "{x}",
            "&x",
            "*x",
            "!x",
            "%x",
            "|",
            ">",
            "'q'",
            "\"q\"",
            "it's",
            "a\\b",
            "---",
            "--- a",
            "...",
            " lead",
            "trail ",
            "x\ny",
            "x\ny\n",
            "\nx",
            " \n x",
            "  a\nb",
            "a\n\nb\n\n",
            "\r",
            "\t",
            "tab\tx",
            "\u{1}",
            "\u{7f}\u{85}\u{9f}",
            "\u{a0}",
            "\u{2028}",
            "\u{feff}",
            "\u{1f600}",
        ];
        let long = "word ".repeat(40);
        for text in texts.into_iter().chain([long.as_str()]) {
            let (yaml, read) = read_back(text);
            assert_eq!(read, Some(json!({"a": {"m": text}, "z": [text]})), "{text:?}: {yaml}");
        }
        // A YAML 1.1 parser, such as kubectl's, gives the plain form another type.
        for text in [
            "yes",
            "no",
            "on",
            "off",
            "y",
            "n",
            "0777",
            "089",
            "1:30",
            "190:20:30",
            "2001-01-01",
            "2001-1-1 01:2:3",
            "2001-1-1T01:02:03Z",
            "1_000",
            "=",
            "<<",
            "0b1",
        ] {
            let (yaml, _) = read_back(text);
            assert!(
                yaml.contains(&format!("m: \"{text}\"\n")) || yaml.contains(&format!("m: '{text}'\n")),
                "{yaml}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_string_survives_yaml(text in any::<String>(), odd in "[ \\n\\r\\t:#'\"\\\\\\-a\u{85}\u{2028}\u{feff}]{0,12}") {
            for text in [text, odd] {
                let (yaml, read) = read_back(&text);
                prop_assert_eq!(read, Some(json!({"a": {"m": text}, "z": [text]})), "{}", yaml);
            }
        }
    }

    #[test]
    fn an_envelope_has_all_its_fields() {
        let envelope = Envelope::of("v1", "Pod", &TypeMeta::default());
        let bytes = b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod\x12\x04\x0a\x00\x12\x00\x1a\x00\x22\x00";
        assert_eq!(envelope.to_bytes(), bytes);
        assert_eq!(Envelope::read(bytes), Some(envelope));
        assert_eq!(Envelope::read(b"{}"), None);
        assert_eq!(Envelope::read(b"k8s\0\x0a"), None);
    }
}
