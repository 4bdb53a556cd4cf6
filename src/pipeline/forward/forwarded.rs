//! The headers with the client's address and the audit ID.

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use super::ForwardContext;
use crate::pipeline::audit_id::AUDIT_ID;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");

/// Sets `X-Forwarded-For` and `Audit-Id`. Addresses in the client's headers are kept only if a front proxy sent them.
// apimachinery: pkg/util/net/http.go, SourceIPs — the first X-Forwarded-For line counts
// threat: forged-sender
pub(super) fn set_forwarded_headers(
    headers: &mut HeaderMap,
    context: ForwardContext<'_>,
    is_from_front_proxy: bool,
) {
    let before: Vec<u8> = if is_from_front_proxy {
        let lines: Vec<&[u8]> = headers.get_all(X_FORWARDED_FOR).iter().map(HeaderValue::as_bytes).collect();
        lines.join(b", ".as_slice())
    } else {
        headers.remove(X_REAL_IP);
        headers.remove(FORWARDED);
        Vec::new()
    };
    let peer = context.peer;
    let chain = if before.is_empty() {
        Ok(peer.clone())
    } else {
        HeaderValue::from_bytes(&[&before, b", ".as_slice(), peer.as_bytes()].concat())
    };
    match chain {
        Ok(chain) => headers.insert(X_FORWARDED_FOR, chain),
        Err(_) => headers.remove(X_FORWARDED_FOR),
    };
    headers.insert(AUDIT_ID, context.audit_id.clone());
}

#[cfg(test)]
mod tests {
    use portcullis_http::loop_detection::GatewayId;

    use super::*;

    fn forwarded(peer: &str, is_from_front_proxy: bool, lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_static(value));
        }
        let context = ForwardContext {
            peer: &HeaderValue::from_str(peer).unwrap(),
            client: peer.parse().unwrap(),
            audit_id: &HeaderValue::from_static("ours"),
            gateway_id: &GatewayId::default(),
            spans: None,
        };
        set_forwarded_headers(&mut headers, context, is_from_front_proxy);
        headers
    }

    fn lines<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a HeaderValue> {
        headers.get_all(name).iter().collect()
    }

    #[test]
    fn forwarding_headers_of_a_client_are_replaced() {
        for peer in ["0.0.0.0", "10.9.100.255", "255.255.255.255", "::1", "2001:db8::a:0"] {
            let headers = forwarded(
                peer,
                false,
                &[
                    ("X-Forwarded-For", "6.6.6.6"),
                    ("X-Forwarded-For", "7.7.7.7"),
                    ("X-Real-Ip", "6.6.6.6"),
                    ("X-Real-IP", "7.7.7.7"),
                    ("Forwarded", "for=6.6.6.6"),
                    ("X-Forwarded-Host", "kept"),
                    ("Audit-Id", "theirs"),
                    ("Audit-Id", "theirs too"),
                ],
            );
            assert_eq!(lines(&headers, "x-forwarded-for"), [peer]);
            assert_eq!(lines(&headers, "audit-id"), ["ours"]);
            assert_eq!(lines(&headers, "x-forwarded-host"), ["kept"]);
            assert_eq!(headers.keys_len(), 3, "{headers:?}");
        }
    }

    #[test]
    fn forwarding_headers_of_a_front_proxy_are_kept() {
        let sent = [
            ("X-Forwarded-For", "1.1.1.1, 2.2.2.2"),
            ("X-Forwarded-For", "3.3.3.3"),
            ("X-Real-Ip", "1.1.1.1"),
        ];
        let headers = forwarded("10.0.0.1", true, &sent);
        assert_eq!(lines(&headers, "x-forwarded-for"), ["1.1.1.1, 2.2.2.2, 3.3.3.3, 10.0.0.1"]);
        assert_eq!(lines(&headers, "x-real-ip"), ["1.1.1.1"]);
        assert_eq!(lines(&forwarded("10.0.0.1", true, &[]), "x-forwarded-for"), ["10.0.0.1"]);
    }
}
