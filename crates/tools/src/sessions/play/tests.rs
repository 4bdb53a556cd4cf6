use std::cell::RefCell;
use std::fs;
use std::future::pending;
use std::rc::Rc;

use portcullis_sessions::decoder::SessionEvent;

use super::super::tests::{Recordings, STARTED, Session, stderr, stdout};
use super::*;

/// Times in milliseconds, outputs and the text that was written to them.
type Written = Rc<RefCell<Vec<(u128, &'static str, String)>>>;

struct Output {
    name: &'static str,
    started: Instant,
    written: Written,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        self.written.borrow_mut().push((self.started.elapsed().as_millis(), self.name, text));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How a session is played.
struct Playback {
    pace: Option<Pace>,
    is_raw: bool,
    size: Option<(u16, u16)>,
    /// When Ctrl-C is pressed.
    interrupted: Option<Duration>,
}

const AT_ONCE: Playback = Playback { pace: None, is_raw: false, size: None, interrupted: None };

/// The result of a playback.
struct Played {
    written: Vec<(u128, &'static str, String)>,
    signal: Option<TerminationSignal>,
    notes: Vec<String>,
    problems: Vec<String>,
}

impl Played {
    fn text(&self, output: &str) -> String {
        self.written.iter().filter(|(_, name, _)| *name == output).map(|(.., text)| text.as_str()).collect()
    }

    /// When each piece was written, without the restored terminal.
    fn times(&self) -> Vec<(u128, &str)> {
        self.written.iter().map(|(time, _, text)| (*time, text.as_str())).collect()
    }
}

async fn played(recordings: &Recordings, name: &SessionName, playback: Playback) -> Played {
    let Playback { pace, is_raw, size, interrupted } = playback;
    let written = Written::default();
    let started = Instant::now();
    let output = |name| Output { name, started, written: Rc::clone(&written) };
    let (mut stdout, mut stderr) = (output("stdout"), output("stderr"));
    let mut reader = RecordingReader::open(&recordings.directory, name).unwrap();
    let is_terminal = pace.is_some();
    let mut screen = Screen::new(&mut stdout, &mut stderr, is_raw, size);
    let interrupted = async {
        match interrupted {
            Some(after) => tokio::time::sleep(after).await,
            None => pending().await,
        }
        TerminationSignal::Interrupt
    };
    let signal = play(&mut reader, pace, &mut screen, interrupted).await.unwrap();
    let notes = screen.finish(is_terminal).unwrap();
    let written = written.take();
    Played { written, signal, notes, problems: reader.problems().unwrap() }
}

const RESTORED: &str = "\x1b7\x1b[r\x1b8\x1b[0m\x1b(B\x1b)B\x0f\x1b[?7h\x1b[?25h\x1b[4l";

#[tokio::test(start_paused = true)]
async fn a_session_is_played_as_it_went() {
    let recordings = Recordings::new();
    let name = recordings.record(&Session::shell());
    let paced = |speed, limit: Option<u64>| Playback {
        pace: Some(Pace::new(speed, limit.map(Duration::from_secs))),
        ..AT_ONCE
    };
    let pieces = ["$ ", "\x1b[1mls\x1b[0m\r\n", "a  b\r\n", RESTORED, RESTORED];
    for (playback, times) in [
        (paced(1.0, None), [248, 5000, 5100, 9000, 9000]),
        (paced(2.0, None), [124, 2500, 2550, 4500, 4500]),
        (paced(1.0, Some(2)), [248, 2248, 2348, 4348, 4348]),
        (paced(4.0, Some(2)), [62, 562, 587, 1087, 1087]),
    ] {
        let played = played(&recordings, &name, playback).await;
        let expected: Vec<_> = times.into_iter().zip(pieces).collect();
        // tokio's clock has milliseconds.
        let near = |(time, text): (u128, &str), (expected, piece): (u128, &str)| {
            text == piece && (expected..expected + 3).contains(&time)
        };
        let written = played.times();
        let written: Vec<_> = written.into_iter().filter(|(_, text)| !text.is_empty()).collect();
        assert!(
            written.len() == expected.len()
                && written.iter().zip(&expected).all(|(one, other)| near(*one, *other)),
            "{written:?} {expected:?}"
        );
        assert_eq!((played.signal, played.problems.len()), (None, 0));
        assert_eq!(played.notes.len(), 1, "{:?}", played.notes);
        assert!(played.notes[0].starts_with("1 control sequences"), "{:?}", played.notes);
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_terminal_it_is_written_at_once() {
    let recordings = Recordings::new();
    let name = recordings.record(&Session::shell());
    let played = played(&recordings, &name, AT_ONCE).await;
    assert!(played.written.iter().all(|(time, ..)| *time == 0));
    assert_eq!(played.text("stdout"), "$ \x1b[1mls\x1b[0m\r\na  b\r\n");
}

#[tokio::test(start_paused = true)]
async fn channels_are_played_to_their_outputs() {
    let recordings = Recordings::new();
    let name = recordings.record(&Session::command());
    let safe = played(&recordings, &name, AT_ONCE).await;
    assert_eq!(safe.text("stdout"), "out\n\u{fffd}\x1b[31mred");
    assert_eq!(safe.text("stderr"), "err\n");
    assert_eq!(safe.notes, ["the session has failed: no\u{1b}[2J container"]);
    // Half of a sequence on each output makes no sequence on a terminal that shows both.
    let halves = Session {
        started: STARTED + Duration::from_secs(1),
        events: vec![(1, stdout(b"a\x1b]0")), (2, stderr(b";title\x07b")), (3, stdout(b";x\x07c"))],
        ..Session::command()
    };
    let name = recordings.record(&halves);
    let safe = played(&recordings, &name, AT_ONCE).await;
    let whole: String = safe.written.iter().map(|(.., text)| text.as_str()).collect();
    assert_eq!(whole, "a;titlebc");
}

#[tokio::test(start_paused = true)]
async fn raw_output_is_that_of_the_session() {
    let recordings = Recordings::new();
    let name = recordings.record(&Session::shell());
    let raw = Playback { is_raw: true, ..AT_ONCE };
    let raw = played(&recordings, &name, raw).await;
    assert_eq!(raw.text("stdout"), "$ \x1b[1mls\x1b[0m\r\na  b\r\n\x1b]0;title\x07");
    assert_eq!(raw.notes, [""; 0]);
    let bytes = Session {
        started: STARTED + Duration::from_secs(1),
        events: vec![(1, stdout(b"\xff\x00")), (2, stdout(b"\x80"))],
        ..Session::command()
    };
    let name = recordings.record(&bytes);
    let mut reader = RecordingReader::open(&recordings.directory, &name).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut screen = Screen::new(&mut out, &mut err, true, None);
    play(&mut reader, None, &mut screen, pending()).await.unwrap();
    screen.finish(false).unwrap();
    assert_eq!(out, b"\xff\x00\x80");
}

#[tokio::test(start_paused = true)]
async fn ctrl_c_ends_it_and_restores_the_terminal() {
    let recordings = Recordings::new();
    let mut session = Session::shell();
    session.events.insert(2, (300, stdout(b"\x1b[?1049h\x1b[?25l\x1b[Hscreen")));
    let name = recordings.record(&session);
    for is_raw in [false, true] {
        let playback = Playback {
            pace: Some(Pace::new(1.0, None)),
            is_raw,
            interrupted: Some(Duration::from_secs(1)),
            ..AT_ONCE
        };
        let played = played(&recordings, &name, playback).await;
        assert_eq!(played.signal, Some(TerminationSignal::Interrupt));
        let text = played.text("stdout");
        assert!(text.starts_with("$ \x1b[?1049h\x1b[?25l\x1b[Hscreen"), "{text:?}");
        assert!(!text.contains("ls"), "{text:?}");
        assert!(text.contains("\x1b[?1049l") && text.ends_with(RESTORED), "{text:?}");
        assert_eq!(text.contains("\x1b[?1000l"), is_raw);
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_is_on_a_line_of_its_own() {
    let recordings = Recordings::new();
    let session = Session { events: vec![(1, stdout(b"no line end"))], ..Session::shell() };
    let name = recordings.record(&session);
    let on_terminal = || Playback { pace: Some(Pace::new(1.0, None)), ..AT_ONCE };
    assert!(played(&recordings, &name, on_terminal()).await.text("stdout").ends_with("\r\n"));
    // A file gets the output alone.
    assert_eq!(played(&recordings, &name, AT_ONCE).await.text("stdout"), "no line end");
    let silent =
        Session { started: STARTED + Duration::from_secs(1), events: Vec::new(), ..Session::shell() };
    let name = recordings.record(&silent);
    let played = played(&recordings, &name, on_terminal()).await;
    assert_eq!(
        (played.text("stdout").as_str(), played.notes),
        ("", vec!["the recording has no output".to_owned()])
    );
}

#[tokio::test(start_paused = true)]
async fn a_smaller_terminal_is_noted() {
    let recordings = Recordings::new();
    let name = recordings.record(&Session::shell());
    for (size, is_noted) in [((100, 30), false), ((200, 50), false), ((99, 30), true), ((100, 29), true)] {
        let playback = Playback { size: Some(size), ..AT_ONCE };
        let notes = played(&recordings, &name, playback).await.notes;
        assert_eq!(notes.iter().any(|note| note.contains("100 columns and 30 rows")), is_noted, "{size:?}");
    }
}

/// The rest of a damaged recording is played, and each broken part is named.
#[tokio::test(start_paused = true)]
async fn a_damaged_recording_is_played_as_far_as_it_can_be_read() {
    let recordings = Recordings::new();
    let name = recordings.record(&Session::shell());
    fs::write(
        recordings.path(&name, "000001.cast"),
        b"x\ny\n[1.0, \"o\", \"forged line\"]\n[1.0, \"o\", \"cut",
    )
    .unwrap();
    fs::remove_file(recordings.path(&name, "000000.cast")).unwrap();
    let played = played(&recordings, &name, AT_ONCE).await;
    assert_eq!(played.text("stdout"), "forged linea  b\r\n");
    let expected = [
        "line 1 of 000001.cast is not an event, nor can 2 others be read",
        "000000.cast is missing",
        "000001.cast was changed",
    ];
    assert_eq!(played.problems, expected);
}

/// A recording cannot make the player hold or print more and more.
#[tokio::test(start_paused = true)]
async fn notes_are_bounded() {
    let recordings = Recordings::new();
    let failure = |index| SessionEvent::Failed { message: format!("{index}{}", "x".repeat(5000)) };
    let events = (0..50).map(|index| (index, failure(index))).collect();
    let name = recordings.record(&Session { events, part: 1 << 20, ..Session::shell() });
    let notes = played(&recordings, &name, AT_ONCE).await.notes;
    assert_eq!(notes.len(), MAX_NOTES);
    assert!(notes.iter().all(|note| note.chars().count() < MAX_NOTE + 50));
}

#[test]
fn a_speed_is_a_positive_number() {
    for (text, expected) in [("1", Some(1.0)), ("0.5", Some(0.5)), ("1e3", Some(1000.0))] {
        assert_eq!(speed(text).ok(), expected, "{text}");
    }
    for text in ["0", "-1", "NaN", "inf", "", "x", "1e7"] {
        speed(text).unwrap_err();
    }
}
