//! Authorization webhooks. The name of the object, or the path, contains their answers: `first.deny--last.none` is that of
//! the webhook `first`, then that of `last`. Without an answer, `last` allows and the others have no opinion.

use std::collections::BTreeMap;
use std::sync::Mutex;

use serde_json::{Value, json};

use super::{Answer, status};

#[derive(Debug, Default)]
pub(super) struct AuthorizationWebhook {
    calls: Mutex<BTreeMap<String, usize>>,
}

impl AuthorizationWebhook {
    /// `None` closes the connection.
    pub(super) async fn answer(&self, head: &http::request::Parts, body: &[u8]) -> Option<Answer> {
        let name = head.uri.path().rsplit('/').next().unwrap_or_default();
        let review: Value = serde_json::from_slice(body).unwrap_or_default();
        if head.method != "POST" || review["kind"] != "SubjectAccessReview" {
            return Some(status(400, "not a SubjectAccessReview"));
        }
        let version = review["apiVersion"].clone();
        let reviewed = |given: Value| {
            super::json(&json!({"apiVersion": version, "kind": "SubjectAccessReview", "status": given}))
        };
        let verdict = verdict(&review["spec"], name);
        let reason = format!("{name} says {verdict}, \"because\" <it> & so on\n");
        let own = |kind: &str, version: &Value| {
            super::json(&json!({"apiVersion": version, "kind": kind, "status": {"allowed": true}}))
        };
        let of_status = |code: u16, reason: &str, details: Value| {
            let mut answer = super::json(&json!({"apiVersion": "v1", "kind": "Status", "status": "Failure",
                "message": format!("{name} fails"), "reason": reason, "code": code, "details": details}));
            *answer.status_mut() = http::StatusCode::from_u16(code).expect("a status");
            answer
        };
        Some(match verdict.as_str() {
            "" if name == "last" => reviewed(json!({"allowed": true})),
            "" => reviewed(json!({"allowed": false})),
            "allow" => reviewed(json!({"allowed": true, "reason": reason})),
            "deny" => reviewed(json!({"allowed": false, "denied": true, "reason": reason})),
            "none" => reviewed(json!({"allowed": false, "reason": reason})),
            "both" => reviewed(json!({"allowed": true, "denied": true, "reason": reason})),
            "evaluation" => reviewed(json!({"allowed": false, "evaluationError": "it is broken"})),
            "allowevaluation" => reviewed(json!({"allowed": true, "evaluationError": "it is broken"})),
            "null" => reviewed(Value::Null),
            "nulls" => reviewed(json!({"allowed": null, "denied": null, "reason": null})),
            "unknown" => reviewed(json!({"allowed": true, "else": 1})),
            "nostatus" => super::json(&json!({"apiVersion": version, "kind": "SubjectAccessReview"})),
            "bare" => super::json(&json!({"status": {"allowed": true}})),
            "created" => {
                let mut answer = reviewed(json!({"allowed": true}));
                *answer.status_mut() = http::StatusCode::CREATED;
                answer
            }
            "wrongkind" => own("TokenReview", &version),
            "wrongversion" => own("SubjectAccessReview", &json!("authorization.k8s.io/v2")),
            "list" => reviewed(json!([true])),
            "string" => reviewed(json!({"allowed": "true"})),
            "text" => status(200, "allowed"),
            "empty" => status(200, ""),
            "statusforbidden" => of_status(403, "Forbidden", Value::Null),
            "statuslater" => of_status(503, "ServiceUnavailable", Value::Null),
            "statusinternal" => of_status(500, "InternalError", Value::Null),
            "redirect" => {
                let mut answer = status(307, "");
                answer.headers_mut().insert("location", "/authorization/else".parse().expect("an address"));
                answer
            }
            "close" => return None,
            "silent" => std::future::pending().await,
            // The whole review as the reason, so that the responses differ if the reviews do.
            "echo" => {
                let query = head.uri.query().unwrap_or_default();
                reviewed(json!({"denied": true, "reason": format!("{query} {review}")}))
            }
            "count" => {
                let calls = self.count(name, &review["spec"]);
                reviewed(json!({"denied": true, "reason": format!("call {calls}")}))
            }
            "countallow" => {
                let calls = self.count(name, &review["spec"]);
                reviewed(json!({"allowed": calls == 1, "reason": format!("call {calls}")}))
            }
            code => status(code.parse().unwrap_or(400), &format!("{name} fails with {code}")),
        })
    }

    fn count(&self, webhook: &str, spec: &Value) -> usize {
        let mut calls = self.calls.lock().expect("no panic while held");
        let count = calls.entry(format!("{webhook} {spec}")).or_default();
        *count += 1;
        *count
    }
}

/// The answer of the webhook `name`; empty without one.
fn verdict(spec: &Value, name: &str) -> String {
    let texts = [
        &spec["resourceAttributes"]["name"],
        &spec["resourceAttributes"]["namespace"],
        &spec["nonResourceAttributes"]["path"],
        &spec["extra"]["script"][0],
    ];
    let words = texts.into_iter().filter_map(Value::as_str).flat_map(|text| text.split("--"));
    let mut verdicts =
        words.filter_map(|word| word.rsplit('/').next()?.strip_prefix(name)?.strip_prefix('.'));
    verdicts.next().unwrap_or_default().to_owned()
}
