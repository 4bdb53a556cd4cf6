//! The gateway's client certificate, and the `CertificateRequest` that the API server sent in the TLS handshake. Its CA
//! names tell an operator more than the 401 that follows.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::X509Name;

use portcullis_pki::x509::CertificateKeyPair;
use portcullis_pki::x509::certificate::Certificate;

/// How an API server requested a client certificate in a TLS handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientCertificateRequest {
    /// It did not.
    NotSent,
    /// It named CAs, and none of them issued the gateway's certificate.
    OtherCas,
    /// It named a CA of the gateway's certificate, or no CA.
    OurCa,
}

/// The gateway's client certificate, sent whenever a server requests one.
pub(super) struct ClientCertificate {
    certified: Arc<CertifiedKey>,
    /// The DER-encoded issuer of each certificate of the chain.
    issuers: Vec<Vec<u8>>,
    /// For messages.
    pub(super) common_name: String,
    /// For messages: the name of the chain's last issuer.
    pub(super) issuer: String,
}

/// The client certificate, and how one server requested it. Needs full handshakes: a resumed session requests none.
pub(super) struct CertificateRecorder {
    certificate: Arc<ClientCertificate>,
    request: AtomicU8,
}

impl ClientCertificate {
    pub(super) fn new(pair: &CertificateKeyPair) -> Self {
        let chain = pair.certificates();
        let common_name = chain.first().map(Certificate::label).unwrap_or_default();
        let issuers: Vec<_> = chain.iter().map(|certificate| certificate.issuer.clone()).collect();
        let last = issuers.last().map(Vec::as_slice).unwrap_or_default();
        let issuer = X509Name::from_der(last).map(|(_, name)| name.to_string()).unwrap_or_default();
        Self { certified: pair.certified_key(), issuers, common_name, issuer }
    }

    fn has_issuer(&self, names: &[&[u8]]) -> bool {
        names.iter().any(|name| self.issuers.iter().any(|issuer| issuer == name))
    }
}

impl CertificateRecorder {
    pub(super) fn new(certificate: Arc<ClientCertificate>) -> Self {
        Self { certificate, request: AtomicU8::new(0) }
    }

    /// Forgets the last handshake, before the next one begins.
    pub(super) fn reset(&self) {
        self.request.store(0, Ordering::Relaxed);
    }

    /// The request of the last handshake.
    pub(super) fn certificate_request(&self) -> ClientCertificateRequest {
        match self.request.load(Ordering::Relaxed) {
            0 => ClientCertificateRequest::NotSent,
            1 => ClientCertificateRequest::OtherCas,
            _ => ClientCertificateRequest::OurCa,
        }
    }
}

impl ResolvesClientCert for ClientCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        // The CA names of the request are only hints.
        Some(Arc::clone(&self.certified))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesClientCert for CertificateRecorder {
    fn resolve(&self, hints: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let is_ours = hints.is_empty() || self.certificate.has_issuer(hints);
        self.request.store(if is_ours { 2 } else { 1 }, Ordering::Relaxed);
        self.certificate.resolve(hints, schemes)
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificate").field("common_name", &self.common_name).finish_non_exhaustive()
    }
}

impl fmt::Debug for CertificateRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateRecorder")
            .field("request", &self.certificate_request())
            .finish_non_exhaustive()
    }
}
