//! The validated settings of one cluster's controllers.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use super::name::ControllerName;
pub(crate) use super::pod_certificates::rules::{PodRule, PodSignerRules};
pub(crate) use super::signing_log::SigningLog;
pub(crate) use super::trust_bundles::{PublishedSigner, TrustAnchor};
use portcullis_pki::issuance::authority::CertificateAuthority;
use portcullis_pki::issuance::pod::PodCertificateProfile;
use portcullis_pki::issuance::profile::{CertificateProfile, CustomRules, SignerName};
use portcullis_tools::certs::signer_records::SignerRecords;

/// The settings of one cluster's controllers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerSettings {
    /// The controllers to run; at least one.
    pub names: BTreeSet<ControllerName>,
    /// The signers of `csrsigning`, one for each signer name.
    pub signers: Vec<SignerSettings>,
    /// The signers of `podcertificaterequest-signing`, one for each signer name.
    pub pod_signers: Vec<PodSignerSettings>,
    /// `--cluster-signing-duration`: the maximum lifetime of a certificate.
    pub signing_duration: Duration,
    /// The signers whose CAs `clustertrustbundle-publishing` publishes.
    pub published: Vec<PublishedSigner>,
    /// The log of issued certificates.
    pub log: Option<SigningLog>,
    /// Leader election; `None` lets every replica run the controllers.
    pub election: Option<LeaderElectionSettings>,
}

/// A signer: its profile and its authority.
#[derive(Clone)]
pub struct SignerSettings {
    /// The rules for requests and certificates.
    pub profile: Arc<CertificateProfile>,
    /// The CA that signs.
    pub authority: Arc<CertificateAuthority>,
    /// The inputs of both, for comparison.
    inputs: SignerInputs,
}

/// The inputs of a signer. Signers with equal inputs are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SignerInputs {
    digest: Vec<u8>,
    rules: Option<CustomRules>,
    /// Published beside the authority.
    anchors: Vec<TrustAnchor>,
}

impl SignerSettings {
    /// A `kubernetes.io` signer. `digest` covers the authority's certificate and key.
    pub fn kubernetes(
        profile: CertificateProfile,
        authority: Arc<CertificateAuthority>,
        digest: Vec<u8>,
    ) -> Self {
        Self {
            profile: Arc::new(profile),
            authority,
            inputs: SignerInputs { digest, rules: None, anchors: Vec::new() },
        }
    }

    /// A signer that the operator defines. `anchors` are published beside the authority.
    pub fn custom(
        name: &SignerName,
        rules: CustomRules,
        authority: Arc<CertificateAuthority>,
        digest: Vec<u8>,
        anchors: Vec<TrustAnchor>,
    ) -> Self {
        let profile = Arc::new(CertificateProfile::custom(name, rules.clone()));
        Self { profile, authority, inputs: SignerInputs { digest, rules: Some(rules), anchors } }
    }

    /// The CAs, to be published. `signing_duration` is the maximum lifetime, unless the profile has one.
    pub fn published(&self, signing_duration: Duration) -> PublishedSigner {
        PublishedSigner {
            name: self.name().to_owned(),
            anchors: published_anchors(&self.authority, &self.inputs.anchors),
            max_lifetime: Some(self.profile.max_lifetime(signing_duration)),
        }
    }

    /// The signer name in requests.
    pub fn name(&self) -> &str {
        self.profile.signer_name()
    }
}

impl PartialEq for SignerSettings {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name() && self.inputs == other.inputs
    }
}

impl Eq for SignerSettings {}

impl fmt::Debug for SignerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignerSettings").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// A signer for the certificates of pods.
#[derive(Clone)]
pub struct PodSignerSettings {
    /// The signer name in requests.
    pub name: SignerName,
    /// The rules for certificates, apart from names.
    pub profile: PodCertificateProfile,
    /// The rules for pods, and the names of their certificates.
    pub rules: PodSignerRules,
    /// The CA that signs.
    pub authority: Arc<CertificateAuthority>,
    /// Covers the certificate and the key of the CA, for comparison.
    pub digest: Vec<u8>,
    /// Published beside the authority.
    pub anchors: Vec<TrustAnchor>,
    /// The index of its certificates and its CRL, if it keeps them.
    pub records: Option<SignerRecords>,
}

impl PodSignerSettings {
    /// The CAs, to be published.
    pub fn published(&self) -> PublishedSigner {
        PublishedSigner {
            name: self.name.as_str().to_owned(),
            anchors: published_anchors(&self.authority, &self.anchors),
            max_lifetime: Some(self.profile.max_duration),
        }
    }
}

impl PartialEq for PodSignerSettings {
    fn eq(&self, other: &Self) -> bool {
        let inputs = |of: &Self| (of.name.clone(), of.profile.clone(), of.digest.clone());
        let published = |of: &Self| (of.anchors.clone(), of.records.clone());
        inputs(self) == inputs(other) && self.rules == other.rules && published(self) == published(other)
    }
}

impl Eq for PodSignerSettings {}

impl fmt::Debug for PodSignerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodSignerSettings").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The CA that signs, and others that are published beside it.
fn published_anchors(authority: &CertificateAuthority, further: &[TrustAnchor]) -> Vec<TrustAnchor> {
    std::iter::once(TrustAnchor::of(authority.certificate())).chain(further.iter().cloned()).collect()
}

/// Leader election among replicas. The defaults are those of the flags, in `config::controller_flags`.
// component-base: config/options/leaderelectionconfig.go
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderElectionSettings {
    /// How long other replicas wait after the last renewal.
    pub lease_duration: Duration,
    /// How long the leader retries a renewal before it stops; shorter than the lease duration.
    pub renew_deadline: Duration,
    /// The delay between attempts.
    pub retry_period: Duration,
    /// The name of the lease.
    pub name: String,
    /// The namespace of the lease.
    pub namespace: String,
}
