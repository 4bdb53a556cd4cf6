//! The certificate the gateway shows an API server, and what the API server said when it asked for one: which CAs it
//! would like. That tells an operator more than the 401 that follows.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, SignatureScheme};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// How an API server asked for a client certificate in the last full handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Not at all.
    Never,
    /// For one of other CAs than the gateway's.
    ForOthers,
    /// For one like the gateway's, or for any.
    ForOurs,
}

/// The gateway's certificate, shown whenever it is asked for.
pub(super) struct Presented {
    certified: Arc<CertifiedKey>,
    /// The issuer of each certificate of the chain, as it is encoded.
    issuers: Vec<Vec<u8>>,
    /// For people: the common name of the subject, and the name of the issuer.
    pub(super) subject: String,
    pub(super) issuer: String,
    asked: AtomicU8,
}

impl Presented {
    pub(super) fn new(certified: CertifiedKey) -> Result<Self, rustls::Error> {
        let parse = |der: &CertificateDer<'_>| -> Result<(Vec<u8>, String, String), rustls::Error> {
            let (_, parsed) = X509Certificate::from_der(der)
                .map_err(|_| rustls::Error::InvalidCertificate(CertificateError::BadEncoding))?;
            let common_name = parsed.subject().iter_common_name().find_map(|name| name.as_str().ok());
            let subject = common_name.map_or_else(|| parsed.subject().to_string(), str::to_owned);
            Ok((parsed.issuer().as_raw().to_vec(), subject, parsed.issuer().to_string()))
        };
        let chain: Vec<_> = certified.cert.iter().map(parse).collect::<Result<_, _>>()?;
        let (subject, issuer) = match chain.first() {
            Some((_, subject, _)) => {
                (subject.clone(), chain.last().map(|(_, _, issuer)| issuer.clone()).unwrap_or_default())
            }
            None => return Err(rustls::Error::NoCertificatesPresented),
        };
        let issuers = chain.into_iter().map(|(raw, ..)| raw).collect();
        Ok(Self { certified: Arc::new(certified), issuers, subject, issuer, asked: AtomicU8::new(0) })
    }

    pub(super) fn asked(&self) -> Asked {
        match self.asked.load(Ordering::Relaxed) {
            0 => Asked::Never,
            1 => Asked::ForOthers,
            _ => Asked::ForOurs,
        }
    }
}

impl ResolvesClientCert for Presented {
    fn resolve(&self, root_hint_subjects: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let ours = root_hint_subjects.is_empty()
            || root_hint_subjects.iter().any(|hint| self.issuers.iter().any(|issuer| issuer == hint));
        self.asked.store(if ours { 2 } else { 1 }, Ordering::Relaxed);
        // Shown all the same: the hints are only that.
        Some(Arc::clone(&self.certified))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl fmt::Debug for Presented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presented").field("subject", &self.subject).finish_non_exhaustive()
    }
}
