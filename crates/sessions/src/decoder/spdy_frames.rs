//! The frames of one direction of SPDY/3.1, without holding any.
//!
//! Kubernetes' servers ignore the length of a control frame whose size is fixed: bytes beyond it would be the next frame.
//! Here a frame with another length than its type has is an error.
// apiserver: github.com/moby/spdystream/spdy/read.go, ReadFrame

use super::header_block::{HeaderBlockReader, StreamHeaders};

/// The bytes of each frame before its payload.
const HEAD: usize = 8;

/// Reads the frames of one direction.
#[derive(Debug, Default)]
pub(super) struct SpdyFrameReader {
    /// The head of the frame, with the fixed part of a control frame: up to 18 bytes.
    head: Vec<u8>,
    /// The frame whose payload is read.
    frame: Option<OpenFrame>,
    headers: HeaderBlockReader,
}

#[derive(Debug, Clone, Copy)]
struct OpenFrame {
    payload: Payload,
    stream: u32,
    is_last: bool,
    remaining: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Payload {
    Data,
    /// The headers of a new stream.
    SynStream,
    /// The reply to a new stream.
    SynReply,
    /// Other headers.
    Headers,
    Ignored,
}

/// A frame or a part of one.
#[derive(Debug)]
pub(super) enum SpdyFrame<'a> {
    /// A new stream.
    Open(u32, StreamHeaders),
    /// The receiver has accepted the stream.
    Replied(u32),
    /// Further headers of a stream.
    Headers,
    /// Data of a stream.
    Data(u32, &'a [u8]),
    /// The side sends no more on the stream.
    Ended(u32),
    /// The stream has ended for both sides.
    Reset(u32),
}

/// Kubernetes' servers take the first bit for a part of the number, and know no such stream.
const WRONG_STREAM: &str = "a control frame has an invalid stream";
const WRONG_LENGTH: &str = "a control frame has a wrong length";

impl SpdyFrameReader {
    pub(super) fn read(
        &mut self,
        mut bytes: &[u8],
        frames: &mut dyn FnMut(SpdyFrame<'_>) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        loop {
            if let Some(frame) = &mut self.frame {
                let (payload, rest) = bytes.split_at(frame.remaining.min(bytes.len()));
                bytes = rest;
                frame.remaining -= payload.len();
                match frame.payload {
                    Payload::Data if !payload.is_empty() => frames(SpdyFrame::Data(frame.stream, payload))?,
                    Payload::SynStream | Payload::SynReply | Payload::Headers => {
                        self.headers.read(payload)?;
                    }
                    Payload::Data | Payload::Ignored => {}
                }
                if frame.remaining > 0 {
                    return Ok(());
                }
                let OpenFrame { payload, stream, is_last, .. } = *frame;
                self.frame = None;
                match payload {
                    Payload::SynStream => frames(SpdyFrame::Open(stream, self.headers.end_block()?))?,
                    Payload::SynReply => {
                        self.headers.end_block()?;
                        frames(SpdyFrame::Replied(stream))?;
                    }
                    Payload::Headers => {
                        self.headers.end_block()?;
                        frames(SpdyFrame::Headers)?;
                    }
                    Payload::Data | Payload::Ignored => {}
                }
                if is_last {
                    frames(SpdyFrame::Ended(stream))?;
                }
            }
            while self.frame.is_none() {
                let Some((byte, rest)) = bytes.split_first() else { return Ok(()) };
                bytes = rest;
                self.head.push(*byte);
                let Some(head) = FrameHead::parse(&self.head)? else { continue };
                self.head.clear();
                match head {
                    FrameHead::Payload(frame) => self.frame = Some(frame),
                    FrameHead::Reset(stream) => frames(SpdyFrame::Reset(stream))?,
                    FrameHead::Ignored => {}
                }
            }
        }
    }
}

enum FrameHead {
    Payload(OpenFrame),
    Reset(u32),
    Ignored,
}

impl FrameHead {
    /// The frame that begins so; `None` while its head is not complete.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, &'static str> {
        let Some((head, fixed)) = bytes.split_first_chunk::<HEAD>() else {
            return Ok(None);
        };
        // A control bit and the stream, or the control bit, the version and the type; then flags, and the length.
        let head = u64::from_be_bytes(*head);
        let [stream, length] =
            [head >> 32, head & 0xff_ffff].map(|part| u32::try_from(part).unwrap_or_default());
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let (kind, is_last) = (stream & 0xffff, head & 0x100_0000 != 0);
        if stream & 0x8000_0000 == 0 {
            let frame = OpenFrame { payload: Payload::Data, stream, is_last, remaining: length };
            return Ok(Some(Self::Payload(frame)));
        }
        let (expected, payload) = match kind {
            // SYN_STREAM: stream, associated stream, priority and slot, headers.
            1 => (10, Some(Payload::SynStream)),
            // SYN_REPLY and HEADERS: stream, headers.
            2 => (4, Some(Payload::SynReply)),
            8 => (4, Some(Payload::Headers)),
            // SETTINGS: their number, eight bytes for each.
            4 => (4, Some(Payload::Ignored)),
            // PING.
            6 => (4, None),
            // RST_STREAM, GOAWAY and WINDOW_UPDATE.
            3 | 7 | 9 => (8, None),
            _ => return Err("a control frame has an unknown type"),
        };
        if length < expected || payload.is_none() && length != expected {
            return Err(WRONG_LENGTH);
        }
        if fixed.len() < expected {
            return Ok(None);
        }
        let first = fixed.first_chunk().copied().map_or(0, u32::from_be_bytes);
        // Not the number of settings or of a ping, and servers do nothing with a window.
        if matches!(kind, 1 | 2 | 3 | 8) && !(1..1 << 31).contains(&first) {
            return Err(WRONG_STREAM);
        }
        let remaining = length - expected;
        Ok(Some(match (payload, kind) {
            (Some(Payload::Ignored), _) => {
                if usize::try_from(first).ok().and_then(|count| count.checked_mul(8)) != Some(remaining) {
                    return Err(WRONG_LENGTH);
                }
                Self::Payload(OpenFrame { payload: Payload::Ignored, stream: 0, is_last: false, remaining })
            }
            (Some(payload), _) => Self::Payload(OpenFrame { payload, stream: first, is_last, remaining }),
            (None, 3) => Self::Reset(first),
            (None, _) => Self::Ignored,
        }))
    }
}
