//! Users that an authenticating front proxy asserts in request headers.
//!
//! Follows `k8s.io/apiserver/pkg/authentication/request/headerrequest/requestheader.go`. The headers count only on a
//! connection whose client certificate is that of a front proxy: `authn::x509` decides it by the CA and
//! `--requestheader-allowed-names` (empty: every name). Stricter than kube-apiserver in one point: a request
//! with a value or key that is not UTF-8 is refused, because it could not be compared, logged or forwarded unchanged.

use std::sync::Arc;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use portcullis_kubernetes::extra_key::decode_extra_key;
use portcullis_kubernetes::user::UserInfo;

use super::x509::FrontProxyVerifier;
use super::{
    Authenticated, AuthnError, AuthnInput, AuthnMethod, AuthnVerdict, BoxFuture, RequestAuthenticator,
};
pub(crate) use portcullis_http::identity_headers::RequestHeaderNames;

const NAME: &str = AuthnMethod::RequestHeader.name();

/// Reads the asserted user; `None` if no header has a user name.
fn read(names: &RequestHeaderNames, headers: &HeaderMap) -> Result<Option<UserInfo>, AuthnError> {
    let Some(name) = first_of(headers, &names.user)? else {
        return Ok(None);
    };
    let mut user = UserInfo { uid: first_of(headers, &names.uid)?, ..UserInfo::named(name) };
    for name in &names.group {
        for value in headers.get_all(name) {
            let group = text(name, value)?;
            if !group.is_empty() {
                user.groups.push(group.to_owned());
            }
        }
    }
    // Prefixes in the outer loop: their order determines the order of a key's values.
    for prefix in &names.extra_prefixes {
        for name in headers.keys() {
            let Some(key) = name.as_str().strip_prefix(prefix.as_str()) else {
                continue;
            };
            let key = decode_extra_key(key)
                .map_err(|error| AuthnError::Invalid(format!("header {name}: {error}")))?;
            let values = user.extra.entry(key).or_default();
            for value in headers.get_all(name) {
                values.push(text(name, value)?.to_owned());
            }
        }
    }
    Ok(Some(user))
}

/// The first non-empty value among the first values of the named headers, as Go's `Header.Get` reads them.
fn first_of(headers: &HeaderMap, names: &[HeaderName]) -> Result<Option<String>, AuthnError> {
    for name in names {
        if let Some(value) = headers.get(name) {
            let value = text(name, value)?;
            if !value.is_empty() {
                return Ok(Some(value.to_owned()));
            }
        }
    }
    Ok(None)
}

fn text<'a>(name: &HeaderName, value: &'a HeaderValue) -> Result<&'a str, AuthnError> {
    std::str::from_utf8(value.as_bytes())
        .map_err(|_| AuthnError::Invalid(format!("header {name}: the value is not UTF-8")))
}

/// Authenticates the users that front proxies assert.
#[derive(Debug)]
pub(crate) struct RequestHeaderAuthenticator {
    verifier: FrontProxyVerifier,
    names: RequestHeaderNames,
}

impl RequestHeaderAuthenticator {
    /// Reads the headers `names` if `verifier` accepts the client as a front proxy.
    pub(crate) fn new(verifier: FrontProxyVerifier, names: RequestHeaderNames) -> Self {
        Self { verifier, names }
    }
}

impl RequestAuthenticator for RequestHeaderAuthenticator {
    fn name(&self) -> &'static str {
        NAME
    }

    fn authenticate<'a>(&'a self, input: &'a AuthnInput<'a>) -> BoxFuture<'a, AuthnVerdict> {
        // Verify the certificate before reading any header.
        let verdict = self.verifier.verify(input).and_then(|chain| {
            let Some(chain) = chain else { return Ok(None) };
            let found = authenticated(&self.names, &input.credentials.front_proxy)?;
            // The front proxy's own certificate may be revoked.
            Ok(found.map(|found| Authenticated { certificates: Some(Arc::clone(chain.path())), ..found }))
        });
        Box::pin(std::future::ready(verdict))
    }
}

