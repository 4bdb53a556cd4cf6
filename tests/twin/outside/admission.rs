//! Admission webhooks. What they answer is in the object of the review, or else in the old object: `m1=deny;` is the answer of the
//! webhook `m1`. Every review is kept for the case that caused it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};

use super::{Answer, status};
use crate::run::UNIQUE_PREFIX;

/// A review: the webhook, and what it was asked.
pub(crate) type Review = (String, Value);

/// The label of the objects of `race.rs`, of which only the reviews of `v1` are kept.
pub(crate) const RACE_LABEL: &str = "race";

/// All webhooks, and the reviews that they have received.
#[derive(Debug, Default)]
pub(crate) struct AdmissionWebhooks(Mutex<BTreeMap<String, Vec<Review>>>);

/// Longer than the timeout of every webhook here.
const SLOW: Duration = Duration::from_secs(4);

impl AdmissionWebhooks {
    /// Takes the reviews about the objects of a case on one side.
    pub(crate) fn take(&self, unique: &str) -> Vec<Review> {
        self.0.lock().expect("no panic").remove(unique).unwrap_or_default()
    }

    /// The reviews about the objects of a case on one side so far.
    pub(crate) fn seen(&self, unique: &str) -> Vec<Review> {
        self.0.lock().expect("no panic").get(unique).cloned().unwrap_or_default()
    }

    /// `None` closes the connection.
    pub(super) async fn answer(&self, head: &http::request::Parts, body: &[u8]) -> Option<Answer> {
        let name = head.uri.path().rsplit('/').next().unwrap_or_default();
        let review: Value = serde_json::from_slice(body).unwrap_or_default();
        let request = &review["request"];
        let subject = if request["object"].is_null() { &request["oldObject"] } else { &request["object"] };
        let behaviour = behaviour(&subject.to_string(), name);
        let is_kept = name == "v1" || subject["metadata"]["labels"][RACE_LABEL].is_null();
        if is_kept && let Some(unique) = unique_in(&String::from_utf8_lossy(body)) {
            let mut seen = review.clone();
            seen["query"] = json!(head.uri.query());
            let mut reviews = self.0.lock().expect("no panic");
            reviews.entry(unique).or_default().push((name.to_owned(), seen));
        }
        if behaviour == "slow" {
            tokio::time::sleep(SLOW).await;
        }
        if let Some(answer) = redirect(&behaviour, head) {
            return Some(answer);
        }
        if let Some(answer) = unusual(&behaviour, &review["request"]["uid"]) {
            return Some(answer);
        }
        respond(&behaviour, &review, subject)
    }
}

/// `redirect-307` and the like: to the same webhook, once.
fn redirect(behaviour: &str, head: &http::request::Parts) -> Option<Answer> {
    let (kind, path) = (behaviour.strip_prefix("redirect-")?, head.uri.path());
    let redirected = head.uri.query().is_some_and(|query| query.contains("redirected"));
    let (code, location) = match kind {
        "loop" => (307, format!("{path}?redirected")),
        "away" => (307, "https://127.0.0.1:1/away".to_owned()),
        "nowhere" => (307, String::new()),
        _ if redirected => return None,
        code => (code.parse().ok()?, format!("{path}?redirected")),
    };
    let mut answer = status(code, "elsewhere");
    if !location.is_empty() {
        answer.headers_mut().insert("location", location.parse().expect("a header"));
    }
    Some(answer)
}

