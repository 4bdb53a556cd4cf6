//! Finds the endpoints of backends that are not all configured: the addresses of host names ([`dns`]), or those that the
//! API servers themselves publish ([`slices`]).
//!
//! It only proposes endpoints. Which of them get requests is the decision of the self-check; the rules by which the list
//! changes are those of `backend::endpoint_list`. A failure keeps the endpoints of before.

mod dns;
mod slices;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use portcullis_system::text::shortened;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

pub(crate) use dns::{Resolver, SystemResolver};

use crate::backend::Backend;
use crate::backend::settings::{self, EndpointDiscovery};
use crate::metrics::Metrics;
use crate::state::{Live, Snapshot};
use crate::tasks::{MAX_RESTART_BACKOFF, Supervisor};

/// How often the list is settled: a new endpoint may have passed its self-check, or the last one may have failed it.
const SETTLE_INTERVAL: Duration = Duration::from_secs(1);

/// The most characters of an error that are logged and shown.
const MAX_ERROR_LENGTH: usize = 2048;

/// Runs discovery for every backend of the snapshot in force that needs it.
pub(crate) struct DiscoveryRunner {
    live: Arc<Live>,
    metrics: Arc<Metrics>,
    resolver: Arc<dyn Resolver>,
}

/// The discovery of one backend, which runs for as long as the backend is configured.
struct RunningDiscovery {
    backend: Arc<Backend>,
    _task: AbortOnDropHandle<()>,
}

impl DiscoveryRunner {
    pub(crate) fn new(live: Arc<Live>, metrics: Arc<Metrics>) -> Self {
        Self { live, metrics, resolver: Arc::new(SystemResolver::default()) }
    }

    /// Starts and ends discoveries with each new snapshot. Never returns.
    pub(crate) async fn run(&self) {
        let mut running: Vec<RunningDiscovery> = Vec::new();
        let mut clusters = BTreeSet::new();
        let mut generations = self.live.subscribe();
        loop {
            self.follow(&self.live.snapshot(), &mut running, &mut clusters);
            if generations.changed().await.is_err() {
                return;
            }
        }
    }

    fn follow(
        &self,
        snapshot: &Snapshot,
        running: &mut Vec<RunningDiscovery>,
        clusters: &mut BTreeSet<String>,
    ) {
        let mut wanted = Vec::new();
        for cluster in snapshot.clusters() {
            let discovers = |backend: &&Arc<Backend>| backend.discovery().0 != EndpointDiscovery::None;
            wanted.extend(cluster.backends().filter(discovers).map(|backend| (&cluster.name, backend)));
        }
        running.retain(|one| wanted.iter().any(|(_, backend)| Arc::ptr_eq(backend, &one.backend)));
        let before = std::mem::take(clusters);
        for (cluster, backend) in wanted {
            clusters.insert(cluster.clone());
            if running.iter().any(|one| Arc::ptr_eq(backend, &one.backend)) {
                continue;
            }
            let backend = Arc::clone(backend);
            let task = tokio::spawn(self.discover(cluster.clone(), Arc::clone(&backend)));
            running.push(RunningDiscovery { backend, _task: AbortOnDropHandle::new(task) });
        }
        for cluster in before.difference(clusters) {
            self.metrics.backend.forget_discovery(cluster);
        }
    }

    fn discover(&self, cluster: String, backend: Arc<Backend>) -> impl Future<Output = ()> + Send + use<> {
        let (live, metrics) = (Arc::clone(&self.live), Arc::clone(&self.metrics));
        let resolver = Arc::clone(&self.resolver);
        async move {
            let supervisor = Supervisor {
                cluster: Some(&cluster),
                metrics: &metrics,
                stop: None,
                max_backoff: MAX_RESTART_BACKOFF,
            };
            let changed = || live.note_endpoints_changed();
            let discovery = Discovery::new(&cluster, &backend, Some(&metrics), &changed);
            supervisor
                .run("endpoint discovery", || async {
                    match backend.discovery().0 {
                        EndpointDiscovery::None => std::future::pending().await,
                        EndpointDiscovery::Dns => discovery.run(dns::follow(&discovery, &*resolver)).await,
                        EndpointDiscovery::Kubernetes => discovery.run(slices::follow(&discovery)).await,
                    }
                })
                .await;
        }
    }
}

/// The discovery of one backend.
struct Discovery<'a> {
    cluster: &'a str,
    backend: &'a Arc<Backend>,
    metrics: Option<&'a Metrics>,
    /// Is called when the list of endpoints has changed.
    changed: &'a (dyn Fn() + Send + Sync),
    last_log: std::sync::Mutex<LastLog>,
}

/// The outcome that was logged last.
#[derive(Debug, Default, PartialEq, Eq)]
struct LastLog {
    error: Option<String>,
    excess: usize,
}

impl<'a> Discovery<'a> {
    fn new(
        cluster: &'a str,
        backend: &'a Arc<Backend>,
        metrics: Option<&'a Metrics>,
        changed: &'a (dyn Fn() + Send + Sync),
    ) -> Self {
        Self { cluster, backend, metrics, changed, last_log: std::sync::Mutex::default() }
    }

    /// Settles the list while `follow` keeps it up to date. Never returns.
    async fn run(&self, follow: impl Future<Output = ()>) {
        tokio::join!(follow, async {
            loop {
                sleep(SETTLE_INTERVAL).await;
                self.settle();
            }
        });
    }

    /// Takes over the outcome of an attempt. Logs each error once.
    fn report(&self, outcome: Result<Vec<settings::Endpoint>, String>) {
        let outcome = match outcome {
            Ok(found) if found.is_empty() => Err("no endpoint was found".to_owned()),
            // The API server may have chosen a part of it.
            outcome => outcome.map_err(|error| shortened(&error, MAX_ERROR_LENGTH)),
        };
        if let Some(metrics) = self.metrics {
            metrics.backend.note_discovery(self.cluster, outcome.as_ref().ok().map(Vec::len));
        }
        let error = outcome.as_ref().err().cloned();
        let excess = self.backend.record_discovery(outcome);
        self.log(LastLog { error, excess });
        self.settle();
    }

    fn settle(&self) {
        if !self.backend.settle_endpoints() {
            return;
        }
        let endpoints = self.backend.endpoints();
        let addresses: Vec<String> =
            endpoints.iter().map(|endpoint| endpoint.address().to_string()).collect();
        info!(cluster = self.cluster, endpoints = addresses.join(","), "the endpoints have changed");
        (self.changed)();
    }

    fn log(&self, now: LastLog) {
        let mut last = portcullis_system::sync::lock(&self.last_log);
        if *last == now {
            return;
        }
        let cluster = self.cluster;
        match (&now.error, &last.error) {
            (Some(error), _) => {
                warn!(cluster, "endpoint discovery failed, the known endpoints stay: {error}");
            }
            (None, Some(_)) => info!(cluster, "endpoint discovery works again"),
            (None, None) => {}
        }
        if now.excess > 0 && now.excess != last.excess {
            warn!(cluster, excess = now.excess, "too many endpoints found, the excess is not used");
        }
        *last = now;
    }
}
