//! Reviews of the objects that the backend shows in dry runs. The write is pinned to what was reviewed: it carries the
//! `resourceVersion` of the stored object, and the object or the changes that the dry run has shown.
//!
//! The steps of one review, in order. Each may end it with a [`Stop`]:
//!
//! | step | CREATE | UPDATE | patch | apply | DELETE | ends the review |
//! |---|---|---|---|---|---|---|
//! | 1. dry run of the client's request | yes | yes | yes | yes | yes | a refusal is the client's response |
//! | 2. read of the stored object | no | unless absent | yes | unless absent | yes | `Again` if it is not that of step 1 |
//! | 3. mutating webhooks | yes | yes | yes | yes | yes | a webhook refuses, or changes what the write is pinned to |
//! | 4. dry run of the changed object | if it or its generated name changes the write | if changed | if changed | always | no | `Again` if the stored object has changed |
//! | 5. validating webhooks | yes | yes | yes | yes | yes | a webhook refuses |
//! | 6. the write | pinned to its generated name | pinned | pinned | pinned | pinned | a conflict begins a new review |
//!
//! `Reviewer::forward` in `pipeline/admission.rs` begins again after `Again` or a conflict, with at most `MAX_REVIEWS` reviews in all.

use bytes::Bytes;
use http::StatusCode;
use http::header::{ACCEPT, HeaderValue};
use http::uri::PathAndQuery;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use portcullis_admission::review::internal_error;
use portcullis_admission::{Attributes, GroupVersionKind, Objects, Operation};
use portcullis_go::quote::Quoted;
use serde_json::{Map, Value, json};

use super::document::{
    SERVER_FIELDS, carry_over, for_yaml, is_lost, is_same, keep_server_fields, merge_patch, metadata,
    remove_managed_fields, remove_server_fields, set_metadata,
};
use super::options::{
    delete_options_of_body, delete_options_of_query, reviewed_delete_options, write_options,
};
use super::request_level::is_json;
use super::reviewer::{JSON, OnConflict, Reviewer, Stop, as_sent, conflict, kind_of, unexpressible};
use super::subject::{Action, PatchKind};
use crate::pipeline::error_map::Refusal;
use crate::pipeline::forward::{Rehearsal, RehearsalResponse, rewritten_target};
use crate::pipeline::stages::{Authorized, ReviewedWrite};

const MERGE_PATCH: HeaderValue = HeaderValue::from_static("application/merge-patch+json");
/// No object has it: a write with it creates an absent object, and conflicts with one that is there meanwhile.
// apiserver: pkg/registry/generic/registry/store.go, Update — ignored if the object is absent
const VERSION_OF_ABSENT: &str = "9223372036854775807";

