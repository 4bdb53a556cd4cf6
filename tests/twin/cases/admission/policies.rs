//! Validating admission policies (`policies.rs`), which objects choose by the label `policy`.

use serde_json::{Value, json};

use super::{MAPS, OWN, RUNNING, WIDGETS, by_admin};
use crate::admission::SELECTED_NAMESPACE;
use crate::case::Case;
use crate::policies::{CONNECTING, LABEL};

const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/twin/deployments";
const SCALERS_V1: &str = "/apis/autoscaling/v1/namespaces/twin/horizontalpodautoscalers";
const SCALERS: &str = "/apis/autoscaling/v2/namespaces/twin/horizontalpodautoscalers";

pub(super) fn cases() -> Vec<Case> {
    [created(), written(), selected(), others(), connections()].concat()
}

/// A config map of a policy with this value of `a`.
fn map(policy: &str, a: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "{unique}", "labels": {LABEL: policy}}, "data": {"a": a}})
}

fn create(policy: &str, a: &str, status: u16) -> Case {
    by_admin(&format!("policy {policy}: {a}"), "POST", MAPS)
        .json(&map(policy, a).to_string())
        .answers(status)
        .then("GET", OWN)
        .answers(if status == 201 { 200 } else { 404 })
}

/// Each policy, about new objects.
fn created() -> Vec<Case> {
    let table: &[(&str, &[(&str, u16)])] = &[
        ("plain", &[("good", 201), ("bad", 422)]),
        ("warned", &[("good", 201), ("bad", 201)]),
        ("audited", &[("bad", 201)]),
        ("denied-audited", &[("bad", 422)]),
        ("warned-twice", &[("bad", 201)]),
        ("unbound", &[("bad", 201)]),
        ("reasons", &[("good", 201), ("forbidden", 403), ("invalid", 422), ("large", 413)]),
        (
            "messages",
            &[
                ("good", 201),
                ("expression", 422),
                ("error", 422),
                ("bare-error", 422),
                ("empty", 422),
                ("lines", 422),
                ("long", 422),
            ],
        ),
        ("several", &[("good", 201), ("bad", 201)]),
        ("fails", &[("any", 422)]),
        ("fails-open", &[("good", 201), ("bad", 422)]),
        ("fails-warned", &[("any", 201)]),
        ("costly", &[("any", 201)]),
        ("conditions", &[("good", 201), ("bad", 422)]),
        ("conditions-fail", &[("any", 422)]),
        ("conditions-fail-open", &[("any", 201)]),
        ("variables", &[("good", 201), ("bad", 422), ("number", 422)]),
        ("annotations", &[("good", 201), ("bad", 422)]),
        ("requests", &[("show", 422)]),
        ("namespaces", &[("any", 201)]),
        ("authorizers", &[("any", 422)]),
    ];
    let mut cases: Vec<Case> = table
        .iter()
        .flat_map(|(policy, values)| values.iter().map(|(a, status)| create(policy, a, *status)))
        .collect();
    let mut skipped = map("conditions", "bad");
    skipped["data"]["skip"] = json!("yes");
    cases.push(by_admin("policy conditions: skipped", "POST", MAPS).json(&skipped.to_string()).answers(201));
    let mut costly = map("costly", "x");
    costly["data"] =
        (0..90).map(|number| (format!("k{number}"), json!("x"))).collect::<serde_json::Map<_, _>>().into();
    cases.push(
        by_admin("policy costly: beyond its limit", "POST", MAPS).json(&costly.to_string()).answers(422),
    );
    for (strict, status) in [("no", 201), ("yes", 422), ("other", 201)] {
        let mut object = map("bound-twice", "bad");
        object["metadata"]["labels"]["strict"] = json!(strict);
        let name = format!("policy bound-twice: strict {strict}");
        cases.push(by_admin(&name, "POST", MAPS).json(&object.to_string()).answers(status));
    }
    let impersonated = by_admin(
        "policy requests: an impersonated user",
        "POST",
        &format!("{MAPS}?dryRun=All&fieldManager=m"),
    )
    .header("Impersonate-User", "bob")
    .header("Impersonate-Group", "system:masters");
    cases.push(impersonated.json(&map("requests", "show").to_string()).answers(422));
    cases.push(
        by_admin("policy jumps: a costly message", "POST", MAPS)
            .json(&costly_message().to_string())
            .answers(422),
    );
    cases.push(
        by_admin("policy nameless: a generated name of a namespace", "POST", "/api/v1/namespaces?dryRun=All")
            .json(
                &json!({"apiVersion": "v1", "kind": "Namespace",
                "metadata": {"generateName": "{unique}-", "labels": {LABEL: "nameless"}}})
                .to_string(),
            )
            .answers(201)
            .uncompared_reviews(),
    );
    cases.push(
        by_admin("policy plain: a dry run", "POST", &format!("{MAPS}?dryRun=All"))
            .json(&map("plain", "bad").to_string())
            .answers(422),
    );
    cases.push(
        by_admin("policy plain: in YAML", "POST", MAPS)
            .body("application/yaml", map("plain", "bad").to_string().as_bytes())
            .answers(422),
    );
    cases.push(
        by_admin("policy plain: a change of a mutating webhook", "POST", MAPS)
            .json(&with_asks(map("plain", "good"), "m1=data;").to_string())
            .answers(201)
            .then("GET", OWN)
            .answers(200),
    );
    cases.push(
        by_admin("policy plain: before validating webhooks", "POST", MAPS)
            .json(&with_asks(map("plain", "bad"), "v1=deny;").to_string())
            .answers(422),
    );
    cases.push(
        by_admin("policy warned: warnings of a webhook, too", "POST", MAPS)
            .json(&with_asks(map("warned", "bad"), "m1=warn;v1=warn;").to_string())
            .answers(201),
    );
    cases
}

