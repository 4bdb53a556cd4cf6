//! A limit on what is in progress at once, with a share for each owner and fair queues for what is beyond.
//!
//! A place travels to a waiting request inside its channel. If the request is gone by then, the channel gives the place
//! back, and it goes to the next one: no wake-up is lost.

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};

use portcullis_system::sync::lock;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::fair_queue::{FairQueue, Granted, Queued, Ticket};
use crate::{Owner, OwnerKey};

/// How much there is in all, and how much of it one owner may have. What it is that they weigh, the user of the limit says:
/// requests, connections, KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    total: usize,
    per_owner: usize,
    waiting: usize,
    waiting_per_owner: usize,
}

impl Shares {
    /// Shares without a queue: what finds no place is refused.
    pub const fn new(total: usize, per_owner: usize) -> Self {
        Self { total, per_owner, waiting: 0, waiting_per_owner: 0 }
    }

    /// The same, and this many requests may wait.
    #[must_use]
    pub const fn with_queue(self, waiting: usize, waiting_per_owner: usize) -> Self {
        Self { waiting, waiting_per_owner, ..self }
    }

    /// The part of these shares that `parts` owners of another kind have together, one `parts`-th of everything.
    #[must_use]
    pub const fn divided_by(self, parts: usize) -> Self {
        let Self { total, per_owner, waiting, waiting_per_owner } = self;
        Self {
            total: total / parts,
            per_owner: per_owner / parts,
            waiting: waiting / parts,
            waiting_per_owner: waiting_per_owner / parts,
        }
    }

    /// The weight in service of all owners.
    pub const fn total(self) -> usize {
        self.total
    }

    /// The same of one owner.
    pub const fn per_owner(self) -> usize {
        self.per_owner
    }

    /// The number of requests that wait.
    pub const fn waiting(self) -> usize {
        self.waiting
    }

    /// The same of one owner.
    pub const fn waiting_per_owner(self) -> usize {
        self.waiting_per_owner
    }
}

/// What a limit counts at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The weight in service.
    pub in_service: usize,
    /// The requests that wait.
    pub waiting: usize,
    /// The owners with either.
    pub owners: usize,
}

/// Why a request gets no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// All places are taken, or those of its owner, and requests do not wait for one.
    #[error("all places are taken")]
    Full,
    /// The queue of its owner, or that of all owners, is full.
    #[error("the queue is full")]
    QueueFull,
    /// No place became free in time.
    #[error("no place became free in time")]
    TimedOut,
}

/// Places, of which each owner has at most its share. Cheap to clone: a clone is the same limit.
#[derive(Debug)]
pub struct FairLimiter<O: OwnerKey = Owner>(Arc<Mutex<FairQueue<O, oneshot::Sender<Permit<O>>>>>);

/// The places of one request, returned on drop.
#[derive(Debug)]
#[must_use = "the place is returned when this is dropped"]
pub struct Permit<O: OwnerKey = Owner> {
    /// `None` once the place was returned.
    limiter: Option<FairLimiter<O>>,
    owner: O,
    weight: usize,
}

/// A request in the queue. It leaves the queue when it is dropped.
#[derive(Debug)]
pub struct Waiting<'a, O: OwnerKey = Owner> {
    limiter: &'a FairLimiter<O>,
    owner: O,
    ticket: Ticket,
    place: oneshot::Receiver<Permit<O>>,
}

/// What becomes of a request at once.
#[derive(Debug)]
pub enum Entry<'a, O: OwnerKey = Owner> {
    /// It has its place.
    Permit(Permit<O>),
    /// It waits for one.
    Waiting(Waiting<'a, O>),
}

impl<O: OwnerKey> FairLimiter<O> {
    /// Nothing is in service yet.
    pub fn new(shares: Shares) -> Self {
        Self(Arc::new(Mutex::new(FairQueue::new(shares))))
    }

    /// The shares in force.
    pub fn shares(&self) -> Shares {
        lock(&self.0).shares()
    }

    /// Puts other shares in force, and hands out the places that they add. What is in service beyond lower ones stays.
    pub fn set_shares(&self, shares: Shares) {
        let granted: Vec<_> = {
            let mut queue = lock(&self.0);
            queue.set_shares(shares);
            // Within the lock, so that no new request takes a place before those that wait.
            std::iter::from_fn(|| queue.next()).collect()
        };
        for granted in granted {
            self.hand_out(Some(granted));
        }
    }

    /// The weight in service of one owner.
    pub fn in_service_of(&self, owner: &O) -> usize {
        lock(&self.0).in_service_of(owner)
    }

