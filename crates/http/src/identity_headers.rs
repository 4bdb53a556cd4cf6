//! Identity headers: removes every header that a backend could read as an identity, then writes the identity. No other
//! function writes the client's identity; `pipeline::forward::prepare` restores `Impersonate-*` headers for a backend that
//! authorizes them.
//!
//! The gateway removes whole namespaces (`X-Remote-*`, `Impersonate-*`) and the names that the configuration or the
//! backend adds ([`RequestHeaderNames`]). `pipeline::forward::prepare` has the table of all headers that it removes.

use http::{HeaderMap, HeaderName};
use portcullis_go::quote::Quoted;

use super::hop_by_hop::strip_where;
use crate::identity::EncodedIdentity;

/// The prefix of the headers in which a front proxy names the user of a request.
pub const FRONT_PROXY_PREFIX: &str = "x-remote-";
/// The prefix of the headers in which a client names the user to impersonate.
pub const IMPERSONATE_PREFIX: &str = "impersonate-";

/// The names of the headers in which a front proxy names the user. Case-insensitive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHeaderNames {
    /// The headers of the user name.
    pub user: Vec<HeaderName>,
    /// The headers of the UID.
    pub uid: Vec<HeaderName>,
    /// The headers of the groups.
    pub group: Vec<HeaderName>,
    /// In lower case.
    pub extra_prefixes: Vec<String>,
}

/// An invalid header name in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderNameError {
    /// The name is empty or blank.
    #[error("empty header {}", Quoted(.0))]
    Empty(String),
    /// Not a valid header name or prefix.
    #[error("{} cannot be the name of a header", Quoted(.0))]
    Invalid(String),
}

impl RequestHeaderNames {
    /// Parses configured names; trims whitespace.
    pub fn new(
        user: &[String],
        uid: &[String],
        group: &[String],
        extra_prefixes: &[String],
    ) -> Result<Self, HeaderNameError> {
        let names =
            |names: &[String]| -> Result<Vec<_>, _> { names.iter().map(|name| header_name(name)).collect() };
        Ok(Self {
            user: names(user)?,
            uid: names(uid)?,
            group: names(group)?,
            extra_prefixes: extra_prefixes
                .iter()
                // A prefix has the same character set as a name.
                .map(|prefix| header_name(prefix).map(|name| name.as_str().to_owned()))
                .collect::<Result<_, _>>()?,
        })
    }

    /// The names of both.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        fn both<T: Clone + PartialEq>(one: &[T], two: &[T]) -> Vec<T> {
            one.iter().chain(two.iter().filter(|name| !one.contains(name))).cloned().collect()
        }
        Self {
            user: both(&self.user, &other.user),
            uid: both(&self.uid, &other.uid),
            group: both(&self.group, &other.group),
            extra_prefixes: both(&self.extra_prefixes, &other.extra_prefixes),
        }
    }

    /// Whether a header carries an attribute of the user.
    pub fn contains(&self, name: &HeaderName) -> bool {
        [&self.user, &self.uid, &self.group].into_iter().any(|names| names.contains(name))
            || self.extra_prefixes.iter().any(|prefix| name.as_str().starts_with(prefix))
    }
}

fn header_name(name: &str) -> Result<HeaderName, HeaderNameError> {
    let trimmed = name.trim();
    if trimmed.is_empty() {
        return Err(HeaderNameError::Empty(name.to_owned()));
    }
    HeaderName::try_from(trimmed).map_err(|_| HeaderNameError::Invalid(name.to_owned()))
}

/// Whether a name begins with `prefix` after folding `_` and `.` to `-`, as some servers do. Header names are already
/// in lower case.
pub fn folded_starts_with(name: &HeaderName, prefix: &str) -> bool {
    let name = name.as_str().as_bytes();
    name.len() >= prefix.len()
        && std::iter::zip(name, prefix.as_bytes()).all(|(byte, wanted)| {
            let folded = if matches!(byte, b'_' | b'.') { b'-' } else { *byte };
            folded == *wanted
        })
}

/// Removes the identity headers that a backend is configured to read.
pub fn strip_named(headers: &mut HeaderMap, names: &RequestHeaderNames) {
    strip_where(headers, |name| names.contains(name));
}

/// Removes every header that a backend might read as an identity, in any spelling.
pub(crate) fn strip_identity(headers: &mut HeaderMap) {
    strip_where(headers, |name| {
        folded_starts_with(name, FRONT_PROXY_PREFIX) || folded_starts_with(name, IMPERSONATE_PREFIX)
    });
}

/// Removes every identity header, then writes `identity`.
// threat: forged-identity-headers
pub fn write_identity(headers: &mut HeaderMap, identity: &EncodedIdentity) {
    strip_identity(headers);
    let lines = identity.lines();
    headers.reserve(lines.len().min(16));
    for (name, value) in lines {
        headers.append(name, value.clone());
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use portcullis_kubernetes::user::UserInfo;

    use super::*;
    use crate::identity::{Identity, IdentityMode};
    use crate::testing::{headers, names};

    #[test]
    fn writing_an_identity_removes_existing_identity_headers() {
        for mode in [IdentityMode::RequestHeader, IdentityMode::Impersonate] {
            let mut headers = HeaderMap::new();
            headers.append("x-remote-group", HeaderValue::from_static("system:masters"));
            headers.append("impersonate-user", HeaderValue::from_static("eve"));
            let alice = UserInfo::named("alice").in_authenticated_group();
            write_identity(&mut headers, &Identity::from(alice).encode(mode).unwrap());
            let mut values: Vec<_> = headers.values().collect();
            values.sort();
            assert_eq!(values, ["alice", "system:authenticated"]);
        }
    }

    #[test]
    fn identity_headers_are_removed_in_every_spelling() {
        let mut map = headers(&[
            ("X-Remote-User", "eve"),
            ("x_remote_user", "eve"),
            ("x.remote.group", "system:masters"),
            ("X-Remote_Extra-scopes", "all"),
            ("X-Remote-Anything-New", "1"),
            ("Impersonate-User", "eve"),
            ("impersonate_uid", "0"),
            ("X-Remotely", "fine"),
            ("Impersonation", "fine"),
        ]);
        strip_identity(&mut map);
        assert_eq!(names(&map), ["impersonation", "x-remotely"]);
    }
}
