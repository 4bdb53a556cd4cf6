//! Headers that carry an identity: THE list of their names, and the one function that writes them.

use http::{HeaderMap, HeaderName};

use super::hop_by_hop::strip_where;
use crate::go::quote::Quoted;
use crate::user::EncodedIdentity;

/// What the names of headers begin with in which a front proxy tells who a request is made by.
pub(crate) const FRONT_PROXY_PREFIX: &str = "x-remote-";
/// What the names of headers begin with in which a client asks to act as someone else.
pub(crate) const IMPERSONATE_PREFIX: &str = "impersonate-";
/// The headers a front proxy writes. Names are compared without regard to case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHeaderNames {
    pub(crate) user: Vec<HeaderName>,
    pub(crate) uid: Vec<HeaderName>,
    pub(crate) group: Vec<HeaderName>,
    /// In lower case.
    pub(crate) extra_prefixes: Vec<String>,
}

/// A configured header name that cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderNameError {
    /// Nothing but blanks.
    #[error("empty header {}", Quoted(.0))]
    Empty(String),
    /// No header can have this name, or begin with it.
    #[error("{} cannot be the name of a header", Quoted(.0))]
    Invalid(String),
}

impl RequestHeaderNames {
    /// Takes names as they are configured; blanks around them do not count.
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
                // A prefix is made of the same characters as a name.
                .map(|prefix| header_name(prefix).map(|name| name.as_str().to_owned()))
                .collect::<Result<_, _>>()?,
        })
    }

    /// The names of both.
    pub(crate) fn and(&self, other: &Self) -> Self {
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

    /// Whether a header carries a part of an identity.
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

/// Whether the name begins with `prefix` once `_` and `.` are read as `-`, as some receivers do. Names are in lower
/// case already.
pub(crate) fn folded_starts_with(name: &HeaderName, prefix: &str) -> bool {
    let name = name.as_str().as_bytes();
    name.len() >= prefix.len()
        && std::iter::zip(name, prefix.as_bytes()).all(|(byte, wanted)| {
            let folded = if matches!(byte, b'_' | b'.') { b'-' } else { *byte };
            folded == *wanted
        })
}

/// Removes the headers from which a backend reads identities beside the standard ones.
pub(crate) fn strip_named(headers: &mut HeaderMap, names: &RequestHeaderNames) {
    strip_where(headers, |name| names.contains(name));
}

/// Removes every header that a receiver might read as an identity, whatever the spelling.
pub(crate) fn strip_identity(headers: &mut HeaderMap) {
    strip_where(headers, |name| {
        folded_starts_with(name, FRONT_PROXY_PREFIX) || folded_starts_with(name, IMPERSONATE_PREFIX)
    });
}

/// Removes whatever might be read as an identity from `headers`, then writes `identity`.
// threat: forged-identity-headers
pub(crate) fn write_identity(headers: &mut HeaderMap, identity: &EncodedIdentity) {
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

    use super::*;
    use crate::user::{Identity, IdentityMode, UserInfo};

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| {
                (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
            })
            .collect()
    }

    fn names(map: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = map.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn what_was_there_is_no_part_of_an_identity() {
        for mode in [IdentityMode::RequestHeader, IdentityMode::Impersonate] {
            let mut headers = HeaderMap::new();
            headers.append("x-remote-group", HeaderValue::from_static("system:masters"));
            headers.append("impersonate-user", HeaderValue::from_static("eve"));
            let alice = Identity::from(UserInfo::named("alice")).encode(mode).unwrap();
            write_identity(&mut headers, &alice);
            let values: Vec<_> = headers.values().collect();
            assert_eq!(values, ["alice"]);
        }
    }

    #[test]
    fn identity_goes_in_every_spelling() {
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
