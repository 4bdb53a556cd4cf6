//! Removes hop-by-hop headers, which a proxy must not forward: the standard ones, and those nominated by `Connection`.
//!
//! Forwarding must strip them before it writes the identity. Else a client could nominate `X-Remote-User` in
//! `Connection` and have the gateway's own header removed.

use http::HeaderMap;
use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE,
};

/// Whether a header is hop-by-hop. `TE` is not in the list: `TE: trailers` is forwarded, as responses keep their
/// trailers.
// RFC 9110, section 7.6.1
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authorization"
            | "http2-settings"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Removes hop-by-hop headers, and those nominated by `Connection`.
// threat: connection-nomination
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    // HTTP/2 requests have none, and one pass over the names is cheaper than one lookup for each of these headers.
    if !headers.keys().any(|name| is_hop_by_hop(name) || name == TE) {
        return;
    }
    if headers.contains_key(CONNECTION) {
        let nominated: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
            .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
            .collect();
        for name in nominated {
            // Keeps the framing headers: without them, hyper would find another end of the body.
            if name != CONTENT_LENGTH && name != TRANSFER_ENCODING && name != TE {
                headers.remove(name);
            }
        }
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        // The coding delimits the body. A receiver that sees the length alone would find another end of it.
        // RFC 9112, section 6.3
        headers.remove(CONTENT_LENGTH);
    }
    strip_where(headers, is_hop_by_hop);
    if headers.contains_key(TE) {
        let trailers = |line: &HeaderValue| {
            line.as_bytes()
                .split(|byte| *byte == b',')
                .any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
        };
        let wanted = headers.get_all(TE).iter().any(trailers);
        headers.remove(TE);
        if wanted {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
    }
}

/// Joins several `Cookie` lines into one: HTTP/2 allows several, HTTP/1.1 does not.
// RFC 9113, section 8.2.3
pub fn join_cookies(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(COOKIE).iter();
    let (Some(first), Some(second)) = (lines.next(), lines.next()) else { return };
    let lines: Vec<&[u8]> = [first, second].into_iter().chain(lines).map(HeaderValue::as_bytes).collect();
    if let Ok(mut joined) = HeaderValue::from_bytes(&lines.join(b"; ".as_slice())) {
        joined.set_sensitive(true);
        headers.insert(COOKIE, joined);
    }
}

/// Removes the headers with unwanted names.
pub(super) fn strip_where(headers: &mut HeaderMap, unwanted: impl Fn(&HeaderName) -> bool) {
    let found: Vec<HeaderName> = headers.keys().filter(|name| unwanted(name)).cloned().collect();
    for name in found {
        headers.remove(name);
    }
}

