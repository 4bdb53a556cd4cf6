//! Create, update, patch, apply and delete in the embedded backend: the part of kube-apiserver's registry that shows
//! through kubectl. Strategic merge and server-side apply are done as JSON merge patches.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::ask::{Ask, unsupported_media_type};
use super::json::{at, keep, set, take, text};
use super::protobuf;
use super::resources::{Does, NAMESPACES, Resource, SIGNING_REQUESTS, find, unknown_fields};
use super::selector::Selector;
use super::store::{Key, Store, Writer};
use crate::status::{Reason, Status};

/// What came of a change.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) code: u16,
    pub(super) object: Arc<Value>,
    pub(super) warnings: Vec<String>,
}

#[expect(clippy::unnecessary_wraps, reason = "the end of every change")]
fn done(code: u16, object: impl Into<Arc<Value>>) -> Result<Done, Status> {
    Ok(Done { code, object: object.into(), warnings: Vec::new() })
}

const INITIAL_NAMESPACES: &[&str] = &["default", "kube-node-lease", "kube-public", "kube-system"];

/// Fills an empty store.
pub(super) fn seed(store: &Store) {
    let Some(namespaces) = find("", NAMESPACES) else {
        return;
    };
    store.write(|writer| {
        for &name in INITIAL_NAMESPACES {
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            insert(store, writer, namespaces, object);
        }
    });
}

/// Creates, updates, patches or deletes, as the verb says.
pub(super) fn write(ask: &Ask<'_>) -> Result<Done, Status> {
    let mut warnings = Vec::new();
    let done = match ask.verb {
        "create" => {
            let object = check(ask, &body(ask)?, &mut warnings)?;
            ask.store.write(|writer| create(ask, writer, object))
        }
        "update" => {
            let object = check(ask, &body(ask)?, &mut warnings)?;
            ask.store.write(|writer| {
                existing(ask, writer).and_then(|(key, old)| change(ask, writer, key, &old, object))
            })
        }
        "patch" => patch(ask, &mut warnings),
        "delete" => {
            let options = delete_options(ask)?;
            ask.store.write(|writer| {
                existing(ask, writer).and_then(|(key, old)| delete(ask, writer, key, &old, &options))
            })
        }
        _ => delete_collection(ask),
    }?;
    Ok(Done { warnings, ..done })
}

/// The object in a body, JSON or protobuf, with its type made sure of.
pub(super) fn body(ask: &Ask<'_>) -> Result<Value, Status> {
    let mut object = parse(ask)?;
    if !object.is_object() {
        return Err(Status::bad_request("the object provided is no JSON object"));
    }
    for (field, expected) in
        [("/apiVersion", ask.resource.api_version()), ("/kind", ask.resource.kind.to_owned())]
    {
        let given = text(&object, field);
        if !given.is_empty() && given != expected {
            let message =
                format!("the {field} in the data ({given}) does not match the expected one ({expected})");
            return Err(Status::bad_request(message));
        }
        set(&mut object, field, expected);
    }
    Ok(object)
}

fn parse(ask: &Ask<'_>) -> Result<Value, Status> {
    let accepted =
        "application/json, application/vnd.kubernetes.protobuf (for the types that kubectl sends so)";
    match ask.media_type() {
        "" | "application/json" => {
            serde_json::from_slice(ask.body).map_err(|error| ask.resource.unreadable(error))
        }
        "application/vnd.kubernetes.protobuf" => {
            protobuf::decode(ask.body).ok_or_else(|| unsupported_media_type(accepted))
        }
        _ => Err(unsupported_media_type(accepted)),
    }
}

/// Checks an object against its type and drops the fields that the type does not have, as `fieldValidation` asks.
fn check(ask: &Ask<'_>, object: &Value, warnings: &mut Vec<String>) -> Result<Value, Status> {
    let Does::Store(roundtrip) = ask.resource.does else {
        return Err(Status::method_not_allowed());
    };
    let mut known = roundtrip(object).map_err(|error| ask.resource.unreadable(error))?;
    let mut unknown = Vec::new();
    unknown_fields(object, &known, "", &mut unknown);
    match &*ask.parameter("fieldValidation") {
        "Strict" if !unknown.is_empty() => {
            return Err(ask.resource.unreadable(format!("strict decoding error: {}", unknown.join(", "))));
        }
        "Ignore" => {}
        _ => warnings.extend(unknown),
    }
    known.get_mut("metadata").map(|metadata| take(metadata, "managedFields"));
    Ok(known)
}

