//! The recording of a session without a terminal: JSON lines that keep the channels apart.
//!
//! The first line is a header, and each other line is an event: the time since the start in seconds, a code, and data.
//!
//! ```text
//! {"format": "portcullis-session", "version": 1, "timestamp": 1504467315}
//! [0.248000, "stdout", "text"]
//! [0.250000, "stdout", {"base64": "iVBORw=="}]
//! [0.300000, "exit", 0]
//! ```
//!
//! | code | data |
//! |---|---|
//! | `stdin`, `stdout`, `stderr` | a chunk: a string if it is UTF-8, else `{"base64": …}`. The chunks in order are the stream |
//! | `stdinEnd` | `null`: the client has closed standard input |
//! | `resize` | `[columns, rows]` |
//! | `exit` | the exit code |
//! | `failed` | the server's message |
//! | `open`, `close` | the port of a connection |
//! | `notice` | a line that the gateway has shown the user, and the process has not written |
//! | `skipped`, `unreadable` | `[side, reason]`: a part of the stream, or all that follows, could not be read |
//!
//! Characters that are split between chunks of one channel are joined.

use std::fmt::Write as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::text::push_json_string;
use crate::decoder::{OutputChannel, SessionEvent, Side};

/// The name and the version of the format.
pub(super) const FORMAT: &str = "portcullis-session";
pub(super) const VERSION: u64 = 1;

/// Writes the lines.
#[derive(Debug)]
pub struct ChannelLogWriter {
    started: u64,
    has_header: bool,
    last: Duration,
    stdin: Chunks,
    stdout: Chunks,
    stderr: Chunks,
}

/// The chunks of a channel.
#[derive(Debug)]
struct Chunks {
    code: &'static str,
    /// The start of a character: up to three bytes.
    held: Vec<u8>,
}

impl ChannelLogWriter {
    /// A writer. `started` is in seconds since 1970.
    pub fn new(started: u64) -> Self {
        let chunks = |code| Chunks { code, held: Vec::new() };
        Self {
            started,
            has_header: false,
            last: Duration::ZERO,
            stdin: chunks("stdin"),
            stdout: chunks("stdout"),
            stderr: chunks("stderr"),
        }
    }

    /// Appends the lines of an event.
    pub fn record(&mut self, elapsed: Duration, event: &SessionEvent<'_>, lines: &mut Vec<u8>) {
        let mut out = String::new();
        self.header(&mut out);
        self.last = elapsed.max(self.last);
        let now = self.last;
        match event {
            SessionEvent::Input(bytes) => self.stdin.push(now, bytes, &mut out),
            SessionEvent::InputEnded => {
                self.stdin.finish(now, &mut out);
                push_line(now, "stdinEnd", "null", &mut out);
            }
            SessionEvent::Output { channel: OutputChannel::Stdout, bytes } => {
                self.stdout.push(now, bytes, &mut out);
            }
            SessionEvent::Output { channel: OutputChannel::Stderr, bytes } => {
                self.stderr.push(now, bytes, &mut out);
            }
            SessionEvent::Resize { columns, rows } => {
                push_line(now, "resize", &format!("[{columns}, {rows}]"), &mut out);
            }
            SessionEvent::Exit { code } => {
                self.rest(now, &mut out);
                push_line(now, "exit", &code.to_string(), &mut out);
            }
            SessionEvent::Failed { message } => push_line(now, "failed", &json_string(message), &mut out),
            SessionEvent::ConnectionOpened { port } => push_line(now, "open", &port.to_string(), &mut out),
            SessionEvent::ConnectionClosed { port } => push_line(now, "close", &port.to_string(), &mut out),
            SessionEvent::Skipped { from, why } => push_reason(now, "skipped", *from, why, &mut out),
            SessionEvent::Unreadable { from, why } => push_reason(now, "unreadable", *from, why, &mut out),
            SessionEvent::Forwarded { .. } | SessionEvent::WebSocketClosed { .. } => {}
        }
        lines.extend_from_slice(out.as_bytes());
    }

    /// Appends a line that the gateway has shown the user.
    pub fn notice(&mut self, elapsed: Duration, text: &str, lines: &mut Vec<u8>) {
        let mut out = String::new();
        self.header(&mut out);
        self.last = elapsed.max(self.last);
        push_line(self.last, "notice", &json_string(text), &mut out);
        lines.extend_from_slice(out.as_bytes());
    }

    /// Appends what was held back.
    pub fn finish(&mut self, lines: &mut Vec<u8>) {
        let mut out = String::new();
        self.header(&mut out);
        self.rest(self.last, &mut out);
        lines.extend_from_slice(out.as_bytes());
    }

    fn rest(&mut self, now: Duration, out: &mut String) {
        for chunks in [&mut self.stdin, &mut self.stdout, &mut self.stderr] {
            chunks.finish(now, out);
        }
    }

    fn header(&mut self, out: &mut String) {
        if !self.has_header {
            self.has_header = true;
            // A string takes all that is written.
            let started = self.started;
            writeln!(out, "{{\"format\": \"{FORMAT}\", \"version\": {VERSION}, \"timestamp\": {started}}}")
                .ok();
        }
    }
}

impl Chunks {
    fn push(&mut self, now: Duration, bytes: &[u8], out: &mut String) {
        let mut chunk = std::mem::take(&mut self.held);
        chunk.extend_from_slice(bytes);
        if let Err(error) = std::str::from_utf8(&chunk)
            && error.error_len().is_none()
        {
            self.held = chunk.split_off(error.valid_up_to());
        }
        self.write(now, &chunk, out);
    }

    fn finish(&mut self, now: Duration, out: &mut String) {
        let held = std::mem::take(&mut self.held);
        self.write(now, &held, out);
    }

    fn write(&self, now: Duration, chunk: &[u8], out: &mut String) {
        match std::str::from_utf8(chunk) {
            Ok("") => {}
            Ok(text) => push_line(now, self.code, &json_string(text), out),
            Err(_) => {
                push_line(now, self.code, &format!("{{\"base64\": \"{}\"}}", STANDARD.encode(chunk)), out);
            }
        }
    }
}

fn push_line(now: Duration, code: &str, data: &str, out: &mut String) {
    writeln!(out, "[{}.{:06}, \"{code}\", {data}]", now.as_secs(), now.subsec_micros()).ok();
}

fn push_reason(now: Duration, code: &str, from: Side, why: &str, out: &mut String) {
    let side = if from == Side::Client { "client" } else { "server" };
    push_line(now, code, &format!("[\"{side}\", {}]", json_string(why)), out);
}

fn json_string(text: &str) -> String {
    let mut string = String::new();
    push_json_string(text, &mut string);
    string
}
