//! The issuers of distributed claims. An endpoint chooses them, in an answer that is not verified yet, so their number is
//! bounded, and those that have signed nothing make room for others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::provider::{Provider, RETRY};
use crate::authn::jwt::key_set::REFRESH_INTERVAL;

/// The most issuers of distributed claims that are remembered.
pub(super) const MAX_ISSUERS: usize = 64;

/// The issuer of the tokens themselves, and those of their distributed claims.
#[derive(Debug)]
pub(super) struct ClaimIssuers {
    own: Arc<Provider>,
    others: Mutex<BTreeMap<String, ClaimIssuer>>,
}

#[derive(Debug)]
struct ClaimIssuer {
    provider: Arc<Provider>,
    /// Whether a token that it signed was verified.
    has_verified: bool,
    used: Instant,
}

impl ClaimIssuers {
    /// The issuer of the tokens alone.
    pub(super) fn new(own: Arc<Provider>) -> Self {
        Self { own, others: Mutex::default() }
    }

    /// The issuer of this name; none if there are too many.
    pub(super) fn provider(&self, issuer: &str) -> Option<Arc<Provider>> {
        if issuer == self.own.issuer() {
            return Some(Arc::clone(&self.own));
        }
        let mut others = self.others();
        let used = Instant::now();
        if let Some(known) = others.get_mut(issuer) {
            known.used = used;
            return Some(Arc::clone(&known.provider));
        }
        if others.len() >= MAX_ISSUERS {
            let idle = idle(&others)?;
            others.remove(&idle);
        }
        let provider = Arc::new(Provider::new(issuer.to_owned(), None, self.own.fetch(), None));
        let entry = ClaimIssuer { provider: Arc::clone(&provider), has_verified: false, used };
        others.insert(issuer.to_owned(), entry);
        Some(provider)
    }

    /// Notes that a token of an issuer was verified.
    pub(super) fn note_verified(&self, issuer: &str) {
        if let Some(known) = self.others().get_mut(issuer) {
            known.has_verified = true;
        }
    }

    /// Fetches the keys of all issuers of claims now and then, as those of the issuer of the tokens. Never ends.
    pub(super) async fn keep_fresh(&self) {
        loop {
            sleep(REFRESH_INTERVAL).await;
            let providers: Vec<_> = self.others().values().map(|known| Arc::clone(&known.provider)).collect();
            join_all(providers.iter().filter_map(|provider| Some(provider.keys()?.refresh()))).await;
        }
    }

    fn others(&self) -> MutexGuard<'_, BTreeMap<String, ClaimIssuer>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The issuer that makes room for another: one that has signed nothing, and was not asked a moment ago (its address is
/// not to be asked with every token); else one that no token has needed for long.
fn idle(others: &BTreeMap<String, ClaimIssuer>) -> Option<String> {
    let is_idle = |known: &ClaimIssuer| {
        known.used.elapsed() >= if known.has_verified { REFRESH_INTERVAL } else { RETRY }
    };
    let idle = others.iter().filter(|(_, known)| is_idle(known));
    let (issuer, _) = idle.min_by_key(|(_, known)| (known.has_verified, known.used))?;
    Some(issuer.clone())
}
