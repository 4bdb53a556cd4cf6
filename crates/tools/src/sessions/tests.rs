use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use portcullis_sessions::decoder::{OutputChannel, SessionEvent};
use portcullis_sessions::recording::Recorder;
use portcullis_sessions::recording::metadata::{SessionEnd, SessionStart, SessionUser};
use portcullis_sessions::storage::{PartLimits, SessionWriter};
use serde_json::{Value, json};

use super::reading::{BLOCK, ListPrinter, for_terminal};
use super::*;

/// 2026-01-02T03:04:05.678Z
pub(super) const STARTED: Duration = Duration::from_millis(1_767_323_045_678);
/// Three hours later.
const NOW: Duration = Duration::from_secs(1_767_323_045 + 3 * 3600);

/// A directory of recordings.
pub(super) struct Recordings {
    root: tempfile::TempDir,
    pub(super) directory: RecordingDirectory,
}

/// A session to record.
pub(super) struct Session {
    pub(super) started: Duration,
    pub(super) audit_id: &'static str,
    pub(super) start: SessionStart,
    /// The times are in milliseconds.
    pub(super) events: Vec<(u64, SessionEvent<'static>)>,
    pub(super) end: Option<SessionEnd>,
    /// The size of the parts.
    pub(super) part: usize,
}

pub(super) fn stdout(bytes: &'static [u8]) -> SessionEvent<'static> {
    SessionEvent::Output { channel: OutputChannel::Stdout, bytes }
}

pub(super) fn stderr(bytes: &'static [u8]) -> SessionEvent<'static> {
    SessionEvent::Output { channel: OutputChannel::Stderr, bytes }
}

fn user(name: &str, groups: &[&str]) -> SessionUser {
    SessionUser { name: name.to_owned(), groups: groups.iter().map(|group| (*group).to_owned()).collect() }
}

impl Session {
    /// A shell of alice that has ended, with a part for each event.
    pub(super) fn shell() -> Self {
        Self {
            started: STARTED,
            audit_id: "2c7bb2b6-1f6f",
            start: SessionStart {
                audit_id: "2c7bb2b6-1f6f".to_owned(),
                user: user("alice", &["developers", "system:authenticated"]),
                credential_id: Some("X509SHA256=00ff".to_owned()),
                cluster: "prod".to_owned(),
                namespace: "shop".to_owned(),
                pod: "web-0".to_owned(),
                subresource: "exec".to_owned(),
                container: Some("app".to_owned()),
                command: vec!["sh".to_owned(), "-c".to_owned(), "exec bash".to_owned()],
                tty: true,
                stdin: true,
                level: "Output".to_owned(),
                start: "2026-01-02T03:04:05.678Z".to_owned(),
                ..SessionStart::default()
            },
            events: vec![
                (5, SessionEvent::Resize { columns: 100, rows: 30 }),
                (248, stdout(b"$ ")),
                (5000, stdout(b"\x1b[1mls\x1b[0m\r\n")),
                (5100, stdout(b"a  b\r\n\x1b]0;title\x07")),
                (9000, SessionEvent::Exit { code: 3 }),
            ],
            end: Some(SessionEnd {
                end: "2026-01-02T03:04:14.678Z".to_owned(),
                duration_milliseconds: 9000,
                reason: "exited".to_owned(),
                exit_code: Some(3),
                client_bytes: 3,
                server_bytes: 25,
                ..SessionEnd::default()
            }),
            part: 1,
        }
    }

    /// A command without a terminal.
    pub(super) fn command() -> Self {
        let shell = Self::shell();
        Self {
            started: STARTED + Duration::from_hours(1),
            audit_id: "aaaa",
            start: SessionStart {
                audit_id: "aaaa".to_owned(),
                tty: false,
                client: Some(user("bob", &[])),
                user: user("root", &["system:masters"]),
                container: None,
                namespace: "kube-system".to_owned(),
                ..shell.start
            },
            events: vec![
                (100, stdout(b"out\n")),
                (200, stderr(b"err\n")),
                (300, stdout(b"\xff\x1b[31mred")),
                (400, SessionEvent::Failed { message: "no\u{1b}[2J container".to_owned() }),
            ],
            end: None,
            part: 1,
        }
    }
}

impl Recordings {
    pub(super) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let directory = RecordingDirectory::open(root.path()).unwrap();
        Self { root, directory }
    }

    pub(super) fn record(&self, session: &Session) -> SessionName {
        let Session { started, audit_id, start, events, end, part } = session;
        let name = SessionName::new(*started, audit_id, [7; 8]);
        let (seconds, input) = (started.as_secs(), true);
        let mut recorder = if start.tty {
            Recorder::of_terminal(seconds, "shop/web-0", input)
        } else {
            Recorder::of_channels(seconds, input)
        };
        let limits = PartLimits { size: *part, ..PartLimits::default() };
        let mut writer =
            SessionWriter::begin(self.directory.clone(), name.clone(), start, recorder.part_form(), limits)
                .unwrap();
        let mut lines = Vec::new();
        let mut last = Duration::ZERO;
        for (milliseconds, event) in events {
            last = Duration::from_millis(*milliseconds);
            recorder.record(last, event, &mut lines);
            writer.write(last, &std::mem::take(&mut lines)).unwrap();
        }
        recorder.finish(last, &mut lines);
        writer.write(last, &lines).unwrap();
        match end {
            Some(end) => drop(writer.end(end).unwrap()),
            None => drop(writer.flush().unwrap()),
        }
        name
    }

    pub(super) fn path(&self, session: &SessionName, object: &str) -> PathBuf {
        self.root.path().join(session.as_str()).join(object)
    }

    pub(super) fn root(&self) -> &Path {
        self.root.path()
    }

    /// The command of these words, with the directory.
    pub(super) fn parse(&self, words: &[&str]) -> SessionsCommand {
        #[derive(Parser)]
        struct Line {
            #[command(subcommand)]
            command: SessionsCommand,
        }
        let directory = ["--directory".to_owned(), self.root.path().display().to_string()];
        let words = words.iter().map(|word| (*word).to_owned()).chain(directory);
        Line::parse_from(std::iter::once("sessions".to_owned()).chain(words)).command
    }

    /// The output of `list`, in its pieces, and its problems.
    fn list_in_pieces(&self, words: &[&str], is_terminal: bool) -> (Vec<String>, Vec<String>) {
        let SessionsCommand::List(flags) = self.parse(&[&["list"][..], words].concat()) else {
            panic!("no list")
        };
        let (pieces, mut problems) = (RefCell::new(Vec::new()), Vec::new());
        let print = |text: &str| {
            pieces.borrow_mut().push(text.to_owned());
            ExitCode::SUCCESS
        };
        let printer = ListPrinter::new(flags.output.output, list::HEADING, is_terminal, print);
        let sessions = self.directory.sessions().unwrap();
        flags.listed(&self.directory, &sessions, NOW, printer, |problem| problems.push(problem.to_owned()));
        (pieces.into_inner(), problems)
    }

    fn list(&self, words: &[&str]) -> (String, Vec<String>) {
        let (pieces, problems) = self.list_in_pieces(words, false);
        (pieces.concat(), problems)
    }

    /// The output of `verify`, and its problems.
    fn verify(&self, words: &[&str]) -> (String, Vec<String>) {
        let SessionsCommand::Verify(flags) = self.parse(&[&["verify"][..], words].concat()) else {
            panic!("no verify")
        };
        let (text, mut problems) = (RefCell::new(String::new()), Vec::new());
        let print = |piece: &str| {
            text.borrow_mut().push_str(piece);
            ExitCode::SUCCESS
        };
        let printer = ListPrinter::new(flags.output.output, verify::HEADING, false, print);
        let sessions = self.directory.sessions().unwrap();
        flags.verified(&self.directory, &sessions, printer, |problem| problems.push(problem.to_owned()));
        (text.into_inner(), problems)
    }

    fn names(&self, words: &[&str]) -> Vec<String> {
        let (text, _) = self.list(&[words, &["--output", "json"]].concat());
        let list: Vec<Value> = serde_json::from_str(&text).unwrap();
        list.iter().map(|session| session["start"]["auditID"].as_str().unwrap_or("?").to_owned()).collect()
    }

    fn show(&self, name: &str, output: Output) -> String {
        let (directory, sessions) = (&self.directory, self.directory.sessions().unwrap());
        let flags = DirectoryFlags { directory: self.root.path().to_owned() };
        let name = flags.find(&sessions, name).unwrap();
        show::report(directory, &name, output).unwrap().0
    }
}

/// A command that is open or cut off, a shell, and a session whose first document is broken.
fn three() -> (Recordings, [SessionName; 3]) {
    let recordings = Recordings::new();
    let shell = recordings.record(&Session::shell());
    let command = recordings.record(&Session::command());
    let broken = Session { started: STARTED + Duration::from_mins(30), audit_id: "bbbb", ..Session::shell() };
    let broken = recordings.record(&broken);
    fs::write(recordings.path(&broken, "session.json"), b"{\"kind\": \"\x1b[2J\"}").unwrap();
    (recordings, [shell, command, broken])
}

#[test]
fn sessions_are_listed_from_the_newest() {
    let (recordings, [_, _, broken]) = three();
    let (table, problems) = recordings.list(&[]);
    insta::assert_snapshot!("list_table", table);
    assert_eq!(problems.len(), 1);
    assert!(problems[0].starts_with(&format!("{broken}: session.json cannot be read: ")), "{problems:?}");
    let (yaml, _) = recordings.list(&["--output", "yaml"]);
    let (json, _) = recordings.list(&["--output", "json"]);
    let list: Value = serde_json::from_str(&json).unwrap();
    let from_yaml: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(list, from_yaml);
    assert!(json.starts_with("[\n  {\n    \"name\"") && json.ends_with("\n  }\n]\n"), "{json}");
    let states: Vec<_> = list.as_array().unwrap().iter().map(|session| session["state"].clone()).collect();
    assert_eq!(states, [json!("openOrCutOff"), json!("unreadable"), json!("ended")]);
    assert_eq!(list[2]["end"]["exitCode"], 3);
    assert_eq!(
        (&list[0]["recording"]["form"], &list[2]["recording"]["form"]),
        (&json!("channels"), &json!("asciicast"))
    );
    // The name of the format in other programs.
    assert_eq!(recordings.list(&["--output", "table"]).0, table);
}

#[test]
fn the_list_is_filtered() {
    let (recordings, _) = three();
    for (words, expected) in [
        (&[][..], &["aaaa", "?", "2c7bb2b6-1f6f"][..]),
        (&["--user", "alice"], &["2c7bb2b6-1f6f"]),
        (&["--user", "bob"], &["aaaa"]),
        (&["--user", "root"], &["aaaa"]),
        (&["--user", "ali"], &[]),
        (&["--namespace", "shop"], &["2c7bb2b6-1f6f"]),
        (&["--pod", "web-0"], &["aaaa", "2c7bb2b6-1f6f"]),
        (&["--pod", "web-0", "--user", "bob"], &["aaaa"]),
        (&["--cluster", "staging"], &[]),
        (&["--since", "2h"], &["aaaa"]),
        (&["--since", "2h30m"], &["aaaa", "?"]),
        (&["--until", "2h30m"], &["2c7bb2b6-1f6f"]),
        (&["--since", "2026-01-02T03:04:05.678Z", "--until", "2026-01-02T03:04:05.679Z"], &["2c7bb2b6-1f6f"]),
        (&["--since", "2026-01-02T03:04:05.679Z", "--until", "2026-01-02T04:04:05.678+00:00"], &["?"]),
    ] {
        assert_eq!(recordings.names(words), expected, "{words:?}");
    }
    assert_eq!(recordings.list(&["--user", "carol"]).0, "no such sessions\n");
    assert_eq!(Recordings::new().list(&[]).0, "no sessions recorded yet\n");
    assert_eq!(Recordings::new().list(&["-o", "json"]).0, "[]\n");
    assert!(list::bound("tomorrow").unwrap_err().contains("2h or 30d"));
}

/// However many sessions there are, a block of them is held and printed at a time.
#[test]
fn thousands_of_sessions_are_listed_in_blocks() {
    let recordings = Recordings::new();
    let count = 2 * BLOCK + 7;
    for index in 0..count {
        let started = STARTED + Duration::from_secs(index.try_into().unwrap());
        let name = SessionName::new(started, "many", [7; 8]);
        let path = recordings.path(&name, "");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("session.json"), Session::shell().start.to_json()).unwrap();
    }
    let (pieces, problems) = recordings.list_in_pieces(&[], false);
    assert_eq!((pieces.len(), problems.len()), (3, 0));
    assert_eq!(pieces.iter().map(|piece| piece.lines().count()).collect::<Vec<_>>(), [BLOCK + 1, BLOCK, 7]);
    let table = pieces.concat();
    let names: Vec<&str> = table.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable_by(|one, other| other.cmp(one));
    assert_eq!(names, sorted);
    assert_eq!(recordings.names(&[]).len(), count);
    // After a closed output nothing more is read.
    let SessionsCommand::List(flags) = recordings.parse(&["list"]) else { panic!("no list") };
    let mut calls = 0;
    let printer = ListPrinter::new(Output::Text, list::HEADING, false, |_: &str| {
        calls += 1;
        ExitCode::FAILURE
    });
    let sessions = recordings.directory.sessions().unwrap();
    let printed = flags.listed(&recordings.directory, &sessions, NOW, printer, |problem| panic!("{problem}"));
    assert_eq!((printed, calls), (ExitCode::FAILURE, 1));
}

#[test]
fn a_session_is_shown_with_its_chain() {
    let (recordings, [shell, command, broken]) = three();
    let without_times = |text: String| {
        let lines = text.lines().map(|line| line.split("; last part written").next().unwrap().trim_end());
        lines.flat_map(|line| [line, "\n"]).collect::<String>()
    };
    insta::assert_snapshot!("show_ended", recordings.show(shell.as_str(), Output::Text));
    insta::assert_snapshot!("show_open", without_times(recordings.show(command.as_str(), Output::Text)));
    insta::assert_snapshot!("show_damaged", recordings.show(broken.as_str(), Output::Text));
    let json: Value = serde_json::from_str(&recordings.show(shell.as_str(), Output::Json)).unwrap();
    assert_eq!((&json["chain"]["state"], &json["chain"]["parts"]), (&json!("whole"), &json!(4)));
    assert_eq!(json["start"]["user"]["groups"], json!(["developers", "system:authenticated"]));
    let yaml: Value = serde_saphyr::from_str(&recordings.show(shell.as_str(), Output::Yaml)).unwrap();
    assert_eq!(yaml, json);
}

#[test]
fn text_of_a_session_does_not_reach_the_terminal_as_it_is() {
    let recordings = Recordings::new();
    let evil = "\u{1b}]52;c;cm0=\u{7}\u{9b}2J\u{202e}x\n";
    let mut session = Session::shell();
    session.start.user = user(evil, &[evil]);
    session.start.client = Some(user(evil, &[]));
    for text in [&mut session.start.namespace, &mut session.start.pod, &mut session.start.level] {
        evil.clone_into(text);
    }
    session.start.command = vec![evil.to_owned()];
    session.end =
        Some(SessionEnd { reason: evil.to_owned(), message: Some(evil.to_owned()), ..SessionEnd::default() });
    let name = recordings.record(&session);
    let is_safe = |text: &str| !text.chars().any(|c| portcullis_system::text::is_obeyed(c) && c != '\n');
    let (table, _) = recordings.list(&[]);
    assert!(is_safe(&table) && table.lines().count() == 2, "{table:?}");
    let shown = recordings.show(name.as_str(), Output::Text);
    assert!(is_safe(&shown), "{shown:?}");
    // Programs get the text itself, a terminal does not.
    let (json, _) = recordings.list(&["-o", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()[0]["start"]["command"][0], evil);
    for output in ["json", "yaml"] {
        let (pieces, _) = recordings.list_in_pieces(&["-o", output], true);
        assert!(is_safe(&pieces.concat()), "{pieces:?}");
    }
    assert!(is_safe(&for_terminal(&recordings.show(name.as_str(), Output::Json), true)));
    // A long text makes no long row.
    let mut session = Session { audit_id: "long", ..Session::shell() };
    session.start.pod = "p".repeat(5000);
    recordings.record(&session);
    assert!(recordings.list(&[]).0.lines().all(|line| line.chars().count() < 900));
}

#[test]
fn chains_are_verified() {
    let (recordings, [shell, command, broken]) = three();
    let (table, problems) = recordings.verify(&["--all"]);
    let states = |table: &str| -> Vec<String> {
        table
            .lines()
            .map(|line| {
                line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).nth(1).unwrap().to_owned()
            })
            .collect()
    };
    assert_eq!(states(&table), ["STATE", "whole", "damaged", "open, or cut off after 4 parts"], "{table}");
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0].starts_with(&format!("{broken}: session.json was truncated: it has 16 of ")),
        "{problems:?}"
    );
    // One that is cut off is no problem, one that has lost a part is.
    assert_eq!(recordings.verify(&[command.as_str()]).1, [""; 0]);
    fs::remove_file(recordings.path(&shell, "000001.cast")).unwrap();
    fs::write(recordings.path(&shell, "000002.cast"), b"changed").unwrap();
    let (_, problems) = recordings.verify(&[shell.as_str()]);
    let expected = ["000001.cast is missing", "000002.cast was truncated: it has 7 of "];
    let expected = expected.map(|problem| format!("{shell}: {problem}"));
    assert!(
        problems.len() == 2 && problems.iter().zip(&expected).all(|(one, other)| one.starts_with(other)),
        "{problems:?}"
    );
    let (json, _) = recordings.verify(&["--all", "-o", "json"]);
    let list: Vec<Value> = serde_json::from_str(&json).unwrap();
    assert_eq!(list[0]["problems"].as_array().unwrap().len(), 2);
    assert_eq!((&list[0]["state"], &list[2]["state"]), (&json!("damaged"), &json!("openOrCutOff")));
    // A name that is wrong does not hide the others.
    let (table, problems) = recordings.verify(&["nothing", "aaaa"]);
    assert_eq!((states(&table).len(), problems.len()), (2, 1), "{table}{problems:?}");
}

