//! Proof of possession in a TLS handshake, with the raw public key of a certificate.
//!
//! A path validator would end the handshake for certificates that Go accepts (X.509 v1, a CA as leaf). Trust is decided
//! elsewhere.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use webpki::RawPublicKeyEntity;

/// The schemes to offer: without those of keys for which [`super::certificate::Certificate`] has no kind. A peer that
/// chose one would present a certificate that is refused.
pub fn offered_schemes(algorithms: &WebPkiSupportedAlgorithms) -> Vec<SignatureScheme> {
    let is_unknown = |scheme: &SignatureScheme| {
        matches!(scheme, SignatureScheme::ML_DSA_44 | SignatureScheme::ML_DSA_65 | SignatureScheme::ML_DSA_87)
    };
    algorithms.supported_schemes().into_iter().filter(|scheme| !is_unknown(scheme)).collect()
}

/// Verifies the signature of a TLS 1.2 handshake.
pub fn verify_tls12_signature(
    message: &[u8],
    key: &SubjectPublicKeyInfoDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let bad_signature = || Error::InvalidCertificate(CertificateError::BadSignature);
    let entity = RawPublicKeyEntity::try_from(key).map_err(|_| bad_signature())?;
    let offered = algorithms.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
    let (_, algorithms) = offered.ok_or_else(bad_signature)?;
    // TLS 1.2 schemes do not name a curve, so each algorithm of the scheme is tried.
    let mut algorithms = algorithms.iter();
    if algorithms.any(|algorithm| entity.verify_signature(*algorithm, message, signed.signature()).is_ok()) {
        Ok(HandshakeSignatureValid::assertion())
    } else {
        Err(bad_signature())
    }
}

/// Verifies the signature of a TLS 1.3 handshake.
pub fn verify_tls13_signature(
    message: &[u8],
    key: &SubjectPublicKeyInfoDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    verify_tls13_signature_with_raw_key(message, key, signed, algorithms)
}
