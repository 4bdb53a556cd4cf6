//! Mutating admission policies (`mutations.rs`), which objects choose by the label `mutation`.

use serde_json::{Value, json};

use super::{MAPS, OWN, RUNNING, WIDGETS, by_admin};
use crate::admission::SELECTED_NAMESPACE;
use crate::case::Case;
use crate::mutations::{CONNECTING, LABEL};
use crate::policies;

const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/twin/deployments";
const PODS: &str = "/api/v1/namespaces/twin/pods";
const SERVICES: &str = "/api/v1/namespaces/twin/services";

pub(super) fn cases() -> Vec<Case> {
    [maps(), written(), kinds(), together(), selected(), connections()].concat()
}

/// A config map of a policy.
fn map(policy: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "{unique}", "labels": {LABEL: policy}}, "data": {"a": "good"}})
}

fn create(name: &str, object: &Value, status: u16) -> Case {
    let stored = if status == 201 { 200 } else { 404 };
    let case = by_admin(name, "POST", MAPS).json(&object.to_string()).answers(status);
    refused_by_policy(case.then("GET", OWN).answers(stored), status)
}

/// A policy that refuses a request does so before webhooks are asked.
fn refused_by_policy(case: Case, status: u16) -> Case {
    if matches!(status, 403 | 500) { case.unreviewed() } else { case }
}

/// Each policy about maps.
fn maps() -> Vec<Case> {
    let table = [
        ("labels", 201),
        ("nothing", 201),
        ("data", 201),
        ("names", 403),
        ("names-open", 201),
        ("listed", 201),
        ("kinds", 201),
        ("patch-add", 201),
        ("patch-none", 201),
        ("patch-escaped", 201),
        ("patch-tested", 201),
        ("patch-test-absent", 201),
        ("patch-moved", 201),
        ("patch-missing", 403),
        ("patch-unknown-op", 403),
        ("patch-root", 403),
        ("patch-unknown", 500),
        ("patch-type", 500),
        ("patch-invalid", 422),
        ("patch-type-open", 500),
        ("patch-version", 201),
        ("patch-null", 201),
        ("patch-data", 201),
        ("fails", 403),
        ("costly", 201),
        ("requests", 201),
        ("namespaces", 201),
        ("authorizers", 201),
        ("several", 201),
        ("several-fail", 403),
        ("several-open", 201),
        ("conditions", 201),
        ("conditions-fail", 403),
        ("conditions-open", 201),
        ("again", 201),
        ("once", 201),
        ("pair", 201),
        ("both", 201),
        ("bound-twice", 201),
        ("unbound", 201),
        ("unknown", 403),
    ];
    let mut cases: Vec<Case> = table
        .iter()
        .map(|(policy, status)| create(&format!("mutation {policy}: a new map"), &map(policy), *status))
        .collect();
    let mut tested = map("patch-tested");
    tested["data"]["a"] = json!("other");
    cases.push(create("mutation patch-tested: another value", &tested, 201));
    let mut skipped = map("conditions");
    skipped["data"]["skip"] = json!("yes");
    cases.push(create("mutation conditions: skipped", &skipped, 201));
    let mut second = map("bound-twice");
    second["metadata"]["labels"]["second"] = json!("yes");
    cases.push(create("mutation bound-twice: both", &second, 201));
    let mut costly = map("costly");
    costly["data"] =
        (0..90).map(|number| (format!("k{number}"), json!("x"))).collect::<serde_json::Map<_, _>>().into();
    cases.push(create("mutation costly: beyond its limit", &costly, 403));
    cases.push(
        by_admin("mutation data: a dry run", "POST", &format!("{MAPS}?dryRun=All"))
            .json(&map("data").to_string())
            .answers(201),
    );
    cases.push(
        by_admin("mutation renamed: a new map", "POST", MAPS)
            .json(&map("renamed").to_string())
            .answers(201)
            .then("GET", &format!("{OWN}-other"))
            .answers(200),
    );
    let mut generated = map("fixed-name");
    generated["metadata"]["name"] = Value::Null;
    generated["metadata"]["generateName"] = json!("{unique}-");
    generated["data"]["name"] = json!("{unique}");
    for (what, taken) in [("free", false), ("taken", true)] {
        let name = format!("mutation fixed-name: instead of a generated one, {what}");
        let case = if taken {
            by_admin(&name, "POST", MAPS).json(&map("none").to_string()).answers(201).then("POST", MAPS)
        } else {
            by_admin(&name, "POST", MAPS)
        };
        let status = if taken { 409 } else { 201 };
        // The gateway's dry run finds the conflict before the validating webhooks are asked.
        let case = case.json(&generated.to_string()).answers(status).then("GET", OWN).answers(200);
        cases.push(if taken { case.uncompared_reviews() } else { case });
    }
    let impersonated = by_admin("mutation requests: an impersonated user", "POST", MAPS)
        .header("Impersonate-User", "bob")
        .header("Impersonate-Group", "system:masters");
    cases.push(impersonated.json(&map("requests").to_string()).answers(201));
    cases.push(
        by_admin("mutation data: in YAML", "POST", MAPS)
            .body("application/yaml", map("data").to_string().as_bytes())
            .answers(201),
    );
    cases
}

