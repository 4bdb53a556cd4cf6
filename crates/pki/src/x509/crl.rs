//! Certificate revocation lists (RFC 5280 section 5): parses one, and verifies its signature.
//!
//! x509-cert decodes the list; the rules on top are those of Go's `x509.ParseRevocationList` and `CheckSignatureFrom`.
//! Go parses extensions that change the meaning of a list and leaves them to its caller. This parser refuses such lists:
//! delta CRLs, indirect CRLs and CRLs for a part of the certificates would make a revoked certificate look good. A list with a
//! URL of its own is read if the caller says that the CA has no other.

mod distribution_point;

use num_bigint::BigUint;
use portcullis_go::hex::hex;
use x509_cert::crl::{CertificateList, RevokedCert};
use x509_cert::der::Decode as _;
use x509_cert::ext::Extension;

use distribution_point::DistributionPoint;

use super::certificate::{Certificate, KEY_CRL_SIGN, ParseError};
use super::der::{DerReader, tag};
use super::name::{CertificateSubject, NameDecoder};
use super::signature::{PublicKey, SignatureAlgorithm, SignatureError};
use super::verify::check_may_sign;
use super::{CaBundle, VerifyError};

/// Why a CRL is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CrlError {
    /// It is not a CRL, or not in DER.
    #[error("malformed CRL: {0}")]
    Malformed(String),
    /// Go's text for a part that does not parse.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// Version 1, which has no extensions.
    #[error(
        "a CRL of version 1 has no number and no extensions; make it version 2 (openssl ca: crl_extensions)"
    )]
    Version,
    /// No time after which it is stale.
    #[error("the CRL has no nextUpdate, so that it would never become stale (RFC 5280 section 5.1.2.5)")]
    NoNextUpdate,
    /// nextUpdate is before thisUpdate.
    #[error("the CRL has a nextUpdate before its thisUpdate")]
    Times,
    /// A delta CRL lists changes only.
    #[error("a delta CRL lists only changes; give the complete CRL")]
    Delta,
    /// An indirect CRL lists certificates of other issuers.
    #[error("an indirect CRL lists certificates of other issuers; give the CRL of each issuer")]
    Indirect,
    /// A CRL for some certificates or some reasons.
    #[error(
        "the CRL covers only a part of the certificates (issuingDistributionPoint: {0}); give the complete CRL"
    )]
    Partitioned(String),
    /// A CRL with a URL of its own, beside which there may be others.
    #[error(
        "the CRL covers only a part of the certificates, unless the CA has no CRL beside that of this issuingDistributionPoint: \
         {0}"
    )]
    OneOfSeveral(String),
    /// A critical extension that is not supported.
    #[error("the CRL has a critical extension that is not supported: {0}")]
    UnhandledCritical(String),
    /// An extension appears twice.
    #[error("the CRL has the extension {0} twice")]
    DuplicateExtension(String),
    /// An entry cannot be used.
    #[error("the entry for serial number {serial}: {problem}")]
    Entry {
        /// In hexadecimal.
        serial: String,
        /// What is wrong.
        problem: &'static str,
    },
}

/// A certificate on a CRL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RevokedEntry {
    /// Big-endian, without leading zeros except for zero itself, as in [`Certificate`].
    pub serial: Box<[u8]>,
    /// Seconds since 1970.
    pub revoked_at: i64,
    /// `CRLReason`; 0 (unspecified) if absent.
    pub reason: u8,
}

/// A CRL, not verified.
#[derive(Debug, Clone)]
pub struct Crl {
    /// The encoded issuer.
    pub issuer: Vec<u8>,
    /// `cRLNumber`, big-endian.
    pub number: Option<BigUint>,
    /// Seconds since 1970.
    pub this_update: i64,
    /// Seconds since 1970.
    pub next_update: i64,
    /// In the order of the list.
    pub entries: Vec<RevokedEntry>,
    tbs: Vec<u8>,
    algorithm: SignatureAlgorithm,
    signature: Vec<u8>,
}

/// The parts that are read as they are encoded.
struct RawParts<'a> {
    tbs: &'a [u8],
    algorithm: &'a [u8],
    outer_algorithm: &'a [u8],
    issuer: &'a [u8],
    signature: Vec<u8>,
}

impl Crl {
    /// Parses a CRL; `der` must have no trailing data.
    pub fn parse(der: &[u8]) -> Result<Self, CrlError> {
        Self::parse_complete(der, &[])
    }

