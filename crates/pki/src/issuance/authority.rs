//! Certificate authorities: a CA certificate and the matching key.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use aws_lc_rs::digest;
use portcullis_go::pem::encode_pem;
use portcullis_system::clock::UnixTime;
use portcullis_system::input_file::{self, ReadFileError};
use rustls_pki_types::CertificateDer;
use secrecy::zeroize::Zeroizing;

use super::crl::{CrlPlan, SignCrlError};
use super::issue::{
    CertificateFingerprint, CertificateIssuer, IssuanceRequest, IssueError, IssuedCertificate,
    PreparedCertificate,
};
use super::limits::{self, AuthorityLimit};
use super::profile::CertificateProfile;
use super::public_key::{PublicKeyError, StrongPublicKey};
#[cfg(feature = "pkcs11")]
use super::signer::pkcs11::Pkcs11Key;
use super::signer::{PemKey, PrivateKeyError, Signer, SigningAlgorithm};
use super::subject::Subject;
use super::validity::Validity;
use crate::x509::ParseError;
use crate::x509::certificate::{Certificate, KEY_CERT_SIGN};
use crate::x509::key_pair::certificate_blocks;

/// A CA certificate with its signing key.
#[derive(Debug)]
pub struct CertificateAuthority {
    key: Box<dyn Signer>,
    certificate_pem: String,
    subject: Subject,
    issuer: CertificateIssuer,
}

/// Why a CA cannot be loaded. The texts are kube-controller-manager's where it has one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    /// The certificate and the key cannot be used as a CA.
    #[error(transparent)]
    Pair(#[from] AuthorityKeyPairError),
    /// The files cannot be used as a CA.
    // kubernetes: pkg/controller/certificates/signer/ca_provider.go, newCAProvider, setCA
    #[error("error reading CA cert file {name:?}: {reason}")]
    Files {
        /// The file, or the pair of files, as kube-controller-manager names it.
        name: String,
        /// The cause.
        reason: AuthorityKeyPairError,
    },
    /// The key in a PKCS#11 token cannot be used.
    #[error("the CA key {uri}: {reason}")]
    TokenKey {
        /// The URI, without a PIN.
        uri: String,
        /// The cause.
        reason: PrivateKeyError,
    },
    /// A file cannot be read.
    #[error("error reading CA cert file {certificate:?}: open {file}: {reason}")]
    Read {
        /// The certificate file, by which kube-controller-manager names the pair.
        certificate: String,
        /// The file that cannot be read.
        file: String,
        /// The cause.
        reason: String,
    },
}

/// Why a certificate and a key cannot be used as a CA.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityKeyPairError {
    /// One of the files is empty.
    // apiserver: pkg/server/dynamiccertificates/dynamic_serving_content.go, loadCertKeyPair
    #[error("missing content for serving cert {0:?}")]
    Empty(String),
    /// The PEM has no certificate.
    // go: crypto/tls/tls.go, X509KeyPair
    #[error("{0}")]
    NoCertificate(String),
    /// The certificate does not parse.
    #[error(transparent)]
    Malformed(#[from] ParseError),
    /// The PEM has several certificates, so the signing one is ambiguous.
    #[error("expected 1 certificate, found {0}")]
    Several(usize),
    /// The key does not match the certificate.
    #[error("tls: private key does not match public key")]
    Mismatch,
    /// Not a CA certificate: verifiers would reject every certificate that it signs (RFC 5280 §6.1.4).
    #[error(
        "the certificate is not a CA certificate: it needs CA:TRUE in basicConstraints, and keyCertSign in keyUsage"
    )]
    NotAuthority,
    /// A critical extension that Go's verifier does not support: it rejects every certificate below.
    // go: crypto/x509/verify.go, isValid
    #[error(
        "the certificate has a critical extension that verifiers do not support (x509: unhandled critical extension)"
    )]
    UnhandledCriticalExtension,
    /// The key is too weak, or of an unsupported kind.
    #[error("{0}")]
    WeakKey(String),
    /// The key cannot be read.
    #[error(transparent)]
    Key(#[from] PrivateKeyError),
}

/// The location of a CA key.
#[derive(Clone, PartialEq, Eq)]
pub enum AuthorityKeySource {
    /// A PEM file.
    File(PathBuf),
    /// The RFC 7512 URI of a key in a PKCS#11 token.
    Pkcs11(String),
}

/// What becomes of a CA whose token is absent when it is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbsentToken {
    /// An error.
    Refused,
    /// The CA signs once the token is there: [`CertificateAuthority::token_problem`].
    Awaited,
}

impl AuthorityKeySource {
    /// Parses a `pkcs11:` URI, or the path of a file.
    pub fn parse(text: &str) -> Self {
        if text.starts_with("pkcs11:") {
            Self::Pkcs11(text.to_owned())
        } else {
            Self::File(PathBuf::from(text))
        }
    }

