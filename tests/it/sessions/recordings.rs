//! Recorded sessions: what is stored of them, when it is there, and what happens if it cannot be stored.

use std::path::PathBuf;

use http::{Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use portcullis_sessions::recording::metadata::{SessionEnd, SessionStart};
use portcullis_sessions::storage::verify::{Verification, verify};
use portcullis_sessions::storage::{ObjectName, RecordingDirectory, RecordingStore as _, SessionName};
use serde_json::{Map, Value, json};
use testkit::config_reload::replace;
use testkit::{FakeBackend, Gateway, Pki, flags, in_time, status, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    SUCCESS, V5, annotations, ask, audit_flags, exchange, masked, message, opened, switching,
    switching_and_received,
};
use crate::gateway::{InProcess as _, start_process};

const EXEC: &str = "/api/v1/namespaces/n/pods/p/exec?command=sh&command=-c&container=c&stdin=true";
const CHANNELS: (&str, &str) = ("websocket", V5);
/// More than a part has, so that it is stored at once.
const PART: usize = 300 << 10;

/// A gateway whose sessions are recorded.
pub(super) struct Recorded {
    pub(super) pki: Pki,
    pub(super) gateway: Gateway,
    pub(super) backend: FakeBackend,
    /// The bytes that it has received in tunnels.
    received: UnboundedReceiver<Vec<u8>>,
    pub(super) log: PathBuf,
    policy: PathBuf,
    recordings: PathBuf,
    protocol: (&'static str, &'static str),
}

/// The files of a gateway whose sessions are recorded, with its flags.
struct Configured {
    flags: Vec<String>,
    log: PathBuf,
    policy: PathBuf,
    recordings: PathBuf,
}

fn policy(rules: &Value) -> String {
    json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "SessionPolicy", "rules": rules}).to_string()
}

fn configure(pki: &Pki, backend: &FakeBackend, rules: &Value) -> Configured {
    let file = pki.write("sessions.yaml", policy(rules));
    let recordings = pki.directory.path().join("recordings");
    // The mode is 0700.
    RecordingDirectory::open(&recordings).unwrap();
    let mut flags = flags(pki, backend.address);
    let (audit, log) = audit_flags(pki, "Metadata");
    flags.extend(audit);
    flags.push(format!("--session-policy-file={}", file.display()));
    flags.push(format!("--session-recording-directory={}", recordings.display()));
    Configured { flags, log, policy: file, recordings }
}

impl Recorded {
    pub(super) async fn start(sent: &[Vec<u8>], rules: &Value, further: &[&str]) -> Self {
        Self::over(CHANNELS, sent, rules, further).await
    }

    async fn over(
        protocol: (&'static str, &'static str),
        sent: &[Vec<u8>],
        rules: &Value,
        further: &[&str],
    ) -> Self {
        let pki = Pki::new();
        let (backend, received) = switching_and_received(&pki, protocol, sent.to_vec()).await;
        let Configured { mut flags, log, policy, recordings } = configure(&pki, &backend, rules);
        flags.extend(further.iter().map(ToString::to_string));
        let gateway = Gateway::with(flags);
        gateway.checked().await;
        while backend.take().is_some() {}
        Self { pki, gateway, backend, received, log, policy, recordings, protocol }
    }

    pub(super) async fn ask(&self, path: &str, further: &[(&str, &str)]) -> Response<Incoming> {
        ask(&self.pki, &self.gateway, self.protocol, path, further).await
    }

    pub(super) async fn open(&self, path: &str) -> TokioIo<Upgraded> {
        opened(self.ask(path, &[]).await).await
    }

