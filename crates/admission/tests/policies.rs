//! Admission policies, compared with kube-apiserver's own code (`tests/go/policies`): the errors of manifests, the refusals,
//! warnings and audit annotations of requests, and the patches of mutations.
//!
//! `PORTCULLIS_SEED` and `PORTCULLIS_INPUTS` set the seed and the number of random policies.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a test program: a panic is a failed test, and tables are written with values"
)]

#[path = "policies/mutating.rs"]
mod mutating;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use portcullis_admission::configuration::manifest::{ManifestError, ManifestProblem, Manifests};
use portcullis_admission::phases::{self, ShadowCall};
use portcullis_admission::review::ReviewRequest;
use portcullis_admission::{
    Attributes, CallError, Caller, Event, GroupVersionKind, GroupVersionResource, InlineCost, MatchError,
    NoConversions, Objects, Operation, Surroundings, UserInfo, ValidatingPolicy, Webhook, WebhookResponse,
};
use portcullis_cel::{AccessDecision, AccessReview};
use portcullis_kubernetes::release::Release;
use serde_json::{Value, json};
use testkit::go_program::GoProgram;
use testkit::random::{Rng, inputs, seed};

const FILE: &str = "m.yaml";

/// What a request is answered.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    status: Value,
    warnings: Vec<String>,
    annotations: BTreeMap<String, String>,
    /// How often work was done elsewhere than where the request is served; not compared.
    elsewhere: usize,
}

#[derive(Default)]
struct Recorder {
    /// How often work was done elsewhere.
    elsewhere: AtomicUsize,
    inline_cost: InlineCost,
    namespace: Value,
    found: Mutex<Outcome>,
}

impl Caller for Recorder {
    async fn call(&self, _: &Webhook, _: &ReviewRequest) -> Result<WebhookResponse, CallError> {
        panic!("there are no webhooks")
    }

    fn note(&self, event: Event<'_>) {
        let mut found = self.found.lock().unwrap();
        match event {
            Event::Warning(text) => found.warnings.push(text.to_owned()),
            Event::Annotation(annotation) => {
                found.annotations.insert(annotation.key, annotation.value);
            }
            _ => {}
        }
    }
}

impl Surroundings for Recorder {
    fn inline_cost(&self) -> &InlineCost {
        &self.inline_cost
    }

    async fn namespace_labels(&self, _: &str) -> Result<BTreeMap<String, String>, MatchError> {
        Ok(serde_json::from_value(self.namespace["metadata"]["labels"].clone()).unwrap_or_default())
    }

    async fn namespace(&self, _: &str) -> Result<Value, MatchError> {
        Ok(self.namespace.clone())
    }

    async fn authorize(&self, review: &AccessReview) -> Result<AccessDecision, Box<Status>> {
        let allowed = review.verb == "get";
        let reason = if allowed { "" } else { "only get" };
        Ok(AccessDecision { allowed, reason: reason.to_owned(), error: None })
    }

    fn is_late(&self) -> bool {
        false
    }

    async fn compute<T: Send + 'static>(
        &self,
        is_long: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.elsewhere.fetch_add(usize::from(is_long), Ordering::Relaxed);
        Some(work())
    }

    async fn shadow(&self, _: ShadowCall) {}
}

fn read(manifests: &[Value]) -> Result<Vec<Arc<ValidatingPolicy>>, Vec<ManifestError>> {
    let mut folder = Manifests::policies(Release::default());
    for (number, object) in manifests.iter().enumerate() {
        folder.add(FILE, number, object);
    }
    Ok(folder.finish()?.into_iter().map(Arc::new).collect())
}

/// The errors of the first object with any: kube-apiserver reports no others.
fn first_errors(errors: &[ManifestError]) -> (String, Vec<String>) {
    let first = errors[0].object;
    let mut found = (String::new(), Vec::new());
    for error in errors.iter().filter(|error| error.object == first) {
        match &error.problem {
            ManifestProblem::Invalid { configuration, error } => {
                found.0 = format!("error loading {FILE}: {configuration}: ");
                found.1.push(error.clone());
            }
            ManifestProblem::Other(problem) if found.0.is_empty() => {
                return (format!("error loading {FILE}: {problem}"), Vec::new());
            }
            ManifestProblem::Other(_) => break,
        }
    }
    found
}

