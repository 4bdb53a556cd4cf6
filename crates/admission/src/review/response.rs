//! The responses of webhooks: decoded as kube-apiserver's client decodes them, then verified.
//!
//! Three differences: a response in YAML or protobuf is not accepted, a malformed `Content-Type` is, and a `request` in the
//! response is ignored even if it is invalid.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use portcullis_go::quote::Quoted;
use portcullis_kubernetes::rest::{self, MAX_ERROR_TEXT};

use super::decode::{self, Review};
use crate::{ReviewVersion, WebhookKind, WebhookResponse};

/// A response that may be used.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReviewResponse {
    /// Whether the request is allowed.
    pub allowed: bool,
    /// Why not.
    pub result: Option<Status>,
    /// The patch, not yet decoded; empty if there is none.
    pub patch: Vec<u8>,
    /// The type of the patch; [`JSON_PATCH`] is the only one that is supported.
    pub patch_type: String,
    /// Audit annotations, by keys without the name of the webhook.
    pub audit_annotations: BTreeMap<String, String>,
    /// Warnings for the client.
    pub warnings: Vec<String>,
}

/// The type of JSON patches.
pub const JSON_PATCH: &str = "JSONPatch";

/// Why a response cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ReviewError {
    /// The text after `failed calling webhook "…": `.
    pub text: String,
    /// The code in metrics.
    pub code: u16,
}

impl ReviewResponse {
    /// Decodes and verifies a response.
    pub fn read(
        version: ReviewVersion,
        kind: WebhookKind,
        uid: &str,
        response: &WebhookResponse,
    ) -> Result<Self, ReviewError> {
        let review = read_review(version, response)
            .map_err(|(text, code)| ReviewError { text: format!("failed to call webhook: {text}"), code })?;
        verify(version, kind, uid, review).map_err(|text| ReviewError {
            text: format!("received invalid webhook response: {text}"),
            code: 503,
        })
    }
}

// client-go: rest/request.go, transformResponse, Result.Into and Result.Error
fn read_review(version: ReviewVersion, response: &WebhookResponse) -> Result<Review, (String, u16)> {
    let WebhookResponse { status, content_type, body } = response;
    if !rest::is_success(*status) {
        let failure = if body.is_empty() { None } else { decode::failure(body) };
        return Err(match failure {
            Some(failure) => {
                let code = failure.code.and_then(|code| u16::try_from(code).ok()).unwrap_or_default();
                (failure.message.unwrap_or_default(), code)
            }
            None => (http_error(*status, content_type, body), *status),
        });
    }
    if body.is_empty() {
        return Err((rest::empty_response(*status, content_type), 503));
    }
    decode::review(version, body).map_err(|text| (text, 503))
}

/// The error of a failure whose body is not a `Status`: client-go quotes text only.
fn http_error(status: u16, content_type: &str, body: &[u8]) -> String {
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_text = media_type.is_empty() || media_type.starts_with("text/");
    let text = String::from_utf8_lossy(body.get(..MAX_ERROR_TEXT).unwrap_or(body));
    rest::error_of_status_code(status, if is_text { text.trim() } else { rest::UNKNOWN_TEXT })
}

// apiserver: pkg/admission/plugin/webhook/request/admissionreview.go, VerifyAdmissionResponse
fn verify(
    version: ReviewVersion,
    kind: WebhookKind,
    uid: &str,
    review: Review,
) -> Result<ReviewResponse, String> {
    let response = review.response.ok_or("webhook response was absent")?;
    let mut patch_type = String::new();
    let mut patch = response.patch;
    if version == ReviewVersion::V1Beta1 {
        // Neither UID nor type are compared, and every patch is a JSON patch.
        match kind {
            WebhookKind::Validating => patch.clear(),
            WebhookKind::Mutating if patch.is_empty() => {}
            WebhookKind::Mutating => JSON_PATCH.clone_into(&mut patch_type),
        }
    } else {
        if response.uid != uid {
            return Err(format!("expected response.uid={}, got {}", Quoted(uid), Quoted(&response.uid)));
        }
        if review.api_version != version.api_version() || review.kind != "AdmissionReview" {
            let (group, version) = match review.api_version.split_once('/') {
                Some((group, version)) => (group, version),
                None => ("", review.api_version.as_str()),
            };
            let kind = review.kind;
            return Err(format!(
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {group}/{version}, Kind={kind}"
            ));
        }
        match (kind, patch.is_empty(), response.patch_type) {
            (_, true, None) => {}
            (WebhookKind::Validating, false, _) => {
                return Err("validating webhook may not return response.patch".to_owned());
            }
            (WebhookKind::Validating, true, Some(_)) => {
                return Err("validating webhook may not return response.patchType".to_owned());
            }
            (WebhookKind::Mutating, false, None) => {
                return Err("webhook returned response.patch but not response.patchType".to_owned());
            }
            (WebhookKind::Mutating, true, Some(_)) => {
                return Err("webhook returned response.patchType but not response.patch".to_owned());
            }
            (WebhookKind::Mutating, false, Some(found)) if found.is_empty() => {
                return Err("webhook returned invalid response.patchType of \"\"".to_owned());
            }
            (WebhookKind::Mutating, false, Some(found)) => patch_type = found,
        }
    }
    Ok(ReviewResponse {
        allowed: response.allowed,
        result: response.result,
        patch,
        patch_type,
        audit_annotations: response.audit_annotations,
        warnings: response.warnings,
    })
}
