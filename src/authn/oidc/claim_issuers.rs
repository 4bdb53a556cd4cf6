//! The issuers of distributed claims. The claim endpoint names them in an unverified response, so their number is
//! limited; issuers without a verified token are evicted first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::future::join_all;
use portcullis_openid::jwt::key_set::REFRESH_INTERVAL;
use portcullis_system::sync::lock;
use tokio::time::{Instant, sleep};

use super::provider::{DISCOVERY_BACKOFF, OidcProvider};

/// Maximum number of cached issuers of distributed claims.
pub(super) const MAX_ISSUERS: usize = 64;

/// The issuer of the tokens and the issuers of their distributed claims.
#[derive(Debug)]
pub(super) struct ClaimIssuers {
    own: Arc<OidcProvider>,
    others: Mutex<BTreeMap<String, ClaimIssuer>>,
}

#[derive(Debug)]
struct ClaimIssuer {
    provider: Arc<OidcProvider>,
    /// Whether a token of this issuer was verified.
    has_verified: bool,
    used: Instant,
}

impl ClaimIssuers {
    /// Starts with the issuer of the tokens only.
    pub(super) fn new(own: Arc<OidcProvider>) -> Self {
        Self { own, others: Mutex::default() }
    }

    /// Returns the issuer, adding it if necessary; `None` if the cache is full and no issuer can be evicted.
    pub(super) fn provider(&self, issuer: &str) -> Option<Arc<OidcProvider>> {
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
        let provider = Arc::new(OidcProvider::new(issuer.to_owned(), None, self.own.fetch(), None));
        let entry = ClaimIssuer { provider: Arc::clone(&provider), has_verified: false, used };
        others.insert(issuer.to_owned(), entry);
        Some(provider)
    }

    /// Records that a token of the issuer was verified.
    pub(super) fn note_verified(&self, issuer: &str) {
        if let Some(known) = self.others().get_mut(issuer) {
            known.has_verified = true;
        }
    }

    /// Refreshes the keys of all claim issuers periodically, like those of the token issuer. Never returns.
    pub(super) async fn keep_fresh(&self) {
        loop {
            sleep(REFRESH_INTERVAL).await;
            let providers: Vec<_> = self.others().values().map(|known| Arc::clone(&known.provider)).collect();
            join_all(providers.iter().filter_map(|provider| Some(provider.keys()?.refresh()))).await;
        }
    }

    fn others(&self) -> MutexGuard<'_, BTreeMap<String, ClaimIssuer>> {
        lock(&self.others)
    }
}

/// Selects the issuer to evict: first one without a verified token, but not within [`DISCOVERY_BACKOFF`] of its last
/// use, because eviction would reset the backoff and let every token trigger a request; otherwise one unused for
/// [`REFRESH_INTERVAL`].
fn idle(others: &BTreeMap<String, ClaimIssuer>) -> Option<String> {
    let is_idle = |known: &ClaimIssuer| {
        known.used.elapsed() >= if known.has_verified { REFRESH_INTERVAL } else { DISCOVERY_BACKOFF }
    };
    let idle = others.iter().filter(|(_, known)| is_idle(known));
    let (issuer, _) = idle.min_by_key(|(_, known)| (known.has_verified, known.used))?;
    Some(issuer.clone())
}