    /// What is in service and what waits.
    pub fn usage(&self) -> Usage {
        lock(&self.0).usage()
    }

    /// A place, if one is free for this owner.
    pub fn try_acquire(&self, owner: O, weight: usize) -> Option<Permit<O>> {
        let enters = lock(&self.0).enter(&owner, weight);
        enters.then(|| self.permit(owner, weight))
    }

    /// A place, if one is free, even if this owner has used its share.
    pub fn try_acquire_beyond_share(&self, owner: O, weight: usize) -> Option<Permit<O>> {
        let enters = lock(&self.0).enter_beyond_share(&owner, weight);
        enters.then(|| self.permit(owner, weight))
    }

    /// A place, or a position in the queue.
    pub fn enter(&self, owner: O, weight: usize) -> Result<Entry<'_, O>, Refused> {
        let mut queue = lock(&self.0);
        if queue.enter(&owner, weight) {
            drop(queue);
            return Ok(Entry::Permit(self.permit(owner, weight)));
        }
        if queue.shares().waiting_per_owner() == 0 {
            return Err(Refused::Full);
        }
        let (sender, place) = oneshot::channel();
        let Queued::Waits { ticket, evicted } = queue.wait(&owner, weight, sender) else {
            return Err(Refused::QueueFull);
        };
        drop(queue);
        // Wakes its request, which is refused.
        drop(evicted);
        Ok(Entry::Waiting(Waiting { limiter: self, owner, ticket, place }))
    }

    /// Waits for a place, at most until then.
    pub async fn acquire(&self, owner: O, weight: usize, until: Instant) -> Result<Permit<O>, Refused> {
        match self.enter(owner, weight)? {
            Entry::Permit(permit) => Ok(permit),
            Entry::Waiting(waiting) => waiting.permit(until).await,
        }
    }

    /// Waits for a place, however long.
    pub async fn acquire_untimed(&self, owner: O, weight: usize) -> Result<Permit<O>, Refused> {
        match self.enter(owner, weight)? {
            Entry::Permit(permit) => Ok(permit),
            Entry::Waiting(mut waiting) => (&mut waiting.place).await.map_err(|_| Refused::QueueFull),
        }
    }

    fn permit(&self, owner: O, weight: usize) -> Permit<O> {
        Permit { limiter: Some(self.clone()), owner, weight }
    }

    /// Returns a place, and hands it to the requests whose turn it is.
    fn release(&self, owner: &O, weight: usize) {
        lock(&self.0).release(owner, weight);
        self.hand_out_free();
    }

    /// Hands the places that are free to the requests whose turn it is.
    fn hand_out_free(&self) {
        let mut queue = lock(&self.0);
        let granted: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
        drop(queue);
        for granted in granted {
            self.hand_out(Some(granted));
        }
    }

    /// Sends a place to its request. If that is gone, the place goes to the next one. A loop, not a recursion, so that
    /// many requests that are gone do not exhaust the stack.
    fn hand_out(&self, mut granted: Option<Granted<O, oneshot::Sender<Permit<O>>>>) {
        while let Some(Granted { owner, weight, wakes }) = granted {
            // Outside of the lock, which the waker must not hold up.
            let Err(mut unwanted) = wakes.send(self.permit(owner, weight)) else { return };
            unwanted.limiter = None;
            let mut queue = lock(&self.0);
            queue.release(&unwanted.owner, weight);
            granted = queue.next();
        }
    }
}

impl<O: OwnerKey> Clone for FairLimiter<O> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<O: OwnerKey> Waiting<'_, O> {
    /// The place, once it is there.
    pub async fn permit(mut self, until: Instant) -> Result<Permit<O>, Refused> {
        match timeout_at(until, &mut self.place).await {
            Ok(Ok(permit)) => Ok(permit),
            // Evicted for a request of an owner with a shorter queue.
            Ok(Err(_)) => Err(Refused::QueueFull),
            Err(_) => Err(Refused::TimedOut),
        }
    }
}

impl<O: OwnerKey> Drop for Waiting<'_, O> {
    fn drop(&mut self) {
        // A place that is already in the channel is dropped with it, and goes to the next request.
        let waiter = lock(&self.limiter.0).leave_queue(&self.owner, self.ticket);
        drop(waiter);
        // It may have been the one for which others had to leave room.
        self.limiter.hand_out_free();
    }
}

impl<O: OwnerKey> Drop for Permit<O> {
    fn drop(&mut self) {
        if let Some(limiter) = self.limiter.take() {
            limiter.release(&self.owner, self.weight);
        }
    }
}
