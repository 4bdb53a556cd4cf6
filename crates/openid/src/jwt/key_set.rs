//! The signing keys of an issuer (JWKS), fetched when no cached key verifies a token.
//!
//! Follows `github.com/coreos/go-oidc/oidc/jwks.go`: a token that no cached key verifies triggers a fetch. In addition,
//! fetches are rate limited, so that bad tokens cannot multiply them; callers that arrive sooner wait and share the
//! next fetch. The number of waiting callers is limited, for all owners and for each one, so that tokens with unknown keys cannot
//! use up the capacity for tokens with cached keys, nor one client that of the others. Cached keys stay in use while the issuer is unreachable. A periodic refresh removes
//! keys that the issuer has revoked, even if no token triggers a fetch.
//!
//! A fetch is not a lookup of `portcullis_limits::shared_lookup`: a caller may share only a fetch that began after it came, and the
//! keys count until others replace them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use portcullis_go::json::JsonValue;
use portcullis_go::json::Object;
use portcullis_limits::Owner;
use portcullis_limits::fair_limiter::{FairLimiter, Shares};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use super::keys::{UnsupportedKey, UnusableKey, VerificationKey};
use super::{Jwt, VerificationBudget};
use futures_util::future::BoxFuture;

/// Minimum time between two fetches.
const MIN_FETCH_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the periodic refresh: how long a revoked key may stay valid while the issuer is reachable.
pub const REFRESH_INTERVAL: Duration = Duration::from_mins(5);
/// Maximum number of tokens waiting for a fetch. Each occupies a place in the cluster's token cache, and one unreachable
/// issuer must not occupy all of them.
// threat: key-fetch-flood
pub const WAITING: Shares = Shares::new(128, 32);

/// Of how many keys that cannot be used it is kept why, and the longest ID of one in characters. An issuer publishes what it likes.
const MAX_EXPLAINED_KEYS: usize = 32;
const MAX_EXPLAINED_ID: usize = 200;

/// Fetches the key set of an issuer.
pub trait JwksSource: Send + Sync + fmt::Debug {
    /// Fetches the key set as JSON (RFC 7517), with a timeout of its own. The error is for the log.
    fn fetch(&self) -> BoxFuture<'_, Result<Vec<u8>, String>>;

    /// The issuer's name for the log.
    fn name(&self) -> String;
}

/// The cached keys of one issuer.
#[derive(Debug)]
pub struct KeySet {
    source: Box<dyn JwksSource>,
    keys: ArcSwapOption<Vec<VerificationKey>>,
    /// The published keys that cannot be used, by their IDs.
    unusable: ArcSwap<Vec<(String, UnusableKey)>>,
    last: Mutex<Option<LastFetch>>,
    waiting: FairLimiter,
    /// Whether the last refresh failed.
    is_failing: AtomicBool,
    /// Whether the log has a warning of keys that cannot be used.
    has_warned: AtomicBool,
}

/// The last fetch.
#[derive(Debug)]
struct LastFetch {
    began: Instant,
    /// `None` if the fetch was cancelled.
    outcome: Option<Result<(), String>>,
}

/// Why a key set does not verify a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeySetError {
    /// None of the keys verifies the signature.
    #[error("failed to verify id token signature")]
    NotSigned,
    /// No cached key verifies the signature, and the current keys could not be fetched.
    #[error("fetching keys {0}")]
    Unavailable(String),
}

impl KeySet {
    /// Returns an empty set; the first [`Self::verify`] fetches the keys.
    pub fn new(source: Box<dyn JwksSource>) -> Self {
        let (keys, last) = (ArcSwapOption::empty(), Mutex::new(None));
        let unusable = ArcSwap::default();
        let waiting = FairLimiter::new(WAITING);
        let [is_failing, has_warned] = [false, false].map(AtomicBool::new);
        Self { source, keys, unusable, last, waiting, is_failing, has_warned }
    }

    /// The cached keys, once a fetch has succeeded.
    pub fn known(&self) -> Option<Arc<Vec<VerificationKey>>> {
        self.keys.load_full()
    }

    /// Why the published key with this ID cannot be used.
    pub fn problem_of(&self, id: &str) -> Option<UnusableKey> {
        let unusable = self.unusable.load();
        unusable.iter().find(|(unusable, _)| unusable == id).map(|(_, problem)| *problem)
    }

    /// Fetches the keys unless a fetch has succeeded; one that is under way may be that. A failure is logged as by
    /// [`Self::refresh`].
    pub async fn initialize(&self) -> Result<(), KeySetError> {
        let requested = Instant::now();
        let mut last = self.last.lock().await;
        if self.keys.load().is_some() {
            return Ok(());
        }
        let fetched = self.fetch(&mut last, requested).await;
        self.note(&fetched);
        fetched
    }

    /// Refreshes the keys periodically. Never returns.
    // threat: withdrawn-key
    pub async fn keep_fresh(&self) {
        loop {
            sleep(REFRESH_INTERVAL).await;
            self.refresh().await;
        }
    }

