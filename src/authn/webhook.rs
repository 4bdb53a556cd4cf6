//! Webhook token authentication with TokenReview, the last token authenticator in the chain.
//!
//! Follows `k8s.io/apiserver/plugin/pkg/authenticator/token/webhook`. A response that is not a valid TokenReview is an
//! error, never a verdict, and errors never quote the token.

mod review;
pub(crate) mod settings;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use portcullis_http::https_client::HTTPS_TIMEOUT;
use portcullis_http::webhook::{WebhookAttempt, WebhookClient, WebhookError};
use portcullis_kubernetes::user::UserInfo;
use portcullis_limits::cache_budget::CacheShare;
use rustls::crypto::CryptoProvider;

use super::cache::{CacheLimits, CachePolicy, CachedTokens};
use super::chain::intersection;
use super::{
    Audience, Authenticated, AuthnError, AuthnMethod, AuthnVerdict, BearerToken, BoxFuture,
    TokenAuthenticator, TokenContext,
};
use crate::authn::trace::{Check, StepOutcome};
use crate::metrics::{Metrics, TokenCacheMetrics};
use crate::tasks::compute::ClusterComputePool;
use review::ReviewedStatus;
use settings::{TokenReviewVersion, WebhookSettings};

const NAME: &str = AuthnMethod::Webhook.name();
/// Sends `TokenReviews` to a webhook.
struct WebhookAuthenticator {
    client: WebhookClient,
    bearer_token: Option<BearerToken>,
    version: TokenReviewVersion,
    implicit_audiences: Vec<Audience>,
}

/// Builds a webhook authenticator with a cache for its verdicts; errors are not cached.
// kubernetes: pkg/kubeapiserver/authenticator/config.go, newWebhookTokenAuthenticator
pub(crate) fn cached(
    webhook: &WebhookSettings,
    implicit_audiences: Vec<Audience>,
    provider: &Arc<CryptoProvider>,
    checks: ClusterComputePool,
    metrics: &Metrics,
    share: &CacheShare,
) -> Result<CachedTokens, rustls::Error> {
    let authenticator = WebhookAuthenticator::new(webhook, implicit_audiences, provider, metrics)?;
    Ok(authenticator.cached(webhook.cache_ttl, checks, &metrics.token_cache, share))
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
        let missing_san = metrics.authentication.webhook_missing_san.clone();
        Ok(Self {
            client: WebhookClient::new(&webhook.tls, &webhook.url, HTTPS_TIMEOUT, provider, missing_san)?,
            bearer_token: webhook.bearer_token.clone(),
            version: webhook.version,
            implicit_audiences,
        })
    }

    fn cached(
        self,
        ttl: Duration,
        checks: ClusterComputePool,
        metrics: &TokenCacheMetrics,
        share: &CacheShare,
    ) -> CachedTokens {
        let policy = CachePolicy { success: ttl, failure: ttl, errors: false };
        CachedTokens::new(Arc::new(self), policy, checks, metrics, CacheLimits::WEBHOOK, share)
    }

    async fn review(
        &self,
        token: &BearerToken,
        context: TokenContext<'_>,
    ) -> Result<ReviewedStatus, WebhookError> {
        let body = review::request_body(self.version, token, context.audiences)?;
        let bearer = self.bearer_token.as_ref().map(BearerToken::expose);
        let posting = self.client.post(bearer, body.into(), |attempt| {
            let WebhookAttempt { answer, detail, .. } = attempt;
            let status = answer.and_then(|answer| review::read(self.version, token, answer));
            let passed = if status.is_ok() { StepOutcome::Passed } else { StepOutcome::Failed };
            context.trace.step(NAME, Check::WebhookAnswer, passed, || detail);
            status
        });
        posting.await
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
        Ok(Some(Authenticated {
            user: user.into(),
            audiences,
            method: AuthnMethod::Webhook,
            certificates: None,
            expires: None,
        }))
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
        f.debug_struct("WebhookAuthenticator").field("url", &self.client.url()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
