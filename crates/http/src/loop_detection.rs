//! Detects requests that come back to a gateway which has forwarded them, by the header `CDN-Loop` (RFC 8586): each
//! gateway appends its own id and refuses a request that has it already.
//!
//! Not `Via`: some servers behind an API server change their responses when they see it (nginx stops compressing).
//! A client may write this header, too. That can only make the gateway refuse the client's own request.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");
const ID_PREFIX: &[u8] = b"portcullis-";
/// The most gateways in a row. A chain has two; a loop of replicas that share one address meets each of them.
const MAX_GATEWAYS: usize = 8;

/// Names this gateway process to itself. Random, so that it tells nothing and changes with each start.
#[derive(Debug, Clone)]
pub struct GatewayId(HeaderValue);

/// Why a request is not forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ForwardingLoop {
    /// This gateway has forwarded it before.
    #[error(
        "the request has passed this gateway before: the endpoints of its cluster lead back to the gateway"
    )]
    SameGateway,
    /// It has passed too many gateways.
    #[error(
        "the request has passed {MAX_GATEWAYS} gateways: the endpoints of their clusters lead to each other"
    )]
    TooManyGateways,
}

impl Default for GatewayId {
    fn default() -> Self {
        let id = format!("portcullis-{}", Uuid::new_v4().simple());
        // A UUID is always a valid header value.
        Self(HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("portcullis-gateway")))
    }
}

impl GatewayId {
    /// Fails if the request has passed this gateway before, or too many others.
    // RFC 8586, section 2
    // threat: gateway-loop
    pub fn check(&self, headers: &HeaderMap) -> Result<(), ForwardingLoop> {
        let mut gateways = 0;
        let lines = headers.get_all(CDN_LOOP).iter();
        for entry in lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')) {
            let id = entry.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
            if id.eq_ignore_ascii_case(self.0.as_bytes()) {
                return Err(ForwardingLoop::SameGateway);
            }
            let prefix = id.get(..ID_PREFIX.len()).unwrap_or_default();
            gateways += usize::from(prefix.eq_ignore_ascii_case(ID_PREFIX));
        }
        if gateways >= MAX_GATEWAYS { Err(ForwardingLoop::TooManyGateways) } else { Ok(()) }
    }

    /// Appends the id to a request that this gateway sends to a backend. The entries of others stay, so that they
    /// recognize the request, too.
    pub fn append_to(&self, headers: &mut HeaderMap) {
        headers.append(CDN_LOOP, self.0.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(CDN_LOOP, HeaderValue::from_str(line).unwrap());
        }
        headers
    }

    #[test]
    fn a_gateway_recognizes_its_own_requests_among_those_of_others() {
        let (one, other) = (GatewayId::default(), GatewayId::default());
        let own = one.0.to_str().unwrap().to_owned();
        let cases: [(&[&str], bool); 9] = [
            (&[], true),
            (&["cloudflare", "fastly; loops=3", ""], true),
            (&[&own], false),
            (&["cloudflare", &own], false),
            (&[&format!("cloudflare,{own} ; a=b, x")], false),
            (&[&own.to_uppercase()], false),
            (&[&format!("{own}0")], true),
            (&["portcullis-"], true),
            (&["\u{e9}"], true),
        ];
        for (lines, is_new) in cases {
            assert_eq!(one.check(&headers(lines)).is_ok(), is_new, "{lines:?}");
            assert!(other.check(&headers(lines)).is_ok(), "{lines:?}");
        }
        let mut sent = headers(&["cloudflare"]);
        one.append_to(&mut sent);
        assert_eq!(other.check(&sent), Ok(()), "two gateways in a row");
        other.append_to(&mut sent);
        for gateway in [one, other] {
            assert_eq!(gateway.check(&sent), Err(ForwardingLoop::SameGateway));
        }
        assert_eq!(sent.get_all(CDN_LOOP).iter().count(), 3, "no entry is lost");
    }

    #[test]
    fn a_request_passes_few_gateways() {
        let mut sent = HeaderMap::new();
        for passed in 0..MAX_GATEWAYS {
            assert_eq!(GatewayId::default().check(&sent), Ok(()), "{passed}");
            GatewayId::default().append_to(&mut sent);
        }
        assert_eq!(GatewayId::default().check(&sent), Err(ForwardingLoop::TooManyGateways));
    }
}
