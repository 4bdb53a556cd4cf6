//! The members of a compressed stream. kube-apiserver compresses each flush, of one event or more, as a gzip member of its own.
// RFC 1952, section 2.2

use flate2::{Decompress, FlushDecompress, Status};
use tokio::sync::{Semaphore, SemaphorePermit};

/// A header without optional fields, which Go does not write, and no compression method but deflate.
const HEADER: [u8; 4] = [0x1f, 0x8b, 8, 0];
const HEADER_LENGTH: usize = 10;
/// The checksum and the length.
const TRAILER_LENGTH: usize = 8;
/// The longest text of a stream of any size; beyond it, at most so many times the bytes that have passed. Events are JSON, which shrinks
/// to a third or a tenth, so what goes beyond is made to cost time.
const MAX_TEXT: u64 = 1 << 20;
const MAX_RATIO: u64 = 64;
/// The most members of a short stream; beyond it, one for so many bytes. That of the shortest event has more.
const MAX_MEMBERS: u64 = 64;
const MIN_MEMBER_BYTES: u64 = 64;
/// The members that may have begun and not ended, in all streams: each holds 43 KiB. Streams beyond are not followed, which keeps their
/// watches where they are, and nothing else.
static BEGUN: Semaphore = Semaphore::const_new(1024);

/// Finds the ends of the members, and their texts. Between two members it has no state of decompression, which takes more memory than all
/// else that belongs to a watch.
#[derive(Debug, Default)]
pub(super) struct GzipMembers {
    part: Part,
    passed: u64,
    text: u64,
    members: u64,
}

#[derive(Debug)]
enum Part {
    Header {
        known: usize,
    },
    Text(Box<Decompress>, Option<SemaphorePermit<'static>>),
    Trailer {
        left: usize,
    },
    /// What follows is not followed.
    Unknown,
}

impl Default for Part {
    fn default() -> Self {
        Self::Header { known: 0 }
    }
}

impl GzipMembers {
    /// These bytes pass, and `on_text` gets what they stand for. Returns whether they end with a member.
    // threat: compressed-watch
    pub(super) fn pass(&mut self, data: &[u8], mut on_text: impl FnMut(&[u8])) -> bool {
        let (mut rest, mut spare) = (data, None);
        while !rest.is_empty() {
            rest = self.pass_part(rest, &mut on_text, &mut spare);
        }
        if let Part::Text(_, permit @ None) = &mut self.part {
            match BEGUN.try_acquire() {
                Ok(begun) => *permit = Some(begun),
                Err(_) => self.part = Part::Unknown,
            }
        }
        matches!(self.part, Part::Header { known: 0 })
    }

    /// Takes the bytes that belong to one part, and returns the others.
    fn pass_part<'a>(
        &mut self,
        data: &'a [u8],
        on_text: &mut impl FnMut(&[u8]),
        spare: &mut Option<Box<Decompress>>,
    ) -> &'a [u8] {
        let before = data.len();
        let rest = match &mut self.part {
            Part::Header { known } => {
                let Some((byte, rest)) = data.split_first() else { return data };
                if HEADER.get(*known).is_some_and(|expected| expected != byte) {
                    self.part = Part::Unknown;
                    return &[];
                }
                *known += 1;
                if *known == HEADER_LENGTH {
                    self.members += 1;
                    let mut decompress = spare.take().unwrap_or_else(|| Box::new(Decompress::new(false)));
                    decompress.reset(false);
                    self.part = Part::Text(decompress, None);
                }
                rest
            }
            Part::Text(decompress, _) => {
                let longest = MAX_TEXT.max(MAX_RATIO.saturating_mul(self.passed));
                let left = longest.saturating_sub(self.text);
                let (rest, text, end) = decompressed(decompress, data, left, on_text);
                self.text += text;
                match end {
                    TextEnd::Pause => {}
                    TextEnd::Unknown => self.part = Part::Unknown,
                    TextEnd::End => {
                        let ended = std::mem::replace(&mut self.part, Part::Trailer { left: TRAILER_LENGTH });
                        if let Part::Text(decompress, _) = ended {
                            *spare = Some(decompress);
                        }
                    }
                }
                rest
            }
            Part::Trailer { left } => {
                let skipped = data.len().min(*left);
                *left -= skipped;
                if *left == 0 {
                    self.part = Part::default();
                }
                data.get(skipped..).unwrap_or_default()
            }
            Part::Unknown => &[],
        };
        self.passed += u64::try_from(before - rest.len()).unwrap_or(u64::MAX);
        if self.members > MAX_MEMBERS.max(self.passed / MIN_MEMBER_BYTES) {
            self.part = Part::Unknown;
        }
        rest
    }
}

