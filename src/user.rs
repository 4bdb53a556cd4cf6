//! Who a request is made as: plain data, ordered so that two identities can be compared field by field.
//!
//! The fields are those of `user.Info` in kube-apiserver (`k8s.io/apiserver/pkg/authentication/user`).

use std::collections::BTreeMap;

/// The name of a client that presented no credential.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of every client that presented no credential.
pub const ALL_UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group of every client that presented a good credential.
pub const ALL_AUTHENTICATED: &str = "system:authenticated";
/// The extra key that names the credential an identity came from.
pub const CREDENTIAL_ID_KEY: &str = "authentication.kubernetes.io/credential-id";

/// An identity: what `SelfSubjectReview` shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UserInfo {
    /// The user name; may be empty until the identity is about to be forwarded, which refuses it.
    pub name: String,
    /// The uid, if the authenticator knows one.
    pub uid: Option<String>,
    /// The groups in the authenticator's order, duplicates kept.
    pub groups: Vec<String>,
    /// Further attributes; keys are compared as they are, values keep their order.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// A user with a name and nothing else.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// The identity of a client without a credential.
    pub fn anonymous() -> Self {
        Self { groups: vec![ALL_UNAUTHENTICATED.to_owned()], ..Self::named(ANONYMOUS) }
    }

    /// The gateway itself, as it reads from API servers.
    pub fn portcullis() -> Self {
        Self { groups: vec![ALL_AUTHENTICATED.to_owned()], ..Self::named("system:portcullis") }
    }

    /// Whether kube-apiserver counts the user as anonymous when it guards against HTTP/2 floods.
    // apiserver: pkg/endpoints/filters/authentication.go, isAnonymousUser
    pub fn is_unauthenticated(&self) -> bool {
        self.name == ANONYMOUS || self.groups.iter().any(|group| group == ALL_UNAUTHENTICATED)
    }
}
