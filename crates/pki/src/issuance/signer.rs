//! Signing keys, in memory or in a PKCS#11 token.

mod pem_key;
#[cfg(feature = "pkcs11")]
pub mod pkcs11;

use std::fmt;

use x509_cert::der;
use x509_cert::der::asn1::{Any, Null, ObjectIdentifier};
use x509_cert::spki::AlgorithmIdentifierOwned;

pub use pem_key::PemKey;

use crate::x509::signature::{self, EllipticCurve, HashAlgorithm};

/// A private key that signs. Signing blocks: async callers must use a blocking thread.
pub trait Signer: Send + Sync + fmt::Debug {
    /// The encoded `SubjectPublicKeyInfo` of the key.
    fn public_key(&self) -> &[u8];

    /// Hashes and signs a message. ECDSA signatures are DER.
    fn sign(&self, algorithm: SigningAlgorithm, message: &[u8]) -> Result<Vec<u8>, SignError>;

    /// For a key in a token, whether it could be used when it was last tried; `None` for a key in memory. Does not block.
    fn token_problem(&self) -> Option<Result<(), String>> {
        None
    }

    /// Looks for the token of a key that could not be used. Blocks.
    fn look_again(&self) {}
}

/// The algorithm by which a key signs. Each kind of key has exactly one.
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
    /// The algorithm of a key; `None` if the kind of key is not supported.
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

    /// The OID of the algorithm.
    pub(super) fn oid(self) -> ObjectIdentifier {
        ObjectIdentifier::new_unwrap(match self {
            Self::RsaSha256 => "1.2.840.113549.1.1.11",
            Self::EcdsaSha256 => "1.2.840.10045.4.3.2",
            Self::EcdsaSha384 => "1.2.840.10045.4.3.3",
            Self::EcdsaSha512 => "1.2.840.10045.4.3.4",
            Self::Ed25519 => "1.3.101.112",
        })
    }

    /// The `AlgorithmIdentifier`. Only RSA has parameters, which are NULL (RFC 4055 §5, RFC 5758 §3.2).
    pub(super) fn identifier(self) -> Result<AlgorithmIdentifierOwned, der::Error> {
        let parameters = if self == Self::RsaSha256 { Some(Any::encode_from(&Null)?) } else { None };
        Ok(AlgorithmIdentifierOwned { oid: self.oid(), parameters })
    }

    /// The algorithm that verifies the signature.
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

/// Why signing failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The algorithm does not match the key.
    #[error("the key cannot sign with {0:?}")]
    Algorithm(SigningAlgorithm),
    /// The cryptographic library or the token failed.
    #[error("failed to sign certificate: {0}")]
    Failed(String),
    /// The signature does not verify with the public key of the CA.
    #[error("failed to sign certificate: the signature does not verify: {0}")]
    Wrong(String),
}

/// The kinds of keys that the gateway generates.
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

/// Why a private key cannot be used. Never shows key material.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PrivateKeyError {
    /// The PEM has no private key.
    // go: crypto/tls/tls.go, X509KeyPair
    #[error("{0}")]
    NoKey(String),
    /// The private key does not parse.
    // go: crypto/tls/tls.go, parsePrivateKey
    #[error("tls: failed to parse private key")]
    Malformed,
    /// The key is encrypted, and no passphrase was given.
    #[error("the private key is encrypted: give its passphrase")]
    Encrypted,
    /// RFC 1421 headers: OpenSSL's former encryption, which derives its key by one round of MD5.
    #[error(
        "the private key has the traditional encryption of PEM (Proc-Type: 4,ENCRYPTED), which is not supported; convert it \
         to PKCS#8: openssl pkcs8 -topk8 -v2 aes-256-cbc -in KEY -out NEW-KEY"
    )]
    TraditionalEncryption,
    /// A passphrase was given for a key that is not encrypted.
    #[error("the private key is not encrypted: give no passphrase")]
    NotEncrypted,
    /// The passphrase is wrong, or the encryption is not supported.
    #[error("the private key cannot be decrypted: the passphrase is wrong, or the encryption is not PBES2")]
    Decrypt,
    /// The key cannot be used, or its generation failed.
    #[error("{0}")]
    Failed(String),
    /// The PKCS#11 token of the key is absent, or does not answer: it may come back.
    #[error("{0}")]
    Absent(String),
    /// The PKCS#11 URI of the key cannot be used.
    #[error("{0}")]
    Uri(String),
}