/// How a request changes an object, or creates one under a name that the client has chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Update,
    Patch,
    Apply,
}

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
    ) -> Result<(ReviewedWrite, OnConflict), Stop> {
        let write = match action {
            Action::Create => return self.create(authorized, body).await,
            Action::Update => self.change(authorized, body, Change::Update).await?,
            Action::Patch(PatchKind::Apply) => self.change(authorized, body, Change::Apply).await?,
            Action::Patch(PatchKind::Other) => self.change(authorized, body, Change::Patch).await?,
            Action::Delete => self.delete(authorized, body).await?,
            Action::DeleteCollection | Action::Connect | Action::ForeignConnect => {
                return Err(Stop::Unseen("no dry run shows the request".to_owned()));
            }
        };
        Ok((write, OnConflict::ReviewAgain))
    }

    /// Creates an object: of a generated name with the name that the webhooks have seen.
    async fn create(
        &self,
        authorized: &Authorized,
        body: &Bytes,
    ) -> Result<(ReviewedWrite, OnConflict), Stop> {
        let shown = self.first_dry_run(authorized, body).await?.object()?;
        if is_status(&shown) {
            // Evictions and bindings are answered so, and not stored.
            let object = self.sent_object(authorized, body)?;
            return Ok((self.review_as_sent(authorized, body, object).await?, OnConflict::Respond));
        }
        let sent = if is_json(authorized.request().headers()) { self.take_body(body).ok() } else { None };
        let generated = match generated_name(&shown, sent.as_ref()) {
            // The name may be that of a body that is not read here: a generated one is another one the next time.
            Some(name) if sent.is_none() => {
                let again = self.first_dry_run(authorized, body).await?.object()?;
                (metadata(&again, "name") != name).then_some(name)
            }
            generated => generated,
        };
        let mut view = shown.clone();
        keep_server_fields(&mut view, None, &SERVER_FIELDS);
        keep_server_fields(&mut view, sent.as_ref(), &["generation", "resourceVersion"]);
        if generated.is_some() {
            set_metadata(&mut view, "name", "");
        }
        let mut objects = Objects { object: Some(view.clone()), old_object: None };
        let mut attributes = self.created_attributes(authorized, &view);
        let changed = self.mutate(&attributes, &mut objects).await?;
        let after = objects.object.unwrap_or_default();
        let (write, reviewed) = if changed || generated.is_some() {
            self.first_accepted(authorized, sent, &view, &after, generated.as_deref()).await?
        } else {
            (as_sent(body.clone()), shown)
        };
        // The name of the request stays, also if a webhook renames the object.
        if attributes.name.is_empty() {
            attributes = self.created_attributes(authorized, &reviewed);
        }
        self.validate(&attributes, &mut Objects { object: Some(reviewed), old_object: None }).await?;
        // A generated name may be taken meanwhile.
        let on_conflict = if generated.is_some() { OnConflict::ReviewAgain } else { OnConflict::Respond };
        Ok((write, on_conflict))
    }

    fn created_attributes(&self, authorized: &Authorized, object: &Value) -> Attributes {
        let name = if self.subject.name.is_empty() { metadata(object, "name") } else { &self.subject.name };
        let options = write_options(Operation::Create, authorized.query().unwrap_or_default());
        self.attributes(authorized, Operation::Create, kind_of(object), name, Some(options))
    }

    /// The form of a changed object that a dry run accepts, and what it shows: the whole object of the first dry run with the
    /// changes; else the client's object with the changes, since the API server may have added what it does not accept.
    async fn first_accepted(
        &self,
        authorized: &Authorized,
        sent: Option<Value>,
        view: &Value,
        after: &Value,
        generated: Option<&str>,
    ) -> Result<(ReviewedWrite, Value), Stop> {
        let mut whole = after.clone();
        remove_managed_fields(&mut whole);
        name(&mut whole, generated);
        let whole = rewritten(authorized, &whole, JSON)?;
        let refused = match self.second_dry_run(authorized, &whole).await {
            Ok(shown) => return Ok((whole, shown.object()?)),
            Err(stop @ (Stop::Response(_) | Stop::Refused(_))) => stop,
            Err(stop) => return Err(stop),
        };
        let Some(mut sent) = sent else { return Err(refused) };
        carry_over(&mut sent, view, after);
        name(&mut sent, generated);
        let sent = rewritten(authorized, &sent, JSON)?;
        let Ok(shown) = self.second_dry_run(authorized, &sent).await else { return Err(refused) };
        let shown = shown.object()?;
        if is_lost(view, after, &shown) { Err(refused) } else { Ok((sent, shown)) }
    }

    /// Changes an object: the steps of the table above.
    async fn change(
        &self,
        authorized: &Authorized,
        body: &Bytes,
        change: Change,
    ) -> Result<ReviewedWrite, Stop> {
        let response = self.first_dry_run(authorized, body).await?;
        let sent = if change == Change::Patch { None } else { Some(self.take_body(body)) };
        if let (Change::Apply, Some(Err(error))) = (change, &sent) {
            let reason = format!("the gateway reads applied configurations in JSON only: {error}");
            return Err(Stop::Unreadable(reason));
        }
        let sent = sent.and_then(Result::ok);
        let shown = self.shown(authorized, response).await?;
        if change == Change::Patch && shown.old.is_none() {
            return Err(Stop::Again);
        }
        let view = change.view(&shown, sent.as_ref());
        let before = (change == Change::Apply).then(|| view.clone());
        let (after, changed) = self.mutate_view(authorized, &shown, view).await?;
        // The API server reads a configuration as YAML and merges it, so its own reading is what counts.
        let (write, expected) = match (sent, before) {
            (Some(sent), Some(before)) => {
                (applied(authorized, &shown, sent, changed.then_some((&before, &after)))?, Some(after))
            }
            _ if change == Change::Patch => (patched(authorized, &shown, after)?, None),
            _ => (updated(authorized, &shown, after)?, None),
        };
        let shows_again = changed || expected.is_some();
        let reviewed = self.validate_write(authorized, shown, &write, shows_again).await?;
        // What another manager owns cannot be removed by applying.
        if expected.is_some_and(|expected| !is_same(&reviewed, &expected)) {
            return Err(unexpressible("applied configuration"));
        }
        Ok(write)
    }

    /// Deletes the object that the webhooks have seen.
    async fn delete(&self, authorized: &Authorized, body: &Bytes) -> Result<ReviewedWrite, Stop> {
        let raw = authorized.query().unwrap_or_default();
        let given = if body.is_empty() {
            None
        } else {
            Some(delete_options_of_body(body).map_err(Stop::Unreadable)?)
        };
        match &given {
            None => self.rehearse(authorized, || Rehearsal::dry_run(authorized, Bytes::new())).await?,
            Some(options) => {
                self.rehearse(authorized, || Rehearsal::dry_run_of_delete(authorized, options.clone()))
                    .await?
            }
        };
        let mut options = given.unwrap_or_else(|| delete_options_of_query(raw));
        let old = self.read_stored(authorized, false).await?.ok_or(Stop::Again)?;
        if metadata(&old, "name") != self.subject.name || !meets_preconditions(&options, &old) {
            return Err(Stop::Again);
        }
        let reviewed = reviewed_delete_options(&options);
        let name = &self.subject.name;
        let attributes = self.attributes(authorized, Operation::Delete, kind_of(&old), name, Some(reviewed));
        let pins = [("uid", metadata(&old, "uid")), ("resourceVersion", metadata(&old, "resourceVersion"))];
        let pins = pins.map(|(field, value)| (field.to_owned(), Value::from(value)));
        let mut objects = Objects { object: None, old_object: Some(old) };
        self.mutate(&attributes, &mut objects).await?;
        self.validate(&attributes, &mut objects).await?;
        let preconditions = options.entry("preconditions").or_insert(Value::Null);
        if preconditions.is_null() {
            *preconditions = json!({});
        }
        preconditions.as_object_mut().ok_or_else(|| unexpressible("options"))?.extend(pins);
        options.entry("kind").or_insert_with(|| "DeleteOptions".into());
        options.entry("apiVersion").or_insert_with(|| "v1".into());
        let body = serde_json::to_vec(&options).map_err(|_| unexpressible("options"))?.into();
        Ok(ReviewedWrite { target: None, content_type: Some(JSON), body })
    }

    /// The dry run of what the client sent.
    async fn first_dry_run(&self, authorized: &Authorized, body: &Bytes) -> Result<RehearsalResponse, Stop> {
        self.refuse_unknown_encoding(authorized, body).await?;
        let response = self.rehearse(authorized, || Rehearsal::dry_run(authorized, body.clone())).await?;
        self.note_warnings(&response);
        Ok(response)
    }

    /// Lets the API server refuse an `Accept` that names nothing that it has, before webhooks are asked.
    async fn refuse_unknown_encoding(&self, authorized: &Authorized, body: &Bytes) -> Result<(), Stop> {
        let accept =
            authorized.request().headers().get(ACCEPT).map(HeaderValue::as_bytes).unwrap_or_default();
        let accept = String::from_utf8_lossy(accept);
        if accept.is_empty()
            || ["json", "yaml", "protobuf", "cbor", "*"].iter().any(|known| accept.contains(known))
        {
            return Ok(());
        }
        let rehearsal = || Some(Rehearsal::dry_run(authorized, body.clone())?.in_encoding_of_client());
        self.rehearse(authorized, rehearsal).await.map(|_| ())
    }

    /// The dry run of what webhooks have changed. The API server fails if it cannot read it, as it does if a patch is applied to
    /// an object.
    // apiserver: pkg/admission/plugin/webhook/mutating/dispatcher.go, callAttrMutatingHook
    async fn second_dry_run(
        &self,
        authorized: &Authorized,
        write: &ReviewedWrite,
    ) -> Result<RehearsalResponse, Stop> {
        let target = write.target.as_ref();
        let rehearsal = || {
            let (content_type, body) = (write.content_type.clone(), write.body.clone());
            Rehearsal::dry_run_of_rewritten(authorized, target?, content_type, body)
        };
        match self.rehearse(authorized, rehearsal).await {
            Err(Stop::Response(response)) if response.status == StatusCode::BAD_REQUEST => {
                let status = serde_json::from_slice::<meta::Status>(&response.body).unwrap_or_default();
                let message = status.message.unwrap_or_default();
                let decoding = message.split_once(" cannot be handled as a ");
                match decoding.and_then(|(_, rest)| rest.split_once(": ")) {
                    Some((_, cause)) => Err(Stop::Refused(Refusal::NotAdmitted(internal_error(cause)))),
                    None => Err(Stop::Response(response)),
                }
            }
            result => result,
        }
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
        let is_same_object =
            ["uid", "name"].iter().all(|field| metadata(&object, field) == metadata(&old, field))
                && kind_of(&object) == kind_of(&old);
        if version.is_empty() || version != metadata(&old, "resourceVersion") || !is_same_object {
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
            path.parse().map_err(|_| Stop::Unreadable("the path of the object is not valid".to_owned()))?;
        let read = self.rehearse(authorized, || Some(Rehearsal::read(target.clone()))).await;
        match read {
            Ok(response) => Ok(Some(response.object()?)),
            Err(Stop::Response(response)) if response.status == StatusCode::NOT_FOUND => Ok(None),
            Err(stop) => Err(stop),
        }
    }

    /// Runs the mutating phase; the object afterwards, and whether it has changed.
    async fn mutate_view(
        &self,
        authorized: &Authorized,
        shown: &Shown,
        view: Value,
    ) -> Result<(Value, bool), Stop> {
        let attributes = self.shown_attributes(authorized, shown);
        let pins = |object: &Value| {
            ["resourceVersion", "uid", "name"].map(|field| metadata(object, field).to_owned())
        };
        let before = pins(&view);
        let mut objects = Objects { object: Some(view), old_object: shown.old.clone() };
        let changed = self.mutate(&attributes, &mut objects).await?;
        let after = objects.object.unwrap_or_default();
        if shown.old.is_some() {
            self.refuse_other_object(&before, &pins(&after), &kind_of(&after))?;
        }
        Ok((after, changed))
    }

    /// Refuses a change of what a write is pinned to, as the API server does.
    // apiserver: pkg/registry/rest/update.go, BeforeUpdate; pkg/registry/generic/registry/store.go, Update
    fn refuse_other_object(
        &self,
        [version, uid, name]: &[String; 3],
        [new_version, new_uid, new_name]: &[String; 3],
        kind: &GroupVersionKind,
    ) -> Result<(), Stop> {
        let immutable = |field: &str, value: &str| {
            Err(Stop::Refused(Refusal::NotAdmitted(immutable(kind, new_name, field, value))))
        };
        if name != new_name {
            return immutable("metadata.name", new_name);
        }
        if uid != new_uid && !new_uid.is_empty() {
            return immutable("metadata.uid", new_uid);
        }
        if version != new_version && !new_version.is_empty() {
            return Err(Stop::Refused(Refusal::NotAdmitted(conflict(self.subject))));
        }
        Ok(())
    }

    /// Runs the validating phase with the object that a pinned write leads to, which it returns.
    async fn validate_write(
        &self,
        authorized: &Authorized,
        shown: Shown,
        write: &ReviewedWrite,
        changed: bool,
    ) -> Result<Value, Stop> {
        let attributes = self.shown_attributes(authorized, &shown);
        let reviewed = if changed {
            let response = self.second_dry_run(authorized, write).await.map_err(conflict_is_a_change)?;
            again_of(&response, &shown)?
        } else {
            shown.object
        };
        let mut objects = Objects { object: Some(reviewed), old_object: shown.old };
        self.validate(&attributes, &mut objects).await?;
        Ok(objects.object.unwrap_or_default())
    }

    fn shown_attributes(&self, authorized: &Authorized, shown: &Shown) -> Attributes {
        let operation = shown.operation();
        let options = write_options(operation, authorized.query().unwrap_or_default());
        self.attributes(authorized, operation, kind_of(&shown.object), &self.subject.name, Some(options))
    }
}

