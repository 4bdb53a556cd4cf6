//! The TLS side of client certificates: the handshake requests one, with the names of the client CAs as hints, and
//! verifies that the client has its private key. [`crate::authn::x509`] verifies the certificate for each request, so
//! that a bad one gets an HTTP response and not a TLS alert, as in kube-apiserver.
//!
//! The signature is verified with the raw public key: a path validator would abort the handshake for certificates that
//! kube-apiserver answers with 401, or even accepts (X.509 v1, a CA as leaf).

use std::sync::Arc;

use portcullis_pki::x509::handshake::{offered_schemes, verify_tls12_signature, verify_tls13_signature};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};

use crate::authn::x509::{parse_chain_for_handshake, parse_for_handshake};

/// Verifies possession of the private key and nothing else.
#[derive(Debug)]
pub(crate) struct PossessionVerifier {
    hints: Arc<[DistinguishedName]>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PossessionVerifier {
    /// Creates a verifier that sends `hints` as the accepted CAs.
    pub(crate) fn new(hints: Arc<[DistinguishedName]>, algorithms: WebPkiSupportedAlgorithms) -> Self {
        Self { hints, algorithms }
    }

    fn key(cert: &CertificateDer<'_>) -> Result<SubjectPublicKeyInfoDer<'static>, Error> {
        parse_for_handshake(cert).map_err(|_| bad_encoding())
    }
}

fn bad_encoding() -> Error {
    Error::InvalidCertificate(CertificateError::BadEncoding)
}

impl ClientCertVerifier for PossessionVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // Go aborts the handshake if it cannot parse a certificate.
        parse_chain_for_handshake(end_entity, intermediates).map_err(|_| bad_encoding())?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, &Self::key(cert)?, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, &Self::key(cert)?, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        offered_schemes(&self.algorithms)
    }
}
