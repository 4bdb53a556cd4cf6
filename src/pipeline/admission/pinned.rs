//! Reviews of the objects that the backend shows in dry runs. The write is pinned to what was reviewed: it carries the
//! `resourceVersion` of the stored object, and the object or the changes that the dry run has shown.

use bytes::Bytes;
use http::header::HeaderValue;
use http::uri::PathAndQuery;
use portcullis_admission::{Objects, Operation};
use serde_json::{Map, Value, json};

use super::document::{
    carry_over, is_same, merge_patch, metadata, parse_unambiguous, remove_server_fields, set_metadata,
};
use super::options::{delete_options_of_query, reviewed_delete_options, write_options};
use super::reviewer::{JSON, Reviewer, Stop, as_sent, kind_of, unexpressible};
use super::subject::{Action, PatchKind};
use crate::pipeline::forward::{Rehearsal, RehearsalResponse};
use crate::pipeline::stages::{Authorized, ReviewedWrite};

const MERGE_PATCH: HeaderValue = HeaderValue::from_static("application/merge-patch+json");
/// No object has it: a write with it creates an absent object, and conflicts with one that is there meanwhile.
// apiserver: pkg/registry/generic/registry/store.go, Update — ignored if the object is absent
const VERSION_OF_ABSENT: &str = "1";

/// The object that a write leads to, by the dry run, and the stored one.
struct Shown {
    object: Value,
    old: Option<Value>,
}

impl Shown {
    fn operation(&self) -> Operation {
        if self.old.is_some() { Operation::Update } else { Operation::Create }
    }

    /// The version to which the write is pinned.
    fn version(&self) -> &str {
        self.old.as_ref().map_or(VERSION_OF_ABSENT, |old| metadata(old, "resourceVersion"))
    }
}

