//! Who a request is made as: plain data, ordered so that two identities can be compared field by field.
//!
//! The fields are those of `user.Info` in kube-apiserver (`k8s.io/apiserver/pkg/authentication/user`).

mod lines;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use http::header::{HeaderName, HeaderValue};

pub use lines::IdentityMode;
pub(crate) use lines::{Lines, UnfitIdentity};

/// The name of a client that presented no credential.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of every client that presented no credential.
pub const ALL_UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group of every client that presented a good credential.
pub const ALL_AUTHENTICATED: &str = "system:authenticated";
/// The user of the gateway itself: it may read every Secret, so no credential of a client may name it.
pub const GATEWAY: &str = "system:portcullis";
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
        Self { groups: vec![ALL_AUTHENTICATED.to_owned()], ..Self::named(GATEWAY) }
    }

    /// The user with the group of all authenticated users at the end, unless it says already what it is.
    // apiserver: pkg/authentication/group/authenticated_group_adder.go
    #[must_use]
    pub fn in_authenticated_group(mut self) -> Self {
        if !self.says_whether_authenticated() {
            self.groups.push(ALL_AUTHENTICATED.to_owned());
        }
        self
    }

    /// Whether the group of all authenticated users is there, or must not be.
    pub(crate) fn says_whether_authenticated(&self) -> bool {
        let says = |group: &String| group == ALL_AUTHENTICATED || group == ALL_UNAUTHENTICATED;
        self.name == ANONYMOUS || self.groups.iter().any(says)
    }

    /// Whether kube-apiserver counts the user as anonymous when it guards against HTTP/2 floods.
    // apiserver: pkg/endpoints/filters/authentication.go, isAnonymousUser
    pub fn is_unauthenticated(&self) -> bool {
        self.name == ANONYMOUS || self.groups.iter().any(|group| group == ALL_UNAUTHENTICATED)
    }
}

/// An identity that its requests share. It never changes, so that the lines in which backends are told of it are made
/// once.
#[derive(Clone)]
pub struct Identity(Arc<Shared>);

struct Shared {
    user: UserInfo,
    by_request_header: OnceLock<Result<Lines, UnfitIdentity>>,
    by_impersonation: OnceLock<Result<Lines, UnfitIdentity>>,
}

impl Identity {
    /// The identity as the header lines of `mode`; an error if no header carries it byte for byte.
    pub(crate) fn encode(self, mode: IdentityMode) -> Result<EncodedIdentity, UnfitIdentity> {
        let lines = Arc::clone(self.lines(mode)?);
        Ok(EncodedIdentity { identity: self, lines })
    }

    /// The header lines of `mode`, made once.
    pub(crate) fn lines(&self, mode: IdentityMode) -> Result<&Lines, UnfitIdentity> {
        let Self(shared) = self;
        let lines = match mode {
            IdentityMode::RequestHeader => &shared.by_request_header,
            IdentityMode::Impersonate => &shared.by_impersonation,
        };
        lines.get_or_init(|| lines::lines(&shared.user, mode)).as_ref().map_err(UnfitIdentity::clone)
    }

    /// Whether both are one in memory.
    #[cfg(test)]
    pub(crate) fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// An identity that the headers of one [`IdentityMode`] carry byte for byte.
#[derive(Debug, Clone)]
pub(crate) struct EncodedIdentity {
    identity: Identity,
    lines: Lines,
}

impl EncodedIdentity {
    /// The header lines, in order.
    pub(crate) fn lines(&self) -> &[(HeaderName, HeaderValue)] {
        &self.lines
    }
}

impl Deref for EncodedIdentity {
    type Target = Identity;

    fn deref(&self) -> &Identity {
        &self.identity
    }
}

impl From<UserInfo> for Identity {
    fn from(user: UserInfo) -> Self {
        Self(Arc::new(Shared { user, by_request_header: OnceLock::new(), by_impersonation: OnceLock::new() }))
    }
}

impl Deref for Identity {
    type Target = UserInfo;

    fn deref(&self) -> &UserInfo {
        &self.0.user
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.user.fmt(f)
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Identity {}
