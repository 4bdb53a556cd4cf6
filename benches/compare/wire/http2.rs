//! HTTP/2: after the first request, all header fields are in the HPACK table; flow-control windows are as large as
//! Go's.

use testkit::frames::{
    ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, frame, window_update,
};

use super::{ClientCodec, Received, RequestTemplate};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER: usize = 9;

const INITIAL_WINDOW_SIZE: u16 = 4;
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 1 << 30;
/// Received bytes after which the client sends a `WINDOW_UPDATE` for the connection.
const WINDOW_UPDATE_SIZE: u32 = 16 << 20;

/// Indexes of the static table: `:method: GET`, `:scheme: https`, `:status: 200`, and the names `:path` and
/// `:authority`.
const METHOD_AND_SCHEME: [u8; 2] = [0x82, 0x87];
const STATUS_200: u8 = 0x88;
const PATH: u8 = 4;
const AUTHORITY: u8 = 1;
/// The first index of the dynamic table.
const DYNAMIC: u8 = 62;

pub(crate) struct Http2 {
    /// The header block of the first request, which fills the dynamic table.
    first: Option<Vec<u8>>,
    /// The header block of later requests, which refers to the table.
    indexed: Vec<u8>,
    stream: u32,
    /// The received part of an incomplete frame. DATA payloads are counted and not copied.
    frame: Vec<u8>,
    data: usize,
    ends: bool,
    used: u32,
}

impl Http2 {
    pub(crate) fn new(template: &RequestTemplate) -> Self {
        let mut first = METHOD_AND_SCHEME.to_vec();
        let mut indexed = METHOD_AND_SCHEME.to_vec();
        let known = [(AUTHORITY, "localhost"), (PATH, template.path.as_str())];
        for (name, value) in known {
            first.push(0x40 | name);
            literal(&mut first, value);
        }
        for (name, value) in &template.headers {
            first.push(0x40);
            literal(&mut first, name);
            literal(&mut first, value);
        }
        // The newest entry has the lowest index.
        let entries = u8::try_from(known.len() + template.headers.len()).unwrap();
        indexed.extend((0..entries).rev().map(|entry| 0x80 | (DYNAMIC + entry)));
        let frame = Vec::new();
        Self { first: Some(first), indexed, stream: 1, frame, data: 0, ends: false, used: 0 }
    }

    /// Handles a frame other than DATA.
    fn handle_frame(kind: u8, flags: u8, payload: &[u8], received: &mut Received, out: &mut Vec<u8>) {
        match kind {
            HEADERS => {
                // The block may begin with a dynamic table size update.
                let status = payload.iter().find(|byte| *byte >> 5 != 1);
                assert_eq!(status, Some(&STATUS_200), "unexpected status");
                received.headers += 1;
                received.responses += usize::from(flags & END_STREAM != 0);
            }
            SETTINGS if flags & ACK == 0 => out.extend(frame(SETTINGS, ACK, 0, &[])),
            PING if flags & ACK == 0 => out.extend(frame(PING, ACK, 0, payload)),
            RST_STREAM | GOAWAY => {
                panic!("the server ended the stream or connection: frame {kind}, {payload:?}")
            }
            _ => {}
        }
    }

    fn release_window(&mut self, length: usize, out: &mut Vec<u8>) {
        self.used += u32::try_from(length).unwrap();
        if self.used >= WINDOW_UPDATE_SIZE {
            out.extend(window_update(0, self.used));
            self.used = 0;
        }
    }
}

impl ClientCodec for Http2 {
    fn write_preface(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(PREFACE);
        let window = [&INITIAL_WINDOW_SIZE.to_be_bytes()[..], &STREAM_WINDOW.to_be_bytes()[..]].concat();
        out.extend(frame(SETTINGS, 0, 0, &window));
        out.extend(window_update(0, CONNECTION_WINDOW));
    }

    fn write_request(&mut self, out: &mut Vec<u8>) {
        let first = self.first.take();
        let block = first.as_ref().unwrap_or(&self.indexed);
        out.extend(frame(HEADERS, END_STREAM | END_HEADERS, self.stream, block));
        self.stream += 2;
    }

    fn receive(&mut self, mut input: &[u8], out: &mut Vec<u8>) -> Received {
        let mut received = Received::default();
        loop {
            let taken = input.len().min(self.data);
            self.data -= taken;
            input = &input[taken..];
            if self.data == 0 && std::mem::take(&mut self.ends) {
                received.responses += 1;
            }
            if input.is_empty() {
                return received;
            }
            let wanted = FRAME_HEADER + if self.frame.len() < FRAME_HEADER { 0 } else { length(&self.frame) };
            let taken = input.len().min(wanted - self.frame.len());
            self.frame.extend_from_slice(&input[..taken]);
            input = &input[taken..];
            if self.frame.len() < FRAME_HEADER {
                continue;
            }
            let (length, kind, flags) = (length(&self.frame), self.frame[3], self.frame[4]);
            if kind == DATA {
                (self.data, self.ends) = (length, flags & END_STREAM != 0);
                self.frame.clear();
                self.release_window(length, out);
            } else if self.frame.len() == FRAME_HEADER + length {
                let frame = std::mem::take(&mut self.frame);
                Self::handle_frame(kind, flags, &frame[FRAME_HEADER..], &mut received, out);
            }
        }
    }
}

/// The payload length in a frame header.
fn length(frame: &[u8]) -> usize {
    usize::from(frame[0]) << 16 | usize::from(frame[1]) << 8 | usize::from(frame[2])
}

/// Appends a string literal without Huffman coding.
// RFC 7541, section 5.2
fn literal(block: &mut Vec<u8>, text: &str) {
    let mut rest = text.len();
    if rest < 127 {
        block.push(u8::try_from(rest).unwrap());
    } else {
        block.push(127);
        rest -= 127;
        while rest >= 128 {
            block.push(u8::try_from(rest % 128).unwrap() | 128);
            rest /= 128;
        }
        block.push(u8::try_from(rest).unwrap());
    }
    block.extend_from_slice(text.as_bytes());
}
