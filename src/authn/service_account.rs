//! Service-account tokens: those that are bound to an object and expire, and those in secrets, which last.
//!
//! Follows `k8s.io/kubernetes/pkg/serviceaccount/{jwt,claims,legacy}.go` and
//! `k8s.io/apiserver/pkg/authentication/serviceaccount/util.go`. Beyond them, a question that the API server does not
//! answer refuses the token as one that could not be checked. Tokens are taken in the one spelling that was signed.

mod bound;
mod checks;
mod claims;
#[doc(hidden)]
pub mod compared;
mod identity;
mod legacy;
mod objects;
mod verify;

use std::sync::Arc;

use super::jwt::key_set::KeySet;
use super::jwt::keys::PublicKey;
use super::{Audience, TokenAuthenticator};
use crate::authn::token_getter::Lookup;
use crate::metrics::service_accounts::ServiceAccountMetrics as Counters;
pub use bound::BoundTokens;
pub use legacy::LegacyTokens;
pub(crate) use legacy::{LEGACY_TOKEN_KEY, LEGACY_TOKEN_LABELS};

/// Which service-account tokens are taken.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceAccounts {
    /// The issuers of bound tokens; may be empty, then only legacy tokens are taken.
    pub issuers: Vec<String>,
    /// The keys of both kinds.
    pub keys: Keys,
    /// Whether the secret and the service account of a legacy token must still be there.
    pub lookup: bool,
}

/// Where the keys of service-account tokens come from.
#[derive(Debug, Clone)]
pub enum Keys {
    /// From files; at least one.
    Files(Arc<Vec<PublicKey>>),
    /// From the API server's own key set.
    Backend,
}

/// Keys from files are the same if their ids are: these are digests of the keys.
impl PartialEq for Keys {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Files(own), Self::Files(other)) => {
                own.iter().map(PublicKey::id).eq(other.iter().map(PublicKey::id))
            }
            (Self::Backend, Self::Backend) => true,
            (Self::Files(_), Self::Backend) | (Self::Backend, Self::Files(_)) => false,
        }
    }
}

/// What both kinds of tokens are judged with.
#[derive(Debug, Clone)]
pub(crate) struct Grounds {
    /// The keys in force.
    pub(crate) keys: KeyRing,
    /// Where the objects are that tokens depend on.
    pub(crate) lookup: Arc<dyn Lookup>,
    /// The audiences of this API server.
    pub(crate) audiences: Vec<Audience>,
    /// What is counted.
    pub(crate) counters: Counters,
}

/// Keys that tokens are verified with.
#[derive(Debug, Clone)]
pub(crate) enum KeyRing {
    /// These and no others.
    Fixed(Arc<Vec<PublicKey>>),
    /// Those of the API server's own key set, shared by everybody who needs them.
    Fetched(Arc<KeySet>),
}

/// The authenticators of the tokens that `settings` take, in kube-apiserver's order. `keys` are those of the API server,
/// for settings that ask for them.
// kubernetes: pkg/kubeapiserver/authenticator/config.go, Config.New
pub(crate) fn authenticators(
    settings: &ServiceAccounts,
    keys: impl FnOnce() -> Arc<KeySet>,
    lookup: Arc<dyn Lookup>,
    audiences: Vec<Audience>,
    counters: Counters,
) -> Vec<Box<dyn TokenAuthenticator>> {
    let keys = match &settings.keys {
        Keys::Files(keys) => KeyRing::Fixed(Arc::clone(keys)),
        Keys::Backend => KeyRing::Fetched(keys()),
    };
    on(settings, Grounds { keys, lookup, audiences, counters })
}

fn on(settings: &ServiceAccounts, grounds: Grounds) -> Vec<Box<dyn TokenAuthenticator>> {
    let legacy = LegacyTokens::new(settings.lookup, grounds.clone());
    let mut authenticators: Vec<Box<dyn TokenAuthenticator>> = vec![Box::new(legacy)];
    if !settings.issuers.is_empty() {
        authenticators.push(Box::new(BoundTokens::new(settings.issuers.clone(), grounds)));
    }
    authenticators
}

#[cfg(test)]
mod tests;