fn costly_message() -> Value {
    let mut object = map("jumps", &"a".repeat(300_000));
    object["data"]["b"] = json!("b".repeat(300_000));
    object
}

fn with_asks(mut object: Value, asks: &str) -> Value {
    object["metadata"]["annotations"] = json!({"asks": asks});
    object
}

/// Every form of a write of an object that is there.
fn written() -> Vec<Case> {
    let mut cases = Vec::new();
    let made = |name: &str, policy: &str, a: &str| {
        by_admin(name, "POST", MAPS).json(&map(policy, a).to_string()).answers(201)
    };
    for (policy, a, status) in [
        ("plain", "good", 200),
        ("plain", "bad", 422),
        ("updates", "first", 200),
        ("updates", "second", 422),
        ("warned", "bad", 200),
    ] {
        let before = if policy == "updates" { "first" } else { "good" };
        let name = |form: &str| format!("policy {policy}: {form} to {a}");
        let change = json!({"data": {"a": a}}).to_string();
        let read = |case: Case| case.then("GET", OWN).answers(200);
        for (form, content) in [("a merge patch", MERGE), ("a strategic patch", STRATEGIC)] {
            let case = made(&name(form), policy, before).then("PATCH", OWN);
            cases.push(read(case.body(content, change.as_bytes()).answers(status)));
        }
        let patch = json!([{"op": "replace", "path": "/data/a", "value": a}]).to_string();
        let case = made(&name("a JSON patch"), policy, before).then("PATCH", OWN);
        cases.push(read(case.body(JSON_PATCH, patch.as_bytes()).answers(status)));
        let mut replacement = map(policy, a);
        replacement["metadata"]["resourceVersion"] = json!("{version}");
        let case = made(&name("a replacement"), policy, before).then("PUT", OWN);
        cases.push(read(case.json(&replacement.to_string()).answers(status)));
        let apply = format!("{OWN}?fieldManager=twin&force=true");
        let case = made(&name("an apply"), policy, before).then("PATCH", &apply);
        cases.push(read(case.body(APPLY, map(policy, a).to_string().as_bytes()).answers(status)));
        // The label goes away: the old object still has it.
        let unlabelled = json!({"metadata": {"labels": null}, "data": {"a": a}}).to_string();
        let case = made(&name("a patch without the label"), policy, before).then("PATCH", OWN);
        cases.push(read(case.body(MERGE, unlabelled.as_bytes()).answers(status)));
    }
    for (keep, status) in [("yes", 403), ("no", 200)] {
        let mut object = map("deletions", "x");
        object["data"]["keep"] = json!(keep);
        let case = by_admin(&format!("policy deletions: keep {keep}"), "POST", MAPS)
            .json(&object.to_string())
            .answers(201);
        let case = case.then("DELETE", OWN).answers(status);
        cases.push(case.then("GET", OWN).answers(if status == 200 { 404 } else { 200 }));
    }
    cases.push(
        by_admin("policy plain: created by an apply", "PATCH", &format!("{OWN}?fieldManager=twin"))
            .body(APPLY, map("plain", "bad").to_string().as_bytes())
            .answers(422)
            .then("GET", OWN)
            .answers(404),
    );
    cases.push(
        by_admin("policy plain: created by PUT", "PUT", "/apis/coordination.k8s.io/v1/namespaces/twin/leases/{unique}")
            .json(&json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "{unique}", "labels": {LABEL: "fails"}}, "spec": {}}).to_string())
            .answers(422),
    );
    cases
}

