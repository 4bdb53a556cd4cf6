//! The certificate the gateway shows an API server, and what the API server said when it asked for one: which CAs it
//! would like. That tells an operator more than the 401 that follows.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::X509Name;

use crate::pki::x509::CertificateKeyPair;
use crate::pki::x509::certificate::Certificate;

/// How an API server asked for a client certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CertificateRequest {
    /// Not at all.
    Never,
    /// For one of other CAs than the gateway's.
    ForOthers,
    /// For one like the gateway's, or for any.
    ForOurs,
}

/// The gateway's certificate, shown whenever it is asked for.
pub(super) struct ClientCertificate {
    certified: Arc<CertifiedKey>,
    /// The issuer of each certificate of the chain, as it is encoded.
    issuers: Vec<Vec<u8>>,
    /// For people: the common name of the subject, and the name of the issuer.
    pub(super) subject: String,
    pub(super) issuer: String,
}

/// It, and how one server asked for it. A resumed session asks for nothing, so there must be none.
pub(super) struct CertificateRecorder {
    certificate: Arc<ClientCertificate>,
    asked: AtomicU8,
}

impl ClientCertificate {
    pub(super) fn new(pair: &CertificateKeyPair) -> Self {
        let chain = pair.certificates();
        let subject = chain.first().map(Certificate::label).unwrap_or_default();
        let issuers: Vec<_> = chain.iter().map(|certificate| certificate.issuer.clone()).collect();
        let last = issuers.last().map(Vec::as_slice).unwrap_or_default();
        let issuer = X509Name::from_der(last).map(|(_, name)| name.to_string()).unwrap_or_default();
        Self { certified: pair.certified_key(), issuers, subject, issuer }
    }

    fn has_issuer(&self, names: &[&[u8]]) -> bool {
        names.iter().any(|name| self.issuers.iter().any(|issuer| issuer == name))
    }
}

impl CertificateRecorder {
    pub(super) fn new(certificate: Arc<ClientCertificate>) -> Self {
        Self { certificate, asked: AtomicU8::new(0) }
    }

    /// Another handshake begins.
    pub(super) fn begin(&self) {
        self.asked.store(0, Ordering::Relaxed);
    }

    /// How the server asked in the last handshake.
    pub(super) fn asked(&self) -> CertificateRequest {
        match self.asked.load(Ordering::Relaxed) {
            0 => CertificateRequest::Never,
            1 => CertificateRequest::ForOthers,
            _ => CertificateRequest::ForOurs,
        }
    }
}

impl ResolvesClientCert for ClientCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        // Shown to whoever asks: the names of CAs are only hints.
        Some(Arc::clone(&self.certified))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesClientCert for CertificateRecorder {
    fn resolve(&self, hints: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let ours = hints.is_empty() || self.certificate.has_issuer(hints);
        self.asked.store(if ours { 2 } else { 1 }, Ordering::Relaxed);
        self.certificate.resolve(hints, schemes)
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificate").field("subject", &self.subject).finish_non_exhaustive()
    }
}

impl fmt::Debug for CertificateRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateRecorder").field("asked", &self.asked()).finish_non_exhaustive()
    }
}
