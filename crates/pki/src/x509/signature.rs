//! Public keys and signature algorithms of certificates.
//!
//! Follows Go's `checkSignature` on which key may verify which algorithm; aws-lc-rs does the cryptography. Rejects MD5
//! and SHA-1 before any computation. Stricter than Go: RSA moduli outside 2048–8192 bits verify no signature, and P-224
//! keys do not parse.

use std::fmt;

use aws_lc_rs::signature::{
    self, EcdsaVerificationAlgorithm, ParsedPublicKey, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey,
};

use super::certificate::ParseError;
use super::der::{DerReader, tag};

/// P-224, which Go supports and aws-lc-rs does not.
pub(crate) const P224_UNSUPPORTED: ParseError = ParseError("x509: P-224 keys are not supported");

/// A public key, parsed like Go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublicKey {
    /// Modulus and exponent, big-endian without leading zeros.
    Rsa {
        /// The modulus, big-endian.
        modulus: Vec<u8>,
        /// The public exponent, big-endian.
        exponent: Vec<u8>,
    },
    /// An uncompressed point that is on its curve.
    Ecdsa {
        /// The curve.
        curve: EllipticCurve,
        /// The point, in the form of SEC 1.
        point: Vec<u8>,
    },
    /// An Ed25519 key, RFC 8410.
    Ed25519(Vec<u8>),
    /// Parsed, but never used to verify.
    Dsa,
    /// An unknown algorithm: the certificate parses, but its key verifies no signature.
    Unknown,
}

/// The elliptic curves whose keys are verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EllipticCurve {
    /// NIST P-256
    P256,
    /// NIST P-384
    P384,
    /// NIST P-521
    P521,
}

/// A signature algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignatureAlgorithm {
    /// MD5 or SHA-1, with the name that Go prints.
    Insecure(&'static str, KeyFamily),
    /// RSA with PKCS #1 v1.5.
    RsaPkcs1(HashAlgorithm),
    /// RSA with PSS.
    RsaPss(HashAlgorithm),
    /// ECDSA
    Ecdsa(HashAlgorithm),
    /// Ed25519
    Ed25519,
    /// DSA with SHA-256, and unknown algorithms.
    Unsupported,
}

/// The hash functions of signatures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashAlgorithm {
    /// SHA-256
    Sha256,
    /// SHA-384
    Sha384,
    /// SHA-512
    Sha512,
}

/// The kind of key that an algorithm needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFamily {
    /// RSA
    Rsa,
    /// DSA, which nothing verifies.
    Dsa,
    /// ECDSA
    Ecdsa,
}

/// Why a signature does not verify. The texts are Go's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// MD5 or SHA-1.
    #[error("x509: cannot verify signature: insecure algorithm {0}")]
    Insecure(&'static str),
    /// The algorithm is not supported.
    #[error("x509: cannot verify signature: algorithm unimplemented")]
    Unimplemented,
    /// The key type does not match the algorithm, as for an ECDSA signature under an RSA key.
    #[error(
        "x509: signature algorithm specifies an {algorithm} public key, but have public key of type {key}"
    )]
    Mismatch {
        /// The key type that the algorithm needs.
        algorithm: &'static str,
        /// The Go name of the key's type.
        key: &'static str,
    },
    /// The signature is wrong.
    #[error("{0}")]
    Wrong(&'static str),
}

