//! The Secret of a bootstrap token: parsing for all its uses, and creation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::ByteString;
use k8s_openapi::api::core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use portcullis_go::time::{self, Time};
use portcullis_system::clock::UnixTime;

use super::token::{BootstrapToken, TokenId};

/// The type of the Secrets that hold bootstrap tokens.
pub const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
/// The namespace of the Secrets.
pub const NAMESPACE: &str = "kube-system";
/// The group of all clients that authenticate with a bootstrap token.
pub const GROUP: &str = "system:bootstrappers";
/// The required prefix of extra groups.
pub const GROUP_PREFIX: &str = "system:bootstrappers:";
const GROUP_NAME_LENGTH: usize = 256;

// cluster-bootstrap: token/api/types.go
/// The key of the token ID.
pub const ID: &str = "token-id";
/// The key of the token secret.
pub const SECRET: &str = "token-secret";
/// The key of the expiration.
pub const EXPIRATION: &str = "expiration";
/// The key of the groups beside `system:bootstrappers`.
pub const EXTRA_GROUPS: &str = "auth-extra-groups";
const DESCRIPTION: &str = "description";
const USAGE_PREFIX: &str = "usage-bootstrap-";

/// A usage of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TokenUsage {
    /// Clients may authenticate with the token.
    Authentication,
    /// The token signs `cluster-info`.
    Signing,
}

impl TokenUsage {
    /// All usages, in the order of Kubernetes.
    // cluster-bootstrap: token/api/types.go, KnownTokenUsages
    pub const ALL: [Self; 2] = [Self::Signing, Self::Authentication];

    /// The name in commands.
    pub fn name(self) -> &'static str {
        match self {
            Self::Authentication => "authentication",
            Self::Signing => "signing",
        }
    }

    /// The key in the Secret; the value `true` grants the usage.
    pub fn key(self) -> &'static str {
        match self {
            Self::Authentication => "usage-bootstrap-authentication",
            Self::Signing => "usage-bootstrap-signing",
        }
    }
}

/// Whether a Secret holds a bootstrap token. The type of a Secret is immutable.
// kube-controller-manager: pkg/controller/bootstrap/tokencleaner.go, syncFunc
pub fn is_token(secret: &core::v1::Secret) -> bool {
    secret.type_.as_deref() == Some(SECRET_TYPE)
}

