//! Sessions in the audit log and the metrics: exec, attach and port-forward, as their streams tell.

mod recordings;
mod rules;

use std::future::pending;
use std::path::{Path, PathBuf};

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value, json};
use testkit::self_check;
use testkit::{FakeBackend, Gateway, H2, Pki, empty, flags, full, get, in_time, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::gateway::InProcess as _;

const V5: &str = "v5.channel.k8s.io";
const SUCCESS: &str = r#"{"metadata":{},"status":"Success"}"#;

/// As [`switching_and_received`], without what it receives.
async fn switching(pki: &Pki, protocol: (&'static str, &'static str), sent: Vec<Vec<u8>>) -> FakeBackend {
    switching_and_received(pki, protocol, sent).await.0
}

/// A backend that switches to this protocol, sends the next of these each time that the client has sent something, and ends when the
/// client does. It answers access reviews, refuses sessions of the pod `refused`, and does not answer those of the pod `silent`.
/// Returns also the bytes that it receives in tunnels; none at the end of each.
async fn switching_and_received(
    pki: &Pki,
    protocol: (&'static str, &'static str),
    sent: Vec<Vec<u8>>,
) -> (FakeBackend, UnboundedReceiver<Vec<u8>>) {
    let (receiving, all_received) = unbounded_channel();
    let (upgrade, version) = protocol;
    let self_check = |request: &Request<Incoming>| {
        let is_review = request.uri().path().ends_with("/subjectaccessreviews");
        if is_review { None } else { self_check::answer(request) }
    };
    let backend = FakeBackend::with_self_check(pki, H2, self_check, move |mut request: Request<Incoming>| {
        if request.uri().path().ends_with("/subjectaccessreviews") {
            let review = json!({"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
                                "spec": {}, "status": {"allowed": true}});
            let response = Response::builder()
                .status(201)
                .header("content-type", "application/json")
                .body(full(review.to_string()));
            return Box::pin(async { response.unwrap() });
        }
        if !request.headers().contains_key("upgrade") {
            return Box::pin(async { Response::new(empty()) });
        }
        if request.uri().path().contains("/pods/refused/") {
            return Box::pin(async { Response::builder().status(403).body(empty()).unwrap() });
        }
        if request.uri().path().contains("/pods/silent/") {
            return Box::pin(pending());
        }
        let upgrading = hyper::upgrade::on(&mut request);
        let (sent, receiving) = (sent.clone(), receiving.clone());
        tokio::spawn(async move {
            let mut tunnel = TokioIo::new(upgrading.await.unwrap());
            let mut received = [0; 1024];
            let mut sent = sent.into_iter();
            loop {
                let count = tunnel.read(&mut received).await.unwrap_or_default();
                receiving.send(received[..count].to_vec()).ok();
                if count == 0 || tunnel.write_all(&sent.next().unwrap_or_default()).await.is_err() {
                    return;
                }
            }
        });
        let response = Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header("connection", "Upgrade")
            .header("upgrade", upgrade)
            .header(protocol_header(upgrade), version)
            .body(empty());
        Box::pin(async { response.unwrap() })
    })
    .await;
    (backend, all_received)
}

/// The header that names the protocol within an upgrade.
fn protocol_header(upgrade: &str) -> &'static str {
    if upgrade == "websocket" { "sec-websocket-protocol" } else { "x-stream-protocol-version" }
}

/// The flags of an audit with this level, and its log.
fn audit_flags(pki: &Pki, level: &str) -> (Vec<String>, PathBuf) {
    let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": level}]});
    let policy = pki.write("policy.yaml", policy.to_string());
    let log = pki.directory.path().join("audit.log");
    let flags =
        [format!("--audit-policy-file={}", policy.display()), format!("--audit-log-path={}", log.display())];
    (flags.into(), log)
}

/// A gateway in front of a backend that sends these bytes once the client has sent something.
struct Audited {
    pki: Pki,
    gateway: Gateway,
    log: PathBuf,
    protocol: (&'static str, &'static str),
    _backend: FakeBackend,
}

impl Audited {
    async fn start(protocol: (&'static str, &'static str), sent: Vec<u8>, level: &str) -> Self {
        let pki = Pki::new();
        let backend = switching(&pki, protocol, vec![sent]).await;
        let mut given = flags(&pki, backend.address);
        let (audit, log) = audit_flags(&pki, level);
        given.extend(audit);
        let gateway = Gateway::with(given);
        gateway.checked().await;
        Self { pki, gateway, log, protocol, _backend: backend }
    }

