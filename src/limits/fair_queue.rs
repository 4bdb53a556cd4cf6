//! The decisions of a limit with fair queues, without locks and time: which request gets a place, which one waits, and
//! which one is refused.
//!
//! Max-min fairness over the requests in service: a free place goes to the flow with the fewest of them, and among equal
//! flows to the one that got its last place first. Within a flow, requests are served in the order of their
//! arrival. Each operation takes O(log n). A flow with no request in service and none in the queue is forgotten.
//!
//! Between two operations no waiting request could be given a place: [`FairQueue::next`] is called after each one that frees
//! some. So a request that enters overtakes none.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use super::flow::FlowName;

/// The flows whose queues fit into the queue of all flows, as in a default priority level of kube-apiserver.
// apiserver: pkg/apis/flowcontrol/bootstrap/default.go, Queues
const FULL_QUEUES: usize = 64;
/// One flow leaves this part of the places to the others, so that a user with slow requests cannot take them all.
const RESERVED_PART: usize = 10;

/// The bounds of a [`FairQueue`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct QueueBounds {
    /// The requests in service; 0: no limit.
    pub(super) limit: usize,
    /// The waiting requests of one flow; 0: no queues.
    pub(super) queue_length: usize,
}

impl QueueBounds {
    /// The requests of one flow in service. Without queues any flow may take every place, as in kube-apiserver.
    pub(super) fn flow_limit(self) -> usize {
        if self.queue_length == 0 {
            return self.limit;
        }
        self.limit.saturating_sub(self.limit.div_ceil(RESERVED_PART)).max(1)
    }

    /// The waiting requests of all flows.
    pub(super) fn total_queue_length(self) -> usize {
        self.queue_length.saturating_mul(FULL_QUEUES)
    }
}

/// Requests in service and waiting requests; `W` wakes one that waits.
#[derive(Debug)]
pub(super) struct FairQueue<W> {
    bounds: QueueBounds,
    in_service: usize,
    waiting: usize,
    flows: HashMap<FlowName, Flow<W>>,
    /// The flows with a queue, by their requests in service, and then by their turn.
    by_service: BTreeMap<(usize, u64), FlowName>,
    /// The same by the length of their queues.
    by_length: BTreeMap<(usize, u64), FlowName>,
    /// The next turn or ticket.
    next_number: u64,
}

#[derive(Debug)]
struct Flow<W> {
    in_service: usize,
    /// Grows with each place that the flow gets; unique among the flows.
    turn: u64,
    queue: BTreeMap<Ticket, W>,
}

/// A position in the queue of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// What becomes of a request that finds no place.
#[derive(Debug)]
pub(super) enum Queued<W> {
    /// It waits. With `evicted`, in the place of the last request of the flow with the longest queue.
    Waits { ticket: Ticket, evicted: Option<W> },
    /// Its flow's queue is full, or that of all flows.
    Full,
}

impl<W> FairQueue<W> {
    pub(super) fn new() -> Self {
        Self {
            bounds: QueueBounds::default(),
            in_service: 0,
            waiting: 0,
            flows: HashMap::new(),
            by_service: BTreeMap::new(),
            by_length: BTreeMap::new(),
            next_number: 0,
        }
    }

    pub(super) fn bounds(&self) -> QueueBounds {
        self.bounds
    }

    /// Changes the bounds. [`Self::next`] may then have requests that get a place. Waiting requests beyond a shorter
    /// queue keep waiting.
    pub(super) fn set_bounds(&mut self, bounds: QueueBounds) {
        self.bounds = bounds;
    }

    /// Takes a place, if one is free for this flow.
    pub(super) fn enter(&mut self, name: &FlowName) -> bool {
        let of_flow = self.flows.get(name).map_or(0, |flow| flow.in_service);
        let enters = self.has_free_place() && !self.is_at_flow_limit(of_flow);
        if enters {
            self.serve(name);
        }
        enters
    }

    /// Takes a place, if one is free for any flow.
    pub(super) fn enter_exempt(&mut self, name: &FlowName) -> bool {
        let enters = self.has_free_place();
        if enters {
            self.serve(name);
        }
        enters
    }

