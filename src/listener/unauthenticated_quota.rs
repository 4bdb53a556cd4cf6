//! Connections on which nobody has proven yet who they are: in a handshake, silent, sending a header byte by byte, or
//! anonymous. They get a part of all connections. When it is used up, those go first that come from where most come
//! from, so that one peer cannot keep the others out.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a newcomer is safe from others that come from the same place: most handshakes are over by then. Were the
/// oldest given up at once, a herd that comes at once would be given up as a whole.
const MIN_SLOT_AGE: Duration = Duration::from_secs(1);

/// The newcomers of one listener.
#[derive(Debug)]
pub(crate) struct UnauthenticatedQuota {
    most: usize,
    sources: Mutex<Sources>,
}

#[derive(Debug, Default)]
struct Sources {
    count: usize,
    next: u64,
    waiting: HashMap<IpAddr, VecDeque<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    id: u64,
    since: Instant,
    given_up: Arc<Notify>,
}

/// A connection's place among the newcomers; given back when dropped.
#[derive(Debug)]
pub(crate) struct QuotaSlot {
    quota: Arc<UnauthenticatedQuota>,
    source: IpAddr,
    id: u64,
    given_up: Arc<Notify>,
}

impl UnauthenticatedQuota {
    /// At most `most` at once.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, sources: Mutex::default() })
    }

    /// A place for a connection from `peer`; `full` when there is no connection to spare either. Another newcomer may be
    /// given up for it. `None` if it must be refused itself.
    // threat: floods
    pub(crate) fn admit(self: &Arc<Self>, peer: IpAddr, full: bool) -> Option<QuotaSlot> {
        let source = source(peer);
        let mut sources = self.lock();
        if (full || sources.count >= self.most) && !sources.give_up_for(source) {
            return None;
        }
        let id = sources.next;
        sources.next += 1;
        sources.count += 1;
        let given_up = Arc::new(Notify::new());
        let waiting = Waiting { id, since: Instant::now(), given_up: Arc::clone(&given_up) };
        sources.waiting.entry(source).or_default().push_back(waiting);
        drop(sources);
        Some(QuotaSlot { quota: Arc::clone(self), source, id, given_up })
    }

    /// The list stays whole even if a holder panicked.
    fn lock(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sources {
    /// Gives up the oldest newcomer from where most come from, for one from `source`.
    fn give_up_for(&mut self, source: IpAddr) -> bool {
        let mine = self.waiting.get(&source).map_or(0, VecDeque::len);
        let most = self
            .waiting
            .values_mut()
            .max_by_key(|waiting| (waiting.len(), Reverse(waiting.front().map(|oldest| oldest.id))));
        let Some(most) = most else { return false };
        let crowded = most.len() > mine;
        let Some(oldest) = most.pop_front_if(|oldest| crowded || oldest.since.elapsed() >= MIN_SLOT_AGE)
        else {
            return false;
        };
        self.count -= 1;
        oldest.given_up.notify_one();
        true
    }

    fn remove(&mut self, source: IpAddr, id: u64) {
        let Some(waiting) = self.waiting.get_mut(&source) else { return };
        // One that was given up is not there any more.
        if let Ok(index) = waiting.binary_search_by_key(&id, |waiting| waiting.id) {
            waiting.remove(index);
            self.count -= 1;
        }
        if waiting.is_empty() {
            self.waiting.remove(&source);
        }
    }
}

impl QuotaSlot {
    /// Ready when the connection is to end, for others' sake.
    pub(crate) fn given_up(&self) -> Arc<Notify> {
        Arc::clone(&self.given_up)
    }
}

impl Drop for QuotaSlot {
    fn drop(&mut self) {
        self.quota.lock().remove(self.source, self.id);
    }
}

/// Where a peer is: an IPv4 address, or the 64 bits of an IPv6 address that its network chooses.
pub(crate) fn source(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    async fn is_given_up(slot: &QuotaSlot) -> bool {
        tokio::time::timeout(Duration::ZERO, slot.given_up().notified()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn those_go_first_that_come_from_where_most_come_from() {
        let quota = UnauthenticatedQuota::new(4);
        let crowd: Vec<_> = (0..4).map(|_| quota.admit(peer("10.0.0.1"), false).unwrap()).collect();
        assert!(quota.admit(peer("10.0.0.1"), false).is_none(), "one more of a crowd that just came");
        let other = quota.admit(peer("10.0.0.2"), false).unwrap();
        let third = quota.admit(peer("10.0.0.3"), false).unwrap();
        assert!(is_given_up(&crowd[0]).await && is_given_up(&crowd[1]).await);
        assert!(!is_given_up(&crowd[2]).await && !is_given_up(&other).await && !is_given_up(&third).await);

        tokio::time::advance(MIN_SLOT_AGE).await;
        let late = quota.admit(peer("10.0.0.1"), false).unwrap();
        assert!(is_given_up(&crowd[2]).await, "it had its time");
        drop((crowd, other, third, late));
        assert_eq!(quota.lock().count, 0);
        assert!(quota.lock().waiting.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_connection_to_spare_a_newcomer_takes_the_place_of_another() {
        let quota = UnauthenticatedQuota::new(4);
        assert!(quota.admit(peer("10.0.0.1"), true).is_none(), "there is none to give up");
        let first = quota.admit(peer("10.0.0.1"), false).unwrap();
        let second = quota.admit(peer("10.0.0.2"), true).unwrap();
        assert!(is_given_up(&first).await && !is_given_up(&second).await);
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        for (one, other, same) in [
            ("2001:db8::1", "2001:db8::ffff:0:0:2", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
        ] {
            assert_eq!(source(peer(one)) == source(peer(other)), same, "{one} and {other}");
        }
    }
}
