//! The quota of connections on which requests have authenticated at clusters of tenants alone. A tenant decides which
//! clients authenticate at its cluster, so that this proves nothing to the operator of the gateway: without a quota, the
//! clients of one tenant could occupy all connections of the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use portcullis_system::sync::lock;

/// The connections of the clients of tenants.
#[derive(Debug)]
pub(super) struct TenantQuota {
    /// The most connections of one cluster, and of all.
    limit: usize,
    total_limit: usize,
    open: Mutex<OpenByCluster>,
}

#[derive(Debug, Default)]
struct OpenByCluster {
    total: usize,
    clusters: HashMap<String, usize>,
}

/// The slot of one connection; dropping it returns it.
#[derive(Debug)]
pub(super) struct TenantSlot {
    quota: Arc<TenantQuota>,
    cluster: String,
}

impl TenantQuota {
    /// A quota of `limit` connections for each cluster, and `total_limit` for all.
    pub(super) fn new(limit: usize, total_limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, total_limit, open: Mutex::default() })
    }

    /// Takes a slot for a connection whose client has authenticated at this cluster; `None` if none is left.
    // threat: tenant-connection-flood
    pub(super) fn admit(self: &Arc<Self>, cluster: &str) -> Option<TenantSlot> {
        let mut open = lock(&self.open);
        let of_cluster = open.clusters.get(cluster).copied().unwrap_or_default();
        if of_cluster >= self.limit || open.total >= self.total_limit {
            return None;
        }
        open.total += 1;
        open.clusters.insert(cluster.to_owned(), of_cluster + 1);
        Some(TenantSlot { quota: Arc::clone(self), cluster: cluster.to_owned() })
    }
}

impl Drop for TenantSlot {
    fn drop(&mut self) {
        let mut open = lock(&self.quota.open);
        open.total = open.total.saturating_sub(1);
        let Some(count) = open.clusters.get_mut(&self.cluster) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            open.clusters.remove(&self.cluster);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cluster_has_its_share_and_all_of_them_another() {
        let quota = TenantQuota::new(2, 5);
        let admit = |cluster| quota.admit(cluster);
        let mut first: Vec<_> = (0..2).map(|_| admit("a").unwrap()).collect();
        assert!(admit("a").is_none(), "its share is used up");
        let others: Vec<_> = ["b", "b", "c"].into_iter().map(|cluster| admit(cluster).unwrap()).collect();
        assert!(admit("c").is_none() && admit("d").is_none(), "so is that of all");
        first.pop();
        let next = admit("d").unwrap();
        drop((first, others, next));
        let open = lock(&quota.open);
        assert!(open.total == 0 && open.clusters.is_empty(), "nothing is kept of closed connections");
    }
}
