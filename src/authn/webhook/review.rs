//! What goes over the wire: the question, the answer, and what an answer that is none means.
//!
//! Whatever is not surely an answer is an error, so that nobody is let in by accident.
// apimachinery: pkg/api/errors/errors.go; client-go: rest/request.go

use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use serde::{Deserialize, Deserializer, Serialize};

use super::settings::Version;
use crate::authn::{Audience, BearerToken};
use crate::go::quote::Quoted;
use crate::http::https_client::Answer;

/// How much of a text that is no Status is told.
// client-go: rest/request.go, maxUnstructuredResponseTextBytes
const LONGEST_TEXT: usize = 2048;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Question<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Object,
    spec: Spec<'a>,
    status: Object,
}

#[derive(Serialize)]
struct Spec<'a> {
    token: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    audiences: Vec<&'a str>,
}

/// Flattened into a type, it makes that an object: without it, a list of the values would do as well.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Object {}

/// What the webhook says of a token.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    #[serde(deserialize_with = "or_null")]
    pub(super) authenticated: bool,
    #[serde(deserialize_with = "or_null")]
    pub(super) user: User,
    #[serde(deserialize_with = "or_null")]
    pub(super) audiences: Vec<String>,
    #[serde(deserialize_with = "or_null")]
    pub(super) error: String,
    #[serde(flatten)]
    _object: Object,
}

/// Who the token is.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct User {
    #[serde(deserialize_with = "or_null")]
    pub(super) username: String,
    #[serde(deserialize_with = "or_null")]
    pub(super) uid: String,
    #[serde(deserialize_with = "or_null")]
    pub(super) groups: Vec<String>,
    #[serde(deserialize_with = "or_null")]
    pub(super) extra: BTreeMap<String, Option<Vec<String>>>,
    #[serde(flatten)]
    _object: Object,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Review {
    #[serde(deserialize_with = "or_null")]
    kind: String,
    #[serde(deserialize_with = "or_null")]
    api_version: String,
    #[serde(deserialize_with = "or_null")]
    status: Status,
    #[serde(flatten)]
    _object: Object,
}

/// A `v1` Status, as far as it says whether to ask again.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Failure {
    #[serde(deserialize_with = "or_null")]
    kind: String,
    #[serde(deserialize_with = "or_null")]
    status: String,
    #[serde(deserialize_with = "or_null")]
    message: String,
    #[serde(deserialize_with = "or_null")]
    reason: String,
    #[serde(deserialize_with = "or_null")]
    code: u16,
    details: Option<Details>,
    #[serde(flatten)]
    _object: Object,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    #[serde(deserialize_with = "or_null")]
    retry_after_seconds: u32,
    #[serde(flatten)]
    _object: Object,
}

/// Why there is no verdict, and whether there may be one later.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) text: String,
    /// Whether it is worth asking again, and the least time to wait before.
    pub(super) again: Option<Duration>,
}

impl Trouble {
    /// Asking again would change nothing.
    pub(super) fn lasting(text: impl Into<String>) -> Self {
        Self { text: text.into(), again: None }
    }
}

/// As in Go, `null` is what is not there.
fn or_null<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

/// The question about a token.
pub(super) fn question(
    version: Version,
    token: &BearerToken,
    audiences: &[Audience],
) -> Result<Vec<u8>, Trouble> {
    let audiences = audiences.iter().map(|audience| audience.0.as_str()).collect();
    let question = Question {
        kind: "TokenReview",
        api_version: version.api_version(),
        metadata: Object {},
        spec: Spec { token: token.expose(), audiences },
        status: Object {},
    };
    // The serializer's words could quote the token.
    serde_json::to_vec(&question).map_err(|_| Trouble::lasting("the question cannot be written as JSON"))
}

