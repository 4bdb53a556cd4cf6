//! The groups of a user, where the token says only who knows them.
//!
//! OpenID Connect Core 1.0, section 5.6.2, as far as `claimResolver` of kube-apiserver follows it: the claim of the
//! groups alone, and from an endpoint, not from a token within the token. The endpoint answers with a token of its own
//! issuer, which is verified as the first one was.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::claims::Claims;
use super::fetch::Fetch;
use super::provider::Provider;
use super::settings::JwtAuthenticator;
use super::steps::Steps;
use super::verify::IdToken;
use super::within;
use crate::authn::AuthnError;
use crate::authn::json::Object;
use crate::authn::jwt;
use crate::clock::UnixTime;
use crate::status::quote::Quoted;

/// The most issuers of distributed claims that are remembered: an endpoint chooses them.
const MAX_ISSUERS: usize = 64;

/// How many tokens may wait for claims at a time: like [`KeySet`](crate::authn::jwt::key_set::KeySet), of which the same
/// is true.
const WAITING: usize = 32;

/// Where claims are that are not in the token.
#[derive(Default)]
pub(super) struct Sources {
    names: Option<BTreeMap<String, Option<String>>>,
    sources: Option<BTreeMap<String, Option<Object<Endpoint>>>>,
}

/// No `Debug`: the access token is a secret.
#[derive(Deserialize)]
struct Endpoint {
    #[serde(rename = "endpoint")]
    url: Option<String>,
    access_token: Option<String>,
    /// An aggregated claim: must be text, and is not used.
    #[serde(rename = "JWT")]
    _jwt: Option<String>,
}

impl Sources {
    /// Refuses what is not of the types that the standard says. The error does not repeat what is there: it may be an
    /// access token in the wrong place.
    pub(super) fn read(claims: &Claims) -> Result<Self, String> {
        fn member<T: for<'de> Deserialize<'de>>(claims: &Claims, name: &str) -> Result<Option<T>, String> {
            let member = claims.get(name).map_or(Ok(None), Option::<T>::deserialize);
            member.map_err(|_| format!("{name} is not of the type it must be"))
        }
        Ok(Self { names: member(claims, "_claim_names")?, sources: member(claims, "_claim_sources")? })
    }

    /// Every claim that is elsewhere has a source.
    // go-oidc: verify.go, Verify
    pub(super) fn check(&self) -> Result<(), String> {
        for source in self.names.iter().flatten().map(|(_, source)| source.as_deref().unwrap_or_default()) {
            if source.is_empty() {
                return Err("oidc: failed to obtain source from claim name".to_owned());
            }
            if !self.sources.as_ref().is_some_and(|sources| sources.contains_key(source)) {
                return Err("oidc: source does not exist".to_owned());
            }
        }
        Ok(())
    }

    /// Where a claim is.
    fn endpoint(&self, claim: &str) -> Option<(&str, Option<&str>)> {
        let source = self.names.as_ref()?.get(claim)?.as_deref()?;
        let Object(endpoint) = self.sources.as_ref()?.get(source)?.as_ref()?;
        let url = endpoint.url.as_deref().filter(|url| !url.is_empty())?;
        Some((url, endpoint.access_token.as_deref().filter(|token| !token.is_empty())))
    }
}

/// Fetches one claim from elsewhere.
#[derive(Debug)]
pub(super) struct Resolver {
    claim: String,
    fetch: Arc<dyn Fetch>,
    providers: Mutex<BTreeMap<String, Arc<Provider>>>,
    waiting: Semaphore,
}

impl Resolver {
    /// Fetches a claim; the issuer of the tokens themselves is known already.
    pub(super) fn new(claim: String, fetch: Arc<dyn Fetch>, own: Arc<Provider>) -> Self {
        let providers = Mutex::new(BTreeMap::from([(own.issuer().to_owned(), own)]));
        Self { claim, fetch, providers, waiting: Semaphore::new(WAITING) }
    }

    /// Adds the claim to the others, unless it is there or nobody is said to know it.
    pub(super) async fn expand(
        &self,
        claims: &mut Claims,
        settings: &JwtAuthenticator,
        now: UnixTime,
        steps: Steps<'_>,
    ) -> Result<(), AuthnError> {
        if claims.contains_key(&self.claim) {
            return Ok(());
        }
        let sources = Sources::read(claims)
            .map_err(|error| AuthnError::Invalid(format!("oidc: could not parse claim sources: {error}")))?;
        if let Some((url, access_token)) = sources.endpoint(&self.claim) {
            let resolved = self.resolve(url, access_token, settings, now, steps).await;
            let resolved =
                steps.check("distributed claim", resolved, |_| format!("{} from {url}", self.claim))?;
            claims.insert(self.claim.clone(), resolved);
        }
        Ok(())
    }

    async fn resolve(
        &self,
        url: &str,
        access_token: Option<&str>,
        settings: &JwtAuthenticator,
        now: UnixTime,
        steps: Steps<'_>,
    ) -> Result<Value, AuthnError> {
        let claim = &self.claim;
        let _waiting = self.waiting.try_acquire().map_err(|_| {
            AuthnError::Unavailable(format!("too many wait for the distributed claim {}", Quoted(claim)))
        })?;
        let fetched = self.fetch_token(url, access_token).await;
        let fetched = fetched.map_err(|error| {
            AuthnError::Unavailable(format!("while getting distributed claim {}: {error}", Quoted(claim)))
        })?;
        let issuer = jwt::issuer(fetched.trim());
        let token = IdToken::untrusted(fetched.trim(), issuer.as_deref()).ok_or_else(|| {
            AuthnError::Invalid(format!(
                "getting untrusted issuer from endpoint {url} failed for claim {}: malformed token",
                Quoted(claim)
            ))
        })?;
        let provider = self.provider(token.issuer);
        let keys = match &provider {
            Some(provider) => provider.initialize().await,
            None => None,
        };
        let keys = keys.ok_or_else(|| {
            let issuer = token.issuer;
            AuthnError::Unavailable(format!(
                "verifying untrusted issuer {issuer} failed: verifier not initialized for issuer: {}",
                Quoted(issuer)
            ))
        })?;
        let label = format!("{}, distributed claim of {}", steps.label, token.issuer);
        let steps = Steps { label: &label, ..steps };
        let mut distributed = token
            .verify(keys, settings, now, steps)
            .await
            .map_err(|error| within("verify distributed claim token: ", error))?;
        distributed.remove(claim).ok_or_else(|| {
            AuthnError::Invalid(format!(
                "jwt returned by distributed claim endpoint {} did not contain claim: {claim}",
                Quoted(url)
            ))
        })
    }

    async fn fetch_token(&self, url: &str, access_token: Option<&str>) -> Result<String, String> {
        let answer = self.fetch.get(url, access_token).await?;
        // 226 is the last status of success that is registered.
        if !(200..=226).contains(&answer.status) {
            return Err(format!("error while getting distributed claim JWT: {}", answer.status_line()));
        }
        String::from_utf8(answer.body).map_err(|_| "could not decode distributed claim response".to_owned())
    }

    /// The issuer, if there are not too many of them.
    fn provider(&self, issuer: &str) -> Option<Arc<Provider>> {
        let mut providers = self.providers.lock().unwrap_or_else(PoisonError::into_inner);
        if !providers.contains_key(issuer) && providers.len() <= MAX_ISSUERS {
            let provider = Provider::new(issuer.to_owned(), None, Arc::clone(&self.fetch), None);
            providers.insert(issuer.to_owned(), Arc::new(provider));
        }
        providers.get(issuer).cloned()
    }
}
