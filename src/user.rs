//! The identity of a client: plain data, ordered so that two identities can be compared field by field.
//!
//! The fields are those of `user.Info` in kube-apiserver (`k8s.io/apiserver/pkg/authentication/user`).

mod encode;
mod parts;
pub(crate) mod service_account;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use aws_lc_rs::digest::{Digest, SHA256, digest};
use http::header::{HeaderName, HeaderValue};
use portcullis_audit::event::{EncodedUser, UserInfo as AuditedUser};

pub use encode::IdentityMode;
pub(crate) use encode::{IdentityHeaderLines, UnencodableIdentity};
pub(crate) use parts::Parts;

/// The name of a client that presented no credential.
pub(crate) const ANONYMOUS: &str = "system:anonymous";
/// The group of every client that presented no credential.
pub(crate) const ALL_UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group of every client that presented a good credential.
pub(crate) const ALL_AUTHENTICATED: &str = "system:authenticated";
/// The group whose members may do everything.
// apiserver: pkg/authentication/user/user.go, SystemPrivilegedGroup
pub(crate) const MASTERS: &str = "system:masters";
/// The user of the gateway itself. It may read every Secret, so the credential of a client must not name it.
pub(crate) const GATEWAY: &str = "system:portcullis";
/// The extra key for the name of the node that a service-account token is bound to.
pub(crate) const NODE_NAME_KEY: &str = "authentication.kubernetes.io/node-name";
/// The extra key for the ID of the credential that was authenticated.
pub(crate) const CREDENTIAL_ID_KEY: &str = "authentication.kubernetes.io/credential-id";

/// The approximate memory of a stored text beyond its bytes.
pub(crate) const TEXT_OVERHEAD: usize = 2 * size_of::<String>();

/// A user as `SelfSubjectReview` returns it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
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
    pub(crate) fn has_authentication_status(&self) -> bool {
        let is_status = |group: &String| group == ALL_AUTHENTICATED || group == ALL_UNAUTHENTICATED;
        self.name == ANONYMOUS || self.groups.iter().any(is_status)
    }

    /// Approximate memory of the user as an [`Identity`]: the texts and the overhead of each. They count twice, because
    /// `Identity` also holds them as header lines.
    pub(crate) fn weight(&self) -> usize {
        let text = |text: &String| TEXT_OVERHEAD + text.len();
        let header = |value: &String| 2 * text(value) + size_of::<(HeaderName, HeaderValue)>();
        let of_extra = |(key, values): (&String, &Vec<String>)| -> usize {
            text(key) + values.iter().map(|value| text(key) + header(value)).sum::<usize>()
        };
        header(&self.name)
            + self.uid.as_ref().map_or(0, header)
            + self.groups.iter().map(header).sum::<usize>()
            + self.extra.iter().map(of_extra).sum::<usize>()
    }

    /// Whether kube-apiserver treats the user as anonymous in its mitigation of HTTP/2 floods.
    // apiserver: pkg/endpoints/filters/authentication.go, isAnonymousUser
    pub fn is_unauthenticated(&self) -> bool {
        self.name == ANONYMOUS || self.groups.iter().any(|group| group == ALL_UNAUTHENTICATED)
    }
}

/// An immutable identity, shared by its requests. Its header lines are built once.
#[derive(Clone)]
pub struct Identity(Arc<SharedIdentity>);

struct SharedIdentity {
    user: UserInfo,
    audited: OnceLock<EncodedUser>,
    digest: OnceLock<Digest>,
    by_request_header: OnceLock<Result<IdentityHeaderLines, UnencodableIdentity>>,
    by_impersonation: OnceLock<Result<IdentityHeaderLines, UnencodableIdentity>>,
}

impl Identity {
    /// The identity as the header lines of `mode`; an error if no header carries it byte for byte.
    pub(crate) fn encode(self, mode: IdentityMode) -> Result<EncodedIdentity, UnencodableIdentity> {
        let lines = Arc::clone(self.lines(mode)?);
        Ok(EncodedIdentity { identity: self, lines })
    }

    /// The header lines of `mode`, made once.
    pub(crate) fn lines(&self, mode: IdentityMode) -> Result<&IdentityHeaderLines, UnencodableIdentity> {
        let Self(shared) = self;
        let lines = match mode {
            IdentityMode::RequestHeader => &shared.by_request_header,
            IdentityMode::Impersonate => &shared.by_impersonation,
        };
        lines.get_or_init(|| encode::encode(&shared.user, mode)).as_ref().map_err(UnencodableIdentity::clone)
    }

    /// The identity as audit events name it, made once.
    pub(crate) fn audited(&self) -> &EncodedUser {
        self.0.audited.get_or_init(|| {
            let UserInfo { name, uid, groups, extra } = self.0.user.clone();
            AuditedUser { username: name, uid: uid.unwrap_or_default(), groups, extra }.into()
        })
    }

    /// The SHA-256 digest of all attributes, made once.
    pub(crate) fn digest(&self) -> &Digest {
        self.0.digest.get_or_init(|| {
            let UserInfo { name, uid, groups, extra } = &self.0.user;
            let mut parts = Parts::default();
            parts.user(name, uid.as_deref().unwrap_or_default(), groups, extra);
            digest(&SHA256, &parts.into_bytes())
        })
    }

    /// Whether both share one allocation.
    pub(crate) fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// An identity that the headers of one [`IdentityMode`] carry byte for byte.
#[derive(Debug, Clone)]
pub(crate) struct EncodedIdentity {
    identity: Identity,
    lines: IdentityHeaderLines,
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
        Self(Arc::new(SharedIdentity {
            user,
            audited: OnceLock::new(),
            digest: OnceLock::new(),
            by_request_header: OnceLock::new(),
            by_impersonation: OnceLock::new(),
        }))
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
