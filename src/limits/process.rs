//! The limit on the requests of all clusters, without queues. Each tenant has a share of it, all tenants have one together,
//! and so has each flow of the operator's clusters; a reserve is for its masters and nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use portcullis_limits::Owner;
use portcullis_limits::budget::{Budget, BudgetPermit, BudgetShares};

use super::{FlowName, LimitExceeded};
use crate::metrics::{GaugeGuard, Metrics};

/// One tenant's cluster has this part of the places, and all of them have half.
const TENANT_PART: usize = 8;
const TENANTS_PART: usize = 2;
/// One flow of the operator's clusters leaves this part of the places to the others.
const UNAVAILABLE_PART: usize = 4;
/// This part of the places is for masters and nodes of the operator's clusters alone.
const RESERVED_PART: usize = 10;

/// What a request may have of the limit of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessPriority {
    /// A place in the share of its tenant, whatever its user is called.
    OfTenant,
    /// A place in the share of its flow.
    Ordinary,
    /// Any place, also of the reserve.
    Reserved,
    /// The same; and it is served without one if none is free.
    Exempt,
}

/// The requests of the process in flight.
#[derive(Debug)]
pub(super) struct ProcessLimit {
    /// Without a limit, requests do not even take the lock.
    is_limited: AtomicBool,
    places: Budget,
    metrics: Arc<Metrics>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct ProcessPlace {
    _permit: BudgetPermit,
    _counted: GaugeGuard,
}

impl ProcessLimit {
    pub(super) fn new(metrics: &Arc<Metrics>) -> Self {
        let places = Budget::new(shares(0));
        Self { is_limited: AtomicBool::new(false), places, metrics: Arc::clone(metrics) }
    }

    pub(super) fn apply(&self, limit: usize, tenants: usize) {
        self.places.set_shares(shares(limit).divided_among(tenants));
        self.is_limited.store(limit > 0, Ordering::Relaxed);
    }

    pub(super) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    /// A place; `None` for an exempt request beyond the limit.
    // threat: inflight-flood, tenant-privilege
    pub(super) fn enter(
        &self,
        cluster: &Arc<str>,
        flow: FlowName,
        priority: ProcessPriority,
    ) -> Result<Option<ProcessPlace>, LimitExceeded> {
        let flow = || Owner::flow(Arc::clone(cluster), flow);
        let permit = match priority {
            ProcessPriority::OfTenant => self.places.try_acquire(Owner::Tenant(Arc::clone(cluster))),
            ProcessPriority::Ordinary => self.places.try_acquire(flow()),
            ProcessPriority::Reserved | ProcessPriority::Exempt => self.places.try_acquire_reserved(flow()),
        };
        match permit {
            Some(permit) => {
                let counted = GaugeGuard::new(&self.metrics.limits.process_in_service);
                Ok(Some(ProcessPlace { _permit: permit, _counted: counted }))
            }
            None if priority == ProcessPriority::Exempt => Ok(None),
            None => Err(LimitExceeded::Process),
        }
    }
}

/// The shares of a limit.
fn shares(limit: usize) -> BudgetShares {
    let part = |part: usize| (limit / part).max(1);
    BudgetShares::new(limit)
        .with_reserve(limit / RESERVED_PART)
        .with_tenants(part(TENANT_PART), part(TENANTS_PART))
        .with_flows(limit - limit / UNAVAILABLE_PART)
}
