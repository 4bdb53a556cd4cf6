//! Bound tokens: valid until they expire or a bound object is deleted.
// kubernetes: pkg/serviceaccount/claims.go, validator

use std::time::Duration;

use portcullis_system::clock::UnixTime;

use super::AccountTokenDeps;
use super::checks::CheckRecorder;
use super::claims::{BoundClaims, ClaimedObject, KubernetesClaim, NumericDate, PublicClaims};
use super::identity;
use super::objects::{ObjectLookup, within_timeout};
use super::verify::{VerifiedClaims, verify};
use crate::authn::token_getter::{GetResult, ObjectIdentity, ServiceAccount};
use crate::authn::trace::Check;
use crate::authn::{
    Authenticated, AuthnError, AuthnMethod, AuthnVerdict, BearerToken, BoxFuture, TokenAuthenticator,
    TokenContext,
};

const NAME: &str = AuthnMethod::ServiceAccount.name();
/// Accepted clock skew, and how long a token stays valid after the deletion of a bound object.
const LEEWAY: Duration = Duration::from_mins(1);
const INVALIDATED: &str = "service account token has been invalidated";
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
        within_timeout(checks, self.look_up(&claims, checks, context.now)).await?;
        if let Some(date) = claims.warn_after.filter(|date| date.0 != 0) {
            self.warn_after(date, &public.subject, checks, context.now);
        }
        let account = &claims.service_account;
        let mut user = identity::user(&claims.namespace, &account.name, &account.uid);
        user.extra = identity::extra(&public.id, claims.pod.as_ref(), claims.node.as_ref());
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

    /// Checks that every bound object exists. Refuses a token that is bound to a configuration of webhooks.
    async fn look_up(
        &self,
        claims: &KubernetesClaim,
        checks: CheckRecorder<'_>,
        now: UnixTime,
    ) -> Result<(), AuthnError> {
        let lookup = &self.deps.lookup;
        let namespace = claims.namespace.as_str();
        let objects = BoundObjectChecks { now, checks };
        let account = &claims.service_account;
        objects.service_account(namespace, account, lookup.service_account(namespace, &account.name)).await?;
        if let Some(claim) = &claims.secret {
            let found = lookup.secret(namespace, &claim.name);
            objects.check_object("secret", Some(namespace), claim, found, |secret| &secret.identity).await?;
        }
        if let Some(claim) = &claims.pod {
            let found = lookup.pod(namespace, &claim.name);
            objects.check_object("pod", Some(namespace), claim, found, |pod| pod).await?;
        }
        match (&claims.node, &claims.pod) {
            (Some(claim), None) => {
                objects.check_object("node", None, claim, lookup.node(&claim.name), |node| node).await?;
            }
            (Some(_), Some(_)) => {
                checks.skip(Check::Other("node"), "not checked: the token is bound to a pod");
            }
            (None, _) => {}
        }
        // Whether the configuration still exists would have to be checked, and such a token is for its webhooks alone. A token
        // may not come from the API servers behind the gateway, so every release refuses it.
        // kubernetes: pkg/serviceaccount/claims.go, with APIServerWebhookAuthenticationToken off, its default
        if claims.validating_webhooks.is_some() || claims.mutating_webhooks.is_some() {
            return Err(checks.invalid(Check::Other("webhook configuration"), WEBHOOK_BOUND));
        }
        Ok(())
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

/// Checks the objects that a token is bound to.
#[derive(Clone, Copy)]
struct BoundObjectChecks<'a> {
    now: UnixTime,
    checks: CheckRecorder<'a>,
}

impl BoundObjectChecks<'_> {
    async fn service_account(
        self,
        namespace: &str,
        claim: &ClaimedObject,
        lookup: BoxFuture<'_, GetResult<ServiceAccount>>,
    ) -> Result<(), AuthnError> {
        let Self { checks, .. } = self;
        let check = Check::ServiceAccount;
        let object = ObjectLookup { kind: "serviceaccount", namespace: Some(namespace), name: &claim.name };
        let found =
            object.get(lookup, checks).await?.map_err(|problem| checks.invalid(check.clone(), problem))?;
        let live = &found.identity;
        if live.uid != claim.uid {
            let text = format!("service account UID ({}) does not match claim ({})", live.uid, claim.uid);
            return Err(checks.invalid(check.clone(), text));
        }
        if self.is_gone(live) {
            let text = format!("service account {namespace}/{} has been deleted", claim.name);
            return Err(checks.invalid(check.clone(), text));
        }
        checks.pass(check, || format!("{namespace}/{}, uid {}", claim.name, claim.uid));
        Ok(())
    }

    /// Checks that the object exists, with the UID in the claim, and is not deleted.
    async fn check_object<T>(
        self,
        kind: &'static str,
        namespace: Option<&str>,
        claim: &ClaimedObject,
        lookup: BoxFuture<'_, GetResult<T>>,
        identity: impl Fn(&T) -> &ObjectIdentity,
    ) -> Result<(), AuthnError> {
        let Self { checks, .. } = self;
        let object = ObjectLookup { kind, namespace, name: &claim.name };
        let found = object.get(lookup, checks).await?;
        let found = found.map_err(|problem| checks.refuse(Check::BoundObject(kind), problem, INVALIDATED))?;
        let live = identity(&found);
        if live.uid != claim.uid {
            let text = format!(
                "{kind} UID ({}) does not match service account {kind} ref claim ({})",
                live.uid, claim.uid
            );
            return Err(checks.invalid(Check::BoundObject(kind), text));
        }
        if self.is_gone(live) {
            return Err(checks.refuse(
                Check::BoundObject(kind),
                format_args!("{} has been deleted", claim.name),
                INVALIDATED,
            ));
        }
        checks.pass(Check::BoundObject(kind), || format!("{}, uid {}", claim.name, claim.uid));
        Ok(())
    }

    fn is_gone(self, object: &ObjectIdentity) -> bool {
        object.deleted.is_some_and(|deleted| deleted.saturating_add(LEEWAY) < self.now)
    }
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
