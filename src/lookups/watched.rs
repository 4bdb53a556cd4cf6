//! Objects as watches report them, reduced to the parts that tokens are judged by.
//!
//! A store counts only as long as there is positive evidence that it is up to date: a whole list, an event, a bookmark,
//! or a watch that lasted its time and ended in good order. Silence and failures are no evidence, however long ago they
//! began: after [`FRESH_FOR`] without any the store knows nothing until there is some again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Namespace and name; objects without a namespace have an empty one.
pub(super) type Key = (String, String);

/// How long a store counts after the last evidence. With the 10 s for which verdicts on tokens are remembered, a deleted
/// object is believed for 30 s at most. Longer than a quiet watch takes to end and the next one to begin.
pub(super) const FRESH_FOR: Duration = Duration::from_secs(20);

/// The known objects of one kind.
#[derive(Debug)]
pub(super) struct Watched<V> {
    state: Mutex<State<V>>,
    confirmed: Notify,
}

#[derive(Debug)]
struct State<V> {
    objects: HashMap<Key, Arc<V>>,
    /// The time of the last evidence; `None` before the first list and after the watch has ended for good.
    confirmed: Option<Instant>,
}

impl<V> Default for Watched<V> {
    fn default() -> Self {
        let state = State { objects: HashMap::new(), confirmed: None };
        Self { state: Mutex::new(state), confirmed: Notify::new() }
    }
}

impl<V> Watched<V> {
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

    /// Takes an event: an object as it is now, or none if it was deleted.
    pub(super) fn apply(&self, key: Key, object: Option<V>) {
        let mut state = self.state();
        match object {
            Some(object) => state.objects.insert(key, Arc::new(object)),
            None => state.objects.remove(&key),
        };
        drop(state);
        self.confirm();
    }

    /// Notes evidence that all changes so far were reported.
    pub(super) fn confirm(&self) {
        self.state().confirmed = Some(Instant::now());
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
