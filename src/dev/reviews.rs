//! The questions that the embedded backend answers: who am I, and what may I do.

use serde_json::{Map, Value, json};

use super::access;
use super::ask::Ask;
use super::json::{at, set, text};
use super::objects;
use crate::http::status::{Attempt, AttemptTarget, Status};
use crate::user::UserInfo;

/// Answers a review; the answer is the question with a status.
pub(super) fn answer(ask: &Ask<'_>) -> Result<Value, Status> {
    let mut review = objects::placed(ask, objects::parse(ask)?)?;
    let status = if ask.resource.plural == "selfsubjectreviews" {
        set(&mut review, "/metadata/creationTimestamp", ask.store.now().to_string());
        json!({"userInfo": user_info(ask.user)})
    } else {
        json!({"allowed": decide(ask.user, at(&review, "/spec"))})
    };
    set(&mut review, "/status", status);
    Ok(review)
}

/// A user, as reviews and signing requests show one.
pub(super) fn user_info(user: &UserInfo) -> Map<String, Value> {
    let info = [
        ("username", json!(user.name)),
        ("uid", json!(user.uid)),
        ("groups", json!(user.groups)),
        ("extra", json!(user.extra)),
    ];
    let known = info.into_iter().filter(|(_, value)| !value.is_null() && *value != json!({}));
    known.map(|(field, value)| (field.to_owned(), value)).collect()
}

fn decide(user: &UserInfo, spec: &Value) -> bool {
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
    access::may(user, &Attempt { user: &user.name, verb, on })
}