impl SignatureAlgorithm {
    /// Parses the content of an `AlgorithmIdentifier`. Ignores the parameters, except for Ed25519 and RSA-PSS.
    // go: crypto/x509/x509.go, getSignatureAlgorithmFromAI
    pub fn parse(identifier: &[u8]) -> Result<Self, ParseError> {
        let (oid, parameters) = algorithm_identifier(identifier)?;
        Ok(match oid {
            // 1.2.840.113549.1.1.{4,5,11,12,13,10}
            [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x04] => {
                Self::Insecure("MD5-RSA", KeyFamily::Rsa)
            }
            // 1.3.14.3.2.29 is the ISO OID of the same algorithm.
            [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05] | [0x2b, 0x0e, 0x03, 0x02, 0x1d] => {
                Self::Insecure("SHA1-RSA", KeyFamily::Rsa)
            }
            [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b] => Self::RsaPkcs1(HashAlgorithm::Sha256),
            [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0c] => Self::RsaPkcs1(HashAlgorithm::Sha384),
            [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0d] => Self::RsaPkcs1(HashAlgorithm::Sha512),
            [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a] => {
                parameters.and_then(pss_hash).map_or(Self::Unsupported, Self::RsaPss)
            }
            // 1.2.840.10040.4.3, 1.2.840.10045.4.1, 1.2.840.10045.4.3.{2,3,4}
            [0x2a, 0x86, 0x48, 0xce, 0x38, 0x04, 0x03] => Self::Insecure("DSA-SHA1", KeyFamily::Dsa),
            [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01] => Self::Insecure("ECDSA-SHA1", KeyFamily::Ecdsa),
            [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02] => Self::Ecdsa(HashAlgorithm::Sha256),
            [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03] => Self::Ecdsa(HashAlgorithm::Sha384),
            [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x04] => Self::Ecdsa(HashAlgorithm::Sha512),
            // 1.3.101.112
            [0x2b, 0x65, 0x70] if parameters.is_none() => Self::Ed25519,
            _ => Self::Unsupported,
        })
    }

    fn key_family(self) -> Option<&'static str> {
        match self {
            Self::Insecure(_, KeyFamily::Rsa) | Self::RsaPkcs1(_) | Self::RsaPss(_) => Some("RSA"),
            Self::Insecure(_, KeyFamily::Ecdsa) | Self::Ecdsa(_) => Some("ECDSA"),
            Self::Insecure(_, KeyFamily::Dsa) => Some("DSA"),
            Self::Ed25519 => Some("Ed25519"),
            Self::Unsupported => None,
        }
    }
}

/// The hash of RSA-PSS parameters that Go supports: one hash for message and mask, a salt of the hash's length, the
/// default trailer.
fn pss_hash(parameters: &[u8]) -> Option<HashAlgorithm> {
    let mut list = DerReader::new(parameters).enter(tag::SEQUENCE)?;
    let hash = hash_identifier(explicit(&mut list, 0)?)?;
    let mut mask = explicit(&mut list, 1)?;
    // 1.2.840.113549.1.1.8
    if mask.oid()? != [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x08] {
        return None;
    }
    let same = hash_identifier(mask.enter(tag::SEQUENCE)?)?;
    let mut salt = list.enter(tag::explicit(2))?;
    let length = salt.int64()?;
    match list.optional(tag::explicit(3)).ok()? {
        // Only a trailer may follow the salt. Like Go, ignores elements after the trailer.
        None if !list.is_empty() => return None,
        Some(trailer) if DerReader::new(trailer).int64()? != 1 => return None,
        _ => {}
    }
    let wanted = match hash {
        HashAlgorithm::Sha256 => 32,
        HashAlgorithm::Sha384 => 48,
        HashAlgorithm::Sha512 => 64,
    };
    (hash == same && length == wanted && salt.is_empty()).then_some(hash)
}

/// The content of the one SEQUENCE in `[n]`.
fn explicit<'a>(list: &mut DerReader<'a>, n: u8) -> Option<DerReader<'a>> {
    let mut wrapper = list.enter(tag::explicit(n))?;
    wrapper.enter(tag::SEQUENCE).filter(|_| wrapper.is_empty())
}

/// A hash without parameters, or with NULL. Like Go, ignores elements after them.
fn hash_identifier(mut content: DerReader<'_>) -> Option<HashAlgorithm> {
    let [0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, last] = content.oid()? else {
        return None;
    };
    let hash = match last {
        1 => HashAlgorithm::Sha256,
        2 => HashAlgorithm::Sha384,
        3 => HashAlgorithm::Sha512,
        _ => return None,
    };
    (content.is_empty() || content.any()?.whole == [5, 0]).then_some(hash)
}

