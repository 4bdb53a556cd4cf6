//! The form of a recording. It is text, in lines; what is written is never changed later, so any whole lines of a recording
//! are a recording.
//!
//! - A session with a terminal is an asciicast, version 3, as `asciinema play` reads it ([`asciicast`]).
//! - A session without one keeps its channels apart, as JSON lines ([`channel_log`]).
//! - Beside them, documents say who did what where, and how it ended ([`metadata`]).
//! - [`reader`] reads all of them, also if some lines are broken.
//!
//! A recording has what the process wrote. It has what the client typed only at the level that says so; but a terminal shows
//! most of what is typed, and some programs show passwords.

pub mod asciicast;
pub mod channel_log;
pub mod metadata;
pub mod reader;
mod text;

use std::time::Duration;

use crate::decoder::SessionEvent;
use crate::storage::PartForm;
use asciicast::AsciicastWriter;
use channel_log::ChannelLogWriter;

/// Writes the events of a session as lines.
#[derive(Debug)]
pub struct Recorder {
    form: Form,
    input: bool,
}

#[derive(Debug)]
enum Form {
    Asciicast(AsciicastWriter),
    Channels(ChannelLogWriter),
}

impl Recorder {
    /// A recorder of a session with a terminal. `started` is its start, in seconds since 1970; `title` is shown by players.
    pub fn of_terminal(started: u64, title: &str, input: bool) -> Self {
        Self { form: Form::Asciicast(AsciicastWriter::new(started, title)), input }
    }

    /// A recorder of a session without a terminal.
    pub fn of_channels(started: u64, input: bool) -> Self {
        Self { form: Form::Channels(ChannelLogWriter::new(started)), input }
    }

    /// The form of the parts.
    pub fn part_form(&self) -> PartForm {
        match self.form {
            Form::Asciicast(_) => PartForm::Cast,
            Form::Channels(_) => PartForm::JsonLines,
        }
    }

    /// Appends the lines of an event. `elapsed` is the time since the start; one that goes back counts as no time.
    pub fn record(&mut self, elapsed: Duration, event: &SessionEvent<'_>, lines: &mut Vec<u8>) {
        if !self.input && matches!(event, SessionEvent::Input(_)) {
            return;
        }
        match &mut self.form {
            Form::Asciicast(writer) => writer.record(elapsed, event, lines),
            Form::Channels(writer) => writer.record(elapsed, event, lines),
        }
    }

    /// Appends a line that the gateway has written to the user, and not the process.
    pub fn notice(&mut self, elapsed: Duration, text: &str, lines: &mut Vec<u8>) {
        match &mut self.form {
            Form::Asciicast(writer) => writer.notice(elapsed, text, lines),
            Form::Channels(writer) => writer.notice(elapsed, text, lines),
        }
    }

    /// Appends what was held back: the start of a character whose rest has not come, and the header if there was no event.
    pub fn finish(&mut self, elapsed: Duration, lines: &mut Vec<u8>) {
        match &mut self.form {
            Form::Asciicast(writer) => writer.finish(elapsed, lines),
            Form::Channels(writer) => writer.finish(lines),
        }
    }
}

#[cfg(test)]
mod tests;
