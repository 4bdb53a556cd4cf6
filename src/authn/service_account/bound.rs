//! Bound tokens: they expire, and end with the object they are bound to.
// kubernetes: pkg/serviceaccount/claims.go, validator

use std::time::Duration;

use super::Grounds;
use super::checks::Checks;
use super::claims::{Bound, Date, Kubernetes, Public, Reference};
use super::identity;
use super::objects::{Place, in_time};
use super::verify::{Verified, verify};
use crate::authn::token_getter::{Found, Identity, ServiceAccount};
use crate::authn::trace::Check;
use crate::authn::{
    Authenticated, AuthnError, BearerToken, BoxFuture, TokenAuthenticator, TokenContext, Verdict,
};
use crate::clock::UnixTime;

const METHOD: &str = "service-account";
/// How far clocks may be apart, and how long what is deleted may go on.
const LEEWAY: Duration = Duration::from_mins(1);
const INVALIDATED: &str = "service account token has been invalidated";
const STALE: &str = "authentication.k8s.io/stale-token";

/// Knows the tokens of some issuers.
#[derive(Debug)]
pub struct BoundTokens {
    issuers: Vec<String>,
    grounds: Grounds,
}

impl BoundTokens {
    /// Takes the tokens of these issuers.
    pub(crate) fn new(issuers: Vec<String>, grounds: Grounds) -> Self {
        Self { issuers, grounds }
    }

    async fn judge(&self, token: &BearerToken, context: TokenContext<'_>) -> Verdict {
        let checks = Checks { name: METHOD, remarks: context.remarks };
        let verified = verify::<Bound>(token, &self.issuers, &self.grounds, checks, context).await?;
        let Some(Verified { public, private, audiences }) = verified else { return Ok(None) };
        let Bound { kubernetes: claims } = private;
        check_times(&public, context.now, checks)?;
        in_time(checks, self.look_up(&claims, checks, context.now)).await?;
        if let Some(date) = claims.warn_after.filter(|date| date.0 != 0) {
            self.warn_after(date, &public.subject, checks, context.now);
        }
        let account = &claims.service_account;
        let mut user = identity::user(&claims.namespace, &account.name, &account.uid);
        user.extra = identity::extra(&public.id, claims.pod.as_ref(), claims.node.as_ref());
        checks.pass("user", || user.name.clone());
        let expires = public.expiry.and_then(|date| u64::try_from(date.0).ok());
        let expires = expires.map(|seconds| UnixTime::from_secs(seconds).saturating_add(LEEWAY));
        Ok(Some(Authenticated { user: user.into(), audiences, method: METHOD, expires }))
    }

    /// Whether everything that it is bound to is still there.
    async fn look_up(
        &self,
        claims: &Kubernetes,
        checks: Checks<'_>,
        now: UnixTime,
    ) -> Result<(), AuthnError> {
        let lookup = &self.grounds.lookup;
        let namespace = claims.namespace.as_str();
        let bonds = Bonds { now, checks };
        let account = &claims.service_account;
        bonds.service_account(namespace, account, lookup.service_account(namespace, &account.name)).await?;
        if let Some(claim) = &claims.secret {
            let asked = lookup.secret(namespace, &claim.name);
            bonds.still("secret", Some(namespace), claim, asked, |secret| &secret.identity).await?;
        }
        if let Some(claim) = &claims.pod {
            let asked = lookup.pod(namespace, &claim.name);
            bonds.still("pod", Some(namespace), claim, asked, |pod| pod).await?;
        }
        match (&claims.node, &claims.pod) {
            (Some(claim), None) => {
                bonds.still("node", None, claim, lookup.node(&claim.name), |node| node).await?;
            }
            (Some(_), Some(_)) => {
                checks.skip("node", "the token is bound to a pod: its node is told, not looked at");
            }
            (None, _) => {}
        }
        Ok(())
    }

