//! One shard of the cache: stored verdicts and lookups in progress, under a lock that is held only for a map access.

use std::collections::HashMap;
use std::mem::size_of;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use portcullis_http::identity::TEXT_OVERHEAD;
use portcullis_system::clock::UnixTime;
use portcullis_system::expiring_lru::ExpiringLru;
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::{AuthnError, AuthnVerdict};
use super::key::CacheKey;
use crate::authn::trace::TraceRecord;

/// Result of a lookup.
#[derive(Debug)]
pub(super) struct LookupOutcome {
    pub(super) verdict: AuthnVerdict,
    pub(super) record: TraceRecord,
}

/// A lookup in progress, which sends its outcome once. The channel closes without an outcome if the request that began
/// the lookup is cancelled before it starts.
pub(super) type PendingLookup = watch::Receiver<Option<Arc<LookupOutcome>>>;

/// State of a key.
pub(super) enum CacheEntry {
    /// The stored outcome.
    Hit(Arc<LookupOutcome>),
    /// Another request's lookup is in progress.
    Pending(PendingLookup),
    /// Neither: the caller must start a lookup and send its outcome here.
    Vacant(watch::Sender<Option<Arc<LookupOutcome>>>),
}

/// One shard of a cache.
#[derive(Debug)]
pub(super) struct CacheShard {
    stored: ExpiringLru<CacheKey, Arc<LookupOutcome>>,
    pending: HashMap<CacheKey, PendingLookup>,
    /// Tokens whose last verdict was a success, including those whose verdict has expired.
    good: Option<LruCache<CacheKey, ()>>,
}

impl CacheShard {
    /// Stores outcomes of `capacity` bytes in total, and the keys of `good_tokens` tokens whose last verdict was a
    /// success.
    pub(super) fn new(capacity: usize, good_tokens: usize) -> Self {
        let good = NonZeroUsize::new(good_tokens).map(LruCache::new);
        Self { stored: ExpiringLru::new(capacity), pending: HashMap::new(), good }
    }

    /// Whether the last verdict on a token was a success.
    pub(super) fn was_good(&self, key: &CacheKey) -> bool {
        self.good.as_ref().is_some_and(|good| good.contains(key))
    }

    /// Records whether the last verdict on a token is a success.
    pub(super) fn set_good(&mut self, key: CacheKey, is_good: bool) {
        let Some(good) = &mut self.good else { return };
        if is_good {
            good.put(key, ());
        } else {
            good.pop(&key);
        }
    }

    /// Returns the state of a key and registers a pending lookup for a vacant one. `now` is compared with the expiry of
    /// credentials, `instant` with that of cache entries: setting the clock back must not prolong them.
    pub(super) fn entry(&mut self, key: CacheKey, now: UnixTime, instant: Instant) -> CacheEntry {
        if let Some(stored) = self.stored.get(&key, instant)
            && stored.holds_at(now)
        {
            return CacheEntry::Hit(Arc::clone(stored));
        }
        if let Some(pending) = self.pending.get(&key) {
            return CacheEntry::Pending(pending.clone());
        }
        let (sender, receiver) = watch::channel(None);
        self.pending.insert(key, receiver);
        CacheEntry::Vacant(sender)
    }

    /// Removes the pending lookup of `key`, which has ended or will not start.
    pub(super) fn remove_pending(&mut self, key: &CacheKey) {
        self.pending.remove(key);
    }

    /// Stores an outcome, and evicts expired entries and, beyond the capacity, the least recently used ones.
    pub(super) fn store(
        &mut self,
        key: CacheKey,
        outcome: Arc<LookupOutcome>,
        until: Instant,
        instant: Instant,
    ) {
        let weight = outcome.weight();
        self.stored.put(key, outcome, weight, until, instant);
    }

    #[cfg(test)]
    pub(super) fn stored_count(&self) -> usize {
        self.stored.len()
    }

    #[cfg(test)]
    pub(super) fn pending_count(&self) -> usize {
        self.pending.len()
    }
}

impl LookupOutcome {
    /// An error without a trace record.
    pub(super) fn of(error: AuthnError) -> Self {
        Self { verdict: Err(error), record: TraceRecord::default() }
    }

    /// Whether the credential of a success has not expired.
    pub(super) fn holds_at(&self, now: UnixTime) -> bool {
        match &self.verdict {
            Ok(Some(found)) => found.expires.is_none_or(|expires| now < expires),
            Ok(None) | Err(_) => true,
        }
    }

    /// Approximate memory of a stored outcome: its texts and the overhead of each.
    fn weight(&self) -> usize {
        let text = |text: &String| TEXT_OVERHEAD + text.len();
        let verdict = match &self.verdict {
            Ok(Some(found)) => {
                found.user.weight() + found.audiences.iter().map(|audience| text(&audience.0)).sum::<usize>()
            }
            Ok(None) => 0,
            Err(error) => text(&error.to_string()),
        };
        let record = self.record.warnings.iter().map(text).sum::<usize>()
            + self.record.annotations.iter().map(|(key, value)| text(key) + text(value)).sum::<usize>();
        size_of::<CacheKey>() + size_of::<Self>() + 304 + verdict + record
    }
}
