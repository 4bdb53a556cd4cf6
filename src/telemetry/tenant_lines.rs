//! Limits the log lines about the clusters of tenants. Their API servers cause lines by answering self-checks, watches and
//! requests in ever new ways, and choose parts of the texts. Each cluster has an allowance, whichever module writes the
//! lines, so that a tenant neither fills the log nor hides the lines about others. What was left out is counted in a line.
// threat: tenant-log-flood

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::LazyLock;
use std::time::Duration;

use arc_swap::ArcSwap;
use portcullis_limits::rate::Rate;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, warn};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::REQUEST_LOG;
use super::log_throttle::{LogPermit, LogThrottle};

/// The lines about one cluster: at once, and in the long run.
const LINES: Rate = Rate { interval: Duration::from_secs(10), burst: 60 };
/// The target of the lines that count others.
const LEFT_OUT: &str = "portcullis::left_out";

type TenantNames = ArcSwap<HashSet<String>>;

/// The clusters of tenants in force, as the log of the process knows them.
static TENANTS: LazyLock<TenantNames> = LazyLock::new(TenantNames::default);

/// Limits the lines about these clusters from now on.
pub(crate) fn limit_lines_about(clusters: HashSet<String>) {
    TENANTS.store(clusters.into());
}

/// A layer that leaves out lines beyond the allowance of their cluster.
#[derive(Debug)]
pub(super) struct TenantLines {
    tenants: &'static TenantNames,
    throttle: LogThrottle<String>,
}

impl Default for TenantLines {
    fn default() -> Self {
        Self::of(&TENANTS)
    }
}

impl TenantLines {
    fn of(tenants: &'static TenantNames) -> Self {
        Self { tenants, throttle: LogThrottle::new(LINES) }
    }
}

impl<S: Subscriber> Layer<S> for TenantLines {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        // The access log has limits of its own, and further lines were asked for.
        if *metadata.level() > Level::INFO || [REQUEST_LOG, LEFT_OUT].contains(&metadata.target()) {
            return true;
        }
        let mut field = ClusterField(None);
        event.record(&mut field);
        let tenants = self.tenants.load();
        let Some(cluster) = field.0.filter(|cluster| tenants.contains(cluster)) else { return true };
        let permit = self.throttle.permit(&cluster);
        if let Some(LogPermit { suppressed: Some(lines) }) = permit {
            warn!(target: LEFT_OUT, cluster, lines, "too many log lines about the cluster of a Secret: some were left out");
        }
        permit.is_some()
    }
}

/// The cluster that a line is about.
struct ClusterField(Option<String>);

impl Visit for ClusterField {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "cluster" {
            self.0 = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "cluster" {
            self.0 = Some(format!("{value:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing::{debug, error, info};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// Counts the lines that are written.
    struct Counter(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for Counter {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_neither_fills_the_log_nor_hides_the_lines_about_others() {
        let tenants: &TenantNames = Box::leak(Box::default());
        tenants.store(Arc::new(["noisy", "quiet"].map(str::to_owned).into()));
        let written = Arc::new(AtomicUsize::new(0));
        let counter = Counter(Arc::clone(&written));
        let subscriber = tracing_subscriber::registry().with(counter).with(TenantLines::of(tenants));
        let _guard = tracing::subscriber::set_default(subscriber);
        let lines = |log: &dyn Fn()| {
            let before = written.load(Ordering::Relaxed);
            (0..1000).for_each(|_| log());
            written.load(Ordering::Relaxed) - before
        };
        let noisy = String::from("noisy");
        assert_eq!(lines(&|| error!(cluster = noisy, endpoint = "e", "self-check failed")), 60);
        // By any module, in any form.
        assert_eq!(lines(&|| info!(cluster = %noisy, "the endpoint is ready again")), 0);
        assert_eq!(lines(&|| warn!(cluster = Some(&*noisy), "no answer from the backend")), 0);
        assert_eq!(lines(&|| error!(cluster = "quiet", "self-check failed")), 60);
        assert_eq!(lines(&|| error!(cluster = "of-operator", "self-check failed")), 1000);
        assert_eq!(lines(&|| error!("self-check failed")), 1000);
        assert_eq!(lines(&|| debug!(cluster = noisy, "asked for")), 1000);
        assert_eq!(lines(&|| info!(target: REQUEST_LOG, cluster = noisy, "request")), 1000);
        tokio::time::advance(LINES.interval).await;
        assert_eq!(lines(&|| error!(cluster = noisy, "self-check failed")), 1);
    }
}
