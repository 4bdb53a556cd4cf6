//! The members of a compressed stream. kube-apiserver compresses each flush, of one event or more, as a gzip member of its own.
// RFC 1952, section 2.2

use flate2::{Decompress, FlushDecompress, Status};

/// A header without optional fields, which Go does not write, and no compression method but deflate.
const HEADER: [u8; 4] = [0x1f, 0x8b, 8, 0];
const HEADER_LENGTH: usize = 10;
/// The checksum and the length.
const TRAILER_LENGTH: usize = 8;
/// The longest text that a member of any size may have; beyond it, at most so many times its own size. Events are JSON, which
/// shrinks to a third or a tenth, so what goes beyond is made to cost time.
const MAX_TEXT: u64 = 1 << 20;
const MAX_RATIO: u64 = 64;

/// Finds the ends of the members, and their texts. Between two members it has no state of decompression, which takes more memory than all
/// else that belongs to a watch.
#[derive(Debug, Default)]
pub(super) struct GzipMembers(Part);

#[derive(Debug)]
enum Part {
    Header {
        known: usize,
    },
    Text(Box<Decompress>),
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
    pub(super) fn pass(&mut self, data: &[u8], mut on_text: impl FnMut(&[u8])) -> bool {
        let mut rest = data;
        while !rest.is_empty() {
            rest = self.0.pass(rest, &mut on_text);
        }
        matches!(self.0, Part::Header { known: 0 })
    }
}

impl Part {
    /// Takes the bytes that belong to this part, and returns the others.
    fn pass<'a>(&mut self, data: &'a [u8], on_text: &mut impl FnMut(&[u8])) -> &'a [u8] {
        match self {
            Self::Header { known } => {
                let Some((byte, rest)) = data.split_first() else { return data };
                if HEADER.get(*known).is_some_and(|expected| expected != byte) {
                    *self = Self::Unknown;
                    return rest;
                }
                *known += 1;
                if *known == HEADER_LENGTH {
                    *self = Self::Text(Box::new(Decompress::new(false)));
                }
                rest
            }
            Self::Text(decompress) => {
                let (rest, next) = text(decompress, data, on_text);
                if let Some(next) = next {
                    *self = next;
                }
                rest
            }
            Self::Trailer { left } => {
                let skipped = data.len().min(*left);
                *left -= skipped;
                if *left == 0 {
                    *self = Self::default();
                }
                data.get(skipped..).unwrap_or_default()
            }
            Self::Unknown => &[],
        }
    }
}

/// Decompresses; returns the bytes behind the text, and the part that follows it.
fn text<'a>(
    decompress: &mut Decompress,
    data: &'a [u8],
    on_text: &mut impl FnMut(&[u8]),
) -> (&'a [u8], Option<Part>) {
    let mut rest = data;
    let mut text = [0; 4096];
    loop {
        let before = (decompress.total_in(), decompress.total_out());
        let Ok(status) = decompress.decompress(rest, &mut text, FlushDecompress::None) else {
            return (&[], Some(Part::Unknown));
        };
        let (read, written) = (decompress.total_in() - before.0, decompress.total_out() - before.1);
        let count = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        rest = rest.get(count(read)..).unwrap_or_default();
        on_text(text.get(..count(written)).unwrap_or_default());
        let longest = MAX_TEXT.max(MAX_RATIO * decompress.total_in());
        match status {
            _ if decompress.total_out() > longest => return (&[], Some(Part::Unknown)),
            Status::StreamEnd => return (rest, Some(Part::Trailer { left: TRAILER_LENGTH })),
            _ if (read, written) == (0, 0) => return (&[], None),
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
    fn a_member_that_is_made_to_cost_time_is_not_followed() {
        let large = member(&vec![b' '; 64 << 20]);
        let mut members = GzipMembers::default();
        let mut length = 0;
        assert!(!members.pass(&large, |text| length += text.len()));
        assert!(length < 9 << 20, "{length}");
    }
}
