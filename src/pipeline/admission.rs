//! Admission: sends a write, or a connection, to the webhooks that match it, and then to the backend what they have admitted.
//!
//! A gateway does not see the objects that the backend would store, so it lets the backend show them: with
//! `--admission-mode=pinnedDryRun` it sends the request as a dry run first ([`rehearse`](super::forward::rehearse)), shows
//! the webhooks the object in the response beside the stored one, and pins the write to both. With `requestLevel` they see the
//! object that the client sent.
//!
//! A request that only shadow webhooks may match is forwarded as it is, and shown to them beside (`observed.rs`).
//!
//! Nothing reaches the backend that a matching webhook has not seen. What cannot be shown is refused, unless the
//! `failurePolicy` of every webhook that may match is `Ignore`, and no client can choose the form (`unseen.rs`). `docs/admission.md` has the rules, and what differs from
//! kube-apiserver.

mod allocated;
mod autoscaler;
mod body;
mod collection;
mod connect;
mod document;
mod equivalent;
mod event;
mod hold;
mod messages;
mod observed;
mod options;
mod pinned;
mod request_level;
mod reviewer;
mod splice;
mod stored;
mod subject;
mod typed;
mod unseen;
mod verdicts;
mod write;
mod written;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::StatusCode;
use http::uri::PathAndQuery;
use portcullis_http::body::Body;
use portcullis_http::held_texts::HeldTexts;
use tokio::time::sleep;

use super::Gateway;
use super::error_map::Refusal;
use super::forward::RehearsalError;
use super::scope::RequestScope;
use super::stages::{Admitted, Authorized, within};
use crate::admission::settings::AdmissionMode;
use crate::admission::{ClusterAdmission, MayMatch, RequestParts};
use crate::listener::Connection;
pub(crate) use autoscaler::converted as converted_autoscaler;
use hold::ReviewHold;
use reviewer::{OnConflict, Reviewed, Reviewer, Stop};
use subject::{Action, Subject};

/// How often a write is reviewed, if its object changes meanwhile or its generated name is taken: of as many writers of one object at
/// once, each succeeds. kube-apiserver tries until the deadline of the request, which holds here as well.
// apiserver: pkg/storage/etcd3/store.go, GuaranteedUpdate
const MAX_REVIEWS: u32 = 100;
/// The longest pause before another review, for each of those before. Reviews that begin at once would all find the object changed.
const PAUSE_PER_REVIEW: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// What admission makes of a request.
pub(super) enum Admission {
    /// No webhook may match it.
    Admitted(Admitted),
    /// A webhook may match it, if only one without effect.
    Pending(Box<PendingReview>),
}

/// A request that a webhook may match.
pub(super) struct PendingReview {
    authorized: Authorized,
    admission: Arc<ClusterAdmission>,
    subject: Subject,
    may_match: MayMatch,
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
        Some(Subject::new(action, &resource))
    });
    let may_match = subject.as_ref().map_or(MayMatch::None, |subject| {
        let operations = subject.action.operations().iter().copied().collect();
        admission.may_match(operations, &subject.resource, &subject.subresource)
    });
    match (subject, may_match) {
        (None, _) | (_, MayMatch::None) => Admission::Admitted(Admitted::as_received(authorized)),
        (Some(subject), _) => {
            Admission::Pending(Box::new(PendingReview { authorized, admission, subject, may_match }))
        }
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
        let Self { authorized, admission, subject, may_match } = self;
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
        let result = match may_match {
            MayMatch::None | MayMatch::Shadow => Box::pin(reviewer.observe(authorized)).await,
            MayMatch::Enforced => Box::pin(reviewer.forward(authorized)).await,
        };
        let notes = surroundings.take_notes();
        scope.warnings.extend(notes.warnings);
        if let Some(audited) = &scope.audited {
            audited.note_admission(&notes.annotations);
        }
        result
    }
}

impl Reviewer<'_> {
    async fn forward(&self, mut authorized: Authorized) -> Result<Response<Body>, Refusal> {
        let deadline = authorized.deadline();
        if matches!(self.subject.action, Action::Connect | Action::ForeignConnect) {
            let reviewing = Box::pin(self.reviewed_target(&authorized));
            let target = match within(deadline, reviewing).await? {
                Ok(target) => target,
                Err(stop) => return stop.into_response(self.subject),
            };
            let admitted = Admitted::reviewed_connection(authorized, target);
            return self.gateway.forward(admitted, self.connection, self.scope).await;
        }
        let reading = self.unless_revoked(self.read_body(&mut authorized));
        let (body, _held) = within(deadline, reading).await???;
        if self.subject.action == Action::DeleteCollection && is_pinned(self.admission) {
            return within(deadline, self.reviewed_collection(&authorized, &body)).await?;
        }
        let mut reviews = 1;
        loop {
            let reviewing = Box::pin(self.reviewed_write(&authorized, &body));
            let reviewed = match within(deadline, self.unless_revoked(reviewing)).await?? {
                Ok(reviewed) => reviewed,
                Err(Stop::Again) if reviews < MAX_REVIEWS => {
                    reviews = within(deadline, pause(reviews)).await?;
                    continue;
                }
                Err(stop) => return stop.into_response(self.subject),
            };
            let on_conflict = reviewed.on_conflict;
            let response = self.write(&authorized, reviewed).await?;
            let is_conflict = response.status() == StatusCode::CONFLICT;
            if !is_conflict || on_conflict == OnConflict::Respond || reviews >= MAX_REVIEWS {
                return Ok(response);
            }
            reviews = within(deadline, pause(reviews)).await?;
        }
    }

    /// The target of a connection, if webhooks have changed it.
    async fn reviewed_target(&self, authorized: &Authorized) -> Result<Option<PathAndQuery>, Stop> {
        match self.connect(authorized).await {
            Err(stop) => self.passes_unseen(authorized, stop).await.map(|()| None),
            target => target,
        }
    }

    /// The response to the deletion of a collection, whose objects webhooks have reviewed.
    async fn reviewed_collection(
        &self,
        authorized: &Authorized,
        body: &Bytes,
    ) -> Result<Response<Body>, Refusal> {
        let deleting = async {
            self.hold.release();
            self.require_dry_run(authorized).await?;
            self.delete_collection(authorized, body).await
        };
        match Box::pin(deleting).await {
            Ok(response) => Ok(response),
            Err(stop) => match self.passes_unseen(authorized, stop).await {
                Ok(()) => {
                    let admitted = Admitted::reviewed(authorized, reviewer::as_sent(body.clone()));
                    self.gateway.forward(admitted, self.connection, self.scope).await
                }
                Err(stop) => stop.into_response(self.subject),
            },
        }
    }

    /// The write that webhooks have admitted, or that none of them has to see.
    async fn reviewed_write(&self, authorized: &Authorized, body: &Bytes) -> Result<Reviewed, Stop> {
        match self.review(authorized, body).await {
            Err(stop) => {
                self.passes_unseen(authorized, stop).await?;
                Ok(Reviewed::unproven(reviewer::as_sent(body.clone())))
            }
            reviewed => reviewed,
        }
    }
}

/// Waits for a random time that grows with the number of reviews; returns the next number.
async fn pause(reviews: u32) -> u32 {
    let longest = PAUSE_PER_REVIEW.saturating_mul(reviews).min(MAX_PAUSE);
    // Seeded at random.
    let random = RandomState::new().hash_one(reviews) % 1024;
    let part = u32::try_from(random).unwrap_or_default();
    sleep(longest.saturating_mul(part) / 1024).await;
    reviews.saturating_add(1)
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
