//! How many requests of a tenant's cluster begin in a second, watches too; further ones wait, and its users take turns.
//!
//! Each request that begins takes time of a thread that serves all clusters. A flood waits, and is not refused, because a refused
//! client comes back at once.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_kubernetes::user::ANONYMOUS;
use portcullis_limits::Owner;
use portcullis_limits::budget::Budget;
use portcullis_limits::paced_limiter::{Beginning, Pace, PacedLimiter, WaitingTurn};
use portcullis_system::sync::lock;
use tokio::time::Instant;

use super::{FlowName, LimitExceeded, is_anonymous};

/// The longest time that a request waits to begin.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// One flow has this part of a tenant's queue.
const FLOW_PART: usize = 2;

/// The pace of one tenant's cluster.
#[derive(Debug, Default)]
pub(super) struct TenantPace(Mutex<Option<(Pace, Arc<PacedLimiter<FlowName>>)>>);

impl TenantPace {
    /// Puts a pace in force, 0 for none, with a queue of this length. Requests that wait keep the pace that they have found.
    pub(super) fn apply(&self, per_second: u32, waiting: usize) {
        let pace = Pace { per_second, waiting, waiting_per_owner: waiting.div_ceil(FLOW_PART) };
        let mut in_force = lock(&self.0);
        match &*in_force {
            _ if per_second == 0 => *in_force = None,
            Some((former, _)) if *former == pace => {}
            _ => *in_force = Some((pace, Arc::new(PacedLimiter::new(pace)))),
        }
    }

    /// Waits for the turn of a request. While it waits, it counts among those of all tenants.
    // threat: tenant-requests
    pub(super) async fn begin(
        &self,
        tenant: &Arc<str>,
        flow: impl FnOnce() -> FlowName,
        all_waiting: &Budget,
        deadline: Option<Instant>,
    ) -> Result<(), LimitExceeded> {
        let limiter = lock(&self.0).as_ref().map(|(_, limiter)| Arc::clone(limiter));
        let Some(limiter) = limiter else { return Ok(()) };
        match limiter.begin(of_all_networks(flow()))? {
            Beginning::Begun => Ok(()),
            // Boxed: few requests wait, and the future of each request is moved several times.
            Beginning::Waiting(turn) => Box::pin(wait(turn, tenant, all_waiting, deadline)).await,
        }
    }
}

async fn wait(
    turn: WaitingTurn<'_, FlowName>,
    tenant: &Arc<str>,
    all_waiting: &Budget,
    deadline: Option<Instant>,
) -> Result<(), LimitExceeded> {
    let counted = all_waiting.try_acquire(Owner::Tenant(Arc::clone(tenant)));
    let _counted = counted.ok_or(LimitExceeded::Process)?;
    let until = Instant::now() + MAX_WAIT;
    Ok(turn.begun(deadline.map_or(until, |deadline| deadline.min(until))).await?)
}

/// All networks of clients without a credential are one flow: who has many takes no more turns.
fn of_all_networks(flow: FlowName) -> FlowName {
    if is_anonymous(&flow) { ANONYMOUS.into() } else { flow }
}
