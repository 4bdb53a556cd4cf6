//! Access reviews, cached, shared and bounded, whichever authorizer decides them.
//!
//! Concurrent requests of one client share an access review. They run on a thread of their own, not on those that serve
//! requests; their number is bounded for all clients and for each one. A failure is never a decision, and never cached.

use std::mem::size_of;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use futures_util::future::BoxFuture;
use http::HeaderMap;
use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use portcullis_limits::cache_budget::CacheShare;
use portcullis_limits::fair_limiter::{FairLimiter, Permit, Shares};
use portcullis_limits::shared_lookup::{Found, Lookup, SharedLookups, Term};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::AuthzTrace;
use crate::limits::is_anonymous;
use crate::traces::ActiveSpan;

/// The memory of all decisions of one authorizer.
const MAX_CACHED_BYTES: usize = 16 << 20;
/// Number of shards, each with its own lock, to reduce contention between request workers.
const SHARDS: usize = 4;
/// How long an access review waits for its place.
pub(super) const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);
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

// threat: review-flood
struct ReviewsState<R> {
    reviews: R,
    runtime: Handle,
    /// Only decisions are kept. Reviews in progress are those of one flow: a client that has used up its share delays no other
    /// client with the same review.
    decisions: SharedLookups<ReviewKey, DecisionResult, Flow>,
    shares: FairLimiter<Flow>,
    /// Of anonymous clients, of whom anyone may have many: their reviews take no place of a user.
    anonymous_shares: FairLimiter<Flow>,
}

/// The part of the shares that anonymous clients have beside them.
const ANONYMOUS_PART: usize = 4;

/// Of a client within the cluster: see [`flow_of`](crate::limits::flow_of).
type Flow = Arc<str>;
type ReviewKey = [u8; 32];
type DecisionResult = Result<Arc<ReviewDecision>, ReviewError>;
type DecisionLookup = Lookup<ReviewKey, DecisionResult, Flow>;

/// The status of a `SubjectAccessReview`; an evaluation error does not count.
// api: authorization/v1/types.go, SubjectAccessReviewStatus
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
    /// Access reviews run on `runtime`, within `shares`; decisions are kept in that of the cluster's caches.
    pub(super) fn new(reviews: R, runtime: &Handle, shares: Shares, caches: &CacheShare) -> Self {
        Self(Arc::new(ReviewsState {
            reviews,
            runtime: runtime.clone(),
            decisions: SharedLookups::new(MAX_CACHED_BYTES, SHARDS, caches),
            shares: FairLimiter::new(shares),
            anonymous_shares: FairLimiter::new(shares.divided_by(ANONYMOUS_PART)),
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

    fn shares(&self, flow: &str) -> &FairLimiter<Flow> {
        if is_anonymous(flow) { &self.0.anonymous_shares } else { &self.0.shares }
    }

    /// Waits for a permit in the share of `flow`.
    pub(super) async fn acquire(&self, flow: &str) -> Result<Permit<Flow>, ReviewError> {
        let until = Instant::now() + QUEUE_TIMEOUT;
        self.shares(flow).acquire(flow.into(), 1, until).await.map_err(|_| ReviewError::Overloaded)
    }

    /// Waits for the permits of an access review with this length. A long one takes several, and does not wait.
    async fn acquire_for(&self, flow: &Flow, length: usize) -> Result<Permit<Flow>, ReviewError> {
        if length <= MAX_WAITING_BYTES {
            return self.acquire(flow).await;
        }
        let weight = length / MAX_WAITING_BYTES + 1;
        self.shares(flow).try_acquire(Flow::clone(flow), weight).ok_or(ReviewError::Overloaded)
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
        let mut key: ReviewKey = [0; 32];
        key.iter_mut().zip(digest(&SHA256, &text).as_ref()).for_each(|(to, from)| *to = *from);
        // Not kept: thousands of access reviews may wait.
        let length = text.len();
        drop(text);
        let decisions = &self.0.decisions;
        if let Some(known) = decisions.known(&key, Instant::now()) {
            return Ok(SharedDecision { decision: known?, is_cached: true });
        }
        let flow = Flow::from(flow);
        let mut span = trace.begin_review();
        let begin = |lookup: DecisionLookup, span: Option<&ActiveSpan>| {
            let mut headers = HeaderMap::new();
            if let Some(span) = span {
                span.inject(&mut headers);
            }
            self.0.runtime.spawn(self.clone().review(lookup, spec.clone(), length, headers));
        };
        let (joined, pending) = match decisions.find(&key, &flow, Instant::now(), |_| true) {
            Found::Known(known) => return Ok(SharedDecision { decision: known?, is_cached: true }),
            Found::Pending(pending) => (true, pending),
            Found::Vacant(lookup, pending) => {
                begin(lookup, span.as_deref());
                (false, pending)
            }
        };
        let mut decision = pending.result().await;
        // One that began earlier may end with its own requests, and its decision with its time.
        let is_over = match &decision {
            None => true,
            Some(decision) => decision.as_ref().is_ok_and(|decision| Instant::now() >= decision.until),
        };
        if joined && is_over {
            let (lookup, pending) = decisions.begin(&key, &flow);
            begin(lookup, span.as_deref());
            decision = pending.result().await;
        }
        let cancelled = || Err(ReviewError::Unavailable("the access review was cancelled".to_owned()));
        let decision = decision.unwrap_or_else(cancelled);
        if let (Err(_), Some(span)) = (&decision, &mut span) {
            span.fail();
        }
        Ok(SharedDecision { decision: decision?, is_cached: false })
    }

    /// Makes an access review. It ends when no request waits for it.
    async fn review(
        self,
        lookup: DecisionLookup,
        spec: SubjectAccessReviewSpec,
        length: usize,
        headers: HeaderMap,
    ) {
        let decision = tokio::select! {
            decision = self.reviewed(lookup.owner(), &spec, length, headers) => decision,
            () = lookup.abandoned() => return,
        };
        let term = decision.as_ref().ok().map(|made| Term { weight: made.weight(), until: made.until });
        lookup.finish(decision, term);
    }

    async fn reviewed(
        &self,
        flow: &Flow,
        spec: &SubjectAccessReviewSpec,
        length: usize,
        headers: HeaderMap,
    ) -> DecisionResult {
        let _permit = self.acquire_for(flow, length).await?;
        // The decision may rest on the rules of this moment.
        let asked = Instant::now();
        let mut status = self.reviews().review(spec, headers).await?;
        status.reason.truncate(status.reason.floor_char_boundary(MAX_REASON_BYTES));
        let until = asked + self.reviews().ttl(spec, &status);
        Ok(Arc::new(ReviewDecision { status, until }))
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
