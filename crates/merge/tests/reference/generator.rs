//! Random schemas, and random objects of a schema.

use serde_json::{Value, json};
use testkit::random::Rng;

const TEXTS: &[&str] = &["a", "b", "c", "", "TCP", "<é\"\n>"];

/// Makes objects of the schemas of a document.
pub(crate) struct Generator {
    schemas: Value,
}

/// What an object may have beside what its schema says.
#[derive(Clone, Copy)]
struct Style {
    /// One in so many values is of any kind, and one in so many fields is not declared.
    noise: usize,
    /// Whether atomic lists and maps are set.
    atomic: bool,
}

impl Generator {
    pub(crate) fn new(document: &[u8]) -> Self {
        let mut document: Value = serde_json::from_slice(document).unwrap();
        Self { schemas: document["components"]["schemas"].take() }
    }

    /// The name of the schema of a kind.
    pub(crate) fn named(&self, kind: &str) -> String {
        let mut names = self.schemas.as_object().unwrap().keys();
        names.find(|name| name.ends_with(&format!(".{kind}"))).unwrap().clone()
    }

    /// An object of a schema, and a patch for it.
    pub(crate) fn pair(&self, name: &str, rng: &mut Rng) -> (Value, Value) {
        let schema = &self.schemas[name];
        let kind = &schema["x-kubernetes-group-version-kind"][0];
        let group = kind["group"].as_str().unwrap();
        let version = kind["version"].as_str().unwrap();
        let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let styles = [
            Style { noise: 0, atomic: true },
            Style { noise: 0, atomic: false },
            Style { noise: 0, atomic: false },
            Style { noise: 60, atomic: false },
            Style { noise: 15, atomic: true },
        ];
        let original_style = Style { atomic: true, ..*rng.pick(&styles) };
        let patch_style = *rng.pick(&styles);
        let mut original = self.value(schema, original_style, 0, rng);
        let mut patch = self.value(schema, patch_style, 0, rng);
        if patch_style.atomic && rng.one_in(3) {
            patch = original.clone();
        }
        for object in [&mut original, &mut patch] {
            if !object.is_object() {
                *object = json!({});
            }
            object["apiVersion"] = api_version.as_str().into();
            object["kind"] = kind["kind"].clone();
        }
        (original, patch)
    }

    fn resolve<'a>(&'a self, schema: &'a Value) -> Option<&'a Value> {
        let reference = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
        match reference {
            Some(reference) => self.schemas.get(reference.rsplit('/').next()?),
            None => Some(schema),
        }
    }

    fn value(&self, schema: &Value, style: Style, depth: usize, rng: &mut Rng) -> Value {
        if style.noise > 0 && rng.one_in(style.noise) {
            return anything(rng, 2);
        }
        if rng.one_in(40) {
            return Value::Null;
        }
        let Some(schema) = self.resolve(schema) else { return anything(rng, 1) };
        match schema["type"].as_str() {
            Some("object") => self.object(schema, style, depth, rng),
            Some("array") => {
                let most = if depth > 6 { 1 } else { 4 };
                (0..rng.below(most)).map(|_| self.value(&schema["items"], style, depth + 1, rng)).collect()
            }
            Some("string") => match schema["format"].as_str() {
                Some("date-time") if !rng.one_in(8) => "2026-01-02T03:04:05Z".into(),
                Some("byte") if !rng.one_in(8) => "AAAA".into(),
                Some("int-or-string") if rng.one_in(2) => number(rng),
                _ if is_quantity(schema) => rng.pick(&[json!("1"), json!("0.5Gi"), json!("100m")]).clone(),
                _ => (*rng.pick(TEXTS)).into(),
            },
            Some("integer") if rng.one_in(20) => i64::MAX.into(),
            Some("number") if rng.one_in(2) => json!(1.5),
            Some("integer" | "number") => number(rng),
            Some("boolean") => rng.one_in(2).into(),
            _ if schema.get("properties").is_some() => self.object(schema, style, depth, rng),
            _ if is_quantity(schema) => {
                rng.pick(&[json!("1"), json!(2), json!("0.5Gi"), json!("100m")]).clone()
            }
            _ => anything(rng, 2),
        }
    }

    fn is_atomic(&self, schema: &Value) -> bool {
        let Some(target) = self.resolve(schema) else { return false };
        let of = |schema: &Value| {
            schema["x-kubernetes-map-type"] == "atomic"
                || (schema["type"] == "array"
                    && !["map", "set"].iter().any(|kind| schema["x-kubernetes-list-type"] == *kind))
        };
        of(schema) || of(target)
    }

    fn object(&self, schema: &Value, style: Style, depth: usize, rng: &mut Rng) -> Value {
        let mut object = json!({});
        let likely = if depth < 2 { 2 } else { 4 };
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let is_key =
                ["name", "key", "port", "containerPort", "type"].contains(&name.as_str()) && !rng.one_in(8);
            let is_wanted = (depth < 12 && is_key) || (depth < 8 && rng.one_in(likely));
            if is_wanted && (style.atomic || !self.is_atomic(property)) {
                object[name] = self.value(property, style, depth + 1, rng);
            }
        }
        let has_others = schema["properties"].is_null() || schema["additionalProperties"].is_object();
        if has_others && rng.one_in(2) {
            for _ in 0..rng.below(3) {
                let value = match &schema["additionalProperties"] {
                    others @ Value::Object(_) => self.value(others, style, depth + 1, rng),
                    _ => anything(rng, 1),
                };
                object[*rng.pick(TEXTS)] = value;
            }
        }
        if style.noise > 0 && rng.one_in(style.noise) {
            object["unknown"] = anything(rng, 1);
        }
        object
    }
}

