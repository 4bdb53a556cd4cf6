//! Public keys and signature algorithms of tokens.
//!
//! `jsonwebtoken` verifies all algorithms except ES512, which it does not implement.

use std::fmt;
use std::ops::RangeInclusive;

use aws_lc_rs::signature::{ECDSA_P521_SHA512_FIXED, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::DecodingKey;
use serde_json::Value;
use x509_parser::der_parser::Oid;
use x509_parser::oid_registry::{OID_EC_P256, OID_NIST_EC_P384, OID_NIST_EC_P521};
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::web_key::WebKey;

/// Supported sizes of RSA keys.
const RSA_KEY_BITS: RangeInclusive<usize> = 2048..=8192;
/// Maximum size of an RSA public exponent.
// Go: crypto/internal/fips140/rsa/rsa.go, checkPublicKey
const MAX_EXPONENT_BITS: usize = 31;
/// The cost of a verification by an RSA key of 4096 bits with the exponent 65537. One on P-521 takes about as long.
pub(super) const RSA_4096_COST: u64 = 4 * 4 * 17;
/// How many bytes are hashed at the cost of 1.
const HASHED_PER_COST: usize = 256;
/// Maximum size of a signature in bytes: that of the largest RSA key.
const MAX_SIGNATURE_SIZE: usize = 1024;

/// A supported signature algorithm of RFC 7518. `none`, HS256 to HS512 and `EdDSA` are never accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of RFC 7518")]
pub enum JwsAlgorithm {
    RS256,
    RS384,
    RS512,
    ES256,
    ES384,
    ES512,
    PS256,
    PS384,
    PS512,
}

impl JwsAlgorithm {
    /// All algorithms, in the order in which messages list them.
    pub const ALL: [Self; 9] = [
        Self::ES256,
        Self::ES384,
        Self::ES512,
        Self::PS256,
        Self::PS384,
        Self::PS512,
        Self::RS256,
        Self::RS384,
        Self::RS512,
    ];

    /// Finds an algorithm by its name in a header or a flag.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// The name in a header or a flag.
    pub fn name(self) -> &'static str {
        match self {
            Self::RS256 => "RS256",
            Self::RS384 => "RS384",
            Self::RS512 => "RS512",
            Self::ES256 => "ES256",
            Self::ES384 => "ES384",
            Self::ES512 => "ES512",
            Self::PS256 => "PS256",
            Self::PS384 => "PS384",
            Self::PS512 => "PS512",
        }
    }
}

/// A public key that verifies token signatures.
#[derive(Clone)]
pub struct VerificationKey {
    id: String,
    material: KeyMaterial,
}

#[derive(Clone)]
enum KeyMaterial {
    /// With the cost of a verification.
    Rsa(DecodingKey, u64),
    P256(DecodingKey),
    P384(DecodingKey),
    P521(Vec<u8>),
}

/// Why a key cannot verify tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnsupportedKey {
    /// The data is not a key, or a key of an unsupported type.
    #[error("neither an RSA key nor a key on P-256, P-384 or P-521")]
    Unknown,
    /// The size of the RSA key is outside the supported range.
    #[error("an RSA key has {0} bits; it must have 2048 to 8192")]
    RsaBits(usize),
    /// The exponent of the RSA key is too large: a verification would cost as much as a signature, or more.
    #[error("an RSA key has an exponent of {0} bits; it must have at most 31")]
    RsaExponentBits(usize),
}

/// Why a key of a key set cannot verify tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnusableKey {
    /// It is not supported.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedKey),
    /// It is not for signatures.
    #[error("its use is not sig")]
    Use,
    /// The coordinates are not those of a point of the curve.
    #[error("a key on an elliptic curve has coordinates of another size")]
    Coordinates,
    /// A member of the key has a value that it cannot have.
    #[error("the member {0:?} of a key is malformed")]
    Member(&'static str),
    /// The issuer has published a private key, which anybody may have read.
    #[error("a private key is published")]
    Private,
}

