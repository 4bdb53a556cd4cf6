//! The open requests of tenants' clusters, watches and tunnels among them. Each holds memory beside what waits in its buffers: its
//! header, its streams and its tasks. It follows from what the process may hold how many a tenant may have.

use std::sync::Arc;

use portcullis_limits::budget::{Budget, BudgetPermit, BudgetShares};
use portcullis_limits::{ClusterOwner, Owner};

use super::LimitExceeded;

/// What a request may hold beside its buffers: a watch holds less, one with a large header more.
const REQUEST_BYTES: usize = 32 << 10;
/// The fewest requests that a tenant may have open.
const MIN_REQUESTS: usize = 256;

/// The open requests of all tenants' clusters.
#[derive(Debug)]
pub(super) struct TenantRequests(Budget);

impl TenantRequests {
    /// No limit yet.
    pub(super) fn new() -> Self {
        Self(Budget::new(BudgetShares::new(usize::MAX)))
    }

    /// Puts the limit in force that belongs to the bytes that all buffers may hold: a tenant may hold as much in requests, and all
    /// tenants together twice as much.
    pub(super) fn apply(&self, max_buffered_bytes: usize) {
        let each = (max_buffered_bytes / REQUEST_BYTES).max(MIN_REQUESTS);
        self.0.set_shares(BudgetShares::new(usize::MAX).with_tenants(each, each.saturating_mul(2)));
    }

    /// Counts a request of a cluster until the permit is dropped; those of the operator's clusters are not counted.
    // threat: tenant-requests
    pub(super) fn enter(&self, cluster: &ClusterOwner) -> Result<Option<BudgetPermit>, LimitExceeded> {
        if !cluster.is_of_tenant() {
            return Ok(None);
        }
        let permit = self.0.try_acquire(Owner::Tenant(Arc::clone(cluster.cluster())));
        permit.map(Some).ok_or(LimitExceeded::Process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_with_all_its_requests_leaves_those_of_others() {
        let requests = TenantRequests::new();
        requests.apply(300 * REQUEST_BYTES);
        let flood = |cluster: &ClusterOwner| {
            std::iter::from_fn(|| requests.enter(cluster).ok()).take(1000).collect::<Vec<_>>()
        };
        let held = flood(&ClusterOwner::tenant("a"));
        assert_eq!(held.len(), 300);
        assert_eq!(flood(&ClusterOwner::operator("own")).len(), 1000);
        let more: Vec<_> = ["b", "c"].map(|name| flood(&ClusterOwner::tenant(name))).into();
        assert_eq!(more.iter().map(Vec::len).collect::<Vec<_>>(), [300, 0]);
        drop(held);
        assert_eq!(flood(&ClusterOwner::tenant("c")).len(), 300);
        requests.apply(0);
        assert_eq!(flood(&ClusterOwner::tenant("d")).len(), MIN_REQUESTS.min(2 * MIN_REQUESTS - 300));
    }
}
