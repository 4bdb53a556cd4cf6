//! Bytes of a terminal as text, and text as a JSON string.

use std::fmt::Write as _;

/// Joins characters that are split between chunks. Invalid bytes become U+FFFD.
#[derive(Debug, Default)]
pub(super) struct Utf8Joiner {
    /// The start of a character: up to three bytes.
    held: Vec<u8>,
}

/// Text of a chunk.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct JoinedText {
    pub(super) text: String,
    /// The number of bytes that U+FFFD stands for.
    pub(super) replaced: usize,
    /// The first of them, as hexadecimal digits.
    pub(super) sample: String,
}

/// The number of replaced bytes that are shown.
const SAMPLE: usize = 16;

impl Utf8Joiner {
    pub(super) fn join(&mut self, bytes: &[u8]) -> JoinedText {
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        let mut joined = JoinedText::default();
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            joined.text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if chunks.peek().is_none() && is_start(invalid) {
                self.held = invalid.to_vec();
            } else if !invalid.is_empty() {
                joined.replace(invalid);
            }
        }
        joined
    }

    /// The text of a character whose rest has not come.
    pub(super) fn finish(&mut self) -> JoinedText {
        let mut joined = JoinedText::default();
        if !self.held.is_empty() {
            joined.replace(&std::mem::take(&mut self.held));
        }
        joined
    }
}

impl JoinedText {
    fn replace(&mut self, invalid: &[u8]) {
        self.text.push('\u{fffd}');
        for byte in invalid {
            if self.replaced < SAMPLE {
                self.sample.extend(portcullis_go::hex::digits(*byte));
            }
            self.replaced += 1;
        }
    }
}

/// Whether more bytes could make it a character.
fn is_start(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// Appends a JSON string. All control characters are escaped, so that the file itself does nothing on a terminal.
pub(super) fn push_json_string(text: &str, line: &mut String) {
    line.push('"');
    for c in text.chars() {
        match c {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            c if portcullis_system::text::is_obeyed(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // A string takes all that is written.
                    write!(line, "\\u{unit:04x}").ok();
                }
            }
            c => line.push(c),
        }
    }
    line.push('"');
}
