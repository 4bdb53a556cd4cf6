//! The frames of one direction of a WebSocket (RFC 6455, section 5), without holding any.
//!
//! Frames are read as leniently as `golang.org/x/net/websocket` does, with which Kubernetes' servers read: reserved bits and
//! the highest bit of a length are ignored, unknown opcodes are data, and control frames may be long.
// apiserver: golang.org/x/net/websocket/hybi.go, NewFrameReader and HandleFrame

/// Unmasked bytes are given in pieces of this size.
const SCRATCH: usize = 2048;

/// Reads the frames of one direction.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    /// The head of the frame, up to 14 bytes.
    head: Vec<u8>,
    /// The frame whose payload is read.
    frame: Option<Frame>,
    /// The first two bytes of a close frame.
    close_code: Vec<u8>,
}

#[derive(Debug)]
struct Frame {
    kind: FrameKind,
    is_last: bool,
    mask: Option<[u8; 4]>,
    position: usize,
    remaining: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameKind {
    Data { continues: bool },
    Close,
    PingOrPong,
}

/// A part of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FramePart<'a> {
    /// A frame with data begins.
    Begin {
        /// Whether it continues the message of the frame before.
        continues: bool,
    },
    /// Data of the frame.
    Data(&'a [u8]),
    /// The frame with data has ended.
    End {
        /// Whether it was the last one of its message.
        is_last: bool,
    },
    /// A close frame, with its code.
    Close(Option<u16>),
}

/// A frame of a server: whole, and without a mask. The payload has less than 64 KiB.
// RFC 6455, 5.2
pub(super) fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap_or(u16::MAX);
    let mut frame = vec![0x80 | opcode];
    if let Ok(short @ ..126) = u8::try_from(length) {
        frame.push(short);
    } else {
        frame.push(126);
        frame.extend(length.to_be_bytes());
    }
    frame.extend(payload.iter().take(length.into()));
    frame
}

impl FrameReader {
    /// Whether the next byte is the first one of a frame.
    pub(super) fn is_between_frames(&self) -> bool {
        self.frame.is_none() && self.head.is_empty()
    }

    pub(super) fn read(&mut self, mut bytes: &[u8], parts: &mut dyn FnMut(FramePart<'_>)) {
        loop {
            if let Some(frame) = &mut self.frame {
                let length = usize::try_from(frame.remaining).unwrap_or(usize::MAX).min(bytes.len());
                let (payload, rest) = bytes.split_at(length);
                bytes = rest;
                frame.remaining -= u64::try_from(length).unwrap_or_default();
                match frame.kind {
                    FrameKind::Data { .. } => {
                        frame.unmask(payload, &mut |bytes| parts(FramePart::Data(bytes)));
                    }
                    FrameKind::Close => {
                        let code = &mut self.close_code;
                        let missing = 2_usize.saturating_sub(code.len());
                        let payload = payload.get(..missing).unwrap_or(payload);
                        frame.unmask(payload, &mut |bytes| code.extend_from_slice(bytes));
                    }
                    FrameKind::PingOrPong => {}
                }
                if frame.remaining > 0 {
                    return;
                }
                match frame.kind {
                    FrameKind::Data { .. } => parts(FramePart::End { is_last: frame.is_last }),
                    FrameKind::Close => {
                        let code = <[u8; 2]>::try_from(self.close_code.as_slice()).ok();
                        self.close_code.clear();
                        parts(FramePart::Close(code.map(u16::from_be_bytes)));
                    }
                    FrameKind::PingOrPong => {}
                }
                self.frame = None;
            }
            while self.frame.is_none() {
                let Some((byte, rest)) = bytes.split_first() else { return };
                bytes = rest;
                self.head.push(*byte);
                if let Some(frame) = Frame::parse(&self.head) {
                    self.head.clear();
                    if let FrameKind::Data { continues } = frame.kind {
                        parts(FramePart::Begin { continues });
                    }
                    self.frame = Some(frame);
                }
            }
        }
    }
}

impl Frame {
    /// The frame with this head; `None` while the head is not complete.
    fn parse(head: &[u8]) -> Option<Self> {
        let [first, second, rest @ ..] = head else { return None };
        let length_octets = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let is_masked = second & 0x80 != 0;
        if rest.len() < length_octets + if is_masked { 4 } else { 0 } {
            return None;
        }
        let (length, mask) = rest.split_at(length_octets);
        let remaining = match length {
            [] => u64::from(second & 0x7f),
            octets => octets.iter().fold(0, |sum, octet| sum << 8 | u64::from(*octet)) & (u64::MAX >> 1),
        };
        let kind = match first & 0xf {
            0x8 => FrameKind::Close,
            0x9 | 0xa => FrameKind::PingOrPong,
            opcode => FrameKind::Data { continues: opcode == 0 },
        };
        let mask = <[u8; 4]>::try_from(mask).ok();
        Some(Self { kind, is_last: first & 0x80 != 0, mask, position: 0, remaining })
    }

    fn unmask(&mut self, payload: &[u8], data: &mut dyn FnMut(&[u8])) {
        let Some(mask) = self.mask else {
            if !payload.is_empty() {
                data(payload);
            }
            return;
        };
        let mut scratch = [0; SCRATCH];
        for piece in payload.chunks(SCRATCH) {
            let mask = mask.iter().cycle().skip(self.position);
            for ((plain, masked), key) in scratch.iter_mut().zip(piece).zip(mask) {
                *plain = masked ^ key;
            }
            self.position = (self.position + piece.len()) % 4;
            data(scratch.get(..piece.len()).unwrap_or_default());
        }
    }
}
