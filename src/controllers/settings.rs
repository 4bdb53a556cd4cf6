//! Which controllers run for one cluster, and by what; read and found to fit together.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use super::name::ControllerName;
use crate::pki::issuance::authority::CertificateAuthority;
use crate::pki::issuance::profile::{CertificateProfile, CustomRules, SignerName};

/// The controllers of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerSettings {
    /// Those that run; at least one.
    pub names: BTreeSet<ControllerName>,
    /// What `csrsigning` signs, and with what; one for each signer's name.
    pub signers: Vec<SignerSettings>,
    /// `--cluster-signing-duration`: the longest life of a certificate.
    pub signing_duration: Duration,
    /// How replicas agree on which one works; `None`: they all do.
    pub election: Option<LeaderElectionSettings>,
}

/// A signer: what it may sign, and its authority.
#[derive(Clone)]
pub struct SignerSettings {
    /// What it may sign.
    pub profile: Arc<CertificateProfile>,
    /// What it signs with.
    pub authority: Arc<CertificateAuthority>,
    /// What both were made of.
    made_of: MadeOf,
}

/// What tells a signer from one that was read before.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MadeOf {
    digest: Vec<u8>,
    rules: Option<CustomRules>,
}

impl SignerSettings {
    /// One of `kubernetes.io`. `digest` is of the authority's certificate and key.
    pub fn kubernetes(
        profile: CertificateProfile,
        authority: Arc<CertificateAuthority>,
        digest: Vec<u8>,
    ) -> Self {
        Self { profile: Arc::new(profile), authority, made_of: MadeOf { digest, rules: None } }
    }

    /// One of an operator's own.
    pub fn custom(
        name: &SignerName,
        rules: CustomRules,
        authority: Arc<CertificateAuthority>,
        digest: Vec<u8>,
    ) -> Self {
        let profile = Arc::new(CertificateProfile::custom(name, rules.clone()));
        Self { profile, authority, made_of: MadeOf { digest, rules: Some(rules) } }
    }

    /// The name by which requests ask for it.
    pub fn name(&self) -> &str {
        self.profile.signer_name()
    }
}

impl PartialEq for SignerSettings {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name() && self.made_of == other.made_of
    }
}

impl Eq for SignerSettings {}

impl fmt::Debug for SignerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignerSettings").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// How replicas agree on which one works.
// kubernetes: k8s.io/component-base/config/options/leaderelectionconfig.go
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderElectionSettings {
    /// How long others wait for a leader that renews its lease no more.
    pub lease_duration: Duration,
    /// How long a leader tries to renew its lease before it works no more; shorter than the lease.
    pub renew_deadline: Duration,
    /// How long to wait between two attempts.
    pub retry_period: Duration,
    /// The name of the lease.
    pub name: String,
    /// The namespace of the lease.
    pub namespace: String,
}
