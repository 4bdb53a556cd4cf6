//! Balances requests over the endpoints of a cluster: the power of two choices by requests in progress, among the
//! endpoints that answer. Decisions are functions of the state, the time and a random number.
//!
//! An endpoint is preferred if its last readiness probe succeeded and it is not ejected. If no endpoint is preferred,
//! requests go to all trusted ones: API servers are interchangeable, so one that may be ill is better than none. The
//! self-check stays the only door: this module never makes an endpoint eligible that is not trusted.

mod ejection;
mod flow_shares;
mod moving;
mod retry_budget;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) use ejection::EjectionCause;
use ejection::{Ejection, EjectionState};
use flow_shares::{FlowPlace, FlowShares};
use moving::MovableWatches;
pub(crate) use moving::WatchMoves;
pub(crate) use moving::{MovableWatch, end_oldest, excess};
pub(crate) use retry_budget::{RetryBudget, RetryCause, RetryTotals};

use portcullis_system::sync::lock;

use crate::limits::FlowName;

/// Which load a request adds to and is placed by. A watch costs an API server memory for hours, a short request costs
/// it time: one count would let many watches keep short requests away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// Requests that end by themselves.
    Short,
    /// Watches and tunnels.
    Long,
}

/// The result of the last readiness probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Readiness {
    /// Not probed yet, or the only endpoint of its cluster.
    #[default]
    Unknown,
    /// It answered, with no server error.
    Ready,
    /// It answered with a server error, as kube-apiserver does while it starts and shuts down.
    NotReady,
    /// It did not answer in time.
    Silent,
}

impl Readiness {
    /// The label of metrics and logs.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Ready => "ready",
            Self::NotReady => "not_ready",
            Self::Silent => "silent",
        }
    }
}

/// How eligible an endpoint is; the least is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// It answers.
    Preferred,
    /// It is not ready, or ejected.
    Avoided,
    /// It does not answer.
    Silent,
    /// This request has already failed there.
    Tried,
}

/// The load of an endpoint and whether requests are to avoid it. All worker threads share it.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    short: AtomicUsize,
    long: AtomicUsize,
    /// The requests of each kind that were placed here since the start.
    short_total: AtomicU64,
    long_total: AtomicU64,
    /// The shares of flows, if there are many requests.
    flow_shares: FlowShares,
    /// The result of the last probe, and the same for those who wait for it: reading a channel takes a lock.
    readiness: AtomicU8,
    readiness_changes: watch::Sender<Readiness>,
    /// Whether `ejection` holds a failure; read without its lock.
    has_failed: AtomicBool,
    ejection: Mutex<Ejection>,
    movable: Mutex<MovableWatches>,
    jitter: Random,
}

/// A request in progress at an endpoint; counted until it is dropped.
#[derive(Debug)]
pub(crate) struct LoadTicket {
    balance: Arc<Balance>,
    load: Load,
    /// The place in the share of its flow, if it has begun beyond those that any flow may have. Boxed: few have.
    place: Option<Box<FlowPlace>>,
}

impl Balance {
    fn count(&self, load: Load) -> &AtomicUsize {
        match load {
            Load::Short => &self.short,
            Load::Long => &self.long,
        }
    }

    fn total(&self, load: Load) -> &AtomicU64 {
        match load {
            Load::Short => &self.short_total,
            Load::Long => &self.long_total,
        }
    }

    /// The requests of this kind for which the endpoint was chosen since the start.
    pub(crate) fn picks(&self, load: Load) -> u64 {
        self.total(load).load(Ordering::Relaxed)
    }

    /// The requests of this kind in progress.
    pub(crate) fn in_flight(&self, load: Load) -> usize {
        self.count(load).load(Ordering::Relaxed)
    }

    /// Counts a request from now on, unless `limit` are in progress; or half of that, and its flow has its share of the rest.
    // threat: endpoint-flood
    pub(crate) fn begin_within(
        self: &Arc<Self>,
        load: Load,
        limit: usize,
        flow: impl FnOnce() -> FlowName,
    ) -> Option<LoadTicket> {
        let before = self.count(load).fetch_add(1, Ordering::Relaxed);
        // Dropping the ticket takes the count back.
        let mut ticket = LoadTicket { balance: Arc::clone(self), load, place: None };
        if before >= limit {
            return None;
        }
        if before >= flow_shares::free_for_all(limit) {
            ticket.place = Some(Box::new(self.flow_shares.try_enter(load, limit, flow())?));
        }
        self.total(load).fetch_add(1, Ordering::Relaxed);
        Some(ticket)
    }

    /// Counts a request from now on.
    pub(crate) fn begin(self: &Arc<Self>, load: Load) -> LoadTicket {
        self.count(load).fetch_add(1, Ordering::Relaxed);
        LoadTicket { balance: Arc::clone(self), load, place: None }
    }

    /// How eligible the endpoint is at `now`.
    pub(crate) fn rank(&self, now: Instant) -> Rank {
        let avoided = || self.state(now) == EjectionState::Ejected;
        match self.readiness() {
            Readiness::Silent => Rank::Silent,
            Readiness::NotReady => Rank::Avoided,
            Readiness::Unknown | Readiness::Ready if avoided() => Rank::Avoided,
            Readiness::Unknown | Readiness::Ready => Rank::Preferred,
        }
    }

