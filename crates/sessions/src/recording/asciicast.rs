//! asciicast, version 3, of asciinema 3: <https://docs.asciinema.org/manual/asciicast/v3/>.
//!
//! Each part of a recording is some lines of one file: the parts in order are the file. Its events:
//!
//! | code | data |
//! |---|---|
//! | `o` | output; both outputs, though a terminal has one |
//! | `i` | input, at the level that has it |
//! | `r` | the size of the client's terminal |
//! | `x` | the exit code, as the last event |
//! | `m` | markers: the session has failed, a part of the stream could not be read, or the gateway has shown the user a line |
//!
//! The header has the size that the terminal had before the first output, or 80 columns and 24 rows. Invalid UTF-8 becomes
//! U+FFFD, one for each sequence, and a comment line before the event has the number of bytes and the first of them:
//! `# 2 bytes are not UTF-8: c328`.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::json;

use super::reader::{RecordedData, RecordedEvent};
use super::text::{JoinedText, Utf8Joiner, push_json_string};
use crate::decoder::{OutputChannel, SessionEvent};

/// The version of the format.
pub(super) const VERSION: u64 = 3;
/// The beginnings of markers.
pub(super) const FAILED: &str = "failed: ";
pub(super) const NOT_RECORDED: &str = "not recorded: ";
pub(super) const NOTICE: &str = "notice: ";
/// The size of a terminal that the client has not told.
const DEFAULT_SIZE: (u16, u16) = (80, 24);

/// Writes an asciicast.
#[derive(Debug)]
pub struct AsciicastWriter {
    started: u64,
    title: String,
    has_header: bool,
    size: Option<(u16, u16)>,
    /// The time of the last event, in microseconds.
    last: u128,
    output: Utf8Joiner,
    input: Utf8Joiner,
    /// The channels whose copied bytes end in CR.
    after_cr: Vec<OutputChannel>,
}

impl AsciicastWriter {
    /// A writer. `started` is in seconds since 1970.
    pub fn new(started: u64, title: &str) -> Self {
        Self {
            started,
            title: title.to_owned(),
            has_header: false,
            size: None,
            last: 0,
            output: Utf8Joiner::default(),
            input: Utf8Joiner::default(),
            after_cr: Vec::new(),
        }
    }

    /// Appends the lines of an event of a channel log. A process without a terminal ends its lines by LF alone, and a player's
    /// terminal needs CR LF.
    pub fn copy(&mut self, event: &RecordedEvent, lines: &mut Vec<u8>) {
        let elapsed = event.elapsed;
        let event = match &event.data {
            RecordedData::Output { channel, bytes } => {
                let bytes = self.with_carriage_returns(*channel, bytes);
                return self.record(
                    elapsed,
                    &SessionEvent::Output { channel: *channel, bytes: &bytes },
                    lines,
                );
            }
            RecordedData::Input(bytes) => SessionEvent::Input(bytes),
            RecordedData::Resize { columns, rows } => SessionEvent::Resize { columns: *columns, rows: *rows },
            RecordedData::Exit(code) => SessionEvent::Exit { code: *code },
            RecordedData::Failed(message) => SessionEvent::Failed { message: message.clone() },
            RecordedData::NotRecorded(why) => {
                let mut out = String::new();
                self.event(elapsed, 'm', &format!("{NOT_RECORDED}{why}"), &mut out);
                return lines.extend_from_slice(out.as_bytes());
            }
            RecordedData::Notice(text) => return self.notice(elapsed, text, lines),
            RecordedData::InputEnded
            | RecordedData::ConnectionOpened(_)
            | RecordedData::ConnectionClosed(_) => return,
        };
        self.record(elapsed, &event, lines);
    }

    fn with_carriage_returns(&mut self, channel: OutputChannel, bytes: &[u8]) -> Vec<u8> {
        let mut is_after_cr = self.after_cr.contains(&channel);
        let mut with = Vec::with_capacity(bytes.len());
        for byte in bytes {
            if *byte == b'\n' && !is_after_cr {
                with.push(b'\r');
            }
            is_after_cr = *byte == b'\r';
            with.push(*byte);
        }
        self.after_cr.retain(|known| *known != channel);
        self.after_cr.extend(is_after_cr.then_some(channel));
        with
    }

