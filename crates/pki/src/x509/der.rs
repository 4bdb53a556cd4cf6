//! A DER reader, exactly as strict as Go's `cryptobyte`.
//!
//! Go aborts the TLS handshake when it cannot parse the client certificate, so the accepted encodings are part of the
//! contract. General-purpose readers are stricter than Go in some places and more lenient in others (indefinite
//! lengths, padded integers, trailing bytes). This reader never panics: every access is checked.

/// Identifier octets.
pub mod tag {
    /// `BOOLEAN`
    pub const BOOLEAN: u8 = 0x01;
    /// `INTEGER`
    pub const INTEGER: u8 = 0x02;
    /// `BIT STRING`
    pub(crate) const BIT_STRING: u8 = 0x03;
    /// `OCTET STRING`
    pub const OCTET_STRING: u8 = 0x04;
    /// `OBJECT IDENTIFIER`
    pub const OID: u8 = 0x06;
    pub(crate) const ENUMERATED: u8 = 0x0a;
    pub(crate) const UTF8_STRING: u8 = 0x0c;
    pub(crate) const NUMERIC_STRING: u8 = 0x12;
    pub(crate) const PRINTABLE_STRING: u8 = 0x13;
    pub(crate) const T61_STRING: u8 = 0x14;
    pub(crate) const IA5_STRING: u8 = 0x16;
    pub(crate) const UTC_TIME: u8 = 0x17;
    pub(crate) const GENERALIZED_TIME: u8 = 0x18;
    pub(crate) const BMP_STRING: u8 = 0x1e;
    /// `SEQUENCE`
    pub const SEQUENCE: u8 = 0x30;
    /// `SET`
    pub const SET: u8 = 0x31;

    /// `[n]`, primitive.
    pub const fn context(n: u8) -> u8 {
        0x80 | n
    }

    /// `[n]`, constructed.
    pub const fn explicit(n: u8) -> u8 {
        0xa0 | n
    }
}

/// A cursor over encoded elements. Methods read the next element; `None` means a different or malformed element.
#[derive(Debug, Clone, Copy)]
pub struct DerReader<'a>(&'a [u8]);

/// An encoded element.
#[derive(Debug, Clone, Copy)]
pub struct DerElement<'a> {
    /// The tag, of one octet.
    pub tag: u8,
    /// The content.
    pub content: &'a [u8],
    /// Tag, length and content.
    pub whole: &'a [u8],
}

/// The element has the expected tag, but is malformed.
#[derive(Debug, Clone, Copy)]
pub struct MalformedDer;

/// A BIT STRING.
#[derive(Debug, Clone, Copy)]
pub struct BitString<'a> {
    bytes: &'a [u8],
    unused: u8,
}

impl<'a> DerReader<'a> {
    /// A reader of these elements.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether no element is left.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The unread bytes.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Whether the next element has this tag.
    pub fn peek(self, tag: u8) -> bool {
        self.0.first() == Some(&tag)
    }

    /// The next element, of any tag. Rejects high tag numbers, indefinite and non-minimal lengths.
    pub fn any(&mut self) -> Option<DerElement<'a>> {
        let [tag, first, rest @ ..] = self.0 else {
            return None;
        };
        if tag & 0x1f == 0x1f {
            return None;
        }
        let (header, length) = if first & 0x80 == 0 {
            (2, usize::from(*first))
        } else {
            let octets = rest.get(..usize::from(first & 0x7f))?;
            if octets.is_empty() || octets.len() > 4 || octets.first() == Some(&0) {
                return None;
            }
            let length = octets.iter().fold(0_u64, |sum, octet| sum << 8 | u64::from(*octet));
            if length < 0x80 {
                return None;
            }
            (2 + octets.len(), usize::try_from(length).ok()?)
        };
        let end = header.checked_add(length)?;
        let (whole, after) = self.0.split_at_checked(end)?;
        let content = whole.get(header..)?;
        self.0 = after;
        Some(DerElement { tag: *tag, content, whole })
    }

    /// The content of the next element, if it has this tag. An element of another tag is consumed as well, as in Go:
    /// every caller fails then.
    pub fn read(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.any().filter(|element| element.tag == tag).map(|element| element.content)
    }

    /// A reader of the content of the next element, if it has this tag.
    pub fn enter(&mut self, tag: u8) -> Option<Self> {
        self.read(tag).map(DerReader)
    }

    /// The next element with its header, if it has this tag.
    pub fn whole(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.any().filter(|element| element.tag == tag).map(|element| element.whole)
    }

    /// The content of the next element if it has this tag; `Ok(None)` at another tag or at the end.
    pub fn optional(&mut self, tag: u8) -> Result<Option<&'a [u8]>, MalformedDer> {
        if !self.peek(tag) {
            return Ok(None);
        }
        self.read(tag).map(Some).ok_or(MalformedDer)
    }

    /// Reads a `BOOLEAN`.
    pub fn boolean(&mut self) -> Option<bool> {
        match self.read(tag::BOOLEAN)? {
            [0] => Some(false),
            [0xff] => Some(true),
            _ => None,
        }
    }

    /// The two's complement content of a minimally encoded INTEGER.
    pub fn integer(&mut self) -> Option<&'a [u8]> {
        self.read(tag::INTEGER).filter(|content| minimal(content))
    }

    /// Reads an `INTEGER` of at most 64 bits.
    pub fn int64(&mut self) -> Option<i64> {
        self.int64_tagged(tag::INTEGER)
    }

    pub(crate) fn int64_tagged(&mut self, tag: u8) -> Option<i64> {
        let content = self.read(tag).filter(|content| minimal(content) && content.len() <= 8)?;
        let fill = if content.first()? & 0x80 == 0 { 0 } else { 0xff };
        let mut octets = [fill; 8];
        octets.get_mut(8 - content.len()..)?.copy_from_slice(content);
        Some(i64::from_be_bytes(octets))
    }

    /// The content of an OBJECT IDENTIFIER whose arcs are minimally encoded and below 2³¹. Equal identifiers have equal
    /// contents.
    pub fn oid(&mut self) -> Option<&'a [u8]> {
        self.read(tag::OID).filter(|content| {
            let mut arc = None;
            for octet in *content {
                let value = match arc {
                    None if *octet == 0x80 => return false,
                    None => 0_u64,
                    Some(value) => value,
                };
                let value = value << 7 | u64::from(octet & 0x7f);
                if value >= 1 << 31 {
                    return false;
                }
                arc = if octet & 0x80 == 0 { None } else { Some(value) };
            }
            !content.is_empty() && arc.is_none()
        })
    }

    /// Reads a `BIT STRING`.
    pub fn bits(&mut self) -> Option<BitString<'a>> {
        let [unused, bytes @ ..] = self.read(tag::BIT_STRING)? else {
            return None;
        };
        let mask = 1_u8.checked_shl(u32::from(*unused))?.wrapping_sub(1);
        match bytes.last() {
            None if *unused != 0 => None,
            Some(last) if last & mask != 0 => None,
            _ => Some(BitString { bytes, unused: *unused }),
        }
    }
}