/// What an answer says.
pub(super) fn read(version: Version, token: &BearerToken, answer: &Answer) -> Result<Status, Trouble> {
    if !(200..=206).contains(&answer.status.as_u16()) {
        return Err(failure(token, answer));
    }
    if answer.body.is_empty() {
        let content_type = answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        return Err(Trouble::lasting(format!(
            "0-length response with status code: {} and content type: {}",
            answer.status.as_u16(),
            content_type.unwrap_or("application/json")
        )));
    }
    // The parser's words could quote what came, and what came could quote the token.
    let review: Review = serde_json::from_slice(&answer.body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        Trouble::lasting(format!("the answer is no TokenReview: line {line}, column {column} is wrong"))
    })?;
    let is = |text: &str, expected: &str| text.is_empty() || text == expected;
    if !is(&review.kind, "TokenReview") || !is(&review.api_version, version.api_version()) {
        return Err(Trouble::lasting(format!(
            "the answer is {} of {}, not a TokenReview of {}",
            Quoted(&review.kind),
            Quoted(&review.api_version),
            version.api_version()
        )));
    }
    Ok(review.status)
}

fn failure(token: &BearerToken, answer: &Answer) -> Trouble {
    let code = answer.status;
    let told = serde_json::from_slice::<Failure>(&answer.body).ok();
    let told = told.filter(|told| matches!(told.kind.as_str(), "" | "Status") && told.status == "Failure");
    let told = told.unwrap_or_else(|| Failure {
        message: message(code, &text_of(token, &answer.body)),
        reason: reason(code).to_owned(),
        code: code.as_u16(),
        details: Some(Details { retry_after_seconds: retry_after(answer), ..Details::default() }),
        ..Failure::default()
    });
    let hint = told.details.map(|details| details.retry_after_seconds);
    let again = matches!(told.reason.as_str(), "InternalError" | "Timeout" | "TooManyRequests")
        || (told.reason.is_empty() && matches!(told.code, 500 | 504))
        || told.code == 429
        || (told.reason == "ServerTimeout" && hint.is_some())
        || hint.is_some_and(|seconds| seconds > 0);
    let hint = hint.unwrap_or_default().max(retry_after(answer));
    Trouble { text: told.message, again: again.then(|| Duration::from_secs(hint.into())) }
}

fn retry_after(answer: &Answer) -> u32 {
    let value = answer.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    value.and_then(|seconds| seconds.parse().ok()).unwrap_or_default()
}

fn text_of(token: &BearerToken, body: &[u8]) -> String {
    let text = redacted(token, &String::from_utf8_lossy(body));
    let text = text.trim();
    if text.is_empty() { "unknown".to_owned() } else { text.to_owned() }
}

/// A text without the token, cut to a length that a log can bear. In this order: half a token is not found any more.
pub(super) fn redacted(token: &BearerToken, text: &str) -> String {
    let mut text = text.replace(token.expose(), "[the token]");
    text.truncate(text.floor_char_boundary(LONGEST_TEXT));
    text
}

/// The reason that a status code alone stands for, if it decides whether to ask again.
fn reason(code: StatusCode) -> &'static str {
    match code.as_u16() {
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        500.. => "InternalError",
        _ => "Other",
    }
}

/// What kube-apiserver logs of an answer that is no Status.
fn message(code: StatusCode, text: &str) -> String {
    let known = match code.as_u16() {
        400 => "the server rejected our request for an unknown reason",
        401 => "the server has asked for the client to provide credentials",
        404 => "the server could not find the requested resource",
        405 => "the server does not allow this method on the requested resource",
        406 if text == "unknown" => {
            "the server was unable to respond with a content type that the client supports"
        }
        403 | 406 | 415 => text,
        409 => "the server reported a conflict",
        422 => "the server rejected our request due to an error in our request",
        429 => "the server has received too many requests and has asked us to try again later",
        503 => "the server is currently unable to handle the request",
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
        }
        500.. => {
            let text = Quoted(text);
            return format!("an error on the server ({text}) has prevented the request from succeeding");
        }
        code => {
            return format!(
                "the server responded with the status code {code} but did not return more information"
            );
        }
    };
    known.to_owned()
}

#[cfg(test)]
mod tests;