#[test]
fn a_session_is_found_by_its_name_or_audit_id() {
    let (recordings, [shell, ..]) = three();
    let flags = DirectoryFlags { directory: recordings.root().to_owned() };
    let sessions = recordings.directory.sessions().unwrap();
    assert_eq!(flags.find(&sessions, shell.as_str()).unwrap(), shell);
    assert_eq!(flags.find(&sessions, "2c7bb2b6-1f6f").unwrap(), shell);
    for wanted in ["", "..", "../x", "2c7bb2b6", "20260102T030405.678Z-x-0000000000000000"] {
        let error = flags.find(&sessions, wanted).unwrap_err().to_string();
        assert!(error.contains("is no session in") && error.contains("sessions list --directory"), "{error}");
    }
    let other = Session { started: STARTED + Duration::from_secs(1), ..Session::shell() };
    let other = recordings.record(&other);
    let sessions = recordings.directory.sessions().unwrap();
    let error = flags.find(&sessions, "2c7bb2b6-1f6f").unwrap_err().to_string();
    assert!(error.contains("is the audit ID of 2 sessions") && error.contains(other.as_str()), "{error}");
}

/// A directory that does not exist is not created.
#[test]
fn nothing_is_written_to_the_directory() {
    let root = tempfile::tempdir().unwrap();
    let flags = DirectoryFlags { directory: root.path().join("absent") };
    let error = flags.open().unwrap_err().to_string();
    assert!(error.contains("absent: No such file or directory"), "{error}");
    assert!(!root.path().join("absent").exists());
    fs::write(root.path().join("file"), b"").unwrap();
    let flags = DirectoryFlags { directory: root.path().join("file") };
    assert!(flags.open().unwrap_err().to_string().contains("ot a directory"));
}
