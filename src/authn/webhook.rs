//! Tokens that a webhook is asked about with a TokenReview, as the last of all.
//!
//! Follows `k8s.io/apiserver/plugin/pkg/authenticator/token/webhook` with `apiserver/pkg/util/webhook`: a webhook that
//! is overloaded or restarts is asked again, a few times and ever later. Whatever is not surely an answer is an error,
//! and no error quotes the token.

mod review;
pub mod settings;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::rand;
use prometheus::IntCounter;
use rustls::crypto::CryptoProvider;
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::cache::{CachedTokens, Keep, Limits};
use super::chain::intersection;
use super::{
    Audience, Authenticated, AuthnError, BearerToken, BoxFuture, TokenAuthenticator, TokenContext, Verdict,
};
use crate::authn::trace::{Check, Outcome};
use crate::http::https_client::{Client, OutboundError, PATIENCE, Question};
use crate::metrics::{Metrics, TokenCache};
use crate::user::UserInfo;
use review::{Status, Trouble};
use settings::{Version, Webhook};

const NAME: &str = "webhook";
/// How often the webhook is asked about one token.
// apiserver: pkg/util/webhook/webhook.go, DefaultRetryBackoffWithInitialDelay
const CALLS: usize = 5;
const FIRST_WAIT: Duration = Duration::from_millis(500);
const GROWTH: f64 = 1.5;
const JITTER: f64 = 0.2;

/// Asks a webhook.
struct WebhookAuthenticator {
    client: Client,
    url: String,
    bearer_token: Option<BearerToken>,
    version: Version,
    implicit: Vec<Audience>,
    first_wait: Duration,
    missing_san: IntCounter,
}

/// A webhook, and a memory for its answers: errors are not remembered.
// kubernetes: pkg/kubeapiserver/authenticator/config.go, newWebhookTokenAuthenticator
pub(crate) fn remembered(
    webhook: &Webhook,
    implicit: Vec<Audience>,
    provider: &Arc<CryptoProvider>,
    runtime: Handle,
    metrics: &Metrics,
) -> Result<CachedTokens, rustls::Error> {
    let asked = WebhookAuthenticator::new(webhook, implicit, provider, metrics)?;
    Ok(asked.remembered(webhook.cache_ttl, runtime, &metrics.token_cache))
}

impl WebhookAuthenticator {
    /// Tokens are good for the `implicit` audiences if the webhook says nothing of audiences. Fails if the client
    /// certificate and its key do not fit together.
    fn new(
        webhook: &Webhook,
        implicit: Vec<Audience>,
        provider: &Arc<CryptoProvider>,
        metrics: &Metrics,
    ) -> Result<Self, rustls::Error> {
        Ok(Self {
            client: Client::new(&webhook.tls, provider)?,
            // client-go: rest/request.go, URL — the time that is given is told
            url: format!("{}?timeout={}s", webhook.url, PATIENCE.as_secs()),
            bearer_token: webhook.bearer_token.clone(),
            version: webhook.version,
            implicit,
            first_wait: FIRST_WAIT,
            missing_san: metrics.webhook_missing_san.clone(),
        })
    }

    fn remembered(self, ttl: Duration, runtime: Handle, metrics: &TokenCache) -> CachedTokens {
        let keep = Keep { success: ttl, failure: ttl, errors: false };
        CachedTokens::new(Arc::new(self), keep, runtime, metrics, Limits::ASKED)
    }

    async fn review(&self, token: &BearerToken, context: TokenContext<'_>) -> Result<Status, Trouble> {
        let question = review::question(self.version, token, context.audiences)?;
        let mut waits = waits(self.first_wait, random);
        loop {
            let (outcome, told) = self.ask(token, question.clone()).await;
            let passed = if outcome.is_ok() { Outcome::Passed } else { Outcome::Failed };
            context.remarks.step(NAME, Check::WebhookAnswer, passed, || told);
            let trouble = match outcome {
                Ok(status) => return Ok(status),
                Err(trouble) => trouble,
            };
            match (trouble.again, waits.next()) {
                // Longer than a question may take, nobody would wait for the answer.
                (Some(hint), Some(wait)) if hint <= PATIENCE => sleep(wait.max(hint)).await,
                _ => return Err(trouble),
            }
        }
    }