    /// What the backend has received in a tunnel until its end.
    async fn received(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            match in_time(self.received.recv()).await.expect("the end of the tunnel") {
                end if end.is_empty() => return all,
                received => all.extend(received),
            }
        }
    }

    /// The only recording, once it has ended.
    pub(super) async fn ended(&self) -> Recording {
        until("the end of the recording", || {
            recordings(&self.recordings).iter().any(|recording| recording.found.has_ended)
        })
        .await;
        self.only()
    }

    fn only(&self) -> Recording {
        let mut all = recordings(&self.recordings);
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    async fn reload(&self, content: &str, is_valid: bool) {
        replace(&self.policy, content);
        if is_valid {
            let before = self.gateway.generation().await;
            self.gateway.server().reload();
            self.gateway.reloaded(before).await;
        } else {
            self.gateway.server().reload();
            self.gateway.until_counted("portcullis_config_last_reload_successful 0").await;
        }
    }

    async fn at_end(&self) -> Map<String, Value> {
        annotations(&self.log, "ResponseComplete").await
    }
}

/// A recording as it is stored.
pub(super) struct Recording {
    name: SessionName,
    start: SessionStart,
    pub(super) end: Option<SessionEnd>,
    lines: String,
    found: Verification,
}

fn recordings(directory: &std::path::Path) -> Vec<Recording> {
    let store = RecordingDirectory::existing(directory);
    let read = |name: SessionName| {
        let get = |object| store.get(&name, &object).ok().flatten();
        let objects = store.objects(&name).ok()?;
        let parts = objects.iter().filter(|object| matches!(object, ObjectName::Part(..)));
        let lines: Vec<u8> = parts.flat_map(|part| get(*part).unwrap_or_default()).collect();
        Some(Recording {
            start: serde_json::from_slice(&get(ObjectName::Start)?).ok()?,
            end: get(ObjectName::End).and_then(|end| serde_json::from_slice(&end).ok()),
            lines: String::from_utf8(lines).ok()?,
            found: verify(&store, &name).ok()?,
            name,
        })
    };
    store.sessions().unwrap_or_default().into_iter().filter_map(read).collect()
}

impl Recording {
    /// The events without their times, after the header.
    pub(super) fn events(&self) -> Vec<Value> {
        let mut lines = self.lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.next().expect("a header");
        lines.map(|event| json!([event[1], event[2]])).collect()
    }

    fn assert_verifies(&self) {
        assert_eq!((self.found.has_ended, &self.found.problems), (true, &Vec::new()));
    }
}

fn everything() -> Value {
    json!([{"level": "InputAndOutput", "required": true}])
}

#[tokio::test]
async fn a_recording_has_what_was_sent_and_the_audit_names_it() {
    let status = r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
    let sent = [message(1, "output\n"), message(2, "warning\n"), message(3, status)].concat();
    let recorded = Recorded::start(std::slice::from_ref(&sent), &everything(), &[]).await;
    let mut tunnel = recorded.open(EXEC).await;
    // Before the first byte.
    let begun = recorded.only();
    assert_eq!((begun.end, begun.lines.as_str()), (None, ""));
    let expected = json!(begun.name.as_str());
    assert_eq!(annotations(&recorded.log, "ResponseStarted").await["recording"], expected);
    exchange(&mut tunnel, &masked(0, "ls\n"), &sent).await;
    drop(tunnel);
    let recording = recorded.ended().await;
    recording.assert_verifies();
    let events = json!([["stdin", "ls\n"], ["stdout", "output\n"], ["stderr", "warning\n"], ["exit", 7]]);
    assert_eq!(Value::from(recording.events()), events);
    assert_eq!(recorded.at_end().await["recording"], expected);

    let SessionStart { audit_id, user, client, cluster, namespace, pod, subresource, .. } = &recording.start;
    assert!(recording.name.as_str().contains(audit_id.as_str()));
    assert_eq!((user.name.as_str(), client), ("alice", &None));
    assert_eq!(user.groups, ["developers", "system:authenticated"]);
    assert_eq!([cluster, namespace, pod, subresource], ["backend", "n", "p", "exec"]);
    let SessionStart { container, command, tty, stdin, level, credential_id, .. } = &recording.start;
    assert_eq!((container.as_deref(), command), (Some("c"), &vec!["sh".to_owned(), "-c".to_owned()]));
    assert_eq!((*tty, *stdin, level.as_str()), (false, true, "InputAndOutput"));
    assert!(credential_id.as_ref().is_some_and(|id| id.starts_with("X509SHA256=")), "{credential_id:?}");
    let end = recording.end.unwrap();
    assert_eq!((end.reason.as_str(), end.exit_code), ("exited", Some(7)));
    assert_eq!((end.client_bytes, end.server_bytes, end.parts), (3, 15, 1));
    recorded.gateway.until_counted("portcullis_session_recordings_total{result=\"complete\"} 1").await;
}

