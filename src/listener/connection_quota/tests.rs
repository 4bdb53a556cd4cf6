//! Networks, tenants and users, of which one takes all connections that it gets.

use futures_util::FutureExt as _;

use super::*;
use crate::listener::settings::ClientLimits;

fn peer(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn is_evicted(slot: &QuotaSlot) -> bool {
    slot.evicted().now_or_never().is_some()
}

#[tokio::test(start_paused = true)]
async fn the_network_with_the_most_connections_loses_its_oldest() {
    let quota = ConnectionQuota::unauthenticated(4);
    let crowd: Vec<_> = (0..4).map(|_| quota.admit(peer("10.0.0.1"), false).unwrap()).collect();
    assert!(quota.admit(peer("10.0.0.1"), false).is_none(), "its own connections are all new");
    let other = quota.admit(peer("10.0.0.2"), false).unwrap();
    let third = quota.admit(peer("10.0.0.3"), false).unwrap();
    assert!(is_evicted(&crowd[0]) && is_evicted(&crowd[1]));
    assert!(!is_evicted(&crowd[2]) && !is_evicted(&other) && !is_evicted(&third));

    tokio::time::advance(MIN_SLOT_AGE).await;
    let late = quota.admit(peer("10.0.0.1"), false).unwrap();
    assert!(is_evicted(&crowd[2]), "it has reached the minimum age");
    drop((crowd, other, third, late));
    assert_eq!(lock(&quota.state).unauthenticated(), 0);
}

#[tokio::test(start_paused = true)]
async fn at_max_connections_a_new_connection_evicts_another() {
    let quota = ConnectionQuota::unauthenticated(4);
    assert!(quota.admit(peer("10.0.0.1"), true).is_none(), "there is none to evict");
    let first = quota.admit(peer("10.0.0.1"), false).unwrap();
    let second = quota.admit(peer("10.0.0.2"), true).unwrap();
    assert!(is_evicted(&first) && !is_evicted(&second));
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

const SHARES: ClientShares =
    ClientShares { total: 10, unauthenticated: 4, authenticated: 8, per_tenant: 2, tenants: 5 };

fn quota() -> Arc<ConnectionQuota> {
    ConnectionQuota::new(SHARES, None)
}

fn flow(name: &str) -> Owner {
    Owner::flow("prod", name)
}

fn tenant(name: &str) -> Owner {
    Owner::Tenant(name.into())
}

/// An open connection, with a request in progress if `is_busy`.
struct Open {
    slot: QuotaSlot,
    activity: Arc<ConnectionActivity>,
    _request: Option<crate::listener::RequestGuard>,
}

impl Open {
    fn gives_way(&self) -> bool {
        self.activity.gave_way().now_or_never().is_some()
    }
}

fn connect(quota: &Arc<ConnectionQuota>, owner: Owner, is_busy: bool) -> Result<Open, QuotaExceeded> {
    let slot = quota.admit(peer("10.0.0.1"), false).expect("a place of those that arrive");
    let activity = ConnectionActivity::new(false, &ClientLimits::default());
    slot.establish(&activity);
    let request = activity.begin_request();
    slot.authenticate(owner)?;
    Ok(Open { slot, activity, _request: is_busy.then_some(request) })
}

/// How many of these connections give way.
fn leaving(connections: &[Open]) -> Vec<usize> {
    (0..connections.len()).filter(|index| connections[*index].gives_way()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_user_with_all_connections_gives_way_to_others_and_to_no_own_one() {
    let quota = quota();
    let hoard: Vec<_> = (0..8).map(|_| connect(&quota, flow("mallory"), true).unwrap()).collect();
    assert_eq!(connect(&quota, flow("mallory"), true).err(), Some(QuotaExceeded::Authenticated));
    let alice = connect(&quota, flow("alice"), true).unwrap();
    assert_eq!(leaving(&hoard), [7], "none is idle: the newest");
    let bob = connect(&quota, flow("bob"), true).unwrap();
    assert_eq!(leaving(&hoard), [6, 7]);
    assert!(!alice.gives_way() && !bob.gives_way());
    assert_eq!(lock(&quota.state).authenticated.len(), 8);
    // Those that leave count as unauthenticated, and are evicted for new ones.
    assert_eq!(lock(&quota.state).unauthenticated(), 2);
    let new: Vec<_> = (0..3).map(|_| quota.admit(peer("10.0.0.1"), false).unwrap()).collect();
    assert!(is_evicted(&hoard[7].slot) && !is_evicted(&hoard[6].slot));
    // What it still does changes nothing.
    assert_eq!(hoard[6].slot.authenticate(flow("mallory")), Ok(None));
    assert_eq!(lock(&quota.state).authenticated.len(), 8);
    drop((hoard, alice, bob, new));
    let state = lock(&quota.state);
    assert!(state.unauthenticated() == 0 && state.authenticated.is_empty());
}

/// Who finds no place comes again at once, and a proxy of many clients has several handshakes at a time.
#[tokio::test(start_paused = true)]
async fn a_user_with_all_connections_who_comes_again_keeps_no_handshake_of_others_away() {
    for total in [64, 96, 448] {
        let shares = ClientShares::of(total, None);
        let quota = ConnectionQuota::new(shares, None);
        let hoard: Vec<_> =
            (0..shares.authenticated).map(|_| connect(&quota, flow("mallory"), true).unwrap().slot).collect();
        let mut arriving = Vec::new();
        let mut admit = |address| {
            let full = hoard.len() + arriving.len() >= total;
            let slot = quota.admit(peer(address), full);
            arriving.retain(|slot| !is_evicted(slot));
            let is_admitted = slot.is_some();
            arriving.extend(slot);
            is_admitted
        };
        for _ in 0..2 * total {
            admit("10.0.0.1");
        }
        for number in 0..8 {
            assert!(admit("10.0.0.2"), "{total} connections, handshake {number}");
            admit("10.0.0.1");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn idle_connections_give_way_first_also_to_their_own_user() {
    let quota = quota();
    let mut all: Vec<_> = (0..8).map(|index| connect(&quota, flow("mallory"), index != 3).unwrap()).collect();
    all.push(connect(&quota, flow("mallory"), true).unwrap());
    assert_eq!(leaving(&all), [3]);
    assert_eq!(connect(&quota, flow("mallory"), true).err(), Some(QuotaExceeded::Authenticated));
}

#[tokio::test(start_paused = true)]
async fn users_with_as_many_connections_do_not_displace_each_other() {
    let quota = quota();
    let users = ["a", "b", "c", "d"];
    let all: Vec<_> =
        users.iter().flat_map(|user| [(); 2].map(|()| connect(&quota, flow(user), true).unwrap())).collect();
    for _ in 0..3 {
        assert_eq!(connect(&quota, flow("a"), true).err(), Some(QuotaExceeded::Authenticated));
    }
    let late = connect(&quota, flow("late"), true).unwrap();
    assert_eq!(leaving(&all).len(), 1, "one that has none displaces one of two");
    assert_eq!(connect(&quota, flow("late"), true).err(), Some(QuotaExceeded::Authenticated));
    assert!(!late.gives_way());
}

#[test]
fn one_tenant_has_its_share_and_all_of_them_another() {
    let quota = quota();
    let admit = |name: &str| connect(&quota, tenant(name), true);
    let mut first: Vec<_> = (0..2).map(|_| admit("a").unwrap()).collect();
    assert_eq!(admit("a").err(), Some(QuotaExceeded::Tenant), "its share is used up");
    let others: Vec<_> = ["b", "b", "c"].into_iter().map(|name| admit(name).unwrap()).collect();
    assert_eq!(admit("c").err(), Some(QuotaExceeded::Tenant), "so is that of all");
    first.pop();
    let next = admit("d").unwrap();
    // Once a user of the operator's has authenticated, it is that user's.
    assert_eq!(next.slot.authenticate(flow("alice")), Ok(None));
    assert_eq!(next.slot.authenticate(tenant("d")), Ok(None));
    let again = admit("d").unwrap();
    drop((first, others, next, again));
    let state = lock(&quota.state);
    assert!(state.tenants == 0 && state.authenticated.is_empty(), "nothing is kept of closed connections");
}
