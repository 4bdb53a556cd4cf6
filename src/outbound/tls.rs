//! Whom a TLS client trusts, and what it shows of itself.

use std::fmt;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::crypto::CryptoProvider;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

/// How a connection is secured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The CAs of the peer's certificate.
    pub roots: Roots,
    /// The certificate the peer is shown.
    pub client_certificate: Option<ClientCertificate>,
    /// The name the peer's certificate must have; `None` for the host of the URL.
    pub server_name: Option<ServerName<'static>>,
}

impl Tls {
    /// Fails if certificate and key do not fit together. No HTTP version is offered yet.
    pub(super) fn config(&self, provider: &Arc<CryptoProvider>) -> Result<ClientConfig, rustls::Error> {
        let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(Arc::clone(&self.roots.0));
        match self.client_certificate.clone() {
            Some(ClientCertificate { chain, key }) => builder.with_client_auth_cert(chain, key),
            None => Ok(builder.with_no_client_auth()),
        }
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

    /// The certificates in a PEM bundle; what cannot be one is left out.
    pub fn from_pem(pem: &[u8]) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).filter_map(Result::ok));
        Self(Arc::new(roots))
    }
}

impl PartialEq for Roots {
    fn eq(&self, other: &Self) -> bool {
        self.0.roots == other.0.roots
    }
}

impl Eq for Roots {}

/// A client certificate and its key.
#[derive(PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate and its intermediates.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificate").field("chain", &self.chain.len()).finish_non_exhaustive()
    }
}

impl Clone for ClientCertificate {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}
