//! Access reviews, cached, shared and bounded, whichever authorizer decides them.
//!
//! Concurrent requests of one client share an access review. They run on a thread of their own, not on those that serve
//! requests; their number is bounded for all clients and for each one. A failure is never a decision, and never cached.

use std::collections::HashMap;
use std::mem::size_of;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use futures_util::future::BoxFuture;
use http::HeaderMap;
use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use portcullis_system::expiring_lru::ExpiringLru;
use portcullis_system::sync::lock;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use super::AuthzTrace;
use crate::backend::shares::{FairShares, ShareLimits, SharePermit};
use crate::limits::is_anonymous;
use crate::traces::ActiveSpan;

/// The memory of all decisions of one authorizer.
const MAX_CACHED_BYTES: usize = 16 << 20;
/// The longest reason that is kept.
const MAX_REASON_BYTES: usize = 4096;
/// The longest access review, as JSON: the client chooses its selectors.
const MAX_REVIEW_BYTES: usize = 256 << 10;
/// The longest access review that waits for a permit, and that takes one permit.
const MAX_WAITING_BYTES: usize = 32 << 10;

/// An authorizer outside the process.
pub(super) trait AccessReviews: Send + Sync + 'static {
    /// Reviews access, with further headers. Must end: the caller does not bound its time.
    fn review<'a>(
        &'a self,
        spec: &'a SubjectAccessReviewSpec,
        headers: HeaderMap,
    ) -> BoxFuture<'a, Result<AccessReviewStatus, ReviewError>>;

    /// How long a decision counts, from the begin of its review on; zero: for this request alone.
    fn ttl(&self, spec: &SubjectAccessReviewSpec, decision: &AccessReviewStatus) -> Duration;
}

/// The decisions of an authorizer. Cheap to clone.
pub(super) struct CachedReviews<R>(Arc<ReviewsState<R>>);

struct ReviewsState<R> {
    reviews: R,
    runtime: Handle,
    decisions: Mutex<DecisionCache>,
    shares: FairShares<Arc<str>>,
    /// Of anonymous clients, of whom anyone may have many: their reviews take no place of a user.
    // threat: review-flood
    anonymous_shares: FairShares<Arc<str>>,
}

/// The part of the limits that anonymous clients have beside them.
const ANONYMOUS_PART: usize = 4;

struct DecisionCache {
    known: ExpiringLru<ReviewKey, Arc<ReviewDecision>>,
    pending: HashMap<PendingKey, Arc<DecisionSender>>,
}

type ReviewKey = [u8; 32];

/// An access review in progress, and the client in whose share it counts. A client that has used up its share delays no other
/// client with the same review.
// threat: review-flood
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PendingKey {
    review: ReviewKey,
    flow: Arc<str>,
}

type DecisionResult = Result<Arc<ReviewDecision>, ReviewError>;
type DecisionSender = watch::Sender<Option<DecisionResult>>;
type DecisionReceiver = watch::Receiver<Option<DecisionResult>>;

/// The status of a `SubjectAccessReview`; an evaluation error does not count.
// kubernetes: staging/src/k8s.io/api/authorization/v1/types.go, SubjectAccessReviewStatus
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AccessReviewStatus {
    pub(crate) allowed: bool,
    /// No other authorizer may allow it either.
    pub(crate) denied: bool,
    /// Why, in the words of the authorizer; may be empty.
    pub(crate) reason: String,
}

/// A decision, and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReviewDecision {
    pub(crate) status: AccessReviewStatus,
    /// When the decision ends.
    pub(crate) until: Instant,
}

/// Why there is no decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReviewError {
    /// The user causes too many access reviews, or all users do.
    #[error("too many access reviews are in progress")]
    Overloaded,
    /// The access review is too long.
    #[error("the question for an access review is longer than {MAX_REVIEW_BYTES} bytes")]
    TooLarge,
    /// The API server cannot be reached, is late, or cannot decide now.
    #[error("no answer to an access review: {0}")]
    Unavailable(String),
    /// The gateway itself may not create access reviews.
    #[error(
        "the gateway may not create subjectaccessreviews.authorization.k8s.io, which deploy/rbac.yaml allows: {0}"
    )]
    Forbidden(String),
    /// An authorization webhook does not answer; its `failurePolicy` decides.
    #[error("{text}")]
    Webhook {
        /// The error, as clients may see it.
        text: String,
        /// Whether the webhook was late.
        is_timeout: bool,
    },
    /// The response is no decision.
    #[error("unusable answer to an access review: {0}")]
    Unusable(String),
}

