//! Which controllers run for one cluster, and by what; read and found to fit together.

use std::collections::BTreeSet;
use std::time::Duration;

pub use super::name::Name;

/// The controllers of one cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Controllers {
    /// Those that run; none by default.
    pub names: BTreeSet<Name>,
    /// How replicas agree on which one works; `None`: they all do.
    pub election: Option<Election>,
}

/// How replicas agree on which one works.
// kubernetes: k8s.io/component-base/config/options/leaderelectionconfig.go
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Election {
    /// How long others wait for a leader that renews its lease no more.
    pub lease_duration: Duration,
    /// How long a leader tries to renew its lease before it works no more; shorter than the lease.
    pub renew_deadline: Duration,
    /// How long to wait between two attempts.
    pub retry_period: Duration,
    /// The name of the lease.
    pub name: String,
    /// The namespace of the lease.
    pub namespace: String,
}
