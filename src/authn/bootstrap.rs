//! Bootstrap tokens: secrets of type `bootstrap.kubernetes.io/token` in `kube-system`
//! (`--enable-bootstrap-token-auth`).
//!
//! Follows `k8s.io/kubernetes/plugin/pkg/auth/authenticator/token/bootstrap/bootstrap.go` and
//! `k8s.io/cluster-bootstrap`. Every defect of a token or its secret results in no opinion, so that a client cannot
//! find out which secrets exist.

use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use portcullis_go::time;
use portcullis_kubernetes::user::UserInfo;
use portcullis_pki::bootstrap_tokens::secret::{self, GROUP_PREFIX, SECRET_TYPE, TokenData, TokenUsage};
use portcullis_pki::bootstrap_tokens::token::split;
use portcullis_system::clock::UnixTime;
use secrecy::ExposeSecret as _;

use super::{
    Authenticated, AuthnError, AuthnMethod, AuthnVerdict, BearerToken, BoxFuture, TokenAuthenticator,
    TokenContext,
};
use crate::authn::token_getter::{Secret, TokenGetter};
use crate::authn::trace::{AuthnTrace, Check, StepOutcome};

const NAME: &str = AuthnMethod::BootstrapToken.name();

/// Authenticates the bootstrap tokens of a cluster.
#[derive(Debug)]
pub(crate) struct BootstrapTokens {
    getter: Arc<dyn TokenGetter>,
}

impl BootstrapTokens {
    /// Reads the secrets with `getter`.
    pub(crate) fn new(getter: Arc<dyn TokenGetter>) -> Self {
        Self { getter }
    }
}

impl TokenAuthenticator for BootstrapTokens {
    fn name(&self) -> &'static str {
        NAME
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a BearerToken,
        context: TokenContext<'a>,
    ) -> BoxFuture<'a, AuthnVerdict> {
        Box::pin(async move {
            let trace = context.trace;
            let Some((id, secret)) = split(token.expose()) else {
                trace.step(NAME, Check::Other("form"), StepOutcome::NotApplicable, || {
                    r"must match [a-z0-9]{6}\.[a-z0-9]{16}".to_owned()
                });
                return Ok(None);
            };
            let name = format!("bootstrap-token-{id}");
            let found = self.getter.bootstrap_secret(&name, context.owner).await;
            let found = found.map_err(|error| {
                trace.step(NAME, Check::BootstrapSecret, StepOutcome::Unavailable, || error.0.clone());
                AuthnError::Unavailable(error.0)
            })?;
            let Some(found) = found else {
                trace.step(NAME, Check::BootstrapSecret, StepOutcome::Failed, || {
                    format!("secret kube-system/{name} not found")
                });
                return Ok(None);
            };
            Ok(check_secret(&found, id, secret, context.now, trace).map(|(groups, expires)| {
                let user = UserInfo { groups, ..UserInfo::named(format!("system:bootstrap:{id}")) };
                Authenticated {
                    user: user.into(),
                    audiences: Vec::new(),
                    method: AuthnMethod::BootstrapToken,
                    certificates: None,
                    expires,
                }
            }))
        })
    }
}

/// Checks the secret of a token; returns the groups and the expiry of a valid one.
fn check_secret(
    found: &Secret,
    id: &str,
    own: &str,
    now: UnixTime,
    trace: &AuthnTrace,
) -> Option<(Vec<String>, Option<UnixTime>)> {
    let holds = |check: Check, holds: bool, detail: &dyn Fn() -> String| {
        let outcome = if holds { StepOutcome::Passed } else { StepOutcome::Failed };
        trace.step(NAME, check, outcome, detail);
        holds.then_some(())
    };
    holds(Check::BootstrapField("metadata.deletionTimestamp"), found.identity.deleted.is_none(), &|| {
        "must not be set".to_owned()
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
        &|| "must equal the part of the token after the dot".to_owned(),
    )?;
    holds(Check::BootstrapField(secret::ID), data.get(secret::ID) == id.as_bytes(), &|| {
        "must equal the part of the token before the dot".to_owned()
    })?;
    holds(Check::BootstrapExpiration, !data.has_expired(now), &|| match text(secret::EXPIRATION).as_ref() {
        "" => "none".to_owned(),
        expiration => format!("{expiration:?}, current time {}", time::format_since_epoch(now)),
    })?;
    let usage = TokenUsage::Authentication;
    holds(Check::BootstrapUsage(usage.key()), data.allows(usage), &|| {
        format!("{:?}, must be \"true\"", text(usage.key()))
    })?;
    let groups = data.groups();
    holds(Check::BootstrapField(secret::EXTRA_GROUPS), groups.is_some(), &|| {
        format!(
            "{:?}, must be a comma-separated list of {GROUP_PREFIX}… without spaces",
            text(secret::EXTRA_GROUPS)
        )
    })?;
    Some((groups?, data.expiration().ok().flatten().map(|end| end.since_epoch())))
}

/// Whether `text` has the form of a bootstrap token.
pub(crate) fn is_token(text: &str) -> bool {
    split(text).is_some()
}

#[cfg(test)]
mod tests;
