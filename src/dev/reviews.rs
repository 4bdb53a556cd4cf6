//! The questions that the embedded backend answers: who am I, and what may I do.

use serde_json::{Value, json};

use super::access::{self, Action};
use super::failure::Failure;
use super::json::{at, set, take, text};
use super::objects::{Call, json_body};
use crate::user::UserInfo;

/// Answers a review; the answer is the question with a status.
pub(super) fn answer(call: Call<'_>) -> Result<Value, Failure> {
    let mut review = json_body(call)?;
    let spec = take(&mut review, "spec");
    let status = match call.target.resource.plural {
        "selfsubjectreviews" => {
            set(
                &mut review,
                "/metadata/creationTimestamp",
                call.store.now().to_string(),
            );
            json!({"userInfo": user_info(call.user)})
        }
        "selfsubjectaccessreviews" => decide(call.user, &spec),
        "subjectaccessreviews" => decide(&asked_about(&spec), &spec),
        "selfsubjectrulesreviews" => access::rules(call.user),
        _ => return Err(Failure::method_not_allowed()),
    };
    if let Some(fields) = review.as_object_mut() {
        if !spec.is_null() {
            fields.insert("spec".to_owned(), spec);
        }
        fields.insert("status".to_owned(), status);
    }
    Ok(review)
}

fn user_info(user: &UserInfo) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if let Some(uid) = &user.uid {
        set(&mut info, "/uid", uid.as_str());
    }
    if !user.extra.is_empty() {
        set(&mut info, "/extra", json!(user.extra));
    }
    info
}

fn asked_about(spec: &Value) -> UserInfo {
    let groups = at(spec, "/groups").as_array().into_iter().flatten();
    UserInfo {
        groups: groups.filter_map(Value::as_str).map(str::to_owned).collect(),
        ..UserInfo::named(text(spec, "/user"))
    }
}

fn decide(user: &UserInfo, spec: &Value) -> Value {
    let text = |section: &str, field: &str| text(spec, &format!("/{section}/{field}")).to_owned();
    let allowed = if at(spec, "/nonResourceAttributes").is_object() {
        let section = "nonResourceAttributes";
        access::may_path(user, &text(section, "verb"), &text(section, "path"))
    } else {
        let section = "resourceAttributes";
        let resource = text(section, "resource");
        let namespace = text(
            section,
            if resource == "namespaces" {
                "name"
            } else {
                "namespace"
            },
        );
        access::may(
            user,
            Action {
                verb: &text(section, "verb"),
                resource: &resource,
                subresource: &text(section, "subresource"),
                namespace: &namespace,
            },
        )
    };
    json!({"allowed": allowed})
}
