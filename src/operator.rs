//! The users whom the operator of the gateway names. Their names and groups alone count in the whole process; those that a
//! tenant names count in the tenant's own cluster, as its API server has it, and nowhere else.
//!
//! A privilege in the process is given to an [`OperatorUser`], never to a name or a group: a tenant's `system:masters` cannot
//! even be compared. Only `ClusterOrigin::operator_user` makes one (`tests/it/layers.rs`).

use portcullis_kubernetes::user::{GATEWAY, MASTERS, NODES, UserInfo};

/// A user of a cluster that the operator configures.
// threat: tenant-privilege
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperatorUser<'a>(&'a UserInfo);

impl<'a> OperatorUser<'a> {
    /// Vouches that the operator configures the cluster that names this user.
    pub(crate) fn vouched(user: &'a UserInfo) -> Self {
        Self(user)
    }

    /// Whether it may do everything.
    pub(crate) fn is_master(self) -> bool {
        self.is_in(MASTERS)
    }

    /// Whether it is a node: without its requests the pods of the node are taken for lost.
    pub(crate) fn is_node(self) -> bool {
        self.is_in(NODES)
    }

    /// Whether it is a gateway.
    pub(crate) fn is_gateway(self) -> bool {
        self.0.name == GATEWAY
    }

    /// Its groups.
    pub(crate) fn groups(self) -> impl Iterator<Item = &'a str> {
        self.0.groups.iter().map(String::as_str)
    }

    fn is_in(self, wanted: &str) -> bool {
        self.groups().any(|group| group == wanted)
    }
}
