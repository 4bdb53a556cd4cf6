//! The identity of a client: plain data, ordered so that two identities can be compared field by field.
//!
//! The fields are those of `user.Info` in kube-apiserver (`k8s.io/apiserver/pkg/authentication/user`).

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::LazyLock;

use portcullis_go::json;
use serde::Serialize;

/// The name of a client that presented no credential.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of every client that presented no credential.
pub const ALL_UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group of every client that presented a good credential.
pub const ALL_AUTHENTICATED: &str = "system:authenticated";
/// The group whose members may do everything.
// apiserver: pkg/authentication/user/user.go, SystemPrivilegedGroup
pub const MASTERS: &str = "system:masters";
/// The group of the nodes.
// apiserver: pkg/authentication/user/user.go, NodesGroup
pub const NODES: &str = "system:nodes";
/// The user of the gateway itself. It may read every Secret, so the credential of a client must not name it.
pub const GATEWAY: &str = "system:portcullis";
/// The extra key for the name of the node that a service-account token is bound to.
pub const NODE_NAME_KEY: &str = "authentication.kubernetes.io/node-name";
/// The extra key for the ID of the credential that was authenticated.
pub const CREDENTIAL_ID_KEY: &str = "authentication.kubernetes.io/credential-id";

/// A user as `SelfSubjectReview` returns it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserInfo {
    /// The user name. Forwarding refuses an empty one.
    pub name: String,
    /// The UID, if the authenticator sets one.
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

    /// The identity of the gateway's own requests to API servers.
    pub fn portcullis() -> Self {
        Self { groups: vec![ALL_AUTHENTICATED.to_owned()], ..Self::named(GATEWAY) }
    }

    /// Appends the group `system:authenticated`, unless the user is anonymous or already in one of the two groups.
    // apiserver: pkg/authentication/group/authenticated_group_adder.go
    #[must_use]
    pub fn in_authenticated_group(mut self) -> Self {
        if !self.has_authentication_status() {
            self.groups.push(ALL_AUTHENTICATED.to_owned());
        }
        self
    }

    /// Whether the user is anonymous, or in `system:authenticated` or `system:unauthenticated`.
    pub fn has_authentication_status(&self) -> bool {
        let is_status = |group: &String| group == ALL_AUTHENTICATED || group == ALL_UNAUTHENTICATED;
        self.name == ANONYMOUS || self.groups.iter().any(is_status)
    }

    /// The group that kube-apiserver would add if it were asked to impersonate the user. To a service account without any
    /// group it would also add those of its namespace.
    // apiserver: pkg/endpoints/filters/impersonation/mode.go, impersonationModeState.check; impersonation.go
    pub fn group_added_by_impersonation(&self) -> Option<&'static str> {
        let is_in = |wanted: &str| self.groups.iter().any(|group| group == wanted);
        match (self.name == ANONYMOUS, is_in(ALL_UNAUTHENTICATED)) {
            (_, true) => None,
            (true, false) => Some(ALL_UNAUTHENTICATED),
            (false, false) => (!is_in(ALL_AUTHENTICATED)).then_some(ALL_AUTHENTICATED),
        }
    }

    /// Whether kube-apiserver treats the user as anonymous in its mitigation of HTTP/2 floods.
    // apiserver: pkg/endpoints/filters/authentication.go, isAnonymousUser
    pub fn is_unauthenticated(&self) -> bool {
        self.name == ANONYMOUS || self.groups.iter().any(|group| group == ALL_UNAUTHENTICATED)
    }
}

/// A user with its JSON as `authentication.k8s.io/v1 UserInfo`, which is made once for all audit events of the user.
#[derive(Debug, Clone)]
pub struct EncodedUser {
    user: UserInfo,
    json: Box<[u8]>,
}

/// The fields of `authentication.k8s.io/v1 UserInfo`, in Go's order.
#[derive(Serialize)]
struct UserFields<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    groups: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: &'a BTreeMap<String, Vec<String>>,
}

impl From<UserInfo> for EncodedUser {
    fn from(user: UserInfo) -> Self {
        let UserInfo { name, uid, groups, extra } = &user;
        let uid = uid.as_deref().unwrap_or_default();
        let json = json::encode(&UserFields { username: name, uid, groups, extra }).into();
        Self { user, json }
    }
}

impl EncodedUser {
    /// The user of a request whose client is not authenticated: it has no attribute.
    pub fn unknown() -> &'static Self {
        static UNKNOWN: LazyLock<EncodedUser> = LazyLock::new(|| UserInfo::default().into());
        &UNKNOWN
    }

    /// The JSON.
    pub fn json(&self) -> &[u8] {
        &self.json
    }
}

impl Deref for EncodedUser {
    type Target = UserInfo;

    fn deref(&self) -> &UserInfo {
        &self.user
    }
}
