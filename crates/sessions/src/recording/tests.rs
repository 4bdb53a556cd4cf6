use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::decoder::{OutputChannel, Side};

fn stdout(bytes: &[u8]) -> SessionEvent<'_> {
    SessionEvent::Output { channel: OutputChannel::Stdout, bytes }
}

fn stderr(bytes: &[u8]) -> SessionEvent<'_> {
    SessionEvent::Output { channel: OutputChannel::Stderr, bytes }
}

const STARTED: u64 = 1_504_467_315;

fn record(mut recorder: Recorder, events: &[(u64, SessionEvent<'_>)]) -> String {
    let mut lines = Vec::new();
    let mut last = Duration::ZERO;
    for (milliseconds, event) in events {
        last = Duration::from_millis(*milliseconds);
        recorder.record(last, event, &mut lines);
    }
    recorder.finish(last, &mut lines);
    String::from_utf8(lines).unwrap()
}

fn terminal(events: &[(u64, SessionEvent<'_>)]) -> String {
    record(Recorder::of_terminal(STARTED, "pod \"a\"", true), events)
}

fn channels(events: &[(u64, SessionEvent<'_>)]) -> String {
    record(Recorder::of_channels(STARTED, true), events)
}

/// Every kind of event.
fn session() -> Vec<(u64, SessionEvent<'static>)> {
    vec![
        (5, SessionEvent::Resize { columns: 100, rows: 30 }),
        (248, stdout("$ \u{1b}[1mé\r\n".as_bytes())),
        (1249, SessionEvent::Input(b"ls\r")),
        (1249, stdout(b"\xe6\x97")),
        (1500, SessionEvent::Resize { columns: 100, rows: 30 }),
        (1500, SessionEvent::Resize { columns: 65_535, rows: 1 }),
        (1600, SessionEvent::Resize { columns: 0, rows: 0 }),
        // The clock goes back.
        (1000, stdout(b"\xa5\xc3(\xff\xff\x9b")),
        (1700, stderr(b"\x07\x7f\xc2\x9b\"\\")),
        (1800, SessionEvent::Skipped { from: Side::Client, why: "a reason" }),
        (1900, SessionEvent::InputEnded),
        (1950, stdout(b"\xe6")),
        (2000, SessionEvent::Exit { code: 3 }),
    ]
}

#[test]
fn a_session_with_a_terminal_is_an_asciicast() {
    let expected = r#"{"version": 3, "term": {"cols":100,"rows":30}, "timestamp": 1504467315, "title": "pod \"a\""}
[0.248000, "o", "$ \u001b[1mé\r\n"]
[1.001000, "i", "ls\r"]
[0.251000, "r", "65535x1"]
# 4 bytes are not UTF-8: c3ffff9b
[0.000000, "o", "日�(���"]
[0.200000, "o", "\u0007\u007f\u009b\"\\"]
[0.100000, "m", "not recorded: a reason"]
# 1 bytes are not UTF-8: e6
[0.200000, "o", "�"]
[0.000000, "x", "3"]
"#;
    assert_eq!(terminal(&session()), expected);
}

#[test]
fn a_session_without_a_terminal_keeps_its_channels_apart() {
    let expected = r#"{"format": "portcullis-session", "version": 1, "timestamp": 1504467315}
[0.005000, "resize", [100, 30]]
[0.248000, "stdout", "$ \u001b[1mé\r\n"]
[1.249000, "stdin", "ls\r"]
[1.500000, "resize", [100, 30]]
[1.500000, "resize", [65535, 1]]
[1.600000, "resize", [0, 0]]
[1.600000, "stdout", {"base64": "5pelwyj//5s="}]
[1.700000, "stderr", "\u0007\u007f\u009b\"\\"]
[1.800000, "skipped", ["client", "a reason"]]
[1.900000, "stdinEnd", null]
[2.000000, "stdout", {"base64": "5g=="}]
[2.000000, "exit", 3]
"#;
    assert_eq!(channels(&session()), expected);
}

#[test]
fn other_events_have_their_lines() {
    let events = [
        (1, SessionEvent::ConnectionOpened { port: 80 }),
        (2, SessionEvent::Forwarded { from: Side::Client, bytes: 9 }),
        (3, SessionEvent::ConnectionClosed { port: 80 }),
        (4, SessionEvent::Failed { message: "no\n\u{202e}container".to_owned() }),
        (5, SessionEvent::WebSocketClosed { by: Side::Server, code: None }),
        (6, SessionEvent::Unreadable { from: Side::Server, why: "why" }),
    ];
    let expected = r#"{"format": "portcullis-session", "version": 1, "timestamp": 1504467315}
[0.001000, "open", 80]
[0.003000, "close", 80]
[0.004000, "failed", "no\n\u202econtainer"]
[0.006000, "unreadable", ["server", "why"]]
"#;
    assert_eq!(channels(&events), expected);
    let expected = r#"{"version": 3, "term": {"cols":80,"rows":24}, "timestamp": 1504467315, "title": "pod \"a\""}
[0.004000, "m", "failed: no\n\u202econtainer"]
[0.002000, "m", "not recorded: why"]
"#;
    assert_eq!(terminal(&events), expected);
}

#[test]
fn a_notice_of_the_gateway_is_a_marker_and_no_output() {
    for (mut recorder, expected) in [
        (Recorder::of_terminal(STARTED, "", true), r#"[1.000000, "m", "notice: a line"]"#),
        (Recorder::of_channels(STARTED, true), r#"[1.000000, "notice", "a line"]"#),
    ] {
        let mut lines = Vec::new();
        recorder.notice(Duration::from_secs(1), "a line", &mut lines);
        assert_eq!(String::from_utf8(lines.clone()).unwrap().lines().last(), Some(expected));
        let mut reader = reader::LineReader::new(recorder.part_form());
        let last = lines
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| reader.read(line))
            .last();
        let data = reader::RecordedData::Notice("a line".to_owned());
        let event = reader::RecordedEvent { elapsed: Duration::from_secs(1), data };
        assert_eq!(last, Some(Ok(reader::RecordedLine::Event(event.clone()))));
        // Without a terminal it is exported as one.
        let (mut writer, mut copied) = (AsciicastWriter::new(STARTED, ""), Vec::new());
        writer.copy(&event, &mut copied);
        assert!(String::from_utf8(copied).unwrap().ends_with("[1.000000, \"m\", \"notice: a line\"]\n"));
    }
}

#[test]
fn a_session_without_events_has_a_header() {
    assert_eq!(terminal(&[]).lines().count(), 1);
    assert_eq!(channels(&[]).lines().count(), 1);
}

#[test]
fn input_is_recorded_only_where_the_level_has_it() {
    let events = [(1, SessionEvent::Input(b"password")), (2, stdout(b"out"))];
    for recorder in [Recorder::of_terminal(0, "", false), Recorder::of_channels(0, false)] {
        let lines = record(recorder, &events);
        assert!(lines.contains("out") && !lines.contains("password"), "{lines}");
    }
    for recorder in [Recorder::of_terminal(0, "", true), Recorder::of_channels(0, true)] {
        assert!(record(recorder, &events).contains("password"));
    }
}

#[test]
fn roundings_do_not_add_up() {
    let mut recorder = Recorder::of_terminal(0, "", false);
    let mut lines = Vec::new();
    for tick in 1..=3000_u32 {
        recorder.record(Duration::from_nanos(333_333_400) * tick, &stdout(b"x"), &mut lines);
    }
    let lines = String::from_utf8(lines).unwrap();
    let intervals =
        lines.lines().skip(1).map(|line| serde_json::from_str::<Value>(line).unwrap()[0].as_f64().unwrap());
    assert!((intervals.sum::<f64>() - 1000.0002).abs() < 0.000_001);
}

#[test]
fn the_documents_have_their_versions() {
    let start = metadata::SessionStart { audit_id: "a".to_owned(), tty: true, ..Default::default() };
    let json: Value = serde_json::from_slice(&start.to_json()).unwrap();
    let user = json!({"name": ""});
    let expected = json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "SessionStart", "auditID": "a", "user": user, "cluster": "",
        "namespace": "", "pod": "", "subresource": "", "tty": true, "stdin": false, "level": "", "start": "",
    });
    assert_eq!(json, expected);
    let end = metadata::SessionEnd { exit_code: Some(0), ..Default::default() };
    let json: Value = serde_json::from_slice(&end.to_json()).unwrap();
    let expected = json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "SessionEnd", "end": "", "durationMilliseconds": 0, "reason": "",
        "exitCode": 0, "clientBytes": 0, "serverBytes": 0, "parts": 0,
    });
    assert_eq!(json, expected);
}

/// The bytes of standard output in the lines of channels.
fn stdout_of(lines: &str) -> Vec<u8> {
    use base64::Engine as _;
    let mut bytes = Vec::new();
    for line in lines.lines().skip(1) {
        let line: Value = serde_json::from_str(line).unwrap();
        match &line[2] {
            Value::String(text) => bytes.extend(text.bytes()),
            data => bytes.extend(
                base64::engine::general_purpose::STANDARD.decode(data["base64"].as_str().unwrap()).unwrap(),
            ),
        }
    }
    bytes
}

proptest! {
    /// An asciicast has the text of the whole, however it was split; the channels have the very bytes.
    #[test]
    fn any_chunks_give_the_same_text(
        chunks in proptest::collection::vec(prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..9),
            "[aé日🦀\u{1b}]{0,5}".prop_map(String::into_bytes),
        ], 0..12),
        size in 1_usize..7,
    ) {
        let whole = chunks.concat();
        let events: Vec<_> = whole.chunks(size).map(|chunk| (1, stdout(chunk))).collect();
        prop_assert_eq!(stdout_of(&channels(&events)), whole.clone());
        let lines = terminal(&events);
        let lines = lines.lines().skip(1).filter(|line| !line.starts_with('#'));
        let text: String = lines.map(|line| serde_json::from_str::<Value>(line).unwrap()[2].as_str().unwrap().to_owned()).collect();
        prop_assert_eq!(text, String::from_utf8_lossy(&whole));
    }
}
