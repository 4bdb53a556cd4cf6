//! The parts of a certificate request beyond its displayed names and key. Another signer may sign them, so the approver
//! sees each of them, or a warning.
//!
//! Go, and our own parser of requests with it, ignores attributes that it cannot parse, and data after the last field
//! of a SEQUENCE. This module ignores nothing: each part has a line in `also`, and a malformed or differently encoded
//! one also a line in `not_shown`.
// RFC 2986 §4.1, RFC 2985 §5.4.2

use std::collections::BTreeSet;
use std::net::IpAddr;

use portcullis_go::pem;
use portcullis_pki::issuance::request::{
    CertificateRequest, EXTENSION_REQUEST, MAX_REQUEST_BYTES, REQUEST_PEM_TYPE, RequestParts,
};
use portcullis_pki::x509::alt_names::ia5;
use portcullis_pki::x509::der::{DerReader, tag};
use portcullis_pki::x509::name::text;
use x509_cert::der::asn1::ObjectIdentifier;

use super::super::super::terminal::plain;
use super::super::hex;
use super::super::signing::in_words;

/// 1.3.6.1.4.1.311.2.1.14, Microsoft's variant of extensionRequest; openssl reads both.
const CERT_EXTENSIONS: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x82, 0x37, 0x02, 0x01, 0x0e];
/// 2.5.4.3 and 2.5.4.5: of several values, Go keeps the last.
// go: crypto/x509/pkix/pkix.go, FillFromRDNSequence
const COMMON_NAME: &[u8] = &[0x55, 0x04, 3];
const SERIAL_NUMBER: &[u8] = &[0x55, 0x04, 5];
/// Longer values are truncated, in octets.
const MAX_SHOWN: usize = 64;

/// The kinds of GeneralName, by tag number.
// RFC 5280 §4.2.1.6
const GENERAL_NAMES: [&str; 9] = [
    "otherName",
    "email",
    "DNS",
    "x400Address",
    "directoryName",
    "ediPartyName",
    "URI",
    "IP",
    "registeredID",
];

/// The bits of a KeyUsage.
// RFC 5280 §4.2.1.3
const KEY_USAGES: [&str; 9] = [
    "digitalSignature",
    "contentCommitment",
    "keyEncipherment",
    "dataEncipherment",
    "keyAgreement",
    KEY_CERT_SIGN,
    "cRLSign",
    "encipherOnly",
    "decipherOnly",
];
const KEY_CERT_SIGN: &str = "keyCertSign";

const KNOWN: [(&str, &str); 44] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "surname"),
    ("2.5.4.5", "SERIALNUMBER"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.17", "POSTALCODE"),
    ("2.5.4.42", "givenName"),
    ("2.5.4.46", "dnQualifier"),
    ("0.9.2342.19200300.100.1.1", "uid"),
    ("0.9.2342.19200300.100.1.25", "domainComponent"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
    ("1.2.840.113549.1.9.2", "unstructuredName"),
    ("1.2.840.113549.1.9.7", "challengePassword"),
    ("2.5.29.14", "subjectKeyIdentifier"),
    ("2.5.29.15", "keyUsage"),
    ("2.5.29.17", "subjectAltName"),
    ("2.5.29.18", "issuerAltName"),
    ("2.5.29.19", "basicConstraints"),
    ("2.5.29.30", "nameConstraints"),
    ("2.5.29.31", "cRLDistributionPoints"),
    ("2.5.29.32", "certificatePolicies"),
    ("2.5.29.33", "policyMappings"),
    ("2.5.29.35", "authorityKeyIdentifier"),
    ("2.5.29.36", "policyConstraints"),
    ("2.5.29.37", "extendedKeyUsage"),
    ("2.5.29.37.0", "any"),
    ("2.5.29.54", "inhibitAnyPolicy"),
    ("1.3.6.1.5.5.7.1.1", "authorityInfoAccess"),
    ("1.3.6.1.5.5.7.1.11", "subjectInfoAccess"),
    ("1.3.6.1.5.5.7.1.24", "tlsFeature"),
    ("1.3.6.1.5.5.7.3.1", "serverAuth"),
    ("1.3.6.1.5.5.7.3.2", "clientAuth"),
    ("1.3.6.1.5.5.7.3.3", "codeSigning"),
    ("1.3.6.1.5.5.7.3.4", "emailProtection"),
    ("1.3.6.1.5.5.7.3.8", "timeStamping"),
    ("1.3.6.1.5.5.7.3.9", "OCSPSigning"),
    ("1.3.6.1.4.1.311.20.2", "certificateTemplateName"),
    ("1.3.6.1.4.1.311.21.7", "certificateTemplate"),
    ("2.16.840.1.113730.1.1", "nsCertType"),
];

/// The undisplayed parts of a request, and whether a signer that copies them would issue a CA certificate.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct UnshownContents {
    pub(super) also: Vec<String>,
    /// Parts in which another parser may find more than their lines show.
    pub(super) not_shown: BTreeSet<String>,
    pub(super) asks_for_authority: bool,
}

