//! The error channel: how the process or the session has ended.

use serde::Deserialize;

use super::ProtocolVersion;
use super::event::SessionEvent;

/// The maximum size of a status. The server's are below 1 KiB.
const MAX_STATUS: usize = 16 << 10;
/// The maximum number of times that a status is parsed before its channel ends: once for each brace that ends an object.
const MAX_ATTEMPTS: u8 = 64;
/// The maximum length of a message in an event.
const MAX_MESSAGE: usize = 1024;

/// Reads the error channel.
#[derive(Debug)]
pub(super) struct ExitStatusReader {
    is_json: bool,
    text: Vec<u8>,
    attempts: u8,
    is_done: bool,
}

/// The parts of `metav1.Status` that tell the exit code.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    #[serde(rename = "status")]
    outcome: String,
    message: String,
    reason: String,
    details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    causes: Vec<Cause>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: String,
    message: String,
}

impl ExitStatusReader {
    pub(super) fn new(version: ProtocolVersion) -> Self {
        Self { is_json: version > ProtocolVersion::TextErrors, text: Vec::new(), attempts: 0, is_done: false }
    }

    /// Takes bytes of the channel. A complete status is reported at once: in `v4` over WebSocket nothing ends it.
    pub(super) fn read(&mut self, bytes: &[u8], events: &mut dyn FnMut(SessionEvent<'_>)) {
        if self.is_done {
            return;
        }
        for byte in bytes {
            if self.text.len() == MAX_STATUS {
                self.end(events);
                return;
            }
            self.text.push(*byte);
            // Independent of the chunks: an object ends with a brace.
            if self.is_json && *byte == b'}' && self.attempts < MAX_ATTEMPTS {
                self.attempts += 1;
                if self.report_status(events) {
                    return;
                }
            }
        }
    }

    /// The channel has ended.
    pub(super) fn end(&mut self, events: &mut dyn FnMut(SessionEvent<'_>)) {
        if !self.is_done && !self.text.is_empty() && !self.report_status(events) {
            events(SessionEvent::Failed { message: shortened(&String::from_utf8_lossy(&self.text)) });
        }
        self.text = Vec::new();
        self.is_done = true;
    }

    fn report_status(&mut self, events: &mut dyn FnMut(SessionEvent<'_>)) -> bool {
        let Some(status) = self.is_json.then(|| serde_json::from_slice(&self.text).ok()).flatten() else {
            return false;
        };
        events(event(&status));
        self.text = Vec::new();
        self.is_done = true;
        true
    }

    pub(super) fn held(&self) -> usize {
        self.text.capacity()
    }
}

/// Reads a status as client-go does.
// client-go: tools/remotecommand/v4.go, errorDecoderV4
fn event(status: &Status) -> SessionEvent<'static> {
    if status.outcome == "Success" {
        return SessionEvent::Exit { code: 0 };
    }
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut codes = causes.filter(|cause| cause.reason == "ExitCode");
    let code = codes.next().and_then(|cause| cause.message.parse().ok());
    match code {
        Some(code) if status.outcome == "Failure" && status.reason == "NonZeroExitCode" => {
            SessionEvent::Exit { code }
        }
        _ => SessionEvent::Failed { message: shortened(&status.message) },
    }
}

fn shortened(text: &str) -> String {
    portcullis_system::text::shortened(text, MAX_MESSAGE)
}
