//! The quota of client connections: in whose share each one counts, and which one gives way when all places are taken.
//!
//! A connection counts for its client's network until a request on it has authenticated. These have a quarter of all places,
//! where a new one evicts the oldest of the network with the most. Afterwards it counts for the cluster of the tenant, if only
//! clients of tenants have authenticated on it: a tenant decides which clients do, so that this proves nothing to the operator
//! of the gateway. Else it counts for the user, by its flow. When these have taken all their places, one of the owner with the
//! most is closed, so that no credential occupies all connections of the process. A few places are left to those that have
//! not authenticated: else no client could arrive.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use portcullis_http::peer::client_network;
use portcullis_limits::Owner;
use portcullis_limits::seats::{SeatId, Seats};
use portcullis_system::sync::lock;
use prometheus::IntGauge;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::activity::ConnectionActivity;
use crate::descriptors::ClientShares;

/// The age at which a connection may be evicted for another one from the same network: most handshakes are over by
/// then. Without it, clients that reconnect at the same time would all evict each other.
const MIN_SLOT_AGE: Duration = Duration::from_secs(1);
/// How many of an owner's connections are looked at for an idle one.
const MAX_EXAMINED: usize = 64;

/// The connections of one listener.
#[derive(Debug)]
pub(crate) struct ConnectionQuota {
    shares: ClientShares,
    /// Show the connections of networks, tenants and users.
    gauges: Option<[IntGauge; 3]>,
    state: Mutex<QuotaState>,
}

#[derive(Debug, Default)]
struct QuotaState {
    /// By network.
    unauthenticated: Seats<Arc<Seat>>,
    /// Those that have given way and are not closed yet, by network. They count as unauthenticated.
    leaving: Seats<Arc<Seat>>,
    /// By tenant or flow.
    authenticated: Seats<Arc<Seat>>,
    /// Those of tenants.
    tenants: usize,
}

/// A connection in the quota.
#[derive(Debug)]
struct Seat {
    network: IpAddr,
    since: Instant,
    evicted: Notify,
    /// Once it is established.
    activity: OnceLock<Arc<ConnectionActivity>>,
    /// Whether it has given way, and is closed once its requests have ended, or soon.
    is_leaving: AtomicBool,
    /// Whether a request on it has found no place for its owner.
    found_no_place: AtomicBool,
    /// Where it counts; `None` once it was evicted. Changed within the lock of the quota.
    held: Mutex<Option<(Owner, SeatId)>>,
}

/// The slot of one connection; dropping it returns it.
#[derive(Debug)]
pub(crate) struct QuotaSlot {
    quota: Arc<ConnectionQuota>,
    seat: Arc<Seat>,
}

/// Why a connection on which a request has authenticated cannot stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QuotaExceeded {
    /// The clients of the tenant, or of all tenants, have as many as they may have.
    Tenant,
    /// All places are taken, and no other owner has more of them.
    Authenticated,
    /// An earlier request on the connection has found no place, and it is about to be closed.
    Leaving,
}

impl ConnectionQuota {
    /// A quota with these shares.
    pub(super) fn new(shares: ClientShares, gauges: Option<[IntGauge; 3]>) -> Arc<Self> {
        Arc::new(Self { shares, gauges, state: Mutex::default() })
    }

    /// A quota of `limit` connections on which no request authenticates.
    pub(crate) fn unauthenticated(limit: usize) -> Arc<Self> {
        Self::new(ClientShares::unauthenticated(limit), None)
    }

    /// Takes a slot for a connection from `peer`, and evicts another one that has not authenticated if their part is used up
    /// or, if `full`, the server has reached `--max-connections`. `None` if none can be evicted: the new connection must be
    /// refused.
    // threat: floods
    pub(crate) fn admit(self: &Arc<Self>, peer: IpAddr, full: bool) -> Option<QuotaSlot> {
        let network = client_network(peer);
        let mut state = lock(&self.state);
        let is_used_up = state.unauthenticated() >= self.shares.unauthenticated;
        if (full || is_used_up) && !state.evict_for(network) {
            return None;
        }
        let seat = Arc::new(Seat {
            network,
            since: Instant::now(),
            evicted: Notify::new(),
            activity: OnceLock::new(),
            is_leaving: AtomicBool::new(false),
            found_no_place: AtomicBool::new(false),
            held: Mutex::default(),
        });
        state.seat(&seat, Owner::Network(network));
        self.show(&state);
        drop(state);
        Some(QuotaSlot { quota: Arc::clone(self), seat })
    }

