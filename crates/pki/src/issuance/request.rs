//! PKCS#10 certificate requests (RFC 2986), parsed and verified like Go, with an additional key policy.
//!
//! A [`CertificateRequest`] exists only if it parses, its signature verifies and its key passes the key policy.

mod building;

use std::collections::BTreeSet;

use portcullis_go::pem;

pub use building::build;

use super::alt_names::AltNames;
use super::public_key::{PublicKeyError, StrongPublicKey};
use super::signer::SignError;
use super::subject::Subject;
use crate::x509::ParseError;
use crate::x509::alt_names::SubjectAltNames;
use crate::x509::der::{DerReader, tag};
use crate::x509::name::{self, NameDecoder};
use crate::x509::signature::{SignatureAlgorithm, SignatureError};

/// The maximum size of a request in DER. Not a limit of Kubernetes; real requests have a few kilobytes.
pub const MAX_REQUEST_BYTES: usize = 64 * 1024;

/// The type of the PEM block.
pub const REQUEST_PEM_TYPE: &[u8] = b"CERTIFICATE REQUEST";
/// The type in files of some programs. No API server takes it.
const NEW_REQUEST_PEM_TYPE: &[u8] = b"NEW CERTIFICATE REQUEST";
/// 1.2.840.113549.1.9.14, the attribute that carries the requested extensions (RFC 2985 §5.4.2).
pub const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
/// 2.5.29.17
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

/// A request with a verified signature and an accepted key.
#[derive(Debug, Clone)]
pub struct CertificateRequest {
    der: Vec<u8>,
    subject: Subject,
    alt_names: AltNames,
    public_key: StrongPublicKey,
}

/// Why a request is rejected. The texts are Go's, except for those of our own policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The PEM has no block, or the first one has another type.
    // kubernetes: pkg/apis/certificates/helpers.go, ParseCSR
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    NotPem,
    /// The PEM has more than one bare block: headers, other blocks, or text around it.
    #[error(
        "the certificate request is not one PEM block alone: remove its headers and all text before and after it"
    )]
    NotBare,
    /// The DER does not parse.
    #[error("{0}")]
    Malformed(String),
    /// The signature does not verify with the key of the request.
    #[error("{0}")]
    Signature(String),
    /// The key violates the key policy.
    #[error("{0}")]
    WeakKey(String),
    /// The request is signed with MD5 or SHA-1.
    #[error("{0}")]
    WeakSignature(String),
    /// The request is longer than [`MAX_REQUEST_BYTES`].
    #[error("the certificate request is longer than {MAX_REQUEST_BYTES} bytes")]
    TooLarge,
    /// Signing a new request failed.
    #[error(transparent)]
    Sign(#[from] SignError),
}

impl RequestError {
    /// Whether our policy rejects the request, rather than the parser or verifier. The controller sets a Failed
    /// condition for such a request, and retries the others, as kube-controller-manager does.
    pub fn is_policy(&self) -> bool {
        match self {
            Self::WeakKey(_) | Self::WeakSignature(_) | Self::TooLarge | Self::NotBare => true,
            Self::NotPem | Self::Malformed(_) | Self::Signature(_) | Self::Sign(_) => false,
        }
    }
}

