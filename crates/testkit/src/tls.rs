//! TLS of clients that accept any server certificate.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::pki::Issued;

/// A client before its certificate is chosen.
pub type TlsClient = rustls::ConfigBuilder<rustls::ClientConfig, rustls::client::WantsClientCert>;

/// A client that accepts any server certificate, before its own certificate is chosen.
pub fn tls_client(versions: &[&'static rustls::SupportedProtocolVersion]) -> TlsClient {
    tls_client_by(default_provider(), versions)
}

/// The same with this crypto provider.
pub fn tls_client_by(
    provider: CryptoProvider,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> TlsClient {
    rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer))
}

/// Completes the configuration, with a client certificate if there is one.
pub fn identified(client: TlsClient, identity: Option<&Issued>) -> rustls::ClientConfig {
    match identity {
        // Not `with_client_auth_cert`, which refuses some certificates that Go accepts.
        Some(issued) => {
            let key = any_supported_type(&issued.key).unwrap();
            let certified = CertifiedKey::new(issued.chain.clone(), key);
            client.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
        }
        None => client.with_no_client_auth(),
    }
}

/// Accepts any server certificate.
#[derive(Debug)]
pub struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
