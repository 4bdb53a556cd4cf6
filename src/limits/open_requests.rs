//! The requests of tenants' clusters, watches and tunnels among them: how many are open, and how many begin in a second.
//!
//! Each open request holds memory beside what waits in its buffers: its header, its streams and its tasks. It follows from what the
//! process may hold how many a tenant may have. Each one that begins takes time of a thread that serves all clusters: a flood waits,
//! and is not refused, because a refused client comes back at once. A user of a tenant has half of its rate, so that one user's
//! flood does not delay the others; three users can.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_limits::budget::{Budget, BudgetPermit, BudgetShares};
use portcullis_limits::rate::{Rate, RateLimits};
use portcullis_limits::{ClusterOwner, Owner};
use portcullis_system::sync::lock;
use tokio::time::{Instant, sleep};

use super::{FlowName, LimitExceeded};

/// The bytes that all buffers may hold for each request that a tenant may have open. A watch takes half as many beside them.
const REQUEST_BYTES: usize = 64 << 10;
/// The fewest requests that a tenant may have open.
const MIN_REQUESTS: usize = 256;
/// The longest time that a request waits to begin.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// What may begin at once, as a part of a second.
const BURST_DIVISOR: u32 = 4;
/// The tenants, and their flows, with a rate of their own; further ones share one.
const MAX_TENANTS: usize = 4096;
const MAX_FLOWS: usize = 16_384;

/// The requests of all tenants' clusters.
#[derive(Debug)]
pub(super) struct TenantRequests {
    open: Budget,
    pace: Mutex<Pace>,
}

/// How many requests begin in a second.
#[derive(Debug, Default)]
struct Pace {
    per_second: u32,
    limits: Option<PaceLimits>,
}

#[derive(Debug)]
struct PaceLimits {
    tenants: RateLimits<Arc<str>>,
    flows: RateLimits<(Arc<str>, FlowName)>,
}

impl Pace {
    fn apply(&mut self, per_second: u32) {
        if self.per_second == per_second {
            return;
        }
        self.per_second = per_second;
        self.limits = rate(per_second).map(|all| PaceLimits {
            tenants: RateLimits::new(all, MAX_TENANTS),
            flows: RateLimits::new(rate(per_second / 2).unwrap_or(all), MAX_FLOWS),
        });
    }
}

/// `None` if there is no limit.
fn rate(per_second: u32) -> Option<Rate> {
    let interval = Duration::from_secs(1).checked_div(per_second)?;
    Some(Rate { interval, burst: (per_second / BURST_DIVISOR).max(1) })
}

impl TenantRequests {
    /// No limits yet.
    pub(super) fn new() -> Self {
        Self { open: Budget::new(BudgetShares::new(usize::MAX)), pace: Mutex::default() }
    }

    /// Puts the limits in force: on what is open that which belongs to the bytes that all buffers may hold (a tenant may hold half as
    /// much in requests, and all tenants together as much), and on what begins in a second; 0: none.
    pub(super) fn apply(&self, max_buffered_bytes: usize, per_second: u32) {
        let each = (max_buffered_bytes / REQUEST_BYTES).max(MIN_REQUESTS);
        self.open.set_shares(BudgetShares::new(usize::MAX).with_tenants(each, each.saturating_mul(2)));
        lock(&self.pace).apply(per_second);
    }

    /// Counts a request of a cluster until the permit is dropped, and waits until it may begin; not for the operator's clusters.
    // threat: tenant-requests
    pub(super) async fn enter(
        &self,
        cluster: &ClusterOwner,
        flow: impl FnOnce() -> FlowName,
    ) -> Result<Option<BudgetPermit>, LimitExceeded> {
        if !cluster.is_of_tenant() {
            return Ok(None);
        }
        let tenant = cluster.cluster();
        let permit = self.open.try_acquire(Owner::Tenant(Arc::clone(tenant)));
        let permit = permit.ok_or(LimitExceeded::Process)?;
        // First its turn among those of the flow: of one user's flood, the tenant's turn is taken by what passes this.
        self.wait_for(|limits, now| {
            limits.flows.reserve_within(&(Arc::clone(tenant), flow()), MAX_WAIT, now)
        })
        .await?;
        self.wait_for(|limits, now| limits.tenants.reserve_within(tenant, MAX_WAIT, now)).await?;
        Ok(Some(permit))
    }

