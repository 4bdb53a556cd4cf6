//! The write that a review leads to: one that gives the object that the webhooks have reviewed, and no other one.
//!
//! | the client's request | its own form, if no webhook has changed the object | the whole object |
//! |---|---|---|
//! | POST | as sent; with the generated name | POST |
//! | PUT | as sent, with the `resourceVersion` | PUT |
//! | merge patch, strategic merge patch | as sent, with the `resourceVersion` | a JSON patch that replaces the object |
//! | JSON patch | as sent, with an operation that sets the `resourceVersion` | the same |
//! | applied configuration | as sent, with the `resourceVersion` | the same; POST of an absent object |
//!
//! Of a client's own request the API server makes what it has made in the dry run: it applies the same bytes to the same stored
//! object, or refuses them. The whole object is for the changes of webhooks, and for bodies in which the gateway cannot set the
//! pin. It says nulls, lists and `managedFields` as they are, and leaves out what a dry run has allocated (`allocated.rs`).

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, StatusCode};
use portcullis_admission::Operation;
use portcullis_go::url::query;
use serde_json::{Map, Value};

use super::allocated::{Origin, remove_completed_resources};
use super::autoscaler;
use super::document::{
    SERVER_FIELDS, carry_over, is_lost, keep_server_fields, metadata, remove_managed_fields,
    remove_server_fields, set_metadata,
};
use super::options::is_dry_run;
use super::reviewer::Stop;
use super::splice::{Encoding, keeps_type, with_last_operation};
use crate::pipeline::forward::{RehearsalResponse, rewritten_target, rewritten_target_at};
use crate::pipeline::stages::{Authorized, JSON, ReviewedWrite};

pub(super) const JSON_PATCH: HeaderValue = HeaderValue::from_static("application/json-patch+json");
/// No object has it: a write with it creates an absent object, and conflicts with one that is there meanwhile.
// apiserver: pkg/registry/generic/registry/store.go, Update — ignored if the object is absent
const VERSION_OF_ABSENT: &str = "9223372036854775807";
/// The manager whose applied configurations the API server copies into an annotation.
// apimachinery: pkg/util/managedfields/internal/lastappliedupdater.go
const KUBECTL: &str = "kubectl";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What a request does to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Create,
    /// Replaces an object, or creates it under the name in the path.
    Update,
    /// A JSON patch, merge patch or strategic merge patch.
    Patch,
    /// An applied configuration, which may create the object.
    Apply,
}

/// The object that a request leads to, by a dry run, and the stored one.
pub(super) struct Shown {
    pub(super) object: Value,
    pub(super) old: Option<Value>,
    /// The name that the API server has generated.
    pub(super) generated: Option<String>,
}

/// What the client has sent.
pub(super) struct ClientRequest<'a> {
    pub(super) authorized: &'a Authorized,
    pub(super) change: Change,
    pub(super) encoding: Encoding,
    body: &'a Bytes,
    /// The `metadata` of an object in the body, if the gateway can read it.
    pub(super) sent: Option<Value>,
}

impl Shown {
    pub(super) fn operation(&self) -> Operation {
        if self.old.is_some() { Operation::Update } else { Operation::Create }
    }

    /// The version to which the write is pinned.
    fn version(&self) -> &str {
        self.old.as_ref().map_or(VERSION_OF_ABSENT, |old| metadata(old, "resourceVersion"))
    }
}

impl<'a> ClientRequest<'a> {
    pub(super) fn new(authorized: &'a Authorized, body: &'a Bytes, change: Change) -> Self {
        let encoding = match change {
            // An applied configuration is YAML, of which JSON is a part.
            Change::Patch | Change::Apply => Encoding::Json,
            Change::Create | Change::Update => Encoding::of(authorized.request().headers()),
        };
        let sent = if change == Change::Patch { None } else { encoding.metadata(body) };
        Self { authorized, change, encoding, body, sent }
    }

