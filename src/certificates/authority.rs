//! Certificate authorities: a certificate and the key that fits it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::issue::{IssueError, Issued, Prepared, Wanted};
use super::profile::Profile;
use super::signer::{KeyError, Signer};
use super::subject::Subject;
use super::validity::{ExpiredAuthority, Validity};
use crate::clock::UnixTime;

/// An authority that can sign.
#[derive(Debug)]
pub struct Authority {
    key: Box<dyn Signer>,
    certificate_pem: String,
    subject: Subject,
    validity: Validity,
}

/// Why a certificate and a key make no authority. The texts are kube-controller-manager's where it has one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    /// The certificate's file cannot be used.
    // kubernetes: pkg/controller/certificates/signer/ca_provider.go
    #[error("error reading CA cert file {name:?}: {reason}")]
    Certificate {
        /// The file, as upstream names it.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The key's file cannot be used.
    #[error("error reading CA key file {name:?}: {reason}")]
    Key {
        /// The file, as upstream names it.
        name: String,
        /// What is wrong.
        reason: KeyError,
    },
}

/// Where the key of an authority is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// A PEM file.
    File(PathBuf),
    /// An RFC 7512 URI of a key in a token.
    Pkcs11(String),
}

impl KeySource {
    /// A text that begins with `pkcs11:` names a key in a token; every other one is a path.
    pub fn parse(text: &str) -> Self {
        if text.starts_with("pkcs11:") {
            Self::Pkcs11(text.to_owned())
        } else {
            Self::File(PathBuf::from(text))
        }
    }
}

impl Authority {
    /// An authority of exactly one certificate and the key that fits it. An expired certificate is accepted here and
    /// refused when something is to be signed, as kube-controller-manager does.
    pub fn new(_certificate_pem: &[u8], _key: Box<dyn Signer>) -> Result<Self, AuthorityError> {
        Err(AuthorityError::Certificate { name: String::new(), reason: String::new() })
    }

    /// [`Authority::new`] with both read from where they are.
    pub fn load(certificate: &Path, _key: &KeySource) -> Result<Self, AuthorityError> {
        Err(AuthorityError::Certificate { name: certificate.display().to_string(), reason: String::new() })
    }

    /// The certificate, as one PEM block.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Whom the certificate names.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The last second of the certificate's life.
    pub fn not_after(&self) -> UnixTime {
        self.validity.not_after
    }

    /// Whether nothing can be signed any more.
    pub fn is_expired(&self, now: UnixTime) -> bool {
        now >= self.validity.not_after
    }

    /// Checks the request against the profile, builds the certificate and runs every lint over it.
    pub fn prepare(
        &self,
        _profile: &Profile,
        _wanted: &Wanted<'_>,
        _now: UnixTime,
    ) -> Result<Prepared, IssueError> {
        Err(ExpiredAuthority::BeforeStart(String::new()).into())
    }

    /// Signs what was prepared by this authority. Blocks: callers in async code use a blocking thread.
    pub fn issue(&self, prepared: Prepared) -> Result<Issued, IssueError> {
        let _ = (prepared.tbs, prepared.subject, prepared.validity, self.key.public_key());
        Err(IssueError::OtherAuthority)
    }
}

/// An authority in files that may change.
#[derive(Debug)]
pub struct AuthorityFiles {
    certificate: PathBuf,
    key: KeySource,
}

impl AuthorityFiles {
    /// The files of one authority; nothing is read yet.
    pub fn new(certificate: PathBuf, key: KeySource) -> Self {
        Self { certificate, key }
    }

    /// The authority as the files have it now: they are read again, and parsed again if their bytes have changed.
    /// A change that makes no authority is an error until it is mended; nothing is signed by half a pair. Blocks.
    pub fn current(&self) -> Result<Arc<Authority>, AuthorityError> {
        Authority::load(&self.certificate, &self.key).map(Arc::new)
    }
}
