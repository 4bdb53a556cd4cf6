//! Metrics of audit.
// apiserver: pkg/audit/metrics.go

use portcullis_audit::event::Level;
use portcullis_audit::sink::{DropCause, Observer, Plugin, SinkKind};
use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};

use super::Registrar;

/// Metrics of audit.
#[derive(Debug)]
pub(crate) struct AuditMetrics {
    events: IntCounter,
    rejected: IntCounter,
    levels: IntCounterVec,
    errors: IntCounterVec,
    dropped: IntCounterVec,
    truncated: IntCounterVec,
    queued_events: IntGaugeVec,
    queued_bytes: IntGaugeVec,
}

impl AuditMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        Ok(Self {
            events: registrar.counter(
                "apiserver_audit_event_total",
                "Counter of audit events generated and sent to the audit backend.",
            )?,
            rejected: registrar.counter(
                "apiserver_audit_requests_rejected_total",
                "Counter of apiserver requests rejected due to an error in audit logging backend.",
            )?,
            levels: registrar.counters(
                "apiserver_audit_level_total",
                "Counter of policy levels for audit events (1 per request).",
                &["level"],
            )?,
            errors: registrar.counters(
                "apiserver_audit_error_total",
                "Counter of audit events that failed to be audited properly. Plugin identifies the plugin affected by the \
                 error.",
                &["plugin"],
            )?,
            dropped: registrar.counters(
                "portcullis_audit_events_dropped_total",
                "Audit events that were not stored, by backend (log or webhook) and cause.",
                &["sink", "cause"],
            )?,
            truncated: registrar.counters(
                "portcullis_audit_events_truncated_total",
                "Audit events that were stored without their objects, by backend (log or webhook).",
                &["sink"],
            )?,
            queued_events: registrar.gauges(
                "portcullis_audit_queued_events",
                "Audit events that are not stored yet, by backend (log or webhook).",
                &["sink"],
            )?,
            queued_bytes: registrar.gauges(
                "portcullis_audit_queued_bytes",
                "The size of the audit events that are not stored yet, by backend (log or webhook).",
                &["sink"],
            )?,
        })
    }

    /// The policy has decided on a request.
    pub(crate) fn level(&self, level: Level) {
        self.levels.with_label_values(&[level.as_str()]).inc();
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

    fn dropped(&self, sink: SinkKind, cause: DropCause, events: u64) {
        self.dropped.with_label_values(&[sink.as_str(), cause.as_str()]).inc_by(events);
    }

    fn truncated(&self, sink: SinkKind) {
        self.truncated.with_label_values(&[sink.as_str()]).inc();
    }

    fn queue_changed(&self, sink: SinkKind, events: i64, bytes: i64) {
        self.queued_events.with_label_values(&[sink.as_str()]).add(events);
        self.queued_bytes.with_label_values(&[sink.as_str()]).add(bytes);
    }
}
