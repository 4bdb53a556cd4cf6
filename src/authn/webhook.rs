//! Webhook token authentication with TokenReview, the last token authenticator in the chain.
//!
//! Follows `k8s.io/apiserver/plugin/pkg/authenticator/token/webhook` with `apiserver/pkg/util/webhook`: requests to an
//! overloaded or restarting webhook are retried with exponential backoff. A response that is not a valid TokenReview is
//! an error, never a verdict, and errors never quote the token.

mod review;
pub(crate) mod settings;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::rand;
use prometheus::IntCounter;
use rustls::crypto::CryptoProvider;
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::cache::{CacheLimits, CachePolicy, CachedTokens};
use super::chain::intersection;
use super::{
    Audience, Authenticated, AuthnError, AuthnMethod, AuthnVerdict, BearerToken, BoxFuture,
    TokenAuthenticator, TokenContext,
};
use crate::authn::trace::{Check, StepOutcome};
use crate::http::https_client::{HTTPS_TIMEOUT, HttpsClient, HttpsError, HttpsRequest};
use crate::metrics::{Metrics, TokenCacheMetrics};
use crate::user::UserInfo;
use review::{ReviewError, ReviewedStatus};
use settings::{TokenReviewVersion, WebhookSettings};

const NAME: &str = AuthnMethod::Webhook.name();
/// Maximum number of requests per token.
// apiserver: pkg/util/webhook/webhook.go, DefaultRetryBackoffWithInitialDelay
const MAX_ATTEMPTS: usize = 5;
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
const BACKOFF_FACTOR: f64 = 1.5;
const BACKOFF_JITTER: f64 = 0.2;

/// Sends `TokenReviews` to a webhook.
struct WebhookAuthenticator {
    client: HttpsClient,
    url: String,
    bearer_token: Option<BearerToken>,
    version: TokenReviewVersion,
    implicit_audiences: Vec<Audience>,
    initial_backoff: Duration,
    missing_san: IntCounter,
}

/// Builds a webhook authenticator with a cache for its verdicts; errors are not cached.
// kubernetes: pkg/kubeapiserver/authenticator/config.go, newWebhookTokenAuthenticator
pub(crate) fn cached(
    webhook: &WebhookSettings,
    implicit_audiences: Vec<Audience>,
    provider: &Arc<CryptoProvider>,
    runtime: Handle,
    metrics: &Metrics,
) -> Result<CachedTokens, rustls::Error> {
    let authenticator = WebhookAuthenticator::new(webhook, implicit_audiences, provider, metrics)?;
    Ok(authenticator.cached(webhook.cache_ttl, runtime, &metrics.token_cache))
}

impl WebhookAuthenticator {
    /// Tokens are valid for `implicit_audiences` if the response has no audiences. Fails if the client certificate and
    /// its key do not match.
    fn new(
        webhook: &WebhookSettings,
        implicit_audiences: Vec<Audience>,
        provider: &Arc<CryptoProvider>,
        metrics: &Metrics,
    ) -> Result<Self, rustls::Error> {
        Ok(Self {
            client: HttpsClient::new(&webhook.tls, provider)?,
            // client-go: rest/request.go, URL — announces the request timeout
            url: format!("{}?timeout={}s", webhook.url, HTTPS_TIMEOUT.as_secs()),
            bearer_token: webhook.bearer_token.clone(),
            version: webhook.version,
            implicit_audiences,
            initial_backoff: INITIAL_BACKOFF,
            missing_san: metrics.authentication.webhook_missing_san.clone(),
        })
    }

    fn cached(self, ttl: Duration, runtime: Handle, metrics: &TokenCacheMetrics) -> CachedTokens {
        let policy = CachePolicy { success: ttl, failure: ttl, errors: false };
        CachedTokens::new(Arc::new(self), policy, runtime, metrics, CacheLimits::WEBHOOK)
    }

    async fn review(
        &self,
        token: &BearerToken,
        context: TokenContext<'_>,
    ) -> Result<ReviewedStatus, ReviewError> {
        let body = review::request_body(self.version, token, context.audiences)?;
        let mut backoffs = backoffs(self.initial_backoff, random);
        loop {
            let (outcome, detail) = self.post_review(token, body.clone()).await;
            let passed = if outcome.is_ok() { StepOutcome::Passed } else { StepOutcome::Failed };
            context.trace.step(NAME, Check::WebhookAnswer, passed, || detail);
            let error = match outcome {
                Ok(status) => return Ok(status),
                Err(error) => error,
            };
            match (error.retry_after, backoffs.next()) {
                // A client would not wait for a Retry-After beyond the request timeout.
                (Some(hint), Some(wait)) if hint <= HTTPS_TIMEOUT => sleep(wait.max(hint)).await,
                _ => return Err(error),
            }
        }
    }

