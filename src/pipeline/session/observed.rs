//! An open session: its bytes are decoded as they pass, for the recording, for the audit, and for the rules by which it ends.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::HeaderMap;
use http::header::UPGRADE;
use portcullis_go::duration::format_duration;
use portcullis_sessions::decoder::{ByteCounts, Decoder, SessionEvent, SessionKind, Side};
use portcullis_sessions::policy::SessionDecision;
use portcullis_sessions::recording::metadata::SessionEnd;
use portcullis_system::sync::lock;
use portcullis_system::text::sanitized;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::opening::PermittedSession;
use super::warnings::{EndWarning, EndWarnings};
use super::{REASON, RECORDING, protocol_of};
use crate::metrics::{GaugeGuard, Metrics};
use crate::pipeline::audit::AuditedRequest;
use crate::sessions::{SessionPermit, SessionRecording};

// Annotations of the end.
const EXIT_CODE: &str = "audit.portcullis.dev/session-exit-code";
const MESSAGE: &str = "audit.portcullis.dev/session-message";
const DURATION: &str = "audit.portcullis.dev/session-duration";
const CLIENT_BYTES: &str = "audit.portcullis.dev/session-client-bytes";
const SERVER_BYTES: &str = "audit.portcullis.dev/session-server-bytes";
const CONNECTIONS: &str = "audit.portcullis.dev/session-connections";
const PORTS: &str = "audit.portcullis.dev/session-ports";
const UNREADABLE: &str = "audit.portcullis.dev/session-unreadable";

/// The maximum number of ports in an annotation.
const MAX_PORTS: usize = 64;

/// A session that is audited, or under a session policy, until its tunnel opens.
#[derive(Debug)]
pub(in crate::pipeline) struct SessionObserver {
    audited: Option<AuditedRequest>,
    permitted: Option<Box<PermittedSession>>,
    metrics: Arc<Metrics>,
    kind: SessionKind,
}

/// An open session. Dropped with its tunnel, it adds its annotations to the audit, ends its recording, and counts the end.
#[derive(Debug)]
pub(in crate::pipeline) struct ObservedSession {
    audited: Option<AuditedRequest>,
    metrics: Arc<Metrics>,
    kind: SessionKind,
    decision: SessionDecision,
    /// Whether the user has a terminal.
    tty: bool,
    started: Instant,
    state: Mutex<SessionState>,
    /// A rule ends it.
    over: CancellationToken,
    /// It must be recorded, and cannot be any more. `None` where it need not be.
    failed: Option<CancellationToken>,
    /// The place among the sessions of the user.
    permit: Option<SessionPermit>,
    _open: GaugeGuard,
}

#[derive(Debug)]
struct SessionState {
    decoder: Decoder,
    end: Option<TunnelEnd>,
    outcome: SessionOutcome,
    recording: Option<SessionRecording>,
    /// What the client of a session that must be recorded gets at its end, if what the server has sent last was withheld. It may
    /// be empty.
    closing: Option<Vec<u8>>,
    /// The bytes so far, and when the last of them passed.
    bytes: ByteCounts,
    active: Instant,
    warnings: EndWarnings,
}

/// What the stream tells.
#[derive(Debug, Default)]
struct SessionOutcome {
    exit_code: Option<u8>,
    failure: Option<String>,
    ports: BTreeSet<u16>,
    unreadable: Option<&'static str>,
}

/// Why a tunnel has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pipeline) enum TunnelEnd {
    /// The client has closed it.
    Client,
    /// The API server has closed it.
    Server,
    /// The gateway has, such as with the credential.
    Gateway,
    /// Its time was up.
    Deadline,
    /// It took as long as the session policy permits.
    MaxDuration,
    /// It passed nothing for as long as the session policy permits.
    Idle,
    /// It must be recorded, and cannot be any more.
    Recording,
}

impl TunnelEnd {
    /// The sentence that tells the client that a rule has ended its session.
    fn message(self) -> Option<&'static str> {
        match self {
            Self::MaxDuration => Some("the session has ended: it took as long as the session policy permits"),
            Self::Idle => {
                Some("the session has ended: it was idle for as long as the session policy permits")
            }
            Self::Recording => {
                Some("the session has ended: it must be recorded, and cannot be recorded any more")
            }
            Self::Client | Self::Server | Self::Gateway | Self::Deadline => None,
        }
    }
}

