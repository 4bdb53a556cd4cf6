//! Certificate requests: PKCS#10 (RFC 2986), parsed and verified as Go does, then our own policy on keys.
//!
//! A [`CertificateRequest`] exists only if it parsed, its own signature verified and its key is strong enough.

use std::fmt;

use super::alt_names::AltNames;
use super::signer::{PemKey, SignError};
use super::subject::Subject;

/// The longest request that is read, in DER. A limit of our own: the longest sensible ones are a few kilobytes.
pub const MAX_REQUEST: usize = 64 * 1024;

/// A request whose signature and key have been checked.
#[derive(Debug, Clone)]
pub struct CertificateRequest {
    der: Vec<u8>,
    subject: Subject,
    alt_names: AltNames,
    public_key: PublicKey,
}

/// The key a request was signed with, strong enough for a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    spki: Vec<u8>,
    kind: String,
}

/// Why bytes are no request that can be signed. The texts are Go's, except for those of our own policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// There is no PEM block, or the first one is of another type.
    // kubernetes: pkg/apis/certificates/helpers.go, ParseCSR
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    NotPem,
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
    /// The request is longer than [`MAX_REQUEST`].
    #[error("the certificate request is longer than {MAX_REQUEST} bytes")]
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
            Self::WeakKey(_) | Self::WeakSignature(_) | Self::TooLarge => true,
            Self::NotPem | Self::Malformed(_) | Self::Signature(_) | Self::Sign(_) => false,
        }
    }
}

impl CertificateRequest {
    /// Reads `spec.request`: the first PEM block counts, text around it does not.
    // kubernetes: pkg/apis/certificates/helpers.go, ParseCSR
    pub fn from_pem(_pem: &[u8]) -> Result<Self, RequestError> {
        Err(RequestError::NotPem)
    }

    /// Reads a request that fills `der` entirely.
    pub fn from_der(_der: &[u8]) -> Result<Self, RequestError> {
        Err(RequestError::Malformed(String::new()))
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
    pub fn public_key(&self) -> &PublicKey {
        &self.public_key
    }

    /// The request as a PEM block.
    pub fn to_pem(&self) -> String {
        String::new()
    }
}

impl PublicKey {
    /// The encoded `SubjectPublicKeyInfo`.
    pub fn spki(&self) -> &[u8] {
        &self.spki
    }
}

/// `RSA 2048`, `ECDSA P-256`, `Ed25519`.
impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)
    }
}

/// Builds and signs a request for a key that is at hand.
pub fn build(
    _subject: &Subject,
    _alt_names: &AltNames,
    _key: &PemKey,
) -> Result<CertificateRequest, RequestError> {
    Err(RequestError::Malformed(String::new()))
}