/// Every form of a write of a map that is there.
fn written() -> Vec<Case> {
    let mut cases = Vec::new();
    for (policy, status) in [("data", 200), ("patch-add", 200), ("updates-only", 200), ("again", 200)] {
        let made = |form: &str| {
            by_admin(&format!("mutation {policy}: {form}"), "POST", MAPS)
                .json(&map(policy).to_string())
                .answers(201)
        };
        let read = |case: Case| case.then("GET", OWN).answers(200);
        let change = json!({"data": {"a": "changed"}}).to_string();
        for (form, content) in [("a merge patch", MERGE), ("a strategic patch", STRATEGIC)] {
            let case = made(form).then("PATCH", OWN);
            cases.push(read(case.body(content, change.as_bytes()).answers(status)));
        }
        let patch = json!([{"op": "replace", "path": "/data/a", "value": "changed"}]).to_string();
        let case = made("a JSON patch").then("PATCH", OWN);
        cases.push(read(case.body(JSON_PATCH, patch.as_bytes()).answers(status)));
        let mut replacement = map(policy);
        replacement["data"] = json!({"a": "changed"});
        replacement["metadata"]["resourceVersion"] = json!("{version}");
        let case = made("a replacement").then("PUT", OWN);
        cases.push(read(case.json(&replacement.to_string()).answers(status)));
        let mut applied = map(policy);
        applied["data"] = json!({"a": "changed"});
        let case = made("an apply").then("PATCH", &format!("{OWN}?fieldManager=twin&force=true"));
        cases.push(read(case.body(APPLY, applied.to_string().as_bytes()).answers(status)));
        let case = made("a deletion").then("DELETE", OWN).answers(200);
        cases.push(case.then("GET", OWN).answers(404));
    }
    cases.push(
        by_admin("mutation data: created by an apply", "PATCH", &format!("{OWN}?fieldManager=twin"))
            .body(APPLY, map("data").to_string().as_bytes())
            .answers(201)
            .then("GET", OWN)
            .answers(200),
    );
    cases
}

fn deployment(policy: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "{unique}", "labels": {LABEL: policy}},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}}})
}

