//! Profiles: the rules of each signer on the requests that it signs.
//!
//! The rules and error texts of the four Kubernetes signers are kube-controller-manager's. A profile has no public
//! fields and is immutable.

use std::collections::BTreeSet;
use std::time::Duration;

use super::alt_names::AltNames;
use super::dns;
pub use super::name_pattern::{DnsPattern, EmailPattern, IdentityPattern, UriPattern};
use super::name_pattern::{RejectedName, email, identity, uri};
pub use super::pattern::IpRange;
use super::request::CertificateRequest;
pub use super::signer_name::SignerName;
use super::subject::Subject;
use super::usage::CertificateUsage;

/// `kubernetes.io/kube-apiserver-client`
pub const KUBE_APISERVER_CLIENT: &str = "kubernetes.io/kube-apiserver-client";
/// `kubernetes.io/kube-apiserver-client-kubelet`
pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// `kubernetes.io/kubelet-serving`
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
/// `kubernetes.io/legacy-unknown`: nothing need trust its certificates
pub const LEGACY_UNKNOWN: &str = "kubernetes.io/legacy-unknown";

/// The group of superusers, which bypasses authorization: RBAC cannot restrict it.
// apiserver: pkg/authentication/user/user.go, SystemPrivilegedGroup
pub const SYSTEM_MASTERS: &str = "system:masters";

/// The rules of one signer.
#[derive(Debug, Clone)]
pub struct CertificateProfile {
    name: String,
    rules: ProfileRules,
}

#[derive(Debug, Clone)]
enum ProfileRules {
    ApiServerClient,
    KubeletClient,
    KubeletServing,
    Anything,
    Custom(Box<CustomRules>),
    /// A client certificate of the `certs` command.
    Client,
    /// A serving certificate of the `certs` command.
    Serving,
}

/// Why a profile rejects a request. The text becomes the message of the Failed condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProfileViolation(String);

/// The rules of a custom signer. Rejects everything that they do not list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CustomRules {
    /// The common name, if there is one, must match one of these.
    pub common_names: Vec<IdentityPattern>,
    /// Whether the request must have a common name. Servers and workloads are named by their alternative names; a client of
    /// kube-apiserver by its common name alone.
    pub require_common_name: bool,
    /// Each organization must match one of these. Only a literal pattern matches `system:masters`.
    pub organizations: Vec<IdentityPattern>,
    /// Each DNS name must match one of these.
    pub dns_names: Vec<DnsPattern>,
    /// Whether DNS names may be wildcards, `*.example.com`.
    pub allow_wildcards: bool,
    /// Each IP address must be in one of these.
    pub ip_ranges: Vec<IpRange>,
    /// Each email address must match one of these.
    pub emails: Vec<EmailPattern>,
    /// Each URI, as Go's `net/url` formats it, must match one of these.
    pub uris: Vec<UriPattern>,
    /// Each usage must be one of these. `cert sign` is always rejected: only CA certificates may have it. A certificate
    /// without extended key usage would be valid for all purposes, so such a request needs `any` here.
    pub allowed_usages: BTreeSet<CertificateUsage>,
    /// The request must have each of these.
    pub required_usages: BTreeSet<CertificateUsage>,
    /// The maximum lifetime, to which longer requests are cut; overrides `--cluster-signing-duration`, which is the
    /// default.
    pub max_duration: Option<Duration>,
    /// The lifetime if the request has no `expirationSeconds`; the maximum by default.
    pub default_duration: Option<Duration>,
}

impl CertificateProfile {
    fn new(name: &str, rules: ProfileRules) -> Self {
        Self { name: name.to_owned(), rules }
    }

    /// `kubernetes.io/kube-apiserver-client`: clients of the API server.
    pub fn kube_apiserver_client() -> Self {
        Self::new(KUBE_APISERVER_CLIENT, ProfileRules::ApiServerClient)
    }

    /// `kubernetes.io/kube-apiserver-client-kubelet`: kubelets as clients.
    pub fn kubelet_client() -> Self {
        Self::new(KUBELET_CLIENT, ProfileRules::KubeletClient)
    }

    /// `kubernetes.io/kubelet-serving`: kubelets as servers.
    pub fn kubelet_serving() -> Self {
        Self::new(KUBELET_SERVING, ProfileRules::KubeletServing)
    }

