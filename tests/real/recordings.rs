//! Recordings in asciinema's own readers of asciicast v3: the file that `portcullis sessions export` makes of a recording is read event
//! for event, by its web player, and by `asciinema` itself if `PORTCULLIS_ASCIINEMA` names the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use portcullis_sessions::decoder::{OutputChannel, SessionEvent, Side};
use portcullis_sessions::recording::Recorder;
use portcullis_sessions::recording::metadata::{SessionEnd, SessionStart};
use portcullis_sessions::storage::{PartLimits, RecordingDirectory, SessionName, SessionWriter};
use serde_json::Value;
use testkit::paths::{cache_dir, temporary_dir, workspace_root};
use testkit::random::{Rng, seed};

use crate::servers::RealServers;

const FILES: [&str; 3] = ["package.json", "package-lock.json", "read.mjs"];
/// 2026-01-02T15:04:05Z
const STARTED: Duration = Duration::from_secs(1_767_366_245);

/// A time in microseconds, the code of an event, and its data.
type Expected = (u64, &'static str, String);

/// A file as a program of asciinema reads it.
struct ReadCast {
    /// `80x24`.
    size: String,
    /// The time in seconds, the code and the data.
    events: Vec<(f64, String, String)>,
}

/// The tests of this group.
pub(crate) fn trials(trial: &dyn Fn(&str, crate::Test) -> Trial) -> Vec<Trial> {
    vec![trial("asciinema reads a recording event for event", Box::new(asciinema_reads_a_recording))]
}

/// Installs the player, unless an earlier run has. An existing directory is complete.
fn install() -> Result<PathBuf, String> {
    let own = workspace_root().join("tests/real/recordings/player");
    let files = FILES.map(|file| own.join(file));
    let dir = cache_dir("recordings-player", files.iter().map(PathBuf::as_path));
    if dir.exists() {
        return Ok(dir);
    }
    eprintln!("real: installing asciinema-player with npm (once, some seconds)");
    let text = |error: std::io::Error| error.to_string();
    let partial = tempfile::tempdir_in(temporary_dir()).map_err(text)?;
    for file in FILES {
        fs::copy(own.join(file), partial.path().join(file)).map_err(text)?;
    }
    let npm = Command::new("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"])
        .current_dir(partial.path())
        .output()
        .map_err(text)?;
    if !npm.status.success() {
        return Err(format!("npm ci failed: {}", String::from_utf8_lossy(&npm.stderr)));
    }
    match fs::rename(partial.keep(), &dir) {
        // A concurrent run has installed it.
        Err(_) if dir.exists() => Ok(dir),
        renamed => renamed.map(|()| dir).map_err(text),
    }
}

fn asciinema_reads_a_recording(_: &RealServers) -> Result<(), String> {
    let player = install()?;
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut rng = Rng(seed());
    for index in 0..20 {
        let (events, mut expected) = session(&mut rng);
        let started = STARTED + Duration::from_secs(index);
        for is_terminal in [true, false] {
            let name = SessionName::new(started, if is_terminal { "terminal" } else { "channels" }, [7; 8]);
            record(directory.path(), &name, &events, is_terminal)?;
            let file = directory.path().join("exported.cast");
            output(
                Command::new(crate::PORTCULLIS)
                    .args(["sessions", "export", "--force", "--directory"])
                    .arg(directory.path())
                    .arg(name.as_str())
                    .arg("--out")
                    .arg(&file),
            )?;
            if !is_terminal {
                expected = for_terminal(&expected);
            }
            compare(&read_by_web_player(&player, &file)?, &expected)?;
            if let Some(asciinema) = std::env::var_os("PORTCULLIS_ASCIINEMA") {
                compare(&read_by_asciinema(Path::new(&asciinema), &file)?, &expected)?;
            }
        }
    }
    Ok(())
}