    /// The object that mutating webhooks see.
    pub(super) fn view(&self, shown: &Shown) -> Value {
        let (mut view, sent) = (shown.object.clone(), self.sent.as_ref());
        remove_completed_resources(&mut view, shown.old.as_ref());
        match (self.change, &shown.old) {
            (Change::Create, _) => {
                keep_server_fields(&mut view, None, &SERVER_FIELDS);
                keep_server_fields(&mut view, sent, &["generation", "resourceVersion"]);
                if shown.generated.is_some() {
                    set_metadata(&mut view, "name", "");
                }
            }
            // What a client does not send is filled in after the mutating phase.
            (Change::Update, _) => {
                if sent.is_some() {
                    keep_server_fields(&mut view, sent, &SERVER_FIELDS);
                }
            }
            // The generation is that of the stored object.
            (Change::Patch | Change::Apply, Some(old)) => {
                keep_server_fields(&mut view, Some(old), &["generation"]);
            }
            (Change::Patch | Change::Apply, None) => {
                keep_server_fields(&mut view, None, &SERVER_FIELDS);
                keep_server_fields(&mut view, sent, &["resourceVersion"]);
            }
        }
        view
    }

    /// The client's own request, pinned. `None` if the gateway cannot set the pin in its body.
    pub(super) fn own(&self, shown: &Shown) -> Option<ReviewedWrite> {
        let body = match (self.change, &shown.generated) {
            (Change::Create, None) => self.body.clone(),
            (Change::Create, Some(name)) => self.encoding.with_metadata(self.body, &[("name", name)])?,
            // Nothing is stored, and the response would show the pin.
            _ if shown.old.is_none() && self.is_dry_run() => self.body.clone(),
            (Change::Apply, _) if self.is_copied(&shown.object) => return None,
            (Change::Patch, _) if !self.keeps_type(&shown.object) => return None,
            (Change::Patch, _) if is_json_patch(self.authorized.request().headers())? => {
                with_last_operation(self.body, shown.version())?
            }
            _ => self.encoding.with_metadata(self.body, &[("resourceVersion", shown.version())])?,
        };
        Some(ReviewedWrite { body, ..ReviewedWrite::default() })
    }

    /// Whether the API server may store more than the client's version of the object shows, of which other versions show all.
    // threat: unreviewed-write
    pub(super) fn may_hide(&self, object: &Value) -> bool {
        autoscaler::is_reduced(object)
            && (autoscaler::may_be_annotated(self.body, self.encoding) || !self.keeps_type(object))
    }

    /// Whether the API server decodes the object of a patch as the client's version. It decodes it as the `apiVersion` and `kind` that
    /// the patch leaves in it, and what the dry run shows then is not all that is stored.
    // threat: unreviewed-write
    // apiserver: pkg/endpoints/handlers/patch.go, jsonPatcher.applyPatchToCurrentObject
    fn keeps_type(&self, object: &Value) -> bool {
        let is_json_patch = is_json_patch(self.authorized.request().headers()).unwrap_or(true);
        self.change != Change::Patch || keeps_type(self.body, is_json_patch, object)
    }

    fn is_dry_run(&self) -> bool {
        is_dry_run(self.authorized.query().unwrap_or_default())
    }

    /// Whether the API server copies the applied configuration, with a pin in it, into the object.
    fn is_copied(&self, object: &Value) -> bool {
        let raw = self.authorized.query().unwrap_or_default();
        let annotations = object.get("metadata").and_then(|metadata| metadata.get("annotations"));
        let last = annotations.and_then(|annotations| annotations.get(LAST_APPLIED)).and_then(Value::as_str);
        last.is_some_and(|last| !last.is_empty())
            && query::first(raw, "fieldManager").as_deref() == Some(KUBECTL)
    }