    fn state(&self, now: Instant) -> EjectionState {
        if !self.has_failed.load(Ordering::Relaxed) {
            return EjectionState::Good;
        }
        lock(&self.ejection).state(now)
    }

    /// Records that the endpoint was chosen. After an ejection, this request is the trial that others wait for.
    pub(crate) fn note_chosen(&self, now: Instant) {
        if self.has_failed.load(Ordering::Relaxed) {
            lock(&self.ejection).begin_trial(now);
        }
    }

    /// Records a response. Costs one load while nothing has failed.
    pub(crate) fn note_answer(&self) {
        if self.has_failed.load(Ordering::Relaxed) {
            let mut ejection = lock(&self.ejection);
            ejection.succeed();
            self.has_failed.store(false, Ordering::Relaxed);
        }
    }

    /// Records a failure that is the endpoint's own. Returns whether it was ejected for it.
    pub(crate) fn note_failure(&self, cause: EjectionCause, now: Instant) -> bool {
        let mut ejection = lock(&self.ejection);
        self.has_failed.store(true, Ordering::Relaxed);
        ejection.fail(cause, now, self.jitter.next())
    }

    /// Until when the endpoint is ejected, if it is.
    pub(crate) fn ejected_until(&self, now: Instant) -> Option<Instant> {
        lock(&self.ejection).until().filter(|until| *until > now)
    }

    /// Whether the endpoint was ejected at `since` or later.
    pub(crate) fn was_ejected(&self, since: Instant) -> bool {
        lock(&self.ejection).last().is_some_and(|last| last >= since)
    }

    /// The ejections since the start, for this cause.
    pub(crate) fn ejections(&self, cause: EjectionCause) -> u64 {
        lock(&self.ejection).count(cause)
    }

    /// How often the endpoint has answered after an ejection since the start.
    pub(crate) fn returns(&self) -> u64 {
        lock(&self.ejection).returns()
    }

    /// The result of the last probe.
    pub(crate) fn readiness(&self) -> Readiness {
        match self.readiness.load(Ordering::Relaxed) {
            1 => Readiness::Ready,
            2 => Readiness::NotReady,
            3 => Readiness::Silent,
            _ => Readiness::Unknown,
        }
    }

    /// Records the result of a probe; returns the one before.
    pub(crate) fn set_readiness(&self, readiness: Readiness) -> Readiness {
        let number = match readiness {
            Readiness::Unknown => 0,
            Readiness::Ready => 1,
            Readiness::NotReady => 2,
            Readiness::Silent => 3,
        };
        self.readiness.store(number, Ordering::Relaxed);
        self.readiness_changes.send_replace(readiness)
    }

    /// Waits until a probe has got no answer.
    pub(crate) async fn until_silent(&self) {
        let mut readiness = self.readiness_changes.subscribe();
        if readiness.wait_for(|readiness| *readiness == Readiness::Silent).await.is_err() {
            // Unreachable while the sender is borrowed.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for LoadTicket {
    fn drop(&mut self) {
        self.balance.count(self.load).fetch_sub(1, Ordering::Relaxed);
    }
}

/// The index of an endpoint, and its load.
type IndexAndLoad = (usize, usize);

/// The index of the endpoint for a request: of two random ones of the best rank, the one with less load. `candidates`
/// yields index, rank and load.
// Mitzenmacher: The Power of Two Choices in Randomized Load Balancing (2001)
pub(crate) fn choose(
    candidates: impl Iterator<Item = (usize, Rank, usize)>,
    random: impl Fn() -> u64,
) -> Option<usize> {
    let (mut one, mut other): (Option<IndexAndLoad>, Option<IndexAndLoad>) = (None, None);
    let (mut best, mut seen) = (Rank::Tried, 0_u64);
    for (index, rank, load) in candidates {
        if rank < best {
            (best, seen, one, other) = (rank, 0, None, None);
        } else if rank > best {
            continue;
        }
        seen += 1;
        // A uniform sample of two in one pass.
        match seen {
            1 => one = Some((index, load)),
            2 => other = Some((index, load)),
            _ => match random() % seen {
                0 => one = Some((index, load)),
                1 => other = Some((index, load)),
                _ => {}
            },
        }
    }
    let (first, Some(second)) = (one?, other) else { return one.map(|(index, _)| index) };
    let prefers_second = second.1 < first.1 || (second.1 == first.1 && random().is_multiple_of(2));
    Some(if prefers_second { second.0 } else { first.0 })
}

/// Random numbers that need no lock and no secrecy: `SplitMix64`.
#[derive(Debug)]
pub(crate) struct Random(AtomicU64);

impl Random {
    /// The sequence of a seed.
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// The next number.
    pub(crate) fn next(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut mixed = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Default for Random {
    fn default() -> Self {
        Self::seeded(RandomState::new().hash_one(0_u8))
    }
}

#[cfg(test)]
mod tests;