    /// `kubernetes.io/legacy-unknown`: any subject, any names, any usages.
    pub fn legacy_unknown() -> Self {
        Self::new(LEGACY_UNKNOWN, ProfileRules::Anything)
    }

    /// The profile of a Kubernetes signer.
    pub fn kubernetes(signer_name: &str) -> Option<Self> {
        match signer_name {
            KUBE_APISERVER_CLIENT => Some(Self::kube_apiserver_client()),
            KUBELET_CLIENT => Some(Self::kubelet_client()),
            KUBELET_SERVING => Some(Self::kubelet_serving()),
            LEGACY_UNKNOWN => Some(Self::legacy_unknown()),
            _ => None,
        }
    }

    /// The profile of a custom signer.
    pub fn custom(name: &SignerName, rules: CustomRules) -> Self {
        Self::new(name.as_str(), ProfileRules::Custom(Box::new(rules)))
    }

    /// The `certs` command's client certificates: any subject with a common name.
    pub fn client() -> Self {
        Self::new("client", ProfileRules::Client)
    }

    /// The `certs` command's serving certificates: any subject, with a DNS name or an IP address.
    pub fn serving() -> Self {
        Self::new("serving", ProfileRules::Serving)
    }

    /// The client certificate of a front proxy: any subject with a common name.
    pub fn front_proxy() -> Self {
        Self::new("front-proxy", ProfileRules::Client)
    }

    /// The name of the signer, or of the kind of certificate.
    pub fn signer_name(&self) -> &str {
        &self.name
    }

    /// Checks a request with these usages.
    // threat: request-beyond-rules
    pub fn check(&self, request: &CertificateRequest, usages: &[String]) -> Result<(), ProfileViolation> {
        match &self.rules {
            ProfileRules::ApiServerClient => {
                usages_within(usages, "client", &CLIENT_USAGES, CertificateUsage::ClientAuth)
            }
            ProfileRules::KubeletClient => kubelet_client(request, usages),
            ProfileRules::KubeletServing => kubelet_serving(request, usages),
            ProfileRules::Anything => Ok(()),
            ProfileRules::Custom(rules) => rules.check(request, usages),
            ProfileRules::Client => {
                if request.subject().common_name.is_empty() {
                    return refuse("subject common name is required");
                }
                usages_within(usages, "client", &CLIENT_USAGES, CertificateUsage::ClientAuth)
            }
            ProfileRules::Serving => {
                let names = request.alt_names();
                if names.dns.is_empty() && names.ips.is_empty() {
                    return refuse("DNS or IP subjectAltName is required");
                }
                usages_within(usages, "serving", &SERVING_USAGES, CertificateUsage::ServerAuth)
            }
        }
    }

    /// Whether certificates without the CA bit may have `cert sign`: kube-controller-manager signs them for
    /// `kubernetes.io/legacy-unknown`, which `certificates.k8s.io/v1` no longer accepts.
    pub(super) fn signs_cert_sign(&self) -> bool {
        matches!(self.rules, ProfileRules::Anything)
    }

    /// The allowed usages; `None` if the profile does not limit them.
    pub(super) fn allowed_usages(&self) -> Option<BTreeSet<CertificateUsage>> {
        match &self.rules {
            ProfileRules::ApiServerClient | ProfileRules::KubeletClient | ProfileRules::Client => {
                Some(CLIENT_USAGES.into())
            }
            ProfileRules::KubeletServing | ProfileRules::Serving => Some(SERVING_USAGES.into()),
            ProfileRules::Anything => None,
            ProfileRules::Custom(rules) => Some(rules.allowed_usages.clone()),
        }
    }

    /// The purposes of the profile's certificates. The CA certificate must allow each of them.
    pub(super) fn purposes(&self) -> BTreeSet<CertificateUsage> {
        match &self.rules {
            ProfileRules::ApiServerClient | ProfileRules::KubeletClient | ProfileRules::Client => {
                [CertificateUsage::ClientAuth].into()
            }
            ProfileRules::KubeletServing | ProfileRules::Serving => [CertificateUsage::ServerAuth].into(),
            // Depends on the request; `limits` checks each certificate.
            ProfileRules::Anything => BTreeSet::new(),
            ProfileRules::Custom(rules) => rules.allowed_usages.clone(),
        }
    }

