//! The types of keys that pods have, and the key of a request.
// api: certificates/v1/types.go, PodCertificateRequestSpec; core/v1/types.go, PodCertificateProjection.KeyType

use std::str::FromStr;

use crate::issuance::public_key::{PublicKeyError, StrongPublicKey};
use crate::issuance::request::{CertificateRequest, RequestError};
use crate::x509::signature::{EllipticCurve, PublicKey, bit_length};

/// A type of keys, by its name in the volume of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodKeyType {
    /// `ED25519`
    Ed25519,
    /// `ECDSAP256`
    EcdsaP256,
    /// `ECDSAP384`
    EcdsaP384,
    /// `ECDSAP521`
    EcdsaP521,
    /// `RSA3072`
    Rsa3072,
    /// `RSA4096`
    Rsa4096,
}

/// A text that is not the name of a type of keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a key type of pods")]
pub struct KeyTypeError(String);

impl PodKeyType {
    /// All types.
    pub const ALL: [Self; 6] =
        [Self::Ed25519, Self::EcdsaP256, Self::EcdsaP384, Self::EcdsaP521, Self::Rsa3072, Self::Rsa4096];

    /// The name in the volume of a pod.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ed25519 => "ED25519",
            Self::EcdsaP256 => "ECDSAP256",
            Self::EcdsaP384 => "ECDSAP384",
            Self::EcdsaP521 => "ECDSAP521",
            Self::Rsa3072 => "RSA3072",
            Self::Rsa4096 => "RSA4096",
        }
    }

    fn of(key: &PublicKey) -> Option<Self> {
        match key {
            PublicKey::Ed25519(_) => Some(Self::Ed25519),
            PublicKey::Ecdsa { curve: EllipticCurve::P256, .. } => Some(Self::EcdsaP256),
            PublicKey::Ecdsa { curve: EllipticCurve::P384, .. } => Some(Self::EcdsaP384),
            PublicKey::Ecdsa { curve: EllipticCurve::P521, .. } => Some(Self::EcdsaP521),
            // Go counts the octets of the modulus.
            PublicKey::Rsa { modulus, .. } => match bit_length(modulus).div_ceil(8) {
                384 => Some(Self::Rsa3072),
                512 => Some(Self::Rsa4096),
                _ => None,
            },
            PublicKey::Dsa | PublicKey::Unknown => None,
        }
    }
}

impl FromStr for PodKeyType {
    type Err = KeyTypeError;

    fn from_str(text: &str) -> Result<Self, KeyTypeError> {
        let known = Self::ALL.into_iter().find(|key_type| key_type.name() == text);
        known.ok_or_else(|| KeyTypeError(text.to_owned()))
    }
}

/// The public key of a request, and its type; `None` for one that no volume of a pod names.
#[derive(Debug, Clone)]
pub struct PodKey {
    key: StrongPublicKey,
    key_type: Option<PodKeyType>,
}

impl PodKey {
    /// The key of `spec.stubPKCS10Request`, whose signature must verify. Ignores everything else in it: a kubelet
    /// leaves it empty, and its names are not checked by the API server.
    // threat: pod-certificate-names
    pub fn from_stub_request(der: &[u8]) -> Result<Self, RequestError> {
        CertificateRequest::from_der(der).map(|request| Self::new(request.public_key().clone()))
    }

    /// The key of `spec.pkixPublicKey`. The API server has verified the proof of possession beside it.
    pub fn from_pkix(spki: &[u8]) -> Result<Self, RequestError> {
        let key = StrongPublicKey::from_spki(spki).map_err(|error| match error {
            PublicKeyError::Weak(reason) => RequestError::WeakKey(reason),
            error => RequestError::Malformed(error.to_string()),
        })?;
        Ok(Self::new(key))
    }

    fn new(key: StrongPublicKey) -> Self {
        let key_type = PodKeyType::of(key.key());
        Self { key, key_type }
    }

    /// The type.
    pub fn key_type(&self) -> Option<PodKeyType> {
        self.key_type
    }

    /// The key.
    pub fn public_key(&self) -> &StrongPublicKey {
        &self.key
    }
}
