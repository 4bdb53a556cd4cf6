//! Reviews, which the API server answers and does not store: no webhook sees them, whatever its rules.
// kubernetes: pkg/kubeapiserver/admission/exclusion/resources.go

use serde_json::{Value, json};

use super::by_admin;
use crate::case::Case;

const AUTHORIZATION: &str = "/apis/authorization.k8s.io/v1";
const AUTHENTICATION: &str = "/apis/authentication.k8s.io/v1";

/// The kinds, each with what it asks. Metadata is not permitted in all of them, so the answers of webhooks are in what is asked.
fn kinds(asks: &str) -> Vec<(&'static str, String, Value)> {
    let asked = format!("{asks}{{unique}}");
    let attributes = json!({"verb": "get", "resource": asked});
    let namespaced = json!({"verb": "get", "resource": asked, "namespace": "twin"});
    vec![
        (
            "SelfSubjectAccessReview",
            format!("{AUTHORIZATION}/selfsubjectaccessreviews"),
            json!({"spec": {"resourceAttributes": attributes}}),
        ),
        (
            "SubjectAccessReview",
            format!("{AUTHORIZATION}/subjectaccessreviews"),
            json!({"spec": {"user": "alice", "groups": ["devs"], "resourceAttributes": attributes}}),
        ),
        (
            "LocalSubjectAccessReview",
            format!("{AUTHORIZATION}/namespaces/twin/localsubjectaccessreviews"),
            json!({"metadata": {"namespace": "twin"}, "spec": {"user": "alice", "resourceAttributes": namespaced}}),
        ),
        (
            "SelfSubjectRulesReview",
            format!("{AUTHORIZATION}/selfsubjectrulesreviews"),
            json!({"spec": {"namespace": asked}}),
        ),
        ("TokenReview", format!("{AUTHENTICATION}/tokenreviews"), json!({"spec": {"token": asked}})),
        (
            "SelfSubjectReview",
            format!("{AUTHENTICATION}/selfsubjectreviews"),
            json!({"metadata": {"annotations": {"asks": asked}}}),
        ),
    ]
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, asks) in [
        ("a webhook would allow it", ""),
        ("a webhook would change it", "m1=label;"),
        ("a webhook would deny it", "v1=deny;"),
        ("a webhook would fail", "v1=code-500;"),
    ] {
        for (kind, target, mut object) in kinds(asks) {
            object["apiVersion"] = json!(target.split('/').skip(2).take(2).collect::<Vec<_>>().join("/"));
            object["kind"] = json!(kind);
            let case = by_admin(&format!("a {kind}: {what}"), "POST", &target).json(&object.to_string());
            let case = case.answers(201).unreviewed();
            cases.push(match kind {
                "SelfSubjectRulesReview" => case.any_body("the rules have no order"),
                _ => case,
            });
        }
    }
    cases
}