    /// Opens a session of a subresource of the pod.
    async fn open(&self, subresource: &str) -> TokioIo<Upgraded> {
        let path = format!("/api/v1/namespaces/n/pods/p/{subresource}");
        let response = ask(&self.pki, &self.gateway, self.protocol, &path, &[]).await;
        opened(response).await
    }

    /// The annotations about the session in the event of a stage.
    async fn annotations(&self, stage: &str) -> Map<String, Value> {
        annotations(&self.log, stage).await
    }

    /// As [`Self::annotations`], at the end of the session and without its duration.
    async fn at_end(&self) -> Value {
        let mut annotations = self.annotations("ResponseComplete").await;
        let duration = annotations.remove("duration").expect("a duration");
        assert!(duration.as_str().unwrap().ends_with('s'), "{duration}");
        annotations.into()
    }
}

/// Asks for a session as alice, with these further headers.
async fn ask(
    pki: &Pki,
    gateway: &Gateway,
    (upgrade, version): (&str, &str),
    path: &str,
    further: &[(&str, &str)],
) -> Response<Incoming> {
    let alice = pki.clients.leaf().cn("alice").org("developers").issue();
    let mut client = gateway.http1(Some(&alice)).await;
    let headers = [
        ("connection", "Upgrade"),
        ("upgrade", upgrade),
        (protocol_header(upgrade), version),
        ("sec-websocket-key", "AAAA"),
    ];
    client.send(get(path, &[&headers[..], further].concat())).await.unwrap()
}

/// The tunnel after a response that has switched protocols.
async fn opened(response: Response<Incoming>) -> TokioIo<Upgraded> {
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    TokioIo::new(in_time(hyper::upgrade::on(response)).await.unwrap())
}

/// The annotations about sessions in the event of a stage.
async fn annotations(log: &Path, stage: &str) -> Map<String, Value> {
    let found = || {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let mut events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.find(|event| event["stage"] == stage && event["requestURI"] != "/readyz")
    };
    until("the event", || found().is_some()).await;
    let annotations = found().unwrap()["annotations"].as_object().cloned().unwrap_or_default();
    let of_session = |(key, value): (String, Value)| {
        Some((key.strip_prefix("audit.portcullis.dev/session-")?.to_owned(), value))
    };
    annotations.into_iter().filter_map(of_session).collect()
}

/// A message of a channel, of the server.
fn message(channel: u8, content: &str) -> Vec<u8> {
    let length = u16::try_from(content.len() + 1).unwrap();
    let head = if let Ok(short @ ..126) = u8::try_from(length) {
        vec![0x82, short]
    } else {
        [&[0x82, 126][..], &length.to_be_bytes()].concat()
    };
    [&head, &[channel][..], content.as_bytes()].concat()
}

/// A message of a channel, of the client. The mask is zero.
fn masked(channel: u8, content: &str) -> Vec<u8> {
    let length = 0x80 | u8::try_from(content.len() + 1).unwrap();
    [&[0x82, length, 0, 0, 0, 0, channel], content.as_bytes()].concat()
}

async fn exchange(tunnel: &mut TokioIo<Upgraded>, sent: &[u8], expected: &[u8]) {
    tunnel.write_all(sent).await.unwrap();
    let mut received = vec![0; expected.len()];
    in_time(tunnel.read_exact(&mut received)).await.unwrap();
    assert_eq!(received, expected, "the bytes pass as they are");
}

