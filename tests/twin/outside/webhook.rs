//! A TokenReview webhook. The token itself contains the responses: [`script`].

use std::collections::BTreeMap;
use std::sync::Mutex;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::{Answer, status};

/// A token for which the webhook gives these responses, one per call; the last one also for all further calls.
///
/// A response is `{"status": …}` of a `TokenReview`, or any `{"code": …, "headers": {…}, "body": …}`. Strings may
/// contain the placeholders `{calls}`, the number of calls with this token, and `{audiences}`, `{version}` and
/// `{query}` of the request.
pub(crate) fn script(answers: &Value) -> String {
    // `{unique}` separates the counts of two sides.
    format!("hook/{{unique}}/{}", URL_SAFE_NO_PAD.encode(answers.to_string()))
}

#[derive(Debug, Default)]
pub(super) struct Webhook {
    calls: Mutex<BTreeMap<String, usize>>,
}

impl Webhook {
    pub(super) fn answer(&self, head: &http::request::Parts, body: &[u8]) -> Answer {
        let review: Value = serde_json::from_slice(body).unwrap_or_default();
        let version = review["apiVersion"].as_str().unwrap_or_default();
        if head.method != "POST" || review["kind"] != "TokenReview" {
            return status(400, "not a TokenReview");
        }
        let token = review["spec"]["token"].as_str().unwrap_or_default();
        let denied = || {
            super::json(
                &json!({"apiVersion": version, "kind": "TokenReview", "status": {"authenticated": false}}),
            )
        };
        let Some(answers) = answers(token) else { return denied() };
        let calls = {
            let mut calls = self.calls.lock().expect("no panic while held");
            let count = calls.entry(token.to_owned()).or_default();
            *count += 1;
            *count
        };
        let Some(answer) = answers.get(calls - 1).or(answers.last()) else { return denied() };
        let audiences = match &review["spec"]["audiences"] {
            Value::Null => "none".to_owned(),
            audiences => {
                let audiences = audiences.as_array().cloned().unwrap_or_default();
                audiences.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("+")
            }
        };
        let text = answer
            .to_string()
            .replace("{calls}", &calls.to_string())
            .replace("{audiences}", &audiences)
            .replace("{version}", version)
            .replace("{path}", head.uri.path())
            .replace("{query}", head.uri.query().unwrap_or_default());
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        let code = answer["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(200);
        let mut sent = match (&answer["status"], &answer["body"]) {
            (Value::Null, Value::String(text)) => status(code, text),
            (Value::Null, Value::Null) => status(code, ""),
            (Value::Null, body) => super::json(body),
            (status, _) => super::json(&json!({
                "apiVersion": answer.get("apiVersion").unwrap_or(&json!(version)),
                "kind": "TokenReview",
                "status": status,
            })),
        };
        *sent.status_mut() = http::StatusCode::from_u16(code).expect("a status");
        for (name, value) in answer["headers"].as_object().into_iter().flatten() {
            if let (Ok(name), Some(Ok(value))) =
                (http::HeaderName::try_from(name), value.as_str().map(str::parse))
            {
                sent.headers_mut().insert(name, value);
            }
        }
        sent
    }
}

/// The responses in a token: after its second slash, or in the claim `hook` of a JSON Web Token.
fn answers(token: &str) -> Option<Vec<Value>> {
    let json = |encoded: &str| -> Option<Value> {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(encoded).ok()?).ok()
    };
    let script = if let Some(rest) = token.strip_prefix("hook/") {
        json(rest.split_once('/')?.1)?
    } else {
        json(token.split('.').nth(1)?)?["hook"].clone()
    };
    script.as_array().cloned()
}
