//! Items in lanes, one for each flow, that are taken in turn. Every step costs the logarithm of what waits, at most.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::FlowId;

/// A lane that is longer gives its newest item first: the oldest ones are late in any case, and a client that is behind a
/// flood of its own kind is not to be late, too.
const MAX_IN_ORDER: usize = 100;

/// Items by their flows.
#[derive(Debug)]
pub(super) struct FlowLanes<T> {
    /// None is empty.
    by_flow: BTreeMap<FlowId, VecDeque<T>>,
    /// The flows that have items, in the order of their turns.
    turns: VecDeque<FlowId>,
    /// The lengths of all lanes.
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

    /// An item of the flow whose turn it is.
    pub(super) fn take(&mut self) -> Option<T> {
        let flow = self.turns.pop_front()?;
        let item =
            self.pop(flow, |lane| if lane.len() > MAX_IN_ORDER { lane.pop_back() } else { lane.pop_front() });
        if self.by_flow.contains_key(&flow) {
            self.turns.push_back(flow);
        }
        item
    }

    /// Takes the oldest item of the longest lane away.
    pub(super) fn shorten(&mut self) -> Option<T> {
        let (length, flow) = *self.lengths.last()?;
        if length == 1 {
            // Every flow has but one: the one whose turn is next is the oldest.
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
