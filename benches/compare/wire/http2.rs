//! HTTP/2: requests whose headers are all in the compression table after the first, and windows as large as Go's.

use testkit::frames::{
    ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, frame, window_update,
};

use super::{Ask, Heard, Wire};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER: usize = 9;

const INITIAL_WINDOW_SIZE: u16 = 4;
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 1 << 30;
/// The window is given back in pieces of this size.
const REFUND: u32 = 16 << 20;

/// In the static table: `:method: GET`, `:scheme: https`, and the name `:path`.
const METHOD_AND_SCHEME: [u8; 2] = [0x82, 0x87];
const STATUS_200: u8 = 0x88;
const PATH: u8 = 4;
const AUTHORITY: u8 = 1;
/// The first index of the dynamic table.
const DYNAMIC: u8 = 62;

pub(crate) struct Http2 {
    /// The header block that fills the table, and the one that refers to it.
    first: Option<Vec<u8>>,
    again: Vec<u8>,
    stream: u32,
    /// A frame of which only a part has come. Data is counted and left where it is.
    frame: Vec<u8>,
    data: usize,
    ends: bool,
    used: u32,
}

impl Http2 {
    pub(crate) fn new(ask: &Ask) -> Self {
        let mut first = METHOD_AND_SCHEME.to_vec();
        let mut again = METHOD_AND_SCHEME.to_vec();
        let known = [(AUTHORITY, "localhost"), (PATH, ask.path.as_str())];
        for (name, value) in known {
            first.push(0x40 | name);
            literal(&mut first, value);
        }
        for (name, value) in &ask.headers {
            first.push(0x40);
            literal(&mut first, name);
            literal(&mut first, value);
        }
        // The last that was added has the lowest index.
        let entries = u8::try_from(known.len() + ask.headers.len()).unwrap();
        again.extend((0..entries).rev().map(|entry| 0x80 | (DYNAMIC + entry)));
        let frame = Vec::new();
        Self { first: Some(first), again, stream: 1, frame, data: 0, ends: false, used: 0 }
    }

    /// Takes a frame without data.
    fn take(kind: u8, flags: u8, payload: &[u8], heard: &mut Heard, out: &mut Vec<u8>) {
        match kind {
            HEADERS => {
                // A change of the table's size may come first.
                let status = payload.iter().find(|byte| *byte >> 5 != 1);
                assert_eq!(status, Some(&STATUS_200), "refused");
                heard.heads += 1;
                heard.answers += usize::from(flags & END_STREAM != 0);
            }
            SETTINGS if flags & ACK == 0 => out.extend(frame(SETTINGS, ACK, 0, &[])),
            PING if flags & ACK == 0 => out.extend(frame(PING, ACK, 0, payload)),
            RST_STREAM | GOAWAY => panic!("the server gave up: frame {kind}, {payload:?}"),
            _ => {}
        }
    }

    fn refund(&mut self, length: usize, out: &mut Vec<u8>) {
        self.used += u32::try_from(length).unwrap();
        if self.used >= REFUND {
            out.extend(window_update(0, self.used));
            self.used = 0;
        }
    }
}

impl Wire for Http2 {
    fn greet(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(PREFACE);
        let window = [&INITIAL_WINDOW_SIZE.to_be_bytes()[..], &STREAM_WINDOW.to_be_bytes()[..]].concat();
        out.extend(frame(SETTINGS, 0, 0, &window));
        out.extend(window_update(0, CONNECTION_WINDOW));
    }

    fn ask(&mut self, out: &mut Vec<u8>) {
        let first = self.first.take();
        let block = first.as_ref().unwrap_or(&self.again);
        out.extend(frame(HEADERS, END_STREAM | END_HEADERS, self.stream, block));
        self.stream += 2;
    }

    fn hear(&mut self, mut input: &[u8], out: &mut Vec<u8>) -> Heard {
        let mut heard = Heard::default();
        loop {
            let taken = input.len().min(self.data);
            self.data -= taken;
            input = &input[taken..];
            if self.data == 0 && std::mem::take(&mut self.ends) {
                heard.answers += 1;
            }
            if input.is_empty() {
                return heard;
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
                self.refund(length, out);
            } else if self.frame.len() == FRAME_HEADER + length {
                let frame = std::mem::take(&mut self.frame);
                Self::take(kind, flags, &frame[FRAME_HEADER..], &mut heard, out);
            }
        }
    }
}

/// How long the payload of a frame is.
fn length(frame: &[u8]) -> usize {
    usize::from(frame[0]) << 16 | usize::from(frame[1]) << 8 | usize::from(frame[2])
}

/// A string as it is, without Huffman's code.
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
