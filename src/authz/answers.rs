//! Answers to questions, cached, shared and bounded, whatever answers them.
//!
//! Concurrent requests of one client share a question. Questions run on a thread of their own, not on those that serve
//! requests; their number is bounded for all clients and for each one. A failure is never an answer, and never cached.

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

/// The memory of all answers of one authorizer.
const MAX_CACHED_BYTES: usize = 16 << 20;
/// The longest reason that is kept.
const MAX_REASON_BYTES: usize = 4096;
/// The longest question, as JSON: the client chooses its selectors.
const MAX_QUESTION_BYTES: usize = 256 << 10;
/// The longest question that waits for a permit, and that takes one permit.
const MAX_WAITING_BYTES: usize = 32 << 10;

/// An authorizer outside the process.
pub(super) trait AccessReviews: Send + Sync + 'static {
    /// Answers a question, with further headers. Must end: the caller does not bound its time.
    fn review<'a>(
        &'a self,
        question: &'a SubjectAccessReviewSpec,
        headers: HeaderMap,
    ) -> BoxFuture<'a, Result<AccessReviewStatus, ReviewError>>;

    /// How long an answer counts, from its question on; zero: for this request alone.
    fn ttl(&self, question: &SubjectAccessReviewSpec, answer: &AccessReviewStatus) -> Duration;
}

/// The answers of an authorizer. Cheap to clone.
pub(super) struct CachedReviews<R>(Arc<ReviewsState<R>>);

struct ReviewsState<R> {
    reviews: R,
    runtime: Handle,
    answers: Mutex<Answers>,
    shares: FairShares<Arc<str>>,
    /// Of anonymous clients, of whom anyone may have many: their questions take no place of a user.
    // threat: review-flood
    anonymous_shares: FairShares<Arc<str>>,
}

/// The part of the limits that anonymous clients have beside them.
const ANONYMOUS_PART: usize = 4;

struct Answers {
    known: ExpiringLru<QuestionKey, Arc<AccessAnswer>>,
    pending: HashMap<PendingKey, Arc<AnswerSender>>,
}

type QuestionKey = [u8; 32];

/// A question in progress, and the client in whose share it counts. A client that has used up its share delays no other
/// client with the same question.
// threat: review-flood
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PendingKey {
    question: QuestionKey,
    asker: Arc<str>,
}

type SharedAnswer = Result<Arc<AccessAnswer>, ReviewError>;
type AnswerSender = watch::Sender<Option<SharedAnswer>>;
type PendingAnswer = watch::Receiver<Option<SharedAnswer>>;

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

/// An answer, and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AccessAnswer {
    pub(crate) status: AccessReviewStatus,
    /// When the answer ends.
    pub(crate) until: Instant,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReviewError {
    /// The user causes too many questions, or all users do.
    #[error("too many access reviews are in progress")]
    Overloaded,
    /// The question is too long.
    #[error("the question for an access review is longer than {MAX_QUESTION_BYTES} bytes")]
    TooLarge,
    /// The API server cannot be reached, is late, or cannot answer now.
    #[error("no answer to an access review: {0}")]
    Unavailable(String),
    /// The gateway itself may not ask.
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
    /// The answer is none.
    #[error("unusable answer to an access review: {0}")]
    Unusable(String),
}

/// An answer, and whether it was cached.
pub(super) struct AskedAnswer {
    pub(super) answer: Arc<AccessAnswer>,
    pub(super) is_cached: bool,
}

