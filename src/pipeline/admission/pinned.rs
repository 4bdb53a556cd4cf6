//! Reviews of the objects that the backend shows in dry runs. The write is pinned to what was reviewed: `write.rs` makes it,
//! and `written.rs` compares its response with the reviewed object.
//!
//! The steps of one review, in order. Each may end it with a [`Stop`]:
//!
//! | step | CREATE | UPDATE | patch | apply | DELETE | ends the review |
//! |---|---|---|---|---|---|---|
//! | 1. dry run of the client's request | yes | yes | yes | yes | yes | a refusal is the client's response |
//! | 2. read of the stored object | no | unless absent | yes | unless absent | yes | `Again` if it is not that of step 1 |
//! | 3. mutating webhooks | yes | yes | yes | yes | yes | a webhook refuses, or changes what the write is pinned to |
//! | 4. dry run of the write | if it is not the client's own request | the same | the same | the same | no | `Again` if the stored object has changed |
//! | 5. validating webhooks | yes | yes | yes | yes | yes | a webhook refuses |
//! | 6. the write | pinned to its generated name | pinned | pinned | pinned | pinned | a conflict begins a new review |
//!
//! `Reviewer::forward` in `pipeline/admission.rs` begins again after `Again` or a conflict.

use bytes::Bytes;
use http::StatusCode;
use http::header::{ACCEPT, HeaderValue};
use http::uri::PathAndQuery;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use portcullis_admission::matching::{RuleMatch, RuleSet, rule_match};
use portcullis_admission::review::internal_error;
use portcullis_admission::{AnyPolicy, Attributes, GroupVersionKind, Objects, Operation, Surroundings as _};
use portcullis_go::quote::Quoted;
use serde_json::{Map, Value, json};

use super::allocated::is_generated;
use super::autoscaler;
use super::document::{MANAGED_FIELDS, keep_server_fields, managed_fields, metadata};
use super::options::{
    delete_options_of_body, delete_options_of_query, pinned_options, reviewed_delete_options, write_options,
};
use super::reviewer::{OnConflict, Reviewed, Reviewer, Stop, conflict, kind_of, unexpressible};
use super::splice::Encoding;
use super::subject::{Action, PatchKind};
use super::verdicts::{is_review, leaves_out_the_question, take_verdict};
use super::write::{Change, ClientRequest, Shown, again_of, conflict_is_a_change};
use super::written::{Expected, accepts_json};
use crate::backend::sharing::extension_group;
use crate::pipeline::error_map::Refusal;
use crate::pipeline::forward::{Rehearsal, RehearsalResponse};
use crate::pipeline::stages::{Authorized, JSON, ReviewedWrite};

/// The longest part of `generateName` that is in the name.
// apiserver: pkg/storage/names/generate.go, MaxGeneratedNameLength
const MAX_GENERATED_PREFIX: usize = 58;

/// The options that a client has sent with a deletion.
pub(super) struct DeleteRequest {
    /// Those in its body.
    pub(super) given: Option<Map<String, Value>>,
    /// The type of a body in JSON, if it is not the client's own.
    pub(super) content_type: Option<HeaderValue>,
}

impl DeleteRequest {
    fn rehearsal(&self, authorized: &Authorized) -> Option<Rehearsal> {
        match &self.given {
            None => Rehearsal::dry_run(authorized, Bytes::new()),
            Some(options) => {
                Rehearsal::dry_run_of_delete(authorized, options.clone(), self.content_type.clone())
            }
        }
    }
}