impl SessionObserver {
    /// Observes a session that is audited, or permitted by a session policy; `None` if it is neither.
    pub(in crate::pipeline) fn new(
        audited: Option<&AuditedRequest>,
        permitted: Option<Box<PermittedSession>>,
        metrics: &Arc<Metrics>,
    ) -> Option<Self> {
        let of_policy = permitted.as_ref().map(|permitted| permitted.kind);
        let kind = of_policy.or_else(|| audited?.session())?;
        Some(Self { audited: audited.cloned(), permitted, metrics: Arc::clone(metrics), kind })
    }

    /// The request is about to be sent to the API server.
    pub(in crate::pipeline) fn sent(&mut self) {
        let Some(recording) = self.recording() else { return };
        recording.sent();
        let name = recording.name().to_owned();
        if let Some(audited) = &self.audited {
            audited.annotate_session([(RECORDING, Some(name))]);
        }
    }

    /// The API server has responded that there is no session.
    pub(in crate::pipeline) fn refused(mut self) {
        let Some(recording) = self.recording() else { return };
        recording.refused();
        if let Some(audited) = &self.audited {
            audited.annotate_session([(RECORDING, None)]);
        }
    }

    fn recording(&mut self) -> Option<&mut SessionRecording> {
        self.permitted.as_mut()?.recording.as_mut()
    }

    /// Begins with the response that has switched protocols.
    pub(in crate::pipeline) fn begin(self, response: &HeaderMap) -> ObservedSession {
        let Self { audited, permitted, metrics, kind } = self;
        let (decision, tty, mut recording, permit) = match permitted.map(|permitted| *permitted) {
            Some(PermittedSession { decision, tty, recording, permit, .. }) => {
                (decision, tty, recording, permit)
            }
            None => (SessionDecision::default(), false, None, None),
        };
        if let Some(recording) = &mut recording {
            recording.open();
        }
        let failed = recording.as_ref().and_then(SessionRecording::failed);
        let upgrade = response.get(UPGRADE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let started = Instant::now();
        let state = SessionState {
            decoder: Decoder::new(protocol_of(upgrade, response), kind),
            end: None,
            outcome: SessionOutcome::default(),
            recording,
            closing: None,
            bytes: ByteCounts::default(),
            active: started,
            warnings: EndWarnings::default(),
        };
        ObservedSession {
            _open: metrics.sessions.opened(kind),
            audited,
            metrics,
            kind,
            decision,
            tty,
            started,
            state: state.into(),
            over: CancellationToken::new(),
            failed,
            permit,
        }
    }
}

impl ObservedSession {
    /// Whether no more bytes may pass: the session must be recorded, cannot be any more, and is about to end.
    // threat: unrecorded-session
    pub(in crate::pipeline) fn withholds(&self) -> bool {
        self.failed.as_ref().is_some_and(CancellationToken::is_cancelled)
    }

    /// Takes a copy of bytes before they pass; `false` if they may not.
    #[must_use]
    pub(in crate::pipeline) fn push(&self, from: Side, bytes: &[u8]) -> bool {
        let SessionState { decoder, outcome, recording, closing, bytes: counted, active, .. } =
            &mut *lock(&self.state);
        // After bytes that are withheld the decoder is not where the client is.
        let before = (self.failed.is_some() && from == Side::Server)
            .then(|| decoder.closing_frames(TunnelEnd::Recording.message()?))
            .map(Option::unwrap_or_default);
        decoder.push(from, bytes, &mut |event| {
            if let Some(recording) = recording {
                recording.record(&event);
            }
            outcome.note(event);
        });
        let passes = !self.withholds();
        if !passes {
            *closing = before.or_else(|| closing.take());
        }
        let now = byte_counts(decoder);
        if now != *counted {
            *counted = now;
            *active = Instant::now();
        }
        passes
    }

    /// Completes when the session can be recorded further, which is the time to read more; `None` if it can, or need not be.
    pub(in crate::pipeline) fn room(&self) -> Option<impl Future<Output = ()> + Send + use<>> {
        self.failed.as_ref()?;
        lock(&self.state).recording.as_ref()?.room()
    }

    /// Records why the tunnel ends. The first reason counts.
    pub(in crate::pipeline) fn end(&self, end: TunnelEnd) {
        lock(&self.state).end.get_or_insert(end);
    }

    /// Whether a rule may end the session.
    pub(in crate::pipeline) fn has_rules(&self) -> bool {
        let SessionDecision { required, max_duration, idle_timeout, .. } = self.decision;
        required || max_duration.is_some() || idle_timeout.is_some()
    }

