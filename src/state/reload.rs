//! Reload without a restart. Every second, and when the backend has rejected the gateway's credential, the reloader
//! compares the configuration files with the content in force. On a change, and in any case on SIGHUP (`cli::serve`),
//! after an issuer's first discovery, and when a pending backend has passed its self-check, it builds a whole new
//! snapshot, in the same way as at the start ([`build_snapshot`]), and swaps it in. On an error the old snapshot stays in
//! force, and the reloader logs and counts the error once.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_system::clock::Clock;
use portcullis_system::sync::lock;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tracing::{error, info, warn};

use super::cluster_outcome::{ClusterOutcomes, RefusedCluster, UnbuildableClusters};
use super::effective_config::EffectiveConfig;
use super::snapshot::SnapshotError;
use super::{Live, Snapshot};
use crate::cluster::authenticators::ClusterDeps;
use crate::config::ConfigErrors;
use crate::config::flags::{LogFormat, MetricsAddress};
use crate::config::inputs::CredentialUser;
use crate::config::resolve::ResolvedConfig;
use crate::config::settings::Settings;
use crate::config::source::ConfigSource;
use crate::metrics::StaleCluster;
use crate::traces::TracingSettings;

/// How often the files are compared with the content in force.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Keeps the snapshot up to date.
pub(crate) struct Reloader {
    source: Arc<Mutex<ConfigSource>>,
    live: Arc<Live>,
    deps: ClusterDeps,
    clock: Clock,
    /// The settings of the start, which no reload changes.
    fixed: FixedSettings,
    state: Mutex<ReloadState>,
}

/// What one attempt to build a snapshot leaves to the next one, whether it succeeds or not.
#[derive(Debug, Clone, Default)]
pub(crate) struct BuildHistory {
    /// The warnings of the last valid configuration, which were logged.
    warned: Vec<String>,
    /// The settings that could not be built.
    unbuildable: UnbuildableClusters,
}

/// The state between two attempts.
struct ReloadState {
    /// The fixed settings of the last configuration, which take effect at the next start.
    wanted: FixedSettings,
    /// The error that was logged last; `None` once a reload has succeeded.
    last_error: Option<String>,
    history: BuildHistory,
    /// Whether [`Reloader::run`] is running, or has panicked.
    is_running: bool,
}

