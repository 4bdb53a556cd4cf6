//! The keys of an issuer, fetched when a token asks for one that is not known.
//!
//! Follows `github.com/coreos/go-oidc/oidc/jwks.go`: any token that no known key has signed asks for the keys anew.
//! Beyond it there is a floor between two fetches, so that bad tokens cannot multiply them: who comes earlier waits, and
//! all who wait share one fetch. Only so many may wait, so that tokens whose keys nobody knows do not take the places of
//! those that can be judged. Keys that are known stay while the issuer is away, and are asked for again now and then: one
//! that was withdrawn is not believed for ever just because nobody names a new one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use jsonwebtoken::jwk::Jwk;
use serde::Deserialize;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use super::Jwt;
use super::keys::PublicKey;
use crate::authn::BoxFuture;
use crate::go::json::JsonValue;
use crate::go::json::Object;

/// The least time between two fetches.
const FLOOR: Duration = Duration::from_secs(1);
/// How long a key that was withdrawn may go on, unless the issuer is away.
pub(crate) const REFRESH_INTERVAL: Duration = Duration::from_mins(5);
/// How many tokens may wait for a fetch. Each has one of the places of the cluster's token cache meanwhile, of which
/// some must be left whatever becomes of this issuer.
const WAITING: usize = 32;

/// Where a key set comes from.
pub trait KeySource: Send + Sync + fmt::Debug {
    /// Fetches it, as JSON (RFC 7517); the error is for the log. Ends in time by itself.
    fn fetch(&self) -> BoxFuture<'_, Result<Vec<u8>, String>>;

    /// Whose keys they are, for the log.
    fn name(&self) -> String;
}

/// The keys of one issuer.
#[derive(Debug)]
pub struct KeySet {
    source: Box<dyn KeySource>,
    keys: ArcSwapOption<Vec<PublicKey>>,
    last: Mutex<Option<Fetch>>,
    waiting: Semaphore,
    /// Whether the last refresh failed.
    is_failing: AtomicBool,
}

/// The last fetch.
#[derive(Debug)]
struct Fetch {
    began: Instant,
    /// Nothing if it was given up.
    outcome: Option<Result<(), String>>,
}

/// Why no key of the set has signed a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// None of the keys has.
    #[error("failed to verify id token signature")]
    NotSigned,
    /// The keys that are known have not, and there may be others.
    #[error("fetching keys {0}")]
    Unavailable(String),
}

impl KeySet {
    /// A set of which nothing is known yet.
    pub fn new(source: Box<dyn KeySource>) -> Self {
        let waiting = Semaphore::new(WAITING);
        let (keys, last) = (ArcSwapOption::empty(), Mutex::new(None));
        Self { source, keys, last, waiting, is_failing: AtomicBool::new(false) }
    }

    /// The keys that are known.
    pub fn known(&self) -> Option<Arc<Vec<PublicKey>>> {
        self.keys.load_full()
    }

    /// Fetches the keys if none are known yet.
    pub async fn initialize(&self) -> Result<(), KeyError> {
        if self.keys.load().is_some() { Ok(()) } else { self.fetch_since(Instant::now()).await }
    }

    /// Fetches the keys now and then. Never ends.
    // threat: withdrawn-key
    pub async fn keep_fresh(&self) {
        loop {
            sleep(REFRESH_INTERVAL).await;
            self.refresh().await;
        }
    }

    /// Fetches the keys. If that fails, the known ones stay, and the log says so once.
    pub async fn refresh(&self) {
        let fetched = self.fetch_since(Instant::now()).await;
        let was_failing = self.is_failing.swap(fetched.is_err(), Ordering::Relaxed);
        let source = || self.source.name();
        match fetched {
            Ok(()) if was_failing => info!(source = source(), "the keys of tokens are fetched again"),
            Err(error) if !was_failing => warn!(
                source = source(),
                %error,
                "the keys of tokens cannot be refreshed; the known ones are believed until they can: a key that was \
                 withdrawn meanwhile is believed too"
            ),
            Ok(()) | Err(_) => {}
        }
    }

    /// Whether one of the keys has signed the token: the one it names, or any if it names none.
    pub async fn verify(&self, jwt: &Jwt<'_>) -> Result<(), KeyError> {
        let asked = Instant::now();
        if self.is_signed(jwt) {
            return Ok(());
        }
        // Why not in a queue: a key that there is will be known a moment later, and a client can come again.
        let _waiting = self
            .waiting
            .try_acquire()
            .map_err(|_| KeyError::Unavailable("is what too many wait for".to_owned()))?;
        self.fetch_since(asked).await?;
        if self.is_signed(jwt) { Ok(()) } else { Err(KeyError::NotSigned) }
    }

    fn is_signed(&self, jwt: &Jwt<'_>) -> bool {
        self.keys.load().as_ref().is_some_and(|keys| jwt.is_signed_by_one_of(keys))
    }

    /// Sees to it that a fetch has begun after `asked` and ended.
    async fn fetch_since(&self, asked: Instant) -> Result<(), KeyError> {
        let mut last = self.last.lock().await;
        if let Some(fetch) = last.as_ref() {
            match &fetch.outcome {
                Some(outcome) if fetch.began >= asked => {
                    return outcome.clone().map_err(KeyError::Unavailable);
                }
                _ => sleep_until(fetch.began + FLOOR).await,
            }
        }
        let began = Instant::now();
        // Why before: requests that are taken back in the middle of a fetch must not multiply fetches either.
        *last = Some(Fetch { began, outcome: None });
        let outcome = match self.source.fetch().await {
            Ok(json) => read(&json).map(|keys| self.keys.store(Some(Arc::new(keys)))),
            Err(error) => Err(error),
        };
        *last = Some(Fetch { began, outcome: Some(outcome.clone()) });
        outcome.map_err(KeyError::Unavailable)
    }
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<JsonValue>,
}

/// Reads a key set. Keys of kinds that are not verified here are left out.
pub(crate) fn read(json: &[u8]) -> Result<Vec<PublicKey>, String> {
    let Object(document): Object<Document> =
        serde_json::from_slice(json).map_err(|error| format!("failed to decode keys: {error}"))?;
    let keys = document.keys.into_iter().filter_map(|JsonValue(key)| serde_json::from_value::<Jwk>(key).ok());
    Ok(keys.filter_map(|key| PublicKey::from_jwk(&key)).collect())
}

#[cfg(test)]
mod tests;
