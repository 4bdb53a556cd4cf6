//! `portcullis sessions play`: shows a session on the terminal as it went, and leaves the terminal as it was.

use std::future::Future;
use std::io::{self, IsTerminal as _, Write};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use portcullis_sessions::decoder::OutputChannel;
use portcullis_sessions::playback::{Pace, SafeText};
use portcullis_sessions::recording::reader::{RecordedData, RecordedEvent, RecordedLine, RecordingHeader};
use portcullis_sessions::storage::{ObjectName, RecordingDirectory, RecordingStore as _, SessionName};
use portcullis_system::text::shortened;
use tokio::time::Instant;

use super::SessionFlags;
use super::reading::RecordingReader;
use crate::certs::error::CommandError;
use crate::interrupt::{TerminationSignal, interrupted};
use crate::output::{print_error, runtime};
use crate::token::duration;

/// The maximum number of notes, and the maximum length of the text that one has from the recording.
const MAX_NOTES: usize = 20;
const MAX_NOTE: usize = 500;

/// The flags of `portcullis sessions play`.
#[derive(Debug, Clone, Args)]
pub struct SessionPlayFlags {
    #[command(flatten)]
    session: SessionFlags,
    /// How fast, on a terminal: 2 is twice as fast.
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = speed)]
    speed: f64,
    /// Cut pauses of the session to this, such as 2s.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    idle_limit: Option<Duration>,
    /// Write the output byte for byte. The session then controls the terminal: it can set the title and the clipboard, or make the
    /// terminal answer as if you had typed.
    #[arg(long)]
    raw: bool,
}

fn speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed| (0.001..=1e6).contains(speed));
    speed.ok_or_else(|| "give a number from 0.001 to 1000000".to_owned())
}

