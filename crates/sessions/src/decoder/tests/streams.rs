//! Streams as both sides would send them.

use flate2::{Compress, Compression, FlushCompress};

use super::super::Side;

/// Bytes and their sender.
pub(super) type Sent = (Side, Vec<u8>);

pub(super) const SUCCESS: &str = r#"{"metadata":{},"status":"Success"}"#;
pub(super) const EXIT_7: &str = r#"{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: exit status 7","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;

/// Frames of a WebSocket.
pub(super) mod websocket {
    use super::{Sent, Side};

    pub(in super::super) const CONTINUATION: u8 = 0;
    pub(in super::super) const BINARY: u8 = 2;
    pub(in super::super) const CLOSE: u8 = 8;
    pub(in super::super) const PING: u8 = 9;

    pub(in super::super) fn frame(from: Side, opcode: u8, last: bool, payload: &[u8]) -> Sent {
        let mut bytes = vec![opcode | if last { 0x80 } else { 0 }];
        let mask_bit = if from == Side::Client { 0x80 } else { 0 };
        match payload.len() {
            short @ ..=125 => bytes.push(mask_bit | u8::try_from(short).unwrap()),
            middle @ ..=65_535 => {
                bytes.push(mask_bit | 0x7e);
                bytes.extend(u16::try_from(middle).unwrap().to_be_bytes());
            }
            long => {
                bytes.push(mask_bit | 0x7f);
                bytes.extend(u64::try_from(long).unwrap().to_be_bytes());
            }
        }
        if from == Side::Client {
            let mask = [0x37, 0xfa, 0x21, 0x3d];
            bytes.extend(mask);
            bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, key)| byte ^ key));
        } else {
            bytes.extend(payload);
        }
        (from, bytes)
    }

    /// A message of a channel in one frame.
    pub(in super::super) fn message(from: Side, channel: u8, content: impl AsRef<[u8]>) -> Sent {
        frame(from, BINARY, true, &[&[channel], content.as_ref()].concat())
    }
}

/// Frames of SPDY.
pub(super) mod spdy {
    use super::{Compress, Compression, FlushCompress, Sent, Side};

    /// Compresses the header blocks of one side.
    #[derive(Debug)]
    pub(in super::super) struct Opener(Side, Compress);

    pub(in super::super) fn data(from: Side, id: u32, last: bool, payload: impl AsRef<[u8]>) -> Sent {
        let payload = payload.as_ref();
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        (from, [&id.to_be_bytes()[..], &[u8::from(last)], &length[1..], payload].concat())
    }

    pub(in super::super) fn control(from: Side, kind: u16, flags: u8, payload: &[u8]) -> Sent {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        (from, [&[0x80, 3], &kind.to_be_bytes()[..], &[flags], &length[1..], payload].concat())
    }

    impl Opener {
        pub(in super::super) fn new(side: Side) -> Self {
            Self(side, Compress::new(Compression::fast(), true))
        }

        pub(in super::super) fn open(&mut self, id: u32, headers: &[(&str, &str)]) -> Sent {
            let block = self.block(&pairs(headers));
            control(self.0, 1, 0, &[&id.to_be_bytes()[..], &[0; 6], &block].concat())
        }

        pub(in super::super) fn reply(&mut self, id: u32) -> Sent {
            let block = self.block(&pairs(&[]));
            control(self.0, 2, 0, &[&id.to_be_bytes()[..], &block].concat())
        }

        pub(in super::super) fn block(&mut self, plain: &[u8]) -> Vec<u8> {
            let mut block = Vec::with_capacity(plain.len() + 1024);
            self.1.compress_vec(plain, &mut block, FlushCompress::Sync).unwrap();
            block
        }
    }

    pub(in super::super) fn pairs(headers: &[(&str, &str)]) -> Vec<u8> {
        let long = |count: usize| u32::try_from(count).unwrap().to_be_bytes();
        let mut plain = long(headers.len()).to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.extend(long(text.len()));
            plain.extend(text.bytes());
        }
        plain
    }
}

