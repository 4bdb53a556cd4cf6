//! Sessions: exec, attach and port-forward. Opens them by the session policy of their cluster, records them, and tells the audit
//! and the metrics what happens in them.
//!
//! A copy of the tunnel's bytes is decoded once as it passes, for the recording and for the audit. A session that is neither
//! audited nor of a cluster with a policy is not decoded. The tunnel does not depend on what the decoder finds, and waits for a
//! recording alone that a rule requires; such a session ends when it cannot be recorded, and what is not recorded does not pass.

mod observed;
mod opening;
mod warnings;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue, SEC_WEBSOCKET_PROTOCOL};
use portcullis_go::url::query;
use portcullis_sessions::decoder::{SessionKind, StreamProtocol};
use portcullis_system::text::{sanitized, shortened};

use crate::request::info::RequestInfo;
pub(super) use observed::{ObservedSession, SessionObserver, TunnelEnd};
pub(super) use opening::{PermittedSession, SessionRefusal, SessionRequest};

// Annotations of the request. `docs/audit.md` has them all.
const CONTAINER: &str = "audit.portcullis.dev/session-container";
const COMMAND: &str = "audit.portcullis.dev/session-command";
const TTY: &str = "audit.portcullis.dev/session-tty";
const STDIN: &str = "audit.portcullis.dev/session-stdin";
const RECORDING: &str = "audit.portcullis.dev/session-recording";
/// Of the end, or of a refusal by the session policy.
const REASON: &str = "audit.portcullis.dev/session-reason";

/// The header in which a client offers, and a server names, the protocol within SPDY.
const STREAM_PROTOCOL_VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// The maximum number of characters of an annotation. The event has the whole command in its `requestURI`.
const MAX_TEXT: usize = 1024;

/// The options of a session, as its query has them.
#[derive(Debug, Default, PartialEq, Eq)]
struct SessionOptions {
    container: Option<String>,
    command: Vec<String>,
    tty: bool,
    stdin: bool,
}

/// The kind of session that a request opens; `None` for any other request.
pub(super) fn kind_of(info: &RequestInfo) -> Option<SessionKind> {
    let resource =
        info.resource().filter(|resource| resource.group.is_empty() && resource.resource == "pods")?;
    SessionKind::ALL.into_iter().find(|kind| kind.as_str() == resource.subresource)
}

impl SessionOptions {
    // apiserver: pkg/apis/core/v1, PodExecOptions and PodAttachOptions, decoded from the query
    fn of(kind: SessionKind, query: Option<&str>) -> Self {
        let query = query.filter(|_| kind != SessionKind::PortForward).unwrap_or_default();
        let flag = |key| {
            query::first(query, key).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
        };
        let mut command = Vec::new();
        if kind == SessionKind::Exec {
            command.extend(
                query::pairs(query).filter(|(key, _)| key == "command").map(|(_, part)| part.into_owned()),
            );
        }
        let container = query::first(query, "container").filter(|container| !container.is_empty());
        Self {
            container: container.map(|container| container.to_string()),
            command,
            tty: flag("tty"),
            stdin: flag("stdin"),
        }
    }
}

/// A text of a client as an annotation has it: a log may be read on a terminal.
fn plain(text: &str) -> String {
    shortened(&sanitized(text), MAX_TEXT)
}

/// The annotations of a request that opens a session.
pub(super) fn annotations_of_request(
    kind: SessionKind,
    query: Option<&str>,
) -> impl Iterator<Item = (&'static str, String)> {
    let SessionOptions { container, command, tty, stdin } = SessionOptions::of(kind, query);
    let command = (!command.is_empty()).then(|| plain(&serde_json::Value::from(command).to_string()));
    let flag = |is_set: bool| is_set.then(|| "true".to_owned());
    [
        (CONTAINER, container.map(|container| plain(&container))),
        (COMMAND, command),
        (TTY, flag(tty)),
        (STDIN, flag(stdin)),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key, value?)))
}

/// The annotation of a session that its policy refuses.
pub(super) fn annotation_of_refusal(refusal: &SessionRefusal) -> [(&'static str, Option<String>); 1] {
    [(REASON, Some(refusal.reason().to_owned()))]
}

/// The protocol of the stream after a response that has switched protocols.
fn protocol_of(upgrade: &str, response: &HeaderMap) -> StreamProtocol {
    let text = |name: HeaderName| response.get(name).and_then(|value| value.to_str().ok());
    let version = text(SEC_WEBSOCKET_PROTOCOL).or_else(|| text(STREAM_PROTOCOL_VERSION));
    StreamProtocol::chosen(upgrade, version)
}

/// Whether the server may choose a protocol that cannot be decoded, among those that a client offers.
fn may_be_unreadable(upgrade: &HeaderValue, request: &HeaderMap) -> bool {
    let Ok(upgrade) = upgrade.to_str() else { return true };
    let is_unreadable = |version| StreamProtocol::chosen(upgrade, version) == StreamProtocol::Unknown;
    let offers = request.get_all(SEC_WEBSOCKET_PROTOCOL);
    // Without an offer it is the first version, whose header the response lacks, too.
    is_unreadable(None)
        || offers.iter().any(|line| match line.to_str() {
            Ok(line) => line.split(',').any(|offer| is_unreadable(Some(offer.trim()))),
            Err(_) => true,
        })
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
        let obeyed = text(SessionKind::Exec, "container=a%C2%9D52&command=%C2%9Bb");
        assert_eq!(obeyed, "container=a\u{fffd}52 command=[\"\u{fffd}b\"]");
        let long = text(SessionKind::Exec, &format!("command={}", "x".repeat(100_000)));
        assert!(long.len() < 1100 && long.ends_with('…'), "{}", long.len());
        assert_eq!(annotations_of_request(SessionKind::Exec, None).count(), 0);
    }

    #[test]
    fn a_protocol_that_cannot_be_read_is_found_in_the_offer() {
        for (upgrade, offers, expected) in [
            ("websocket", &["v5.channel.k8s.io, v4.channel.k8s.io,channel.k8s.io"][..], false),
            ("WebSocket", &["v5.channel.k8s.io", "v4.channel.k8s.io"], false),
            ("websocket", &[], false),
            ("websocket", &["SPDY/3.1+portforward.k8s.io"], false),
            ("websocket", &["base64.channel.k8s.io"], true),
            ("websocket", &["v4.channel.k8s.io, v4.base64.channel.k8s.io"], true),
            ("websocket", &["v4.channel.k8s.io", "v6.channel.k8s.io"], true),
            ("SPDY/3.1", &[], false),
            ("h2c", &[], true),
        ] {
            let mut headers = HeaderMap::new();
            for offer in offers {
                headers.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(offer));
            }
            let upgrade = HeaderValue::from_static(upgrade);
            assert_eq!(may_be_unreadable(&upgrade, &headers), expected, "{upgrade:?} {offers:?}");
        }
    }
}