    /// The file; `None` for a key in a token.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Pkcs11(_) => None,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            // `signer::pkcs11` rejects a URI with a PIN; its error must not show the PIN either.
            Self::Pkcs11(uri) if uri.contains("pin-value") => "pkcs11:".to_owned(),
            Self::Pkcs11(uri) => uri.clone(),
        }
    }
}

impl fmt::Debug for AuthorityKeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl CertificateAuthority {
    /// A CA of exactly one certificate and the matching key. Accepts an expired certificate and fails when signing, as
    /// kube-controller-manager does.
    pub fn new(certificate_pem: &[u8], key: Box<dyn Signer>) -> Result<Self, AuthorityError> {
        Ok(Self::of(certificate_pem, |_| Ok(key))?)
    }

    /// Reads the certificate and the key from their locations. Blocks.
    pub fn load(certificate: &Path, key: &AuthorityKeySource) -> Result<Self, AuthorityError> {
        let read = |path: &Path| {
            input_file::read(path).map(Zeroizing::new).map_err(|error| AuthorityError::Read {
                certificate: certificate.display().to_string(),
                file: path.display().to_string(),
                // go: the texts of syscall.Errno
                reason: match &error {
                    ReadFileError::Io(error) if error.kind() == io::ErrorKind::NotFound => {
                        "no such file or directory".to_owned()
                    }
                    ReadFileError::Io(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        "permission denied".to_owned()
                    }
                    error => error.to_string(),
                },
            })
        };
        let certificate_pem = read(certificate)?;
        let key_pem = match key {
            AuthorityKeySource::File(path) => read(path)?,
            AuthorityKeySource::Pkcs11(_) => Zeroizing::default(),
        };
        Self::read(certificate, &certificate_pem, key, &key_pem, AbsentToken::Refused)
    }

    /// A CA from the content of its files. Ignores `key_pem` for a key in a PKCS#11 token; such a key makes it block.
    pub fn read(
        certificate: &Path,
        certificate_pem: &[u8],
        key: &AuthorityKeySource,
        key_pem: &[u8],
        absent: AbsentToken,
    ) -> Result<Self, AuthorityError> {
        let pair = format!("csr-controller::{}::{}", certificate.display(), key.name());
        let is_file = matches!(key, AuthorityKeySource::File(_));
        let authority = if certificate_pem.is_empty() || (is_file && key_pem.is_empty()) {
            Err(AuthorityKeyPairError::Empty(pair.clone()))
        } else {
            Self::of(certificate_pem, |certificate_key| open(key, key_pem, certificate_key, absent))
        };
        authority.map_err(|reason| {
            let reason = match (key, reason) {
                (AuthorityKeySource::Pkcs11(_), AuthorityKeyPairError::Key(reason)) => {
                    return AuthorityError::TokenKey { uri: key.name(), reason };
                }
                (_, reason) => reason,
            };
            // kube-controller-manager counts the certificates last, and names both files in that error.
            let name = match reason {
                AuthorityKeyPairError::Several(_) => pair,
                _ => certificate.display().to_string(),
            };
            AuthorityError::Files { name, reason }
        })
    }

    fn of(
        certificate_pem: &[u8],
        key: impl FnOnce(&[u8]) -> Result<Box<dyn Signer>, PrivateKeyError>,
    ) -> Result<Self, AuthorityKeyPairError> {
        let mut ders =
            certificate_blocks(certificate_pem).map_err(AuthorityKeyPairError::NoCertificate)?.into_iter();
        let first = ders.next().map_or_else(|| CertificateDer::from(Vec::new()), CertificateDer::from);
        let certificate = Certificate::parse(first)?;
        let public = StrongPublicKey::from_spki(&certificate.spki).map_err(|bad| match bad {
            PublicKeyError::Malformed(error) => AuthorityKeyPairError::Malformed(error),
            bad => AuthorityKeyPairError::WeakKey(bad.to_string()),
        })?;
        let key = key(public.spki())?;
        // Compares parsed keys: one key may have several encodings.
        let same = StrongPublicKey::from_spki(key.public_key()).is_ok_and(|own| own == public);
        let algorithm =
            SigningAlgorithm::of(public.key()).filter(|_| same).ok_or(AuthorityKeyPairError::Mismatch)?;
        if ders.len() > 0 {
            return Err(AuthorityKeyPairError::Several(ders.len() + 1));
        }
        let extensions = &certificate.extensions;
        let signs = extensions.key_usage == 0 || extensions.key_usage & KEY_CERT_SIGN != 0;
        if !signs || !extensions.basic_constraints.is_some_and(|constraints| constraints.is_ca) {
            return Err(AuthorityKeyPairError::NotAuthority);
        }
        if extensions.unhandled_critical {
            return Err(AuthorityKeyPairError::UnhandledCriticalExtension);
        }
        let time = |seconds: i64| UnixTime::from_secs(u64::try_from(seconds).unwrap_or(0));
        let validity =
            Validity { not_before: time(certificate.not_before), not_after: time(certificate.not_after) };
        Ok(Self {
            key,
            certificate_pem: encode_pem("CERTIFICATE", &certificate.der),
            subject: certificate.subject.name.clone(),
            issuer: CertificateIssuer {
                fingerprint: fingerprint(&certificate.der),
                algorithm,
                subject: certificate.raw_subject.clone(),
                validity,
                key_id: certificate.extensions.subject_key_id.clone(),
                key: public,
                certificate,
            },
        })
    }

