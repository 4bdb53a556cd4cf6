//! Bootstrap tokens: secrets of type `bootstrap.kubernetes.io/token` in `kube-system` (`--enable-bootstrap-token-auth`).
//!
//! Follows `k8s.io/kubernetes/plugin/pkg/auth/authenticator/token/bootstrap/bootstrap.go` and
//! `k8s.io/cluster-bootstrap`. Whatever is wrong with a token or its secret is no opinion, so that a client learns
//! nothing of which secrets there are.

use std::collections::BTreeSet;
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use k8s_openapi::jiff::Timestamp;
use secrecy::ExposeSecret as _;

use super::lookup::{Lookup, Secret};
use super::remarks::{Outcome, Remarks};
use super::{Authenticated, AuthnError, BearerToken, BoxFuture, TokenAuthenticator, TokenContext, Verdict};
use crate::clock::{self, UnixTime};
use crate::user::UserInfo;

const METHOD: &str = "bootstrap-token";
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
const GROUP: &str = "system:bootstrappers";
const GROUP_PREFIX: &str = "system:bootstrappers:";
const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;
const GROUP_NAME_LENGTH: usize = 256;

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
                remarks.step(METHOD, "secret", Outcome::Failed, || format!("there is no kube-system/{name}"));
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
    secret: &str,
    now: UnixTime,
    remarks: &Remarks,
) -> Option<(Vec<String>, Option<UnixTime>)> {
    let holds = |check: &str, holds: bool, detail: &dyn Fn() -> String| {
        let outcome = if holds { Outcome::Passed } else { Outcome::Failed };
        remarks.step(METHOD, check, outcome, detail);
        holds.then_some(())
    };
    holds("metadata.deletionTimestamp", found.identity.deleted.is_none(), &|| {
        "the secret must not be on its way out".to_owned()
    })?;
    holds("type", found.kind == SECRET_TYPE && !found.data.is_empty(), &|| {
        format!("{:?}, must be {SECRET_TYPE:?}", found.kind)
    })?;
    let own = found.data.get("token-secret").map_or(&[][..], |data| data.expose_secret());
    holds("token-secret", verify_slices_are_equal(own, secret.as_bytes()).is_ok(), &|| {
        "the token's second part must be the one in the secret".to_owned()
    })?;
    let text = |key: &str| found.data.get(key).map(|data| String::from_utf8_lossy(data.expose_secret()));
    let text = |key: &str| text(key).unwrap_or_default();
    holds("token-id", text("token-id") == id, &|| "must be the token's first part".to_owned())?;
    let expiration = text("expiration");
    let expires = expiry(&expiration);
    holds("expiration", expires.is_ok_and(|expires| expires.is_none_or(|expires| now < expires)), &|| {
        match expiration.as_ref() {
            "" => "none".to_owned(),
            expiration => format!("{expiration:?}, and it is {}", clock::rfc3339(now)),
        }
    })?;
    let usage = text("usage-bootstrap-authentication");
    holds("usage-bootstrap-authentication", usage == "true", &|| format!("{usage:?}, must be \"true\""))?;
    let extra = text("auth-extra-groups");
    let groups = groups(&extra);
    holds("auth-extra-groups", groups.is_some(), &|| {
        format!("{extra:?}, must be {GROUP_PREFIX}…, separated by commas alone")
    })?;
    Some((groups?, expires.ok().flatten()))
}

/// Whether it has the form of a bootstrap token.
pub(crate) fn is_token(text: &str) -> bool {
    split(text).is_some()
}

/// The id and the secret of what has the form of a token.
// cluster-bootstrap: token/api/types.go, BootstrapTokenPattern
fn split(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let fits = |part: &str, length| {
        part.len() == length && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    (fits(id, ID_LENGTH) && fits(secret, SECRET_LENGTH)).then_some((id, secret))
}

/// It is no time, or one before 1970: the token has expired.
#[derive(Debug, Clone, Copy)]
struct NoTime;

/// When a token expires; nothing never does.
// cluster-bootstrap: util/secrets/secrets.go, HasExpired and GetExpiration
fn expiry(expiration: &str) -> Result<Option<UnixTime>, NoTime> {
    if expiration.is_empty() {
        return Ok(None);
    }
    if !is_rfc3339(expiration) {
        return Err(NoTime);
    }
    let expiration: Timestamp = expiration.parse().map_err(|_| NoTime)?;
    let since_epoch = expiration.duration_since(Timestamp::UNIX_EPOCH);
    UnixTime::try_from(since_epoch).map(Some).map_err(|_| NoTime)
}

/// Whether it has the form that Go reads as RFC 3339, and no leap second; other forms of ISO 8601 are none.
// Go: time/format_rfc3339.go
fn is_rfc3339(text: &str) -> bool {
    const FORM: &[u8] = b"dddd-dd-ddTdd:dd:dd";
    let fits = |(byte, form): (u8, &u8)| if *form == b'd' { byte.is_ascii_digit() } else { byte == *form };
    let rest = text.get(FORM.len()..).unwrap_or_default();
    let zone =
        rest.strip_prefix('.').map_or(rest, |rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    let zone_fits = zone == "Z"
        || zone.len() == "+dd:dd".len()
            && zone.bytes().zip(b"sdd:dd").all(|(byte, form)| match form {
                b's' => matches!(byte, b'+' | b'-'),
                _ => fits((byte, form)),
            });
    text.bytes().zip(FORM).all(fits) && zone_fits && text.get(17..19).is_some_and(|seconds| seconds < "60")
}

/// Sorted and without duplicates; `None` if one of the further groups is no bootstrappers' group.
// cluster-bootstrap: util/secrets/secrets.go, GetGroups; token/api/types.go, BootstrapGroupPattern
fn groups(extra: &str) -> Option<Vec<String>> {
    let mut groups = BTreeSet::from([GROUP.to_owned()]);
    for group in extra.split(',').filter(|_| !extra.is_empty()) {
        let name = group.strip_prefix(GROUP_PREFIX)?.as_bytes();
        let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let fits = name.len() <= GROUP_NAME_LENGTH
            && name.last().is_some_and(plain)
            && name.iter().all(|byte| plain(byte) || matches!(byte, b':' | b'-'));
        groups.insert(fits.then(|| group.to_owned())?);
    }
    Some(groups.into_iter().collect())
}

#[cfg(test)]
mod tests;
