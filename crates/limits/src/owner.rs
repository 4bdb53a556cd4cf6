//! Whose share something counts in.

use std::fmt::Debug;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// The owner of a share of what the process has once.
///
/// Everything of a tenant's cluster has one owner: the tenant chooses its users, its clients and its API server. In a cluster
/// of the operator each user is one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// The gateway itself: its probes, self-checks and reloads.
    Gateway,
    /// The cluster of a tenant, by its name.
    Tenant(Arc<str>),
    /// The requests of one user in a cluster of the operator.
    Flow {
        /// The cluster.
        cluster: Arc<str>,
        /// The user, or what counts as one.
        name: Arc<str>,
    },
    /// A client that has not authenticated, by its network.
    Network(IpAddr),
}

impl Owner {
    /// All clients that have not authenticated, where those of one person could have many networks.
    pub const ALL_NETWORKS: Self = Self::Network(IpAddr::V4(Ipv4Addr::UNSPECIFIED));

    /// A flow of a cluster.
    pub fn flow(cluster: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self::Flow { cluster: cluster.into(), name: name.into() }
    }
}

/// A cluster, from which the owner of everything that happens in it follows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClusterOwner {
    cluster: Arc<str>,
    is_of_tenant: bool,
}

impl ClusterOwner {
    /// A cluster that the operator configures.
    pub fn operator(cluster: impl Into<Arc<str>>) -> Self {
        Self { cluster: cluster.into(), is_of_tenant: false }
    }

    /// A cluster that a tenant configures.
    pub fn tenant(cluster: impl Into<Arc<str>>) -> Self {
        Self { cluster: cluster.into(), is_of_tenant: true }
    }

    /// The name of the cluster.
    pub fn cluster(&self) -> &Arc<str> {
        &self.cluster
    }

    /// Whether a tenant configures it.
    pub fn is_of_tenant(&self) -> bool {
        self.is_of_tenant
    }

    /// The owner of what clients of this flow do.
    pub fn of_flow(&self, flow: impl Into<Arc<str>>) -> Owner {
        if self.is_of_tenant { self.as_tenant() } else { Owner::flow(Arc::clone(&self.cluster), flow) }
    }

    /// The owner of what the gateway itself does at the cluster: a tenant chooses how many API servers it has to check.
    pub fn of_gateway(&self) -> Owner {
        if self.is_of_tenant { self.as_tenant() } else { Owner::Gateway }
    }

    fn as_tenant(&self) -> Owner {
        Owner::Tenant(Arc::clone(&self.cluster))
    }
}

/// Names whose share something counts in: an [`Owner`] in the process, a flow or a network within one cluster.
pub trait OwnerKey: Clone + Eq + Hash + Debug + Send + 'static {}

impl<T: Clone + Eq + Hash + Debug + Send + 'static> OwnerKey for T {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_of_a_tenants_cluster_has_one_owner() {
        let (tenant, own) = (ClusterOwner::tenant("t"), ClusterOwner::operator("prod"));
        let all = [tenant.of_flow("alice"), tenant.of_flow("bob"), tenant.of_gateway()];
        assert!(all.iter().all(|owner| *owner == Owner::Tenant("t".into())));
        assert_eq!(own.of_flow("alice"), Owner::flow("prod", "alice"));
        assert_eq!(own.of_gateway(), Owner::Gateway);
    }
}
