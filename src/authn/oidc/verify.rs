//! Whether an ID token is what it says it is: signed by its issuer, for us, and at this time.
//!
//! Follows `verify.go` of `github.com/coreos/go-oidc` v2.5.0, which kube-apiserver 1.36 uses: algorithm and signature
//! come first, so that nothing is judged or said of claims that nobody signed.

use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;

use super::claims::{self, ClaimError, Claims};
use super::distributed::Sources;
use super::settings::JwtAuthenticator;
use super::steps::Steps;
use crate::authn::AuthnError;
use crate::authn::jwt::Jwt;
use crate::authn::jwt::key_set::{KeyError, KeySet};
use crate::authn::jwt::keys::PublicKey;
use crate::authn::jwt::members;
use crate::authn::trace::{Check, Outcome};
use crate::clock::UnixTime;
use crate::go::json::JsonValue;
use crate::go::quote::{Quoted, QuotedList};
use crate::go::rfc3339::format_utc;
use crate::pki::x509::time::{is_after, is_before};

/// How long before its time a token is taken.
const NOT_BEFORE_LEEWAY: Duration = Duration::from_mins(1);

/// How many characters are shown of the name of an algorithm that is none.
const SHOWN: usize = 32;

/// The year 1, in seconds since 1970: the date of a token without one.
const YEAR_ONE: i64 = -62_135_596_800;

/// A token, and who it says has issued it. Nothing in it is verified.
pub(super) struct IdToken<'a> {
    /// The value of `iss`.
    pub(super) issuer: &'a str,
    token: &'a str,
}

impl<'a> IdToken<'a> {
    /// A token and the issuer that it names, if it names one, whatever the rest is like; it may be for another
    /// authenticator if not.
    // apiserver: plugin/pkg/authenticator/token/oidc/oidc.go, untrustedIssuer
    pub(super) fn untrusted(token: &'a str, issuer: Option<&'a str>) -> Option<Self> {
        if token.trim_start().starts_with('{') {
            return None;
        }
        // Google's issuer has two spellings.
        let issuer = issuer.map(|issuer| match issuer {
            "accounts.google.com" => "https://accounts.google.com",
            issuer => issuer,
        });
        issuer.map(|issuer| Self { issuer, token })
    }

    /// Verifies it with the keys of its issuer.
    pub(super) async fn verify(
        self,
        keys: &KeySet,
        settings: &JwtAuthenticator,
        now: UnixTime,
        steps: Steps<'_>,
    ) -> Result<VerifiedToken, AuthnError> {
        let malformed = |error| AuthnError::Invalid(format!("oidc: malformed jwt: {error}"));
        let jwt = Jwt::parse(self.token).map_err(malformed);
        let jwt = steps.check(Check::Token, jwt, |_| "of three parts that can be read".to_owned())?;
        steps.check(Check::Algorithm, check_algorithm(&jwt, settings), |()| algorithm_of(&jwt).to_owned())?;
        let signed = keys.verify(&jwt).await;
        let outcome = if signed.is_ok() { Outcome::Passed } else { Outcome::Failed };
        let check = match signed {
            Err(KeyError::Unavailable(_)) => Check::KeysFetched,
            _ => Check::Signature,
        };
        steps.remarks.step(steps.label, check, outcome, || match (&signed, jwt.key_id()) {
            (Ok(()), Some(id)) => format!("by the key {}", Quoted(id)),
            (Ok(()), None) => "by a key of the issuer; the token names none".to_owned(),
            (Err(error), _) => unsigned(error, &jwt, keys),
        });
        signed.map_err(|error| {
            let text = format!("failed to verify signature: {error}");
            match error {
                KeyError::NotSigned => AuthnError::Invalid(text),
                KeyError::Unavailable(_) => AuthnError::Unavailable(text),
            }
        })?;
        let read = jwt.claims().map_err(malformed).and_then(|claims| match Checks::read(jwt.payload()) {
            Ok(checks) => Ok((claims, checks)),
            Err(error) => Err(AuthnError::Invalid(error)),
        });
        let (claims, checks) = steps.check("claims", read, |_| "of the types they must be".to_owned())?;
        checks.run(&settings.issuer.audiences, now, steps).map_err(AuthnError::Invalid)?;
        Ok(VerifiedToken { claims, expiry: checks.expiry, sources: checks.sources })
    }
}

