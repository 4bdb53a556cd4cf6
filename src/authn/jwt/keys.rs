//! Public keys and the algorithms they verify.
//!
//! `jsonwebtoken` verifies all algorithms but ES512, which it does not have.

use std::fmt;
use std::ops::RangeInclusive;

use aws_lc_rs::signature::{ECDSA_P521_SHA512_FIXED, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use x509_parser::der_parser::Oid;
use x509_parser::oid_registry::{OID_EC_P256, OID_NIST_EC_P384, OID_NIST_EC_P521};
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::BASE64_URL;

/// The RSA keys that are verified with.
const RSA_BITS: RangeInclusive<usize> = 2048..=8192;
/// In bits.
const LONGEST_EXPONENT: usize = 32;
/// The longest signature, in bytes: that of the longest RSA key.
const LONGEST_SIGNATURE: usize = 1024;

/// A signature algorithm of RFC 7518. No other is ever verified: not `none`, HS256 to HS512 or `EdDSA`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of RFC 7518")]
pub enum Algorithm {
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

impl Algorithm {
    /// All of them, in the order of messages.
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

    /// By its name in a header or a flag.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// Its name in a header or a flag.
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

/// A public key.
#[derive(Clone)]
pub struct PublicKey {
    id: String,
    material: Material,
}

#[derive(Clone)]
enum Material {
    Rsa(DecodingKey),
    P256(DecodingKey),
    P384(DecodingKey),
    P521(Vec<u8>),
}

/// It is no public key that tokens can be verified with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnfitKey {
    /// It is of another kind, or no key at all.
    #[error("neither an RSA key nor a key on P-256, P-384 or P-521")]
    Unknown,
    /// It is an RSA key that is too short to be trusted, or longer than any is verified.
    #[error("an RSA key has {0} bits; it must have 2048 to 8192")]
    RsaBits(usize),
}

impl PublicKey {
    /// A key in the form of `SubjectPublicKeyInfo`, DER. Its id is derived from it, as kube-apiserver does.
    // kubernetes: pkg/serviceaccount/jwt.go, keyIDFromPublicKey
    pub fn from_spki(der: &[u8]) -> Result<Self, UnfitKey> {
        let Ok(([], info)) = SubjectPublicKeyInfo::from_der(der) else { return Err(UnfitKey::Unknown) };
        let bits = info.subject_public_key.data.as_ref();
        let material = match info.parsed().map_err(|_| UnfitKey::Unknown)? {
            x509_parser::public_key::PublicKey::RSA(key) => match key.key_size() {
                size if RSA_BITS.contains(&size) => Material::Rsa(DecodingKey::from_rsa_der(bits)),
                size => return Err(UnfitKey::RsaBits(size)),
            },
            x509_parser::public_key::PublicKey::EC(_) => {
                let curve = info.algorithm.parameters.as_ref().and_then(|curve| curve.as_oid().ok());
                curve.and_then(|curve| Material::from_point(&curve, bits)).ok_or(UnfitKey::Unknown)?
            }
            _ => return Err(UnfitKey::Unknown),
        };
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, der);
        Ok(Self { id: URL_SAFE_NO_PAD.encode(digest), material })
    }

    /// A key of a key set; `None` if signatures are not verified by it.
    pub fn from_jwk(jwk: &Jwk) -> Option<Self> {
        if !matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
            return None;
        }
        let material = match &jwk.algorithm {
            AlgorithmParameters::RSA(key) => {
                let [modulus, exponent] = [&key.n, &key.e].map(|number| BASE64_URL.decode(number).ok());
                let (modulus, exponent) = (modulus?, exponent?);
                // Beyond the exponent a verification would take as long as a signature, or longer.
                let fits = RSA_BITS.contains(&bits(&modulus)) && bits(&exponent) <= LONGEST_EXPONENT;
                fits.then(|| Material::Rsa(DecodingKey::from_rsa_raw_components(&modulus, &exponent)))?
            }
            AlgorithmParameters::EllipticCurve(curve) => {
                let mut point = vec![4];
                point.extend(BASE64_URL.decode(&curve.x).ok()?);
                point.extend(BASE64_URL.decode(&curve.y).ok()?);
                match (&curve.curve, point.len()) {
                    (EllipticCurve::P256, 65) => Material::P256(DecodingKey::from_ec_der(&point)),
                    (EllipticCurve::P384, 97) => Material::P384(DecodingKey::from_ec_der(&point)),
                    (EllipticCurve::P521, 133) => Material::P521(point),
                    _ => return None,
                }
            }
            _ => return None,
        };
        Some(Self { id: jwk.common.key_id.clone().unwrap_or_default(), material })
    }

    /// What tokens name it by; may be empty.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether it has signed the message by this algorithm, which must be one for its kind of key.
    pub fn has_signed(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        use jsonwebtoken::Algorithm as Known;
        if signature.len() > LONGEST_SIGNATURE {
            return false;
        }
        let (key, known) = match (&self.material, algorithm) {
            (Material::Rsa(key), Algorithm::RS256) => (key, Known::RS256),
            (Material::Rsa(key), Algorithm::RS384) => (key, Known::RS384),
            (Material::Rsa(key), Algorithm::RS512) => (key, Known::RS512),
            (Material::Rsa(key), Algorithm::PS256) => (key, Known::PS256),
            (Material::Rsa(key), Algorithm::PS384) => (key, Known::PS384),
            (Material::Rsa(key), Algorithm::PS512) => (key, Known::PS512),
            (Material::P256(key), Algorithm::ES256) => (key, Known::ES256),
            (Material::P384(key), Algorithm::ES384) => (key, Known::ES384),
            (Material::P521(point), Algorithm::ES512) => {
                let key = UnparsedPublicKey::new(&ECDSA_P521_SHA512_FIXED, point);
                return key.verify(message, signature).is_ok();
            }
            _ => return false,
        };
        let signature = URL_SAFE_NO_PAD.encode(signature);
        jsonwebtoken::crypto::verify(&signature, message, key, known).unwrap_or(false)
    }
}

impl Material {
    fn from_point(curve: &Oid<'_>, point: &[u8]) -> Option<Self> {
        match point.len() {
            65 if *curve == OID_EC_P256 => Some(Self::P256(DecodingKey::from_ec_der(point))),
            97 if *curve == OID_NIST_EC_P384 => Some(Self::P384(DecodingKey::from_ec_der(point))),
            133 if *curve == OID_NIST_EC_P521 => Some(Self::P521(point.to_vec())),
            _ => None,
        }
    }
}

/// How many bits a number has, the first of which is a one.
fn bits(number: &[u8]) -> usize {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    let first = number.get(zeros).map_or(8, |byte| usize::try_from(byte.leading_zeros()).unwrap_or(0));
    ((number.len() - zeros) * 8).saturating_sub(first)
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublicKey").field("id", &self.id).finish_non_exhaustive()
    }
}