    /// Completes when a rule ends the session.
    // threat: unrecorded-session
    pub(in crate::pipeline) async fn ruled_end(&self) -> TunnelEnd {
        let SessionDecision { max_duration, idle_timeout, .. } = self.decision;
        let end = tokio::select! {
            biased;
            () = self.recording_failed() => TunnelEnd::Recording,
            () = passed(max_duration.and_then(|duration| self.started.checked_add(duration))) => TunnelEnd::MaxDuration,
            () = self.idle_for(idle_timeout) => TunnelEnd::Idle,
        };
        self.end(end);
        self.over.cancel();
        end
    }

    /// Completes after [`Self::ruled_end`].
    pub(in crate::pipeline) async fn over(&self) {
        self.over.cancelled().await;
    }

    /// Completes when the user is to be warned of an end by a rule, once for each warning.
    pub(in crate::pipeline) async fn warning(&self) -> EndWarning {
        loop {
            let next = {
                let SessionState { warnings, active, .. } = &*lock(&self.state);
                warnings.next(&self.decision, self.started, *active)
            };
            match next {
                Some((due, warning)) if due <= Instant::now() => {
                    lock(&self.state).warnings.note(warning);
                    return warning;
                }
                // Content that passes meanwhile makes it later, and one after it possible.
                next => {
                    let again = self.decision.idle_timeout.and_then(EndWarnings::of_idle_after);
                    let again = again.and_then(|after| Instant::now().checked_add(after));
                    passed(next.map(|(due, _)| due).into_iter().chain(again).min()).await;
                }
            }
        }
    }

    /// The bytes by which the client shows a warning, after all that the server has sent, and which are in the recording from now on:
    /// none if the warning is obsolete; `None` where they may not follow, or nowhere.
    pub(in crate::pipeline) fn warn(&self, warning: EndWarning) -> Option<Vec<u8>> {
        // The decoder is not where the client is.
        if self.withholds() {
            return None;
        }
        let SessionState { decoder, recording, active, .. } = &mut *lock(&self.state);
        let Some(text) = warning.message(Instant::now(), *active) else { return Some(Vec::new()) };
        let frame = decoder.notice_frame(&text, self.tty)?;
        if let Some(recording) = recording {
            recording.notice(&text);
        }
        Some(frame)
    }

    /// What the client gets at the end by a rule, after all that the server has sent; `None` if it would not understand it.
    pub(in crate::pipeline) fn closing_frames(&self) -> Option<Vec<u8>> {
        let SessionState { decoder, end, closing, .. } = &*lock(&self.state);
        match closing {
            Some(frames) => Some(frames.clone()),
            None => decoder.closing_frames((*end)?.message()?),
        }
    }

    async fn recording_failed(&self) {
        match &self.failed {
            Some(failed) => failed.cancelled().await,
            None => pending().await,
        }
    }