impl VerificationKey {
    /// Parses a `SubjectPublicKeyInfo` (DER). The key ID is derived from it, as in kube-apiserver.
    // kubernetes: pkg/serviceaccount/jwt.go, keyIDFromPublicKey
    pub fn from_spki(der: &[u8]) -> Result<Self, UnsupportedKey> {
        let Ok(([], info)) = SubjectPublicKeyInfo::from_der(der) else { return Err(UnsupportedKey::Unknown) };
        let key_bits = info.subject_public_key.data.as_ref();
        let material = match info.parsed().map_err(|_| UnsupportedKey::Unknown)? {
            x509_parser::public_key::PublicKey::RSA(key) => {
                let size = key.key_size();
                if !RSA_KEY_BITS.contains(&size) {
                    return Err(UnsupportedKey::RsaBits(size));
                }
                KeyMaterial::Rsa(DecodingKey::from_rsa_der(key_bits), rsa_cost(size, bits(key.exponent)))
            }
            x509_parser::public_key::PublicKey::EC(_) => {
                let curve = info.algorithm.parameters.as_ref().and_then(|curve| curve.as_oid().ok());
                curve
                    .and_then(|curve| KeyMaterial::from_point(&curve, key_bits))
                    .ok_or(UnsupportedKey::Unknown)?
            }
            _ => return Err(UnsupportedKey::Unknown),
        };
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, der);
        Ok(Self { id: URL_SAFE_NO_PAD.encode(digest), material })
    }

    /// Converts a key of a key set.
    pub(crate) fn from_jwk(jwk: &Value) -> Result<Self, UnusableKey> {
        let jwk = WebKey::read(jwk)?;
        if !matches!(jwk.text("use"), "" | "sig") {
            return Err(UnusableKey::Use);
        }
        let material = match jwk.text("kty") {
            "RSA" => KeyMaterial::from_rsa_numbers(&jwk.integer("n")?, &jwk.integer("e")?)?,
            "EC" => KeyMaterial::from_coordinates(jwk.text("crv"), &jwk.number("x")?, &jwk.number("y")?)?,
            _ => return Err(UnsupportedKey::Unknown.into()),
        };
        Ok(Self { id: jwk.text("kid").to_owned(), material })
    }

    /// The key ID that tokens name in `kid`; may be empty.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether the key is of the type that an algorithm needs.
    pub fn fits(&self, algorithm: JwsAlgorithm) -> bool {
        use JwsAlgorithm::{ES256, ES384, ES512, PS256, PS384, PS512, RS256, RS384, RS512};
        match &self.material {
            KeyMaterial::Rsa(..) => matches!(algorithm, RS256 | RS384 | RS512 | PS256 | PS384 | PS512),
            KeyMaterial::P256(_) => algorithm == ES256,
            KeyMaterial::P384(_) => algorithm == ES384,
            KeyMaterial::P521(_) => algorithm == ES512,
        }
    }

    /// The cost of verifying the signature of a message of this length: the unit is a multiplication of numbers of 1024 bits.
    pub(super) fn cost(&self, message: usize) -> u64 {
        let key = match &self.material {
            KeyMaterial::Rsa(_, cost) => *cost,
            KeyMaterial::P256(_) => 120,
            KeyMaterial::P384(_) | KeyMaterial::P521(_) => RSA_4096_COST,
        };
        key.saturating_add(u64::try_from(message / HASHED_PER_COST).unwrap_or(u64::MAX))
    }

    /// Whether the key verifies the signature. False for an algorithm that does not fit the key type.
    pub(crate) fn has_signed(&self, algorithm: JwsAlgorithm, message: &[u8], signature: &[u8]) -> bool {
        use jsonwebtoken::Algorithm as Rfc7518;
        if signature.len() > MAX_SIGNATURE_SIZE {
            return false;
        }
        let (key, rfc7518) = match (&self.material, algorithm) {
            (KeyMaterial::Rsa(key, _), JwsAlgorithm::RS256) => (key, Rfc7518::RS256),
            (KeyMaterial::Rsa(key, _), JwsAlgorithm::RS384) => (key, Rfc7518::RS384),
            (KeyMaterial::Rsa(key, _), JwsAlgorithm::RS512) => (key, Rfc7518::RS512),
            (KeyMaterial::Rsa(key, _), JwsAlgorithm::PS256) => (key, Rfc7518::PS256),
            (KeyMaterial::Rsa(key, _), JwsAlgorithm::PS384) => (key, Rfc7518::PS384),
            (KeyMaterial::Rsa(key, _), JwsAlgorithm::PS512) => (key, Rfc7518::PS512),
            (KeyMaterial::P256(key), JwsAlgorithm::ES256) => (key, Rfc7518::ES256),
            (KeyMaterial::P384(key), JwsAlgorithm::ES384) => (key, Rfc7518::ES384),
            (KeyMaterial::P521(point), JwsAlgorithm::ES512) => {
                let key = UnparsedPublicKey::new(&ECDSA_P521_SHA512_FIXED, point);
                return key.verify(message, signature).is_ok();
            }
            _ => return false,
        };
        let signature = URL_SAFE_NO_PAD.encode(signature);
        jsonwebtoken::crypto::verify(&signature, message, key, rfc7518).unwrap_or(false)
    }
}

