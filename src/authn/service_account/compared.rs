//! The authenticators of one API server over objects that are given, for comparison with kube-apiserver's own.

use std::sync::Arc;

use super::{Grounds, KeyRing, Keys, ServiceAccounts, on};
use crate::authn::chain::{OnError, token_union};
use crate::authn::jwt::keys::PublicKey;
use crate::authn::token_getter::Lookup;
use crate::authn::trace::Remarks;
use crate::authn::{Audience, BearerToken, TokenAuthenticator, TokenContext};
use crate::clock::UnixTime;
use crate::metrics::Metrics;
use crate::user::UserInfo;

/// Judges service-account tokens, legacy and bound ones.
#[derive(Debug)]
pub struct AccountTokenJudge(Box<dyn TokenAuthenticator>);

impl AccountTokenJudge {
    /// A judge for an API server with these audiences. `None` if no token would be taken.
    pub fn new(
        keys: Vec<PublicKey>,
        issuers: Vec<String>,
        look_up: bool,
        lookup: Arc<dyn Lookup>,
        audiences: Vec<Audience>,
    ) -> Option<Self> {
        let keys = Arc::new(keys);
        let settings = ServiceAccounts { issuers, keys: Keys::Files(Arc::clone(&keys)), lookup: look_up };
        let counters = Metrics::new().service_accounts;
        let members = on(&settings, Grounds { keys: KeyRing::Fixed(keys), lookup, audiences, counters });
        token_union(members, OnError::Continue).map(Self)
    }

    /// The user of a token, and those of the audiences asked for that it is good for; `None` if it is of another issuer.
    pub async fn judge(
        &self,
        token: &str,
        audiences: &[Audience],
        now: UnixTime,
    ) -> Result<Option<(UserInfo, Vec<Audience>)>, String> {
        let remarks = Remarks::default();
        let context = TokenContext { audiences, now, remarks: &remarks };
        let verdict = self.0.authenticate(&BearerToken::new(token), context).await;
        verdict
            .map(|found| found.map(|found| ((*found.user).clone(), found.audiences)))
            .map_err(|error| error.to_string())
    }
}
