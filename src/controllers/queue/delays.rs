//! Delayed items, each with the time when it is due. Every operation is at most logarithmic in their number.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::{FlowId, WorkItem};

/// Items by flow, and by when they are due.
#[derive(Debug)]
pub(super) struct DelayedItems<K> {
    /// The items of each flow; no set is empty.
    by_flow: BTreeMap<FlowId, BTreeSet<(Instant, K)>>,
    /// When the first item of each flow is due.
    first: BTreeSet<(Instant, FlowId)>,
    /// The number of items of each flow.
    lengths: BTreeSet<(usize, FlowId)>,
    due_at: BTreeMap<K, Instant>,
}

impl<K> Default for DelayedItems<K> {
    fn default() -> Self {
        Self {
            by_flow: BTreeMap::new(),
            first: BTreeSet::new(),
            lengths: BTreeSet::new(),
            due_at: BTreeMap::new(),
        }
    }
}

impl<K: WorkItem> DelayedItems<K> {
    pub(super) fn len(&self) -> usize {
        self.due_at.len()
    }

    /// When the first item is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.first.first().map(|(at, _)| *at)
    }

    /// Delays an item until `at`, unless it is due earlier.
    // client-go: util/workqueue/delaying_queue.go, insert
    pub(super) fn insert(&mut self, key: K, at: Instant) {
        let flow = key.flow();
        match self.due_at.insert(key.clone(), at) {
            Some(earlier) if earlier <= at => {
                self.due_at.insert(key, earlier);
            }
            later => self.change(flow, |items| {
                if let Some(later) = later {
                    items.remove(&(later, key.clone()));
                }
                items.insert((at, key));
            }),
        }
    }

    /// Takes the first item that is due.
    pub(super) fn take(&mut self, now: Instant) -> Option<K> {
        let (at, flow) = *self.first.first()?;
        if at > now { None } else { self.remove(flow, BTreeSet::pop_first) }
    }

    /// Removes the item that is due last in the flow with the most items.
    pub(super) fn drop_last_of_longest(&mut self) -> Option<K> {
        let (length, mut flow) = *self.lengths.last()?;
        if length == 1 {
            // Every flow has one item.
            flow = self.first.last()?.1;
        }
        self.remove(flow, BTreeSet::pop_last)
    }

    fn remove(
        &mut self,
        flow: FlowId,
        take: impl FnOnce(&mut BTreeSet<(Instant, K)>) -> Option<(Instant, K)>,
    ) -> Option<K> {
        let (_, key) = self.change(flow, take)?;
        self.due_at.remove(&key);
        Some(key)
    }

    /// Changes the items of a flow, and updates the indices.
    fn change<R>(&mut self, flow: FlowId, change: impl FnOnce(&mut BTreeSet<(Instant, K)>) -> R) -> R {
        let items = self.by_flow.entry(flow).or_default();
        if let Some((at, _)) = items.first() {
            self.first.remove(&(*at, flow));
            self.lengths.remove(&(items.len(), flow));
        }
        let changed = change(items);
        match items.first() {
            Some((at, _)) => {
                self.first.insert((*at, flow));
                self.lengths.insert((items.len(), flow));
            }
            None => {
                self.by_flow.remove(&flow);
            }
        }
        changed
    }
}
