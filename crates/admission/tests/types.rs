//! Warnings about the types of expressions, compared with the code of kube-controller-manager (`tests/go/types`), by the documents
//! that kube-apiserver publishes.
//!
//! Where a schema does not say what a value is, kube-controller-manager warns of valid expressions, and this program does not. The Go
//! program therefore opens such parts of a schema for the comparison, other than in the test of these differences themselves.
//!
//! `PORTCULLIS_SEED` and `PORTCULLIS_INPUTS` set the seed and the number of random policies.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test program: a panic is a failed test, and tables are written with values"
)]
#![recursion_limit = "256"]

#[path = "types/generator.rs"]
mod generator;
#[path = "types/tables.rs"]
mod tables;

use std::collections::BTreeMap;

use portcullis_admission::configuration::manifest::Manifests;
use portcullis_admission::{GroupVersionKind, GroupVersionResource, Policies, TypeWarning};
use portcullis_kubernetes::release::Release;
use portcullis_merge::Declarations;
use serde_json::{Value, json};
use testkit::comparison::Compared;
use testkit::go_program::GoProgram;
use testkit::published::PublishedDocuments;
use testkit::random::{Rng, inputs, seed};

/// The kinds of resources, by the path that names both.
const KINDS: &[(&str, &str)] = &[
    ("v1/pods", "Pod"),
    ("v1/configmaps", "ConfigMap"),
    ("v1/secrets", "Secret"),
    ("v1/services", "Service"),
    ("apps/v1/deployments", "Deployment"),
    ("apiextensions.k8s.io/v1/customresourcedefinitions", "CustomResourceDefinition"),
    ("example.com/v1/widgets", "Widget"),
];

/// The documents, by group and version.
struct Documents {
    read: BTreeMap<String, Declarations>,
    files: Value,
    widgets: String,
}

impl Documents {
    fn find() -> Self {
        let published = PublishedDocuments::find();
        let mut documents =
            Self { read: BTreeMap::new(), files: json!({}), widgets: tables::widgets().to_string() };
        for (of, path) in [
            ("v1", "api/v1"),
            ("apps/v1", "apis/apps/v1"),
            ("apiextensions.k8s.io/v1", "apis/apiextensions.k8s.io/v1"),
        ] {
            let file = published.file(path);
            documents.files[of] = file.to_str().unwrap().into();
            documents.read.insert(of.to_owned(), Declarations::read(&std::fs::read(file).unwrap()).unwrap());
        }
        let widgets = Declarations::read(documents.widgets.as_bytes()).unwrap();
        documents.read.insert("example.com/v1".to_owned(), widgets);
        documents
    }

    fn kind_of(resource: &GroupVersionResource) -> Option<GroupVersionKind> {
        let GroupVersionResource { group, version, resource } = resource.clone();
        let path = format!("{}/{resource}", group_version(&group, &version));
        let (_, kind) = KINDS.iter().find(|(known, _)| *known == path)?;
        Some(GroupVersionKind { group, version, kind: (*kind).to_owned() })
    }

    fn warnings(&self, policies: &Policies) -> Vec<TypeWarning> {
        let policy = policies.all().next().unwrap();
        let kinds = policy.kinds_to_check(Self::kind_of).into_iter().filter_map(|kind| {
            let document = &self.read[&group_version(&kind.group, &kind.version)];
            let object = document.of(&kind.group, &kind.version, &kind.kind)?;
            Some((kind, object))
        });
        policy.type_warnings(&kinds.collect::<Vec<_>>())
    }
}

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// A policy, which is a mutating one if it has mutations.
struct Case {
    /// Paths of [`KINDS`].
    resources: Vec<&'static str>,
    spec: Value,
    is_open: bool,
}

impl Case {
    fn is_mutating(&self) -> bool {
        self.spec.get("mutations").is_some()
    }

