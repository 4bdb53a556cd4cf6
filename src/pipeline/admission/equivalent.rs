//! The objects of a request in another version or group, for webhooks whose rules match only that (`matchPolicy: Equivalent`). The
//! gateway converts two kinds itself; all others the API server, in requests that store nothing:
//!
//! | object | of | request, as the user |
//! |---|---|---|
//! | any | a `HorizontalPodAutoscaler` | none is needed: the gateway converts it (`autoscaler.rs`), unless the API server shows fields that it does not know; but a stored one in `v1`, which may hide a part, is read |
//! | the new one | an event | none is needed: the gateway renames its fields (`event.rs`) |
//! | the stored one | any other resource | a read at the other version's path |
//! | the new one, of an object that is there | a resource that is no custom resource | a dry run of a JSON patch at that path: its `value` is the whole object in its own `apiVersion` |
//! | the new one | a custom resource without a conversion webhook, whose versions differ in `apiVersion` alone | a dry run at that path of the object with the other `apiVersion`: POST, PUT or JSON patch |
//! | the new one | a custom resource with a conversion webhook | none: the API server refuses a body in another version |
//! | the new one, of an object that is absent | a resource that is no custom resource | none: the same |
//!
//! The changes of a mutating webhook are converted back in the same ways.
//!
//! Where there is no such request, or the API server refuses it, there is no object, and the client's request is refused: a client
//! chooses the version, so that no `failurePolicy` lets it pass.
// threat: unreviewed-write
// apiserver: pkg/endpoints/handlers/patch.go, jsonPatcher.applyPatchToCurrentObject; pkg/endpoints/handlers/create.go
// apiextensions-apiserver: pkg/apiserver/customresource_handler.go, unstructuredNegotiatedSerializer; pkg/apiserver/conversion

use std::sync::Mutex;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{Method, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use portcullis_admission::{
    Attributes, Conversions, GroupVersionResource, Objects, ServedResource, Surroundings as _,
};
use portcullis_go::url::path_segment;
use portcullis_system::sync::lock;
use serde_json::Value;

use super::autoscaler;
use super::document::{metadata, remove_managed_fields, remove_server_fields, set_metadata};
use super::event;
use super::is_pinned;
use super::reviewer::{Reviewer, Stop, busy, kind_of};
use super::subject::Action;
use super::write::{JSON_PATCH, replacement};
use crate::admission::{DryRun, ReadError, Strategy};
use crate::backend::sharing::extension_group;
use crate::pipeline::error_map::Refusal;
use crate::pipeline::forward::{Rehearsal, RehearsalResponse, rehearse, rewritten_target_at};
use crate::pipeline::stages::{Authorized, JSON, ReviewedWrite};

/// The fields of `metadata` that a conversion may change.
// apiextensions-apiserver: pkg/apiserver/conversion/webhook_converter.go, restoreObjectMeta; kubernetes: pkg/apis/autoscaling/v1/conversion.go
const CONVERTED_METADATA: [&str; 2] = ["labels", "annotations"];

/// Converts the objects of one request in one phase.
pub(super) struct RequestConversions<'a> {
    reviewer: &'a Reviewer<'a>,
    authorized: &'a Authorized,
    /// The object that is stored now; `None` if there is none, or the request does not write to it.
    stored: Option<StoredObject>,
    /// Whether that is the new one.
    is_written: bool,
    /// Whether they are `HorizontalPodAutoscaler`s without a field that the gateway does not know.
    are_autoscalers: bool,
    /// Why the request ends, whatever webhooks say.
    stopped: Mutex<Option<Stop>>,
}

/// What a conversion is pinned to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StoredObject {
    name: String,
    uid: String,
    version: String,
}

/// Why there is no converted object.
enum Unconverted {
    /// The API server does not convert it, for this reason.
    Reason(String),
    /// The request ends, or begins again.
    Stop(Stop),
}

impl<E: Into<Stop>> From<E> for Unconverted {
    fn from(error: E) -> Self {
        Self::Stop(error.into())
    }
}