/// Responses that are no usual JSON.
fn unusual(behaviour: &str, uid: &Value) -> Option<Answer> {
    let text = |response: &str| {
        let text = format!(
            r#"{{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {{"uid": {uid}, {response}}}}}"#
        );
        status(200, &text)
    };
    Some(match behaviour {
        "plain" => text(r#""allowed": true"#),
        "no-verdict" => text(r#""warnings": ["no verdict"]"#),
        "allowed-text" => text(r#""allowed": "true""#),
        "allowed-null" => text(r#""allowed": null"#),
        "other-case" => text(r#""Allowed": true"#),
        "twice" => text(r#""allowed": true, "allowed": false"#),
        "twice-denied" => text(r#""allowed": false, "allowed": true"#),
        "code-text" => text(r#""allowed": false, "status": {"code": "403"}"#),
        "code-float" => text(r#""allowed": false, "status": {"code": 403.0}"#),
        "code-large" => text(r#""allowed": false, "status": {"code": 99999999999}"#),
        "surrogate" => text(r#""allowed": false, "status": {"message": "\ud800 and \u0000 and \u001b[31m"}"#),
        "large" => text(&format!(r#""allowed": true, "else": "{}""#, "x".repeat(4 << 20))),
        "trailing" => {
            let mut answer = text(r#""allowed": true"#);
            let body = format!(
                r#"{{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {{"uid": {uid}, "allowed": true}}}} more"#
            );
            *answer.body_mut() = body.into();
            answer
        }
        _ => return None,
    })
}

/// The unique name of a case in a text.
fn unique_in(text: &str) -> Option<String> {
    let at = text.find(UNIQUE_PREFIX)?;
    let rest = text.get(at..)?;
    Some(rest.chars().take_while(char::is_ascii_alphanumeric).collect())
}

fn behaviour(text: &str, name: &str) -> String {
    let marker = format!("{name}=");
    let Some(at) = text.find(&marker) else { return "allow".to_owned() };
    text[at + marker.len()..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect()
}

fn respond(behaviour: &str, review: &Value, subject: &Value) -> Option<Answer> {
    let uid = review["request"]["uid"].clone();
    let respond = |mut response: Value| {
        response["uid"] = uid.clone();
        super::json(
            &json!({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}),
        )
    };
    let deny = |status: Value| respond(json!({"allowed": false, "status": status}));
    let encoded = |patch: &str| base64::engine::general_purpose::STANDARD.encode(patch);
    let patch =
        |patch: &str| respond(json!({"allowed": true, "patchType": "JSONPatch", "patch": encoded(patch)}));
    let review_of = |api_version: &str, kind: &str| {
        super::json(
            &json!({"apiVersion": api_version, "kind": kind, "response": {"uid": uid, "allowed": true}}),
        )
    };
    let of_code = |code: u16, mut answer: Answer| {
        *answer.status_mut() = http::StatusCode::from_u16(code).expect("a status");
        answer
    };
    let failure = |code: u16, reason: &str| {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "the webhook says no",
            "reason": reason, "code": code});
        of_code(code, super::json(&status))
    };
    let add = |field: &str, key: &str, value: &str| {
        let metadata = &subject["metadata"];
        if metadata[field].is_object() {
            patch(
                &json!([{"op": "add", "path": format!("/metadata/{field}/{key}"), "value": value}])
                    .to_string(),
            )
        } else {
            patch(
                &json!([{"op": "add", "path": format!("/metadata/{field}"), "value": {key: value}}])
                    .to_string(),
            )
        }
    };
    Some(match behaviour {
        "allow" | "slow" | "redirect-301" | "redirect-302" | "redirect-307" | "redirect-308" => respond(json!({"allowed": true})),
        "deny" => deny(json!({"message": "no <way> & \"so on\"", "code": 403, "reason": "Forbidden"})),
        "deny-bare" => respond(json!({"allowed": false})),
        "deny-empty" => deny(json!({})),
        "deny-reason" => deny(json!({"reason": "because"})),
        "deny-success" => deny(json!({"status": "Success", "code": 200, "message": "fine"})),
        "deny-code" => deny(json!({"code": 429, "message": "later", "details": {"retryAfterSeconds": 7}})),
        "deny-399" => deny(json!({"code": 399, "message": "odd"})),
        "deny-negative" => deny(json!({"code": -1, "message": "odd"})),
        "deny-999" => deny(json!({"code": 999, "message": "odd"})),
        "deny-status" => deny(json!({"status": "Odd", "message": "m", "metadata": {"resourceVersion": "1"}})),
        "deny-allowed" => respond(json!({"allowed": true, "status": {"code": 403, "message": "no", "status": "Failure"}})),
        "deny-empty-message" => deny(json!({"message": "", "reason": "Odd", "code": 418})),
        "deny-newline" => deny(json!({"message": "first\nsecond\r\nthird\ttab"})),
        "deny-401" => deny(json!({"code": 401, "reason": "Unauthorized", "message": "who"})),
        "deny-404" => deny(json!({"code": 404, "reason": "NotFound", "message": "where", "details": {"name": "x", "kind": "y"}})),
        "deny-503" => deny(json!({"code": 503, "message": "later", "details": {"retryAfterSeconds": 1}})),
        "deny-599" => deny(json!({"code": 599, "message": "odd"})),
        "deny-details" => deny(json!({"code": 422, "reason": "Invalid", "message": "bad", "details": {"name": "n", "group": "g",
            "kind": "k", "uid": "u", "causes": [{"reason": "FieldValueInvalid", "message": "m", "field": "f"}]}})),
        "deny-409" => deny(json!({"code": 409, "reason": "Conflict", "message": "a conflict of the webhook"})),
        "deny-504" => deny(json!({"code": 504, "reason": "Timeout", "message": "a timeout of the webhook"})),
        "warn" => respond(json!({"allowed": true, "warnings": ["first \"warning\" \\ of many", "second"]})),
        "warn-deny" => respond(json!({"allowed": false, "warnings": ["denied with a warning"]})),
        "warn-odd" => respond(json!({"allowed": true, "warnings": ["", "a\nb", "twice", "twice", "ünïcode \u{1F600}", "tab\there"]})),
        "warn-long" => respond(json!({"allowed": true, "warnings": ["x".repeat(3000), "y".repeat(1096)]})),
        "warn-longer" => respond(json!({"allowed": true, "warnings": ["x".repeat(3000), "ü".repeat(1097)]})),
        "warn-many" => respond(json!({"allowed": true,
            "warnings": (0..40).map(|number| format!("{number:02}{}", "z".repeat(298))).collect::<Vec<_>>()})),
        "annotate" => respond(json!({"allowed": true, "auditAnnotations": {"key": "value", "not/valid/": "x"}})),
        "nulls" => respond(json!({"allowed": true, "status": null, "warnings": null, "patch": null, "patchType": null})),
        "unknown" => respond(json!({"allowed": true, "else": 1})),
        "label" => add("labels", "added", "yes"),
        "third" => add("labels", "third", "yes"),
        "pick" => add("labels", "pick", "yes"),
        "annotation" => add("annotations", "added", "yes"),
        "remove" => patch(r#"[{"op": "remove", "path": "/metadata/annotations"}]"#),
        "limited-sidecar" => patch(
            r#"[{"op": "add", "path": "/spec/containers/-", "value": {"name": "sidecar", "image": "x", "resources": {"requests": {"memory": "0"}, "limits": {"memory": "10Mi"}}}}]"#,
        ),
        // Of a resize alone.
        "limited" if review["request"]["subResource"] != "resize" => respond(json!({"allowed": true})),
        "limited" => patch(
            r#"[{"op": "replace", "path": "/spec/containers/0/resources/limits/memory", "value": "50Mi"}, {"op": "replace", "path": "/spec/containers/0/resources/requests/memory", "value": "50Mi"}]"#,
        ),
        "data" => patch(r#"[{"op": "add", "path": "/data", "value": {"replaced": "yes"}}]"#),
        "replaced-command" => patch(r#"[{"op": "replace", "path": "/command", "value": ["echo", "changed"]}]"#),
        "noop" => patch("[]"),
        "same" => patch(&json!([{"op": "replace", "path": "/metadata/annotations", "value": subject["metadata"]["annotations"]}]).to_string()),
        "test" => patch(r#"[{"op": "test", "path": "/kind", "value": "Other"}]"#),
        "missing" => patch(r#"[{"op": "remove", "path": "/spec/absent/x"}]"#),
        "unknown-op" => patch(r#"[{"op": "put", "path": "/data"}]"#),
        "type" => patch(r#"[{"op": "add", "path": "/data", "value": 5}]"#),
        "message-type" => patch(r#"[{"op": "add", "path": "/message", "value": 5}]"#),
        "replicas-type" => patch(r#"[{"op": "add", "path": "/spec/maxReplicas", "value": "5"}]"#),
        "extra-field" => patch(r#"[{"op": "add", "path": "/extra", "value": {"a": 1}}]"#),
        "invalid" => patch(r#"[{"op": "add", "path": "/data", "value": {"bad key!": "x"}}]"#),
        "rename" => {
            let name = format!("{}-renamed", subject["metadata"]["name"].as_str().unwrap_or_default());
            patch(&json!([{"op": "replace", "path": "/metadata/name", "value": name}]).to_string())
        }
        "kind" => patch(r#"[{"op": "replace", "path": "/kind", "value": "Secret"}]"#),
        "version" => patch(r#"[{"op": "add", "path": "/metadata/resourceVersion", "value": "1"}]"#),
        "namespace" => patch(r#"[{"op": "replace", "path": "/metadata/namespace", "value": "twin-fixed"}]"#),
        "new-uid" => patch(r#"[{"op": "add", "path": "/metadata/uid", "value": "01234567-89ab-cdef-0123-456789abcdef"}]"#),
        "finalizer" => patch(r#"[{"op": "add", "path": "/metadata/finalizers", "value": ["twin.test/keep"]}]"#),
        "owners" => {
            let owner = json!({"apiVersion": "v1", "kind": "Secret", "name": "s", "uid": "u"});
            patch(&json!([{"op": "add", "path": "/metadata/ownerReferences", "value": [owner, owner]}]).to_string())
        }
        "generation" => patch(r#"[{"op": "add", "path": "/metadata/generation", "value": 7}]"#),
        "deletion" => patch(r#"[{"op": "add", "path": "/metadata/deletionTimestamp", "value": "2020-01-01T00:00:00Z"}]"#),
        "created-at" => patch(r#"[{"op": "add", "path": "/metadata/creationTimestamp", "value": "2020-01-01T00:00:00Z"}]"#),
        "managed" => patch(r#"[{"op": "add", "path": "/metadata/managedFields", "value": []}]"#),
        "whole" => {
            let mut whole = subject.clone();
            whole["metadata"]["labels"] = json!({"whole": "yes"});
            patch(&json!([{"op": "replace", "path": "", "value": whole}]).to_string())
        }
        "copy" => patch(r#"[{"op": "copy", "from": "/metadata/name", "path": "/metadata/annotations/copied"}]"#),
        "move" => patch(r#"[{"op": "add", "path": "/metadata/annotations/a", "value": "b"}, {"op": "move", "from": "/metadata/annotations/a", "path": "/metadata/annotations/c"}]"#),
        "escape" => patch(r#"[{"op": "add", "path": "/metadata/annotations/a.b~1c", "value": "d"}]"#),
        "null" => patch(r#"[{"op": "add", "path": "/metadata/annotations", "value": null}]"#),
        "test-passes" => patch(r#"[{"op": "test", "path": "/metadata/generateName", "value": null}, {"op": "add", "path": "/metadata/annotations/a", "value": "b"}]"#),
        "remove-missing" => patch(r#"[{"op": "remove", "path": "/metadata/annotations/absent"}]"#),
        "replace-missing" => patch(r#"[{"op": "replace", "path": "/metadata/annotations/absent", "value": "x"}]"#),
        "no-op" => patch(r#"[{"path": "/metadata/annotations/a", "value": "b"}]"#),
        "no-path" => patch(r#"[{"op": "add", "value": "b"}]"#),
        "no-value" => patch(r#"[{"op": "add", "path": "/metadata/annotations/a"}]"#),
        "no-slash" => patch(r#"[{"op": "add", "path": "metadata", "value": "b"}]"#),
        "null-patch" => patch("null"),
        "twice-op" => patch(r#"[{"op": "remove", "op": "add", "path": "/metadata/annotations/a", "value": "b"}]"#),
        "trailing-patch" => patch("[] []"),
        "html" => patch(r#"[{"op": "add", "path": "/metadata/annotations/html", "value": "<a&b> \u2028"}]"#),
        "command" => patch(r#"[{"op": "add", "path": "/command/-", "value": "more words"}]"#),
        // Once: the object of a second review has it.
        "sidecar" if subject.to_string().contains("sidecar-image") => respond(json!({"allowed": true})),
        "sidecar" => {
            let spec = if subject["spec"]["template"].is_object() { "/spec/template/spec" } else { "/spec" };
            let container = json!({"name": "side", "image": "sidecar-image"});
            patch(&json!([{"op": "add", "path": format!("{spec}/containers/-"), "value": container}]).to_string())
        }
        "unlabel" if subject["metadata"]["labels"].is_null() => respond(json!({"allowed": true})),
        "unlabel" => patch(r#"[{"op": "remove", "path": "/metadata/labels"}]"#),
        "finalizers" => patch(r#"[{"op": "add", "path": "/metadata/finalizers", "value": null}]"#),
        "spec" => patch(r#"[{"op": "add", "path": "/spec/color", "value": "large"}]"#),
        "replicas" => patch(r#"[{"op": "replace", "path": "/spec/replicas", "value": 4}]"#),
        "cpu" => patch(r#"[{"op": "add", "path": "/spec/targetCPUUtilizationPercentage", "value": 50}]"#),
        "no-minimum" => patch(r#"[{"op": "remove", "path": "/spec/minReplicas"}]"#),
        "metrics" => patch(
            r#"[{"op": "add", "path": "/spec/metrics", "value": [{"type": "Pods", "pods": {"metric": {"name": "requests"}, "target": {"type": "AverageValue", "averageValue": "0.5"}}}, {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 40}}}]}]"#,
        ),
        "no-metrics" => patch(r#"[{"op": "remove", "path": "/spec/metrics"}]"#),
        "behavior" => patch(
            r#"[{"op": "add", "path": "/spec/behavior", "value": {"scaleUp": {"tolerance": "0.05", "selectPolicy": "Min"}}}]"#,
        ),
        "no-behavior" => patch(
            r#"[{"op": "remove", "path": "/metadata/annotations/autoscaling.alpha.kubernetes.io~1behavior"}]"#,
        ),
        "annotated-metrics" => {
            let metrics = json!([{"type": "External", "external": {"metricName": "queue", "targetValue": "1500m"}}]);
            let mut annotations = subject["metadata"]["annotations"].clone();
            annotations["autoscaling.alpha.kubernetes.io/metrics"] = metrics.to_string().into();
            patch(&json!([{"op": "add", "path": "/metadata/annotations", "value": annotations}]).to_string())
        }
        "too-long" => patch(&json!([{"op": "add", "path": "/spec/color", "value": "x".repeat(21)}]).to_string()),
        "set" => patch(r#"[{"op": "add", "path": "/spec/parts", "value": ["a", "a"]}]"#),
        "phase" => patch(r#"[{"op": "add", "path": "/status", "value": {"phase": "Webhook"}}]"#),
        "undecodable" => patch("[{"),
        "object-patch" => patch(r#"{"op": "add"}"#),
        "base64" => respond(json!({"allowed": true, "patchType": "JSONPatch", "patch": "%%%"})),
        "patch-only" => respond(json!({"allowed": true, "patch": encoded("[]")})),
        "type-only" => respond(json!({"allowed": true, "patchType": "JSONPatch"})),
        "merge" => respond(json!({"allowed": true, "patchType": "Merge", "patch": encoded(r#"[{"op": "remove", "path": "/data"}]"#)})),
        "empty-type" => respond(json!({"allowed": true, "patchType": "", "patch": encoded("[]")})),
        "absent" => super::json(&json!({"apiVersion": review["apiVersion"], "kind": "AdmissionReview"})),
        "uid" => super::json(&json!({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": {"uid": "other", "allowed": true}})),
        "no-uid" => super::json(&json!({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": {"allowed": true}})),
        "untyped" => super::json(&json!({"response": {"uid": uid, "allowed": true}})),
        "beta" => review_of("admission.k8s.io/v1beta1", "AdmissionReview"),
        "stable" => review_of("admission.k8s.io/v1", "AdmissionReview"),
        "future" => review_of("admission.k8s.io/v2", "AdmissionReview"),
        "wrong-kind" => review_of("admission.k8s.io/v1", "Foo"),
        "status" => review_of("v1", "Status"),
        "list" => super::json(&json!([])),
        "text" => super::json(&json!("allowed")),
        "garbage" => status(200, "not JSON"),
        "empty" => status(200, ""),
        "nothing" => status(204, ""),
        "created" => of_code(201, respond(json!({"allowed": true}))),
        "code-207" => of_code(207, respond(json!({"allowed": true}))),
        "code-400" => status(400, "a bad request"),
        "code-403" => status(403, "not you"),
        "code-404" => status(404, "not here"),
        "code-429" => status(429, "too many"),
        "code-500" => status(500, "it is broken\n"),
        "code-503" => status(503, "away"),
        "status-500" => failure(500, "InternalError"),
        "status-404" => failure(404, "NotFound"),
        "close" => return None,
        other => status(500, &format!("no behaviour is called {other}")),
    })
}