/// The OID and the encoded parameters, if present, of the content of an `AlgorithmIdentifier`.
fn algorithm_identifier(content: &[u8]) -> Result<(&[u8], Option<&[u8]>), ParseError> {
    let mut content = DerReader::new(content);
    let oid = content.oid().ok_or(ParseError("x509: malformed OID"))?;
    if content.is_empty() {
        return Ok((oid, None));
    }
    let parameters = content.any().ok_or(ParseError("x509: malformed parameters"))?;
    Ok((oid, Some(parameters.whole)))
}

impl PublicKey {
    /// Parses the content of a `SubjectPublicKeyInfo`.
    // go: crypto/x509/parser.go, parsePublicKey
    pub fn parse(info: &[u8]) -> Result<Self, ParseError> {
        let mut info = DerReader::new(info);
        let algorithm =
            info.read(tag::SEQUENCE).ok_or(ParseError("x509: malformed public key algorithm identifier"))?;
        let (oid, parameters) = algorithm_identifier(algorithm)?;
        let key = info.bits().ok_or(ParseError("x509: malformed subjectPublicKey"))?.right_aligned();
        match oid {
            // 1.2.840.113549.1.1.1
            [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01] => Self::parse_rsa(parameters, &key),
            // 1.2.840.10045.2.1
            [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01] => Self::parse_ecdsa(parameters, key),
            // 1.3.101.112
            [0x2b, 0x65, 0x70] => match parameters {
                Some(_) => Err(ParseError("x509: Ed25519 key encoded with illegal parameters")),
                None if key.len() != 32 => Err(ParseError("x509: wrong Ed25519 public key size")),
                None => Ok(Self::Ed25519(key)),
            },
            // 1.2.840.10040.4.1
            [0x2a, 0x86, 0x48, 0xce, 0x38, 0x04, 0x01] => Self::parse_dsa(parameters, &key),
            _ => Ok(Self::Unknown),
        }
    }

    fn parse_rsa(parameters: Option<&[u8]>, key: &[u8]) -> Result<Self, ParseError> {
        if parameters != Some(&[5, 0]) {
            return Err(ParseError("x509: RSA key missing NULL parameters"));
        }
        let mut list =
            DerReader::new(key).enter(tag::SEQUENCE).ok_or(ParseError("x509: invalid RSA public key"))?;
        let modulus = list.integer().ok_or(ParseError("x509: invalid RSA modulus"))?;
        let exponent = list.integer().ok_or(ParseError("x509: invalid RSA public exponent"))?;
        let modulus = positive(modulus).ok_or(ParseError("x509: RSA modulus is not a positive number"))?;
        let exponent =
            positive(exponent).ok_or(ParseError("x509: RSA public exponent is not a positive number"))?;
        if exponent.len() > 8
            || exponent.len() == 8 && exponent.first().is_some_and(|octet| octet & 0x80 != 0)
        {
            return Err(ParseError("x509: invalid RSA public exponent"));
        }
        Ok(Self::Rsa { modulus: modulus.to_vec(), exponent: exponent.to_vec() })
    }

    fn parse_ecdsa(parameters: Option<&[u8]>, point: Vec<u8>) -> Result<Self, ParseError> {
        let oid = DerReader::new(parameters.unwrap_or_default())
            .oid()
            .ok_or(ParseError("x509: invalid ECDSA parameters"))?;
        let (curve, length) = match oid {
            // 1.2.840.10045.3.1.7, 1.3.132.0.34, 1.3.132.0.35
            [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07] => (EllipticCurve::P256, 65),
            [0x2b, 0x81, 0x04, 0x00, 0x22] => (EllipticCurve::P384, 97),
            [0x2b, 0x81, 0x04, 0x00, 0x23] => (EllipticCurve::P521, 133),
            [0x2b, 0x81, 0x04, 0x00, 0x21] => return Err(P224_UNSUPPORTED),
            _ => return Err(ParseError("x509: unsupported elliptic curve")),
        };
        // Go rejects compressed points, which aws-lc-rs accepts.
        if point.first() != Some(&4) || point.len() != length {
            return Err(ParseError("ecdsa: invalid uncompressed public key"));
        }
        ParsedPublicKey::new(curve.algorithm(HashAlgorithm::Sha256), &point)
            .map_err(|_| ParseError("ecdsa: invalid public key"))?;
        Ok(Self::Ecdsa { curve, point })
    }

