//! The groups of a user, where the token says only who knows them.
//!
//! OpenID Connect Core 1.0, section 5.6.2, as far as `claimResolver` of kube-apiserver follows it: the claim of the
//! groups alone, and from an endpoint, not from a token within the token. The endpoint answers with a token of its own
//! issuer, which is verified as the first one was.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use super::claim_issuers::ClaimIssuers;
use super::fetch::Fetch;
use super::settings::JwtAuthenticator;
use super::steps::Steps;
use super::verify::{IdToken, VerifiedToken};
use super::within;
use crate::authn::AuthnError;
use crate::authn::jwt::{self, members};
use crate::clock::UnixTime;
use crate::go::quote::Quoted;

/// How many tokens may wait for claims at a time: like [`KeySet`](crate::authn::jwt::key_set::KeySet), of which the same
/// is true.
const WAITING: usize = 32;

/// Where claims are that are not in the token.
///
/// kube-apiserver reads that twice: go-oidc by every spelling of the two names, each over the one before, and its own
/// resolver by the names as they must be, of which the last one counts.
#[derive(Default)]
pub(super) struct Sources {
    referred: BTreeMap<String, String>,
    defined: BTreeSet<String>,
    names: Option<BTreeMap<String, String>>,
    endpoints: Option<Endpoints>,
}

#[derive(Default)]
struct Endpoints {
    by_source: BTreeMap<String, Endpoint>,
    /// An aggregated claim is not used, and must be text: also in a source of whose name another one follows.
    has_broken_jwt: bool,
}

/// No `Debug`: the access token is a secret.
#[derive(Default)]
struct Endpoint {
    url: String,
    access_token: String,
    has_broken_jwt: bool,
}

impl Sources {
    /// Reads `_claim_names`. The error does not repeat what is there: it may be an access token in the wrong place.
    // threat: claims-other-reading
    pub(super) fn take_names(&mut self, member: &RawValue, is_exact: bool) -> Result<(), String> {
        let names = object(member, |source| members::value(source).ok().map(Option::unwrap_or_default));
        let names = names.ok_or("_claim_names is not of the type it must be")?;
        match &names {
            Some(names) => self.referred.extend(names.clone()),
            None => self.referred.clear(),
        }
        if is_exact {
            self.names = Some(names.unwrap_or_default());
        }
        Ok(())
    }

    /// Reads `_claim_sources`, as [`Self::take_names`] does.
    pub(super) fn take_sources(&mut self, member: &RawValue, is_exact: bool) -> Result<(), String> {
        let has_broken_jwt = Cell::new(false);
        let read = |source: &RawValue| {
            let endpoint = Endpoint::read(source)?;
            has_broken_jwt.set(has_broken_jwt.get() || endpoint.has_broken_jwt);
            Some(endpoint)
        };
        let sources = object(member, read).ok_or("_claim_sources is not of the type it must be")?;
        match &sources {
            Some(sources) => self.defined.extend(sources.keys().cloned()),
            None => self.defined.clear(),
        }
        if is_exact {
            let by_source = sources.unwrap_or_default();
            self.endpoints = Some(Endpoints { by_source, has_broken_jwt: has_broken_jwt.get() });
        }
        Ok(())
    }

    /// Every claim that is elsewhere has a source.
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

    /// Where a claim is, if it is anywhere.
    // apiserver: plugin/pkg/authenticator/token/oidc/oidc.go, claimResolver.expand
    fn endpoint(&self, claim: &str) -> Result<Option<&Endpoint>, String> {
        let Some(names) = &self.names else { return Ok(None) };
        let sources = self.endpoints.as_ref().ok_or("oidc: no claim sources")?;
        if sources.has_broken_jwt {
            return Err("oidc: could not parse claim sources: JWT is no text".to_owned());
        }
        let Some(source) = names.get(claim) else { return Ok(None) };
        let endpoint = sources.by_source.get(source).ok_or_else(|| {
            format!("id token _claim_names contained a source {} missing in _claims_sources", Quoted(source))
        })?;
        Ok(Some(endpoint).filter(|endpoint| !endpoint.url.is_empty()))
    }
}

impl Endpoint {
    /// One source; `null` is one without anything.
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

/// An object whose members are all of one kind, `Some(None)` for `null`, and `None` for anything else.
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

/// Fetches one claim from elsewhere.
#[derive(Debug)]
pub(super) struct Resolver {
    claim: String,
    fetch: Arc<dyn Fetch>,
    issuers: Arc<ClaimIssuers>,
    waiting: Semaphore,
}

impl Resolver {
    /// Fetches a claim, which one of `issuers` has signed.
    pub(super) fn new(claim: String, fetch: Arc<dyn Fetch>, issuers: Arc<ClaimIssuers>) -> Self {
        Self { claim, fetch, issuers, waiting: Semaphore::new(WAITING) }
    }

    /// Adds the claim to the others, unless it is there or is not said to be elsewhere.
    pub(super) async fn expand(
        &self,
        token: &mut VerifiedToken,
        settings: &JwtAuthenticator,
        now: UnixTime,
        steps: Steps<'_>,
    ) -> Result<(), AuthnError> {
        if token.claims.contains_key(&self.claim) {
            return Ok(());
        }
        if let Some(endpoint) = token.sources.endpoint(&self.claim).map_err(AuthnError::Invalid)? {
            let resolved = self.resolve(endpoint, settings, now, steps).await;
            let resolved = steps
                .check("distributed claim", resolved, |_| format!("{} from {}", self.claim, endpoint.url))?;
            token.claims.insert(self.claim.clone(), resolved);
        }
        Ok(())
    }

    async fn resolve(
        &self,
        endpoint: &Endpoint,
        settings: &JwtAuthenticator,
        now: UnixTime,
        steps: Steps<'_>,
    ) -> Result<Value, AuthnError> {
        let claim = &self.claim;
        let url = endpoint.url.as_str();
        let access_token = Some(endpoint.access_token.as_str()).filter(|token| !token.is_empty());
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
        let steps = Steps { label: &label, ..steps };
        let mut verified = token
            .verify(keys, settings, now, steps)
            .await
            .map_err(|error| within("verify distributed claim token: ", error))?;
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
        // 226 is the last status of success that is registered.
        if !(200..=226).contains(&answer.status) {
            return Err(format!("error while getting distributed claim JWT: {}", answer.status_line()));
        }
        String::from_utf8(answer.body).map_err(|_| "could not decode distributed claim response".to_owned())
    }
}
