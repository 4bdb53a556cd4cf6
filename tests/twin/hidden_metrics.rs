//! Autoscalers that a client writes in `autoscaling/v1`, of which the API server stores more than it shows in this version. The gateway
//! stores what a webhook has seen in `v2`, whatever the form of the write, and shows webhooks all of what is stored.

use libtest_mimic::Failed;
use serde_json::{Value, json};

use crate::case::{Case, case};
use crate::client::{self, Version};
use crate::run::{Compared, side_of};
use crate::servers::{Side, TwinServers};

const V1: &str = "/apis/autoscaling/v1/namespaces/twin/horizontalpodautoscalers";
const V2: &str = "/apis/autoscaling/v2/namespaces/twin/horizontalpodautoscalers";
const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
/// A utilization of CPU beside the field, or two of them; and another metric before one.
const HIDDEN: [&str; 3] = [
    r#"[{"type":"Resource","resource":{"name":"cpu","targetAverageUtilization":80}}]"#,
    r#"[{"type":"Resource","resource":{"name":"cpu","targetAverageUtilization":80}},{"type":"Resource","resource":{"name":"cpu","targetAverageUtilization":1}}]"#,
    r#"[{"type":"Resource","resource":{"name":"cpu","targetAverageUtilization":80}},{"type":"Resource","resource":{"name":"memory","targetAverageValue":"1Gi"}}]"#,
];

/// A write, and the webhook that reviews it.
struct Write {
    what: String,
    case: Case,
    webhook: &'static str,
}

fn scaler(hidden: Option<&str>) -> Value {
    let mut object = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "{unique}", "labels": {"only": "vscalers2"}, "annotations": {"{unique}": "x"}},
        "spec": {"maxReplicas": 5, "targetCPUUtilizationPercentage": 1,
            "scaleTargetRef": {"kind": "Deployment", "name": "x", "apiVersion": "apps/v1"}}});
    if let Some(hidden) = hidden {
        object["metadata"]["annotations"][METRICS] = hidden.into();
    }
    object
}

/// One in `v2` with two utilizations of CPU.
fn stored(webhook: &str) -> Value {
    let cpu = |percent: i32| {
        json!({"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": percent}}})
    };
    let mut object = scaler(None);
    object["apiVersion"] = "autoscaling/v2".into();
    object["metadata"]["labels"]["only"] = webhook.into();
    object["spec"].as_object_mut().expect("an object").remove("targetCPUUtilizationPercentage");
    object["spec"]["metrics"] = json!([cpu(80), cpu(1)]);
    object
}