impl CertificateRequest {
    /// Parses `spec.request`, which must be exactly one PEM block: if parsers disagreed about the request, an approver
    /// could check one request and the signer sign another.
    // kubernetes: pkg/apis/certificates/helpers.go, ParseCSR
    // threat: csr-other-reading
    pub fn from_pem(pem: &[u8]) -> Result<Self, RequestError> {
        // Base64 needs 4/3 of the DER size; the rest of the limit allows for line breaks, headers and text around.
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

    /// Parses a PEM file of a request, which Java's keytool and others head `NEW CERTIFICATE REQUEST`.
    pub fn from_pem_file(pem: &[u8]) -> Result<Self, RequestError> {
        match pem::decode(pem) {
            Some((block, _)) if block.kind == NEW_REQUEST_PEM_TYPE => {
                let is_bare = pem::is_bare(pem, NEW_REQUEST_PEM_TYPE);
                if is_bare { Self::from_der(&block.content) } else { Err(RequestError::NotBare) }
            }
            _ => Self::from_pem(pem),
        }
    }

    /// Parses a request; `der` must have no trailing data.
    // go: crypto/x509/x509.go, ParseCertificateRequest, CheckSignature
    // threat: request-for-another-key
    pub fn from_der(der: &[u8]) -> Result<Self, RequestError> {
        if der.len() > MAX_REQUEST_BYTES {
            return Err(RequestError::TooLarge);
        }
        let parts = RequestParts::split(der).ok_or(MALFORMED)?;
        let algorithm = SignatureAlgorithm::parse(parts.algorithm)?;
        let public_key = StrongPublicKey::from_spki(parts.spki);
        // Reports a malformed request before a weak key: like kube-controller-manager, the signer retries the former.
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

    /// The requested subject, without attributes that Go drops.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The requested alternative names, without kinds that Go drops.
    pub fn alt_names(&self) -> &AltNames {
        &self.alt_names
    }

    /// The public key for the certificate.
    pub fn public_key(&self) -> &StrongPublicKey {
        &self.public_key
    }

    /// The request as a PEM block.
    pub fn to_pem(&self) -> String {
        pem::encode_pem("CERTIFICATE REQUEST", &self.der)
    }
}

impl From<ParseError> for RequestError {
    fn from(error: ParseError) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// The parts of an encoded request.
#[derive(Debug)]
pub struct RequestParts<'a> {
    /// The encoded `CertificationRequestInfo`, which the signature covers.
    signed: &'a [u8],
    /// The subject, in DER.
    pub subject: &'a [u8],
    spki: &'a [u8],
    /// The content of the attributes.
    pub attributes: &'a [u8],
    /// Whether no SEQUENCE has extra elements at its end.
    pub complete: bool,
    /// The content of the signature's `AlgorithmIdentifier`.
    algorithm: &'a [u8],
    signature: Vec<u8>,
}

const MALFORMED: ParseError = ParseError("asn1: structure error: malformed certificate request");

impl<'a> RequestParts<'a> {
    /// Like Go, allows extra elements at the end of each SEQUENCE, but no trailing data.
    // RFC 2986 §4
    pub fn split(der: &'a [u8]) -> Option<Self> {
        let mut input = DerReader::new(der);
        let mut request = input.enter(tag::SEQUENCE)?;
        let signed = request.whole(tag::SEQUENCE)?;
        let algorithm = request.read(tag::SEQUENCE)?;
        let signature = request.bits()?.right_aligned();
        let mut info = DerReader::new(signed).enter(tag::SEQUENCE)?;
        // Go ignores the version.
        info.int64()?;
        let subject = info.whole(tag::SEQUENCE)?;
        let spki = info.whole(tag::SEQUENCE)?;
        let attributes = info.read(tag::explicit(0))?;
        let complete = request.is_empty() && info.is_empty();
        input.is_empty().then_some(Self { signed, subject, spki, attributes, complete, algorithm, signature })
    }
}

/// The alternative names among the requested extensions; all other extensions are ignored.
// go: crypto/x509/x509.go, parseCSRExtensions
fn requested_names(attributes: &[u8]) -> Result<AltNames, RequestError> {
    let mut attributes = DerReader::new(attributes);
    let mut seen = BTreeSet::new();
    let mut names = AltNames::default();
    while !attributes.is_empty() {
        let attribute = attributes.any().ok_or(MALFORMED)?;
        // Like Go, skips attributes that do not parse.
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

/// The first value of an extensionRequest attribute; `None` for every other attribute.
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

#[cfg(test)]
mod tests;