    /// The policy, of the kind that it is.
    fn object(&self) -> Value {
        let mut spec = self.spec.clone();
        let rules = self.resources.iter().map(|path| {
            let (before, resource) = path.rsplit_once('/').unwrap();
            let (group, version) = before.split_once('/').unwrap_or(("", before));
            json!({"operations": ["CREATE", "UPDATE"], "apiGroups": [group], "apiVersions": [version], "resources": [resource]})
        });
        spec["matchConstraints"] = json!({"resourceRules": rules.collect::<Vec<_>>()});
        let kind = if self.is_mutating() { "MutatingAdmissionPolicy" } else { "ValidatingAdmissionPolicy" };
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": "p.static.k8s.io"}, "spec": spec})
    }

    /// The policy as this program reads it; `None` if an expression does not compile whatever the object is.
    fn read(&self) -> Option<Policies> {
        let mut policies = Policies::default();
        let object = self.object();
        if self.is_mutating() {
            let mut folder = Manifests::mutating_policies(Release::default());
            folder.add("m.yaml", 0, &object);
            policies.mutating = folder.finish().ok()?.into_iter().map(Into::into).collect();
        } else {
            let mut folder = Manifests::policies(Release::default());
            folder.add("m.yaml", 0, &object);
            policies.validating = folder.finish().ok()?.into_iter().map(Into::into).collect();
        }
        Some(policies)
    }

    /// The expressions that kube-controller-manager does not check by itself, with their paths.
    fn others(&self) -> Vec<(String, &str)> {
        let mut found = Vec::new();
        for (list, name) in [
            ("matchConditions", "expression"),
            ("variables", "expression"),
            ("auditAnnotations", "valueExpression"),
        ] {
            for (index, part) in self.spec[list].as_array().into_iter().flatten().enumerate() {
                found.push((format!("spec.{list}[{index}].{name}"), part[name].as_str().unwrap()));
            }
        }
        found
    }

    /// Those of mutations.
    fn mutations(&self) -> Vec<(String, &str)> {
        let mut found = Vec::new();
        for (index, part) in self.spec["mutations"].as_array().into_iter().flatten().enumerate() {
            for name in ["jsonPatch", "applyConfiguration"] {
                if let Some(expression) = part[name]["expression"].as_str() {
                    found.push((format!("spec.mutations[{index}].{name}.expression"), expression));
                }
            }
        }
        found
    }

    fn question(&self, documents: &Documents) -> Value {
        let mut policy = self.object();
        policy["kind"] = "ValidatingAdmissionPolicy".into();
        let spec = policy["spec"].as_object_mut().unwrap();
        spec.remove("mutations");
        spec.remove("reinvocationPolicy");
        let kinds: BTreeMap<&str, &str> =
            KINDS.iter().copied().filter(|(path, _)| self.resources.contains(path)).collect();
        let texts =
            |of: Vec<(String, &str)>| of.iter().map(|(_, text)| (*text).to_owned()).collect::<Vec<_>>();
        json!({
            "policy": policy,
            "files": documents.files,
            "documents": {"example.com/v1": documents.widgets},
            "kinds": kinds,
            "open": self.is_open,
            "expressions": texts(self.others()),
            "mutations": texts(self.mutations()),
        })
    }
}

/// The warnings of the answer, by field.
fn theirs(case: &Case, answer: &Value) -> BTreeMap<String, String> {
    let own = answer["warnings"].as_object().unwrap().iter();
    let mut all: BTreeMap<String, String> =
        own.map(|(field, text)| (field.clone(), text.as_str().unwrap().to_owned())).collect();
    for (fields, answers) in
        [(case.others(), &answer["expressions"]), (case.mutations(), &answer["mutations"])]
    {
        for ((field, _), text) in fields.into_iter().zip(answers.as_array().into_iter().flatten()) {
            if !text.as_str().unwrap().is_empty() {
                all.insert(field, text.as_str().unwrap().to_owned());
            }
        }
    }
    all
}

