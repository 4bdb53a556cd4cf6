//! Create, update, patch, apply and delete in the embedded backend: the part of kube-apiserver's registry that kubectl
//! shows. Strategic merge and server-side apply are done as JSON merge patches.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::ask::Ask;
use super::json::{at, set, text};
use super::protobuf;
use super::resources::{Does, NAMESPACES, SIGNING_REQUESTS};
use super::reviews::user_info;
use super::store::{Key, State, Store};
use crate::go::json::JsonValue;
use crate::http::status::{Reason, Status};

/// The answer to a change: the code, and the object or `Status`.
type Done = Result<(u16, Arc<Value>), Status>;

const INITIAL_NAMESPACES: &[&str] = &["default", "kube-node-lease", "kube-public", "kube-system"];

/// Fills an empty store.
pub(super) fn seed(store: &Store) {
    for &name in INITIAL_NAMESPACES {
        let mut object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        complete(store, NAMESPACES, &mut object);
        store.read().put(namespace_key(name), object, false);
    }
}

/// Creates, updates, patches or deletes, as the verb says.
pub(super) fn write(ask: &Ask<'_>) -> Done {
    // Deletions may come without options.
    let given = if ask.body.is_empty() { Value::Null } else { parse(ask)? };
    let option = if ask.verb == "delete" { text(&given, "/dryRun/0") } else { "" };
    let for_show = ask.parameter("dryRun") == "All" || option == "All";
    ask.store.write(for_show, |state| {
        let applying = ask.media_type == APPLY && ask.subresource.is_empty();
        match (ask.verb, state.get(&ask.key(ask.name))) {
            ("create", _) => create(ask, state, given),
            ("patch", None) if applying => create(ask, state, given),
            (_, None) => Err(ask.resource.not_found(ask.name)),
            ("delete", Some(old)) => Ok(delete(ask, state, &old)),
            ("patch", Some(old)) => change(ask, state, &old, patched(ask, &old, given)?),
            (_, Some(old)) => change(ask, state, &old, given),
        }
    })
}

/// Decodes a body, JSON (patches too) or protobuf.
pub(super) fn parse(ask: &Ask<'_>) -> Result<Value, Status> {
    match ask.media_type {
        "application/vnd.kubernetes.protobuf" => protobuf::decode(ask.body)
            .ok_or_else(|| ask.resource.unreadable("not a type that kubectl sends so")),
        // `kubectl apply` says YAML and sends JSON, which is YAML.
        json if json.is_empty() || json.ends_with("json") || json == APPLY => {
            let body = serde_json::from_slice::<JsonValue>(ask.body);
            body.map(|JsonValue(body)| body).map_err(|error| ask.resource.unreadable(error))
        }
        _ => {
            Err(Status::new(Reason::UnsupportedMediaType, "the body of the request was in an unknown format"))
        }
    }
}

/// Fills in the fields that the path gives; an object that contradicts its path is refused.
pub(super) fn placed(ask: &Ask<'_>, mut object: Value) -> Result<Value, Status> {
    if !object.is_object() {
        return Err(ask.resource.unreadable("not an object"));
    }
    for (path, asked) in [
        ("/apiVersion", &*ask.resource.api_version()),
        ("/kind", ask.resource.kind),
        ("/metadata/namespace", ask.namespace),
        ("/metadata/name", ask.name),
    ] {
        let given = text(&object, path);
        if asked.is_empty() || given == asked {
            continue;
        }
        if !given.is_empty() {
            let message =
                format!("{path} of the object ({given}) does not match that of the request ({asked})");
            return Err(Status::bad_request(message));
        }
        set(&mut object, path, asked);
    }
    Ok(object)
}

/// Makes sure of the place and the type of an object.
fn check(ask: &Ask<'_>, given: Value) -> Result<Value, Status> {
    let Does::Store(roundtrip, _) = ask.resource.does else {
        return Err(Status::method_not_allowed());
    };
    let mut object = placed(ask, given)?;
    object.pointer_mut("/metadata").map(|metadata| take(metadata, "managedFields"));
    roundtrip(object).map_err(|error| ask.resource.unreadable(error))
}