impl StoredObject {
    fn of(object: &Value) -> Self {
        let text = |field| metadata(object, field).to_owned();
        Self { name: text("name"), uid: text("uid"), version: text("resourceVersion") }
    }

    fn pin(&self, object: &mut Value) {
        let Self { name, uid, version } = self;
        for (field, value) in [("name", name), ("uid", uid), ("resourceVersion", version)] {
            set_metadata(object, field, value);
        }
    }
}

impl<'a> RequestConversions<'a> {
    /// Conversions for a request with these objects, as the API server has shown them.
    pub(super) fn new(reviewer: &'a Reviewer<'_>, authorized: &'a Authorized, objects: &Objects) -> Self {
        let Objects { object, old_object } = objects;
        Self {
            reviewer,
            authorized,
            stored: old_object.as_ref().map(StoredObject::of),
            is_written: false,
            are_autoscalers: object.iter().chain(old_object).all(autoscaler::has_known_fields),
            stopped: Mutex::default(),
        }
    }

    /// Conversions after the write of the new object.
    pub(super) fn after_write(
        reviewer: &'a Reviewer<'_>,
        authorized: &'a Authorized,
        objects: &Objects,
    ) -> Self {
        let stored = objects.object.as_ref().map(StoredObject::of);
        Self { stored, is_written: true, ..Self::new(reviewer, authorized, objects) }
    }

    /// Ends the request if a conversion has found a reason. It is not one of a webhook.
    pub(super) fn stopped(&self) -> Result<(), Stop> {
        lock(&self.stopped).take().map_or(Ok(()), Err)
    }

    fn stop(&self, stop: Stop) {
        lock(&self.stopped).get_or_insert(stop);
    }

    fn noted(&self, converted: Result<Value, Unconverted>) -> Result<Value, String> {
        converted.map_err(|error| match error {
            Unconverted::Reason(reason) => reason,
            Unconverted::Stop(stop) => {
                self.stop(stop);
                "the request ends".to_owned()
            }
        })
    }

    /// The object as the gateway itself converts it; `None` if only the API server can.
    async fn own(&self, object: &Value, to: &ServedResource) -> Result<Option<Value>, Unconverted> {
        if !is_pinned(self.reviewer.admission) {
            return Err(reason("with requestLevel, webhooks see objects as the client sent them"));
        }
        if !self.are_autoscalers || !autoscaler::is_one(object) {
            return Ok(None);
        }
        self.reviewer.hold_texts(autoscaler::annotated_texts(object)).await?;
        // To the client's own version: what a webhook has changed.
        let subject = self.reviewer.subject;
        // A subresource does not change the `spec`.
        let is_back = to.resource == subject.resource && subject.subresource.is_empty();
        let (object, to) = (object.clone(), to.kind.api_version());
        // The object may be large, or deep.
        let convert = move || {
            let converted =
                autoscaler::converted(&object, &to).filter(|_| autoscaler::has_known_annotations(&object))?;
            let is_kept =
                !is_back || !autoscaler::is_reduced(&converted) || autoscaler::is_kept(&object, &converted);
            Some((converted, is_kept))
        };
        let converted = self.reviewer.surroundings.compute(true, convert).await;
        match converted.ok_or_else(|| Stop::from(Refusal::Panic))? {
            Some((_, false)) => Err(reason("autoscaling/v1 has no form of what a webhook has changed")),
            converted => Ok(converted.map(|(converted, _)| converted)),
        }
    }

    /// The stored object at another path.
    async fn read(&self, old: &StoredObject, to: &ServedResource) -> Result<Value, Unconverted> {
        let path = self.path(&to.resource, Some(&old.name), "")?;
        let target: PathAndQuery = path.parse().map_err(|_| reason("its path is not valid"))?;
        let object = match self.object(Rehearsal::read(target), to, "get").await {
            Err(Unconverted::Reason(refused)) => {
                self.read_by_another_right(&path, to).await?.ok_or(Unconverted::Reason(refused))?
            }
            read => read?,
        };
        let shown = StoredObject::of(&object);
        // After the write, it may have changed again: its next version is shown.
        let is_same =
            if self.is_written { (&shown.name, &shown.uid) == (&old.name, &old.uid) } else { shown == *old };
        if is_same { Ok(object) } else { Err(Stop::Again.into()) }
    }

