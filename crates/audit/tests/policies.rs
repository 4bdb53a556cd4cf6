//! Policies, read and applied as by kube-apiserver's own code (`tests/go/auditpolicies`).
//!
//! `PORTCULLIS_SEED` and `PORTCULLIS_INPUTS` set the seed and the number of random policies.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test program: a panic is a failed test")]
#![allow(clippy::print_stderr, missing_docs, reason = "the output of a test program")]

use portcullis_audit::event::Stage;
use portcullis_audit::policy::{Attributes, Policy, PolicyError, Resource, User};
use serde_json::{Map, Value, json};
use testkit::go_program::GoProgram;
use testkit::random::{Rng, inputs, seed};

const REQUESTS: usize = 16;
const NAMES: &[&str] = &["alice", "bob", "system:nodes", "", "*", "Alice"];
const VERBS: &[&str] = &["get", "list", "create", "delete", "*", "GET", ""];
const GROUPS: &[&str] = &["", "apps", "*", "rbac.authorization.k8s.io"];
const RESOURCES: &[&str] = &["pods", "pods/log", "deployments", "*", "a/b"];
const SUBRESOURCES: &[&str] = &["", "log", "status", "*", "b"];
const RESOURCE_RULES: &[&str] = &[
    "pods",
    "pods/log",
    "pods/*",
    "*/log",
    "*/status",
    "*",
    "*/*",
    "deployments",
    "pods/",
    "/log",
    "",
    "pods/log/*",
    "a/b",
    "a/b/*",
];
const NAMESPACES: &[&str] = &["", "default", "kube-system", "*"];
const OBJECT_NAMES: &[&str] = &["", "one", "two", "*"];
const PATHS: &[&str] = &["/healthz", "/healthz/etcd", "/metrics", "/", "", "/api*", "/logs/a"];
const URLS: &[&str] =
    &["/healthz", "/healthz*", "/healthz/*", "*", "/*", "/metrics**", "", "/api*", "healthz", "/a*b", "**"];
const LEVELS: &[&str] = &["None", "Metadata", "Request", "RequestResponse", "none", "", "All"];
const STAGES: &[&str] = &["RequestReceived", "ResponseStarted", "ResponseComplete", "Panic", "Started", ""];

/// Some of the choices; the last ones, which are mistakes in some fields, rarely.
fn some(rng: &mut Rng, choices: &[&str]) -> Value {
    (0..rng.below(4)).map(|_| json!(*rng.pick(choices))).collect()
}

fn resource_rule(rng: &mut Rng) -> Value {
    let mut rule = Map::new();
    if rng.one_in(2) {
        rule.insert("group".to_owned(), json!(*rng.pick(GROUPS)));
    }
    if !rng.one_in(4) {
        rule.insert("resources".to_owned(), some(rng, RESOURCE_RULES));
    }
    if rng.one_in(4) {
        rule.insert("resourceNames".to_owned(), some(rng, &OBJECT_NAMES[1..]));
    }
    Value::Object(rule)
}

fn rule(rng: &mut Rng) -> Value {
    let is_odd = rng.one_in(12);
    let mut rule = Map::new();
    let level = *rng.pick(if is_odd { LEVELS } else { &LEVELS[..4] });
    rule.insert("level".to_owned(), json!(level));
    let mut add = |rng: &mut Rng, key: &str, value: Value| {
        // An empty list is no constraint.
        if rng.one_in(3) {
            rule.insert(key.to_owned(), value);
        }
    };
    for (key, choices) in [("users", NAMES), ("userGroups", NAMES), ("verbs", VERBS)] {
        let value = some(rng, choices);
        add(rng, key, value);
    }
    let stages = some(rng, if is_odd { STAGES } else { &STAGES[..4] });
    add(rng, "omitStages", stages);
    let omits = json!(rng.one_in(2));
    add(rng, "omitManagedFields", omits);
    if rng.one_in(3) && !is_odd {
        let urls = some(rng, URLS);
        add(rng, "nonResourceURLs", urls);
    } else {
        let resources = (0..rng.below(3)).map(|_| resource_rule(rng)).collect();
        add(rng, "resources", resources);
        let namespaces = some(rng, NAMESPACES);
        add(rng, "namespaces", namespaces);
        if is_odd {
            let urls = some(rng, URLS);
            add(rng, "nonResourceURLs", urls);
        }
    }
    Value::Object(rule)
}

/// A policy, of which some have a mistake.
fn policy(rng: &mut Rng) -> Value {
    let rules: Vec<Value> = (0..rng.below(4)).map(|_| rule(rng)).collect();
    let mut policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules});
    if rng.one_in(4) {
        let choices = if rng.one_in(6) { STAGES } else { &STAGES[..4] };
        policy["omitStages"] = some(rng, choices);
    }
    if rng.one_in(4) {
        policy["omitManagedFields"] = json!(rng.one_in(2));
    }
    if rng.one_in(15) {
        let (key, value) = rng
            .pick(&[
                ("unknown", json!(1)),
                ("Rules", json!([])),
                ("rules", json!(null)),
                ("rules", json!({})),
                ("rules", json!([{"level": "None"}, null])),
                ("rules", json!([{"level": null}])),
                ("rules", json!([{"level": "None", "users": "alice"}])),
                ("rules", json!([{"level": "None", "Users": ["alice"]}])),
                ("rules", json!([{"level": "None", "users": null, "resources": [null]}])),
                ("rules", json!([{"level": "None", "users": [null]}])),
                ("omitStages", json!(null)),
                ("omitManagedFields", json!("true")),
                ("omitManagedFields", json!(null)),
                ("metadata", json!({"name": "a", "labels": {"a": 1}})),
                ("metadata", json!({"name": "a"})),
                ("kind", json!("policy")),
                ("kind", json!("EventList")),
                ("kind", json!(null)),
                ("apiVersion", json!("audit.k8s.io/v1beta1")),
                ("apiVersion", json!("v1")),
                ("apiVersion", json!("")),
            ])
            .clone();
        policy[key] = value;
    }
    if rng.one_in(50) {
        let key = *rng.pick(&["kind", "apiVersion", "rules"]);
        policy.as_object_mut().unwrap().remove(key);
    }
    policy
}