// threat: csr-unshown-part
impl UnshownContents {
    /// Decodes `spec.request`; `shown` is the parsed request, whose names and key are displayed already.
    pub(super) fn of(request: &[u8], shown: Option<&CertificateRequest>) -> Self {
        let mut contents = Self::default();
        let block = pem::decode(request).map(|(block, _)| block.content);
        let der = block.filter(|der| der.len() <= MAX_REQUEST_BYTES);
        match der.as_deref().and_then(RequestParts::split) {
            Some(parts) => contents.parts(&parts, shown),
            None => _ = contents.not_shown.insert("the request".to_owned()),
        }
        if !pem::is_bare(request, REQUEST_PEM_TYPE) {
            contents.not_shown.insert("the request".to_owned());
        }
        contents
    }

    fn parts(&mut self, parts: &RequestParts<'_>, shown: Option<&CertificateRequest>) {
        if !parts.complete {
            self.not_shown.insert("data after the last field".to_owned());
        }
        if self.subject(parts.subject, shown.is_some()).is_none() {
            self.malformed("subject", parts.subject);
        }
        let names = shown.into_iter().flat_map(|shown| in_words(shown.alt_names())).collect();
        let mut attributes = DerReader::new(parts.attributes);
        while !attributes.is_empty() {
            let rest = attributes.rest();
            let Some(attribute) = attributes.any() else { return self.malformed("attributes", rest) };
            if self.attribute(attribute.whole, &names).is_none() {
                self.malformed("attribute", attribute.whole);
            }
        }
    }

    /// Adds a line for each attribute that the displayed subject lacks, or for all if none is displayed. `None` if
    /// malformed.
    fn subject(&mut self, encoded: &[u8], is_shown: bool) -> Option<()> {
        let mut attributes = Vec::new();
        let mut rdns = DerReader::new(encoded).enter(tag::SEQUENCE)?;
        while !rdns.is_empty() {
            let mut set = rdns.enter(tag::SET)?;
            while !set.is_empty() {
                let mut attribute = set.enter(tag::SEQUENCE)?;
                let (kind, value) = (attribute.oid()?, attribute.any()?);
                attributes.push((kind, text(&value), value));
                if !attribute.is_empty() {
                    self.not_shown.insert(format!("subject {}", named(kind)));
                }
            }
        }
        let last =
            |wanted: &[u8]| attributes.iter().rposition(|(kind, text, _)| *kind == wanted && text.is_some());
        let single = [last(COMMON_NAME), last(SERIAL_NUMBER)];
        for (place, (kind, text, value)) in attributes.iter().enumerate() {
            let survives = match (*kind, text) {
                (COMMON_NAME | SERIAL_NUMBER, Some(text)) => {
                    single.contains(&Some(place)) && !text.is_empty()
                }
                ([0x55, 0x04, 6..=11 | 17], Some(_)) => true,
                _ => false,
            };
            if !(is_shown && survives) {
                let value = text
                    .as_ref()
                    .map_or_else(|| format!("#{}", octets(value.whole)), |text| plain(text).into_owned());
                self.also.push(format!("subject {}={value}", named(kind)));
            }
            if text.is_none() {
                self.not_shown.insert(format!("subject {}", named(kind)));
            }
        }
        Some(())
    }

    fn attribute(&mut self, encoded: &[u8], names: &BTreeSet<String>) -> Option<()> {
        let mut attribute = DerReader::new(encoded).enter(tag::SEQUENCE)?;
        let kind = attribute.oid()?;
        let values = attribute.read(tag::SET)?;
        if [EXTENSION_REQUEST, CERT_EXTENSIONS].contains(&kind) {
            let mut values = DerReader::new(values);
            while !values.is_empty() {
                let mut extensions = values.enter(tag::SEQUENCE)?;
                while !extensions.is_empty() {
                    let extension = extensions.any()?.whole;
                    if self.extension(extension, names).is_none() {
                        self.malformed("extension", extension);
                    }
                }
            }
        } else {
            let what = format!("attribute {}", named(kind));
            self.also.push(format!("{what} {}", octets(values)));
            self.note_if_cut(&what, values);
        }
        attribute.is_empty().then_some(())
    }