    /// The same for a user who may not `get` it, as `stored.rs` does.
    async fn read_by_another_right(
        &self,
        path: &str,
        to: &ServedResource,
    ) -> Result<Option<Value>, Unconverted> {
        if let Ok(Some(found)) = self.reviewer.list_one(self.authorized, path).await {
            return Ok(Some(found).filter(|found| kind_of(found) == to.kind));
        }
        if !matches!(self.reviewer.subject.action, Action::Patch(_)) {
            return Ok(None);
        }
        match self.dry_run(Method::PATCH, path, &Value::Array(Vec::new()), to).await {
            Ok(shown) => Ok(Some(shown)),
            Err(Unconverted::Reason(_)) => Ok(None),
            Err(stop) => Err(stop),
        }
    }

    /// Whether the response to a write shows all that is stored, as webhooks in another version see it. If the object cannot be read
    /// there, or has changed again, that is not known, and the review before the write counts. A subresource does not change the `spec`.
    // threat: unreviewed-write
    pub(super) async fn shows_all(&self, stored: &Value) -> bool {
        let subject = self.reviewer.subject;
        if !autoscaler::is_reduced(stored) || !subject.subresource.is_empty() {
            return true;
        }
        let (object, stored) = (stored.clone(), StoredObject::of(stored));
        let convert =
            move || autoscaler::converted(&object, autoscaler::V2).filter(|_| autoscaler::is_known(&object));
        let Some(Some(form)) = self.reviewer.surroundings.compute(true, convert).await else { return true };
        let kind = kind_of(&form);
        let resource = GroupVersionResource { version: kind.version.clone(), ..subject.resource.clone() };
        match self.read(&stored, &ServedResource { resource, kind }).await {
            Ok(read) => StoredObject::of(&read) != stored || read.get("spec") == form.get("spec"),
            Err(_) => true,
        }
    }

    /// The object in another form: by a read, if it is the stored one.
    async fn form_of(
        &self,
        object: &Value,
        is_stored: bool,
        to: &ServedResource,
    ) -> Result<Value, Unconverted> {
        // What is stored may be more than what is shown in the client's version.
        if is_stored && is_pinned(self.reviewer.admission) && autoscaler::is_reduced(object) {
            return self.read(&StoredObject::of(object), to).await;
        }
        match self.own(object, to).await? {
            Some(own) => self.with_stored_spec(object, own, to).await,
            None if is_stored => self.read(&StoredObject::of(object), to).await,
            None => self.converted(object, to).await,
        }
    }

    /// The new object of a request for a subresource, which does not change the `spec`.
    async fn with_stored_spec(
        &self,
        object: &Value,
        mut converted: Value,
        to: &ServedResource,
    ) -> Result<Value, Unconverted> {
        let is_of_subresource = !self.reviewer.subject.subresource.is_empty();
        let (Some(stored), true) = (&self.stored, is_of_subresource && autoscaler::is_reduced(object)) else {
            return Ok(converted);
        };
        let read = self.read(stored, to).await?;
        if let (Some(fields), Some(spec)) = (converted.as_object_mut(), read.get("spec")) {
            fields.insert("spec".to_owned(), spec.clone());
        }
        Ok(converted)
    }

    async fn converted(&self, object: &Value, to: &ServedResource) -> Result<Value, Unconverted> {
        match self.strategy(to).await? {
            Strategy::None => self.renamed(object, to).await,
            Strategy::Webhook => {
                Err(reason("the API server has no request that converts it by its conversion webhook"))
            }
            Strategy::BuiltIn => match event::converted(object, &to.kind.api_version()) {
                Some(event) => Ok(event),
                None => self.replaced(object, to).await,
            },
        }
    }

