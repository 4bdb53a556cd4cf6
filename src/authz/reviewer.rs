//! Access reviews at the API servers of a cluster.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::HeaderMap;
use http_body_util::{BodyExt as _, Limited};
use k8s_openapi::api::authorization::v1::{
    SelfSubjectRulesReview, SelfSubjectRulesReviewSpec, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Resource;
use kube::api::PostParams;
use kube::client::Body;
use kube::core::Request;
use portcullis_http::identity::Identity;
use portcullis_kubernetes::status::Status;
use portcullis_kubernetes::user::UserInfo;
use portcullis_limits::cache_budget::CacheShare;
use portcullis_limits::fair_limiter::Shares;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::cached_reviews::{
    AccessReviewStatus, AccessReviews, CachedReviews, ReviewDecision, ReviewError, SharedDecision,
};
use super::rules::{NO_NAMESPACE, Rules, RulesReview};
use super::{AuthzTrace, access_review};
use crate::backend::Backend;
use crate::backend::kube_client::{self, RequestIdentity};
use crate::request::info::RequestInfo;

/// The name in traces.
const NAME: &str = "API server";
/// How long an allowing decision counts, from the begin of its review on: as long as in kube-apiserver's cache of constrained
/// impersonation, here in all modes (D-impersonation-cache).
// apiserver: pkg/endpoints/filters/impersonation/cache.go
pub(super) const ALLOWED_TTL: Duration = Duration::from_secs(10);
/// How long any other decision counts: enough to shield the API server from a client that repeats a refused request, too
/// short for an administrator to notice.
const REFUSED_TTL: Duration = Duration::from_secs(1);
/// How long a review may take.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest user whose rules are asked for, with its attributes as texts and as header lines: far less than the header
/// that gets a connection of its own.
const MAX_RULES_USER_BYTES: usize = 32 << 10;
/// The longest response.
const MAX_RESPONSE_BYTES: usize = 4 << 20;
/// The longest part of an unusable response that is logged.
const MAX_SHOWN_BYTES: usize = 300;

/// The error of a response that allows and denies.
// apiserver: plugin/pkg/authorizer/webhook/webhook.go
pub(super) const CONTRADICTION: &str = "webhook subject access review returned both allow and deny response";

// threat: review-flood
const SHARES: Shares = Shares::new(64, 16).with_queue(4096, 256);

/// The API servers of one cluster as an authorizer.
#[derive(Clone)]
pub(crate) struct AccessReviewer(CachedReviews<BackendReviews>);

/// Reviews at the API servers.
struct BackendReviews {
    client: kube::Client,
}

impl AccessReviewer {
    /// Access reviews go to the API servers of `backend`, from `runtime`.
    pub(crate) fn new(backend: &Arc<Backend>, runtime: &Handle) -> Self {
        let client = {
            let _runtime = runtime.enter();
            kube_client::client(backend)
        };
        Self::with_client(client, runtime, backend.caches())
    }

    /// Access reviews go through `client`.
    pub(crate) fn with_client(client: kube::Client, runtime: &Handle, caches: &CacheShare) -> Self {
        Self(CachedReviews::new(BackendReviews { client }, runtime, SHARES, caches))
    }

    /// Decides an access review, which counts in the share of `flow`.
    pub(crate) async fn decide(
        &self,
        flow: &str,
        spec: &SubjectAccessReviewSpec,
        trace: &AuthzTrace,
    ) -> Result<Arc<ReviewDecision>, ReviewError> {
        let asked = self.0.decide(flow, spec, trace).await;
        match &asked {
            Ok(SharedDecision { decision, is_cached }) => {
                let AccessReviewStatus { allowed, denied, reason } = &decision.status;
                let result = match (allowed, denied) {
                    (true, _) => "allow",
                    (_, true) => "deny",
                    _ => "no opinion",
                };
                trace.record(NAME, spec, (result, *is_cached), reason);
            }
            Err(error) => trace.record(NAME, spec, ("error", false), &error.to_string()),
        }
        Ok(asked?.decision)
    }

    /// Whether `user` may make a request; else the response.
    pub(crate) async fn ask_for_request(
        &self,
        user: &UserInfo,
        info: &RequestInfo,
        trace: &AuthzTrace,
    ) -> Result<Result<(), Box<Status>>, ReviewError> {
        let spec = access_review::on_request(user, info, info.verb().to_owned());
        let decision = self.decide(&user.name, &spec, trace).await?;
        Ok(if decision.status.allowed {
            Ok(())
        } else {
            Err(Box::new(Status::forbidden(&access_review::attempt(&spec), &decision.status.reason)))
        })
    }

    /// All rules of a user for cluster-scoped objects; `None` if the API server does not list all, or does not answer, or
    /// the user may not be sent over a connection that others share (`backend::sharing`): an anonymous one, whose
    /// connection kube-apiserver closes, and one with a large header.
    /// Counts in the share of `flow`.
    // threat: anonymous-lockout
    pub(super) async fn rules(&self, flow: &str, user: &Identity) -> Option<Rules> {
        if user.is_unauthenticated() || user.weight() > MAX_RULES_USER_BYTES {
            return None;
        }
        let (reviews, flow, user) = (self.0.clone(), flow.to_owned(), user.clone());
        let asking = self.0.runtime().spawn(async move {
            let _permit = reviews.acquire(&flow).await.ok()?;
            let spec = SelfSubjectRulesReviewSpec { namespace: Some(NO_NAMESPACE.to_owned()) };
            let review = SelfSubjectRulesReview { spec, ..SelfSubjectRulesReview::default() };
            let request = with_identity(create(&review).ok()?, &user);
            post::<RulesReview>(&reviews.reviews().client, request).await.ok()?.complete()
        });
        asking.await.ok()?
    }
}

impl AccessReviews for BackendReviews {
    fn review<'a>(
        &'a self,
        spec: &'a SubjectAccessReviewSpec,
        headers: HeaderMap,
    ) -> BoxFuture<'a, Result<AccessReviewStatus, ReviewError>> {
        Box::pin(async {
            let review = SubjectAccessReview { spec: valid(spec), ..SubjectAccessReview::default() };
            let mut request = create(&review)?;
            request.headers_mut().extend(headers);
            post::<ParsedReview>(&self.client, request).await?.read()
        })
    }

    fn ttl(&self, _: &SubjectAccessReviewSpec, decision: &AccessReviewStatus) -> Duration {
        if decision.allowed { ALLOWED_TTL } else { REFUSED_TTL }
    }
}

