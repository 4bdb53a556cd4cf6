//! The validating admission policies of [`Setting::Admission`](crate::authenticators::Setting): the same static manifests for the
//! reference and the gateway. Each policy is about the objects with its own label, `policy`, so that it concerns no other case.
//!
//! Facts of Kubernetes' own tests are among them: `test/e2e/apimachinery/validatingadmissionpolicy.go`,
//! `pkg/admission/plugin/policy/validating/validator_test.go`.

use serde_json::{Value, json};

/// The label by which objects choose their policy.
pub(crate) const LABEL: &str = "policy";
/// The group of the user to whose connections the policy `connections` applies: options have no labels.
pub(crate) const CONNECTING: &str = "policy-connections";

/// All policies and bindings.
pub(crate) fn manifests() -> Vec<Value> {
    let policies = policies();
    let mut manifests: Vec<Value> = policies.iter().map(policy).collect();
    for (name, _, bindings) in policies {
        let ends = ["", "-second"];
        manifests.extend(ends.iter().zip(bindings).map(|(end, spec)| binding(name, end, spec)));
    }
    manifests
}

/// The name, the `spec` and the bindings of a policy.
type Policy = (&'static str, Value, Vec<Value>);

fn policy((name, spec, _): &Policy) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": format!("{name}.static.k8s.io")}, "spec": spec})
}

fn binding(policy: &str, end: &str, mut spec: Value) -> Value {
    spec["policyName"] = json!(format!("{policy}.static.k8s.io"));
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": format!("{policy}{end}.static.k8s.io")}, "spec": spec})
}

fn rule(operations: &[&str], group: &str, version: &str, resource: &str) -> Value {
    json!({"operations": operations, "apiGroups": [group], "apiVersions": [version], "resources": [resource]})
}

fn everything() -> Value {
    rule(&["*"], "*", "*", "*/*")
}