/// What a token says that was verified.
pub(super) struct VerifiedToken {
    /// Its claims.
    pub(super) claims: Claims,
    /// Its end, in seconds since 1970.
    pub(super) expiry: i64,
    /// Where claims are that are not in it.
    pub(super) sources: Sources,
}

/// Why the signature does not count, in more words than upstream has.
fn unsigned(error: &KeyError, jwt: &Jwt<'_>, keys: &KeySet) -> String {
    let known = keys.known();
    let known: Vec<_> = known.iter().flat_map(|keys| keys.iter()).map(PublicKey::id).collect();
    match (error, jwt.key_id()) {
        (KeyError::Unavailable(_), _) => error.to_string(),
        (KeyError::NotSigned, Some(id)) if known.contains(&id) => {
            format!("the key {} has not signed it", Quoted(id))
        }
        (KeyError::NotSigned, Some(id)) => {
            format!("no key is called {}; the issuer's are {}", Quoted(id), QuotedList(&known))
        }
        (KeyError::NotSigned, None) => {
            format!("none of the issuer's keys has signed it: {}", QuotedList(&known))
        }
    }
}

fn algorithm_of<'a>(jwt: &'a Jwt<'_>) -> &'a str {
    jwt.algorithm().unwrap_or_default()
}

fn check_algorithm(jwt: &Jwt<'_>, settings: &JwtAuthenticator) -> Result<(), AuthnError> {
    let named = algorithm_of(jwt);
    if settings.algorithms.iter().any(|algorithm| algorithm.name() == named) {
        return Ok(());
    }
    // Nobody has signed it: the log need not hold whatever a client writes there.
    let named: String = named.chars().take(SHOWN).collect();
    let expected: Vec<_> = settings.algorithms.iter().map(|algorithm| algorithm.name()).collect();
    Err(AuthnError::Invalid(format!(
        "oidc: id token signed with unsupported algorithm, expected {} got {}",
        QuotedList(&expected),
        Quoted(&named)
    )))
}

/// The claims that a token is judged by.
struct Checks {
    audiences: Vec<String>,
    expiry: i64,
    not_before: Option<i64>,
    sources: Sources,
}

impl Checks {
    /// Refuses a token whose claims are of other types than OpenID Connect gives them.
    // go-oidc: oidc.go, idToken
    // threat: claims-other-reading
    fn read(payload: &[u8]) -> Result<Self, String> {
        let (audiences, sources) = (Vec::new(), Sources::default());
        let mut checks = Self { audiences, expiry: YEAR_ONE, not_before: None, sources };
        let mut problem = None;
        let each = |name: &str, member: &RawValue| {
            if problem.is_none() {
                problem = checks.take(name, member).err();
            }
        };
        members::read(payload, each)
            .map_err(|_| "oidc: malformed jwt: the payload is no JSON object".to_owned())?;
        match problem {
            Some(problem) => Err(format!("oidc: failed to unmarshal claims: {problem}")),
            None => checks.sources.check().map(|()| checks),
        }
    }

    /// Reads one member, by whatever spelling Go takes for the name of a claim that is looked at.
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

    fn run(&self, expected: &[String], now: UnixTime, steps: Steps<'_>) -> Result<(), String> {
        let check_audiences = || {
            steps.check(Check::Audience, self.check_audiences(expected), |()| {
                QuotedList(&self.audiences).to_string()
            })
        };
        // Why two places: the library knows of one audience only, and is not asked where there are more.
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
        // Go's dates end where seconds since the year 1 do not fit.
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

/// A date as Go prints it, in UTC.
fn go_time(seconds: i64) -> String {
    format_utc(seconds).replace('T', " ").replace('Z', " +0000 UTC")
}
