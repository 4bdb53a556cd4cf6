use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::decoder::{SessionEvent, Side};
use crate::recording::Recorder;
use crate::recording::asciicast::AsciicastWriter;

fn read(form: PartForm, text: &str) -> Vec<Result<RecordedLine, LineError>> {
    let mut reader = LineReader::new(form);
    text.lines().map(|line| reader.read(line.as_bytes())).collect()
}

/// The events of lines that can all be read.
fn events(form: PartForm, text: &str) -> Vec<(u128, RecordedData)> {
    let lines = read(form, text).into_iter().filter_map(|line| match line.unwrap() {
        RecordedLine::Event(event) => Some((event.elapsed.as_micros(), event.data)),
        RecordedLine::Header(_) | RecordedLine::Other => None,
    });
    lines.collect()
}

fn output(channel: OutputChannel, bytes: impl AsRef<[u8]>) -> RecordedData {
    RecordedData::Output { channel, bytes: bytes.as_ref().to_vec() }
}

fn written(mut recorder: Recorder, events: &[(u64, SessionEvent<'_>)]) -> String {
    let mut lines = Vec::new();
    let mut last = Duration::ZERO;
    for (micros, event) in events {
        last = Duration::from_micros(*micros);
        recorder.record(last, event, &mut lines);
    }
    recorder.finish(last, &mut lines);
    String::from_utf8(lines).unwrap()
}

/// Every kind of event.
fn session() -> Vec<(u64, SessionEvent<'static>)> {
    let stdout = |bytes: &'static [u8]| SessionEvent::Output { channel: OutputChannel::Stdout, bytes };
    vec![
        (5, SessionEvent::Resize { columns: 100, rows: 30 }),
        (248_001, stdout(b"a\x1b[1m\xc3\xa9\r\n")),
        (248_002, SessionEvent::Input(b"ls\r")),
        (3_600_000_123, SessionEvent::Output { channel: OutputChannel::Stderr, bytes: b"no\xff" }),
        (3_600_000_123, SessionEvent::Resize { columns: 80, rows: 24 }),
        (3_600_000_124, SessionEvent::InputEnded),
        (3_600_000_125, SessionEvent::ConnectionOpened { port: 80 }),
        (3_600_000_126, SessionEvent::ConnectionClosed { port: 80 }),
        (3_600_000_127, SessionEvent::Skipped { from: Side::Client, why: "a reason" }),
        (3_600_000_128, SessionEvent::Failed { message: "a \u{1b} message".to_owned() }),
        (3_600_000_129, SessionEvent::Exit { code: 3 }),
    ]
}

#[test]
fn a_terminal_is_read_as_it_was_written() {
    let text = written(Recorder::of_terminal(1, "a \"title\"", true), &session());
    let header = RecordingHeader { size: Some((100, 30)), title: "a \"title\"".to_owned() };
    assert_eq!(read(PartForm::Cast, &text)[0], Ok(RecordedLine::Header(header)));
    let expected = [
        (248_001, output(OutputChannel::Stdout, "a\u{1b}[1mé\r\n")),
        (248_002, RecordedData::Input(b"ls\r".to_vec())),
        (3_600_000_123, output(OutputChannel::Stdout, "no\u{fffd}")),
        (3_600_000_123, RecordedData::Resize { columns: 80, rows: 24 }),
        (3_600_000_127, RecordedData::NotRecorded("a reason".to_owned())),
        (3_600_000_128, RecordedData::Failed("a \u{1b} message".to_owned())),
        (3_600_000_129, RecordedData::Exit(3)),
    ];
    assert_eq!(events(PartForm::Cast, &text), expected);
}

#[test]
fn channels_are_read_as_they_were_written() {
    let text = written(Recorder::of_channels(1, true), &session());
    assert_eq!(read(PartForm::JsonLines, &text)[0], Ok(RecordedLine::Header(RecordingHeader::default())));
    let expected = [
        (5, RecordedData::Resize { columns: 100, rows: 30 }),
        (248_001, output(OutputChannel::Stdout, "a\u{1b}[1mé\r\n")),
        (248_002, RecordedData::Input(b"ls\r".to_vec())),
        (3_600_000_123, output(OutputChannel::Stderr, b"no\xff")),
        (3_600_000_123, RecordedData::Resize { columns: 80, rows: 24 }),
        (3_600_000_124, RecordedData::InputEnded),
        (3_600_000_125, RecordedData::ConnectionOpened(80)),
        (3_600_000_126, RecordedData::ConnectionClosed(80)),
        (3_600_000_127, RecordedData::NotRecorded("a reason".to_owned())),
        (3_600_000_128, RecordedData::Failed("a \u{1b} message".to_owned())),
        (3_600_000_129, RecordedData::Exit(3)),
    ];
    assert_eq!(events(PartForm::JsonLines, &text), expected);
}

#[test]
fn a_broken_line_is_an_error_of_itself_alone() {
    use LineError::{Data, Event, Header, Time};
    let both = [PartForm::Cast, PartForm::JsonLines];
    let cast = [PartForm::Cast].as_slice();
    let channels = [PartForm::JsonLines].as_slice();
    for (line, forms, expected) in [
        ("x", both.as_slice(), Event),
        ("[1.0, \"o\", \"cut", &both, Event),
        ("[1.0, \"o\"]", &both, Event),
        ("[\"1\", \"o\", \"a\"]", &both, Event),
        ("[1.0, \"o\", \"a\", 1]", &both, Event),
        ("[1.0, \"o\", \"\u{1b}\"]", &both, Event),
        ("[-1.0, \"o\", \"a\"]", &both, Time),
        ("[1e300, \"o\", \"a\"]", &both, Time),
        ("[1.0, \"o\", 1]", cast, Data),
        ("[1.0, \"r\", \"80\"]", cast, Data),
        ("[1.0, \"r\", \"80x99999\"]", cast, Data),
        ("[1.0, \"x\", \"256\"]", cast, Data),
        ("[1.0, \"stdout\", 1]", channels, Data),
        ("[1.0, \"stdout\", {\"base64\": \"!\"}]", channels, Data),
        ("[1.0, \"resize\", [80]]", channels, Data),
        ("[1.0, \"exit\", -1]", channels, Data),
        ("{\"version\": 2, \"term\": {\"cols\": 80, \"rows\": 24}}", &both, Header),
        ("{\"version\": 3}", &both, Header),
        ("{\"format\": \"portcullis-session\", \"version\": 2}", &both, Header),
        ("{\"format\": \"portcullis-session\", \"version\": 1", &both, Header),
        ("# a comment", channels, Event),
        ("[1.0, \"\", \"a\"]", &both, Event),
    ] {
        for form in forms {
            assert_eq!(read(*form, line), [Err(expected)], "{form:?} {line}");
        }
    }
    assert_eq!(LineReader::new(PartForm::Cast).read(b"# \xff"), Err(Event));
    let broken = "[0.5, \"o\", \"a\"]\nbroken\n[0.5, \"x\", \"no number\"]\n[0.5, \"o\", \"b\"]\n";
    let after = read(PartForm::Cast, broken).pop().unwrap().unwrap();
    let data = output(OutputChannel::Stdout, "b");
    // The line before had a time.
    assert_eq!(after, RecordedLine::Event(RecordedEvent { elapsed: Duration::from_millis(1500), data }));
}

#[test]
fn lines_of_later_versions_are_passed_over() {
    for (form, line) in [
        (PartForm::Cast, "[1.0, \"z\", {\"a\": 1}]"),
        (PartForm::Cast, "[1.0, \"m\", \"chapter\"]"),
        (PartForm::Cast, "# 2 bytes are not UTF-8: c328"),
        (PartForm::Cast, ""),
        (PartForm::JsonLines, "[1.0, \"later\", null]"),
    ] {
        let mut reader = LineReader::new(form);
        assert_eq!(reader.read(line.as_bytes()), Ok(RecordedLine::Other), "{line}");
    }
}

/// A process without a terminal, shown on one.
#[test]
fn channels_become_an_asciicast() {
    let stdout = |bytes: &'static [u8]| SessionEvent::Output { channel: OutputChannel::Stdout, bytes };
    let stderr = |bytes: &'static [u8]| SessionEvent::Output { channel: OutputChannel::Stderr, bytes };
    let text = written(
        Recorder::of_channels(1, true),
        &[
            (1_000_000, stdout(b"a\nb\r")),
            (1_000_000, stderr(b"\n")),
            (1_000_000, stdout(b"\nc\r\n")),
            (1_500_000, SessionEvent::Skipped { from: Side::Client, why: "a reason" }),
            (2_000_000, SessionEvent::ConnectionOpened { port: 80 }),
            (2_000_000, SessionEvent::Exit { code: 1 }),
        ],
    );
    let mut writer = AsciicastWriter::new(1, "title");
    let mut reader = LineReader::new(PartForm::JsonLines);
    let mut lines = Vec::new();
    for line in text.lines() {
        if let RecordedLine::Event(event) = reader.read(line.as_bytes()).unwrap() {
            writer.copy(&event, &mut lines);
        }
    }
    let expected = r#"{"version": 3, "term": {"cols":80,"rows":24}, "timestamp": 1, "title": "title"}
[1.000000, "o", "a\r\nb\r"]
[0.000000, "o", "\r\n"]
[0.000000, "o", "\nc\r\n"]
[0.500000, "m", "not recorded: a reason"]
[0.500000, "x", "1"]
"#;
    assert_eq!(String::from_utf8(lines).unwrap(), expected);
}

proptest! {
    /// Output and times come back whatever they are: text of a terminal, and the very bytes of channels.
    #[test]
    fn what_is_written_is_read(
        chunks in proptest::collection::vec((0_u64..100_000_000, prop_oneof![
            "[aé日🦀\u{1b}\\\\\"\u{9b}\u{202e}]{1,5}".prop_map(String::into_bytes),
            proptest::collection::vec(any::<u8>(), 1..9),
        ]), 1..9),
    ) {
        let mut micros = 0;
        let timed: Vec<(u64, &[u8])> = chunks.iter().map(|(pause, bytes)| {
            micros += pause;
            (micros, bytes.as_slice())
        }).collect();
        let out: Vec<_> = timed.iter().map(|(time, bytes)| {
            (*time, SessionEvent::Output { channel: OutputChannel::Stdout, bytes })
        }).collect();
        let whole: Vec<u8> = timed.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        let bytes_of = |read: &[(u128, RecordedData)]| -> Vec<u8> {
            read.iter().flat_map(|(_, data)| match data {
                RecordedData::Output { bytes, .. } => bytes.clone(),
                other => panic!("{other:?}"),
            }).collect()
        };
        let read = events(PartForm::JsonLines, &written(Recorder::of_channels(1, false), &out));
        prop_assert_eq!(bytes_of(&read), whole.clone());
        for (time, _) in &read {
            prop_assert!(timed.iter().any(|(known, _)| u128::from(*known) == *time));
        }
        let read = events(PartForm::Cast, &written(Recorder::of_terminal(1, "", false), &out));
        prop_assert_eq!(String::from_utf8(bytes_of(&read)).unwrap(), String::from_utf8_lossy(&whole));
        for (time, _) in &read {
            prop_assert!(timed.iter().any(|(known, _)| u128::from(*known) == *time));
        }
    }

    #[test]
    fn any_line_is_read(line in prop_oneof![any::<Vec<u8>>(), "\\PC{0,40}".prop_map(String::into_bytes),
        "\\[[0-9.e-]{1,4}, \"(o|i|r|x|m|stdout|resize|exit|open|skipped)\", [\\[\\]{}\"0-9a-z:, ]{0,12}\\]".prop_map(String::into_bytes)]) {
        for form in [PartForm::Cast, PartForm::JsonLines] {
            drop(LineReader::new(form).read(&line));
        }
    }
}