impl Change {
    /// The object that mutating webhooks see.
    fn view(self, shown: &Shown, sent: Option<&Value>) -> Value {
        let mut view = shown.object.clone();
        match (self, &shown.old) {
            // What a client does not send is filled in after the mutating phase.
            (Self::Update, _) => {
                if let Some(sent) = sent.filter(|sent| sent.is_object()) {
                    keep_server_fields(&mut view, Some(sent), &SERVER_FIELDS);
                }
            }
            // The generation is that of the stored object.
            (Self::Patch | Self::Apply, Some(old)) => {
                keep_server_fields(&mut view, Some(old), &["generation"]);
            }
            (Self::Patch | Self::Apply, None) => {
                keep_server_fields(&mut view, None, &SERVER_FIELDS);
                keep_server_fields(&mut view, sent, &["resourceVersion"]);
            }
        }
        view
    }
}

/// Replaces the object with the reviewed one.
fn updated(authorized: &Authorized, shown: &Shown, after: Value) -> Result<ReviewedWrite, Stop> {
    let mut write = after;
    if shown.old.is_none() {
        remove_server_fields(&mut write);
    }
    pin(&mut write, shown)?;
    rewritten(authorized, &write, JSON)
}

/// Patches the object with the difference between the stored one and the reviewed one.
fn patched(authorized: &Authorized, shown: &Shown, after: Value) -> Result<ReviewedWrite, Stop> {
    let (mut before, mut wanted) = (shown.old.clone().unwrap_or_default(), after);
    remove_server_fields(&mut before);
    remove_server_fields(&mut wanted);
    let mut write = merge_patch(&before, &wanted).ok_or_else(|| unexpressible("patch"))?;
    if !set_metadata(&mut write, "resourceVersion", shown.version()) {
        return Err(unexpressible("patch"));
    }
    rewritten(authorized, &write, MERGE_PATCH)
}