    fn parse_dsa(parameters: Option<&[u8]>, key: &[u8]) -> Result<Self, ParseError> {
        let public = DerReader::new(key).integer().ok_or(ParseError("x509: invalid DSA public key"))?;
        let mut list = DerReader::new(parameters.unwrap_or_default())
            .enter(tag::SEQUENCE)
            .ok_or(ParseError("x509: invalid DSA parameters"))?;
        let mut numbers = vec![public];
        for _ in 0..3 {
            numbers.push(list.integer().ok_or(ParseError("x509: invalid DSA parameters"))?);
        }
        if numbers.into_iter().any(|number| positive(number).is_none()) {
            return Err(ParseError("x509: zero or negative DSA parameter"));
        }
        Ok(Self::Dsa)
    }

    /// Whether a TLS client can prove possession of the private key.
    pub fn usable_in_tls(&self) -> bool {
        match self {
            // Go: larger moduli end the handshake.
            Self::Rsa { modulus, .. } => bit_length(modulus) <= 8192,
            Self::Ecdsa { .. } | Self::Ed25519(_) => true,
            Self::Dsa | Self::Unknown => false,
        }
    }

    /// Whether a TLS peer may send a certificate with this key at any place in its chain.
    pub fn allowed_in_tls(&self) -> bool {
        matches!(self, Self::Dsa | Self::Unknown) || self.usable_in_tls()
    }

    /// Verifies a signature by this key.
    // go: crypto/x509/x509.go, checkSignature
    pub fn verify(
        &self,
        algorithm: SignatureAlgorithm,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), SignatureError> {
        match (self, algorithm) {
            (_, SignatureAlgorithm::Insecure(name, _)) => Err(SignatureError::Insecure(name)),
            (_, SignatureAlgorithm::Unsupported) | (Self::Dsa | Self::Unknown, _) => {
                Err(SignatureError::Unimplemented)
            }
            (Self::Rsa { modulus, exponent }, SignatureAlgorithm::RsaPkcs1(hash)) => {
                verify_rsa(modulus, exponent, pkcs1(hash), message, signature)
            }
            (Self::Rsa { modulus, exponent }, SignatureAlgorithm::RsaPss(hash)) => {
                verify_rsa(modulus, exponent, pss(hash), message, signature)
            }
            (Self::Ecdsa { curve, point }, SignatureAlgorithm::Ecdsa(hash)) => {
                UnparsedPublicKey::new(curve.algorithm(hash), point)
                    .verify(message, signature)
                    .map_err(|_| SignatureError::Wrong("x509: ECDSA verification failure"))
            }
            (Self::Ed25519(key), SignatureAlgorithm::Ed25519) => {
                UnparsedPublicKey::new(&signature::ED25519, key)
                    .verify(message, signature)
                    .map_err(|_| SignatureError::Wrong("x509: Ed25519 verification failure"))
            }
            (key, algorithm) => Err(SignatureError::Mismatch {
                algorithm: algorithm.key_family().unwrap_or("unknown"),
                key: match key {
                    Self::Rsa { .. } => "*rsa.PublicKey",
                    Self::Ecdsa { .. } => "*ecdsa.PublicKey",
                    Self::Ed25519(_) => "ed25519.PublicKey",
                    Self::Dsa => "*dsa.PublicKey",
                    Self::Unknown => "<nil>",
                },
            }),
        }
    }
}