/// The data of a token's Secret. Its `Debug` output omits the data, which has the token.
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

    /// The value of a key; empty if the key is absent.
    // cluster-bootstrap: util/secrets/secrets.go, GetData
    pub fn get(&self, key: &str) -> &'a [u8] {
        self.0.get(key).copied().unwrap_or_default()
    }

    /// The expiration; `None` if the token never expires.
    // cluster-bootstrap: util/secrets/secrets.go, GetExpiration
    pub fn expiration(&self) -> Result<Option<Time>, MalformedExpiration> {
        match self.get(EXPIRATION) {
            [] => Ok(None),
            text => {
                let time = std::str::from_utf8(text).ok().and_then(Time::parse_rfc3339);
                time.map(Some).ok_or(MalformedExpiration)
            }
        }
    }

    /// Whether the token has expired. A token with a malformed expiration counts as expired.
    // cluster-bootstrap: util/secrets/secrets.go, HasExpired
    pub fn has_expired(&self, now: UnixTime) -> bool {
        self.expiration().map_or(true, |end| end.is_some_and(|end| end.remaining(now).is_none()))
    }

    /// Whether the Secret grants the usage; only the value `true` does.
    pub fn allows(&self, usage: TokenUsage) -> bool {
        self.get(usage.key()) == b"true"
    }

    /// The groups of clients that authenticate with the token, sorted, without duplicates; `None` if an extra group is not
    /// allowed.
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

    /// The ID and the secret of the token, if the Secret of this name may sign. The secret may have any format.
    // kube-controller-manager: pkg/controller/bootstrap/util.go, validateSecretForSigning
    pub fn signing_key(&self, name: &str, now: UnixTime) -> Option<(TokenId, &'a [u8])> {
        let id = TokenId::of_secret(name)?;
        let secret = self.get(SECRET);
        let may_sign = self.get(ID) == id.as_str().as_bytes()
            && !secret.is_empty()
            && !self.has_expired(now)
            && self.allows(TokenUsage::Signing);
        may_sign.then_some((id, secret))
    }

    /// Describes the token in the Secret of this name.
    // kubeadm: apis/bootstraptoken/v1/utils.go, BootstrapTokenFromSecret
    pub fn describe(&self, name: &str) -> Result<TokenDescription, TokenSecretError> {
        let text = |key| String::from_utf8_lossy(self.get(key)).into_owned();
        let id = text(ID);
        if id.is_empty() {
            return Err(TokenSecretError::Lacks(ID, name.to_owned()));
        }
        if name.strip_prefix("bootstrap-token-") != Some(&id) {
            return Err(TokenSecretError::Misnamed(name.to_owned(), id));
        }
        let secret = std::str::from_utf8(self.get(SECRET)).unwrap_or("?");
        if secret.is_empty() {
            return Err(TokenSecretError::Lacks(SECRET, name.to_owned()));
        }
        let token = BootstrapToken::parse(&format!("{id}.{secret}"))
            .map_err(|_| TokenSecretError::Malformed(name.to_owned()))?;
        let expires =
            self.expiration().map_err(|MalformedExpiration| TokenSecretError::Ends(name.to_owned()))?;
        let usages = self.0.iter().filter(|(_, value)| **value == b"true");
        let usages = usages.filter_map(|(key, _)| key.strip_prefix(USAGE_PREFIX)).map(str::to_owned);
        let groups = text(EXTRA_GROUPS);
        let groups = groups.split(',').map(str::to_owned);
        Ok(TokenDescription {
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

/// The expiration of a token is not an RFC 3339 time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MalformedExpiration;

/// The description of a token, for listings.
#[derive(Debug, Clone)]
pub struct TokenDescription {
    /// The token.
    pub token: BootstrapToken,
    /// The free-text description.
    pub description: String,
    /// The expiration; `None` if the token never expires.
    pub expires: Option<Time>,
    /// The usages, sorted.
    pub usages: Vec<String>,
    /// The extra groups, as written in the Secret.
    pub groups: Vec<String>,
}

/// Why a Secret with the type of a bootstrap token does not hold one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenSecretError {
    /// A key is missing or empty.
    #[error("the Secret {1} has no {0}")]
    Lacks(&'static str, String),
    /// The name of the Secret does not match the token ID.
    #[error("the Secret {0} holds the token {1:?}: its name must be bootstrap-token-{1}")]
    Misnamed(String, String),
    /// The ID and the secret do not have the format of a token.
    #[error("the Secret {0} does not hold a token of the form [a-z0-9]{{6}}.[a-z0-9]{{16}}")]
    Malformed(String),
    /// The expiration does not parse.
    #[error("the expiration of the Secret {0} is not an RFC 3339 time")]
    Ends(String),
}

/// Whether a token may have this extra group.
// cluster-bootstrap: token/api/types.go, BootstrapGroupPattern
pub fn is_group(group: &str) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    group.strip_prefix(GROUP_PREFIX).map(str::as_bytes).is_some_and(|name| {
        name.len() <= GROUP_NAME_LENGTH
            && name.last().is_some_and(plain)
            && name.iter().all(|byte| plain(byte) || matches!(byte, b':' | b'-'))
    })
}

/// A token to create.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// The token.
    pub token: BootstrapToken,
    /// The expiration; `None` if the token never expires.
    pub expires: Option<UnixTime>,
    /// The free-text description.
    pub description: String,
    /// The usages.
    pub usages: BTreeSet<TokenUsage>,
    /// The extra groups.
    pub groups: Vec<String>,
}

impl NewToken {
    /// The Secret to create.
    // kubeadm: apis/bootstraptoken/v1/utils.go, BootstrapTokenToSecret
    pub fn secret(&self) -> core::v1::Secret {
        let BootstrapToken { id, secret } = &self.token;
        let mut data = BTreeMap::from([(ID, id.to_string()), (SECRET, secret.expose().to_owned())]);
        if !self.description.is_empty() {
            data.insert(DESCRIPTION, self.description.clone());
        }
        if let Some(end) = self.expires {
            data.insert(EXPIRATION, time::format_since_epoch(end));
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
