//! The decisions of a fair limit, without locks and time: which request gets a place, which one waits, and which one is
//! refused.
//!
//! Max-min fairness over the weight in service: free places go to the owner with the least of it, and among equal owners to
//! the one that got its last place first. Within an owner, requests are served in the order of their arrival. Each operation
//! takes O(log n), but that a heavy request that its owner's share does not hold yet is passed over. An owner with no request
//! in service and none in the queue is forgotten.
//!
//! Between two operations no waiting request could be given a place: [`FairQueue::next`] is called after each one that frees
//! some. So a request that enters overtakes none.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use crate::OwnerKey;
use crate::fair_limiter::{Shares, Usage};

/// Requests in service and waiting requests; `W` wakes one that waits.
#[derive(Debug)]
pub(crate) struct FairQueue<O, W> {
    shares: Shares,
    in_service: usize,
    waiting: usize,
    lanes: HashMap<O, Lane<W>>,
    /// The owners with a queue, by their weight in service, and then by their turn.
    by_service: BTreeMap<(usize, u64), O>,
    /// The same by the length of their queues.
    by_length: BTreeMap<(usize, u64), O>,
    /// The next turn or ticket.
    next_number: u64,
}

#[derive(Debug)]
struct Lane<W> {
    in_service: usize,
    /// Grows with each place that the owner gets; unique among the owners.
    turn: u64,
    queue: BTreeMap<Ticket, Waiter<W>>,
}

#[derive(Debug)]
struct Waiter<W> {
    weight: usize,
    wakes: W,
}

/// A position in the queue of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// What becomes of a request that finds no place.
#[derive(Debug)]
pub(crate) enum Queued<W> {
    /// It waits. With `evicted`, in the place of the last request of the owner with the longest queue.
    Waits { ticket: Ticket, evicted: Option<W> },
    /// Its owner's queue is full, or that of all owners.
    Full,
}

/// A place for a request that waited.
#[derive(Debug)]
pub(crate) struct Granted<O, W> {
    pub(crate) owner: O,
    pub(crate) weight: usize,
    pub(crate) wakes: W,
}

impl<O: OwnerKey, W> FairQueue<O, W> {
    pub(crate) fn new(shares: Shares) -> Self {
        Self {
            shares,
            in_service: 0,
            waiting: 0,
            lanes: HashMap::new(),
            by_service: BTreeMap::new(),
            by_length: BTreeMap::new(),
            next_number: 0,
        }
    }

    pub(crate) fn shares(&self) -> Shares {
        self.shares
    }

    /// Changes the shares. [`Self::next`] may then have requests that get a place. Waiting requests beyond a shorter queue
    /// keep waiting.
    pub(crate) fn set_shares(&mut self, shares: Shares) {
        self.shares = shares;
    }

    /// The weight in service of one owner.
    pub(crate) fn in_service_of(&self, owner: &O) -> usize {
        self.lanes.get(owner).map_or(0, |lane| lane.in_service)
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage { in_service: self.in_service, waiting: self.waiting, owners: self.lanes.len() }
    }

    /// Takes a place, if one is free in the share of this owner.
    pub(crate) fn enter(&mut self, owner: &O, weight: usize) -> bool {
        let of_owner = self.in_service_of(owner);
        let enters = self.has_room(weight) && self.has_share(of_owner, weight);
        if enters {
            self.serve(owner, weight);
        }
        enters
    }

    /// Takes a place, if one is free in the share of any owner.
    pub(crate) fn enter_beyond_share(&mut self, owner: &O, weight: usize) -> bool {
        let enters = self.has_room(weight);
        if enters {
            self.serve(owner, weight);
        }
        enters
    }

    /// Adds a request that did not enter to the queue of its owner. If the queue of all owners is full, the last request of
    /// the longest queue is evicted, unless this queue would then be as long.
    pub(crate) fn wait(&mut self, owner: &O, weight: usize, wakes: W) -> Queued<W> {
        let length = self.lanes.get(owner).map_or(0, |lane| lane.queue.len());
        let never_fits = weight > self.shares.per_owner() || weight > self.shares.total();
        if length >= self.shares.waiting_per_owner() || never_fits {
            return Queued::Full;
        }
        let evicted = if self.waiting < self.shares.waiting() {
            None
        } else {
            let Some(evicted) = self.evict_for(length + 1) else { return Queued::Full };
            Some(evicted)
        };
        let ticket = Ticket(self.number());
        self.change(owner, |lane| lane.queue.insert(ticket, Waiter { weight, wakes }));
        self.waiting += 1;
        Queued::Waits { ticket, evicted }
    }

