//! Public keys of requests and CAs, and the key policy.

mod rsa_quality;

use std::fmt;

use x509_cert::der::asn1::{Any, BitString, Null, ObjectIdentifier, UintRef};
use x509_cert::der::{self, Encode as _};
use x509_cert::spki::{AlgorithmIdentifier, SubjectPublicKeyInfo};

use crate::x509::ParseError;
use crate::x509::der::{DerReader, tag};
use crate::x509::signature::{self, EllipticCurve};

/// The minimum size of an RSA modulus. Shorter ones may be factored.
// NIST SP 800-57 part 1, table 2
const MIN_RSA_BITS: usize = 2048;
/// The maximum size of an RSA modulus: `pki::x509` verifies no signatures with longer ones.
const MAX_RSA_BITS: usize = 8192;

/// A public key that passed the key policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StrongPublicKey {
    key: signature::PublicKey,
    spki: Vec<u8>,
}

/// Why a public key is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum PublicKeyError {
    /// Go does not parse the key.
    #[error(transparent)]
    Malformed(ParseError),
    /// The key parses, but is of a kind that cannot verify signatures.
    #[error("tls: unknown public key algorithm")]
    Unsupported,
    /// The key violates our key policy.
    #[error("{0}")]
    Weak(String),
    #[error(transparent)]
    Encode(der::Error),
}

impl StrongPublicKey {
    /// Parses an encoded `SubjectPublicKeyInfo`.
    pub(super) fn from_spki(encoded: &[u8]) -> Result<Self, PublicKeyError> {
        let content = DerReader::new(encoded)
            .read(tag::SEQUENCE)
            .ok_or(PublicKeyError::Malformed(ParseError("x509: malformed spki")))?;
        let key = signature::PublicKey::parse(content).map_err(|error| {
            if error == signature::P224_UNSUPPORTED {
                PublicKeyError::Weak(
                    "ECDSA P-224 keys are not accepted: use P-256, P-384 or P-521".to_owned(),
                )
            } else {
                PublicKeyError::Malformed(error)
            }
        })?;
        match &key {
            signature::PublicKey::Rsa { modulus, exponent } => {
                let bits = signature::bit_length(modulus);
                if bits < MIN_RSA_BITS {
                    return Err(PublicKeyError::Weak(format!(
                        "RSA keys of {bits} bits are not accepted: use {MIN_RSA_BITS} bits or more"
                    )));
                }
                if bits > MAX_RSA_BITS {
                    return Err(PublicKeyError::Weak(format!(
                        "RSA keys of {bits} bits are not accepted: use {MAX_RSA_BITS} bits or fewer"
                    )));
                }
                rsa_quality::check(modulus, exponent).map_err(|flaw| {
                    PublicKeyError::Weak(format!(
                        "RSA keys with {flaw} are not accepted: generate another key"
                    ))
                })?;
            }
            signature::PublicKey::Ecdsa { .. } | signature::PublicKey::Ed25519(_) => {}
            signature::PublicKey::Dsa | signature::PublicKey::Unknown => {
                return Err(PublicKeyError::Unsupported);
            }
        }
        let spki = encode(&key).map_err(PublicKeyError::Encode)?;
        Ok(Self { key, spki })
    }

    /// Why the key of an encoded `SubjectPublicKeyInfo` is too weak; `None` if it is not, or does not parse.
    pub fn weakness(encoded: &[u8]) -> Option<String> {
        match Self::from_spki(encoded) {
            Err(PublicKeyError::Weak(reason)) => Some(reason),
            _ => None,
        }
    }

    /// The encoded `SubjectPublicKeyInfo`, re-encoded from the parsed key, as in Go.
    pub fn spki(&self) -> &[u8] {
        &self.spki
    }

    pub(super) fn key(&self) -> &signature::PublicKey {
        &self.key
    }
}

/// `RSA 2048`, `ECDSA P-256`, `Ed25519`.
impl fmt::Display for StrongPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)
    }
}

// go: crypto/x509/x509.go, marshalPublicKey
pub(super) fn encode(key: &signature::PublicKey) -> Result<Vec<u8>, der::Error> {
    const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
    const ECDSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
    const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");
    let (oid, parameters, bits) = match key {
        signature::PublicKey::Rsa { modulus, exponent } => {
            let mut numbers = UintRef::new(modulus)?.to_der()?;
            UintRef::new(exponent)?.encode_to_vec(&mut numbers)?;
            let list = Any::new(der::Tag::Sequence, numbers)?;
            (RSA, Some(Any::encode_from(&Null)?), list.to_der()?)
        }
        signature::PublicKey::Ecdsa { curve, point } => {
            let oid = match curve {
                EllipticCurve::P256 => ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7"),
                EllipticCurve::P384 => ObjectIdentifier::new_unwrap("1.3.132.0.34"),
                EllipticCurve::P521 => ObjectIdentifier::new_unwrap("1.3.132.0.35"),
            };
            (ECDSA, Some(Any::encode_from(&oid)?), point.clone())
        }
        signature::PublicKey::Ed25519(key) => (ED25519, None, key.clone()),
        signature::PublicKey::Dsa | signature::PublicKey::Unknown => {
            return Err(der::ErrorKind::Failed.into());
        }
    };
    let algorithm = AlgorithmIdentifier { oid, parameters };
    SubjectPublicKeyInfo { algorithm, subject_public_key: BitString::from_bytes(&bits)? }.to_der()
}
