//! Schemas as types. The comparison with the reference is in `crates/admission/tests`.

use serde_json::{Value, json};

use super::*;

fn read(schemas: &Value) -> Declarations {
    Declarations::read(json!({"components": {"schemas": schemas}}).to_string().as_bytes()).unwrap()
}

/// A type in brief; an object by the names of its fields.
fn shown(kind: &DeclaredType) -> String {
    match kind {
        DeclaredType::List(element) => format!("[{}]", shown(element)),
        DeclaredType::Map(element) => format!("{{{}}}", shown(element)),
        DeclaredType::Object(object) => object.names().join("+"),
        other => format!("{other:?}").to_lowercase(),
    }
}

#[test]
fn schemas_become_types() {
    let object = json!({"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}});
    let cases = [
        (json!({}), "anything"),
        (json!({"type": "boolean"}), "bool"),
        (json!({"type": "number", "format": "float"}), "double"),
        (json!({"type": ["string", "null"]}), "string"),
        (json!({"type": "string", "format": "byte"}), "bytes"),
        (json!({"type": "string", "format": "date-time"}), "timestamp"),
        (json!({"type": "string", "format": "int-or-string"}), "anything"),
        (json!({"x-kubernetes-int-or-string": true, "type": "string"}), "anything"),
        (json!({"x-kubernetes-int-or-string": "true", "type": "string"}), "string"),
        (json!({"type": "array"}), "[anything]"),
        (json!({"type": "array", "items": object}), "[a+b]"),
        (json!({"type": "object"}), "anything"),
        (json!({"type": "object", "additionalProperties": true, "properties": {"a": {}}}), "anything"),
        (json!({"type": "object", "additionalProperties": {"type": "string"}}), "{string}"),
        (json!({"type": "object", "additionalProperties": {}}), "{anything}"),
        (json!({"type": "object", "additionalProperties": false, "properties": {"a": {}}}), "a"),
        (
            json!({"type": "object", "properties": {"a": {}}, "x-kubernetes-preserve-unknown-fields": true}),
            "anything",
        ),
        (
            json!({"type": "object", "properties": {"a": {}}, "x-kubernetes-embedded-resource": true}),
            "a+apiVersion+kind+metadata",
        ),
        (json!({"$ref": "#/components/schemas/Other"}), "a+b"),
        (json!({"allOf": [{"$ref": "#/components/schemas/Other"}], "default": {}}), "a+b"),
        (json!({"allOf": [{"type": "object"}, {"$ref": "#/components/schemas/Other"}]}), "a+b"),
        (json!({"$ref": "#/components/schemas/Missing"}), "anything"),
        (json!({"$ref": "#/components/schemas/Lists"}), "[[["),
    ];
    for (schema, expected) in cases {
        let kinds = json!([{"group": "", "version": "v1", "kind": "Box"}]);
        let read = read(&json!({
            "Box": {
                "type": "object", "properties": {"part": schema}, "x-kubernetes-group-version-kind": kinds,
            },
            "Other": object,
            "Lists": {"type": "array", "items": {"$ref": "#/components/schemas/Lists"}},
        }));
        let Some(DeclaredType::Object(root)) = read.of("", "v1", "Box") else { panic!("{schema}") };
        let found = shown(&root.field("part").unwrap());
        assert!(found == expected || expected == "[[[" && found.starts_with(expected), "{schema}: {found}");
    }
}

#[test]
fn an_object_of_the_api_has_metadata() {
    let kinds = |kind: &str| json!([{"group": "g", "version": "v1", "kind": kind}]);
    let string = json!({"type": "string"});
    let metadata = json!({"type": "object", "properties": {
        "name": string, "generateName": string, "labels": {"type": "object", "additionalProperties": string},
    }});
    let read = read(&json!({
        "Whole": {"type": "object", "x-kubernetes-group-version-kind": kinds("Whole"), "properties": {
            "metadata": {"$ref": "#/components/schemas/Metadata"}, "again": {"$ref": "#/components/schemas/Whole"},
        }},
        "Metadata": metadata,
        "Bare": {"type": "object", "x-kubernetes-group-version-kind": kinds("Bare"), "properties": {"spec": {}}},
    }));
    let field = |kind: &str, path: &[&str]| {
        let root = read.of("g", "v1", kind)?;
        path.iter().try_fold(root, |kind, name| match kind {
            DeclaredType::Object(object) => object.field(name),
            _ => None,
        })
    };
    for (kind, path, expected) in [
        ("Whole", &["metadata", "labels"][..], Some("{string}")),
        ("Whole", &["kind"], Some("string")),
        ("Whole", &["again", "again", "again", "metadata", "name"], Some("string")),
        ("Whole", &["again", "kind"], None),
        ("Bare", &["metadata", "name"], Some("string")),
        ("Bare", &["metadata", "labels"], None),
        ("Bare", &["spec"], Some("anything")),
        ("Absent", &[], None),
    ] {
        assert_eq!(field(kind, path).as_ref().map(shown).as_deref(), expected, "{kind} {path:?}");
    }
    assert!(read.size() > 200);
}

#[test]
fn a_document_that_is_none_is_refused() {
    for document in ["", "[]", "{\"components\": {\"schemas\": {\"a\": null}}}", &":".repeat(1_000_001)] {
        assert!(Declarations::read(document.as_bytes()).is_err(), "{document:.40}");
    }
    let twice = "{\"components\": {\"schemas\": {\"a\": {}, \"a\": {}}}}";
    assert!(Declarations::read(twice.as_bytes()).is_err());
}
