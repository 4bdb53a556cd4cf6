//! The requests of tenants' clusters that are open or wait to begin, watches and tunnels among them.
//!
//! Each one holds memory beside what waits in its buffers: its header, its streams and its tasks. It follows from what the process
//! may hold how many a tenant may have.

use std::sync::Arc;

use portcullis_limits::budget::{Budget, BudgetPermit, BudgetShares};
use portcullis_limits::{ClusterOwner, Owner};
use tokio::time::Instant;

use super::pace::TenantPace;
use super::{FlowName, LimitExceeded};

/// The bytes that all buffers may hold for each request that a tenant may have open. A watch takes half as many beside them.
const REQUEST_BYTES: usize = 64 << 10;
/// The fewest requests that a tenant may have open.
const MIN_REQUESTS: usize = 256;
/// For each request that waits to begin, a tenant may have so many open.
const OPEN_PER_WAITING: usize = 2;

/// The requests of all tenants' clusters.
#[derive(Debug)]
pub(super) struct TenantRequests {
    open: Budget,
    waiting: Budget,
}

/// The request that a tenant's client makes.
pub(super) struct NewRequest<'a, F> {
    pub(super) cluster: &'a ClusterOwner,
    pub(super) pace: &'a TenantPace,
    /// Names the flow; called only if there is a pace.
    pub(super) flow: F,
    /// The end of the request, also of its wait.
    pub(super) deadline: Option<Instant>,
}

impl TenantRequests {
    /// No limits yet.
    pub(super) fn new() -> Self {
        let [open, waiting] = [(); 2].map(|()| Budget::new(BudgetShares::new(usize::MAX)));
        Self { open, waiting }
    }

    /// Puts the limit in force which belongs to the bytes that all buffers may hold: a tenant may hold half as much in requests,
    /// and all tenants, of which there are so many, together as much. Returns how many of one tenant may wait.
    pub(super) fn apply(&self, max_buffered_bytes: usize, tenants: usize) -> usize {
        let each = (max_buffered_bytes / REQUEST_BYTES).max(MIN_REQUESTS);
        let waiting = each / OPEN_PER_WAITING;
        let of_tenants = |each, together| {
            BudgetShares::new(usize::MAX).with_tenants(each, together).divided_among(tenants)
        };
        self.open.set_shares(of_tenants(each, each.saturating_mul(2)));
        // Only all of them: the pace of a tenant bounds its own queue, and evicts a request of the longest flow there.
        self.waiting.set_shares(of_tenants(usize::MAX, waiting.saturating_mul(2)));
        waiting
    }

