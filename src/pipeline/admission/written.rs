//! What has become of a write: the object in its response is the one that webhooks have reviewed, or they review this one, and
//! what they refuse is undone.
//!
//! | difference of the response | then |
//! |---|---|
//! | what the API server decides anew in each request (`allocated.rs`) | none |
//! | `managedFields`, after a write of the whole object | one more write sets those of the client's own request: what webhooks have set has no manager |
//! | anything else: the API server's own admission has decided otherwise | the validating webhooks review the stored object. If they refuse it, the gateway deletes a new object, or restores the one before unless it has changed again, and the client gets their refusal |
//!
//! The gateway reads the response, so it asks for JSON. A client that accepts another encoding gets what it has written by a read.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Response};
use portcullis_admission::{Attributes, Objects};
use portcullis_go::url::path_segment;
use portcullis_http::body::Body;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::allocated::is_stored;
use super::document::{MANAGED_FIELDS, is_managed_alike, managed_fields, metadata, set_metadata};
use super::equivalent::RequestConversions;
use super::options::is_dry_run;
use super::reviewer::{Reviewed, Reviewer};
use super::splice::with_managed_fields;
use super::subject::Action;
use super::write::{JSON_PATCH, replacement};
use crate::metrics::StoredDifference;
use crate::pipeline::error_map::Refusal;
use crate::pipeline::forward::{Rehearsal, RehearsalResponse, rewritten_target_at, without_timeout};
use crate::pipeline::stages::{Admitted, Authorized, JSON, ReviewedWrite};

/// How long after the deadline of a request the response to its write may come, and how long a request after it may take.
const GRACE_PERIOD: Duration = Duration::from_secs(10);

/// What a write is to store.
pub(super) struct Expected {
    pub(super) attributes: Attributes,
    /// The object that webhooks have reviewed, and the stored one before.
    pub(super) objects: Objects,
    /// The `managedFields` that the write cannot set.
    pub(super) managed: Option<Value>,
}

