//! What a client verifies of an ID token: OpenID Connect Core 1.0, sections 3.1.3.7 and 12.2.
//!
//! The signature is verified by the same code as in the gateway, with the algorithms that kube-apiserver accepts.

use portcullis_system::clock::UnixTime;
use serde_json::{Map, Value};

use super::error::shortened;
use crate::jwt::keys::VerificationKey;
use crate::jwt::{Jwt, MalformedJwt, VerificationBudget};

/// Clocks may differ by this much without a warning.
const MAX_CLOCK_DIFFERENCE: u64 = 300;

/// What the token must say.
#[derive(Debug)]
pub struct ExpectedIdToken<'a> {
    /// The issuer, as configured.
    pub issuer: &'a str,
    /// The client, which must be an audience.
    pub client_id: &'a str,
    /// The nonce of the authorization request.
    pub nonce: Option<&'a str>,
    /// The user of the earlier token, if it was refreshed.
    pub subject: Option<&'a str>,
    /// The time of the verification.
    pub now: UnixTime,
}

/// The claims of a verified token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdTokenClaims {
    /// `sub`
    pub subject: String,
    /// `iat`, in seconds since 1970.
    pub issued_at: u64,
    /// `exp`, in seconds since 1970.
    pub expires_at: u64,
}

/// Why an ID token is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdTokenError {
    /// The response has no ID token.
    #[error("the provider has returned none; allow the client the scope openid, or use --token access")]
    Missing,
    /// The token does not parse.
    #[error("it is not a JSON Web Token: {0}")]
    Malformed(#[from] MalformedJwt),
    /// No published key verifies the signature.
    #[error("none of the provider's published keys verifies its signature ({0})")]
    Signature(String),
    /// Another issuer issued the token.
    #[error("it was issued by {0:?}; check --issuer")]
    Issuer(String),
    /// The token is for another client.
    #[error("it is for {0}, not for this client; check --client-id")]
    Audience(String),
    /// The token belongs to another login.
    #[error("its nonce is not that of this login: it belongs to another login")]
    Nonce,
    /// The token belongs to another user than before.
    #[error("it belongs to another user than before; run `portcullis logout` and log in again")]
    Subject,
    /// A required claim is missing or malformed.
    #[error("it has no valid claim {0:?}")]
    Claim(&'static str),
    /// The token has expired; how far the clocks are apart, in seconds.
    #[error("it has expired when it arrives; {}", clock_advice(*.0))]
    Expired(i64),
}

/// Verifies signature and claims.
pub fn verify(
    token: &str,
    keys: &[VerificationKey],
    expected: &ExpectedIdToken<'_>,
) -> Result<IdTokenClaims, IdTokenError> {
    let jwt = Jwt::parse(token)?;
    if !jwt.is_signed_by_one_of(keys, VerificationBudget::PUBLISHED) {
        return Err(IdTokenError::Signature(shortened(jwt.algorithm().unwrap_or("no algorithm"))));
    }
    check_claims(&jwt.claims()?, expected)
}

/// The claim of an ID token of this subject by which people know themselves: an address, unless the provider has not verified
/// it, or a name. It decides nothing, since users of some providers choose it.
pub fn display_name(token: &str, subject: &str) -> Option<String> {
    let claims = Jwt::parse(token).ok()?.claims().ok()?;
    let text = |name: &str| claims.get(name)?.as_str().filter(|text| !text.trim().is_empty());
    let is_verified = claims.get("email_verified").is_none_or(|verified| *verified != Value::Bool(false));
    let names = [text("email").filter(|_| is_verified), text("preferred_username"), text("name")];
    (text("sub") == Some(subject)).then_some(())?;
    names.into_iter().flatten().next().map(str::to_owned)
}

fn check_claims(
    claims: &Map<String, Value>,
    expected: &ExpectedIdToken<'_>,
) -> Result<IdTokenClaims, IdTokenError> {
    let text = |name: &'static str| claims.get(name).and_then(Value::as_str);
    let issuer = text("iss").ok_or(IdTokenError::Claim("iss"))?;
    if issuer != expected.issuer {
        return Err(IdTokenError::Issuer(shortened(issuer)));
    }
    check_audience(claims, expected.client_id)?;
    if expected.nonce.is_some_and(|nonce| text("nonce") != Some(nonce)) {
        return Err(IdTokenError::Nonce);
    }
    let subject = text("sub").filter(|subject| !subject.is_empty()).ok_or(IdTokenError::Claim("sub"))?;
    if expected.subject.is_some_and(|earlier| earlier != subject) {
        return Err(IdTokenError::Subject);
    }
    let issued_at = seconds(claims.get("iat")).ok_or(IdTokenError::Claim("iat"))?;
    let expires_at = seconds(claims.get("exp")).ok_or(IdTokenError::Claim("exp"))?;
    if expires_at <= expected.now.as_secs() {
        return Err(IdTokenError::Expired(difference(expected.now, issued_at)));
    }
    Ok(IdTokenClaims { subject: subject.to_owned(), issued_at, expires_at })
}

fn check_audience(claims: &Map<String, Value>, client_id: &str) -> Result<(), IdTokenError> {
    let audience = claims.get("aud").ok_or(IdTokenError::Claim("aud"))?;
    let several = audience.as_array().is_some_and(|audiences| audiences.len() > 1);
    let is_for_client = match audience {
        Value::String(audience) => audience == client_id,
        Value::Array(audiences) => audiences.iter().any(|audience| audience == client_id),
        _ => return Err(IdTokenError::Claim("aud")),
    };
    if !is_for_client {
        return Err(IdTokenError::Audience(shortened(&audience.to_string())));
    }
    match claims.get("azp") {
        Some(party) if party != client_id => Err(IdTokenError::Audience(shortened(&party.to_string()))),
        None if several => Err(IdTokenError::Claim("azp")),
        _ => Ok(()),
    }
}

/// A `NumericDate`, in whole seconds.
fn seconds(value: Option<&Value>) -> Option<u64> {
    let value = value?;
    value.as_u64().or_else(|| UnixTime::try_from_secs_f64(value.as_f64()?).ok().map(|time| time.as_secs()))
}

/// How far this machine's clock is ahead of the provider's, in seconds.
fn difference(now: UnixTime, issued_at: u64) -> i64 {
    i64::try_from(now.as_secs())
        .unwrap_or(i64::MAX)
        .saturating_sub(i64::try_from(issued_at).unwrap_or(i64::MAX))
}

fn clock_advice(difference: i64) -> String {
    let minutes = difference.unsigned_abs() / 60;
    let side = if difference < 0 { "behind" } else { "ahead of" };
    format!(
        "the clock of this machine is {minutes} minutes {side} the provider's\n  fix: set the clock, for example with NTP"
    )
}

impl IdTokenClaims {
    /// A warning if a clock is wrong.
    pub fn clock_warning(&self, now: UnixTime) -> Option<String> {
        let difference = difference(now, self.issued_at);
        (difference.unsigned_abs() > MAX_CLOCK_DIFFERENCE).then(|| {
            format!("warning: the new ID token seems old or of the future; {}", clock_advice(difference))
        })
    }

    /// When the token expires by this machine's clock, which may be behind the provider's.
    pub fn expires_by(&self, now: UnixTime) -> u64 {
        let lifetime = self.expires_at.saturating_sub(self.issued_at);
        self.expires_at.min(now.as_secs().saturating_add(lifetime))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::jwt::testing::Signer;

    const NOW: u64 = 1_800_000_000;

    fn claims() -> Value {
        json!({"iss": "https://issuer.test", "aud": "kubernetes", "sub": "alice", "nonce": "n", "iat": NOW - 5, "exp": NOW + 600})
    }

    fn expected<'a>() -> ExpectedIdToken<'a> {
        ExpectedIdToken {
            issuer: "https://issuer.test",
            client_id: "kubernetes",
            nonce: Some("n"),
            subject: None,
            now: UnixTime::from_secs(NOW),
        }
    }

    /// The verdict on the claims of a good token with these changed; `null` removes one.
    fn verdict(changes: &Value, expected: &ExpectedIdToken<'_>) -> Result<IdTokenClaims, IdTokenError> {
        let mut claims = claims().as_object().unwrap().clone();
        for (name, value) in changes.as_object().unwrap() {
            if value.is_null() {
                claims.remove(name);
            } else {
                claims.insert(name.clone(), value.clone());
            }
        }
        check_claims(&claims, expected)
    }

    #[test]
    fn the_claims_are_those_of_this_login() {
        use IdTokenError::{Audience, Claim, Expired, Issuer, Nonce};
        let cases = [
            (json!({}), None),
            (json!({"iss": "https://other.test"}), Some(Issuer("https://other.test".to_owned()))),
            (json!({"iss": "a".repeat(70_000)}), Some(Issuer(shortened(&"a".repeat(70_000))))),
            (json!({"iss": null}), Some(Claim("iss"))),
            (json!({"aud": "other"}), Some(Audience("\"other\"".to_owned()))),
            (json!({"aud": ["kubernetes"]}), None),
            (json!({"aud": ["kubernetes", "b"]}), Some(Claim("azp"))),
            (json!({"aud": ["kubernetes", "b"], "azp": "kubernetes"}), None),
            (json!({"azp": "b"}), Some(Audience("\"b\"".to_owned()))),
            (json!({"aud": 7}), Some(Claim("aud"))),
            (json!({"nonce": "other"}), Some(Nonce)),
            (json!({"nonce": null}), Some(Nonce)),
            (json!({"sub": null}), Some(Claim("sub"))),
            (json!({"sub": ""}), Some(Claim("sub"))),
            (json!({"exp": "soon"}), Some(Claim("exp"))),
            (json!({"exp": -1}), Some(Claim("exp"))),
            (json!({"iat": null}), Some(Claim("iat"))),
            (json!({"exp": NOW}), Some(Expired(5))),
        ];
        for (changes, error) in cases {
            assert_eq!(verdict(&changes, &expected()).err(), error, "{changes}");
        }
    }

    #[test]
    fn people_know_themselves_by_an_address_or_a_name() {
        let signer = Signer::new("ES256");
        let name = |claims: Value| {
            let token = signer.sign(&signer.header(), &claims.to_string());
            display_name(&token, "248289761001")
        };
        let sub = "248289761001";
        for (claims, expected) in [
            (
                json!({"sub": sub, "email": "a@b.test", "preferred_username": "a", "name": "A"}),
                Some("a@b.test"),
            ),
            (json!({"sub": sub, "email": "a@b.test", "email_verified": true}), Some("a@b.test")),
            (json!({"sub": sub, "email": "a@b.test", "email_verified": false, "name": "A"}), Some("A")),
            (json!({"sub": sub, "email": " ", "preferred_username": "a", "name": "A"}), Some("a")),
            (json!({"sub": sub, "email": 7, "name": "A"}), Some("A")),
            (json!({"sub": sub}), None),
            (json!({"sub": "another", "email": "a@b.test"}), None),
            (json!({"email": "a@b.test"}), None),
        ] {
            assert_eq!(name(claims.clone()).as_deref(), expected, "{claims}");
        }
        assert_eq!(display_name("opaque", sub), None);
    }

    #[test]
    fn a_refreshed_token_is_of_the_same_user() {
        let refreshed = ExpectedIdToken { nonce: None, subject: Some("bob"), ..expected() };
        assert_eq!(verdict(&json!({}), &refreshed), Err(IdTokenError::Subject));
    }

    #[test]
    fn a_clock_that_is_wrong_by_an_hour_is_named() {
        let ahead = verdict(&json!({"iat": NOW - 3600, "exp": NOW - 3000}), &expected()).unwrap_err();
        assert!(ahead.to_string().contains("60 minutes ahead of the provider's"), "{ahead}");
        let behind = verdict(&json!({"iat": NOW + 3600, "exp": NOW + 4200}), &expected()).unwrap();
        let now = UnixTime::from_secs(NOW);
        assert!(behind.clock_warning(now).unwrap().contains("60 minutes behind the provider's"));
        // The token lives as long as the provider says, from now on.
        assert_eq!(behind.expires_by(now), NOW + 600);
        assert_eq!(verdict(&json!({}), &expected()).unwrap().clock_warning(now), None);
    }

    #[test]
    fn the_signature_is_verified() {
        let (signer, other) = (Signer::new("ES256"), Signer::new("ES256"));
        let token = signer.sign(&signer.header(), &claims().to_string());
        assert!(verify(&token, std::slice::from_ref(&signer.public), &expected()).is_ok());
        for keys in [std::slice::from_ref(&other.public), &[]] {
            assert_eq!(verify(&token, keys, &expected()), Err(IdTokenError::Signature("ES256".to_owned())));
        }
    }

    #[test]
    fn an_algorithm_that_was_made_up_is_harmless_and_short() {
        let signer = Signer::new("ES256");
        let header = json!({"alg": format!("\u{1b}[2J{}", "x".repeat(30_000))});
        let token = signer.sign(&header.to_string(), &claims().to_string());
        let error =
            verify(&token, std::slice::from_ref(&signer.public), &expected()).unwrap_err().to_string();
        assert!(!error.contains('\u{1b}') && error.len() < 1000, "{error}");
    }
}
