//! Random admission policies, which the objects of random writes (`random_writes.rs`) choose by their labels. Both sides have the same
//! ones, by the seed of the run.

use serde_json::{Value, json};
use testkit::random::{Rng, seed};

use crate::{mutations, policies};

/// How many there are of each kind.
const COUNT: usize = 40;

/// All policies and bindings.
pub(crate) fn manifests() -> Vec<Value> {
    let mut rng = Rng(seed() ^ 0x5eed);
    let each = (0..COUNT).flat_map(|number| {
        let name = name(number);
        let validating = validating(&mut rng, &name);
        let binding = json!({"policyName": format!("{name}.static.k8s.io"),
            "validationActions": rng.pick(&[json!(["Deny"]), json!(["Deny", "Audit"]), json!(["Warn"]), json!(["Audit"])])});
        let of_validating = [object("Validating", "", &name, validating), object("Validating", "Binding", &name, binding)];
        let mutating = mutating(&mut rng, &name);
        let binding = json!({"policyName": format!("{name}.static.k8s.io")});
        let of_mutating = [object("Mutating", "", &name, mutating), object("Mutating", "Binding", &name, binding)];
        of_validating.into_iter().chain(of_mutating)
    });
    each.collect()
}

/// The labels by which an object chooses none, one or two policies.
pub(crate) fn labels(rng: &mut Rng) -> Value {
    let mut labels = json!({});
    for label in [policies::LABEL, mutations::LABEL] {
        if rng.one_in(2) {
            labels[label] = name(rng.below(COUNT)).into();
        }
    }
    labels
}

fn name(number: usize) -> String {
    format!("random-{number}")
}

fn object(kind: &str, end: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}AdmissionPolicy{end}"),
        "metadata": {"name": format!("{name}.static.k8s.io")}, "spec": spec})
}

/// What both kinds have.
fn scope(rng: &mut Rng, label: &str, name: &str) -> Value {
    let operations = rng.pick(&[json!(["CREATE", "UPDATE"]), json!(["CREATE"]), json!(["UPDATE"])]).clone();
    let mut spec = json!({
        "matchConstraints": {
            "resourceRules": [{"operations": operations, "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}],
            "objectSelector": {"matchLabels": {label: name}},
        },
        "failurePolicy": *rng.pick(&["Fail", "Ignore"]),
        "variables": [
            {"name": "n", "expression": *rng.pick(&["object.?spec.replicas.orValue(1)", "size(object.metadata.name)", "object.spec.replicas", "2"])},
            {"name": "t", "expression": *rng.pick(&["object.?data.a.orValue('none')", "string(variables.n)", "request.operation", "object.data.b"])},
        ],
    });
    let condition = boolean(rng, 1);
    // Conditions have no variables.
    if rng.one_in(2) && !condition.contains("variables") {
        spec["matchConditions"] = json!([{"name": "c", "expression": condition}]);
    }
    spec
}

fn validating(rng: &mut Rng, name: &str) -> Value {
    let mut spec = scope(rng, policies::LABEL, name);
    let validations = (0..=rng.below(2)).map(|_| {
        let depth = rng.below(3);
        // Most hold, so that later writes have an object.
        json!({"expression": format!("{} || {}", boolean(rng, depth), boolean(rng, 1)),
            "messageExpression": text(rng), "reason": *rng.pick(&["Forbidden", "Invalid"])})
    });
    spec["validations"] = validations.collect();
    if rng.one_in(3) {
        spec["auditAnnotations"] = json!([{"key": "k", "valueExpression": text(rng)}]);
    }
    spec
}

fn mutating(rng: &mut Rng, name: &str) -> Value {
    let mut spec = scope(rng, mutations::LABEL, name);
    spec["reinvocationPolicy"] = (*rng.pick(&["Never", "IfNeeded"])).into();
    let mutations = (0..=rng.below(2)).map(|_| {
        if rng.one_in(2) {
            let (applied, other) = (applied(rng), applied(rng));
            let expression =
                if rng.one_in(3) { format!("{} ? {applied} : {other}", boolean(rng, 1)) } else { applied };
            json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
        } else {
            let operations: Vec<String> = (0..=rng.below(2)).map(|_| operation(rng)).collect();
            let operations = format!("[{}]", operations.join(", "));
            let expression =
                if rng.one_in(3) { format!("{} ? {operations} : []", boolean(rng, 1)) } else { operations };
            json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
        }
    });
    spec["mutations"] = mutations.collect();
    spec
}

fn boolean(rng: &mut Rng, depth: usize) -> String {
    if depth == 0 {
        return (*rng.pick(&[
            "has(object.data)",
            "has(object.metadata.labels)",
            "object.?data.a.orValue('') == '1'",
            "'a' in object.data",
            "object.?spec.replicas.orValue(0) > 4",
            "object.spec.replicas > 4",
            "object.?spec.listeners.orValue([]).exists(l, l.name == 'n')",
            "oldObject == null",
            "oldObject.?data.a.orValue('') != object.?data.a.orValue('')",
            "request.operation == 'UPDATE'",
            "request.kind.kind == 'Widget'",
            "variables.n > 2",
            "variables.t == 'none'",
            "namespaceObject.metadata.name == 'twin'",
            "authorizer.requestResource.check('get').allowed()",
            "1 / (variables.n - 2) > 0",
            "true",
        ]))
        .to_owned();
    }
    let part = |rng: &mut Rng| boolean(rng, depth - 1);
    match rng.below(4) {
        0 => format!("({} && {})", part(rng), part(rng)),
        1 => format!("({} || {})", part(rng), part(rng)),
        2 => format!("!({})", part(rng)),
        _ => format!("({} ? {} : {})", part(rng), part(rng), part(rng)),
    }
}

fn text(rng: &mut Rng) -> String {
    (*rng.pick(&[
        "'text'",
        "string(variables.t)",
        "string(variables.n)",
        "request.operation + ' ' + request.namespace",
        "string(object.data.a)",
        "string(object.?data.a.orValue('none')) + '!'",
    ]))
    .to_owned()
}

/// An apply configuration. Some have fields that one of the kinds lacks.
fn applied(rng: &mut Rng) -> String {
    let text = text(rng);
    match rng.below(7) {
        0 => "Object{}".to_owned(),
        1 => format!("Object{{metadata: Object.metadata{{annotations: {{'k': {text}}}}}}}"),
        2 => format!("Object{{data: {{'m': {text}}}}}"),
        3 => "Object{spec: Object.spec{replicas: variables.n}}".to_owned(),
        4 => "Object{spec: Object.spec{color: 'green', ?replicas: object.?spec.replicas}}".to_owned(),
        5 => "Object{spec: Object.spec{listeners: [Object.spec.listeners{name: 'policy'}]}}".to_owned(),
        _ => "Object{metadata: Object.metadata{labels: {'added': 'yes'}}}".to_owned(),
    }
}

fn operation(rng: &mut Rng) -> String {
    let text = text(rng);
    let (op, path, value) = match rng.below(7) {
        0 => ("add", "'/metadata/labels'", "{'replaced': 'yes'}"),
        1 => ("add", "'/metadata/annotations/' + jsonpatch.escapeKey('a/b')", text.as_str()),
        2 => ("add", "'/data/x'", text.as_str()),
        3 => ("remove", "'/data/a'", "null"),
        4 => ("test", "'/data/a'", "'1'"),
        5 => ("replace", "'/spec/replicas'", "3"),
        _ => ("add", "'/spec/color'", "'blue'"),
    };
    format!("JSONPatch{{op: '{op}', path: {path}, value: {value}}}")
}
