//! A public key in a few words, and whether it is worth anything.

use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::pki::issuance::public_key;

const CURVES: [(&str, &str); 3] =
    [("1.2.840.10045.3.1.7", "P-256"), ("1.3.132.0.34", "P-384"), ("1.3.132.0.35", "P-521")];
// RFC 8410 section 3
const ED25519: &str = "1.3.101.112";
/// NIST SP 800-131A revision 2, section 3.
const MIN_RSA_BITS: usize = 2048;

/// What is known of a key.
pub(super) struct KeyDescription {
    /// `RSA 2048`, `ECDSA P-256`, `Ed25519`.
    pub(super) name: String,
    /// Why it is not to be used.
    pub(super) weakness: Option<String>,
}

impl KeyDescription {
    pub(super) fn of(key: &SubjectPublicKeyInfo<'_>) -> Self {
        let mut known = Self::read(key);
        if known.weakness.is_none() {
            // What is not signed here is not to be used elsewhere.
            known.weakness = public_key::StrongPublicKey::weakness(key.raw);
        }
        known
    }

    fn read(key: &SubjectPublicKeyInfo<'_>) -> Self {
        let algorithm = key.algorithm.algorithm.to_id_string();
        match key.parsed() {
            Ok(PublicKey::RSA(rsa)) => {
                // The first octets of the integer may say no more than its sign.
                let octets: Vec<u8> = rsa.modulus.iter().copied().skip_while(|octet| *octet == 0).collect();
                let unused = octets.first().map_or(0, |octet| octet.leading_zeros());
                let bits = (octets.len() * 8).saturating_sub(usize::try_from(unused).unwrap_or_default());
                let weakness = (bits < MIN_RSA_BITS).then(|| {
                    format!("the key is too short: RSA {bits}; make one of {MIN_RSA_BITS} bits or more")
                });
                Self { name: format!("RSA {bits}"), weakness }
            }
            Ok(PublicKey::EC(_)) => {
                let curve = key.algorithm.parameters.as_ref().and_then(|curve| curve.as_oid().ok());
                let curve = curve.map(|curve| curve.to_id_string()).unwrap_or_default();
                match CURVES.iter().find(|(id, _)| *id == curve) {
                    Some((_, name)) => Self { name: format!("ECDSA {name}"), weakness: None },
                    None => Self {
                        name: format!("ECDSA on the curve {curve}"),
                        weakness: Some("the key is on a curve that TLS has not; use P-256".to_owned()),
                    },
                }
            }
            _ if algorithm == ED25519 => Self { name: "Ed25519".to_owned(), weakness: None },
            _ => Self {
                name: format!("of the algorithm {algorithm}"),
                weakness: Some(
                    "the key is of a kind that Kubernetes does not take; use ECDSA or RSA".to_owned(),
                ),
            },
        }
    }
}
