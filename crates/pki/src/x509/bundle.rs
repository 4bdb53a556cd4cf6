//! CA bundles, such as the file of `--client-ca-file`.

use std::collections::HashSet;

use aws_lc_rs::digest;
use portcullis_go::pem;
use rustls::DistinguishedName;

use super::certificate::{Certificate, ParseError};

/// Trusted certificates. Each is a trust anchor, self-signed or not.
#[derive(Debug, Clone)]
pub struct CaBundle {
    certificates: Vec<Certificate>,
    fingerprint: BundleFingerprint,
}

/// Digest of the content of a bundle: equal for equal certificates in the same order.
pub type BundleFingerprint = [u8; 32];

/// Why a file is not a CA bundle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// The file has no `CERTIFICATE` block without headers.
    // client-go: util/cert/pem.go, ParseCertsPEM
    #[error("data does not contain any valid RSA or ECDSA certificates")]
    NoCertificates,
    /// A certificate does not parse.
    #[error(transparent)]
    Malformed(#[from] ParseError),
}

impl CaBundle {
    /// Parses every certificate of a PEM file. Skips other blocks, blocks with headers and malformed PEM. A certificate
    /// that does not parse is an error, and so is a file without certificates.
    // client-go: util/cert/pem.go, ParseCertsPEM; util/cert/io.go, NewPoolFromBytes
    pub fn from_pem(pem: &[u8]) -> Result<Self, BundleError> {
        let certificates: Vec<Certificate> =
            pem::authorities(pem).into_iter().map(Certificate::parse).collect::<Result<_, _>>()?;
        if certificates.is_empty() {
            return Err(BundleError::NoCertificates);
        }
        Ok(Self::of(certificates))
    }

    /// A bundle of these certificates, without duplicates. One without certificates trusts nothing.
    pub fn of(all: impl IntoIterator<Item = Certificate>) -> Self {
        let mut seen = HashSet::new();
        let certificates: Vec<Certificate> =
            all.into_iter().filter(|certificate| seen.insert(certificate.der.clone())).collect();
        let mut hash = digest::Context::new(&digest::SHA256);
        for certificate in &certificates {
            hash.update(digest::digest(&digest::SHA256, &certificate.der).as_ref());
        }
        let fingerprint = hash.finish().as_ref().try_into().unwrap_or_default();
        Self { certificates, fingerprint }
    }

    /// The `certificate_authorities` of a TLS `CertificateRequest`, by which clients select their certificate.
    pub fn subjects(&self) -> Vec<DistinguishedName> {
        let mut seen = HashSet::new();
        self.certificates
            .iter()
            .filter(|certificate| seen.insert(&certificate.raw_subject))
            .map(|certificate| DistinguishedName::from(certificate.raw_subject.clone()))
            .collect()
    }

    /// Whether the bundles have a certificate in common: clients of one could then authenticate against the other.
    pub fn shares_certificate_with(&self, other: &Self) -> bool {
        self.certificates.iter().any(|certificate| other.contains(certificate))
    }

    /// The trusted certificates, in the order of the bundle.
    pub fn certificates(&self) -> &[Certificate] {
        &self.certificates
    }

    /// Whether this certificate is trusted itself.
    pub fn contains(&self, certificate: &Certificate) -> bool {
        self.certificates.iter().any(|own| own.der == certificate.der)
    }

    /// The digest of the bundle.
    pub fn fingerprint(&self) -> BundleFingerprint {
        self.fingerprint
    }
}
