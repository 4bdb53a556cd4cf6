//! Authenticators with fixed keys and objects, for tests that compare them with kube-apiserver's own.

use std::sync::Arc;

use portcullis_kubernetes::user::UserInfo;
use portcullis_limits::Owner;
use portcullis_openid::jwt::keys::VerificationKey;
use portcullis_system::clock::UnixTime;

use super::{AccountTokenDeps, KeyRing, ServiceAccountKeys, ServiceAccountSettings, authenticators_with};
use crate::authn::chain::{UnionErrorPolicy, token_union};
use crate::authn::token_getter::TokenGetter;
use crate::authn::trace::AuthnTrace;
use crate::authn::{Audience, BearerToken, TokenAuthenticator, TokenContext};
use crate::metrics::Metrics;

/// Authenticates legacy and bound service-account tokens.
#[derive(Debug)]
pub struct StaticAccountAuthenticator(Box<dyn TokenAuthenticator>);

impl StaticAccountAuthenticator {
    /// Builds the authenticators for an API server with these audiences; `None` if there are none.
    pub fn new(
        keys: Vec<VerificationKey>,
        issuers: Vec<String>,
        look_up: bool,
        lookup: Arc<dyn TokenGetter>,
        audiences: Vec<Audience>,
    ) -> Option<Self> {
        let keys = Arc::new(keys);
        let settings = ServiceAccountSettings {
            issuers,
            keys: ServiceAccountKeys::Files(Arc::clone(&keys)),
            lookup: look_up,
        };
        let counters = Metrics::new().service_accounts;
        let members = authenticators_with(
            &settings,
            AccountTokenDeps { keys: KeyRing::Fixed(keys), lookup, audiences, counters },
        );
        token_union(members, UnionErrorPolicy::Continue).map(Self)
    }

    /// The user of a token, and the requested audiences that it is valid for; `None` for a token of another issuer.
    pub async fn authenticate(
        &self,
        token: &str,
        audiences: &[Audience],
        now: UnixTime,
    ) -> Result<Option<(UserInfo, Vec<Audience>)>, String> {
        let trace = AuthnTrace::default();
        let context = TokenContext { audiences, owner: &Owner::Gateway, now, trace: &trace };
        let verdict = self.0.authenticate(&BearerToken::new(token), context).await;
        verdict
            .map(|found| found.map(|found| ((*found.user).clone(), found.audiences)))
            .map_err(|error| error.to_string())
    }
}
