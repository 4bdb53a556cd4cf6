//! The mutating admission policies of [`Setting::Admission`](crate::authenticators::Setting): the same static manifests for the
//! reference and the gateway. Each policy is about the objects with its own label, `mutation`, so that it concerns no other case.
//!
//! Facts of Kubernetes' own tests are among them: `test/integration/apiserver/cel/mutatingadmissionpolicy_test.go`,
//! `pkg/admission/plugin/policy/mutating/patch/*_test.go`.

use serde_json::{Value, json};

/// The label by which objects choose their policy.
pub(crate) const LABEL: &str = "mutation";
/// The group of the user to whose connections the policy `commands` applies: options have no labels.
pub(crate) const CONNECTING: &str = "mutation-connections";

/// The schema allows it, and the type does not.
const QUANTITIES: &str =
    "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{
    containers: [Object.spec.template.spec.containers{name: 'c',
        resources: Object.spec.template.spec.containers.resources{limits: {'cpu': 'much'}}}]}}}}";

/// The policies with one mutation each, by name.
const APPLIED: &[(&str, &str)] = &[
    ("labels", "Object{metadata: Object.metadata{labels: {'added': string(object.metadata.name), 'mutation': 'gone'}}}"),
    ("nothing", "Object{}"),
    ("data", "Object{data: {'b': string(object.?data[?'a'].orValue('none')), 'c': 'new'}}"),
    (
        "sidecar",
        "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{
            containers: [Object.spec.template.spec.containers{name: 'side', image: 'side:1',
                env: [Object.spec.template.spec.containers.env{name: 'E', value: 'x'}]},
                Object.spec.template.spec.containers{name: 'c', imagePullPolicy: 'Never'}]}}}}",
    ),
    (
        "pods",
        "Object{spec: Object.spec{
            initContainers: [Object.spec.initContainers{name: 'mesh', image: 'mesh:1', restartPolicy: 'Always'}],
            terminationGracePeriodSeconds: 7}}",
    ),
    ("ports", "Object{spec: Object.spec{ports: [Object.spec.ports{port: 80, name: 'web'}, Object.spec.ports{port: 81, protocol: 'UDP', name: 'more'}]}}"),
    ("replicas", "Object{spec: Object.spec{?replicas: object.spec.replicas < 3 ? optional.of(3) : optional.none()}}"),
    ("atomic-map", "Object{spec: Object.spec{selector: {'a': 'b'}}}"),
    ("atomic-list", "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{containers: [Object.spec.template.spec.containers{name: 'c', args: ['x']}]}}}}"),
    ("names", "Object{metadata: Object.spec{labels: {'added': 'yes'}}}"),
    ("unknown", "Object{spec: Object.spec{absent: 1}}"),
    ("scalars", "Object{spec: Object.spec{replicas: 'three'}}"),
    ("listed", "Object{metadata: Object.metadata{finalizers: ['twin.test/mutated']}}"),
    ("widgets", "Object{spec: Object.spec{color: 'red', replicas: 4}}"),
    ("renamed", "Object{metadata: Object.metadata{name: object.metadata.name + '-other'}}"),
    ("quantities", QUANTITIES),
    ("fixed-name", "Object{metadata: Object.metadata{name: object.data.name}}"),
    ("kinds", "Object{kind: 'Secret', apiVersion: 'v2'}"),
    ("unkeyed", "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{containers: [Object.spec.template.spec.containers{image: 'x'}]}}}}"),
    ("twice-keyed", "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{containers: [Object.spec.template.spec.containers{name: 'c', image: 'x'}, Object.spec.template.spec.containers{name: 'c', image: 'y'}]}}}}"),
];

