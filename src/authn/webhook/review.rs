//! The TokenReview wire format.
//!
//! A response that is not a valid TokenReview is an error: it must never authenticate a client.

use std::collections::BTreeMap;

use portcullis_http::https_client::HttpsResponse;
use portcullis_http::webhook::{self, ObjectOnly, WebhookError, or_null, read_review, truncated};
use serde::{Deserialize, Serialize};

use super::settings::TokenReviewVersion;
use crate::authn::{Audience, BearerToken};

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

/// Encodes the TokenReview for a token.
pub(super) fn request_body(
    version: TokenReviewVersion,
    token: &BearerToken,
    audiences: &[Audience],
) -> Result<Vec<u8>, WebhookError> {
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
        .map_err(|_| WebhookError::permanent("the TokenReview cannot be encoded as JSON"))
}

/// Decodes a response.
pub(super) fn read(
    version: TokenReviewVersion,
    token: &BearerToken,
    answer: &HttpsResponse,
) -> Result<ReviewedStatus, WebhookError> {
    read_review(answer, "TokenReview", version.api_version(), Some(token.expose()))
}

/// A text without the token, of at most the size that an error quotes.
pub(super) fn redacted(token: &BearerToken, text: &str) -> String {
    truncated(webhook::redacted(Some(token.expose()), text))
}

#[cfg(test)]
mod tests;
