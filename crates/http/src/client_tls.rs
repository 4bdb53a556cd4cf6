//! The TLS settings of a client: trusted CAs, client certificate and server name.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::crypto::CryptoProvider;
use rustls::sign::SingleCertAndKey;
use rustls_pki_types::ServerName;

use portcullis_pki::x509::{CaBundle, CertificateKeyPair};

/// The TLS settings of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTls {
    /// The CAs that verify the server's certificate.
    pub roots: TrustedRoots,
    /// The certificate presented to the server.
    pub client_certificate: Option<CertificateKeyPair>,
    /// The name that the server's certificate must have; `None`: the host of the URL.
    pub server_name: Option<ServerName<'static>>,
}

impl ClientTls {
    /// The rustls configuration, without ALPN. Fails if the provider supports none of our TLS versions.
    pub(super) fn config(&self, provider: &Arc<CryptoProvider>) -> Result<ClientConfig, rustls::Error> {
        let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(Arc::clone(&self.roots.0));
        Ok(match &self.client_certificate {
            Some(pair) => {
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair.certified_key())))
            }
            None => builder.with_no_client_auth(),
        })
    }
}

/// Trusted CAs. Equality depends on their order.
#[derive(Debug, Clone)]
pub struct TrustedRoots(pub Arc<rustls::RootCertStore>);

impl TrustedRoots {
    /// The system's CAs, read now.
    pub fn system() -> Self {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Self(Arc::new(roots))
    }

    /// All certificates of a bundle.
    pub fn from_bundle(bundle: &CaBundle) -> Result<Self, UnusableRoot> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in bundle.certificates() {
            let added = roots.add(certificate.der.clone());
            added.map_err(|error| UnusableRoot(certificate.label(), error.to_string()))?;
        }
        Ok(Self(Arc::new(roots)))
    }
}

/// A CA certificate that Go accepts, but rustls does not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the TLS library cannot use the CA certificate {0:?}: {1}")]
pub struct UnusableRoot(String, String);

impl PartialEq for TrustedRoots {
    fn eq(&self, other: &Self) -> bool {
        self.0.roots == other.0.roots
    }
}

impl Eq for TrustedRoots {}
