//! Who a request to the embedded backend is made as: what the gateway's identity headers say.
//!
//! The TLS handshake has proven that the peer holds a certificate of the front-proxy authority; here its common name
//! is checked, as `--requestheader-allowed-names` does, before a header is believed.

use http::HeaderMap;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::pki::GATEWAY_CLIENT_NAME;
use crate::request::escape::decode_extra_key;
use crate::user::{ALL_AUTHENTICATED, ALL_UNAUTHENTICATED, ANONYMOUS, UserInfo};

/// Who asks.
#[derive(Debug)]
pub(super) struct Caller {
    /// Who the request is made as.
    pub(super) user: UserInfo,
    /// Who asked for that, if it is somebody else; they still have to be allowed to.
    pub(super) impersonator: Option<UserInfo>,
}

/// The common name in a certificate.
pub(super) fn peer_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.to_owned())
}

/// Who asks; `None` if the peer is not the gateway or names nobody.
pub(super) fn caller(headers: &HeaderMap, peer: Option<&str>) -> Option<Caller> {
    let asserted = (peer == Some(GATEWAY_CLIENT_NAME))
        .then(|| user(headers, &REQUEST_HEADER))
        .flatten()?;
    Some(match user(headers, &IMPERSONATION) {
        Some(user) => Caller {
            user,
            impersonator: Some(asserted),
        },
        None => Caller {
            user: asserted,
            impersonator: None,
        },
    })
}

struct Names {
    user: &'static str,
    uid: &'static str,
    group: &'static str,
    extra: &'static str,
}

const REQUEST_HEADER: Names = Names {
    user: "x-remote-user",
    uid: "x-remote-uid",
    group: "x-remote-group",
    extra: "x-remote-extra-",
};
const IMPERSONATION: Names = Names {
    user: "impersonate-user",
    uid: "impersonate-uid",
    group: "impersonate-group",
    extra: "impersonate-extra-",
};

// apiserver: pkg/authentication/request/headerrequest/requestheader.go, pkg/authentication/group/authenticated_group_adder.go
fn user(headers: &HeaderMap, names: &Names) -> Option<UserInfo> {
    let first = |name| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .filter(|text| !text.is_empty())
    };
    let texts = |name: &str| {
        let values = headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok());
        values.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut user = UserInfo::named(first(names.user)?);
    user.uid = first(names.uid).map(str::to_owned);
    user.groups = texts(names.group);
    for name in headers.keys().map(http::HeaderName::as_str) {
        if let Some(Ok(key)) = name.strip_prefix(names.extra).map(decode_extra_key) {
            user.extra.entry(key).or_default().extend(texts(name));
        }
    }
    let judged = [ALL_AUTHENTICATED, ALL_UNAUTHENTICATED]
        .iter()
        .any(|known| user.groups.iter().any(|g| g == known));
    if !judged && user.name != ANONYMOUS {
        user.groups.push(ALL_AUTHENTICATED.to_owned());
    }
    Some(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn identity_headers_are_read_whole_and_from_the_gateway_alone() {
        let all = headers(&[
            ("X-Remote-User", "alice"),
            ("X-Remote-Uid", "7"),
            ("X-Remote-Group", "a"),
            ("X-Remote-Group", "b"),
            ("X-Remote-Extra-Example.com%2Fk", "v"),
        ]);
        assert!(caller(&all, None).is_none());
        assert!(caller(&all, Some("front-proxy")).is_none());
        assert!(caller(&headers(&[("X-Remote-Group", "a")]), Some(GATEWAY_CLIENT_NAME)).is_none());
        let user = caller(&all, Some(GATEWAY_CLIENT_NAME)).unwrap().user;
        assert_eq!((user.name.as_str(), user.uid.as_deref()), ("alice", Some("7")));
        assert_eq!(user.groups, ["a", "b", ALL_AUTHENTICATED]);
        assert_eq!(user.extra["example.com/k"], ["v"]);
    }

    #[test]
    fn anonymous_stays_unauthenticated() {
        let sent = headers(&[
            ("X-Remote-User", ANONYMOUS),
            ("X-Remote-Group", ALL_UNAUTHENTICATED),
        ]);
        assert_eq!(
            caller(&sent, Some(GATEWAY_CLIENT_NAME)).unwrap().user,
            UserInfo::anonymous()
        );
    }

    #[test]
    fn impersonation_names_both() {
        let sent = headers(&[("X-Remote-User", "admin"), ("Impersonate-User", "carol")]);
        let caller = caller(&sent, Some(GATEWAY_CLIENT_NAME)).unwrap();
        assert_eq!(
            (
                caller.user.name.as_str(),
                caller.impersonator.unwrap().name.as_str()
            ),
            ("carol", "admin")
        );
    }
}