fn existing(ask: &Ask<'_>, writer: &Writer<'_>) -> Result<(Key, Arc<Value>), Status> {
    let key = ask.key();
    let object = writer.get(&key).ok_or_else(|| ask.resource.not_found(ask.name))?;
    Ok((key, object))
}

fn create(ask: &Ask<'_>, writer: &mut Writer<'_>, mut object: Value) -> Result<Done, Status> {
    let resource = ask.resource;
    place(ask, &mut object)?;
    if !text(&object, "/metadata/resourceVersion").is_empty() {
        return Err(Status::bad_request("resourceVersion should not be set on objects to be created"));
    }
    let prefix = text(&object, "/metadata/generateName");
    if text(&object, "/metadata/name").is_empty() && !prefix.is_empty() {
        let random = uuid::Uuid::new_v4().simple().to_string();
        let name = format!("{prefix}{}", random.get(..5).unwrap_or_default());
        set(&mut object, "/metadata/name", name);
    }
    let name = text(&object, "/metadata/name").to_owned();
    check_name(resource, &name)?;
    if let (true, Some(namespaces)) = (resource.namespaced, find("", NAMESPACES)) {
        let key = Key { plural: NAMESPACES, namespace: String::new(), name: ask.namespace.to_owned() };
        writer.get(&key).ok_or_else(|| namespaces.not_found(ask.namespace))?;
    }
    if writer.get(&Key { name: name.clone(), ..ask.key() }).is_some() {
        return Err(resource.already_exists(&name));
    }
    if resource.plural == SIGNING_REQUESTS {
        stamp_signing_request(ask, &name, &mut object)?;
    }
    if ask.dry_run() {
        complete(ask.store, resource, &mut object);
        return done(201, object);
    }
    done(201, insert(ask.store, writer, resource, object))
}

/// Stores a new object, and with a namespace the service account that every namespace has.
fn insert(
    store: &Store,
    writer: &mut Writer<'_>,
    resource: &'static Resource,
    mut object: Value,
) -> Arc<Value> {
    complete(store, resource, &mut object);
    let part = |path| text(&object, path).to_owned();
    let (name, namespace) = (part("/metadata/name"), part("/metadata/namespace"));
    let stored = writer.put(Key { plural: resource.plural, namespace, name: name.clone() }, object);
    if let (NAMESPACES, Some(accounts)) = (resource.plural, find("", "serviceaccounts")) {
        let metadata = json!({"name": "default", "namespace": name});
        insert(
            store,
            writer,
            accounts,
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
        );
    }
    stored
}

/// What the server fills in when an object is made.
fn complete(store: &Store, resource: &Resource, object: &mut Value) {
    set(object, "/metadata/uid", uuid::Uuid::new_v4().to_string());
    set(object, "/metadata/creationTimestamp", store.now().to_string());
    if resource.plural == NAMESPACES {
        let name = at(object, "/metadata/name").clone();
        set(object, "/metadata/labels/kubernetes.io~1metadata.name", name);
        set(object, "/spec", json!({"finalizers": ["kubernetes"]}));
        set(object, "/status", json!({"phase": "Active"}));
    }
    normalize_secret(resource, object);
}

fn normalize_secret(resource: &Resource, object: &mut Value) {
    if resource.plural != "secrets" {
        return;
    }
    if text(object, "/type").is_empty() {
        set(object, "/type", "Opaque");
    }
    for (key, value) in take(object, "stringData").as_object().into_iter().flatten() {
        set(object, &format!("/data/{key}"), STANDARD.encode(value.as_str().unwrap_or_default()));
    }
}

/// The requester of a certificate is who the request came from, whatever the object says; nobody approves by creating.
fn stamp_signing_request(ask: &Ask<'_>, name: &str, object: &mut Value) -> Result<(), Status> {
    let request = STANDARD.decode(text(object, "/spec/request")).unwrap_or_default();
    if !x509_parser::pem::parse_x509_pem(&request).is_ok_and(|(_, pem)| pem.label == "CERTIFICATE REQUEST") {
        let message = "Invalid value: PEM block type must be CERTIFICATE REQUEST";
        return Err(ask.resource.invalid(name, "spec.request", message));
    }
    set(object, "/status", json!({}));
    set(object, "/spec/username", ask.user.name.as_str());
    set(object, "/spec/groups", json!(ask.user.groups));
    for (field, value) in [("uid", json!(ask.user.uid)), ("extra", json!(ask.user.extra))] {
        take(object.pointer_mut("/spec").unwrap_or(&mut Value::Null), field);
        if !value.is_null() && value != json!({}) {
            set(object, &format!("/spec/{field}"), value);
        }
    }
    Ok(())
}

