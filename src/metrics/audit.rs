//! Metrics of audit.
// apiserver: pkg/audit/metrics.go

use portcullis_audit::event::Level;
use prometheus::{IntCounter, IntCounterVec};

use super::Registrar;

/// Metrics of audit.
#[derive(Debug)]
pub(crate) struct AuditMetrics {
    /// Events.
    pub(crate) events: IntCounter,
    /// Requests that were refused because their event could not be stored.
    pub(crate) rejected: IntCounter,
    levels: IntCounterVec,
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
        })
    }

    /// The policy has decided on a request.
    pub(crate) fn level(&self, level: Level) {
        self.levels.with_label_values(&[level.as_str()]).inc();
    }
}