/// Whether the errors are those of a text; in any order, since Go's sets have none.
fn is_same_error(errors: &[ManifestError], text: &str) -> bool {
    let (before, mut parts) = first_errors(errors);
    parts.sort();
    parts.dedup();
    let Some(rest) = text.strip_prefix(&before) else {
        // The references of bindings are checked for all files together.
        return text == before.trim_start_matches(&format!("error loading {FILE}: "));
    };
    let all = |joined: &str| {
        let mut left = joined.to_owned();
        parts.iter().all(|part| {
            let found = left.find(part.as_str());
            found.is_some_and(|at| {
                left.replace_range(at..at + part.len(), "");
                true
            })
        }) && left.chars().all(|letter| letter == ',' || letter == ' ')
    };
    match parts.as_slice() {
        // Errors of decoding end with the place in Go's sources, or with the whole text.
        [] => rest.is_empty() || rest.starts_with(" in scheme ") || rest.starts_with(" in '{"),
        [only] => rest == only,
        _ => rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).is_some_and(all),
    }
}

fn run(policies: &[Arc<ValidatingPolicy>], namespace: &Value, request: &Value) -> Outcome {
    let text = |field: &str| request[field].as_str().unwrap_or_default().to_owned();
    let part = |of: &str, field: &str| request[of][field].as_str().unwrap_or_default().to_owned();
    let attributes = Attributes {
        operation: match request["operation"].as_str().unwrap() {
            "CREATE" => Operation::Create,
            "UPDATE" => Operation::Update,
            "DELETE" => Operation::Delete,
            _ => Operation::Connect,
        },
        kind: GroupVersionKind {
            group: part("kind", "group"),
            version: part("kind", "version"),
            kind: part("kind", "kind"),
        },
        resource: GroupVersionResource {
            group: part("resource", "group"),
            version: part("resource", "version"),
            resource: part("resource", "resource"),
        },
        subresource: text("subresource"),
        name: text("name"),
        namespace: text("namespace"),
        user: UserInfo {
            username: text("username"),
            groups: serde_json::from_value(request["groups"].clone()).unwrap_or_default(),
            ..UserInfo::default()
        },
        dry_run: request["dryRun"] == true,
        options: None,
    };
    let object = |field: &str| Some(request[field].clone()).filter(|object| !object.is_null());
    let mut objects = Objects { object: object("object"), old_object: object("oldObject") };
    let recorder = Recorder { namespace: namespace.clone(), ..Recorder::default() };
    let validated = phases::validate((policies, &[]), &attributes, &mut objects, &NoConversions, &recorder);
    let validated = validated.now_or_never().unwrap();
    let mut found = recorder.found.into_inner().unwrap();
    found.elsewhere = recorder.elsewhere.into_inner();
    found.status = validated.err().map_or(Value::Null, |status| serde_json::to_value(*status).unwrap());
    found
}

/// A folder of manifests, and requests.
struct Case {
    manifests: Vec<Value>,
    namespace: Value,
    requests: Vec<Value>,
}

impl Outcome {
    fn message(&self) -> &str {
        self.status["message"].as_str().unwrap_or_default()
    }
}

fn their_outcome(answer: &Value) -> Outcome {
    let mut status = answer["status"].clone();
    if let Some(status) = status.as_object_mut() {
        status.insert("metadata".to_owned(), json!({}));
        status.insert("apiVersion".to_owned(), "v1".into());
        status.insert("kind".to_owned(), "Status".into());
    }
    Outcome {
        status,
        warnings: serde_json::from_value(answer["warnings"].clone()).unwrap_or_default(),
        annotations: serde_json::from_value(answer["annotations"].clone()).unwrap_or_default(),
        elsewhere: 0,
    }
}

