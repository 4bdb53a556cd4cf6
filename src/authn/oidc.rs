//! ID tokens of OpenID issuers: one authenticator for each issuer.
//!
//! Follows kube-apiserver's `plugin/pkg/authenticator/token/oidc`. A token of another issuer is not for this
//! authenticator; a token of this one is believed only if its keys have signed it, whatever else it says. Errors never
//! hold the token.

mod claim_issuers;
mod claims;
#[doc(hidden)]
pub mod compared;
mod distributed;
pub mod fetch;
mod identity;
mod provider;
pub mod settings;
mod steps;
#[cfg(test)]
mod tests;
mod verify;

use std::sync::Arc;

use tokio::time::{Instant, sleep};

use self::claim_issuers::ClaimIssuers;
use self::distributed::Resolver;
use self::fetch::Fetch;
use self::provider::{Provider, RETRY};
use self::settings::{JwtAuthenticator, Mapping};
use self::steps::Steps;
use self::verify::IdToken;
use super::{Authenticated, AuthnError, BearerToken, BoxFuture, TokenAuthenticator, TokenContext, Verdict};
use crate::authn::trace::{Check, Outcome};
use crate::clock::{Clock, UnixTime};
use crate::go::quote::Quoted;
use crate::metrics::jwt::{Issuer, Issuers};

/// The name in logs and metrics.
const NAME: &str = "jwt";

/// Judges the tokens of one issuer. Knows nothing of the audiences of the API server: the owner makes it good for them.
#[derive(Debug)]
pub struct OidcAuthenticator {
    settings: JwtAuthenticator,
    provider: Arc<Provider>,
    claim_issuers: Arc<ClaimIssuers>,
    resolver: Option<Resolver>,
    metrics: Issuer,
    label: String,
}

impl OidcAuthenticator {
    /// An authenticator that knows no keys yet: [`Self::run`] finds them.
    pub(crate) fn new(
        settings: JwtAuthenticator,
        fetch: Arc<dyn Fetch>,
        metrics: &Issuers,
        clock: Clock,
    ) -> Self {
        let url = settings.issuer.url.clone();
        let metrics = metrics.issuer(&url, clock);
        let discovery_url = settings.issuer.discovery_url.clone();
        let provider = Provider::new(url, discovery_url, fetch, Some(metrics.clone()));
        let provider = Arc::new(provider);
        let claim_issuers = Arc::new(ClaimIssuers::new(Arc::clone(&provider)));
        Self::of(settings, provider, claim_issuers, metrics)
    }

    /// The same issuer and what is known of it, by other rules.
    pub(crate) fn judging_by(&self, settings: JwtAuthenticator) -> Self {
        let (provider, claim_issuers) = (Arc::clone(&self.provider), Arc::clone(&self.claim_issuers));
        Self::of(settings, provider, claim_issuers, self.metrics.clone())
    }

    fn of(
        settings: JwtAuthenticator,
        provider: Arc<Provider>,
        claim_issuers: Arc<ClaimIssuers>,
        metrics: Issuer,
    ) -> Self {
        let label = format!("{NAME} {}", settings.issuer.url);
        let resolver = match &settings.groups {
            Some(Mapping::Claim { name, .. }) => {
                Some(Resolver::new(name.clone(), provider.fetch(), Arc::clone(&claim_issuers)))
            }
            Some(Mapping::Expression(_)) | None => None,
        };
        Self { settings, provider, claim_issuers, resolver, metrics, label }
    }

    /// The issuer whose tokens are judged.
    pub fn issuer(&self) -> &str {
        &self.settings.issuer.url
    }

    /// Whether tokens can be judged, and if not, why.
    pub fn health(&self) -> Result<(), String> {
        self.provider.problem().map_or(Ok(()), |problem| {
            let issuer = Quoted(self.issuer());
            Err(format!("oidc: authenticator for issuer {issuer} is not healthy: {problem}"))
        })
    }

    /// Finds the configuration of the issuer; ends when it is found. Until then every token of the issuer is refused.
    pub async fn run(&self) {
        while self.provider.initialize().await.is_none() {
            sleep(RETRY).await;
        }
    }

    /// Fetches the keys, and those of issuers of distributed claims, now and then, as upstream does not: one that was withdrawn is not believed for ever. Ends only if
    /// the configuration is not known.
    pub(crate) async fn keep_fresh(&self) {
        if let Some(keys) = self.provider.keys() {
            tokio::join!(keys.keep_fresh(), self.claim_issuers.keep_fresh());
        }
    }

    /// Tries to find the configuration, or waits for who is about it.
    pub(crate) async fn tried(&self) {
        self.provider.initialize().await;
    }

    async fn judge(
        &self,
        token: IdToken<'_>,
        context: TokenContext<'_>,
    ) -> Result<Authenticated, AuthnError> {
        let steps = Steps { remarks: context.remarks, label: &self.label };
        let keys = self.provider.keys().ok_or_else(|| self.provider.problem().unwrap_or_default());
        let keys = steps
            .check(Check::IssuerInitialized, keys, |_| "the configuration of the issuer is known".to_owned());
        // What the problem is, clients are not told upstream either.
        let keys = keys
            .map_err(|_problem| AuthnError::Unavailable("oidc: authenticator not initialized".to_owned()))?;
        let mut token = token
            .verify(keys, &self.settings, context.now, steps)
            .await
            .map_err(|error| within("oidc: verify token: ", error))?;
        if let Some(resolver) = &self.resolver {
            resolver
                .expand(&mut token, &self.settings, context.now, steps)
                .await
                .map_err(|error| within("oidc: could not expand distributed claims: ", error))?;
        }
        let user = identity::identify(&token.claims, &self.settings, steps).map_err(AuthnError::Invalid)?;
        let expires = u64::try_from(token.expiry).ok().map(UnixTime::from_secs);
        Ok(Authenticated { user: user.into(), audiences: Vec::new(), method: NAME, expires })
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
    ) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let steps = Steps { remarks: context.remarks, label: &self.label };
            let Some(token) = IdToken::untrusted(token.expose(), token.issuer()) else {
                steps.skip("iss", "no JSON Web Token");
                return Ok(None);
            };
            if token.issuer != self.issuer() {
                steps.skip("iss", "a token of another issuer");
                return Ok(None);
            }
            context.remarks.step(&self.label, "iss", Outcome::Passed, || token.issuer.to_owned());
            let began = Instant::now();
            let verdict = self.judge(token, context).await;
            self.metrics.judged(verdict.is_ok(), began.elapsed());
            verdict.map(Some)
        })
    }
}

/// Puts a text before that of an error.
fn within(prefix: &str, error: AuthnError) -> AuthnError {
    match error {
        AuthnError::Invalid(text) => AuthnError::Invalid(format!("{prefix}{text}")),
        AuthnError::Unavailable(text) => AuthnError::Unavailable(format!("{prefix}{text}")),
        other => other,
    }
}