pub(super) fn run(flags: &SessionPlayFlags) -> Result<ExitCode, CommandError> {
    let (directory, name) = flags.session.open()?;
    let mut reader = RecordingReader::open(&directory, &name)?;
    let is_terminal = io::stdout().is_terminal();
    let pace = is_terminal.then(|| Pace::new(flags.speed, flags.idle_limit));
    let (stdout, mut stderr) = (io::stdout(), io::stderr());
    let mut stdout = io::BufWriter::new(stdout);
    let mut screen = Screen::new(&mut stdout, &mut stderr, flags.raw, terminal_size());
    let runtime = runtime().map_err(|error| CommandError::Failed(error.to_string()))?;
    let played = runtime.block_on(play(&mut reader, pace, &mut screen, interrupted()));
    let notes = screen.finish(is_terminal).and_then(|notes| played.map(|signal| (signal, notes)));
    if is_terminal && flags.raw {
        discard_input();
    }
    let (signal, notes) = match notes {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::FAILURE),
        notes => notes.map_err(|error| CommandError::about("standard output", error))?,
    };
    for note in &notes {
        print_error(note);
    }
    if let Some(signal) = signal {
        return Ok(signal.exit_code());
    }
    Ok(if report_problems(reader, &directory, &name)? { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Reports the problems of a recording that was read on standard error, and whether it has an end. Returns whether there are
/// problems.
pub(super) fn report_problems(
    reader: RecordingReader<'_>,
    directory: &RecordingDirectory,
    name: &SessionName,
) -> Result<bool, CommandError> {
    let problems = reader.problems()?;
    for problem in &problems {
        print_error(&format!("{name}: {problem}"));
    }
    let objects = directory.objects(name).map_err(|error| CommandError::about(name, error))?;
    if problems.is_empty() && !objects.contains(&ObjectName::End) {
        print_error(&format!("{name}: the recording has no end: the session is open, or was cut off"));
    }
    Ok(!problems.is_empty())
}

/// Shows the events, each when it is due; without a pace at once. Returns the signal that has ended it, if one has.
async fn play(
    reader: &mut RecordingReader<'_>,
    mut pace: Option<Pace>,
    screen: &mut Screen<'_>,
    interrupted: impl Future<Output = TerminationSignal>,
) -> io::Result<Option<TerminationSignal>> {
    let mut interrupted = pin!(interrupted);
    let started = Instant::now();
    while let Some((_, line)) = reader.next_line() {
        let event = match line {
            RecordedLine::Event(event) => event,
            RecordedLine::Header(header) => {
                screen.header(&header);
                continue;
            }
            RecordedLine::Other => continue,
        };
        if let Some(pace) = &mut pace {
            let wait = pace.due(event.elapsed).saturating_sub(started.elapsed());
            // Also without a wait: from the first poll on, a signal ends the process here alone, where the terminal is restored.
            tokio::select! {
                biased;
                signal = &mut interrupted => return Ok(Some(signal)),
                () = tokio::time::sleep(wait) => {}
            }
        }
        screen.show(&event)?;
        if pace.is_some() {
            screen.stdout.flush()?;
        }
    }
    Ok(None)
}

/// The outputs of a player.
struct Screen<'a> {
    stdout: &'a mut dyn Write,
    stderr: &'a mut dyn Write,
    is_raw: bool,
    /// The size of the reader's terminal.
    size: Option<(u16, u16)>,
    stdout_filter: SafeText,
    stderr_filter: SafeText,
    has_output: bool,
    ends_line: bool,
    notes: Vec<String>,
}

impl<'a> Screen<'a> {
    fn new(
        stdout: &'a mut dyn Write,
        stderr: &'a mut dyn Write,
        is_raw: bool,
        size: Option<(u16, u16)>,
    ) -> Self {
        Self {
            stdout,
            stderr,
            is_raw,
            size,
            stdout_filter: SafeText::default(),
            stderr_filter: SafeText::default(),
            has_output: false,
            ends_line: true,
            notes: Vec::new(),
        }
    }

    fn header(&mut self, header: &RecordingHeader) {
        if let (Some((columns, rows)), Some((own_columns, own_rows))) = (header.size, self.size)
            && (own_columns < columns || own_rows < rows)
        {
            self.note(format!(
                "the terminal of the session had {columns} columns and {rows} rows, and this one has {own_columns} and \
                 {own_rows}: the screen may look broken"
            ));
        }
    }

    fn show(&mut self, event: &RecordedEvent) -> io::Result<()> {
        match &event.data {
            RecordedData::Output { channel, bytes } => self.write(*channel, bytes)?,
            RecordedData::Failed(message) => {
                self.note(format!("the session has failed: {}", shortened(message, MAX_NOTE)));
            }
            RecordedData::NotRecorded(why) => {
                self.note(format!(
                    "a part of the session is not in the recording: {}",
                    shortened(why, MAX_NOTE)
                ));
            }
            RecordedData::Notice(text) => {
                self.note(format!("the gateway has shown the user: {}", shortened(text, MAX_NOTE)));
            }
            RecordedData::Input(_)
            | RecordedData::InputEnded
            | RecordedData::Resize { .. }
            | RecordedData::Exit(_)
            | RecordedData::ConnectionOpened(_)
            | RecordedData::ConnectionClosed(_) => {}
        }
        Ok(())
    }

    fn write(&mut self, channel: OutputChannel, bytes: &[u8]) -> io::Result<()> {
        let mut safe = String::new();
        let text = String::from_utf8_lossy(bytes);
        let filter = match channel {
            OutputChannel::Stdout => &mut self.stdout_filter,
            OutputChannel::Stderr => &mut self.stderr_filter,
        };
        // Also of text that is not filtered: it knows which modes the terminal has.
        filter.filter(&text, &mut safe);
        let written = if self.is_raw { bytes } else { safe.as_bytes() };
        if written.is_empty() {
            return Ok(());
        }
        self.has_output = true;
        self.ends_line = written.ends_with(b"\n");
        match channel {
            OutputChannel::Stdout => self.stdout.write_all(written),
            OutputChannel::Stderr => {
                // In their order, where both are one.
                self.stdout.flush()?;
                self.stderr.write_all(written)
            }
        }
    }

    fn note(&mut self, note: String) {
        if self.notes.len() < MAX_NOTES && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Restores a terminal, and returns the notes for the reader.
    fn finish(mut self, is_terminal: bool) -> io::Result<Vec<String>> {
        if is_terminal && self.has_output {
            let filters = [&self.stdout_filter, &self.stderr_filter];
            let is_line = self.ends_line || filters.iter().any(|filter| filter.is_on_alternate_screen());
            for filter in filters {
                self.stdout.write_all(filter.restore(!self.is_raw).as_bytes())?;
            }
            self.stdout.write_all(if is_line { b"" } else { b"\r\n" })?;
        }
        self.stdout.flush()?;
        let dropped = self.stdout_filter.dropped() + self.stderr_filter.dropped();
        if dropped > 0 && !self.is_raw {
            self.note(format!(
                "{dropped} control sequences and characters were left out, which a terminal could obey or not show; --raw writes them"
            ));
        }
        if !self.has_output {
            self.note("the recording has no output".to_owned());
        }
        Ok(self.notes)
    }
}

#[cfg(unix)]
fn terminal_size() -> Option<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some((size.ws_col, size.ws_row)).filter(|size| *size != (0, 0))
}

/// Unknown: the system's call has no safe interface here.
#[cfg(not(unix))]
fn terminal_size() -> Option<(u16, u16)> {
    None
}

/// Discards the answers of the terminal to the session: a shell would take them as typed.
#[cfg(unix)]
fn discard_input() {
    use rustix::termios::{QueueSelector, tcflush};
    // Fails if it is no terminal, and then nothing was answered.
    tcflush(io::stdin(), QueueSelector::IFlush).ok();
}

#[cfg(not(unix))]
fn discard_input() {}

#[cfg(test)]
mod tests;
