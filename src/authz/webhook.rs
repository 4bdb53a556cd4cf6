//! An authorization webhook: whether it decides a request, by its conditions, and its decisions.
//!
//! Follows `k8s.io/apiserver/plugin/pkg/authorizer/webhook` and `k8s.io/apiserver/pkg/authorization/cel`.

mod conditions;
mod review;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::HeaderMap;
use k8s_openapi::api::authorization::v1::SubjectAccessReviewSpec;
use portcullis_http::webhook::{WebhookClient, WebhookError};
use portcullis_limits::fair_limiter::{FairLimiter, Shares};
use portcullis_system::sync::lock;
use tokio::time::Instant;

use super::AuthzTrace;
use super::authorizer::{AuthorizerDeps, Decision, Opinion, OpinionSource};
use super::cached_reviews::{
    AccessReviewStatus, AccessReviews, CachedReviews, QUEUE_TIMEOUT, ReviewError, SharedDecision,
};
use super::reviewer::CONTRADICTION;
use super::settings::{AuthorizationWebhook, FailurePolicy};
use crate::authn::BearerToken;
use crate::metrics::{Metrics, WebhookResult};
use conditions::MatchConditions;

/// The longest attributes of an access review whose decision is cached, together.
// apiserver: plugin/pkg/authorizer/webhook/webhook.go, maxControlledAttrCacheSize
const MAX_CACHED_ATTRIBUTES: usize = 10_000;

/// The access reviews at one webhook.
// threat: review-flood
const SHARES: Shares = Shares::new(512, 64).with_queue(4096, 512);
/// The evaluations of one webhook's conditions that may take long.
const EVALUATIONS: Shares = Shares::new(2, 1).with_queue(1024, 64);
/// How long after an error of the webhook another one is not logged as such.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A webhook as an authorizer.
pub(super) struct WebhookAuthorizer {
    conditions: MatchConditions,
    evaluations: FairLimiter<Arc<str>>,
    reviews: CachedReviews<WebhookReviews>,
}

/// Reviews by a webhook.
struct WebhookReviews {
    settings: AuthorizationWebhook,
    client: WebhookClient,
    metrics: Arc<Metrics>,
    /// When the last error was logged; `None` once the webhook answers.
    failed: Mutex<Option<Instant>>,
}

impl WebhookAuthorizer {
    /// Fails if the client certificate and its key do not match.
    pub(super) fn new(
        settings: &AuthorizationWebhook,
        deps: &AuthorizerDeps<'_>,
    ) -> Result<Self, rustls::Error> {
        let AuthorizerDeps { provider, runtime, metrics, caches } = *deps;
        let AuthorizationWebhook { name, url, tls, timeout, match_conditions, .. } = settings;
        let missing_san = metrics.authentication.webhook_missing_san.clone();
        let reviews = WebhookReviews {
            settings: settings.clone(),
            client: WebhookClient::new(tls, url, *timeout, provider, missing_san)?,
            metrics: Arc::clone(metrics),
            failed: Mutex::default(),
        };
        Ok(Self {
            conditions: MatchConditions::new(name, (match_conditions, settings.failure_policy), metrics),
            evaluations: FairLimiter::new(EVALUATIONS),
            reviews: CachedReviews::new(reviews, runtime, SHARES, caches),
        })
    }

    /// Whether it was built from these settings, so that a reload can keep it with its decisions.
    pub(super) fn is_for(&self, settings: &AuthorizationWebhook) -> bool {
        self.settings() == settings
    }

    fn settings(&self) -> &AuthorizationWebhook {
        &self.reviews.reviews().settings
    }

    /// The unique name.
    pub(super) fn name(&self) -> &str {
        &self.settings().name
    }

