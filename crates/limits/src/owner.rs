//! Whose share something counts in.

use std::fmt::Debug;
use std::hash::Hash;
use std::net::IpAddr;
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
    /// A flow of a cluster.
    pub fn flow(cluster: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self::Flow { cluster: cluster.into(), name: name.into() }
    }
}

/// Names whose share something counts in: an [`Owner`] in the process, a flow or a network within one cluster.
pub trait OwnerKey: Clone + Eq + Hash + Debug + Send + 'static {}

impl<T: Clone + Eq + Hash + Debug + Send + 'static> OwnerKey for T {}