impl Reviewer<'_> {
    pub(super) async fn pinned(
        &self,
        authorized: &Authorized,
        body: &Bytes,
        action: Action,
    ) -> Result<Reviewed, Stop> {
        match action {
            Action::Create => self.create(authorized, body).await,
            Action::Update => self.change(authorized, body, Change::Update).await,
            Action::Patch(PatchKind::Apply) => self.change(authorized, body, Change::Apply).await,
            Action::Patch(PatchKind::Other) => self.change(authorized, body, Change::Patch).await,
            Action::Delete => self.delete(authorized, body).await,
            // `Reviewer::forward` has taken these apart.
            Action::DeleteCollection | Action::Connect | Action::ForeignConnect => {
                Err(Stop::Refused(Refusal::Panic))
            }
        }
    }

    /// Creates an object: of a generated name with the name that the webhooks have seen.
    async fn create(&self, authorized: &Authorized, body: &Bytes) -> Result<Reviewed, Stop> {
        let mut object = self.first_dry_run(authorized, body).await?.object()?;
        if is_status(&object) {
            // Evictions and bindings are answered so, and not stored.
            self.decode_body(body).await?;
            let object = self.sent_object(authorized, body)?;
            return Ok(Reviewed::unproven(self.review_as_sent(authorized, body, object).await?));
        }
        let asked = if leaves_out_the_question(&object) {
            self.decode_body(body).await?;
            Some(self.sent_object(authorized, body)?)
        } else {
            None
        };
        take_verdict(&mut object, asked.as_ref());
        let request = ClientRequest::new(authorized, body, Change::Create);
        let generated = generated_name(&object, request.sent.as_ref());
        let shown = Shown { object, old: None, generated };
        let view = request.view(&shown);
        let mut attributes = self.created_attributes(authorized, &view);
        let mut objects = Objects { object: Some(view), old_object: None };
        let changed = self.mutate(authorized, &attributes, &mut objects).await?;
        let (write, reviewed) =
            self.proven_write(&request, shown, objects.object.filter(|_| changed)).await?;
        // The name of the request stays, also if a webhook renames the object.
        if attributes.name.is_empty() {
            // That of a Namespace is its name as it was sent.
            let namespace = attributes.namespace;
            attributes = Attributes { namespace, ..self.created_attributes(authorized, &reviewed.object) };
        }
        let on_conflict =
            if reviewed.generated.is_some() { OnConflict::ReviewAgain } else { OnConflict::Respond };
        self.validated(authorized, attributes, reviewed, (write, on_conflict)).await
    }

    fn created_attributes(&self, authorized: &Authorized, object: &Value) -> Attributes {
        let name = if self.subject.name.is_empty() { metadata(object, "name") } else { &self.subject.name };
        let options = write_options(Operation::Create, authorized.query().unwrap_or_default());
        self.attributes(authorized, Operation::Create, kind_of(object), name, Some(options))
    }

    /// Changes an object: the steps of the table above.
    async fn change(&self, authorized: &Authorized, body: &Bytes, change: Change) -> Result<Reviewed, Stop> {
        let response = self.first_dry_run(authorized, body).await?;
        let request = ClientRequest::new(authorized, body, change);
        let shown = self.shown(authorized, response).await?;
        if change == Change::Patch && shown.old.is_none() {
            return Err(Stop::Again);
        }
        let attributes = self.shown_attributes(authorized, &shown);
        let view = request.view(&shown);
        let (after, changed) = self.mutate_view((authorized, &attributes), &shown, view).await?;
        let (write, reviewed) = self.proven_write(&request, shown, changed.then_some(after)).await?;
        self.validated(authorized, attributes, reviewed, (write, OnConflict::ReviewAgain)).await
    }

    /// The write, and the object that it leads to: of the client's own request what its dry run has shown, of another form what
    /// a dry run of that shows. `after` is the object that webhooks have changed.
    async fn proven_write(
        &self,
        request: &ClientRequest<'_>,
        shown: Shown,
        after: Option<Value>,
    ) -> Result<(ReviewedWrite, Shown), Stop> {
        // A name that a webhook or a policy has given is not generated again.
        let is_named = after.as_ref().is_some_and(|after| !metadata(after, "name").is_empty());
        let generated = shown.generated.filter(|_| !is_named);
        let shown = Shown { generated, ..shown };
        let is_converted = autoscaler::is_reduced(&shown.object) && {
            let (operation, kind) = (shown.operation(), kind_of(&shown.object));
            let attributes = self.attributes(request.authorized, operation, kind, &self.subject.name, None);
            self.sees_other_versions(&attributes)
        };
        let is_hidden = is_converted && request.may_hide(&shown.object);
        let own = if after.is_some() || is_hidden { None } else { request.own(&shown) };
        if let Some(write) = own {
            return Ok((write, shown));
        }
        let after = match after {
            Some(after) if is_converted => {
                self.hold_texts(autoscaler::annotated_texts(&after)).await?;
                let normalize = move || autoscaler::normalized(&after);
                let normalized = self.surroundings.compute(true, normalize).await.ok_or(Refusal::Panic)?;
                normalized.ok_or_else(|| unexpressible("object"))?
            }
            Some(after) => after,
            None => request.view(&shown),
        };
        let write = request.whole(&shown, &after).ok_or_else(|| unexpressible("object"))?;
        let (write, response) = match self.second_dry_run(request.authorized, &write).await {
            Ok(response) => (write, response),
            // Not the client's own form, which hides a part.
            Err(stop) if is_hidden => {
                return Err(if is_pinned_write(request, &shown) { conflict_is_a_change(stop) } else { stop });
            }
            Err(stop) => {
                let sent = self.carried_over(request, &shown, &after).await?;
                self.accepted_instead(request, &shown, &after, (stop, sent)).await?
            }
        };
        let mut object = again_of(&response, &shown)?;
        let asked = leaves_out_the_question(&object).then_some(&after);
        take_verdict(&mut object, asked);
        // What webhooks have changed has no manager.
        if let (Some(managed), Some(metadata)) =
            (managed_fields(&after), object.get_mut("metadata").and_then(Value::as_object_mut))
        {
            metadata.insert(MANAGED_FIELDS.to_owned(), managed.clone());
        }
        Ok((write, Shown { object, ..shown }))
    }

    /// Whether a webhook, or a policy, may see the objects in another version than the client's.
    pub(super) fn sees_other_versions(&self, attributes: &Attributes) -> bool {
        let webhooks = self.admission.webhooks();
        let webhooks = webhooks.mutating.iter().chain(&webhooks.validating);
        let of_webhooks = webhooks.filter(|webhook| !webhook.shadow).map(|webhook| RuleSet::from(&**webhook));
        let policies = self.admission.policies(&attributes.resource).all().map(AnyPolicy::scope);
        let of_policies =
            policies.filter(|policy| !policy.shadow).map(|policy| RuleSet::from(&policy.constraints));
        of_webhooks
            .chain(of_policies)
            .any(|rules| rule_match(rules.before_naming(attributes), attributes, None) == RuleMatch::Possible)
    }

    async fn carried_over(
        &self,
        request: &ClientRequest<'_>,
        shown: &Shown,
        after: &Value,
    ) -> Result<Option<ReviewedWrite>, Stop> {
        let Some(body) = request.body_to_change() else { return Ok(None) };
        self.decode_body(body).await?;
        let sent = self.take_body(body).ok();
        Ok(sent.and_then(|sent| request.carried_over(sent, shown, after)))
    }

    /// The client's object with the changes of webhooks, if the API server does not accept the whole one, to which it may have
    /// added what it does not accept.
    async fn accepted_instead(
        &self,
        request: &ClientRequest<'_>,
        shown: &Shown,
        after: &Value,
        (refused, sent): (Stop, Option<ReviewedWrite>),
    ) -> Result<(ReviewedWrite, RehearsalResponse), Stop> {
        // A webhook may rename a new object to one that is there.
        let refused = if is_pinned_write(request, shown) { conflict_is_a_change(refused) } else { refused };
        let (Stop::Response(_) | Stop::Refused(_), Some(write)) = (&refused, sent) else {
            return Err(refused);
        };
        let Ok(response) = self.second_dry_run(request.authorized, &write).await else { return Err(refused) };
        let object = response.object()?;
        let is_lost = request.is_lost(shown, after, &object);
        response.put_back(object);
        if is_lost { Err(refused) } else { Ok((write, response)) }
    }

    /// Runs the validating phase with the object that a write leads to.
    async fn validated(
        &self,
        authorized: &Authorized,
        attributes: Attributes,
        reviewed: Shown,
        (write, on_conflict): (ReviewedWrite, OnConflict),
    ) -> Result<Reviewed, Stop> {
        let is_json = accepts_json(authorized);
        let Shown { object, old, .. } = reviewed;
        let is_own = write.target.is_none();
        let managed = if is_own { None } else { managed_fields(&object).cloned() };
        let mut objects = Objects { object: Some(object), old_object: old };
        self.validate(authorized, &attributes, &mut objects).await?;
        // A dry run of the client stores nothing, so that nothing can be read in its encoding afterwards. A review is not stored.
        let is_read = !objects.object.as_ref().is_some_and(is_review)
            && (!attributes.dry_run || managed.is_some() && is_json);
        let expected = is_read.then(|| Box::new(Expected { attributes, objects, managed }));
        Ok(Reviewed { write: ReviewedWrite { is_read, ..write }, on_conflict, expected })
    }

    /// Deletes the object that the webhooks have seen.
    async fn delete(&self, authorized: &Authorized, body: &Bytes) -> Result<Reviewed, Stop> {
        let request = self.delete_request(authorized, body).await?;
        self.dry_run_of_delete(authorized, &request).await?;
        let raw = authorized.query().unwrap_or_default();
        let options = request.given.unwrap_or_else(|| delete_options_of_query(raw));
        let old = self.read_stored(authorized, false).await?.ok_or(Stop::Again)?;
        if metadata(&old, "name") != self.subject.name || !meets_preconditions(&options, &old) {
            return Err(Stop::Again);
        }
        let old = self.review_delete(authorized, &options, old).await?;
        let body = pinned_options(options, &old).ok_or_else(|| unexpressible("options"))?;
        let write = ReviewedWrite { content_type: request.content_type, body, ..ReviewedWrite::default() };
        Ok(Reviewed { write, on_conflict: OnConflict::ReviewAgain, expected: None })
    }

    /// The options in the body of a deletion.
    pub(super) async fn delete_request(
        &self,
        authorized: &Authorized,
        body: &Bytes,
    ) -> Result<DeleteRequest, Stop> {
        if body.is_empty() {
            return Ok(DeleteRequest { given: None, content_type: Some(JSON) });
        }
        self.hold_body(body).await?;
        let given = delete_options_of_body(body).map_err(Stop::Unreadable)?;
        // The API server decides which types it reads. JSON that the gateway has made of protobuf has another one than the body.
        let is_clients = Encoding::of(authorized.request().headers()) != Encoding::Protobuf;
        Ok(DeleteRequest { given: Some(given), content_type: if is_clients { None } else { Some(JSON) } })
    }

    /// The dry run of a deletion.
    pub(super) async fn dry_run_of_delete(
        &self,
        authorized: &Authorized,
        request: &DeleteRequest,
    ) -> Result<RehearsalResponse, Stop> {
        self.rehearse(authorized, || request.rehearsal(authorized)).await
    }

    /// The same with a response in the encoding of the client.
    pub(super) async fn dry_run_in_encoding_of_client(
        &self,
        authorized: &Authorized,
        request: &DeleteRequest,
    ) -> Result<RehearsalResponse, Stop> {
        let rehearsal = || request.rehearsal(authorized).map(Rehearsal::in_encoding_of_client);
        self.rehearse(authorized, rehearsal).await
    }

    /// The dry run of a deletion with another target.
    pub(super) async fn dry_run_at(
        &self,
        authorized: &Authorized,
        target: &PathAndQuery,
    ) -> Result<RehearsalResponse, Stop> {
        self.rehearse(authorized, || Rehearsal::dry_run_at(authorized, target)).await
    }

    /// Lets webhooks review the deletion of an object, which is returned.
    pub(super) async fn review_delete(
        &self,
        authorized: &Authorized,
        options: &Map<String, Value>,
        old: Value,
    ) -> Result<Value, Stop> {
        let reviewed = reviewed_delete_options(options, &self.subject.resource, &old);
        // That of the path, also where it is the collection's.
        let name = &self.subject.name;
        let attributes = self.attributes(authorized, Operation::Delete, kind_of(&old), name, Some(reviewed));
        let mut objects = Objects { object: None, old_object: Some(old) };
        self.mutate(authorized, &attributes, &mut objects).await?;
        self.validate(authorized, &attributes, &mut objects).await?;
        Ok(objects.old_object.unwrap_or_default())
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
        let rehearsal = || Rehearsal::dry_run_of_write(authorized, write);
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
            return Ok(Shown { object, old: None, generated: None });
        }
        let is_scale = kind_of(&object).kind == "Scale";
        let old = match self.read_stored(authorized, is_scale).await {
            Err(Stop::Response(response))
                if is_scale && response.status == StatusCode::INTERNAL_SERVER_ERROR =>
            {
                self.scale_without_replicas(authorized, &object).await?
            }
            read => read?.ok_or(Stop::Again)?,
        };
        let version = metadata(&object, "resourceVersion");
        let is_same_object =
            ["uid", "name"].iter().all(|field| metadata(&object, field) == metadata(&old, field))
                && kind_of(&object) == kind_of(&old);
        if version.is_empty() || version != metadata(&old, "resourceVersion") || !is_same_object {
            return Err(Stop::Again);
        }
        Ok(Shown { object, old: Some(old), generated: None })
    }

    /// The stored scale of a custom resource that has no number of replicas, which the API server does not show.
    // apiextensions-apiserver: pkg/registry/customresource/etcd.go, ScaleREST
    async fn scale_without_replicas(&self, authorized: &Authorized, shown: &Value) -> Result<Value, Stop> {
        let stored = self.read_stored(authorized, false).await?.ok_or(Stop::Again)?;
        let mut scale = shown.clone();
        keep_server_fields(&mut scale, Some(&stored), &["uid", "resourceVersion"]);
        if let Some(scale) = scale.as_object_mut() {
            scale.insert("spec".to_owned(), json!({}));
        }
        Ok(scale)
    }

    /// Runs the mutating phase; the object afterwards, and whether it has changed.
    async fn mutate_view(
        &self,
        (authorized, attributes): (&Authorized, &Attributes),
        shown: &Shown,
        view: Value,
    ) -> Result<(Value, bool), Stop> {
        let pins = |object: &Value| {
            ["resourceVersion", "uid", "name"].map(|field| metadata(object, field).to_owned())
        };
        let before = pins(&view);
        let mut objects = Objects { object: Some(view), old_object: shown.old.clone() };
        let changed = self.mutate(authorized, attributes, &mut objects).await?;
        let after = objects.object.unwrap_or_default();
        if shown.old.is_some() {
            let is_built_in = extension_group(authorized.info().path()).is_none();
            let group = &self.subject.resource.group;
            let causes = self.admission.release().immutable_causes(is_built_in, group);
            self.refuse_other_object(&before, &pins(&after), (&kind_of(&after), causes))?;
        }
        Ok((after, changed))
    }

    /// Refuses a change of what a write is pinned to, as the API server does.
    // apiserver: pkg/registry/rest/update.go, BeforeUpdate; pkg/registry/generic/registry/store.go, Update
    fn refuse_other_object(
        &self,
        [version, uid, name]: &[String; 3],
        [new_version, new_uid, new_name]: &[String; 3],
        (kind, causes): (&GroupVersionKind, usize),
    ) -> Result<(), Stop> {
        let immutable = |field: &str, value: &str| {
            Err(Stop::Refused(Refusal::NotAdmitted(immutable(kind, new_name, (field, value), causes))))
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

    fn shown_attributes(&self, authorized: &Authorized, shown: &Shown) -> Attributes {
        let operation = shown.operation();
        let options = write_options(operation, authorized.query().unwrap_or_default());
        self.attributes(authorized, operation, kind_of(&shown.object), &self.subject.name, Some(options))
    }
}

/// A field that cannot be changed.
// apimachinery: pkg/api/errors/errors.go, NewInvalid; pkg/api/validation/objectmeta.go, ValidateImmutableField
fn immutable(
    kind: &GroupVersionKind,
    name: &str,
    (field, value): (&str, &str),
    causes: usize,
) -> Box<meta::Status> {
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
            causes: Some(vec![cause; causes]),
            ..meta::StatusDetails::default()
        }),
        ..meta::Status::default()
    })
}