impl<R: AccessReviews> CachedReviews<R> {
    /// Questions run on `runtime`, within `limits`.
    pub(super) fn new(reviews: R, runtime: &Handle, limits: ShareLimits) -> Self {
        let answers = Answers { known: ExpiringLru::new(MAX_CACHED_BYTES), pending: HashMap::new() };
        Self(Arc::new(ReviewsState {
            reviews,
            runtime: runtime.clone(),
            answers: Mutex::new(answers),
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

    /// The runtime on which questions run.
    pub(super) fn runtime(&self) -> &Handle {
        &self.0.runtime
    }

    fn shares(&self, asker: &str) -> &FairShares<Arc<str>> {
        if is_anonymous(asker) { &self.0.anonymous_shares } else { &self.0.shares }
    }

    /// Waits for a permit in the share of `asker`.
    pub(super) async fn acquire(&self, asker: &str) -> Result<SharePermit, ReviewError> {
        self.shares(asker).acquire(asker.into(), 1).await.map_err(|_| ReviewError::Overloaded)
    }

    /// Waits for the permits of a question with this length. A long one takes several, and does not wait.
    async fn acquire_for(&self, asker: &str, length: usize) -> Result<SharePermit, ReviewError> {
        if length <= MAX_WAITING_BYTES {
            return self.acquire(asker).await;
        }
        let weight = u32::try_from(length / MAX_WAITING_BYTES + 1).unwrap_or(u32::MAX);
        self.shares(asker).try_acquire(asker.into(), weight).map_err(|_| ReviewError::Overloaded)
    }

    /// Answers a question. It counts in the share of `asker`. A question that several requests wait for continues the trace of
    /// the first one; each has a span for its wait. An answer from the cache has none.
    pub(super) async fn ask(
        &self,
        asker: &str,
        question: &SubjectAccessReviewSpec,
        trace: &AuthzTrace,
    ) -> Result<AskedAnswer, ReviewError> {
        let text = serde_json::to_vec(question).map_err(|error| ReviewError::Unusable(error.to_string()))?;
        if text.len() > MAX_QUESTION_BYTES {
            return Err(ReviewError::TooLarge);
        }
        let mut key = PendingKey { question: [0; 32], asker: asker.into() };
        key.question.iter_mut().zip(digest(&SHA256, &text).as_ref()).for_each(|(to, from)| *to = *from);
        // Not kept: thousands of questions may wait.
        let length = text.len();
        drop(text);
        let (joined, begun, pending) = {
            let mut answers = lock(&self.0.answers);
            if let Some(known) = answers.known.get(&key.question, Instant::now()) {
                return Ok(AskedAnswer { answer: Arc::clone(known), is_cached: true });
            }
            if let Some(sender) = answers.pending.get(&key) {
                (true, None, sender.subscribe())
            } else {
                let (review, pending) = self.begin(&key, &mut answers);
                (false, Some(review), pending)
            }
        };
        let mut span = trace.begin_question();
        let run = |review: PendingReview<R>, span: Option<&ActiveSpan>| {
            let mut headers = HeaderMap::new();
            if let Some(span) = span {
                span.inject(&mut headers);
            }
            self.0.runtime.spawn(review.run(question.clone(), length, headers));
        };
        // Without the lock: a runtime that has ended drops the question at once, which takes the lock.
        if let Some(review) = begun {
            run(review, span.as_deref());
        }
        let mut answer = answered(pending).await;
        // One that began earlier may end with its own requests, and its answer with its time.
        let is_over = match &answer {
            None => true,
            Some(answer) => answer.as_ref().is_ok_and(|answer| Instant::now() >= answer.until),
        };
        if joined && is_over {
            let (review, pending) = self.begin(&key, &mut lock(&self.0.answers));
            run(review, span.as_deref());
            answer = answered(pending).await;
        }
        let cancelled = || Err(ReviewError::Unavailable("the access review was cancelled".to_owned()));
        let answer = answer.unwrap_or_else(cancelled);
        if let (Err(_), Some(span)) = (&answer, &mut span) {
            span.fail();
        }
        Ok(AskedAnswer { answer: answer?, is_cached: false })
    }

    /// Begins a question, which later requests may join. It ends when no request waits for it.
    fn begin(&self, key: &PendingKey, answers: &mut Answers) -> (PendingReview<R>, PendingAnswer) {
        let (sender, receiver) = watch::channel(None);
        let sender = Arc::new(sender);
        answers.pending.insert(key.clone(), Arc::clone(&sender));
        (PendingReview { reviews: self.clone(), key: key.clone(), sender, answer: None }, receiver)
    }
}

/// The answer to a question in progress; `None` if it ends without one.
async fn answered(mut pending: PendingAnswer) -> Option<SharedAnswer> {
    pending.wait_for(Option::is_some).await.ok()?.clone()
}

/// A question in progress, whose answer several requests may wait for. Dropping it ends it.
struct PendingReview<R: AccessReviews> {
    reviews: CachedReviews<R>,
    key: PendingKey,
    sender: Arc<AnswerSender>,
    answer: Option<SharedAnswer>,
}

impl<R: AccessReviews> PendingReview<R> {
    async fn run(mut self, question: SubjectAccessReviewSpec, length: usize, headers: HeaderMap) {
        let sender = Arc::clone(&self.sender);
        tokio::select! {
            answer = self.answer(&question, length, headers) => self.answer = Some(answer),
            () = sender.closed() => {}
        }
    }

    async fn answer(
        &self,
        question: &SubjectAccessReviewSpec,
        length: usize,
        headers: HeaderMap,
    ) -> SharedAnswer {
        let _permit = self.reviews.acquire_for(&self.key.asker, length).await?;
        // The answer may rest on the rules of this moment.
        let asked = Instant::now();
        let mut status = self.reviews.reviews().review(question, headers).await?;
        status.reason.truncate(status.reason.floor_char_boundary(MAX_REASON_BYTES));
        let until = asked + self.reviews.reviews().ttl(question, &status);
        Ok(Arc::new(AccessAnswer { status, until }))
    }
}

impl<R: AccessReviews> Drop for PendingReview<R> {
    fn drop(&mut self) {
        {
            // In one step: a later request must find the answer, or begin another question.
            let CachedReviews(state) = &self.reviews;
            let mut answers = lock(&state.answers);
            if answers.pending.get(&self.key).is_some_and(|sender| Arc::ptr_eq(sender, &self.sender)) {
                answers.pending.remove(&self.key);
            }
            let now = Instant::now();
            if let Some(Ok(answer)) = &self.answer
                && now < answer.until
            {
                answers.known.put(self.key.question, Arc::clone(answer), answer.weight(), answer.until, now);
            }
        }
        if let Some(answer) = self.answer.take() {
            self.sender.send_replace(Some(answer));
        }
    }
}

impl AccessAnswer {
    fn weight(&self) -> usize {
        size_of::<QuestionKey>() + size_of::<Self>() + self.status.reason.len() + 160
    }
}

impl<R> Clone for CachedReviews<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
