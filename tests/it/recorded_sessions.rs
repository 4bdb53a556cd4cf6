//! `portcullis sessions`: help, exit codes, the transcript of `docs/sessions-reference.md`, and playback on a terminal.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use portcullis_sessions::decoder::{OutputChannel, SessionEvent};
use portcullis_sessions::recording::Recorder;
use portcullis_sessions::recording::metadata::{SessionEnd, SessionStart, SessionUser};
use portcullis_sessions::storage::{PartLimits, RecordingDirectory, SessionName, SessionWriter};
use testkit::transcript;

/// 2026-01-02T15:04:05.678Z
const STARTED: Duration = Duration::from_millis(1_767_366_245_678);

fn user(name: &str, groups: &[&str]) -> SessionUser {
    SessionUser { name: name.to_owned(), groups: groups.iter().map(|group| (*group).to_owned()).collect() }
}

fn output(channel: OutputChannel, text: &str) -> SessionEvent<'_> {
    SessionEvent::Output { channel, bytes: text.as_bytes() }
}

fn shell() -> SessionStart {
    SessionStart {
        user: user("alice", &["developers", "system:authenticated"]),
        cluster: "prod".to_owned(),
        namespace: "shop".to_owned(),
        pod: "web-0".to_owned(),
        subresource: "exec".to_owned(),
        container: Some("app".to_owned()),
        command: vec!["sh".to_owned()],
        tty: true,
        stdin: true,
        level: "Output".to_owned(),
        ..SessionStart::default()
    }
}

