//! The TokenReview wire format: request, response, and classification of failed responses.
//!
//! A response that is not a valid TokenReview is an error: it must never authenticate a client.
// apimachinery: pkg/api/errors/errors.go; client-go: rest/request.go

use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use serde::{Deserialize, Deserializer, Serialize};

use super::settings::TokenReviewVersion;
use crate::authn::{Audience, BearerToken};
use crate::go::quote::Quoted;
use crate::http::https_client::HttpsResponse;

/// Maximum size of response text that an error quotes.
// client-go: rest/request.go, maxUnstructuredResponseTextBytes
const MAX_ERROR_TEXT: usize = 2048;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewRequest<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: ObjectOnly,
    spec: ReviewSpec<'a>,
    status: ObjectOnly,
}

#[derive(Serialize)]
struct ReviewSpec<'a> {
    token: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    audiences: Vec<&'a str>,
}

/// Flattened into a struct, makes serde require a JSON object: without it, serde also accepts a list of the values.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ObjectOnly {}

/// The verdict of the webhook.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct ReviewedStatus {
    #[serde(deserialize_with = "or_null")]
    pub(super) authenticated: bool,
    #[serde(deserialize_with = "or_null")]
    pub(super) user: ReviewedUser,
    #[serde(deserialize_with = "or_null")]
    pub(super) audiences: Vec<String>,
    #[serde(deserialize_with = "or_null")]
    pub(super) error: String,
    #[serde(flatten)]
    _object: ObjectOnly,
}

/// The user of the token.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct ReviewedUser {
    #[serde(deserialize_with = "or_null")]
    pub(super) username: String,
    #[serde(deserialize_with = "or_null")]
    pub(super) uid: String,
    #[serde(deserialize_with = "or_null")]
    pub(super) groups: Vec<String>,
    #[serde(deserialize_with = "or_null")]
    pub(super) extra: BTreeMap<String, Option<Vec<String>>>,
    #[serde(flatten)]
    _object: ObjectOnly,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReviewResponse {
    #[serde(deserialize_with = "or_null")]
    kind: String,
    #[serde(deserialize_with = "or_null")]
    api_version: String,
    #[serde(deserialize_with = "or_null")]
    status: ReviewedStatus,
    #[serde(flatten)]
    _object: ObjectOnly,
}

/// A `v1` Status, with the fields that determine whether to retry.
#[derive(Default, Deserialize)]
#[serde(default)]
struct FailureStatus {
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
    details: Option<FailureDetails>,
    #[serde(flatten)]
    _object: ObjectOnly,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct FailureDetails {
    #[serde(deserialize_with = "or_null")]
    retry_after_seconds: u32,
    #[serde(flatten)]
    _object: ObjectOnly,
}

/// Why the webhook returned no verdict, and whether a retry may help.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReviewError {
    pub(super) text: String,
    /// The minimum delay before a retry; `None` if a retry would not help.
    pub(super) retry_after: Option<Duration>,
}

impl ReviewError {
    /// An error that a retry would not resolve.
    pub(super) fn permanent(text: impl Into<String>) -> Self {
        Self { text: text.into(), retry_after: None }
    }
}

/// Decodes `null` as the zero value, like Go.
fn or_null<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

/// Encodes the TokenReview for a token.
pub(super) fn request_body(
    version: TokenReviewVersion,
    token: &BearerToken,
    audiences: &[Audience],
) -> Result<Vec<u8>, ReviewError> {
    let audiences = audiences.iter().map(|audience| audience.0.as_str()).collect();
    let request = ReviewRequest {
        kind: "TokenReview",
        api_version: version.api_version(),
        metadata: ObjectOnly {},
        spec: ReviewSpec { token: token.expose(), audiences },
        status: ObjectOnly {},
    };
    // The serializer's message could quote the token.
    serde_json::to_vec(&request)
        .map_err(|_| ReviewError::permanent("the TokenReview cannot be encoded as JSON"))
}

/// Decodes a response.
pub(super) fn read(
    version: TokenReviewVersion,
    token: &BearerToken,
    answer: &HttpsResponse,
) -> Result<ReviewedStatus, ReviewError> {
    if !(200..=206).contains(&answer.status.as_u16()) {
        return Err(failure(token, answer));
    }
    if answer.body.is_empty() {
        let content_type = answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        return Err(ReviewError::permanent(format!(
            "0-length response with status code: {} and content type: {}",
            answer.status.as_u16(),
            content_type.unwrap_or("application/json")
        )));
    }
    // The parser's message could quote the response, and the response could quote the token.
    let review: ReviewResponse = serde_json::from_slice(&answer.body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        ReviewError::permanent(format!(
            "the answer is not a TokenReview: line {line}, column {column} is wrong"
        ))
    })?;
    let is = |text: &str, expected: &str| text.is_empty() || text == expected;
    if !is(&review.kind, "TokenReview") || !is(&review.api_version, version.api_version()) {
        return Err(ReviewError::permanent(format!(
            "the answer is {} of {}, not a TokenReview of {}",
            Quoted(&review.kind),
            Quoted(&review.api_version),
            version.api_version()
        )));
    }
    Ok(review.status)
}

fn failure(token: &BearerToken, answer: &HttpsResponse) -> ReviewError {
    let code = answer.status;
    let status = serde_json::from_slice::<FailureStatus>(&answer.body).ok();
    let status =
        status.filter(|status| matches!(status.kind.as_str(), "" | "Status") && status.status == "Failure");
    let status = status.unwrap_or_else(|| FailureStatus {
        message: message(code, &text_of(token, &answer.body)),
        reason: reason(code).to_owned(),
        code: code.as_u16(),
        details: Some(FailureDetails {
            retry_after_seconds: retry_after(answer),
            ..FailureDetails::default()
        }),
        ..FailureStatus::default()
    });
    let hint = status.details.map(|details| details.retry_after_seconds);
    let retryable = matches!(status.reason.as_str(), "InternalError" | "Timeout" | "TooManyRequests")
        || (status.reason.is_empty() && matches!(status.code, 500 | 504))
        || status.code == 429
        || (status.reason == "ServerTimeout" && hint.is_some())
        || hint.is_some_and(|seconds| seconds > 0);
    let hint = hint.unwrap_or_default().max(retry_after(answer));
    ReviewError { text: status.message, retry_after: retryable.then(|| Duration::from_secs(hint.into())) }
}

fn retry_after(answer: &HttpsResponse) -> u32 {
    let value = answer.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    value.and_then(|seconds| seconds.parse().ok()).unwrap_or_default()
}

fn text_of(token: &BearerToken, body: &[u8]) -> String {
    let text = redacted(token, &String::from_utf8_lossy(body));
    let text = text.trim();
    if text.is_empty() { "unknown".to_owned() } else { text.to_owned() }
}

/// Redacts the token in a text, then truncates the text. The order matters: a truncated token would not be found.
pub(super) fn redacted(token: &BearerToken, text: &str) -> String {
    let mut text = text.replace(token.expose(), "[the token]");
    text.truncate(text.floor_char_boundary(MAX_ERROR_TEXT));
    text
}

/// The Status reason that a status code implies, for the codes that determine whether to retry.
fn reason(code: StatusCode) -> &'static str {
    match code.as_u16() {
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        500.. => "InternalError",
        _ => "Other",
    }
}

/// kube-apiserver's log message for a response that is not a Status.
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
