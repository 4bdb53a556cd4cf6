//! Reload without a restart. Every second, and when the backend has rejected the gateway's credential, the reloader
//! compares the configuration files with the content in force. On a change, and in any case on SIGHUP (`cli::serve`),
//! after an issuer's first discovery, and when a pending backend has passed its self-check, it builds a whole new
//! snapshot, in the same way as at the start, and swaps it in. On an error the old snapshot stays in force, and the
//! reloader logs and counts the error once.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_system::clock::Clock;
use portcullis_system::sync::lock;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tracing::{error, info, warn};

use super::snapshot::SnapshotError;
use super::{Live, Snapshot};
use crate::cluster::authenticators::AuthnDeps;
use crate::config::ConfigErrors;
use crate::config::cluster_files::{MAX_CLUSTERS, RefusedCluster};
use crate::config::flags::{LogFormat, MetricsAddress};
use crate::config::resolve::ResolvedConfig;
use crate::config::settings::Settings;
use crate::config::source::ConfigSource;
use crate::metrics::StaleCluster;
use crate::traces::TracingSettings;

/// How often the files are compared with the content in force.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The most clusters that one attempt leaves out, because they cannot be built: the new state of each, then its old one.
const MAX_REJECTIONS: usize = 2 * MAX_CLUSTERS;

/// Keeps the snapshot up to date.
pub(crate) struct Reloader {
    source: Arc<Mutex<ConfigSource>>,
    live: Arc<Live>,
    deps: AuthnDeps,
    clock: Clock,
    /// The settings of the start, which no reload changes.
    fixed: FixedSettings,
    state: Mutex<ReloadState>,
}

/// The state between two attempts.
struct ReloadState {
    /// The fixed settings of the last configuration, which take effect at the next start.
    wanted: FixedSettings,
    /// The error that was logged last; `None` once a reload has succeeded.
    last_error: Option<String>,
    /// The refused clusters that were logged last.
    refused: Vec<RefusedCluster>,
    /// The clusters that keep an old configuration, as exported last.
    stale: Vec<StaleCluster>,
    /// Whether [`Reloader::run`] is running, or has panicked.
    is_running: bool,
}

/// The reason for an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReloadTrigger {
    /// The poll interval has passed.
    Tick,
    /// A reload was requested, whether the files have changed or not.
    Requested,
    /// An API server has refused the gateway's credential, which may have been replaced.
    CredentialRefused,
}

/// Settings that only a restart changes: those of `config::flags::RESTART`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FixedSettings {
    address: std::net::SocketAddr,
    permit_port_sharing: bool,
    max_connections: [Option<NonZeroUsize>; 2],
    metrics: MetricsAddress,
    workers: usize,
    logging: (u8, LogFormat),
    tracing: Option<TracingSettings>,
    page: Option<std::net::SocketAddr>,
}

impl FixedSettings {
    fn of(settings: &Settings) -> Self {
        let limits = &settings.serving.limits;
        Self {
            address: settings.serving.address,
            permit_port_sharing: settings.serving.permit_port_sharing,
            max_connections: [limits.max_connections, limits.max_connections_per_tenant],
            metrics: settings.operation.metrics,
            workers: settings.operation.workers,
            logging: (settings.operation.verbosity, settings.operation.log_format),
            tracing: settings.operation.tracing.clone(),
            page: settings.page.as_ref().map(|page| page.address),
        }
    }
}