fn judge(documents: &Documents, case: &Case, answer: &Value) -> Compared {
    let Some(policies) = case.read() else { return Ok("refused") };
    let ours: BTreeMap<String, String> = documents
        .warnings(&policies)
        .into_iter()
        .map(|warning| (warning.field.clone(), warning.to_string()))
        .collect();
    let theirs = theirs(case, answer);
    if ours != theirs {
        let differ = |of: &BTreeMap<String, String>, other: &BTreeMap<String, String>| {
            let own = of.iter().filter(|(field, text)| other.get(*field) != Some(text));
            own.map(|(field, text)| format!("{field}: {text}")).collect::<Vec<_>>().concat()
        };
        return Err(format!("ours   {}\n  theirs {}", differ(&ours, &theirs), differ(&theirs, &ours)));
    }
    let errors: usize = ours.values().map(|text| text.matches("ERROR: ").count()).sum();
    Ok(match (errors, case.is_mutating()) {
        (0, false) => "fits",
        (1, false) => "one error",
        (_, false) => "several errors",
        (0, true) => "mutation fits",
        (_, true) => "mutation with errors",
    })
}

fn compare(what: &str, cases: &[Case], expected: &[&str]) {
    let Some(go) = GoProgram::build("types") else { return };
    let documents = Documents::find();
    let words = go.compare(
        what,
        cases,
        |case| case.question(&documents),
        |case| case.object().to_string(),
        |case, answer| judge(&documents, case, answer),
    );
    words.occurred(expected);
    assert!(words.count("refused") * 2 < cases.len(), "most policies are to be read");
}

fn compare_all(what: &str, cases: &[Case], expected: &[&str]) {
    assert!(cases.iter().all(|case| case.read().is_some()), "each of these policies is to be read");
    compare(what, cases, expected);
}

fn of_expression(resource: &'static str, expression: &str) -> Case {
    let spec = json!({"variables": [], "validations": [{"expression": "true"}],
        "auditAnnotations": [{"key": "k", "valueExpression": format!("string(dyn({expression}))")}]});
    Case { resources: vec![resource], spec, is_open: true }
}

#[test]
fn expressions_are_checked_as_by_kube_controller_manager() {
    let cases: Vec<Case> = tables::EXPRESSIONS
        .iter()
        .map(|(resource, expression)| of_expression(resource, expression))
        .collect();
    compare_all("expressions", &cases, &["fits", "one error", "several errors"]);
}

#[test]
fn policies_are_checked_as_by_kube_controller_manager() {
    let cases: Vec<Case> = tables::policies()
        .into_iter()
        .map(|(resources, spec)| Case { resources, spec, is_open: true })
        .collect();
    compare_all("policies", &cases, &["fits", "several errors", "mutation fits", "mutation with errors"]);
}

#[test]
fn random_policies_are_checked_as_by_kube_controller_manager() {
    let mut rng = Rng(seed());
    let published = PublishedDocuments::find();
    let generator = generator::Generator::new(&published);
    let cases: Vec<Case> = (0..inputs(400))
        .map(|_| {
            let (resources, spec) = generator.policy(&mut rng);
            Case { resources, spec, is_open: true }
        })
        .collect();
    compare("random policies", &cases, &["fits", "one error", "several errors"]);
}

/// Valid expressions that kube-controller-manager warns of.
// conformance: D-admission-type-warnings
#[test]
fn what_a_schema_does_not_say_may_be_anything() {
    let Some(go) = GoProgram::build("types") else { return };
    let documents = Documents::find();
    let differences = tables::DIFFERENCES;
    let case = |(resource, expression): (&'static str, &str)| Case {
        is_open: false,
        ..of_expression(resource, expression)
    };
    let cases: Vec<Case> = differences.iter().map(|difference| case((difference.0, difference.1))).collect();
    let questions: Vec<Value> = cases.iter().map(|case| case.question(&documents)).collect();
    for ((case, answer), (_, expression, error, _)) in cases.iter().zip(go.ask(&questions)).zip(differences) {
        let theirs = theirs(case, &answer);
        assert!(theirs.values().any(|text| text.contains(error)), "{expression}: {theirs:?}");
        let ours = documents.warnings(&case.read().unwrap());
        assert!(ours.is_empty(), "{expression}: {ours:?}");
    }
}