/// A session with channels: everything that a client and a server send, with an output of this size.
pub(super) fn channels(size: usize) -> Vec<Sent> {
    use Side::{Client, Server};
    use websocket::{BINARY, CLOSE, CONTINUATION, PING, frame, message};
    vec![
        message(Client, 4, r#"{"Width":80,"Height":24}"#),
        message(Client, 4, "{\"Width\":65535,\"Height\":1}\n"),
        message(Server, 1, ""),
        message(Client, 0, "ls -l\n"),
        frame(Client, PING, true, b"are you there"),
        frame(Server, BINARY, false, b"\x01out"),
        frame(Server, PING, true, b"\x01"),
        frame(Server, CONTINUATION, false, b""),
        frame(Server, CONTINUATION, true, b"put\n"),
        message(Server, 2, "a warning\n"),
        message(Server, 1, vec![b'x'; size]),
        message(Server, 9, "ignored"),
        message(Client, 255, [0]),
        message(Server, 3, EXIT_7),
        frame(Server, CLOSE, true, b"\x03\xe8"),
        frame(Client, CLOSE, true, b"\x03\xe8bye"),
    ]
}

use super::super::Side::{Client, Server};
use spdy::{Opener, control, data};

/// A session over SPDY.
pub(super) fn spdy_session() -> Vec<Sent> {
    let (mut client, mut server) = (Opener::new(Client), Opener::new(Server));
    let mut sent = Vec::new();
    for (id, kind) in (1..).step_by(2).zip(["error", "stdin", "stdout", "stderr", "resize"]) {
        sent.push(client.open(id, &[("streamtype", kind)]));
        sent.push(server.reply(id));
    }
    sent.extend([
        data(Client, 9, false, r#"{"Width":80,"Height":24}"#),
        control(Client, 6, 0, &[0, 0, 0, 1]),
        control(Server, 6, 0, &[0, 0, 0, 1]),
        data(Client, 3, false, "ls\n"),
        control(Client, 9, 0, &[0, 0, 0, 5, 0, 0, 1, 0]),
        data(Server, 5, false, "output\n"),
        data(Server, 7, false, vec![b'e'; 400]),
        data(Client, 3, true, ""),
        data(Server, 5, true, "end"),
        control(Client, 4, 0, &[0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 16, 0]),
        data(Server, 1, false, &EXIT_7.as_bytes()[..30]),
        data(Server, 1, true, &EXIT_7.as_bytes()[30..]),
        control(Server, 7, 0, &[0, 0, 0, 9, 0, 0, 0, 0]),
    ]);
    sent
}

/// Two connections to ports over SPDY.
pub(super) fn spdy_ports() -> Vec<Sent> {
    let (mut client, mut server) = (Opener::new(Client), Opener::new(Server));
    let headers = |kind, port, request| [("streamtype", kind), ("port", port), ("requestid", request)];
    vec![
        client.open(1, &headers("error", "8080", "0")),
        server.reply(1),
        data(Client, 1, true, ""),
        client.open(3, &headers("data", "8080", "0")),
        server.reply(3),
        data(Client, 3, false, "GET / HTTP/1.1\r\n\r\n"),
        client.open(5, &headers("data", "5432", "1")),
        data(Server, 3, true, "HTTP/1.1 200 OK\r\n\r\n"),
        data(Client, 3, true, ""),
        data(Server, 1, true, "a text of the connection"),
        control(Server, 3, 0, &[0, 0, 0, 5, 0, 0, 0, 5]),
        client.open(7, &headers("data", "443", "2")),
    ]
}

/// The same bytes in messages of a WebSocket.
pub(super) fn tunnelled(sent: Vec<Sent>) -> Vec<Sent> {
    let frame = |from, last, bytes: &[u8]| {
        websocket::frame(from, if last { 0 } else { websocket::BINARY }, last, bytes)
    };
    let split = |(from, bytes): Sent| {
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        [frame(from, false, first), frame(from, true, rest)]
    };
    sent.into_iter().flat_map(split).collect()
}
