//! Service-account tokens: bound tokens, which expire, and legacy tokens in secrets, which do not; certificates of pods.
//!
//! Follows `k8s.io/kubernetes/pkg/serviceaccount/{jwt,claims,legacy}.go` and
//! `k8s.io/apiserver/pkg/authentication/serviceaccount/util.go`. In addition, a failed lookup refuses the token as
//! unavailable, never as invalid, and a token is accepted in its canonical encoding only.

mod bound;
mod bound_objects;
mod checks;
mod claims;
#[doc(hidden)]
pub(crate) mod compared;
mod identity;
mod legacy;
mod objects;
mod pod_certificate;
mod verify;

use std::sync::Arc;

use portcullis_openid::jwt::key_set::KeySet;
use portcullis_openid::jwt::keys::VerificationKey;

use super::{Audience, TokenAuthenticator};
use crate::authn::token_getter::TokenGetter;
use crate::metrics::service_accounts::ServiceAccountMetrics;
pub(crate) use bound::BoundTokenAuthenticator;
pub(crate) use legacy::LegacyTokenAuthenticator;
pub(crate) use legacy::{LEGACY_TOKEN_KEY, LEGACY_TOKEN_LABELS};
pub(crate) use pod_certificate::PodCertificateAuthenticator;

/// Settings of service-account authentication.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceAccountSettings {
    /// The issuers of bound tokens; if empty, only legacy tokens are accepted.
    pub issuers: Vec<String>,
    /// The source of the keys for bound and legacy tokens.
    pub keys: ServiceAccountKeys,
    /// Whether the secret and the service account of a legacy token must exist.
    pub lookup: bool,
}

/// The source of the keys for service-account tokens.
#[derive(Debug, Clone)]
pub enum ServiceAccountKeys {
    /// Keys from files; at least one.
    Files(Arc<Vec<VerificationKey>>),
    /// The key set that the API server publishes.
    Backend,
}

/// Compares keys from files by ID: the IDs are digests of the keys.
impl PartialEq for ServiceAccountKeys {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Files(own), Self::Files(other)) => {
                own.iter().map(VerificationKey::id).eq(other.iter().map(VerificationKey::id))
            }
            (Self::Backend, Self::Backend) => true,
            (Self::Files(_), Self::Backend) | (Self::Backend, Self::Files(_)) => false,
        }
    }
}

/// Dependencies of both authenticators.
#[derive(Debug, Clone)]
pub(crate) struct AccountTokenDeps {
    /// The keys that verify tokens.
    pub(crate) keys: KeyRing,
    /// Looks up the objects that tokens depend on.
    pub(crate) lookup: Arc<dyn TokenGetter>,
    /// The audiences of the API server.
    pub(crate) audiences: Vec<Audience>,
    /// The metrics.
    pub(crate) counters: ServiceAccountMetrics,
}

/// The keys that verify tokens.
#[derive(Debug, Clone)]
pub(crate) enum KeyRing {
    /// A fixed list of keys.
    Fixed(Arc<Vec<VerificationKey>>),
    /// The API server's key set, shared by all its users.
    Fetched(Arc<KeySet>),
}

/// Builds the authenticators for `settings`, in kube-apiserver's order. `keys` returns the API server's key set and is
/// called for [`ServiceAccountKeys::Backend`] only.
// kubernetes: pkg/kubeapiserver/authenticator/config.go, Config.New
pub(crate) fn authenticators(
    settings: &ServiceAccountSettings,
    keys: impl FnOnce() -> Arc<KeySet>,
    lookup: Arc<dyn TokenGetter>,
    audiences: Vec<Audience>,
    counters: ServiceAccountMetrics,
) -> Vec<Box<dyn TokenAuthenticator>> {
    let keys = match &settings.keys {
        ServiceAccountKeys::Files(keys) => KeyRing::Fixed(Arc::clone(keys)),
        ServiceAccountKeys::Backend => KeyRing::Fetched(keys()),
    };
    authenticators_with(settings, AccountTokenDeps { keys, lookup, audiences, counters })
}

fn authenticators_with(
    settings: &ServiceAccountSettings,
    deps: AccountTokenDeps,
) -> Vec<Box<dyn TokenAuthenticator>> {
    let legacy = LegacyTokenAuthenticator::new(settings.lookup, deps.clone());
    let mut authenticators: Vec<Box<dyn TokenAuthenticator>> = vec![Box::new(legacy)];
    if !settings.issuers.is_empty() {
        authenticators.push(Box::new(BoundTokenAuthenticator::new(settings.issuers.clone(), deps)));
    }
    authenticators
}

#[cfg(test)]
mod tests;