    /// Whether it should have been replaced by now; it is good all the same.
    fn warn_after(&self, date: Date, subject: &str, checks: Checks<'_>, now: UnixTime) {
        if is_after(now, date, 0) {
            let late = seconds(now).0.saturating_sub(date.0);
            let text = format!("subject: {subject}, seconds after warning threshold: {late}");
            checks.pass("warnafter", || text.clone());
            checks.remarks.annotate(STALE, text);
            self.grounds.counters.stale.inc();
        } else {
            checks.pass("warnafter", || format!("not before {}", date.0));
            self.grounds.counters.valid.inc();
        }
    }
}

impl TokenAuthenticator for BoundTokens {
    fn name(&self) -> &'static str {
        METHOD
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, Verdict> {
        Box::pin(self.judge(token, context))
    }
}

/// What a token is bound to.
#[derive(Clone, Copy)]
struct Bonds<'a> {
    now: UnixTime,
    checks: Checks<'a>,
}

impl Bonds<'_> {
    async fn service_account(
        self,
        namespace: &str,
        claim: &Reference,
        asked: BoxFuture<'_, Found<ServiceAccount>>,
    ) -> Result<(), AuthnError> {
        let Self { checks, .. } = self;
        let check = Check::ServiceAccount;
        let place = Place { kind: "serviceaccount", namespace: Some(namespace), name: &claim.name };
        let found =
            place.ask(asked, checks).await?.map_err(|problem| checks.invalid(check.clone(), problem))?;
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

    /// Whether the object is still the one that was there when the token was made.
    async fn still<T>(
        self,
        kind: &'static str,
        namespace: Option<&str>,
        claim: &Reference,
        asked: BoxFuture<'_, Found<T>>,
        identity: impl Fn(&T) -> &Identity,
    ) -> Result<(), AuthnError> {
        let Self { checks, .. } = self;
        let place = Place { kind, namespace, name: &claim.name };
        let found = place.ask(asked, checks).await?;
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

    fn is_gone(self, object: &Identity) -> bool {
        object.deleted.is_some_and(|deleted| deleted.saturating_add(LEEWAY) < self.now)
    }
}

// go-jose v2: jwt/validation.go, ValidateWithLeeway
fn check_times(claims: &Public, now: UnixTime, checks: Checks<'_>) -> Result<(), AuthnError> {
    let leeway = i64::try_from(LEEWAY.as_secs()).unwrap_or_default();
    let limits: [(Check, Option<Date>, bool, &str); 3] = [
        (Check::NotBefore, claims.not_before, false, "service account token is not valid yet"),
        (Check::Expiry, claims.expiry, true, "service account token has expired"),
        (Check::IssuedAt, claims.issued_at, false, "service account token is issued in the future"),
    ];
    for (check, date, is_end, text) in limits {
        let Some(date) = date else {
            checks.skip(check, "none");
            continue;
        };
        let detail =
            || format!("{}, and it is {}, {} s apart at most", date.0, now.as_secs(), LEEWAY.as_secs());
        let holds = if is_end { !is_after(now, date, leeway) } else { !is_before(now, date, leeway) };
        if !holds {
            return Err(checks.refuse(check, detail(), text));
        }
        checks.pass(check, detail);
    }
    Ok(())
}

/// Whether `now` lies behind `date` by more than `leeway` seconds.
fn is_after(now: UnixTime, date: Date, leeway: i64) -> bool {
    seconds(now) > (date.0.saturating_add(leeway), 0)
}

/// Whether `now` lies before `date` by more than `leeway` seconds.
fn is_before(now: UnixTime, date: Date, leeway: i64) -> bool {
    seconds(now) < (date.0.saturating_sub(leeway), 0)
}

/// Whole seconds and nanoseconds.
fn seconds(now: UnixTime) -> (i64, u32) {
    (i64::try_from(now.as_secs()).unwrap_or(i64::MAX), now.subsec_nanos())
}