fn patch(ask: &Ask<'_>, warnings: &mut Vec<String>) -> Result<Done, Status> {
    let apply = ask.media_type() == "application/apply-patch+yaml";
    let unreadable = |error| {
        let hint = if apply { "; this backend reads them in JSON, as kubectl sends them" } else { "" };
        Status::bad_request(format!("error decoding patch: {error}{hint}"))
    };
    let patch: Value = serde_json::from_slice(ask.body).map_err(unreadable)?;
    ask.store.write(|writer| {
        let (key, old) = match existing(ask, writer) {
            Err(status) if apply && status.reason == Reason::NotFound && ask.subresource.is_empty() => {
                return create(ask, writer, check(ask, &patch, warnings)?);
            }
            found => found?,
        };
        let mut object = Value::clone(&old);
        match ask.media_type() {
            "application/json-patch+json" => {
                let patch = serde_json::from_value::<json_patch::Patch>(patch).map_err(unreadable)?;
                json_patch::patch(&mut object, &patch)
                    .map_err(|error| ask.resource.invalid(ask.name, "patch", &error.to_string()))?;
            }
            "application/merge-patch+json" => json_patch::merge(&mut object, &patch),
            "application/strategic-merge-patch+json" | "application/apply-patch+yaml" => {
                json_patch::merge(&mut object, &without_directives(patch));
            }
            _ => {
                return Err(unsupported_media_type(
                    "json-patch, merge-patch, strategic-merge-patch, apply-patch",
                ));
            }
        }
        change(ask, writer, key, &old, check(ask, &object, warnings)?)
    })
}

/// Strategic merge directives (`$patch`, `$setElementOrder/…`) have no meaning in a merge patch.
fn without_directives(patch: Value) -> Value {
    match patch {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(key, _)| !key.starts_with('$'));
            Value::Object(fields.map(|(key, value)| (key, without_directives(value))).collect())
        }
        Value::Array(items) => items.into_iter().map(without_directives).collect(),
        other => other,
    }
}

/// Stores `new` in place of `old`, as far as the subresource goes.
fn change(
    ask: &Ask<'_>,
    writer: &mut Writer<'_>,
    key: Key,
    old: &Arc<Value>,
    given: Value,
) -> Result<Done, Status> {
    let (resource, mut new) = (ask.resource, given);
    place(ask, &mut new)?;
    let name = text(&new, "/metadata/name");
    if name != ask.name {
        let message =
            format!("the name of the object ({name}) does not match the name on the URL ({})", ask.name);
        return Err(Status::bad_request(message));
    }
    preconditions(resource, ask.name, at(&new, "/metadata"), old)?;
    for field in ["uid", "creationTimestamp", "deletionTimestamp", "resourceVersion"] {
        keep(&mut new, old, &format!("/metadata/{field}"));
    }
    normalize_secret(resource, &mut new);
    let status = take(&mut new, "status");
    match ask.subresource {
        "" if resource.subresources.is_empty() => {}
        // What has subresources has its spec and status from the server.
        "" => ["/spec", "/status"].iter().for_each(|path| keep(&mut new, old, path)),
        subresource => {
            new = Value::clone(old);
            if subresource == "approval" {
                set(
                    &mut new,
                    "/status/conditions",
                    dated(at(&status, "/conditions"), &ask.store.now().to_string()),
                );
            } else if subresource == "status" {
                set(&mut new, "/status", status);
                if resource.plural == SIGNING_REQUESTS {
                    keep(&mut new, old, "/status/conditions");
                }
            }
        }
    }
    if new == **old {
        return done(200, Arc::clone(old));
    }
    if ask.dry_run() {
        return done(200, new);
    }
    let gone = at(&new, "/metadata/deletionTimestamp").is_string() && !has_finalizers(&new);
    let stored = writer.put(key.clone(), new);
    if gone {
        remove(writer, key);
    }
    done(200, stored)
}

/// Conditions with the times that the server writes where there are none.
fn dated(conditions: &Value, now: &str) -> Value {
    let mut conditions = conditions.clone();
    for condition in conditions.as_array_mut().into_iter().flatten() {
        for path in ["/lastUpdateTime", "/lastTransitionTime"] {
            if at(condition, path).is_null() {
                set(condition, path, now);
            }
        }
    }
    conditions
}

