//! Distinguished names as text: for people, and for comparison with a name that a person wrote (RFC 4514).

use std::str::FromStr as _;

use portcullis_go::hex::hex;
use x509_cert::der::{Decode as _, Encode as _};
use x509_cert::name::RdnSequence;

use super::der::{DerReader, tag};
use super::name;

/// A name in the form of RFC 4514, such as `CN=clients,O=example`; in hexadecimal if it has no such form.
pub fn rfc4514(encoded: &[u8]) -> String {
    RdnSequence::from_der(encoded).map_or_else(|_| format!("#{}", hex(encoded)), |name| name.to_string())
}

/// A name in a form in which equal names are equal: the types of strings, letter case and repeated blanks do not count
/// (RFC 5280 section 7.1).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ComparableName(String);

impl ComparableName {
    /// The form of an encoded name.
    pub fn of(encoded: &[u8]) -> Option<Self> {
        let mut text = String::new();
        let mut rdns = DerReader::new(encoded).enter(tag::SEQUENCE)?;
        while !rdns.is_empty() {
            let mut set = rdns.enter(tag::SET)?;
            let mut attributes = Vec::new();
            while !set.is_empty() {
                let mut attribute = set.enter(tag::SEQUENCE)?;
                let kind = hex(attribute.oid()?);
                let value = attribute.any()?;
                let value =
                    name::text(&value).map_or_else(|| format!("#{}", hex(value.whole)), |text| folded(&text));
                // A length instead of a separator: no value can look like two attributes.
                attributes.push(format!("{kind}={}:{value}", value.len()));
            }
            attributes.sort_unstable();
            text.extend(["[".to_owned(), attributes.concat(), "]".to_owned()]);
        }
        Some(Self(text))
    }

    /// The form of a name in RFC 4514, such as `CN=clients,O=example`.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() || text.split(',').any(|part| part.trim().is_empty()) {
            return None;
        }
        Self::of(&RdnSequence::from_str(text).ok()?.to_der().ok()?)
    }
}

fn folded(text: &str) -> String {
    text.split_whitespace().map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An encoded name; each RDN has one attribute of this type (2.5.4.x), string type and value.
    fn encoded(rdns: &[(u8, u8, &str)]) -> Vec<u8> {
        let element =
            |tag: u8, content: &[u8]| [&[tag, u8::try_from(content.len()).unwrap()], content].concat();
        let rdns: Vec<u8> = rdns
            .iter()
            .flat_map(|(kind, string, value)| {
                let oid = element(tag::OID, &[0x55, 4, *kind]);
                let value = element(*string, value.as_bytes());
                element(tag::SET, &element(tag::SEQUENCE, &[oid, value].concat()))
            })
            .collect();
        element(tag::SEQUENCE, &rdns)
    }

    #[test]
    fn names_compare_as_people_write_them() {
        let name =
            encoded(&[(10, tag::PRINTABLE_STRING, "Example, Inc."), (3, tag::UTF8_STRING, "Client  CA")]);
        let own = ComparableName::of(&name).unwrap();
        for (text, equal) in [
            ("CN=Client CA,O=Example\\, Inc.", true),
            ("cn=client ca,o=example\\, inc.", true),
            ("2.5.4.3=Client CA,O=Example\\, Inc.", true),
            ("O=Example\\, Inc.,CN=Client CA", false),
            ("CN=Client CA", false),
            ("CN=Client CA+O=Example\\, Inc.", false),
            ("CN=ClientCA,O=Example\\, Inc.", false),
            ("OU=Client CA,O=Example\\, Inc.", false),
        ] {
            assert_eq!(ComparableName::parse(text).unwrap() == own, equal, "{text}");
        }
        assert_eq!(rfc4514(&name), "CN=Client  CA,O=Example\\, Inc.");
        assert_eq!(rfc4514(b"\x30\x01\x00"), "#300100");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in ["", "alice", "CN", "nonsense=a", "CN=a,", ",CN=a", "CN=a,,O=b", "CN=#zz"] {
            assert_eq!(ComparableName::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn values_cannot_look_like_other_attributes() {
        let one = encoded(&[(3, tag::UTF8_STRING, "a"), (10, tag::UTF8_STRING, "b")]);
        let other = encoded(&[(3, tag::UTF8_STRING, "a][55040a=1:b")]);
        assert_ne!(ComparableName::of(&one), ComparableName::of(&other));
    }
}