/// Applies the client's configuration, with the changes of webhooks: the object before and after them.
fn applied(
    authorized: &Authorized,
    shown: &Shown,
    sent: Value,
    changes: Option<(&Value, &Value)>,
) -> Result<ReviewedWrite, Stop> {
    let mut write = sent;
    if let Some((before, after)) = changes {
        carry_over(&mut write, before, after);
    }
    pin(&mut write, shown)?;
    let write = rewritten(authorized, &write, JSON)?;
    Ok(ReviewedWrite { content_type: None, body: for_yaml(&write.body), ..write })
}

/// A write with this body.
fn rewritten(
    authorized: &Authorized,
    body: &Value,
    content_type: HeaderValue,
) -> Result<ReviewedWrite, Stop> {
    let target = rewritten_target(authorized).ok_or_else(|| unexpressible("target"))?;
    let body = serde_json::to_vec(body).map_err(|_| unexpressible("object"))?.into();
    Ok(ReviewedWrite { target: Some(target), content_type: Some(content_type), body })
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
    let mut object = response.object()?;
    let same = match shown.old {
        Some(_) => metadata(&object, "resourceVersion") == shown.version(),
        None => response.is_created(),
    };
    if shown.old.is_none() {
        // Not the pin, which the API server has ignored.
        set_metadata(&mut object, "resourceVersion", metadata(&shown.object, "resourceVersion"));
    }
    if same { Ok(object) } else { Err(Stop::Again) }
}