    /// A write of the whole object `after`. `None` if the target is not valid.
    pub(super) fn whole(&self, shown: &Shown, after: &Value) -> Option<ReviewedWrite> {
        let mut object = after.clone();
        let old = shown.old.as_ref();
        let origin = Origin { shown: &shown.object, old, encoding: self.encoding, body: self.body };
        origin.remove_allocated(&mut object);
        // The API server makes these of a new object.
        match (self.change, old) {
            (_, Some(_)) => {}
            (Change::Update, None) => remove_server_fields(&mut object),
            (Change::Create, None) => remove_managed_fields(&mut object),
            (Change::Apply | Change::Patch, None) => {
                remove_managed_fields(&mut object);
                set_metadata(&mut object, "resourceVersion", "");
            }
        }
        let target = rewritten_target(self.authorized)?;
        let (method, target, content_type) = match (self.change, old) {
            // The name in the path is the object's.
            (Change::Apply | Change::Patch, None)
                if metadata(&object, "name") != metadata(&shown.object, "name") =>
            {
                return None;
            }
            (Change::Apply | Change::Patch, None) => (Some(Method::POST), self.collection()?, JSON),
            (Change::Create | Change::Update, _) => (None, target, JSON),
            (Change::Patch | Change::Apply, Some(_)) => (None, target, JSON_PATCH),
        };
        if let Some(name) = shown.generated.as_deref().filter(|_| metadata(&object, "name").is_empty()) {
            set_metadata(&mut object, "name", name);
        }
        if let Some(old) = old {
            set_metadata(&mut object, "uid", metadata(old, "uid"));
        }
        let is_pinned = old.is_some() || self.change == Change::Update && !self.is_dry_run();
        if is_pinned && !set_metadata(&mut object, "resourceVersion", shown.version()) {
            return None;
        }
        if content_type == JSON_PATCH {
            object = replacement(object);
        }
        let body = serde_json::to_vec(&object).ok()?.into();
        let (target, content_type) = (Some(target), Some(content_type));
        Some(ReviewedWrite { method, target, content_type, body, ..ReviewedWrite::default() })
    }

    /// The target of the collection of the object in the path.
    fn collection(&self) -> Option<PathAndQuery> {
        let (collection, _) =
            self.authorized.request().uri().path().trim_end_matches('/').rsplit_once('/')?;
        rewritten_target_at(self.authorized, collection)
    }

    /// The body of a creation, if it is JSON, which can be sent with changes.
    pub(super) fn body_to_change(&self) -> Option<&'a Bytes> {
        (self.change == Change::Create && self.encoding == Encoding::Json).then_some(self.body)
    }

    /// The client's object with the changes of webhooks, if the gateway can read it.
    pub(super) fn carried_over(
        &self,
        mut sent: Value,
        shown: &Shown,
        after: &Value,
    ) -> Option<ReviewedWrite> {
        carry_over(&mut sent, &self.view(shown), after);
        if let Some(name) = shown.generated.as_deref().filter(|_| metadata(&sent, "name").is_empty()) {
            set_metadata(&mut sent, "name", name);
        }
        let body = serde_json::to_vec(&sent).ok()?.into();
        let target = Some(rewritten_target(self.authorized)?);
        Some(ReviewedWrite { target, content_type: Some(JSON), body, ..ReviewedWrite::default() })
    }

    /// Whether a change of webhooks is not in the object of a dry run.
    pub(super) fn is_lost(&self, shown: &Shown, after: &Value, object: &Value) -> bool {
        is_lost(&self.view(shown), after, object)
    }
}

/// The JSON patch that replaces the whole object.
// RFC 6902
pub(super) fn replacement(object: Value) -> Value {
    let mut operation = Map::new();
    operation.insert("op".to_owned(), "replace".into());
    operation.insert("path".to_owned(), "".into());
    operation.insert("value".to_owned(), object);
    Value::Array(vec![operation.into()])
}

/// Whether a patch is a JSON patch. `None` if servers differ in which content type counts.
fn is_json_patch(headers: &HeaderMap) -> Option<bool> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (only, None) = (types.next()?.to_str().ok()?, types.next()) else { return None };
    Some(only.split(';').next() == JSON_PATCH.to_str().ok())
}

/// The object of the second dry run, if it is based on the same stored object.
pub(super) fn again_of(response: &RehearsalResponse, shown: &Shown) -> Result<Value, Stop> {
    let mut object = response.object()?;
    let same = match shown.old {
        Some(_) => metadata(&object, "resourceVersion") == shown.version(),
        None => response.is_created(),
    };
    if metadata(&object, "resourceVersion") == VERSION_OF_ABSENT {
        // The API server has ignored the pin.
        set_metadata(&mut object, "resourceVersion", metadata(&shown.object, "resourceVersion"));
    }
    if same { Ok(object) } else { Err(Stop::Again) }
}

/// A conflict of a pinned dry run: the object has changed since the first one.
pub(super) fn conflict_is_a_change(stop: Stop) -> Stop {
    match stop {
        Stop::Response(response) if response.status == StatusCode::CONFLICT => Stop::Again,
        stop => stop,
    }
}
