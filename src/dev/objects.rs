//! Create, update, patch, apply and delete in the embedded backend: the part of kube-apiserver's registry that shows
//! through kubectl. Strategic merge and server-side apply are done as JSON merge patches.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::failure::{Failure, details};
use super::json::{at, set, take, text};
use super::resources::{NAMESPACES, Resource, find, unknown_fields};
use super::selector::Selector;
use super::store::{Key, Store, Writer};
use super::target::{Query, Target};
use crate::user::UserInfo;

/// A request to change something.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) store: &'a Store,
    pub(super) user: &'a UserInfo,
    pub(super) target: &'a Target,
    pub(super) query: &'a Query,
    pub(super) content_type: &'a str,
    pub(super) body: &'a [u8],
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) code: u16,
    pub(super) object: Arc<Value>,
    pub(super) warnings: Vec<String>,
}

impl Done {
    fn new(code: u16, object: impl Into<Arc<Value>>) -> Self {
        Self {
            code,
            object: object.into(),
            warnings: Vec::new(),
        }
    }
}

/// The namespaces that are there from the start and cannot be deleted.
pub(super) const INITIAL_NAMESPACES: &[&str] = &["default", "kube-node-lease", "kube-public", "kube-system"];

/// Fills an empty store.
pub(super) fn seed(store: &Store) -> Result<(), Failure> {
    let Some(namespaces) = find("", NAMESPACES) else {
        return Ok(());
    };
    store.write(|writer| {
        for &name in INITIAL_NAMESPACES {
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            insert(store, writer, namespaces, "", object);
        }
        Ok(())
    })
}

pub(super) fn create(call: Call<'_>) -> Result<Done, Failure> {
    let Call {
        store, target, query, ..
    } = call;
    let mut warnings = Vec::new();
    let object = decode(call, &mut warnings)?;
    store.write(|writer| {
        let mut done = create_in(call, writer, object)?;
        done.warnings = warnings;
        tracing::debug!(
            resource = target.resource.plural,
            dry_run = query.dry_run(),
            "created"
        );
        Ok(done)
    })
}

pub(super) fn replace(call: Call<'_>) -> Result<Done, Failure> {
    let mut warnings = Vec::new();
    let object = decode(call, &mut warnings)?;
    call.store.write(|writer| {
        let (key, old) = existing(writer, call.target)?;
        let mut done = change(call, writer, key, &old, object)?;
        done.warnings = warnings;
        Ok(done)
    })
}

pub(super) fn patch(call: Call<'_>) -> Result<Done, Failure> {
    let Call { target, query, .. } = call;
    let media_type = call.content_type.split(';').next().unwrap_or_default().trim();
    let apply = media_type == "application/apply-patch+yaml";
    let patch: Value = serde_json::from_slice(call.body).map_err(|error| {
        let hint = if apply {
            " (this backend reads apply patches in JSON, as kubectl sends them)"
        } else {
            ""
        };
        Failure::bad_request(format!("error decoding patch: {error}{hint}"))
    })?;
    if apply && query.value("fieldManager").is_empty() {
        return Err(Failure::bad_request(
            "fieldManager: Required value: is required for apply patch",
        ));
    }
    call.store.write(|writer| {
        let mut warnings = Vec::new();
        let (key, old) = match existing(writer, target) {
            Err(failure) if apply && failure.code == 404 && target.subresource.is_empty() => {
                let object = check(target.resource, query, &patch, &mut warnings)?;
                let mut done = create_in(call, writer, object)?;
                done.warnings = warnings;
                return Ok(done);
            }
            found => found?,
        };
        let mut object = Value::clone(&old);
        match media_type {
            "application/json-patch+json" => {
                let patch = serde_json::from_value::<json_patch::Patch>(patch)
                    .map_err(|error| Failure::bad_request(format!("error decoding patch: {error}")))?;
                json_patch::patch(&mut object, &patch).map_err(|error| {
                    Failure::invalid(
                        target.resource,
                        &target.name,
                        "FieldValueInvalid",
                        "patch",
                        &error.to_string(),
                    )
                })?;
            }
            "application/merge-patch+json" => json_patch::merge(&mut object, &patch),
            "application/strategic-merge-patch+json" | "application/apply-patch+yaml" => {
                json_patch::merge(&mut object, &without_directives(patch));
            }
            _ => {
                return Err(Failure::media_type(
                    "application/json-patch+json, application/merge-patch+json, \
                     application/strategic-merge-patch+json, application/apply-patch+yaml",
                ));
            }
        }
        let object = check(target.resource, query, &object, &mut warnings)?;
        let mut done = change(call, writer, key, &old, object)?;
        done.warnings = warnings;
        Ok(done)
    })
}