/// The cost of a verification by an RSA key: a multiplication for each bit of the exponent, whose cost grows with the square of
/// the size.
fn rsa_cost(size: usize, exponent_size: usize) -> u64 {
    let size = size.div_ceil(1024);
    u64::try_from(size * size * exponent_size).unwrap_or(u64::MAX)
}

impl KeyMaterial {
    fn from_rsa_numbers(modulus: &[u8], exponent: &[u8]) -> Result<Self, UnsupportedKey> {
        let (size, exponent_size) = (bits(modulus), bits(exponent));
        if !RSA_KEY_BITS.contains(&size) {
            return Err(UnsupportedKey::RsaBits(size));
        }
        if exponent_size > MAX_EXPONENT_BITS {
            return Err(UnsupportedKey::RsaExponentBits(exponent_size));
        }
        let key = DecodingKey::from_rsa_raw_components(modulus, exponent);
        Ok(Self::Rsa(key, rsa_cost(size, exponent_size)))
    }

    /// A point whose coordinates have the full size of the curve.
    // RFC 7518, section 6.2.1.2
    fn from_coordinates(curve: &str, x: &[u8], y: &[u8]) -> Result<Self, UnusableKey> {
        let point = || [&[4], x, y].concat();
        match (curve, x.len(), y.len()) {
            ("P-256", 32, 32) => Ok(Self::P256(DecodingKey::from_ec_der(&point()))),
            ("P-384", 48, 48) => Ok(Self::P384(DecodingKey::from_ec_der(&point()))),
            ("P-521", 66, 66) => Ok(Self::P521(point())),
            ("P-256" | "P-384" | "P-521", ..) => Err(UnusableKey::Coordinates),
            _ => Err(UnsupportedKey::Unknown.into()),
        }
    }

    fn from_point(curve: &Oid<'_>, point: &[u8]) -> Option<Self> {
        match point.len() {
            65 if *curve == OID_EC_P256 => Some(Self::P256(DecodingKey::from_ec_der(point))),
            97 if *curve == OID_NIST_EC_P384 => Some(Self::P384(DecodingKey::from_ec_der(point))),
            133 if *curve == OID_NIST_EC_P521 => Some(Self::P521(point.to_vec())),
            _ => None,
        }
    }
}

/// Length of a big-endian number in bits, without leading zeros.
fn bits(number: &[u8]) -> usize {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    let first = number.get(zeros).map_or(8, |byte| usize::try_from(byte.leading_zeros()).unwrap_or(0));
    ((number.len() - zeros) * 8).saturating_sub(first)
}

impl fmt::Debug for VerificationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublicKey").field("id", &self.id).finish_non_exhaustive()
    }
}