/// The reason for an attempt.
#[derive(Debug, PartialEq, Eq)]
enum ReloadTrigger {
    /// The poll interval has passed.
    Tick,
    /// A reload was requested, whether the files have changed or not.
    Requested,
    /// API servers have refused these credentials of the gateway, which may have been replaced.
    CredentialRefused(BTreeSet<CredentialUser>),
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

/// Builds the snapshot of a configuration. A cluster whose settings cannot be built falls back to those in force, and is not
/// served if these cannot be built either; one of the configuration file makes the whole fail. Logs the warnings that `history`
/// does not have.
pub(crate) fn build_snapshot(
    config: &ResolvedConfig,
    before: Option<&Snapshot>,
    deps: &ClusterDeps,
    history: &mut BuildHistory,
) -> Result<Snapshot, SnapshotError> {
    let nothing = ClusterOutcomes::default();
    let in_force = before.map_or(&nothing, |before| &before.separate);
    let BuildHistory { warned, unbuildable } = history;
    unbuildable.begin_attempt(config);
    // Each round leaves out other clusters, or returns.
    loop {
        let effective = EffectiveConfig::decide(config, in_force, unbuildable)?;
        for warning in effective.warnings.iter().filter(|warning| !warned.contains(warning)) {
            warn!("{warning}");
        }
        warned.clone_from(&effective.warnings);
        match Snapshot::build(&effective, before, deps) {
            Ok(snapshot) => return Ok(snapshot),
            Err(SnapshotError::Clusters(mut failed)) => {
                failed.retain(|error| !unbuildable.note(&effective.separate, error));
                if !failed.is_empty() {
                    return Err(SnapshotError::Clusters(failed));
                }
            }
            Err(error) => return Err(error),
        }
    }
}

fn log_refused(RefusedCluster { origin, in_force, errors }: RefusedCluster<'_>) {
    let errors = ConfigErrors(errors.to_vec());
    if let Some(cluster) = in_force {
        error!(cluster, %origin, "the cluster is not changed, its old configuration stays: {errors}");
    } else {
        error!(%origin, "the cluster is not served: {errors}");
    }
}

/// The clusters that keep an old configuration.
fn stale_clusters(snapshot: &Snapshot) -> Vec<StaleCluster> {
    let refused = snapshot.separate.refused();
    let kept = refused.filter_map(|cluster| Some((cluster.in_force?.to_owned(), "refused")));
    let pending = snapshot.clusters().iter().filter(|cluster| cluster.pending_backend.is_some());
    kept.chain(pending.map(|cluster| (cluster.name.clone(), "pending"))).collect()
}

impl Reloader {
    /// A reloader for `source`, from which `settings` were resolved at the start, with the history of that first build.
    pub(crate) fn new(
        source: ConfigSource,
        settings: &Settings,
        history: BuildHistory,
        live: Arc<Live>,
        deps: ClusterDeps,
        clock: Clock,
    ) -> Self {
        let snapshot = live.snapshot();
        deps.metrics.config.reloaded(snapshot.generation, clock.now());
        deps.metrics.config.clusters_in_use(snapshot.clusters().len(), snapshot.rebuilt);
        let fixed = FixedSettings::of(settings);
        let state = ReloadState { wanted: fixed.clone(), last_error: None, history, is_running: false };
        let source = Arc::new(Mutex::new(source));
        let reloader = Self { source, live, deps, clock, fixed, state: Mutex::new(state) };
        reloader.report_refused(None, &snapshot);
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
                users = self.live.credential_refused() => ReloadTrigger::CredentialRefused(users),
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

    // threat: bad-reload, many-authorities
    async fn load_and_swap(&self, trigger: ReloadTrigger) -> Option<Result<(), String>> {
        let source = Arc::clone(&self.source);
        let (live, before, deps) = (Arc::clone(&self.live), self.live.snapshot(), self.deps.clone());
        let mut history = self.state().history.clone();
        if trigger == ReloadTrigger::Requested {
            history.unbuildable = UnbuildableClusters::default();
        }
        // Files may be slow, a credential may come from a program, and Secrets may have many certificates to compare: the
        // self-check and other tasks of this thread must not wait.
        let building = tokio::task::spawn_blocking(move || {
            let mut source = lock(&source);
            let may_have_changed = match trigger {
                ReloadTrigger::Tick => source.changed(),
                ReloadTrigger::Requested => true,
                ReloadTrigger::CredentialRefused(users) => {
                    source.expire_credentials(&users) && source.changed()
                }
            };
            if !may_have_changed {
                return None;
            }
            live.note_reload_begun();
            let loaded = source.load();
            drop(source);
            let built = loaded.map_err(SnapshotError::Config).and_then(|config| {
                let next = build_snapshot(&config, Some(&before), &deps, &mut history)?;
                Ok((config.settings, next))
            });
            Some((built, history))
        });
        let (built, history) = match building.await {
            Ok(built) => built?,
            Err(_) => return Some(Err("loading the configuration panicked".to_owned())),
        };
        self.state().history = history;
        Some(built.map(|(settings, next)| self.swap(&settings, next)).map_err(|error| error.to_string()))
    }

    /// Puts a snapshot in force.
    fn swap(&self, settings: &Settings, next: Snapshot) {
        let before = self.live.snapshot();
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
        self.live.swap(&next);
        if let (Some(management), None) = (&before.management, &next.management) {
            // If the section comes back, its clusters are those of the Secrets then.
            management.store.clear();
        }
        self.report_refused(Some(&before), &next);
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
    }

    /// Logs and exports the clusters whose own configuration is refused, each error once, and those that keep an old one.
    fn report_refused(&self, before: Option<&Snapshot>, next: &Snapshot) {
        let metrics = &self.deps.metrics.config;
        let refused_before: Vec<_> =
            before.into_iter().flat_map(|before| before.separate.refused()).collect();
        let refused: Vec<_> = next.separate.refused().collect();
        metrics.refused_clusters(refused.len());
        for cluster in refused.iter().filter(|cluster| !refused_before.contains(cluster)) {
            metrics.cluster_refused();
            log_refused(*cluster);
        }
        let is_over = |before: &&RefusedCluster<'_>| refused.iter().all(|one| one.origin != before.origin);
        for cluster in refused_before.iter().filter(is_over) {
            info!(origin = %cluster.origin, "the cluster is no longer refused");
        }
        metrics.replace_stale(&before.map(stale_clusters).unwrap_or_default(), &stale_clusters(next));
    }

    fn is_new(&self, error: &str) -> bool {
        self.state().last_error.as_deref() != Some(error)
    }

    /// Ends a reload: logs and counts an error, once.
    fn conclude(&self, outcome: Result<(), String>) {
        self.live.note_reload_ended(outcome.is_err());
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