/// The same, of JSON patches.
const PATCHED: &[(&str, &str)] = &[
    ("patch-add", "[JSONPatch{op: 'add', path: '/metadata/labels/added', value: object.metadata.name}]"),
    ("patch-none", "object.data.a == 'never' ? [JSONPatch{op: 'remove', path: '/data'}] : []"),
    (
        "patch-escaped",
        "[JSONPatch{op: 'add', path: '/metadata/annotations', value: {'a': 'b'}},
            JSONPatch{op: 'add', path: '/metadata/annotations/' + jsonpatch.escapeKey('example.com/a_b'), value: 'x'}, JSONPatch{op: 'add', path: '/data/' + jsonpatch.escapeKey('a'), value: 'x'}]",
    ),
    (
        "patch-tested",
        "[JSONPatch{op: 'test', path: '/data/a', value: 'good'}, JSONPatch{op: 'replace', path: '/data/a', value: 'better'}]",
    ),
    ("patch-test-absent", "[JSONPatch{op: 'test', path: '/data/absent', value: 'good'}]"),
    (
        "patch-moved",
        "[JSONPatch{op: 'copy', from: '/data/a', path: '/data/copied'}, JSONPatch{op: 'move', from: '/data/a', path: '/data/moved'}, JSONPatch{op: 'remove', path: '/data/copied'}]",
    ),
    ("patch-missing", "[JSONPatch{op: 'remove', path: '/data/absent'}]"),
    ("patch-unknown-op", "[JSONPatch{op: 'put', path: '/data/absent', value: 'x'}]"),
    ("patch-root", "[JSONPatch{op: 'add', path: 'data', value: 'x'}]"),
    ("patch-unknown", "[JSONPatch{op: 'add', path: '/extra', value: {'a': 'b'}}]"),
    ("patch-type", "[JSONPatch{op: 'add', path: '/data', value: 5}]"),
    ("patch-invalid", "[JSONPatch{op: 'add', path: '/data', value: {'bad key!': 'x'}}]"),
    ("patch-null", "[JSONPatch{op: 'add', path: '/metadata/annotations', value: null}]"),
    ("patch-data", "[JSONPatch{op: 'add', path: '/data', value: {'a': string(1.5), 'b': string(object.data.size())}}]"),
    (
        "patch-values",
        "[JSONPatch{op: 'add', path: '/spec', value: Object.spec{color: 'blue', parts: ['a', 'b'], replicas: 3}}]",
    ),
    ("patch-names", "[JSONPatch{op: 'add', path: '/spec', value: Object.spec{color: Object.other{a: 'b'}}}]"),
    (
        "patch-container",
        "[JSONPatch{op: 'add', path: '/spec/template/spec/containers/-',
            value: Object.spec.template.spec.containers{name: 'side', image: 'side:1'}}]",
    ),
    ("patch-strict", "[JSONPatch{op: 'add', path: '/spec/template/spec/containers/0/absent', value: 1}]"),
    ("fails", "[JSONPatch{op: 'add', path: '/data/b', value: object.data.absent}]"),
    ("costly", "object.data.all(a, object.data.all(b, object.data.all(c, (a + b + c).size() > 0))) ? [JSONPatch{op: 'add', path: '/data/b', value: 'x'}] : []"),
    ("requests", "[JSONPatch{op: 'add', path: '/data', value: {'request': string(request.userInfo.username) + ' ' + request.operation + ' ' + request.kind.kind + ' ' + request.resource.resource + ' ' + string(request.dryRun)}}]"),
    ("namespaces", "[JSONPatch{op: 'add', path: '/data/namespace', value: namespaceObject.metadata.name}]"),
    (
        "authorizers",
        "[JSONPatch{op: 'add', path: '/data/may', value: string(authorizer.group('').resource('secrets').namespace('twin').check('get').allowed()) + string(authorizer.requestResource.check('use').allowed())}]",
    ),
];

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
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": format!("{name}.static.k8s.io")}, "spec": spec})
}

fn binding(policy: &str, end: &str, mut spec: Value) -> Value {
    spec["policyName"] = json!(format!("{policy}.static.k8s.io"));
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": format!("{policy}{end}.static.k8s.io")}, "spec": spec})
}

fn rule(operations: &[&str], group: &str, version: &str, resource: &str) -> Value {
    json!({"operations": operations, "apiGroups": [group], "apiVersions": [version], "resources": [resource]})
}

fn everything() -> Value {
    rule(&["CREATE", "UPDATE"], "*", "*", "*/*")
}

