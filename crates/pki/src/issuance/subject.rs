//! Subjects of requests, re-encoded from the attributes that Go's `pkix.Name` keeps.

use std::fmt;

use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::der::asn1::{Any, ObjectIdentifier};
use x509_cert::der::{self, Encode as _, Tag};

pub use crate::x509::name::DistinguishedName as Subject;

/// Why a text is not a valid name of a user or group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidIdentityName {
    /// The text is empty.
    #[error("it is empty")]
    Empty,
    /// HTTP servers would trim or reject the name in a header, or it looks like another name.
    #[error("it begins or ends with whitespace, or has a control character or an invisible one")]
    Invisible,
}

/// Checks the name of a user or group: it must be fully visible, and valid in an HTTP header.
pub fn check_name(name: &str) -> Result<(), InvalidIdentityName> {
    if name.is_empty() {
        return Err(InvalidIdentityName::Empty);
    }
    let at_the_ends = name.starts_with(char::is_whitespace) || name.ends_with(char::is_whitespace);
    if at_the_ends || name.chars().any(is_invisible) { Err(InvalidIdentityName::Invisible) } else { Ok(()) }
}

/// Control characters, line separators, and characters without a glyph.
fn is_invisible(c: char) -> bool {
    let is_ignorable = || DEFAULT_IGNORABLE.iter().any(|(first, last)| (*first..=*last).contains(&c));
    c.is_control() || matches!(c, '\u{2028}'..='\u{2029}') || is_ignorable()
}

/// The characters with the property `Default_Ignorable_Code_Point`: directions, joiners, fillers, variation selectors,
/// tags.
// Unicode 16.0.0, DerivedCoreProperties.txt
const DEFAULT_IGNORABLE: [(char, char); 17] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{202a}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fff8}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e0fff}'),
];

impl Subject {
    /// Whether the encoding has no attributes. An empty CN is omitted; an empty O is encoded.
    pub fn is_empty(&self) -> bool {
        self.attributes().next().is_none()
    }

    /// Encodes the Name: one RDN for each attribute type, with its values in the order of a DER SET.
    // go: crypto/x509/pkix/pkix.go, ToRDNSequence
    pub fn to_der(&self) -> Result<Vec<u8>, der::Error> {
        let mut rdns = Vec::new();
        for (_, oid, values) in self.attributes() {
            let mut set: Vec<Vec<u8>> =
                values.iter().map(|value| attribute(oid, value)).collect::<Result<_, _>>()?;
            // go: encoding/asn1/marshal.go, setEncoder — a value that is there twice stays twice
            set.sort_unstable();
            Any::new(Tag::Set, set.concat())?.encode_to_vec(&mut rdns)?;
        }
        Any::new(Tag::Sequence, rdns)?.to_der()
    }

    /// The encoded attributes, in order: the short name, the OID and the values.
    fn attributes(&self) -> impl Iterator<Item = (&'static str, ObjectIdentifier, &[String])> {
        let one = |value: &'_ String| if value.is_empty() { 0..0 } else { 0..1 };
        let common_name = std::slice::from_ref(&self.common_name).get(one(&self.common_name));
        let serial_number = std::slice::from_ref(&self.serial_number).get(one(&self.serial_number));
        [
            ("C", "2.5.4.6", self.country.as_slice()),
            ("ST", "2.5.4.8", &self.province),
            ("L", "2.5.4.7", &self.locality),
            ("STREET", "2.5.4.9", &self.street_address),
            ("POSTALCODE", "2.5.4.17", &self.postal_code),
            ("O", "2.5.4.10", &self.organization),
            ("OU", "2.5.4.11", &self.organizational_unit),
            ("CN", "2.5.4.3", common_name.unwrap_or_default()),
            ("SERIALNUMBER", "2.5.4.5", serial_number.unwrap_or_default()),
        ]
        .into_iter()
        .filter(|(.., values)| !values.is_empty())
        .map(|(name, oid, values)| (name, ObjectIdentifier::new_unwrap(oid), values))
    }
}

/// Encodes an attribute: as a PrintableString if possible, else as a UTF8String.
// go: encoding/asn1/marshal.go, makeField
fn attribute(oid: ObjectIdentifier, value: &str) -> Result<Vec<u8>, der::Error> {
    // Excludes `*` and `&`, which the parser accepts in a PrintableString.
    let printable = |byte: u8| byte.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&byte);
    let tag = if value.bytes().all(printable) { Tag::PrintableString } else { Tag::Utf8String };
    AttributeTypeAndValue { oid, value: Any::new(tag, value.as_bytes())? }.to_der()
}

