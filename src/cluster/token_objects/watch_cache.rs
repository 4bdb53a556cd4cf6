//! Objects as watches report them, reduced to the parts that tokens are judged by.
//!
//! A store counts only as long as there is positive evidence that it was up to date at a known time: a whole list, a
//! bookmark, or a quiet watch that ended in good order. What is told may have been on its way for long, so each is evidence
//! for the moment at which the list or the watch was asked for, and not for the one at which it came. An event is none: it
//! says nothing of the events behind it. Neither are silence and failures: [`FRESH_FOR`] after the last evidence the store
//! knows nothing until there is some again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Namespace and name; objects without a namespace have an empty one.
pub(super) type Key = (String, String);

/// How long a store counts after the moment that there is evidence for. With the 10 s that a lookup may take, and for which
/// verdicts are remembered from its beginning, a token is believed for 30 s at most after its object is deleted. Longer
/// than two quiet watches last.
pub(super) const FRESH_FOR: Duration = Duration::from_secs(20);

/// The known objects of one kind.
#[derive(Debug)]
pub(super) struct WatchCache<V> {
    state: Mutex<State<V>>,
    confirmed: Notify,
}

#[derive(Debug)]
struct State<V> {
    objects: HashMap<Key, Arc<V>>,
    /// For when there is evidence; `None` before the first list and after the watch has ended for good.
    confirmed: Option<Instant>,
}

impl<V> Default for WatchCache<V> {
    fn default() -> Self {
        let state = State { objects: HashMap::new(), confirmed: None };
        Self { state: Mutex::new(state), confirmed: Notify::new() }
    }
}

impl<V> WatchCache<V> {
    /// The object of this name, if the watch has reported it and the store is fresh.
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<V>> {
        let state = self.state();
        if !state.is_fresh() {
            return None;
        }
        state.objects.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Whether all objects are known, and changes to them.
    // threat: deleted-account
    pub(super) fn is_fresh(&self) -> bool {
        self.state().is_fresh()
    }

    /// When the store was last known to be up to date.
    pub(super) fn confirmed_at(&self) -> Option<Instant> {
        self.state().confirmed
    }

    /// Takes the objects of a whole list, which was asked for at `asked`.
    pub(super) fn replace(&self, objects: HashMap<Key, Arc<V>>, asked: Instant) {
        let mut state = self.state();
        let confirmed = state.confirmed.max(Some(asked));
        *state = State { objects, confirmed };
        drop(state);
        self.confirmed.notify_waiters();
    }

    /// Takes an event: an object as it became, or none if it was deleted.
    pub(super) fn apply(&self, key: Key, object: Option<V>) {
        let mut state = self.state();
        match object {
            Some(object) => state.objects.insert(key, Arc::new(object)),
            None => state.objects.remove(&key),
        };
    }

    /// Notes evidence that all changes before `asked` were reported.
    pub(super) fn confirm(&self, asked: Instant) {
        let mut state = self.state();
        state.confirmed = state.confirmed.max(Some(asked));
        drop(state);
        self.confirmed.notify_waiters();
    }

    /// Forgets everything: there will be no further report.
    pub(super) fn end(&self) {
        *self.state() = State { objects: HashMap::new(), confirmed: None };
    }

    /// Waits until there is no recent evidence, in a watch that began at `began`.
    pub(super) async fn until_stale(&self, began: Instant) {
        loop {
            let stale_at = self.confirmed_at().unwrap_or(began) + FRESH_FOR;
            if Instant::now() >= stale_at {
                return;
            }
            sleep_until(stale_at).await;
        }
    }

    /// Waits until there is recent evidence.
    pub(super) async fn until_fresh(&self) {
        loop {
            let confirmed = self.confirmed.notified();
            if self.is_fresh() {
                return;
            }
            confirmed.await;
        }
    }

    /// Held for a moment, by threads that carry no requests.
    fn state(&self) -> MutexGuard<'_, State<V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V> State<V> {
    fn is_fresh(&self) -> bool {
        self.confirmed.is_some_and(|confirmed| confirmed.elapsed() < FRESH_FOR)
    }
}