fn writes() -> Vec<Write> {
    let own = format!("{V1}/{{unique}}");
    let apply = format!("{own}?fieldManager=twin&force=true");
    let created = || case("", "", "POST", V1).json(&scaler(None).to_string()).cert("admin");
    let mut writes = Vec::new();
    for (number, hidden) in HIDDEN.iter().enumerate() {
        let object = scaler(Some(hidden)).to_string();
        let escaped = object.replace(METRICS, "\\u0061utoscaling.alpha.kubernetes.io/metrics");
        let annotations = json!({"metadata": {"annotations": {METRICS: hidden}}}).to_string();
        let pointer = METRICS.replace('/', "~1");
        let operation =
            json!([{"op": "add", "path": format!("/metadata/annotations/{pointer}"), "value": hidden}]);
        let forms = [
            ("POST", case("", "", "POST", V1).json(&object).cert("admin")),
            ("POST with an escape", case("", "", "POST", V1).json(&escaped).cert("admin")),
            (
                "POST in YAML",
                case("", "", "POST", V1)
                    .body("application/yaml", format!("# x\n{object}").as_bytes())
                    .cert("admin"),
            ),
            ("PUT", created().then("PUT", &own).json(&object)),
            (
                "merge patch",
                created().then("PATCH", &own).body("application/merge-patch+json", annotations.as_bytes()),
            ),
            (
                "strategic merge patch",
                created()
                    .then("PATCH", &own)
                    .body("application/strategic-merge-patch+json", annotations.as_bytes()),
            ),
            (
                "JSON patch",
                created()
                    .then("PATCH", &own)
                    .body("application/json-patch+json", operation.to_string().as_bytes()),
            ),
            (
                "apply",
                created().then("PATCH", &apply).body("application/apply-patch+yaml", object.as_bytes()),
            ),
            (
                "apply of a new one",
                case("", "", "PATCH", &apply)
                    .body("application/apply-patch+yaml", object.as_bytes())
                    .cert("admin"),
            ),
        ];
        writes.extend(forms.map(|(how, case)| Write {
            what: format!("{how}, {number}"),
            case,
            webhook: "vscalers2",
        }));
    }
    // The API server decodes a patched object as the version that the patch leaves in it.
    let metrics = stored("")["spec"]["metrics"].clone();
    let mut whole = stored("vscalers2");
    whole["metadata"]["resourceVersion"] = json!("{version}");
    let merges = [
        ("another version", json!({"apiVersion": "autoscaling/v2", "spec": {"metrics": metrics}})),
        (
            "another version in other letters",
            json!({"apiversion": "autoscaling/v2", "spec": {"metrics": metrics}}),
        ),
        (
            "another version with a long s",
            json!({"apiVer\u{17f}ion": "autoscaling/v2", "spec": {"metrics": metrics}}),
        ),
    ];
    let operations = [
        (
            "another version",
            json!([{"op": "replace", "path": "/apiVersion", "value": "autoscaling/v2"},
                {"op": "remove", "path": "/spec/targetCPUUtilizationPercentage"},
                {"op": "add", "path": "/spec/metrics", "value": metrics}]),
        ),
        ("another object", json!([{"op": "replace", "path": "", "value": whole}])),
    ];
    for (what, patch) in merges {
        let case =
            created().then("PATCH", &own).body("application/merge-patch+json", patch.to_string().as_bytes());
        writes.push(Write { what: format!("merge patch, {what}"), case, webhook: "vscalers2" });
    }
    for (what, patch) in operations {
        let case =
            created().then("PATCH", &own).body("application/json-patch+json", patch.to_string().as_bytes());
        writes.push(Write { what: format!("JSON patch, {what}"), case, webhook: "vscalers2" });
    }
    // A name that YAML decodes.
    let encoded = "!!binary YXV0b3NjYWxpbmcuYWxwaGEua3ViZXJuZXRlcy5pby9tZXRyaWNz";
    let flow = scaler(Some("HIDDEN")).to_string().replace("\":", "\": ");
    let flow = flow.replace(&format!("\"{METRICS}\": \"HIDDEN\""), &format!("{encoded} : '{}'", HIDDEN[0]));
    let posted = case("", "", "POST", V1).body("application/yaml", flow.as_bytes()).cert("admin");
    writes.push(Write {
        what: "POST in YAML that looks like JSON".to_owned(),
        case: posted,
        webhook: "vscalers2",
    });
    let of_v2 = |webhook: &str| case("", "", "POST", V2).json(&stored(webhook).to_string()).cert("admin");
    let status = json!({"status": {"currentReplicas": 1, "desiredReplicas": 2}}).to_string();
    let status = of_v2("vscalers2")
        .then("PATCH", &format!("{own}/status"))
        .body("application/merge-patch+json", status.as_bytes());
    writes.push(Write { what: "status".to_owned(), case: status, webhook: "vscalers2" });
    writes.push(Write {
        what: "deletion".to_owned(),
        case: of_v2("vgone2").then("DELETE", &own),
        webhook: "vgone2",
    });
    writes
}

pub(crate) async fn run(servers: &TwinServers) -> Result<Compared, Failed> {
    let identity = servers.identity("admin");
    let mut differences = Vec::new();
    for Write { what, case, webhook } in writes() {
        let (target, mut values) = side_of(servers, Side::AdmissionGateway)?;
        let mut status = 0;
        for step in &case.steps {
            let answer = client::exchange(target, identity, &step.request(Version::H1, &values)).await;
            let object: Value = answer
                .as_ref()
                .map_or(Value::Null, |answer| serde_json::from_slice(&answer.body).unwrap_or_default());
            if let Some(version) = object["metadata"]["resourceVersion"].as_str() {
                version.clone_into(&mut values.version);
            }
            status = answer.map_or(0, |answer| answer.status);
        }
        let is_deleted = webhook == "vgone2";
        let reviews = servers.outside.admission.take(&values.unique);
        let seen =
            reviews.iter().rev().find(|(name, _)| name == webhook).map(|(_, review)| &review["request"]);
        let shown = seen.map(|request| if is_deleted { &request["oldObject"] } else { &request["object"] });
        let shown = shown.map(|object| object["spec"]["metrics"].clone()).unwrap_or_default();
        let read = crate::case::case("", "", "GET", &format!("{V2}/{{unique}}")).cert("admin");
        let expected = if is_deleted {
            stored(webhook)["spec"]["metrics"].clone()
        } else {
            let answer =
                client::exchange(target, identity, &read.steps[0].request(Version::H1, &values)).await;
            let body = answer.map(|answer| answer.body).unwrap_or_default();
            let object: Value = serde_json::from_slice(&body).unwrap_or_default();
            object["spec"]["metrics"].clone()
        };
        if !(200..300).contains(&status) || shown.is_null() || shown != expected {
            differences.push(format!("{what}: {status}, a webhook has seen {shown}, stored is {expected}"));
        }
    }
    Ok(Compared { differences, last: 0 })
}
