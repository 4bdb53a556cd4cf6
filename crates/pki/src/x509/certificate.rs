//! Parses one certificate by the rules of Go's `crypto/x509`.
//!
//! Go aborts the TLS handshake when it cannot parse the client certificate, so this parser decides which certificates
//! reach path validation. It makes no trust decision. Error texts are Go's.

use num_bigint::BigUint;
use rustls_pki_types::CertificateDer;

use super::alt_names::SubjectAltNames;
use super::constraints::NameConstraints;
use super::der::{DerReader, MalformedDer, tag};
use super::name::{CertificateSubject, NameDecoder};
use super::pod_identity::POD_IDENTITY_OID;
use super::policy::CertificatePolicies;
use super::signature::{PublicKey, SignatureAlgorithm};
use super::time;

/// Why a certificate does not parse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(pub &'static str);

/// A parsed certificate, not verified.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The certificate in DER.
    pub der: CertificateDer<'static>,
    /// The encoded `TBSCertificate`, which the signature covers.
    pub tbs: Vec<u8>,
    /// 1, 2 or 3.
    pub version: i64,
    /// Big-endian, without leading zeros except for zero itself.
    pub serial: Vec<u8>,
    /// The algorithm of the signature.
    pub algorithm: SignatureAlgorithm,
    /// The encoded issuer; names are compared in their encoding.
    pub issuer: Vec<u8>,
    /// The encoded subject.
    pub raw_subject: Vec<u8>,
    /// The subject.
    pub subject: CertificateSubject,
    /// Seconds since 1970.
    pub not_before: i64,
    /// Seconds since 1970.
    pub not_after: i64,
    /// The encoded `SubjectPublicKeyInfo`.
    pub spki: Vec<u8>,
    /// The subject's public key.
    pub public_key: PublicKey,
    /// The signature over the certificate without it.
    pub signature: Vec<u8>,
    /// Whether the parts that the signature does not cover have their only regular encoding. Like Go, the parser accepts
    /// others: unused bits in the signature, elements after it.
    pub is_regular: bool,
    /// The extensions that path validation reads.
    pub extensions: CertificateExtensions,
}

/// The extensions that path validation uses.
#[derive(Debug, Clone, Default)]
pub struct CertificateExtensions {
    /// Bit 0 is digitalSignature, bit 5 keyCertSign; zero if the extension is absent.
    pub key_usage: u16,
    /// Whether the certificate is a CA's, if it says so.
    pub basic_constraints: Option<BasicConstraints>,
    /// The purposes.
    pub extended_key_usage: ExtendedKeyUsage,
    /// Empty if absent.
    pub subject_key_id: Vec<u8>,
    /// Empty if absent.
    pub authority_key_id: Vec<u8>,
    /// The content of the subject alternative name extension.
    pub alternative_names: Option<Vec<u8>>,
    /// The subject alternative names.
    pub names: SubjectAltNames,
    /// The name constraints of a CA.
    pub constraints: Option<NameConstraints>,
    /// The certificate policies.
    pub policies: CertificatePolicies,
    /// Whether a critical extension is unknown: path validation refuses it.
    pub unhandled_critical: bool,
    /// The same, without the PodIdentity extension, which only the certificates of pods may have.
    pub unhandled_critical_of_pod: bool,
    /// The content of the PodIdentity extension.
    pub pod_identity: Option<Vec<u8>>,
}

/// The extension `basicConstraints`, RFC 5280 section 4.2.1.9.
#[derive(Debug, Clone, Copy)]
pub struct BasicConstraints {
    /// Whether the subject is a CA.
    pub is_ca: bool,
    /// The number of intermediate certificates that may follow.
    pub path_length: Option<u64>,
}

/// The extended key usage extension.
#[derive(Debug, Clone, Default)]
pub struct ExtendedKeyUsage {
    /// Whether the extension lists a purpose; an empty list does not limit the certificate.
    pub limited: bool,
    /// Whether `anyExtendedKeyUsage` is among them.
    pub any: bool,
    /// Whether `clientAuth` is among them.
    pub client_auth: bool,
    /// The content of each OID, except anyExtendedKeyUsage.
    pub purposes: Vec<Vec<u8>>,
}

/// The bit `keyCertSign` of `keyUsage`, RFC 5280 section 4.2.1.3.
pub const KEY_CERT_SIGN: u16 = 1 << 5;
pub(crate) const KEY_CRL_SIGN: u16 = 1 << 6;

