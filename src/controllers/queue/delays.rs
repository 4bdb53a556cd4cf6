//! Items that are put off, each once and until some time. Every step costs the logarithm of what waits, at most.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::{FlowId, WorkItem};

/// Items by their flows, and by when they are due.
#[derive(Debug)]
pub(super) struct DelayedItems<K> {
    /// None is empty.
    by_flow: BTreeMap<FlowId, BTreeSet<(Instant, K)>>,
    /// When the first item of each flow is due.
    first: BTreeSet<(Instant, FlowId)>,
    /// How many items each flow has.
    lengths: BTreeSet<(usize, FlowId)>,
    until: BTreeMap<K, Instant>,
}

impl<K> Default for DelayedItems<K> {
    fn default() -> Self {
        Self {
            by_flow: BTreeMap::new(),
            first: BTreeSet::new(),
            lengths: BTreeSet::new(),
            until: BTreeMap::new(),
        }
    }
}

impl<K: WorkItem> DelayedItems<K> {
    pub(super) fn len(&self) -> usize {
        self.until.len()
    }

    /// When the first of all is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.first.first().map(|(at, _)| *at)
    }

    /// Puts an item off until `at`, or leaves it where it is if it is due earlier.
    // client-go: util/workqueue/delaying_queue.go, insert
    pub(super) fn insert(&mut self, key: K, at: Instant) {
        let flow = key.flow();
        match self.until.insert(key.clone(), at) {
            Some(earlier) if earlier <= at => {
                self.until.insert(key, earlier);
            }
            later => self.change(flow, |items| {
                if let Some(later) = later {
                    items.remove(&(later, key.clone()));
                }
                items.insert((at, key));
            }),
        }
    }

    /// Takes an item that is due by now.
    pub(super) fn take(&mut self, now: Instant) -> Option<K> {
        let (at, flow) = *self.first.first()?;
        if at > now { None } else { self.remove(flow, BTreeSet::pop_first) }
    }

    /// Takes away the item that is due last of those of the flow that has most.
    pub(super) fn shorten(&mut self) -> Option<K> {
        let (length, mut flow) = *self.lengths.last()?;
        if length == 1 {
            // Every flow has but one.
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
        self.until.remove(&key);
        Some(key)
    }

    /// Changes the items of a flow, and what is known of them.
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