impl Reviewer<'_> {
    pub(super) async fn pinned(
        &self,
        authorized: &Authorized,
        body: &Bytes,
        action: Action,
    ) -> Result<(ReviewedWrite, bool), Stop> {
        Ok(match action {
            Action::Create => self.create(authorized, body).await?,
            Action::Update => (self.update(authorized, body).await?, true),
            Action::Patch(PatchKind::Apply) => (self.apply(authorized, body).await?, true),
            Action::Patch(PatchKind::Other) => (self.patch(authorized, body).await?, true),
            Action::Delete => (self.delete(authorized, body).await?, true),
            Action::DeleteCollection | Action::Connect | Action::ForeignConnect => {
                return Err(Stop::Unseen("no dry run shows the request".to_owned()));
            }
        })
    }

    /// Creates an object: of a generated name with the name that the webhooks have seen.
    async fn create(&self, authorized: &Authorized, body: &Bytes) -> Result<(ReviewedWrite, bool), Stop> {
        let shown = self.dry_run(authorized, None, body).await?.object()?;
        if is_status(&shown) {
            // Evictions and bindings are answered so, and not stored.
            let object = self.sent_object(authorized, body)?;
            return Ok((self.review_as_sent(authorized, body, object).await?, false));
        }
        let sent = parse_unambiguous(body).ok();
        let generated = generated_name(&shown, sent.as_ref());
        let mut view = shown.clone();
        remove_server_fields(&mut view);
        carry_managed_fields(&mut view, &shown);
        if generated.is_some() {
            set_metadata(&mut view, "name", "");
        }
        let name = if self.subject.name.is_empty() { metadata(&view, "name") } else { &self.subject.name };
        let options = Some(write_options(Operation::Create, authorized.query().unwrap_or_default()));
        let attributes =
            self.attributes(authorized, Operation::Create, kind_of(&view), name, options.clone());
        let mut objects = Objects { object: Some(view.clone()), old_object: None };
        let changed = self.mutate(&attributes, &mut objects).await?;
        let after = objects.object.unwrap_or_default();
        let (write, reviewed) = if changed || generated.is_some() {
            let candidates = creations(sent, &view, &after, generated.as_deref());
            if changed {
                self.first_accepted(authorized, candidates).await?
            } else {
                (candidates.into_iter().next().unwrap_or_default(), shown)
            }
        } else {
            (Value::Null, shown)
        };
        let name =
            if self.subject.name.is_empty() { metadata(&reviewed, "name") } else { &self.subject.name };
        let attributes = self.attributes(authorized, Operation::Create, kind_of(&reviewed), name, options);
        self.validate(&attributes, &Objects { object: Some(reviewed), old_object: None }).await?;
        let write = if write.is_null() { as_sent(body.clone()) } else { json_body(&write)? };
        Ok((write, generated.is_some()))
    }

    /// The first of several forms of an object that a dry run accepts, and what it shows.
    async fn first_accepted(
        &self,
        authorized: &Authorized,
        candidates: Vec<Value>,
    ) -> Result<(Value, Value), Stop> {
        let mut refused = None;
        for candidate in candidates {
            let body = json_body(&candidate)?.body;
            match self.dry_run(authorized, Some(JSON), &body).await {
                Ok(shown) => return Ok((candidate, shown.object()?)),
                // The refusal of the client's own form is the client's.
                Err(Stop::Answer(answer)) => {
                    refused.get_or_insert(Stop::Answer(answer));
                }
                Err(stop) => return Err(stop),
            }
        }
        Err(refused.unwrap_or_else(|| unexpressible("object")))
    }

    /// Replaces an object with what the dry run shows.
    async fn update(&self, authorized: &Authorized, body: &Bytes) -> Result<ReviewedWrite, Stop> {
        let shown = self.shown(authorized, self.dry_run(authorized, None, body).await?).await?;
        let (after, changed) = self.mutate_shown(authorized, &shown).await?;
        let mut write = after;
        if shown.old.is_none() {
            remove_server_fields(&mut write);
        }
        pin(&mut write, &shown)?;
        let write = json_body(&write)?;
        let reviewed = if changed {
            let response =
                self.dry_run(authorized, Some(JSON), &write.body).await.map_err(conflict_is_a_change)?;
            again_of(&response, &shown)?
        } else {
            shown.object.clone()
        };
        self.validate_shown(authorized, &shown, reviewed).await?;
        Ok(write)
    }

    /// Patches an object with the difference between the stored object and what the dry run shows.
    async fn patch(&self, authorized: &Authorized, body: &Bytes) -> Result<ReviewedWrite, Stop> {
        let shown = self.shown(authorized, self.dry_run(authorized, None, body).await?).await?;
        let Some(old) = &shown.old else { return Err(Stop::Again) };
        let (after, changed) = self.mutate_shown(authorized, &shown).await?;
        let (mut before, mut wanted) = (old.clone(), after);
        remove_server_fields(&mut before);
        remove_server_fields(&mut wanted);
        let mut write = merge_patch(&before, &wanted).ok_or_else(|| unexpressible("patch"))?;
        if !set_metadata(&mut write, "resourceVersion", shown.version()) {
            return Err(unexpressible("patch"));
        }
        let write = ReviewedWrite { content_type: Some(MERGE_PATCH), ..json_body(&write)? };
        let reviewed = if changed {
            let response = self
                .dry_run(authorized, Some(MERGE_PATCH), &write.body)
                .await
                .map_err(conflict_is_a_change)?;
            again_of(&response, &shown)?
        } else {
            shown.object.clone()
        };
        self.validate_shown(authorized, &shown, reviewed).await?;
        Ok(write)
    }

    /// Applies the client's configuration, with the changes of webhooks.
    async fn apply(&self, authorized: &Authorized, body: &Bytes) -> Result<ReviewedWrite, Stop> {
        let response = self.dry_run(authorized, None, body).await?;
        let mut write = parse_unambiguous(body).map_err(|error| {
            Stop::Unseen(format!("the gateway reads applied configurations in JSON only: {error}"))
        })?;
        let shown = self.shown(authorized, response).await?;
        let (after, changed) = self.mutate_shown(authorized, &shown).await?;
        if changed {
            carry_over(&mut write, &shown.object, &after);
        }
        pin(&mut write, &shown)?;
        let write = ReviewedWrite { content_type: None, ..json_body(&write)? };
        let reviewed = if changed {
            let response = self.dry_run(authorized, None, &write.body).await.map_err(conflict_is_a_change)?;
            let reviewed = again_of(&response, &shown)?;
            // What another manager owns cannot be removed by applying.
            if !is_same(&reviewed, &after) {
                return Err(unexpressible("applied configuration"));
            }
            reviewed
        } else {
            shown.object.clone()
        };
        self.validate_shown(authorized, &shown, reviewed).await?;
        Ok(write)
    }

    /// Deletes the object that the webhooks have seen.
    async fn delete(&self, authorized: &Authorized, body: &Bytes) -> Result<ReviewedWrite, Stop> {
        let raw = authorized.query().unwrap_or_default();
        let given = if body.is_empty() { None } else { Some(delete_options(body)?) };
        match &given {
            None => self.rehearse(authorized, || Rehearsal::dry_run(authorized, None, Bytes::new())).await?,
            Some(options) => {
                self.rehearse(authorized, || Rehearsal::dry_run_of_delete(authorized, options.clone()))
                    .await?
            }
        };
        let mut options = given.unwrap_or_else(|| delete_options_of_query(raw));
        let old = self.read_stored(authorized, false).await?.ok_or(Stop::Again)?;
        let reviewed = reviewed_delete_options(&options);
        let name = &self.subject.name;
        let attributes = self.attributes(authorized, Operation::Delete, kind_of(&old), name, Some(reviewed));
        let pins = [("uid", metadata(&old, "uid")), ("resourceVersion", metadata(&old, "resourceVersion"))];
        let pins = pins.map(|(field, value)| (field.to_owned(), Value::from(value)));
        let mut objects = Objects { object: None, old_object: Some(old) };
        self.mutate(&attributes, &mut objects).await?;
        self.validate(&attributes, &objects).await?;
        let preconditions = options.entry("preconditions").or_insert(Value::Null);
        if preconditions.is_null() {
            *preconditions = json!({});
        }
        preconditions.as_object_mut().ok_or_else(|| unexpressible("options"))?.extend(pins);
        options.entry("kind").or_insert_with(|| "DeleteOptions".into());
        options.entry("apiVersion").or_insert_with(|| "v1".into());
        json_body(&Value::Object(options))
    }

    async fn dry_run(
        &self,
        authorized: &Authorized,
        content_type: Option<HeaderValue>,
        body: &Bytes,
    ) -> Result<RehearsalResponse, Stop> {
        self.rehearse(authorized, || Rehearsal::dry_run(authorized, content_type.clone(), body.clone())).await
    }

    /// The object of a dry run beside the stored one on which it is based.
    async fn shown(&self, authorized: &Authorized, response: RehearsalResponse) -> Result<Shown, Stop> {
        let object = response.object()?;
        if response.is_created() {
            return Ok(Shown { object, old: None });
        }
        let is_scale = kind_of(&object).kind == "Scale";
        let old = self.read_stored(authorized, is_scale).await?.ok_or(Stop::Again)?;
        let version = metadata(&object, "resourceVersion");
        if version.is_empty() || version != metadata(&old, "resourceVersion") {
            return Err(Stop::Again);
        }
        Ok(Shown { object, old: Some(old) })
    }

    /// The stored object: a scale is read where it is written, and other subresources show the whole object.
    async fn read_stored(
        &self,
        authorized: &Authorized,
        with_subresource: bool,
    ) -> Result<Option<Value>, Stop> {
        let path = authorized.request().uri().path();
        let path = match path.trim_end_matches('/').rsplit_once('/') {
            Some((parent, _)) if !self.subject.subresource.is_empty() && !with_subresource => parent,
            _ => path,
        };
        let target: PathAndQuery =
            path.parse().map_err(|_| Stop::Unseen("the path of the object is not valid".to_owned()))?;
        let read = self.rehearse(authorized, || Some(Rehearsal::read(target.clone()))).await;
        match read {
            Ok(response) => Ok(Some(response.object()?)),
            Err(Stop::Answer(answer)) if answer.status() == http::StatusCode::NOT_FOUND => Ok(None),
            Err(stop) => Err(stop),
        }
    }

    /// Runs the mutating phase; the object afterwards, and whether it has changed.
    async fn mutate_shown(&self, authorized: &Authorized, shown: &Shown) -> Result<(Value, bool), Stop> {
        let mut view = shown.object.clone();
        if shown.old.is_none() {
            remove_server_fields(&mut view);
            carry_managed_fields(&mut view, &shown.object);
        }
        let attributes = self.shown_attributes(authorized, shown);
        let mut objects = Objects { object: Some(view), old_object: shown.old.clone() };
        let changed = self.mutate(&attributes, &mut objects).await?;
        Ok((objects.object.unwrap_or_default(), changed))
    }

    async fn validate_shown(
        &self,
        authorized: &Authorized,
        shown: &Shown,
        reviewed: Value,
    ) -> Result<(), Stop> {
        let attributes = self.shown_attributes(authorized, shown);
        let objects = Objects { object: Some(reviewed), old_object: shown.old.clone() };
        self.validate(&attributes, &objects).await
    }

    fn shown_attributes(&self, authorized: &Authorized, shown: &Shown) -> portcullis_admission::Attributes {
        let operation = shown.operation();
        let options = write_options(operation, authorized.query().unwrap_or_default());
        self.attributes(authorized, operation, kind_of(&shown.object), &self.subject.name, Some(options))
    }
}

