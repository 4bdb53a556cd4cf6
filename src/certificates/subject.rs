//! Subjects of requests: how a name is written again from what Go's `pkix.Name` keeps of it.

use std::fmt;

use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::der::asn1::{Any, ObjectIdentifier};
use x509_cert::der::{self, Encode as _, Tag};

pub use crate::x509::name::Name as Subject;

impl Subject {
    /// Whether no attribute would be written. An empty CN is none; an empty O is one.
    pub fn is_empty(&self) -> bool {
        self.attributes().next().is_none()
    }

    /// The encoded Name: one RDN for each kind of attribute, several values of a kind sorted as DER sorts a SET.
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

    /// What is written, in its order: the short name, the OID and the values.
    fn attributes(&self) -> impl DoubleEndedIterator<Item = (&'static str, ObjectIdentifier, &[String])> {
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

/// One attribute; its value is a PrintableString if its characters allow that.
// go: encoding/asn1/marshal.go, makeField
fn attribute(oid: ObjectIdentifier, value: &str) -> Result<Vec<u8>, der::Error> {
    // Unlike when reading, `*` and `&` do not count as printable.
    let printable = |byte: u8| byte.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&byte);
    let tag = if value.bytes().all(printable) { Tag::PrintableString } else { Tag::Utf8String };
    AttributeTypeAndValue { oid, value: Any::new(tag, value.as_bytes())? }.to_der()
}

/// Roughly RFC 2253, as Go prints a name: the last RDN first.
// go: crypto/x509/pkix/pkix.go, RDNSequence.String
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (name, _, values) in self.attributes().rev() {
            f.write_str(comma)?;
            let mut plus = "";
            for value in values {
                write!(f, "{plus}{name}={}", escaped(value))?;
                plus = "+";
            }
            comma = ",";
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
