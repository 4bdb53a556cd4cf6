//! The resize channel: JSON values one after another, each with the size of the client's terminal.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::event::{SessionEvent, Side};

/// The maximum size of a value. Those of clients are below 64 bytes.
const MAX_SIZE: usize = 1024;
/// The maximum number of braces in a value, each of which costs an attempt to parse it.
const MAX_BRACES: u8 = 4;

/// Reads the resize channel. After a value that is none of a size, the server reads no other, and neither does this reader.
// apiserver: k8s.io/cri-streaming/pkg/streaming/remotecommand/httpstream.go, handleResizeEvents
#[derive(Debug, Default)]
pub(super) struct TerminalSizeReader {
    text: Vec<u8>,
    braces: u8,
    is_done: bool,
}

impl TerminalSizeReader {
    pub(super) fn read(&mut self, bytes: &[u8], events: &mut dyn FnMut(SessionEvent<'_>)) {
        for byte in bytes {
            if self.is_done {
                return;
            }
            // Independent of the chunks: a value begins after white space, and an object ends with a brace.
            if self.text.is_empty() && byte.is_ascii_whitespace() {
                continue;
            }
            self.text.push(*byte);
            if self.text.first() != Some(&b'{') || self.text.len() > MAX_SIZE {
                self.fail(events);
            } else if *byte == b'}' {
                self.try_value(events);
            }
        }
    }

    fn try_value(&mut self, events: &mut dyn FnMut(SessionEvent<'_>)) {
        self.braces += 1;
        match serde_json::from_slice(&self.text) {
            Ok(TerminalSize { columns, rows }) => {
                self.text.clear();
                self.braces = 0;
                events(SessionEvent::Resize { columns, rows });
            }
            // The brace ends an inner value.
            Err(error) if error.is_eof() && self.braces < MAX_BRACES => {}
            Err(_) => self.fail(events),
        }
    }

    fn fail(&mut self, events: &mut dyn FnMut(SessionEvent<'_>)) {
        self.text = Vec::new();
        self.is_done = true;
        events(SessionEvent::Skipped {
            from: Side::Client,
            why: "a terminal size that cannot be read, and those after it",
        });
    }

    pub(super) fn held(&self) -> usize {
        self.text.capacity()
    }
}

/// The size of a terminal, as `encoding/json` reads it: names in any case, of a repeated one the last, and zero if there is none.
#[derive(Debug, Default)]
struct TerminalSize {
    columns: u16,
    rows: u16,
}

impl<'de> Deserialize<'de> for TerminalSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TerminalSizeVisitor)
    }
}

struct TerminalSizeVisitor;

impl<'de> Visitor<'de> for TerminalSizeVisitor {
    type Value = TerminalSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the size of a terminal")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<TerminalSize, M::Error> {
        let mut size = TerminalSize::default();
        while let Some(name) = map.next_key::<String>()? {
            if name.eq_ignore_ascii_case("width") {
                // `null` leaves what was there.
                size.columns = map.next_value::<Option<u16>>()?.unwrap_or(size.columns);
            } else if name.eq_ignore_ascii_case("height") {
                size.rows = map.next_value::<Option<u16>>()?.unwrap_or(size.rows);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(size)
    }
}
