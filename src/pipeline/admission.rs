//! Admission: sends a write, or a connection, to the webhooks that match it, and then to the backend what they have admitted.
//!
//! A gateway does not see the objects that the backend would store, so it lets the backend show them: with
//! `--admission-mode=pinnedDryRun` it sends the request as a dry run first ([`rehearse`](super::forward::rehearse)), shows
//! the webhooks the object in the response beside the stored one, and pins the write to both. With `requestLevel` they see the
//! object that the client sent.
//!
//! Nothing reaches the backend that a matching webhook has not seen. What cannot be shown is refused, unless the
//! `failurePolicy` of every webhook that may match is `Ignore`. `docs/admission.md` has the rules, and what differs from
//! kube-apiserver.

mod body;
mod connect;
mod document;
mod hold;
mod options;
mod pinned;
mod request_level;
mod reviewer;
mod subject;

use std::sync::Arc;

use http::Response;
use http::StatusCode;
use portcullis_http::body::Body;

use super::Gateway;
use super::error_map::Refusal;
use super::forward::RehearsalError;
use super::held_texts::HeldTexts;
use super::scope::RequestScope;
use super::stages::{Admitted, Authorized, within};
use crate::admission::settings::AdmissionMode;
use crate::admission::{ClusterAdmission, RequestParts};
use crate::listener::Connection;
use hold::ReviewHold;
use reviewer::{OnConflict, Reviewer, Stop};
use subject::{Action, Subject};

/// How often a write is reviewed, if its object changes meanwhile or its generated name is taken.
const MAX_REVIEWS: usize = 8;

/// What admission makes of a request.
pub(super) enum Admission {
    /// No webhook may match it.
    Admitted(Admitted),
    /// A webhook may match it.
    Pending(Box<PendingReview>),
}

/// A request that a webhook may match.
pub(super) struct PendingReview {
    authorized: Authorized,
    admission: Arc<ClusterAdmission>,
    subject: Subject,
}

/// Whether any webhook may match a request.
// threat: unreviewed-write
pub(super) fn begin(authorized: Authorized) -> Admission {
    let Some(admission) = authorized.cluster().admission.clone() else {
        return Admission::Admitted(Admitted::as_received(authorized));
    };
    let (request, info) = (authorized.request(), authorized.info());
    let subject = info.resource().and_then(|resource| {
        let action = Action::of(request.method(), request.headers(), info, &resource)?;
        let (group, version) = (resource.group, resource.version);
        let operations = action.operations().iter().copied().collect();
        admission
            .may_match(operations, group, version, resource.resource, resource.subresource)
            .then(|| Subject::new(action, &resource))
    });
    match subject {
        None => Admission::Admitted(Admitted::as_received(authorized)),
        Some(subject) => Admission::Pending(Box::new(PendingReview { authorized, admission, subject })),
    }
}

impl PendingReview {
    /// Lets the webhooks review the request, and sends what they admit.
    pub(super) async fn forward(
        self,
        gateway: &Gateway,
        connection: &Connection,
        scope: &mut RequestScope,
    ) -> Result<Response<Body>, Refusal> {
        let Self { authorized, admission, subject } = self;
        let user = authorized.identity().clone();
        let client = connection.info.peer.ip();
        let (share, owner) = (authorized.share(client).into_owned(), authorized.owner(client));
        let deadline = authorized.deadline();
        let parts = RequestParts { flow: &share, owner: &owner, user: &user, deadline, spans: scope.spans() };
        let surroundings = admission.surroundings(parts);
        let reviewer = Reviewer {
            gateway,
            connection,
            scope,
            admission: &admission,
            surroundings: &surroundings,
            subject: &subject,
            texts: HeldTexts::new(&gateway.ledger, owner.clone()),
            hold: ReviewHold::new(&authorized, &owner, &share),
        };
        let result = within(deadline, Box::pin(reviewer.forward(authorized))).await;
        let notes = surroundings.take_notes();
        scope.warnings.extend(notes.warnings);
        if let Some(audited) = &scope.audited {
            audited.note_admission(&notes.annotations);
        }
        result?
    }
}

impl Reviewer<'_> {
    async fn forward(&self, mut authorized: Authorized) -> Result<Response<Body>, Refusal> {
        if matches!(self.subject.action, Action::Connect | Action::ForeignConnect) {
            let admitted = match self.connect(&authorized).await {
                Ok(target) => Admitted::reviewed_connection(authorized, target),
                Err(Stop::Unseen(reason)) => {
                    self.authorized_or_refused(&authorized).await?;
                    self.refuse_unseen(&authorized, &reason).await?;
                    Admitted::reviewed_connection(authorized, None)
                }
                Err(stop) => return stop.into_response(self.subject),
            };
            return self.gateway.forward(admitted, self.connection, self.scope).await;
        }
        let (body, _held) = self.unless_revoked(self.read_body(&mut authorized)).await??;
        let mut reviews = 1;
        loop {
            let (write, on_conflict) = match self.unless_revoked(self.review(&authorized, &body)).await? {
                Ok(reviewed) => reviewed,
                Err(Stop::Again) if reviews < MAX_REVIEWS => {
                    reviews += 1;
                    continue;
                }
                Err(Stop::Unseen(reason)) => {
                    self.authorized_or_refused(&authorized).await?;
                    self.refuse_unseen(&authorized, &reason).await?;
                    (reviewer::as_sent(body.clone()), OnConflict::Respond)
                }
                Err(stop @ Stop::Unreadable(_)) => {
                    self.authorized_or_refused(&authorized).await?;
                    return stop.into_response(self.subject);
                }
                Err(stop) => return stop.into_response(self.subject),
            };
            let admitted = Admitted::reviewed(&authorized, write);
            let response = self.gateway.forward(admitted, self.connection, self.scope).await?;
            let is_conflict = response.status() == StatusCode::CONFLICT;
            if !is_conflict || on_conflict == OnConflict::Respond || reviews >= MAX_REVIEWS {
                return Ok(response);
            }
            reviews += 1;
        }
    }
}

impl Reviewer<'_> {
    /// Waits for a part of the review, unless the request has to give up what it holds. Never for the write, which may be stored.
    // threat: buffered-bytes-flood
    async fn unless_revoked<T>(&self, part: impl Future<Output = T>) -> Result<T, Refusal> {
        tokio::select! {
            biased;
            () = self.texts.revoked() => Err(Refusal::TooManyBufferedBytes),
            result = part => Ok(result),
        }
    }

    /// A user without rights learns nothing about webhooks.
    async fn authorized_or_refused(&self, authorized: &Authorized) -> Result<(), Refusal> {
        let asked = self.surroundings.authorize_request(authorized.info()).await;
        asked.map_err(Refusal::Access)
    }
}

impl From<RehearsalError> for Refusal {
    fn from(error: RehearsalError) -> Self {
        match error {
            RehearsalError::Prepare(error) => Self::Prepare(error),
            RehearsalError::Forward(error) => Self::Forward(error),
        }
    }
}

/// Which object the webhooks see.
fn is_pinned(admission: &ClusterAdmission) -> bool {
    admission.mode() == AdmissionMode::PinnedDryRun
}
