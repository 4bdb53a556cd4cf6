//! What the reviews of all kinds of requests have in common.

use bytes::Bytes;
use http::header::{ACCEPT, WARNING};
use http::uri::PathAndQuery;
use http::{Response, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use portcullis_admission::review::internal_error;
use portcullis_admission::{
    Attributes, Caller as _, Event, GroupVersionKind, Objects, Operation, Phase, Surroundings as _, UserInfo,
    phases,
};
use portcullis_go::quote::Quoted;
use portcullis_go::url::query;
use portcullis_http::body::Body;
use portcullis_http::held_texts::HeldTexts;
use portcullis_http::warning;
use portcullis_system::sync::lock;
use serde_json::Value;
use tokio::time::Instant;

use super::connect::{self, NoOptions};
use super::equivalent::RequestConversions;
use super::hold::ReviewHold;
use super::is_pinned;
use super::subject::{Action, Subject};
use super::unseen::Unseen;
use super::written::Expected;
use crate::admission::{ClusterAdmission, DryRun, ReadError, RequestSurroundings, is_never_dry_run};
use crate::backend::pool::SendError;
use crate::backend::sharing::extension_group;
use crate::listener::Connection;
use crate::pipeline::Gateway;
use crate::pipeline::error_map::Refusal;
use crate::pipeline::forward::{Rehearsal, RehearsalResponse, rehearse};
use crate::pipeline::forward_error::ForwardError;
use crate::pipeline::scope::RequestScope;
use crate::pipeline::stages::{Authorized, JSON, ReviewedWrite};

/// Lets webhooks review one request.
pub(super) struct Reviewer<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) connection: &'a Connection,
    pub(super) scope: &'a RequestScope,
    pub(super) admission: &'a ClusterAdmission,
    pub(super) surroundings: &'a RequestSurroundings<'a>,
    pub(super) subject: &'a Subject,
    /// The texts that the request holds.
    pub(super) texts: HeldTexts,
    /// The memory of the current review.
    pub(super) hold: ReviewHold<'a>,
}

/// Why there is nothing to send.
pub(super) enum Stop {
    /// The backend's response to the dry run or the read is the client's.
    Response(Box<RehearsalResponse>),
    /// The object has changed during the review.
    Again,
    /// The request is refused.
    Refused(Refusal),
    /// The webhooks cannot be shown what the request would do.
    Unseen(Unseen),
    /// The gateway cannot read the form that the client has chosen: refused whatever the `failurePolicy` is, or a client could
    /// choose not to be reviewed.
    Unreadable(String),
}

/// A write that the webhooks have admitted.
pub(super) struct Reviewed {
    pub(super) write: ReviewedWrite,
    pub(super) on_conflict: OnConflict,
    /// What it is to store; `None` if the gateway cannot tell, or it stores no object.
    pub(super) expected: Option<Box<Expected>>,
}

impl Reviewed {
    /// A write in the client's own form, of which no dry run has shown what it stores.
    pub(super) fn unproven(write: ReviewedWrite) -> Self {
        Self { write, on_conflict: OnConflict::Respond, expected: None }
    }
}

/// What a 409 of the backend means to a reviewed write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnConflict {
    /// It is the client's response: the write is as the client sent it.
    Respond,
    /// The object may have changed since the review, or it is the client's own conflict: the next dry run tells.
    ReviewAgain,
}

impl Stop {
    pub(super) fn into_response(self, subject: &Subject) -> Result<Response<Body>, Refusal> {
        match self {
            Self::Response(response) => Ok(response.into_response()),
            Self::Refused(refusal) => Err(refusal),
            Self::Again => Err(Refusal::NotAdmitted(conflict(subject))),
            // `Reviewer::passes_unseen` has turned it into another one.
            Self::Unseen(_) => Err(Refusal::Panic),
            Self::Unreadable(reason) => Err(Refusal::UnreadableForAdmission(reason)),
        }
    }
}

impl<E: Into<Refusal>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Refused(error.into())
    }
}

