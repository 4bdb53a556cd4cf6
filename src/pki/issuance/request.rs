//! Certificate requests: PKCS#10 (RFC 2986), parsed and verified as Go does, then our own policy on keys.
//!
//! A [`CertificateRequest`] exists only if it parsed, its own signature verified and its key is strong enough.

mod building;

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::zeroize::Zeroizing;

pub use building::build;

use super::alt_names::AltNames;
use super::public_key::{PublicKeyError, StrongPublicKey};
use super::signer::SignError;
use super::subject::Subject;
use crate::go::pem;
use crate::pki::x509::ParseError;
use crate::pki::x509::alt_names::SubjectAltNames;
use crate::pki::x509::der::{DerReader, tag};
use crate::pki::x509::name::{self, NameDecoder};
use crate::pki::x509::signature::{SignatureAlgorithm, SignatureError};

/// The longest request that is read, in DER. A limit of our own: the longest sensible ones are a few kilobytes.
pub const MAX_REQUEST_BYTES: usize = 64 * 1024;

/// The type of the PEM block.
pub(crate) const REQUEST_PEM_TYPE: &[u8] = b"CERTIFICATE REQUEST";
/// 1.2.840.113549.1.9.14, the attribute that carries the requested extensions (RFC 2985 §5.4.2).
pub(crate) const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
/// 2.5.29.17
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

/// A request whose signature and key have been checked.
#[derive(Debug, Clone)]
pub struct CertificateRequest {
    der: Vec<u8>,
    subject: Subject,
    alt_names: AltNames,
    public_key: StrongPublicKey,
}

/// Why bytes are no request that can be signed. The texts are Go's, except for those of our own policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// There is no PEM block, or the first one is of another type.
    // kubernetes: pkg/apis/certificates/helpers.go, ParseCSR
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    NotPem,
    /// There is more than one PEM block: headers in it, or text around it.
    #[error(
        "the certificate request is not one PEM block alone: remove its headers and all text before and after it"
    )]
    NotBare,
    /// The DER is no request.
    #[error("{0}")]
    Malformed(String),
    /// The request is not signed by its own key.
    #[error("{0}")]
    Signature(String),
    /// The key is too weak, or of a kind that is not signed here.
    #[error("{0}")]
    WeakKey(String),
    /// The request is signed by an algorithm that proves nothing any more.
    #[error("{0}")]
    WeakSignature(String),
    /// The request is longer than [`MAX_REQUEST_BYTES`].
    #[error("the certificate request is longer than {MAX_REQUEST_BYTES} bytes")]
    TooLarge,
    /// A request of our own could not be signed.
    #[error(transparent)]
    Sign(#[from] SignError),
}

impl RequestError {
    /// Whether the request is refused by policy rather than broken: it will never be signed, and says so in a Failed
    /// condition. Everything else is retried, as kube-controller-manager does.
    pub fn is_policy(&self) -> bool {
        match self {
            Self::WeakKey(_) | Self::WeakSignature(_) | Self::TooLarge | Self::NotBare => true,
            Self::NotPem | Self::Malformed(_) | Self::Signature(_) | Self::Sign(_) => false,
        }
    }
}

impl CertificateRequest {
    /// Reads `spec.request`. It must be one PEM block and nothing else: a text in which another reader finds another
    /// request would be approved for one and signed for the other.
    // kubernetes: pkg/apis/certificates/helpers.go, ParseCSR
    // threat: csr-other-reading
    pub fn from_pem(pem: &[u8]) -> Result<Self, RequestError> {
        // Four characters carry three octets; lines, headers and text around the block have the other half.
        if pem.len() > 4 * MAX_REQUEST_BYTES {
            return Err(RequestError::TooLarge);
        }
        let first = pem::decode(pem).filter(|(block, _)| block.kind == REQUEST_PEM_TYPE);
        let (block, _) = first.ok_or(RequestError::NotPem)?;
        if !pem::is_bare(pem, REQUEST_PEM_TYPE) {
            return Err(RequestError::NotBare);
        }
        Self::from_der(&block.content)
    }

    /// Reads a request that fills `der` entirely.
    // go: crypto/x509/x509.go, ParseCertificateRequest, CheckSignature
    // threat: request-for-another-key
    pub fn from_der(der: &[u8]) -> Result<Self, RequestError> {
        if der.len() > MAX_REQUEST_BYTES {
            return Err(RequestError::TooLarge);
        }
        let parts = RequestParts::split(der).ok_or(MALFORMED)?;
        let algorithm = SignatureAlgorithm::parse(parts.algorithm)?;
        let public_key = StrongPublicKey::from_spki(parts.spki);
        // Malformed comes before weak: what does not parse is retried, as upstream does.
        if let Err(PublicKeyError::Malformed(error)) = public_key {
            return Err(error.into());
        }
        let subject = name::CertificateSubject::parse(parts.subject, NameDecoder::Request)?.name;
        let alt_names = requested_names(parts.attributes)?;
        let public_key = public_key.map_err(|bad| match bad {
            PublicKeyError::Malformed(error) => error.into(),
            PublicKeyError::Unsupported => RequestError::Signature(SignatureError::Unimplemented.to_string()),
            PublicKeyError::Weak(reason) => RequestError::WeakKey(reason),
            PublicKeyError::Encode(error) => RequestError::Malformed(error.to_string()),
        })?;
        if let SignatureAlgorithm::Insecure(name, _) = algorithm {
            return Err(RequestError::WeakSignature(format!(
                "certificate requests that are signed with {name} are not accepted: sign it with SHA-256 or better"
            )));
        }
        public_key
            .key()
            .verify(algorithm, parts.signed, &parts.signature)
            .map_err(|error| RequestError::Signature(error.to_string()))?;
        Ok(Self { der: der.to_vec(), subject, alt_names, public_key })
    }