/// `RSA 2048`, `ECDSA P-256`, `Ed25519`, `DSA`, `unknown`.
impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rsa { modulus, .. } => write!(f, "RSA {}", bit_length(modulus)),
            Self::Ecdsa { curve: EllipticCurve::P256, .. } => f.write_str("ECDSA P-256"),
            Self::Ecdsa { curve: EllipticCurve::P384, .. } => f.write_str("ECDSA P-384"),
            Self::Ecdsa { curve: EllipticCurve::P521, .. } => f.write_str("ECDSA P-521"),
            Self::Ed25519(_) => f.write_str("Ed25519"),
            Self::Dsa => f.write_str("DSA"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

fn verify_rsa(
    modulus: &[u8],
    exponent: &[u8],
    parameters: &RsaParameters,
    message: &[u8],
    signature: &[u8],
) -> Result<(), SignatureError> {
    if !(2048..=8192).contains(&bit_length(modulus)) {
        return Err(SignatureError::Wrong("x509: RSA keys below 2048 and above 8192 bits are not trusted"));
    }
    // go: an exponent of 32 bits or more is refused
    if bit_length(exponent) > 31 {
        return Err(SignatureError::Wrong("crypto/rsa: public exponent too large"));
    }
    RsaPublicKeyComponents { n: modulus, e: exponent }
        .verify(parameters, message, signature)
        .map_err(|_| SignatureError::Wrong("crypto/rsa: verification error"))
}

fn pkcs1(hash: HashAlgorithm) -> &'static RsaParameters {
    match hash {
        HashAlgorithm::Sha256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        HashAlgorithm::Sha384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        HashAlgorithm::Sha512 => &signature::RSA_PKCS1_2048_8192_SHA512,
    }
}

fn pss(hash: HashAlgorithm) -> &'static RsaParameters {
    match hash {
        HashAlgorithm::Sha256 => &signature::RSA_PSS_2048_8192_SHA256,
        HashAlgorithm::Sha384 => &signature::RSA_PSS_2048_8192_SHA384,
        HashAlgorithm::Sha512 => &signature::RSA_PSS_2048_8192_SHA512,
    }
}

impl EllipticCurve {
    fn algorithm(self, hash: HashAlgorithm) -> &'static EcdsaVerificationAlgorithm {
        match (self, hash) {
            (Self::P256, HashAlgorithm::Sha256) => &signature::ECDSA_P256_SHA256_ASN1,
            (Self::P256, HashAlgorithm::Sha384) => &signature::ECDSA_P256_SHA384_ASN1,
            (Self::P256, HashAlgorithm::Sha512) => &signature::ECDSA_P256_SHA512_ASN1,
            (Self::P384, HashAlgorithm::Sha256) => &signature::ECDSA_P384_SHA256_ASN1,
            (Self::P384, HashAlgorithm::Sha384) => &signature::ECDSA_P384_SHA384_ASN1,
            (Self::P384, HashAlgorithm::Sha512) => &signature::ECDSA_P384_SHA512_ASN1,
            (Self::P521, HashAlgorithm::Sha256) => &signature::ECDSA_P521_SHA256_ASN1,
            (Self::P521, HashAlgorithm::Sha384) => &signature::ECDSA_P521_SHA384_ASN1,
            (Self::P521, HashAlgorithm::Sha512) => &signature::ECDSA_P521_SHA512_ASN1,
        }
    }
}

/// The octets of a positive INTEGER without its sign octet; `None` for zero and negative numbers.
fn positive(content: &[u8]) -> Option<&[u8]> {
    match content {
        [0] => None,
        [0, rest @ ..] => Some(rest),
        [first, ..] if first & 0x80 == 0 => Some(content),
        _ => None,
    }
}

pub(crate) fn bit_length(octets: &[u8]) -> usize {
    let leading = octets.first().map_or(0, |first| first.leading_zeros());
    (octets.len() * 8).saturating_sub(usize::try_from(leading).unwrap_or(0))
}
