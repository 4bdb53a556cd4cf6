//! Bound tokens: valid until they expire or a bound object is deleted.
// kubernetes: pkg/serviceaccount/claims.go, validator

use portcullis_system::clock::UnixTime;

use super::AccountTokenDeps;
use super::bound_objects::{BoundObjects, LEEWAY, NodeOfPod};
use super::checks::CheckRecorder;
use super::claims::{BoundClaims, ClaimedObject, KubernetesClaim, NumericDate, PublicClaims};
use super::identity;
use super::objects::within_timeout;
use super::verify::{VerifiedClaims, verify};
use crate::authn::trace::Check;
use crate::authn::{
    Authenticated, AuthnError, AuthnMethod, AuthnVerdict, BearerToken, BoxFuture, TokenAuthenticator,
    TokenContext,
};

const NAME: &str = AuthnMethod::ServiceAccount.name();
const WEBHOOK_BOUND: &str =
    r#"feature gate "APIServerWebhookAuthenticationToken" is disabled, but token is webhook bound"#;
const STALE: &str = "authentication.k8s.io/stale-token";

/// Authenticates the bound tokens of some issuers.
#[derive(Debug)]
pub(crate) struct BoundTokenAuthenticator {
    issuers: Vec<String>,
    deps: AccountTokenDeps,
}

impl BoundTokenAuthenticator {
    /// Accepts the tokens of `issuers`.
    pub(crate) fn new(issuers: Vec<String>, deps: AccountTokenDeps) -> Self {
        Self { issuers, deps }
    }

    async fn authenticate_token(&self, token: &BearerToken, context: TokenContext<'_>) -> AuthnVerdict {
        let checks = CheckRecorder { name: NAME, trace: context.trace };
        let verified = verify::<BoundClaims>(token, &self.issuers, &self.deps, checks, context).await?;
        let Some(VerifiedClaims { public, private, audiences }) = verified else { return Ok(None) };
        let BoundClaims { kubernetes: claims } = private;
        check_times(&public, context.now, checks)?;
        let KubernetesClaim { namespace, service_account, secret, pod, node, .. } = &claims;
        let objects = BoundObjects {
            namespace,
            service_account: service_account.bound(),
            secret: secret.as_ref().map(ClaimedObject::bound),
            pod: pod.as_ref().map(ClaimedObject::bound),
            node: node.as_ref().map(ClaimedObject::bound),
            node_of_pod: NodeOfPod::Unchecked,
        };
        within_timeout(checks, objects.check(&*self.deps.lookup, checks, context.now)).await?;
        refuse_webhook_bound(&claims, checks)?;
        if let Some(date) = claims.warn_after.filter(|date| date.0 != 0) {
            self.warn_after(date, &public.subject, checks, context.now);
        }
        let mut user = identity::user(namespace, &service_account.name, &service_account.uid);
        let credential = (!public.id.is_empty()).then(|| format!("JTI={}", public.id));
        user.extra = identity::extra(credential, objects.pod, objects.node);
        checks.pass(Check::Other("user"), || user.name.clone());
        let expires = public.expiry.and_then(|date| u64::try_from(date.0).ok());
        let expires = expires.map(|seconds| UnixTime::from_secs(seconds).saturating_add(LEEWAY));
        Ok(Some(Authenticated {
            user: user.into(),
            audiences,
            method: AuthnMethod::ServiceAccount,
            certificates: None,
            expires,
        }))
    }

    /// Counts a token past its `warnafter` as stale and annotates the audit event; the token stays valid.
    fn warn_after(&self, date: NumericDate, subject: &str, checks: CheckRecorder<'_>, now: UnixTime) {
        if is_after(now, date, 0) {
            let late = seconds(now).0.saturating_sub(date.0);
            let text = format!("subject: {subject}, seconds after warning threshold: {late}");
            checks.pass(Check::Other("warnafter"), || text.clone());
            checks.trace.annotate(STALE, text);
            self.deps.counters.stale.inc();
        } else {
            checks.pass(Check::Other("warnafter"), || format!("not before {}", date.0));
            self.deps.counters.valid.inc();
        }
    }
}

impl TokenAuthenticator for BoundTokenAuthenticator {
    fn name(&self) -> &'static str {
        NAME
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, AuthnVerdict> {
        Box::pin(self.authenticate_token(token, context))
    }
}

/// Refuses a token that is bound to a configuration of webhooks: whether that exists would have to be checked, and such a
/// token is for its webhooks alone. A token may not come from the API servers behind the gateway, so every release refuses it.
// kubernetes: pkg/serviceaccount/claims.go, with APIServerWebhookAuthenticationToken off, its default
fn refuse_webhook_bound(claims: &KubernetesClaim, checks: CheckRecorder<'_>) -> Result<(), AuthnError> {
    if claims.validating_webhooks.is_some() || claims.mutating_webhooks.is_some() {
        return Err(checks.invalid(Check::Other("webhook configuration"), WEBHOOK_BOUND));
    }
    Ok(())
}

// go-jose v2: jwt/validation.go, ValidateWithLeeway
fn check_times(claims: &PublicClaims, now: UnixTime, checks: CheckRecorder<'_>) -> Result<(), AuthnError> {
    let leeway = i64::try_from(LEEWAY.as_secs()).unwrap_or_default();
    let limits: [(Check, Option<NumericDate>, bool, &str); 3] = [
        (Check::NotBefore, claims.not_before, false, "service account token is not valid yet"),
        (Check::Expiry, claims.expiry, true, "service account token has expired"),
        (Check::IssuedAt, claims.issued_at, false, "service account token is issued in the future"),
    ];
    for (check, date, is_end, text) in limits {
        let Some(date) = date else {
            checks.skip(check, "none");
            continue;
        };
        let detail = || format!("{}; now {}, leeway {} s", date.0, now.as_secs(), LEEWAY.as_secs());
        let holds = if is_end { !is_after(now, date, leeway) } else { !is_before(now, date, leeway) };
        if !holds {
            return Err(checks.refuse(check, detail(), text));
        }
        checks.pass(check, detail);
    }
    Ok(())
}

/// Whether `now` is more than `leeway` seconds after `date`.
fn is_after(now: UnixTime, date: NumericDate, leeway: i64) -> bool {
    seconds(now) > (date.0.saturating_add(leeway), 0)
}

/// Whether `now` is more than `leeway` seconds before `date`.
fn is_before(now: UnixTime, date: NumericDate, leeway: i64) -> bool {
    seconds(now) < (date.0.saturating_sub(leeway), 0)
}

/// Splits a time into seconds and nanoseconds.
fn seconds(now: UnixTime) -> (i64, u32) {
    (i64::try_from(now.as_secs()).unwrap_or(i64::MAX), now.subsec_nanos())
}
