use serde_json::{Value, json};

use super::*;

/// A list of named things with ports, labels, an atomic list, a count, and anything.
fn schemas() -> Schemas {
    let document = json!({"components": {"schemas": {
        "Box": {
            "type": "object",
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "count": {"type": "integer"},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "things": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "port"],
                    "items": {"$ref": "#/components/schemas/Thing"}},
                "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "args": {"type": "array", "items": {"type": "string"}},
                "whole": {"allOf": [{"$ref": "#/components/schemas/Thing"}], "x-kubernetes-map-type": "atomic"},
                "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "inner": {"$ref": "#/components/schemas/Box"}
            },
            "x-kubernetes-group-version-kind": [{"group": "g", "version": "v1", "kind": "Box"}]
        },
        "Thing": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "port": {"type": "integer", "default": 80}, "x": {"type": "string"}}
        }
    }}});
    Schemas::read(document.to_string().as_bytes()).unwrap()
}

fn of_box(mut fields: Value) -> Value {
    fields["apiVersion"] = "g/v1".into();
    fields["kind"] = "Box".into();
    fields
}

struct Case {
    name: &'static str,
    original: Value,
    patch: Value,
    /// The fields of the result, or the error.
    expected: Result<Value, &'static str>,
}

fn cases() -> Vec<Case> {
    let case = |name, original, patch, expected| Case { name, original, patch, expected };
    vec![
        case("a field is set", json!({"count": 1}), json!({"count": 2}), Ok(json!({"count": 2}))),
        case(
            "others are left",
            json!({"count": 1}),
            json!({"tags": ["a"]}),
            Ok(json!({"count": 1, "tags": ["a"]})),
        ),
        case(
            "entries of a map are merged",
            json!({"labels": {"a": "1", "b": "2"}}),
            json!({"labels": {"b": "3", "c": "4"}}),
            Ok(json!({"labels": {"a": "1", "b": "3", "c": "4"}})),
        ),
        case("null sets a scalar", json!({"count": 1}), json!({"count": null}), Ok(json!({"count": null}))),
        case(
            "null leaves a map",
            json!({"labels": {"a": "1"}}),
            json!({"labels": null}),
            Ok(json!({"labels": {"a": "1"}})),
        ),
        case(
            "elements of a list are those with the same keys, by default if one has none",
            json!({"things": [{"name": "a", "port": 80, "x": "1"}, {"name": "a", "port": 81}]}),
            json!({"things": [{"name": "a", "x": "2"}]}),
            Ok(json!({"things": [{"name": "a", "port": 80, "x": "2"}, {"name": "a", "port": 81}]})),
        ),
        case(
            "elements come in the order of the patch, those of the object alone before what follows them",
            json!({"things": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}),
            json!({"things": [{"name": "c"}, {"name": "new"}, {"name": "a"}]}),
            Ok(json!({"things": [{"name": "b"}, {"name": "c"}, {"name": "new"}, {"name": "a"}]})),
        ),
        case(
            "elements of a set are added",
            json!({"tags": ["a", "b"]}),
            json!({"tags": ["c", "a"]}),
            Ok(json!({"tags": ["c", "a", "b"]})),
        ),
        case(
            "duplicates of an object stay until a patch names them",
            json!({"tags": ["a", "a", "b", "b"]}),
            json!({"tags": ["b"]}),
            Ok(json!({"tags": ["a", "a", "b"]})),
        ),
        case(
            "duplicates of a patch are refused",
            json!({}),
            json!({"tags": ["a", "a"]}),
            Err("failed to convert patch object to typed object: .tags: duplicate entries for key [=\"a\"]"),
        ),
        case(
            "atomic lists and maps are refused",
            json!({}),
            json!({"args": ["a"], "whole": {"x": "1"}}),
            Err("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .args, .whole"),
        ),
        case(
            "an atomic list may be set to null",
            json!({"args": ["a"]}),
            json!({"args": null}),
            Ok(json!({"args": null})),
        ),
        case(
            "maps without a schema are merged",
            json!({"any": {"a": {"b": 1}, "c": 1}}),
            json!({"any": {"a": {"d": 2}}}),
            Ok(json!({"any": {"a": {"b": 1, "d": 2}, "c": 1}})),
        ),
        case(
            "their lists are not, and what sets one is not refused",
            json!({"any": {"a": [1, 2]}}),
            json!({"any": {"a": [3]}}),
            Ok(json!({"any": {"a": [3]}})),
        ),
        case(
            "a type may contain itself",
            json!({"inner": {"inner": {"count": 1}}}),
            json!({"inner": {"inner": {"inner": {"count": 2}}}}),
            Ok(json!({"inner": {"inner": {"count": 1, "inner": {"count": 2}}}})),
        ),
        case(
            "wrong types are refused",
            json!({}),
            json!({"count": "1", "labels": {"a": 1}, "tags": {}}),
            Err(
                "failed to convert patch object to typed object: errors:\n  .count: expected numeric (int or float), got string\n  \
                 .labels.a: expected string, got &value.valueUnstructured{Value:1}\n  .tags: expected list, got &{map[]}",
            ),
        ),
        case(
            "unknown fields are refused",
            json!({"other": 1}),
            json!({}),
            Err("failed to convert original object to typed object: .other: field not declared in schema"),
        ),
        case(
            "the patch is of the kind of the object",
            json!({}),
            json!({"kind": "Other"}),
            Err("patch (g/v1, Kind=Other) and original object (g/v1, Kind=Box) are not of the same gvk"),
        ),
    ]
}