pub(super) fn delete(call: Call<'_>) -> Result<Done, Failure> {
    let options = delete_options(call)?;
    call.store.write(|writer| {
        let (key, old) = existing(writer, call.target)?;
        delete_in(call, writer, key, &old, &options)
    })
}

pub(super) fn delete_collection(call: Call<'_>) -> Result<Done, Failure> {
    let Call {
        store, target, query, ..
    } = call;
    let selector = Selector::parse(query, target.resource)?;
    let options = delete_options(call)?;
    let (revision, objects) = store.list(target.resource, target.scope());
    let chosen = objects
        .into_iter()
        .filter(|(_, object)| selector.matches(object))
        .collect::<Vec<_>>();
    store.write(|writer| {
        for (key, old) in &chosen {
            delete_in(call, writer, key.clone(), old, &options)?;
        }
        Ok(())
    })?;
    let objects = chosen.iter().map(|(_, object)| &**object);
    Ok(Done::new(200, list(target.resource, revision, objects)))
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

pub(super) fn key(target: &Target) -> Key {
    Key {
        plural: target.resource.plural,
        namespace: target.namespace.clone(),
        name: target.name.clone(),
    }
}

/// The JSON object in a body.
pub(super) fn json_body(call: Call<'_>) -> Result<Value, Failure> {
    if !call.content_type.is_empty() && !call.content_type.starts_with("application/json") {
        return Err(Failure::media_type("application/json"));
    }
    let resource = call.target.resource;
    let mut object: Value =
        serde_json::from_slice(call.body).map_err(|error| unreadable(resource, &error))?;
    let Some(fields) = object.as_object_mut() else {
        return Err(Failure::bad_request("the object provided is not a JSON object"));
    };
    for (field, expected) in [
        ("apiVersion", resource.api_version()),
        ("kind", resource.kind.to_owned()),
    ] {
        let given = fields.entry(field).or_insert_with(|| expected.clone().into());
        if *given != *expected {
            let message =
                format!("the {field} in the data ({given}) does not match the expected {field} ({expected})");
            return Err(Failure::bad_request(message));
        }
    }
    Ok(object)
}

fn decode(call: Call<'_>, warnings: &mut Vec<String>) -> Result<Value, Failure> {
    check(call.target.resource, call.query, &json_body(call)?, warnings)
}

/// Checks an object against its type and drops the fields that the type does not have, as `fieldValidation` asks.
/// Afterwards `metadata` is an object.
fn check(
    resource: &Resource,
    query: &Query,
    object: &Value,
    warnings: &mut Vec<String>,
) -> Result<Value, Failure> {
    let mut known = (resource.roundtrip)(object).map_err(|error| unreadable(resource, &error))?;
    let mut unknown = Vec::new();
    unknown_fields(object, &known, "", &mut unknown);
    let unknown = unknown
        .iter()
        .map(|field| format!("unknown field {field:?}"))
        .collect::<Vec<_>>();
    match query.value("fieldValidation") {
        "Strict" if !unknown.is_empty() => {
            return Err(unreadable(
                resource,
                &format!("strict decoding error: {}", unknown.join(", ")),
            ));
        }
        "Ignore" => {}
        _ => warnings.extend(unknown),
    }
    if let Some(metadata) = known.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        metadata.remove("selfLink");
    }
    Ok(known)
}

fn unreadable(resource: &Resource, error: &dyn std::fmt::Display) -> Failure {
    let kind = resource.kind;
    Failure::bad_request(format!(
        "{kind} in version \"v1\" cannot be handled as a {kind}: {error}"
    ))
}