/// What rules, selectors and exclusions choose.
fn selected() -> Vec<Case> {
    let in_namespace = |name: &str, namespace: &str, policy: &str, status: u16| {
        by_admin(name, "POST", &format!("/api/v1/namespaces/{namespace}/configmaps"))
            .json(&map(policy, "x").to_string())
            .answers(status)
    };
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "{unique}", "labels": {LABEL: "excluding"}}});
    let scaler = |policy: &str, percent: u32| {
        json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "{unique}", "labels": {LABEL: policy}},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
                "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}}]}})
        .to_string()
    };
    // v1 shows one utilization of CPU, here the one of the annotation.
    let hidden = |policy: &str| {
        let metrics =
            json!([{"type": "Resource", "resource": {"name": "cpu", "targetAverageUtilization": 50}}])
                .to_string();
        json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "{unique}", "labels": {LABEL: policy},
            "annotations": {"autoscaling.alpha.kubernetes.io/metrics": metrics}},
            "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 95,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}})
        .to_string()
    };
    let scaler_of_v2 = format!("{SCALERS}/{{unique}}");
    let named = |name: &str, own: &str, status: u16| {
        let mut object = map("named", "x");
        object["metadata"]["name"] = json!(own);
        object["metadata"]["annotations"] = json!({"case": "{unique}"});
        by_admin(name, "POST", &format!("{MAPS}?dryRun=All")).json(&object.to_string()).answers(status)
    };
    let excluded = |own: &str, status: u16| {
        let mut object = map("excluding", "x");
        object["metadata"]["name"] = json!(own);
        object["metadata"]["annotations"] = json!({"case": "{unique}"});
        let name = format!("policy excluding: the name {own}");
        by_admin(&name, "POST", &format!("{MAPS}?dryRun=All")).json(&object.to_string()).answers(status)
    };
    vec![
        in_namespace("policy selected: in the namespace", SELECTED_NAMESPACE, "selected", 422),
        in_namespace("policy selected: in another namespace", "twin", "selected", 201),
        in_namespace("policy namespaces: in production", SELECTED_NAMESPACE, "namespaces", 422),
        in_namespace("policy namespaces: in no namespace that is there", "twin-absent", "namespaces", 404)
            .unreviewed(),
        by_admin("policy excluding: a secret", "POST", "/api/v1/namespaces/twin/secrets")
            .json(&secret.to_string())
            .answers(201),
        in_namespace("policy excluding: a map", "twin", "excluding", 422),
        excluded("twin-excluded", 201),
        excluded("twin-included", 422),
        named("policy named: its name", "twin-named", 422),
        named("policy named: another name", "twin-other", 201),
        by_admin("policy hidden: metrics that v1 does not show", "POST", "/apis/autoscaling/v1/namespaces/twin/horizontalpodautoscalers")
            .json(&json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "{side}",
                "annotations": {"case": "{unique}", "autoscaling.alpha.kubernetes.io/metrics":
                    json!([{"type": "Resource", "resource": {"name": "cpu", "targetAverageUtilization": 50}}]).to_string()}},
                "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 95,
                    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}}).to_string())
            .answers(422)
            .then("GET", "/apis/autoscaling/v2/namespaces/twin/horizontalpodautoscalers/{side}")
            .answers(404)
            .declared("D-admission-scaler-hidden", 200),
        by_admin("policy mixed: hidden metrics of a new scaler", "POST", SCALERS_V1).json(&hidden("mixed")).answers(422).then("GET", &scaler_of_v2).answers(404).declared("D-admission-scaler-hidden", 200),
        by_admin("policy mixed: hidden metrics of a changed scaler", "POST", SCALERS).json(&scaler("mixed", 50)).answers(201)
            .then("PATCH", &format!("{SCALERS_V1}/{{unique}}"))
            .body(MERGE, hidden("mixed").as_bytes())
            .answers(422)
            .then("GET", &scaler_of_v2)
            .answers(200)
            .declared("D-admission-scaler-hidden", 200),
        by_admin("policy exact: another version", "POST", SCALERS).json(&scaler("exact", 60)).answers(201),
        by_admin("policy equivalent: allowed in another version", "POST", SCALERS)
            .json(&scaler("equivalent", 50))
            .answers(201),
        by_admin("policy equivalent: denied in another version", "POST", SCALERS)
            .json(&scaler("equivalent", 60))
            .answers(422),
    ]
}

