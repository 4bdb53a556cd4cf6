//! The memory of the embedded backend: objects, one revision counter, and the recent changes for watches.
//!
//! A watch stores its position and reads the changes after it, so a slow client delays no other. If the history no
//! longer has them, the watch expires, as with etcd.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use portcullis_kubernetes::status::{Reason, Status};
use portcullis_system::clock::Clock;
use portcullis_system::sync::lock;
use serde_json::Value;
use tokio::sync::watch;

use super::json::set;

const MAX_HISTORY: usize = 1_000;

/// The key of an object. Plurals are unique in the backend; a cluster-scoped object has an empty namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectKey {
    pub(super) plural: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
}

#[derive(Debug)]
pub(super) struct ObjectChange {
    revision: u64,
    key: ObjectKey,
    /// The object before the change, if it existed.
    pub(super) before: Option<Arc<Value>>,
    /// The object after the change; after a deletion its last state, with the revision of the deletion.
    pub(super) object: Arc<Value>,
    pub(super) deleted: bool,
}

/// All objects at one revision. A copy is cheap because it shares the objects.
#[derive(Debug, Clone)]
pub(super) struct StoreState {
    pub(super) revision: u64,
    objects: BTreeMap<ObjectKey, Arc<Value>>,
    history: VecDeque<Arc<ObjectChange>>,
}

#[derive(Debug)]
pub(super) struct ObjectStore {
    state: Mutex<StoreState>,
    /// The latest revision, which wakes the watches.
    pub(super) revision: watch::Sender<u64>,
    pub(super) clock: Clock,
}

impl ObjectStore {
    pub(super) fn new(clock: Clock) -> Self {
        // Revisions start above 0, with which clients request any revision.
        let state = StoreState { revision: 1, objects: BTreeMap::new(), history: VecDeque::new() };
        Self { state: Mutex::new(state), revision: watch::Sender::new(1), clock }
    }

    /// Locks the state.
    pub(super) fn read(&self) -> MutexGuard<'_, StoreState> {
        lock(&self.state)
    }

    /// Commits a change as a whole. A change that fails, and one of a dry run, has no effect.
    pub(super) fn write<T>(
        &self,
        dry_run: bool,
        change: impl FnOnce(&mut StoreState) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let mut state = self.read();
        let mut next = state.clone();
        let result = change(&mut next)?;
        if !dry_run {
            *state = next;
            self.revision.send_replace(state.revision);
        }
        Ok(result)
    }
}

impl StoreState {
    pub(super) fn get(&self, key: &ObjectKey) -> Option<Arc<Value>> {
        self.objects.get(key).cloned()
    }

    /// The objects of a resource in one namespace or, if that is empty, in all.
    pub(super) fn list(&self, plural: &str, namespace: &str) -> impl Iterator<Item = &Arc<Value>> {
        self.objects.iter().filter(move |(key, _)| key.is_in(plural, namespace)).map(|(_, object)| object)
    }

    pub(super) fn delete_all(&mut self, selects: impl Fn(&ObjectKey) -> bool) {
        let objects = self.objects.clone();
        for (key, object) in objects.into_iter().filter(|(key, _)| selects(key)) {
            self.put(key, Value::clone(&object), true);
        }
    }

    /// The changes after a revision to the objects that [`Self::list`] returns.
    pub(super) fn since(
        &self,
        position: u64,
        plural: &str,
        namespace: &str,
    ) -> Result<impl Iterator<Item = &Arc<ObjectChange>>, Status> {
        let oldest = self.history.front().map_or(self.revision, |change| change.revision - 1);
        if position < oldest {
            let message = format!("too old resource version: {position} ({oldest})");
            return Err(Status::new(Reason::Expired, message));
        }
        let changes = self.history.iter().filter(move |change| change.revision > position);
        Ok(changes.filter(move |change| change.key.is_in(plural, namespace)))
    }

    /// Stores an object, or records its deletion, at the next revision. Returns the object with that revision.
    pub(super) fn put(&mut self, key: ObjectKey, mut object: Value, deleted: bool) -> Arc<Value> {
        self.revision += 1;
        set(&mut object, "/metadata/resourceVersion", self.revision.to_string());
        let object = Arc::new(object);
        let before = if deleted {
            self.objects.remove(&key)
        } else {
            self.objects.insert(key.clone(), Arc::clone(&object))
        };
        if self.history.len() == MAX_HISTORY {
            self.history.pop_front();
        }
        let change =
            ObjectChange { revision: self.revision, key, before, object: Arc::clone(&object), deleted };
        self.history.push_back(Arc::new(change));
        object
    }
}

impl ObjectKey {
    fn is_in(&self, plural: &str, namespace: &str) -> bool {
        self.plural == plural && (namespace.is_empty() || self.namespace == namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { plural: "configmaps", namespace: "n".to_owned(), name: name.to_owned() }
    }

    #[test]
    fn a_failed_change_and_a_dry_run_have_no_effect() {
        let store = ObjectStore::new(Clock::system());
        let put = |state: &mut StoreState| state.put(key("a"), json!({}), false);
        store.write(true, |state| Ok(put(state))).unwrap();
        store.write(false, |state| Err::<(), _>((put(state), Status::not_found()).1)).unwrap_err();
        assert_eq!(store.read().revision, 1);
        assert_eq!(store.read().get(&key("a")), None);
        store.write(false, |state| Ok(put(state))).unwrap();
        assert_eq!(*store.read().get(&key("a")).unwrap(), json!({"metadata": {"resourceVersion": "2"}}));
    }

    #[test]
    fn the_history_has_the_latest_changes() {
        let store = ObjectStore::new(Clock::system());
        let mut state = store.read();
        for count in 0..MAX_HISTORY {
            state.put(key("a"), json!({"count": count}), false);
        }
        let count = |state: &StoreState, from| state.since(from, "configmaps", "n").map(Iterator::count);
        assert_eq!(count(&state, 1).unwrap(), MAX_HISTORY);
        state.put(key("a"), json!({}), true);
        assert_eq!(count(&state, 1).unwrap_err().reason, Reason::Expired);
        assert_eq!(count(&state, 2).unwrap(), MAX_HISTORY);
        let last = state.since(state.revision - 1, "configmaps", "").unwrap().next().unwrap();
        assert!(last.deleted && last.before.is_some());
        assert_eq!(state.list("configmaps", "").count(), 0);
    }
}
