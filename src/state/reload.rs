//! Reload without a restart. Every second, and when the backend has rejected the gateway's credential, the reloader
//! compares the configuration files with the content in force. On a change, and in any case on SIGHUP (`cli::serve`),
//! after an issuer's first discovery, and when a pending backend has passed its self-check, it builds a whole new
//! snapshot, in the same way as at the start, and swaps it in. On an error the old snapshot stays in force, and the
//! reloader logs and counts the error once.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{error, info, warn};

use super::{Live, Snapshot};
use crate::clock::Clock;
use crate::cluster::authenticators::AuthnDeps;
use crate::config::flags::{LogFormat, MetricsAddress};
use crate::config::settings::Settings;
use crate::config::source::ConfigSource;
use crate::sync::lock;
use crate::traces::TracingSettings;

/// How often the files are compared with the content in force.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

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
    max_connections: Option<NonZeroUsize>,
    metrics: MetricsAddress,
    workers: usize,
    logging: (u8, LogFormat),
    tracing: Option<TracingSettings>,
}

impl FixedSettings {
    fn of(settings: &Settings) -> Self {
        Self {
            address: settings.serving.address,
            permit_port_sharing: settings.serving.permit_port_sharing,
            max_connections: settings.serving.limits.max_connections,
            metrics: settings.operation.metrics,
            workers: settings.operation.workers,
            logging: (settings.operation.verbosity, settings.operation.log_format),
            tracing: settings.operation.tracing.clone(),
        }
    }
}

impl Reloader {
    /// A reloader for `source`, from which `settings` were resolved at the start.
    pub(crate) fn new(
        source: ConfigSource,
        settings: &Settings,
        live: Arc<Live>,
        deps: AuthnDeps,
        clock: Clock,
    ) -> Self {
        deps.metrics.config.reloaded(live.peek().generation, clock.now());
        let fixed = FixedSettings::of(settings);
        let state = ReloadState { wanted: fixed.clone(), last_error: None, is_running: false };
        Self { source: Arc::new(Mutex::new(source)), live, deps, clock, fixed, state: Mutex::new(state) }
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
    // threat: bad-reload
    async fn attempt(&self, trigger: ReloadTrigger) -> Option<Result<(), String>> {
        let source = Arc::clone(&self.source);
        // Files may be slow, and a credential may come from a program.
        let reading = tokio::task::spawn_blocking(move || {
            let mut source = lock(&source);
            if trigger == ReloadTrigger::CredentialRefused {
                source.expire_credentials();
            }
            (trigger == ReloadTrigger::Requested || source.changed()).then(|| source.load())
        });
        Some(match reading.await {
            Ok(loaded) => match loaded? {
                Ok(resolved) => self.swap(&resolved.settings, &resolved.warnings),
                Err(errors) => Err(errors.to_string()),
            },
            Err(_) => Err("loading the configuration panicked".to_owned()),
        })
    }

    /// Builds a snapshot and swaps it in. Logs `warnings` even on failure: the source reports them only once.
    fn swap(&self, settings: &Settings, warnings: &[String]) -> Result<(), String> {
        for warning in warnings {
            warn!("{warning}");
        }
        let before = self.live.snapshot();
        let next = Snapshot::build(settings, Some(&before), &self.deps).map_err(|error| error.to_string())?;
        let wanted = FixedSettings::of(settings);
        let mut state = self.state();
        if wanted != state.wanted && wanted != self.fixed {
            warn!(
                "addresses, port sharing, the maximum number of connections, workers and logging are not reloaded: \
                 restart to change them"
            );
        }
        state.wanted = wanted;
        drop(state);
        let next = Arc::new(next);
        self.live.swap(Arc::clone(&next));
        self.deps.metrics.config.reloaded(next.generation, self.clock.now());
        // The CRLs may have changed, or the file of a deny list.
        self.deps.revocation.note_change();
        info!(generation = next.generation, "configuration reloaded");
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
