//! The responses of a correctly configured API server to the gateway's self-check.

use http::{HeaderMap, Method, Request, Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::messages::{BoxedBody, full};

const HEADER_NAMES: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// The response to the gateway's own request; `None` for forwarded requests.
pub fn answer<B>(request: &Request<B>) -> Option<Response<BoxedBody>> {
    let headers = request.headers();
    let is_for_a_user = headers.contains_key("x-remote-user") || headers.contains_key("impersonate-user");
    if !is_for_a_user && [HEADER_NAMES, ACCESS_REVIEWS].contains(&request.uri().path()) {
        // In impersonation mode, the gateway sends these with its own credential alone.
        return Some(not_found());
    }
    let prefix = if headers.contains_key("x-remote-user") { "x-remote-" } else { "impersonate-" };
    let name = headers.get(format!("{prefix}user"))?.to_str().ok()?;
    if !name.starts_with("system:portcullis") {
        return None;
    }
    if request.method() == Method::POST && request.uri().path() == REVIEWS {
        let review = json!({"status": {"userInfo": user_info(headers, prefix)}});
        return Some(respond(StatusCode::CREATED, &review));
    }
    if request.uri().path() == "/version" {
        return Some(respond(StatusCode::OK, &json!({"gitVersion": "v1.37.2"})));
    }
    Some(not_found())
}

fn not_found() -> Response<BoxedBody> {
    respond(StatusCode::NOT_FOUND, &json!({"kind": "Status", "message": "not found"}))
}

/// A response with this JSON.
pub fn respond(status: StatusCode, body: &Value) -> Response<BoxedBody> {
    Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .body(full(body.to_string()))
        .unwrap()
}

/// The user info in the headers with this prefix.
pub fn user_info(headers: &HeaderMap, prefix: &str) -> Value {
    let all = |name: &str| -> Vec<String> {
        let values = headers.get_all(format!("{prefix}{name}"));
        values.iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    };
    let extra: Map<String, Value> = headers
        .keys()
        .filter_map(|name| {
            let name = name.as_str().strip_prefix(prefix)?;
            let key = name.strip_prefix("extra-")?;
            Some((percent_decoded(key), json!(all(name))))
        })
        .collect();
    json!({"username": all("user").first(), "uid": all("uid").first(), "groups": all("group"), "extra": extra})
}

/// A text with its percent escapes decoded; panics on a malformed escape.
pub fn percent_decoded(text: &str) -> String {
    let mut pieces = text.split('%');
    let mut decoded = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at(2);
        decoded.push(u8::from_str_radix(digits, 16).unwrap());
        decoded.extend(rest.as_bytes());
    }
    String::from_utf8(decoded).unwrap()
}