#[test]
fn what_a_patch_sets_is_kept_and_the_rest_is_left() {
    let schemas = schemas();
    let mut wrong = Vec::new();
    for Case { name, original, patch, expected } in cases() {
        let patch = if patch.get("kind").is_some() {
            json!({"apiVersion": "g/v1", "kind": patch["kind"]})
        } else {
            of_box(patch)
        };
        let found = schemas.merge(&of_box(original), &patch).map_err(|error| error.to_string());
        if found != expected.map(of_box).map_err(str::to_owned) {
            wrong.push(format!("{name}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn kinds_are_known_by_group_and_version() {
    let schemas = schemas();
    assert!(schemas.knows("g", "v1", "Box"));
    for (group, version, kind) in
        [("", "v1", "Box"), ("g", "v2", "Box"), ("g", "v1", "Thing"), ("g", "v1", "")]
    {
        assert!(!schemas.knows(group, version, kind), "{group} {version} {kind}");
    }
    let other = json!({"apiVersion": "g/v1", "kind": "Thing"});
    let error = schemas.merge(&other, &other).unwrap_err().to_string();
    assert_eq!(
        error,
        "failed to convert patch object to typed object: no corresponding type for g/v1, Kind=Thing"
    );
}

#[test]
fn a_document_that_is_none_says_why() {
    for (text, expected) in [
        ("{", "failed to unmarshal schema: EOF while parsing an object at line 1 column 1"),
        (
            r#"{"components": {"schemas": {"a": {"properties": {"b": {"type": "array"}}}}}}"#,
            "failed to create type converter: failed to convert models to schema: inlined in a: `items` must be specified on arrays",
        ),
    ] {
        assert_eq!(Schemas::read(text.as_bytes()).unwrap_err().to_string(), expected);
    }
}

#[test]
fn values_are_merged_up_to_a_depth() {
    let schemas = schemas();
    let nested = |depth: usize| {
        // The object itself is the first level.
        let value = (1..depth - 1).fold(json!(1), |inner, _| json!({"a": inner}));
        of_box(json!({"any": value}))
    };
    let deepest = nested(MAX_DEPTH);
    assert_eq!(schemas.merge(&deepest, &deepest).unwrap(), deepest);
    let deeper = nested(MAX_DEPTH + 1);
    let error = |original: &Value, patch: &Value| schemas.merge(original, patch).unwrap_err().to_string();
    assert_eq!(error(&deeper, &of_box(json!({}))), "the object is nested too deeply");
    assert_eq!(error(&of_box(json!({})), &deeper), "the patch is nested too deeply");
}

// Each of these would take minutes if time grew with the square of the size.

fn read(document: &str) -> Result<Schemas, SchemaError> {
    Schemas::read(document.as_bytes())
}

#[test]
fn hostile_documents_are_read_or_refused() {
    let of = |schema: &str| format!(r#"{{"components": {{"schemas": {{"A": {schema}}}}}}}"#);
    for (open, close) in
        [(r#"{"items":"#, "}"), (r#"{"additionalProperties":"#, "}"), (r#"{"properties":{"a":"#, "}}")]
    {
        let nested = of(&format!("{}{{}}{}", open.repeat(100_000), close.repeat(100_000)));
        assert!(matches!(read(&nested), Err(SchemaError::Syntax(_))), "{open}");
    }
    // What is not looked at is skipped.
    for open in [r#"{"allOf":["#, r#"{"default":["#] {
        let nested = of(&format!("{}{{}}{}", open.repeat(100_000), "]}".repeat(100_000)));
        assert!(read(&nested).is_ok(), "{open}");
    }
    let extension = of(&format!(r#"{{"x-kubernetes-map-type": [{}0]}}"#, "0,".repeat(100_000)));
    let error = read(&extension).unwrap_err().to_string();
    assert!(error.contains("an extension has more than 64 KiB"), "{error}");
    // The last schema is one too many.
    let fields: Vec<_> = (0..124_000).map(|number| format!(r#""f{number}":{{"items":{{}}}}"#)).collect();
    let many = of(&format!(r#"{{"properties": {{{}}}}}"#, fields.join(",")));
    let error = read(&many).map(|schemas| schemas.size()).unwrap_err().to_string();
    assert!(error.contains("take more than 16 MiB"), "{error}");
    let enumeration =
        of(&format!(r#"{{"enum": [{}1], "anyOf": [{}{{}}]}}"#, "1,".repeat(300_000), "{},".repeat(300_000)));
    assert!(read(&enumeration).unwrap().size() < 10_000);
    let fields: Vec<String> =
        (0..100_000).map(|number| format!(r#""f{number}": {{"type": "bad"}}"#)).collect();
    let bad = read(&of(&format!(r#"{{"properties": {{{}}}}}"#, fields.join(",")))).unwrap_err();
    assert!(bad.to_string().len() < 100_000);
    let keys = of(&format!(
        r#"{{"type": "array", "items": {{}}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [{}"k"]}}"#,
        r#""k","#.repeat(100)
    ));
    let error = read(&keys).unwrap_err().to_string();
    assert!(error.ends_with("A: more than 64 map keys"), "{error}");
    let many = of(&format!(r#"{{"properties": {{{}"b":{{}}}}}}"#, r#""a":{},"#.repeat(1_000_000)));
    assert!(matches!(read(&many), Err(SchemaError::TooLarge)));
    // References in a circle are types that no value has.
    let circle = r##"{"components": {"schemas": {
        "A": {"allOf": [{"$ref": "#/components/schemas/B"}], "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "A"}]},
        "B": {"properties": {"apiVersion": {"allOf": [{"$ref": "#/components/schemas/B"}]}}}, "C": {"$ref": "#/components/schemas/C"}}}}"##;
    let schemas = read(circle).unwrap();
    let object = json!({"apiVersion": "v1", "kind": "A"});
    assert_eq!(schemas.merge(&object, &object).unwrap(), object);
}

#[test]
fn many_faults_are_told_in_part() {
    let schemas = schemas();
    let tags: Vec<Value> = (0..200_000).map(Value::from).collect();
    let error = schemas.merge(&of_box(json!({})), &of_box(json!({"tags": tags}))).unwrap_err().to_string();
    assert!(error.len() < 2 << 20 && error.ends_with(" more"), "{}", error.len());
    assert!(error.starts_with(
        "failed to convert patch object to typed object: errors:\n  .tags[=0]: expected string, got &value.valueUnstructured{Value:0}\n"
    ));
}

#[test]
fn large_lists_are_merged() {
    let schemas = schemas();
    let things = |range: std::ops::Range<usize>| -> Vec<Value> {
        range.rev().map(|number| json!({"name": number.to_string()})).collect()
    };
    let (original, patch) =
        (of_box(json!({"things": things(0..50_000)})), of_box(json!({"things": things(25_000..75_000)})));
    let merged = schemas.merge(&original, &patch).unwrap();
    assert_eq!(merged["things"].as_array().unwrap().len(), 75_000);
}