fn compare(cases: &[Case]) {
    let Some(program) = GoProgram::build("policies") else { return };
    let questions: Vec<Value> = cases
        .iter()
        .map(|case| {
            let documents: Vec<String> = case.manifests.iter().map(Value::to_string).collect();
            json!({"manifests": documents.join("\n---\n"), "namespace": case.namespace, "requests": case.requests})
        })
        .collect();
    let (mut loaded, mut refused, mut denied, mut declared, mut differences) = (0, 0, 0, 0, Vec::new());
    for (case, answer) in cases.iter().zip(program.ask(&questions)) {
        let error = answer["error"].as_str().unwrap();
        let shown = || case.manifests.iter().map(Value::to_string).collect::<Vec<_>>().join("\n    ");
        let policies = match read(&case.manifests) {
            Ok(policies) if error.is_empty() => policies,
            Ok(_) => {
                differences.push(format!("only theirs: {error}\n    {}", shown()));
                continue;
            }
            Err(errors) if is_same_error(&errors, error) => {
                refused += 1;
                continue;
            }
            Err(errors) => {
                differences.push(format!(
                    "ours: {:?}\n  theirs: {error}\n    {}",
                    first_errors(&errors),
                    shown()
                ));
                continue;
            }
        };
        loaded += 1;
        let outcomes = answer["outcomes"].as_array().into_iter().flatten();
        for (request, theirs) in case.requests.iter().zip(outcomes) {
            let ours = Outcome { elsewhere: 0, ..run(&policies, &case.namespace, request) };
            let theirs = their_outcome(theirs);
            denied += usize::from(!theirs.status.is_null());
            // Prices are higher here, so what costs too much is not ignored: D-cel-cost.
            if ours.message().starts_with("Internal error occurred: the gateway does not ignore that ")
                && theirs.status.is_null()
            {
                declared += 1;
                continue;
            }
            if ours != theirs {
                let texts = [&ours, &theirs].map(|outcome| format!("{outcome:?}"));
                let at =
                    texts[0].bytes().zip(texts[1].bytes()).take_while(|(one, other)| one == other).count();
                let part =
                    |text: &String| text.chars().skip(at.saturating_sub(60)).take(300).collect::<String>();
                let (ours, theirs) = (part(&texts[0]), part(&texts[1]));
                differences.push(format!("ours: …{ours}\n  theirs: …{theirs}\n  {request}\n    {}", shown()));
            }
        }
    }
    eprintln!(
        "{} folders: {loaded} loaded, {refused} refused; {denied} requests denied, {declared} differ as declared",
        cases.len()
    );
    for difference in differences.iter().take(15) {
        eprintln!("{difference}");
    }
    assert!(differences.is_empty(), "{} differences", differences.len());
}

const NAME: &str = "p.static.k8s.io";

fn policy(spec: Value) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": NAME}, "spec": spec})
}

fn binding(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": format!("{name}.static.k8s.io")}, "spec": spec})
}

fn any() -> Value {
    json!({"resourceRules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]})
}

fn bound(actions: Value) -> Value {
    binding("b", json!({"policyName": NAME, "validationActions": actions}))
}

fn namespace() -> Value {
    json!({"metadata": {"name": "ns", "uid": "u", "labels": {"tier": "gold"}, "creationTimestamp": "2026-01-02T03:04:05Z"},
        "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}})
}

fn pod(labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "ns", "labels": labels},
        "spec": {"replicas": 3, "containers": [{"name": "c", "image": "x:1", "ports": [80, 443]}]}})
}

fn request(operation: &str, object: Value, old: Value) -> Value {
    json!({"operation": operation, "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"}, "subresource": "", "name": "a", "namespace": "ns",
        "username": "alice", "groups": ["dev"], "dryRun": false, "object": object, "oldObject": old})
}