/// A decision, and whether it was cached.
pub(super) struct SharedDecision {
    pub(super) decision: Arc<ReviewDecision>,
    pub(super) is_cached: bool,
}

impl<R: AccessReviews> CachedReviews<R> {
    /// Access reviews run on `runtime`, within `limits`.
    pub(super) fn new(reviews: R, runtime: &Handle, limits: ShareLimits) -> Self {
        let decisions = DecisionCache { known: ExpiringLru::new(MAX_CACHED_BYTES), pending: HashMap::new() };
        Self(Arc::new(ReviewsState {
            reviews,
            runtime: runtime.clone(),
            decisions: Mutex::new(decisions),
            shares: FairShares::new(limits),
            anonymous_shares: FairShares::new(ShareLimits {
                permits: limits.permits / ANONYMOUS_PART,
                permits_per_client: limits.permits_per_client / ANONYMOUS_PART,
                queue: limits.queue / ANONYMOUS_PART,
                queue_per_client: limits.queue_per_client / ANONYMOUS_PART,
                queue_timeout: limits.queue_timeout,
            }),
        }))
    }

    /// The authorizer.
    pub(super) fn reviews(&self) -> &R {
        &self.0.reviews
    }

    /// The runtime on which access reviews run.
    pub(super) fn runtime(&self) -> &Handle {
        &self.0.runtime
    }

    fn shares(&self, flow: &str) -> &FairShares<Arc<str>> {
        if is_anonymous(flow) { &self.0.anonymous_shares } else { &self.0.shares }
    }

    /// Waits for a permit in the share of `flow`.
    pub(super) async fn acquire(&self, flow: &str) -> Result<SharePermit, ReviewError> {
        self.shares(flow).acquire(flow.into(), 1).await.map_err(|_| ReviewError::Overloaded)
    }

    /// Waits for the permits of an access review with this length. A long one takes several, and does not wait.
    async fn acquire_for(&self, flow: &str, length: usize) -> Result<SharePermit, ReviewError> {
        if length <= MAX_WAITING_BYTES {
            return self.acquire(flow).await;
        }
        let weight = u32::try_from(length / MAX_WAITING_BYTES + 1).unwrap_or(u32::MAX);
        self.shares(flow).try_acquire(flow.into(), weight).map_err(|_| ReviewError::Overloaded)
    }

    /// Decides an access review, which counts in the share of `flow`. One that several requests wait for continues the trace
    /// of the first; each has a span for its wait. A decision from the cache has none.
    pub(super) async fn decide(
        &self,
        flow: &str,
        spec: &SubjectAccessReviewSpec,
        trace: &AuthzTrace,
    ) -> Result<SharedDecision, ReviewError> {
        let text = serde_json::to_vec(spec).map_err(|error| ReviewError::Unusable(error.to_string()))?;
        if text.len() > MAX_REVIEW_BYTES {
            return Err(ReviewError::TooLarge);
        }
        let mut key = PendingKey { review: [0; 32], flow: flow.into() };
        key.review.iter_mut().zip(digest(&SHA256, &text).as_ref()).for_each(|(to, from)| *to = *from);
        // Not kept: thousands of access reviews may wait.
        let length = text.len();
        drop(text);
        let (joined, begun, pending) = {
            let mut decisions = lock(&self.0.decisions);
            if let Some(known) = decisions.known.get(&key.review, Instant::now()) {
                return Ok(SharedDecision { decision: Arc::clone(known), is_cached: true });
            }
            if let Some(sender) = decisions.pending.get(&key) {
                (true, None, sender.subscribe())
            } else {
                let (review, pending) = self.begin(&key, &mut decisions);
                (false, Some(review), pending)
            }
        };
        let mut span = trace.begin_review();
        let run = |review: PendingReview<R>, span: Option<&ActiveSpan>| {
            let mut headers = HeaderMap::new();
            if let Some(span) = span {
                span.inject(&mut headers);
            }
            self.0.runtime.spawn(review.run(spec.clone(), length, headers));
        };
        // Without the lock: a runtime that has ended drops the access review at once, which takes the lock.
        if let Some(review) = begun {
            run(review, span.as_deref());
        }
        let mut decision = received(pending).await;
        // One that began earlier may end with its own requests, and its decision with its time.
        let is_over = match &decision {
            None => true,
            Some(decision) => decision.as_ref().is_ok_and(|decision| Instant::now() >= decision.until),
        };
        if joined && is_over {
            let (review, pending) = self.begin(&key, &mut lock(&self.0.decisions));
            run(review, span.as_deref());
            decision = received(pending).await;
        }
        let cancelled = || Err(ReviewError::Unavailable("the access review was cancelled".to_owned()));
        let decision = decision.unwrap_or_else(cancelled);
        if let (Err(_), Some(span)) = (&decision, &mut span) {
            span.fail();
        }
        Ok(SharedDecision { decision: decision?, is_cached: false })
    }

