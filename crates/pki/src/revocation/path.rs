//! The certificates of a verified chain, in the form by which revocations name them.

use aws_lc_rs::digest;
use num_bigint::BigUint;
use portcullis_go::hex::hex;

use crate::x509::certificate::Certificate;
use crate::x509::der::{DerReader, tag};
use crate::x509::name_text::ComparableName;
use crate::x509::signature::{EllipticCurve, PublicKey, SignatureAlgorithm};

/// The certificates of a verified chain, leaf first, trust anchor last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificatePath(Vec<PathCertificate>);

/// One certificate of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathCertificate {
    /// The encoded issuer.
    pub issuer: Vec<u8>,
    /// The issuer as a deny list names it.
    pub comparable_issuer: Option<ComparableName>,
    /// Big-endian, without leading zeros.
    pub serial: Vec<u8>,
    /// `X509SHA256=…` of the certificate, and of the other encodings that its holder can make of it.
    pub credential_ids: Vec<String>,
    /// Whether `credential_ids` has all of them.
    pub is_regular: bool,
}

impl CertificatePath {
    /// Of a path, leaf first, in which each certificate was signed by the next one.
    pub fn of(path: &[&Certificate]) -> Self {
        let signers = path.iter().skip(1).copied().map(Some).chain(std::iter::once(None));
        let certificates = path.iter().zip(signers);
        Self(certificates.map(|(certificate, signer)| PathCertificate::of(certificate, signer)).collect())
    }

    /// The certificates, leaf first.
    pub fn certificates(&self) -> &[PathCertificate] {
        &self.0
    }
}

#[cfg(test)]
impl From<Vec<PathCertificate>> for CertificatePath {
    fn from(certificates: Vec<PathCertificate>) -> Self {
        Self(certificates)
    }
}

impl PathCertificate {
    fn of(certificate: &Certificate, signer: Option<&Certificate>) -> Self {
        let mut credential_ids = vec![credential_id(&certificate.der)];
        credential_ids
            .extend(signer.and_then(|signer| twin(certificate, signer)).as_deref().map(credential_id));
        Self {
            issuer: certificate.issuer.clone(),
            comparable_issuer: ComparableName::of(&certificate.issuer),
            serial: certificate.serial.clone(),
            credential_ids,
            // The client cannot change a trust anchor.
            is_regular: certificate.is_regular || signer.is_none(),
        }
    }
}

/// The credential ID of a certificate, as kube-apiserver writes it.
// apiserver: pkg/authentication/request/x509/x509.go, CommonNameUserConversion
pub fn credential_id(der: &[u8]) -> String {
    format!("X509SHA256={}", hex(digest::digest(&digest::SHA256, der).as_ref()))
}

/// The other certificate with the same content that its holder can make without the CA: if (r, s) is an ECDSA signature,
/// so is (r, n-s). `None` for other algorithms.
// threat: re-encoded-certificate
fn twin(certificate: &Certificate, signer: &Certificate) -> Option<Vec<u8>> {
    let (SignatureAlgorithm::Ecdsa(_), PublicKey::Ecdsa { curve, .. }) =
        (certificate.algorithm, &signer.public_key)
    else {
        return None;
    };
    let mut pair = DerReader::new(&certificate.signature).enter(tag::SEQUENCE)?;
    let (r, s) = (pair.integer()?, BigUint::from_bytes_be(pair.integer()?));
    let order = order(*curve)?;
    if s >= order {
        return None;
    }
    let signature = tlv(tag::SEQUENCE, &[tlv(tag::INTEGER, r), positive(&(order - s))].concat());
    let mut outer = DerReader::new(&certificate.der).enter(tag::SEQUENCE)?;
    let (tbs, algorithm) = (outer.any()?.whole, outer.any()?.whole);
    let bits = tlv(tag::BIT_STRING, &[&[0], signature.as_slice()].concat());
    Some(tlv(tag::SEQUENCE, &[tbs, algorithm, &bits].concat()))
}

/// The order of the group of a curve.
// FIPS 186-4, appendix D.1.2
fn order(curve: EllipticCurve) -> Option<BigUint> {
    let digits: &[u8] = match curve {
        EllipticCurve::P256 => b"ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551",
        EllipticCurve::P384 => {
            b"ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973"
        }
        EllipticCurve::P521 => {
            b"1fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffa51868783bf2f966b7fcc0148f709a5d03bb5c9b8899c47aebb6fb71e91386409"
        }
    };
    BigUint::parse_bytes(digits, 16)
}

/// The order of the curve with this many bits.
#[cfg(any(test, feature = "testing"))]
pub fn order_of(bits: usize) -> BigUint {
    let curve = match bits {
        256 => EllipticCurve::P256,
        384 => EllipticCurve::P384,
        _ => EllipticCurve::P521,
    };
    order(curve).unwrap_or_default()
}

fn positive(number: &BigUint) -> Vec<u8> {
    let mut octets = number.to_bytes_be();
    if octets.first().is_none_or(|first| first & 0x80 != 0) {
        octets.insert(0, 0);
    }
    tlv(tag::INTEGER, &octets)
}

fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let mut encoded = vec![tag];
    match u8::try_from(length) {
        Ok(short) if short < 0x80 => encoded.push(short),
        _ => {
            let octets: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|octet| *octet == 0).collect();
            encoded.push(0x80 | u8::try_from(octets.len()).unwrap_or(0));
            encoded.extend(octets);
        }
    }
    encoded.extend_from_slice(content);
    encoded
}
