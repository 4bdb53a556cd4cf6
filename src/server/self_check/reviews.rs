//! Whether the gateway may ask the API server who may impersonate whom. Without the right it refuses every impersonation.

use http::StatusCode;
use portcullis_http::identity::IdentityMode;
use portcullis_kubernetes::reviews::is_allowed;
use portcullis_kubernetes::user::UserInfo;
use serde_json::json;

use crate::backend::probe::ProbeClient;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Asks the API server; `None` if it does not say.
pub(super) async fn may_ask(client: &ProbeClient, identity: IdentityMode) -> Option<bool> {
    let portcullis = UserInfo::portcullis();
    let user = (identity == IdentityMode::RequestHeader).then_some(&portcullis);
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {
            "verb": "create", "group": "authorization.k8s.io", "version": "v1", "resource": "subjectaccessreviews",
        }},
    });
    let (status, body) = client.send(user, REVIEWS, Some(review.to_string())).await.ok()?;
    if status != StatusCode::CREATED {
        return None;
    }
    is_allowed(&body).ok()
}
