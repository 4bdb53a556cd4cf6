//! The TLS server configuration: certificates by server name, ALPN, versions, proof of possession of client keys.

use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DistinguishedName, ServerConfig};

use super::possession::PossessionVerifier;
use super::settings::{ServingCertificate, ServingSettings};

/// Builds the configuration. It is immutable: a reload builds another. `hints` are the names of the client CAs.
pub(crate) fn server_config(
    serving: &ServingSettings,
    hints: Arc<[DistinguishedName]>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let verifier = PossessionVerifier::new(hints, serving.provider.signature_verification_algorithms);
    let mut config = ServerConfig::builder_with_provider(Arc::clone(&serving.provider))
        .with_protocol_versions(&serving.versions)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(SniCertResolver {
            named: serving.sni_certificates.clone(),
            default: serving.certificate.clone(),
        }));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Early data could be replayed.
    config.max_early_data_size = 0;
    // wolfSSL before 5.6 fails at the ticket of TLS 1.3, whose nonce is longer than it takes. No client of Go, kubectl among
    // them, resumes sessions, and those of TLS 1.2 are resumed without tickets.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Selects the certificate for the server name of the handshake.
// apiserver: pkg/server/dynamiccertificates/named_certificates.go
#[derive(Debug)]
struct SniCertResolver {
    named: Vec<ServingCertificate>,
    default: ServingCertificate,
}

impl SniCertResolver {
    fn select(&self, server_name: Option<&str>) -> &ServingCertificate {
        let Some(name) = server_name.map(str::to_lowercase) else {
            return &self.default;
        };
        // An exact name takes precedence over a wildcard, whatever the order of the flags.
        let wildcard = name.split_once('.').map(|(_, rest)| format!("*.{rest}"));
        let find = |wanted: &str| self.named.iter().find(|cert| cert.names.iter().any(|name| name == wanted));
        find(&name).or_else(|| wildcard.as_deref().and_then(find)).unwrap_or(&self.default)
    }
}

impl ResolvesServerCert for SniCertResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.select(hello.server_name()).pair.certified_key())
    }
}