    fn show(&self, state: &QuotaState) {
        let of_users = state.authenticated.len().saturating_sub(state.tenants);
        let counts = [state.unauthenticated(), state.tenants, of_users];
        for (gauge, count) in self.gauges.iter().flatten().zip(counts) {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

impl QuotaState {
    fn unauthenticated(&self) -> usize {
        self.unauthenticated.len() + self.leaving.len()
    }

    /// Evicts a connection that leaves; else the oldest one of the network with the most, for a new one from `network`.
    fn evict_for(&mut self, network: IpAddr) -> bool {
        let own = self.unauthenticated.len_of(&Owner::Network(network));
        let oldest_of_largest = || {
            let (largest, len) = self.unauthenticated.largest()?;
            let (_, oldest) = self.unauthenticated.of(largest).next()?;
            (len > own || oldest.since.elapsed() >= MIN_SLOT_AGE).then_some(oldest)
        };
        let Some(seat) = self.oldest_leaving().or_else(oldest_of_largest).cloned() else { return false };
        self.release(&seat);
        seat.evicted.notify_one();
        if let Some(activity) = seat.activity.get() {
            activity.give_way();
        }
        true
    }

    fn oldest_leaving(&self) -> Option<&Arc<Seat>> {
        let (largest, _) = self.leaving.largest()?;
        self.leaving.of(largest).next().map(|(_, seat)| seat)
    }

    /// Makes sure that there is a place for one more connection of this owner. Returns who has given way for it.
    // threat: tenant-connection-flood
    fn make_room_for(&mut self, owner: &Owner, shares: ClientShares) -> Result<Option<Owner>, QuotaExceeded> {
        let own = self.authenticated.len_of(owner);
        let is_of_tenant = matches!(owner, Owner::Tenant(_));
        if is_of_tenant && (own >= shares.per_tenant || self.tenants >= shares.tenants) {
            return Err(QuotaExceeded::Tenant);
        }
        if self.authenticated.len() < shares.authenticated {
            return Ok(None);
        }
        self.displace_for(owner).map(Some).ok_or(QuotaExceeded::Authenticated)
    }

    /// Closes a connection of the owner with the most, if it has more than `owner` would have; else an idle one of `owner`
    /// itself. Until it is closed it counts as unauthenticated, so that a new client may evict it at once. Returns whose it was.
    // threat: connection-hoarding
    fn displace_for(&mut self, owner: &Owner) -> Option<Owner> {
        let own = self.authenticated.len_of(owner);
        let largest = self.authenticated.largest().filter(|(_, len)| *len > own + 1);
        let victim = largest.map_or(owner, |(largest, _)| largest).clone();
        let idle = self.idle_of(&victim);
        let seat = if victim == *owner { idle? } else { idle.or_else(|| self.newest_of(&victim))? };
        self.leave(&seat);
        if let Some(activity) = seat.activity.get() {
            activity.give_way();
        }
        Some(victim)
    }

    /// Counts a connection as one that is about to be closed.
    fn leave(&mut self, seat: &Arc<Seat>) {
        self.release(seat);
        seat.is_leaving.store(true, Ordering::Relaxed);
        self.seat(seat, Owner::Network(seat.network));
    }

    fn idle_of(&self, owner: &Owner) -> Option<Arc<Seat>> {
        let mut oldest = self.authenticated.of(owner).take(MAX_EXAMINED);
        oldest.find(|(_, seat)| seat.is_idle()).map(|(_, seat)| Arc::clone(seat))
    }

    fn newest_of(&self, owner: &Owner) -> Option<Arc<Seat>> {
        self.authenticated.of(owner).next_back().map(|(_, seat)| Arc::clone(seat))
    }

    /// The places of connections that count for this owner.
    fn seats_for(&mut self, seat: &Seat, owner: &Owner) -> &mut Seats<Arc<Seat>> {
        match owner {
            Owner::Network(_) if seat.is_leaving.load(Ordering::Relaxed) => &mut self.leaving,
            Owner::Network(_) => &mut self.unauthenticated,
            Owner::Gateway | Owner::Tenant(_) | Owner::Flow { .. } => &mut self.authenticated,
        }
    }

    /// Counts a connection that has no place for this owner.
    fn seat(&mut self, seat: &Arc<Seat>, owner: Owner) {
        self.tenants += usize::from(matches!(owner, Owner::Tenant(_)));
        let id = self.seats_for(seat, &owner).take(&owner, Arc::clone(seat));
        *lock(&seat.held) = Some((owner, id));
    }

    /// Gives up the place of a connection, if it has one.
    fn release(&mut self, seat: &Seat) {
        let Some((owner, id)) = lock(&seat.held).take() else { return };
        self.tenants -= usize::from(matches!(owner, Owner::Tenant(_)));
        self.seats_for(seat, &owner).give_up(&owner, id);
    }
}

impl Seat {
    fn is_idle(&self) -> bool {
        self.activity.get().is_none_or(|activity| activity.is_idle())
    }
}

impl QuotaSlot {
    /// Completes when the connection is evicted and must close at once.
    pub(crate) fn evicted(&self) -> impl Future<Output = ()> + Send + use<> {
        let seat = Arc::clone(&self.seat);
        async move { seat.evicted.notified().await }
    }

    /// Names the activity of the connection, which is closed by it when it gives way.
    pub(super) fn establish(&self, activity: &Arc<ConnectionActivity>) {
        self.seat.activity.get_or_init(|| Arc::clone(activity));
    }

    /// Counts the connection for this owner from now on. If all places are taken, another connection is closed; returns whose.
    /// After an error the connection is to be closed.
    pub(super) fn authenticate(&self, owner: Owner) -> Result<Option<Owner>, QuotaExceeded> {
        let Self { quota, seat } = self;
        let mut state = lock(&quota.state);
        let held = lock(&seat.held).as_ref().map(|(owner, _)| owner.clone());
        // A client may send many requests before it learns that the first one found no place.
        if seat.found_no_place.load(Ordering::Relaxed) {
            return Err(QuotaExceeded::Leaving);
        }
        let is_settled = match (&held, &owner) {
            // It was evicted, or another request came first.
            (None | Some(Owner::Flow { .. }), _) | (Some(Owner::Tenant(_)), Owner::Tenant(_)) => true,
            _ => seat.is_leaving.load(Ordering::Relaxed),
        };
        if is_settled {
            return Ok(None);
        }
        let is_counted = matches!(held, Some(Owner::Tenant(_)));
        let room = if is_counted { Ok(None) } else { state.make_room_for(&owner, quota.shares) };
        if room.is_ok() {
            state.release(seat);
            state.seat(seat, owner);
        } else {
            seat.found_no_place.store(true, Ordering::Relaxed);
            state.leave(seat);
        }
        quota.show(&state);
        room
    }
}

impl Drop for QuotaSlot {
    fn drop(&mut self) {
        let mut state = lock(&self.quota.state);
        state.release(&self.seat);
        self.quota.show(&state);
    }
}

#[cfg(test)]
mod tests;