    /// Appends the lines of an event.
    pub fn record(&mut self, elapsed: Duration, event: &SessionEvent<'_>, lines: &mut Vec<u8>) {
        let mut out = String::new();
        match event {
            SessionEvent::Output { bytes, .. } => {
                let joined = self.output.join(bytes);
                self.text(elapsed, 'o', &joined, &mut out);
            }
            SessionEvent::Input(bytes) => {
                let joined = self.input.join(bytes);
                self.text(elapsed, 'i', &joined, &mut out);
            }
            // Players cannot show a terminal without columns or rows.
            SessionEvent::Resize { columns, rows } if *columns > 0 && *rows > 0 => {
                let size = Some((*columns, *rows));
                if !self.has_header {
                    self.size = size;
                } else if self.size != size {
                    self.size = size;
                    self.event(elapsed, 'r', &format!("{columns}x{rows}"), &mut out);
                }
            }
            SessionEvent::Exit { code } => {
                self.rest(elapsed, &mut out);
                self.event(elapsed, 'x', &code.to_string(), &mut out);
            }
            SessionEvent::Failed { message } => {
                self.event(elapsed, 'm', &format!("{FAILED}{message}"), &mut out);
            }
            SessionEvent::Skipped { why, .. } | SessionEvent::Unreadable { why, .. } => {
                self.event(elapsed, 'm', &format!("{NOT_RECORDED}{why}"), &mut out);
            }
            SessionEvent::Resize { .. }
            | SessionEvent::InputEnded
            | SessionEvent::ConnectionOpened { .. }
            | SessionEvent::Forwarded { .. }
            | SessionEvent::ConnectionClosed { .. }
            | SessionEvent::WebSocketClosed { .. } => {}
        }
        lines.extend_from_slice(out.as_bytes());
    }

    /// Appends a line that the gateway has shown the user, as a marker: the process has not written it.
    pub fn notice(&mut self, elapsed: Duration, text: &str, lines: &mut Vec<u8>) {
        let mut out = String::new();
        self.event(elapsed, 'm', &format!("{NOTICE}{text}"), &mut out);
        lines.extend_from_slice(out.as_bytes());
    }

    /// Appends what was held back.
    pub fn finish(&mut self, elapsed: Duration, lines: &mut Vec<u8>) {
        let mut out = String::new();
        self.header(&mut out);
        self.rest(elapsed, &mut out);
        lines.extend_from_slice(out.as_bytes());
    }

    fn rest(&mut self, elapsed: Duration, out: &mut String) {
        let (output, input) = (self.output.finish(), self.input.finish());
        self.text(elapsed, 'o', &output, out);
        self.text(elapsed, 'i', &input, out);
    }

    fn text(&mut self, elapsed: Duration, code: char, joined: &JoinedText, out: &mut String) {
        let JoinedText { text, replaced, sample } = joined;
        if text.is_empty() {
            return;
        }
        self.header(out);
        if *replaced > 0 {
            // A string takes all that is written.
            writeln!(out, "# {replaced} bytes are not UTF-8: {sample}").ok();
        }
        self.event(elapsed, code, text, out);
    }

    fn event(&mut self, elapsed: Duration, code: char, data: &str, out: &mut String) {
        self.header(out);
        // From the sum, so that roundings do not add up.
        let now = elapsed.as_micros().max(self.last);
        let interval = now - self.last;
        self.last = now;
        write!(out, "[{}.{:06}, \"{code}\", ", interval / 1_000_000, interval % 1_000_000).ok();
        push_json_string(data, out);
        out.push_str("]\n");
    }

    fn header(&mut self, out: &mut String) {
        if self.has_header {
            return;
        }
        self.has_header = true;
        let (columns, rows) = *self.size.get_or_insert(DEFAULT_SIZE);
        let mut title = String::new();
        push_json_string(&self.title, &mut title);
        let term = json!({"cols": columns, "rows": rows});
        writeln!(
            out,
            "{{\"version\": {VERSION}, \"term\": {term}, \"timestamp\": {}, \"title\": {title}}}",
            self.started
        )
        .ok();
    }
}
