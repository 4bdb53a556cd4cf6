//! The names of a pod's certificate.

use crate::issuance::alt_names::AltNames;
use crate::issuance::dns;
use crate::issuance::name_pattern::{identity, is_reserved, uri};
use crate::issuance::subject::Subject;
use crate::x509::pod_identity::{PodIdentity, PodIdentityError};

/// The maximum number of names of each kind.
const MAX_NAMES: usize = 64;
/// The maximum length of a name. Each kind has a shorter one of its own, or none.
const MAX_LENGTH: usize = 2048;

/// The maximum length of all names: a log of certificates, and the API server, take a certificate of less than 64 KiB.
const MAX_TOTAL: usize = 16 * 1024;

/// Names that may be in a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodNames {
    subject: Subject,
    alt_names: AltNames,
    identity: Option<PodIdentity>,
}

/// Why names may not be in a certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPodName {
    /// There is none.
    #[error("the certificate would have no name")]
    None,
    /// There are too many.
    #[error("{kind}: {found} names, more than {MAX_NAMES}")]
    TooMany {
        /// The kind of name.
        kind: &'static str,
        /// How many there are.
        found: usize,
    },
    /// They are too long together.
    #[error("the names have {found} bytes together, more than {MAX_TOTAL}")]
    TooLong {
        /// How many bytes they have.
        found: usize,
    },
    /// One is invalid.
    #[error("{kind} {name:?} is not allowed: {reason}")]
    Name {
        /// The kind of name.
        kind: &'static str,
        /// The name, or its beginning.
        name: String,
        /// Why it is invalid.
        reason: String,
    },
}

impl PodNames {
    /// Checks names.
    // threat: pod-certificate-names
    pub fn new(
        common_name: Option<String>,
        organizations: Vec<String>,
        dns_names: Vec<String>,
        uris: Vec<String>,
    ) -> Result<Self, InvalidPodName> {
        check("common name", common_name.as_slice(), of_subject)?;
        check("organization", &organizations, of_subject)?;
        check("DNS name", &dns_names, |name| dns::check(name, false).map_err(|reason| reason.to_string()))?;
        check("URI", &uris, |name| uri(name).map_err(|reason| reason.to_string()))?;
        let all = common_name.iter().chain(&organizations).chain(&dns_names).chain(&uris);
        let found = all.map(String::len).sum();
        if found > MAX_TOTAL {
            return Err(InvalidPodName::TooLong { found });
        }
        let subject = Subject {
            common_name: common_name.unwrap_or_default(),
            organization: organizations,
            ..Subject::default()
        };
        let alt_names = AltNames { dns: dns_names, uris, ..AltNames::default() };
        if subject.is_empty() && alt_names.is_empty() {
            return Err(InvalidPodName::None);
        }
        Ok(Self { subject, alt_names, identity: None })
    }

    /// The names of a service account, and the pod to which the certificate is bound. The caller has read the objects and
    /// compared them with the request. No template has a part in these names.
    pub fn of_service_account(identity: PodIdentity) -> Result<Self, PodIdentityError> {
        identity.check()?;
        let subject = Subject {
            common_name: identity.user_name(),
            organization: identity.groups(),
            ..Subject::default()
        };
        Ok(Self { subject, alt_names: AltNames::default(), identity: Some(identity) })
    }

    /// The pod to which the certificate is bound.
    pub fn identity(&self) -> Option<&PodIdentity> {
        self.identity.as_ref()
    }

    /// The subject.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The alternative names.
    pub fn alt_names(&self) -> &AltNames {
        &self.alt_names
    }
}

/// Checks a name of a user or a group: pod authors choose a part of it, and may not become one of Kubernetes' own.
fn of_subject(name: &str) -> Result<(), String> {
    identity(name).map_err(|reason| reason.to_string())?;
    if is_reserved(name) {
        return Err("Kubernetes reserves names that begin with system: or kubeadm:".to_owned());
    }
    Ok(())
}

fn check(
    kind: &'static str,
    names: &[String],
    check: impl Fn(&str) -> Result<(), String>,
) -> Result<(), InvalidPodName> {
    if names.len() > MAX_NAMES {
        return Err(InvalidPodName::TooMany { kind, found: names.len() });
    }
    for name in names {
        let reason = if name.len() > MAX_LENGTH {
            Err(format!("it is longer than {MAX_LENGTH} bytes"))
        } else {
            check(name)
        };
        reason.map_err(|reason| {
            let name = name.chars().take(100).collect();
            InvalidPodName::Name { kind, name, reason }
        })?;
    }
    Ok(())
}