impl Reviewer<'_> {
    /// Sends a write; the client's response to it.
    pub(super) async fn write(
        &self,
        authorized: &Authorized,
        reviewed: Reviewed,
    ) -> Result<Response<Body>, Refusal> {
        let Reviewed { mut write, expected, .. } = reviewed;
        if expected.is_some() {
            write.deadline = late(authorized);
            write.target = write.target.or_else(|| without_timeout(authorized));
        }
        // Neither the client nor its deadline ends what follows.
        let _guard = expected.is_some().then(|| self.scope.write.begin());
        let admitted = Admitted::reviewed(authorized, write);
        let response = self.gateway.forward(admitted, self.connection, self.scope).await?;
        match expected {
            Some(expected) if response.status().is_success() => {
                self.settle(authorized, *expected, response).await
            }
            _ => Ok(response),
        }
    }

    /// Compares what the API server has stored with what was reviewed.
    async fn settle(
        &self,
        authorized: &Authorized,
        expected: Expected,
        response: Response<Body>,
    ) -> Result<Response<Body>, Refusal> {
        let written = self.read_response(response).await?;
        let Some(stored) = self.decode_stored(&written.body).await else {
            tracing::warn!(
                cluster = &*authorized.cluster().name,
                "the response to a reviewed write is not an object"
            );
            return Ok(written.into_response());
        };
        let Expected { attributes, objects: Objects { object, old_object }, managed } = expected;
        if is_dry_run(authorized.query().unwrap_or_default()) {
            return Ok(with_managed(written, managed.as_ref()).into_response());
        }
        let is_reviewed = object.is_some_and(|object| is_stored(&object, &stored))
            && self.shows_all(authorized, &attributes, &stored).await;
        let stored = if is_reviewed {
            stored
        } else {
            let objects = Objects { object: Some(stored), old_object };
            self.review_stored(authorized, &attributes, objects).await?
        };
        let managed = managed.filter(|managed| !is_managed_alike(Some(managed), managed_fields(&stored)));
        let mut other = match managed {
            Some(managed) => self.set_managed(authorized, &stored, managed).await,
            None => None,
        };
        if other.is_none() && !accepts_json(authorized) {
            other = self.read_in_encoding_of_client(authorized, &stored).await;
        }
        let response = match other {
            Some(other) => in_the_form_of(written, other),
            None => written,
        };
        Ok(response.into_response())
    }

    /// Whether the response to a write shows all that is stored.
    async fn shows_all(&self, authorized: &Authorized, attributes: &Attributes, stored: &Value) -> bool {
        if !self.sees_other_versions(attributes) {
            return true;
        }
        let objects = Objects { object: Some(stored.clone()), old_object: None };
        RequestConversions::after_write(self, authorized, &objects).shows_all(stored).await
    }

    /// Reviews an object that is stored and was not reviewed, and returns it. What webhooks refuse is undone.
    // threat: unreviewed-write
    async fn review_stored(
        &self,
        authorized: &Authorized,
        attributes: &Attributes,
        mut objects: Objects,
    ) -> Result<Value, Refusal> {
        let differences = &self.gateway.metrics.admission;
        let conversions = RequestConversions::after_write(self, authorized, &objects);
        let reviewed = self.validate_with(&conversions, attributes, &mut objects).await;
        let stored = objects.object.take().unwrap_or_default();
        let (cluster, resource) = (&*authorized.cluster().name, &self.subject.resource);
        let (namespace, name) = (self.subject.namespace.as_str(), metadata(&stored, "name"));
        let Err(stop) = reviewed else {
            differences.stored_otherwise(StoredDifference::Allowed);
            tracing::debug!(cluster, %resource, namespace, name, "stored another object than the reviewed one, which webhooks allow");
            return Ok(stored);
        };
        let undone = self.undo(authorized, &stored, objects.old_object).await;
        differences.stored_otherwise(if undone { StoredDifference::Undone } else { StoredDifference::Kept });
        tracing::warn!(cluster, %resource, namespace, name, undone, "stored another object than the reviewed one, which webhooks refuse");
        // Webhooks refuse; they send no response of the API server.
        Err(stop.into_response(self.subject).err().unwrap_or(Refusal::Panic))
    }

    /// Deletes a new object, whatever has become of it; restores the one before, unless it has changed again. Whether nothing of the
    /// write is left.
    async fn undo(&self, authorized: &Authorized, stored: &Value, old: Option<Value>) -> bool {
        let version = metadata(stored, "resourceVersion");
        let Some(mut old) = old else {
            // At once: a pod would go on for its grace period.
            let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0,
                "preconditions": {"uid": metadata(stored, "uid")}});
            let deleted = self.send(authorized, stored, (Method::DELETE, JSON), &options).await;
            // One with finalizers stays.
            let shown = match &deleted {
                Some(response) => self.decode_stored(&response.body).await,
                None => return false,
            };
            return shown.is_none_or(|shown| metadata(&shown, "deletionTimestamp").is_empty());
        };
        if metadata(&old, "resourceVersion") == version {
            return true;
        }
        set_metadata(&mut old, "resourceVersion", version);
        let (form, body) = match self.subject.action {
            Action::Update => ((Method::PUT, JSON), old),
            _ => ((Method::PATCH, JSON_PATCH), replacement(old)),
        };
        self.send(authorized, stored, form, &body).await.is_some()
    }

    /// Sets the `managedFields` that the API server makes of the client's own request; the response in the client's encoding. Of a
    /// user who may not patch the object, the managers stay as the write has made them.
    async fn set_managed(
        &self,
        authorized: &Authorized,
        stored: &Value,
        managed: Value,
    ) -> Option<RehearsalResponse> {
        // A subresource does not set them.
        if !self.subject.subresource.is_empty() {
            return None;
        }
        let (form, body) = if self.subject.action == Action::Update {
            let mut object = stored.clone();
            object.get_mut("metadata")?.as_object_mut()?.insert(MANAGED_FIELDS.to_owned(), managed);
            ((Method::PUT, JSON), object)
        } else {
            let version = metadata(stored, "resourceVersion");
            let operations = json!([
                {"op": "add", "path": "/metadata/managedFields", "value": managed},
                {"op": "add", "path": "/metadata/resourceVersion", "value": version},
            ]);
            ((Method::PATCH, JSON_PATCH), operations)
        };
        let response = self.send(authorized, stored, form, &body).await;
        self.gateway.metrics.admission.managed_fields_written(response.is_some());
        response
    }

    /// Sends a request for the stored object as the user; the response, if the API server has accepted it.
    async fn send(
        &self,
        authorized: &Authorized,
        stored: &Value,
        (method, content_type): (Method, HeaderValue),
        body: &Value,
    ) -> Option<RehearsalResponse> {
        let write = ReviewedWrite {
            method: Some(method),
            target: Some(rewritten_target_at(authorized, &self.path_of(authorized, stored)?)?),
            content_type: Some(content_type),
            body: serde_json::to_vec(body).ok()?.into(),
            is_read: false,
            deadline: Some(Instant::now() + GRACE_PERIOD),
        };
        let admitted = Admitted::reviewed(authorized, write);
        let response = self.gateway.forward(admitted, self.connection, self.scope).await.ok()?;
        if !response.status().is_success() {
            let status = response.status().as_u16();
            tracing::debug!(
                cluster = &*authorized.cluster().name,
                status,
                "a request after a reviewed write is refused"
            );
            return None;
        }
        self.read_response(response).await.ok()
    }

    /// The path of the object that the request has written.
    fn path_of(&self, authorized: &Authorized, stored: &Value) -> Option<String> {
        let path = authorized.request().uri().path().trim_end_matches('/');
        match (self.subject.action, self.subject.subresource.as_str()) {
            (Action::Create, "") => Some(format!("{path}/{}", path_segment(metadata(stored, "name")).ok()?)),
            (Action::Create, _) => None,
            _ => Some(path.to_owned()),
        }
    }

    async fn read_in_encoding_of_client(
        &self,
        authorized: &Authorized,
        stored: &Value,
    ) -> Option<RehearsalResponse> {
        let target: PathAndQuery = self.path_of(authorized, stored)?.parse().ok()?;
        let read = || Some(Rehearsal::read(target.clone()).in_encoding_of_client());
        self.rehearse(authorized, read).await.ok()
    }

    /// Reads the whole response to a write.
    async fn read_response(&self, response: Response<Body>) -> Result<RehearsalResponse, Refusal> {
        let read = RehearsalResponse::read(response, &self.texts).await.map_err(Refusal::Forward)?;
        Ok(read.without_length())
    }
}