/// The namespace in the object is the one in the path.
fn place(ask: &Ask<'_>, object: &mut Value) -> Result<(), Status> {
    let given = text(object, "/metadata/namespace");
    if !given.is_empty() && given != ask.namespace {
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Status::bad_request(message));
    }
    if ask.resource.namespaced {
        set(object, "/metadata/namespace", ask.namespace);
    }
    Ok(())
}

fn preconditions(resource: &Resource, name: &str, given: &Value, old: &Value) -> Result<(), Status> {
    let (uid, current) = (text(given, "/uid"), text(old, "/metadata/uid"));
    if !uid.is_empty() && uid != current {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {current}");
        return Err(resource.conflict(name, &why));
    }
    let version = text(given, "/resourceVersion");
    if !version.is_empty() && version != text(old, "/metadata/resourceVersion") {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        return Err(resource.conflict(name, why));
    }
    Ok(())
}

fn delete_options(ask: &Ask<'_>) -> Result<Value, Status> {
    if ask.body.is_empty() { Ok(json!({})) } else { parse(ask) }
}

fn delete_collection(ask: &Ask<'_>) -> Result<Done, Status> {
    let (selector, options) = (Selector::parse(ask)?, delete_options(ask)?);
    let (revision, objects) = ask.store.list(ask.resource, ask.scope());
    let chosen = objects.into_iter().filter(|(_, object)| selector.matches(object)).collect::<Vec<_>>();
    ask.store.write(|writer| {
        for (key, old) in &chosen {
            delete(ask, writer, key.clone(), old, &options)?;
        }
        done(200, list(ask.resource, revision, chosen.iter().map(|(_, object)| &**object)))
    })
}

fn delete(
    ask: &Ask<'_>,
    writer: &mut Writer<'_>,
    key: Key,
    old: &Arc<Value>,
    options: &Value,
) -> Result<Done, Status> {
    let (resource, name) = (ask.resource, key.name.clone());
    preconditions(resource, &name, at(options, "/preconditions"), old)?;
    let namespace = resource.plural == NAMESPACES;
    if namespace && INITIAL_NAMESPACES.contains(&name.as_str()) {
        return Err(resource.forbidden(&name, "this namespace may not be deleted"));
    }
    let mut last = Value::clone(old);
    set(&mut last, "/metadata/deletionTimestamp", ask.store.now().to_string());
    if namespace {
        set(&mut last, "/status/phase", "Terminating");
    }
    let waits = has_finalizers(old);
    let dry_run = ask.dry_run() || text(options, "/dryRun/0") == "All";
    if !dry_run && waits {
        return done(200, writer.put(key, last));
    }
    if !dry_run {
        remove(writer, key);
    }
    if namespace || waits {
        return done(200, last);
    }
    let details = json!({"name": name, "kind": resource.plural, "uid": at(old, "/metadata/uid")});
    let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    set(&mut status, "/details", details);
    if !resource.group.is_empty() {
        set(&mut status, "/details/group", resource.group);
    }
    done(200, status)
}

/// Removes an object, and with a namespace everything in it.
fn remove(writer: &mut Writer<'_>, key: Key) {
    if key.plural == NAMESPACES {
        for content in writer.in_namespace(&key.name) {
            writer.remove(content);
        }
    }
    writer.remove(key);
}

fn has_finalizers(object: &Value) -> bool {
    !at(object, "/metadata/finalizers/0").is_null()
}

/// A list object.
pub(super) fn list<'a>(resource: &Resource, revision: u64, items: impl Iterator<Item = &'a Value>) -> Value {
    json!({
        "kind": format!("{}List", resource.kind),
        "apiVersion": resource.api_version(),
        "metadata": {"resourceVersion": revision.to_string()},
        "items": items.collect::<Vec<_>>(),
    })
}

fn check_name(resource: &Resource, name: &str) -> Result<(), Status> {
    if name.is_empty() {
        return Err(resource.invalid(
            "",
            "metadata.name",
            "Required value: name or generateName is required",
        ));
    }
    let is_label = |part: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !part.is_empty() && part.chars().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    let (good, rule) = if resource.plural == NAMESPACES {
        let rule = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
             start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation \
             is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
        (name.len() <= 63 && is_label(name), rule)
    } else {
        let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
             and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
        (name.len() <= 253 && name.split('.').all(is_label), rule)
    };
    if good {
        Ok(())
    } else {
        Err(resource.invalid(name, "metadata.name", &format!("Invalid value: {name:?}: {rule}")))
    }
}