/// The access review without what the API server refuses in one: requirements on a field without a name. It then asks for
/// more.
// kubernetes: pkg/apis/authorization/validation/validation.go
fn valid(spec: &SubjectAccessReviewSpec) -> SubjectAccessReviewSpec {
    let mut spec = spec.clone();
    if let Some(attributes) = &mut spec.resource_attributes
        && let Some(requirements) =
            attributes.field_selector.as_mut().and_then(|selector| selector.requirements.as_mut())
    {
        requirements.retain(|requirement| !requirement.key.is_empty());
        if requirements.is_empty() {
            attributes.field_selector = None;
        }
    }
    spec
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

/// Sends a review and reads the response. Never waits longer than [`REVIEW_TIMEOUT`].
// threat: silent-backend, endless-response
async fn post<A: DeserializeOwned>(
    client: &kube::Client,
    request: http::Request<Vec<u8>>,
) -> Result<A, ReviewError> {
    let unavailable = |error: &dyn std::error::Error| ReviewError::Unavailable(error_text(error));
    let posting = async {
        let response = client.send(request.map(Body::from)).await.map_err(|error| unavailable(&error))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
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
    let late = || ReviewError::Unavailable(format!("none within {REVIEW_TIMEOUT:?}"));
    timeout(REVIEW_TIMEOUT, posting).await.unwrap_or_else(|_| Err(late()))
}

/// The message of a `Status`, or the beginning of another text.
fn shown(body: &[u8]) -> String {
    let status: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let message =
        status.as_ref().and_then(|status| status.get("message")).and_then(serde_json::Value::as_str);
    let text = message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
    text.get(..text.floor_char_boundary(MAX_SHOWN_BYTES)).unwrap_or_default().to_owned()
}

/// The parsed part of a response.
#[derive(Debug, Deserialize)]
struct ParsedReview {
    status: Option<ParsedStatus>,
}

#[derive(Debug, Deserialize)]
struct ParsedStatus {
    allowed: bool,
    #[serde(default)]
    denied: bool,
    #[serde(default)]
    reason: String,
}

impl ParsedReview {
    // apiserver: plugin/pkg/authorizer/webhook/webhook.go, Authorize
    fn read(self) -> Result<AccessReviewStatus, ReviewError> {
        let unusable = |text: &str| ReviewError::Unusable(text.to_owned());
        let ParsedStatus { allowed, denied, reason } =
            self.status.ok_or_else(|| unusable("it has no status"))?;
        if allowed && denied {
            return Err(unusable(CONTRADICTION));
        }
        Ok(AccessReviewStatus { allowed, denied, reason })
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
