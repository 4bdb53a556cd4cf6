//! ID tokens of OpenID Connect issuers: one authenticator per issuer.
//!
//! Follows kube-apiserver's `plugin/pkg/authenticator/token/oidc`. The authenticator ignores tokens of other issuers.
//! It accepts a token only if a key of the issuer verifies its signature, and never trusts unverified claims. Errors
//! never contain the token.

mod claim_issuers;
mod claims;
#[doc(hidden)]
pub(crate) mod compared;
mod distributed;
pub(crate) mod fetch;
mod identity;
mod provider;
pub(crate) mod settings;
mod steps;
#[cfg(test)]
mod tests;
mod verify;

use std::sync::Arc;

use portcullis_go::quote::Quoted;
use portcullis_system::clock::{Clock, UnixTime};
use tokio::time::{Instant, sleep};

use self::claim_issuers::ClaimIssuers;
use self::distributed::ClaimResolver;
use self::fetch::DocumentFetcher;
use self::provider::{DISCOVERY_BACKOFF, OidcProvider};
use self::settings::{AttributeMapping, JwtAuthenticator};
use self::steps::StepRecorder;
use self::verify::IdToken;
use super::{
    Authenticated, AuthnError, AuthnMethod, AuthnVerdict, BearerToken, BoxFuture, TokenAuthenticator,
    TokenContext,
};
use crate::authn::trace::{Check, StepOutcome};
use crate::metrics::jwt::{JwtIssuerMetrics, JwtMetrics};

/// The authenticator's name in logs and metrics.
const NAME: &str = AuthnMethod::Jwt.name();

/// Authenticates the tokens of one issuer. Returns no audiences: the owner adds those of the API server.
#[derive(Debug)]
pub(crate) struct OidcAuthenticator {
    settings: JwtAuthenticator,
    provider: Arc<OidcProvider>,
    claim_issuers: Arc<ClaimIssuers>,
    resolver: Option<ClaimResolver>,
    metrics: JwtIssuerMetrics,
    label: String,
}

impl OidcAuthenticator {
    /// Returns an authenticator without keys; [`Self::run`] discovers them.
    pub(crate) fn new(
        settings: JwtAuthenticator,
        fetch: Arc<dyn DocumentFetcher>,
        metrics: &JwtMetrics,
        clock: Clock,
    ) -> Self {
        let url = settings.issuer.url.clone();
        let metrics = metrics.issuer(&url, clock);
        let discovery_url = settings.issuer.discovery_url.clone();
        let provider = OidcProvider::new(url, discovery_url, fetch, Some(metrics.clone()));
        let provider = Arc::new(provider);
        let claim_issuers = Arc::new(ClaimIssuers::new(Arc::clone(&provider)));
        Self::from_parts(settings, provider, claim_issuers, metrics)
    }

    /// The same issuer with other settings; shares its discovery result and keys.
    pub(crate) fn with_settings(&self, settings: JwtAuthenticator) -> Self {
        let (provider, claim_issuers) = (Arc::clone(&self.provider), Arc::clone(&self.claim_issuers));
        Self::from_parts(settings, provider, claim_issuers, self.metrics.clone())
    }

    fn from_parts(
        settings: JwtAuthenticator,
        provider: Arc<OidcProvider>,
        claim_issuers: Arc<ClaimIssuers>,
        metrics: JwtIssuerMetrics,
    ) -> Self {
        let label = format!("{NAME} {}", settings.issuer.url);
        let resolver = match &settings.groups {
            Some(AttributeMapping::Claim { name, .. }) => {
                Some(ClaimResolver::new(name.clone(), provider.fetch(), Arc::clone(&claim_issuers)))
            }
            Some(AttributeMapping::Expression(_)) | None => None,
        };
        Self { settings, provider, claim_issuers, resolver, metrics, label }
    }

    /// The issuer URL.
    pub(crate) fn issuer(&self) -> &str {
        &self.settings.issuer.url
    }

