//! Creates, updates, patches, applies and deletes objects, and answers reviews: the part of kube-apiserver's registry
//! that kubectl needs. Strategic merge and server-side apply are JSON merge patches here.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use json_patch::merge;
use portcullis_go::json::JsonValue;
use portcullis_go::time;
use portcullis_kubernetes::status::{Attempt, AttemptTarget, Reason, Status};
use portcullis_kubernetes::user::UserInfo;
use serde_json::{Value, json};

use super::json::{set, text};
use super::request::ResourceRequest;
use super::resources::{NAMESPACES, SECRETS, SIGNING_REQUESTS, SUBJECT_ACCESS_REVIEWS};
use super::store::{ObjectKey, ObjectStore, StoreState};
use super::{auth, protobuf};

/// The status code, and the object or `Status`.
type WriteResult = Result<(u16, Arc<Value>), Status>;

const INITIAL_NAMESPACES: &[&str] = &["default", "kube-node-lease", "kube-public", "kube-system"];
const APPLY: &str = "application/apply-patch+yaml";

/// Creates the initial namespaces, and these.
pub(super) fn seed(store: &ObjectStore, further: &[&'static str]) {
    for &name in INITIAL_NAMESPACES.iter().chain(further) {
        let mut object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        set_initial_fields(store, NAMESPACES, &mut object);
        store.read().put(namespace_key(name), object, false);
    }
}

/// Executes a create, update, patch or delete.
pub(super) fn write(request: &ResourceRequest) -> WriteResult {
    // The options of a delete are optional.
    let body = if request.body.is_empty() { Value::Null } else { parse(request)? };
    let delete_option = if request.verb == "delete" { text(&body, "/dryRun/0") } else { "" };
    let dry_run = request.parameter("dryRun") == "All" || delete_option == "All";
    let written = request.store.write(dry_run, |state| {
        let is_apply = request.media_type == APPLY && request.subresource.is_empty();
        match (&*request.verb, state.get(&request.key(&request.name))) {
            ("create", _) => create(request, state, body),
            ("patch", None) if is_apply => create(request, state, body),
            (_, None) => Err(request.resource.not_found(&request.name)),
            ("delete", Some(old)) => Ok(delete(request, state, &old)),
            ("patch", Some(old)) => update(request, state, &old, patched(request, &old, body)?),
            (_, Some(old)) => update(request, state, &old, body),
        }
    })?;
    Ok(if dry_run { rehearsed(request, written) } else { written })
}

/// The result of a dry run: with the version of the stored object, and of a creation with none.
// apiserver: pkg/registry/generic/registry/dryrun.go
fn rehearsed(request: &ResourceRequest, (code, object): (u16, Arc<Value>)) -> (u16, Arc<Value>) {
    if text(&object, "/kind") != request.resource.kind {
        return (code, object);
    }
    let stored = request.store.read().get(&request.key(text(&object, "/metadata/name")));
    let version = stored.and_then(|stored| stored.pointer("/metadata/resourceVersion").cloned());
    let mut object = Value::clone(&object);
    set(&mut object, "/metadata/resourceVersion", version);
    (code, Arc::new(object))
}

/// Answers a `SelfSubjectReview`, a `SelfSubjectAccessReview` or a `SubjectAccessReview`.
pub(super) fn review(request: &ResourceRequest) -> WriteResult {
    let mut review = validated(request, parse(request)?)?;
    // A client's own status must not become part of the answer.
    set(&mut review, "/status", Value::Null);
    if request.resource.plural == "selfsubjectreviews" {
        set(&mut review, "/metadata/creationTimestamp", time::format_since_epoch(request.store.clock.now()));
        set(&mut review, "/status/userInfo", user_info(&request.user));
    } else {
        let is_of_another = request.resource.plural == SUBJECT_ACCESS_REVIEWS;
        let subject = is_of_another.then(|| subject(&review));
        let allowed = is_allowed(subject.as_ref().unwrap_or(&request.user), &review);
        set(&mut review, "/status/allowed", allowed);
    }
    Ok((201, Arc::new(review)))
}

/// The user as in reviews and signing requests. It is a merge patch: absent fields are null.
fn user_info(user: &UserInfo) -> Value {
    let extra = (!user.extra.is_empty()).then_some(&user.extra);
    json!({"username": user.name, "uid": user.uid, "groups": user.groups, "extra": extra})
}

/// The user whom a `SubjectAccessReview` is about.
fn subject(review: &Value) -> UserInfo {
    let groups = review.pointer("/spec/groups").and_then(Value::as_array).into_iter().flatten();
    let groups = groups.filter_map(Value::as_str).map(str::to_owned).collect();
    UserInfo { groups, ..UserInfo::named(text(review, "/spec/user")) }
}

fn is_allowed(user: &UserInfo, review: &Value) -> bool {
    let field = |name: &str| text(review, &format!("/spec/resourceAttributes/{name}"));
    let path = review.pointer("/spec/nonResourceAttributes").filter(|path| path.is_object());
    let (verb, on) = if let Some(path) = path {
        (text(path, "/verb"), AttemptTarget::Path(text(path, "/path")))
    } else {
        let [group, resource, subresource, name] = ["group", "resource", "subresource", "name"].map(field);
        // As in `RequestInfo`, a namespace is in itself.
        let namespace = if resource == NAMESPACES { name } else { field("namespace") };
        (field("verb"), AttemptTarget::Resource { group, resource, subresource, namespace, name })
    };
    auth::may(user, &Attempt { user: &user.name, verb, on })
}

/// Parses a body: an object or a patch, in protobuf or JSON, which `kubectl apply` declares as YAML.
fn parse(request: &ResourceRequest) -> Result<Value, Status> {
    if request.media_type == "application/vnd.kubernetes.protobuf" {
        let object = protobuf::decode(&request.body);
        return object.ok_or_else(|| request.resource.unreadable("unknown type, or malformed protobuf"));
    }
    let body = serde_json::from_slice::<JsonValue>(&request.body);
    body.map(|JsonValue(body)| body).map_err(|error| request.resource.unreadable(error))
}

/// Completes an object with the fields that the path implies, and removes unknown fields. A field that contradicts the
/// path is an error.
fn validated(request: &ResourceRequest, mut object: Value) -> Result<Value, Status> {
    if !object.is_object() {
        return Err(request.resource.unreadable("not an object"));
    }
    let implied = [
        ("/apiVersion", request.resource.api_version),
        ("/kind", request.resource.kind),
        ("/metadata/namespace", &request.namespace),
        ("/metadata/name", &request.name),
    ];
    for (field, value) in implied.into_iter().filter(|(_, value)| !value.is_empty()) {
        let given = text(&object, field);
        if given.is_empty() {
            set(&mut object, field, value);
        } else if given != value {
            return Err(Status::bad_request(format!(
                "{field} of the object ({given}) does not match that of the request ({value})"
            )));
        }
    }
    set(&mut object, "/metadata/managedFields", Value::Null);
    (request.resource.roundtrip)(object).map_err(|error| request.resource.unreadable(error))
}

fn create(request: &ResourceRequest, state: &mut StoreState, body: Value) -> WriteResult {
    let (resource, mut object) = (request.resource, validated(request, body)?);
    let name = text(&object, "/metadata/name").to_owned();
    if name.is_empty() {
        return Err(resource.unreadable("metadata.name is required"));
    }
    if resource.namespaced && state.get(&namespace_key(&request.namespace)).is_none() {
        return Err(Status::object_not_found("", NAMESPACES, &request.namespace));
    }
    if state.get(&request.key(&name)).is_some() {
        return Err(resource.refusal(Reason::AlreadyExists, &name, "", " already exists"));
    }
    if resource.plural == SIGNING_REQUESTS {
        // The server sets the requester and the status; the client's values have no effect.
        merge(&mut object, &json!({"status": null, "spec": {"extra": null}}));
        merge(&mut object, &json!({"status": {}, "spec": user_info(&request.user)}));
    }
    set_initial_fields(&request.store, resource.plural, &mut object);
    Ok((201, state.put(request.key(&name), object, false)))
}

/// Sets the fields that the server sets at creation.
fn set_initial_fields(store: &ObjectStore, plural: &str, object: &mut Value) {
    let (uid, now) = (uuid::Uuid::new_v4().to_string(), time::format_since_epoch(store.clock.now()));
    merge(object, &json!({"metadata": {"uid": uid, "creationTimestamp": now}}));
    if plural == NAMESPACES {
        let labels = json!({"kubernetes.io/metadata.name": text(object, "/metadata/name")});
        merge(object, &json!({"metadata": {"labels": labels}, "spec": null, "status": null}));
        merge(object, &json!({"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}));
    }
    normalize_secret(plural, object);
}

fn normalize_secret(plural: &str, object: &mut Value) {
    if plural != SECRETS {
        return;
    }
    if text(object, "/type").is_empty() {
        set(object, "/type", "Opaque");
    }
    let plain = object.pointer_mut("/stringData").map(Value::take).unwrap_or_default();
    set(object, "/stringData", Value::Null);
    for (key, value) in plain.as_object().into_iter().flatten() {
        let encoded = STANDARD.encode(value.as_str().unwrap_or_default());
        merge(object, &json!({"data": {key: encoded}}));
    }
}

/// Applies a patch. The directives of a strategic merge remain as unknown fields, which the validation removes.
fn patched(request: &ResourceRequest, old: &Value, patch: Value) -> Result<Value, Status> {
    let mut object = old.clone();
    let invalid = |error: &dyn std::error::Error| Status::new(Reason::Invalid, error.to_string());
    if request.media_type == "application/json-patch+json" {
        let patch = serde_json::from_value::<json_patch::Patch>(patch).map_err(|error| invalid(&error))?;
        json_patch::patch(&mut object, &patch).map_err(|error| invalid(&error))?;
    } else {
        merge(&mut object, &patch);
    }
    Ok(object)
}

/// Replaces `old` by `body`, within the limits of the subresource.
fn update(request: &ResourceRequest, state: &mut StoreState, old: &Arc<Value>, body: Value) -> WriteResult {
    let (resource, mut new) = (request.resource, validated(request, body)?);
    let version = text(&new, "/metadata/resourceVersion");
    if !version.is_empty() && version != text(old, "/metadata/resourceVersion") {
        let before = "Operation cannot be fulfilled on ";
        let after =
            ": the object has been modified; please apply your changes to the latest version and try again";
        return Err(resource.refusal(Reason::Conflict, &request.name, before, after));
    }
    let mut kept = vec!["/metadata/uid", "/metadata/creationTimestamp", "/metadata/resourceVersion"];
    if request.subresource == "approval" {
        let conditions = new.pointer("/status/conditions").cloned();
        new = Value::clone(old);
        set(&mut new, "/status/conditions", conditions);
    } else if [NAMESPACES, SIGNING_REQUESTS].contains(&resource.plural) {
        // Immutable after the creation.
        kept.extend(["/spec", "/status"]);
    }
    for field in kept {
        set(&mut new, field, Value::Null);
        set(&mut new, field, old.pointer(field).cloned());
    }
    normalize_secret(resource.plural, &mut new);
    if new == **old {
        return Ok((200, Arc::clone(old)));
    }
    Ok((200, state.put(request.key(&request.name), new, false)))
}

/// Deletes an object; with a namespace, everything in it.
fn delete(request: &ResourceRequest, state: &mut StoreState, old: &Value) -> (u16, Arc<Value>) {
    let (resource, name) = (request.resource, &request.name);
    let key = request.key(name);
    state.delete_all(|other| *other == key || (resource.plural == NAMESPACES && other.namespace == *name));
    let uid = text(old, "/metadata/uid");
    let details = json!({"name": name, "group": resource.group, "kind": resource.plural, "uid": uid});
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
    });
    (200, Arc::new(status))
}

fn namespace_key(name: &str) -> ObjectKey {
    ObjectKey { plural: NAMESPACES, namespace: String::new(), name: name.to_owned() }
}
