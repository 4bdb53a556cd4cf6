//! Distributed claims: fetches a user's groups from an endpoint that the token names.
//!
//! Implements OpenID Connect Core 1.0, section 5.6.2, to the extent of kube-apiserver's `claimResolver`: the groups
//! claim only, and distributed, not aggregated, claims. The endpoint responds with a token, possibly of another issuer,
//! which is verified like the ID token. The access token in a claim source is sent to its endpoint only and never
//! appears in errors.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_go::quote::Quoted;
use portcullis_limits::fair_limiter::{FairLimiter, Shares};
use portcullis_openid::jwt::{self, key_set, members};
use serde_json::Value;
use serde_json::value::RawValue;

use super::claim_issuers::ClaimIssuers;
use super::fetch::DocumentFetcher;
use super::settings::JwtAuthenticator;
use super::steps::StepRecorder;
use super::verify::{IdToken, VerifiedIdToken};
use super::with_prefix;
use crate::authn::trace::Check;
use crate::authn::{AuthnError, TokenContext};

/// Maximum number of tokens waiting for claims, limited for the same reason, and as far, as in
/// [`KeySet`](portcullis_openid::jwt::key_set::KeySet).
// threat: key-fetch-flood
const WAITING: Shares = key_set::WAITING;

/// The sources of distributed claims: `_claim_names` and `_claim_sources`.
///
/// kube-apiserver decodes them twice: go-oidc matches the two names case-insensitively and merges all occurrences, and
/// the claim resolver matches them exactly and takes the last occurrence.
#[derive(Default)]
pub(super) struct ClaimSources {
    referred: BTreeMap<String, String>,
    defined: BTreeSet<String>,
    names: Option<BTreeMap<String, String>>,
    endpoints: Option<ClaimEndpoints>,
}

#[derive(Default)]
struct ClaimEndpoints {
    by_source: BTreeMap<String, ClaimEndpoint>,
    /// An aggregated claim is unused but must be a string, even in a source that a later duplicate replaces.
    has_broken_jwt: bool,
}

/// Not `Debug`: the access token is a secret.
#[derive(Default)]
struct ClaimEndpoint {
    url: String,
    access_token: String,
    has_broken_jwt: bool,
}

impl ClaimSources {
    /// Decodes `_claim_names`. The error does not quote the value: it may be a misplaced access token.
    // threat: claims-other-reading
    pub(super) fn take_names(&mut self, member: &RawValue, is_exact: bool) -> Result<(), String> {
        let names = object(member, |source| members::value(source).ok().map(Option::unwrap_or_default));
        let names = names.ok_or("_claim_names has the wrong type")?;
        match &names {
            Some(names) => self.referred.extend(names.clone()),
            None => self.referred.clear(),
        }
        if is_exact {
            self.names = Some(names.unwrap_or_default());
        }
        Ok(())
    }

    /// Decodes `_claim_sources`, like [`Self::take_names`].
    pub(super) fn take_sources(&mut self, member: &RawValue, is_exact: bool) -> Result<(), String> {
        let has_broken_jwt = Cell::new(false);
        let read = |source: &RawValue| {
            let endpoint = ClaimEndpoint::read(source)?;
            has_broken_jwt.set(has_broken_jwt.get() || endpoint.has_broken_jwt);
            Some(endpoint)
        };
        let sources = object(member, read).ok_or("_claim_sources has the wrong type")?;
        match &sources {
            Some(sources) => self.defined.extend(sources.keys().cloned()),
            None => self.defined.clear(),
        }
        if is_exact {
            let by_source = sources.unwrap_or_default();
            self.endpoints = Some(ClaimEndpoints { by_source, has_broken_jwt: has_broken_jwt.get() });
        }
        Ok(())
    }

    /// Checks that every distributed claim has a source.
    // go-oidc: verify.go, Verify
    pub(super) fn check(&self) -> Result<(), String> {
        for source in self.referred.values() {
            if source.is_empty() {
                return Err("oidc: failed to obtain source from claim name".to_owned());
            }
            if !self.defined.contains(source) {
                return Err("oidc: source does not exist".to_owned());
            }
        }
        Ok(())
    }

    /// The endpoint of a claim, if the token has one.
    // apiserver: plugin/pkg/authenticator/token/oidc/oidc.go, claimResolver.expand
    fn endpoint(&self, claim: &str) -> Result<Option<&ClaimEndpoint>, String> {
        let Some(names) = &self.names else { return Ok(None) };
        let sources = self.endpoints.as_ref().ok_or("oidc: no claim sources")?;
        if sources.has_broken_jwt {
            return Err("oidc: could not parse claim sources: JWT is not a string".to_owned());
        }
        let Some(source) = names.get(claim) else { return Ok(None) };
        let endpoint = sources.by_source.get(source).ok_or_else(|| {
            format!("id token _claim_names contained a source {} missing in _claims_sources", Quoted(source))
        })?;
        Ok(Some(endpoint).filter(|endpoint| !endpoint.url.is_empty()))
    }
}

