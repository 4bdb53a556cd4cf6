//! Where the key of an authority is, and how it signs.

mod pem_key;
#[cfg(feature = "pkcs11")]
pub mod pkcs11;

use std::fmt;

use x509_cert::der;
use x509_cert::der::asn1::{Any, Null, ObjectIdentifier};
use x509_cert::spki::AlgorithmIdentifierOwned;

pub use pem_key::PemKey;

use crate::pki::x509::signature::{self, EllipticCurve, HashAlgorithm};

/// Something that signs with one private key. Signing blocks: callers in async code use a blocking thread.
pub trait Signer: Send + Sync + fmt::Debug {
    /// The encoded `SubjectPublicKeyInfo` of the key.
    fn public_key(&self) -> &[u8];

    /// Signs a message: the hash is computed here, as the algorithm says. ECDSA signatures are DER.
    fn sign(&self, algorithm: SigningAlgorithm, message: &[u8]) -> Result<Vec<u8>, SignError>;
}

/// How an authority signs; its key decides.
// go: crypto/x509/x509.go, signingParamsForKey
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SigningAlgorithm {
    /// PKCS#1 v1.5 with SHA-256.
    RsaSha256,
    /// P-256.
    EcdsaSha256,
    /// P-384.
    EcdsaSha384,
    /// P-521.
    EcdsaSha512,
    /// Ed25519.
    Ed25519,
}

impl SigningAlgorithm {
    /// The algorithm of a key; `None` for a key that cannot sign.
    pub(super) fn of(key: &signature::PublicKey) -> Option<Self> {
        match key {
            signature::PublicKey::Rsa { .. } => Some(Self::RsaSha256),
            signature::PublicKey::Ecdsa { curve: EllipticCurve::P256, .. } => Some(Self::EcdsaSha256),
            signature::PublicKey::Ecdsa { curve: EllipticCurve::P384, .. } => Some(Self::EcdsaSha384),
            signature::PublicKey::Ecdsa { curve: EllipticCurve::P521, .. } => Some(Self::EcdsaSha512),
            signature::PublicKey::Ed25519(_) => Some(Self::Ed25519),
            signature::PublicKey::Dsa | signature::PublicKey::Unknown => None,
        }
    }

    /// The OID in a certificate.
    pub(super) fn oid(self) -> ObjectIdentifier {
        ObjectIdentifier::new_unwrap(match self {
            Self::RsaSha256 => "1.2.840.113549.1.1.11",
            Self::EcdsaSha256 => "1.2.840.10045.4.3.2",
            Self::EcdsaSha384 => "1.2.840.10045.4.3.3",
            Self::EcdsaSha512 => "1.2.840.10045.4.3.4",
            Self::Ed25519 => "1.3.101.112",
        })
    }

    /// The identifier in a certificate; only RSA has parameters, and those are NULL (RFC 4055 §5, RFC 5758 §3.2).
    pub(super) fn identifier(self) -> Result<AlgorithmIdentifierOwned, der::Error> {
        let parameters = if self == Self::RsaSha256 { Some(Any::encode_from(&Null)?) } else { None };
        Ok(AlgorithmIdentifierOwned { oid: self.oid(), parameters })
    }

    /// How the signature is verified.
    pub(super) fn verified_as(self) -> signature::SignatureAlgorithm {
        match self {
            Self::RsaSha256 => signature::SignatureAlgorithm::RsaPkcs1(HashAlgorithm::Sha256),
            Self::EcdsaSha256 => signature::SignatureAlgorithm::Ecdsa(HashAlgorithm::Sha256),
            Self::EcdsaSha384 => signature::SignatureAlgorithm::Ecdsa(HashAlgorithm::Sha384),
            Self::EcdsaSha512 => signature::SignatureAlgorithm::Ecdsa(HashAlgorithm::Sha512),
            Self::Ed25519 => signature::SignatureAlgorithm::Ed25519,
        }
    }
}

/// The key could not sign.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The key is of another kind than the algorithm.
    #[error("the key cannot sign by {0:?}")]
    Algorithm(SigningAlgorithm),
    /// The key's holder failed.
    #[error("failed to sign certificate: {0}")]
    Failed(String),
    /// What came back is no signature by the authority's key.
    #[error("failed to sign certificate: the signature does not verify: {0}")]
    Wrong(String),
}

/// The kinds of keys that are made here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// RSA of 2048 bits.
    Rsa2048,
    /// RSA of 3072 bits.
    Rsa3072,
    /// RSA of 4096 bits.
    Rsa4096,
    /// ECDSA on P-256.
    EcdsaP256,
    /// ECDSA on P-384.
    EcdsaP384,
    /// ECDSA on P-521.
    EcdsaP521,
    /// Ed25519.
    Ed25519,
}

/// Why there is no private key that can be used. Never shows any of the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PrivateKeyError {
    /// There is no private key in the PEM.
    // go: crypto/tls/tls.go, X509KeyPair
    #[error("{0}")]
    NoKey(String),
    /// There is a private key, and it does not parse.
    // go: crypto/tls/tls.go, parsePrivateKey
    #[error("tls: failed to parse private key")]
    Malformed,
    /// The key is encrypted and there is no passphrase.
    #[error("the private key is encrypted: give its passphrase")]
    Encrypted,
    /// A passphrase was given for a key that is not encrypted.
    #[error("the private key is not encrypted: give no passphrase")]
    NotEncrypted,
    /// The passphrase is wrong, or the encryption is one that is not read here.
    #[error("the private key cannot be decrypted: the passphrase is wrong, or the encryption is not PBES2")]
    Decrypt,
    /// The key cannot be used, or could not be made.
    #[error("{0}")]
    Failed(String),
    /// The URI of a key in a token cannot be used.
    #[error("{0}")]
    Uri(String),
}
