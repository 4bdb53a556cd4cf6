//! Mutating policies: the errors of manifests, and the patches that their mutations give before they are applied.

use std::sync::Arc;

use portcullis_admission::configuration::manifest::{ManifestError, Manifests};
use portcullis_admission::{MutatingPolicy, Mutation};
use portcullis_cel::{
    AccessDecision, AccessReview, Bindings, Expression, Outcome, ResourceTarget, VariableOutcome,
    VariableValues, Variables,
};
use portcullis_kubernetes::release::Release;
use serde_json::{Value, json};
use testkit::go_program::GoProgram;
use testkit::random::{Rng, inputs, seed};

use super::{FILE, NAME, first_errors, is_same_error, namespace, requests};

/// A folder of manifests.
type Folder = Vec<Value>;

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn policy(spec: Value) -> Value {
    object("MutatingAdmissionPolicy", NAME, spec)
}

fn binding(spec: Value) -> Value {
    object("MutatingAdmissionPolicyBinding", "b.static.k8s.io", spec)
}

fn bound() -> Value {
    binding(json!({"policyName": NAME}))
}

fn constraints() -> Value {
    json!({"resourceRules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]})
}

fn apply(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

fn patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

fn mutating(mutations: Value) -> Value {
    json!({"matchConstraints": constraints(), "mutations": mutations, "reinvocationPolicy": "Never"})
}

fn read(manifests: &[Value]) -> Result<Vec<Arc<MutatingPolicy>>, Vec<ManifestError>> {
    let mut folder = Manifests::mutating_policies(Release::default());
    for (number, object) in manifests.iter().enumerate() {
        folder.add(FILE, number, object);
    }
    Ok(folder.finish()?.into_iter().map(Arc::new).collect())
}

/// The result of a mutation, and its cost.
#[derive(Debug, PartialEq)]
enum Patched {
    Error(String),
    Misfit(String),
    Value(Value, u64),
}

/// Evaluates a mutation. Each has variables of its own, as the object may have changed since those before it.
fn evaluate(expression: &Expression, variables: &Variables, bindings: &Bindings) -> Patched {
    let (mut values, mut decisions) =
        (VariableValues::default(), Vec::<(AccessReview, AccessDecision)>::new());
    let (mut pending, mut spent) = (Vec::<String>::new(), 0);
    let decide = |review: &AccessReview| {
        let allowed = review.verb == "get";
        let reason = if allowed { "" } else { "only get" };
        AccessDecision { allowed, reason: reason.to_owned(), error: None }
    };
    loop {
        if let Some(name) = pending.last().cloned() {
            let (outcome, cost) = variables.evaluate(&name, bindings, &decisions, &mut values);
            match outcome {
                VariableOutcome::Known => {
                    spent += cost;
                    pending.pop();
                }
                VariableOutcome::Review(review) => {
                    let decision = decide(&review);
                    decisions.push((*review, decision));
                }
                VariableOutcome::Variable(other) => pending.push(other),
                VariableOutcome::Unsupported(error) => panic!("{error}"),
            }
            continue;
        }
        let evaluated = expression.evaluate_in(bindings, &decisions, &values);
        match evaluated.outcome {
            Outcome::Review(review) => {
                let decision = decide(&review);
                decisions.push((*review, decision));
            }
            Outcome::Variable(name) => pending.push(name),
            Outcome::Error(error) => {
                let text = expression.text();
                return Patched::Error(format!("expression '{text}' resulted in error: {error}"));
            }
            Outcome::Patch(Err(error)) => return Patched::Misfit(error.to_string()),
            Outcome::Patch(Ok(value)) => return Patched::Value(value, evaluated.cost + spent),
            Outcome::Unsupported(error) => panic!("{error}"),
            Outcome::Value(value) => panic!("{value:?}"),
        }
    }
}

fn patches(policies: &[Arc<MutatingPolicy>], request: &Value) -> Vec<Patched> {
    let text = |field: &str| request[field].as_str().unwrap_or_default().to_owned();
    let target = ResourceTarget {
        resource: request["resource"]["resource"].as_str().unwrap_or_default().to_owned(),
        subresource: text("subresource"),
        namespace: text("namespace"),
        name: text("name"),
        ..ResourceTarget::default()
    };
    let of_request = json!({"operation": request["operation"], "name": request["name"],
        "userInfo": {"username": request["username"], "groups": request["groups"]}});
    let bindings = Bindings::default()
        .with("object", &request["object"])
        .with("oldObject", &request["oldObject"])
        .with_typed("namespaceObject", &namespace())
        .with_typed("request", &of_request)
        .with_variables()
        .with_authorizer(target);
    let evaluated = policies.iter().flat_map(|policy| {
        let all = policy.mutations.iter();
        all.map(|mutation| {
            match (evaluate(mutation.expression(), &policy.scope.variables, &bindings), mutation) {
                (Patched::Value(mut value, cost), Mutation::ApplyConfiguration(_)) => {
                    value["apiVersion"] = json!("group/v1");
                    value["kind"] = json!("Kind");
                    Patched::Value(value, cost)
                }
                (other, _) => other,
            }
        })
    });
    evaluated.collect()
}

/// What the reference spends at most on a mutation.
// apiserver: pkg/apis/cel/config.go, RuntimeCELCostBudget
const BUDGET: i64 = 10_000_000;

/// Whether a mutation gives what that of the reference gives, at no lower cost.
fn is_same(ours: &Patched, theirs: &Value) -> bool {
    let text = |field: &str| theirs[field].as_str().unwrap_or_default().replace('\u{a0}', " ");
    match ours {
        Patched::Error(error) => *error == text("error"),
        Patched::Misfit(_) if text("misfit").starts_with("foreign: ") => true,
        Patched::Misfit(error) => {
            // The reference meets the fields of objects in no order.
            let lines = |text: &str| {
                let mut lines: Vec<String> =
                    text.lines().map(|line| line.replace("type mismatch: ", "")).collect();
                lines.sort();
                lines
            };
            let head = "JSONPath valueExpression evaluated to a type that could not marshal to JSON: ";
            let are_values = error.starts_with(head) && text("misfit").starts_with(head);
            are_values || lines(error) == lines(&text("misfit"))
        }
        Patched::Value(value, cost) => {
            let spent = BUDGET - theirs["left"].as_i64().unwrap();
            let is_value = text("error").is_empty() && text("misfit").is_empty();
            is_value && is_equal(value, &theirs["value"]) && i64::try_from(*cost).unwrap() >= spent
        }
    }
}

/// Equality of values, whose numbers may have a fraction of zero.
fn is_equal(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Number(ours), Value::Number(theirs)) => ours == theirs || ours.as_f64() == theirs.as_f64(),
        (Value::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(ours, theirs)| is_equal(ours, theirs))
        }
        (Value::Object(ours), Value::Object(theirs)) => {
            let is_same = |(name, ours)| theirs.get(name).is_some_and(|theirs| is_equal(ours, theirs));
            ours.len() == theirs.len() && ours.iter().all(is_same)
        }
        (ours, theirs) => ours == theirs,
    }
}