    /// Fetches the keys. After a failure the cached keys stay in use; the first failure in a row is logged.
    pub async fn refresh(&self) {
        let fetched = self.fetch_since(Instant::now()).await;
        self.note(&fetched);
    }

    fn note(&self, fetched: &Result<(), KeySetError>) {
        let was_failing = self.is_failing.swap(fetched.is_err(), Ordering::Relaxed);
        let source = || self.source.name();
        match fetched {
            Ok(()) if was_failing => info!(source = source(), "token signing keys refreshed again"),
            Err(error) if !was_failing => warn!(
                source = source(),
                %error,
                "cannot refresh the token signing keys; the cached keys stay in use, including keys revoked since the \
                 last refresh"
            ),
            Ok(()) | Err(_) => {}
        }
    }

    /// Verifies the signature of a token; fetches the keys if no cached key does, which counts in the share of `owner`.
    pub async fn verify(&self, jwt: &Jwt<'_>, owner: &Owner) -> Result<(), KeySetError> {
        let requested = Instant::now();
        if self.is_signed(jwt) {
            return Ok(());
        }
        // Fails instead of queueing: one fetch caches every existing key, and the client can retry.
        let _waiting = self
            .waiting
            .try_acquire(owner.clone(), 1)
            .ok_or_else(|| KeySetError::Unavailable("refused: too many tokens are waiting".to_owned()))?;
        self.fetch_since(requested).await?;
        if self.is_signed(jwt) { Ok(()) } else { Err(KeySetError::NotSigned) }
    }

    fn is_signed(&self, jwt: &Jwt<'_>) -> bool {
        self.keys
            .load()
            .as_ref()
            .is_some_and(|keys| jwt.is_signed_by_one_of(keys, VerificationBudget::PUBLISHED))
    }

    /// Completes a fetch that began at or after `requested`, or shares one.
    async fn fetch_since(&self, requested: Instant) -> Result<(), KeySetError> {
        let mut last = self.last.lock().await;
        self.fetch(&mut last, requested).await
    }

    /// The same, for the holder of the lock on the last fetch.
    async fn fetch(&self, last: &mut Option<LastFetch>, requested: Instant) -> Result<(), KeySetError> {
        if let Some(fetch) = last.as_ref() {
            match &fetch.outcome {
                Some(outcome) if fetch.began >= requested => {
                    return outcome.clone().map_err(KeySetError::Unavailable);
                }
                _ => sleep_until(fetch.began + MIN_FETCH_INTERVAL).await,
            }
        }
        let began = Instant::now();
        // Recorded before the fetch: requests cancelled during a fetch must not multiply fetches.
        *last = Some(LastFetch { began, outcome: None });
        let outcome = match self.source.fetch().await {
            Ok(json) => parse(&json).map(|parsed| self.replace(parsed)),
            Err(error) => Err(error),
        };
        *last = Some(LastFetch { began, outcome: Some(outcome.clone()) });
        outcome.map_err(KeySetError::Unavailable)
    }

    fn replace(&self, parsed: ParsedKeys) {
        if let Some((id, problem)) = parsed.problem()
            && !self.has_warned.swap(true, Ordering::Relaxed)
        {
            warn!(source = self.source.name(), kid = id, %problem, "skipped a token signing key that is published");
        }
        self.keys.store(Some(Arc::new(parsed.usable)));
        self.unusable.store(Arc::new(parsed.unusable));
    }
}

/// The keys of a key set.
struct ParsedKeys {
    usable: Vec<VerificationKey>,
    /// The first of the others, with their IDs.
    unusable: Vec<(String, UnusableKey)>,
}

impl ParsedKeys {
    /// The first key that the issuer could mend, by its ID. Keys of other kinds and for other uses are usual.
    fn problem(&self) -> Option<(&str, UnusableKey)> {
        let is_usual = |problem: UnusableKey| {
            matches!(problem, UnusableKey::Use | UnusableKey::Unsupported(UnsupportedKey::Unknown))
        };
        let found = self.unusable.iter().find(|(_, problem)| !is_usual(*problem));
        found.map(|(id, problem)| (id.as_str(), *problem))
    }
}

#[derive(Deserialize)]
struct JwksDocument {
    keys: Vec<JsonValue>,
}

/// Parses a key set, without the keys that are not supported.
pub fn read(json: &[u8]) -> Result<Vec<VerificationKey>, String> {
    parse(json).map(|parsed| parsed.usable)
}

fn parse(json: &[u8]) -> Result<ParsedKeys, String> {
    let Object(document): Object<JwksDocument> =
        serde_json::from_slice(json).map_err(|error| format!("failed to decode keys: {error}"))?;
    let mut parsed = ParsedKeys { usable: Vec::new(), unusable: Vec::new() };
    for JsonValue(key) in &document.keys {
        match VerificationKey::from_jwk(key) {
            Ok(key) => parsed.usable.push(key),
            Err(problem) if parsed.unusable.len() < MAX_EXPLAINED_KEYS => {
                let id = key.get("kid").and_then(|id| id.as_str()).unwrap_or_default();
                parsed.unusable.push((id.chars().take(MAX_EXPLAINED_ID).collect(), problem));
            }
            Err(_) => {}
        }
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests;
