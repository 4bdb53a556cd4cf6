//! Merges of apply configurations, compared with kube-apiserver's own code (`tests/go/merge`): by the schemas that Kubernetes
//! publishes, and by random ones.
//!
//! `PORTCULLIS_SEED` and `PORTCULLIS_INPUTS` set the seed and the number of random merges.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test program: a panic is a failed test, and tables are written with values"
)]

use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

use portcullis_merge::{MergeError, SchemaError, Schemas};
use serde_json::{Value, json};
use testkit::comparison::Compared;
use testkit::go_program::GoProgram;
use testkit::published::PublishedDocuments;
use testkit::random::{Rng, inputs, seed};

mod generator;
mod tables;

use generator::{Generator, random_document};

/// A document, by its file or as it is.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Document {
    File(PathBuf),
    Text(Rc<str>),
}

impl Document {
    fn text(&self) -> Vec<u8> {
        match self {
            Self::File(path) => std::fs::read(path).unwrap(),
            Self::Text(text) => text.as_bytes().to_vec(),
        }
    }
}

struct Case {
    document: Document,
    original: Value,
    patch: Value,
}

/// The published documents of the Kubernetes release of the tests.
struct Published(PublishedDocuments);

impl Published {
    fn find() -> Self {
        Self(PublishedDocuments::find())
    }

    fn document(&self, path: &str) -> Document {
        Document::File(self.0.file(path))
    }
}

/// Reads each document once.
#[derive(Default)]
struct Documents(HashMap<Document, Rc<Result<Schemas, SchemaError>>>);

impl Documents {
    fn read(&mut self, document: &Document) -> Rc<Result<Schemas, SchemaError>> {
        let read = || Rc::new(Schemas::read(&document.text()));
        self.0.entry(document.clone()).or_insert_with(read).clone()
    }
}

/// Whether two values are the same for Go, which writes `1.0` as `1`.
fn is_same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => {
            if left.is_f64() || right.is_f64() {
                left.as_f64() == right.as_f64()
            } else {
                left == right
            }
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| is_same(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left.iter().zip(right).all(|(left, right)| left.0 == right.0 && is_same(left.1, right.1))
        }
        _ => left == right,
    }
}

/// The lines of a text in any order: models are visited in that of Go's maps.
fn lines(text: &str) -> Vec<&str> {
    let text = text.rsplit("failed to convert models to schema: ").next().unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

fn judge(documents: &mut Documents, case: &Case, answer: &Value) -> Compared {
    let unreadable = answer["unreadable"].as_str();
    let schemas = documents.read(&case.document);
    let schemas = match (&*schemas, unreadable) {
        (Err(SchemaError::Syntax(_)), Some(text)) if !text.contains("convert models") => {
            return Ok("unreadable");
        }
        (Err(error @ SchemaError::NotStructural(_)), Some(text))
            if lines(&error.to_string()) == lines(text) =>
        {
            return Ok("not structural");
        }
        (Ok(schemas), None) => schemas,
        (ours, theirs) => return Err(format!("ours {:?}, theirs {theirs:?}", ours.as_ref().err())),
    };
    if case.original.is_null() {
        return Ok("readable");
    }
    let ours = schemas.merge(&case.original, &case.patch);
    match (ours, answer.get("result")) {
        (Ok(ours), Some(theirs)) if is_same(&ours, theirs) => {
            match schemas.merge(&ours, &case.patch) {
                Ok(again) if again == ours => {}
                again => return Err(format!("once {ours}\n  twice {again:?}")),
            }
            Ok(if ours == case.original { "unchanged" } else { "merged" })
        }
        (Err(error), None) if answer["sorted"] == error.to_string() => Ok(match error {
            MergeError::OtherKind { .. } => "other kind",
            MergeError::Patch(_) => "wrong patch",
            MergeError::Atomic(_) => "atomic",
            MergeError::Original(_) => "wrong object",
            MergeError::Merge(_) => "contradiction",
            error => return Err(error.to_string()),
        }),
        (Ok(ours), _) => Err(format!("ours   {ours}\n  theirs {answer}")),
        (Err(error), _) => Err(format!("ours   {error}\n  theirs {answer}")),
    }
}

fn question(case: &Case) -> Value {
    let mut question = json!({"original": case.original, "patch": case.patch});
    if case.original.is_null() {
        question = json!({});
    }
    match &case.document {
        Document::File(path) => question["file"] = path.to_str().unwrap().into(),
        Document::Text(text) => question["document"] = (&**text).into(),
    }
    question
}

fn show(case: &Case) -> String {
    let document = match &case.document {
        Document::File(path) => path.file_name().unwrap().to_str().unwrap().to_owned(),
        Document::Text(text) => text.to_string(),
    };
    format!("{document}\n  object {}\n  patch  {}", case.original, case.patch)
}

fn compare(go: &GoProgram, what: &str, cases: &[Case], expected: &[&str]) {
    let mut documents = Documents::default();
    let words = go.compare(what, cases, question, show, |case, answer| judge(&mut documents, case, answer));
    words.occurred(expected);
}

#[test]
fn patches_of_built_in_types_are_merged_as_by_kube_apiserver() {
    let Some(go) = GoProgram::build("merge") else { return };
    let published = Published::find();
    let cases: Vec<Case> = tables::built_in()
        .into_iter()
        .map(|(document, original, patch)| Case { document: published.document(document), original, patch })
        .collect();
    compare(
        &go,
        "patches of built-in types",
        &cases,
        &["merged", "unchanged", "wrong patch", "atomic", "other kind"],
    );
}

#[test]
fn documents_are_read_as_by_kube_apiserver() {
    let Some(go) = GoProgram::build("merge") else { return };
    let published = Published::find();
    let mut cases: Vec<Case> = Vec::new();
    for entry in std::fs::read_dir(published.0.directory()).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        if text.contains("\"components\"") {
            cases.push(Case { document: Document::File(path), original: Value::Null, patch: Value::Null });
        }
    }
    assert!(cases.len() > 40);
    for schema in tables::schemas() {
        let text = json!({"components": {"schemas": {"A": schema, "B": {"type": "string"}}}}).to_string();
        cases.push(Case { document: Document::Text(text.into()), original: Value::Null, patch: Value::Null });
    }
    for text in tables::texts() {
        cases.push(Case {
            document: Document::Text((*text).into()),
            original: Value::Null,
            patch: Value::Null,
        });
    }
    compare(&go, "documents", &cases, &["readable", "unreadable", "not structural"]);
}