fn requests() -> Vec<Value> {
    let mut of_namespace = request(
        "CREATE",
        json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "ns", "labels": {"tier": "gold"}}}),
        Value::Null,
    );
    of_namespace["kind"]["kind"] = json!("Namespace");
    of_namespace["resource"]["resource"] = json!("namespaces");
    of_namespace["name"] = json!("ns");
    let mut generated = request("CREATE", pod(json!({"a": "b"})), Value::Null);
    generated["name"] = json!("");
    generated["object"]["metadata"] = json!({"generateName": "g-"});
    let mut of_scale = request("UPDATE", pod(json!({})), pod(json!({})));
    of_scale["subresource"] = json!("scale");
    vec![
        request("CREATE", pod(json!({"a": "b"})), Value::Null),
        request("UPDATE", pod(json!({"a": "c"})), pod(json!({"a": "b"}))),
        request("DELETE", Value::Null, pod(json!({}))),
        of_namespace,
        generated,
        of_scale,
    ]
}

fn case(spec: Value, bindings: Vec<Value>) -> Case {
    let manifests = [policy(spec)].into_iter().chain(bindings).collect();
    Case { manifests, namespace: namespace(), requests: requests() }
}

/// A policy whose only validation is this.
fn validating(validation: Value) -> Value {
    json!({"matchConstraints": any(), "validations": [validation]})
}

/// What a client makes long is not evaluated where others wait: one expression, or many short ones together.
#[test]
fn long_evaluations_are_done_elsewhere() {
    let data = |keys: usize| {
        let data: serde_json::Map<_, _> = (0..keys).map(|key| (format!("k{key}"), json!("x"))).collect();
        request("CREATE", json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data}), Value::Null)
    };
    let nested = "object.data.all(a, object.data.all(b, object.data[b] != 'y'))";
    let many: Value = (0..600).map(|_| json!({"expression": "object.data.all(a, a != 'y')"})).collect();
    let variables = json!([{"name": "long", "expression": nested}]);
    let of_variable = json!({"matchConstraints": any(), "variables": variables,
        "validations": [{"expression": "variables.long"}]});
    for (spec, keys, is_long) in [
        (validating(json!({"expression": nested})), 5, false),
        (validating(json!({"expression": nested})), 300, true),
        (of_variable.clone(), 5, false),
        (of_variable, 300, true),
        (json!({"matchConstraints": any(), "validations": many}), 20, true),
        (
            json!({"matchConstraints": any(), "matchConditions": [{"name": "c", "expression": nested}],
            "validations": [{"expression": "true"}]}),
            300,
            true,
        ),
    ] {
        let manifests = [policy(spec.clone()), bound(json!(["Deny"]))];
        let policies = read(&manifests).unwrap();
        let found = run(&policies, &namespace(), &data(keys));
        assert_eq!(found.elsewhere > 0, is_long, "{spec} {keys}: {found:?}");
        assert_eq!(found.status, Value::Null, "{spec} {keys}");
    }
}