/// Where decompression stops.
enum TextEnd {
    /// With the data.
    Pause,
    End,
    Unknown,
}

/// Decompresses at most `left` bytes of text; returns the bytes behind the text, and how long it was.
fn decompressed<'a>(
    decompress: &mut Decompress,
    data: &'a [u8],
    left: u64,
    on_text: &mut impl FnMut(&[u8]),
) -> (&'a [u8], u64, TextEnd) {
    let (mut rest, began) = (data, decompress.total_out());
    let mut text = [0; 4096];
    loop {
        let before = (decompress.total_in(), decompress.total_out());
        let Ok(status) = decompress.decompress(rest, &mut text, FlushDecompress::None) else {
            return (&[], 0, TextEnd::Unknown);
        };
        let (read, written) = (decompress.total_in() - before.0, decompress.total_out() - before.1);
        let count = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        rest = rest.get(count(read)..).unwrap_or_default();
        on_text(text.get(..count(written)).unwrap_or_default());
        let whole = decompress.total_out() - began;
        match status {
            _ if whole > left => return (&[], whole, TextEnd::Unknown),
            Status::StreamEnd => return (rest, whole, TextEnd::End),
            _ if (read, written) == (0, 0) => return (&[], whole, TextEnd::Pause),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn member(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn texts(members: &mut GzipMembers, data: &[u8]) -> (Vec<u8>, bool) {
        let mut texts = Vec::new();
        let is_whole = members.pass(data, |text| texts.extend_from_slice(text));
        (texts, is_whole)
    }

    #[test]
    fn members_end_where_they_end_however_they_arrive() {
        let events = [&b"{}\n"[..], b"", &vec![b'x'; 100_000], b"{\"a\":1}\n"];
        let stream = events.map(member);
        let ends: Vec<usize> = stream
            .iter()
            .scan(0, |end, member| {
                *end += member.len();
                Some(*end)
            })
            .collect();
        let whole = stream.concat();
        for size in [1, 2, 7, 17, 18, 19, 100, whole.len()] {
            let (mut members, mut passed, mut found) = (GzipMembers::default(), 0, Vec::new());
            for piece in whole.chunks(size) {
                let (text, is_whole) = texts(&mut members, piece);
                passed += piece.len();
                found.extend(text);
                assert_eq!(is_whole, ends.contains(&passed), "{size} {passed}");
            }
            assert_eq!(found, events.concat(), "{size}");
        }
    }

    #[test]
    fn what_is_no_member_never_ends() {
        let mut named = member(b"{}\n");
        named[3] = 8;
        let mut broken = member(b"{}\n");
        broken[10] = 0xff;
        let behind = [member(b"{}\n"), b"plain\n".to_vec()].concat();
        for stream in [b"plain\n".to_vec(), named, broken, behind] {
            let mut members = GzipMembers::default();
            assert!(!texts(&mut members, &stream).1, "{stream:?}");
            assert!(!texts(&mut members, &member(b"{}\n")).1, "{stream:?}");
        }
    }

    #[test]
    fn a_stream_that_is_made_to_cost_time_is_not_followed() {
        // One member, many small ones, and many empty ones.
        let streams = [
            member(&vec![b' '; 64 << 20]),
            member(&vec![b' '; 1 << 20]).repeat(1000),
            member(b"").repeat(100_000),
        ];
        for stream in streams {
            let (mut members, mut length, mut passed) = (GzipMembers::default(), 0, 0);
            for piece in stream.chunks(16 << 10) {
                members.pass(piece, |text| length += text.len());
                passed += piece.len();
                let most = (2 << 20) + 64 * passed;
                assert!(length < most, "{length} of {passed}");
            }
            assert!(matches!(members.part, Part::Unknown), "{length} of {passed}");
        }
    }

    #[test]
    fn events_are_followed_for_as_long_as_a_watch_lasts() {
        let event = member(br#"{"type":"MODIFIED","object":{"kind":"Lease","metadata":{"name":"node-1","resourceVersion":"4711"}}}"#);
        let mut members = GzipMembers::default();
        for _ in 0..10_000 {
            assert!(members.pass(&event, |_| {}));
        }
    }

    #[test]
    fn members_that_never_end_hold_no_more_than_some_memory() {
        let event = member(b"{}\n");
        let begun = || {
            let mut members = GzipMembers::default();
            members.pass(&event[..12], |_| {});
            members
        };
        let all: Vec<_> = (0..2000).map(|_| begun()).collect();
        let held = all.iter().filter(|members| matches!(members.part, Part::Text(..))).count();
        assert!(held <= 1024, "{held}");
        drop(all);
        let mut next = begun();
        assert!(next.pass(&event[12..], |_| {}), "there is room again");
    }
}
