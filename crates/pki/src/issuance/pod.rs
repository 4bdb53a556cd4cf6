//! Certificates for pods: the rules of a signer for `PodCertificateRequest`s, and what becomes of them in a certificate.
//!
//! A request names a pod and has a public key; it has no names of its own. The signer's operator chooses the names by
//! expressions, and [`PodNames`] checks what they yield: no expression can make a name that Kubernetes reserves, or
//! one that parsers read in different ways. The times follow what the API server accepts
//! (`pkg/apis/certificates/validation/validation.go`, `ValidatePodCertificateRequestStatusUpdate`).

mod identity;
mod key_type;
mod names;
mod validity;

use std::collections::BTreeSet;
use std::time::Duration;

pub use identity::PodIdentityMode;
pub use key_type::{KeyTypeError, PodKey, PodKeyType};
pub use names::{InvalidPodName, PodNames};
pub use validity::{Jitter, MAX_LIFETIME, MIN_LIFETIME, PodValidity, PodValidityError};

use super::authority::CertificateAuthority;
use super::issue::{CertificateContents, IssueError, PreparedCertificate};
use super::limits::{self, AuthorityLimit};
use super::lint::LintError;
use super::usage::CertificateUsage;
use crate::x509::pod_identity::PodIdentity;

/// The rules of a signer for the certificates of pods, apart from their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodCertificateProfile {
    /// The usages of each certificate: requests have none.
    pub usages: BTreeSet<CertificateUsage>,
    /// The types of keys that the signer accepts.
    pub key_types: BTreeSet<PodKeyType>,
    /// The maximum lifetime; a request may allow less.
    pub max_duration: Duration,
    /// Whether the certificates are those of a service account, bound to its pod; `None`: they have names of their own.
    pub identity: Option<PodIdentityMode>,
}

impl PodCertificateProfile {
    /// The key types, in the words of the pod's volume, for messages.
    pub fn key_type_names(&self) -> String {
        let names: Vec<&str> = self.key_types.iter().map(|key_type| key_type.name()).collect();
        names.join(", ")
    }

    /// The identity in certificates with these names, which must have one if and only if the profile asks for it.
    fn bound_identity<'a>(
        &self,
        names: &'a PodNames,
    ) -> Result<Option<(&'a PodIdentity, PodIdentityMode)>, IssueError> {
        match (names.identity(), self.identity) {
            (Some(identity), Some(mode)) => Ok(Some((identity, mode))),
            (None, None) => Ok(None),
            (found, _) => {
                let found = if found.is_some() { "present" } else { "absent" }.to_owned();
                Err(LintError { lint: "pod identity", citation: "KEP-4317", found }.into())
            }
        }
    }
}

impl CertificateAuthority {
    /// Checks that verifiers would accept certificates with the usages of the profile.
    pub fn is_fit_for_pods(&self, profile: &PodCertificateProfile) -> Result<(), AuthorityLimit> {
        limits::check_usages(self.certificate(), profile.usages.iter().copied())
    }

    /// Builds the certificate of a pod, and runs every lint over it.
    // threat: pod-certificate-names
    pub fn prepare_pod(
        &self,
        profile: &PodCertificateProfile,
        key: &PodKey,
        names: &PodNames,
        validity: PodValidity,
    ) -> Result<PreparedCertificate, IssueError> {
        let usages: Vec<CertificateUsage> = profile.usages.iter().copied().collect();
        let identity = profile.bound_identity(names)?;
        self.issuer().build(&CertificateContents {
            subject: names.subject(),
            alt_names: names.alt_names(),
            key: key.public_key(),
            usages: usages.clone().into(),
            allowed_usages: Some(usages.into()),
            allows_cert_sign: false,
            validity: validity.of_certificate(),
            max_lifetime: Some(profile.max_duration),
            backdate: Duration::ZERO,
            pod_identity: identity.map(|(identity, mode)| (identity, mode.is_critical())),
        })
    }

    /// What follows the pod's certificate in its chain: the CA certificate, unless it is a root, which verifiers have.
    pub fn chain_above(&self) -> &str {
        let certificate = self.certificate();
        if certificate.issuer == certificate.raw_subject { "" } else { self.certificate_pem() }
    }
}

#[cfg(test)]
mod tests;