#[test]
fn manifests_are_judged_as_by_kube_apiserver() {
    let ok = || validating(json!({"expression": "true"}));
    let with = |field: &str, value: Value| {
        let mut spec = ok();
        spec[field] = value;
        spec
    };
    let rule = |field: &str, value: Value| {
        let mut constraints = any();
        constraints["resourceRules"][0][field] = value;
        with("matchConstraints", constraints)
    };
    let long = format!("'{}'", "x".repeat(6000));
    let specs = vec![
        ok(),
        json!({}),
        json!({"matchConstraints": any()}),
        with("failurePolicy", json!("Sometimes")),
        with("paramKind", json!({"apiVersion": "v1", "kind": "ConfigMap"})),
        with("paramKind", json!({"apiVersion": "a/b/c", "kind": "Config Map"})),
        with("paramKind", json!({"apiVersion": "A_/1", "kind": ""})),
        with("matchConstraints", json!({})),
        with(
            "matchConstraints",
            json!({"matchPolicy": "Fuzzy", "namespaceSelector": {"matchLabels": {"a b": "c"}},
            "objectSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
        ),
        rule("operations", json!(["CREATE", "*"])),
        rule("operations", json!(["create"])),
        rule("resources", json!(["*", "pods"])),
        rule("resourceNames", json!(["a", "a", "b/c", "..", "%"])),
        rule("scope", json!("World")),
        with(
            "matchConditions",
            json!([{"name": "a", "expression": "object.x == 1"}, {"name": "a", "expression": "1"}]),
        ),
        with("matchConditions", json!([{"name": "", "expression": " "}])),
        with("matchConditions", json!([{"name": "a b", "expression": "variables.x"}])),
        with(
            "variables",
            json!([{"name": "x", "expression": "object.spec"}, {"name": "y", "expression": "variables.x.replicas"}]),
        ),
        with(
            "variables",
            json!([{"name": "if", "expression": "1"}, {"name": "", "expression": "1"}, {"name": "a-b", "expression": "1"}]),
        ),
        with(
            "variables",
            json!([{"name": "x", "expression": " "}, {"name": "y", "expression": "variables.z"}]),
        ),
        with("validations", json!([{"expression": " "}])),
        with("validations", json!([{"expression": "1"}])),
        with("validations", json!([{"expression": "object.spec"}])),
        with("validations", json!([{"expression": "params.x == 1"}])),
        with("validations", json!([{"expression": "true", "message": " ", "messageExpression": " "}])),
        with("validations", json!([{"expression": "true", "message": "a\nb", "reason": "Because"}])),
        with(
            "validations",
            json!([{"expression": "true", "messageExpression": "authorizer.path('/x').check('get').allowed() ? 'a' : 'b'"}]),
        ),
        with("validations", json!([{"expression": "true", "messageExpression": "1"}])),
        with(
            "validations",
            json!([{"expression": "true", "reason": "Forbidden"}, {"expression": "x ==", "reason": "Unauthorized"}]),
        ),
        with(
            "auditAnnotations",
            json!([{"key": "k", "valueExpression": "'a'"}, {"key": "k", "valueExpression": "null"}]),
        ),
        with(
            "auditAnnotations",
            json!([{"key": "a b", "valueExpression": " "}, {"key": "c", "valueExpression": "1"}]),
        ),
        with("auditAnnotations", json!([{"key": "k", "valueExpression": long}])),
        with(
            "auditAnnotations",
            (0..21).map(|number| json!({"key": format!("k{number}"), "valueExpression": "'a'"})).collect(),
        ),
        with("unknown", json!(1)),
    ];
    let mut cases: Vec<Case> = specs.into_iter().map(|spec| case(spec, Vec::new())).collect();
    for spec in [
        json!({}),
        json!({"policyName": NAME}),
        json!({"policyName": "Other", "validationActions": ["Deny"]}),
        json!({"policyName": "other.static.k8s.io", "validationActions": ["Deny"]}),
        json!({"policyName": NAME, "validationActions": ["Deny", "Warn"]}),
        json!({"policyName": NAME, "validationActions": ["Deny", "Deny", "Log"]}),
        json!({"policyName": NAME, "validationActions": ["Deny"], "paramRef": {"name": "x", "parameterNotFoundAction": "Deny"}}),
        json!({"policyName": NAME, "validationActions": ["Deny"], "paramRef": {"name": "a/b", "selector": {}, "parameterNotFoundAction": "X"}}),
        json!({"policyName": NAME, "validationActions": ["Deny"], "paramRef": {}}),
        json!({"policyName": NAME, "validationActions": ["Audit"], "matchResources": {"resourceRules": [{"operations": []}]}}),
        json!({"policyName": NAME, "validationActions": ["Audit"], "matchResources": {}}),
    ] {
        cases.push(case(ok(), vec![binding("b", spec)]));
    }
    let unnamed = |mut object: Value, name: &str| {
        object["metadata"]["name"] = name.into();
        object
    };
    for manifests in [
        vec![policy(ok()), policy(ok())],
        vec![unnamed(policy(ok()), "plain")],
        vec![unnamed(policy(ok()), "")],
        vec![unnamed(policy(ok()), "Upper.static.k8s.io")],
        vec![policy(ok()), bound(json!(["Deny"])), bound(json!(["Deny"]))],
        vec![json!({"apiVersion": "v1", "kind": "List", "items": [policy(ok()), bound(json!(["Audit"]))]})],
        vec![
            json!({"apiVersion": "admissionregistration.k8s.io/v1beta1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": NAME}}),
        ],
        vec![
            json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": {"name": NAME}}),
        ],
        vec![json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME}})],
        vec![json!({"kind": "ValidatingAdmissionPolicy"})],
    ] {
        cases.push(Case { manifests, namespace: namespace(), requests: Vec::new() });
    }
    compare(&cases);
}