impl Certificate {
    /// Parses a certificate; `der` must have no trailing data.
    // go: crypto/x509/parser.go, parseCertificate
    pub fn parse(der: CertificateDer<'static>) -> Result<Self, ParseError> {
        let mut input = DerReader::new(&der);
        let mut outer = input.enter(tag::SEQUENCE).ok_or(ParseError("x509: malformed certificate"))?;
        let tbs_whole = outer.whole(tag::SEQUENCE).ok_or(ParseError("x509: malformed tbs certificate"))?;
        let mut tbs = DerReader::new(tbs_whole)
            .enter(tag::SEQUENCE)
            .ok_or(ParseError("x509: malformed tbs certificate"))?;

        let version = match tbs
            .optional(tag::explicit(0))
            .map_err(|MalformedDer| ParseError("x509: malformed version"))?
        {
            None => 1,
            Some(explicit) => {
                let mut explicit = DerReader::new(explicit);
                match explicit.int64() {
                    Some(version @ 0..=2) if explicit.is_empty() => version + 1,
                    Some(3..) if explicit.is_empty() => return Err(ParseError("x509: invalid version")),
                    _ => return Err(ParseError("x509: malformed version")),
                }
            }
        };
        let serial = match tbs.integer().ok_or(ParseError("x509: malformed serial number"))? {
            [first, ..] if first & 0x80 != 0 => return Err(ParseError("x509: negative serial number")),
            [0, rest @ ..] if !rest.is_empty() => rest,
            serial => serial,
        };
        let inner =
            tbs.read(tag::SEQUENCE).ok_or(ParseError("x509: malformed signature algorithm identifier"))?;
        if outer.read(tag::SEQUENCE).ok_or(ParseError("x509: malformed algorithm identifier"))? != inner {
            return Err(ParseError("x509: inner and outer signature algorithm identifiers don't match"));
        }
        let algorithm = SignatureAlgorithm::parse(inner)?;
        let issuer = tbs.whole(tag::SEQUENCE).ok_or(ParseError("x509: malformed issuer"))?;
        // Parsed only to reject a malformed issuer; its attributes are not used.
        CertificateSubject::parse(issuer, NameDecoder::Certificate)?;
        let mut validity = tbs.enter(tag::SEQUENCE).ok_or(ParseError("x509: malformed validity"))?;
        let not_before = time::read(&mut validity)?;
        let not_after = time::read(&mut validity)?;
        let raw_subject = tbs.whole(tag::SEQUENCE).ok_or(ParseError("x509: malformed issuer"))?;
        let subject = CertificateSubject::parse(raw_subject, NameDecoder::Certificate)?;
        let spki = tbs.whole(tag::SEQUENCE).ok_or(ParseError("x509: malformed spki"))?;
        let public_key = PublicKey::parse(
            DerReader::new(spki).read(tag::SEQUENCE).ok_or(ParseError("x509: malformed spki"))?,
        )?;
        // Like Go, ignores extensions of version 1 and 2 certificates; `check_signature` limits what those may sign.
        if version > 1 {
            tbs.optional(tag::context(1))
                .map_err(|MalformedDer| ParseError("x509: malformed issuerUniqueID"))?;
            tbs.optional(tag::context(2))
                .map_err(|MalformedDer| ParseError("x509: malformed subjectUniqueID"))?;
        }
        let extensions = if version == 3 {
            CertificateExtensions::parse(&mut tbs)?
        } else {
            CertificateExtensions::default()
        };
        let signature = outer.bits().ok_or(ParseError("x509: malformed signature"))?;
        let is_regular = signature.is_of_octets() && outer.is_empty();
        let signature = signature.right_aligned();
        if !input.is_empty() {
            return Err(ParseError("x509: trailing data"));
        }
        Ok(Self {
            tbs: tbs_whole.to_vec(),
            version,
            serial: serial.to_vec(),
            algorithm,
            issuer: issuer.to_vec(),
            raw_subject: raw_subject.to_vec(),
            subject,
            not_before,
            not_after,
            spki: spki.to_vec(),
            public_key,
            signature,
            is_regular,
            extensions,
            der,
        })
    }

    /// The certificate's name in error texts: its CN, else its first O, else its serial number.
    pub fn label(&self) -> String {
        match (self.subject.name.common_name.as_str(), self.subject.name.organization.first()) {
            ("", Some(organization)) => organization.clone(),
            ("", None) => format!("serial:{}", decimal(&self.serial)),
            (name, _) => name.to_owned(),
        }
    }
}

