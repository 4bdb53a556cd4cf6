//! Random policies about the fields of published schemas.

use serde_json::{Value, json};
use testkit::published::PublishedDocuments;
use testkit::random::Rng;

use super::tables;

/// Makes expressions about the objects of a resource.
pub(crate) struct Generator {
    /// Resources with the document and the schema of their kind.
    sources: Vec<(&'static str, Value, String)>,
}

/// A path from a variable, and the schema of the value there; `None` if it may be any.
struct Path {
    text: String,
    schema: Option<Value>,
}

impl Generator {
    pub(crate) fn new(published: &PublishedDocuments) -> Self {
        let read = |path: &str| -> Value {
            serde_json::from_slice(&std::fs::read(published.file(path)).unwrap()).unwrap()
        };
        let core = read("api/v1");
        let of = |resource, document: &Value, kind: &str| {
            let schemas = document["components"]["schemas"].clone();
            let name = schemas
                .as_object()
                .unwrap()
                .keys()
                .find(|name| name.ends_with(&format!(".{kind}")))
                .unwrap()
                .clone();
            (resource, schemas, name)
        };
        Self {
            sources: vec![
                of("v1/pods", &core, "Pod"),
                of("v1/configmaps", &core, "ConfigMap"),
                of("v1/services", &core, "Service"),
                of("apps/v1/deployments", &read("apis/apps/v1"), "Deployment"),
                of("example.com/v1/widgets", &tables::widgets(), "Widget"),
            ],
        }
    }

    pub(crate) fn policy(&self, rng: &mut Rng) -> (Vec<&'static str>, Value) {
        let (resource, ..) = rng.pick(&self.sources);
        let mut resources = vec![*resource];
        if rng.one_in(4) {
            let (other, ..) = rng.pick(&self.sources);
            if other != resource {
                resources.push(other);
            }
        }
        let (_, schemas, root) = self.sources.iter().find(|(known, ..)| known == resource).unwrap();
        let of = Source { schemas, root };
        let depth = rng.below(3);
        let variable = of.value(rng, 1);
        let mut validation = json!({"expression": format!("dyn({}) == dyn(1)", of.value(rng, depth))});
        if rng.one_in(2) {
            validation = json!({"expression": of.boolean(rng, depth)});
        }
        if rng.one_in(4) {
            validation["messageExpression"] = format!("string(dyn({}))", of.value(rng, 1)).into();
        }
        let spec = json!({
            "variables": [{"name": "v", "expression": variable}],
            "validations": [validation],
            "auditAnnotations": [{"key": "k", "valueExpression": format!("string(dyn({}))", of.value(rng, depth))}],
        });
        (resources, spec)
    }
}

struct Source<'a> {
    schemas: &'a Value,
    root: &'a str,
}

