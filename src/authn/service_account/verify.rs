//! What both kinds of tokens have in common: form, issuer, signature, audiences, in this order.
// kubernetes: pkg/serviceaccount/jwt.go, jwtTokenAuthenticator

use serde::de::DeserializeOwned;

use super::checks::Checks;
use super::claims::Public;
use super::{Grounds, KeyRing};
use crate::authn::chain::intersection;
use crate::authn::jwt::Jwt;
use crate::authn::jwt::key_set::KeyError;
use crate::authn::trace::Check;
use crate::authn::{Audience, AuthnError, BearerToken, TokenContext};
use crate::go::json::DistinctObject;
use crate::go::quote::{Quoted, QuotedList};

const NO_KEYS: &str = "invalid signature, no keys found";
/// What kube-apiserver says of claims that cannot be read, as far as its words and ours have a like.
fn unreadable(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    match text.strip_prefix("duplicate field `").and_then(|rest| rest.strip_suffix('`')) {
        Some(field) => format!("json: duplicate key '{field}' in object"),
        None if text.starts_with("go-jose/") => text.to_owned(),
        None => format!("json: {text}"),
    }
}

/// Whatever is wrong with a signature.
const BAD_SIGNATURE: &str = "go-jose/go-jose: error in cryptographic primitive";
const NO_AUDIENCE: &str = "authentication.k8s.io/legacy-token";

/// What a token says, signed by its issuer.
#[derive(Debug)]
pub(super) struct Verified<P> {
    pub(super) public: Public,
    pub(super) private: P,
    /// The audiences that the token is good for, of those that are asked for.
    pub(super) audiences: Vec<Audience>,
}

/// Verifies a token; `None` if it is none of these issuers.
pub(super) async fn verify<P: DeserializeOwned>(
    token: &BearerToken,
    issuers: &[String],
    grounds: &Grounds,
    checks: Checks<'_>,
    context: TokenContext<'_>,
) -> Result<Option<Verified<P>>, AuthnError> {
    // What is of another issuer is not read any further.
    let issuer = token.issuer();
    if let Some(issuer) = issuer.filter(|issuer| !issuers.iter().any(|known| known == issuer)) {
        checks.skip("iss", format_args!("{}, must be one of {}", Quoted(issuer), QuotedList(issuers)));
        return Ok(None);
    }
    let jwt = match Jwt::parse(token.expose()) {
        Ok(jwt) => jwt,
        Err(malformed) => {
            checks.skip("form", malformed);
            return Ok(None);
        }
    };
    let Some(issuer) = issuer else {
        checks.skip("iss", format_args!("no text, must be one of {}", QuotedList(issuers)));
        return Ok(None);
    };
    checks.pass("iss", || issuer.to_owned());
    grounds.keys.verify(&jwt, checks).await?;
    // Whatever is passed over must be JSON too, and no deeper than other readers take it.
    jwt.claims().map_err(|error| checks.invalid("claims", format!("json: {error}")))?;
    let read = |error: serde_json::Error| checks.invalid("claims", unreadable(&error));
    let DistinctObject(public): DistinctObject<Public> =
        serde_json::from_slice(jwt.payload()).map_err(read)?;
    // The one that was looked at before is the same, unless both were read differently.
    if !issuers.contains(&public.issuer) {
        return Err(checks.invalid("iss", format!("token issuer {} is invalid", Quoted(&public.issuer))));
    }
    let DistinctObject(private) = serde_json::from_slice(jwt.payload()).map_err(read)?;
    let audiences = audiences(&public, grounds, checks, context)?;
    Ok(Some(Verified { public, private, audiences }))
}

impl KeyRing {
    async fn verify(&self, jwt: &Jwt<'_>, checks: Checks<'_>) -> Result<(), AuthnError> {
        let alg = Quoted(jwt.algorithm().unwrap_or_default());
        let kid = Quoted(jwt.key_id().unwrap_or_default());
        let check = Check::AccountSignature;
        let (signed, keys) = match self {
            Self::Fixed(keys) => (jwt.is_signed_by_one_of(keys), Some(keys.clone())),
            Self::Fetched(set) => {
                let verdict = set.verify(jwt).await;
                if let Err(error @ KeyError::Unavailable(_)) = &verdict {
                    return Err(checks.unavailable(check, error.to_string()));
                }
                (verdict.is_ok(), set.known())
            }
        };
        if signed {
            checks.pass(check, || format!("alg {alg}, kid {kid}"));
            return Ok(());
        }
        let fits = |id| jwt.key_id().is_none_or(|wanted| wanted == id);
        let candidates = keys.iter().flat_map(|keys| keys.iter()).filter(|key| fits(key.id())).count();
        Err(if candidates == 0 {
            checks.refuse(check, format_args!("no key with kid {kid}"), NO_KEYS)
        } else {
            let why = format_args!("none of {candidates} keys has signed it, alg {alg}, kid {kid}");
            checks.refuse(check, why, BAD_SIGNATURE)
        })
    }
}

fn audiences(
    claims: &Public,
    grounds: &Grounds,
    checks: Checks<'_>,
    context: TokenContext<'_>,
) -> Result<Vec<Audience>, AuthnError> {
    let own = &grounds.audiences;
    let named: Vec<_> = claims.audience.0.iter().cloned().map(Audience).collect();
    let named = if named.is_empty() {
        context.remarks.annotate(NO_AUDIENCE, &claims.subject);
        grounds.counters.legacy.inc();
        own
    } else {
        &named
    };
    let wanted = if context.audiences.is_empty() { own } else { context.audiences };
    let common = intersection(named, wanted);
    let [named, wanted] =
        [named, wanted].map(|list| list.iter().map(|one| one.0.as_str()).collect::<Vec<_>>());
    let [named, wanted] = [&named, &wanted].map(|list| QuotedList(list));
    if common.is_empty() && !own.is_empty() {
        let text = format!("token audiences {named} is invalid for the target audiences {wanted}");
        return Err(checks.invalid(Check::AccountAudience, text));
    }
    checks.pass(Check::AccountAudience, || format!("{named}, of which one at least must be in {wanted}"));
    Ok(common)
}