    fn extension(&mut self, encoded: &[u8], names: &BTreeSet<String>) -> Option<()> {
        let mut extension = DerReader::new(encoded).enter(tag::SEQUENCE)?;
        let kind = extension.oid()?;
        // A more lenient parser may find the CA bit in a malformed extension.
        let is_of_authority = matches!(kind, [0x55, 0x1d, 15 | 19]);
        let mut rest = || {
            let critical = extension.peek(tag::BOOLEAN) && extension.boolean()?;
            Some((critical, extension.read(tag::OCTET_STRING)?))
        };
        let Some((critical, value)) = rest() else {
            self.asks_for_authority |= is_of_authority;
            return None;
        };
        let mut name = named(kind);
        if critical {
            name += " critical";
        }
        let lines = match kind {
            [0x55, 0x1d, 15] => key_usages(value).map(|usages| {
                self.asks_for_authority |= usages.contains(&KEY_CERT_SIGN);
                vec![usages.join(", ")]
            }),
            [0x55, 0x1d, 17] => {
                general_names(value).map(|all| all.into_iter().filter(|name| !names.contains(name)).collect())
            }
            [0x55, 0x1d, 19] => basic_constraints(value).map(|(is_ca, line)| {
                self.asks_for_authority |= is_ca;
                vec![line]
            }),
            [0x55, 0x1d, 37] => purposes(value).map(|purposes| vec![purposes.join(", ")]),
            _ => {
                self.note_if_cut(&format!("extension {name}"), value);
                Some(vec![octets(value)])
            }
        };
        let Some(lines) = lines else {
            self.asks_for_authority |= is_of_authority;
            self.malformed(&format!("extension {name}"), value);
            return Some(());
        };
        self.also.extend(lines.into_iter().map(|line| format!("extension {name}: {line}")));
        extension.is_empty().then_some(())
    }

    fn note_if_cut(&mut self, what: &str, value: &[u8]) {
        if value.len() > MAX_SHOWN {
            self.not_shown.insert(what.to_owned());
        }
    }

    fn malformed(&mut self, what: &str, encoded: &[u8]) {
        self.also.push(format!("malformed {what}: {}", octets(encoded)));
        self.not_shown.insert(what.to_owned());
    }
}

// RFC 5280 §4.2.1.9
fn basic_constraints(value: &[u8]) -> Option<(bool, String)> {
    let mut input = DerReader::new(value);
    let mut constraints = input.enter(tag::SEQUENCE)?;
    let is_ca = constraints.peek(tag::BOOLEAN) && constraints.boolean()?;
    let below = if constraints.peek(tag::INTEGER) {
        format!(", pathlen:{}", constraints.int64()?)
    } else {
        String::new()
    };
    let line = format!("CA:{}{below}", if is_ca { "TRUE" } else { "FALSE" });
    (constraints.is_empty() && input.is_empty()).then_some((is_ca, line))
}

fn key_usages(value: &[u8]) -> Option<Vec<&'static str>> {
    let mut input = DerReader::new(value);
    let bits = input.bits()?;
    let unknown = (KEY_USAGES.len()..8 * value.len()).any(|place| bits.at(place));
    let set = KEY_USAGES.into_iter().enumerate().filter(|(place, _)| bits.at(*place)).map(|(_, name)| name);
    (input.is_empty() && !unknown).then(|| set.collect())
}

// RFC 5280 §4.2.1.12
fn purposes(value: &[u8]) -> Option<Vec<String>> {
    let mut input = DerReader::new(value);
    let mut list = input.enter(tag::SEQUENCE)?;
    let mut purposes = Vec::new();
    while !list.is_empty() {
        purposes.push(named(list.oid()?));
    }
    input.is_empty().then_some(purposes)
}

/// Each name with its kind, in the format of [`in_words`].
fn general_names(value: &[u8]) -> Option<Vec<String>> {
    let mut input = DerReader::new(value);
    let mut list = input.enter(tag::SEQUENCE)?;
    let mut names = Vec::new();
    while !list.is_empty() {
        let name = list.any()?;
        let kind = GENERAL_NAMES.get(usize::from(name.tag & 0x1f))?;
        let value = match name.tag {
            0x81 | 0x82 | 0x86 => plain(&ia5(name.content)?).into_owned(),
            0x87 => address(name.content)?.to_canonical().to_string(),
            _ => hex(name.whole),
        };
        names.push(format!("{kind}:{value}"));
    }
    input.is_empty().then_some(names)
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}

fn named(oid: &[u8]) -> String {
    let Ok(oid) = ObjectIdentifier::from_bytes(oid) else { return format!("OID {}", octets(oid)) };
    let oid = oid.to_string();
    KNOWN.iter().find(|(known, _)| *known == oid).map_or(oid, |(_, name)| (*name).to_owned())
}

fn octets(value: &[u8]) -> String {
    match value.get(..MAX_SHOWN) {
        Some(begin) if value.len() > MAX_SHOWN => format!("{}… ({} octets)", hex(begin), value.len()),
        _ => hex(value),
    }
}