impl Source<'_> {
    fn resolve(&self, schema: &Value) -> Option<Value> {
        let reference = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
        match reference {
            Some(reference) => self.schemas.get(reference.rsplit('/').next()?).cloned(),
            None => Some(schema.clone()),
        }
    }

    fn path(&self, rng: &mut Rng) -> Path {
        let start = *rng.pick(&["object", "object", "oldObject"]);
        let mut path = Path { text: start.to_owned(), schema: Some(self.schemas[self.root].clone()) };
        for _ in 0..=rng.below(6) {
            path = self.step(path, rng);
        }
        path
    }

    fn step(&self, Path { mut text, schema }: Path, rng: &mut Rng) -> Path {
        if rng.one_in(60) {
            text.push_str(".wrong");
            return Path { text, schema: None };
        }
        let Some(schema) = schema.and_then(|schema| self.resolve(&schema)) else {
            return Path { text, schema: None };
        };
        if schema["type"] == "array" {
            text.push_str("[0]");
            return Path { text, schema: schema.get("items").cloned() };
        }
        if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
            text.push_str(if rng.one_in(2) { ".a" } else { "['a']" });
            return Path { text, schema: Some(values.clone()) };
        }
        let is_plain = |name: &str| {
            name.chars().all(|letter| letter.is_ascii_alphanumeric()) && name != "in" && name != "if"
        };
        let properties: Vec<(&String, &Value)> = schema["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| is_plain(name))
            .collect();
        if properties.is_empty() {
            return Path { text, schema: Some(schema) };
        }
        let (name, property) = rng.pick(&properties);
        text.push('.');
        text.push_str(if rng.one_in(15) { "?" } else { "" });
        text.push_str(name);
        Path { text, schema: Some((*property).clone()) }
    }

    /// A value of any type.
    fn value(&self, rng: &mut Rng, depth: usize) -> String {
        if depth == 0 {
            return match rng.below(25) {
                0 => (*rng.pick(&[
                    "1",
                    "'a'",
                    "true",
                    "null",
                    "[]",
                    "{}",
                    "1.5",
                    "request.name",
                    "namespaceObject.metadata.labels",
                ]))
                .to_owned(),
                _ => self.path(rng).text,
            };
        }
        let part = |rng: &mut Rng| self.value(rng, depth - 1);
        match rng.below(16) {
            0 => format!("({} + {})", part(rng), part(rng)),
            1 => format!("[{}, {}]", part(rng), part(rng)),
            2 => format!("{{'a': {}, 'b': {}}}", part(rng), part(rng)),
            3 => format!("({} ? {} : {})", self.boolean(rng, depth - 1), part(rng), part(rng)),
            4 => format!("size({})", part(rng)),
            5 => format!("string({})", part(rng)),
            6 => format!("{}.map(x, {})", part(rng), *rng.pick(&["x", "x.name", "x + x", "[x, object]"])),
            7 => format!("{}[{}]", part(rng), *rng.pick(&["0", "'a'", "object.spec"])),
            8 => format!("dyn({}).a.b", part(rng)),
            9 => self.path(rng).text,
            _ => self.boolean(rng, depth - 1),
        }
    }

    fn boolean(&self, rng: &mut Rng, depth: usize) -> String {
        let part = |rng: &mut Rng| self.value(rng, depth.saturating_sub(1));
        match rng.below(14) {
            0 if depth > 0 => {
                format!("({} && {})", self.boolean(rng, depth - 1), self.boolean(rng, depth - 1))
            }
            1 if depth > 0 => {
                format!("({} || {})", self.boolean(rng, depth - 1), self.boolean(rng, depth - 1))
            }
            2 if depth > 0 => format!("!{}", part(rng)),
            3 => format!("({} > {})", part(rng), part(rng)),
            4 => format!("({} in {})", part(rng), part(rng)),
            5 => {
                let text = self.path(rng).text;
                if text.ends_with(']') || text.contains('?') || !text.contains('.') {
                    "true".to_owned()
                } else {
                    format!("has({text})")
                }
            }
            6 => format!(
                "{}.{}(x, {})",
                part(rng),
                *rng.pick(&["all", "exists"]),
                *rng.pick(&["x == 'a'", "x.name == 'a'", "x.wrong", "x > 1", "x"])
            ),
            7 => format!("{}.startsWith({})", part(rng), part(rng)),
            8 => format!("({} == {})", part(rng), part(rng)),
            _ => self.fitting(rng),
        }
    }

    /// A comparison of a value with one of its type.
    fn fitting(&self, rng: &mut Rng) -> String {
        let Path { text, schema } = self.path(rng);
        let schema = schema.and_then(|schema| self.resolve(&schema)).unwrap_or_default();
        let text = if text.contains('?') { return format!("({text}.hasValue())") } else { text };
        match (schema["type"].as_str().unwrap_or_default(), schema["format"].as_str().unwrap_or_default()) {
            ("string", "date-time") => format!("({text} > timestamp('2026-01-01T00:00:00Z'))"),
            ("string", "byte") => format!("({text} == b'a')"),
            ("string", _) => format!("{text}.startsWith('a')"),
            ("integer", _) => format!("({text} + 1 > 2)"),
            ("number", _) => format!("({text} > 1.5)"),
            ("boolean", _) => format!("({text} || !{text})"),
            ("array", _) => format!("{text}.all(x, x == {text}[0])"),
            _ => format!("({text} == {text})"),
        }
    }
}
