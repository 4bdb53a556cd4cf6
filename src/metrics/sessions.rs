//! Metrics of the sessions that are audited: exec, attach and port-forward.

use portcullis_sessions::decoder::{ByteCounts, SessionKind};
use prometheus::{IntCounterVec, IntGaugeVec};

use super::gauge_guard::GaugeGuard;
use super::registrar::Registrar;

/// Metrics of sessions, each by `kind`: exec, attach, portforward.
#[derive(Debug)]
pub(crate) struct SessionMetrics {
    open: IntGaugeVec,
    /// By the `reason` of the end, too.
    ended: IntCounterVec,
    /// By the side that has sent them, too.
    bytes: IntCounterVec,
}

impl SessionMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        Ok(Self {
            open: registrar.gauges("portcullis_sessions", "Audited sessions that are open.", &["kind"])?,
            ended: registrar.counters(
                "portcullis_sessions_ended_total",
                "Audited sessions that have ended, by the reason: exited, failed, client, server, gateway or deadline.",
                &["kind", "reason"],
            )?,
            bytes: registrar.counters(
                "portcullis_session_bytes_total",
                "Bytes of the content of audited sessions that have ended, by the side that has sent them: client or server.",
                &["kind", "from"],
            )?,
        })
    }

    /// Counts a session while it is open.
    pub(crate) fn opened(&self, kind: SessionKind) -> GaugeGuard {
        GaugeGuard::new(&self.open.with_label_values(&[kind.as_str()]))
    }

    /// Counts the end of a session.
    pub(crate) fn ended(&self, kind: SessionKind, reason: &'static str, bytes: ByteCounts) {
        let kind = kind.as_str();
        self.ended.with_label_values(&[kind, reason]).inc();
        self.bytes.with_label_values(&[kind, "client"]).inc_by(bytes.client);
        self.bytes.with_label_values(&[kind, "server"]).inc_by(bytes.server);
    }
}