    /// Adds a request that did not enter to the queue of its flow. If the queue of all flows is full, the last request of
    /// the longest queue is evicted, unless this queue would then be as long.
    // threat: inflight-flood
    pub(super) fn wait(&mut self, name: &FlowName, waiter: W) -> Queued<W> {
        let length = self.flows.get(name).map_or(0, |flow| flow.queue.len());
        if length >= self.bounds.queue_length {
            return Queued::Full;
        }
        let evicted = if self.waiting < self.bounds.total_queue_length() {
            None
        } else {
            match self.by_length.last_key_value() {
                Some(((longest, _), other)) if *longest > length + 1 => {
                    let other = FlowName::clone(other);
                    self.change(&other, |flow| flow.queue.pop_last()).map(|(_, evicted)| evicted)
                }
                _ => return Queued::Full,
            }
        };
        let ticket = Ticket(self.number());
        self.change(name, |flow| flow.queue.insert(ticket, waiter));
        self.waiting = self.waiting + 1 - usize::from(evicted.is_some());
        Queued::Waits { ticket, evicted }
    }

    /// Removes a request from the queue, if it is still there.
    pub(super) fn leave_queue(&mut self, name: &FlowName, ticket: Ticket) -> Option<W> {
        if !self.flows.contains_key(name) {
            return None;
        }
        let removed = self.change(name, |flow| flow.queue.remove(&ticket));
        self.waiting -= usize::from(removed.is_some());
        removed
    }

    /// Returns the place of a request of this flow.
    pub(super) fn release(&mut self, name: &FlowName) {
        self.in_service = self.in_service.saturating_sub(1);
        self.change(name, |flow| flow.in_service = flow.in_service.saturating_sub(1));
    }

    /// Gives a free place to the waiting request whose turn it is; `None` if no place is free for one that waits.
    pub(super) fn next(&mut self) -> Option<(FlowName, W)> {
        let ((of_flow, _), name) = self.by_service.first_key_value()?;
        if !self.has_free_place() || self.is_at_flow_limit(*of_flow) {
            return None;
        }
        let name = FlowName::clone(name);
        let turn = self.number();
        let (_, waiter) = self.change(&name, |flow| {
            flow.in_service += 1;
            flow.turn = turn;
            flow.queue.pop_first()
        })?;
        self.in_service += 1;
        self.waiting -= 1;
        Some((name, waiter))
    }

    fn has_free_place(&self) -> bool {
        self.bounds.limit == 0 || self.in_service < self.bounds.limit
    }

    fn is_at_flow_limit(&self, of_flow: usize) -> bool {
        self.bounds.limit != 0 && of_flow >= self.bounds.flow_limit()
    }

    fn serve(&mut self, name: &FlowName) {
        self.in_service += 1;
        let turn = self.number();
        self.change(name, |flow| {
            flow.in_service += 1;
            flow.turn = turn;
        });
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Changes a flow, and its position in the indexes. Adds a new flow, and forgets an idle one.
    fn change<R>(&mut self, name: &FlowName, change: impl FnOnce(&mut Flow<W>) -> R) -> R {
        let turn = self.number();
        let new = || Flow { in_service: 0, turn, queue: BTreeMap::new() };
        let flow = self.flows.entry(FlowName::clone(name)).or_insert_with(new);
        if !flow.queue.is_empty() {
            self.by_service.remove(&(flow.in_service, flow.turn));
            self.by_length.remove(&(flow.queue.len(), flow.turn));
        }
        let result = change(flow);
        if !flow.queue.is_empty() {
            self.by_service.insert((flow.in_service, flow.turn), FlowName::clone(name));
            self.by_length.insert((flow.queue.len(), flow.turn), FlowName::clone(name));
        } else if flow.in_service == 0 {
            self.flows.remove(name);
        }
        result
    }
}

#[cfg(test)]
impl<W> FairQueue<W> {
    /// The requests in service, the waiting ones, and the flows that are known.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        (self.in_service, self.waiting, self.flows.len())
    }
}