/// Records a session with a part for each event; the times are in milliseconds.
fn record(
    directory: &Path,
    started: Duration,
    audit_id: &str,
    start: SessionStart,
    events: &[(u64, SessionEvent<'_>)],
    end: Option<SessionEnd>,
) -> SessionName {
    let name = SessionName::new(started, audit_id, [7; 8]);
    let time = if started == STARTED { "2026-01-02T15:04:05.678Z" } else { "2026-01-02T16:04:05.678Z" };
    let start = SessionStart { audit_id: audit_id.to_owned(), start: time.to_owned(), ..start };
    let mut recorder = if start.tty {
        Recorder::of_terminal(started.as_secs(), "shop/web-0", false)
    } else {
        Recorder::of_channels(started.as_secs(), false)
    };
    let store = RecordingDirectory::open(directory).unwrap();
    let limits = PartLimits { size: 1, ..PartLimits::default() };
    let mut writer = SessionWriter::begin(store, name.clone(), &start, recorder.part_form(), limits).unwrap();
    let mut last = Duration::ZERO;
    for (milliseconds, event) in events {
        last = Duration::from_millis(*milliseconds);
        let mut lines = Vec::new();
        recorder.record(last, event, &mut lines);
        writer.write(last, &lines).unwrap();
    }
    let mut lines = Vec::new();
    recorder.finish(last, &mut lines);
    writer.write(last, &lines).unwrap();
    match end {
        Some(end) => drop(writer.end(&end).unwrap()),
        None => drop(writer.flush().unwrap()),
    }
    name
}

/// The recordings of the page: a shell of alice, and a command of bob as root whose gateway was killed.
fn recordings(directory: &Path) {
    let stdout = |text| output(OutputChannel::Stdout, text);
    let events = [
        (5, SessionEvent::Resize { columns: 100, rows: 30 }),
        (248, stdout("\x1b]0;web-0: /\x07\x1b[1m/ #\x1b[0m ")),
        (61_000, stdout("ls\r\nbin  etc  srv\r\n\x1b[1m/ #\x1b[0m ")),
        (75_000, stdout("exit\r\n")),
        (75_250, SessionEvent::Exit { code: 0 }),
    ];
    let end = SessionEnd {
        end: "2026-01-02T15:05:20.928Z".to_owned(),
        duration_milliseconds: 75_250,
        reason: "exited".to_owned(),
        exit_code: Some(0),
        client_bytes: 8,
        server_bytes: 75,
        ..SessionEnd::default()
    };
    record(directory, STARTED, "2c7bb2b6-1f6f-4b3c-9c0b-55a1f0d3e4b2", shell(), &events, Some(end));
    let command = SessionStart {
        user: user("root", &["system:masters"]),
        client: Some(user("bob", &["operators", "system:authenticated"])),
        namespace: "kube-system".to_owned(),
        pod: "etcd-0".to_owned(),
        container: None,
        command: ["cat", "/etc/passwd", "/missing"].map(str::to_owned).to_vec(),
        tty: false,
        stdin: false,
        ..shell()
    };
    let events = [
        (40, stdout("root:x:0:0:root:/root:/bin/sh\n")),
        (41, output(OutputChannel::Stderr, "cat: /missing: No such file or directory\n")),
    ];
    let started = STARTED + Duration::from_hours(1);
    record(directory, started, "7b0f1f0e-93a5-4d0a-8a43-0f4d1c8e6a11", command, &events, None);
}

fn portcullis(directory: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(crate::gateway::PORTCULLIS);
    command.arg("sessions").args(arguments).current_dir(directory).env("NO_COLOR", "1").env("COLUMNS", "100");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn help_texts() {
    let directory = tempfile::tempdir().unwrap();
    let help = ["", "list", "show", "play", "export", "verify"].map(|command| {
        let words: Vec<&str> = command.split(' ').filter(|word| !word.is_empty()).chain(["--help"]).collect();
        let (code, out, err) = portcullis(directory.path(), &words);
        assert_eq!((code, err.as_str()), (0, ""));
        format!("$ portcullis sessions {}\n{out}\n", words.join(" "))
    });
    insta::assert_snapshot!("help_sessions", help.concat());
}

#[test]
fn the_page_is_the_output_of_the_commands() {
    let directory = tempfile::tempdir().unwrap();
    recordings(&directory.path().join("recordings"));
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/sessions-reference.md");
    let programs = Path::new(crate::gateway::PORTCULLIS).parent().unwrap().display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let played = transcript::replay(&page, &[], directory.path(), |command| {
        command.env("PATH", &path).env("NO_COLOR", "1");
    });
    assert_eq!(played.unwrap(), 10);
}

/// The page has the table of the filter itself.
#[test]
fn the_page_lists_what_safe_playback_drops() {
    let read =
        |file: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let source = read("crates/sessions/src/playback.rs");
    let table: Vec<&str> = source
        .lines()
        .filter_map(|line| line.strip_prefix("//! "))
        .filter(|line| line.starts_with('|'))
        .collect();
    assert!(table.len() > 5, "the table was not found");
    let page = read("docs/sessions-reference.md");
    let missing: Vec<_> = table.iter().filter(|row| !page.contains(*row)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn mistakes_have_their_exit_codes() {
    let directory = tempfile::tempdir().unwrap();
    recordings(&directory.path().join("recordings"));
    let run = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        portcullis(directory.path(), &words)
    };
    for (line, expected, text) in [
        ("list", 64, "--directory"),
        ("list --directory absent", 1, "absent: No such file or directory"),
        ("list --directory recordings --since yesterday", 64, "2h or 30d"),
        ("list --directory recordings --output toml", 64, "text"),
        ("show --directory recordings nothing", 1, "nothing: is no session in recordings"),
        ("show --directory recordings ../recordings", 1, "is no session in"),
        ("play --directory recordings --speed 0 nothing", 64, "give a number from 0.001"),
        ("play --directory recordings --idle-limit=-1s nothing", 64, "negative"),
        ("export --directory recordings --force nothing", 64, "--out"),
        ("verify --directory recordings", 64, "<NAME>"),
        ("verify --directory recordings --all nothing", 64, "--all"),
        ("verify --directory recordings nothing", 1, "is no session in recordings"),
    ] {
        let (code, _, err) = run(line);
        assert_eq!(code, expected, "{line}: {err}");
        assert!(err.contains(text), "{line}: {err}");
    }
    let verified = run("verify --directory recordings --all");
    assert_eq!((verified.0, verified.2.as_str()), (0, ""), "a session that is cut off is no problem");
    let (_, list, _) = run("list --directory recordings");
    let shell = list.lines().last().unwrap().split(' ').next().unwrap();
    std::fs::remove_file(directory.path().join("recordings").join(shell).join("000001.cast")).unwrap();
    for (line, output) in [
        ("verify --directory recordings --all", "damaged"),
        ("play --directory recordings 2c7bb2b6-1f6f-4b3c-9c0b-55a1f0d3e4b2", "exit"),
        ("export --directory recordings --format text 2c7bb2b6-1f6f-4b3c-9c0b-55a1f0d3e4b2", "exit"),
    ] {
        let (code, out, err) = run(line);
        assert_eq!(code, 1, "{line}: {err}");
        assert!(err.contains(&format!("{shell}: 000001.cast is missing")), "{line}: {err}");
        assert!(out.contains(output), "{line}: {out}");
    }
    // Documents that cannot be read.
    std::fs::write(directory.path().join("recordings").join(shell).join("session.json"), "{").unwrap();
    let (code, out, err) = run("list --directory recordings");
    assert_eq!((code, out.lines().count()), (1, 3), "{err}");
    assert!(err.contains(&format!("portcullis: {shell}: session.json cannot be read")), "{err}");
}

/// Runs a line of shell on a terminal that `script` provides; calls `then` when the terminal has all of these texts. Returns all that it
/// got.
fn on_terminal(directory: &Path, line: &str, until: &[&str], then: impl FnOnce(&str)) -> String {
    std::fs::write(directory.join("line.sh"), line).unwrap();
    let mut command = Command::new("script");
    command.args(["--quiet", "--flush", "--command", "bash line.sh", "/dev/null"]).current_dir(directory);
    let mut script = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut screen = script.stdout.take().unwrap();
    let (mut seen, mut buffer) = (Vec::new(), [0; 1024]);
    let mut then = Some(then);
    loop {
        let length = screen.read(&mut buffer).unwrap();
        if length == 0 {
            break;
        }
        seen.extend_from_slice(&buffer[..length]);
        let text = String::from_utf8_lossy(&seen);
        if until.iter().all(|part| text.contains(part))
            && let Some(then) = then.take()
        {
            then(&text);
        }
    }
    script.wait().unwrap();
    String::from_utf8_lossy(&seen).into_owned()
}

/// A session of an hour, whose second half would come too late for any test.
#[test]
fn a_terminal_gets_the_session_in_time_and_ctrl_c_restores_it() {
    let directory = tempfile::tempdir().unwrap();
    let stdout = |text| output(OutputChannel::Stdout, text);
    let events = [
        (1, stdout("\x1b[?1049h\x1b[?25l\x1b]0;title\x07first half\r\n")),
        (3_600_000, stdout("second half\r\n")),
    ];
    record(
        &directory.path().join("recordings"),
        STARTED,
        "long",
        shell(),
        &events,
        Some(SessionEnd::default()),
    );
    let play = format!("{} sessions play --directory recordings", crate::gateway::PORTCULLIS);

    let line = format!("{play} long & echo \"pid $!.\"; wait $!; echo \"code $?.\"");
    let seen = on_terminal(directory.path(), &line, &["pid ", ".\r\n", "first half"], |seen| {
        let (_, rest) = seen.split_once("pid ").unwrap();
        let pid = rest.split('.').next().unwrap().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    });
    assert!(seen.contains("\x1b[?1049h\x1b[?25lfirst half") && !seen.contains("second half"), "{seen:?}");
    let (_, restored) = seen.split_once("first half").unwrap();
    assert!(restored.contains("\x1b[?1049l") && restored.contains("\x1b[?25h"), "{seen:?}");
    assert!(restored.contains("code 130."), "{seen:?}");
    assert!(!seen.contains("title"), "{seen:?}");

    // A million times as fast.
    let line = format!("{play} --speed 1e6 long; echo \"code $?.\"");
    let seen = on_terminal(directory.path(), &line, &[], |_| ());
    assert!(seen.contains("second half\r\r\n") && seen.contains("code 0."), "{seen:?}");
    assert!(seen.contains("--raw writes them"), "{seen:?}");
    let line = format!("{play} --idle-limit 1ms --raw long; echo \"code $?.\"");
    let seen = on_terminal(directory.path(), &line, &[], |_| ());
    assert!(seen.contains("\x1b]0;title\x07first half") && seen.contains("\x1b[?2004l"), "{seen:?}");
}
