//! Whom a TLS client trusts, and what it shows of itself.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::crypto::CryptoProvider;
use rustls::sign::SingleCertAndKey;
use rustls_pki_types::ServerName;

use crate::pki::x509::{CaBundle, CertificateKeyPair};

/// How a connection is secured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The CAs of the peer's certificate.
    pub roots: Roots,
    /// The certificate the peer is shown.
    pub client_certificate: Option<CertificateKeyPair>,
    /// The name the peer's certificate must have; `None` for the host of the URL.
    pub server_name: Option<ServerName<'static>>,
}

impl Tls {
    /// Fails if the provider has no TLS version in common with us. No HTTP version is offered yet.
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

/// Trusted CAs; equal if they are the same in the same order.
#[derive(Debug, Clone)]
pub struct Roots(pub Arc<rustls::RootCertStore>);

impl Roots {
    /// Those of the system, as they are now.
    pub fn system() -> Self {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Self(Arc::new(roots))
    }

    /// The certificates of a bundle, each of them.
    pub fn of(bundle: &CaBundle) -> Result<Self, UnusableRoot> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in bundle.certificates() {
            let added = roots.add(certificate.der.clone());
            added.map_err(|error| UnusableRoot(certificate.label(), error.to_string()))?;
        }
        Ok(Self(Arc::new(roots)))
    }
}

/// A certificate that Go reads, and that the TLS library cannot verify servers by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no server can be verified by the certificate {0:?}: {1}")]
pub struct UnusableRoot(String, String);

impl PartialEq for Roots {
    fn eq(&self, other: &Self) -> bool {
        self.0.roots == other.0.roots
    }
}

impl Eq for Roots {}