fn create(ask: &Ask<'_>, state: &mut State, given: Value) -> Done {
    let (resource, mut object) = (ask.resource, check(ask, given)?);
    let name = text(&object, "/metadata/name").to_owned();
    if name.is_empty() {
        return Err(ask.resource.unreadable("metadata.name is required"));
    }
    let namespace = namespace_key(ask.namespace);
    if resource.namespaced && state.get(&namespace).is_none() {
        return Err(Status::object_not_found("", NAMESPACES, ask.namespace));
    }
    if state.get(&ask.key(&name)).is_some() {
        return Err(resource.refusal(Reason::AlreadyExists, &name, "", " already exists"));
    }
    if resource.plural == SIGNING_REQUESTS {
        // The requester of a certificate is the user of the request, whatever the object says, and a new object is not
        // approved.
        set(&mut object, "/status", json!({}));
        if let Some(spec) = object.pointer_mut("/spec").and_then(Value::as_object_mut) {
            spec.retain(|field, _| !["username", "groups", "uid", "extra"].contains(&field.as_str()));
            spec.extend(user_info(ask.user));
        }
    }
    complete(ask.store, resource.plural, &mut object);
    Ok((201, state.put(ask.key(&name), object, false)))
}

/// Fills in the fields that the server sets when an object is made.
fn complete(store: &Store, plural: &str, object: &mut Value) {
    set(object, "/metadata/uid", uuid::Uuid::new_v4().to_string());
    set(object, "/metadata/creationTimestamp", store.now().to_string());
    if plural == NAMESPACES {
        let name = at(object, "/metadata/name").clone();
        set(object, "/metadata/labels/kubernetes.io~1metadata.name", name);
        set(object, "/spec", json!({"finalizers": ["kubernetes"]}));
        set(object, "/status", json!({"phase": "Active"}));
    }
    normalize_secret(plural, object);
}

fn normalize_secret(plural: &str, object: &mut Value) {
    if plural != "secrets" {
        return;
    }
    if text(object, "/type").is_empty() {
        set(object, "/type", "Opaque");
    }
    for (key, value) in take(object, "stringData").as_object().into_iter().flatten() {
        set(object, &format!("/data/{key}"), STANDARD.encode(value.as_str().unwrap_or_default()));
    }
}

const APPLY: &str = "application/apply-patch+yaml";

/// Applies a patch. The directives of a strategic merge are fields that no type has, and go with them.
fn patched(ask: &Ask<'_>, old: &Value, patch: Value) -> Result<Value, Status> {
    let mut object = old.clone();
    let unfit = |error: &dyn std::error::Error| Status::new(Reason::Invalid, error.to_string());
    if ask.media_type == "application/json-patch+json" {
        let patch = serde_json::from_value::<json_patch::Patch>(patch).map_err(|error| unfit(&error))?;
        json_patch::patch(&mut object, &patch).map_err(|error| unfit(&error))?;
    } else {
        json_patch::merge(&mut object, &patch);
    }
    Ok(object)
}

/// Stores `given` in place of `old`, as far as the subresource goes.
fn change(ask: &Ask<'_>, state: &mut State, old: &Arc<Value>, given: Value) -> Done {
    let (resource, mut new) = (ask.resource, check(ask, given)?);
    let version = text(&new, "/metadata/resourceVersion");
    if !version.is_empty() && version != text(old, "/metadata/resourceVersion") {
        let before = "Operation cannot be fulfilled on ";
        let after =
            ": the object has been modified; please apply your changes to the latest version and try again";
        return Err(resource.refusal(Reason::Conflict, ask.name, before, after));
    }
    let mut keep = vec!["/metadata/uid", "/metadata/creationTimestamp", "/metadata/resourceVersion"];
    if ask.subresource == "approval" {
        let conditions = at(&new, "/status/conditions").clone();
        new = Value::clone(old);
        set(&mut new, "/status/conditions", conditions);
    } else if [NAMESPACES, SIGNING_REQUESTS].contains(&resource.plural) {
        // Written by the server when they were made.
        keep.extend(["/spec", "/status"]);
    }
    for path in keep {
        set(&mut new, path, at(old, path).clone());
    }
    normalize_secret(resource.plural, &mut new);
    if new == **old {
        return Ok((200, Arc::clone(old)));
    }
    Ok((200, state.put(ask.key(ask.name), new, false)))
}

/// Removes an object, and with a namespace everything in it.
fn delete(ask: &Ask<'_>, state: &mut State, old: &Arc<Value>) -> (u16, Arc<Value>) {
    let resource = ask.resource;
    state.put(ask.key(ask.name), Value::clone(old), true);
    if resource.plural == NAMESPACES {
        for (key, object) in state.in_namespace(ask.name) {
            state.put(key, Value::clone(&object), true);
        }
    }
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": {
            "name": ask.name, "group": resource.group, "kind": resource.plural, "uid": at(old, "/metadata/uid"),
        },
    });
    (200, Arc::new(status))
}

fn namespace_key(name: &str) -> Key {
    Key { plural: NAMESPACES, namespace: String::new(), name: name.to_owned() }
}

/// Takes a field out of an object.
fn take(value: &mut Value, field: &str) -> Value {
    value.as_object_mut().and_then(|fields| fields.remove(field)).unwrap_or_default()
}
