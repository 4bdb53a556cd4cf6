//! Verifies an ID token: signature, audience and validity period.
//!
//! Follows `verify.go` of `github.com/coreos/go-oidc` v2.5.0, which kube-apiserver 1.36 uses. The algorithm and the
//! signature are checked first: unsigned claims are neither evaluated nor quoted in errors.

use std::time::Duration;

use portcullis_go::json::JsonValue;
use portcullis_go::quote::{Quoted, QuotedList};
use portcullis_go::time::format_utc;
use portcullis_openid::jwt::Jwt;
use portcullis_openid::jwt::key_set::{KeySet, KeySetError};
use portcullis_openid::jwt::keys::{JwsAlgorithm, VerificationKey};
use portcullis_openid::jwt::members;
use portcullis_pki::x509::time::{is_after, is_before};
use portcullis_system::clock::UnixTime;
use serde_json::Value;
use serde_json::value::RawValue;

use super::claims::{self, ClaimError, IdTokenClaims};
use super::distributed::ClaimSources;
use super::settings::JwtAuthenticator;
use super::steps::StepRecorder;
use crate::authn::trace::{Check, StepOutcome};
use crate::authn::{AuthnError, TokenContext};

/// Clock skew accepted for `nbf`.
const NOT_BEFORE_LEEWAY: Duration = Duration::from_mins(1);

/// Maximum number of characters of an unsupported `alg` that an error quotes.
const MAX_SHOWN_ALGORITHM: usize = 32;

/// Maximum number of keys, and of characters of the ID of each, that an error quotes.
const MAX_SHOWN_IDS: usize = 8;
const MAX_SHOWN_ID: usize = 64;

/// The year 1, in seconds since 1970: Go's zero time, the expiry of a token without `exp`.
const YEAR_ONE: i64 = -62_135_596_800;

/// A token and its unverified issuer.
pub(super) struct IdToken<'a> {
    /// The value of `iss`.
    pub(super) issuer: &'a str,
    token: &'a str,
}

impl<'a> IdToken<'a> {
    /// Pairs a token with its issuer, without reading the rest; `None` if the token has no issuer and may be for
    /// another authenticator.
    // apiserver: plugin/pkg/authenticator/token/oidc/oidc.go, untrustedIssuer
    pub(super) fn untrusted(token: &'a str, issuer: Option<&'a str>) -> Option<Self> {
        if token.trim_start().starts_with('{') {
            return None;
        }
        // Google uses two spellings of its issuer.
        let issuer = issuer.map(|issuer| match issuer {
            "accounts.google.com" => "https://accounts.google.com",
            issuer => issuer,
        });
        issuer.map(|issuer| Self { issuer, token })
    }

    /// Verifies the token with the keys of its issuer.
    pub(super) async fn verify(
        self,
        keys: &KeySet,
        settings: &JwtAuthenticator,
        context: TokenContext<'_>,
        steps: StepRecorder<'_>,
    ) -> Result<VerifiedIdToken, AuthnError> {
        let malformed = |error| AuthnError::Invalid(format!("oidc: malformed jwt: {error}"));
        let jwt = Jwt::parse(self.token).map_err(malformed);
        let jwt = steps.check(Check::Token, jwt, |_| "well-formed".to_owned())?;
        steps.check(Check::Algorithm, check_algorithm(&jwt, settings), |()| algorithm_of(&jwt).to_owned())?;
        let signed = keys.verify(&jwt, context.owner).await;
        let outcome = if signed.is_ok() { StepOutcome::Passed } else { StepOutcome::Failed };
        let check = match signed {
            Err(KeySetError::Unavailable(_)) => Check::KeysFetched,
            _ => Check::Signature,
        };
        steps.trace.step(steps.label, check, outcome, || match (&signed, jwt.key_id()) {
            (Ok(()), Some(id)) => format!("signed by key {}", Quoted(id)),
            (Ok(()), None) => "signed by a key of the issuer; the token has no kid".to_owned(),
            (Err(error), _) => unsigned(error, &jwt, keys),
        });
        signed.map_err(|error| {
            let text = format!("failed to verify signature: {error}");
            match error {
                KeySetError::NotSigned => {
                    // The error is also a `TokenReview`'s, which has kube-apiserver's words.
                    let (issuer, reason) = (&settings.issuer.url, unsigned(&error, &jwt, keys));
                    tracing::debug!(issuer, reason, "no key of the issuer verifies a token");
                    AuthnError::Invalid(text)
                }
                KeySetError::Unavailable(_) => AuthnError::Unavailable(text),
            }
        })?;
        let read =
            jwt.claims().map_err(malformed).and_then(|claims| match RegisteredClaims::read(jwt.payload()) {
                Ok(checks) => Ok((claims, checks)),
                Err(error) => Err(AuthnError::Invalid(error)),
            });
        let (claims, checks) =
            steps.check(Check::Other("claims"), read, |_| "all of the expected types".to_owned())?;
        checks.run(&settings.issuer.audiences, context.now, steps).map_err(AuthnError::Invalid)?;
        Ok(VerifiedIdToken { claims, expiry: checks.expiry, sources: checks.sources })
    }
}

