//! Distinguished names: the attributes of a subject as Go decodes them.
//!
//! Go 1.26 decodes every attribute of both names while it parses and gives up the whole certificate when one does not
//! decode, whatever the attribute is. So nothing is skipped here, and no group is lost by being written oddly.

use super::certificate::ParseError;
use super::der::{Der, tag};

/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// 2.5.4.10
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
/// 1.3.6.1.4.1.57683.2, Kubernetes' own attribute for the uid of a user.
const KUBERNETES_UID: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xc2, 0x53, 0x02];

/// The attributes of a subject that make an identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The last common name, as in Go's `pkix.Name`; empty if there is none.
    pub(crate) common_name: String,
    /// Every organisation, in order, duplicates kept.
    pub(crate) organizations: Vec<String>,
    /// Every uid attribute, in order.
    pub(crate) uids: Vec<String>,
}

impl Subject {
    /// Decodes a whole encoded Name.
    pub(crate) fn parse(encoded: &[u8]) -> Result<Self, ParseError> {
        let mut subject = Self::default();
        let mut rdns =
            Der::new(encoded).enter(tag::SEQUENCE).ok_or(ParseError("x509: invalid RDNSequence"))?;
        while !rdns.is_empty() {
            let mut set = rdns.enter(tag::SET).ok_or(ParseError("x509: invalid RDNSequence"))?;
            while !set.is_empty() {
                let mut attribute = set
                    .enter(tag::SEQUENCE)
                    .ok_or(ParseError("x509: invalid RDNSequence: invalid attribute"))?;
                let kind =
                    attribute.oid().ok_or(ParseError("x509: invalid RDNSequence: invalid attribute type"))?;
                let value = attribute
                    .any()
                    .and_then(|value| decode(value.tag, value.content))
                    .ok_or(ParseError("x509: invalid RDNSequence: invalid attribute value"))?;
                match kind {
                    COMMON_NAME => subject.common_name = value,
                    ORGANIZATION => subject.organizations.push(value),
                    KUBERNETES_UID => subject.uids.push(value),
                    _ => {}
                }
            }
        }
        Ok(subject)
    }
}

/// Decodes a string by its type; `None` for a value that does not fit its type, and for every other type.
// go: crypto/x509/parser.go, parseASN1String
fn decode(kind: u8, value: &[u8]) -> Option<String> {
    match kind {
        // Read as Latin-1, like everyone does.
        tag::T61_STRING => Some(value.iter().copied().map(char::from).collect()),
        tag::PRINTABLE_STRING => ascii(value, is_printable),
        tag::IA5_STRING => ascii(value, |byte| byte.is_ascii()),
        tag::NUMERIC_STRING => ascii(value, |byte| byte.is_ascii_digit() || byte == b' '),
        tag::UTF8_STRING => String::from_utf8(value.to_vec()).ok(),
        tag::BMP_STRING => bmp(value),
        _ => None,
    }
}

fn ascii(value: &[u8], allowed: impl Fn(u8) -> bool) -> Option<String> {
    value.iter().map(|byte| allowed(*byte).then(|| char::from(*byte))).collect()
}

/// The characters of a PrintableString, with `*` and `&`, which real certificates contain.
fn is_printable(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b" '()+,-./:=?*&".contains(&byte)
}

/// Big-endian UCS-2: one closing NUL is dropped, surrogates and noncharacters are refused.
fn bmp(value: &[u8]) -> Option<String> {
    let value = match value {
        [head @ .., 0, 0] => head,
        _ => value,
    };
    if value.len() % 2 != 0 {
        return None;
    }
    let point = |pair: &[u8]| {
        let point = u16::from_be_bytes(pair.try_into().ok()?);
        if matches!(point, 0xfffe | 0xffff | 0xfdd0..=0xfdef) {
            return None;
        }
        // A surrogate is no char.
        char::from_u32(u32::from(point))
    };
    value.chunks_exact(2).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::{decode, tag};

    #[test]
    fn strings_decode_by_their_type() {
        const CASES: &[(&str, u8, &[u8], Option<&str>)] = &[
            ("printable", tag::PRINTABLE_STRING, b"a*&b", Some("a*&b")),
            ("printable, @", tag::PRINTABLE_STRING, b"a@b", None),
            ("printable, underscore", tag::PRINTABLE_STRING, b"a_b", None),
            ("utf8", tag::UTF8_STRING, "josé".as_bytes(), Some("josé")),
            ("utf8, broken", tag::UTF8_STRING, b"jos\xe9", None),
            ("utf8, NUL", tag::UTF8_STRING, b"a\0b", Some("a\0b")),
            ("t61 is latin-1", tag::T61_STRING, b"jos\xe9", Some("josé")),
            ("ia5", tag::IA5_STRING, b"a@b", Some("a@b")),
            ("ia5, high byte", tag::IA5_STRING, b"\xe9", None),
            ("numeric", tag::NUMERIC_STRING, b"12 3", Some("12 3")),
            ("numeric, letter", tag::NUMERIC_STRING, b"1a", None),
            ("bmp", tag::BMP_STRING, b"\0a\x01\x7e", Some("až")),
            ("bmp, terminated", tag::BMP_STRING, b"\0a\0\0", Some("a")),
            ("bmp, odd", tag::BMP_STRING, b"\0a\0", None),
            ("bmp, surrogates", tag::BMP_STRING, b"\xd8\x3d\xde\x00", None),
            ("bmp, nonchar", tag::BMP_STRING, b"\xff\xfe", None),
            ("universal", 0x1c, b"\0\0\0a", None),
            ("visible", 0x1a, b"a", None),
            ("integer", tag::INTEGER, b"\x01", None),
        ];
        for (name, kind, value, want) in CASES {
            assert_eq!(decode(*kind, value).as_deref(), *want, "{name}");
        }
    }
}