    /// Waits until a request of a cluster may begin, and counts it until the permit is dropped; not for the operator's clusters.
    ///
    /// The pace comes first: who has all places open is refused at the same pace, and what waits takes none of them.
    // threat: tenant-requests
    pub(super) async fn enter(
        &self,
        request: NewRequest<'_, impl FnOnce() -> FlowName>,
    ) -> Result<Option<BudgetPermit>, LimitExceeded> {
        let NewRequest { cluster, pace, flow, deadline } = request;
        if !cluster.is_of_tenant() {
            return Ok(None);
        }
        let tenant = cluster.cluster();
        pace.begin(tenant, flow, &self.waiting, deadline).await?;
        let permit = self.open.try_acquire(Owner::Tenant(Arc::clone(tenant)));
        Ok(Some(permit.ok_or(LimitExceeded::Process)?))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use futures_util::future::join_all;

    use super::*;

    /// One tenant with its pace.
    struct Tenant {
        cluster: ClusterOwner,
        pace: TenantPace,
    }

    impl Tenant {
        fn new(name: &str) -> Self {
            Self { cluster: ClusterOwner::tenant(name), pace: TenantPace::default() }
        }

        /// With so many requests in a second, and so many that wait.
        fn paced(name: &str, per_second: u32, waiting: usize) -> Self {
            let tenant = Self::new(name);
            tenant.pace.apply(per_second, waiting);
            tenant
        }

        fn request<'a>(
            &'a self,
            user: &'a str,
            deadline: Option<Instant>,
        ) -> NewRequest<'a, impl FnOnce() -> FlowName> {
            let flow = move || user.into();
            NewRequest { cluster: &self.cluster, pace: &self.pace, flow, deadline }
        }
    }

    #[tokio::test]
    async fn a_tenant_with_all_its_requests_leaves_those_of_others() {
        let requests = TenantRequests::new();
        requests.apply(300 * REQUEST_BYTES, 0);
        let flood = |tenant: &Tenant| {
            let enter =
                || requests.enter(tenant.request("alice", None)).now_or_never().expect("nothing waits").ok();
            std::iter::from_fn(enter).take(1000).collect::<Vec<_>>()
        };
        let held = flood(&Tenant::new("a"));
        assert_eq!(held.len(), 300);
        let own = Tenant { cluster: ClusterOwner::operator("own"), pace: TenantPace::default() };
        assert_eq!(flood(&own).len(), 1000);
        let more: Vec<_> = ["b", "c"].map(|name| flood(&Tenant::new(name))).into();
        assert_eq!(more.iter().map(Vec::len).collect::<Vec<_>>(), [300, 0]);
        drop(held);
        assert_eq!(flood(&Tenant::new("c")).len(), 300);
        requests.apply(0, 0);
        assert_eq!(flood(&Tenant::new("d")).len(), MIN_REQUESTS.min(2 * MIN_REQUESTS - 300));
    }

    /// How long the last of `count` requests waits that come at once; the reason if it is refused.
    async fn last_wait(
        requests: &TenantRequests,
        tenant: &Tenant,
        user: &str,
        count: usize,
    ) -> Result<Duration, LimitExceeded> {
        let began = Instant::now();
        let enter = || requests.enter(tenant.request(user, None));
        let entered = join_all(std::iter::repeat_with(enter).take(count)).await;
        entered.into_iter().collect::<Result<Vec<_>, _>>().map(|_| began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_waits_and_neither_other_tenants_nor_other_users_do() {
        let requests = TenantRequests::new();
        let waiting = requests.apply(10_000 * REQUEST_BYTES, 0);
        let [flooded, calm] = ["flooded", "calm"].map(|name| Tenant::paced(name, 100, waiting));
        // Clients without a credential of many networks are one user.
        let networks: Vec<_> = (0..9).map(|at| format!("system:anonymous at 10.0.{at}.1")).collect();
        let floods = async {
            let users = ["one", "two", "three"].into_iter().chain(networks.iter().map(String::as_str));
            join_all(users.map(|user| last_wait(&requests, &flooded, user, 50))).await
        };
        let others = async {
            tokio::time::sleep(Duration::from_millis(101)).await;
            let of_another = last_wait(&requests, &flooded, "modest", 2).await.unwrap();
            assert!(of_another <= Duration::from_millis(102), "{of_another:?}");
            assert_eq!(last_wait(&requests, &calm, "one", 2).await, Ok(Duration::ZERO), "another tenant");
            let own = Tenant { cluster: ClusterOwner::operator("own"), pace: TenantPace::default() };
            assert_eq!(last_wait(&requests, &own, "one", 10_000).await, Ok(Duration::ZERO));
        };
        let (waits, ()) = tokio::join!(floods, others);
        let seconds: Vec<_> = waits.into_iter().map(|wait| wait.unwrap().as_secs_f64()).collect();
        // 602 at 100 a second: three users have a quarter each while the networks have one together.
        assert!(seconds[..3].iter().all(|wait| (1.5..2.2).contains(wait)), "{seconds:?}");
        assert!(seconds[3..].iter().any(|wait| (5.5..9.1).contains(wait)), "{seconds:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_holds_no_place_and_ends_by_its_deadline() {
        let requests = TenantRequests::new();
        requests.apply(1000 * REQUEST_BYTES, 0);
        let tenant = Tenant::paced("a", 20, 1000);
        let held = requests.enter(tenant.request("alice", None)).await.unwrap();
        let mut waits: Vec<_> =
            (0..400).map(|_| Box::pin(requests.enter(tenant.request("flood", None)))).collect();
        assert!(waits.iter_mut().all(|wait| wait.now_or_never().is_none()));
        assert_eq!((requests.open.usage().tenants, requests.waiting.usage().tenants), (1, 400));
        // Their clients leave: none takes a turn.
        drop((waits, held));
        assert_eq!(requests.waiting.usage().tenants, 0);
        let soon = Some(Instant::now() + Duration::from_millis(120));
        let entered = join_all((0..9).map(|_| requests.enter(tenant.request("alice", soon)))).await;
        let timed_out =
            entered.iter().filter(|entered| matches!(entered, Err(LimitExceeded::TimedOut))).count();
        assert_eq!(timed_out, 7, "{entered:?}");
    }

    // Three have all places of tenants that wait, and all that are open.
    #[tokio::test(start_paused = true)]
    async fn however_many_tenants_flood_one_more_waits_and_opens_requests() {
        let requests = TenantRequests::new();
        let each = 1000;
        let waiting = requests.apply(each * REQUEST_BYTES, 10);
        let tenants: Vec<_> = (0..10).map(|number| Tenant::paced(&number.to_string(), 20, waiting)).collect();
        let (calm, floods) = tenants.split_first().unwrap();
        let mut waits = Vec::new();
        for tenant in floods {
            waits.extend((0..3 * each).map(|_| Box::pin(requests.enter(tenant.request("flood", None)))));
        }
        let begun = join_all(waits.iter_mut().map(|wait| async { wait.now_or_never() })).await;
        assert!(begun.iter().any(|begun| matches!(begun, Some(Err(LimitExceeded::Process)))));
        let burst = last_wait(&requests, calm, "alice", 40).await;
        assert!(burst.is_ok(), "{burst:?}");
        let held = join_all((0..20).map(|_| requests.enter(calm.request("alice", None)))).await;
        assert!(held.iter().all(Result::is_ok));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_pace_nothing_waits_and_too_many_are_refused_at_the_pace() {
        let requests = TenantRequests::new();
        requests.apply(0, 0);
        let tenant = Tenant::new("a");
        let held = join_all((0..MIN_REQUESTS).map(|_| requests.enter(tenant.request("alice", None)))).await;
        assert!(held.iter().all(Result::is_ok));
        tenant.pace.apply(100, 1000);
        let began = Instant::now();
        let refused = join_all((0..100).map(|_| requests.enter(tenant.request("alice", None)))).await;
        assert!(refused.iter().all(|entered| matches!(entered, Err(LimitExceeded::Process))));
        assert!(began.elapsed() >= Duration::from_millis(1500), "{:?}", began.elapsed());
    }
}