    /// The object, as the API server decodes it in its own `apiVersion` and shows it at another path.
    async fn replaced(&self, object: &Value, to: &ServedResource) -> Result<Value, Unconverted> {
        let Some(stored) = &self.stored else {
            return Err(reason(if autoscaler::is_one(object) {
                "it has a field that the gateway does not know, or a value that its field cannot have"
            } else {
                "the API server has no request that converts an object which does not exist"
            }));
        };
        let mut sent = object.clone();
        remove_managed_fields(&mut sent);
        stored.pin(&mut sent);
        let subresource = &self.reviewer.subject.subresource;
        let path = self.path(&to.resource, Some(&stored.name), subresource)?;
        let shown = self.dry_run(Method::PATCH, &path, &replacement(sent), to).await?;
        if StoredObject::of(&shown) != *stored {
            return Err(Stop::Again.into());
        }
        with_metadata_of(shown, object).ok_or_else(|| reason("the object has no metadata"))
    }

    /// The object with another `apiVersion`, without the fields that its schema does not have.
    async fn renamed(&self, object: &Value, to: &ServedResource) -> Result<Value, Unconverted> {
        let mut renamed = object.clone();
        if let Some(object) = renamed.as_object_mut() {
            object.insert("apiVersion".to_owned(), to.kind.api_version().into());
        }
        let mut sent = renamed.clone();
        let subject = self.reviewer.subject;
        let (method, name) = match &self.stored {
            None => {
                remove_server_fields(&mut sent);
                (Method::POST, None)
            }
            Some(stored) => {
                remove_managed_fields(&mut sent);
                stored.pin(&mut sent);
                let method = if subject.action == Action::Update { Method::PUT } else { Method::PATCH };
                (method, Some(stored.name.as_str()))
            }
        };
        let path = self.path(&to.resource, name, &subject.subresource)?;
        let body = if method == Method::PATCH { replacement(sent) } else { sent };
        let shown = self.dry_run(method, &path, &body, to).await?;
        let prune = move || {
            prune(&mut renamed, &shown);
            renamed
        };
        // The objects may be large, or deep.
        let pruned = self.reviewer.surroundings.compute(true, prune).await;
        pruned.ok_or_else(|| Stop::from(Refusal::Panic).into())
    }

    /// The object that a dry run at another path shows.
    async fn dry_run(
        &self,
        method: Method,
        path: &str,
        body: &Value,
        to: &ServedResource,
    ) -> Result<Value, Unconverted> {
        self.require_dry_run(&method, path, to).await?;
        let content_type = if method == Method::PATCH { JSON_PATCH } else { JSON };
        let verb = match method {
            Method::POST => "create",
            Method::PUT => "update",
            _ => "patch",
        };
        let body: Bytes = serde_json::to_vec(body).map_err(|_| reason("it is not valid"))?.into();
        let target = rewritten_target_at(self.authorized, path);
        let target = Some(target.ok_or_else(|| reason("its path is not valid"))?);
        let write = ReviewedWrite {
            method: Some(method),
            target,
            content_type: Some(content_type),
            body,
            ..ReviewedWrite::default()
        };
        let rehearsal = Rehearsal::dry_run_of_write(self.authorized, &write);
        self.object(rehearsal.ok_or_else(|| reason("the query is too long for a dry run"))?, to, verb).await
    }

    /// Another version may be another server's, which could store what is only rehearsed.
    async fn require_dry_run(
        &self,
        method: &Method,
        path: &str,
        to: &ServedResource,
    ) -> Result<(), Unconverted> {
        if extension_group(path).is_none() {
            return Ok(());
        }
        let Reviewer { surroundings, subject, .. } = self.reviewer;
        match surroundings.dry_run(&to.resource, &subject.subresource, method).await {
            Ok(DryRun::Supported) => Ok(()),
            Ok(DryRun::Unsupported | DryRun::NoMethod | DryRun::Absent) => {
                Err(reason("its API server has no dry run"))
            }
            Err(ReadError::Busy) => Err(busy().into()),
            Err(ReadError::Unreadable(_)) => {
                Err(reason("the gateway cannot tell whether its API server has dry runs"))
            }
        }
    }

