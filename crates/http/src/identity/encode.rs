//! Encodes an identity as header lines. If a name, UID, group, key or value would not arrive byte for byte, or the API server
//! would make another user of it, the encoder refuses the identity; it never trims or shortens a value. Extra keys are
//! escaped, and empty groups omitted.
//!
//! Go trims header values on HTTP/1.1 but not on HTTP/2: a certificate with `O="system:masters "` would become a member
//! of `system:masters` on HTTP/1.1.

use std::sync::Arc;

use http::header::{HeaderName, HeaderValue};

use portcullis_kubernetes::extra_key::encode_extra_key;
use portcullis_kubernetes::user::UserInfo;

/// How the gateway passes the identity to the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "camelCase")]
pub enum IdentityMode {
    /// `X-Remote-*` headers over mutual TLS.
    RequestHeader,
    /// `Impersonate-*` headers with the gateway's own credential.
    Impersonate,
}

/// The header lines of an identity, in order.
pub type IdentityHeaderLines = Arc<[(HeaderName, HeaderValue)]>;

/// The header names of one identity mode.
struct IdentityHeaderNames {
    user: HeaderName,
    uid: HeaderName,
    group: HeaderName,
    extra_prefix: &'static str,
}

/// Why headers cannot carry an identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnencodableIdentity {
    /// The user name is empty; the backend would attribute the request to the gateway.
    #[error("the user name is empty")]
    NoName,
    /// A receiver would trim, refuse or truncate the value.
    #[error("the {field} {value:?} would not arrive byte for byte")]
    NotByteForByte {
        /// The field: user name, uid, group, extra key or extra value.
        field: &'static str,
        /// The value; identities are not secret.
        value: String,
    },
    /// The backend would add a group to the user that it impersonates.
    #[error(
        "the user {name:?} would not arrive unchanged: the API server adds the group {group} to a user whom it impersonates"
    )]
    GroupAdded {
        /// The user.
        name: String,
        /// The group.
        group: &'static str,
    },
}

/// Encodes `user`.
// client-go: transport/round_trippers.go, SetAuthProxyHeaders
pub(super) fn encode(
    user: &UserInfo,
    mode: IdentityMode,
) -> Result<IdentityHeaderLines, UnencodableIdentity> {
    if user.name.is_empty() {
        return Err(UnencodableIdentity::NoName);
    }
    let names = IdentityHeaderNames::of(mode);
    let mut lines = vec![(names.user, exact_value("user name", &user.name)?)];
    if let Some(uid) = user.uid.as_deref().filter(|uid| !uid.is_empty()) {
        lines.push((names.uid, exact_value("uid", uid)?));
    }
    // kube-apiserver drops empty groups, so the gateway omits them (declared).
    for group in user.groups.iter().filter(|group| !group.is_empty()) {
        lines.push((names.group.clone(), exact_value("group", group)?));
    }
    for (key, values) in &user.extra {
        let name = format!("{}{}", names.extra_prefix, encode_extra_key(key));
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| UnencodableIdentity::NotByteForByte { field: "extra key", value: key.clone() })?;
        for value in values {
            lines.push((name.clone(), exact_value("extra value", value)?));
        }
    }
    // Request-header authentication adds `system:authenticated` only, which every identity of a credential has already.
    if mode == IdentityMode::Impersonate
        && let Some(group) = user.group_added_by_impersonation()
    {
        return Err(UnencodableIdentity::GroupAdded { name: user.name.clone(), group });
    }
    Ok(lines.into())
}

impl IdentityHeaderNames {
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

/// The header value for `value`, if every receiver reads it unchanged.
// threat: trimmed-names
fn exact_value(field: &'static str, value: &str) -> Result<HeaderValue, UnencodableIdentity> {
    let inexact = || UnencodableIdentity::NotByteForByte { field, value: value.to_owned() };
    let trimmed = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let bytes = value.as_bytes();
    if trimmed(bytes.first()) || trimmed(bytes.last()) {
        return Err(inexact());
    }
    HeaderValue::from_bytes(bytes).map_err(|_| inexact())
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

    #[test]
    fn every_part_of_an_identity_is_written_in_order() {
        let written = encode(&user(), IdentityMode::RequestHeader).unwrap();
        let written: Vec<_> = written
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            written,
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

    /// A certificate, a token file, a front proxy or a webhook may name any user, in any groups.
    #[test]
    fn a_user_whom_an_impersonation_would_change_is_refused() {
        let [authenticated, unauthenticated] = ["system:authenticated", "system:unauthenticated"];
        let account = "system:serviceaccount:ns:sa";
        let cases: [(&str, &[&str], Option<&str>); 10] = [
            ("alice", &["dev", authenticated], None),
            ("alice", &[unauthenticated], None),
            ("alice", &["dev"], Some(authenticated)),
            ("system:anonymous", &[unauthenticated], None),
            ("system:anonymous", &[unauthenticated, "dev"], None),
            ("system:anonymous", &["dev"], Some(unauthenticated)),
            ("system:anonymous", &[authenticated], Some(unauthenticated)),
            ("system:anonymous", &[], Some(unauthenticated)),
            (account, &[authenticated], None),
            // It would get the groups of its namespace.
            (account, &[""], Some(authenticated)),
        ];
        for (name, groups, added) in cases {
            let groups = groups.iter().map(|group| (*group).to_owned()).collect();
            let user = UserInfo { groups, ..UserInfo::named(name) };
            let refused = encode(&user, IdentityMode::Impersonate).err();
            let expected =
                added.map(|group| UnencodableIdentity::GroupAdded { name: name.to_owned(), group });
            assert_eq!(refused, expected, "{user:?}");
            assert!(encode(&user, IdentityMode::RequestHeader).is_ok(), "{user:?}");
        }
    }

    #[test]
    fn a_value_that_would_not_arrive_byte_for_byte_is_refused() {
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
                    let result = encode(user, mode);
                    assert!(
                        matches!(result, Err(UnencodableIdentity::NotByteForByte { .. })),
                        "{bad:?} in {index}: {result:?}"
                    );
                }
            }
        }
        assert_eq!(
            encode(&UserInfo::named(""), IdentityMode::RequestHeader),
            Err(UnencodableIdentity::NoName)
        );
    }
}
