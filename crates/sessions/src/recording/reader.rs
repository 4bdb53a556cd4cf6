//! Reads the lines of a recording. They may have been changed since they were written: a line that cannot be read is an
//! error of that line alone, and the lines after it are read.
// threat: hostile-recording

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{asciicast, channel_log};
use crate::decoder::OutputChannel;
use crate::storage::PartForm;

/// A line of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordedLine {
    /// The first line.
    Header(RecordingHeader),
    /// An event.
    Event(RecordedEvent),
    /// A comment, or an event that this version does not know.
    Other,
}

/// The header of a recording.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordingHeader {
    /// The columns and rows of the terminal, if there is one.
    pub size: Option<(u16, u16)>,
    /// The title.
    pub title: String,
}

/// An event of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedEvent {
    /// The time since the start, which does not go back.
    pub elapsed: Duration,
    /// The event.
    pub data: RecordedData,
}

/// The data of an event. No text of it is trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordedData {
    /// Bytes of an output. A terminal has standard output alone.
    Output {
        /// The output.
        channel: OutputChannel,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Bytes to standard input.
    Input(Vec<u8>),
    /// The client has closed standard input.
    InputEnded,
    /// The client's terminal has a new size.
    Resize {
        /// The columns.
        columns: u16,
        /// The rows.
        rows: u16,
    },
    /// The process has ended, with this exit code.
    Exit(u8),
    /// The session has failed, with the server's message.
    Failed(String),
    /// A part of the stream is not in the recording, for this reason.
    NotRecorded(String),
    /// A line that the gateway has shown the user.
    Notice(String),
    /// A connection to a port of the pod.
    ConnectionOpened(u16),
    /// A connection to a port has ended.
    ConnectionClosed(u16),
}

/// Why a line cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// It begins as a header, and is not one of this version.
    #[error("is not the header of a recording that this version reads")]
    Header,
    /// It is not a list of a time, a code and data.
    #[error("is not an event")]
    Event,
    /// The time is negative or too large.
    #[error("has an impossible time")]
    Time,
    /// The data are not of the form that the code has.
    #[error("has other data than its code says")]
    Data,
}

/// Reads the lines of one recording, in their order.
#[derive(Debug)]
pub struct LineReader {
    form: PartForm,
    elapsed: Duration,
}

impl LineReader {
    /// A reader of lines of this form.
    pub fn new(form: PartForm) -> Self {
        Self { form, elapsed: Duration::ZERO }
    }

    /// Reads a line, given without its line feed.
    pub fn read(&mut self, line: &[u8]) -> Result<RecordedLine, LineError> {
        match (line.first(), self.form) {
            (None, _) => return Ok(RecordedLine::Other),
            // A player reads lines of text.
            (Some(b'#'), PartForm::Cast) if std::str::from_utf8(line).is_ok() => {
                return Ok(RecordedLine::Other);
            }
            (Some(b'{'), _) => return self.header(line).map(RecordedLine::Header),
            _ => {}
        }
        let (seconds, code, data): (f64, String, &RawValue) =
            serde_json::from_slice(line).map_err(|_| LineError::Event)?;
        if code.is_empty() {
            return Err(LineError::Event);
        }
        let time = Duration::try_from_secs_f64(seconds).map_err(|_| LineError::Time)?;
        let data = match self.form {
            PartForm::Cast => asciicast_data(&code, data),
            PartForm::JsonLines => channel_data(&code, data),
        };
        // A line with broken data still has its time.
        self.elapsed = match self.form {
            PartForm::Cast => self.elapsed.saturating_add(time),
            PartForm::JsonLines => self.elapsed.max(time),
        };
        let elapsed = self.elapsed;
        Ok(data?.map_or(RecordedLine::Other, |data| RecordedLine::Event(RecordedEvent { elapsed, data })))
    }

    fn header(&self, line: &[u8]) -> Result<RecordingHeader, LineError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Header {
            format: String,
            version: u64,
            term: Option<Term>,
            title: String,
        }
        #[derive(Deserialize)]
        struct Term {
            cols: u16,
            rows: u16,
        }
        let Header { format, version, term, title } =
            serde_json::from_slice(line).map_err(|_| LineError::Header)?;
        let is_known = match self.form {
            PartForm::Cast => format.is_empty() && version == asciicast::VERSION && term.is_some(),
            PartForm::JsonLines => format == channel_log::FORMAT && version == channel_log::VERSION,
        };
        if !is_known {
            return Err(LineError::Header);
        }
        Ok(RecordingHeader { size: term.map(|Term { cols, rows }| (cols, rows)), title })
    }
}

/// Parsed data; `None` if the code is not known.
type Data = Result<Option<RecordedData>, LineError>;

fn asciicast_data(code: &str, data: &RawValue) -> Data {
    if !["o", "i", "r", "x", "m"].contains(&code) {
        return Ok(None);
    }
    let text: String = parsed(data)?;
    Ok(Some(match code {
        "o" => RecordedData::Output { channel: OutputChannel::Stdout, bytes: text.into_bytes() },
        "i" => RecordedData::Input(text.into_bytes()),
        "r" => {
            let size = text.split_once('x').ok_or(LineError::Data)?;
            let [columns, rows] = [size.0, size.1].map(|number| number.parse().map_err(|_| LineError::Data));
            RecordedData::Resize { columns: columns?, rows: rows? }
        }
        "x" => RecordedData::Exit(text.parse().map_err(|_| LineError::Data)?),
        _ => return Ok(marker(&text)),
    }))
}

/// What a marker says; `None` if it is one of another program.
fn marker(text: &str) -> Option<RecordedData> {
    let after = |prefix| text.strip_prefix(prefix).map(ToOwned::to_owned);
    after(asciicast::FAILED)
        .map(RecordedData::Failed)
        .or_else(|| after(asciicast::NOT_RECORDED).map(RecordedData::NotRecorded))
        .or_else(|| after(asciicast::NOTICE).map(RecordedData::Notice))
}

fn channel_data(code: &str, data: &RawValue) -> Data {
    Ok(Some(match code {
        "stdout" => RecordedData::Output { channel: OutputChannel::Stdout, bytes: chunk(data)? },
        "stderr" => RecordedData::Output { channel: OutputChannel::Stderr, bytes: chunk(data)? },
        "stdin" => RecordedData::Input(chunk(data)?),
        "stdinEnd" => RecordedData::InputEnded,
        "resize" => {
            let (columns, rows) = parsed(data)?;
            RecordedData::Resize { columns, rows }
        }
        "exit" => RecordedData::Exit(parsed(data)?),
        "failed" => RecordedData::Failed(parsed(data)?),
        "notice" => RecordedData::Notice(parsed(data)?),
        "open" => RecordedData::ConnectionOpened(parsed(data)?),
        "close" => RecordedData::ConnectionClosed(parsed(data)?),
        "skipped" | "unreadable" => {
            let (_, why): (String, String) = parsed(data)?;
            RecordedData::NotRecorded(why)
        }
        _ => return Ok(None),
    }))
}

/// A chunk of a channel.
fn chunk(data: &RawValue) -> Result<Vec<u8>, LineError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Chunk {
        Text(String),
        Bytes { base64: String },
    }
    match parsed(data)? {
        Chunk::Text(text) => Ok(text.into_bytes()),
        Chunk::Bytes { base64 } => STANDARD.decode(base64).map_err(|_| LineError::Data),
    }
}

fn parsed<'a, T: Deserialize<'a>>(data: &'a RawValue) -> Result<T, LineError> {
    serde_json::from_str(data.get()).map_err(|_| LineError::Data)
}

#[cfg(test)]
mod tests;