    /// Begins an access review, which later requests may join. It ends when no request waits for it.
    fn begin(&self, key: &PendingKey, decisions: &mut DecisionCache) -> (PendingReview<R>, DecisionReceiver) {
        let (sender, receiver) = watch::channel(None);
        let sender = Arc::new(sender);
        decisions.pending.insert(key.clone(), Arc::clone(&sender));
        (PendingReview { reviews: self.clone(), key: key.clone(), sender, decision: None }, receiver)
    }
}

/// The decision of an access review in progress; `None` if it ends without one.
async fn received(mut pending: DecisionReceiver) -> Option<DecisionResult> {
    pending.wait_for(Option::is_some).await.ok()?.clone()
}

/// An access review in progress, whose decision several requests may wait for. Dropping it ends it.
struct PendingReview<R: AccessReviews> {
    reviews: CachedReviews<R>,
    key: PendingKey,
    sender: Arc<DecisionSender>,
    decision: Option<DecisionResult>,
}

impl<R: AccessReviews> PendingReview<R> {
    async fn run(mut self, spec: SubjectAccessReviewSpec, length: usize, headers: HeaderMap) {
        let sender = Arc::clone(&self.sender);
        tokio::select! {
            decision = self.decide(&spec, length, headers) => self.decision = Some(decision),
            () = sender.closed() => {}
        }
    }

    async fn decide(
        &self,
        spec: &SubjectAccessReviewSpec,
        length: usize,
        headers: HeaderMap,
    ) -> DecisionResult {
        let _permit = self.reviews.acquire_for(&self.key.flow, length).await?;
        // The decision may rest on the rules of this moment.
        let asked = Instant::now();
        let mut status = self.reviews.reviews().review(spec, headers).await?;
        status.reason.truncate(status.reason.floor_char_boundary(MAX_REASON_BYTES));
        let until = asked + self.reviews.reviews().ttl(spec, &status);
        Ok(Arc::new(ReviewDecision { status, until }))
    }
}

impl<R: AccessReviews> Drop for PendingReview<R> {
    fn drop(&mut self) {
        {
            // In one step: a later request must find the decision, or begin another review.
            let CachedReviews(state) = &self.reviews;
            let mut decisions = lock(&state.decisions);
            if decisions.pending.get(&self.key).is_some_and(|sender| Arc::ptr_eq(sender, &self.sender)) {
                decisions.pending.remove(&self.key);
            }
            let now = Instant::now();
            if let Some(Ok(decision)) = &self.decision
                && now < decision.until
            {
                decisions.known.put(
                    self.key.review,
                    Arc::clone(decision),
                    decision.weight(),
                    decision.until,
                    now,
                );
            }
        }
        if let Some(decision) = self.decision.take() {
            self.sender.send_replace(Some(decision));
        }
    }
}

impl ReviewDecision {
    fn weight(&self) -> usize {
        size_of::<ReviewKey>() + size_of::<Self>() + self.status.reason.len() + 160
    }
}

impl<R> Clone for CachedReviews<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
