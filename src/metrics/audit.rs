//! Metrics of audit.
// apiserver: pkg/audit/metrics.go

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use portcullis_audit::event::Level;
use portcullis_audit::sink::{DropCause, Observer, Plugin, SinkKind};
use portcullis_system::sync::lock;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::cached_vec::CachedMetricVec;
use super::registrar::Registrar;

const LEVELS: [&str; Level::ALL.len()] = [
    Level::None.as_str(),
    Level::Metadata.as_str(),
    Level::Request.as_str(),
    Level::RequestResponse.as_str(),
];

/// Metrics of audit, under kube-apiserver's names where it has the same one. A clone counts in the same series.
#[derive(Debug, Clone)]
pub(crate) struct AuditMetrics {
    events: IntCounter,
    errors: IntCounterVec,
    levels: Arc<CachedMetricVec<IntCounterVec>>,
    rejected: IntCounter,
    dropped: IntCounterVec,
    /// The clusters that are among its labels.
    dropping_clusters: Arc<Mutex<BTreeSet<String>>>,
    truncated: IntCounterVec,
    log: QueueGauges,
    webhook: QueueGauges,
}

/// What waits in front of the backends of a kind.
#[derive(Debug, Clone)]
struct QueueGauges {
    events: IntGauge,
    bytes: IntGauge,
}

impl AuditMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        let queued = registrar.gauges(
            "portcullis_audit_queue_events",
            "Audit events that wait for a backend or are being stored.",
            &["sink"],
        )?;
        let queued_bytes = registrar.gauges(
            "portcullis_audit_queue_bytes",
            "Size of the audit events that wait for a backend or are being stored.",
            &["sink"],
        )?;
        let levels = registrar.counters(
            "apiserver_audit_level_total",
            "Counter of policy levels for audit events (1 per request).",
            &["level"],
        )?;
        Ok(Self {
            events: registrar.counter(
                "apiserver_audit_event_total",
                "Counter of audit events generated and sent to the audit backend.",
            )?,
            errors: registrar.counters(
                "apiserver_audit_error_total",
                "Counter of audit events that failed to be audited properly. Plugin identifies the plugin affected by the \
                 error.",
                &["plugin"],
            )?,
            levels: Arc::new(CachedMetricVec::new(levels, &LEVELS, &[])),
            rejected: registrar.counter(
                "apiserver_audit_requests_rejected_total",
                "Counter of apiserver requests rejected due to an error in audit logging backend.",
            )?,
            dropped: registrar.counters(
                "portcullis_audit_events_dropped_total",
                "Audit events of a cluster that a backend has lost, by the cause: buffer_events, buffer_bytes, too_large, \
                 failed or cancelled.",
                &["cluster", "sink", "cause"],
            )?,
            dropping_clusters: Arc::default(),
            truncated: registrar.counters(
                "portcullis_audit_events_truncated_total",
                "Audit events that were stored without their objects, because they were too large.",
                &["sink"],
            )?,
            log: QueueGauges::new(&queued, &queued_bytes, SinkKind::Log),
            webhook: QueueGauges::new(&queued, &queued_bytes, SinkKind::Webhook),
        })
    }

    /// Counts the level of a request.
    // metrics.go, ObservePolicyLevel
    pub(crate) fn level(&self, level: Level) {
        self.levels.of(level.as_str()).inc();
    }

    /// Removes the series of clusters that are no longer configured: a tenant may choose any number of names.
    pub(crate) fn retain_clusters(&self, is_configured: impl Fn(&str) -> bool) {
        lock(&self.dropping_clusters).retain(|cluster| {
            let is_kept = is_configured(cluster);
            for (sink, cause) in
                SinkKind::ALL.iter().flat_map(|sink| DropCause::ALL.map(|cause| (sink, cause)))
            {
                if !is_kept {
                    // One that never occurred has none.
                    self.dropped.remove_label_values(&[cluster, sink.as_str(), cause.as_str()]).ok();
                }
            }
            is_kept
        });
    }
}

impl Observer for AuditMetrics {
    fn event(&self) {
        self.events.inc();
    }

    fn rejected(&self) {
        self.rejected.inc();
    }

    fn error(&self, plugin: Plugin, events: u64) {
        self.errors.with_label_values(&[plugin.as_str()]).inc_by(events);
    }

    fn dropped(&self, sink: SinkKind, cause: DropCause, cluster: &str, events: u64) {
        let mut known = lock(&self.dropping_clusters);
        if !known.contains(cluster) {
            known.insert(cluster.to_owned());
        }
        self.dropped.with_label_values(&[cluster, sink.as_str(), cause.as_str()]).inc_by(events);
    }

    fn truncated(&self, sink: SinkKind) {
        self.truncated.with_label_values(&[sink.as_str()]).inc();
    }

    fn queue_changed(&self, sink: SinkKind, events: i64, bytes: i64) {
        let gauges = match sink {
            SinkKind::Log => &self.log,
            SinkKind::Webhook => &self.webhook,
        };
        gauges.events.add(events);
        gauges.bytes.add(bytes);
    }
}

impl QueueGauges {
    fn new(events: &IntGaugeVec, bytes: &IntGaugeVec, sink: SinkKind) -> Self {
        let sink = &[sink.as_str()];
        Self { events: events.with_label_values(sink), bytes: bytes.with_label_values(sink) }
    }
}

#[cfg(test)]
mod tests {
    use crate::metrics::Metrics;

    use super::*;

    #[test]
    fn reports_of_the_backends_are_exposed() {
        let metrics = Metrics::new();
        let observer: &dyn Observer = &metrics.audit.clone();
        observer.event();
        observer.rejected();
        observer.error(Plugin::Buffered, 3);
        observer.dropped(SinkKind::Log, DropCause::BufferBytes, "prod", 3);
        observer.truncated(SinkKind::Webhook);
        observer.queue_changed(SinkKind::Log, 5, 500);
        observer.queue_changed(SinkKind::Log, -2, -300);
        metrics.audit.level(Level::RequestResponse);
        let (text, _) = metrics.render();
        for line in [
            "apiserver_audit_event_total 1",
            "apiserver_audit_requests_rejected_total 1",
            "apiserver_audit_error_total{plugin=\"buffered\"} 3",
            "apiserver_audit_level_total{level=\"RequestResponse\"} 1",
            "portcullis_audit_events_dropped_total{cause=\"buffer_bytes\",cluster=\"prod\",sink=\"log\"} 3",
            "portcullis_audit_events_truncated_total{sink=\"webhook\"} 1",
            "portcullis_audit_queue_events{sink=\"log\"} 3",
            "portcullis_audit_queue_bytes{sink=\"log\"} 200",
            "portcullis_audit_queue_events{sink=\"webhook\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn losses_of_removed_clusters_are_forgotten() {
        let metrics = Metrics::new();
        for cluster in ["kept", "gone"] {
            metrics.audit.dropped(SinkKind::Webhook, DropCause::Failed, cluster, 1);
        }
        metrics.audit.retain_clusters(|cluster| cluster == "kept");
        let (text, _) = metrics.render();
        assert!(text.contains("cluster=\"kept\"") && !text.contains("cluster=\"gone\""), "{text}");
        // Its last events are lost after it was removed.
        metrics.audit.dropped(SinkKind::Webhook, DropCause::Failed, "gone", 1);
        metrics.audit.retain_clusters(|cluster| cluster == "kept");
        assert!(!metrics.render().0.contains("cluster=\"gone\""));
    }
}