    async fn strategy(&self, to: &ServedResource) -> Result<Strategy, Unconverted> {
        let path = self.path(&to.resource, None, "")?;
        if extension_group(&path).is_none() {
            return Ok(Strategy::BuiltIn);
        }
        match self.reviewer.surroundings.strategy(&to.resource).await {
            Ok(strategy) => Ok(strategy),
            Err(ReadError::Busy) => Err(busy().into()),
            Err(ReadError::Unreadable(error)) => {
                let (cluster, resource) = (&*self.authorized.cluster().name, &to.resource);
                tracing::warn!(cluster, %resource, error, "cannot read a CustomResourceDefinition");
                Err(reason("the gateway cannot read its CustomResourceDefinition"))
            }
        }
    }

    /// Sends a request that stores nothing, as the user; the object in its response.
    async fn object(
        &self,
        rehearsal: Rehearsal,
        to: &ServedResource,
        verb: &str,
    ) -> Result<Value, Unconverted> {
        let Reviewer { gateway, connection, scope, texts, .. } = self.reviewer;
        let context = gateway.forward_context(connection, scope);
        let sent = rehearse(&gateway.pools, context, self.authorized, rehearsal, texts).await;
        let response = sent.map_err(Stop::from)?;
        match response.status {
            status if status.is_success() => {}
            // The object has changed, or is there meanwhile.
            StatusCode::CONFLICT => return Err(Stop::Again.into()),
            StatusCode::NOT_FOUND if names_an_object(&response) => return Err(Stop::Again.into()),
            status => return Err(Unconverted::Reason(refused(verb, status, &response))),
        }
        let object = self.reviewer.decode(&response.body).await?;
        if kind_of(&object) == to.kind {
            return Ok(object);
        }
        Err(reason("the API server shows an object of another kind"))
    }

    /// The path of a collection, or of an object or its subresource.
    fn path(
        &self,
        on: &GroupVersionResource,
        name: Option<&str>,
        subresource: &str,
    ) -> Result<String, Unconverted> {
        let root = if on.group.is_empty() { "/api" } else { "/apis" };
        let namespace = self.reviewer.subject.namespace.as_str();
        let namespaced = if namespace.is_empty() { "" } else { "namespaces" };
        let segments = [
            &on.group,
            &on.version,
            namespaced,
            namespace,
            &on.resource,
            name.unwrap_or_default(),
            subresource,
        ];
        let mut path = root.to_owned();
        for segment in segments.into_iter().filter(|segment| !segment.is_empty()) {
            path.push('/');
            path.push_str(&path_segment(segment).map_err(|_| reason("its path is not valid"))?);
        }
        Ok(path)
    }
}

impl Conversions for RequestConversions<'_> {
    async fn equivalents(&self, attributes: &Attributes) -> Option<Vec<ServedResource>> {
        match self.reviewer.surroundings.equivalents(attributes).await {
            Ok(served) => served,
            Err(ReadError::Unreadable(_)) => None,
            Err(ReadError::Busy) => {
                self.stop(busy());
                None
            }
        }
    }

    async fn convert(&self, object: &Value, to: &ServedResource) -> Result<Value, String> {
        self.noted(self.form_of(object, self.is_written, to).await)
    }

    async fn convert_old(&self, old: &Value, to: &ServedResource) -> Result<Value, String> {
        // After the write, the object before it cannot be read any more.
        self.noted(self.form_of(old, !self.is_written, to).await)
    }
}

fn reason(text: &str) -> Unconverted {
    Unconverted::Reason(text.to_owned())
}

