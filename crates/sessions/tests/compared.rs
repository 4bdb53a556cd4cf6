//! Sessions between client-go and the library that Kubernetes' servers are made of: what was sent must be decoded as what
//! both sides were given.
#![expect(clippy::unwrap_used, reason = "a test: a panic is a failed test")]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_sessions::decoder::{Decoder, OutputChannel, SessionEvent, SessionKind, Side, StreamProtocol};
use serde_json::{Value, json};
use testkit::go_program::GoProgram;
use testkit::random::{Rng, seed};

/// What a decoder told of a session.
#[derive(Debug, Default, PartialEq, Eq)]
struct Decoded {
    stdin: Vec<u8>,
    stdin_ended: bool,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    sizes: Vec<(u16, u16)>,
    exit: Option<u8>,
    failed: Option<String>,
    opened: Vec<u16>,
    closed: Vec<u16>,
    /// Bytes of forwarded connections, of the client and of the server.
    forwarded: (u64, u64),
    problems: Vec<String>,
}

impl Decoded {
    fn note(&mut self, event: SessionEvent<'_>) {
        match event {
            SessionEvent::Input(bytes) => self.stdin.extend(bytes),
            SessionEvent::InputEnded => self.stdin_ended = true,
            SessionEvent::Output { channel: OutputChannel::Stdout, bytes } => self.stdout.extend(bytes),
            SessionEvent::Output { channel: OutputChannel::Stderr, bytes } => self.stderr.extend(bytes),
            SessionEvent::Resize { columns, rows } => self.sizes.push((columns, rows)),
            SessionEvent::Exit { code } => self.exit = Some(code),
            SessionEvent::Failed { message } => self.failed = Some(message),
            SessionEvent::ConnectionOpened { port } => self.opened.push(port),
            SessionEvent::ConnectionClosed { port } => self.closed.push(port),
            SessionEvent::Forwarded { from: Side::Client, bytes } => self.forwarded.0 += bytes,
            SessionEvent::Forwarded { from: Side::Server, bytes } => self.forwarded.1 += bytes,
            SessionEvent::WebSocketClosed { .. } => {}
            SessionEvent::Skipped { .. } | SessionEvent::Unreadable { .. } => {
                self.problems.push(format!("{event:?}"));
            }
        }
    }
}

/// Random bytes, of which some repeat.
fn content(rng: &mut Rng, most: usize) -> Vec<u8> {
    let length = rng.below(most);
    (0..length).map(|_| u8::try_from(rng.below(256)).unwrap()).collect()
}

fn decode(answer: &Value, kind: SessionKind) -> Decoded {
    let protocol = StreamProtocol::chosen(answer["upgrade"].as_str().unwrap(), answer["version"].as_str());
    let mut decoder = Decoder::new(protocol, kind);
    let mut decoded = Decoded::default();
    for sent in answer["sent"].as_array().unwrap() {
        let from = if sent["client"] == true { Side::Client } else { Side::Server };
        let bytes = STANDARD.decode(sent["bytes"].as_str().unwrap()).unwrap();
        decoder.push(from, &bytes, &mut |event| decoded.note(event));
    }
    decoder.finish(&mut |event| decoded.note(event));
    decoded
}

/// The statuses that the kubelet writes, and what a decoder tells of them: an exit code or a message.
fn status(rng: &mut Rng) -> (String, Option<u8>, Option<String>) {
    match rng.below(3) {
        0 => (json!({"metadata": {}, "status": "Success"}).to_string(), Some(0), None),
        1 => {
            let code = u8::try_from(rng.below(255) + 1).unwrap();
            let causes = json!([{"reason": "ExitCode", "message": code.to_string()}]);
            let status = json!({
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "message": "command terminated",
                "details": {"causes": causes},
            });
            (status.to_string(), Some(code), None)
        }
        _ => {
            let message = "command terminated: no such container".to_owned();
            let status =
                json!({"status": "Failure", "reason": "InternalError", "message": message, "code": 500});
            (status.to_string(), None, Some(message))
        }
    }
}

#[test]
fn sessions_of_exec_are_decoded_as_their_sides_saw_them() {
    let Some(go) = GoProgram::build("sessionstreams") else { return };
    let mut rng = Rng(seed());
    let (mut questions, mut expected) = (Vec::new(), Vec::new());
    for index in 0..40 {
        let has_terminal = index % 2 == 0;
        let (stdin, stdout, stderr) =
            (content(&mut rng, 40_000), content(&mut rng, 100_000), content(&mut rng, 3000));
        let (status, exit, failed) = status(&mut rng);
        let sizes: Vec<(u16, u16)> =
            if has_terminal { vec![(80, 24), (65_535, 1), (1, 65_535)] } else { vec![] };
        questions.push(json!({
            "protocol": if index % 4 < 2 { "spdy" } else { "websocket" },
            "stdin": STANDARD.encode(&stdin),
            "stdout": STANDARD.encode(&stdout),
            "stderr": STANDARD.encode(&stderr),
            "status": status,
            "sizes": sizes,
        }));
        expected.push(Decoded {
            stdin,
            stdin_ended: true,
            stdout,
            stderr: if has_terminal { vec![] } else { stderr },
            sizes,
            exit,
            failed,
            ..Decoded::default()
        });
    }
    for ((question, answer), expected) in questions.iter().zip(go.ask(&questions)).zip(expected) {
        assert_eq!(answer["error"], "", "{}", question["protocol"]);
        assert_eq!(STANDARD.decode(answer["stdout"].as_str().unwrap_or_default()).unwrap(), expected.stdout);
        assert!(decode(&answer, SessionKind::Exec) == expected, "{question}: {answer}");
    }
}

#[test]
fn forwarded_connections_are_counted_as_their_sides_saw_them() {
    let Some(go) = GoProgram::build("sessionstreams") else { return };
    let mut rng = Rng(seed());
    let questions: Vec<Value> = ["portforward", "tunnel"]
        .into_iter()
        .cycle()
        .take(10)
        .map(|protocol| {
            let stdin = STANDARD.encode(content(&mut rng, 50_000));
            json!({"protocol": protocol, "stdin": stdin, "connections": rng.below(5) + 1})
        })
        .collect();
    for (question, answer) in questions.iter().zip(go.ask(&questions)) {
        assert_eq!(answer["error"], "", "{}", question["protocol"]);
        let connections = usize::try_from(question["connections"].as_u64().unwrap()).unwrap();
        let each = STANDARD.decode(question["stdin"].as_str().unwrap()).unwrap().len();
        let bytes = u64::try_from(each * connections).unwrap();
        let ports = vec![8080; connections];
        let expected =
            Decoded { opened: ports.clone(), closed: ports, forwarded: (bytes, bytes), ..Decoded::default() };
        assert!(decode(&answer, SessionKind::PortForward) == expected, "{question}: {answer}");
    }
}