#[test]
fn requests_are_decided_as_by_kube_apiserver() {
    let deny = || bound(json!(["Deny"]));
    let all_actions = [
        json!(["Deny"]),
        json!(["Warn"]),
        json!(["Audit"]),
        json!(["Deny", "Audit"]),
        json!(["Warn", "Audit"]),
    ];
    let mut cases = Vec::new();
    let validations = [
        json!({"expression": "object.spec.replicas > 5"}),
        json!({"expression": "  has(object.metadata.labels.a) ", "message": " needs <a> "}),
        json!({"expression": "false", "message": "no", "reason": "Forbidden"}),
        json!({"expression": "false", "reason": "RequestEntityTooLarge", "messageExpression": "'too many: ' + string(object.spec.replicas)"}),
        json!({"expression": "false", "message": "fallback", "messageExpression": "object.missing"}),
        json!({"expression": "false", "message": "fallback", "messageExpression": "'a\\nb'"}),
        json!({"expression": "false", "message": "fallback", "messageExpression": "'  '"}),
        json!({"expression": "object.missing == 1"}),
        json!({"expression": "request.userInfo.username == 'alice' && request.resource.resource == 'pods' && request.operation != 'DELETE'"}),
        json!({"expression": "namespaceObject.metadata.labels.tier == 'gold'"}),
        json!({"expression": "namespaceObject == null"}),
        json!({"expression": "authorizer.group('').resource('pods').namespace('ns').check('get').allowed()"}),
        json!({"expression": "authorizer.requestResource.check('create').allowed()", "messageExpression": "'user ' + request.userInfo.username"}),
        json!({"expression": "oldObject == null || object == null || object.metadata.labels == oldObject.metadata.labels"}),
        json!({"expression": "object.spec.containers.all(c, c.image.endsWith(':1'))"}),
    ];
    for validation in &validations {
        for actions in &all_actions {
            cases.push(case(validating(validation.clone()), vec![bound(actions.clone())]));
        }
        let mut ignored = validating(validation.clone());
        ignored["failurePolicy"] = json!("Ignore");
        cases.push(case(ignored, vec![deny()]));
    }
    let several = json!({"matchConstraints": any(), "validations": validations});
    cases.push(case(several, vec![bound(json!(["Warn", "Audit"]))]));
    for conditions in [
        json!([{"name": "a", "expression": "request.operation == 'UPDATE'"}]),
        json!([{"name": "a", "expression": "object.missing"}, {"name": "b", "expression": "true"}]),
        json!([{"name": "a", "expression": "object.missing == 1"}, {"name": "b", "expression": "object.missing == 2"}]),
        json!([{"name": "a", "expression": "namespaceObject == null"}]),
        json!([{"name": "a", "expression": "object.missing == 1"}, {"name": "b", "expression": "false"}]),
    ] {
        for policy in ["Fail", "Ignore"] {
            let mut spec = validating(json!({"expression": "false"}));
            spec["failurePolicy"] = policy.into();
            spec["matchConditions"] = conditions.clone();
            cases.push(case(spec, vec![deny()]));
        }
    }
    for annotations in [
        json!([{"key": "replicas", "valueExpression": "string(object.spec.replicas)"}, {"key": "none", "valueExpression": "null"}]),
        json!([{"key": "empty", "valueExpression": "'  '"}, {"key": "failed", "valueExpression": "object.missing"}]),
        json!([{"key": "allowed", "valueExpression": "string(authorizer.path('/x').check('get').allowed())"}]),
        json!([{"key": "long", "valueExpression": "[1,2,3,4,5].map(x, 'abcdefghij').join('<&>')"}]),
    ] {
        for policy in ["Fail", "Ignore"] {
            cases.push(case(
                json!({"matchConstraints": any(), "failurePolicy": policy, "auditAnnotations": annotations}),
                vec![deny(), binding("c", json!({"policyName": NAME, "validationActions": ["Audit"]}))],
            ));
        }
    }
    for variables in [
        json!([{"name": "r", "expression": "object.spec.replicas"}, {"name": "big", "expression": "variables.r > 2"}]),
        json!([{"name": "r", "expression": "object.missing"}, {"name": "big", "expression": "variables.r > 2"}]),
        json!([{"name": "r", "expression": "1"}, {"name": "big", "expression": "authorizer.path('/x').check('get').allowed()"}]),
    ] {
        for (expression, message) in [
            ("variables.big", "'r is ' + string(variables.r)"),
            ("variables.big || true", "'x'"),
            ("has(variables.big) && !variables.big", "variables.big ? 'yes' : 'no'"),
            ("!variables.big && variables.r == 3", "string(variables.r)"),
        ] {
            cases.push(case(
                json!({"matchConstraints": any(), "variables": variables,
                    "validations": [{"expression": expression, "messageExpression": message}]}),
                vec![bound(json!(["Deny", "Audit"]))],
            ));
        }
    }
    let rules = |rule: Value| json!({"resourceRules": [rule]});
    let of = |operations: Value, resources: Value| json!({"operations": operations, "apiGroups": [""], "apiVersions": ["v1"], "resources": resources});
    let mut named = of(json!(["*"]), json!(["pods"]));
    named["resourceNames"] = json!(["a", "z"]);
    let mut excluding = any();
    excluding["excludeResourceRules"] = json!([of(json!(["UPDATE"]), json!(["pods", "pods/scale"]))]);
    let mut selecting = any();
    selecting["objectSelector"] = json!({"matchLabels": {"a": "b"}});
    let mut of_tier = any();
    of_tier["namespaceSelector"] = json!({"matchLabels": {"tier": "silver"}});
    for constraints in [
        rules(of(json!(["CREATE"]), json!(["pods"]))),
        rules(of(json!(["*"]), json!(["*/scale"]))),
        rules(named),
        excluding,
        selecting,
        of_tier,
    ] {
        let spec = |constraints: &Value| json!({"matchConstraints": constraints, "validations": [{"expression": "false"}]});
        cases.push(case(spec(&constraints), vec![deny()]));
        let restricted =
            json!({"policyName": NAME, "validationActions": ["Deny"], "matchResources": constraints});
        cases.push(case(spec(&any()), vec![binding("b", restricted)]));
    }
    // Budgets: of one expression, and of all.
    let costly = |count: usize| format!("[{}].all(x, 'abcdefgh'.contains('h'))", vec!["1"; count].join(","));
    let heavy = "[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, \
                 [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, a + b + c + d + e > 0)))))";
    for policy in ["Fail", "Ignore"] {
        cases.push(case(
            json!({"matchConstraints": any(), "failurePolicy": policy,
                "variables": [{"name": "heavy", "expression": heavy}],
                "validations": [{"expression": "variables.heavy"}, {"expression": costly(20)}]}),
            vec![deny()],
        ));
        let many: Vec<Value> = (0..25).map(|_| json!({"expression": "authorizer.path('/x').check('get').allowed() && authorizer.path('/y').check('get').allowed()"})).collect();
        cases.push(case(
            json!({"matchConstraints": any(), "failurePolicy": policy, "validations": many}),
            vec![deny()],
        ));
    }
    compare(&cases);
}

