//! The questions that the embedded backend answers: who am I, and what may I do.

use serde_json::{Value, json};

use super::access;
use super::ask::Ask;
use super::json::{at, set, text};
use super::objects;
use crate::status::{Attempt, AttemptTarget, Status};
use crate::user::UserInfo;

/// Answers a review; the answer is the question with a status.
pub(super) fn answer(ask: &Ask<'_>) -> Result<Value, Status> {
    let mut review = objects::body(ask)?;
    let spec = at(&review, "/spec").clone();
    let status = match ask.resource.plural {
        "selfsubjectreviews" => {
            set(&mut review, "/metadata/creationTimestamp", ask.store.now().to_string());
            json!({"userInfo": user_info(ask.user)})
        }
        "selfsubjectaccessreviews" => decide(ask.user, &spec),
        "subjectaccessreviews" => {
            let groups = at(&spec, "/groups").as_array().into_iter().flatten();
            let groups = groups.filter_map(Value::as_str).map(str::to_owned).collect();
            decide(&UserInfo { groups, ..UserInfo::named(text(&spec, "/user")) }, &spec)
        }
        _ => access::rules(ask.user),
    };
    set(&mut review, "/status", status);
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

fn decide(user: &UserInfo, spec: &Value) -> Value {
    let path = at(spec, "/nonResourceAttributes");
    let attributes = at(spec, "/resourceAttributes");
    let resource = text(attributes, "/resource");
    let (verb, on) = if path.is_object() {
        (text(path, "/verb"), AttemptTarget::Path(text(path, "/path")))
    } else {
        let subresource = text(attributes, "/subresource");
        // As in a request, where a namespace is in itself.
        let namespace = text(attributes, if resource == "namespaces" { "/name" } else { "/namespace" });
        let (group, name) = (text(attributes, "/group"), text(attributes, "/name"));
        (text(attributes, "/verb"), AttemptTarget::Resource { group, resource, subresource, namespace, name })
    };
    json!({"allowed": access::may(user, &Attempt { user: &user.name, verb, on })})
}
