//! Reload without restart: what the configuration was read from is looked at every second, by content; a new snapshot
//! is built whole by the path that the start takes, and swapped. On an error the old one stays, the error is logged
//! once, and a metric says so.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, info, warn};

use crate::clock::Clock;
use crate::config::flags::{LogFormat, MetricsAddress};
use crate::config::settings::Settings;
use crate::config::source::Source;
use crate::metrics::Metrics;
use crate::snapshot::Snapshot;

/// How often files are compared with what was read of them.
const LOOK: Duration = Duration::from_secs(1);

/// Keeps the snapshot up to date.
pub(crate) struct Reloader {
    source: Option<Source>,
    current: Arc<ArcSwap<Snapshot>>,
    fixed: Fixed,
    metrics: Arc<Metrics>,
    clock: Clock,
    /// Told of each new snapshot.
    swapped: Arc<Notify>,
    /// What was last complained of.
    complaint: Option<String>,
    /// Whether the last attempt failed and was not told yet: certificate and key are written one after the other.
    suspect: bool,
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
        source: Source,
        settings: &Settings,
        current: Arc<ArcSwap<Snapshot>>,
        metrics: Arc<Metrics>,
        clock: Clock,
        swapped: Arc<Notify>,
    ) -> Self {
        metrics.config_reloaded(current.load().generation, clock.now());
        let fixed = Fixed::of(settings);
        Self {
            source: Some(source),
            current,
            fixed,
            metrics,
            clock,
            swapped,
            complaint: None,
            suspect: false,
        }
    }

    /// Looks every second, at once when asked, and when an API server has refused the gateway's credential. Never ends.
    pub(crate) async fn run(mut self, asked: Arc<Notify>, refused: Arc<Notify>) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let (asked_for, expire) = tokio::select! {
                _ = looks.tick() => (false, false),
                () = asked.notified() => (true, false),
                () = refused.notified() => (false, true),
            };
            let Some(mut source) = self.source.take() else { return };
            let suspect = self.suspect;
            // Files may be slow, and a credential may come from a program.
            let looking = tokio::task::spawn_blocking(move || {
                if expire {
                    source.expire_credentials();
                }
                let loaded = (asked_for || suspect || source.changed()).then(|| source.load());
                (source, loaded)
            });
            let Ok((source, loaded)) = looking.await else {
                error!("reading the configuration panicked; it is not reloaded any more");
                return;
            };
            self.source = Some(source);
            let Some(loaded) = loaded else { continue };
            let outcome = match loaded {
                Ok(resolved) => self.swap(&resolved.settings, &resolved.warnings),
                Err(errors) => Err(errors.to_string()),
            };
            self.conclude(outcome);
        }
    }

    fn swap(&self, settings: &Settings, warnings: &[String]) -> Result<(), String> {
        let before = self.current.load_full();
        let next = Snapshot::build(settings, Some(&before)).map_err(|error| error.to_string())?;
        for warning in warnings {
            warn!("{warning}");
        }
        if Fixed::of(settings) != self.fixed {
            warn!("addresses, port sharing, workers and logging are not reloaded: restart to change them");
        }
        self.metrics.config_reloaded(next.generation, self.clock.now());
        info!(generation = next.generation, "configuration reloaded");
        for cluster in next.router.clusters().iter().filter(|cluster| cluster.waiting.is_some()) {
            info!(
                cluster = cluster.name,
                "the API server is used by its new settings once it was seen to take identities by them"
            );
        }
        self.current.store(Arc::new(next));
        self.swapped.notify_one();
        Ok(())
    }

    fn conclude(&mut self, outcome: Result<(), String>) {
        let Err(complaint) = outcome else {
            self.complaint = None;
            self.suspect = false;
            return;
        };
        // Half of a change may be there already; it is looked at once more before anybody is told.
        self.suspect = !self.suspect && self.complaint.as_ref() != Some(&complaint);
        if self.suspect || self.complaint.as_ref() == Some(&complaint) {
            return;
        }
        self.metrics.config_refused();
        error!("the configuration is not reloaded, the old one stays in force: {complaint}");
        self.complaint = Some(complaint);
    }
}