#[test]
fn odd_schemas_merge_as_by_kube_apiserver() {
    let Some(go) = GoProgram::build("merge") else { return };
    let mut cases = Vec::new();
    for (schemas, pairs) in tables::odd() {
        let mut schemas = schemas;
        schemas["Root"]["x-kubernetes-group-version-kind"] =
            json!([{"group": "g", "version": "v", "kind": "K"}]);
        let text: Rc<str> = json!({"components": {"schemas": schemas}}).to_string().into();
        for (mut original, mut patch) in pairs {
            for object in [&mut original, &mut patch] {
                object["apiVersion"] = "g/v".into();
                object["kind"] = "K".into();
            }
            cases.push(Case { document: Document::Text(text.clone()), original, patch });
        }
    }
    compare(&go, "odd schemas", &cases, &["merged", "contradiction"]);
}

/// All lists of up to four letters, and those without duplicates.
fn lists() -> (Vec<Vec<&'static str>>, Vec<Vec<&'static str>>) {
    let mut all = vec![Vec::new()];
    let mut last = all.clone();
    for _ in 0..4 {
        let longer = last.iter().flat_map(|list: &Vec<_>| {
            ["a", "b", "c", "d"].map(|letter| list.iter().copied().chain([letter]).collect())
        });
        last = longer.collect();
        all.extend(last.iter().cloned());
    }
    let is_set = |list: &&Vec<&str>| (1..list.len()).all(|at| !list[..at].contains(&list[at]));
    let sets = all.iter().filter(is_set).cloned().collect();
    (all, sets)
}

#[test]
fn lists_are_ordered_as_by_kube_apiserver() {
    let Some(go) = GoProgram::build("merge") else { return };
    let document = json!({"components": {"schemas": {"Root": {
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "f": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        },
        "x-kubernetes-group-version-kind": [{"group": "", "version": "v", "kind": "K"}],
    }}}});
    let text: Rc<str> = document.to_string().into();
    let (originals, patches) = lists();
    let object = |list: &Vec<&str>| json!({"apiVersion": "v", "kind": "K", "f": list});
    let cases: Vec<Case> = originals
        .iter()
        .flat_map(|original| patches.iter().map(move |patch| (original, patch)))
        .map(|(original, patch)| Case {
            document: Document::Text(text.clone()),
            original: object(original),
            patch: object(patch),
        })
        .collect();
    compare(&go, "lists", &cases, &["merged", "unchanged"]);
}

