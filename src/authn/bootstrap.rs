//! Bootstrap tokens: secrets of type `bootstrap.kubernetes.io/token` in `kube-system` (`--enable-bootstrap-token-auth`).
//!
//! Follows `k8s.io/kubernetes/plugin/pkg/auth/authenticator/token/bootstrap/bootstrap.go` and
//! `k8s.io/cluster-bootstrap`. Whatever is wrong with a token or its secret is no opinion, so that a client learns
//! nothing of which secrets there are.

use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use secrecy::ExposeSecret as _;

use super::{Authenticated, AuthnError, BearerToken, BoxFuture, TokenAuthenticator, TokenContext, Verdict};
use crate::authn::token_getter::{Lookup, Secret};
use crate::authn::trace::{Check, Outcome, Remarks};
use crate::clock::{self, UnixTime};
use crate::pki::bootstrap_tokens::secret::{self, GROUP_PREFIX, SECRET_TYPE, TokenData, Usage};
use crate::pki::bootstrap_tokens::token::split;
use crate::user::UserInfo;

const METHOD: &str = "bootstrap-token";

/// Knows the bootstrap tokens of a cluster.
#[derive(Debug)]
pub struct BootstrapTokens {
    lookup: Arc<dyn Lookup>,
}

impl BootstrapTokens {
    /// Looks secrets up there.
    pub fn new(lookup: Arc<dyn Lookup>) -> Self {
        Self { lookup }
    }
}

impl TokenAuthenticator for BootstrapTokens {
    fn name(&self) -> &'static str {
        METHOD
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let remarks = context.remarks;
            let Some((id, secret)) = split(token.expose()) else {
                remarks.step(METHOD, "form", Outcome::NotApplicable, || {
                    "not six characters, a dot and sixteen, of a-z and 0-9".to_owned()
                });
                return Ok(None);
            };
            let name = format!("bootstrap-token-{id}");
            let found = self.lookup.bootstrap_secret(&name).await;
            let Some(found) = found.map_err(|error| AuthnError::Unavailable(error.0))? else {
                remarks.step(METHOD, Check::BootstrapSecret, Outcome::Failed, || {
                    format!("there is no kube-system/{name}")
                });
                return Ok(None);
            };
            Ok(judge(&found, id, secret, context.now, remarks).map(|(groups, expires)| {
                let user = UserInfo { groups, ..UserInfo::named(format!("system:bootstrap:{id}")) };
                Authenticated { user: user.into(), audiences: Vec::new(), method: METHOD, expires }
            }))
        })
    }
}

/// The groups of a token whose secret this is, and until when it is good, if everything is in order.
fn judge(
    found: &Secret,
    id: &str,
    own: &str,
    now: UnixTime,
    remarks: &Remarks,
) -> Option<(Vec<String>, Option<UnixTime>)> {
    let holds = |check: Check, holds: bool, detail: &dyn Fn() -> String| {
        let outcome = if holds { Outcome::Passed } else { Outcome::Failed };
        remarks.step(METHOD, check, outcome, detail);
        holds.then_some(())
    };
    holds(Check::BootstrapField("metadata.deletionTimestamp"), found.identity.deleted.is_none(), &|| {
        "the secret must not be on its way out".to_owned()
    })?;
    holds(Check::BootstrapField("type"), found.kind == SECRET_TYPE && !found.data.is_empty(), &|| {
        format!("{:?}, must be {SECRET_TYPE:?}", found.kind)
    })?;
    let data: TokenData<'_> =
        found.data.iter().map(|(key, value)| (key.as_str(), value.expose_secret())).collect();
    let text = |key: &str| String::from_utf8_lossy(data.get(key));
    holds(
        Check::BootstrapTokenSecret,
        verify_slices_are_equal(data.get(secret::SECRET), own.as_bytes()).is_ok(),
        &|| "the token's second part must be the one in the secret".to_owned(),
    )?;
    holds(Check::BootstrapField(secret::ID), data.get(secret::ID) == id.as_bytes(), &|| {
        "must be the token's first part".to_owned()
    })?;
    holds(Check::BootstrapExpiration, !data.has_expired(now), &|| match text(secret::EXPIRATION).as_ref() {
        "" => "none".to_owned(),
        expiration => format!("{expiration:?}, and it is {}", clock::rfc3339(now)),
    })?;
    let usage = Usage::Authentication;
    holds(Check::BootstrapUsage(usage.key()), data.allows(usage), &|| {
        format!("{:?}, must be \"true\"", text(usage.key()))
    })?;
    let groups = data.groups();
    holds(Check::BootstrapField(secret::EXTRA_GROUPS), groups.is_some(), &|| {
        format!("{:?}, must be {GROUP_PREFIX}…, separated by commas alone", text(secret::EXTRA_GROUPS))
    })?;
    Some((groups?, data.expiration().ok().flatten().map(|end| end.at())))
}

/// Whether it has the form of a bootstrap token.
pub(crate) fn is_token(text: &str) -> bool {
    split(text).is_some()
}

#[cfg(test)]
mod tests;