    /// The certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.issuer.certificate
    }

    pub(super) fn issuer(&self) -> &CertificateIssuer {
        &self.issuer
    }

    /// The first and the last second of the certificate.
    pub fn validity(&self) -> Validity {
        self.issuer.validity
    }

    /// The certificate, as one PEM block.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The subject of the certificate.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The notAfter time of the certificate.
    pub fn not_after(&self) -> UnixTime {
        self.issuer.validity.not_after
    }

    /// The notBefore time of the certificate.
    pub fn not_before(&self) -> UnixTime {
        self.issuer.validity.not_before
    }

    /// SHA-256 of the certificate.
    pub fn fingerprint(&self) -> &[u8] {
        &self.issuer.fingerprint
    }

    /// Checks that verifiers would accept certificates that this CA signs for the profile.
    pub fn is_fit_for(&self, profile: &CertificateProfile) -> Result<(), AuthorityLimit> {
        limits::check_usages(&self.issuer.certificate, profile.purposes())
    }

    /// Whether the CA certificate has expired, so that the CA can no longer sign.
    // kubernetes: pkg/controller/certificates/authority/policies.go, apply
    pub fn is_expired(&self, now: UnixTime) -> bool {
        now >= self.issuer.validity.not_after
    }

    /// Checks the request against the profile, builds the certificate and runs every lint over it.
    pub fn prepare(
        &self,
        profile: &CertificateProfile,
        wanted: &IssuanceRequest<'_>,
        now: UnixTime,
    ) -> Result<PreparedCertificate, IssueError> {
        self.issuer.prepare(profile, wanted, now)
    }

    /// Signs a certificate that this CA prepared. Blocks: async callers must use a blocking thread.
    pub fn issue(&self, prepared: PreparedCertificate) -> Result<IssuedCertificate, IssueError> {
        self.issuer.issue(prepared, self.key.as_ref())
    }

    /// For a key in a token, whether it could be used when it was last tried; `None` for a key in memory.
    pub fn token_problem(&self) -> Option<Result<(), String>> {
        self.key.token_problem()
    }

    /// Looks for the token of a key that could not be used. Blocks, as [`issue`](Self::issue) does.
    pub fn look_again(&self) {
        self.key.look_again();
    }

    /// Checks that verifiers accept CRLs of this CA.
    pub fn check_crl_sign(&self) -> Result<(), SignCrlError> {
        self.issuer.check_crl_sign()
    }

    /// Signs a CRL. Blocks, as [`issue`](Self::issue) does.
    pub fn sign_crl(&self, plan: &CrlPlan<'_>) -> Result<Vec<u8>, SignCrlError> {
        self.issuer.sign_crl(plan, self.key.as_ref())
    }
}

fn fingerprint(bytes: &[u8]) -> CertificateFingerprint {
    digest::digest(&digest::SHA256, bytes).as_ref().try_into().unwrap_or_default()
}

/// Opens a key; `certificate_key` is the public key of the certificate, which some tokens do not have.
#[cfg_attr(
    not(feature = "pkcs11"),
    expect(unused_variables, reason = "the last two are about keys in tokens alone")
)]
fn open(
    source: &AuthorityKeySource,
    pem: &[u8],
    certificate_key: &[u8],
    absent: AbsentToken,
) -> Result<Box<dyn Signer>, PrivateKeyError> {
    match source {
        AuthorityKeySource::File(_) => Ok(Box::new(PemKey::from_pem(pem)?)),
        #[cfg(feature = "pkcs11")]
        AuthorityKeySource::Pkcs11(uri) => match Pkcs11Key::open(uri, Some(certificate_key)) {
            Err(problem @ PrivateKeyError::Absent(_)) if absent == AbsentToken::Awaited => {
                Ok(Box::new(Pkcs11Key::absent(uri, certificate_key, &problem)?))
            }
            opened => Ok(Box::new(opened?)),
        },
        #[cfg(not(feature = "pkcs11"))]
        AuthorityKeySource::Pkcs11(_) => Err(PrivateKeyError::Uri(
            "this build of portcullis has no PKCS#11 support: build it with --features pkcs11".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests;
