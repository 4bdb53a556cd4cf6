//! The embedded backend's memory: objects, one revision counter, and the recent changes that watches read.
//!
//! A watch keeps a position and asks for what came after it, so a slow client never holds anybody up: it either finds
//! its changes in the history or is told that they have expired, as with etcd.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;

use super::resources::Resource;
use crate::clock::Clock;
use crate::status::{Reason, Status};

/// How many changes watches can look back.
const HISTORY: usize = 10_000;

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
    pub(super) revision: u64,
    pub(super) key: Key,
    /// The object before, if it existed.
    pub(super) before: Option<Arc<Value>>,
    /// The object after; for a deletion the last state, with the revision of the deletion.
    pub(super) object: Arc<Value>,
    pub(super) deleted: bool,
}

#[derive(Debug, Default)]
struct State {
    revision: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    history: VecDeque<Arc<Change>>,
}

/// All objects.
#[derive(Debug)]
pub(super) struct Store {
    state: Mutex<State>,
    revision: watch::Sender<u64>,
    clock: Clock,
}

impl Store {
    pub(super) fn new(clock: Clock) -> Self {
        // Revisions start above zero: "0" means "any" to clients.
        let state = State { revision: 1, ..State::default() };
        Self { state: Mutex::new(state), revision: watch::Sender::new(1), clock }
    }

    /// The current time, as objects carry it.
    pub(super) fn now(&self) -> Timestamp {
        i64::try_from(self.clock.now().as_secs())
            .ok()
            .and_then(|seconds| Timestamp::from_second(seconds).ok())
            .unwrap_or(Timestamp::UNIX_EPOCH)
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.lock().objects.get(key).map(Arc::clone)
    }

    /// The objects of a resource in one or all namespaces, in order, and the revision they are of.
    pub(super) fn list(&self, resource: &Resource, namespace: Option<&str>) -> (u64, Vec<(Key, Arc<Value>)>) {
        let state = self.lock();
        let objects = state
            .objects
            .iter()
            .filter(|(key, _)| within(key, resource, namespace))
            .map(|(key, object)| (key.clone(), Arc::clone(object)))
            .collect();
        (state.revision, objects)
    }

    /// The changes after a revision, and the revision they lead to.
    pub(super) fn since(
        &self,
        position: u64,
        resource: &Resource,
        namespace: Option<&str>,
    ) -> Result<(u64, Vec<Arc<Change>>), Status> {
        let state = self.lock();
        let oldest = state.history.front().map_or(state.revision, |change| change.revision - 1);
        if position < oldest {
            let message = format!("too old resource version: {position} ({oldest})");
            return Err(Status::new(Reason::Expired, message));
        }
        let from = state.history.partition_point(|change| change.revision <= position);
        let changes = state.history.iter().skip(from);
        let changes =
            changes.filter(|change| within(&change.key, resource, namespace)).map(Arc::clone).collect();
        Ok((state.revision, changes))
    }

    /// Says when the revision moves.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// Runs a change with the store held still. What was written stays written even if `change` fails later, so
    /// checks come first.
    pub(super) fn write<T>(&self, change: impl FnOnce(&mut Writer<'_>) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut Writer { state: &mut state });
        self.revision.send_replace(state.revision);
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The store while it is being changed.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    state: &'a mut State,
}

impl Writer<'_> {
    pub(super) fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.state.objects.get(key).map(Arc::clone)
    }

    /// The keys of everything in a namespace.
    pub(super) fn in_namespace(&self, namespace: &str) -> Vec<Key> {
        self.state.objects.keys().filter(|key| key.namespace == namespace).cloned().collect()
    }

    /// Stores an object under the next revision and returns it as stored.
    pub(super) fn put(&mut self, key: Key, object: Value) -> Arc<Value> {
        let object = self.next(object);
        let before = self.state.objects.insert(key.clone(), Arc::clone(&object));
        self.record(key, before, &object, false);
        object
    }

    /// Removes an object and returns its last state.
    pub(super) fn remove(&mut self, key: Key) -> Option<Arc<Value>> {
        let before = self.state.objects.remove(&key)?;
        let object = self.next(Value::clone(&before));
        self.record(key, Some(before), &object, true);
        Some(object)
    }

    fn next(&mut self, mut object: Value) -> Arc<Value> {
        self.state.revision += 1;
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("resourceVersion".to_owned(), self.state.revision.to_string().into());
        }
        Arc::new(object)
    }

    fn record(&mut self, key: Key, before: Option<Arc<Value>>, object: &Arc<Value>, deleted: bool) {
        if self.state.history.len() == HISTORY {
            self.state.history.pop_front();
        }
        let object = Arc::clone(object);
        let change = Change { revision: self.state.revision, key, before, object, deleted };
        self.state.history.push_back(Arc::new(change));
    }
}

fn within(key: &Key, resource: &Resource, namespace: Option<&str>) -> bool {
    key.plural == resource.plural && namespace.is_none_or(|namespace| key.namespace == namespace)
}