/// The first snapshot, of `settings`. Leaves out clusters that cannot be built, unless the configuration file has them.
pub(crate) fn first_snapshot(
    settings: &Settings,
    source: &mut ConfigSource,
    deps: &AuthnDeps,
) -> Result<Snapshot, SnapshotError> {
    let mut reduced: Option<ResolvedConfig> = None;
    // Each round leaves out another cluster, or returns.
    loop {
        let current = reduced.as_ref().map_or(settings, |resolved| &resolved.settings);
        match Snapshot::build(current, None, deps) {
            Ok(snapshot) => return Ok(snapshot),
            Err(error) if source.reject_unbuildable(&error) => match source.load_rest() {
                Ok(resolved) => reduced = Some(resolved),
                Err(_) => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
}

fn log_refused(RefusedCluster { origin, in_force, errors }: &RefusedCluster) {
    let errors = ConfigErrors(errors.clone());
    if let Some(cluster) = in_force {
        error!(cluster, %origin, "the cluster is not changed, its old configuration stays: {errors}");
    } else {
        error!(%origin, "the cluster is not served: {errors}");
    }
}

/// Lets a source reject clusters that cannot be built.
trait RejectUnbuildable {
    /// Whether the next load leaves out what caused `error`.
    fn reject_unbuildable(&mut self, error: &SnapshotError) -> bool;
}

impl RejectUnbuildable for ConfigSource {
    fn reject_unbuildable(&mut self, error: &SnapshotError) -> bool {
        match error {
            SnapshotError::Cluster { origin, source, .. } => self.reject(origin, &source.to_string()),
            SnapshotError::Serving(_) => false,
        }
    }
}

impl Reloader {
    /// A reloader for `source`, from which `settings` were resolved at the start.
    pub(crate) fn new(
        mut source: ConfigSource,
        settings: &Settings,
        live: Arc<Live>,
        deps: AuthnDeps,
        clock: Clock,
    ) -> Self {
        let snapshot = live.peek();
        deps.metrics.config.reloaded(snapshot.generation, clock.now());
        deps.metrics.config.clusters_in_use(snapshot.clusters().len(), snapshot.rebuilt);
        drop(snapshot);
        let fixed = FixedSettings::of(settings);
        let state = ReloadState {
            wanted: fixed.clone(),
            last_error: None,
            refused: Vec::new(),
            stale: Vec::new(),
            is_running: false,
        };
        source.commit();
        let refused = source.refused().to_vec();
        let source = Arc::new(Mutex::new(source));
        let reloader = Self { source, live, deps, clock, fixed, state: Mutex::new(state) };
        reloader.report_refused(&refused);
        reloader
    }

    /// Reloads on a change, on request, and when an API server has refused the gateway's credential. Never returns; it
    /// may be called again after a panic.
    pub(crate) async fn run(&self) {
        if std::mem::replace(&mut self.state().is_running, true) {
            self.conclude(Err("the reload panicked".to_owned()));
        }
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let trigger = tokio::select! {
                _ = ticks.tick() => ReloadTrigger::Tick,
                () = self.live.reload_requested() => ReloadTrigger::Requested,
                () = self.live.credential_refused() => ReloadTrigger::CredentialRefused,
            };
            let Some(mut outcome) = self.attempt(trigger).await else { continue };
            if outcome.as_ref().is_err_and(|error| self.is_new(error)) {
                // Certificate and key are written one after the other: half of a change is not an error yet.
                sleep(POLL_INTERVAL).await;
                outcome = self.attempt(ReloadTrigger::Requested).await.unwrap_or(outcome);
            }
            self.conclude(outcome);
        }
    }

    /// Loads the configuration and puts it into force. Returns `None` if there is nothing to do.
    async fn attempt(&self, trigger: ReloadTrigger) -> Option<Result<(), String>> {
        let began = Instant::now();
        let outcome = self.load_and_swap(trigger).await?;
        self.deps.metrics.config.reload_took(began.elapsed());
        Some(outcome)
    }

    // threat: bad-reload
    async fn load_and_swap(&self, trigger: ReloadTrigger) -> Option<Result<(), String>> {
        let source = Arc::clone(&self.source);
        // Files may be slow, and a credential may come from a program.
        let reading = tokio::task::spawn_blocking(move || {
            let mut source = lock(&source);
            if trigger == ReloadTrigger::CredentialRefused {
                source.expire_credentials();
            }
            (trigger == ReloadTrigger::Requested || source.changed()).then(|| source.load())
        });
        let mut loaded = match reading.await {
            Ok(loaded) => loaded?,
            Err(_) => return Some(Err("loading the configuration panicked".to_owned())),
        };
        for _ in 0..MAX_REJECTIONS {
            let resolved = match loaded {
                Ok(resolved) => resolved,
                Err(errors) => return Some(Err(errors.to_string())),
            };
            match self.swap(&resolved) {
                Ok(()) => return Some(Ok(())),
                Err(error) if lock(&self.source).reject_unbuildable(&error) => {}
                Err(error) => return Some(Err(error.to_string())),
            }
            // Without the cluster that cannot be built. Each round leaves out another one.
            let source = Arc::clone(&self.source);
            let reading = tokio::task::spawn_blocking(move || lock(&source).load_rest());
            loaded = match reading.await {
                Ok(loaded) => loaded,
                Err(_) => return Some(Err("loading the configuration panicked".to_owned())),
            };
        }
        Some(Err(format!("more than {MAX_REJECTIONS} clusters cannot be built")))
    }

    /// Builds a snapshot and swaps it in. Logs `warnings` even on failure: the source reports them only once.
    fn swap(&self, resolved: &ResolvedConfig) -> Result<(), SnapshotError> {
        let ResolvedConfig { settings, warnings, refused } = resolved;
        for warning in warnings {
            warn!("{warning}");
        }
        let before = self.live.snapshot();
        let next = Snapshot::build(settings, Some(&before), &self.deps)?;
        let wanted = FixedSettings::of(settings);
        let mut state = self.state();
        if wanted != state.wanted && wanted != self.fixed {
            warn!(
                "addresses, port sharing, the maximum number of connections, workers, logging and tracing are not reloaded: \
                 restart to change them"
            );
        }
        state.wanted = wanted;
        drop(state);
        let next = Arc::new(next);
        self.live.swap(Arc::clone(&next));
        lock(&self.source).commit();
        self.report_refused(refused);
        self.deps.metrics.config.clusters_in_use(next.clusters().len(), next.rebuilt);
        self.deps.metrics.config.reloaded(next.generation, self.clock.now());
        // The CRLs may have changed, or the file of a deny list.
        self.deps.revocation.note_change();
        info!(
            generation = next.generation,
            clusters = next.clusters().len(),
            rebuilt = next.rebuilt,
            "configuration reloaded"
        );
        for cluster in next.clusters() {
            if cluster.pending_backend.is_some() {
                info!(
                    cluster = cluster.name,
                    "new backend settings pending: the old ones stay until the endpoint passes its self-check"
                );
            }
            for (issuer, reason) in cluster.authn.issuers.uninitialized() {
                info!(
                    cluster = cluster.name,
                    issuer, reason, "OIDC discovery with the new settings has not succeeded yet"
                );
            }
        }
        Ok(())
    }

    /// Logs and exports the clusters whose own configuration is refused, each error once, and those that keep an old one.
    fn report_refused(&self, refused: &[RefusedCluster]) {
        self.live.set_refused(refused);
        self.deps.metrics.config.refused_clusters(refused.len());
        let mut state = self.state();
        let before = std::mem::take(&mut state.refused);
        for cluster in refused.iter().filter(|cluster| !before.contains(cluster)) {
            self.deps.metrics.config.cluster_refused();
            log_refused(cluster);
        }
        for cluster in before.iter().filter(|before| refused.iter().all(|one| one.origin != before.origin)) {
            info!(origin = %cluster.origin, "the cluster is no longer refused");
        }
        let kept = refused.iter().filter_map(|cluster| Some((cluster.in_force.clone()?, "refused")));
        let snapshot = self.live.peek();
        let pending = snapshot.clusters().iter().filter(|cluster| cluster.pending_backend.is_some());
        let stale = kept.chain(pending.map(|cluster| (cluster.name.clone(), "pending"))).collect();
        let before = std::mem::replace(&mut state.stale, stale);
        self.deps.metrics.config.replace_stale(&before, &state.stale);
        state.refused = refused.to_vec();
    }

    fn is_new(&self, error: &str) -> bool {
        self.state().last_error.as_deref() != Some(error)
    }

    /// Logs and counts an error, once.
    fn conclude(&self, outcome: Result<(), String>) {
        let Err(error) = outcome else {
            self.state().last_error = None;
            return;
        };
        if self.is_new(&error) {
            self.deps.metrics.config.refused();
            error!("the configuration is not reloaded, the old one stays in force: {error}");
            self.state().last_error = Some(error);
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ReloadState> {
        lock(&self.state)
    }
}