#[tokio::test]
async fn an_exec_has_its_options_and_its_end_in_the_audit_log() {
    let status = r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
    let sent = [message(1, "output\n"), message(2, "warning\n"), message(3, status)].concat();
    let audited = Audited::start(("websocket", V5), sent.clone(), "Metadata").await;
    let mut tunnel =
        audited.open("exec?command=sh&command=-c&command=a+%3E+b&container=c&stdin=true&tty=true").await;
    let request =
        json!({"command": r#"["sh","-c","a > b"]"#, "container": "c", "stdin": "true", "tty": "true"});
    assert_eq!(Value::from(audited.annotations("ResponseStarted").await), request);
    audited.gateway.until_counted("portcullis_sessions{kind=\"exec\"} 1").await;
    exchange(&mut tunnel, &masked(0, "ls\n"), &sent).await;
    tunnel.shutdown().await.unwrap();
    drop(tunnel);
    let mut expected = request;
    for (key, value) in
        [("reason", "exited"), ("exit-code", "7"), ("client-bytes", "3"), ("server-bytes", "15")]
    {
        expected[key] = value.into();
    }
    assert_eq!(audited.at_end().await, expected);
    for line in [
        "portcullis_sessions{kind=\"exec\"} 0",
        "portcullis_sessions_ended_total{kind=\"exec\",reason=\"exited\"} 1",
        "portcullis_session_bytes_total{from=\"client\",kind=\"exec\"} 3",
        "portcullis_session_bytes_total{from=\"server\",kind=\"exec\"} 15",
    ] {
        audited.gateway.until_counted(line).await;
    }
}

#[tokio::test]
async fn a_session_that_its_client_leaves_has_no_exit_code() {
    let audited = Audited::start(("websocket", V5), message(1, "output"), "Metadata").await;
    let mut tunnel = audited.open("attach?stdin=false").await;
    exchange(&mut tunnel, &masked(0, "x"), &message(1, "output")).await;
    drop(tunnel);
    let expected = json!({"reason": "client", "client-bytes": "1", "server-bytes": "6"});
    assert_eq!(audited.at_end().await, expected);
}

#[tokio::test]
async fn a_failure_has_the_message_of_the_server() {
    let status = r#"{"status":"Failure","reason":"InternalError","message":"no such\ncontainer"}"#;
    let audited = Audited::start(("websocket", "v4.channel.k8s.io"), message(3, status), "Metadata").await;
    let mut tunnel = audited.open("exec?command=sh").await;
    exchange(&mut tunnel, &masked(0, ""), &message(3, status)).await;
    drop(tunnel);
    let expected = json!({
        "command": r#"["sh"]"#, "reason": "failed", "message": "no such\u{fffd}container", "client-bytes": "0",
        "server-bytes": "0",
    });
    assert_eq!(audited.at_end().await, expected);
}

#[tokio::test]
async fn forwarded_connections_are_counted() {
    let sent = [message(0, "\u{39}\u{5}"), message(1, "\u{39}\u{5}"), message(0, "answer")].concat();
    let audited = Audited::start(("websocket", "v4.channel.k8s.io"), sent.clone(), "Metadata").await;
    let mut tunnel = audited.open("portforward?ports=1337").await;
    exchange(&mut tunnel, &masked(0, "question"), &sent).await;
    drop(tunnel);
    let expected = json!({
        "reason": "client", "client-bytes": "8", "server-bytes": "6", "connections": "1", "ports": "1337",
    });
    assert_eq!(audited.at_end().await, expected);
    audited
        .gateway
        .until_counted("portcullis_sessions_ended_total{kind=\"portforward\",reason=\"client\"} 1")
        .await;
}

/// Also bytes that are not of the protocol pass.
#[tokio::test]
async fn a_stream_that_cannot_be_decoded_passes_and_is_counted() {
    let garbage = [0x80, 3, 0, 99, 0, 0, 0, 0, 1, 2, 3];
    let audited = Audited::start(("SPDY/3.1", "v4.channel.k8s.io"), garbage.to_vec(), "Metadata").await;
    let mut tunnel = audited.open("exec?command=sh").await;
    exchange(&mut tunnel, &garbage, &garbage).await;
    drop(tunnel);
    let expected = json!({
        "command": r#"["sh"]"#, "reason": "client", "client-bytes": "11", "server-bytes": "11",
        "unreadable": "a control frame has an unknown type",
    });
    assert_eq!(audited.at_end().await, expected);
}

#[tokio::test]
async fn a_session_that_is_not_audited_is_not_decoded() {
    let sent = message(3, SUCCESS);
    let audited = Audited::start(("websocket", V5), sent.clone(), "None").await;
    let mut tunnel = audited.open("exec?command=sh").await;
    exchange(&mut tunnel, &masked(0, "ls\n"), &sent).await;
    drop(tunnel);
    audited
        .gateway
        .until_counted_as("portcullis_client_connections{protocol=\"http/1.1\"}", |line| line.ends_with(" 0"))
        .await;
    let metrics = audited.gateway.metrics("/metrics").await;
    assert!(!metrics.contains("portcullis_sessions_ended_total{"), "{metrics}");
}