/// A random expression of a boolean.
fn boolean(rng: &mut Rng, depth: usize) -> String {
    if depth == 0 {
        return (*rng.pick(&[
            "object.spec.replicas > 2",
            "object.spec.replicas == 3",
            "has(object.metadata.labels)",
            "object.metadata.labels.a == 'b'",
            "'a' in object.metadata.labels",
            "request.operation == 'CREATE'",
            "oldObject != null",
            "object == null",
            "namespaceObject.metadata.labels['tier'] == 'gold'",
            "variables.n > 1",
            "variables.t == 'b'",
            "variables.flag",
            "size(variables.items) > 0",
            "variables.items.exists(i, i.name == 'c')",
            "authorizer.requestResource.check('get').allowed()",
            "object.spec.containers[0].ports[5] == 1",
            "1 / (object.spec.replicas - 3) > 0",
            "true",
            "false",
        ]))
        .to_owned();
    }
    let part = |rng: &mut Rng| boolean(rng, depth - 1);
    match rng.below(5) {
        0 => format!("({} && {})", part(rng), part(rng)),
        1 => format!("({} || {})", part(rng), part(rng)),
        2 => format!("!({})", part(rng)),
        3 => format!("({} ? {} : {})", part(rng), part(rng), part(rng)),
        _ => part(rng),
    }
}

