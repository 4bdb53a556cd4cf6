//! Sessions: what the audit says of exec, attach and port-forward beyond the request, and their metrics.
//!
//! A copy of the tunnel's bytes is decoded as it passes, and nothing of it is kept but how the session ends. A session that
//! is not audited is not decoded. The tunnel does not depend on what the decoder finds.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use http::HeaderMap;
use http::header::{HeaderName, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use portcullis_go::duration::format_duration;
use portcullis_go::url::query;
use portcullis_sessions::decoder::{ByteCounts, Decoder, SessionEvent, SessionKind, Side, StreamProtocol};
use portcullis_system::sync::lock;
use portcullis_system::text::{sanitized, shortened};
use tokio::time::Instant;

use super::audit::AuditedRequest;
use crate::metrics::{GaugeGuard, Metrics};
use crate::request::info::RequestInfo;

// Annotations of the request. `docs/audit.md` has them all.
const CONTAINER: &str = "audit.portcullis.dev/session-container";
const COMMAND: &str = "audit.portcullis.dev/session-command";
const TTY: &str = "audit.portcullis.dev/session-tty";
const STDIN: &str = "audit.portcullis.dev/session-stdin";
// Annotations of the end.
const REASON: &str = "audit.portcullis.dev/session-reason";
const EXIT_CODE: &str = "audit.portcullis.dev/session-exit-code";
const MESSAGE: &str = "audit.portcullis.dev/session-message";
const DURATION: &str = "audit.portcullis.dev/session-duration";
const CLIENT_BYTES: &str = "audit.portcullis.dev/session-client-bytes";
const SERVER_BYTES: &str = "audit.portcullis.dev/session-server-bytes";
const CONNECTIONS: &str = "audit.portcullis.dev/session-connections";
const PORTS: &str = "audit.portcullis.dev/session-ports";
const UNREADABLE: &str = "audit.portcullis.dev/session-unreadable";

/// The header in which a server names the protocol within SPDY.
const STREAM_PROTOCOL_VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// The maximum number of characters of an annotation. The event has the whole command in its `requestURI`.
const MAX_TEXT: usize = 1024;
/// The maximum number of ports in an annotation.
const MAX_PORTS: usize = 64;

/// The kind of session that a request opens; `None` for any other request.
pub(super) fn kind_of(info: &RequestInfo) -> Option<SessionKind> {
    let resource =
        info.resource().filter(|resource| resource.group.is_empty() && resource.resource == "pods")?;
    SessionKind::ALL.into_iter().find(|kind| kind.as_str() == resource.subresource)
}

/// The annotations of a request that opens a session.
// apiserver: pkg/apis/core/v1, PodExecOptions and PodAttachOptions, decoded from the query
pub(super) fn annotations_of_request(
    kind: SessionKind,
    query: Option<&str>,
) -> impl Iterator<Item = (&'static str, String)> {
    let query = query.filter(|_| kind != SessionKind::PortForward).unwrap_or_default();
    let flag = |key| {
        let is_set = query::first(query, key)
            .is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"));
        is_set.then(|| "true".to_owned())
    };
    let container = query::first(query, "container").filter(|container| !container.is_empty());
    let mut command = Vec::new();
    if kind == SessionKind::Exec {
        command.extend(
            query::pairs(query).filter(|(key, _)| key == "command").map(|(_, part)| part.into_owned()),
        );
    }
    let command =
        (!command.is_empty()).then(|| shortened(&serde_json::Value::from(command).to_string(), MAX_TEXT));
    [
        (CONTAINER, container.map(|container| shortened(&container, MAX_TEXT))),
        (COMMAND, command),
        (TTY, flag("tty")),
        (STDIN, flag("stdin")),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key, value?)))
}

/// A session that is audited, until its tunnel has ended.
#[derive(Debug)]
pub(super) struct SessionObserver {
    audited: AuditedRequest,
    metrics: Arc<Metrics>,
    kind: SessionKind,
}

/// An open session. Dropped with its tunnel, it adds its annotations to the audit and counts the end.
#[derive(Debug)]
pub(super) struct ObservedSession {
    observer: SessionObserver,
    started: Instant,
    _open: GaugeGuard,
    state: Mutex<SessionState>,
}

#[derive(Debug)]
struct SessionState {
    decoder: Decoder,
    end: Option<TunnelEnd>,
    outcome: SessionOutcome,
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
pub(super) enum TunnelEnd {
    /// The client has closed it.
    Client,
    /// The API server has closed it.
    Server,
    /// The gateway has, such as with the credential.
    Gateway,
    /// Its time was up.
    Deadline,
}

impl SessionObserver {
    pub(super) fn new(audited: AuditedRequest, kind: SessionKind, metrics: Arc<Metrics>) -> Self {
        Self { audited, metrics, kind }
    }