/// Strategic merge directives (`$patch`, `$setElementOrder/…`) have no meaning in a merge patch.
fn without_directives(patch: Value) -> Value {
    match patch {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(key, _)| !key.starts_with('$'))
            .map(|(key, value)| (key, without_directives(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Array(items) => items.into_iter().map(without_directives).collect(),
        other => other,
    }
}

fn existing(writer: &Writer<'_>, target: &Target) -> Result<(Key, Arc<Value>), Failure> {
    let key = key(target);
    let object = writer
        .get(&key)
        .ok_or_else(|| Failure::not_found(target.resource, &target.name))?;
    Ok((key, object))
}

fn create_in(call: Call<'_>, writer: &mut Writer<'_>, mut object: Value) -> Result<Done, Failure> {
    let Call {
        store,
        user,
        target,
        query,
        ..
    } = call;
    let resource = target.resource;
    place(target, &mut object)?;
    let metadata = at(&object, "/metadata");
    if at(metadata, "/resourceVersion")
        .as_str()
        .is_some_and(|version| !version.is_empty())
    {
        return Err(Failure::bad_request(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    let generated = at(metadata, "/generateName")
        .as_str()
        .filter(|prefix| !prefix.is_empty())
        .map(|prefix| {
            let random = uuid::Uuid::new_v4().simple().to_string();
            format!("{prefix}{}", random.get(..5).unwrap_or_default())
        });
    let name = at(metadata, "/name")
        .as_str()
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .or(generated);
    let Some(name) = name else {
        let message = "Required value: name or generateName is required";
        return Err(Failure::invalid(
            resource,
            "",
            "FieldValueRequired",
            "metadata.name",
            message,
        ));
    };
    check_name(resource, &name)?;
    let in_namespace = Key {
        plural: NAMESPACES,
        namespace: String::new(),
        name: target.namespace.clone(),
    };
    if let (true, None, Some(namespaces)) = (
        resource.namespaced,
        writer.get(&in_namespace),
        find("", NAMESPACES),
    ) {
        return Err(Failure::not_found(namespaces, &target.namespace));
    }
    let key = Key {
        plural: resource.plural,
        namespace: target.namespace.clone(),
        name: name.clone(),
    };
    if writer.get(&key).is_some() {
        return Err(Failure::already_exists(resource, &name));
    }
    set(&mut object, "/metadata/name", name);
    if resource.plural == "certificatesigningrequests" {
        stamp_signing_request(resource, user, &mut object)?;
    }
    if query.dry_run() {
        complete(store, resource, &target.namespace, &mut object);
        return Ok(Done::new(201, object));
    }
    Ok(Done::new(
        201,
        insert(store, writer, resource, &target.namespace, object),
    ))
}

/// Stores a new object, and with a namespace the service account that every namespace has.
fn insert(
    store: &Store,
    writer: &mut Writer<'_>,
    resource: &'static Resource,
    namespace: &str,
    mut object: Value,
) -> Arc<Value> {
    complete(store, resource, namespace, &mut object);
    let name = text(&object, "/metadata/name").to_owned();
    let key = Key {
        plural: resource.plural,
        namespace: namespace.to_owned(),
        name: name.clone(),
    };
    let stored = writer.put(key, object);
    if let (NAMESPACES, Some(accounts)) = (resource.plural, find("", "serviceaccounts")) {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        insert(store, writer, accounts, &name, account);
    }
    stored
}

/// What the server fills in when an object is made.
fn complete(store: &Store, resource: &Resource, namespace: &str, object: &mut Value) {
    set(object, "/metadata/uid", uuid::Uuid::new_v4().to_string());
    set(object, "/metadata/creationTimestamp", store.now().to_string());
    if !namespace.is_empty() {
        set(object, "/metadata/namespace", namespace);
    }
    if resource.plural == NAMESPACES {
        set(
            object,
            "/metadata/labels/kubernetes.io~1metadata.name",
            at(object, "/metadata/name").clone(),
        );
        set(object, "/spec", json!({"finalizers": ["kubernetes"]}));
        set(object, "/status", json!({"phase": "Active"}));
    }
    normalize_secret(resource, object);
}

fn normalize_secret(resource: &Resource, object: &mut Value) {
    if resource.plural != "secrets" {
        return;
    }
    if at(object, "/type").as_str().is_none_or(str::is_empty) {
        set(object, "/type", "Opaque");
    }
    if let Some(Value::Object(texts)) = object
        .as_object_mut()
        .and_then(|fields| fields.remove("stringData"))
    {
        for (key, text) in texts {
            let encoded = STANDARD.encode(text.as_str().unwrap_or_default());
            set(object, &format!("/data/{key}"), encoded);
        }
    }
}

/// The requester of a certificate is who the request came from, whatever the object says; and nobody approves
/// by creating.
fn stamp_signing_request(resource: &Resource, user: &UserInfo, object: &mut Value) -> Result<(), Failure> {
    let name = text(object, "/metadata/name");
    let request = STANDARD.decode(text(object, "/spec/request")).unwrap_or_default();
    let is_request =
        x509_parser::pem::parse_x509_pem(&request).is_ok_and(|(_, pem)| pem.label == "CERTIFICATE REQUEST");
    if !is_request {
        let message = "Invalid value: PEM block type must be CERTIFICATE REQUEST";
        return Err(Failure::invalid(
            resource,
            name,
            "FieldValueInvalid",
            "spec.request",
            message,
        ));
    }
    set(object, "/status", json!({}));
    set(object, "/spec/username", user.name.as_str());
    set(object, "/spec/groups", json!(user.groups));
    if let Some(uid) = &user.uid {
        set(object, "/spec/uid", uid.as_str());
    }
    if !user.extra.is_empty() {
        set(object, "/spec/extra", json!(user.extra));
    }
    Ok(())
}

/// Stores `new` in place of `old`, as far as the subresource goes.
fn change(
    call: Call<'_>,
    writer: &mut Writer<'_>,
    key: Key,
    old: &Arc<Value>,
    mut new: Value,
) -> Result<Done, Failure> {
    let Call {
        store, target, query, ..
    } = call;
    let resource = target.resource;
    place(target, &mut new)?;
    let name = &target.name;
    match at(&new, "/metadata/name").as_str() {
        None | Some("") => set(&mut new, "/metadata/name", name.as_str()),
        Some(given) if given == name => {}
        Some(given) => {
            return Err(Failure::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
    }
    preconditions(resource, name, at(&new, "/metadata"), old)?;
    if target.subresource.is_empty() {
        for field in ["uid", "creationTimestamp", "deletionTimestamp", "resourceVersion"] {
            keep(&mut new, old, &format!("/metadata/{field}"));
        }
        if resource.plural == NAMESPACES || resource.plural == "certificatesigningrequests" {
            keep(&mut new, old, "/spec");
            keep(&mut new, old, "/status");
        }
        normalize_secret(resource, &mut new);
    } else {
        let given = take(&mut new, "status");
        new = Value::clone(old);
        match target.subresource.as_str() {
            "approval" => set(
                &mut new,
                "/status/conditions",
                dated(at(&given, "/conditions").clone(), &store.now().to_string()),
            ),
            "status" => {
                set(&mut new, "/status", given);
                if resource.plural == "certificatesigningrequests" {
                    keep(&mut new, old, "/status/conditions");
                }
            }
            _ => {}
        }
    }
    if new == **old {
        return Ok(Done::new(200, Arc::clone(old)));
    }
    if query.dry_run() {
        return Ok(Done::new(200, new));
    }
    let deleted = at(&new, "/metadata/deletionTimestamp").is_string() && !has_finalizers(&new);
    let stored = writer.put(key.clone(), new);
    if deleted {
        remove(writer, key);
    }
    Ok(Done::new(200, stored))
}

fn keep(new: &mut Value, old: &Value, path: &str) {
    match (old.pointer(path), path.rsplit_once('/')) {
        (Some(value), _) => set(new, path, value.clone()),
        (None, Some((parent, field))) => drop(new.pointer_mut(parent).map(|parent| take(parent, field))),
        (None, None) => {}
    }
}

/// The times that the server writes into conditions that have none.
fn dated(mut conditions: Value, now: &str) -> Value {
    for condition in conditions.as_array_mut().into_iter().flatten() {
        for field in ["lastUpdateTime", "lastTransitionTime"] {
            if condition.get(field).is_none() {
                set(condition, &format!("/{field}"), now);
            }
        }
    }
    conditions
}

/// The namespace in the object is the one in the path.
fn place(target: &Target, object: &mut Value) -> Result<(), Failure> {
    let given = text(object, "/metadata/namespace");
    if !given.is_empty() && given != target.namespace {
        return Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if target.resource.namespaced && target.namespace.is_empty() {
        return Err(Failure::bad_request(
            "an empty namespace may not be set during creation",
        ));
    }
    if target.resource.namespaced {
        set(object, "/metadata/namespace", target.namespace.as_str());
    }
    Ok(())
}

fn preconditions(resource: &Resource, name: &str, given: &Value, old: &Value) -> Result<(), Failure> {
    let differs = |field: &str| {
        let given = given.get(field)?.as_str().filter(|text| !text.is_empty())?;
        let current = text(old, &format!("/metadata/{field}"));
        (given != current).then_some((given, current))
    };
    if let Some((given, current)) = differs("uid") {
        let why = format!("Precondition failed: UID in precondition: {given}, UID in object meta: {current}");
        return Err(Failure::conflict(resource, name, &why));
    }
    differs("resourceVersion").map_or(Ok(()), |_| Err(Failure::modified(resource, name)))
}

fn delete_options(call: Call<'_>) -> Result<Value, Failure> {
    if call.body.is_empty() {
        return Ok(json!({}));
    }
    if !call.content_type.is_empty() && !call.content_type.starts_with("application/json") {
        return Err(Failure::media_type("application/json"));
    }
    serde_json::from_slice(call.body)
        .map_err(|error| Failure::bad_request(format!("DeleteOptions cannot be read: {error}")))
}

fn delete_in(
    call: Call<'_>,
    writer: &mut Writer<'_>,
    key: Key,
    old: &Arc<Value>,
    options: &Value,
) -> Result<Done, Failure> {
    let Call {
        store, target, query, ..
    } = call;
    let resource = target.resource;
    preconditions(resource, &key.name, at(options, "/preconditions"), old)?;
    let namespace = resource.plural == NAMESPACES;
    if namespace && INITIAL_NAMESPACES.contains(&key.name.as_str()) {
        let message = format!(
            "namespaces {:?} is forbidden: this namespace may not be deleted",
            key.name
        );
        return Err(Failure::forbidden(message, Some((resource, &key.name))));
    }
    let mut last = Value::clone(old);
    set(&mut last, "/metadata/deletionTimestamp", store.now().to_string());
    if namespace {
        set(&mut last, "/status/phase", "Terminating");
    }
    let waits = has_finalizers(old);
    let dry_run = query.dry_run()
        || at(options, "/dryRun")
            .as_array()
            .is_some_and(|values| values.contains(&"All".into()));
    if !dry_run && waits {
        let stored = writer.put(key, last);
        return Ok(Done::new(200, stored));
    }
    let mut details = details(resource, resource.plural, &key.name);
    if !dry_run {
        remove(writer, key);
    }
    if namespace || waits {
        return Ok(Done::new(200, last));
    }
    set(&mut details, "/uid", at(old, "/metadata/uid").clone());
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
    Ok(Done::new(200, status))
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
    at(object, "/metadata/finalizers")
        .as_array()
        .is_some_and(|finalizers| !finalizers.is_empty())
}

fn check_name(resource: &Resource, name: &str) -> Result<(), Failure> {
    let label = resource.plural == NAMESPACES;
    let is_label = |part: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !part.is_empty() && part.chars().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    let good = if label {
        name.len() <= 63 && is_label(name)
    } else {
        name.len() <= 253 && name.split('.').all(is_label)
    };
    if good {
        return Ok(());
    }
    let rule = if label {
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
         end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
    } else {
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
         start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
    };
    let message = format!("Invalid value: {name:?}: {rule}");
    Err(Failure::invalid(
        resource,
        name,
        "FieldValueInvalid",
        "metadata.name",
        &message,
    ))
}