/// Other kinds, and subresources.
fn kinds() -> Vec<Case> {
    let of_kind = |what: &str, collection: &str, object: &Value, status: u16| {
        let policy = object["metadata"]["labels"][LABEL].as_str().expect("a label");
        let case = by_admin(&format!("mutation {policy}: {what}"), "POST", collection)
            .json(&object.to_string())
            .answers(status)
            .then("GET", &format!("{collection}/{{unique}}"))
            .answers(if status == 201 { 200 } else { 404 });
        refused_by_policy(case, status)
    };
    let pod = |policy: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "{unique}", "labels": {LABEL: policy}},
            "spec": {"nodeName": "absent", "containers": [{"name": "c", "image": "x"}]}})
    };
    let service = |policy: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "{unique}", "labels": {LABEL: policy}},
            "spec": {"clusterIP": "None", "selector": {"x": "y"}, "ports": [{"port": 80, "name": "first"}]}})
    };
    let widget = |policy: &str| {
        json!({"apiVersion": "twin.test/v1", "kind": "Widget", "metadata": {"name": "{unique}", "labels": {LABEL: policy}},
            "spec": {"replicas": 1}})
    };
    let mut cases = Vec::new();
    for (policy, status) in [
        ("labels", 201),
        ("sidecar", 201),
        ("replicas", 201),
        ("atomic-list", 403),
        ("unknown", 403),
        ("scalars", 403),
        ("unkeyed", 422),
        ("twice-keyed", 403),
        ("patch-container", 201),
        ("patch-strict", 500),
    ] {
        cases.push(of_kind("a deployment", DEPLOYMENTS, &deployment(policy), status));
    }
    for (policy, status) in [("quantities", 403), ("quantities-open", 201)] {
        let case = of_kind("a deployment", DEPLOYMENTS, &deployment(policy), status);
        cases.push(case.declared("D-admission-mutated-types", 404));
    }
    for (policy, status) in [("pods", 201), ("labels", 201)] {
        cases.push(of_kind("a pod", PODS, &pod(policy), status).uncompared_reviews());
    }
    for (policy, status) in [("ports", 201), ("atomic-map", 403)] {
        let case = of_kind("a service", SERVICES, &service(policy), status);
        cases.push(if status == 201 { case.uncompared_reviews() } else { case });
    }
    for (policy, status) in [
        ("widgets", 201),
        ("labels", 201),
        ("unknown", 403),
        ("patch-values", 201),
        ("patch-names", 403),
        ("patch-unknown", 201),
    ] {
        cases.push(of_kind("a custom resource", WIDGETS, &widget(policy), status));
    }
    let own = format!("{DEPLOYMENTS}/{{unique}}");
    // No API server publishes the schema of a scale in its own group.
    for (policy, replicas, status) in
        [("scales", 78, 403), ("scales-patched", 79, 200), ("scales-strict", 76, 500)]
    {
        cases.push(
            by_admin(&format!("mutation {policy}: of a deployment"), "POST", DEPLOYMENTS)
                .json(&deployment("none").to_string())
                .answers(201)
                .then("PATCH", &format!("{own}/scale"))
                .body(MERGE, json!({"spec": {"replicas": replicas}}).to_string().as_bytes())
                .answers(status)
                .then("GET", &own)
                .answers(200)
                .uncompared_reviews(),
        );
    }
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": "{unique}", "labels": {LABEL: "evictions"}}});
    cases.push(
        by_admin("mutation evictions: another field", "POST", PODS)
            .json(&pod("none").to_string())
            .answers(201)
            .then("POST", &format!("{PODS}/{{unique}}/eviction"))
            .json(&eviction.to_string())
            .answers(500)
            .uncompared_reviews(),
    );
    cases.push(
        by_admin("mutation statuses: of a custom resource", "POST", WIDGETS)
            .json(&widget("statuses").to_string())
            .answers(201)
            .then("PATCH", &format!("{WIDGETS}/{{unique}}/status"))
            .body(MERGE, json!({"status": {"phase": "Client"}}).to_string().as_bytes())
            .answers(200)
            .then("GET", &format!("{WIDGETS}/{{unique}}"))
            .answers(200),
    );
    cases
}