impl BitString<'_> {
    /// Whether bit `index` is set; bit 0 is the most significant bit of the first octet.
    pub fn at(&self, index: usize) -> bool {
        self.bytes.get(index / 8).is_some_and(|octet| octet & (0x80 >> (index % 8)) != 0)
    }

    /// Whether no bit of the last octet is unused.
    pub(crate) fn is_of_octets(&self) -> bool {
        self.unused == 0
    }

    /// The bits as octets, shifted right by the number of unused bits.
    pub(crate) fn right_aligned(&self) -> Vec<u8> {
        if self.unused == 0 {
            return self.bytes.to_vec();
        }
        let mut carry = 0;
        let shift = |octet: &u8| {
            let shifted = octet >> self.unused | carry;
            carry = octet << (8 - self.unused);
            shifted
        };
        self.bytes.iter().map(shift).collect()
    }
}

fn minimal(content: &[u8]) -> bool {
    match content {
        [] => false,
        [0, second, ..] => second & 0x80 != 0,
        [0xff, second, ..] => second & 0x80 == 0,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::{DerReader, tag};

    #[test]
    fn lengths_are_minimal_and_definite() {
        let cases: &[(&str, &[u8], bool)] = &[
            ("short form", &[0x04, 0x01, 0xaa], true),
            ("indefinite", &[0x30, 0x80, 0x00, 0x00], false),
            ("long form of a short length", &[0x04, 0x81, 0x01, 0xaa], false),
            ("padded long form", &[0x04, 0x82, 0x00, 0x80], false),
            ("high tag number", &[0x1f, 0x01, 0x00], false),
            ("cut off", &[0x04, 0x02, 0xaa], false),
            ("nothing", &[], false),
            ("length of five octets", &[0x04, 0x85, 1, 0, 0, 0, 0], false),
        ];
        for (name, bytes, good) in cases {
            assert_eq!(DerReader::new(bytes).any().is_some(), *good, "{name}");
        }
    }

    #[test]
    fn integers_identifiers_and_bits_are_canonical() {
        assert_eq!(DerReader::new(&[2, 1, 0xff]).int64(), Some(-1));
        assert_eq!(DerReader::new(&[2, 2, 0x00, 0x80]).int64(), Some(128));
        assert_eq!(DerReader::new(&[2, 2, 0x00, 0x7f]).int64(), None, "padded");
        assert_eq!(DerReader::new(&[2, 0]).int64(), None, "empty");
        assert_eq!(DerReader::new(&[6, 3, 0x55, 0x04, 0x03]).oid(), Some(&[0x55, 0x04, 0x03][..]));
        assert_eq!(DerReader::new(&[6, 3, 0x55, 0x80, 0x03]).oid(), None, "padded arc");
        assert_eq!(DerReader::new(&[6, 2, 0x55, 0x84]).oid(), None, "cut off");
        assert_eq!(DerReader::new(&[6, 6, 0x55, 0x88, 0x80, 0x80, 0x80, 0x00]).oid(), None, "an arc of 2^31");
        let bits = DerReader::new(&[3, 2, 5, 0b1010_0000]).bits().unwrap();
        assert!(bits.at(0) && !bits.at(1) && bits.at(2) && !bits.at(9));
        assert_eq!(bits.right_aligned(), [0b101]);
        assert!(DerReader::new(&[3, 2, 5, 0b1011_0000]).bits().is_none(), "unused bits must be zero");
        assert!(DerReader::new(&[3, 2, 8, 0]).bits().is_none());
        assert_eq!(DerReader::new(&[1, 1, 1]).boolean(), None);
        assert!(!DerReader::new(&[0x30, 0]).peek(tag::SET));
    }
}