/// A conflict of a pinned dry run: the object has changed since the first one.
fn conflict_is_a_change(stop: Stop) -> Stop {
    match stop {
        Stop::Response(response) if response.status == StatusCode::CONFLICT => Stop::Again,
        stop => stop,
    }
}

/// A field that cannot be changed.
// apimachinery: pkg/api/errors/errors.go, NewInvalid; pkg/api/validation/objectmeta.go, ValidateImmutableField
fn immutable(kind: &GroupVersionKind, name: &str, field: &str, value: &str) -> Box<meta::Status> {
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let invalid = format!("Invalid value: {}: field is immutable", Quoted(value));
    let qualified =
        if kind.group.is_empty() { kind.kind.clone() } else { format!("{}.{}", kind.kind, kind.group) };
    let cause =
        meta::StatusCause { reason: text("FieldValueInvalid"), message: text(&invalid), field: text(field) };
    Box::new(meta::Status {
        code: Some(422),
        reason: text("Invalid"),
        message: Some(format!("{qualified} {} is invalid: {field}: {invalid}", Quoted(name))),
        status: text("Failure"),
        details: Some(meta::StatusDetails {
            name: text(name),
            group: text(&kind.group),
            kind: text(&kind.kind),
            // The API server validates it twice.
            causes: Some(vec![cause.clone(), cause]),
            ..meta::StatusDetails::default()
        }),
        ..meta::Status::default()
    })
}

/// Names an object that has no name.
fn name(object: &mut Value, generated: Option<&str>) {
    if let Some(name) = generated.filter(|_| metadata(object, "name").is_empty()) {
        set_metadata(object, "name", name);
    }
}

/// Whether the stored object is the one that the client wants to delete.
fn meets_preconditions(options: &Map<String, Value>, old: &Value) -> bool {
    let given = options.get("preconditions");
    ["uid", "resourceVersion"].iter().all(|field| {
        let given = given.and_then(|given| given.get(field)).filter(|value| !value.is_null());
        given.is_none_or(|given| given.as_str() == Some(metadata(old, field)))
    })
}

/// The name that the API server has generated.
fn generated_name(shown: &Value, sent: Option<&Value>) -> Option<String> {
    let prefix = metadata(shown, "generateName");
    let name = metadata(shown, "name");
    let is_named = sent.is_some_and(|sent| !metadata(sent, "name").is_empty());
    (!prefix.is_empty() && !is_named && name.starts_with(prefix.get(..58).unwrap_or(prefix)))
        .then(|| name.to_owned())
}

fn is_status(object: &Value) -> bool {
    let kind = kind_of(object);
    kind.group.is_empty() && kind.version == "v1" && kind.kind == "Status"
}
