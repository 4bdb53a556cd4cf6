//! The tokens whose last verdict was a success, including those whose verdict has expired.

use std::num::NonZeroUsize;
use std::sync::Mutex;

use lru::LruCache;
use portcullis_system::sync::lock;

use super::key::CacheKey;

/// The most recent tokens whose last verdict was a success.
#[derive(Debug)]
pub(super) struct GoodTokens(Option<Mutex<LruCache<CacheKey, ()>>>);

impl GoodTokens {
    /// Records at most so many.
    pub(super) fn new(capacity: usize) -> Self {
        Self(NonZeroUsize::new(capacity).map(|capacity| Mutex::new(LruCache::new(capacity))))
    }

    /// Whether the last verdict on a token was a success.
    pub(super) fn contains(&self, key: &CacheKey) -> bool {
        self.0.as_ref().is_some_and(|tokens| lock(tokens).contains(key))
    }

    /// Records whether the last verdict on a token is a success.
    pub(super) fn set(&self, key: CacheKey, is_good: bool) {
        let Some(tokens) = &self.0 else { return };
        if is_good {
            lock(tokens).put(key, ());
        } else {
            lock(tokens).pop(&key);
        }
    }
}