    /// The profile's own maximum lifetime, if it has one.
    pub(super) fn max_duration(&self) -> Option<Duration> {
        match &self.rules {
            ProfileRules::Custom(rules) => rules.max_duration,
            _ => None,
        }
    }

    /// The longest lifetime of a certificate; `signing_duration` unless the profile has a maximum.
    pub fn max_lifetime(&self, signing_duration: Duration) -> Duration {
        self.durations(signing_duration).0
    }

    /// The maximum and the default lifetime.
    pub(super) fn durations(&self, signing_duration: Duration) -> (Duration, Duration) {
        let ProfileRules::Custom(rules) = &self.rules else { return (signing_duration, signing_duration) };
        let max = rules.max_duration.unwrap_or(signing_duration);
        (max, rules.default_duration.unwrap_or(max).min(max))
    }
}

const CLIENT_USAGES: [CertificateUsage; 3] =
    [CertificateUsage::ClientAuth, CertificateUsage::DigitalSignature, CertificateUsage::KeyEncipherment];
const SERVING_USAGES: [CertificateUsage; 3] =
    [CertificateUsage::DigitalSignature, CertificateUsage::KeyEncipherment, CertificateUsage::ServerAuth];

fn refuse<T>(reason: impl Into<String>) -> Result<T, ProfileViolation> {
    Err(ProfileViolation(reason.into()))
}

// kubernetes: pkg/controller/certificates/signer/signer.go, validAPIServerClientUsages
fn usages_within(
    words: &[String],
    kind: &str,
    allowed: &[CertificateUsage],
    required: CertificateUsage,
) -> Result<(), ProfileViolation> {
    if let Some(other) = words.iter().find(|word| !allowed.iter().any(|usage| usage.word() == word.as_str()))
    {
        return refuse(format!("invalid usage for {kind} certificate: {other}"));
    }
    if !words.iter().any(|word| word == required.word()) {
        return refuse(format!("missing required usage for {kind} certificate: {required}"));
    }
    Ok(())
}

/// Checks that the usages are exactly these, or these without key encipherment.
// kubernetes: pkg/apis/certificates/helpers.go — the text names the longer set
fn usages_equal(words: &[String], wanted: [CertificateUsage; 3]) -> Result<(), ProfileViolation> {
    let words: BTreeSet<&str> = words.iter().map(String::as_str).collect();
    let all: BTreeSet<&str> = wanted.iter().map(|usage| usage.word()).collect();
    let mut without = all.clone();
    without.remove(CertificateUsage::KeyEncipherment.word());
    if words == all || words == without {
        return Ok(());
    }
    let all: Vec<&str> = all.into_iter().collect();
    refuse(format!("usages did not match [{}]", all.join(" ")))
}

fn of_system_nodes(request: &CertificateRequest) -> Result<(), ProfileViolation> {
    if request.subject().organization == ["system:nodes"] {
        Ok(())
    } else {
        refuse("subject organization is not system:nodes")
    }
}

fn of_a_node(request: &CertificateRequest) -> Result<(), ProfileViolation> {
    if request.subject().common_name.starts_with("system:node:") {
        Ok(())
    } else {
        refuse("subject common name does not begin with system:node:")
    }
}

fn without<T>(names: &[T], kind: &str) -> Result<(), ProfileViolation> {
    if names.is_empty() { Ok(()) } else { refuse(format!("{kind} subjectAltNames are not allowed")) }
}

// kubernetes: pkg/apis/certificates/helpers.go, ValidateKubeletClientCSR
fn kubelet_client(request: &CertificateRequest, usages: &[String]) -> Result<(), ProfileViolation> {
    let names = request.alt_names();
    of_system_nodes(request)?;
    without(&names.dns, "DNS")?;
    without(&names.emails, "Email")?;
    without(&names.ips, "IP")?;
    without(&names.uris, "URI")?;
    of_a_node(request)?;
    usages_equal(usages, CLIENT_USAGES)
}

