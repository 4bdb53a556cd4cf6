//! The Secret that a bootstrap token lives in: read for every purpose here, and made here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::ByteString;
use k8s_openapi::api::core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::token::{Token, TokenId};
use crate::clock::{self, UnixTime};
use crate::go::rfc3339::{NoTime, Rfc3339Time};

/// The type of Secrets that are bootstrap tokens.
pub const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
/// The namespace that tokens are in.
pub const NAMESPACE: &str = "kube-system";
/// The group of everybody who uses a token.
pub(crate) const GROUP: &str = "system:bootstrappers";
/// What further groups begin with.
pub(crate) const GROUP_PREFIX: &str = "system:bootstrappers:";
const GROUP_NAME_LENGTH: usize = 256;

// cluster-bootstrap: token/api/types.go
pub(crate) const ID: &str = "token-id";
pub(crate) const SECRET: &str = "token-secret";
pub(crate) const EXPIRATION: &str = "expiration";
pub(crate) const EXTRA_GROUPS: &str = "auth-extra-groups";
const DESCRIPTION: &str = "description";
const USAGE_PREFIX: &str = "usage-bootstrap-";

/// What a token may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Usage {
    /// Clients may authenticate with it.
    Authentication,
    /// It signs `cluster-info`.
    Signing,
}

impl Usage {
    /// All there are, in the order of messages.
    // cluster-bootstrap: token/api/types.go, KnownTokenUsages
    pub const ALL: [Self; 2] = [Self::Signing, Self::Authentication];

    /// Its name in commands.
    pub fn name(self) -> &'static str {
        match self {
            Self::Authentication => "authentication",
            Self::Signing => "signing",
        }
    }

    /// The key that grants it, if its value is `true`.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Authentication => "usage-bootstrap-authentication",
            Self::Signing => "usage-bootstrap-signing",
        }
    }
}

/// Whether a Secret is a bootstrap token; its type cannot be changed.
// kube-controller-manager: pkg/controller/bootstrap/tokencleaner.go, syncFunc
pub(crate) fn is_token(secret: &core::v1::Secret) -> bool {
    secret.type_.as_deref() == Some(SECRET_TYPE)
}

/// The data of a token's Secret. Shown nowhere: the token is in it.
#[derive(Clone, Default)]
pub struct TokenData<'a>(BTreeMap<&'a str, &'a [u8]>);

impl fmt::Debug for TokenData<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenData")
    }
}

impl<'a> FromIterator<(&'a str, &'a [u8])> for TokenData<'a> {
    fn from_iter<T: IntoIterator<Item = (&'a str, &'a [u8])>>(data: T) -> Self {
        Self(data.into_iter().collect())
    }
}

impl<'a> TokenData<'a> {
    /// The data of a Secret.
    pub fn of(secret: &'a core::v1::Secret) -> Self {
        secret.data.iter().flatten().map(|(key, value)| (key.as_str(), value.0.as_slice())).collect()
    }

    /// The value of a key; a key that is not there is empty.
    // cluster-bootstrap: util/secrets/secrets.go, GetData
    pub(crate) fn get(&self, key: &str) -> &'a [u8] {
        self.0.get(key).copied().unwrap_or_default()
    }

    /// When it ends; nothing never does.
    // cluster-bootstrap: util/secrets/secrets.go, GetExpiration
    pub fn expiration(&self) -> Result<Option<Rfc3339Time>, NoTime> {
        match self.get(EXPIRATION) {
            [] => Ok(None),
            text => std::str::from_utf8(text).map_err(|_| NoTime).and_then(Rfc3339Time::parse).map(Some),
        }
    }

    /// Whether it has ended; so has one whose end cannot be read.
    // cluster-bootstrap: util/secrets/secrets.go, HasExpired
    pub fn has_expired(&self, now: UnixTime) -> bool {
        self.expiration().map_or(true, |end| end.is_some_and(|end| end.remaining(now).is_none()))
    }

    /// Whether it may be used for this: only the value `true` says so.
    pub fn allows(&self, usage: Usage) -> bool {
        self.get(usage.key()) == b"true"
    }

    /// The groups of those who authenticate with it, sorted and without duplicates; `None` if one of the further groups
    /// is no bootstrappers' group.
    // cluster-bootstrap: util/secrets/secrets.go, GetGroups
    pub fn groups(&self) -> Option<Vec<String>> {
        let extra = std::str::from_utf8(self.get(EXTRA_GROUPS)).ok()?;
        let extra = extra.split(',').filter(|_| !extra.is_empty());
        let mut groups = BTreeSet::from([GROUP.to_owned()]);
        for group in extra {
            groups.insert(is_group(group).then(|| group.to_owned())?);
        }
        Some(groups.into_iter().collect())
    }

    /// What it signs with, if the Secret of this name may sign: its id, and its secret of whatever form.
    // kube-controller-manager: pkg/controller/bootstrap/util.go, validateSecretForSigning
    pub fn signing_key(&self, name: &str, now: UnixTime) -> Option<(TokenId, &'a [u8])> {
        let id = TokenId::of_secret(name)?;
        let secret = self.get(SECRET);
        let may_sign = self.get(ID) == id.as_str().as_bytes()
            && !secret.is_empty()
            && !self.has_expired(now)
            && self.allows(Usage::Signing);
        may_sign.then_some((id, secret))
    }

    /// What can be told of the token in the Secret of this name, or what is wrong with that.
    // kubeadm: apis/bootstraptoken/v1/utils.go, BootstrapTokenFromSecret
    pub fn describe(&self, name: &str) -> Result<Described, Undescribed> {
        let text = |key| String::from_utf8_lossy(self.get(key)).into_owned();
        let id = text(ID);
        if id.is_empty() {
            return Err(Undescribed::Lacks(ID, name.to_owned()));
        }
        if name.strip_prefix("bootstrap-token-") != Some(&id) {
            return Err(Undescribed::Misnamed(name.to_owned(), id));
        }
        let secret = std::str::from_utf8(self.get(SECRET)).unwrap_or("?");
        if secret.is_empty() {
            return Err(Undescribed::Lacks(SECRET, name.to_owned()));
        }
        let token =
            Token::parse(&format!("{id}.{secret}")).map_err(|_| Undescribed::Malformed(name.to_owned()))?;
        let expires = self.expiration().map_err(|NoTime| Undescribed::Ends(name.to_owned()))?;
        let usages = self.0.iter().filter(|(_, value)| **value == b"true");
        let usages = usages.filter_map(|(key, _)| key.strip_prefix(USAGE_PREFIX)).map(str::to_owned);
        let groups = text(EXTRA_GROUPS);
        let groups = groups.split(',').map(str::to_owned);
        Ok(Described {
            token,
            description: text(DESCRIPTION),
            expires,
            usages: usages.collect(),
            // kubeadm: a list whose first group is empty is none.
            groups: groups
                .clone()
                .next()
                .filter(|first| !first.is_empty())
                .map_or_else(Vec::new, |_| groups.collect()),
        })
    }
}

