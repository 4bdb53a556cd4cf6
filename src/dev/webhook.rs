//! The mutating webhook of `portcullis dev --full`: it annotates an object with the user who writes it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::https::{Body, Handler, json_response, response};
use crate::authn::ConnInfo;

/// The annotation.
pub(super) const ANNOTATION: &str = "demo.portcullis.dev/written-by";

const MAX_REVIEW_BYTES: usize = 8 << 20;

#[derive(Debug)]
pub(super) struct StampWebhook;

/// What the webhook reads of an `AdmissionReview`.
#[derive(Debug, Deserialize)]
struct Review {
    request: ReviewRequest,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewRequest {
    uid: String,
    user_info: ReviewUser,
    object: ReviewObject,
}

#[derive(Debug, Deserialize)]
struct ReviewUser {
    username: String,
}

#[derive(Debug, Deserialize)]
struct ReviewObject {
    metadata: ReviewMetadata,
}

#[derive(Debug, Deserialize)]
struct ReviewMetadata {
    annotations: Option<IgnoredAny>,
}

impl Handler for StampWebhook {
    async fn respond(&self, _: &ConnInfo, request: Request<Incoming>) -> Response<Body> {
        let body = Limited::new(request.into_body(), MAX_REVIEW_BYTES).collect().await;
        match body.ok().and_then(|body| serde_json::from_slice::<Review>(&body.to_bytes()).ok()) {
            Some(review) => json_response(200, &answer(&review)),
            None => response(400, "text/plain", Full::from("not an AdmissionReview\n").boxed_unsync()),
        }
    }
}

fn answer(Review { request }: &Review) -> Value {
    let path = format!("/metadata/annotations/{}", ANNOTATION.replace('/', "~1"));
    let mut patch = vec![json!({"op": "add", "path": path, "value": request.user_info.username})];
    if request.object.metadata.annotations.is_none() {
        patch.insert(0, json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
    }
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {
            "uid": request.uid,
            "allowed": true,
            "patchType": "JSONPatch",
            "patch": STANDARD.encode(Value::from(patch).to_string()),
        },
    })
}
