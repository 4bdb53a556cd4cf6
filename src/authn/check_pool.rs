//! Where tokens are checked: on threads of their own, which clusters share in turns, and the clients within a cluster.
//!
//! Any client can send a token that takes a while to check, and the owner of a cluster chooses the keys that it is compared with.
//! So no cluster has more of the threads than its turns while others wait for theirs, and no client more than its part of those.
//! What is awaited (objects of the cluster, keys of an issuer, a webhook) takes no turn.

use std::sync::Arc;

use portcullis_limits::Owner;
use portcullis_limits::fair_limiter::Refused;
use portcullis_limits::poll_turns::{GroupTurns, PollTurns};
use tokio::runtime::Handle;

/// The threads that check the tokens of all clusters. Cheap to clone.
// threat: token-thread
#[derive(Debug, Clone)]
pub(crate) struct TokenCheckPool {
    runtime: Handle,
    turns: PollTurns<Arc<str>>,
}

/// The part of one cluster. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ClusterTokenChecks {
    runtime: Handle,
    turns: GroupTurns<Arc<str>>,
}

impl TokenCheckPool {
    /// Checks run on `runtime`, and so many of them compute at once: fewer than it has threads, so that one is left for the
    /// network.
    pub(crate) fn new(runtime: Handle, places: usize) -> Self {
        Self { runtime, turns: PollTurns::new(places) }
    }

    /// Runs checks on the runtime of a test, one at a time.
    #[cfg(test)]
    pub(crate) fn of_test() -> Self {
        Self::new(Handle::current(), 1)
    }

    /// Holds up all checks of a pool with one place.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> portcullis_limits::fair_limiter::Permit<Arc<str>> {
        self.turns.places().try_acquire("held".into(), 1).expect("no check is being computed")
    }

    /// The part of a cluster, by its unique name.
    pub(crate) fn of_cluster(&self, cluster: &str) -> ClusterTokenChecks {
        ClusterTokenChecks { runtime: self.runtime.clone(), turns: self.turns.of_group(cluster.into()) }
    }
}

impl ClusterTokenChecks {
    /// Where checks run.
    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Runs a check in turns of this owner. Called on [`Self::runtime`].
    pub(super) async fn run<F: Future>(&self, owner: Owner, check: F) -> Result<F::Output, Refused> {
        self.turns.run(owner, check).await
    }
}