/// The deadline of a write whose response the gateway has to see: that of the request is also the API server's, which responds by then.
fn late(authorized: &Authorized) -> Option<Instant> {
    authorized.deadline().map(|deadline| deadline + GRACE_PERIOD)
}

/// Whether the client's response is JSON of the object.
pub(super) fn accepts_json(authorized: &Authorized) -> bool {
    let accept = authorized.request().headers().get(ACCEPT).map(HeaderValue::to_str);
    accept.is_none_or(|accept| {
        let mut types = accept.unwrap_or("-").split(',').map(str::trim);
        types.all(|accepted| matches!(accepted, "" | "*/*" | "application/*" | "application/json"))
    })
}

/// The response to a dry run of the client with the managers of its own request.
fn with_managed(response: RehearsalResponse, managed: Option<&Value>) -> RehearsalResponse {
    let managed = managed.and_then(Value::as_array);
    let body: Option<Bytes> = managed.and_then(|managed| with_managed_fields(&response.body, managed));
    match body {
        Some(body) => response.with_body(body),
        None => response,
    }
}

/// The response to the write with the body of another one.
fn in_the_form_of(written: RehearsalResponse, other: RehearsalResponse) -> RehearsalResponse {
    let mut headers = written.headers;
    for name in [CONTENT_TYPE, CONTENT_ENCODING] {
        match other.headers.get(&name) {
            Some(value) => headers.insert(name, value.clone()),
            None => headers.remove(name),
        };
    }
    other.with_head(written.status, headers)
}