/// Other kinds, and subresources.
fn others() -> Vec<Case> {
    let deployment = |policy: &str, replicas: Value| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "{unique}", "labels": {LABEL: policy}},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}}})
        .to_string()
    };
    let own = format!("{DEPLOYMENTS}/{{unique}}");
    let widget = |policy: &str| {
        json!({"apiVersion": "twin.test/v1", "kind": "Widget", "metadata": {"name": "{unique}", "labels": {LABEL: policy}},
            "spec": {"replicas": 1}})
        .to_string()
    };
    let scale = json!({"spec": {"replicas": 77}}).to_string();
    vec![
        by_admin("policy prepared: defaults are there", "POST", DEPLOYMENTS).json(&deployment("prepared", json!(3))).answers(201),
        by_admin("policy prepared: too many replicas", "POST", DEPLOYMENTS).json(&deployment("prepared", json!(6))).answers(422),
        by_admin("policy replicas: a default", "POST", DEPLOYMENTS).json(&deployment("replicas", Value::Null)).answers(422),
        by_admin("policy replicas: two", "POST", DEPLOYMENTS).json(&deployment("replicas", json!(2))).answers(201),
        by_admin("policy scales: of a deployment", "POST", DEPLOYMENTS)
            .json(&deployment("none", json!(1)))
            .answers(201)
            .then("PATCH", &format!("{own}/scale"))
            .body(MERGE, scale.as_bytes())
            .answers(422)
            .then("GET", &own)
            .answers(200),
        by_admin("policy fails: a custom resource", "POST", WIDGETS).json(&widget("fails")).answers(422),
        by_admin("policy plain: a custom resource", "POST", WIDGETS).json(&widget("plain")).answers(201),
        by_admin("policy fails: a namespace", "POST", "/api/v1/namespaces")
            .json(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "{unique}", "labels": {LABEL: "fails"}}}).to_string())
            .answers(422),
        by_admin("policy reviews: no policy sees them", "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews")
            .json(&json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                "spec": {"user": "{unique}", "resourceAttributes": {"verb": "get", "resource": "pods"}}}).to_string())
            .answers(201)
            .unreviewed(),
    ]
}

fn connections() -> Vec<Case> {
    let attach = |name: &str, container: &str, status: u16| {
        by_admin(name, "POST", &format!("{RUNNING}/exec?command=x&stdout=true&container={container}"))
            .header("Impersonate-User", "{unique}")
            .header("Impersonate-Group", "system:masters")
            .header("Impersonate-Group", CONNECTING)
            .answers(status)
    };
    vec![attach("policy connections: denied", "secret", 422)]
}
