//! Checks that bound and legacy tokens share: format, issuer, signature and audiences, in this order.
// kubernetes: pkg/serviceaccount/jwt.go, jwtTokenAuthenticator

use portcullis_go::json::DistinctObject;
use portcullis_go::quote::{Quoted, QuotedList};
use portcullis_limits::Owner;
use portcullis_openid::jwt::key_set::KeySetError;
use portcullis_openid::jwt::{Jwt, VerificationBudget};
use serde::de::DeserializeOwned;

use super::checks::CheckRecorder;
use super::claims::PublicClaims;
use super::{AccountTokenDeps, KeyRing};
use crate::authn::chain::intersection;
use crate::authn::trace::Check;
use crate::authn::{Audience, AuthnError, BearerToken, TokenContext};

const NO_KEYS: &str = "invalid signature, no keys found";
/// Message for claims that cannot be decoded: kube-apiserver's, as far as `serde_json`'s errors correspond to Go's.
fn unreadable(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    match text.strip_prefix("duplicate field `").and_then(|rest| rest.strip_suffix('`')) {
        Some(field) => format!("json: duplicate key '{field}' in object"),
        None if text.starts_with("go-jose/") => text.to_owned(),
        None => format!("json: {text}"),
    }
}

/// Message for every invalid signature.
const BAD_SIGNATURE: &str = "go-jose/go-jose: error in cryptographic primitive";
const NO_AUDIENCE: &str = "authentication.k8s.io/legacy-token";

/// The claims of a token with a valid signature.
#[derive(Debug)]
pub(super) struct VerifiedClaims<P> {
    pub(super) public: PublicClaims,
    pub(super) private: P,
    /// The requested audiences that the token is valid for.
    pub(super) audiences: Vec<Audience>,
}

/// Verifies a token; `None` if its issuer is not one of `issuers`.
pub(super) async fn verify<P: DeserializeOwned>(
    token: &BearerToken,
    issuers: &[String],
    deps: &AccountTokenDeps,
    checks: CheckRecorder<'_>,
    context: TokenContext<'_>,
) -> Result<Option<VerifiedClaims<P>>, AuthnError> {
    // A token of another issuer is not parsed.
    let issuer = token.issuer();
    if let Some(issuer) = issuer.filter(|issuer| !issuers.iter().any(|known| known == issuer)) {
        checks.skip(
            Check::Other("iss"),
            format_args!("{}, must be one of {}", Quoted(issuer), QuotedList(issuers)),
        );
        return Ok(None);
    }
    let jwt = match Jwt::parse(token.expose()) {
        Ok(jwt) => jwt,
        Err(malformed) => {
            checks.skip(Check::Other("form"), malformed);
            return Ok(None);
        }
    };
    let Some(issuer) = issuer else {
        checks
            .skip(Check::Other("iss"), format_args!("not a string, must be one of {}", QuotedList(issuers)));
        return Ok(None);
    };
    checks.pass(Check::Other("iss"), || issuer.to_owned());
    deps.keys.verify(&jwt, checks, context.owner).await?;
    // The members that no struct has must be valid JSON too, within the depth that other parsers accept.
    jwt.claims().map_err(|error| checks.invalid(Check::Other("claims"), format!("json: {error}")))?;
    let read = |error: serde_json::Error| checks.invalid(Check::Other("claims"), unreadable(&error));
    let DistinctObject(public): DistinctObject<PublicClaims> =
        serde_json::from_slice(jwt.payload()).map_err(read)?;
    // Differs from the issuer above only if the two decoders disagree.
    if !issuers.contains(&public.issuer) {
        return Err(checks
            .invalid(Check::Other("iss"), format!("token issuer {} is invalid", Quoted(&public.issuer))));
    }
    let DistinctObject(private) = serde_json::from_slice(jwt.payload()).map_err(read)?;
    let audiences = audiences(&public, deps, checks, context)?;
    Ok(Some(VerifiedClaims { public, private, audiences }))
}

impl KeyRing {
    async fn verify(
        &self,
        jwt: &Jwt<'_>,
        checks: CheckRecorder<'_>,
        owner: &Owner,
    ) -> Result<(), AuthnError> {
        let alg = Quoted(jwt.algorithm().unwrap_or_default());
        let kid = Quoted(jwt.key_id().unwrap_or_default());
        let check = Check::AccountSignature;
        let (signed, keys) = match self {
            Self::Fixed(keys) => {
                (jwt.is_signed_by_one_of(keys, VerificationBudget::CONFIGURED), Some(keys.clone()))
            }
            Self::Fetched(set) => {
                let verdict = set.verify(jwt, owner).await;
                if let Err(error @ KeySetError::Unavailable(_)) = &verdict {
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
            let why = format_args!("not signed by any of {candidates} keys, alg {alg}, kid {kid}");
            checks.refuse(check, why, BAD_SIGNATURE)
        })
    }
}

fn audiences(
    claims: &PublicClaims,
    deps: &AccountTokenDeps,
    checks: CheckRecorder<'_>,
    context: TokenContext<'_>,
) -> Result<Vec<Audience>, AuthnError> {
    let own = &deps.audiences;
    let named: Vec<_> = claims.audience.0.iter().cloned().map(Audience).collect();
    let named = if named.is_empty() {
        context.trace.annotate(NO_AUDIENCE, &claims.subject);
        deps.counters.legacy.inc();
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
    checks.pass(Check::AccountAudience, || format!("{named}; at least one must be in {wanted}"));
    Ok(common)
}
