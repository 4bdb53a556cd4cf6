//! Custom resources and subresources, and the webhooks that rules, equivalent resources and conditions select.

use serde_json::{Value, json};

use super::{MAPS, OWN, WIDGETS, by_admin, map};
use crate::case::Case;

const WIDGET: &str = "/apis/twin.test/v1/namespaces/twin/widgets/{unique}";
const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.twin.test";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

pub(super) fn cases() -> Vec<Case> {
    [widgets(), subresources(), rules(), conditions()].concat()
}

/// A custom resource with these answers of webhooks.
fn widget(asks: &str) -> Value {
    json!({"apiVersion": "twin.test/v1", "kind": "Widget", "metadata": {"name": "{unique}", "annotations": {"asks": asks}},
        "spec": {"replicas": 1, "parts": ["a"]}})
}

fn asking(asks: &str) -> String {
    json!({"metadata": {"annotations": {"asks": asks}}}).to_string()
}

/// A case that changes a custom resource.
fn changed(name: &str, method: &str, target: &str) -> Case {
    by_admin(name, "POST", WIDGETS).json(&widget("").to_string()).answers(201).then(method, target)
}

/// Custom resources: the server has no Go types for them.
fn widgets() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, asks, created, updated) in [
        ("allowed", "", 201, 200),
        ("changed", "m1=label;m2=annotation;", 201, 200),
        ("changed in its spec", "m1=spec;", 201, 200),
        ("changed against its schema", "m1=too-long;", 422, 422),
        ("changed against its list type", "m1=set;", 422, 422),
        ("changed in its status", "m1=phase;", 201, 200),
        ("changed in an unknown field", "m1=extra-field;", 201, 200),
        ("denied", "v1=deny;", 403, 403),
        ("warned of", "m1=warn;v2=warn;", 201, 200),
    ] {
        let name = |operation: &str| format!("a widget is {operation}: {what}");
        let read = |case: Case, found: bool| case.then("GET", WIDGET).answers(if found { 200 } else { 404 });
        cases.push(read(
            by_admin(&name("created"), "POST", WIDGETS).json(&widget(asks).to_string()).answers(created),
            created == 201,
        ));
        cases.push(read(
            by_admin(&name("created by applying"), "PATCH", &format!("{WIDGET}?fieldManager=twin"))
                .body(APPLY, widget(asks).to_string().as_bytes())
                .answers(created),
            created == 201,
        ));
        let mut replacement = widget(asks);
        replacement["metadata"]["resourceVersion"] = json!("{version}");
        cases.push(read(
            changed(&name("replaced"), "PUT", WIDGET).json(&replacement.to_string()).answers(updated),
            true,
        ));
        cases.push(read(
            changed(&name("patched"), "PATCH", WIDGET).body(MERGE, asking(asks).as_bytes()).answers(updated),
            true,
        ));
    }
    for (what, asks) in [("renamed", "m1=rename;"), ("given another UID", "m1=new-uid;")] {
        let name = |operation: &str| format!("a widget is {operation}: {what}");
        let mut replacement = widget(asks);
        replacement["metadata"]["resourceVersion"] = json!("{version}");
        let of_definition = json!({"metadata": {"annotations": {"asks": asks, "case": "{unique}"}}});
        cases.extend([
            changed(&name("replaced"), "PUT", WIDGET).json(&replacement.to_string()).answers(422),
            changed(&name("patched"), "PATCH", WIDGET).body(MERGE, asking(asks).as_bytes()).answers(422),
            // Nothing is stored.
            by_admin(&format!("a definition is patched: {what}"), "PATCH", DEFINITION)
                .body(MERGE, of_definition.to_string().as_bytes())
                .answers(422),
        ]);
    }
    cases
        .push(changed("a widget is deleted", "DELETE", WIDGET).answers(200).then("GET", WIDGET).answers(404));
    cases.push(
        changed("a widget is patched as it cannot be", "PATCH", WIDGET)
            .body("application/strategic-merge-patch+json", asking("").as_bytes())
            .answers(415),
    );
    cases.push(
        changed("a widget is replaced without its version", "PUT", WIDGET)
            .json(&widget("").to_string())
            .answers(422),
    );
    cases
}

