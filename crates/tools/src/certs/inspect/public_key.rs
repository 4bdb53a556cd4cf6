//! Describes public keys, and finds weak ones.

use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use portcullis_pki::issuance::public_key;

const CURVES: [(&str, &str); 3] =
    [("1.2.840.10045.3.1.7", "P-256"), ("1.3.132.0.34", "P-384"), ("1.3.132.0.35", "P-521")];
// RFC 8410 section 3
const ED25519: &str = "1.3.101.112";
/// NIST SP 800-131A revision 2, section 3.
const MIN_RSA_BITS: usize = 2048;

/// The name and weakness of a public key.
pub(super) struct KeyDescription {
    /// `RSA 2048`, `ECDSA P-256`, `Ed25519`.
    pub(super) name: String,
    /// Why the key must not be used.
    pub(super) weakness: Option<String>,
}

impl KeyDescription {
    pub(super) fn of(key: &SubjectPublicKeyInfo<'_>) -> Self {
        let mut known = Self::read(key);
        if known.weakness.is_none() {
            // Keys that our own CAs refuse are weak elsewhere, too.
            known.weakness = public_key::StrongPublicKey::weakness(key.raw);
        }
        known
    }

    fn read(key: &SubjectPublicKeyInfo<'_>) -> Self {
        let algorithm = key.algorithm.algorithm.to_id_string();
        match key.parsed() {
            Ok(PublicKey::RSA(rsa)) => {
                // Skips leading zero octets of the DER integer.
                let octets: Vec<u8> = rsa.modulus.iter().copied().skip_while(|octet| *octet == 0).collect();
                let unused = octets.first().map_or(0, |octet| octet.leading_zeros());
                let bits = (octets.len() * 8).saturating_sub(usize::try_from(unused).unwrap_or_default());
                let weakness = (bits < MIN_RSA_BITS)
                    .then(|| format!("the key is too short: RSA {bits}; use {MIN_RSA_BITS} bits or more"));
                Self { name: format!("RSA {bits}"), weakness }
            }
            Ok(PublicKey::EC(_)) => {
                let curve = key.algorithm.parameters.as_ref().and_then(|curve| curve.as_oid().ok());
                let curve = curve.map(|curve| curve.to_id_string()).unwrap_or_default();
                match CURVES.iter().find(|(id, _)| *id == curve) {
                    Some((_, name)) => Self { name: format!("ECDSA {name}"), weakness: None },
                    None => Self {
                        name: format!("ECDSA on the curve {curve}"),
                        weakness: Some(
                            "the key is on a curve that TLS does not support; use P-256".to_owned(),
                        ),
                    },
                }
            }
            _ if algorithm == ED25519 => Self { name: "Ed25519".to_owned(), weakness: None },
            _ => Self {
                name: format!("of the algorithm {algorithm}"),
                weakness: Some(
                    "the key is of a type that Kubernetes does not support; use ECDSA or RSA".to_owned(),
                ),
            },
        }
    }
}
