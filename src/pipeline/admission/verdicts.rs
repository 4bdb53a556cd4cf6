//! Reviews as webhooks see them: what the client asks, and no verdict. The API server asks webhooks before it decides; a dry run
//! answers with the decision.
//!
//! The responses to a `SelfSubjectRulesReview` and a `SelfSubjectReview` do not repeat what was asked.
// kubernetes: pkg/registry/authentication, pkg/registry/authorization; api: authentication/v1, authorization/v1, types.go

use serde_json::{Map, Value, json};

use super::reviewer::kind_of;

/// The kinds whose responses are the verdict alone.
const VERDICTS_ALONE: [&str; 2] = ["SelfSubjectRulesReview", "SelfSubjectReview"];

/// The `status` of a review that is not decided; `None` if the object is no review.
fn undecided(object: &Value) -> Option<Value> {
    let kind = kind_of(object);
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("authentication.k8s.io", "TokenReview") => Some(json!({"user": {}})),
        ("authentication.k8s.io", "SelfSubjectReview") => Some(json!({"userInfo": {}})),
        (
            "authorization.k8s.io",
            "SubjectAccessReview" | "SelfSubjectAccessReview" | "LocalSubjectAccessReview",
        ) => Some(json!({"allowed": false})),
        ("authorization.k8s.io", "SelfSubjectRulesReview") => {
            Some(json!({"incomplete": false, "nonResourceRules": null, "resourceRules": null}))
        }
        _ => None,
    }
}

/// Whether the API server answers the creation of the object with a verdict, and stores nothing.
pub(super) fn is_review(object: &Value) -> bool {
    undecided(object).is_some()
}

/// Whether the response to this review leaves out what was asked.
pub(super) fn leaves_out_the_question(object: &Value) -> bool {
    is_review(object) && VERDICTS_ALONE.contains(&kind_of(object).kind.as_str())
}

/// Takes the verdict out of a review; `asked` has what its response leaves out.
pub(super) fn take_verdict(object: &mut Value, asked: Option<&Value>) {
    let Some(status) = undecided(object) else { return };
    let Some(fields) = object.as_object_mut() else { return };
    fields.insert("status".to_owned(), status);
    for field in ["metadata", "spec"] {
        let Some(asked) = asked else { return };
        let asked = asked.get(field).filter(|asked| asked.is_object()).cloned();
        if let Some(asked) = asked {
            fields.insert(field.to_owned(), asked);
        } else if let Some(answered) = fields.get_mut(field) {
            *answered = Value::Object(Map::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(kind: &str) -> Value {
        let group = if matches!(kind, "TokenReview" | "SelfSubjectReview") {
            "authentication.k8s.io"
        } else {
            "authorization.k8s.io"
        };
        json!({"apiVersion": format!("{group}/v1"), "kind": kind, "metadata": {"name": "x"}, "spec": {"a": 1},
            "status": {"allowed": true, "authenticated": true, "resourceRules": []}})
    }

    #[test]
    fn no_review_has_a_verdict() {
        let table = [
            ("TokenReview", json!({"user": {}})),
            ("SubjectAccessReview", json!({"allowed": false})),
            ("SelfSubjectAccessReview", json!({"allowed": false})),
            ("LocalSubjectAccessReview", json!({"allowed": false})),
        ];
        for (kind, status) in table {
            let mut object = review(kind);
            assert!(is_review(&object) && !leaves_out_the_question(&object), "{kind}");
            take_verdict(&mut object, None);
            assert_eq!((&object["status"], &object["spec"]), (&status, &json!({"a": 1})), "{kind}");
        }
    }

    #[test]
    fn a_verdict_alone_has_what_the_client_asked() {
        let mut object = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
            "metadata": {}, "spec": {}, "status": {"incomplete": true, "resourceRules": [{}]}});
        assert!(leaves_out_the_question(&object));
        take_verdict(&mut object, Some(&json!({"metadata": null, "spec": {"namespace": "n"}})));
        assert_eq!(object["spec"], json!({"namespace": "n"}));
        assert_eq!(object["metadata"], json!({}));
        assert_eq!(object["status"]["incomplete"], json!(false));
        let mut object = review("SelfSubjectReview");
        object.as_object_mut().unwrap().remove("spec");
        assert!(leaves_out_the_question(&object));
        take_verdict(&mut object, Some(&json!({"metadata": {"labels": {"a": "b"}}})));
        assert_eq!(object["metadata"], json!({"labels": {"a": "b"}}));
        assert_eq!((object.get("spec"), &object["status"]), (None, &json!({"userInfo": {}})));
    }

    #[test]
    fn other_objects_keep_their_status() {
        let mut object = json!({"apiVersion": "v1", "kind": "TokenReview", "status": {"a": 1}});
        take_verdict(&mut object, None);
        assert!(!is_review(&object));
        assert_eq!(object["status"], json!({"a": 1}));
    }
}