/// The claims of a verified token.
pub(super) struct VerifiedIdToken {
    /// All claims.
    pub(super) claims: IdTokenClaims,
    /// The expiry, in seconds since 1970.
    pub(super) expiry: i64,
    /// Sources of distributed claims.
    pub(super) sources: ClaimSources,
}

/// Explains why the signature is not valid, in more detail than kube-apiserver.
pub(super) fn unsigned(error: &KeySetError, jwt: &Jwt<'_>, keys: &KeySet) -> String {
    if matches!(error, KeySetError::Unavailable(_)) {
        return error.to_string();
    }
    let known = keys.known();
    let known: Vec<_> = known.iter().flat_map(|keys| keys.iter()).collect();
    let fits = |key: &VerificationKey| {
        JwsAlgorithm::named(algorithm_of(jwt)).is_some_and(|algorithm| key.fits(algorithm))
    };
    let algorithm = algorithm_of(jwt);
    let Some(id) = jwt.key_id() else {
        let ids = shown_ids(&known);
        return if known.iter().any(|key| fits(key)) {
            format!("not signed by any key of the issuer: {ids}")
        } else {
            format!("no key of the issuer is for {algorithm}: {ids}")
        };
    };
    let named: Vec<_> = known.iter().filter(|key| key.id() == id).collect();
    let quoted = Quoted(shortened(id));
    match keys.problem_of(id) {
        _ if named.iter().any(|key| fits(key)) => format!("not signed by key {quoted}"),
        _ if !named.is_empty() => format!("key {quoted} is not for {algorithm}"),
        Some(problem) => format!("key {quoted} cannot be used: {problem}"),
        None => format!("no key has the ID {quoted}; the issuer's key IDs are {}", shown_ids(&known)),
    }
}

/// The IDs of the first keys. An issuer publishes how many it likes.
fn shown_ids(keys: &[&VerificationKey]) -> String {
    let ids: Vec<_> = keys.iter().take(MAX_SHOWN_IDS).map(|key| shortened(key.id())).collect();
    let more = keys.len().saturating_sub(MAX_SHOWN_IDS);
    let list = QuotedList(&ids).to_string();
    if more == 0 { list } else { format!("{list} and {more} more") }
}

/// The beginning of an ID, which may have any length.
fn shortened(id: &str) -> &str {
    id.char_indices().nth(MAX_SHOWN_ID).map_or(id, |(end, _)| id.get(..end).unwrap_or(id))
}

fn algorithm_of<'a>(jwt: &'a Jwt<'_>) -> &'a str {
    jwt.algorithm().unwrap_or_default()
}

fn check_algorithm(jwt: &Jwt<'_>, settings: &JwtAuthenticator) -> Result<(), AuthnError> {
    let named = algorithm_of(jwt);
    if settings.algorithms.iter().any(|algorithm| algorithm.name() == named) {
        return Ok(());
    }
    // Unsigned input of any length: the log gets a prefix only.
    let named: String = named.chars().take(MAX_SHOWN_ALGORITHM).collect();
    let expected: Vec<_> = settings.algorithms.iter().map(|algorithm| algorithm.name()).collect();
    Err(AuthnError::Invalid(format!(
        "oidc: id token signed with unsupported algorithm, expected {} got {}",
        QuotedList(&expected),
        Quoted(&named)
    )))
}

/// The claims that verification checks.
struct RegisteredClaims {
    audiences: Vec<String>,
    expiry: i64,
    not_before: Option<i64>,
    sources: ClaimSources,
}