/// Random objects and patches of built-in types.
fn random_built_in(published: &Published, count: usize) -> Vec<Case> {
    let mut rng = Rng(seed());
    let kinds = [
        ("api/v1", "Pod"),
        ("api/v1", "Service"),
        ("api/v1", "ConfigMap"),
        ("api/v1", "Node"),
        ("apis/apps/v1", "Deployment"),
        ("apis/autoscaling/v2", "HorizontalPodAutoscaler"),
        ("apis/networking.k8s.io/v1", "Ingress"),
        ("apis/networking.k8s.io/v1", "NetworkPolicy"),
        ("apis/batch/v1", "CronJob"),
        ("apis/apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    ];
    let mut read: HashMap<&str, Generator> = HashMap::new();
    (0..count)
        .map(|_| {
            let (path, kind) = *rng.pick(&kinds);
            let document = published.document(path);
            let generator = read.entry(path).or_insert_with(|| Generator::new(&document.text()));
            let name = generator.named(kind);
            let (original, patch) = generator.pair(&name, &mut rng);
            Case { document, original, patch }
        })
        .collect()
}

#[test]
fn random_patches_of_built_in_types_are_merged_as_by_kube_apiserver() {
    let Some(go) = GoProgram::build("merge") else { return };
    let cases = random_built_in(&Published::find(), inputs(400));
    compare(&go, "random patches of built-in types", &cases, &["merged", "wrong patch", "atomic"]);
}

/// kube-apiserver merges into values of Go types, which are not what is served; the results are the same.
#[test]
fn what_is_served_merges_as_the_go_value_that_it_was() {
    let Some(go) = GoProgram::build("merge") else { return };
    let published = Published::find();
    let mut cases = random_built_in(&published, inputs(600));
    let tables = tables::built_in().into_iter();
    cases.extend(tables.map(|(path, original, patch)| Case {
        document: published.document(path),
        original,
        patch,
    }));
    let typed = |case: &Case| {
        let mut question = question(case);
        question["typed"] = true.into();
        question
    };
    let mut documents = Documents::default();
    let judge = |case: &Case, answer: &Value| {
        if answer["foreign"].is_string() {
            return Ok("foreign");
        }
        let served = Case {
            document: case.document.clone(),
            original: answer["served"].clone(),
            patch: case.patch.clone(),
        };
        judge(&mut documents, &served, answer)?;
        // Errors show values as Go has them, and fields in the order of Go's structs.
        let step = |error: &Value| error.as_str().map(|text| text.split(": ").next().unwrap().to_owned());
        let (typed, plain) = (step(&answer["typedError"]), step(&answer["plainError"]));
        match typed {
            None if plain.is_none() && answer["typed"] == answer["plain"] => Ok("merged"),
            Some(typed) if plain.as_ref() == Some(&typed) => {
                Ok(if typed == "converting" { "not of the Go type" } else { "refused" })
            }
            _ => Err(answer.to_string()),
        }
    };
    let words = go.compare("objects of Go types", &cases, typed, show, judge);
    words.occurred(&["merged", "refused", "not of the Go type"]);
}

/// Adds a field that no kind has to an object in a value, if it has one.
fn add_odd_field(value: &mut Value, rng: &mut Rng) {
    let inner = match value {
        Value::Object(fields) => {
            if rng.one_in(3) {
                fields.insert("oddField".to_owned(), json!({"a": [1]}));
                return;
            }
            let count = fields.len().max(1);
            fields.values_mut().nth(rng.below(count))
        }
        Value::Array(items) => {
            let count = items.len().max(1);
            items.get_mut(rng.below(count))
        }
        _ => None,
    };
    if let Some(inner) = inner {
        add_odd_field(inner, rng);
    }
}

#[test]
fn fields_that_a_kind_does_not_have_are_those_of_strict_decoding() {
    let Some(go) = GoProgram::build("merge") else { return };
    let published = Published::find();
    let mut rng = Rng(seed());
    let mut cases = random_built_in(&published, inputs(600));
    for case in &mut cases {
        for _ in 0..rng.below(4) {
            add_odd_field(&mut case.original, &mut rng);
        }
    }
    let strict = |case: &Case| json!({"original": case.original, "strict": true});
    let mut documents = Documents::default();
    let judge = |case: &Case, answer: &Value| {
        if answer["foreign"].is_string() {
            return Ok("foreign");
        }
        // A Go type without fields is published as one that has any.
        if answer["strict"].as_str().is_some_and(|theirs| theirs.contains(".disruptionMode.")) {
            return Ok("a type without fields");
        }
        let schemas = documents.read(&case.document);
        let fields = schemas.as_ref().as_ref().unwrap().undeclared(&case.original);
        let fields: Vec<String> = fields.iter().map(|field| format!("unknown field {field:?}")).collect();
        let ours = match fields.as_slice() {
            [] => String::new(),
            fields => format!("strict decoding error: {}", fields.join(", ")),
        };
        let theirs = answer["strict"].as_str().unwrap_or_default();
        match () {
            () if ours != theirs => Err(format!("ours {ours}, theirs {theirs}")),
            () if ours.is_empty() => Ok("strict"),
            () => Ok("unknown fields"),
        }
    };
    let words = go.compare("strict decoding", &cases, strict, show, judge);
    words.occurred(&["strict", "unknown fields"]);
}

#[test]
fn random_patches_by_random_schemas_are_merged_as_by_kube_apiserver() {
    let Some(go) = GoProgram::build("merge") else { return };
    let mut rng = Rng(seed());
    let mut cases = Vec::new();
    while cases.len() < inputs(1500) {
        let document = random_document(&mut rng).to_string();
        let generator = Generator::new(document.as_bytes());
        let text: Rc<str> = document.into();
        for _ in 0..5 {
            let (original, patch) = generator.pair("Root", &mut rng);
            cases.push(Case { document: Document::Text(text.clone()), original, patch });
        }
    }
    let expected = ["merged", "unchanged", "wrong patch", "wrong object", "atomic", "not structural"];
    compare(&go, "random patches by random schemas", &cases, &expected);
}