/// Quantities have a format in their description alone.
fn is_quantity(schema: &Value) -> bool {
    schema["description"].as_str().is_some_and(|text| text.starts_with("Quantity"))
}

fn number(rng: &mut Rng) -> Value {
    rng.pick(&[json!(0), json!(1), json!(2), json!(80), json!(-3), json!(1_234_567)]).clone()
}

/// A value of any kind.
fn anything(rng: &mut Rng, depth: usize) -> Value {
    match rng.below(if depth == 0 { 6 } else { 9 }) {
        0 => Value::Null,
        1 => rng.one_in(2).into(),
        2 => number(rng),
        3 => rng
            .pick(&[json!(1.5), json!(1e6), json!(2.0), json!(1e-7), json!(123_456_789.5), json!(1e30)])
            .clone(),
        4 | 5 => (*rng.pick(TEXTS)).into(),
        6 => (0..rng.below(3)).map(|_| anything(rng, depth - 1)).collect(),
        _ => {
            let mut object = json!({});
            for _ in 0..rng.below(3) {
                object[*rng.pick(TEXTS)] = anything(rng, depth - 1);
            }
            object
        }
    }
}

/// A document with a kind `Root`.
pub(crate) fn random_document(rng: &mut Rng) -> Value {
    let mut schemas = json!({});
    for name in ["A", "B", "C"] {
        schemas[name] = random_schema(rng, 2);
    }
    let mut root = random_object(rng, 3);
    root["properties"]["apiVersion"] = json!({"type": "string"});
    root["properties"]["kind"] = json!({"type": "string"});
    root["x-kubernetes-group-version-kind"] = json!([{"group": "g", "version": "v", "kind": "K"}]);
    schemas["Root"] = root;
    json!({"components": {"schemas": schemas}})
}

fn random_schema(rng: &mut Rng, depth: usize) -> Value {
    let mut schema = match rng.below(if depth == 0 { 6 } else { 16 }) {
        0 => json!({"type": "string"}),
        1 => json!({"type": "string", "format": rng.pick(&["byte", "date-time", "int-or-string", "x"])}),
        2 => json!({"type": "integer"}),
        3 => json!({"type": rng.pick(&["boolean", "number"])}),
        4 => json!({"$ref": reference(rng)}),
        5 => json!({}),
        6 => json!({"allOf": [{"$ref": reference(rng)}], "default": {}}),
        7 => json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
        8..=11 => random_object(rng, depth - 1),
        _ => random_list(rng, depth - 1),
    };
    if rng.one_in(12) {
        schema["x-kubernetes-map-type"] = (*rng.pick(&["atomic", "granular", "atomic"])).into();
    }
    if rng.one_in(12) {
        schema["x-kubernetes-preserve-unknown-fields"] = (!rng.one_in(4)).into();
    }
    if rng.one_in(10) {
        schema["nullable"] = true.into();
    }
    if rng.one_in(500) {
        let (key, value) = rng
            .pick(&[
                ("type", json!("null")),
                ("x-kubernetes-list-type", json!("bag")),
                ("x-kubernetes-map-type", json!(null)),
                ("items", json!([{}])),
            ])
            .clone();
        schema[key] = value;
    }
    schema
}

fn reference(rng: &mut Rng) -> String {
    let name = if rng.one_in(40) { "Missing" } else { *rng.pick(&["A", "B", "C"]) };
    format!("#/components/schemas/{name}")
}

fn random_object(rng: &mut Rng, depth: usize) -> Value {
    let mut schema = json!({"type": "object"});
    if !rng.one_in(5) {
        schema["properties"] = json!({});
        for name in ["name", "port", "x", "y", "z"] {
            if rng.one_in(2) {
                schema["properties"][name] = random_schema(rng, depth);
            }
        }
    }
    match rng.below(6) {
        0 => schema["additionalProperties"] = random_schema(rng, depth),
        1 => schema["additionalProperties"] = rng.one_in(2).into(),
        _ => {}
    }
    schema
}

fn random_list(rng: &mut Rng, depth: usize) -> Value {
    let mut schema = json!({"type": "array"});
    match rng.below(6) {
        0 => schema["items"] = random_schema(rng, depth),
        1 => {
            schema["items"] = json!({"type": *rng.pick(&["string", "integer", "number", "boolean"])});
            schema["x-kubernetes-list-type"] = "set".into();
        }
        2 => {
            schema["items"] = random_schema(rng, depth);
            schema["x-kubernetes-list-type"] = (*rng.pick(&["set", "atomic"])).into();
        }
        _ => {
            let mut item = random_object(rng, depth);
            item["properties"]["name"] = json!({"type": "string"});
            if rng.one_in(2) {
                item["properties"]["port"] = json!({"type": "integer"});
                item["properties"]["port"]["default"] = rng
                    .pick(&[json!(80), json!(1), json!(1.5), json!(null), json!(1_234_567), json!({"a": 1})])
                    .clone();
                schema["x-kubernetes-list-map-keys"] =
                    rng.pick(&[json!(["name", "port"]), json!(["port", "name"]), json!(["port"])]).clone();
            } else {
                schema["x-kubernetes-list-map-keys"] = json!(["name"]);
            }
            schema["items"] = item;
            schema["x-kubernetes-list-type"] = "map".into();
            if rng.one_in(8) {
                schema = json!({"type": "array", "items": schema["items"], "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name"});
            }
        }
    }
    schema
}