    /// The same, where a list whose issuingDistributionPoint names one of these URLs, and no other limit, is about all
    /// certificates of its CA.
    // go: crypto/x509/parser.go, ParseRevocationList
    pub fn parse_complete(der: &[u8], complete_urls: &[String]) -> Result<Self, CrlError> {
        let raw = RawParts::read(der)?;
        let list: CertificateList =
            CertificateList::from_der(der).map_err(|error| CrlError::Malformed(error.to_string()))?;
        if raw.algorithm != raw.outer_algorithm {
            return Err(
                ParseError("x509: inner and outer signature algorithm identifiers don't match").into()
            );
        }
        let algorithm = SignatureAlgorithm::parse(raw.algorithm)?;
        CertificateSubject::parse(raw.issuer, NameDecoder::Certificate)?;
        let list = list.tbs_cert_list;
        let seconds = |time: x509_cert::time::Time| {
            i64::try_from(time.to_unix_duration().as_secs()).unwrap_or(i64::MAX)
        };
        let this_update = seconds(list.this_update);
        let next_update = seconds(list.next_update.ok_or(CrlError::NoNextUpdate)?);
        if next_update < this_update {
            return Err(CrlError::Times);
        }
        let number = check_extensions(list.crl_extensions.as_deref().unwrap_or_default(), complete_urls)?;
        let revoked = list.revoked_certificates.unwrap_or_default();
        let entry = |entry: &RevokedCert| {
            let (serial, reason) = check_entry(entry)?;
            Ok(RevokedEntry { serial, reason, revoked_at: seconds(entry.revocation_date) })
        };
        let entries = revoked.iter().map(entry).collect::<Result<_, CrlError>>()?;
        Ok(Self {
            issuer: raw.issuer.to_vec(),
            number,
            this_update,
            next_update,
            entries,
            tbs: raw.tbs.to_vec(),
            algorithm,
            signature: raw.signature,
        })
    }

    /// Checks that the key of `parent` has signed the CRL, and may sign CRLs. Compares no names.
    // go: crypto/x509/x509.go, RevocationList.CheckSignatureFrom
    pub fn check_signature_from(&self, parent: &Certificate) -> Result<(), VerifyError> {
        check_may_sign(parent, KEY_CRL_SIGN)?;
        if parent.public_key == PublicKey::Unknown {
            return Err(SignatureError::Unimplemented.into());
        }
        Ok(parent.public_key.verify(self.algorithm, &self.tbs, &self.signature)?)
    }
}

impl Crl {
    /// Whether the key of a CA in `bundle` has signed the CRL, and may sign CRLs. Compares no names.
    pub fn check_signature(&self, bundle: &CaBundle) -> Result<(), VerifyError> {
        let mut result = Err(VerifyError::UnknownAuthority(None));
        for authority in bundle.certificates() {
            result = self.check_signature_from(authority);
            if result.is_ok() {
                break;
            }
        }
        result
    }
}

impl<'a> RawParts<'a> {
    fn read(der: &'a [u8]) -> Result<Self, CrlError> {
        let malformed = |part: &str| CrlError::Malformed(part.to_owned());
        let mut input = DerReader::new(der);
        let mut outer = input.enter(tag::SEQUENCE).ok_or_else(|| malformed("not a SEQUENCE"))?;
        let whole = outer.whole(tag::SEQUENCE).ok_or_else(|| malformed("tbsCertList"))?;
        let mut tbs = DerReader::new(whole).enter(tag::SEQUENCE).ok_or_else(|| malformed("tbsCertList"))?;
        // A missing version is version 1.
        if !tbs.peek(tag::INTEGER) || tbs.int64().ok_or_else(|| malformed("version"))? != 1 {
            return Err(CrlError::Version);
        }
        let algorithm = tbs.read(tag::SEQUENCE).ok_or_else(|| malformed("signature"))?;
        let issuer = tbs.whole(tag::SEQUENCE).ok_or_else(|| malformed("issuer"))?;
        let outer_algorithm = outer.read(tag::SEQUENCE).ok_or_else(|| malformed("signatureAlgorithm"))?;
        let signature = outer.bits().ok_or_else(|| malformed("signatureValue"))?.right_aligned();
        if !outer.is_empty() || !input.is_empty() {
            return Err(malformed("trailing data"));
        }
        Ok(Self { tbs: whole, algorithm, outer_algorithm, issuer, signature })
    }
}

