//! The quota of connections on which no request has authenticated yet: those in a handshake, idle ones, slow headers,
//! anonymous clients. When the quota is full, a new connection evicts the oldest one from the network with the most, so
//! that one network cannot lock out the others.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use portcullis_http::peer::client_network;
use portcullis_system::sync::lock;

/// The age at which a connection may be evicted for another one from the same network: most handshakes are over by
/// then. Without it, clients that reconnect at the same time would all evict each other.
const MIN_SLOT_AGE: Duration = Duration::from_secs(1);

/// The unauthenticated connections of one listener.
#[derive(Debug)]
pub(crate) struct UnauthenticatedQuota {
    limit: usize,
    state: Mutex<QuotaState>,
}

#[derive(Debug, Default)]
struct QuotaState {
    count: usize,
    next_id: u64,
    /// By source network, the oldest first.
    entries: HashMap<IpAddr, VecDeque<QuotaEntry>>,
}

#[derive(Debug)]
struct QuotaEntry {
    id: u64,
    since: Instant,
    evicted: Arc<Notify>,
}

/// The slot of one connection; dropping it returns it.
#[derive(Debug)]
pub(crate) struct QuotaSlot {
    quota: Arc<UnauthenticatedQuota>,
    source: IpAddr,
    id: u64,
    evicted: Arc<Notify>,
}

impl UnauthenticatedQuota {
    /// Creates a quota of `limit` connections.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, state: Mutex::default() })
    }

    /// Takes a slot for a connection from `peer`, and evicts another connection if the quota is used up or, if `full`,
    /// the server has reached `--max-connections`. `None` if none can be evicted: the new connection must be refused.
    // threat: floods
    pub(crate) fn admit(self: &Arc<Self>, peer: IpAddr, full: bool) -> Option<QuotaSlot> {
        let source = client_network(peer);
        let mut state = self.lock();
        if (full || state.count >= self.limit) && !state.evict_for(source) {
            return None;
        }
        let id = state.next_id;
        state.next_id += 1;
        state.count += 1;
        let evicted = Arc::new(Notify::new());
        let entry = QuotaEntry { id, since: Instant::now(), evicted: Arc::clone(&evicted) };
        state.entries.entry(source).or_default().push_back(entry);
        drop(state);
        Some(QuotaSlot { quota: Arc::clone(self), source, id, evicted })
    }

    /// Ignores poisoning: the state stays consistent even if a holder panicked.
    fn lock(&self) -> MutexGuard<'_, QuotaState> {
        lock(&self.state)
    }
}

impl QuotaState {
    /// Evicts the oldest connection of the network with the most, for a new one from `source`.
    fn evict_for(&mut self, source: IpAddr) -> bool {
        let own = self.entries.get(&source).map_or(0, VecDeque::len);
        let largest = self
            .entries
            .values_mut()
            .max_by_key(|entries| (entries.len(), Reverse(entries.front().map(|oldest| oldest.id))));
        let Some(largest) = largest else { return false };
        let is_larger = largest.len() > own;
        let Some(oldest) = largest.pop_front_if(|oldest| is_larger || oldest.since.elapsed() >= MIN_SLOT_AGE)
        else {
            return false;
        };
        self.count -= 1;
        oldest.evicted.notify_one();
        true
    }

    fn remove(&mut self, source: IpAddr, id: u64) {
        let Some(entries) = self.entries.get_mut(&source) else { return };
        // The entry of an evicted connection is already removed.
        if let Ok(index) = entries.binary_search_by_key(&id, |entry| entry.id) {
            entries.remove(index);
            self.count -= 1;
        }
        if entries.is_empty() {
            self.entries.remove(&source);
        }
    }
}

impl QuotaSlot {
    /// Notified when the connection is evicted and must close.
    pub(crate) fn evicted(&self) -> Arc<Notify> {
        Arc::clone(&self.evicted)
    }
}

impl Drop for QuotaSlot {
    fn drop(&mut self) {
        self.quota.lock().remove(self.source, self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    async fn is_evicted(slot: &QuotaSlot) -> bool {
        tokio::time::timeout(Duration::ZERO, slot.evicted().notified()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_network_with_the_most_connections_loses_its_oldest() {
        let quota = UnauthenticatedQuota::new(4);
        let crowd: Vec<_> = (0..4).map(|_| quota.admit(peer("10.0.0.1"), false).unwrap()).collect();
        assert!(quota.admit(peer("10.0.0.1"), false).is_none(), "its own connections are all new");
        let other = quota.admit(peer("10.0.0.2"), false).unwrap();
        let third = quota.admit(peer("10.0.0.3"), false).unwrap();
        assert!(is_evicted(&crowd[0]).await && is_evicted(&crowd[1]).await);
        assert!(!is_evicted(&crowd[2]).await && !is_evicted(&other).await && !is_evicted(&third).await);

        tokio::time::advance(MIN_SLOT_AGE).await;
        let late = quota.admit(peer("10.0.0.1"), false).unwrap();
        assert!(is_evicted(&crowd[2]).await, "it has reached the minimum age");
        drop((crowd, other, third, late));
        assert_eq!(quota.lock().count, 0);
        assert!(quota.lock().entries.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn at_max_connections_a_new_connection_evicts_another() {
        let quota = UnauthenticatedQuota::new(4);
        assert!(quota.admit(peer("10.0.0.1"), true).is_none(), "there is none to evict");
        let first = quota.admit(peer("10.0.0.1"), false).unwrap();
        let second = quota.admit(peer("10.0.0.2"), true).unwrap();
        assert!(is_evicted(&first).await && !is_evicted(&second).await);
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        for (one, other, same) in [
            ("2001:db8::1", "2001:db8::ffff:0:0:2", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
        ] {
            assert_eq!(client_network(peer(one)) == client_network(peer(other)), same, "{one} and {other}");
        }
    }
}