/// The policies.
fn policies() -> Vec<Policy> {
    let constraints = |name: &str, rules: Value| json!({"resourceRules": [rules], "objectSelector": {"matchLabels": {LABEL: name}}});
    // One about all objects with its label.
    let of = |name: &'static str, more: Value, bindings: Vec<Value>| {
        let mut spec = json!({"matchConstraints": constraints(name, everything())});
        for (field, value) in more.as_object().expect("an object") {
            spec[field] = value.clone();
        }
        (name, spec, bindings)
    };
    let actions = |actions: &[&str]| json!({"validationActions": actions});
    let deny = || vec![actions(&["Deny"])];
    let that = |expression: &str| json!([{"expression": expression}]);
    let has_data = "object == null || (has(object.data) && 'a' in object.data)";
    let value = "object == null || object.?data[?'a'].orValue('') != 'bad'";
    let spec_of = |name: &'static str, spec: Value| (name, spec, deny());
    let mut policies = vec![
        of("plain", json!({"validations": that(value)}), deny()),
        of(
            "warned",
            json!({"validations": [{"expression": value, "message": "a is \"bad\""}]}),
            vec![actions(&["Warn"])],
        ),
        of("audited", json!({"validations": that(value)}), vec![actions(&["Audit"])]),
        of("denied-audited", json!({"validations": that(value)}), vec![actions(&["Audit", "Deny"])]),
        of(
            "bound-twice",
            json!({"validations": that(value)}),
            vec![
                json!({"validationActions": ["Warn"], "matchResources": {"objectSelector": {"matchLabels": {"strict": "no"}}}}),
                json!({"validationActions": ["Deny"], "matchResources": {"objectSelector": {"matchLabels": {"strict": "yes"}}}}),
            ],
        ),
        of(
            "warned-twice",
            json!({"validations": that(value)}),
            vec![actions(&["Warn"]), actions(&["Warn", "Audit"])],
        ),
        of("unbound", json!({"validations": that("false")}), vec![]),
        of(
            "reasons",
            json!({"validations": [
                {"expression": "object == null || object.?data[?'a'].orValue('') != 'forbidden'", "reason": "Forbidden", "message": "no"},
                    {"expression": "object == null || object.?data[?'a'].orValue('') != 'invalid'", "reason": "Invalid"},
                {"expression": "object == null || object.?data[?'a'].orValue('') != 'large'", "reason": "RequestEntityTooLarge"},
            ]}),
            deny(),
        ),
        of(
            "messages",
            json!({"validations": [
                {"expression": "object == null || object.?data[?'a'].orValue('') != 'expression'",
                 "messageExpression": "'a is ' + object.data.a + ' in ' + request.namespace", "message": "not shown"},
                {"expression": "object == null || object.?data[?'a'].orValue('') != 'error'", "messageExpression": "string(object.data.absent)", "message": "instead"},
                {"expression": "object == null || object.?data[?'a'].orValue('') != 'bare-error'", "messageExpression": "string(object.data.absent)"},
                {"expression": "object == null || object.?data[?'a'].orValue('') != 'empty'", "messageExpression": "'  '"},
                {"expression": "object == null || object.?data[?'a'].orValue('') != 'lines'", "messageExpression": "'a\\nb'"},
                {"expression": "object == null || object.?data[?'a'].orValue('') != 'long'",
                 "messageExpression": "['1', '2', '3', '4', '5', '6', '7', '8'].map(x, '0123456789'.replace('0', '0123456789').replace('1', '0123456789').replace('2', '0123456789').replace('3', '0123456789').replace('4', '0123456789')).join(',')"},
            ]}),
            deny(),
        ),
        of(
            "several",
            json!({"validations": [
                {"expression": has_data, "message": "first"}, {"expression": value, "message": "second"}, {"expression": "object == null || size(object.metadata.name) < 200", "message": "third"},
            ]}),
            vec![actions(&["Warn", "Audit"])],
        ),
        of("fails", json!({"validations": that("object == null || object.data.absent == 'x'")}), deny()),
        of(
            "fails-open",
            json!({"failurePolicy": "Ignore", "validations": [
            {"expression": "object == null || object.data.absent == 'x'"}, {"expression": value}]}),
            deny(),
        ),
        of(
            "fails-warned",
            json!({"validations": that("object == null || object.data.absent == 'x'")}),
            vec![actions(&["Warn"])],
        ),
        of(
            "costly",
            json!({"validations": that(
            "object == null || object.data.all(a, object.data.all(b, object.data.all(c, (a + b + c).size() > 0)))")}),
            deny(),
        ),
        of(
            "conditions",
            json!({
            "matchConditions": [{"name": "not-excluded", "expression": "object == null || object.?data[?'skip'].orValue('') != 'yes'"},
                {"name": "not-bots", "expression": "!request.userInfo.username.startsWith('bot')"}],
            "validations": that(value)}),
            deny(),
        ),
        of(
            "conditions-fail",
            json!({
            "matchConditions": [{"name": "fails", "expression": "object.data.absent == 'x'"}], "validations": that("true")}),
            deny(),
        ),
        of(
            "conditions-fail-open",
            json!({"failurePolicy": "Ignore",
            "matchConditions": [{"name": "fails", "expression": "object.data.absent == 'x'"}], "validations": that("false")}),
            deny(),
        ),
        of(
            "variables",
            json!({
            "variables": [
                {"name": "data", "expression": "object == null ? {} : object.?data.orValue({})"},
                {"name": "unused", "expression": "object.data.absent"},
                {"name": "a", "expression": "variables.data[?'a'].orValue('none')"},
                {"name": "broken", "expression": "int(variables.a)"},
                {"name": "both", "expression": "variables.a + '/' + variables.data[?'b'].orValue('none')"},
            ],
            "validations": [
                {"expression": "variables.both != 'bad/none'", "messageExpression": "'both: ' + variables.both"},
                {"expression": "variables.a != 'number' || variables.broken > 0"},
            ],
            "auditAnnotations": [{"key": "both", "valueExpression": "variables.both"}]}),
            deny(),
        ),
        of(
            "annotations",
            json!({"auditAnnotations": [
                {"key": "a", "valueExpression": "object == null ? '' : object.?data[?'a'].orValue('none')"},
                {"key": "fails", "valueExpression": "object != null && object.?data[?'a'].orValue('') == 'bad' ? string(object.data.absent) : ''"},
            {"key": "none", "valueExpression": "null"},
            ]}),
            deny(),
        ),
        of(
            "updates",
            json!({"validations": [
                {"expression": "request.operation != 'UPDATE' || oldObject.?data[?'a'].orValue('') == object.?data[?'a'].orValue('')",
                 "messageExpression": "'a was ' + oldObject.?data[?'a'].orValue('none') + ' at ' + string(oldObject.metadata.generation == null ? 0 : 1)"},
            ]}),
            deny(),
        ),
        of(
            "deletions",
            json!({"validations": [
                {"expression": "request.operation != 'DELETE' || (object == null && oldObject.?data[?'keep'].orValue('') != 'yes')", "message": "it is kept", "reason": "Forbidden"},
            ]}),
            deny(),
        ),
        of(
            "requests",
            json!({"validations": [
                {"expression": "object == null || object.?data[?'a'].orValue('') != 'show'", "messageExpression":
                 "[request.operation, request.kind.group, request.kind.version, request.kind.kind, request.resource.resource, request.subResource, \
                   request.name, request.namespace, request.userInfo.username, request.userInfo.groups.join('+'), string(request.dryRun), \
                   request.requestKind.kind, request.requestResource.resource, string(request.options.kind)].join(',')"},
            ]}),
            deny(),
        ),
        of(
            "namespaces",
            json!({"validations": [
                {"expression": "namespaceObject == null || namespaceObject.metadata.labels[?'environment'].orValue('') != 'production'",
                 "messageExpression": "namespaceObject.metadata.name + ' ' + namespaceObject.status.phase + ' ' + namespaceObject.spec.finalizers.join(',') + ' ' + namespaceObject.metadata.labels['kubernetes.io/metadata.name']"},
            ]}),
            deny(),
        ),
        of(
            "authorizers",
            json!({"validations": [
                {"expression": "object == null || authorizer.group('').resource('configmaps').namespace(request.namespace).check('fly').allowed() || \
                                !authorizer.requestResource.check('create').errored()"},
                {"expression": "object == null || authorizer.serviceAccount('twin', 'default').group('').resource('secrets').namespace('twin').check('get').allowed()",
                 "message": "the service account may not"},
            ]}),
            deny(),
        ),
        of(
            "prepared",
            json!({"validations": [
                {"expression": "request.operation != 'CREATE' || object.spec.strategy.type == 'RollingUpdate' && object.spec.template.spec.restartPolicy == 'Always'", "message": "without defaults"},
                {"expression": "request.operation != 'CREATE' || object.metadata.generation == 1 && has(object.metadata.uid) && has(object.metadata.creationTimestamp)", "message": "without fields of the server"},
                {"expression": "request.subResource == 'scale' || object == null || object.kind != 'Deployment' || object.spec.replicas <= 5", "messageExpression": "'replicas: ' + string(object.spec.replicas)"},
            ]}),
            deny(),
        ),
        // Kubernetes' end-to-end tests: a deployment of more than one replica.
        of(
            "replicas",
            json!({"validations": [{"expression": "!has(object.spec.replicas) || object.spec.replicas > 1",
             "messageExpression": "'wants replicas > 1, got ' + string(object.spec.replicas)"}]}),
            deny(),
        ),
    ];
    policies.extend([
        // A message that costs more than its budget in one step, though nothing is refused.
        of(
            "jumps",
            json!({"validations": [{"expression": "true", "messageExpression": "string(object.data.a.contains(object.data.b))"}]}),
            deny(),
        ),
        of("nameless", json!({"validations": that("!has(request.namespace) && has(request.name)")}), deny()),
    ]);
    let namespaces = |selector: Value| {
        let mut constraints = constraints("selected", rule(&["CREATE"], "", "v1", "configmaps"));
        constraints["namespaceSelector"] = selector;
        constraints
    };
    let mut excluding = constraints("excluding", everything());
    excluding["excludeResourceRules"] = json!([rule(&["CREATE", "UPDATE"], "", "v1", "secrets"), {
        "operations": ["*"], "apiGroups": [""], "apiVersions": ["*"], "resources": ["configmaps"], "resourceNames": ["twin-excluded"]}]);
    let mut exact = constraints("exact", rule(&["*"], "autoscaling", "v1", "horizontalpodautoscalers"));
    exact["matchPolicy"] = json!("Exact");
    let sides =
        ["admission-reference", "admission-second", "admission-gateway"].map(|side| format!("side-{side}"));
    let of_version = |version: &str, names: Value| {
        json!({"operations": ["*"], "apiGroups": ["autoscaling"], "apiVersions": [version],
        "resources": ["horizontalpodautoscalers"], "resourceNames": names})
    };
    let hidden = json!({"resourceRules": [of_version("v2", json!(sides))]});
    // A rule for another name in the client's version.
    let mixed = json!({"resourceRules": [of_version("v1", json!(["another"])), of_version("v2", json!([]))],
        "objectSelector": {"matchLabels": {LABEL: "mixed"}}});
    let named = json!({"resourceRules": [{"operations": ["CREATE", "UPDATE", "DELETE"], "apiGroups": [""], "apiVersions": ["v1"],
        "resources": ["configmaps"], "resourceNames": ["twin-named"]}], "objectSelector": {"matchLabels": {LABEL: "named"}}});
    let connections = json!({"resourceRules": [rule(&["CONNECT"], "", "v1", "pods/*")]});
    policies.extend([
        spec_of("selected", json!({"matchConstraints": namespaces(json!({"matchLabels": {"environment": "production"}})), "validations": that("false")})),
        spec_of("excluding", json!({"matchConstraints": excluding, "validations": that("false")})),
        spec_of("named", json!({"matchConstraints": named, "validations": that("false")})),
        spec_of("exact", json!({"matchConstraints": exact, "validations": that("false")})),
        spec_of("equivalent", json!({"matchConstraints": constraints("equivalent", rule(&["*"], "autoscaling", "v1", "horizontalpodautoscalers")),
            "validations": [{"expression": "object == null || object.apiVersion == 'autoscaling/v1' && object.?spec.targetCPUUtilizationPercentage.orValue(0) <= 50",
                "messageExpression": "object.apiVersion + ' ' + request.kind.version + ' ' + request.requestKind.version + ' ' + request.resource.version + ' ' + string(object.?spec.targetCPUUtilizationPercentage.orValue(0))"}]})),
        spec_of("scales", json!({"matchConstraints": {"resourceRules": [rule(&["UPDATE"], "apps", "v1", "deployments/scale")]},
            "matchConditions": [{"name": "of-cases", "expression": "object.spec.replicas == 77"}],
            "validations": [{"expression": "false", "messageExpression": "object.kind + ' ' + string(oldObject.spec.replicas)"}]})),
        // Of all metrics, also of those that v1 does not show.
        spec_of("hidden", json!({"matchConstraints": hidden, "validations": that(
            "object == null || object.spec.?metrics.orValue([]).all(m, m.?resource.target.averageUtilization.orValue(0) < 90)")})),
        spec_of("mixed", json!({"matchConstraints": mixed, "validations": that(
            "object == null || object.spec.?metrics.orValue([]).all(m, m.?resource.target.averageUtilization.orValue(0) < 90)")})),
        // The API server asks no policy about reviews.
        spec_of("reviews", json!({"matchConstraints": {"resourceRules": [rule(&["*"], "authorization.k8s.io", "v1", "*")]}, "validations": that("false")})),
        spec_of("connections", json!({"matchConstraints": connections,
            "matchConditions": [{"name": "of-cases", "expression": format!("request.userInfo.groups.exists(g, g == '{CONNECTING}')")}],
            "validations": [{"expression": "object.?container.orValue('') != 'secret'", "messageExpression": "object.kind + ' ' + request.subResource"}]})),
    ]);
    policies
}
