//! Reload without restart: what the configuration was read from is looked at every second, by content; a new snapshot
//! is built whole by the path that the start takes, and swapped. On an error the old one stays, the error is logged
//! once, and a metric says so.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{error, info, warn};

use crate::clock::Clock;
use crate::cluster::authenticators::Means;
use crate::config::flags::{LogFormat, MetricsAddress};
use crate::config::settings::Settings;
use crate::config::source::ConfigSource;
use crate::state::snapshot::Snapshot;

/// How often files are compared with what was read of them.
const LOOK: Duration = Duration::from_secs(1);

/// Keeps the snapshot up to date.
pub(crate) struct Reloader {
    source: Arc<Mutex<ConfigSource>>,
    current: Arc<ArcSwap<Snapshot>>,
    fixed: Fixed,
    /// What the configuration says of it; differs from `fixed` until the next start.
    wanted: Fixed,
    means: Means,
    clock: Clock,
    signals: Signals,
    /// What was last complained of.
    complaint: Option<String>,
}

/// By whom the reloader is called, and whom it calls.
pub(crate) struct Signals {
    /// Asks to read the configuration again, changed or not.
    pub(crate) asked: Arc<Notify>,
    /// An API server has refused the gateway's credential.
    pub(crate) refused: Arc<Notify>,
    /// Told of each new snapshot.
    pub(crate) swapped: [Arc<Notify>; 2],
}

/// Why the configuration is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Occasion {
    /// It may have changed.
    Tick,
    /// It is to be read whether it has changed or not.
    Asked,
    /// An API server has refused the gateway's credential.
    Refused,
}

/// What is decided at start and cannot change.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fixed {
    address: std::net::SocketAddr,
    permit_port_sharing: bool,
    metrics: MetricsAddress,
    workers: usize,
    logging: (u8, LogFormat),
}

impl Fixed {
    fn of(settings: &Settings) -> Self {
        Self {
            address: settings.serving.address,
            permit_port_sharing: settings.serving.permit_port_sharing,
            metrics: settings.operation.metrics,
            workers: settings.operation.workers,
            logging: (settings.operation.verbosity, settings.operation.log_format),
        }
    }
}

impl Reloader {
    /// For what `source` was last resolved to.
    pub(crate) fn new(
        source: ConfigSource,
        settings: &Settings,
        current: Arc<ArcSwap<Snapshot>>,
        means: Means,
        clock: Clock,
        signals: Signals,
    ) -> Self {
        means.metrics.config.reloaded(current.load().generation, clock.now());
        let fixed = Fixed::of(settings);
        Self {
            source: Arc::new(Mutex::new(source)),
            current,
            wanted: fixed.clone(),
            fixed,
            means,
            clock,
            signals,
            complaint: None,
        }
    }

    /// Looks every second, at once when asked, and when an API server has refused the gateway's credential. Never ends.
    pub(crate) async fn run(&mut self) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let occasion = tokio::select! {
                _ = looks.tick() => Occasion::Tick,
                () = self.signals.asked.notified() => Occasion::Asked,
                () = self.signals.refused.notified() => Occasion::Refused,
            };
            let Some(mut outcome) = self.attempt(occasion).await else { continue };
            if outcome.as_ref().is_err_and(|complaint| self.is_new(complaint)) {
                // Certificate and key are written one after the other: half of a change is no reason to complain.
                sleep(LOOK).await;
                outcome = self.attempt(Occasion::Asked).await.unwrap_or(outcome);
            }
            self.conclude(outcome);
        }
    }

    /// It panicked: what it was about may not be in force.
    pub(crate) fn interrupted(&mut self) {
        self.conclude(Err("bringing it into force panicked".to_owned()));
    }

    /// Brings what is new into force. `None` if nothing is; else, perhaps, what is wrong with it.
    // threat: bad-reload
    async fn attempt(&mut self, occasion: Occasion) -> Option<Result<(), String>> {
        let source = Arc::clone(&self.source);
        // Files may be slow, and a credential may come from a program.
        let reading = tokio::task::spawn_blocking(move || {
            let mut source = source.lock().unwrap_or_else(PoisonError::into_inner);
            if occasion == Occasion::Refused {
                source.expire_credentials();
            }
            (occasion == Occasion::Asked || source.changed()).then(|| source.load())
        });
        Some(match reading.await {
            Ok(loaded) => match loaded? {
                Ok(resolved) => self.swap(&resolved.settings, &resolved.warnings),
                Err(errors) => Err(errors.to_string()),
            },
            Err(_) => Err("reading it panicked".to_owned()),
        })
    }

    /// `warnings` are said once, so now, whatever becomes of the rest.
    fn swap(&mut self, settings: &Settings, warnings: &[String]) -> Result<(), String> {
        for warning in warnings {
            warn!("{warning}");
        }
        let before = self.current.load_full();
        let next =
            Snapshot::build(settings, Some(&before), &self.means).map_err(|error| error.to_string())?;
        let wanted = Fixed::of(settings);
        if wanted != self.wanted && wanted != self.fixed {
            warn!("addresses, port sharing, workers and logging are not reloaded: restart to change them");
        }
        self.wanted = wanted;
        let next = Arc::new(next);
        self.current.store(Arc::clone(&next));
        self.signals.swapped.iter().for_each(|told| told.notify_one());
        self.means.metrics.config.reloaded(next.generation, self.clock.now());
        info!(generation = next.generation, "configuration reloaded");
        for cluster in next.router.clusters().iter().filter(|cluster| cluster.waiting.is_some()) {
            info!(
                cluster = cluster.name,
                "the API server is used by its new settings once it was seen to take identities by them"
            );
        }
        for (cluster, methods) in next.router.clusters().iter().zip(&next.methods) {
            for (issuer, reason) in methods.issuers().waiting() {
                info!(cluster = cluster.name, issuer, reason, "the issuer is not known by its settings yet");
            }
        }
        Ok(())
    }

    fn is_new(&self, complaint: &str) -> bool {
        self.complaint.as_deref() != Some(complaint)
    }

    /// Says what is wrong, once.
    fn conclude(&mut self, outcome: Result<(), String>) {
        let Err(complaint) = outcome else {
            self.complaint = None;
            return;
        };
        if self.is_new(&complaint) {
            self.means.metrics.config.refused();
            error!("the configuration is not reloaded, the old one stays in force: {complaint}");
            self.complaint = Some(complaint);
        }
    }
}