/// Whether the API server has found no object, and not that it does not serve the version.
// apimachinery: pkg/api/errors/errors.go, NewNotFound
fn names_an_object(response: &RehearsalResponse) -> bool {
    let status = serde_json::from_slice::<meta::Status>(&response.body).unwrap_or_default();
    status.details.and_then(|details| details.name).is_some_and(|name| !name.is_empty())
}

fn refused(verb: &str, status: StatusCode, response: &RehearsalResponse) -> String {
    let message = serde_json::from_slice::<meta::Status>(&response.body).unwrap_or_default().message;
    format!(
        "the API server answers {} to the {verb} that converts it: {}",
        status.as_u16(),
        message.unwrap_or_default()
    )
}

/// A converted object with the metadata of the object that was converted, except for what conversions change. The dry run has made
/// the other fields: it is an update at another time and by another manager.
fn with_metadata_of(mut converted: Value, object: &Value) -> Option<Value> {
    let mut metadata = object.get("metadata")?.as_object()?.clone();
    let shown = converted.get_mut("metadata")?.as_object_mut()?;
    for field in CONVERTED_METADATA {
        match shown.remove(field) {
            Some(value) => metadata.insert(field.to_owned(), value),
            None => metadata.remove(field),
        };
    }
    *shown = metadata;
    Some(converted)
}

/// The fields that stay as they are: a version may have no status of its own to reset, and what is stored is shown.
const KEPT: [&str; 2] = ["metadata", "status"];

/// Removes the fields of an object that another form of it does not have, except for [`KEPT`].
fn prune(object: &mut Value, shown: &Value) {
    let (Some(fields), Some(shown)) = (object.as_object_mut(), shown.as_object()) else { return };
    fields.retain(|field, value| {
        let is_kept = KEPT.contains(&field.as_str());
        if !is_kept {
            prune_field(value, shown.get(field));
        }
        is_kept || shown.contains_key(field)
    });
}

fn prune_field(value: &mut Value, shown: Option<&Value>) {
    match (value, shown) {
        (Value::Object(fields), Some(Value::Object(shown))) => {
            fields.retain(|field, value| {
                prune_field(value, shown.get(field));
                shown.contains_key(field)
            });
        }
        (Value::Array(items), Some(Value::Array(shown))) if items.len() == shown.len() => {
            for (item, shown) in items.iter_mut().zip(shown) {
                prune_field(item, Some(shown));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_conversion_changes_labels_and_annotations_alone_of_the_metadata() {
        let object = json!({"apiVersion": "g/v1", "kind": "K", "a": 1, "metadata": {"name": "n", "generation": 7,
            "annotations": {"x": "y"}, "managedFields": [{"manager": "m"}]}});
        let converted = json!({"apiVersion": "g/v2", "kind": "K", "b": 1, "metadata": {"name": "other", "generation": 8,
            "labels": {"l": "m"}, "managedFields": []}});
        assert_eq!(
            with_metadata_of(converted, &object),
            Some(
                json!({"apiVersion": "g/v2", "kind": "K", "b": 1, "metadata": {"name": "n", "generation": 7,
                "labels": {"l": "m"}, "managedFields": [{"manager": "m"}]}})
            )
        );
        assert_eq!(with_metadata_of(json!({"metadata": {}}), &json!({})), None);
    }

    #[test]
    fn an_object_loses_what_the_other_schema_does_not_have_and_gets_no_defaults() {
        let mut object = json!({"kind": "K", "metadata": {"name": "n"}, "spec": {"a": 1, "gone": 2,
            "list": [{"a": 1, "gone": 2}], "shorter": [1, 2]}, "status": {"a": 1}});
        let shown = json!({"kind": "K", "metadata": {"uid": "u"}, "spec": {"a": 1, "default": 3,
            "list": [{"a": 1, "default": 3}], "shorter": [1]}});
        prune(&mut object, &shown);
        assert_eq!(
            object,
            json!({"kind": "K", "metadata": {"name": "n"}, "spec": {"a": 1, "list": [{"a": 1}], "shorter": [1, 2]},
                "status": {"a": 1}})
        );
    }
}