fn check_identifiers(extensions: &[Extension]) -> Result<(), CrlError> {
    for (index, extension) in extensions.iter().enumerate() {
        // x509-cert reads padded identifiers, under which an extension would not be recognized.
        let oid = extension.extn_id.as_bytes();
        let encoded = [&[tag::OID, u8::try_from(oid.len()).unwrap_or(u8::MAX)], oid].concat();
        DerReader::new(&encoded).oid().ok_or(ParseError("x509: malformed extension OID field"))?;
        if extensions.iter().take(index).any(|earlier| earlier.extn_id == extension.extn_id) {
            return Err(CrlError::DuplicateExtension(extension.extn_id.to_string()));
        }
    }
    Ok(())
}

/// The number of the CRL. An extension that changes the meaning of the list is an error.
fn check_extensions(extensions: &[Extension], complete_urls: &[String]) -> Result<Option<BigUint>, CrlError> {
    check_identifiers(extensions)?;
    let mut number = None;
    for extension in extensions {
        let content = DerReader::new(extension.extn_value.as_bytes());
        match extension.extn_id.as_bytes() {
            // 2.5.29.x: cRLNumber, deltaCRLIndicator, issuingDistributionPoint, authorityKeyIdentifier
            [0x55, 0x1d, 20] => number = Some(crl_number(content)?),
            [0x55, 0x1d, 27] => return Err(CrlError::Delta),
            [0x55, 0x1d, 28] => DistributionPoint::parse(content)?.check_complete(complete_urls)?,
            [0x55, 0x1d, 35] => check_authority_key_id(content, extension.critical)?,
            _ if extension.critical => {
                return Err(CrlError::UnhandledCritical(extension.extn_id.to_string()));
            }
            _ => {}
        }
    }
    Ok(number)
}

fn crl_number(mut content: DerReader<'_>) -> Result<BigUint, CrlError> {
    const MALFORMED: ParseError = ParseError("x509: malformed crl number");
    let number = content.integer().filter(|_| content.is_empty()).ok_or(MALFORMED)?;
    if number.first().is_some_and(|first| first & 0x80 != 0) {
        return Err(CrlError::Malformed("negative CRL number".to_owned()));
    }
    Ok(BigUint::from_bytes_be(number))
}

// go: crypto/x509/parser.go, parseAuthorityKeyIdentifier
fn check_authority_key_id(mut content: DerReader<'_>, critical: bool) -> Result<(), CrlError> {
    const INVALID: ParseError = ParseError("x509: invalid authority key identifier");
    if critical {
        return Err(ParseError("x509: authority key identifier incorrectly marked critical").into());
    }
    let mut list = content.enter(tag::SEQUENCE).ok_or(INVALID)?;
    list.optional(tag::context(0)).map_err(|_| INVALID)?;
    Ok(())
}

/// The serial number and the reason of an entry.
fn check_entry(entry: &RevokedCert) -> Result<(Box<[u8]>, u8), CrlError> {
    let octets = entry.serial_number.as_bytes();
    let refused = |problem| Err(CrlError::Entry { serial: hex(octets), problem });
    let serial = match octets {
        [first, ..] if first & 0x80 != 0 => return refused("the number is negative"),
        [0, rest @ ..] if !rest.is_empty() => rest,
        serial => serial,
    };
    let extensions = entry.crl_entry_extensions.as_deref().unwrap_or_default();
    if check_identifiers(extensions).is_err() {
        return refused("an extension appears twice, or has a malformed identifier");
    }
    let mut reason = 0;
    for extension in extensions {
        let mut content = DerReader::new(extension.extn_value.as_bytes());
        match extension.extn_id.as_bytes() {
            // 2.5.29.x: reasonCode, invalidityDate, certificateIssuer
            [0x55, 0x1d, 21] => match content.read(tag::ENUMERATED) {
                // removeFromCRL
                Some([8]) => return refused("the reason removeFromCRL is for delta CRLs only"),
                Some([code]) if content.is_empty() && *code < 0x80 => reason = *code,
                _ => return refused("malformed reasonCode"),
            },
            [0x55, 0x1d, 24] => {}
            [0x55, 0x1d, 29] => return Err(CrlError::Indirect),
            _ if extension.critical => return refused("a critical extension is not supported"),
            _ => {}
        }
    }
    Ok((serial.into(), reason))
}