    /// Fails with the discovery error until OIDC discovery has succeeded.
    pub(crate) fn health(&self) -> Result<(), String> {
        self.provider.problem().map_or(Ok(()), |problem| {
            let issuer = Quoted(self.issuer());
            Err(format!("oidc: authenticator for issuer {issuer} is not healthy: {problem}"))
        })
    }

    /// Retries OIDC discovery until it succeeds. Until then every token of the issuer is refused.
    pub(crate) async fn run(&self) {
        while self.provider.initialize().await.is_none() {
            sleep(DISCOVERY_BACKOFF).await;
        }
    }

    /// Refreshes the keys of the issuer and of the issuers of distributed claims periodically, so that a revoked key
    /// does not stay valid; kube-apiserver does not do this. Returns only if discovery has not succeeded.
    pub(crate) async fn keep_fresh(&self) {
        if let Some(keys) = self.provider.keys() {
            tokio::join!(keys.keep_fresh(), self.claim_issuers.keep_fresh());
        }
    }

    /// Attempts OIDC discovery once, or waits for an attempt in progress.
    pub(crate) async fn try_initialize(&self) {
        self.provider.initialize().await;
    }

    async fn authenticate_token(
        &self,
        token: IdToken<'_>,
        context: TokenContext<'_>,
    ) -> Result<Authenticated, AuthnError> {
        let steps = StepRecorder { trace: context.trace, label: &self.label };
        let keys = self.provider.keys().ok_or_else(|| self.provider.problem().unwrap_or_default());
        let keys = steps.check(Check::IssuerInitialized, keys, |_| "OIDC discovery succeeded".to_owned());
        // kube-apiserver does not report the cause to clients either.
        let keys = keys
            .map_err(|_problem| AuthnError::Unavailable("oidc: authenticator not initialized".to_owned()))?;
        let mut token = token
            .verify(keys, &self.settings, context, steps)
            .await
            .map_err(|error| with_prefix("oidc: verify token: ", error))?;
        if let Some(resolver) = &self.resolver {
            resolver
                .expand(&mut token, &self.settings, context, steps)
                .await
                .map_err(|error| with_prefix("oidc: could not expand distributed claims: ", error))?;
        }
        let user = identity::identify(&token.claims, &self.settings, steps).map_err(AuthnError::Invalid)?;
        let expires = u64::try_from(token.expiry).ok().map(UnixTime::from_secs);
        Ok(Authenticated {
            user: user.into(),
            audiences: Vec::new(),
            method: AuthnMethod::Jwt,
            certificates: None,
            expires,
        })
    }
}

impl TokenAuthenticator for OidcAuthenticator {
    fn name(&self) -> &'static str {
        NAME
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, AuthnVerdict> {
        Box::pin(async move {
            let steps = StepRecorder { trace: context.trace, label: &self.label };
            let Some(token) = IdToken::untrusted(token.expose(), token.issuer()) else {
                steps.skip(Check::Other("iss"), "not a JSON Web Token");
                return Ok(None);
            };
            if token.issuer != self.issuer() {
                steps.skip(Check::Other("iss"), "token of another issuer");
                return Ok(None);
            }
            context
                .trace
                .step(&self.label, Check::Other("iss"), StepOutcome::Passed, || token.issuer.to_owned());
            let began = Instant::now();
            let verdict = self.authenticate_token(token, context).await;
            self.metrics.validated(verdict.is_ok(), began.elapsed());
            verdict.map(Some)
        })
    }
}

/// Prepends text to the message of an error.
fn with_prefix(prefix: &str, error: AuthnError) -> AuthnError {
    match error {
        AuthnError::Invalid(text) => AuthnError::Invalid(format!("{prefix}{text}")),
        AuthnError::Unavailable(text) => AuthnError::Unavailable(format!("{prefix}{text}")),
        other => other,
    }
}