fn applied(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

fn patched(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

/// Appends to a value, so that each run shows.
fn appending(what: &str) -> Value {
    applied(&format!("Object{{data: {{'runs': object.?data[?'runs'].orValue('') + '{what}'}}}}"))
}

/// The policies.
fn policies() -> Vec<Policy> {
    let constraints = |name: &str, rules: Value| json!({"resourceRules": [rules], "objectSelector": {"matchLabels": {LABEL: name}}});
    // One about all objects with its label, or with the label of another one.
    let about = |name: &'static str, label: &str, mutations: Vec<Value>, more: Value| -> Policy {
        let mut spec = json!({"matchConstraints": constraints(label, everything()), "reinvocationPolicy": "Never",
            "mutations": mutations});
        for (field, value) in more.as_object().expect("an object") {
            spec[field] = value.clone();
        }
        (name, spec, vec![json!({})])
    };
    let of = |name: &'static str, mutations: Vec<Value>, more: Value| about(name, name, mutations, more);
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    let mut policies: Vec<Policy> = Vec::new();
    policies.extend(APPLIED.iter().map(|(name, text)| of(name, vec![applied(text)], json!({}))));
    policies.extend(PATCHED.iter().map(|(name, text)| of(name, vec![patched(text)], json!({}))));
    policies.extend([
        of("several", vec![
            applied("Object{data: {'b': 'first'}}"),
            patched("[JSONPatch{op: 'add', path: '/data/c', value: object.data.b + ' seen'}]"),
            applied("Object{data: {'d': variables.old}}"),
        ], json!({"variables": [{"name": "old", "expression": "object.data.c"}]})),
        of("several-fail", vec![
            patched("[JSONPatch{op: 'add', path: '/data/b', value: object.data.absent}]"),
            applied("Object{data: {'c': 'after'}}"),
            patched("[JSONPatch{op: 'remove', path: '/data/absent'}]"),
        ], json!({})),
        of("several-open", vec![
            patched("[JSONPatch{op: 'add', path: '/data/b', value: object.data.absent}]"),
            applied("Object{data: {'c': 'after'}}"),
            patched("[JSONPatch{op: 'remove', path: '/data/absent'}]"),
        ], json!({"failurePolicy": "Ignore"})),
        of("quantities-open", vec![applied(QUANTITIES)], json!({"failurePolicy": "Ignore"})),
        of("patch-type-open", vec![patched("[JSONPatch{op: 'add', path: '/data', value: 5}]")], json!({"failurePolicy": "Ignore"})),
        of("patch-version", vec![patched(
            "[JSONPatch{op: 'remove', path: '/apiVersion'}, JSONPatch{op: 'replace', path: '/kind', value: ''}]")], json!({})),
        of("names-open", vec![applied("Object{metadata: Object.spec{labels: {'added': 'yes'}}}")], json!({"failurePolicy": "Ignore"})),
        of("conditions", vec![applied("Object{data: {'b': variables.a}}")], json!({"matchConditions": [
            {"name": "not-excluded", "expression": "object.?data[?'skip'].orValue('') != 'yes'"},
            {"name": "not-bots", "expression": "!request.userInfo.username.startsWith('bot')"}],
            "variables": [{"name": "a", "expression": "object.?data[?'a'].orValue('none')"}]})),
        of("conditions-fail", vec![applied("Object{data: {'b': 'x'}}")],
            json!({"matchConditions": [{"name": "c", "expression": "object.data.absent == 'x'"}]})),
        of("conditions-open", vec![applied("Object{data: {'b': 'x'}}")],
            json!({"failurePolicy": "Ignore", "matchConditions": [{"name": "c", "expression": "object.data.absent == 'x'"}]})),
        // One that runs again because of itself.
        of("again", vec![appending("a")], again.clone()),
        of("once", vec![appending("a")], json!({})),
        // Two, of which the second one makes the first one run again.
        about("pair-a", "pair", vec![appending("a")], again.clone()),
        about("pair-b", "pair", vec![appending("b")], json!({})),
        about("both-a", "both", vec![appending("a")], again.clone()),
        about("both-b", "both", vec![appending("b")], again.clone()),
        // Before webhooks, of which `m2` may run again.
        of("before-webhooks", vec![applied("Object{metadata: Object.metadata{labels: {'policy-ran': 'yes'}}}")], again.clone()),
        // After a webhook has changed the object.
        of("after-webhooks", vec![applied(
            "has(object.metadata.labels.added) ? Object{metadata: Object.metadata{labels: {'seen': 'yes'}}} : Object{}")], again.clone()),
        // For the validating policy `plain`, and for the one of kube-apiserver's own validation.
        of("spoils", vec![applied("Object{data: {'a': 'bad'}}")], json!({})),
        of("updates-only", vec![applied("Object{data: {'updated': oldObject.data.a}}")],
            json!({"matchConstraints": constraints("updates-only", rule(&["UPDATE"], "*", "*", "*"))})),
        of("scales", vec![applied("Object{spec: Object.spec{replicas: 5}}")],
            json!({"matchConstraints": {"resourceRules": [rule(&["UPDATE"], "apps", "v1", "deployments/scale")]},
                "matchConditions": [{"name": "c", "expression": "object.spec.replicas == 78"}]})),
        of("scales-patched", vec![patched("[JSONPatch{op: 'replace', path: '/spec/replicas', value: 5}]")],
            json!({"matchConstraints": {"resourceRules": [rule(&["UPDATE"], "apps", "v1", "deployments/scale")]},
                "matchConditions": [{"name": "c", "expression": "object.spec.replicas == 79"}]})),
        of("scales-strict", vec![patched("[JSONPatch{op: 'add', path: '/spec/absent', value: 5}]")],
            json!({"matchConstraints": {"resourceRules": [rule(&["UPDATE"], "apps", "v1", "deployments/scale")]},
                "matchConditions": [{"name": "c", "expression": "object.spec.replicas == 76"}]})),
        of("evictions", vec![patched("[JSONPatch{op: 'add', path: '/extra', value: 'x'}]")],
            json!({"matchConstraints": constraints("evictions", rule(&["CREATE"], "", "v1", "pods/eviction"))})),
        of("statuses", vec![patched("[JSONPatch{op: 'add', path: '/status/phase', value: 'Mutated'}]")],
            json!({"matchConstraints": constraints("statuses", rule(&["UPDATE"], "twin.test", "*", "widgets/status"))})),
        of("commands", vec![patched("[JSONPatch{op: 'replace', path: '/container', value: 'absent'}]")],
            json!({"matchConstraints": {"resourceRules": [rule(&["CONNECT"], "", "v1", "pods/exec")]},
                "matchConditions": [{"name": "c", "expression": format!("'{CONNECTING}' in request.userInfo.groups")}]})),
        of("commands-strict", vec![patched("[JSONPatch{op: 'add', path: '/extra', value: 'x'}]")],
            json!({"matchConstraints": {"resourceRules": [rule(&["CONNECT"], "", "v1", "pods/exec")]},
                "matchConditions": [{"name": "c", "expression": format!("'{CONNECTING}-strict' in request.userInfo.groups")}]})),
        of("commands-applied", vec![applied("Object{container: 'absent'}")],
            json!({"matchConstraints": {"resourceRules": [rule(&["CONNECT"], "", "v1", "pods/exec")]},
                "matchConditions": [{"name": "c", "expression": format!("'{CONNECTING}-applied' in request.userInfo.groups")}]})),
        of("selected", vec![applied("Object{data: {'b': 'x'}}")],
            json!({"matchConstraints": {"resourceRules": [everything()],
                "objectSelector": {"matchLabels": {LABEL: "selected"}},
                "namespaceSelector": {"matchLabels": {"selected": "yes"}}}})),
        of("excluding", vec![applied("Object{data: {'b': 'x'}}")],
            json!({"matchConstraints": {"resourceRules": [everything()],
                "objectSelector": {"matchLabels": {LABEL: "excluding"}},
                "excludeResourceRules": [rule(&["*"], "", "v1", "secrets")]}})),
        of("other-version", vec![applied("Object{spec: Object.spec{maxReplicas: 9}}")],
            json!({"matchConstraints": constraints("other-version", rule(&["CREATE", "UPDATE"], "autoscaling", "v2", "*"))})),
    ]);
    for (name, version, field) in
        [("versions-a", "v2", "maxReplicas: 9"), ("versions-b", "v1", "minReplicas: 2")]
    {
        let rules = rule(&["CREATE"], "autoscaling", version, "*");
        let expression = format!("Object{{spec: Object.spec{{{field}}}}}");
        policies.push(about(
            name,
            "versions",
            vec![applied(&expression)],
            json!({"matchConstraints": constraints("versions", rules)}),
        ));
    }
    policies.push((
        "bound-twice",
        json!({"matchConstraints": constraints("bound-twice", everything()), "reinvocationPolicy": "Never", "mutations": [appending("x")]}),
        vec![json!({}), json!({"matchResources": {"objectSelector": {"matchLabels": {"second": "yes"}}}})],
    ));
    policies.push((
        "unbound",
        json!({"matchConstraints": constraints("unbound", everything()), "reinvocationPolicy": "Never", "mutations": [appending("x")]}),
        vec![],
    ));
    policies
}
