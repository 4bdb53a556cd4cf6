//! Follows the frames of a connection, to know how long the header block is that has begun to arrive: HTTP/2 ends only a block
//! that is far too long, and until its end nothing else of the connection can arrive. And how much has arrived, so that a connection
//! lets others have their turn.

/// The client's connection preface.
// RFC 9113, section 3.4
const PREFACE_LENGTH: usize = 24;
/// The length of a frame's header.
// RFC 9113, section 4.1
const FRAME_HEADER_LENGTH: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
/// How much of bodies one poll of a connection may take in. A thread has thousands of connections: what each one takes in at a time is
/// what the others wait for.
const MAX_BURST: usize = 128 << 10;
/// A byte of a header block counts as so many of a body: a field in it may be a single byte, and costs far more time.
const HEADER_WEIGHT: usize = 16;

/// Which side of a connection the gateway is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It reads what a client sends, which begins with the preface.
    Server,
    /// It reads what a server sends.
    Client,
}

/// The position in what arrives.
#[derive(Debug)]
pub(super) struct HeaderBlocks {
    /// The bytes to the next frame.
    skip: usize,
    header: [u8; FRAME_HEADER_LENGTH],
    /// How much of `header` is known.
    known: usize,
    /// The length of the block that has begun; 0: none has.
    block: usize,
    /// The weighted bytes since the last pause.
    since_pause: usize,
}

impl HeaderBlocks {
    pub(super) fn new(role: Role) -> Self {
        let skip = if role == Role::Server { PREFACE_LENGTH } else { 0 };
        Self { skip, header: [0; FRAME_HEADER_LENGTH], known: 0, block: 0, since_pause: 0 }
    }

    /// Whether so much has arrived that others should have their turn before the next of it; at most once for [`MAX_BURST`] bytes of
    /// bodies.
    // threat: header-decoding
    pub(super) fn needs_pause(&mut self) -> bool {
        let needs_pause = self.since_pause >= MAX_BURST;
        if needs_pause {
            self.since_pause = 0;
        }
        needs_pause
    }

    /// These bytes arrive. Returns the length of the header block that has begun then, with the frame whose header has arrived.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() {
            let skipped = self.skip.min(rest.len());
            self.skip -= skipped;
            rest = rest.get(skipped..).unwrap_or_default();
            let taken = (FRAME_HEADER_LENGTH - self.known).min(rest.len());
            let (Some(target), Some(source)) =
                (self.header.get_mut(self.known..self.known + taken), rest.get(..taken))
            else {
                break;
            };
            target.copy_from_slice(source);
            self.known += taken;
            rest = rest.get(taken..).unwrap_or_default();
            if self.known == FRAME_HEADER_LENGTH {
                self.begin_frame();
            }
        }
        self.block
    }

    fn begin_frame(&mut self) {
        let [a, b, c, kind, flags, ..] = self.header;
        let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX);
        (self.skip, self.known) = (length, 0);
        let weight = if matches!(kind, HEADERS | CONTINUATION) { HEADER_WEIGHT } else { 1 };
        self.since_pause = self.since_pause.saturating_add(length.saturating_mul(weight));
        self.block = match kind {
            HEADERS | CONTINUATION if flags & END_HEADERS == 0 => {
                self.block.saturating_add(length).saturating_add(FRAME_HEADER_LENGTH)
            }
            _ => 0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: u8 = 0;

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let mut frame = u32::try_from(length).unwrap().to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, 1]);
        frame.resize(FRAME_HEADER_LENGTH + length, b'x');
        frame
    }

    #[test]
    fn others_have_their_turn_between_bodies_and_more_often_between_header_blocks() {
        for (kind, length) in [(HEADERS, MAX_BURST / HEADER_WEIGHT / 2), (DATA, MAX_BURST / 2)] {
            let mut blocks = HeaderBlocks::new(Role::Client);
            let pauses = (0..10).filter(|_| {
                blocks.pass(&frame(kind, END_HEADERS, length));
                blocks.needs_pause()
            });
            assert_eq!((pauses.count(), blocks.needs_pause()), (5, false), "{kind}");
        }
    }

    #[test]
    fn a_block_counts_from_its_first_frame_to_its_last() {
        let frames = [
            (frame(4, 0, 6), 0),
            (frame(0, 0, 300), 0),
            (frame(HEADERS, END_HEADERS, 20), 0),
            (frame(HEADERS, 1, 20), 29),
            (frame(CONTINUATION, 0, 16_384), 29 + 16_393),
            // An empty frame counts, too: there may be many.
            (frame(CONTINUATION, 0, 0), 29 + 16_393 + 9),
            (frame(CONTINUATION, END_HEADERS, 5), 0),
            (frame(0, END_HEADERS, 0), 0),
        ];
        for role in [Role::Server, Role::Client] {
            let preface = if role == Role::Server { PREFACE_LENGTH } else { 0 };
            for part in [1, 2, 7, 9, 1000, 100_000] {
                let mut blocks = HeaderBlocks::new(role);
                assert_eq!(blocks.pass(&vec![HEADERS; preface]), 0);
                for (frame, expected) in &frames {
                    let found = frame.chunks(part).map(|piece| blocks.pass(piece)).last();
                    assert_eq!(found, Some(*expected), "{role:?} {part}");
                }
                let all: Vec<u8> = frames.iter().flat_map(|(frame, _)| frame.clone()).collect();
                assert_eq!(blocks.pass(&all), 0, "{role:?}");
                assert_eq!(blocks.pass(&all[..all.len() - 20]), 29 + 16_393 + 9, "{role:?}");
            }
        }
    }
}