/// Pins a write to the stored object, or to its absence.
fn pin(write: &mut Value, shown: &Shown) -> Result<(), Stop> {
    let uid = shown.old.as_ref().map_or("", |old| metadata(old, "uid"));
    let pinned = set_metadata(write, "resourceVersion", shown.version())
        && (uid.is_empty() || set_metadata(write, "uid", uid));
    if pinned { Ok(()) } else { Err(unexpressible("object")) }
}

/// The object of the second dry run, if it is based on the same stored object.
fn again_of(response: &RehearsalResponse, shown: &Shown) -> Result<Value, Stop> {
    let object = response.object()?;
    let version = metadata(&object, "resourceVersion");
    let same = if shown.old.is_some() { version == shown.version() } else { response.is_created() };
    if same { Ok(object) } else { Err(Stop::Again) }
}

/// A conflict of a pinned dry run: the object has changed since the first one.
fn conflict_is_a_change(stop: Stop) -> Stop {
    match stop {
        Stop::Answer(answer) if answer.status() == http::StatusCode::CONFLICT => Stop::Again,
        stop => stop,
    }
}

/// The forms in which a changed object is created: the client's object with the changes, and the whole object of the dry run,
/// since a change may refer to something that the API server has added.
fn creations(sent: Option<Value>, view: &Value, after: &Value, generated: Option<&str>) -> Vec<Value> {
    let mut whole = after.clone();
    remove_server_fields(&mut whole);
    let sent = sent.map(|mut sent| {
        carry_over(&mut sent, view, after);
        sent
    });
    let mut candidates: Vec<Value> = sent.into_iter().chain([whole]).collect();
    for candidate in &mut candidates {
        if metadata(candidate, "name").is_empty()
            && let Some(name) = generated
        {
            set_metadata(candidate, "name", name);
        }
    }
    candidates
}

