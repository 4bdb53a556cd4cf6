//! Profiles: what a signer may sign.
//!
//! A profile has no public fields and cannot be changed once made.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use super::request::CertificateRequest;
use super::usage::Usage;

/// What one signer may sign.
#[derive(Debug, Clone)]
pub struct Profile {
    name: String,
    rules: Rules,
}

#[derive(Debug, Clone)]
enum Rules {
    ApiServerClient,
    KubeletClient,
    KubeletServing,
    Anything,
    Custom(Box<CustomRules>),
}

/// Why a profile does not allow a request; what it displays is the message of the Failed condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub(super) String);

/// What a signer of an operator's own may sign. Everything that is not listed is refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CustomRules {
    /// The common name must match one; with none, only requests without a common name pass.
    pub common_names: Vec<Pattern>,
    /// Each organisation must match one. `system:masters` is matched only by a pattern that spells it out.
    pub organizations: Vec<Pattern>,
    /// Each DNS name must match one.
    pub dns_names: Vec<Pattern>,
    /// Each address must lie in one.
    pub ip_ranges: Vec<IpRange>,
    /// Each mailbox must match one.
    pub emails: Vec<Pattern>,
    /// Each URI must match one.
    pub uris: Vec<Pattern>,
    /// Each usage must be one of these.
    pub allowed_usages: BTreeSet<Usage>,
    /// Each of these must be asked for.
    pub required_usages: BTreeSet<Usage>,
    /// The longest life a certificate gets; a request for more gets this.
    pub max_duration: Option<Duration>,
    /// The life a certificate gets that asks for none; without it, the signing duration of the flags.
    pub default_duration: Option<Duration>,
}

/// A text, or a text with one `*` at its beginning or its end that stands for anything, also for nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// Exactly this.
    Exact(String),
    /// `text*`
    Prefix(String),
    /// `*text`
    Suffix(String),
}

/// A text is no pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no pattern: one * may stand at the beginning or at the end, and nowhere else")]
pub struct PatternError(String);

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        Err(PatternError(text.to_owned()))
    }
}

impl Pattern {
    /// Whether the whole text matches.
    pub fn matches(&self, _text: &str) -> bool {
        false
    }
}

/// A block of addresses in CIDR notation, or a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpRange {
    address: IpAddr,
    prefix: u8,
}

/// A text is no block of addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no block of addresses: write it as 10.0.0.0/8 or fd00::/8")]
pub struct IpRangeError(String);

impl FromStr for IpRange {
    type Err = IpRangeError;

    fn from_str(text: &str) -> Result<Self, IpRangeError> {
        Err(IpRangeError(text.to_owned()))
    }
}

impl IpRange {
    /// Whether the address lies in the block.
    pub fn contains(&self, _address: IpAddr) -> bool {
        let _ = (self.address, self.prefix);
        false
    }
}

/// The name of a signer of an operator's own, `example.com/name`; never one of `kubernetes.io`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SignerName(String);

/// A text is no name of such a signer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignerNameError {
    /// There is not exactly one `/`.
    #[error("must be a fully qualified domain and path of the form 'example.com/signer-name'")]
    Form,
    /// The rule of the API that the name breaks.
    #[error("{0}")]
    Invalid(String),
    /// The name belongs to Kubernetes.
    #[error("signers of kubernetes.io have rules of their own: choose another domain")]
    Reserved,
}

impl FromStr for SignerName {
    type Err = SignerNameError;

    fn from_str(text: &str) -> Result<Self, SignerNameError> {
        if text.split('/').count() == 2 { Ok(Self(text.to_owned())) } else { Err(SignerNameError::Form) }
    }
}

impl SignerName {
    /// The name as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// `kubernetes.io/kube-apiserver-client`
pub const KUBE_APISERVER_CLIENT: &str = "kubernetes.io/kube-apiserver-client";
/// `kubernetes.io/kube-apiserver-client-kubelet`
pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// `kubernetes.io/kubelet-serving`
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
/// `kubernetes.io/legacy-unknown`
pub const LEGACY_UNKNOWN: &str = "kubernetes.io/legacy-unknown";

impl Profile {
    fn new(name: &str, rules: Rules) -> Self {
        Self { name: name.to_owned(), rules }
    }

    /// `kubernetes.io/kube-apiserver-client`: clients of the API server.
    pub fn kube_apiserver_client() -> Self {
        Self::new(KUBE_APISERVER_CLIENT, Rules::ApiServerClient)
    }

    /// `kubernetes.io/kube-apiserver-client-kubelet`: kubelets as clients.
    pub fn kubelet_client() -> Self {
        Self::new(KUBELET_CLIENT, Rules::KubeletClient)
    }

    /// `kubernetes.io/kubelet-serving`: kubelets as servers.
    pub fn kubelet_serving() -> Self {
        Self::new(KUBELET_SERVING, Rules::KubeletServing)
    }

    /// `kubernetes.io/legacy-unknown`: anything but an authority.
    pub fn legacy_unknown() -> Self {
        Self::new(LEGACY_UNKNOWN, Rules::Anything)
    }

    /// A signer of an operator's own.
    pub fn custom(name: &SignerName, rules: CustomRules) -> Self {
        Self::new(name.as_str(), Rules::Custom(Box::new(rules)))
    }

    /// A client certificate issued by hand: any subject with a common name.
    pub fn client() -> Self {
        Self::new("client", Rules::ApiServerClient)
    }

    /// A serving certificate issued by hand.
    pub fn serving() -> Self {
        Self::new("serving", Rules::Anything)
    }

    /// The client certificate of a front proxy.
    pub fn front_proxy() -> Self {
        Self::new("front-proxy", Rules::ApiServerClient)
    }

    /// The name of the signer, or of the kind of certificate.
    pub fn signer_name(&self) -> &str {
        &self.name
    }

    /// Whether the request may be signed with these usages.
    pub fn check(&self, _request: &CertificateRequest, _usages: &[String]) -> Result<(), Refusal> {
        match &self.rules {
            Rules::ApiServerClient | Rules::KubeletClient | Rules::KubeletServing | Rules::Anything => {}
            Rules::Custom(_) => {}
        }
        Err(Refusal("not implemented".to_owned()))
    }
}
