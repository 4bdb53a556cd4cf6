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

mod allocated;
mod connect;
mod document;
mod messages;
mod options;
mod pinned;
mod request_level;
mod reviewer;
mod splice;
mod subject;
mod write;
mod written;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::StatusCode;
use http::uri::PathAndQuery;
use http_body::Body as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use portcullis_http::body::Body;
use portcullis_http::transport::BodyError;
use portcullis_limits::fair_limiter::Refused;
use tokio::time::{sleep, timeout};

use super::Gateway;
use super::error_map::Refusal;
use super::forward::RehearsalError;
use super::forward_error::ForwardError;
use super::scope::RequestScope;
use super::stages::{Admitted, Authorized, within};
use crate::admission::ClusterAdmission;
use crate::admission::settings::AdmissionMode;
use crate::backend::pool::SendError;
use crate::listener::Connection;
use reviewer::{OnConflict, Reviewed, Reviewer, Stop};
use subject::{Action, Subject};

/// The largest body of a request.
// apiserver: pkg/server/config.go, MaxRequestBodyBytes
const MAX_BODY_BYTES: u64 = 3 << 20;
/// How long the body of a request may be on its way, whose memory other requests wait for.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
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
        let share = authorized.share(connection.info.peer.ip()).into_owned();
        let deadline = authorized.deadline();
        let surroundings = admission.surroundings(&share, &user, deadline, scope.spans());
        let reviewer = Reviewer {
            gateway,
            connection,
            scope,
            admission: &admission,
            surroundings: &surroundings,
            subject: &subject,
            share: &share,
            memory: Mutex::default(),
        };
        let result = Box::pin(reviewer.forward(authorized)).await;
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
            let target = match within(deadline, self.reviewed_target(&authorized)).await? {
                Ok(target) => target,
                Err(stop) => return stop.into_response(self.subject),
            };
            let admitted = Admitted::reviewed_connection(authorized, target);
            return self.gateway.forward(admitted, self.connection, self.scope).await;
        }
        let body = authorized.take_body();
        let size = body.size_hint().upper().unwrap_or(MAX_BODY_BYTES).min(MAX_BODY_BYTES);
        let busy = |_: Refused| Refusal::Forward(ForwardError::Send(SendError::Busy));
        let _body = within(deadline, self.admission.reserve_body(self.share, size)).await?.map_err(busy)?;
        let reading = within(deadline, timeout(BODY_TIMEOUT, read_body(body))).await?;
        let body = reading.map_err(|_| Refusal::Forward(ForwardError::Timeout))??;
        let mut reviews = 1;
        loop {
            let reviewed = match within(deadline, Box::pin(self.reviewed_write(&authorized, &body))).await? {
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
            Err(Stop::Unseen(reason)) => {
                self.authorized_or_refused(authorized).await?;
                self.refuse_unseen(authorized, &reason).await?;
                Ok(None)
            }
            result => result,
        }
    }

    /// The write that webhooks have admitted, or that none of them has to see.
    async fn reviewed_write(&self, authorized: &Authorized, body: &Bytes) -> Result<Reviewed, Stop> {
        match self.review(authorized, body).await {
            Err(Stop::Unseen(reason)) => {
                self.authorized_or_refused(authorized).await?;
                self.refuse_unseen(authorized, &reason).await?;
                Ok(Reviewed::unproven(reviewer::as_sent(body.clone())))
            }
            Err(stop @ Stop::Unreadable(_)) => {
                self.authorized_or_refused(authorized).await?;
                Err(stop)
            }
            result => result,
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
    /// A user without rights learns nothing about webhooks.
    async fn authorized_or_refused(&self, authorized: &Authorized) -> Result<(), Refusal> {
        let asked = self.surroundings.authorize_request(authorized.info()).await;
        asked.map_err(Refusal::Access)
    }
}

/// Reads the whole body, which the dry run and the write need.
async fn read_body(body: Body) -> Result<Bytes, Refusal> {
    let limit = usize::try_from(MAX_BODY_BYTES).unwrap_or(usize::MAX);
    let body = Limited::new(body, limit).collect().await;
    let body = body.map_err(|error| match error.downcast::<BodyError>() {
        Ok(error) => Refusal::Forward(ForwardError::RequestBody(*error)),
        Err(error) if error.is::<LengthLimitError>() => Refusal::NotAdmitted(too_large()),
        Err(_) => Refusal::Panic,
    })?;
    Ok(body.to_bytes())
}

// apimachinery: pkg/api/errors/errors.go, NewRequestEntityTooLargeError
fn too_large() -> Box<meta::Status> {
    Box::new(meta::Status {
        code: Some(413),
        message: Some(format!("Request entity too large: limit is {MAX_BODY_BYTES}")),
        reason: Some("RequestEntityTooLarge".to_owned()),
        status: Some("Failure".to_owned()),
        ..meta::Status::default()
    })
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