    /// The encoded request.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// What survives of the requested subject.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// What survives of the requested alternative names.
    pub fn alt_names(&self) -> &AltNames {
        &self.alt_names
    }

    /// The key the certificate is to bind.
    pub fn public_key(&self) -> &StrongPublicKey {
        &self.public_key
    }

    /// The request as a PEM block.
    pub fn to_pem(&self) -> String {
        encode_pem("CERTIFICATE REQUEST", &self.der)
    }
}

impl From<ParseError> for RequestError {
    fn from(error: ParseError) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// What a request is made of.
pub(crate) struct RequestParts<'a> {
    /// The signed part, as it is written.
    signed: &'a [u8],
    pub(crate) subject: &'a [u8],
    spki: &'a [u8],
    /// The content of the attributes.
    pub(crate) attributes: &'a [u8],
    /// Whether nothing follows at the end of a SEQUENCE.
    pub(crate) complete: bool,
    /// The content of the identifier of the signature's algorithm.
    algorithm: &'a [u8],
    signature: Vec<u8>,
}

const MALFORMED: ParseError = ParseError("asn1: structure error: malformed certificate request");

impl<'a> RequestParts<'a> {
    /// Elements may follow at the end of each SEQUENCE, as Go has it, but not after the request.
    // RFC 2986 §4
    pub(crate) fn split(der: &'a [u8]) -> Option<Self> {
        let mut input = DerReader::new(der);
        let mut request = input.enter(tag::SEQUENCE)?;
        let signed = request.whole(tag::SEQUENCE)?;
        let algorithm = request.read(tag::SEQUENCE)?;
        let signature = request.bits()?.right_aligned();
        let mut info = DerReader::new(signed).enter(tag::SEQUENCE)?;
        // Go does not look at the version.
        info.int64()?;
        let subject = info.whole(tag::SEQUENCE)?;
        let spki = info.whole(tag::SEQUENCE)?;
        let attributes = info.read(tag::explicit(0))?;
        let complete = request.is_empty() && info.is_empty();
        input.is_empty().then_some(Self { signed, subject, spki, attributes, complete, algorithm, signature })
    }
}

/// The alternative names among the requested extensions, of which nothing else is taken.
// go: crypto/x509/x509.go, parseCSRExtensions
fn requested_names(attributes: &[u8]) -> Result<AltNames, RequestError> {
    let mut attributes = DerReader::new(attributes);
    let mut seen = BTreeSet::new();
    let mut names = AltNames::default();
    while !attributes.is_empty() {
        let attribute = attributes.any().ok_or(MALFORMED)?;
        // Attributes that do not parse are passed over.
        let Some(list) = extension_request(attribute.whole) else { continue };
        let mut list = DerReader::new(list).enter(tag::SEQUENCE).ok_or(MALFORMED)?;
        while !list.is_empty() {
            let mut extension = list.enter(tag::SEQUENCE).ok_or(MALFORMED)?;
            let oid = extension.oid().ok_or(MALFORMED)?;
            if extension.peek(tag::BOOLEAN) {
                extension.boolean().ok_or(MALFORMED)?;
            }
            let value = extension.read(tag::OCTET_STRING).ok_or(MALFORMED)?;
            if !seen.insert(oid) {
                return Err(
                    ParseError("x509: certificate request contains duplicate requested extensions").into()
                );
            }
            if oid == SUBJECT_ALT_NAME {
                names = AltNames::from_names(SubjectAltNames::parse(DerReader::new(value))?);
            }
        }
    }
    Ok(names)
}

/// The first value of an attribute that carries extensions; `None` for every other attribute.
fn extension_request(attribute: &[u8]) -> Option<&[u8]> {
    let mut attribute = DerReader::new(attribute).enter(tag::SEQUENCE)?;
    let kind = attribute.oid()?;
    let mut values = attribute.enter(tag::SET)?;
    let first = values.any()?.whole;
    while !values.is_empty() {
        values.any()?;
    }
    (kind == EXTENSION_REQUEST).then_some(first)
}

/// One PEM block of lines of 64 characters.
// go: encoding/pem, Encode
pub(crate) fn encode_pem(kind: &str, content: &[u8]) -> String {
    // The content may be a key: what is copied is wiped, and nothing is copied by growing.
    let text = Zeroizing::new(STANDARD.encode(content));
    let lines = text.len() / 64 + 1;
    let mut pem = String::with_capacity(text.len() + lines + 2 * kind.len() + 40);
    pem = pem + "-----BEGIN " + kind + "-----\n";
    for line in text.as_bytes().chunks(64) {
        pem.extend(line.iter().copied().map(char::from));
        pem.push('\n');
    }
    pem + "-----END " + kind + "-----\n"
}

#[cfg(test)]
mod tests;