/// The name that the API server has generated.
fn generated_name(shown: &Value, sent: Option<&Value>) -> Option<String> {
    let prefix = metadata(shown, "generateName");
    let name = metadata(shown, "name");
    let is_named = sent.is_some_and(|sent| !metadata(sent, "name").is_empty());
    (!prefix.is_empty() && !is_named && name.starts_with(prefix.get(..58).unwrap_or(prefix)))
        .then(|| name.to_owned())
}

/// Webhooks see who manages which fields.
fn carry_managed_fields(view: &mut Value, shown: &Value) {
    let managed = shown.get("metadata").and_then(|metadata| metadata.get("managedFields"));
    if let (Some(managed), Some(metadata)) =
        (managed, view.get_mut("metadata").and_then(Value::as_object_mut))
    {
        metadata.insert("managedFields".to_owned(), managed.clone());
    }
}

fn is_status(object: &Value) -> bool {
    let kind = kind_of(object);
    kind.group.is_empty() && kind.version == "v1" && kind.kind == "Status"
}

/// The `DeleteOptions` in a body.
fn delete_options(body: &Bytes) -> Result<Map<String, Value>, Stop> {
    let unseen =
        |error: String| Stop::Unseen(format!("the gateway reads DeleteOptions in JSON only: {error}"));
    match parse_unambiguous(body).map_err(unseen)? {
        Value::Object(options) => Ok(options),
        _ => Err(unseen("not an object".to_owned())),
    }
}

fn json_body(value: &Value) -> Result<ReviewedWrite, Stop> {
    let body = serde_json::to_vec(value).map_err(|_| unexpressible("object"))?;
    Ok(ReviewedWrite { target: None, content_type: Some(JSON), body: body.into() })
}
