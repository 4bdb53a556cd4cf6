//! The self-checks of tenants' clusters take turns: a bounded number of them at once, and of each cluster two. A check costs TLS
//! handshakes on the thread that also checks the operator's API servers and reloads the configuration; those checks wait
//! for no turn.
// threat: restless-endpoint

use std::pin::pin;
use std::time::Duration;

use portcullis_limits::fair_limiter::{FairLimiter, Shares};
use tokio::time::{Instant, sleep, timeout};

use crate::config::separate_cluster::MAX_ENDPOINTS;

const SHARES: Shares = Shares::new(16, 2).with_queue(MAX_ENDPOINTS, MAX_ENDPOINTS);
/// How long a check waits before it asks again.
const QUEUE_TIMEOUT: Duration = Duration::from_mins(1);
/// How long a turn lasts. A check that takes longer waits for answers, which costs the thread nothing: it goes on, and the
/// next turn begins.
const TURN: Duration = Duration::from_millis(100);

/// The turns of the clusters of tenants.
#[derive(Debug)]
pub(super) struct TenantTurns(FairLimiter<String>);

impl Default for TenantTurns {
    fn default() -> Self {
        Self(FairLimiter::new(SHARES))
    }
}

impl TenantTurns {
    /// Runs a check of a cluster when its turn has come.
    pub(super) async fn run<T>(&self, cluster: &str, check: impl Future<Output = T>) -> T {
        let turn = loop {
            match self.0.acquire(cluster.to_owned(), 1, Instant::now() + QUEUE_TIMEOUT).await {
                Ok(turn) => break turn,
                // At once, if the queue is full.
                Err(_) => sleep(TURN).await,
            }
        };
        let mut check = pin!(check);
        let done = timeout(TURN, check.as_mut()).await;
        drop(turn);
        match done {
            Ok(done) => done,
            Err(_) => check.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio_util::task::AbortOnDropHandle;

    use super::*;

    type Tasks = Vec<AbortOnDropHandle<()>>;

    /// Checks of as many endpoints of each cluster, which never end.
    fn hang(turns: &Arc<TenantTurns>, clusters: usize, endpoints: usize) -> Tasks {
        let check = |index: usize| {
            let (turns, cluster) = (Arc::clone(turns), format!("hangs-{}", index % clusters));
            AbortOnDropHandle::new(tokio::spawn(async move { turns.run(&cluster, pending()).await }))
        };
        (0..clusters * endpoints).map(check).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_whose_checks_hang_delays_no_other() {
        let turns = Arc::new(TenantTurns::default());
        let _one = hang(&turns, 1, 1000);
        tokio::task::yield_now().await;
        let began = Instant::now();
        assert_eq!(turns.run("other", async { 7 }).await, 7);
        assert_eq!(began.elapsed(), Duration::ZERO, "it has turns of its own");
        // Nor do many, for long: each has two of sixteen places, for a tenth of a second.
        let _many = hang(&turns, 100, 16);
        tokio::task::yield_now().await;
        let began = Instant::now();
        turns.run("other", async {}).await;
        assert!(began.elapsed() <= Duration::from_secs(2), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_bounded_number_of_checks_begins_at_once() {
        let turns = Arc::new(TenantTurns::default());
        let running: Arc<[AtomicUsize; 2]> = Arc::default();
        let check = |index: usize| {
            let (turns, running) = (Arc::clone(&turns), Arc::clone(&running));
            AbortOnDropHandle::new(tokio::spawn(async move {
                let work = async {
                    let now = running[0].fetch_add(1, Ordering::SeqCst) + 1;
                    running[1].fetch_max(now, Ordering::SeqCst);
                    sleep(TURN / 2).await;
                    running[0].fetch_sub(1, Ordering::SeqCst);
                };
                turns.run(&format!("c{}", index % 50), work).await;
            }))
        };
        let began = Instant::now();
        let all: Tasks = (0..200).map(check).collect();
        for one in all {
            one.await.unwrap();
        }
        assert_eq!(running[1].load(Ordering::SeqCst), 16);
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
}
