//! Asks the API servers of a cluster what users may do, and caches the answers.
//!
//! Concurrent requests share one question. Questions run on the runtime that verifies tokens, not on the threads that serve
//! requests; their number is bounded for all users and for each one. The API server's failure is never an answer, and never
//! cached.

use std::collections::HashMap;
use std::fmt;
use std::mem::size_of;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use http_body_util::{BodyExt as _, Limited};
use k8s_openapi::api::authorization::v1::{
    SelfSubjectRulesReview, SelfSubjectRulesReviewSpec, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Resource;
use kube::api::PostParams;
use kube::client::Body;
use kube::core::Request;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::rules::{NO_NAMESPACE, Rules, RulesReview};
use crate::backend::Backend;
use crate::backend::kube_client::{self, RequestIdentity};
use crate::backend::shares::{FairShares, ShareLimits};
use crate::expiring_lru::ExpiringLru;
use crate::sync::lock;
use crate::user::Identity;

/// How long an allowing answer counts, from its question on: as long as in kube-apiserver's cache of constrained
/// impersonation, here in all modes (D-impersonation-cache).
// apiserver: pkg/endpoints/filters/impersonation/cache.go
pub(super) const ALLOWED_TTL: Duration = Duration::from_secs(10);
/// How long any other answer counts: enough to shield the API server from a client that repeats a refused request, too
/// short for an administrator to notice.
const REFUSED_TTL: Duration = Duration::from_secs(1);
/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The memory of all answers of a cluster.
const MAX_CACHED_BYTES: usize = 16 << 20;
/// The largest user whose rules are asked for, with its attributes as texts and as header lines: far less than the header
/// that gets a connection of its own.
const MAX_RULES_USER_BYTES: usize = 32 << 10;
/// The longest answer.
const MAX_ANSWER_BYTES: usize = 4 << 20;
/// The longest part of an unusable answer that is logged.
const MAX_SHOWN_BYTES: usize = 300;
/// The longest reason that is kept.
const MAX_REASON_BYTES: usize = 4096;

// threat: review-flood
const LIMITS: ShareLimits = ShareLimits {
    permits: 64,
    permits_per_client: 16,
    queue: 4096,
    queue_per_client: 256,
    queue_timeout: Duration::from_secs(10),
};

/// The API servers of one cluster as an authorizer.
#[derive(Clone)]
pub(crate) struct AccessReviewer(Arc<ReviewerState>);

struct ReviewerState {
    client: kube::Client,
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

/// An answer, and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AccessAnswer {
    /// Whether the user may.
    pub(crate) allowed: bool,
    /// Why, in the words of the authorizer; may be empty.
    pub(crate) reason: String,
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
    /// The answer is none.
    #[error("unusable answer to an access review: {0}")]
    Unusable(String),
}

impl AccessReviewer {
    /// Questions go to the API servers of `backend`, from `runtime`.
    pub(crate) fn new(backend: &Arc<Backend>, runtime: &Handle) -> Self {
        let client = {
            let _runtime = runtime.enter();
            kube_client::client(backend)
        };
        Self::with_client(client, runtime)
    }

    pub(super) fn with_client(client: kube::Client, runtime: &Handle) -> Self {
        let answers = Answers { known: ExpiringLru::new(MAX_CACHED_BYTES), pending: HashMap::new() };
        Self(Arc::new(ReviewerState {
            client,
            runtime: runtime.clone(),
            answers: Mutex::new(answers),
            shares: FairShares::new(LIMITS),
        }))
    }

    /// Whether the user of the question may do what it names. `asker` is the user whose share the question counts in.
    pub(crate) async fn ask(
        &self,
        asker: &str,
        question: SubjectAccessReviewSpec,
    ) -> Result<Arc<AccessAnswer>, ReviewError> {
        let Self(state) = self;
        let text = serde_json::to_vec(&question).map_err(|error| ReviewError::Unusable(error.to_string()))?;
        let mut key = [0; 32];
        key.iter_mut().zip(digest(&SHA256, &text).as_ref()).for_each(|(to, from)| *to = *from);
        let mut begun = None;
        let mut pending = {
            let mut answers = lock(&state.answers);
            if let Some(known) = answers.known.get(&key, Instant::now()) {
                return Ok(Arc::clone(known));
            }
            let known = answers.pending.get(&key).cloned();
            known.unwrap_or_else(|| {
                let (sender, receiver) = watch::channel(None);
                answers.pending.insert(key, receiver.clone());
                begun = Some(PendingReview { state: Arc::clone(state), key, sender, answer: None });
                receiver
            })
        };
        // Without the lock: a runtime that has ended drops the question at once, which takes the lock.
        if let Some(review) = begun {
            state.runtime.spawn(review.run(asker.into(), question));
        }
        let cancelled = || ReviewError::Unavailable("the access review was cancelled".to_owned());
        let answer = pending.wait_for(Option::is_some).await.map_err(|_| cancelled())?;
        answer.clone().unwrap_or_else(|| Err(cancelled()))
    }

    /// All rules of a user for cluster-scoped objects; `None` if the API server does not list all, or does not answer, or
    /// the user may not be sent over a connection that others share (`backend::sharing`): an anonymous one, whose
    /// connection kube-apiserver closes, and one with a large header.
    // threat: anonymous-lockout
    pub(super) async fn rules(&self, user: &Identity) -> Option<Rules> {
        let Self(state) = self;
        if user.is_unauthenticated() || user.weight() > MAX_RULES_USER_BYTES {
            return None;
        }
        let state = Arc::clone(state);
        let user = user.clone();
        let asking = self.0.runtime.spawn(async move {
            let _permit = state.shares.acquire(user.name.as_str().into(), 1).await.ok()?;
            let spec = SelfSubjectRulesReviewSpec { namespace: Some(NO_NAMESPACE.to_owned()) };
            let review = SelfSubjectRulesReview { spec, ..SelfSubjectRulesReview::default() };
            let request = with_identity(create(&review).ok()?, &user);
            post::<RulesReview>(&state.client, request).await.ok()?.complete()
        });
        asking.await.ok()?
    }
}

fn with_identity(mut request: http::Request<Vec<u8>>, user: &Identity) -> http::Request<Vec<u8>> {
    request.extensions_mut().insert(RequestIdentity(user.clone()));
    request
}

/// A request that creates a review.
fn create<K: Resource<DynamicType = ()> + Serialize>(
    review: &K,
) -> Result<http::Request<Vec<u8>>, ReviewError> {
    let unusable = |error: &dyn std::error::Error| ReviewError::Unusable(error.to_string());
    let body = serde_json::to_vec(review).map_err(|error| unusable(&error))?;
    let request = Request::new(K::url_path(&(), None)).create(&PostParams::default(), body);
    request.map_err(|error| unusable(&error))
}

/// Sends a review and reads the answer. Never waits longer than [`ANSWER_TIMEOUT`].
// threat: silent-backend, endless-response
async fn post<A: DeserializeOwned>(
    client: &kube::Client,
    request: http::Request<Vec<u8>>,
) -> Result<A, ReviewError> {
    let unavailable = |error: &dyn std::error::Error| ReviewError::Unavailable(error_text(error));
    let answering = async {
        let response = client.send(request.map(Body::from)).await.map_err(|error| unavailable(&error))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| unavailable(&*error))?.to_bytes();
        let detail = || format!("{}: {}", head.status, shown(&body));
        match head.status.as_u16() {
            200..300 => {
                serde_json::from_slice(&body).map_err(|error| ReviewError::Unusable(error.to_string()))
            }
            403 => Err(ReviewError::Forbidden(detail())),
            401 | 408 | 429 | 500.. => Err(ReviewError::Unavailable(detail())),
            _ => Err(ReviewError::Unusable(detail())),
        }
    };
    let late = || ReviewError::Unavailable(format!("none within {ANSWER_TIMEOUT:?}"));
    timeout(ANSWER_TIMEOUT, answering).await.unwrap_or_else(|_| Err(late()))
}

