//! What the process has once to reach API servers, and how much of it a cluster takes: connections, which are open files, and
//! lookups of names, which occupy threads, and memory; and the memory of what is kept of their responses.
//!
//! A connection cannot be made without a [`ConnectionPlace`], which counts it until it is closed: over HTTP/2, over HTTP/1.1
//! and as a tunnel.

use portcullis_limits::budget::{Budget, BudgetPermit, BudgetShares};
use portcullis_limits::byte_ledger::ByteLedger;
use portcullis_limits::cache_budget::{CacheBudget, CacheShare};
use portcullis_limits::{ClusterOwner, Owner};

use super::author::RequestAuthor;
use super::buffers::ClusterBuffers;
use super::lookup::{LookupLimits, Lookups};

/// The limits of the process. Cheap to clone: a clone is the same limits.
#[derive(Debug, Clone)]
pub(crate) struct DialLimits {
    connections: Budget,
    lookups: LookupLimits,
    ledger: ByteLedger,
    caches: CacheBudget,
}

impl DialLimits {
    /// With these shares of the connections. What they hold counts in the ledger.
    pub(crate) fn new(connections: BudgetShares, ledger: &ByteLedger) -> Self {
        let (connections, lookups) = (Budget::new(connections), LookupLimits::default());
        Self { connections, lookups, ledger: ledger.clone(), caches: CacheBudget::new() }
    }

    /// The bytes that streams and connections hold.
    pub(crate) fn ledger(&self) -> &ByteLedger {
        &self.ledger
    }

    /// The memory of what caches keep.
    pub(crate) fn caches(&self) -> &CacheBudget {
        &self.caches
    }

    /// The connections to all API servers.
    pub(crate) fn connections(&self) -> &Budget {
        &self.connections
    }

    /// What one cluster may have of them.
    pub(crate) fn of(&self, cluster: ClusterOwner) -> ClusterDials {
        let lookups = self.lookups.of(cluster.clone());
        let buffers = ClusterBuffers::new(&self.ledger, cluster.clone());
        let caches = self.caches.of(&cluster);
        ClusterDials { connections: self.connections.clone(), lookups, buffers, caches, cluster }
    }
}

/// The limits, as one cluster has them.
#[derive(Debug, Clone)]
pub(crate) struct ClusterDials {
    connections: Budget,
    pub(super) lookups: Lookups,
    pub(super) buffers: ClusterBuffers,
    pub(crate) caches: CacheShare,
    pub(super) cluster: ClusterOwner,
}

impl ClusterDials {
    /// A place for a connection, in the share of the request's author. The gateway's own requests may take the reserve, but
    /// for those to a tenant's API servers, whose number the tenant chooses.
    // threat: backend-connection-flood
    pub(super) fn connection_place(&self, author: &RequestAuthor) -> Option<ConnectionPlace> {
        let permit = match author.owner(&self.cluster) {
            Owner::Gateway => self.connections.try_acquire_reserved(Owner::Gateway),
            owner => self.connections.try_acquire(owner),
        }?;
        Some(ConnectionPlace { permit, cluster: self.cluster.clone() })
    }
}

/// The place of one open connection, returned on drop.
#[derive(Debug)]
#[must_use = "the place is returned when this is dropped"]
pub(crate) struct ConnectionPlace {
    permit: BudgetPermit,
    cluster: ClusterOwner,
}

impl ConnectionPlace {
    /// Counts the connection in the share of the author of its next request. Returns whether that share permits it.
    pub(super) fn pass_to(&mut self, author: &RequestAuthor) -> bool {
        // One of the gateway takes nothing that it did not have already.
        author.is_gateway() || self.permit.pass_to(author.owner(&self.cluster))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use portcullis_kubernetes::user::UserInfo;

    use super::*;
    use crate::backend::author::ClientAuthor;

    fn author(user: &str) -> RequestAuthor {
        let requester = UserInfo::named(user).into();
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        RequestAuthor::Client(ClientAuthor { removed: None, requester, address })
    }

    fn all(cluster: &ClusterDials, author: &RequestAuthor) -> Vec<ConnectionPlace> {
        std::iter::from_fn(|| cluster.connection_place(author)).collect()
    }

    // threat: backend-connection-flood
    #[test]
    fn neither_a_tenant_nor_a_user_takes_the_connections_of_others() {
        let shares = BudgetShares::new(64).with_reserve(8).with_tenants(8, 48).with_flows(16);
        let limits = DialLimits::new(shares, &ByteLedger::new(usize::MAX));
        let [tenant, calm] = ["flood", "calm"].map(|name| limits.of(ClusterOwner::tenant(name)));
        let own = limits.of(ClusterOwner::operator("own"));
        // The gateway's own connections to a tenant's API servers are the tenant's.
        let mut of_tenant = all(&tenant, &author("mallory"));
        of_tenant.extend(all(&tenant, &author("bob")));
        assert_eq!(of_tenant.len(), 8);
        assert!(tenant.connection_place(&RequestAuthor::Gateway).is_none());
        assert_eq!(all(&calm, &author("carol")).len(), 8);
        let of_user = all(&own, &author("mallory"));
        assert_eq!(of_user.len(), 16);
        let alice = all(&own, &author("alice"));
        assert_eq!(alice.len(), 16);
        let more = ["x", "y"].map(|name| all(&own, &author(name)));
        assert_eq!(more.iter().map(Vec::len).sum::<usize>(), 16, "all but the reserve");
        assert_eq!(all(&own, &RequestAuthor::Gateway).len(), 8);
    }

    // Over HTTP/1.1 a connection carries requests of one user after the other.
    #[test]
    fn a_kept_connection_counts_for_the_author_of_its_next_request() {
        let limits = DialLimits::new(BudgetShares::new(64).with_flows(2), &ByteLedger::new(usize::MAX));
        let own = limits.of(ClusterOwner::operator("own"));
        let mut kept = all(&own, &author("alice"));
        assert_eq!(kept.len(), 2);
        assert!(kept.iter_mut().all(|place| place.pass_to(&author("bob"))));
        assert!(own.connection_place(&author("bob")).is_none());
        let mut of_alice = own.connection_place(&author("alice")).expect("hers are free again");
        assert!(!of_alice.pass_to(&author("bob")) && of_alice.pass_to(&RequestAuthor::Gateway));
    }
}
