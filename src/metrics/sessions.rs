//! Metrics of the sessions that are audited, or under a session policy: exec, attach and port-forward.

use std::sync::OnceLock;

use portcullis_limits::budget::Budget;
use portcullis_sessions::decoder::{ByteCounts, SessionKind};
use prometheus::{IntCounterVec, IntGauge, IntGaugeVec};

use super::gauge_guard::GaugeGuard;
use super::registrar::Registrar;

/// Metrics of sessions, by `kind`: exec, attach, portforward.
#[derive(Debug)]
pub(crate) struct SessionMetrics {
    open: IntGaugeVec,
    /// By the `reason` of the end, too.
    ended: IntCounterVec,
    /// By the side that has sent them, too.
    bytes: IntCounterVec,
    /// By the reason of the refusal, too.
    refused: IntCounterVec,
    /// By the result alone.
    recordings: IntCounterVec,
    /// By the cause alone.
    recording_failures: IntCounterVec,
    recording_bytes: IntGauge,
    /// What recordings hold, once there is one.
    recording_memory: OnceLock<Budget>,
}

impl SessionMetrics {
    pub(super) fn new(registrar: &Registrar) -> prometheus::Result<Self> {
        Ok(Self {
            open: registrar.gauges("portcullis_sessions", "Sessions that are open, if they are audited or under a session policy.", &["kind"])?,
            ended: registrar.counters(
                "portcullis_sessions_ended_total",
                "Such sessions that have ended, by the reason: exited, failed, client, server, gateway, deadline, duration, idle or \
                 recording.",
                &["kind", "reason"],
            )?,
            bytes: registrar.counters(
                "portcullis_session_bytes_total",
                "Bytes of the content of such sessions that have ended, by the side that has sent them: client or server.",
                &["kind", "from"],
            )?,
            refused: registrar.counters(
                "portcullis_sessions_refused_total",
                "Sessions that the session policy has refused, by the reason: sessions (the user has too many), recording (it must \
                 be recorded and cannot be) or protocol (that of the stream cannot be recorded).",
                &["kind", "reason"],
            )?,
            recordings: registrar.counters(
                "portcullis_session_recordings_total",
                "Recordings of sessions, by the result: complete, incomplete (something is left out or could not be read, or the \
                 end is missing) or failed (it could not begin).",
                &["result"],
            )?,
            recording_failures: registrar.counters(
                "portcullis_session_recording_failures_total",
                "Failures to record, by the cause: full, missing, denied, store, timeout, busy, slow, unreadable or internal.",
                &["cause"],
            )?,
            recording_bytes: registrar.gauge(
                "portcullis_session_recording_bytes",
                "Bytes of recordings that are not stored yet.",
            )?,
            recording_memory: OnceLock::new(),
        })
    }

    /// Exposes what recordings hold.
    pub(crate) fn expose_recording_bytes(&self, memory: Budget) {
        self.recording_memory.get_or_init(|| memory);
    }

    /// Takes over what recordings hold.
    pub(super) fn update(&self) {
        let held = self.recording_memory.get().map(|memory| memory.usage().total());
        self.recording_bytes.set(held.and_then(|held| i64::try_from(held).ok()).unwrap_or_default());
    }

    /// Counts a session that is refused.
    pub(crate) fn refused(&self, kind: SessionKind, reason: &'static str) {
        self.refused.with_label_values(&[kind.as_str(), reason]).inc();
    }

    /// Counts a recording that has ended, or could not begin.
    pub(crate) fn recorded(&self, result: &'static str) {
        self.recordings.with_label_values(&[result]).inc();
    }

    /// Counts a failure to record.
    pub(crate) fn recording_failed(&self, cause: &'static str) {
        self.recording_failures.with_label_values(&[cause]).inc();
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
