//! The `SubjectAccessReview` wire format.

use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use portcullis_http::https_client::HttpsResponse;
use portcullis_http::webhook::{ObjectOnly, WebhookError, or_null, read_review, redacted};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::authz::cached_reviews::AccessReviewStatus;
use crate::authz::settings::SubjectAccessReviewVersion;

/// Encodes an access review. Empty fields are left out, as Go does.
pub(super) fn request_body(
    version: SubjectAccessReviewVersion,
    spec: &SubjectAccessReviewSpec,
) -> Result<Vec<u8>, WebhookError> {
    let broken = |error: serde_json::Error| WebhookError::permanent(error.to_string());
    let mut spec = serde_json::to_value(spec).map_err(broken)?;
    if let Value::Object(fields) = &mut spec {
        fields.retain(|_, value| match value {
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            Value::Object(items) => !items.is_empty(),
            _ => true,
        });
        if version == SubjectAccessReviewVersion::V1Beta1
            && let Some(groups) = fields.remove("groups")
        {
            fields.insert("group".to_owned(), groups);
        }
    }
    let review = json!({
        "kind": "SubjectAccessReview",
        "apiVersion": version.api_version(),
        "metadata": {},
        "spec": spec,
        "status": {"allowed": false},
    });
    serde_json::to_vec(&review).map_err(broken)
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewedStatus {
    #[serde(deserialize_with = "or_null")]
    allowed: bool,
    #[serde(deserialize_with = "or_null")]
    denied: bool,
    #[serde(deserialize_with = "or_null")]
    reason: String,
    /// Of no effect, but of this type.
    #[serde(deserialize_with = "or_null", rename = "evaluationError")]
    _evaluation_error: String,
    #[serde(flatten)]
    _object: ObjectOnly,
}

/// Decodes a response. `bearer` is the gateway's credential, which no text of the webhook passes on.
pub(super) fn read(
    version: SubjectAccessReviewVersion,
    bearer: Option<&str>,
    response: &HttpsResponse,
) -> Result<AccessReviewStatus, WebhookError> {
    let (kind, version) = ("SubjectAccessReview", version.api_version());
    let status = read_review::<ReviewedStatus>(response, kind, version, bearer)?;
    let ReviewedStatus { allowed, denied, reason, .. } = status;
    Ok(AccessReviewStatus { allowed, denied, reason: redacted(bearer, &reason) })
}

/// The length of the attributes that a client controls.
// webhook.go, shouldCache
pub(super) fn attributes_length(spec: &SubjectAccessReviewSpec) -> usize {
    let resource = spec.resource_attributes.iter().flat_map(|on| {
        [&on.namespace, &on.verb, &on.group, &on.version, &on.resource, &on.subresource, &on.name]
    });
    let path = spec.non_resource_attributes.iter().flat_map(|on| [&on.path, &on.verb]);
    resource.chain(path).flatten().map(String::len).sum()
}
