//! The answers of an API server to questions about the client itself: `SelfSubjectReview` and `SelfSubjectAccessReview`.
//!
//! What the client posts is written where it is posted. A field that an API server leaves out has its zero value, as in client-go.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The user of a request, from a response to a `SelfSubjectReview` (`k8s.io/api/authentication/v1`).
///
/// # Errors
/// The body is no JSON object with a status and its user.
pub fn reviewed_user(body: &[u8]) -> Result<ReviewedUser, serde_json::Error> {
    serde_json::from_slice::<SelfSubjectReview>(body).map(|review| review.status.user_info)
}

/// Whether the client may do what it asked about, from a response to a `SelfSubjectAccessReview`
/// (`k8s.io/api/authorization/v1`).
///
/// # Errors
/// The body is no JSON object with a status.
pub fn is_allowed(body: &[u8]) -> Result<bool, serde_json::Error> {
    serde_json::from_slice::<SelfSubjectAccessReview>(body).map(|review| review.status.allowed)
}

/// The user as an API server authenticated it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ReviewedUser {
    /// The user name.
    pub username: String,
    /// The UID; empty if the authenticator sets none.
    pub uid: String,
    /// The groups, in the authenticator's order.
    pub groups: Vec<String>,
    /// Further attributes.
    pub extra: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
struct SelfSubjectReview {
    status: SelfSubjectReviewStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SelfSubjectReviewStatus {
    user_info: ReviewedUser,
}

#[derive(Deserialize)]
struct SelfSubjectAccessReview {
    status: SelfSubjectAccessReviewStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SelfSubjectAccessReviewStatus {
    allowed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_a_review() {
        let body = br#"{"kind":"SelfSubjectReview","metadata":{},"status":{"userInfo":{"username":"jane","groups":["a","b"],"extra":{"k":["v"]}}}}"#;
        let user = reviewed_user(body).expect("a review");
        assert_eq!((user.username.as_str(), user.uid.as_str()), ("jane", ""));
        assert_eq!(user.groups, ["a", "b"]);
        assert_eq!(user.extra.get("k"), Some(&vec!["v".to_owned()]));
        assert!(reviewed_user(br#"{"kind":"Status","status":"Failure"}"#).is_err());
        assert!(reviewed_user(br#"{"kind":"SelfSubjectReview"}"#).is_err());
    }

    #[test]
    fn the_decision_of_an_access_review() {
        assert!(is_allowed(br#"{"status":{"allowed":true}}"#).expect("a review"));
        assert!(!is_allowed(br#"{"status":{"denied":true}}"#).expect("a review"));
        assert!(is_allowed(br#"{"kind":"Status","status":"Failure"}"#).is_err());
        assert!(is_allowed(b"{}").is_err());
    }
}
