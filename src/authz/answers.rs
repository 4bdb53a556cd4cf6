//! Answers to questions, cached, shared and bounded, whatever answers them.
//!
//! Concurrent requests share one question. Questions run on the runtime that verifies tokens, not on the threads that serve
//! requests; their number is bounded for all users and for each one. A failure is never an answer, and never cached.

use std::collections::HashMap;
use std::mem::size_of;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use futures_util::future::BoxFuture;
use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backend::shares::{FairShares, ShareLimits, SharePermit};
use crate::expiring_lru::ExpiringLru;
use crate::sync::lock;

/// The memory of all answers of one authorizer.
const MAX_CACHED_BYTES: usize = 16 << 20;
/// The longest reason that is kept.
const MAX_REASON_BYTES: usize = 4096;

/// An authorizer outside the process.
pub(super) trait AccessReviews: Send + Sync + 'static {
    /// Answers a question. Must end: the caller does not bound its time.
    fn review<'a>(
        &'a self,
        question: &'a SubjectAccessReviewSpec,
    ) -> BoxFuture<'a, Result<AccessReviewStatus, ReviewError>>;

    /// How long an answer counts, from its question on; zero: for this request alone.
    fn ttl(&self, question: &SubjectAccessReviewSpec, answer: &AccessReviewStatus) -> Duration;

    /// Whether concurrent requests may share a question.
    fn is_shared(&self) -> bool {
        true
    }
}

/// The answers of an authorizer. Cheap to clone.
pub(super) struct CachedReviews<R>(Arc<ReviewsState<R>>);

struct ReviewsState<R> {
    reviews: R,
    runtime: Handle,
    answers: Mutex<Answers>,
    shares: FairShares<Arc<str>>,
}

struct Answers {
    known: ExpiringLru<QuestionKey, Arc<AccessAnswer>>,
    pending: HashMap<QuestionKey, PendingAnswer>,
}

type QuestionKey = [u8; 32];
type SharedAnswer = Result<Arc<AccessAnswer>, ReviewError>;
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

    /// Waits for a permit in the share of `asker`.
    pub(super) async fn acquire(&self, asker: &str) -> Result<SharePermit, ReviewError> {
        self.0.shares.acquire(asker.into(), 1).await.map_err(|_| ReviewError::Overloaded)
    }

    /// Answers a question. It counts in the share of `asker`.
    pub(super) async fn ask(
        &self,
        asker: &str,
        question: &SubjectAccessReviewSpec,
    ) -> Result<AskedAnswer, ReviewError> {
        let Self(state) = self;
        let text = serde_json::to_vec(question).map_err(|error| ReviewError::Unusable(error.to_string()))?;
        let mut key = [0; 32];
        key.iter_mut().zip(digest(&SHA256, &text).as_ref()).for_each(|(to, from)| *to = *from);
        let mut begun = None;
        let mut pending = {
            let mut answers = lock(&state.answers);
            if let Some(known) = answers.known.get(&key, Instant::now()) {
                return Ok(AskedAnswer { answer: Arc::clone(known), is_cached: true });
            }
            let known = answers.pending.get(&key).filter(|_| state.reviews.is_shared()).cloned();
            known.unwrap_or_else(|| {
                let (sender, receiver) = watch::channel(None);
                answers.pending.insert(key, receiver.clone());
                begun = Some(PendingReview { reviews: self.clone(), key, sender, answer: None });
                receiver
            })
        };
        // Without the lock: a runtime that has ended drops the question at once, which takes the lock.
        if let Some(review) = begun {
            state.runtime.spawn(review.run(asker.into(), question.clone()));
        }
        let cancelled = || ReviewError::Unavailable("the access review was cancelled".to_owned());
        let answer = pending.wait_for(Option::is_some).await.map_err(|_| cancelled())?;
        let answer = answer.clone().unwrap_or_else(|| Err(cancelled()))?;
        Ok(AskedAnswer { answer, is_cached: false })
    }
}

/// A question in progress, whose answer several requests may wait for. Dropping it ends it.
struct PendingReview<R: AccessReviews> {
    reviews: CachedReviews<R>,
    key: QuestionKey,
    sender: watch::Sender<Option<SharedAnswer>>,
    answer: Option<SharedAnswer>,
}

impl<R: AccessReviews> PendingReview<R> {
    async fn run(mut self, asker: Box<str>, question: SubjectAccessReviewSpec) {
        self.answer = Some(self.answer(&asker, &question).await);
    }

    async fn answer(&self, asker: &str, question: &SubjectAccessReviewSpec) -> SharedAnswer {
        let _permit = self.reviews.acquire(asker).await?;
        // The answer may rest on the rules of this moment.
        let asked = Instant::now();
        let mut status = self.reviews.reviews().review(question).await?;
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
            answers.pending.remove(&self.key);
            let now = Instant::now();
            if let Some(Ok(answer)) = &self.answer
                && now < answer.until
            {
                answers.known.put(self.key, Arc::clone(answer), answer.weight(), answer.until, now);
            }
        }
        self.sender.send_replace(self.answer.take());
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