/// What is told of a token.
#[derive(Debug, Clone)]
pub struct Described {
    /// The token.
    pub token: Token,
    /// What it is for, in somebody's words.
    pub description: String,
    /// When it ends.
    pub expires: Option<Rfc3339Time>,
    /// What it may be used for, sorted.
    pub usages: Vec<String>,
    /// The further groups of those who authenticate with it, as they are written.
    pub groups: Vec<String>,
}

/// A Secret that says it is a token, and is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Undescribed {
    /// Something is not there.
    #[error("the Secret {1} has no {0}")]
    Lacks(&'static str, String),
    /// It is not called what its token is.
    #[error("the Secret {0} is that of the token {1:?}, and so it should be bootstrap-token-{1}")]
    Misnamed(String, String),
    /// There is no token in it.
    #[error("what is in the Secret {0} is no token: that is six characters and sixteen, all of a-z and 0-9")]
    Malformed(String),
    /// Nobody knows when it ends.
    #[error("the expiration of the Secret {0} is no time in RFC 3339")]
    Ends(String),
}

/// Whether it is a group that a token may give.
// cluster-bootstrap: token/api/types.go, BootstrapGroupPattern
pub fn is_group(group: &str) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    group.strip_prefix(GROUP_PREFIX).map(str::as_bytes).is_some_and(|name| {
        name.len() <= GROUP_NAME_LENGTH
            && name.last().is_some_and(plain)
            && name.iter().all(|byte| plain(byte) || matches!(byte, b':' | b'-'))
    })
}

/// A token that is to be.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// The token.
    pub token: Token,
    /// When it ends; nothing never does.
    pub expires: Option<UnixTime>,
    /// What it is for, in somebody's words.
    pub description: String,
    /// What it may be used for.
    pub usages: BTreeSet<Usage>,
    /// The further groups of those who authenticate with it.
    pub groups: Vec<String>,
}

impl NewToken {
    /// Its Secret.
    // kubeadm: apis/bootstraptoken/v1/utils.go, BootstrapTokenToSecret
    pub fn secret(&self) -> core::v1::Secret {
        let Token { id, secret } = &self.token;
        let mut data = BTreeMap::from([(ID, id.to_string()), (SECRET, secret.expose().to_owned())]);
        if !self.description.is_empty() {
            data.insert(DESCRIPTION, self.description.clone());
        }
        if let Some(end) = self.expires {
            data.insert(EXPIRATION, clock::rfc3339(end));
        }
        if !self.groups.is_empty() {
            data.insert(EXTRA_GROUPS, self.groups.join(","));
        }
        data.extend(self.usages.iter().map(|usage| (usage.key(), "true".to_owned())));
        core::v1::Secret {
            metadata: ObjectMeta {
                name: Some(id.secret_name()),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            type_: Some(SECRET_TYPE.to_owned()),
            data: Some(
                data.into_iter().map(|(key, value)| (key.to_owned(), ByteString(value.into()))).collect(),
            ),
            ..core::v1::Secret::default()
        }
    }
}

#[cfg(test)]
mod tests;
