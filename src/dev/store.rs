//! The embedded backend's memory: objects, one revision counter, and the recent changes that watches read.
//!
//! A watch keeps a position and asks for what came after it, so a slow client delays no other: it either finds its
//! changes in the history or learns that they have expired, as with etcd.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;

use super::json::set;
use super::resources::Resource;
use crate::clock::Clock;
use crate::http::status::{Reason, Status};
use crate::sync::lock;

/// How many changes watches can look back.
const HISTORY: usize = 1_000;

/// Where an object is. Plurals are unique among the resources served; cluster-wide objects have an empty namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) plural: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// One step in the life of an object.
#[derive(Debug)]
pub(super) struct Change {
    revision: u64,
    key: Key,
    /// The object before, if it existed.
    pub(super) before: Option<Arc<Value>>,
    /// The object after; for a deletion the last state, with the revision of the deletion.
    pub(super) object: Arc<Value>,
    pub(super) deleted: bool,
}

/// All objects at one revision. A copy is cheap: objects are shared.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) revision: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    history: VecDeque<Arc<Change>>,
}

/// The current state, and the watches that wait for the next one.
#[derive(Debug)]
pub(super) struct Store {
    state: Mutex<State>,
    revision: watch::Sender<u64>,
    clock: Clock,
}

impl Store {
    pub(super) fn new(clock: Clock) -> Self {
        // Revisions start above zero: "0" means "any" to clients.
        let state = State { revision: 1, objects: BTreeMap::new(), history: VecDeque::new() };
        Self { state: Mutex::new(state), revision: watch::Sender::new(1), clock }
    }

    /// The current time, as objects carry it.
    pub(super) fn now(&self) -> Timestamp {
        let seconds = i64::try_from(self.clock.now().as_secs()).unwrap_or_default();
        Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Says when the revision moves.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// The state, held still for as long as the guard lives.
    pub(super) fn read(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Changes the state as a whole, or not at all: a change that fails or is for show leaves nothing.
    pub(super) fn write<T>(
        &self,
        for_show: bool,
        change: impl FnOnce(&mut State) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let mut state = self.read();
        let mut next = state.clone();
        let result = change(&mut next)?;
        if !for_show {
            *state = next;
            self.revision.send_replace(state.revision);
        }
        Ok(result)
    }
}

impl State {
    pub(super) fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.objects.get(key).map(Arc::clone)
    }

    /// The objects of a resource, in one namespace or, if that is empty, in all, in order.
    pub(super) fn list(&self, resource: &Resource, namespace: &str) -> Vec<Arc<Value>> {
        let within = self.objects.iter().filter(|(key, _)| key.is_within(resource, namespace));
        within.map(|(_, object)| Arc::clone(object)).collect()
    }

    /// Everything in a namespace.
    pub(super) fn in_namespace(&self, namespace: &str) -> Vec<(Key, Arc<Value>)> {
        let within = self.objects.iter().filter(|(key, _)| key.namespace == namespace);
        within.map(|(key, object)| (key.clone(), Arc::clone(object))).collect()
    }

    /// The changes after a revision, as far as they are of the list.
    pub(super) fn since(
        &self,
        position: u64,
        resource: &Resource,
        namespace: &str,
    ) -> Result<Vec<Arc<Change>>, Status> {
        let oldest = self.history.front().map_or(self.revision, |change| change.revision - 1);
        if position < oldest {
            let message = format!("too old resource version: {position} ({oldest})");
            return Err(Status::new(Reason::Expired, message));
        }
        let changes = self.history.iter().filter(|change| change.revision > position);
        Ok(changes.filter(|change| change.key.is_within(resource, namespace)).map(Arc::clone).collect())
    }

    /// Stores an object under the next revision, or notes its end there, and returns it as it is then.
    pub(super) fn put(&mut self, key: Key, mut object: Value, deleted: bool) -> Arc<Value> {
        self.revision += 1;
        set(&mut object, "/metadata/resourceVersion", self.revision.to_string());
        let object = Arc::new(object);
        let before = if deleted {
            self.objects.remove(&key)
        } else {
            self.objects.insert(key.clone(), Arc::clone(&object))
        };
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        let change = Change { revision: self.revision, key, before, object: Arc::clone(&object), deleted };
        self.history.push_back(Arc::new(change));
        object
    }
}

impl Key {
    fn is_within(&self, resource: &Resource, namespace: &str) -> bool {
        self.plural == resource.plural && (namespace.is_empty() || self.namespace == namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dev::resources::find;
    use serde_json::json;

    fn key(name: &str) -> Key {
        Key { plural: "configmaps", namespace: "n".to_owned(), name: name.to_owned() }
    }

    #[test]
    fn a_change_that_fails_or_is_for_show_leaves_nothing() {
        let store = Store::new(Clock::system());
        let put = |state: &mut State| state.put(key("a"), json!({}), false);
        store.write(true, |state| Ok(put(state))).unwrap();
        store.write(false, |state| Err::<(), _>((put(state), Status::not_found()).1)).unwrap_err();
        assert_eq!(store.read().revision, 1);
        assert_eq!(store.read().get(&key("a")), None);
        store.write(false, |state| Ok(put(state))).unwrap();
        assert_eq!(*store.read().get(&key("a")).unwrap(), json!({"metadata": {"resourceVersion": "2"}}));
    }

    #[test]
    fn changes_are_told_until_they_are_forgotten() {
        let (store, configmaps) = (Store::new(Clock::system()), find("", "configmaps").unwrap());
        let mut state = store.read();
        for count in 0..HISTORY {
            state.put(key("a"), json!({"count": count}), false);
        }
        let told = |state: &State, from| state.since(from, configmaps, "n").map(|changes| changes.len());
        assert_eq!(told(&state, 1).unwrap(), HISTORY);
        state.put(key("a"), json!({}), true);
        assert_eq!(told(&state, 1).unwrap_err().reason, Reason::Expired);
        assert_eq!(told(&state, 2).unwrap(), HISTORY);
        let last = state.since(state.revision - 1, configmaps, "").unwrap();
        assert!(last[0].deleted && last[0].before.is_some() && state.list(configmaps, "").is_empty());
    }
}
