//! Reviews, which the API server answers and does not store: webhooks see what the client asks, without a verdict.

use serde_json::{Value, json};

use super::by_admin;
use crate::case::Case;

/// The kinds, each with what it asks. Metadata is not permitted in all of them, so the answers of webhooks are in what is asked.
fn kinds(asks: &str) -> Vec<(&'static str, &'static str, Value)> {
    let asked = format!("{asks}{{unique}}");
    let attributes = json!({"verb": "get", "resource": asked});
    vec![
        (
            "authorization.k8s.io",
            "SelfSubjectAccessReview",
            json!({"spec": {"resourceAttributes": attributes}}),
        ),
        (
            "authorization.k8s.io",
            "SubjectAccessReview",
            json!({"spec": {"user": "alice", "groups": ["devs"], "resourceAttributes": attributes}}),
        ),
        ("authorization.k8s.io", "SelfSubjectRulesReview", json!({"spec": {"namespace": asked}})),
        ("authentication.k8s.io", "TokenReview", json!({"spec": {"token": asked}})),
        ("authentication.k8s.io", "SelfSubjectReview", json!({"metadata": {"annotations": {"asks": asked}}})),
    ]
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, asks, denied) in
        [("allowed", "", false), ("changed", "m1=label;", false), ("denied", "v1=deny;", true)]
    {
        for (group, kind, mut object) in kinds(asks) {
            object["apiVersion"] = json!(format!("{group}/v1"));
            object["kind"] = json!(kind);
            // The API server permits these no labels.
            let is_invalid = what == "changed" && kind.ends_with("SubjectAccessReview");
            let status = match () {
                () if denied => 403,
                () if is_invalid => 422,
                () => 201,
            };
            let target = format!("/apis/{group}/v1/{}s", kind.to_lowercase());
            let case = by_admin(&format!("a {kind}: {what}"), "POST", &target).json(&object.to_string());
            let case = case.answers(status);
            cases.push(match kind {
                // The response quotes them.
                _ if is_invalid => case.declared("D-admission-managed-fields", 422),
                "SelfSubjectRulesReview" if !denied => case.any_body("the rules have no order"),
                _ => case,
            });
        }
    }
    cases
}
