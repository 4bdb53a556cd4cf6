use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use portcullis_sessions::storage::{ObjectName, RecordingStore as _};

use super::super::tests::{Recordings, Session, stdout};
use super::*;

fn exported(recordings: &Recordings, name: &SessionName, format: ExportFormat) -> String {
    let mut reader = RecordingReader::open(&recordings.directory, name).unwrap();
    let mut output = Vec::new();
    export(&mut reader, name, format, &mut output).unwrap();
    String::from_utf8(output).unwrap()
}

/// The parts of a session, joined.
fn joined(recordings: &Recordings, name: &SessionName) -> String {
    let objects = recordings.directory.objects(name).unwrap().into_iter();
    let parts = objects.filter(|object| matches!(object, ObjectName::Part(..)));
    let contents = parts.map(|part| recordings.directory.get(name, &part).unwrap().unwrap());
    String::from_utf8(contents.collect::<Vec<_>>().concat()).unwrap()
}

#[test]
fn a_session_with_a_terminal_is_its_parts_joined() {
    let recordings = Recordings::new();
    let name = recordings.record(&Session::shell());
    let parts = joined(&recordings, &name);
    assert_eq!(parts.lines().count(), 5);
    assert_eq!(exported(&recordings, &name, ExportFormat::Asciicast), parts);
    assert_eq!(exported(&recordings, &name, ExportFormat::Recorded), parts);
    assert_eq!(exported(&recordings, &name, ExportFormat::Text), "$ ls\na  b\n");
}

#[test]
fn channels_become_an_asciicast_or_text() {
    let recordings = Recordings::new();
    let name = recordings.record(&Session::command());
    assert_eq!(exported(&recordings, &name, ExportFormat::Recorded), joined(&recordings, &name));
    let cast = exported(&recordings, &name, ExportFormat::Asciicast);
    let expected = format!(
        "{{\"version\": 3, \"term\": {{\"cols\":80,\"rows\":24}}, \"timestamp\": 1767326645, \"title\": \"{name}\"}}\n\
         [0.100000, \"o\", \"out\\r\\n\"]\n\
         [0.100000, \"o\", \"err\\r\\n\"]\n\
         # 1 bytes are not UTF-8: ff\n\
         [0.100000, \"o\", \"\u{fffd}\\u001b[31mred\"]\n\
         [0.100000, \"m\", \"failed: no\\u001b[2J container\"]\n"
    );
    assert_eq!(cast, expected);
    assert_eq!(exported(&recordings, &name, ExportFormat::Text), "out\nerr\n\u{fffd}red\n");
}

/// Players show no file without a header, or with a line that is none.
#[test]
fn a_damaged_session_is_still_an_asciicast() {
    let recordings = Recordings::new();
    let name = recordings.record(&Session::shell());
    let first = fs::read_to_string(recordings.path(&name, "000000.cast")).unwrap();
    fs::remove_file(recordings.path(&name, "000000.cast")).unwrap();
    let header = first.lines().next().unwrap();
    fs::write(recordings.path(&name, "000002.cast"), format!("broken\n{header}\n[0.1, \"o\", \"kept\"]\n"))
        .unwrap();
    let cast = exported(&recordings, &name, ExportFormat::Asciicast);
    let lines: Vec<&str> = cast.lines().collect();
    assert!(lines[0].starts_with("{\"version\": 3") && lines[0].contains(name.as_str()), "{cast}");
    assert!(lines[1..].iter().all(|line| line.starts_with('[')), "{cast}");
    assert!(cast.contains("kept") && cast.contains("ls") && cast.ends_with("\"x\", \"3\"]\n"), "{cast}");
    let empty = Session { audit_id: "empty", events: Vec::new(), end: None, ..Session::shell() };
    let name = recordings.record(&empty);
    fs::remove_file(recordings.path(&name, "000000.cast")).unwrap();
    assert_eq!(exported(&recordings, &name, ExportFormat::Asciicast).lines().count(), 1);
}

#[test]
fn a_file_is_private_and_not_replaced() {
    let recordings = Recordings::new();
    let name = recordings.record(&Session::shell());
    let to = tempfile::tempdir().unwrap();
    let out = to.path().join("alice.cast");
    let run = |more: &[&str]| {
        let words = [&["export", name.as_str(), "--out", out.to_str().unwrap()][..], more].concat();
        recordings.parse(&words).run()
    };
    assert_eq!(run(&[]), ExitCode::SUCCESS);
    let parts = joined(&recordings, &name);
    assert_eq!(fs::read_to_string(&out).unwrap(), parts);
    assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o600);
    fs::write(&out, "mine").unwrap();
    assert_eq!(run(&[]), ExitCode::FAILURE);
    assert_eq!(fs::read_to_string(&out).unwrap(), "mine");
    assert_eq!(run(&["--force", "--format", "text"]), ExitCode::SUCCESS);
    assert_eq!(fs::read_to_string(&out).unwrap(), "$ ls\na  b\n");
    // A damaged recording is exported, and the exit code says so.
    fs::write(recordings.path(&name, "000003.cast"), "changed").unwrap();
    assert_eq!(run(&["--force"]), ExitCode::FAILURE);
    assert!(fs::read_to_string(&out).unwrap().contains("ls"));
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1);
}

/// Another program may have written a line with characters that a terminal obeys.
#[test]
fn lines_for_a_terminal_are_harmless() {
    let mut output = Vec::new();
    let mut lines = TerminalLines { output: &mut output, line: Vec::new() };
    for piece in ["a\u{9b}", "2J\u{202e}", "\n", "b\u{1b}c"] {
        lines.write_all(piece.as_bytes()).unwrap();
    }
    lines.finish().unwrap();
    assert_eq!(String::from_utf8(output).unwrap(), "a\u{fffd}2J\u{fffd}\nb\u{fffd}c");
}

#[test]
fn the_size_of_the_parts_does_not_show() {
    let recordings = Recordings::new();
    let events = || (0..40).map(|index| (index * 10, stdout(b"some \x1b[1mtext\r\n"))).collect::<Vec<_>>();
    let one = recordings.record(&Session { events: events(), part: 1 << 20, ..Session::shell() });
    let many =
        recordings.record(&Session { audit_id: "many", events: events(), part: 100, ..Session::shell() });
    for format in [ExportFormat::Asciicast, ExportFormat::Text, ExportFormat::Recorded] {
        assert_eq!(exported(&recordings, &one, format), exported(&recordings, &many, format));
    }
    assert!(recordings.directory.parts(&many).unwrap().count > 5);
}