/// Formats the attributes in the order of the encoding, `O=a + O=b, CN=c`, as `portcullis explain` shows subjects.
/// Escapes separators in values.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (name, _, values) in self.attributes() {
            f.write_str(comma)?;
            let mut plus = "";
            for value in values {
                write!(f, "{plus}{name}={}", escaped(value))?;
                plus = " + ";
            }
            comma = ", ";
        }
        Ok(())
    }
}

fn escaped(value: &str) -> String {
    let last = value.len().saturating_sub(1);
    let mut escaped = String::with_capacity(value.len());
    for (index, character) in value.char_indices() {
        let special = match character {
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' => true,
            ' ' => index == 0 || index == last,
            '#' => index == 0,
            _ => false,
        };
        if special {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::{Subject, check_name};
    use crate::issuance::testing::{element, strings};
    use crate::x509::name::{self, NameDecoder};

    /// One RDN of attributes 2.5.4.`kind`, each with its type and value.
    fn rdn(attributes: &[(u8, u8, &[u8])]) -> Vec<u8> {
        let attribute = |(kind, string, value): &(u8, u8, &[u8])| {
            element(0x30, &[element(6, &[0x55, 4, *kind]), element(*string, value)].concat())
        };
        element(0x31, &attributes.iter().map(attribute).collect::<Vec<_>>().concat())
    }

    fn name(rdns: &[Vec<u8>]) -> Vec<u8> {
        element(0x30, &rdns.concat())
    }

    /// The encoding of a parsed name.
    fn again(encoded: &[u8]) -> Vec<u8> {
        name::CertificateSubject::parse(encoded, NameDecoder::Request).unwrap().name.to_der().unwrap()
    }

    const PRINTABLE: u8 = 0x13;
    const UTF8: u8 = 0x0c;

    type Rdns = Vec<Vec<u8>>;

    #[test]
    fn each_attribute_type_has_one_rdn_in_a_fixed_order() {
        let kinds = [5, 3, 11, 10, 17, 9, 7, 8, 6];
        let requested: Vec<Vec<u8>> = kinds.iter().map(|kind| rdn(&[(*kind, PRINTABLE, b"a")])).collect();
        let mut wanted = requested.clone();
        wanted.reverse();
        // C, ST, L, STREET, POSTALCODE, O, OU, CN, SERIALNUMBER
        assert_eq!(again(&name(&requested)), name(&wanted));
    }

    #[test]
    fn values_are_encoded_as_go_encodes_them() {
        let one = |kind, string, value: &[u8]| vec![rdn(&[(kind, string, value)])];
        let o = |values: &[&[u8]]| {
            vec![rdn(&values.iter().map(|value| (10, PRINTABLE, *value)).collect::<Vec<_>>())]
        };
        let apart = |values: &[&[u8]]| values.iter().flat_map(|value| o(&[value])).collect::<Vec<_>>();
        let cases: Vec<(&str, Rdns, Rdns)> = vec![
            ("two organizations", apart(&[b"o2", b"o1"]), o(&[b"o1", b"o2"])),
            ("already one RDN", o(&[b"o1", b"o2"]), o(&[b"o1", b"o2"])),
            ("the shorter first", apart(&[b"aaa", b"zz"]), o(&[b"zz", b"aaa"])),
            ("twice stays twice", apart(&[b"a", b"b", b"a"]), o(&[b"a", b"a", b"b"])),
            (
                "the last name",
                [one(3, PRINTABLE, b"a"), one(3, PRINTABLE, b"b")].concat(),
                one(3, PRINTABLE, b"b"),
            ),
            (
                "the last of one RDN",
                vec![rdn(&[(3, PRINTABLE, b"a"), (3, PRINTABLE, b"b")])],
                one(3, PRINTABLE, b"b"),
            ),
            (
                "the last serial number",
                [one(5, PRINTABLE, b"1"), one(5, PRINTABLE, b"2")].concat(),
                one(5, PRINTABLE, b"2"),
            ),
            ("UTF8String", one(3, UTF8, b"alice"), one(3, PRINTABLE, b"alice")),
            ("IA5String", one(3, 0x16, b"alice"), one(3, PRINTABLE, b"alice")),
            ("NumericString", one(3, 0x12, b"12 3"), one(3, PRINTABLE, b"12 3")),
            ("T61String", one(3, 0x14, b"\xe9"), one(3, UTF8, "é".as_bytes())),
            ("BMPString", one(3, 0x1e, b"\0a\0b"), one(3, PRINTABLE, b"ab")),
            ("UniversalString", one(3, 0x1c, b"\0\0\0a"), vec![]),
            ("VisibleString", one(3, 0x1a, b"a"), vec![]),
            ("no string", one(3, 4, b"a"), vec![]),
            ("at sign", one(3, UTF8, b"a@b"), one(3, UTF8, b"a@b")),
            ("a star that was printable", one(3, PRINTABLE, b"*"), one(3, UTF8, b"*")),
            ("an ampersand", one(3, PRINTABLE, b"a&b"), one(3, UTF8, b"a&b")),
            ("an underscore", one(3, UTF8, b"a_b"), one(3, UTF8, b"a_b")),
            ("NUL and line feed", one(3, UTF8, b"a\0\n"), one(3, UTF8, b"a\0\n")),
            ("printable signs", one(3, UTF8, b"a '()+,-./:=?9"), one(3, PRINTABLE, b"a '()+,-./:=?9")),
            ("not ASCII", one(10, UTF8, "ü".as_bytes()), one(10, UTF8, "ü".as_bytes())),
            ("an empty organization", one(10, UTF8, b""), one(10, PRINTABLE, b"")),
            ("an empty name", one(3, UTF8, b""), vec![]),
            ("an empty serial number", one(5, UTF8, b""), vec![]),
            ("given name and title", [one(42, UTF8, b"a"), one(12, UTF8, b"a")].concat(), vec![]),
            ("no limit to a name", one(3, UTF8, &[b'a'; 300]), one(3, PRINTABLE, &[b'a'; 300])),
            ("no limit to a country", one(6, UTF8, b"DEU"), one(6, PRINTABLE, b"DEU")),
            ("an empty RDN", vec![element(0x31, b"")], vec![]),
            ("nothing", vec![], vec![]),
        ];
        for (case, requested, wanted) in cases {
            assert_eq!(again(&name(&requested)), name(&wanted), "{case}");
        }
        // 1.2.840.113549.1.9.1 emailAddress, 0.9.2342.19200300.100.1.25 DC, and the uid of Kubernetes
        let oids: [&[u8]; 3] = [
            &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1],
            &[9, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 0x19],
            &[0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 2],
        ];
        for oid in oids {
            let attribute = element(0x30, &[element(6, oid), element(0x16, b"a")].concat());
            assert_eq!(again(&name(&[element(0x31, &attribute)])), [0x30, 0], "{oid:?}");
        }
    }

    #[test]
    fn a_name_is_empty_if_its_encoding_is() {
        assert!(Subject::default().is_empty());
        assert!(!Subject { organization: strings(&[""]), ..Subject::default() }.is_empty());
        assert!(!Subject { common_name: "a".to_owned(), ..Subject::default() }.is_empty());
    }

    #[test]
    fn names_with_invisible_characters_are_rejected() {
        const INVISIBLE: [char; 33] = [
            '\0',
            '\n',
            '\u{85}',
            '\u{ad}',
            '\u{34f}',
            '\u{61c}',
            '\u{115f}',
            '\u{1160}',
            '\u{17b4}',
            '\u{17b5}',
            '\u{180b}',
            '\u{180e}',
            '\u{180f}',
            '\u{200b}',
            '\u{2028}',
            '\u{2029}',
            '\u{202e}',
            '\u{2060}',
            '\u{2065}',
            '\u{206f}',
            '\u{3164}',
            '\u{fe00}',
            '\u{fe0f}',
            '\u{feff}',
            '\u{ffa0}',
            '\u{fff0}',
            '\u{fff8}',
            '\u{1bca0}',
            '\u{1d17a}',
            '\u{e0000}',
            '\u{e0041}',
            '\u{e007f}',
            '\u{e01ef}',
        ];
        let passed: Vec<_> =
            INVISIBLE.into_iter().filter(|invisible| check_name(&format!("a{invisible}b")).is_ok()).collect();
        assert!(passed.is_empty(), "{passed:?}");
        for name in
            ["alice", "a b", "system:node:a", "jos\u{e9}", "\u{fb50}", "\u{65e5}\u{672c}", "a\u{fffd}"]
        {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
        // The table covers the whole property, according to the regex crate.
        let property = regex::Regex::new(r"\A\p{Default_Ignorable_Code_Point}\z").unwrap();
        let missing: Vec<_> = ('\0'..=char::MAX)
            .filter(|c| {
                property.is_match(c.encode_utf8(&mut [0; 4])) && check_name(&format!("a{c}b")).is_ok()
            })
            .collect();
        assert!(missing.is_empty(), "{} characters", missing.len());
    }

    // go: crypto/x509/pkix/pkix.go, RDNSequence.String
    #[test]
    fn names_are_formatted_as_go_formats_them() {
        let subject = Subject {
            country: strings(&["DE"]),
            organization: strings(&["dev", "a,b"]),
            common_name: " #a; ".to_owned(),
            serial_number: "#1".to_owned(),
            ..Subject::default()
        };
        assert_eq!(subject.to_string(), r"C=DE, O=dev + O=a\,b, CN=\ #a\;\ , SERIALNUMBER=\#1");
        assert_eq!(Subject::default().to_string(), "");
    }
}