    async fn wait_for(
        &self,
        turn: impl FnOnce(&mut PaceLimits, Instant) -> Option<Duration>,
    ) -> Result<(), LimitExceeded> {
        let now = Instant::now();
        let wait = match &mut lock(&self.pace).limits {
            Some(limits) => turn(limits, now).ok_or(LimitExceeded::TimedOut)?,
            None => Duration::ZERO,
        };
        if !wait.is_zero() {
            sleep(wait).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use futures_util::future::join_all;

    use super::*;

    fn flow() -> FlowName {
        "alice".into()
    }

    #[test]
    fn a_tenant_with_all_its_requests_leaves_those_of_others() {
        let requests = TenantRequests::new();
        requests.apply(300 * REQUEST_BYTES, 0);
        let flood = |cluster: &ClusterOwner| {
            let enter = || requests.enter(cluster, flow).now_or_never().expect("nothing waits").ok();
            std::iter::from_fn(enter).take(1000).collect::<Vec<_>>()
        };
        let held = flood(&ClusterOwner::tenant("a"));
        assert_eq!(held.len(), 300);
        assert_eq!(flood(&ClusterOwner::operator("own")).len(), 1000);
        let more: Vec<_> = ["b", "c"].map(|name| flood(&ClusterOwner::tenant(name))).into();
        assert_eq!(more.iter().map(Vec::len).collect::<Vec<_>>(), [300, 0]);
        drop(held);
        assert_eq!(flood(&ClusterOwner::tenant("c")).len(), 300);
        requests.apply(0, 0);
        assert_eq!(flood(&ClusterOwner::tenant("d")).len(), MIN_REQUESTS.min(2 * MIN_REQUESTS - 300));
    }

    /// How long the last of `count` requests waits that come at once; `None` if it is refused.
    async fn last_wait(
        requests: &TenantRequests,
        cluster: &ClusterOwner,
        user: &str,
        count: usize,
    ) -> Option<Duration> {
        let began = Instant::now();
        let enter = || requests.enter(cluster, || user.into());
        let entered = join_all(std::iter::repeat_with(enter).take(count)).await;
        entered.iter().all(Result::is_ok).then(|| began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_one_user_wait_for_their_rate_and_those_of_others_do_not() {
        let requests = TenantRequests::new();
        requests.apply(10_000 * REQUEST_BYTES, 100);
        let [flooded, calm] = ["flooded", "calm"].map(ClusterOwner::tenant);
        let wait = |cluster, user, count| last_wait(&requests, cluster, user, count);
        // Half of the rate, of which 12 begin at once.
        let of_one = wait(&flooded, "greedy", 112).await.unwrap();
        assert!((2000..2010).contains(&of_one.as_millis()), "{of_one:?}");
        let ((), of_another) = tokio::join!(
            async {
                wait(&flooded, "greedy", 200).await.unwrap();
            },
            wait(&flooded, "modest", 2)
        );
        assert_eq!(of_another, Some(Duration::ZERO), "another user of the tenant");
        assert_eq!(wait(&calm, "greedy", 12).await, Some(Duration::ZERO), "another tenant");
        let own = ClusterOwner::operator("own");
        assert_eq!(wait(&own, "greedy", 10_000).await, Some(Duration::ZERO), "the operator's cluster");
        sleep(Duration::from_mins(1)).await;
        let users = (0..9).map(|user| format!("user-{user}")).collect::<Vec<_>>();
        let began = Instant::now();
        join_all(users.iter().map(|user| last_wait(&requests, &flooded, user, 25))).await;
        // 225 of many users, of which 25 begin at once.
        assert!((2000..2010).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn what_would_wait_too_long_is_refused_and_takes_no_turn() {
        let requests = TenantRequests::new();
        requests.apply(10_000 * REQUEST_BYTES, 2);
        let tenant = ClusterOwner::tenant("a");
        let began = Instant::now();
        let entered = join_all((0..100).map(|_| requests.enter(&tenant, flow))).await;
        assert_eq!(entered.iter().filter(|entered| entered.is_ok()).count(), 11);
        assert!(began.elapsed() <= MAX_WAIT);
        sleep(Duration::from_secs(1)).await;
        assert!(requests.enter(&tenant, flow).await.is_ok());
        requests.apply(10_000 * REQUEST_BYTES, 0);
        assert_eq!(last_wait(&requests, &tenant, "alice", 100).await, Some(Duration::ZERO));
    }
}