    /// The opinion of the webhook about an access review, which counts in the share of `flow`. Fails if too many are in
    /// progress, whatever the `failurePolicy`: a client that causes too many must not pass without one.
    // webhook.go, Authorize
    pub(super) async fn opinion(
        &self,
        flow: &str,
        spec: &SubjectAccessReviewSpec,
        trace: &AuthzTrace,
    ) -> Result<(Opinion, OpinionSource), ReviewError> {
        match self.matches(flow, spec).await? {
            Ok(true) => {}
            Ok(false) => return Ok((Opinion::none(), OpinionSource::Excluded)),
            Err(error) => return Ok((self.without_decision(error), OpinionSource::Conditions)),
        }
        match self.reviews.decide(flow, spec, trace).await {
            Ok(SharedDecision { decision, is_cached }) => {
                let AccessReviewStatus { allowed, denied, reason } = decision.status.clone();
                let until = Some(decision.until);
                let opinion = match (allowed, denied) {
                    (true, true) => {
                        Opinion { error: Some(CONTRADICTION.to_owned()), ..Opinion::denied(reason) }
                    }
                    (_, true) => Opinion::denied(reason),
                    (true, _) => Opinion { decision: Decision::Allow, reason, error: None, until },
                    (false, _) => Opinion { reason, ..Opinion::none() },
                };
                let source = if is_cached { OpinionSource::Cache } else { OpinionSource::Review };
                Ok((opinion, source))
            }
            Err(ReviewError::Webhook { text, is_timeout }) => {
                if self.settings().failure_policy == FailurePolicy::NoOpinion {
                    let metrics = &self.reviews.reviews().metrics.authorization;
                    metrics.failed_open(self.name(), WebhookResult::failed(is_timeout));
                }
                Ok((self.without_decision(text), OpinionSource::Review))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the conditions match. A large user is matched apart from the threads that serve requests.
    async fn matches(
        &self,
        flow: &str,
        spec: &SubjectAccessReviewSpec,
    ) -> Result<Result<bool, String>, ReviewError> {
        if !self.conditions.may_take_long(spec) {
            return self.conditions.match_request(spec);
        }
        let until = Instant::now() + QUEUE_TIMEOUT;
        let permit =
            self.evaluations.acquire(flow.into(), 1, until).await.map_err(|_| ReviewError::Overloaded)?;
        let (conditions, spec) = (self.conditions.clone(), spec.clone());
        let matching = self.reviews.runtime().spawn_blocking(move || {
            // Also when the request has ended: an evaluation cannot be cut short.
            let _permit = permit;
            conditions.match_request(&spec)
        });
        let cancelled = |_| ReviewError::Unavailable("matching the conditions was cancelled".to_owned());
        matching.await.map_err(cancelled)?
    }

    /// The decision of the `failurePolicy`.
    fn without_decision(&self, error: String) -> Opinion {
        let decision = match self.settings().failure_policy {
            FailurePolicy::NoOpinion => Decision::NoOpinion,
            FailurePolicy::Deny => Decision::Deny,
        };
        Opinion { decision, reason: String::new(), error: Some(error), until: None }
    }
}

impl WebhookReviews {
    async fn post(&self, spec: &SubjectAccessReviewSpec) -> Result<AccessReviewStatus, WebhookError> {
        let AuthorizationWebhook { name, version, bearer_token, .. } = &self.settings;
        let body = review::request_body(*version, spec)?;
        let bearer = bearer_token.as_ref().map(BearerToken::expose);
        let posting = self.client.post(bearer, body.into(), |attempt| {
            let status = attempt.answer.and_then(|response| review::read(*version, bearer, response));
            let result = match &status {
                Ok(_) => WebhookResult::Success,
                Err(error) => WebhookResult::failed(error.is_timeout),
            };
            self.metrics.authorization.webhook_answered(name, result, attempt.took);
            status
        });
        posting.await
    }

    /// Logs that the webhook fails, from time to time, and that it answers again.
    fn log(&self, outcome: &Result<AccessReviewStatus, WebhookError>) {
        let webhook = &*self.settings.name;
        let mut failed = lock(&self.failed);
        let logged_ago = failed.map(|logged| logged.elapsed());
        match outcome {
            Err(error) if logged_ago.is_none_or(|ago| ago >= LOG_INTERVAL) => {
                *failed = Some(Instant::now());
                tracing::error!(webhook, error = %error.text, "failed to make webhook authorizer request");
            }
            Err(error) => {
                tracing::debug!(webhook, error = %error.text, "failed to make webhook authorizer request");
            }
            Ok(_) if logged_ago.is_some_and(|ago| ago >= LOG_INTERVAL) => {
                *failed = None;
                tracing::info!(webhook, "the authorization webhook answers again");
            }
            Ok(_) => {}
        }
    }
}

impl AccessReviews for WebhookReviews {
    fn review<'a>(
        &'a self,
        spec: &'a SubjectAccessReviewSpec,
        // kube-apiserver sends authorization webhooks no context either.
        // apiserver: pkg/util/webhook/webhook.go, NewGenericWebhook
        _: HeaderMap,
    ) -> BoxFuture<'a, Result<AccessReviewStatus, ReviewError>> {
        Box::pin(async {
            let outcome = self.post(spec).await;
            self.log(&outcome);
            outcome.map_err(|error| ReviewError::Webhook {
                // The address of the webhook is in the log, not for clients.
                text: if error.is_answered {
                    error.text
                } else {
                    format!("no answer from the authorization webhook {:?}", self.settings.name)
                },
                is_timeout: error.is_timeout,
            })
        })
    }

    fn ttl(&self, spec: &SubjectAccessReviewSpec, decision: &AccessReviewStatus) -> Duration {
        if review::attributes_length(spec) >= MAX_CACHED_ATTRIBUTES {
            return Duration::ZERO;
        }
        if decision.allowed { self.settings.authorized_ttl } else { self.settings.unauthorized_ttl }
    }
}

impl fmt::Debug for WebhookAuthorizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookAuthorizer").field("name", &self.name()).finish_non_exhaustive()
    }
}
