//! Whose share of a buffer an event takes, and which owners have a bound together.

use std::sync::Arc;

use portcullis_limits::Owner;

/// Whose share of a buffer an event takes, and the cluster in which its loss is counted. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventOwner(Arc<Shared>);

#[derive(Debug, PartialEq, Eq)]
struct Shared {
    owner: Owner,
    cluster: Arc<str>,
}

impl EventOwner {
    /// The events of `owner` in this cluster.
    pub fn new(owner: Owner, cluster: impl Into<Arc<str>>) -> Self {
        Self(Arc::new(Shared { owner, cluster: cluster.into() }))
    }

    /// The owner.
    pub fn owner(&self) -> &Owner {
        &self.0.owner
    }

    pub(super) fn cluster(&self) -> &Arc<str> {
        &self.0.cluster
    }

    pub(super) fn group(&self) -> OwnerGroup {
        match self.owner() {
            Owner::Gateway | Owner::Flow { .. } => OwnerGroup::Operator,
            Owner::Tenant(_) => OwnerGroup::Tenants,
            Owner::Network(_) => OwnerGroup::Networks,
        }
    }
}

/// Owners that have a bound together, since it costs little to be many of them: clusters of Secrets, and networks of clients
/// that have not authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnerGroup {
    /// The users of the operator's clusters, and the gateway.
    Operator,
    /// The clusters of Secrets.
    Tenants,
    /// The networks of clients that have not authenticated.
    Networks,
}

impl OwnerGroup {
    pub(super) const ALL: [Self; 3] = [Self::Operator, Self::Tenants, Self::Networks];

    /// The part of a buffer that the group has at most: one in so many. What the others leave is the operator's.
    // threat: tenant-audit-flood
    pub(super) fn divisor(self) -> usize {
        match self {
            Self::Operator => 1,
            Self::Tenants => 2,
            Self::Networks => 4,
        }
    }

    /// The group, as a list.
    pub(super) fn alone(self) -> &'static [Self] {
        match self {
            Self::Operator => &[Self::Operator],
            Self::Tenants => &[Self::Tenants],
            Self::Networks => &[Self::Networks],
        }
    }

    /// The group whose turn comes after that of this one.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Operator => Self::Tenants,
            Self::Tenants => Self::Networks,
            Self::Networks => Self::Operator,
        }
    }
}

/// Something of each group.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PerGroup<T> {
    operator: T,
    tenants: T,
    networks: T,
}

impl<T> PerGroup<T> {
    pub(super) fn of(&self, group: OwnerGroup) -> &T {
        match group {
            OwnerGroup::Operator => &self.operator,
            OwnerGroup::Tenants => &self.tenants,
            OwnerGroup::Networks => &self.networks,
        }
    }

    pub(super) fn of_mut(&mut self, group: OwnerGroup) -> &mut T {
        match group {
            OwnerGroup::Operator => &mut self.operator,
            OwnerGroup::Tenants => &mut self.tenants,
            OwnerGroup::Networks => &mut self.networks,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (OwnerGroup, &T)> {
        OwnerGroup::ALL.into_iter().map(|group| (group, self.of(group)))
    }
}