/// Subresources of a custom resource, a pod, a namespace and a certificate signing request.
fn subresources() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, asks, status) in [
        ("allowed", "", 200),
        ("changed", "m1=label;", 200),
        ("denied", "v1=deny;", 403),
        ("warned of", "v1=warn;", 200),
    ] {
        let name = |of: &str| format!("{of}: {what}");
        let body = json!({"status": {"phase": asks, "replicas": 1}});
        cases.push(
            changed(&name("the status of a custom resource"), "PATCH", &format!("{WIDGET}/status"))
                .body(MERGE, body.to_string().as_bytes())
                .answers(status)
                .then("GET", WIDGET)
                .answers(200),
        );
        let pods = "/api/v1/namespaces/twin/pods";
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "{unique}"},
            "spec": {"containers": [{"name": "c", "image": "x"}]}});
        let container =
            json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "y", "args": [asks]}]}});
        cases.push(
            by_admin(&name("ephemeral containers"), "POST", pods)
                .json(&pod.to_string())
                .answers(201)
                .then("PATCH", &format!("{pods}/{{unique}}/ephemeralcontainers"))
                .body("application/strategic-merge-patch+json", container.to_string().as_bytes())
                .answers(status)
                .declared_reviews("D-admission-prepared", status),
        );
        let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
        let own = format!("{requests}/{{unique}}");
        let request = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": "{unique}"},
            "spec": {"signerName": "example.com/x", "usages": ["client auth"], "request": REQUEST}});
        let approval = json!({"metadata": {"annotations": {"asks": asks}},
            "status": {"conditions": [{"type": "Approved", "status": "True", "reason": "r", "message": "m"}]}});
        cases.push(
            by_admin(&name("an approval"), "POST", requests)
                .json(&request.to_string())
                .answers(201)
                .then("PATCH", &format!("{own}/approval"))
                .body(MERGE, approval.to_string().as_bytes())
                .answers(status)
                .declared_reviews("D-admission-prepared", status),
        );
        let namespaces = "/api/v1/namespaces";
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "{unique}", "annotations": {"asks": asks}}, "spec": {"finalizers": ["kubernetes"]}});
        cases.push(
            by_admin(&name("finalizers of a namespace"), "POST", namespaces)
                .json(r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"{unique}"}}"#)
                .answers(201)
                .then("PUT", "/api/v1/namespaces/{unique}/finalize")
                .json(&namespace.to_string())
                .answers(status)
                .declared_reviews("D-admission-prepared", status),
        );
    }
    let scale = |replicas: u32| {
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale",
        "metadata": {"name": "{unique}", "namespace": "twin"}, "spec": {"replicas": replicas}})
        .to_string()
    };
    let path = format!("{WIDGET}/scale");
    cases.push(
        changed("the scale of a custom resource is replaced", "PUT", &path)
            .json(&scale(2))
            .answers(200)
            .then("GET", WIDGET)
            .answers(200),
    );
    cases.push(
        changed("the scale of a custom resource is patched", "PATCH", &path)
            .body(MERGE, br#"{"spec":{"replicas":3}}"#)
            .answers(200)
            .then("GET", &path)
            .answers(200),
    );
    cases.push(
        changed("a scale that is not valid", "PATCH", &path)
            .body(MERGE, br#"{"spec":{"replicas":-3}}"#)
            .answers(422),
    );
    cases
}

/// A certificate signing request in PEM, in base64.
const REQUEST: &str = include_str!("request.base64");

/// Which webhooks are asked, by rules and by equivalent resources.
fn rules() -> Vec<Case> {
    let labelled = |mut object: Value, webhook: &str| {
        object["metadata"]["labels"] = json!({"only": webhook});
        object["metadata"]["annotations"] = json!({"asks": format!("{webhook}=deny;")});
        object
    };
    let v2 = |mut object: Value| {
        object["apiVersion"] = json!("twin.test/v2");
        object
    };
    let v2_widgets = WIDGETS.replace("/v1/", "/v2/");
    let mut cases = Vec::new();
    for (webhook, on_map, on_widget, on_v2, on_status) in [
        ("vgroups", 403, 403, 403, 200),
        ("vversions", 201, 403, 403, 200),
        ("vplain", 403, 403, 403, 200),
        ("vtree", 201, 403, 403, 403),
        ("vone", 201, 201, 201, 403),
        ("vsubresources", 201, 201, 201, 403),
        ("vupdates", 201, 201, 201, 403),
        ("vrules", 201, 403, 403, 200),
        ("vwidgets", 201, 403, 403, 403),
        ("vexactwidgets", 201, 403, 201, 403),
    ] {
        let post = |what: &str, collection: &str, object: Value, status: u16| {
            by_admin(&format!("a rule of {webhook}: {what}"), "POST", collection)
                .json(&labelled(object, webhook).to_string())
                .answers(status)
        };
        cases.push(post("a config map", MAPS, map(""), on_map));
        cases.push(post("a custom resource", WIDGETS, widget(""), on_widget));
        cases.push(post("another version", &v2_widgets, v2(widget("")), on_v2));
        let mut object = widget("");
        object["metadata"]["labels"] = json!({"only": webhook});
        let status = json!({"status": {"phase": format!("{webhook}=deny;")}});
        cases.push(
            by_admin(&format!("a rule of {webhook}: a status"), "POST", WIDGETS)
                .json(&object.to_string())
                .answers(201)
                .then("PATCH", &format!("{WIDGET}/status"))
                .body(MERGE, status.to_string().as_bytes())
                .answers(on_status),
        );
        let changed_map = labelled(json!({"metadata": {}}), webhook);
        let (on_update, on_delete) = match webhook {
            "vgroups" | "vplain" | "vupdates" => (403, 200),
            "vrules" => (200, 403),
            _ => (200, 200),
        };
        cases.push(
            by_admin(&format!("a rule of {webhook}: an update"), "POST", MAPS)
                .json(&map("").to_string())
                .answers(201)
                .then("PATCH", OWN)
                .body(MERGE, changed_map.to_string().as_bytes())
                .answers(on_update)
                .then("DELETE", OWN)
                .answers(on_delete),
        );
    }
    cases.extend(equivalents(&labelled));
    cases
}

/// Resources that are stored at the same place.
fn equivalents(labelled: &dyn Fn(Value, &str) -> Value) -> Vec<Case> {
    let scaler = |version: &str| {
        json!({"apiVersion": format!("autoscaling/{version}"), "kind": "HorizontalPodAutoscaler", "metadata": {"name": "{unique}"},
            "spec": {"maxReplicas": 2, "scaleTargetRef": {"kind": "Deployment", "name": "x", "apiVersion": "apps/v1"}}})
    };
    let scalers =
        |version: &str| format!("/apis/autoscaling/{version}/namespaces/twin/horizontalpodautoscalers");
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "{unique}"},
        "spec": {"selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}}});
    let mut cases = Vec::new();
    for (webhook, version, status) in [
        ("vequivalent", "v1", 403),
        ("vequivalent", "v2", 403),
        ("vequivalentlax", "v1", 403),
        ("vequivalentlax", "v2", 403),
    ] {
        cases.push(
            by_admin(&format!("an equivalent of {webhook}: {version}"), "POST", &scalers(version))
                .json(&labelled(scaler(version), webhook).to_string())
                .answers(status),
        );
    }
    cases.push(
        by_admin("an equivalent that is not served", "POST", "/apis/apps/v1/namespaces/twin/deployments")
            .json(&labelled(deployment, "vunserved").to_string())
            .answers(201),
    );
    cases
}

/// `matchConditions` over the variables.
fn conditions() -> Vec<Case> {
    let labelled = |webhook: &str| {
        let mut object = map(&format!("{webhook}=deny;"));
        object["metadata"]["labels"] = json!({"only": webhook});
        object
    };
    let post = |name: &str, object: &Value, status: u16| {
        by_admin(name, "POST", MAPS).json(&object.to_string()).answers(status)
    };
    let mut costly = labelled("vcostly");
    costly["data"] = (0..160).map(|number| (format!("key{number:03}"), json!("x"))).collect();
    let mut request =
        by_admin("a condition on the request, as a dry run", "POST", &format!("{MAPS}?dryRun=All"));
    request = request.json(&labelled("vrequest").to_string()).answers(201);
    vec![
        post("a condition on the old object of a new object", &labelled("vold"), 201)
            .then("PATCH", OWN)
            .body(MERGE, br#"{"metadata":{"labels":{"a":"b"}}}"#)
            .answers(200)
            .then("PATCH", OWN)
            .body(MERGE, br#"{"data":{"a":"2"}}"#)
            .answers(403)
            .then("DELETE", OWN)
            .answers(403),
        post("a condition on the request", &labelled("vrequest"), 403),
        request,
        post("a condition that fails beside one that is false", &labelled("vfalse"), 201),
        post("a condition that costs too much", &costly, 403),
        post("a condition that costs little", &labelled("vcostly"), 403),
    ]
}