impl RegisteredClaims {
    /// Decodes the claims; fails if one has another type than OpenID Connect defines.
    // go-oidc: oidc.go, idToken
    // threat: claims-other-reading
    fn read(payload: &[u8]) -> Result<Self, String> {
        let (audiences, sources) = (Vec::new(), ClaimSources::default());
        let mut checks = Self { audiences, expiry: YEAR_ONE, not_before: None, sources };
        let mut problem = None;
        let each = |name: &str, member: &RawValue| {
            if problem.is_none() {
                problem = checks.take(name, member).err();
            }
        };
        members::read(payload, each)
            .map_err(|_| "oidc: malformed jwt: the payload is not a JSON object".to_owned())?;
        match problem {
            Some(problem) => Err(format!("oidc: failed to unmarshal claims: {problem}")),
            None => checks.sources.check().map(|()| checks),
        }
    }

    /// Decodes one member, matching claim names case-insensitively as Go does.
    fn take(&mut self, name: &str, member: &RawValue) -> Result<(), String> {
        const TEXTS: [&str; 4] = ["iss", "sub", "nonce", "at_hash"];
        let is = |field: &str| members::is_field(name, field);
        if is("_claim_names") {
            return self.sources.take_names(member, name == "_claim_names");
        }
        if is("_claim_sources") {
            return self.sources.take_sources(member, name == "_claim_sources");
        }
        if !TEXTS.iter().chain(&["aud", "exp", "iat", "nbf"]).any(|field| is(field)) {
            return Ok(());
        }
        let field = |error: ClaimError| format!("{error} (claim {})", Quoted(name));
        let value = members::value::<JsonValue>(member)
            .map_err(|_| format!("it cannot be read (claim {})", Quoted(name)))?;
        let value = value.map_or(Value::Null, |JsonValue(value)| value);
        if is("aud") {
            self.audiences = claims::audiences(&value).map_err(field)?;
        } else if is("exp") {
            self.expiry = claims::seconds(&value).map_err(field)?;
        } else if is("iat") {
            claims::seconds(&value).map_err(field)?;
        } else if is("nbf") {
            let date = (!value.is_null()).then(|| claims::seconds(&value));
            self.not_before = date.transpose().map_err(field)?;
        } else {
            claims::text(&value).map_err(field)?;
        }
        Ok(())
    }

    fn run(&self, expected: &[String], now: UnixTime, steps: StepRecorder<'_>) -> Result<(), String> {
        let check_audiences = || {
            steps.check(Check::Audience, self.check_audiences(expected), |()| {
                QuotedList(&self.audiences).to_string()
            })
        };
        // go-oidc checks a single audience before the expiry; kube-apiserver itself checks several afterwards.
        let one = expected.len() == 1;
        if one {
            check_audiences()?;
        }
        steps.check(Check::Expiry, self.check_expiry(now), |()| go_time(self.expiry))?;
        match self.not_before {
            Some(limit) => steps.check(Check::NotBefore, check_begun(limit, now), |()| go_time(limit))?,
            None => steps.skip(Check::NotBefore, "claim not present"),
        }
        if one { Ok(()) } else { check_audiences() }
    }

    fn check_audiences(&self, expected: &[String]) -> Result<(), String> {
        if self.audiences.iter().any(|audience| expected.contains(audience)) {
            return Ok(());
        }
        let got = QuotedList(&self.audiences);
        match expected {
            [one] => Err(format!("oidc: expected audience {} got {got}", Quoted(one))),
            several => {
                let mut sorted = several.to_vec();
                sorted.sort();
                Err(format!("oidc: expected audience in {} got {got}", QuotedList(&sorted)))
            }
        }
    }

    fn check_expiry(&self, now: UnixTime) -> Result<(), String> {
        // Go's time range ends where seconds since the year 1 overflow.
        let far = self.expiry.checked_sub(YEAR_ONE).is_none();
        if far || is_after(now, self.expiry) {
            return Err(format!("oidc: token is expired (Token Expiry: {})", go_time(self.expiry)));
        }
        Ok(())
    }
}

fn check_begun(limit: i64, now: UnixTime) -> Result<(), String> {
    if is_before(now + NOT_BEFORE_LEEWAY, limit) {
        let now = go_time(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        let limit = go_time(limit);
        return Err(format!("oidc: current time {now} before the nbf (not before) time: {limit}"));
    }
    Ok(())
}

/// Formats a date as Go does, in UTC.
fn go_time(seconds: i64) -> String {
    format_utc(seconds).replace('T', " ").replace('Z', " +0000 UTC")
}