// kubernetes: pkg/apis/certificates/helpers.go, ValidateKubeletServingCSR
fn kubelet_serving(request: &CertificateRequest, usages: &[String]) -> Result<(), ProfileViolation> {
    let names = request.alt_names();
    of_system_nodes(request)?;
    if names.dns.is_empty() && names.ips.is_empty() {
        return refuse("DNS or IP subjectAltName is required");
    }
    without(&names.emails, "Email")?;
    without(&names.uris, "URI")?;
    usages_equal(usages, SERVING_USAGES)?;
    of_a_node(request)
}

impl CustomRules {
    fn check(&self, request: &CertificateRequest, usages: &[String]) -> Result<(), ProfileViolation> {
        let (subject, names) = (request.subject(), request.alt_names());
        // No rule can allow these.
        let others: [(&str, bool); 7] = [
            ("country", subject.country.is_empty()),
            ("province", subject.province.is_empty()),
            ("locality", subject.locality.is_empty()),
            ("street address", subject.street_address.is_empty()),
            ("postal code", subject.postal_code.is_empty()),
            ("organizational unit", subject.organizational_unit.is_empty()),
            ("serial number", subject.serial_number.is_empty()),
        ];
        if let Some((name, _)) = others.iter().find(|(_, absent)| !absent) {
            return refuse(format!("subject {name} is not allowed"));
        }
        // RFC 5280 §4.1.2.6: with an empty subject all names are in the subjectAltName.
        if *subject == Subject::default() && *names == AltNames::default() {
            return refuse("a subject or a subjectAltName is required");
        }
        let name = &subject.common_name;
        if !name.is_empty() {
            let covers = |text: &str| self.common_names.iter().any(|pattern| pattern.covers(text));
            listed(std::slice::from_ref(name), "subject common name", identity, covers)?;
        } else if self.require_common_name {
            return refuse("subject common name is required");
        }
        let covers = |text: &str| self.organizations.iter().any(|pattern| pattern.covers(text));
        listed(&subject.organization, "subject organization", identity, covers)?;
        let dns = |text: &str| dns::check(text, self.allow_wildcards).map_err(RejectedName::from);
        let covers = |text: &str| self.dns_names.iter().any(|pattern| pattern.covers(text));
        listed(&names.dns, "DNS subjectAltName", dns, covers)?;
        let covers = |text: &str| self.emails.iter().any(|pattern| pattern.covers(text));
        listed(&names.emails, "Email subjectAltName", email, covers)?;
        let outside = |ip| !self.ip_ranges.iter().any(|range| range.contains(ip));
        if let Some(ip) = names.ips.iter().copied().find(|ip| outside(*ip)) {
            return refuse(format!("IP subjectAltName {ip} is not allowed"));
        }
        let covers = |text: &str| self.uris.iter().any(|pattern| pattern.covers(text));
        listed(&names.uris, "URI subjectAltName", uri, covers)?;
        self.check_usages(usages)
    }

    fn check_usages(&self, words: &[String]) -> Result<(), ProfileViolation> {
        let mut asked = BTreeSet::new();
        for word in words {
            match word.parse() {
                Ok(usage) if usage != CertificateUsage::CertSign && self.allowed_usages.contains(&usage) => {
                    asked.insert(usage);
                }
                _ => return refuse(format!("usage {word:?} is not allowed")),
            }
        }
        if let Some(missing) = self.required_usages.difference(&asked).next() {
            return refuse(format!("missing required usage: {missing}"));
        }
        // RFC 5280 §4.2.1.12: a certificate without extended key usage is valid for every purpose.
        if !self.allowed_usages.contains(&CertificateUsage::Any)
            && !asked.iter().any(|usage| usage.is_extended())
        {
            return refuse("missing extended key usage: request one, such as client auth");
        }
        Ok(())
    }
}

/// Checks that each text matches a pattern and is a valid name: patterns do not check the syntax of names.
fn listed(
    texts: &[String],
    what: &str,
    check: impl Fn(&str) -> Result<(), RejectedName>,
    covers: impl Fn(&str) -> bool,
) -> Result<(), ProfileViolation> {
    for text in texts {
        if !covers(text) {
            return refuse(format!("{what} {text:?} is not allowed"));
        }
        if let Err(reason) = check(text) {
            return refuse(format!("{what} {text:?} is not allowed: {reason}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
