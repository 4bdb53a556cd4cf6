//! Removes the credentials from a request before authentication, so that neither an error path nor the forwarded
//! request can leak them.

use std::fmt;

use http::header::{
    AUTHORIZATION, CONNECTION, Entry, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};

use portcullis_http::identity_headers::{FRONT_PROXY_PREFIX, IMPERSONATE_PREFIX, folded_starts_with};

/// The names of nearly all impersonation headers. To copy a name of a request costs more than to compare it.
static USUAL_IMPERSONATE_NAMES: [HeaderName; 3] = [
    HeaderName::from_static("impersonate-user"),
    HeaderName::from_static("impersonate-group"),
    HeaderName::from_static("impersonate-uid"),
];

/// Prefix of the WebSocket subprotocol that carries a browser's bearer token.
// apiserver: pkg/authentication/request/websocket/protocol.go
pub(crate) const BEARER_PROTOCOL_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// The credentials of a request's headers.
#[derive(Default)]
pub struct Credentials {
    /// The first `Authorization` value, untrimmed and lossily decoded.
    pub authorization: Option<String>,
    /// The WebSocket subprotocols of an upgrade request, if one of them is a bearer token.
    pub websocket_protocols: Vec<String>,
    /// The headers in which a front proxy may assert a user, in the order of the request.
    pub front_proxy: HeaderMap,
}

/// The `Impersonate-*` headers of a request; those of one name are in the order of the request. Not a credential, but removed
/// alike, so that none is forwarded by accident.
#[derive(Debug, Clone, Default)]
pub(crate) struct ImpersonateHeaders(Vec<(HeaderName, HeaderValue)>);

/// An unknown header in the `Impersonate-` namespace. kube-apiserver ignores it, but a newer one might give it a meaning
/// that the gateway does not know. So the request is refused, a declared deviation. `authz::impersonation` checks the
/// known ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown impersonation header {0:?}")]
pub(crate) struct UnknownImpersonateHeader(pub HeaderName);

impl Credentials {
    /// Removes the credentials from `headers`; `custom` selects the front-proxy headers beside the standard ones.
    ///
    /// Identity headers in another spelling (`X_Remote_User`, `x.remote.user`) are dropped: the gateway does not accept
    /// them as a credential, but a server behind it might.
    // threat: forged-identity-headers, unknown-identity-headers
    pub(crate) fn take_from(
        headers: &mut HeaderMap,
        custom: impl Fn(&HeaderName) -> bool,
    ) -> (Self, ImpersonateHeaders) {
        let mut credentials = Self::default();
        let mut impersonate = ImpersonateHeaders::default();
        if let Some(first) = headers.get(AUTHORIZATION) {
            // A value that is not UTF-8 cannot match a token, but it must still count as a credential.
            let bytes = first.as_bytes();
            // Validating is faster than lossy decoding, and almost all values are UTF-8.
            let text = std::str::from_utf8(bytes).map(str::to_owned);
            credentials.authorization =
                Some(text.unwrap_or_else(|_| String::from_utf8_lossy(bytes).into_owned()));
            headers.remove(AUTHORIZATION);
        }
        credentials.websocket_protocols = take_bearer_protocol(headers);
        let (mut has_usual, mut names) = ([false; USUAL_IMPERSONATE_NAMES.len()], Vec::new());
        for name in headers.keys() {
            if folded_starts_with(name, IMPERSONATE_PREFIX) {
                let usual =
                    USUAL_IMPERSONATE_NAMES.iter().zip(&mut has_usual).find(|(usual, _)| *usual == name);
                match usual {
                    Some((_, has)) => *has = true,
                    None => names.push(name.clone()),
                }
            } else if folded_starts_with(name, FRONT_PROXY_PREFIX) || custom(name) {
                names.push(name.clone());
            }
        }
        for (name, _) in USUAL_IMPERSONATE_NAMES.iter().zip(has_usual).filter(|(_, has)| *has) {
            impersonate.take(headers, name);
        }
        for name in names {
            if name.as_str().starts_with(IMPERSONATE_PREFIX) {
                impersonate.take(headers, &name);
            } else if let Entry::Occupied(entry) = headers.entry(&name) {
                let (_, values) = entry.remove_entry_mult();
                if name.as_str().starts_with(FRONT_PROXY_PREFIX) || custom(&name) {
                    values.for_each(|value| _ = credentials.front_proxy.append(&name, value));
                }
            }
        }
        (credentials, impersonate)
    }
}

impl ImpersonateHeaders {
    /// Takes the headers of this name out of the request.
    fn take(&mut self, headers: &mut HeaderMap, name: &HeaderName) {
        let Entry::Occupied(entry) = headers.entry(name) else { return };
        let (own, mut values) = entry.remove_entry_mult();
        self.0.extend(values.next().map(|first| (own, first)));
        self.0.extend(values.map(|value| (name.clone(), value)));
    }

