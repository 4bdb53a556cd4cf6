//! Where work runs that takes long: on threads of their own, which clusters share in turns, and the clients within a cluster.
//!
//! Any client can send a token that takes a while to check, or an object that takes a while to review, and the owner of a cluster
//! chooses the keys that tokens are compared with. So no cluster has more of the threads than its turns while others wait for
//! theirs, and no client more than its part of those. What is awaited (objects of the cluster, keys of an issuer, a webhook) takes
//! no turn. Tokens and objects have a pool each.

use std::sync::Arc;

use portcullis_limits::Owner;
use portcullis_limits::fair_limiter::Refused;
use portcullis_limits::poll_turns::{GroupTurns, PollTurns};
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

/// The threads that compute for all clusters. Cheap to clone.
// threat: token-thread, large-review
#[derive(Debug, Clone)]
pub(crate) struct ComputePool {
    runtime: Handle,
    turns: PollTurns<Arc<str>>,
}

/// The part of one cluster. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ClusterComputePool {
    runtime: Handle,
    turns: GroupTurns<Arc<str>>,
}

impl ComputePool {
    /// Work runs on `runtime`, and so much of it computes at once: less than it has threads, so that one is left for the
    /// network.
    pub(crate) fn new(runtime: Handle, places: usize) -> Self {
        Self { runtime, turns: PollTurns::new(places) }
    }

    /// Work runs on the runtime of a test, one at a time.
    #[cfg(test)]
    pub(crate) fn of_test() -> Self {
        Self::new(Handle::current(), 1)
    }

    /// Holds up all work of a pool with one place.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> portcullis_limits::fair_limiter::Permit<Arc<str>> {
        self.turns.places().try_acquire("held".into(), 1).expect("nothing is being computed")
    }

    /// The part of a cluster, by its unique name.
    pub(crate) fn of_cluster(&self, cluster: &str) -> ClusterComputePool {
        ClusterComputePool { runtime: self.runtime.clone(), turns: self.turns.of_group(cluster.into()) }
    }
}

impl ClusterComputePool {
    /// Where work runs.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Runs work that also waits, in turns of this owner. Called on [`Self::runtime`].
    pub(crate) async fn run<F: Future>(&self, owner: Owner, work: F) -> Result<F::Output, Refused> {
        self.turns.run(owner, work).await
    }

    /// Runs work that waits for nothing, in one turn of this owner. It is not begun if this future is dropped before; `None` if it
    /// panics, or the process ends.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        owner: Owner,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let turns = self.turns.clone();
        let work = self.runtime.spawn(async move { turns.run(owner, async move { work() }).await });
        AbortOnDropHandle::new(work).await.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures_util::future::join_all;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn work_of_one_owner_does_not_wait_for_all_that_of_another() {
        let pool = ComputePool::of_test();
        let (one, other) = (pool.of_cluster("one"), pool.of_cluster("other"));
        let order = Arc::<Mutex<Vec<&str>>>::default();
        let work = |cluster: &ClusterComputePool, owner: Owner, name: &'static str| {
            let (cluster, order) = (cluster.clone(), Arc::clone(&order));
            async move { cluster.compute(owner, move || order.lock().unwrap().push(name)).await }
        };
        let held = pool.hold();
        let flood = join_all((0..5).map(|_| work(&one, Owner::flow("one", "mallory"), "flood")));
        let anonymous = Owner::Network([10, 0, 0, 1].into());
        let calm = async {
            for _ in 0..20 {
                yield_now().await;
            }
            let calm = [
                work(&one, Owner::flow("one", "bob"), "bob"),
                work(&one, anonymous, "anonymous"),
                work(&other, Owner::flow("other", "carol"), "carol"),
            ];
            let release = async {
                for _ in 0..20 {
                    yield_now().await;
                }
                drop(held);
            };
            tokio::join!(join_all(calm), release).0
        };
        let (flood, calm) = tokio::join!(flood, calm);
        assert!(flood.into_iter().chain(calm).all(|done| done.is_some()));
        let order = order.lock().unwrap();
        let last = ["bob", "anonymous", "carol"]
            .iter()
            .filter_map(|name| order.iter().position(|at| at == name))
            .max();
        assert!(last.is_some_and(|last| last < 6), "{order:?}");
    }

    #[tokio::test]
    async fn work_that_panics_has_no_result_and_gives_back_its_turn() {
        let pool = ComputePool::of_test().of_cluster("one");
        let owner = Owner::flow("one", "bob");
        assert_eq!(pool.compute(owner.clone(), || -> u8 { panic!("it panics") }).await, None);
        assert_eq!(pool.compute(owner, || 1).await, Some(1));
    }
}
