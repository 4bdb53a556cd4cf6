//! Looks up the addresses of endpoints. The system's resolver occupies a thread until the name server answers, and cannot be
//! cancelled. Therefore lookups are few: one at a time for an endpoint, two for a cluster, and at most [`MAX_LOOKUPS`] for the
//! clusters of all tenants and as many for those of the operator, which leaves threads for everything else that blocks, such
//! as reading the configuration. Others wait; the next one is of the cluster with the fewest.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use portcullis_limits::ClusterOwner;
use portcullis_limits::fair_limiter::{FairLimiter, Shares};
use tokio::net::lookup_host;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::settings::HostPort;

/// The most lookups at a time of all tenants' clusters, and of all of the operator's. Together half of the threads that a
/// runtime of tokio has for blocking calls.
const MAX_LOOKUPS: usize = 128;
/// The most lookups at a time of one cluster.
const MAX_CLUSTER_LOOKUPS: usize = 2;
/// How long the result of a lookup is used again.
const FRESH: Duration = Duration::from_secs(2);
/// The lookups that wait, and those of one cluster: more than it has endpoints.
const MAX_WAITING: usize = 16 << 10;
const MAX_CLUSTER_WAITING: usize = 256;
/// How long they wait: longer than an attempt to connect.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(30);

/// The result of a lookup.
type Addresses = Arc<[SocketAddr]>;

/// What an endpoint's last lookup found, and when. Locked while one is under way.
pub(super) type KnownAddresses = Arc<Mutex<Option<(Instant, Addresses)>>>;

/// The lookups of the process. Cheap to clone: a clone is the same limits.
#[derive(Debug, Clone)]
pub(super) struct LookupLimits {
    tenants: FairLimiter<ClusterOwner>,
    operator: FairLimiter<ClusterOwner>,
}

/// The lookups of one cluster.
#[derive(Debug, Clone)]
pub(super) struct Lookups {
    limiter: FairLimiter<ClusterOwner>,
    cluster: ClusterOwner,
}

impl Default for LookupLimits {
    fn default() -> Self {
        Self::new(MAX_LOOKUPS)
    }
}

impl LookupLimits {
    fn new(lookups: usize) -> Self {
        let shares = Shares::new(lookups, MAX_CLUSTER_LOOKUPS).with_queue(MAX_WAITING, MAX_CLUSTER_WAITING);
        Self { tenants: FairLimiter::new(shares), operator: FairLimiter::new(shares) }
    }

    /// Those of one cluster.
    pub(super) fn of(&self, cluster: ClusterOwner) -> Lookups {
        let limiter = if cluster.is_of_tenant() { &self.tenants } else { &self.operator };
        Lookups { limiter: limiter.clone(), cluster }
    }
}

impl Lookups {
    /// The addresses of an endpoint.
    pub(super) async fn addresses(
        &self,
        endpoint: &HostPort,
        known: &KnownAddresses,
    ) -> io::Result<Addresses> {
        if let Ok(address) = endpoint.host.parse::<IpAddr>() {
            return Ok([SocketAddr::new(address, endpoint.port)].into());
        }
        let name = (endpoint.host.clone(), endpoint.port);
        self.look_up(known, async move { Ok(lookup_host(name).await?.collect()) }).await
    }

    /// Runs a lookup, which goes on if this future is dropped, and until its end counts against the limits.
    // threat: silent-name-server
    async fn look_up(
        &self,
        known: &KnownAddresses,
        lookup: impl Future<Output = io::Result<Addresses>> + Send + 'static,
    ) -> io::Result<Addresses> {
        let mut known = Arc::clone(known).lock_owned().await;
        if let Some((at, addresses)) = &*known
            && at.elapsed() < FRESH
        {
            return Ok(Arc::clone(addresses));
        }
        let until = Instant::now() + QUEUE_TIMEOUT;
        let turn = self.limiter.acquire(self.cluster.clone(), 1, until).await.map_err(io::Error::other)?;
        let lookup = tokio::spawn(async move {
            let found = lookup.await;
            if let Ok(addresses) = &found {
                *known = Some((Instant::now(), Arc::clone(addresses)));
            }
            drop(turn);
            found
        });
        lookup.await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::watch;
    use tokio::time::{sleep, timeout};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn tenant(limits: &LookupLimits, name: &str) -> Lookups {
        limits.of(ClusterOwner::tenant(name))
    }

    /// A name server that is silent until it is released, and counts the questions.
    struct Silent {
        released: watch::Sender<bool>,
        asked: Arc<AtomicUsize>,
    }

    impl Silent {
        fn new() -> Self {
            Self { released: watch::Sender::new(false), asked: Arc::default() }
        }

        fn answer(&self) -> impl Future<Output = io::Result<Addresses>> + Send + 'static {
            let (mut released, asked) = (self.released.subscribe(), Arc::clone(&self.asked));
            async move {
                asked.fetch_add(1, Ordering::SeqCst);
                released.wait_for(|released| *released).await.ok();
                Ok([SocketAddr::from(([192, 0, 2, 1], 6443))].into())
            }
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::SeqCst)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_name_server_holds_few_threads_however_often_endpoints_dial() {
        let (silent, limits) = (Silent::new(), LookupLimits::new(4));
        let lookups = tenant(&limits, "silent");
        let one = KnownAddresses::default();
        for _ in 0..100 {
            // As a dial does: it gives up, and the lookup goes on.
            assert!(timeout(PATIENCE, lookups.look_up(&one, silent.answer())).await.is_err());
        }
        assert_eq!(silent.asked(), 1, "one for an endpoint");
        for _ in 0..100 {
            let other = KnownAddresses::default();
            assert!(timeout(PATIENCE, lookups.look_up(&other, silent.answer())).await.is_err());
        }
        assert_eq!(silent.asked(), MAX_CLUSTER_LOOKUPS, "two for a cluster");
        // Another cluster has its own, up to what all may have.
        for number in 0..100 {
            let cluster = tenant(&limits, &number.to_string());
            let endpoint = KnownAddresses::default();
            assert!(timeout(PATIENCE, cluster.look_up(&endpoint, silent.answer())).await.is_err());
        }
        assert_eq!(silent.asked(), 4);
        // Those of the operator have theirs.
        let (server, own) = (Silent::new(), limits.of(ClusterOwner::operator("own")));
        server.released.send_replace(true);
        let found = timeout(PATIENCE, own.look_up(&KnownAddresses::default(), server.answer())).await;
        assert_eq!(found.expect("no tenant holds it up").unwrap().len(), 1);
        silent.released.send_replace(true);
        sleep(PATIENCE).await;
        let found = timeout(PATIENCE, lookups.look_up(&one, silent.answer())).await;
        assert_eq!(found.expect("all have ended").unwrap().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn dials_share_a_lookup_for_a_while() {
        let (server, limits, known) = (Silent::new(), LookupLimits::new(4), KnownAddresses::default());
        let lookups = tenant(&limits, "calm");
        server.released.send_replace(true);
        for (pause, expected) in [(0, 1), (0, 1), (1, 1), (2, 2), (0, 2)] {
            sleep(Duration::from_secs(pause)).await;
            lookups.look_up(&known, server.answer()).await.unwrap();
            assert_eq!(server.asked(), expected);
        }
        // An error is not kept.
        let failing = KnownAddresses::default();
        let error = async { Err(io::Error::other("no such name")) };
        assert!(lookups.look_up(&failing, error).await.is_err());
        assert!(lookups.look_up(&failing, server.answer()).await.is_ok());
    }
}