    /// Whether the request has none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The headers.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        self.0.iter().map(|(name, value)| (name, value))
    }

    /// Refuses an unknown header of the namespace.
    // apiserver: pkg/endpoints/filters/impersonation/impersonation.go
    // threat: unknown-identity-headers
    pub(crate) fn check_known(&self) -> Result<(), UnknownImpersonateHeader> {
        let known = |name: &str| {
            matches!(name, "impersonate-user" | "impersonate-uid" | "impersonate-group")
                || name.starts_with("impersonate-extra-")
        };
        match self.0.iter().find(|(name, _)| !known(name.as_str())) {
            Some((unknown, _)) => Err(UnknownImpersonateHeader(unknown.clone())),
            None => Ok(()),
        }
    }

    /// Adds the headers again, for a backend that authorizes the impersonation itself.
    pub(crate) fn restore_into(self, headers: &mut HeaderMap) {
        for (name, value) in self.0 {
            headers.append(name, value);
        }
    }
}

/// Removes bearer tokens from the list of WebSocket subprotocols: the backend must receive an identity, never a token.
/// Returns the original list if it had a token and the request is a WebSocket handshake.
fn take_bearer_protocol(headers: &mut HeaderMap) -> Vec<String> {
    // Compare bytes, so that invalid UTF-8 beside a token cannot keep it in the list.
    let protocols: Vec<&[u8]> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .collect();
    let is_bearer = |protocol: &&[u8]| protocol.starts_with(BEARER_PROTOCOL_PREFIX.as_bytes());
    if !protocols.iter().any(is_bearer) {
        return Vec::new();
    }
    let kept: Vec<&[u8]> = protocols.iter().copied().filter(|protocol| !is_bearer(protocol)).collect();
    let kept =
        (!kept.is_empty()).then(|| HeaderValue::from_bytes(&kept.join(b",".as_slice())).ok()).flatten();
    let protocols: Vec<String> =
        protocols.iter().map(|protocol| String::from_utf8_lossy(protocol).into_owned()).collect();
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if let Some(kept) = kept {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, kept);
    }
    if is_websocket_request(headers) { protocols } else { Vec::new() }
}

/// Whether the request is a WebSocket handshake. Like kube-apiserver it searches `Connection` for a substring.
// streaming: pkg/httpstream/wsstream/conn.go, IsWebSocketRequest
fn is_websocket_request(headers: &HeaderMap) -> bool {
    let upgrades = headers.get_all(CONNECTION).iter().any(|line| {
        line.as_bytes().to_ascii_lowercase().windows(b"upgrade".len()).any(|part| part == b"upgrade")
    });
    upgrades && headers.get(UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("authorization", &self.authorization.as_ref().map(|_| "redacted"))
            .field("websocket_protocols", &self.websocket_protocols.len())
            .field("front_proxy", &self.front_proxy.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use portcullis_http::testing::headers;

    use super::*;

    #[test]
    fn credentials_are_removed_from_the_request() {
        let mut map = headers(&[
            ("Authorization", "Bearer first"),
            ("Authorization", "Bearer second"),
            ("X-Remote-User", "alice"),
            ("X_Remote_User", "eve"),
            ("X-Auth-Name", "carol"),
            ("X-Auth-Attr-Dept", "ops"),
            ("Impersonate-User", "bob"),
            ("impersonate_user", "eve"),
            ("Accept", "*/*"),
        ]);
        let custom = |name: &HeaderName| name == "x-auth-name" || name.as_str().starts_with("x-auth-attr-");
        let (credentials, impersonate) = Credentials::take_from(&mut map, custom);
        assert_eq!(map.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
        assert_eq!(credentials.authorization.as_deref(), Some("Bearer first"));
        let mut front: Vec<_> = credentials.front_proxy.keys().map(HeaderName::as_str).collect();
        front.sort_unstable();
        assert_eq!(front, ["x-auth-attr-dept", "x-auth-name", "x-remote-user"]);
        assert_eq!(impersonate.0.len(), 1);
        assert!(!format!("{credentials:?}").contains("first"));
    }

    #[test]
    fn unknown_impersonation_headers_are_refused() {
        for (name, known) in [
            ("impersonate-user", true),
            ("impersonate-uid", true),
            ("impersonate-group", true),
            ("impersonate-extra-scopes", true),
            ("impersonate-extra-", true),
            ("impersonate-extra", false),
            ("impersonate-users", false),
            ("impersonate-tenant", false),
        ] {
            let (_, found) = Credentials::take_from(&mut headers(&[(name, "x")]), |_| false);
            assert_eq!(found.check_known().is_ok(), known, "{name}");
        }
    }

    #[test]
    fn bearer_subprotocols_are_not_forwarded() {
        let cases: &[(&[&str], Option<&str>)] = &[
            (&["v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.dG9r"], Some("v5.channel.k8s.io")),
            (&["base64url.bearer.authorization.k8s.io.dG9r"], None),
            (&["a, b"], Some("a, b")),
            (
                &["a, xbase64url.bearer.authorization.k8s.io.dG9r"],
                Some("a, xbase64url.bearer.authorization.k8s.io.dG9r"),
            ),
            (&["a", "base64url.bearer.authorization.k8s.io.dG9r, b"], Some("a,b")),
        ];
        for (lines, expected) in cases {
            let lines: Vec<_> = lines.iter().map(|line| ("sec-websocket-protocol", *line)).collect();
            let mut map = headers(&lines);
            Credentials::take_from(&mut map, |_| false);
            assert_eq!(
                map.get("sec-websocket-protocol").map(|value| value.to_str().unwrap()),
                *expected,
                "{lines:?}"
            );
        }
    }
}
