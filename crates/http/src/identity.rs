//! The identity of a request: a user with its header lines, made once and shared.

mod encode;
mod parts;

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use aws_lc_rs::digest::{Digest, SHA256, digest};
use http::header::{HeaderName, HeaderValue};
use portcullis_kubernetes::user::{EncodedUser, UserInfo};

pub use encode::{IdentityHeaderLines, IdentityMode, UnencodableIdentity};
pub use parts::Parts;

/// The approximate memory of a stored text beyond its bytes.
pub const TEXT_OVERHEAD: usize = 2 * size_of::<String>();

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
    /// Approximate memory of the identity: the texts and the overhead of each. They count twice, because
    /// they are also held as header lines.
    pub fn weight(&self) -> usize {
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

    /// The identity as the header lines of `mode`; an error if no header carries it byte for byte.
    pub fn encode(self, mode: IdentityMode) -> Result<EncodedIdentity, UnencodableIdentity> {
        let lines = Arc::clone(self.lines(mode)?);
        Ok(EncodedIdentity { identity: self, lines })
    }

    /// The header lines of `mode`, made once.
    pub fn lines(&self, mode: IdentityMode) -> Result<&IdentityHeaderLines, UnencodableIdentity> {
        let Self(shared) = self;
        let lines = match mode {
            IdentityMode::RequestHeader => &shared.by_request_header,
            IdentityMode::Impersonate => &shared.by_impersonation,
        };
        lines.get_or_init(|| encode::encode(&shared.user, mode)).as_ref().map_err(UnencodableIdentity::clone)
    }

    /// The identity as audit events name it, made once.
    pub fn audited(&self) -> &EncodedUser {
        self.0.audited.get_or_init(|| EncodedUser::from(self.0.user.clone()))
    }

    /// The SHA-256 digest of all attributes, made once.
    pub fn digest(&self) -> &Digest {
        self.0.digest.get_or_init(|| {
            let UserInfo { name, uid, groups, extra } = &self.0.user;
            let mut parts = Parts::default();
            parts.user(name, uid.as_deref().unwrap_or_default(), groups, extra);
            digest(&SHA256, &parts.into_bytes())
        })
    }

    /// Whether both share one allocation.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// An identity that the headers of one [`IdentityMode`] carry byte for byte.
#[derive(Debug, Clone)]
pub struct EncodedIdentity {
    identity: Identity,
    lines: IdentityHeaderLines,
}

impl EncodedIdentity {
    /// The header lines, in order.
    pub fn lines(&self) -> &[(HeaderName, HeaderValue)] {
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
