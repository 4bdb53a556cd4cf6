//! The one function that writes who a request is made by. A name, uid, group, key or value that would not arrive
//! byte for byte is never sent: not trimmed, not escaped, not dropped; the request is refused.
//!
//! Go trims header values on HTTP/1.1 but not on HTTP/2, so a certificate with `O="system:masters "` would become
//! `system:masters` on one of them.

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use super::headers::strip_identity;
use crate::clusters::settings::IdentityMode;
use crate::escape::encode_extra_key;
use crate::user::UserInfo;

/// Header names of one identity mode.
struct Names {
    user: HeaderName,
    uid: HeaderName,
    group: HeaderName,
    extra_prefix: &'static str,
}

/// An identity that no header can carry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnfitIdentity {
    /// The user has no name; the backend would take the request for the gateway's own.
    #[error("the user name is empty")]
    NoName,
    /// A value would be trimmed, refused or cut on its way.
    #[error("the {field} {value:?} would not arrive byte for byte")]
    NotByteForByte {
        /// What it is: user name, uid, group, extra key, extra value.
        field: &'static str,
        /// The value itself; an identity is no secret.
        value: String,
    },
}

/// Removes whatever might be read as an identity from `headers`, then writes `user`.
// kubernetes: staging/src/k8s.io/client-go/transport/round_trippers.go, SetAuthProxyHeaders
pub(crate) fn write_identity(
    headers: &mut HeaderMap,
    user: &UserInfo,
    mode: IdentityMode,
) -> Result<(), UnfitIdentity> {
    strip_identity(headers);
    if user.name.is_empty() {
        return Err(UnfitIdentity::NoName);
    }
    let names = Names::of(mode);
    headers.insert(names.user, fit("user name", &user.name)?);
    if let Some(uid) = user.uid.as_deref().filter(|uid| !uid.is_empty()) {
        headers.insert(names.uid, fit("uid", uid)?);
    }
    // The receiver drops empty groups, so none is sent (declared).
    for group in user.groups.iter().filter(|group| !group.is_empty()) {
        headers.append(&names.group, fit("group", group)?);
    }
    for (key, values) in &user.extra {
        let name = format!("{}{}", names.extra_prefix, encode_extra_key(key));
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| UnfitIdentity::NotByteForByte { field: "extra key", value: key.clone() })?;
        for value in values {
            headers.append(&name, fit("extra value", value)?);
        }
    }
    Ok(())
}

impl Names {
    fn of(mode: IdentityMode) -> Self {
        match mode {
            IdentityMode::RequestHeader => Self {
                user: HeaderName::from_static("x-remote-user"),
                uid: HeaderName::from_static("x-remote-uid"),
                group: HeaderName::from_static("x-remote-group"),
                extra_prefix: "x-remote-extra-",
            },
            IdentityMode::Impersonate => Self {
                user: HeaderName::from_static("impersonate-user"),
                uid: HeaderName::from_static("impersonate-uid"),
                group: HeaderName::from_static("impersonate-group"),
                extra_prefix: "impersonate-extra-",
            },
        }
    }
}

/// The value as a header carries it, if every receiver reads it as it is.
fn fit(field: &'static str, value: &str) -> Result<HeaderValue, UnfitIdentity> {
    let unfit = || UnfitIdentity::NotByteForByte { field, value: value.to_owned() };
    let trimmed = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let bytes = value.as_bytes();
    if trimmed(bytes.first()) || trimmed(bytes.last()) {
        return Err(unfit());
    }
    HeaderValue::from_bytes(bytes).map_err(|_| unfit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> UserInfo {
        let mut user = UserInfo::named("alice");
        user.uid = Some("42".to_owned());
        user.groups = vec![
            "b".to_owned(),
            "a".to_owned(),
            String::new(),
            "b".to_owned(),
            "system:authenticated".to_owned(),
        ];
        user.extra.insert("example.com/Team K".to_owned(), vec!["x".to_owned(), String::new()]);
        user
    }

    fn lines(headers: &HeaderMap) -> Vec<(String, String)> {
        headers
            .iter()
            .map(|(name, value)| (name.to_string(), String::from_utf8(value.as_bytes().to_vec()).unwrap()))
            .collect()
    }

    #[test]
    fn every_part_of_an_identity_is_written_in_order() {
        let mut headers = HeaderMap::new();
        headers.append("x-remote-group", HeaderValue::from_static("system:masters"));
        headers.append("impersonate-user", HeaderValue::from_static("eve"));
        write_identity(&mut headers, &user(), IdentityMode::RequestHeader).unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            lines(&headers),
            [
                pair("x-remote-user", "alice"),
                pair("x-remote-uid", "42"),
                pair("x-remote-group", "b"),
                pair("x-remote-group", "a"),
                pair("x-remote-group", "b"),
                pair("x-remote-group", "system:authenticated"),
                pair("x-remote-extra-example.com%2f%54eam%20%4b", "x"),
                pair("x-remote-extra-example.com%2f%54eam%20%4b", ""),
            ]
        );
    }

    #[test]
    fn what_would_not_arrive_byte_for_byte_is_refused() {
        for bad in [" a", "a ", "\ta", "a\t", "a\rb", "a\nb", "a\0b", "a\u{7f}b", "a\u{1}b", " "] {
            let cases = [
                UserInfo::named(bad),
                {
                    let mut user = user();
                    user.uid = Some(bad.to_owned());
                    user
                },
                {
                    let mut user = user();
                    user.groups.push(bad.to_owned());
                    user
                },
                {
                    let mut user = user();
                    user.extra.insert("k".to_owned(), vec![bad.to_owned()]);
                    user
                },
            ];
            for (index, user) in cases.iter().enumerate() {
                for mode in [IdentityMode::RequestHeader, IdentityMode::Impersonate] {
                    let result = write_identity(&mut HeaderMap::new(), user, mode);
                    assert!(
                        matches!(result, Err(UnfitIdentity::NotByteForByte { .. })),
                        "{bad:?} in {index}: {result:?}"
                    );
                }
            }
        }
        assert_eq!(
            write_identity(&mut HeaderMap::new(), &UserInfo::named(""), IdentityMode::RequestHeader),
            Err(UnfitIdentity::NoName)
        );
    }
}
