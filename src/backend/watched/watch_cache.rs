//! A cache of the objects that watches report, reduced to the parts that tokens are verified against.
//!
//! The cache is used only while positive evidence shows that it was up to date at a recent time: a complete list, a
//! bookmark, or a quiet watch that ended regularly. Data may be delayed on its way, so each is evidence for the time at
//! which the list or watch was requested, and not for the time at which it arrived. An event is not evidence: more
//! events may be queued behind it. Silence and failures are not evidence either: [`FRESH_FOR`] after the last evidence
//! the cache returns nothing until there is new evidence.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use portcullis_http::identity::TEXT_OVERHEAD;
use portcullis_limits::cache_budget::{CacheMemory, CacheShare};
use portcullis_system::sync::lock;

/// Namespace and name; objects without a namespace have an empty one.
pub(crate) type Key = (String, String);

/// How long the cache is fresh after the time of the last evidence; longer than two quiet watches. A read may take 10
/// s, and a verdict is cached for 10 s from the start of its read, so a token is accepted for at most 30 s after its
/// object was deleted.
pub(crate) const FRESH_FOR: Duration = Duration::from_secs(20);

/// The memory of all objects of one resource: more than 200,000 pods need.
const MAX_BYTES: usize = 64 << 20;
/// The same at a tenant's cluster, whose API servers may make up any number of objects: enough for 50,000 pods.
// threat: tenant-lists
const MAX_TENANT_BYTES: usize = MAX_BYTES / 4;
/// The approximate memory of an entry beyond its key and its object.
const ENTRY_OVERHEAD: usize = 64;

/// The cached objects of one resource.
#[derive(Debug)]
pub(crate) struct WatchCache<V> {
    state: Mutex<CacheState<V>>,
    confirmed: Notify,
}

/// Objects by their keys, of a bounded size together.
#[derive(Debug)]
pub(crate) struct CachedObjects<V> {
    objects: HashMap<Key, Arc<V>>,
    bytes: usize,
    max_bytes: usize,
    share: CacheShare,
    memory: CacheMemory,
}

/// There is no memory for an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CacheFull {
    /// The objects have more than this.
    #[error("the objects need more than {0} bytes of memory")]
    Own(usize),
    /// The caches of this cluster, or of all clusters that Secrets configure, have all that they may take.
    #[error("the caches of clusters that Secrets configure have no memory left (--max-buffered-bytes)")]
    OfTenants,
}

/// What is cached of an object.
pub(crate) trait Cacheable {
    /// Its approximate memory.
    fn memory(&self) -> usize;
}

impl Cacheable for BTreeMap<String, String> {
    fn memory(&self) -> usize {
        self.iter().map(|(key, value)| key.len() + value.len() + 2 * TEXT_OVERHEAD).sum()
    }
}

impl<V> Default for CachedObjects<V> {
    fn default() -> Self {
        Self::new(false, &CacheShare::UNBOUNDED)
    }
}

impl<V> CachedObjects<V> {
    /// None yet, of a cluster that is a tenant's or not, in the share of its caches.
    pub(crate) fn new(is_of_tenant: bool, share: &CacheShare) -> Self {
        let max_bytes = if is_of_tenant { MAX_TENANT_BYTES } else { MAX_BYTES };
        Self::bounded(max_bytes, share)
    }

    /// None, with the same bounds.
    pub(crate) fn none(&self) -> Self {
        Self::bounded(self.max_bytes, &self.share)
    }

    fn bounded(max_bytes: usize, share: &CacheShare) -> Self {
        Self { objects: HashMap::new(), bytes: 0, max_bytes, share: share.clone(), memory: share.memory() }
    }
}

impl<V: Cacheable> CachedObjects<V> {
    /// Adds an object, or replaces it.
    // threat: endless-response, tenant-caches
    pub(crate) fn insert(&mut self, key: Key, object: V) -> Result<(), CacheFull> {
        self.remove(&key);
        self.bytes += memory(&key, &object);
        if self.bytes > self.max_bytes {
            return Err(CacheFull::Own(self.max_bytes));
        }
        if !self.memory.set(self.bytes) {
            return Err(CacheFull::OfTenants);
        }
        self.objects.insert(key, Arc::new(object));
        Ok(())
    }

    fn remove(&mut self, key: &Key) {
        if let Some(before) = self.objects.remove(key) {
            self.bytes = self.bytes.saturating_sub(memory(key, &*before));
            self.memory.lower(self.bytes);
        }
    }
}