fn authenticated(names: &RequestHeaderNames, headers: &HeaderMap) -> AuthnVerdict {
    let user = read(names, headers)?;
    Ok(user.map(|user| Authenticated {
        user: user.into(),
        audiences: Vec::new(),
        method: AuthnMethod::RequestHeader,
        certificates: None,
        expires: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn names(user: &[&str], uid: &[&str], group: &[&str], extra: &[&str]) -> RequestHeaderNames {
        RequestHeaderNames::new(&strings(user), &strings(uid), &strings(group), &strings(extra))
            .expect("names")
    }

    fn standard() -> RequestHeaderNames {
        names(&["X-Remote-User"], &["X-Remote-Uid"], &["X-Remote-Group"], &["X-Remote-Extra-"])
    }

    fn headers(lines: &[(&str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(
                HeaderName::try_from(*name).expect("name"),
                HeaderValue::from_bytes(value).expect("value"),
            );
        }
        headers
    }

    /// Name, uid, groups, extra.
    type Expected = Option<(
        &'static str,
        Option<&'static str>,
        &'static [&'static str],
        &'static [(&'static str, &'static [&'static str])],
    )>;

    #[test]
    fn identities_are_read_as_kube_apiserver_reads_them() {
        struct Case {
            name: &'static str,
            names: RequestHeaderNames,
            lines: &'static [(&'static str, &'static [u8])],
            expected: Expected,
        }
        let several = || {
            names(
                &["X-Remote-User", "X-User-2"],
                &["X-Remote-Uid", "X-Uid-2"],
                &["X-Remote-Group-1", "X-Remote-Group-2"],
                &["X-Remote-Extra-", "X-Other-"],
            )
        };
        let cases = [
            Case { name: "nothing", names: standard(), lines: &[], expected: None },
            Case {
                name: "no user name",
                names: standard(),
                lines: &[("X-Remote-Uid", b"1"), ("X-Remote-Group", b"a"), ("X-Remote-Extra-k", b"v")],
                expected: None,
            },
            Case {
                name: "everything",
                names: standard(),
                lines: &[
                    ("X-Remote-User", b"Bob"),
                    ("X-Remote-Uid", b"u1"),
                    ("X-Remote-Group", b"one"),
                    ("X-Remote-Group", b""),
                    ("X-Remote-Group", b"two,three"),
                    ("X-Remote-Extra-Scopes", b"a"),
                    ("X-Remote-Extra-Scopes", b""),
                    ("Unrelated", b"x"),
                ],
                expected: Some(("Bob", Some("u1"), &["one", "two,three"], &[("scopes", &["a", ""])])),
            },
            Case {
                name: "the first value of the first header that has one",
                names: several(),
                lines: &[
                    ("X-User-2", b"second"),
                    ("X-Remote-User", b""),
                    ("X-Remote-User", b"hidden"),
                    ("X-Uid-2", b"u2"),
                    ("X-Uid-2", b"u3"),
                ],
                expected: Some(("second", Some("u2"), &[], &[])),
            },
            Case {
                name: "groups in the order of the configuration",
                names: several(),
                lines: &[
                    ("X-Remote-Group-2", b"c"),
                    ("X-Remote-Group-1", b"a"),
                    ("X-Remote-User", b"Bob"),
                    ("X-Remote-Group-1", b"b"),
                    ("X-Remote-Group-10", b"no"),
                ],
                expected: Some(("Bob", None, &["a", "b", "c"], &[])),
            },
            Case {
                name: "extra prefixes in the order of the configuration",
                names: several(),
                lines: &[("X-Remote-User", b"Bob"), ("X-Other-K", b"2"), ("X-Remote-Extra-K", b"1")],
                expected: Some(("Bob", None, &[], &[("k", &["1", "2"])])),
            },
            Case {
                name: "extra keys are lowered, then decoded",
                names: standard(),
                lines: &[
                    ("X-Remote-User", b"Bob"),
                    ("X-Remote-Extra-Example.com%2fFoo", b"1"),
                    ("X-Remote-Extra-%4B", b"2"),
                    ("X-Remote-Extra-%2520", b"3"),
                    ("X-Remote-Extra-Bad%zZ", b"4"),
                    ("X-Remote-Extra-a+b", b"5"),
                    ("X-Remote-Extra-", b"6"),
                ],
                expected: Some((
                    "Bob",
                    None,
                    &[],
                    &[
                        ("", &["6"]),
                        ("%20", &["3"]),
                        ("K", &["2"]),
                        ("a+b", &["5"]),
                        ("bad%zz", &["4"]),
                        ("example.com/foo", &["1"]),
                    ],
                )),
            },
            Case {
                name: "names are compared whole and without regard to case",
                names: names(&[" x-REMOTE-user "], &[], &[], &["X-REMOTE-EXTRA-"]),
                lines: &[
                    ("X-Remote-User", b"Zo\xc3\xab"),
                    ("X-Remote-User-2", b"no"),
                    ("X-Remote-Uid", b"no"),
                    ("x-remote-extra-k", b"v"),
                ],
                expected: Some(("Zoë", None, &[], &[("k", &["v"])])),
            },
        ];
        for case in &cases {
            let found = read(&case.names, &headers(case.lines)).expect("readable");
            let expected = case.expected.map(|(name, uid, groups, extra)| UserInfo {
                uid: uid.map(str::to_owned),
                groups: strings(groups),
                extra: extra.iter().map(|(key, values)| ((*key).to_owned(), strings(values))).collect(),
                ..UserInfo::named(name)
            });
            assert_eq!(found, expected, "{}", case.name);
        }
    }

    #[test]
    fn headers_that_are_not_utf8_are_refused() {
        let cases: &[&[(&str, &[u8])]] = &[
            &[("X-Remote-User", b"a\xff")],
            &[("X-Remote-User", b"a"), ("X-Remote-Uid", b"\xff")],
            &[("X-Remote-User", b"a"), ("X-Remote-Group", b"g"), ("X-Remote-Group", b"\xff")],
            &[("X-Remote-User", b"a"), ("X-Remote-Extra-k", b"\xff")],
            &[("X-Remote-User", b"a"), ("X-Remote-Extra-%ff", b"v")],
        ];
        for lines in cases {
            assert!(authenticated(&standard(), &headers(lines)).is_err(), "{lines:?}");
        }
    }

    #[test]
    fn names_that_cannot_be_headers_are_configuration_errors() {
        let error = |name: &str| {
            RequestHeaderNames::new(&strings(&[name]), &[], &[], &[]).expect_err("refused").to_string()
        };
        assert_eq!(error(""), "empty header \"\"");
        assert_eq!(error("  "), "empty header \"  \"");
        assert_eq!(error("a b"), "\"a b\" cannot be the name of a header");
    }

    #[test]
    fn all_identity_headers_are_recognized() {
        let names = standard();
        for name in ["x-remote-user", "x-remote-uid", "x-remote-group", "x-remote-extra-", "x-remote-extra-k"]
        {
            assert!(names.contains(&HeaderName::from_static(name)), "{name}");
        }
        assert!(!names.contains(&HeaderName::from_static("x-remote-users")));
    }
}