    /// Asks once. The text is for people.
    async fn ask(&self, token: &BearerToken, question: Vec<u8>) -> (Result<Status, Trouble>, String) {
        let bearer = self.bearer_token.as_ref().map(BearerToken::expose);
        match self.client.ask(Question::post(&self.url, question).bearer(bearer)).await {
            Ok(answer) => (
                review::read(self.version, token, &answer),
                format!("the webhook answered {}", answer.status),
            ),
            Err(error) => {
                if matches!(error, OutboundError::NoSubjectAltName { .. }) {
                    self.missing_san.inc();
                }
                let text = error.to_string();
                let again = matches!(error, OutboundError::Lost { .. }).then_some(Duration::ZERO);
                (Err(Trouble { text: text.clone(), again }), text)
            }
        }
    }

    async fn judge(&self, token: &BearerToken, context: TokenContext<'_>) -> Verdict {
        let redacted = |text: &str| review::redacted(token, text);
        let status = self.review(token, context).await.map_err(|trouble| {
            let text = redacted(&trouble.text);
            tracing::error!(error = %text, "failed to make webhook authenticator request");
            AuthnError::Unavailable(text)
        })?;
        let remarks = context.remarks;
        let mut audiences = Vec::new();
        if !context.audiences.is_empty() {
            let told: Vec<_> = status.audiences.into_iter().map(Audience).collect();
            let of_token = if told.is_empty() { &self.implicit } else { &told };
            audiences = intersection(context.audiences, of_token);
            let listed = || format!("the token is for {of_token:?}");
            if audiences.is_empty() {
                remarks.step(NAME, Check::RequestedAudiences, Outcome::Failed, listed);
                return Ok(None);
            }
            remarks.step(NAME, Check::RequestedAudiences, Outcome::Passed, listed);
        }
        if !status.authenticated {
            let error = redacted(&status.error);
            remarks.step(NAME, Check::WebhookVerdict, Outcome::Failed, || error.clone());
            return if error.is_empty() { Ok(None) } else { Err(AuthnError::Invalid(error)) };
        }
        let user = status.user;
        // Nobody could be told of such a user.
        if user.username.is_empty() {
            let text = "the webhook authenticated a user without a name".to_owned();
            remarks.step(NAME, Check::WebhookVerdict, Outcome::Failed, || text.clone());
            return Err(AuthnError::Unavailable(text));
        }
        remarks.step(NAME, Check::WebhookVerdict, Outcome::Passed, || format!("as {:?}", user.username));
        let user = UserInfo {
            name: user.username,
            uid: Some(user.uid).filter(|uid| !uid.is_empty()),
            groups: user.groups,
            extra: user.extra.into_iter().map(|(key, values)| (key, values.unwrap_or_default())).collect(),
        };
        Ok(Some(Authenticated { user: user.into(), audiences, method: NAME, expires: None }))
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
    ) -> BoxFuture<'a, Verdict> {
        Box::pin(self.judge(token, context))
    }
}

impl fmt::Debug for WebhookAuthenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookAuthenticator").field("url", &self.url).finish_non_exhaustive()
    }
}

/// How long to wait between the calls; `random` gives numbers from 0 to 1.
// apimachinery: pkg/util/wait/backoff.go, Backoff.Step
fn waits(first: Duration, mut random: impl FnMut() -> f64) -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(first), |wait| Some(wait.mul_f64(GROWTH)))
        .take(CALLS - 1)
        .map(move |wait| wait.mul_f64(1.0 + JITTER * random()))
}

fn random() -> f64 {
    let mut bytes = [0; 2];
    // Without randomness there is no jitter, and nothing else is lost.
    if rand::fill(&mut bytes).is_err() {
        return 0.0;
    }
    f64::from(u16::from_ne_bytes(bytes)) / f64::from(u16::MAX)
}

#[cfg(test)]
mod tests;