/// The message of a `Status`, or the beginning of another text.
fn shown(body: &[u8]) -> String {
    let status: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let message =
        status.as_ref().and_then(|status| status.get("message")).and_then(serde_json::Value::as_str);
    let text = message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    text.get(..text.floor_char_boundary(MAX_SHOWN_BYTES)).unwrap_or_default().to_owned()
}

/// A question in progress, whose answer several requests may wait for. Dropping it ends it.
struct PendingReview {
    state: Arc<ReviewerState>,
    key: QuestionKey,
    sender: watch::Sender<Option<SharedAnswer>>,
    answer: Option<SharedAnswer>,
}

impl PendingReview {
    async fn run(mut self, asker: Arc<str>, question: SubjectAccessReviewSpec) {
        self.answer = Some(self.answer(asker, question).await);
    }

    async fn answer(
        &self,
        asker: Arc<str>,
        spec: SubjectAccessReviewSpec,
    ) -> Result<Arc<AccessAnswer>, ReviewError> {
        let _permit = self.state.shares.acquire(asker, 1).await.map_err(|_| ReviewError::Overloaded)?;
        // The answer may rest on the rules of this moment.
        let asked = Instant::now();
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let answer: AccessReviewAnswer = post(&self.state.client, create(&review)?).await?;
        answer.read(asked).map(Arc::new)
    }
}

impl Drop for PendingReview {
    fn drop(&mut self) {
        {
            // In one step: a later request must find the answer, or begin another question.
            let mut answers = lock(&self.state.answers);
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

/// The parsed part of an answer.
#[derive(Debug, Deserialize)]
struct AccessReviewAnswer {
    status: Option<AccessReviewStatus>,
}

// kubernetes: staging/src/k8s.io/api/authorization/v1/types.go, SubjectAccessReviewStatus
#[derive(Debug, Deserialize)]
struct AccessReviewStatus {
    allowed: bool,
    #[serde(default)]
    denied: bool,
    #[serde(default)]
    reason: String,
}

impl AccessReviewAnswer {
    // apiserver: plugin/pkg/authorizer/webhook/webhook.go, Authorize — an evaluation error does not count
    fn read(self, asked: Instant) -> Result<AccessAnswer, ReviewError> {
        let unusable = |text: &str| ReviewError::Unusable(text.to_owned());
        let status = self.status.ok_or_else(|| unusable("it has no status"))?;
        let AccessReviewStatus { allowed, denied, mut reason } = status;
        if allowed && denied {
            return Err(unusable("webhook subject access review returned both allow and deny response"));
        }
        reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
        let ttl = if allowed { ALLOWED_TTL } else { REFUSED_TTL };
        Ok(AccessAnswer { allowed, reason, until: asked + ttl })
    }
}

impl AccessAnswer {
    fn weight(&self) -> usize {
        size_of::<QuestionKey>() + size_of::<Self>() + self.reason.len() + 160
    }
}

/// An error with its causes.
fn error_text(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

impl fmt::Debug for AccessReviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessReviewer").finish_non_exhaustive()
    }
}