/// Random events, and the same as a player must read them.
fn session(rng: &mut Rng) -> (Vec<(Duration, SessionEvent<'static>)>, Vec<Expected>) {
    const TEXTS: [&str; 9] = [
        "ls\r\n",
        "\u{1b}[1;31m",
        "é",
        "日本語",
        "🦀",
        "\"quoted\\\"",
        "\u{7}\u{7f}\u{9b}",
        "\u{202e}",
        "\u{2028}\n",
    ];
    let (mut events, mut expected) = (Vec::new(), Vec::new());
    let mut micros = 0;
    for _ in 0..60 {
        micros += u64::try_from(rng.below(3_000_000)).unwrap();
        let text: String = (0..=rng.below(4)).map(|_| TEXTS[rng.below(TEXTS.len())]).collect();
        let bytes: &'static [u8] = Box::leak(text.clone().into_boxed_str()).as_bytes();
        let (event, read) = match rng.below(8) {
            0 => {
                let (columns, rows) =
                    (u16::try_from(1 + rng.below(300)).unwrap(), u16::try_from(1 + rng.below(99)).unwrap());
                (SessionEvent::Resize { columns, rows }, ("r", format!("{columns}x{rows}")))
            }
            1 => (SessionEvent::Input(bytes), ("i", text)),
            2 => {
                let why = "a reason";
                (SessionEvent::Skipped { from: Side::Client, why }, ("m", format!("not recorded: {why}")))
            }
            3 => {
                let bytes = b"\xff\xc3(";
                let event = SessionEvent::Output { channel: OutputChannel::Stdout, bytes };
                (event, ("o", "\u{fffd}\u{fffd}(".to_owned()))
            }
            _ => (SessionEvent::Output { channel: OutputChannel::Stdout, bytes }, ("o", text)),
        };
        events.push((Duration::from_micros(micros), event));
        expected.push((micros, read.0, read.1));
    }
    events.push((Duration::from_micros(micros), SessionEvent::Exit { code: 3 }));
    expected.push((micros, "x", "3".to_owned()));
    (events, expected)
}

/// The line ends that a process without a terminal leaves to it.
fn for_terminal(expected: &[Expected]) -> Vec<Expected> {
    let (mut is_after_cr, mut read) = (false, Vec::new());
    for (time, code, text) in expected {
        let mut with = String::new();
        for c in text.chars() {
            if *code == "o" {
                with.extend((c == '\n' && !is_after_cr).then_some('\r'));
                is_after_cr = c == '\r';
            }
            with.push(c);
        }
        read.push((*time, *code, with));
    }
    read
}

fn record(
    directory: &Path,
    name: &SessionName,
    events: &[(Duration, SessionEvent<'static>)],
    is_terminal: bool,
) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let mut recorder = if is_terminal {
        Recorder::of_terminal(STARTED.as_secs(), "a \"title\" \u{1b}", true)
    } else {
        Recorder::of_channels(STARTED.as_secs(), true)
    };
    let store = RecordingDirectory::open(directory).map_err(text)?;
    let limits = PartLimits { size: 300, ..PartLimits::default() };
    let start = SessionStart { tty: is_terminal, ..SessionStart::default() };
    let mut writer =
        SessionWriter::begin(store, name.clone(), &start, recorder.part_form(), limits).map_err(text)?;
    let mut last = Duration::ZERO;
    for (elapsed, event) in events {
        last = *elapsed;
        let mut lines = Vec::new();
        recorder.record(last, event, &mut lines);
        writer.write(last, &lines).map_err(text)?;
    }
    let mut lines = Vec::new();
    recorder.finish(last, &mut lines);
    writer.write(last, &lines).map_err(text)?;
    writer.end(&SessionEnd::default()).map(drop).map_err(text)
}

/// The output of a program that succeeds.
fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn read_by_web_player(player: &Path, file: &Path) -> Result<ReadCast, String> {
    let read = output(Command::new("node").arg(player.join("read.mjs")).arg(file))?;
    let read: Value = serde_json::from_slice(&read).map_err(|error| error.to_string())?;
    let events = read["events"].as_array().ok_or("no events")?;
    let events = events.iter().map(|event| read_event(event, 1000.0)).collect::<Option<_>>();
    Ok(ReadCast { size: format!("{}x{}", read["cols"], read["rows"]), events: events.ok_or("no event")? })
}

/// In version 2 of the format, which has the times since the start.
fn read_by_asciinema(asciinema: &Path, file: &Path) -> Result<ReadCast, String> {
    let converted = file.with_extension("v2");
    output(
        Command::new(asciinema)
            .args(["convert", "--overwrite", "--output-format", "asciicast-v2"])
            .arg(file)
            .arg(&converted),
    )?;
    let text = fs::read_to_string(converted).map_err(|error| error.to_string())?;
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let header = lines.next().ok_or("no header")?;
    let events = lines.map(|event| read_event(&event, 1.0)).collect::<Option<_>>();
    let size = format!("{}x{}", header["width"], header["height"]);
    Ok(ReadCast { size, events: events.ok_or("no event")? })
}

fn read_event(event: &Value, units_of_second: f64) -> Option<(f64, String, String)> {
    let time = event[0].as_f64()? / units_of_second;
    Some((time, event[1].as_str()?.to_owned(), event[2].as_str()?.to_owned()))
}

fn compare(read: &ReadCast, expected: &[Expected]) -> Result<(), String> {
    // The sizes before the first output, and those that change nothing, are in no event.
    let (mut size, mut has_header, mut remaining) = (None, false, Vec::new());
    for event in expected {
        if event.1 == "r" {
            let is_new = size.as_ref() != Some(&event.2);
            size = Some(event.2.clone());
            if !has_header || !is_new {
                continue;
            }
        } else if !has_header {
            has_header = true;
            let header = size.get_or_insert_with(|| "80x24".to_owned());
            if *header != read.size {
                return Err(format!("the header has {}, not {header}", read.size));
            }
        }
        remaining.push(event);
    }
    for (event, (micros, code, data)) in read.events.iter().zip(&remaining) {
        let expected = Duration::from_micros(*micros).as_secs_f64();
        // Sums of rounded numbers.
        let is_in_time = (event.0 - expected).abs() < 0.000_001;
        if !is_in_time || event.1 != *code || event.2 != *data {
            return Err(format!("{event:?} is not {expected} {code} {data:?}"));
        }
    }
    if read.events.len() != remaining.len() {
        return Err(format!("{} events in place of {}", read.events.len(), remaining.len()));
    }
    Ok(())
}