// threat: unrecorded-session
#[tokio::test]
async fn a_session_that_must_be_recorded_passes_as_fast_as_it_is_recorded() {
    const SIZE: usize = 3 << 20;
    let text = "x".repeat(1000);
    let sent: Vec<u8> = (0..SIZE / text.len()).flat_map(|_| message(1, &text)).collect();
    let recorded = Recorded::start(std::slice::from_ref(&sent), &everything(), &[]).await;
    let mut tunnel = recorded.open(EXEC).await;
    exchange(&mut tunnel, &masked(0, "a"), &sent).await;
    drop(tunnel);
    let recording = recorded.ended().await;
    recording.assert_verifies();
    let events = recording.events();
    assert!(events.iter().all(|event| event[0] != "skipped"));
    let output =
        events.iter().filter(|event| event[0] == "stdout").map(|event| event[1].as_str().unwrap().len());
    assert_eq!(output.sum::<usize>(), SIZE / text.len() * text.len());
    recorded.gateway.until_counted("portcullis_session_recordings_total{result=\"complete\"} 1").await;
}

/// The header block of a SPDY stream, in the stream of blocks that zlib makes of them.
fn spdy_block(is_first: bool, headers: &[(&str, &str)]) -> Vec<u8> {
    let long = |length: usize| u32::try_from(length).unwrap().to_be_bytes();
    let mut plain = long(headers.len()).to_vec();
    for text in headers.iter().flat_map(|(name, value)| [name, value]) {
        plain.extend(long(text.len()));
        plain.extend(text.bytes());
    }
    let length = u16::try_from(plain.len()).unwrap();
    // RFC 1950, 2.2 and RFC 1951, 3.2.4: stored
    let head = if is_first { &[0x78, 0x01][..] } else { &[] };
    [head, &[0], &length.to_le_bytes(), &(!length).to_le_bytes(), &plain].concat()
}

fn spdy_open(id: u32, stream_type: &str) -> Vec<u8> {
    let block = spdy_block(id == 1, &[("streamtype", stream_type)]);
    let payload = [&id.to_be_bytes()[..], &[0; 6], &block].concat();
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[0x80, 3, 0, 1, 0][..], &length[1..], &payload].concat()
}

fn spdy_reply(id: u32) -> Vec<u8> {
    let payload = [&id.to_be_bytes()[..], &spdy_block(id == 1, &[])].concat();
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[0x80, 3, 0, 2, 0][..], &length[1..], &payload].concat()
}

fn spdy_data(id: u32, text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap().to_be_bytes();
    [&id.to_be_bytes()[..], &[0], &length[1..], text.as_bytes()].concat()
}

