//! `portcullis sessions export`: a session as one file.

use std::io::{self, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use portcullis_sessions::decoder::OutputChannel;
use portcullis_sessions::playback::PlainText;
use portcullis_sessions::recording::asciicast::AsciicastWriter;
use portcullis_sessions::recording::reader::{RecordedData, RecordedEvent, RecordedLine};
use portcullis_sessions::storage::{PartForm, SessionName};

use super::SessionFlags;
use super::play::report_problems;
use super::reading::{RecordingReader, for_terminal};
use crate::certs::error::CommandError;
use crate::certs::files::write_streamed;

/// The flags of `portcullis sessions export`.
#[derive(Debug, Clone, Args)]
pub struct SessionExportFlags {
    #[command(flatten)]
    session: SessionFlags,
    /// The form of the file.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ExportFormat::Asciicast, help_heading = "Output")]
    format: ExportFormat,
    /// Write to this file. Default: standard output.
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    out: Option<PathBuf>,
    /// Replace an existing file.
    #[arg(long, requires = "out", help_heading = "Output")]
    force: bool,
}

/// The forms of an exported session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExportFormat {
    /// asciicast v3, for `asciinema play` and web players, which obey all control sequences in it.
    Asciicast,
    /// The output as plain text, without control sequences, in the order in which it was written.
    Text,
    /// The lines as they were recorded: an asciicast, or the channels of a session without a terminal.
    Recorded,
}

pub(super) fn run(flags: &SessionExportFlags) -> Result<ExitCode, CommandError> {
    let (directory, name) = flags.session.open()?;
    let mut reader = RecordingReader::open(&directory, &name)?;
    match &flags.out {
        Some(out) if out.as_path() != Path::new("-") => {
            write_streamed(out, flags.force, |file| export(&mut reader, &name, flags.format, file))?;
        }
        _ => {
            // Plain text has nothing that a terminal obeys.
            let is_for_terminal = io::stdout().is_terminal() && flags.format != ExportFormat::Text;
            let mut stdout = io::BufWriter::new(io::stdout());
            let exported = if is_for_terminal {
                let mut safe = TerminalLines { output: &mut stdout, line: Vec::new() };
                export(&mut reader, &name, flags.format, &mut safe).and_then(|()| safe.finish())
            } else {
                export(&mut reader, &name, flags.format, &mut stdout)
            };
            match exported.and_then(|()| stdout.flush()) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::FAILURE),
                exported => exported.map_err(|error| CommandError::about("standard output", error))?,
            }
        }
    }
    Ok(if report_problems(reader, &directory, &name)? { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Writes a session in a form.
fn export(
    reader: &mut RecordingReader<'_>,
    name: &SessionName,
    format: ExportFormat,
    output: &mut dyn Write,
) -> io::Result<()> {
    match (format, reader.form()) {
        (ExportFormat::Text, _) => plain_text(reader, output),
        (ExportFormat::Asciicast, PartForm::JsonLines) => converted(reader, name, output),
        (ExportFormat::Asciicast, PartForm::Cast) => lines(reader, Some(name), output),
        (ExportFormat::Recorded, _) => lines(reader, None, output),
    }
}

/// The lines that can be read, as they are. A file with a `name` has one header, as the first line, whatever is lost: players show
/// no other.
fn lines(
    reader: &mut RecordingReader<'_>,
    name: Option<&SessionName>,
    output: &mut dyn Write,
) -> io::Result<()> {
    let mut has_header = false;
    while let Some((text, line)) = reader.next_line() {
        let is_header = matches!(line, RecordedLine::Header(_));
        if let Some(name) = name {
            if is_header && has_header {
                continue;
            }
            if !is_header && !has_header {
                output.write_all(&header(name))?;
            }
        }
        has_header = true;
        output.write_all(text)?;
        output.write_all(b"\n")?;
    }
    match name {
        Some(name) if !has_header => output.write_all(&header(name)),
        _ => Ok(()),
    }
}

/// The header of a recording that has lost its own.
fn header(name: &SessionName) -> Vec<u8> {
    let mut lines = Vec::new();
    writer(name).finish(Duration::ZERO, &mut lines);
    lines
}

fn writer(name: &SessionName) -> AsciicastWriter {
    AsciicastWriter::new(name.started().unwrap_or_default().as_secs(), name.as_str())
}

/// The channels of a process without a terminal, as one would have shown them.
fn converted(reader: &mut RecordingReader<'_>, name: &SessionName, output: &mut dyn Write) -> io::Result<()> {
    let mut writer = writer(name);
    let mut last = Duration::ZERO;
    let mut lines = Vec::new();
    while let Some((_, line)) = reader.next_line() {
        if let RecordedLine::Event(event) = line {
            last = event.elapsed;
            writer.copy(&event, &mut lines);
            output.write_all(&lines)?;
            lines.clear();
        }
    }
    writer.finish(last, &mut lines);
    output.write_all(&lines)
}

fn plain_text(reader: &mut RecordingReader<'_>, output: &mut dyn Write) -> io::Result<()> {
    let (mut stdout, mut stderr) = (PlainText::default(), PlainText::default());
    let mut plain = String::new();
    while let Some((_, line)) = reader.next_line() {
        if let RecordedLine::Event(RecordedEvent { data: RecordedData::Output { channel, bytes }, .. }) = line
        {
            let filter = match channel {
                OutputChannel::Stdout => &mut stdout,
                OutputChannel::Stderr => &mut stderr,
            };
            filter.filter(&String::from_utf8_lossy(&bytes), &mut plain);
            output.write_all(plain.as_bytes())?;
            plain.clear();
        }
    }
    stdout.finish(&mut plain);
    stderr.finish(&mut plain);
    output.write_all(plain.as_bytes())
}

/// Lines for a terminal: a line that another program has written may have characters that it would obey.
struct TerminalLines<'a> {
    output: &'a mut dyn Write,
    line: Vec<u8>,
}

impl TerminalLines<'_> {
    fn finish(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        self.output.write_all(for_terminal(&String::from_utf8_lossy(&line), true).as_bytes())
    }
}

impl Write for TerminalLines<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        if self.line.ends_with(b"\n") {
            self.finish()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

#[cfg(test)]
mod tests;