fn request(rng: &mut Rng) -> Value {
    let pick = |rng: &mut Rng, choices: &[&str]| json!(*rng.pick(choices));
    let user = if rng.one_in(6) { Value::Null } else { pick(rng, NAMES) };
    let mut request = json!({
        "user": user, "groups": some(rng, NAMES), "verb": pick(rng, VERBS), "path": pick(rng, PATHS), "isResource": false,
        "apiGroup": "", "resource": "", "subresource": "", "namespace": "", "name": "",
    });
    if !rng.one_in(3) {
        for (key, choices) in [
            ("apiGroup", GROUPS),
            ("resource", RESOURCES),
            ("subresource", SUBRESOURCES),
            ("namespace", NAMESPACES),
            ("name", OBJECT_NAMES),
        ] {
            request[key] = pick(rng, choices);
        }
        request["isResource"] = json!(true);
    }
    request
}

/// What the policy says of a request.
fn decision(policy: &Policy, request: &Value) -> Value {
    let text = |key: &str| request[key].as_str().unwrap_or_default();
    let groups: Vec<String> = serde_json::from_value(request["groups"].clone()).unwrap();
    let resource = Resource {
        api_group: text("apiGroup"),
        resource: text("resource"),
        subresource: text("subresource"),
        namespace: text("namespace"),
        name: text("name"),
    };
    let attributes = Attributes {
        user: request["user"].as_str().map(|name| User { name, groups: &groups }),
        verb: text("verb"),
        resource: (request["isResource"] == true).then_some(resource),
        path: text("path"),
    };
    let decision = policy.evaluate(&attributes);
    let mut omitted: Vec<&str> = decision.omitted.iter().map(Stage::as_str).collect();
    omitted.sort_unstable();
    json!({"level": decision.level.as_str(), "omitted": omitted, "omitManagedFields": decision.omit_managed_fields})
}

/// Counts a refusal with another text than kube-apiserver's. Texts of the decoder are not compared.
fn compare_text(error: &PolicyError, answer: &Value, different: &mut usize) {
    let PolicyError::Fields(errors) = error else { return };
    let mut ours: Vec<String> = Vec::new();
    // apimachinery: pkg/util/errors/errors.go, aggregate
    for text in errors.iter().map(ToString::to_string) {
        if !ours.contains(&text) {
            ours.push(text);
        }
    }
    let ours = if let [one] = ours.as_slice() { one.clone() } else { format!("[{}]", ours.join(", ")) };
    if ours != answer["refused"].as_str().unwrap_or_default() {
        *different += 1;
        if *different <= 10 {
            eprintln!("ours:   {ours}\ntheirs: {answer}");
        }
    }
}

#[test]
fn policies_are_read_and_applied_as_by_kube_apiserver() {
    let Some(program) = GoProgram::build("auditpolicies") else { return };
    let mut rng = Rng(seed());
    let questions: Vec<Value> = (0..inputs(4000))
        .map(|_| {
            let requests: Vec<Value> = (0..REQUESTS).map(|_| request(&mut rng)).collect();
            json!({"policy": policy(&mut rng).to_string(), "requests": requests})
        })
        .collect();
    let (mut different, mut refused, mut levels, mut texts) = (0, 0, 0, 0);
    for (question, answer) in questions.iter().zip(program.ask(&questions)) {
        let document = serde_json::from_str(question["policy"].as_str().unwrap()).unwrap();
        let ours = match Policy::parse(&document) {
            Ok((policy, _)) => {
                let requests = question["requests"].as_array().unwrap();
                requests.iter().map(|request| decision(&policy, request)).collect()
            }
            Err(error) => {
                compare_text(&error, &answer, &mut texts);
                Value::Null
            }
        };
        refused += usize::from(ours.is_null());
        levels += usize::from(ours.as_array().is_some_and(|all| all.iter().any(|one| *one != all[0])));
        // A null in a list is refused; kube-apiserver reads an empty value.
        let is_stricter = ours.is_null() && question["policy"].as_str().unwrap().contains("[null]");
        if ours != answer["decisions"] && !is_stricter {
            different += 1;
            if different <= 10 {
                let policy = question["policy"].as_str().unwrap();
                eprintln!("{policy}\n  {}\n  ours:   {ours}\n  theirs: {answer}", question["requests"]);
            }
        }
    }
    eprintln!("{} policies, {refused} refused, {levels} that tell requests apart", questions.len());
    assert_eq!(different, 0, "{different} policies differ");
    assert_eq!(texts, 0, "{texts} refusals have another text");
    assert!(refused > 100 && levels > 1000, "the policies are varied");
}
