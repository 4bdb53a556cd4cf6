//! Queued items in one lane for each flow, served round-robin. Every operation is at most logarithmic in their number.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::FlowId;

/// A longer lane serves its newest item first: its oldest items are late in any case, and a client that shares the lane
/// with a flood should not be late, too.
const MAX_FIFO_LENGTH: usize = 100;

/// Items by flow.
#[derive(Debug)]
pub(super) struct FlowLanes<T> {
    /// The lane of each flow; no lane is empty.
    by_flow: BTreeMap<FlowId, VecDeque<T>>,
    /// The flows with items, in the order in which they are served.
    turns: VecDeque<FlowId>,
    /// The length of each lane.
    lengths: BTreeSet<(usize, FlowId)>,
    items: usize,
}

impl<T> Default for FlowLanes<T> {
    fn default() -> Self {
        Self { by_flow: BTreeMap::new(), turns: VecDeque::new(), lengths: BTreeSet::new(), items: 0 }
    }
}

impl<T> FlowLanes<T> {
    pub(super) fn len(&self) -> usize {
        self.items
    }

    pub(super) fn push(&mut self, flow: FlowId, item: T) {
        let lane = self.by_flow.entry(flow).or_default();
        if lane.is_empty() {
            self.turns.push_back(flow);
        } else {
            self.lengths.remove(&(lane.len(), flow));
        }
        lane.push_back(item);
        self.lengths.insert((lane.len(), flow));
        self.items += 1;
    }

    /// Takes an item of the next flow.
    pub(super) fn take(&mut self) -> Option<T> {
        let flow = self.turns.pop_front()?;
        let item = self
            .pop(flow, |lane| if lane.len() > MAX_FIFO_LENGTH { lane.pop_back() } else { lane.pop_front() });
        if self.by_flow.contains_key(&flow) {
            self.turns.push_back(flow);
        }
        item
    }

    /// Removes the oldest item of the longest lane.
    pub(super) fn drop_oldest_of_longest(&mut self) -> Option<T> {
        let (length, flow) = *self.lengths.last()?;
        if length == 1 {
            // Every lane has one item: the item of the next flow is the oldest.
            return self.take();
        }
        self.pop(flow, VecDeque::pop_front)
    }

    fn pop(&mut self, flow: FlowId, pop: impl FnOnce(&mut VecDeque<T>) -> Option<T>) -> Option<T> {
        let lane = self.by_flow.get_mut(&flow)?;
        self.lengths.remove(&(lane.len(), flow));
        let item = pop(lane)?;
        if lane.is_empty() {
            self.by_flow.remove(&flow);
        } else {
            self.lengths.insert((lane.len(), flow));
        }
        self.items -= 1;
        Some(item)
    }
}