/// Policies with webhooks, and with validating policies.
fn together() -> Vec<Case> {
    let with_asks = |policy: &str, asks: &str| {
        let mut object = map(policy);
        object["metadata"]["annotations"] = json!({"asks": asks});
        object
    };
    let mut spoiled = map("spoils");
    spoiled["metadata"]["labels"][policies::LABEL] = json!("plain");
    vec![
        create("mutation before-webhooks: m2 does nothing", &with_asks("before-webhooks", "m2=allow;"), 201),
        create(
            "mutation before-webhooks: m1 and m2 change it",
            &with_asks("before-webhooks", "m1=label;m2=third;"),
            201,
        ),
        create("mutation after-webhooks: m1 changes it", &with_asks("after-webhooks", "m1=label;"), 201),
        create(
            "mutation after-webhooks: m1 and m2 change it",
            &with_asks("after-webhooks", "m1=label;m2=third;"),
            201,
        ),
        create("mutation again: m1 changes it", &with_asks("again", "m1=label;"), 201),
        create("mutation both: m1 changes it", &with_asks("both", "m1=label;"), 201),
        create("mutation once: m1 changes it", &with_asks("once", "m1=label;"), 201),
        by_admin("mutation data: v1 denies it", "POST", MAPS)
            .json(&with_asks("data", "v1=deny;").to_string())
            .answers(403),
        create("mutation fails: m1 is not asked", &with_asks("fails", "m1=deny;"), 403),
        create("mutation spoils: a validating policy denies it", &spoiled, 422),
    ]
}

/// What rules and selectors choose.
fn selected() -> Vec<Case> {
    let in_namespace = |name: &str, namespace: &str, policy: &str, status: u16| {
        by_admin(name, "POST", &format!("/api/v1/namespaces/{namespace}/configmaps"))
            .json(&map(policy).to_string())
            .answers(status)
    };
    let scaler = |policy: &str, version: &str, status: u16| {
        let scalers =
            |version: &str| format!("/apis/autoscaling/{version}/namespaces/twin/horizontalpodautoscalers");
        let object = json!({"apiVersion": format!("autoscaling/{version}"), "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "{unique}", "labels": {LABEL: policy}},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}});
        let case = by_admin(&format!("mutation {policy}: a scaler of {version}"), "POST", &scalers(version))
            .json(&object.to_string())
            .answers(status)
            .then("GET", &format!("{}/{{unique}}", scalers("v2")))
            .answers(if status == 201 { 200 } else { 404 });
        refused_by_policy(case, status)
    };
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "{unique}", "labels": {LABEL: "excluding"}}});
    vec![
        scaler("other-version", "v1", 403).declared("D-admission-mutated-versions", 200),
        scaler("other-version", "v2", 201),
        // The first policy sees the scaler in v2, the second one in v1.
        scaler("versions", "v2", 403).declared("D-admission-mutated-versions", 200),
        in_namespace("mutation selected: in the namespace", SELECTED_NAMESPACE, "selected", 201),
        in_namespace("mutation selected: in another namespace", "twin", "selected", 201),
        by_admin("mutation excluding: a secret", "POST", "/api/v1/namespaces/twin/secrets")
            .json(&secret.to_string())
            .answers(201),
        in_namespace("mutation excluding: a map", "twin", "excluding", 201),
    ]
}

fn connections() -> Vec<Case> {
    let attach = |name: &str, group: &str, status: u16| {
        by_admin(name, "POST", &format!("{RUNNING}/exec?command=x&stdout=true&container=c"))
            .header("Impersonate-User", "{unique}")
            .header("Impersonate-Group", "system:masters")
            .header("Impersonate-Group", group)
            .answers(status)
    };
    vec![
        attach("mutation commands: another container", CONNECTING, 400),
        attach("mutation commands: another field", &format!("{CONNECTING}-strict"), 500).unreviewed(),
        attach("mutation commands: applied", &format!("{CONNECTING}-applied"), 403).unreviewed(),
    ]
}