    /// Sends one request. The text is the detail for the trace.
    async fn post_review(
        &self,
        token: &BearerToken,
        body: Vec<u8>,
    ) -> (Result<ReviewedStatus, ReviewError>, String) {
        let bearer = self.bearer_token.as_ref().map(BearerToken::expose);
        match self.client.send(HttpsRequest::post(&self.url, body).bearer(bearer)).await {
            Ok(answer) => (
                review::read(self.version, token, &answer),
                format!("the webhook answered {}", answer.status),
            ),
            Err(error) => {
                if matches!(error, HttpsError::NoSubjectAltName { .. }) {
                    self.missing_san.inc();
                }
                let text = error.to_string();
                let retry_after = matches!(error, HttpsError::Lost { .. }).then_some(Duration::ZERO);
                (Err(ReviewError { text: text.clone(), retry_after }), text)
            }
        }
    }

    async fn authenticate_token(&self, token: &BearerToken, context: TokenContext<'_>) -> AuthnVerdict {
        let redacted = |text: &str| review::redacted(token, text);
        let status = self.review(token, context).await.map_err(|error| {
            let text = redacted(&error.text);
            tracing::error!(error = %text, "failed to make webhook authenticator request");
            AuthnError::Unavailable(text)
        })?;
        let trace = context.trace;
        let mut audiences = Vec::new();
        if !context.audiences.is_empty() {
            let named: Vec<_> = status.audiences.into_iter().map(Audience).collect();
            let of_token = if named.is_empty() { &self.implicit_audiences } else { &named };
            audiences = intersection(context.audiences, of_token);
            let listed = || format!("the token is for {of_token:?}");
            if audiences.is_empty() {
                trace.step(NAME, Check::RequestedAudiences, StepOutcome::Failed, listed);
                return Ok(None);
            }
            trace.step(NAME, Check::RequestedAudiences, StepOutcome::Passed, listed);
        }
        if !status.authenticated {
            let error = redacted(&status.error);
            trace.step(NAME, Check::WebhookVerdict, StepOutcome::Failed, || error.clone());
            return if error.is_empty() { Ok(None) } else { Err(AuthnError::Invalid(error)) };
        }
        let user = status.user;
        // Without a user name, the backend would attribute the forwarded request to the gateway itself.
        if user.username.is_empty() {
            let text = "the webhook authenticated a user without a name".to_owned();
            trace.step(NAME, Check::WebhookVerdict, StepOutcome::Failed, || text.clone());
            return Err(AuthnError::Unavailable(text));
        }
        trace.step(NAME, Check::WebhookVerdict, StepOutcome::Passed, || format!("as {:?}", user.username));
        let user = UserInfo {
            name: user.username,
            uid: Some(user.uid).filter(|uid| !uid.is_empty()),
            groups: user.groups,
            extra: user.extra.into_iter().map(|(key, values)| (key, values.unwrap_or_default())).collect(),
        };
        Ok(Some(Authenticated { user: user.into(), audiences, method: AuthnMethod::Webhook, expires: None }))
    }
}

impl TokenAuthenticator for WebhookAuthenticator {
    fn name(&self) -> &'static str {
        NAME
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, AuthnVerdict> {
        Box::pin(self.authenticate_token(token, context))
    }
}

impl fmt::Debug for WebhookAuthenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookAuthenticator").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Delays between the attempts; `random` returns numbers from 0 to 1.
// apimachinery: pkg/util/wait/backoff.go, Backoff.Step
fn backoffs(first: Duration, mut random: impl FnMut() -> f64) -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(first), |wait| Some(wait.mul_f64(BACKOFF_FACTOR)))
        .take(MAX_ATTEMPTS - 1)
        .map(move |wait| wait.mul_f64(1.0 + BACKOFF_JITTER * random()))
}

fn random() -> f64 {
    let mut bytes = [0; 2];
    // A failure of the random source costs the jitter only.
    if rand::fill(&mut bytes).is_err() {
        return 0.0;
    }
    f64::from(u16::from_ne_bytes(bytes)) / f64::from(u16::MAX)
}

#[cfg(test)]
mod tests;
