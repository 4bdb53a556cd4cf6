//! The kinds of certificates that `issue` and `sign` support, with the CA, profile, usages and validity of each.

use std::time::Duration;

use clap::ValueEnum;
use portcullis_pki::issuance::alt_names::AltNames;
use portcullis_pki::issuance::profile::CertificateProfile;
use portcullis_pki::issuance::subject::Subject;

use super::authority::CaRole;

/// The kinds of certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum CertificateKind {
    /// A user: CommonName is the user name, each Organization a group.
    Client,
    /// A server: clients verify its --dns and --ip names.
    Serving,
    /// A front proxy, such as this gateway in front of its backend.
    FrontProxy,
    /// A kubelet as a client: CommonName is the node name, with or without system:node:.
    KubeletClient,
    /// A kubelet as a server: CommonName is the node name; --dns and --ip are its addresses.
    KubeletServing,
}

impl CertificateKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Serving => "serving",
            Self::FrontProxy => "front-proxy",
            Self::KubeletClient => "kubelet-client",
            Self::KubeletServing => "kubelet-serving",
        }
    }

    pub(super) fn role(self) -> CaRole {
        match self {
            Self::Client | Self::KubeletClient => CaRole::Client,
            Self::Serving | Self::KubeletServing => CaRole::Serving,
            Self::FrontProxy => CaRole::FrontProxy,
        }
    }

    pub(super) fn profile(self) -> CertificateProfile {
        match self {
            Self::Client => CertificateProfile::client(),
            Self::Serving => CertificateProfile::serving(),
            Self::FrontProxy => CertificateProfile::front_proxy(),
            Self::KubeletClient => CertificateProfile::kubelet_client(),
            Self::KubeletServing => CertificateProfile::kubelet_serving(),
        }
    }

    /// Whether clients present its certificates.
    pub(super) fn is_client(self) -> bool {
        self.role() != CaRole::Serving
    }

    /// The default validity; short for users, whose certificates Kubernetes cannot revoke.
    pub(super) fn duration(self) -> Duration {
        const DAY: Duration = Duration::from_hours(24);
        match self {
            Self::Client => 90 * DAY,
            Self::Serving | Self::FrontProxy | Self::KubeletClient | Self::KubeletServing => 365 * DAY,
        }
    }

    /// The usages of its certificates. RSA keys get key encipherment, for TLS 1.2 without ephemeral keys.
    // kubernetes: pkg/kubelet/certificate/kubelet.go, certificateManager's usages for both kinds of keys
    pub(super) fn usages(self, key: &str) -> Vec<String> {
        let purpose = match self.role() {
            CaRole::Client | CaRole::FrontProxy => "client auth",
            CaRole::Serving => "server auth",
        };
        let encrypts = key.starts_with("RSA").then_some("key encipherment");
        encrypts.into_iter().chain(["digital signature", purpose]).map(str::to_owned).collect()
    }

    /// Completes a bare node name to the name and group of a kubelet.
    // kubernetes: pkg/apis/certificates/helpers.go, ValidateKubeletClientCSR
    pub(super) fn complete(self, mut subject: Subject) -> Subject {
        if matches!(self, Self::KubeletClient | Self::KubeletServing) {
            if !subject.common_name.starts_with("system:node:") {
                subject.common_name = format!("system:node:{}", subject.common_name);
            }
            if subject.organization.is_empty() {
                subject.organization.push("system:nodes".to_owned());
            }
        }
        subject
    }

    /// An error if clients could not use the certificate.
    pub(super) fn lacks(self, names: &AltNames) -> Option<&'static str> {
        (self.role() == CaRole::Serving && names.dns.is_empty() && names.ips.is_empty()).then_some(
            "a serving certificate needs a subjectAltName: clients ignore the CommonName; give --dns or --ip",
        )
    }
}