    /// Begins with the response that has switched protocols.
    pub(super) fn begin(self, response: &HeaderMap) -> ObservedSession {
        let text = |name: HeaderName| response.get(name).and_then(|value| value.to_str().ok());
        let upgrade = text(UPGRADE).unwrap_or_default();
        let version = text(SEC_WEBSOCKET_PROTOCOL).or_else(|| text(STREAM_PROTOCOL_VERSION));
        let state = SessionState {
            decoder: Decoder::new(StreamProtocol::chosen(upgrade, version), self.kind),
            end: None,
            outcome: SessionOutcome::default(),
        };
        ObservedSession {
            _open: self.metrics.sessions.opened(self.kind),
            observer: self,
            started: Instant::now(),
            state: Mutex::new(state),
        }
    }
}

impl ObservedSession {
    /// Takes a copy of bytes that pass.
    pub(super) fn push(&self, from: Side, bytes: &[u8]) {
        let SessionState { decoder, outcome, .. } = &mut *lock(&self.state);
        decoder.push(from, bytes, &mut |event| outcome.note(event));
    }

    /// Records why the tunnel ends. The first reason counts.
    pub(super) fn end(&self, end: TunnelEnd) {
        lock(&self.state).end.get_or_insert(end);
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
            // Without a reason the process ends.
            (None, None, Some(TunnelEnd::Gateway) | None) => "gateway",
        }
    }
}

impl Drop for ObservedSession {
    fn drop(&mut self) {
        let Self { observer: SessionObserver { audited, metrics, kind }, started, state, .. } = self;
        let SessionState { decoder, end, outcome } = &mut *lock(state);
        decoder.finish(&mut |event| outcome.note(event));
        let (content, wire) = (decoder.content_bytes(), decoder.wire_bytes());
        // Of a side that cannot be decoded there is no other number.
        let count = |side, content, wire| if decoder.is_unreadable(side) { wire } else { content };
        let bytes = ByteCounts {
            client: count(Side::Client, content.client, wire.client),
            server: count(Side::Server, content.server, wire.server),
        };
        let reason = outcome.reason(*end);
        let milliseconds = i64::try_from(started.elapsed().as_millis()).unwrap_or(i64::MAX);
        let is_forwarding = *kind == SessionKind::PortForward;
        let ports: Vec<String> = outcome.ports.iter().map(ToString::to_string).collect();
        audited.note_session_end([
            (REASON, Some(reason.to_owned())),
            (EXIT_CODE, outcome.exit_code.map(|code| code.to_string())),
            (MESSAGE, outcome.failure.as_ref().map(|message| sanitized(message))),
            (DURATION, Some(format_duration(milliseconds.saturating_mul(1_000_000)))),
            (CLIENT_BYTES, Some(bytes.client.to_string())),
            (SERVER_BYTES, Some(bytes.server.to_string())),
            (CONNECTIONS, is_forwarding.then(|| decoder.connections().to_string())),
            (PORTS, (!ports.is_empty()).then(|| ports.join(","))),
            (UNREADABLE, outcome.unreadable.map(ToOwned::to_owned)),
        ]);
        metrics.sessions.ended(*kind, reason, bytes);
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn a_session_is_a_subresource_of_a_pod() {
        let kind = |path: &str| kind_of(&RequestInfo::parse(&Method::POST, path, None).unwrap());
        for (path, expected) in [
            ("/api/v1/namespaces/n/pods/p/exec", Some(SessionKind::Exec)),
            ("/api/v1/namespaces/n/pods/p/attach", Some(SessionKind::Attach)),
            ("/api/v1/namespaces/n/pods/p/portforward", Some(SessionKind::PortForward)),
            ("/api/v1/namespaces/n/pods/p/log", None),
            ("/api/v1/namespaces/n/pods/p", None),
            ("/apis/example.com/v1/namespaces/n/pods/p/exec", None),
            ("/api/v1/namespaces/n/services/p/exec", None),
            ("/exec", None),
        ] {
            assert_eq!(kind(path), expected, "{path}");
        }
    }

    #[test]
    fn the_options_are_those_that_the_api_server_reads() {
        let text = |kind, query: &str| {
            let pairs = annotations_of_request(kind, Some(query));
            let short = |key: &str| key.rsplit_once("session-").unwrap().1.to_owned();
            pairs.map(|(key, value)| format!("{}={value}", short(key))).collect::<Vec<_>>().join(" ")
        };
        let query = "command=sh&command=-c&command=echo+%22a%22&container=c&stdin=true&tty=1&container=d";
        for (kind, query, expected) in [
            (SessionKind::Exec, query, r#"container=c command=["sh","-c","echo \"a\""] tty=true stdin=true"#),
            (SessionKind::Attach, query, "container=c tty=true stdin=true"),
            (SessionKind::PortForward, query, ""),
            (SessionKind::Exec, "stdin=0&tty=FALSE&container=", ""),
            (SessionKind::Exec, "stdin&tty=no", "tty=true stdin=true"),
            (SessionKind::Exec, "", ""),
        ] {
            assert_eq!(text(kind, query), expected, "{query}");
        }
        let long = text(SessionKind::Exec, &format!("command={}", "x".repeat(100_000)));
        assert!(long.len() < 1100 && long.ends_with('…'), "{}", long.len());
        assert_eq!(annotations_of_request(SessionKind::Exec, None).count(), 0);
    }

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
        assert_eq!(reason(None, None, None), "gateway");
    }
}