    /// Removes the last request of the longest queue, if it is longer than `length`.
    fn evict_for(&mut self, length: usize) -> Option<W> {
        let ((longest, _), owner) = self.by_length.last_key_value()?;
        if *longest <= length {
            return None;
        }
        let owner = O::clone(owner);
        let (_, evicted) = self.change(&owner, |lane| lane.queue.pop_last())?;
        self.waiting -= 1;
        Some(evicted.wakes)
    }

    /// Removes a request from the queue, if it is still there.
    pub(crate) fn leave_queue(&mut self, owner: &O, ticket: Ticket) -> Option<W> {
        if !self.lanes.contains_key(owner) {
            return None;
        }
        let removed = self.change(owner, |lane| lane.queue.remove(&ticket));
        self.waiting -= usize::from(removed.is_some());
        removed.map(|waiter| waiter.wakes)
    }

    /// Returns the place of a request of this owner.
    pub(crate) fn release(&mut self, owner: &O, weight: usize) {
        self.in_service = self.in_service.saturating_sub(weight);
        self.change(owner, |lane| lane.in_service = lane.in_service.saturating_sub(weight));
    }

    /// Gives a free place to the waiting request whose turn it is; `None` if no place is free for one that waits.
    pub(crate) fn next(&mut self) -> Option<Granted<O, W>> {
        let owner = self.next_owner()?;
        let turn = self.number();
        let waiter = self.change(&owner, |lane| {
            let (_, waiter) = lane.queue.pop_first()?;
            lane.in_service += waiter.weight;
            lane.turn = turn;
            Some(waiter)
        })?;
        self.in_service += waiter.weight;
        self.waiting -= 1;
        Some(Granted { owner, weight: waiter.weight, wakes: waiter.wakes })
    }

    /// The owner whose turn it is, if there is room for its first request. Another one does not take the room that a heavy
    /// request waits for.
    fn next_owner(&self) -> Option<O> {
        let first = |owner| self.lanes.get(owner)?.queue.first_key_value();
        for ((of_owner, _), owner) in &self.by_service {
            if *of_owner >= self.shares.per_owner() {
                return None;
            }
            let (_, waiter) = first(owner)?;
            if self.has_share(*of_owner, waiter.weight) {
                return self.has_room(waiter.weight).then(|| O::clone(owner));
            }
        }
        None
    }

    fn has_room(&self, weight: usize) -> bool {
        self.in_service.saturating_add(weight) <= self.shares.total()
    }

    fn has_share(&self, of_owner: usize, weight: usize) -> bool {
        of_owner.saturating_add(weight) <= self.shares.per_owner()
    }

    fn serve(&mut self, owner: &O, weight: usize) {
        self.in_service += weight;
        let turn = self.number();
        self.change(owner, |lane| {
            lane.in_service += weight;
            lane.turn = turn;
        });
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Changes the lane of an owner, and its position in the indexes. Adds a new one, and forgets an idle one.
    fn change<R>(&mut self, owner: &O, change: impl FnOnce(&mut Lane<W>) -> R) -> R {
        let turn = self.number();
        let new = || Lane { in_service: 0, turn, queue: BTreeMap::new() };
        let lane = self.lanes.entry(O::clone(owner)).or_insert_with(new);
        if !lane.queue.is_empty() {
            self.by_service.remove(&(lane.in_service, lane.turn));
            self.by_length.remove(&(lane.queue.len(), lane.turn));
        }
        let result = change(lane);
        if !lane.queue.is_empty() {
            self.by_service.insert((lane.in_service, lane.turn), O::clone(owner));
            self.by_length.insert((lane.queue.len(), lane.turn), O::clone(owner));
        } else if lane.in_service == 0 {
            self.lanes.remove(owner);
        }
        result
    }
}

#[cfg(test)]
impl<O: OwnerKey, W> FairQueue<O, W> {
    /// The weight in service, the waiting requests, and the owners that are known.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let Usage { in_service, waiting, owners } = self.usage();
        (in_service, waiting, owners)
    }
}