#[tokio::test]
async fn a_session_with_a_terminal_over_spdy_is_an_asciicast() {
    let streams = [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "resize")];
    let replies: Vec<u8> = streams.iter().flat_map(|(id, _)| spdy_reply(*id)).collect();
    let sent = [spdy_data(5, "$ ls\r\nfile\r\n"), spdy_data(1, SUCCESS)].concat();
    let protocol = ("SPDY/3.1", "v4.channel.k8s.io");
    let answers = [replies.clone(), sent.clone()];
    let recorded = Recorded::over(protocol, &answers, &everything(), &[]).await;
    let mut tunnel = recorded.open("/api/v1/namespaces/n/pods/p/attach?tty=true&stdin=true").await;
    let opened: Vec<u8> = streams.iter().flat_map(|(id, kind)| spdy_open(*id, kind)).collect();
    exchange(&mut tunnel, &opened, &replies).await;
    let from_client = [spdy_data(7, r#"{"Width":100,"Height":30}"#), spdy_data(3, "ls\r")].concat();
    exchange(&mut tunnel, &from_client, &sent).await;
    drop(tunnel);
    let recording = recorded.ended().await;
    recording.assert_verifies();
    let header: Value = serde_json::from_str(recording.lines.lines().next().unwrap()).unwrap();
    assert_eq!((&header["version"], &header["title"]), (&json!(3), &json!("n/p")));
    assert_eq!(header["term"], json!({"cols": 100, "rows": 30}));
    let events = json!([["i", "ls\r"], ["o", "$ ls\r\nfile\r\n"], ["x", "0"]]);
    assert_eq!(Value::from(recording.events()), events);
    assert_eq!((recording.start.tty, recording.start.subresource.as_str()), (true, "attach"));
}

#[tokio::test]
async fn forwarded_connections_are_recorded_without_their_content() {
    let sent = [message(0, "\u{39}\u{5}"), message(1, "\u{39}\u{5}"), message(0, "secret")].concat();
    let protocol = ("websocket", "v4.channel.k8s.io");
    let recorded = Recorded::over(protocol, std::slice::from_ref(&sent), &everything(), &[]).await;
    let mut tunnel = recorded.open("/api/v1/namespaces/n/pods/p/portforward?ports=1337").await;
    exchange(&mut tunnel, &masked(0, "question"), &sent).await;
    drop(tunnel);
    let recording = recorded.ended().await;
    recording.assert_verifies();
    assert_eq!(Value::from(recording.events()), json!([["open", 1337], ["close", 1337]]));
    assert_eq!(recording.end.unwrap().connections, 1);
}

/// Who can change the directory can make a chain anew: the log has a copy of its last hash.
#[tokio::test]
async fn the_log_has_the_last_hash_of_a_recording() {
    let pki = Pki::new();
    let backend = switching(&pki, CHANNELS, vec![message(1, "output")]).await;
    let Configured { flags, recordings: directory, .. } = configure(&pki, &backend, &everything());
    let process = start_process(flags).await;
    let mut tunnel = opened(ask(&pki, &process.gateway, CHANNELS, EXEC, &[]).await).await;
    exchange(&mut tunnel, &masked(0, "a"), &message(1, "output")).await;
    drop(tunnel);
    until("the line", || !process.said("session recorded").is_empty()).await;
    let (_, log) = process.end().await;
    let [recording] = &recordings(&directory)[..] else { panic!("one recording") };
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let line = lines.into_iter().find(|line| line["message"] == "session recorded").expect("the line");
    let shown = ["cluster", "session", "result", "head"].map(|key| line[key].as_str().unwrap_or_default());
    let head = recording.found.head.to_hex();
    assert_eq!(shown, ["backend", recording.name.as_str(), "complete", &head], "{line}");
}

/// The process is killed: what was stored verifies.
#[tokio::test]
async fn a_killed_gateway_leaves_the_parts_that_it_has_stored() {
    let pki = Pki::new();
    let sent: Vec<u8> = (0..PART / 1000).flat_map(|_| message(1, &"x".repeat(1000))).collect();
    let backend = switching(&pki, CHANNELS, vec![sent.clone(), message(1, "lost")]).await;
    let Configured { flags, recordings: directory, .. } = configure(&pki, &backend, &everything());
    let mut process = start_process(flags).await;
    let mut tunnel = opened(ask(&pki, &process.gateway, CHANNELS, EXEC, &[]).await).await;
    exchange(&mut tunnel, &masked(0, "a"), &sent).await;
    until("a part", || recordings(&directory).iter().any(|recording| recording.found.parts > 0)).await;
    exchange(&mut tunnel, &masked(0, "b"), &message(1, "lost")).await;
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    let [recording] = &recordings(&directory)[..] else { panic!("one recording") };
    assert_eq!((recording.found.has_ended, &recording.found.problems), (false, &Vec::new()));
    assert!(recording.found.parts > 0 && recording.found.bytes > 256 << 10);
    assert_eq!(recording.events()[0], json!(["stdin", "a"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_shuts_down_ends_its_recordings() {
    let mut recorded =
        Recorded::start(&[message(1, "output")], &everything(), &["--shutdown-grace-period=1ms"]).await;
    let mut tunnel = recorded.open(EXEC).await;
    exchange(&mut tunnel, &masked(0, "a"), &message(1, "output")).await;
    let server = recorded.gateway.take_server();
    tokio::task::spawn_blocking(move || server.shut_down()).await.unwrap();
    let recording = recorded.only();
    recording.assert_verifies();
    assert_eq!(recording.end.as_ref().unwrap().reason, "gateway");
    assert_eq!(Value::from(recording.events()), json!([["stdin", "a"], ["stdout", "output"]]));
}

/// What a client reads until the end of a tunnel.
async fn rest(tunnel: &mut TokioIo<Upgraded>) -> Vec<u8> {
    let mut rest = Vec::new();
    in_time(tunnel.read_to_end(&mut rest)).await.ok();
    rest
}

/// The frames that end a session with a reason.
pub(super) fn closing(reason: &str) -> Vec<u8> {
    let status = json!({"metadata": {}, "status": "Failure", "message": reason}).to_string();
    [&message(3, &status)[..], &[0x82, 2, 255, 3], &[0x88, 2, 3, 232]].concat()
}

/// Reads a session that a rule ends to its end, which must have this reason. Returns the text before the reason.
pub(super) async fn assert_ends_with(tunnel: &mut TokioIo<Upgraded>, reason: &str) -> String {
    let rest = rest(tunnel).await;
    let before = rest.strip_suffix(&closing(reason)[..]);
    String::from_utf8_lossy(before.unwrap_or_else(|| panic!("{:?}", String::from_utf8_lossy(&rest))))
        .into_owned()
}

// threat: unrecorded-session
#[tokio::test]
async fn a_session_that_must_be_recorded_ends_when_its_directory_is_gone() {
    let recorded = Recorded::start(&[message(1, "output")], &everything(), &[]).await;
    let mut tunnel = recorded.open(EXEC).await;
    std::fs::remove_dir_all(&recorded.recordings).unwrap();
    exchange(&mut tunnel, &masked(0, "a"), &message(1, "output")).await;
    // With the next part, some seconds later.
    let reason = "the session has ended: it must be recorded, and cannot be recorded any more";
    assert_eq!(assert_ends_with(&mut tunnel, reason).await, "");
    assert_eq!(recorded.at_end().await["reason"], "recording");
    for line in [
        "portcullis_sessions_ended_total{kind=\"exec\",reason=\"recording\"} 1",
        "portcullis_session_recordings_total{result=\"incomplete\"} 1",
    ] {
        recorded.gateway.until_counted(line).await;
    }
    // Nor does another one begin, and the backend does not see it.
    while recorded.backend.take().is_some() {}
    let (code, body) = status(recorded.ask(EXEC, &[]).await).await;
    assert_eq!((code, &body["reason"]), (StatusCode::INTERNAL_SERVER_ERROR, &json!("InternalError")));
    let message = body["message"].as_str().unwrap();
    assert!(message.starts_with("Internal error occurred: the session must be recorded"), "{message}");
    assert!(!message.contains(&*recorded.recordings.to_string_lossy()), "{message}");
    assert!(recorded.backend.take().is_none());
    recorded
        .gateway
        .until_counted("portcullis_sessions_refused_total{kind=\"exec\",reason=\"recording\"} 1")
        .await;
}

#[tokio::test]
async fn a_session_that_need_not_be_recorded_goes_on_without_its_directory() {
    let sent: Vec<u8> = (0..PART / 1000).flat_map(|_| message(1, &"x".repeat(1000))).collect();
    let replies = [sent.clone(), message(1, "later")];
    let recorded = Recorded::start(&replies, &json!([{"level": "Output"}]), &[]).await;
    let mut tunnel = recorded.open(EXEC).await;
    std::fs::remove_dir_all(&recorded.recordings).unwrap();
    exchange(&mut tunnel, &masked(0, "a"), &sent).await;
    let failures = "portcullis_session_recording_failures_total{cause=\"missing\"} ";
    recorded.gateway.until_counted_as(failures, |line| line.starts_with(failures)).await;
    exchange(&mut tunnel, &masked(0, "b"), &message(1, "later")).await;
    // And so does one that begins now.
    let mut other = recorded.open(EXEC).await;
    exchange(&mut other, &masked(0, "a"), &sent).await;
    recorded.gateway.until_counted("portcullis_session_recordings_total{result=\"failed\"} 1").await;
}

// threat: unrecorded-session
#[tokio::test]
async fn a_client_that_leaves_before_the_backend_answers_is_recorded() {
    let recorded = Recorded::start(&[], &everything(), &[]).await;
    tokio::select! {
        _ = recorded.ask("/api/v1/namespaces/n/pods/silent/exec?command=reboot", &[]) => panic!("it has no answer"),
        () = until("the request", || recorded.backend.take().is_some()) => {}
    }
    let recording = recorded.ended().await;
    recording.assert_verifies();
    assert_eq!(recording.start.command, ["reboot"]);
    assert_eq!(recording.end.unwrap().reason, "unanswered");
    assert_eq!(recorded.at_end().await["recording"], recording.name.as_str());
}

/// What the decoder cannot read, the backend may: it must not receive it.
// threat: unrecorded-session
#[tokio::test]
async fn input_that_cannot_be_recorded_does_not_reach_the_backend() {
    let streams = [(1, "error"), (3, "stdin"), (5, "stdout")];
    let replies: Vec<u8> = streams.iter().flat_map(|(id, _)| spdy_reply(*id)).collect();
    let protocol = ("SPDY/3.1", "v4.channel.k8s.io");
    let mut recorded =
        Recorded::over(protocol, &[replies.clone(), spdy_data(5, "x")], &everything(), &[]).await;
    let mut tunnel = recorded.open(EXEC).await;
    let opened: Vec<u8> = streams.iter().flat_map(|(id, kind)| spdy_open(*id, kind)).collect();
    exchange(&mut tunnel, &opened, &replies).await;
    let known = spdy_data(3, "ls\n");
    exchange(&mut tunnel, &known, &spdy_data(5, "x")).await;
    // A control frame of a type that is not of SPDY/3.1, before input.
    let unknown = [0x80, 3, 0, 99, 0, 0, 0, 1, 0];
    tunnel.write_all(&[&unknown[..], &spdy_data(3, "reboot\n")].concat()).await.unwrap();
    assert_eq!(rest(&mut tunnel).await, b"");
    let received = recorded.received().await;
    assert_eq!(received, [opened, known].concat());
    assert_eq!(recorded.at_end().await["reason"], "recording");
    let recording = recorded.ended().await;
    assert!(recording.lines.contains("unreadable") && !recording.lines.contains("reboot"));
}

#[tokio::test]
async fn a_session_that_the_backend_refuses_leaves_no_recording() {
    let recorded = Recorded::start(&[], &everything(), &[]).await;
    let response = recorded.ask("/api/v1/namespaces/n/pods/refused/exec?command=sh", &[]).await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    let is_empty = || std::fs::read_dir(&recorded.recordings).unwrap().next().is_none();
    until("the removal of the recording", is_empty).await;
    for stage in ["ResponseStarted", "ResponseComplete"] {
        assert_eq!(annotations(&recorded.log, stage).await.get("recording"), None, "{stage}");
    }
    // What is no upgrade is no session.
    let response = recorded
        .gateway
        .http1(Some(&recorded.pki.clients.leaf().cn("alice").issue()))
        .await
        .get(EXEC, &[])
        .await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(is_empty());
}

// threat: unrecorded-session
#[tokio::test]
async fn a_session_that_must_be_recorded_has_a_protocol_that_can_be() {
    let recorded = Recorded::start(&[], &everything(), &[]).await;
    let base64 = ("websocket", "v4.channel.k8s.io, v4.base64.channel.k8s.io");
    let (code, body) = status(ask(&recorded.pki, &recorded.gateway, base64, EXEC, &[]).await).await;
    assert_eq!((code, &body["reason"]), (StatusCode::BAD_REQUEST, &json!("BadRequest")));
    assert!(recorded.backend.take().is_none());
    assert_eq!(recordings(&recorded.recordings).len(), 0);
    assert_eq!(annotations(&recorded.log, "ResponseComplete").await["reason"], "protocol");
    recorded
        .gateway
        .until_counted("portcullis_sessions_refused_total{kind=\"exec\",reason=\"protocol\"} 1")
        .await;
}

#[tokio::test]
async fn a_protocol_that_cannot_be_recorded_is_refused_only_where_content_must_be() {
    let base64 = ("websocket", "v4.channel.k8s.io, v4.base64.channel.k8s.io");
    for rule in [json!({"level": "InputAndOutput"}), json!({"level": "Metadata", "required": true})] {
        let recorded = Recorded::start(&[], &json!([rule]), &[]).await;
        let tunnel = opened(ask(&recorded.pki, &recorded.gateway, base64, EXEC, &[]).await).await;
        assert_eq!(recordings(&recorded.recordings).len(), 1, "{rule}");
        drop(tunnel);
    }
}

#[tokio::test]
async fn rules_match_the_client_and_the_documents_have_the_user_whom_it_impersonates() {
    let rules = json!([{"level": "None", "users": ["bob"]}, {"level": "Output", "users": ["alice"]}]);
    for (mode, groups) in [("backend", &[][..]), ("gateway", &["admins", "system:authenticated"][..])] {
        let output = message(1, "output");
        let flag = format!("--impersonation={mode}");
        let recorded = Recorded::start(std::slice::from_ref(&output), &rules, &[&flag]).await;
        let impersonate = [("impersonate-user", "bob"), ("impersonate-group", "admins")];
        let mut tunnel = opened(recorded.ask(EXEC, &impersonate).await).await;
        exchange(&mut tunnel, &masked(0, "a"), &output).await;
        drop(tunnel);
        let recording = recorded.ended().await;
        let SessionStart { user, client, .. } = &recording.start;
        assert_eq!(user.name, "bob", "{mode}");
        assert_eq!(user.groups, groups, "{mode}");
        let client = client.as_ref().unwrap();
        assert_eq!((client.name.as_str(), client.groups[0].as_str()), ("alice", "developers"), "{mode}");
    }
}

#[tokio::test]
async fn a_changed_policy_is_for_the_next_session_and_a_bad_one_changes_nothing() {
    let recorded = Recorded::start(&[message(1, "a")], &json!([{"level": "None"}]), &[]).await;
    let mut unrecorded = recorded.open(EXEC).await;
    recorded.reload(&policy(&everything()), true).await;
    exchange(&mut unrecorded, &masked(0, "x"), &message(1, "a")).await;
    drop(unrecorded);
    assert_eq!(recordings(&recorded.recordings).len(), 0);
    let tunnel = recorded.open(EXEC).await;
    assert_eq!(recordings(&recorded.recordings).len(), 1);
    recorded.reload(&policy(&json!([{"level": "All"}])), false).await;
    let other = recorded.open(EXEC).await;
    assert_eq!(recordings(&recorded.recordings).len(), 2);
    drop((tunnel, other));
}

#[tokio::test]
async fn a_recording_is_for_the_gateway_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let recorded = Recorded::start(&[message(1, "a")], &everything(), &[]).await;
    let mut tunnel = recorded.open(EXEC).await;
    exchange(&mut tunnel, &masked(0, "x"), &message(1, "a")).await;
    tunnel.shutdown().await.unwrap();
    drop(tunnel);
    let recording = recorded.ended().await;
    let session = recorded.recordings.join(recording.name.as_str());
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&session), 0o700);
    let files: Vec<_> = std::fs::read_dir(&session).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 6);
    assert!(files.iter().all(|file| mode(file) == 0o600));
}