/// Whether the stored object is the one that the client wants to delete.
fn meets_preconditions(options: &Map<String, Value>, old: &Value) -> bool {
    let given = options.get("preconditions");
    ["uid", "resourceVersion"].iter().all(|field| {
        let given = given.and_then(|given| given.get(field)).filter(|value| !value.is_null());
        given.is_none_or(|given| given.as_str() == Some(metadata(old, field)))
    })
}

/// Whether a conflict of a write says that the object has changed since the review.
fn is_pinned_write(request: &ClientRequest<'_>, shown: &Shown) -> bool {
    request.change != Change::Create || shown.generated.is_some()
}

/// The name that the API server has generated. Of a body that the gateway does not read, it may also be the client's.
fn generated_name(shown: &Value, sent: Option<&Value>) -> Option<String> {
    if sent.is_some_and(|sent| !metadata(sent, "name").is_empty()) {
        return None;
    }
    let (prefix, name) = (metadata(shown, "generateName"), metadata(shown, "name"));
    let prefix = prefix.get(..MAX_GENERATED_PREFIX).unwrap_or(prefix);
    let is_generated = !prefix.is_empty() && name.strip_prefix(prefix).is_some_and(is_generated);
    is_generated.then(|| name.to_owned())
}

fn is_status(object: &Value) -> bool {
    let kind = kind_of(object);
    kind.group.is_empty() && kind.version == "v1" && kind.kind == "Status"
}