/// The protocol of an upgrade request, if the gateway tunnels it: `websocket` or `SPDY/3.1`, on any path. Never `h2c`,
/// whose requests would pass through the tunnel without authentication.
pub fn requested_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut upgrades = headers.get_all(UPGRADE).iter();
    let protocol = upgrades.next()?;
    let connection = headers.get_all(CONNECTION).iter().any(|line| {
        line.as_bytes()
            .split(|byte| *byte == b',')
            .any(|token| token.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
    });
    let known = [b"websocket".as_slice(), b"SPDY/3.1".as_slice()];
    let tunnelled = known.iter().any(|known| protocol.as_bytes().eq_ignore_ascii_case(known));
    (connection && tunnelled && upgrades.next().is_none()).then(|| protocol.clone())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{headers, names};

    #[test]
    fn nominated_headers_are_removed() {
        let mut map = headers(&[
            ("connection", "close, X-Remote-User"),
            ("connection", ",, x-other ;,X-Plain\t"),
            ("x-remote-user", "eve"),
            ("x-plain", "1"),
            ("x-kept", "1"),
            ("keep-alive", "1"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAMAAABk"),
            ("content-length", "0"),
        ]);
        strip_hop_by_hop(&mut map);
        assert_eq!(names(&map), ["content-length", "x-kept"]);
    }

    #[test]
    fn framing_cannot_be_nominated_away() {
        let mut map = headers(&[
            ("connection", "content-length, te"),
            ("content-length", "5"),
            ("te", "gzip, trailers"),
        ]);
        strip_hop_by_hop(&mut map);
        assert_eq!(names(&map), ["content-length", "te"]);
        assert_eq!(map["te"], "trailers");
    }

    #[test]
    fn a_length_beside_a_transfer_coding_is_removed() {
        for nominated in ["close", "transfer-encoding, content-length"] {
            let mut map = headers(&[
                ("connection", nominated),
                ("content-length", "3"),
                ("transfer-encoding", "chunked"),
                ("x-kept", "1"),
            ]);
            strip_hop_by_hop(&mut map);
            assert_eq!(names(&map), ["x-kept"], "{nominated}");
        }
    }

    #[test]
    fn each_hop_by_hop_header_is_removed_without_connection() {
        let cases = [
            ("Connection", None),
            ("Keep-Alive", None),
            ("Proxy-Connection", None),
            ("Proxy-Authorization", None),
            ("HTTP2-Settings", None),
            ("Transfer-Encoding", None),
            ("Upgrade", None),
            ("TE", None),
            ("Trailer", Some("trailer")),
            ("Keep_Alive", Some("keep_alive")),
            ("Upgrade-Insecure-Requests", Some("upgrade-insecure-requests")),
            ("Authorization", Some("authorization")),
        ];
        for (name, left) in cases {
            for values in [["x", "x"].as_slice(), &[""]] {
                let lines: Vec<_> = values.iter().map(|value| (name, *value)).collect();
                let mut map = headers(&lines);
                strip_hop_by_hop(&mut map);
                assert_eq!(names(&map), Vec::from_iter(left), "{name}: {values:?}");
            }
        }
    }

    #[test]
    fn only_two_protocols_are_tunnelled() {
        let cases: &[(&[(&str, &str)], bool)] = &[
            (&[("connection", "Upgrade"), ("upgrade", "websocket")], true),
            (&[("connection", "keep-alive, upgrade"), ("upgrade", "SPDY/3.1")], true),
            (&[("connection", "keep-alive"), ("connection", "UPGRADE"), ("upgrade", "WebSocket")], true),
            (&[("upgrade", "websocket")], false),
            (&[("connection", "not-upgrade"), ("upgrade", "websocket")], false),
            (&[("connection", "Upgrade"), ("upgrade", "h2c")], false),
            (&[("connection", "Upgrade"), ("upgrade", "h2c"), ("upgrade", "websocket")], false),
            (&[("connection", "Upgrade"), ("upgrade", "websocket, h2c")], false),
            (&[("connection", "Upgrade"), ("upgrade", "websocket"), ("upgrade", "websocket")], false),
            (&[("connection", "Upgrade")], false),
        ];
        for (lines, expected) in cases {
            assert_eq!(requested_upgrade(&headers(lines)).is_some(), *expected, "{lines:?}");
        }
    }

    proptest! {
        /// Headers written after stripping stay, whatever the client nominated.
        #[test]
        fn stripping_is_idempotent(
            nominated in prop::collection::vec(
                prop::sample::select(vec!["close", "X-Remote-User", "x-remote-group", " te", "connection", "x-a", ""]),
                0..6,
            ),
            sent in prop::collection::vec(
                (prop::sample::select(vec!["connection", "te", "upgrade", "x-a", "x-remote-user"]), "[a-z, -]{0,9}"),
                0..6,
            ),
            te in prop::sample::select(vec!["trailers", "gzip, Trailers ", ""]),
        ) {
            let nominated = nominated.join(",");
            let mut lines = vec![("connection", nominated.as_str()), ("te", te)];
            lines.extend(sent.iter().map(|(name, value)| (*name, value.as_str())));
            let mut map = headers(&lines);
            strip_hop_by_hop(&mut map);
            map.insert("x-remote-user", HeaderValue::from_static("alice"));
            map.append("x-remote-group", HeaderValue::from_static("a"));
            map.append("x-remote-group", HeaderValue::from_static("b"));
            let written = map.clone();
            strip_hop_by_hop(&mut map);
            prop_assert_eq!(map, written);
        }
    }
}