fn memory(key @ (namespace, name): &Key, object: &impl Cacheable) -> usize {
    size_of_val(key) + namespace.len() + name.len() + ENTRY_OVERHEAD + object.memory()
}

#[derive(Debug)]
struct CacheState<V> {
    objects: CachedObjects<V>,
    /// The time of the last evidence; `None` before the first list and after the end of the reflector.
    confirmed: Option<Instant>,
}

impl<V> Default for WatchCache<V> {
    fn default() -> Self {
        let state = CacheState { objects: CachedObjects::default(), confirmed: None };
        Self { state: Mutex::new(state), confirmed: Notify::new() }
    }
}

impl<V> WatchCache<V> {
    /// The object of this name, if the cache has it and is fresh.
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<V>> {
        let state = self.state();
        if !state.is_fresh() {
            return None;
        }
        state.objects.objects.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Whether the cache has recent evidence that it was complete.
    // threat: deleted-account
    pub(crate) fn is_fresh(&self) -> bool {
        self.state().is_fresh()
    }

    /// When the cache was last known to be up to date.
    pub(crate) fn confirmed_at(&self) -> Option<Instant> {
        self.state().confirmed
    }

    /// Replaces all objects by those of a complete list that was requested at `requested_at`.
    pub(crate) fn replace(&self, objects: CachedObjects<V>, requested_at: Instant) {
        let mut state = self.state();
        let confirmed = state.confirmed.max(Some(requested_at));
        *state = CacheState { objects, confirmed };
        drop(state);
        self.confirmed.notify_waiters();
    }

    /// Applies a watch event; `object` is `None` if it was deleted.
    pub(crate) fn apply(&self, key: Key, object: Option<V>) -> Result<(), CacheFull>
    where
        V: Cacheable,
    {
        let mut state = self.state();
        if let Some(object) = object {
            return state.objects.insert(key, object);
        }
        state.objects.remove(&key);
        Ok(())
    }

    /// Records evidence that all changes before `requested_at` were reported.
    pub(crate) fn confirm(&self, requested_at: Instant) {
        let mut state = self.state();
        state.confirmed = state.confirmed.max(Some(requested_at));
        drop(state);
        self.confirmed.notify_waiters();
    }

    /// Removes everything: no further events will follow.
    pub(crate) fn end(&self) {
        *self.state() = CacheState { objects: CachedObjects::default(), confirmed: None };
    }

    /// Waits until the cache is stale. Before the first list, time counts from `began`.
    pub(crate) async fn until_stale(&self, began: Instant) {
        loop {
            let stale_at = self.confirmed_at().unwrap_or(began) + FRESH_FOR;
            if Instant::now() >= stale_at {
                return;
            }
            sleep_until(stale_at).await;
        }
    }

    /// Waits until the cache is fresh.
    pub(crate) async fn until_fresh(&self) {
        loop {
            let confirmed = self.confirmed.notified();
            if self.is_fresh() {
                return;
            }
            confirmed.await;
        }
    }

    /// Held briefly, and never on a worker thread.
    fn state(&self) -> MutexGuard<'_, CacheState<V>> {
        lock(&self.state)
    }
}

impl<V> CacheState<V> {
    fn is_fresh(&self) -> bool {
        self.confirmed.is_some_and(|confirmed| confirmed.elapsed() < FRESH_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(objects: &mut CachedObjects<BTreeMap<String, String>>, name: &str) -> Result<(), CacheFull> {
        let labels = BTreeMap::from([(String::new(), "x".repeat(MAX_BYTES / 3))]);
        objects.insert((String::new(), name.to_owned()), labels)
    }

    #[test]
    fn the_memory_of_the_objects_is_bounded() {
        let mut objects = CachedObjects::default();
        for name in ["a", "b", "b", "b"] {
            assert_eq!(insert(&mut objects, name), Ok(()), "{name}");
        }
        objects.remove(&(String::new(), "a".to_owned()));
        assert_eq!(insert(&mut objects, "c"), Ok(()));
        assert_eq!(insert(&mut objects, "d"), Err(CacheFull::Own(MAX_BYTES)));
        let cache = WatchCache::default();
        cache.replace(objects, Instant::now());
        assert_eq!(
            cache.apply((String::new(), "e".to_owned()), Some(BTreeMap::new())),
            Err(CacheFull::Own(MAX_BYTES))
        );
        assert_eq!(
            insert(&mut CachedObjects::new(true, &CacheShare::UNBOUNDED), "a"),
            Err(CacheFull::Own(MAX_TENANT_BYTES))
        );
    }
}