/// The object has changed during every review.
// apimachinery: pkg/api/errors/errors.go, NewConflict; apiserver: pkg/registry/generic/registry/store.go, OptimisticLockErrorMsg
pub(super) fn conflict(subject: &Subject) -> Box<meta::Status> {
    let Subject { resource, name, .. } = subject;
    let group = &resource.group;
    let qualified =
        if group.is_empty() { resource.resource.clone() } else { format!("{}.{group}", resource.resource) };
    let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    Box::new(meta::Status {
        code: Some(409),
        reason: Some("Conflict".to_owned()),
        message: Some(format!(
            "Operation cannot be fulfilled on {qualified} {}: the object has been modified; please apply your changes to the \
             latest version and try again",
            Quoted(name)
        )),
        status: Some("Failure".to_owned()),
        details: Some(meta::StatusDetails {
            name: text(name),
            group: text(group),
            kind: text(&resource.resource),
            ..meta::StatusDetails::default()
        }),
        ..meta::Status::default()
    })
}

/// The client's request, as it is.
pub(super) fn as_sent(body: Bytes) -> ReviewedWrite {
    ReviewedWrite { body, ..ReviewedWrite::default() }
}

impl Reviewer<'_> {
    /// The write to send in the place of the client's.
    pub(super) async fn review(&self, authorized: &Authorized, body: &Bytes) -> Result<Reviewed, Stop> {
        // That of a review before, whose object has changed.
        self.hold.release();
        let Subject { resource, subresource, .. } = self.subject;
        let is_extension = extension_group(authorized.info().path()).is_some();
        match self.subject.action {
            Action::Create
                if !is_pinned(self.admission) || is_never_dry_run(resource, subresource, is_extension) =>
            {
                Ok(Reviewed::unproven(self.create_as_sent(authorized, body).await?))
            }
            _ if !is_pinned(self.admission) => {
                Err(Stop::Unseen(self.unseen_at_request_level(authorized).await?))
            }
            action => {
                self.require_dry_run(authorized).await?;
                self.pinned(authorized, body, action).await
            }
        }
    }

    /// Refuses what a dry run could store. kube-apiserver's own resources have dry runs.
    // threat: unreviewed-write
    pub(super) async fn require_dry_run(&self, authorized: &Authorized) -> Result<(), Stop> {
        if extension_group(authorized.info().path()).is_none() {
            return Ok(());
        }
        let Subject { resource, subresource, .. } = self.subject;
        let dry_run = self.surroundings.dry_run(resource, subresource, authorized.request().method()).await;
        match dry_run {
            Ok(DryRun::Supported) => Ok(()),
            Ok(DryRun::Unsupported) => Err(Stop::Unseen(Unseen::NoDryRun)),
            Ok(DryRun::NoMethod) => {
                self.authorize(authorized).await?;
                Err(Stop::Refused(Refusal::MethodNotAllowed))
            }
            Ok(DryRun::Absent) => self.refuse_absent(authorized).await,
            Err(ReadError::Busy) => Err(busy()),
            Err(ReadError::Unreadable(error)) => {
                let cluster = &*authorized.cluster().name;
                tracing::warn!(
                    cluster,
                    group = resource.group,
                    version = resource.version,
                    error,
                    "cannot read an OpenAPI document"
                );
                Err(Stop::Unseen(Unseen::UnknownDryRun))
            }
        }
    }

    /// Refuses a request for a resource that is not served as the API server does.
    async fn refuse_absent(&self, authorized: &Authorized) -> Result<(), Stop> {
        let target: Option<PathAndQuery> = authorized.request().uri().path().parse().ok();
        let read = || target.clone().map(Rehearsal::read);
        match self.rehearse(authorized, read).await {
            Err(Stop::Response(response)) if response.status == StatusCode::NOT_FOUND => {
                Err(Stop::Response(response))
            }
            Err(stop @ Stop::Refused(_)) => Err(stop),
            _ => Err(Stop::Unseen(Unseen::Undescribed)),
        }
    }

    /// Reviews a connection; the changed target, if webhooks change the options.
    pub(super) async fn connect(&self, authorized: &Authorized) -> Result<Option<PathAndQuery>, Stop> {
        let options = self.connect_options(authorized);
        if options == Err(NoOptions::Foreign) {
            return Err(Stop::Unseen(Unseen::ForeignConnection));
        }
        // There is no dry run of a connection, and webhooks must not be called for a user who may not connect.
        self.authorize(authorized).await?;
        let options = options.map_err(|refused| match refused {
            NoOptions::Foreign => unexpressible("connection"),
            NoOptions::Refused(why) => Stop::Refused(Refusal::BadRequest(why.into())),
        })?;
        // apiserver: pkg/endpoints/handlers/rest.go, ConnectResource
        if query::pairs(authorized.query().unwrap_or_default()).any(|(name, _)| name == "dryRun") {
            return Err(Stop::Refused(Refusal::BadRequest("dryRun is not supported".into())));
        }
        let attributes =
            self.attributes(authorized, Operation::Connect, kind_of(&options), &self.subject.name, None);
        let mut objects = Objects { object: Some(options.clone()), old_object: None };
        let changed = self.mutate(authorized, &attributes, &mut objects).await?;
        self.validate(authorized, &attributes, &mut objects).await?;
        if !changed {
            return Ok(None);
        }
        let current =
            authorized.request().uri().path_and_query().ok_or_else(|| unexpressible("connection"))?;
        let after = objects.object.ok_or_else(|| unexpressible("connection"))?;
        connect::target(current, &options, &after).map(Some).ok_or_else(|| unexpressible("connection"))
    }

    /// The options of a connection.
    pub(super) fn connect_options(&self, authorized: &Authorized) -> Result<Value, NoOptions> {
        let info = authorized.info();
        let parts = info.resource().map_or("", |resource| resource.parts);
        connect::options(self.subject, info.path(), parts, authorized.query().unwrap_or_default())
    }

    /// Asks the backend whether the user may make the request, where no dry run does.
    pub(super) async fn authorize(&self, authorized: &Authorized) -> Result<(), Stop> {
        Ok(self.surroundings.authorize_request(authorized.info()).await.map_err(Refusal::Access)?)
    }

    pub(super) fn attributes(
        &self,
        authorized: &Authorized,
        operation: Operation,
        kind: GroupVersionKind,
        name: &str,
        options: Option<Value>,
    ) -> Attributes {
        let user = authorized.identity();
        let Subject { resource, subresource, namespace, .. } = self.subject;
        let is_namespace = resource.group.is_empty() && resource.resource == "namespaces";
        let dry_run = options.as_ref().and_then(|options| options.get("dryRun"));
        Attributes {
            operation,
            kind,
            resource: resource.clone(),
            subresource: subresource.clone(),
            name: name.to_owned(),
            namespace: if is_namespace { name.to_owned() } else { namespace.clone() },
            user: UserInfo {
                username: user.name.clone(),
                uid: user.uid.clone().unwrap_or_default(),
                groups: user.groups.clone(),
                extra: user.extra.clone().into_iter().collect(),
            },
            dry_run: dry_run.and_then(Value::as_array).is_some_and(|values| !values.is_empty()),
            options,
        }
    }

    /// Runs the mutating phase; whether the object has changed.
    pub(super) async fn mutate(
        &self,
        authorized: &Authorized,
        attributes: &Attributes,
        objects: &mut Objects,
    ) -> Result<bool, Stop> {
        let began = Instant::now();
        let policies = &self.admission.policies(&attributes.resource).mutating;
        let hooks = (policies.as_slice(), self.admission.webhooks().mutating.as_slice());
        let conversions = RequestConversions::new(self, authorized, objects);
        let result = phases::mutate(hooks, attributes, objects, &conversions, self.surroundings).await;
        self.count(Phase::Mutating, attributes.operation, result.is_err(), began);
        conversions.stopped()?;
        if self.surroundings.is_busy() {
            return Err(busy());
        }
        Ok(result.map_err(|status| self.refused(status))?.changed)
    }

    /// Runs the validating phase.
    pub(super) async fn validate(
        &self,
        authorized: &Authorized,
        attributes: &Attributes,
        objects: &mut Objects,
    ) -> Result<(), Stop> {
        let conversions = RequestConversions::new(self, authorized, objects);
        self.validate_with(&conversions, attributes, objects).await
    }

    /// The same with the conversions of an object that is stored otherwise.
    pub(super) async fn validate_with(
        &self,
        conversions: &RequestConversions<'_>,
        attributes: &Attributes,
        objects: &mut Objects,
    ) -> Result<(), Stop> {
        let began = Instant::now();
        let policies = &self.admission.policies(&attributes.resource).validating;
        let hooks = (policies.as_slice(), self.admission.webhooks().validating.as_slice());
        let result = phases::validate(hooks, attributes, objects, conversions, self.surroundings).await;
        self.count(Phase::Validating, attributes.operation, result.is_err(), began);
        conversions.stopped()?;
        if self.surroundings.is_busy() {
            return Err(busy());
        }
        result.map_err(|status| self.refused(status))
    }

    fn count(&self, phase: Phase, operation: Operation, rejected: bool, began: Instant) {
        self.gateway.metrics.admission.step(phase, operation, rejected, began.elapsed());
    }

    fn refused(&self, status: Box<meta::Status>) -> Stop {
        if self.surroundings.is_late() {
            return ForwardError::Timeout.into();
        }
        Stop::Refused(Refusal::NotAdmitted(status))
    }

    /// Sends a rehearsal, and decodes the object that it shows. The backend's refusal is the client's response, in the encoding that
    /// the client accepts.
    pub(super) async fn rehearse(
        &self,
        authorized: &Authorized,
        rehearsal: impl Fn() -> Option<Rehearsal>,
    ) -> Result<RehearsalResponse, Stop> {
        let too_long = || Stop::Unreadable("the query is too long for a dry run".to_owned());
        let context = self.gateway.forward_context(self.connection, self.scope);
        let send = |rehearsal| rehearse(&self.gateway.pools, context, authorized, rehearsal, &self.texts);
        let first = rehearsal().ok_or_else(too_long)?;
        let shows_object = first.shows_object();
        let response = send(first).await?;
        if response.status.is_success() {
            if shows_object {
                let object = self.decode(&response.body).await?;
                *lock(&response.object) = Some(object);
            }
            return Ok(response);
        }
        let accept = authorized.request().headers().get(ACCEPT);
        if accept.is_none_or(|accept| accept == JSON) {
            return Err(Stop::Response(Box::new(response)));
        }
        let again = send(rehearsal().ok_or_else(too_long)?.in_encoding_of_client()).await?;
        // What failed a moment ago may not fail now.
        if again.status.is_success() {
            return Err(Stop::Again);
        }
        Err(Stop::Response(Box::new(again)))
    }

    /// Passes on the warnings of the first dry run: the write may have another body.
    pub(super) fn note_warnings(&self, response: &RehearsalResponse) {
        for value in response.headers.get_all(WARNING) {
            if let Some(text) = warning::text_of(value) {
                self.surroundings.note(Event::Warning(&text));
            }
        }
    }
}

impl RehearsalResponse {
    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::bytes(self.body));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }

    /// Takes the object in the response, of a rehearsal that shows one.
    pub(super) fn object(&self) -> Result<Value, Stop> {
        lock(&self.object).take().ok_or(Stop::Refused(Refusal::Panic))
    }

    /// Gives the object back, to be taken again.
    pub(super) fn put_back(&self, object: Value) {
        *lock(&self.object) = Some(object);
    }

    pub(super) fn is_created(&self) -> bool {
        self.status == StatusCode::CREATED
    }
}

/// The gateway has too much to do for this user, or for all.
pub(super) fn busy() -> Stop {
    ForwardError::Send(SendError::Busy).into()
}

/// The changes of webhooks cannot be sent.
pub(super) fn unexpressible(what: &str) -> Stop {
    let text =
        format!("the changes of admission webhooks cannot be expressed in the {what} that the client sent");
    Stop::Refused(Refusal::NotAdmitted(internal_error(&text)))
}

/// The kind of an object.
pub(super) fn kind_of(object: &Value) -> GroupVersionKind {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    GroupVersionKind { group: group.to_owned(), version: version.to_owned(), kind: text("kind").to_owned() }
}