impl CertificateExtensions {
    fn parse(tbs: &mut DerReader<'_>) -> Result<Self, ParseError> {
        const MALFORMED: ParseError = ParseError("x509: malformed extensions");
        let mut extensions = Self::default();
        let Some(explicit) = tbs.optional(tag::explicit(3)).map_err(|MalformedDer| MALFORMED)? else {
            return Ok(extensions);
        };
        let mut list = DerReader::new(explicit).enter(tag::SEQUENCE).ok_or(MALFORMED)?;
        let mut parsed: Vec<(&[u8], bool, &[u8])> = Vec::new();
        while !list.is_empty() {
            let mut extension = list.enter(tag::SEQUENCE).ok_or(ParseError("x509: malformed extension"))?;
            let oid = extension.oid().ok_or(ParseError("x509: malformed extension OID field"))?;
            let critical = extension.peek(tag::BOOLEAN)
                && extension.boolean().ok_or(ParseError("x509: malformed extension critical field"))?;
            let content = extension
                .read(tag::OCTET_STRING)
                .ok_or(ParseError("x509: malformed extension value field"))?;
            parsed.push((oid, critical, content));
        }
        let mut seen: Vec<&[u8]> = parsed.iter().map(|(oid, _, _)| *oid).collect();
        seen.sort_unstable();
        seen.dedup();
        if seen.len() != parsed.len() {
            return Err(ParseError("x509: certificate contains duplicate extension"));
        }
        for (oid, critical, content) in parsed {
            let handled = extensions.take(oid, critical, content)?;
            extensions.unhandled_critical |= critical && !handled;
            if oid == POD_IDENTITY_OID {
                extensions.pod_identity = Some(content.to_vec());
            } else {
                extensions.unhandled_critical_of_pod |= critical && !handled;
            }
        }
        Ok(extensions)
    }

