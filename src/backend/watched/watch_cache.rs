//! A cache of the objects that watches report, reduced to the parts that tokens are verified against.
//!
//! The cache is used only while positive evidence shows that it was up to date at a recent time: a complete list, a
//! bookmark, or a quiet watch that ended regularly. Data may be delayed on its way, so each is evidence for the time at
//! which the list or watch was requested, and not for the time at which it arrived. An event is not evidence: more
//! events may be queued behind it. Silence and failures are not evidence either: [`FRESH_FOR`] after the last evidence
//! the cache returns nothing until there is new evidence.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::sync::lock;

/// Namespace and name; objects without a namespace have an empty one.
pub(crate) type Key = (String, String);

/// How long the cache is fresh after the time of the last evidence; longer than two quiet watches. A read may take 10
/// s, and a verdict is cached for 10 s from the start of its read, so a token is accepted for at most 30 s after its
/// object was deleted.
pub(crate) const FRESH_FOR: Duration = Duration::from_secs(20);

/// The cached objects of one resource.
#[derive(Debug)]
pub(crate) struct WatchCache<V> {
    state: Mutex<CacheState<V>>,
    confirmed: Notify,
}

#[derive(Debug)]
struct CacheState<V> {
    objects: HashMap<Key, Arc<V>>,
    /// The time of the last evidence; `None` before the first list and after the end of the reflector.
    confirmed: Option<Instant>,
}

impl<V> Default for WatchCache<V> {
    fn default() -> Self {
        let state = CacheState { objects: HashMap::new(), confirmed: None };
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
        state.objects.get(&(namespace.to_owned(), name.to_owned())).cloned()
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
    pub(crate) fn replace(&self, objects: HashMap<Key, Arc<V>>, requested_at: Instant) {
        let mut state = self.state();
        let confirmed = state.confirmed.max(Some(requested_at));
        *state = CacheState { objects, confirmed };
        drop(state);
        self.confirmed.notify_waiters();
    }

    /// Applies a watch event; `object` is `None` if it was deleted.
    pub(crate) fn apply(&self, key: Key, object: Option<V>) {
        let mut state = self.state();
        match object {
            Some(object) => state.objects.insert(key, Arc::new(object)),
            None => state.objects.remove(&key),
        };
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
        *self.state() = CacheState { objects: HashMap::new(), confirmed: None };
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
