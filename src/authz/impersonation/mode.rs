//! The modes of impersonation.
// apiserver: pkg/endpoints/filters/impersonation/mode.go

use std::borrow::Cow;
use std::collections::BTreeMap;

use portcullis_go::quote::Quoted;
use portcullis_http::identity::Identity;
use portcullis_kubernetes::names::{domain_prefixed_path_problems, is_dns_subdomain};
use portcullis_kubernetes::service_account;
use portcullis_kubernetes::user::{NODE_NAME_KEY, UserInfo};

use super::WantedUser;
use super::wanted::WantedExtra;

/// The extra attribute of the requester in access reviews of [`Mode::AssociatedNode`].
const ASSOCIATED_NODE_KEYS: &str = "authentication.kubernetes.io/associated-node-keys";

/// A mode of impersonation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Mode {
    /// A service account of a pod acts as the node of the pod.
    AssociatedNode,
    /// Any node.
    ArbitraryNode,
    /// A service account.
    ServiceAccount,
    /// Any other user, with UID, groups and extra attributes.
    UserInfo,
    /// The mode before constrained impersonation: verb `impersonate` on each attribute.
    Legacy,
}

impl Mode {
    /// All, in the order in which they are tried.
    // allImpersonationModes
    pub(super) const ALL: [Self; 5] =
        [Self::AssociatedNode, Self::ArbitraryNode, Self::ServiceAccount, Self::UserInfo, Self::Legacy];

    /// The name in verbs and metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AssociatedNode => "associated-node",
            Self::ArbitraryNode => "arbitrary-node",
            Self::ServiceAccount => "serviceaccount",
            Self::UserInfo => "user-info",
            Self::Legacy => "legacy",
        }
    }

    /// The verb on the attributes of the wanted user.
    pub(super) fn verb(self) -> &'static str {
        match self {
            Self::AssociatedNode => "impersonate:associated-node",
            Self::ArbitraryNode => "impersonate:arbitrary-node",
            Self::ServiceAccount => "impersonate:serviceaccount",
            Self::UserInfo => "impersonate:user-info",
            Self::Legacy => "impersonate",
        }
    }

    /// The verb on the request itself, which only constrained modes ask for.
    pub(super) fn verb_on_request(self, verb: &str) -> Option<String> {
        self.is_constrained().then(|| format!("impersonate-on:{}:{verb}", self.name()))
    }

    pub(super) fn is_constrained(self) -> bool {
        self != Self::Legacy
    }

    /// Whether the mode is for this user at all.
    pub(super) fn applies(self, wanted: &WantedUser<'_>, requester: &UserInfo) -> bool {
        let WantedUser { name, uid, groups, extra } = wanted;
        let is_name_alone = uid.is_empty() && groups.is_empty() && extra.is_empty();
        let is_account = || service_account::split(name).is_some();
        match self {
            Self::AssociatedNode => is_name_alone && is_on_node(requester, name),
            Self::ArbitraryNode => is_name_alone && node_name(name).is_some(),
            Self::ServiceAccount => is_name_alone && is_account(),
            Self::UserInfo => node_name(name).is_none() && !is_account(),
            Self::Legacy => true,
        }
    }

    /// The requester in the access reviews of this mode. That a pod runs on the node is known already, so its extra
    /// attributes are replaced by their keys: one rule, and one decision, serves the pods on all nodes.
    // associatedNodeImpersonationRequestorUserInfo
    pub(super) fn requester(self, requester: &Identity) -> Cow<'_, Identity> {
        if self != Self::AssociatedNode {
            return Cow::Borrowed(requester);
        }
        let keys = requester.extra.keys().cloned().collect();
        let extra = BTreeMap::from([(ASSOCIATED_NODE_KEYS.to_owned(), keys)]);
        Cow::Owned(UserInfo { extra, ..UserInfo::clone(requester) }.into())
    }

    /// The name of the node in the review of it.
    pub(super) fn asked_node(self, node: &str) -> String {
        if self == Self::AssociatedNode { "*" } else { node }.to_owned()
    }
}

/// The node of a user name.
// isNodeUsername
pub(super) fn node_name(user: &str) -> Option<&str> {
    user.strip_prefix("system:node:").filter(|name| is_dns_subdomain(name))
}

/// Whether the requester is a service account of a pod on the node with this user name.
// requesterAssociatedWithRequestedNodeUsername
fn is_on_node(requester: &UserInfo, node_user: &str) -> bool {
    let Some(node) = node_name(node_user) else { return false };
    let its_nodes = requester.extra.get(NODE_NAME_KEY).map(Vec::as_slice);
    service_account::split(&requester.name).is_some() && matches!(its_nodes, Some([one]) if one == node)
}

/// Why no constrained mode accepts these extra attributes.
// validateExtra
pub(super) fn extra_problem(extra: &WantedExtra<'_>) -> Option<String> {
    for (key, values) in extra {
        if key.is_empty() {
            return Some("impersonating the empty string key in extra is not allowed".to_owned());
        }
        let problems: Vec<String> = domain_prefixed_path_problems(key)
            .into_iter()
            .map(|(part, problem)| format!("extra.key: Invalid value: {}: {problem}", Quoted(part)))
            .collect();
        if let Some(problems) = aggregate(&problems) {
            return Some(format!("impersonating an invalid key in extra is not allowed: {problems}"));
        }
        if *key != key.to_lowercase() {
            let key = Quoted(key);
            return Some(format!("impersonating a non-lowercase key in extra is not allowed: {key}"));
        }
        if values.is_empty() {
            return Some("impersonating empty values in extra is not allowed".to_owned());
        }
        if values.iter().any(|value| value.is_empty()) {
            return Some("impersonating the empty string value in extra is not allowed".to_owned());
        }
    }
    None
}

// apimachinery: pkg/util/errors/errors.go, aggregate.Error
fn aggregate(problems: &[String]) -> Option<String> {
    match problems {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(format!("[{}]", many.join(", "))),
    }
}