impl ClaimEndpoint {
    /// Decodes one source; `null` is an empty one.
    fn read(source: &RawValue) -> Option<Self> {
        let mut endpoint = Self::default();
        let mut is_well_formed = true;
        let each = |name: &str, member: &RawValue| {
            let text = || members::value::<String>(member);
            if members::is_field(name, "jwt") {
                endpoint.has_broken_jwt |= text().is_err();
                return;
            }
            let field = match name {
                name if members::is_field(name, "endpoint") => &mut endpoint.url,
                name if members::is_field(name, "access_token") => &mut endpoint.access_token,
                _ => return,
            };
            match text() {
                Ok(Some(text)) => *field = text,
                Ok(None) => {}
                Err(_) => is_well_formed = false,
            }
        };
        let is_read = source.get() == "null" || members::read(source.get().as_bytes(), each).is_ok();
        (is_read && is_well_formed).then_some(endpoint)
    }
}

/// Decodes an object whose members have one type: `Some(None)` for `null`, `None` for any other value.
#[expect(clippy::option_option, reason = "null is neither an object nor an error")]
fn object<T>(
    member: &RawValue,
    read: impl Fn(&RawValue) -> Option<T>,
) -> Option<Option<BTreeMap<String, T>>> {
    if member.get() == "null" {
        return Some(None);
    }
    let mut found = Some(BTreeMap::new());
    let each = |name: &str, value: &RawValue| match (&mut found, read(value)) {
        (Some(found), Some(value)) => drop(found.insert(name.to_owned(), value)),
        _ => found = None,
    };
    members::read(member.get().as_bytes(), each).ok()?;
    found.map(Some)
}

/// Resolves one distributed claim.
#[derive(Debug)]
pub(super) struct ClaimResolver {
    claim: String,
    fetch: Arc<dyn DocumentFetcher>,
    issuers: Arc<ClaimIssuers>,
    waiting: FairLimiter,
}

impl ClaimResolver {
    /// A resolver that accepts claims signed by one of `issuers`.
    pub(super) fn new(claim: String, fetch: Arc<dyn DocumentFetcher>, issuers: Arc<ClaimIssuers>) -> Self {
        Self { claim, fetch, issuers, waiting: FairLimiter::new(WAITING) }
    }

    /// Adds the claim to the token, unless it is present or has no source.
    pub(super) async fn expand(
        &self,
        token: &mut VerifiedIdToken,
        settings: &JwtAuthenticator,
        context: TokenContext<'_>,
        steps: StepRecorder<'_>,
    ) -> Result<(), AuthnError> {
        if token.claims.contains_key(&self.claim) {
            return Ok(());
        }
        if let Some(endpoint) = token.sources.endpoint(&self.claim).map_err(AuthnError::Invalid)? {
            let resolved = self.resolve(endpoint, settings, context, steps).await;
            let resolved = steps.check(Check::Other("distributed claim"), resolved, |_| {
                format!("{} from {}", self.claim, endpoint.url)
            })?;
            token.claims.insert(self.claim.clone(), resolved);
        }
        Ok(())
    }

    async fn resolve(
        &self,
        endpoint: &ClaimEndpoint,
        settings: &JwtAuthenticator,
        context: TokenContext<'_>,
        steps: StepRecorder<'_>,
    ) -> Result<Value, AuthnError> {
        let claim = &self.claim;
        let url = endpoint.url.as_str();
        let access_token = Some(endpoint.access_token.as_str()).filter(|token| !token.is_empty());
        let _waiting = self.waiting.try_acquire(context.owner.clone(), 1).ok_or_else(|| {
            AuthnError::Unavailable(format!(
                "too many tokens are waiting for the distributed claim {}",
                Quoted(claim)
            ))
        })?;
        let fetched = self.fetch_token(url, access_token).await;
        let fetched = fetched.map_err(|error| {
            AuthnError::Unavailable(format!("while getting distributed claim {}: {error}", Quoted(claim)))
        })?;
        let issuer = jwt::unverified_issuer(fetched.trim());
        let token = IdToken::untrusted(fetched.trim(), issuer.as_deref()).ok_or_else(|| {
            AuthnError::Invalid(format!(
                "getting untrusted issuer from endpoint {url} failed for claim {}: malformed token",
                Quoted(claim)
            ))
        })?;
        let provider = self.issuers.provider(token.issuer);
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
        let claim_issuer = token.issuer.to_owned();
        let steps = StepRecorder { label: &label, ..steps };
        let mut verified = token
            .verify(keys, settings, context, steps)
            .await
            .map_err(|error| with_prefix("verify distributed claim token: ", error))?;
        self.issuers.note_verified(&claim_issuer);
        verified.claims.remove(claim).ok_or_else(|| {
            AuthnError::Invalid(format!(
                "jwt returned by distributed claim endpoint {} did not contain claim: {claim}",
                Quoted(url)
            ))
        })
    }

    async fn fetch_token(&self, url: &str, access_token: Option<&str>) -> Result<String, String> {
        let answer = self.fetch.get(url, access_token).await?;
        // 226 is the highest registered success status.
        if !(200..=226).contains(&answer.status) {
            return Err(format!("error while getting distributed claim JWT: {}", answer.status_line()));
        }
        String::from_utf8(answer.body).map_err(|_| "could not decode distributed claim response".to_owned())
    }
}