    /// Completes when nothing has passed for so long. Pings, with which clients keep connections alive, are nothing.
    async fn idle_for(&self, timeout: Option<Duration>) {
        let Some(timeout) = timeout else { return pending().await };
        loop {
            let due = lock(&self.state).active.checked_add(timeout);
            if due.is_some_and(|due| due <= Instant::now()) {
                return;
            }
            passed(due).await;
        }
    }
}

/// Completes at this time; never without one.
async fn passed(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

/// The bytes of the content. Of a side that cannot be decoded there is no other number than that of the connection.
fn byte_counts(decoder: &Decoder) -> ByteCounts {
    let (content, wire) = (decoder.content_bytes(), decoder.wire_bytes());
    let count = |side, content, wire| if decoder.is_unreadable(side) { wire } else { content };
    ByteCounts {
        client: count(Side::Client, content.client, wire.client),
        server: count(Side::Server, content.server, wire.server),
    }
}

impl SessionOutcome {
    fn note(&mut self, event: SessionEvent<'_>) {
        match event {
            SessionEvent::Exit { code } => self.exit_code = Some(code),
            SessionEvent::Failed { message } => self.failure = Some(message),
            SessionEvent::ConnectionOpened { port } if self.ports.len() < MAX_PORTS => {
                self.ports.insert(port);
            }
            SessionEvent::Unreadable { why, .. } => {
                self.unreadable.get_or_insert(why);
            }
            _ => {}
        }
    }

    fn reason(&self, end: Option<TunnelEnd>) -> &'static str {
        match (self.exit_code, &self.failure, end) {
            (Some(_), ..) => "exited",
            (None, Some(_), _) => "failed",
            (None, None, Some(TunnelEnd::Client)) => "client",
            (None, None, Some(TunnelEnd::Server)) => "server",
            (None, None, Some(TunnelEnd::Deadline)) => "deadline",
            (None, None, Some(TunnelEnd::MaxDuration)) => "duration",
            (None, None, Some(TunnelEnd::Idle)) => "idle",
            (None, None, Some(TunnelEnd::Recording)) => "recording",
            // Without a reason the process ends.
            (None, None, Some(TunnelEnd::Gateway) | None) => "gateway",
        }
    }
}

impl Drop for ObservedSession {
    fn drop(&mut self) {
        let Self { audited, metrics, kind, started, state, permit, .. } = self;
        // Before the end is counted.
        drop(permit.take());
        let SessionState { decoder, end, outcome, recording, .. } = &mut *lock(state);
        decoder.finish(&mut |event| {
            if let Some(recording) = recording {
                recording.record(&event);
            }
            outcome.note(event);
        });
        let bytes = byte_counts(decoder);
        let reason = outcome.reason(*end);
        let milliseconds = i64::try_from(started.elapsed().as_millis()).unwrap_or(i64::MAX);
        let message = outcome.failure.as_ref().map(|message| sanitized(message));
        let ports: Vec<String> = outcome.ports.iter().map(ToString::to_string).collect();
        if let Some(recording) = recording {
            recording.end(SessionEnd {
                duration_milliseconds: u64::try_from(milliseconds).unwrap_or_default(),
                reason: reason.to_owned(),
                exit_code: outcome.exit_code,
                message: message.clone(),
                client_bytes: bytes.client,
                server_bytes: bytes.server,
                connections: decoder.connections(),
                ..SessionEnd::default()
            });
        }
        let is_forwarding = *kind == SessionKind::PortForward;
        if let Some(audited) = audited {
            audited.annotate_session([
                (REASON, Some(reason.to_owned())),
                (EXIT_CODE, outcome.exit_code.map(|code| code.to_string())),
                (MESSAGE, message),
                (DURATION, Some(format_duration(milliseconds.saturating_mul(1_000_000)))),
                (CLIENT_BYTES, Some(bytes.client.to_string())),
                (SERVER_BYTES, Some(bytes.server.to_string())),
                (CONNECTIONS, is_forwarding.then(|| decoder.connections().to_string())),
                (PORTS, (!ports.is_empty()).then(|| ports.join(","))),
                (UNREADABLE, outcome.unreadable.map(ToOwned::to_owned)),
            ]);
        }
        metrics.sessions.ended(*kind, reason, bytes);
    }
}

#[cfg(test)]
impl ObservedSession {
    /// A session with a terminal over the channels of a WebSocket, under a rule.
    pub(in crate::pipeline) fn under(decision: SessionDecision) -> Self {
        let metrics = Arc::new(Metrics::new());
        let permitted =
            PermittedSession { kind: SessionKind::Exec, decision, tty: true, recording: None, permit: None };
        let mut response = HeaderMap::new();
        for (name, value) in [("upgrade", "websocket"), ("sec-websocket-protocol", "v5.channel.k8s.io")] {
            response.insert(name, value.parse().unwrap());
        }
        SessionObserver::new(None, Some(Box::new(permitted)), &metrics).unwrap().begin(&response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_the_server_is_the_first_reason() {
        let reason = |exit_code, failure: Option<&str>, end| {
            let failure = failure.map(ToOwned::to_owned);
            SessionOutcome { exit_code, failure, ..SessionOutcome::default() }.reason(end)
        };
        assert_eq!(reason(Some(0), None, Some(TunnelEnd::Client)), "exited");
        assert_eq!(reason(None, Some("no"), Some(TunnelEnd::Server)), "failed");
        assert_eq!(reason(None, None, Some(TunnelEnd::Client)), "client");
        assert_eq!(reason(None, None, Some(TunnelEnd::Server)), "server");
        assert_eq!(reason(None, None, Some(TunnelEnd::Gateway)), "gateway");
        assert_eq!(reason(None, None, Some(TunnelEnd::Deadline)), "deadline");
        assert_eq!(reason(None, None, Some(TunnelEnd::MaxDuration)), "duration");
        assert_eq!(reason(None, None, Some(TunnelEnd::Idle)), "idle");
        assert_eq!(reason(None, None, Some(TunnelEnd::Recording)), "recording");
        assert_eq!(reason(None, None, None), "gateway");
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_after_its_duration_or_when_it_is_idle() {
        let (hour, minute) = (Duration::from_hours(1), Duration::from_mins(1));
        let none = SessionDecision::default();
        let limits = |max_duration, idle_timeout| SessionDecision { max_duration, idle_timeout, ..none };
        for (decision, expected, after) in [
            (limits(Some(hour), None), TunnelEnd::MaxDuration, hour),
            (limits(None, Some(minute)), TunnelEnd::Idle, minute),
            (limits(Some(hour), Some(minute)), TunnelEnd::Idle, minute),
            (limits(Some(minute), Some(hour)), TunnelEnd::MaxDuration, minute),
        ] {
            let (session, started) = (ObservedSession::under(decision), Instant::now());
            assert!(session.has_rules());
            assert_eq!(session.ruled_end().await, expected);
            assert_eq!(started.elapsed().as_secs(), after.as_secs());
            session.over().await;
            assert!(session.closing_frames().is_some());
        }
        assert!(!ObservedSession::under(none).has_rules());
    }

    #[tokio::test(start_paused = true)]
    async fn content_keeps_a_session_from_being_idle_and_pings_do_not() {
        let minute = Duration::from_mins(1);
        let session = ObservedSession::under(SessionDecision {
            idle_timeout: Some(minute),
            ..SessionDecision::default()
        });
        let started = Instant::now();
        let use_it = async {
            for _ in 0..3 {
                tokio::time::advance(minute / 2).await;
                // Input, then output.
                _ = session.push(Side::Client, &[0x82, 0x82, 0, 0, 0, 0, 0, b'a']);
                tokio::time::advance(minute / 2).await;
                _ = session.push(Side::Server, &[0x82, 2, 1, b'a']);
            }
            for _ in 0..10 {
                tokio::time::advance(minute / 4).await;
                // A ping, and a message without content.
                _ = session.push(Side::Client, &[0x89, 0x80, 0, 0, 0, 0]);
                _ = session.push(Side::Client, &[0x82, 0x81, 0, 0, 0, 0, 0]);
            }
        };
        let (end, ()) =
            tokio::join!(async { (session.ruled_end().await, started.elapsed().as_secs()) }, use_it);
        assert_eq!(end, (TunnelEnd::Idle, 240));
    }

    #[tokio::test(start_paused = true)]
    async fn content_puts_off_the_warning_of_an_idle_session() {
        let minute = Duration::from_mins(1);
        let decision = SessionDecision { idle_timeout: Some(10 * minute), ..SessionDecision::default() };
        let (session, started) = (ObservedSession::under(decision), Instant::now());
        let use_it = async {
            tokio::time::sleep(5 * minute).await;
            _ = session.push(Side::Server, &[0x82, 2, 1, b'a']);
        };
        let (warning, ()) = tokio::join!(async { (session.warning().await, started.elapsed() / 60) }, use_it);
        assert_eq!(warning.1.as_secs(), 13);
        let bytes = byte_counts(&lock(&session.state).decoder);
        assert!(session.warn(warning.0).is_some_and(|frame| !frame.is_empty()));
        assert_eq!(byte_counts(&lock(&session.state).decoder), bytes, "it is no content");
        _ = session.push(Side::Server, &[0x82, 2, 1, b'a']);
        tokio::time::advance(minute).await;
        _ = session.push(Side::Server, &[0x82, 2, 1, b'a']);
        assert_eq!(session.warn(warning.0), Some(Vec::new()), "the session is used again");
    }

    /// The input comes while the API server is silent.
    #[tokio::test(start_paused = true)]
    async fn a_session_that_is_idle_again_is_warned_again() {
        let minute = Duration::from_mins(1);
        for max_duration in [None, Some(100 * minute)] {
            let decision = SessionDecision {
                idle_timeout: Some(10 * minute),
                max_duration,
                ..SessionDecision::default()
            };
            let (session, started) = (ObservedSession::under(decision), Instant::now());
            let warnings = async {
                let mut at = Vec::new();
                for _ in 0..2 {
                    session.warning().await;
                    at.push(started.elapsed().as_secs() / 60);
                }
                at
            };
            let use_it = async {
                tokio::time::sleep(9 * minute).await;
                assert!(session.push(Side::Client, &[0x82, 0x82, 0, 0, 0, 0, 0, b'a']));
            };
            let (at, ()) = tokio::join!(warnings, use_it);
            assert_eq!(at, [8, 17], "{max_duration:?}");
        }
    }
}