    /// Parses one extension; `false` if the extension is not supported.
    // go: crypto/x509/parser.go, processExtensions
    fn take(&mut self, oid: &[u8], critical: bool, content: &[u8]) -> Result<bool, ParseError> {
        let der = DerReader::new(content);
        match oid {
            // 2.5.29.x
            [0x55, 0x1d, 14] => self.subject_key_id = subject_key_id(der, critical)?,
            [0x55, 0x1d, 15] => self.key_usage = key_usage(der)?,
            [0x55, 0x1d, 17] => {
                self.names = SubjectAltNames::parse(der)?;
                self.alternative_names = Some(content.to_vec());
                return Ok(!self.names.is_empty());
            }
            [0x55, 0x1d, 19] => self.basic_constraints = Some(BasicConstraints::parse(der)?),
            [0x55, 0x1d, 30] => {
                let (constraints, complete) = NameConstraints::parse(der)?;
                self.constraints = Some(constraints);
                return Ok(complete);
            }
            [0x55, 0x1d, 31] => {
                check_distribution_points(der).ok_or(ParseError("x509: invalid CRL distribution point"))?;
            }
            [0x55, 0x1d, 32] => self.policies.parse_policies(der)?,
            [0x55, 0x1d, 33] => self.policies.parse_mappings(der)?,
            [0x55, 0x1d, 35] => self.authority_key_id = authority_key_id(der, critical)?,
            [0x55, 0x1d, 36] => self.policies.parse_constraints(der)?,
            [0x55, 0x1d, 37] => self.extended_key_usage = ExtendedKeyUsage::parse(der)?,
            [0x55, 0x1d, 54] => self.policies.parse_inhibit_any(der)?,
            // 1.3.6.1.5.5.7.1.1
            [0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x01, 0x01] => check_information_access(der, critical)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn subject_key_id(mut der: DerReader<'_>, critical: bool) -> Result<Vec<u8>, ParseError> {
    if critical {
        return Err(ParseError("x509: subject key identifier incorrectly marked critical"));
    }
    let id = der.read(tag::OCTET_STRING).ok_or(ParseError("x509: invalid subject key identifier"))?;
    Ok(id.to_vec())
}

fn authority_key_id(mut der: DerReader<'_>, critical: bool) -> Result<Vec<u8>, ParseError> {
    const INVALID: ParseError = ParseError("x509: invalid authority key identifier");
    if critical {
        return Err(ParseError("x509: authority key identifier incorrectly marked critical"));
    }
    let mut list = der.enter(tag::SEQUENCE).ok_or(INVALID)?;
    Ok(list.optional(tag::context(0)).map_err(|MalformedDer| INVALID)?.unwrap_or_default().to_vec())
}

fn key_usage(mut der: DerReader<'_>) -> Result<u16, ParseError> {
    let bits = der.bits().ok_or(ParseError("x509: invalid key usage"))?;
    Ok((0..9).filter(|bit| bits.at(*bit)).fold(0, |usage, bit| usage | 1 << bit))
}

impl BasicConstraints {
    fn parse(mut der: DerReader<'_>) -> Result<Self, ParseError> {
        const INVALID: ParseError = ParseError("x509: invalid basic constraints");
        let mut list = der.enter(tag::SEQUENCE).ok_or(INVALID)?;
        let is_ca = list.peek(tag::BOOLEAN) && list.boolean().ok_or(INVALID)?;
        let path_length = if list.peek(tag::INTEGER) {
            let length = list.int64().ok_or(INVALID)?;
            Some(u64::try_from(length).map_err(|_| INVALID)?)
        } else {
            None
        };
        Ok(Self { is_ca, path_length })
    }
}

impl ExtendedKeyUsage {
    fn parse(mut der: DerReader<'_>) -> Result<Self, ParseError> {
        const INVALID: ParseError = ParseError("x509: invalid extended key usages");
        let mut usage = Self::default();
        let mut list = der.enter(tag::SEQUENCE).ok_or(INVALID)?;
        while !list.is_empty() {
            usage.limited = true;
            let purpose = list.oid().ok_or(INVALID)?;
            match purpose {
                [0x55, 0x1d, 37, 0] => usage.any = true,
                _ => usage.purposes.push(purpose.to_vec()),
            }
            usage.client_auth |= purpose == [0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x02];
        }
        Ok(usage)
    }

    /// Whether verifiers accept certificates for this purpose below a CA with this extension.
    // go: crypto/x509/verify.go, checkChainForKeyUsage — purposes nest
    pub fn permits(&self, purpose: &[u8]) -> bool {
        !self.limited || self.any || self.purposes.iter().any(|known| known == purpose)
    }
}

/// CRL distribution points are not used, but Go rejects a certificate with a malformed list.
fn check_distribution_points(mut der: DerReader<'_>) -> Option<()> {
    let mut points = der.enter(tag::SEQUENCE)?;
    while !points.is_empty() {
        let mut point = points.enter(tag::SEQUENCE)?;
        if let Some(name) = point.optional(tag::explicit(0)).ok()? {
            let mut full_name = DerReader::new(name).enter(tag::explicit(0))?;
            while full_name.peek(tag::context(6)) {
                full_name.read(tag::context(6))?;
            }
        }
    }
    Some(())
}

/// Authority information access is not used, but Go rejects a certificate with a malformed list.
fn check_information_access(mut der: DerReader<'_>, critical: bool) -> Result<(), ParseError> {
    const INVALID: ParseError = ParseError("x509: invalid authority info access");
    if critical {
        return Err(ParseError("x509: authority info access incorrectly marked critical"));
    }
    let mut list = der.enter(tag::SEQUENCE).ok_or(INVALID)?;
    while !list.is_empty() {
        let mut access = list.enter(tag::SEQUENCE).ok_or(INVALID)?;
        access.oid().ok_or(INVALID)?;
        access.optional(tag::context(6)).map_err(|MalformedDer| INVALID)?;
    }
    Ok(())
}

/// The longest serial number that is printed, in octets. RFC 5280 allows 20; a client may present any number, and the
/// conversion takes quadratic time.
const MAX_PRINTED_SERIAL: usize = 128;

/// Formats a big-endian serial number in decimal; of one that is too long, its first octets and its length.
pub fn decimal(octets: &[u8]) -> String {
    match octets.get(..MAX_PRINTED_SERIAL) {
        Some(first) if octets.len() > MAX_PRINTED_SERIAL => {
            format!("{}… ({} octets)", BigUint::from_bytes_be(first), octets.len())
        }
        _ => BigUint::from_bytes_be(octets).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_numbers_are_decimal_and_bounded() {
        for (octets, printed) in
            [(&[][..], "0"), (&[0], "0"), (&[9], "9"), (&[1, 0], "256"), (&[0, 0xff, 0xff], "65535")]
        {
            assert_eq!(decimal(octets), printed);
        }
        assert_eq!(decimal(&[1; MAX_PRINTED_SERIAL]).len(), 306);
        let long = decimal(&vec![1; 60_000]);
        assert!(long.len() < 400 && long.ends_with("… (60000 octets)"), "{long}");
    }
}