fn text(rng: &mut Rng) -> String {
    let depth = rng.below(2);
    match rng.below(6) {
        0 => "'<text>'".to_owned(),
        1 => "string(object.spec.replicas)".to_owned(),
        2 => "variables.t".to_owned(),
        3 => "object.metadata.name + '/' + request.name".to_owned(),
        4 => format!("({} ? 'yes' : 'no')", boolean(rng, depth)),
        _ => "request.userInfo.groups.join(', ')".to_owned(),
    }
}

fn random_case(rng: &mut Rng) -> Case {
    let variables = json!([
        {"name": "n", "expression": *rng.pick(&["object.spec.replicas", "size(object.metadata.labels)", "2", "object.missing.x"])},
        {"name": "t", "expression": *rng.pick(&["string(variables.n)", "object.metadata.labels.a", "'b'", "request.userInfo.username"])},
        {"name": "items", "expression": *rng.pick(&["object.spec.containers", "[{'name': 'c'}]", "[]", "oldObject.spec.containers"])},
        {"name": "flag", "expression": "true"},
    ]);
    let mut spec =
        json!({"matchConstraints": any(), "variables": variables, "validations": [], "auditAnnotations": []});
    if rng.one_in(3) {
        spec["failurePolicy"] = "Ignore".into();
    }
    let validations = (0..=rng.below(3)).map(|_| {
        let depth = rng.below(3);
        let mut validation = json!({"expression": boolean(rng, depth)});
        if rng.one_in(3) {
            validation["message"] = "a message".into();
        }
        if rng.one_in(2) {
            validation["messageExpression"] = text(rng).into();
        }
        if rng.one_in(4) {
            validation["reason"] = (*rng.pick(&["Forbidden", "Invalid", "RequestEntityTooLarge"])).into();
        }
        validation
    });
    spec["validations"] = validations.collect();
    if rng.one_in(3) {
        let annotations = (0..=rng.below(2)).map(|number| {
            let value = if rng.one_in(4) { "null".to_owned() } else { text(rng) };
            json!({"key": format!("k{number}"), "valueExpression": value})
        });
        spec["auditAnnotations"] = annotations.collect();
    }
    if rng.one_in(4) {
        let expression = boolean(rng, 1);
        if !expression.contains("variables") {
            spec["matchConditions"] = json!([{"name": "c", "expression": expression}]);
        }
    }
    let actions = [
        json!(["Deny"]),
        json!(["Warn"]),
        json!(["Audit"]),
        json!(["Deny", "Audit"]),
        json!(["Audit", "Warn"]),
    ];
    let mut bindings = vec![bound(rng.pick(&actions).clone())];
    if rng.one_in(3) {
        bindings.push(binding("c", json!({"policyName": NAME, "validationActions": rng.pick(&actions)})));
    }
    case(spec, bindings)
}

#[test]
fn random_policies_decide_as_by_kube_apiserver() {
    let mut rng = Rng(seed());
    let cases: Vec<Case> = (0..inputs(300)).map(|_| random_case(&mut rng)).collect();
    compare(&cases);
}
