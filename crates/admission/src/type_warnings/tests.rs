//! The kinds of a policy, and the warnings about its expressions. The comparison with kube-apiserver is in `tests/types.rs`.

use portcullis_kubernetes::release::Release;
use portcullis_merge::Declarations;
use serde_json::{Value, json};

use crate::configuration::manifest::Manifests;
use crate::{GroupVersionKind, GroupVersionResource, Policies};

fn rule(groups: &[&str], versions: &[&str], resources: &[&str]) -> Value {
    json!({"operations": ["*"], "apiGroups": groups, "apiVersions": versions, "resources": resources})
}

fn policies(kind: &str, rules: &[Value], mut spec: Value) -> Policies {
    spec["matchConstraints"] = json!({"resourceRules": rules});
    let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
        "metadata": {"name": "p.static.k8s.io"}, "spec": spec});
    let mut found = Policies::default();
    if kind == "ValidatingAdmissionPolicy" {
        let mut folder = Manifests::policies(Release::default());
        folder.add("m.yaml", 0, &object);
        found.validating = folder.finish().unwrap().into_iter().map(Into::into).collect();
    } else {
        let mut folder = Manifests::mutating_policies(Release::default());
        folder.add("m.yaml", 0, &object);
        found.mutating = folder.finish().unwrap().into_iter().map(Into::into).collect();
    }
    found
}

/// A kind for each resource: its name in the singular.
fn kind_of(resource: &GroupVersionResource) -> Option<GroupVersionKind> {
    let GroupVersionResource { group, version, resource } = resource.clone();
    Some(GroupVersionKind { group, version, kind: resource.strip_suffix('s')?.to_owned() })
}

#[test]
fn kinds_are_those_that_rules_name() {
    let valid = || json!({"validations": [{"expression": "true"}]});
    let many: Vec<String> = (10..40).map(|number| format!("r{number}s")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (rules, expected) in [
        (
            vec![rule(&["b", "a"], &["v1"], &["xs", "ys/status", "other"]), rule(&["a"], &["v1"], &["xs"])],
            "a/v1/x b/v1/x",
        ),
        (vec![rule(&["*"], &["v1"], &["xs"]), rule(&["a"], &["*"], &["xs"])], ""),
        (vec![rule(&["a"], &["v1"], &["*"]), rule(&[""], &["v1"], &["xs", "*/status"])], "/v1/x"),
        (
            vec![rule(&["a"], &["v1"], &many), rule(&["a"], &["v1"], &["xs"])],
            "a/v1/r10 a/v1/r11 a/v1/r12 a/v1/r13 a/v1/r14 a/v1/r15 a/v1/r16 a/v1/r17 a/v1/r18 a/v1/r19",
        ),
    ] {
        let read = policies("ValidatingAdmissionPolicy", &rules, valid());
        let kinds = read.all().next().unwrap().kinds_to_check(kind_of);
        let shown: Vec<String> =
            kinds.iter().map(|of| format!("{}/{}/{}", of.group, of.version, of.kind)).collect();
        assert_eq!(shown.join(" "), expected);
    }
}

#[test]
fn each_expression_that_does_not_fit_has_a_warning() {
    let document = json!({"components": {"schemas": {"Box": {
        "type": "object",
        "x-kubernetes-group-version-kind": [{"group": "g", "version": "v1", "kind": "Box"}],
        "properties": {"size": {"type": "integer"}, "any": {}},
    }}}});
    let declarations = Declarations::read(document.to_string().as_bytes()).unwrap();
    let kind = |version: &str| GroupVersionKind {
        group: "g".to_owned(),
        version: version.to_owned(),
        kind: "Box".to_owned(),
    };
    let object = declarations.of("g", "v1", "Box").unwrap();
    let kinds = [(kind("v1"), object.clone()), (kind("v2"), object)];
    let fields = |kind: &str, spec: Value| -> Vec<String> {
        let read = policies(kind, &[rule(&["g"], &["v1"], &["boxes"])], spec);
        let warnings = read.all().next().unwrap().type_warnings(&kinds);
        assert!(warnings.iter().all(|warning| warning.errors.len() == 2));
        warnings.into_iter().map(|warning| warning.field).collect()
    };
    let spec = json!({
        "matchConditions": [{"name": "m", "expression": "object.wrong == 1"}],
        "variables": [{"name": "a", "expression": "object.size"}, {"name": "b", "expression": "object.b"}],
        "validations": [
            {"expression": "object.any.x.y == variables.b.c"},
            {"expression": "variables.a == 'x'", "messageExpression": "string(object.size)"},
        ],
        "auditAnnotations": [{"key": "k", "valueExpression": "string(object.c)"}],
    });
    let expected = [
        "spec.variables[1].expression",
        "spec.matchConditions[0].expression",
        "spec.validations[1].expression",
        "spec.auditAnnotations[0].valueExpression",
    ];
    assert_eq!(fields("ValidatingAdmissionPolicy", spec), expected);
    let spec = json!({
        "reinvocationPolicy": "Never",
        "mutations": [
            {"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'add', path: '/a', value: object.size}]"}},
            {"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'add', path: '/a', value: object.c}]"}},
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{size: oldObject.c}"}},
        ],
    });
    let expected =
        ["spec.mutations[1].jsonPatch.expression", "spec.mutations[2].applyConfiguration.expression"];
    assert_eq!(fields("MutatingAdmissionPolicy", spec), expected);

    let spec = json!({"validations": [{"expression": "object.c > 1"}]});
    let read = policies("ValidatingAdmissionPolicy", &[rule(&["g"], &["v1"], &["boxes"])], spec);
    let warnings = read.all().next().unwrap().type_warnings(&kinds);
    let of_kind = |version| {
        format!(
            "g/{version}, Kind=Box: ERROR: <input>:1:7: undefined field 'c'\n | object.c > 1\n | ......^\n"
        )
    };
    assert_eq!(warnings[0].to_string(), format!("{}\n{}", of_kind("v1"), of_kind("v2")));
}