fn compare(folders: &[Folder]) {
    let Some(program) = GoProgram::build("policies") else { return };
    let requests: Vec<Value> =
        requests().into_iter().filter(|request| !request["object"].is_null()).collect();
    let questions: Vec<Value> = folders
        .iter()
        .map(|manifests| {
            let documents: Vec<String> = manifests.iter().map(Value::to_string).collect();
            json!({"mutating": true, "manifests": documents.join("\n---\n"), "namespace": namespace(), "requests": requests})
        })
        .collect();
    let (mut loaded, mut refused, mut differences) = (0, 0, Vec::new());
    let mut seen = [0; 3];
    for (manifests, answer) in folders.iter().zip(program.ask(&questions)) {
        let error = answer["error"].as_str().unwrap();
        let shown = || manifests.iter().map(Value::to_string).collect::<Vec<_>>().join("\n    ");
        let policies = match read(manifests) {
            Ok(policies) if error.is_empty() => policies,
            Ok(_) => {
                differences.push(format!("only theirs: {error}\n    {}", shown()));
                continue;
            }
            Err(errors) if is_same_error(&errors, error) => {
                refused += 1;
                assert!(errors.iter().all(|error| !error.fix.is_empty()), "{errors:?}");
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
        for (request, theirs) in requests.iter().zip(answer["patches"].as_array().unwrap()) {
            let ours = patches(&policies, request);
            assert_eq!(ours.len(), theirs.as_array().unwrap().len());
            for (ours, theirs) in ours.iter().zip(theirs.as_array().unwrap()) {
                seen[match ours {
                    Patched::Error(_) => 0,
                    Patched::Misfit(_) => 1,
                    Patched::Value(..) => 2,
                }] += 1;
                if !is_same(ours, theirs) {
                    differences.push(format!("ours: {ours:?}\n  theirs: {theirs}\n    {}", shown()));
                }
            }
        }
    }
    let [errors, misfits, values] = seen;
    eprintln!(
        "{} folders: {loaded} loaded, {refused} refused; mutations: {values} patches, {misfits} misfits, {errors} errors",
        folders.len()
    );
    for difference in differences.iter().take(15) {
        eprintln!("{difference}");
    }
    assert!(differences.is_empty(), "{} differences", differences.len());
}

#[test]
fn manifests_are_judged_as_by_kube_apiserver() {
    let ok = || mutating(json!([apply("Object{}")]));
    let with = |field: &str, value: Value| {
        let mut spec = ok();
        spec[field] = value;
        spec
    };
    let without = |field: &str| {
        let mut spec = ok();
        spec.as_object_mut().unwrap().remove(field);
        spec
    };
    let operations = |operations: Value| {
        let mut resources = constraints();
        resources["resourceRules"][0]["operations"] = operations;
        resources
    };
    let both = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{}]"}, "applyConfiguration": {"expression": "Object{}"}});
    let other = json!({"patchType": "ApplyConfiguration", "jsonPatch": {"expression": "1"}, "applyConfiguration": {"expression": "Object{}"}});
    let variables = json!([{"name": "x", "expression": "object.spec"}]);
    let with_variables = |mutation: Value| {
        let mut spec = mutating(json!([mutation]));
        spec["variables"] = variables.clone();
        spec
    };
    let with_params = |mutation: Value| {
        let mut spec = mutating(json!([mutation]));
        spec["paramKind"] = json!({"apiVersion": "v1", "kind": "ConfigMap"});
        spec
    };
    let specs = vec![
        ok(),
        json!({}),
        without("mutations"),
        without("matchConstraints"),
        without("reinvocationPolicy"),
        with("reinvocationPolicy", json!("IfNeeded")),
        with("reinvocationPolicy", json!("Always")),
        with("failurePolicy", json!("Ignore")),
        with("failurePolicy", json!("Sometimes")),
        with("matchConstraints", json!({})),
        with("matchConstraints", operations(json!(["*"]))),
        with("matchConstraints", operations(json!(["CONNECT"]))),
        with("matchConstraints", operations(json!(["DELETE"]))),
        with("matchConstraints", operations(json!(["CREATE", "DELETE", "read"]))),
        with("mutations", json!([])),
        with("mutations", json!([{}])),
        with("mutations", json!([{"patchType": "Merge"}])),
        with("mutations", json!([{"patchType": "JSONPatch"}, {"patchType": "ApplyConfiguration"}])),
        with("mutations", json!([both, other])),
        with("mutations", json!([apply(""), patch(" \n")])),
        with("mutations", json!([apply("1"), patch("1"), patch("[]"), apply("{}"), apply("object")])),
        with(
            "mutations",
            json!([apply("Object.spec{}"), apply("true ? null : Object{}"), patch("[Object{}]")]),
        ),
        with("mutations", json!([apply("  Object{} \n"), patch("\n[JSONPatch{op: 'x'}]")])),
        with(
            "mutations",
            json!([apply("  Object{a: b}"), patch(" [JSONPatch{op: 1}]"), patch("[JSONPatch{nope: 'a'}]")]),
        ),
        with("mutations", json!([apply("Object{a: foo}"), apply("Object"), patch("[JSONPatch{}.nope]")])),
        with("mutations", json!([apply("Object{a: params.x}")])),
        with("mutations", json!([apply("Object{a: variables.x}")])),
        with(
            "mutations",
            json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{}]", "more": 1}}]),
        ),
        with("matchConditions", json!([{"name": "a", "expression": "Object{} == null"}])),
        with("variables", json!([{"name": "x", "expression": "Object{}"}])),
        with(
            "variables",
            json!([{"name": "x", "expression": "[JSONPatch{}]"}, {"name": "if", "expression": "1"}]),
        ),
        with_variables(apply("Object{spec: variables.x}")),
        with_variables(patch("[JSONPatch{op: 'add', path: '/a', value: variables.x}]")),
        with_variables(apply("Object{spec: variables.y}")),
        with_params(apply("Object{spec: params.data}")),
        with("validations", json!([])),
        with("status", json!({})),
    ];
    let mut folders: Vec<Folder> = specs.into_iter().map(|spec| vec![policy(spec)]).collect();
    for spec in [
        json!({}),
        json!({"policyName": NAME}),
        json!({"policyName": "Other"}),
        json!({"policyName": "other.static.k8s.io"}),
        json!({"policyName": "plain"}),
        json!({"policyName": NAME, "validationActions": ["Deny"]}),
        json!({"policyName": NAME, "paramRef": {"name": "x", "parameterNotFoundAction": "Deny"}}),
        json!({"policyName": NAME, "paramRef": {}}),
        json!({"policyName": NAME, "matchResources": {}}),
        json!({"policyName": NAME, "matchResources": operations(json!(["UPDATE"]))}),
        json!({"policyName": NAME, "matchResources": operations(json!(["DELETE", "*"]))}),
        json!({"policyName": NAME, "matchResources": {"resourceRules": [{"operations": []}]}}),
    ] {
        folders.push(vec![policy(ok()), binding(spec)]);
    }
    let unnamed = |mut object: Value, name: &str| {
        object["metadata"]["name"] = name.into();
        object
    };
    folders.extend([
        vec![policy(ok()), policy(ok())],
        vec![unnamed(policy(ok()), "plain")],
        vec![unnamed(policy(ok()), "")],
        vec![policy(ok()), bound(), bound()],
        vec![bound(), policy(ok())],
        vec![policy(json!({})), bound()],
        vec![bound()],
        vec![json!({"apiVersion": "v1", "kind": "List", "items": [policy(ok()), bound()]})],
        vec![json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyList", "items": [policy(ok())]})],
        vec![json!({"apiVersion": "admissionregistration.k8s.io/v1beta1", "kind": "MutatingAdmissionPolicy", "metadata": {"name": NAME}})],
        vec![json!({"apiVersion": "admissionregistration.k8s.io/v1alpha1", "kind": "MutatingAdmissionPolicy", "metadata": {"name": NAME}})],
        vec![object("ValidatingAdmissionPolicy", NAME, json!({}))],
        vec![json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": {"name": NAME}})],
        vec![json!({"kind": "MutatingAdmissionPolicy"})],
    ]);
    compare(&folders);
}

/// A random folder: a policy, with mistakes now and then.
fn random_folder(rng: &mut Rng) -> Folder {
    const TEXTS: &[&str] = &[
        "'x'",
        "variables.t",
        "object.metadata.name",
        "request.userInfo.username",
        "object.missing",
        "string(variables.n)",
    ];
    const VALUES: &[&str] = &[
        "1",
        "'x'",
        "true",
        "null",
        "variables.n",
        "variables.items",
        "object.spec",
        "object.metadata.labels",
        "[1, 2]",
        "{'a': 'b'}",
        "variables.items.map(i, i.name)",
        "object.?spec.?replicas.orValue(7)",
        "namespaceObject.metadata.labels",
        "{1: 2}",
        "duration('1s')",
        "variables.items.map(i, {'name': i.name})",
        "[{'a': 1}]",
        "request.userInfo.groups",
        "object.metadata.labels.transformMap(k, v, v + '!')",
        "authorizer.requestResource.check('get').allowed()",
        "authorizer.path('/x').check('put').reason()",
        "oldObject",
        "object.spec.containers.filter(c, c.image.endsWith(':1'))",
        "2.0",
        "object.spec.replicas / (variables.n - 3)",
        "dyn(5u)",
    ];
    fn made(rng: &mut Rng, path: &str, depth: usize) -> String {
        let path = if rng.one_in(25) { format!("{path}.wrong") } else { path.to_owned() };
        let fields: Vec<String> = (0..=rng.below(3))
            .map(|_| {
                let field = *rng.pick(&["spec", "metadata", "labels", "containers", "replicas"]);
                let value = match rng.below(8) {
                    0..=2 if depth > 0 => made(rng, &format!("{path}.{field}"), depth - 1),
                    3 if depth > 0 => format!("[{}]", made(rng, &format!("{path}.{field}"), depth - 1)),
                    4 => {
                        return format!(
                            "?{field}: {}",
                            rng.pick(&["object.?spec.?replicas", "object.?nope", "optional.of(variables.t)"])
                        );
                    }
                    _ => (*rng.pick(VALUES)).to_owned(),
                };
                format!("{field}: {value}")
            })
            .collect();
        format!("{path}{{{}}}", fields.join(", "))
    }
    let operation = |rng: &mut Rng| {
        let value = if rng.one_in(4) { made(rng, "Object.spec", 2) } else { (*rng.pick(VALUES)).to_owned() };
        let path = format!("'/metadata/labels/' + jsonpatch.escapeKey({})", rng.pick(TEXTS));
        format!(
            "JSONPatch{{op: {}, path: {path}, value: {value}}}",
            rng.pick(&["'add'", "'replace'", "object.missing ? 'a' : 'b'", "'test'"])
        )
    };
    let mutations = (0..=rng.below(3)).map(|_| match rng.below(7) {
        0..=2 => apply(&made(rng, "Object", 3)),
        3 => {
            let object = made(rng, "Object", 2);
            apply(&format!("has(object.metadata.labels.a) ? {object} : Object{{}}"))
        }
        4 => patch(&format!("variables.items.map(i, {})", operation(rng))),
        5 => patch(&format!("object.spec.replicas > 2 ? [{}] : []", operation(rng))),
        _ => patch(&format!("[{}, {}]", operation(rng), operation(rng))),
    });
    let mut spec = mutating(mutations.collect());
    spec["variables"] = json!([
        {"name": "n", "expression": *rng.pick(&["object.spec.replicas", "size(object.metadata.labels)", "2", "object.missing.x"])},
        {"name": "t", "expression": *rng.pick(&["string(variables.n)", "object.metadata.labels.a", "'b'", "request.userInfo.username"])},
        {"name": "items", "expression": *rng.pick(&["object.spec.containers", "[{'name': 'c'}]", "object.spec.containers + object.spec.containers"])},
    ]);
    if rng.one_in(6) {
        let mistakes = [
            ("reinvocationPolicy", json!("")),
            ("reinvocationPolicy", json!("Once")),
            ("failurePolicy", json!("Warn")),
            ("matchConstraints", json!({})),
            ("mutations", json!([])),
            ("mutations", json!([{"patchType": "JSONPatch"}])),
            ("mutations", json!([patch("[JSONPatch{op: 1}]")])),
        ];
        let (field, value) = rng.pick(&mistakes).clone();
        spec[field] = value;
    }
    let mut folder = vec![policy(spec)];
    if rng.one_in(2) {
        folder.push(bound());
    }
    folder
}

#[test]
fn random_mutations_give_the_patches_of_kube_apiserver() {
    let seed = seed();
    eprintln!("seed {seed}");
    let mut rng = Rng(seed);
    let folders: Vec<Folder> = (0..inputs(400)).map(|_| random_folder(&mut rng)).collect();
    compare(&folders);
}
