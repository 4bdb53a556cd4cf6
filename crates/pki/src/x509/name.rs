//! Distinguished names: the attributes of a subject as Go decodes them.
//!
//! Go has two decoders. In a certificate, every attribute must decode, or the whole certificate is rejected, so an
//! unusual encoding cannot hide a group. In a certificate request, Go skips values that are not strings.

use super::certificate::ParseError;
use super::der::{DerElement, DerReader, MalformedDer, tag};
use super::time;

/// 1.3.6.1.4.1.57683.2, the Kubernetes attribute for the UID of a user.
const KUBERNETES_UID: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xc2, 0x53, 0x02];

/// The attributes of Go's `pkix.Name`. An issued certificate has these and no others.
// go: crypto/x509/pkix/pkix.go, Name
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DistinguishedName {
    /// C
    pub country: Vec<String>,
    /// ST
    pub province: Vec<String>,
    /// L
    pub locality: Vec<String>,
    /// STREET
    pub street_address: Vec<String>,
    /// POSTALCODE
    pub postal_code: Vec<String>,
    /// O: the groups of a Kubernetes user, in order, with duplicates.
    pub organization: Vec<String>,
    /// OU
    pub organizational_unit: Vec<String>,
    /// The last CN, the name of a Kubernetes user; empty if absent.
    pub common_name: String,
    /// The last SERIALNUMBER attribute; empty if absent.
    pub serial_number: String,
}

/// The subject of a certificate: its name, and the UIDs of the user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateSubject {
    /// The distinguished name.
    pub name: DistinguishedName,
    /// Every UID attribute, in order.
    pub uids: Vec<String>,
}

/// One of Go's two name decoders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameDecoder {
    /// Rejects values that are not strings of a known type.
    // go: crypto/x509/parser.go, parseName
    Certificate,
    /// Skips values of other types, though the basic ones must be well-formed.
    // go: encoding/asn1/asn1.go, parseField
    Request,
}

impl CertificateSubject {
    /// Decodes an encoded Name.
    pub fn parse(encoded: &[u8], reader: NameDecoder) -> Result<Self, ParseError> {
        let mut subject = Self::default();
        let mut rdns =
            DerReader::new(encoded).enter(tag::SEQUENCE).ok_or(ParseError("x509: invalid RDNSequence"))?;
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
                    .and_then(|value| reader.value(&value).ok())
                    .ok_or(ParseError("x509: invalid RDNSequence: invalid attribute value"))?;
                if let Some(value) = value {
                    subject.take(kind, value);
                }
            }
        }
        Ok(subject)
    }

    // go: crypto/x509/pkix/pkix.go, FillFromRDNSequence
    fn take(&mut self, kind: &[u8], value: String) {
        let name = &mut self.name;
        match kind {
            // 2.5.4.x
            [0x55, 0x04, 3] => name.common_name = value,
            [0x55, 0x04, 5] => name.serial_number = value,
            [0x55, 0x04, 6] => name.country.push(value),
            [0x55, 0x04, 7] => name.locality.push(value),
            [0x55, 0x04, 8] => name.province.push(value),
            [0x55, 0x04, 9] => name.street_address.push(value),
            [0x55, 0x04, 10] => name.organization.push(value),
            [0x55, 0x04, 11] => name.organizational_unit.push(value),
            [0x55, 0x04, 17] => name.postal_code.push(value),
            KUBERNETES_UID => self.uids.push(value),
            _ => {}
        }
    }
}

impl NameDecoder {
    /// The text of a value, or `None` for a skipped one; an error if the value makes the name invalid.
    fn value(self, value: &DerElement<'_>) -> Result<Option<String>, MalformedDer> {
        if let Some(text) = text(value) {
            return Ok(Some(text));
        }
        if self == Self::Certificate {
            return Err(MalformedDer);
        }
        let mut der = DerReader::new(value.whole);
        let well_formed = match value.tag {
            tag::PRINTABLE_STRING
            | tag::IA5_STRING
            | tag::NUMERIC_STRING
            | tag::UTF8_STRING
            | tag::BMP_STRING => false,
            tag::BOOLEAN => der.boolean().is_some(),
            tag::INTEGER => der.int64().is_some(),
            tag::BIT_STRING => der.bits().is_some(),
            tag::OID => der.oid().is_some(),
            tag::UTC_TIME | tag::GENERALIZED_TIME => time::read(&mut der).is_ok(),
            _ => true,
        };
        if well_formed { Ok(None) } else { Err(MalformedDer) }
    }
}

/// The text of a value, if it is a string that Go decodes.
pub fn text(value: &DerElement<'_>) -> Option<String> {
    decode(value.tag, value.content)
}

/// Decodes a string by its type; `None` for a malformed value, and for every other type.
// go: crypto/x509/parser.go, parseASN1String
fn decode(kind: u8, value: &[u8]) -> Option<String> {
    match kind {
        // Latin-1, as in Go and most other implementations.
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

/// The characters of a PrintableString, and `*` and `&`, which deployed certificates contain.
fn is_printable(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b" '()+,-./:=?*&".contains(&byte)
}

/// Decodes big-endian UCS-2: drops one trailing NUL, rejects surrogates and noncharacters.
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
        // Fails for surrogates.
        char::from_u32(u32::from(point))
    };
    value.chunks_exact(2).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::{DerReader, NameDecoder, decode, tag};

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

    #[test]
    fn a_request_may_have_values_that_a_certificate_may_not() {
        const CASES: &[(&str, &[u8], bool, bool)] = &[
            ("text", &[0x0c, 1, b'a'], true, true),
            ("universal string", &[0x1c, 4, 0, 0, 0, b'a'], false, true),
            ("visible string", &[0x1a, 1, b'a'], false, true),
            ("octets", &[4, 1, 0xff], false, true),
            ("a list", &[0x30, 0], false, true),
            ("a number", &[2, 1, 1], false, true),
            ("a padded number", &[2, 2, 0, 1], false, false),
            ("a boolean", &[1, 1, 0xff], false, true),
            ("a non-canonical boolean", &[1, 1, 1], false, false),
            ("a malformed time", &[0x17, 1, b'a'], false, false),
            ("a malformed string", &[0x13, 1, b'@'], false, false),
        ];
        for (name, value, in_certificate, in_request) in CASES {
            let element = DerReader::new(value).any().unwrap();
            assert_eq!(NameDecoder::Certificate.value(&element).is_ok(), *in_certificate, "{name}");
            assert_eq!(NameDecoder::Request.value(&element).is_ok(), *in_request, "{name}");
        }
    }
}
