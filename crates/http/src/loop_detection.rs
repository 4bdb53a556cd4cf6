//! Detects requests that come back to a gateway which has forwarded them, by the header `CDN-Loop` (RFC 8586): each pass
//! of a gateway appends an entry. A pass is the same if the cluster, the method and the path are.
//!
//! The API server relays the header, to kubelets, pods and aggregated API servers. So a request of theirs may pass the
//! gateway again in the course of the same work, to another cluster or for another object: a hub cluster and its members
//! behind one gateway, or a dashboard behind `services/proxy`. That is no loop. A loop that changes the path each time
//! ends by the number of passes.
//!
//! Not `Via`: some servers behind an API server change their responses when they see it (nginx stops compressing).
//! A client may write this header, too. That can only make the gateway refuse the client's own request.

use std::hash::{BuildHasher as _, RandomState};

use http::Method;
use http::header::{HeaderMap, HeaderName, HeaderValue};

const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");
const ENTRY_PREFIX: &[u8] = b"portcullis-";
/// The most passes of gateways. A hub and its member behind an ingress have three or four; a loop of replicas that share
/// one address meets each of them.
const MAX_PASSES: usize = 8;

/// The key of this process, by which it recognizes its own entries. Random, so that these tell nothing of the request to
/// others, and change with each start.
#[derive(Debug, Clone, Default)]
pub struct GatewayId(RandomState);

/// The entry of a request on its way through this gateway to a cluster.
#[derive(Debug, Clone)]
pub struct GatewayPass(HeaderValue);

/// Why a request is not forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ForwardingLoop {
    /// It is the same request as one before in its own chain.
    #[error(
        "the request has passed this gateway before, with the same method and path to the same cluster: an endpoint of \
         the cluster leads back to the gateway, or a server that the API server relays to sends it back"
    )]
    SamePass,
    /// It has passed too many gateways, or this one too often.
    #[error(
        "the request has passed gateways {MAX_PASSES} times: endpoints of their clusters lead back to them, or servers \
         that the API servers relay to send it back"
    )]
    TooManyPasses,
}

impl GatewayId {
    /// Fails if the request has passed this gateway on the same way before, or gateways too often. Most have passed none, for which
    /// nothing is computed.
    pub fn check(
        &self,
        headers: &HeaderMap,
        cluster: &str,
        method: &Method,
        path: &str,
    ) -> Result<(), ForwardingLoop> {
        if !headers.contains_key(CDN_LOOP) {
            return Ok(());
        }
        self.pass(cluster, method, path).check(headers)
    }

    /// The pass of a request to `cluster`. `path` is the one that its API server gets, as it was sent.
    pub fn pass(&self, cluster: &str, method: &Method, path: &str) -> GatewayPass {
        let hash = self.0.hash_one((cluster, method.as_str(), path));
        let entry = HeaderValue::try_from(format!("portcullis-{hash:016x}"));
        // Digits are always a valid header value.
        GatewayPass(entry.unwrap_or(HeaderValue::from_static("portcullis-gateway")))
    }
}

impl GatewayPass {
    /// Fails if the header has this pass already, or too many.
    // RFC 8586, section 2
    // threat: gateway-loop
    fn check(&self, headers: &HeaderMap) -> Result<(), ForwardingLoop> {
        let mut passes = 0;
        let lines = headers.get_all(CDN_LOOP).iter();
        for entry in lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')) {
            let id = entry.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
            if id.eq_ignore_ascii_case(self.0.as_bytes()) {
                return Err(ForwardingLoop::SamePass);
            }
            let prefix = id.get(..ENTRY_PREFIX.len()).unwrap_or_default();
            passes += usize::from(prefix.eq_ignore_ascii_case(ENTRY_PREFIX));
        }
        if passes >= MAX_PASSES { Err(ForwardingLoop::TooManyPasses) } else { Ok(()) }
    }

    /// Appends the entry to a request that this gateway sends to a backend. The entries of others stay, so that they
    /// recognize the request, too.
    pub fn append_to(self, headers: &mut HeaderMap) {
        headers.append(CDN_LOOP, self.0);
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

    fn pass(gateway: &GatewayId) -> GatewayPass {
        gateway.pass("prod", &Method::GET, "/api")
    }

    #[test]
    fn a_gateway_recognizes_its_own_requests_among_those_of_others() {
        let (one, other) = (GatewayId::default(), GatewayId::default());
        let own = pass(&one).0.to_str().unwrap().to_owned();
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
            assert_eq!(pass(&one).check(&headers(lines)).is_ok(), is_new, "{lines:?}");
            assert!(pass(&other).check(&headers(lines)).is_ok(), "{lines:?}");
        }
        let mut sent = headers(&["cloudflare"]);
        pass(&one).append_to(&mut sent);
        assert_eq!(pass(&other).check(&sent), Ok(()), "two gateways in a row");
        pass(&other).append_to(&mut sent);
        for gateway in [one, other] {
            assert_eq!(pass(&gateway).check(&sent), Err(ForwardingLoop::SamePass));
        }
        assert_eq!(sent.get_all(CDN_LOOP).iter().count(), 3, "no entry is lost");
    }

    #[test]
    fn another_cluster_method_or_path_is_another_pass() {
        let gateway = GatewayId::default();
        let mut sent = HeaderMap::new();
        gateway.pass("hub", &Method::GET, "/api").append_to(&mut sent);
        let cases = [
            ("hub", Method::GET, "/api", false),
            ("member", Method::GET, "/api", true),
            ("hub", Method::POST, "/api", true),
            ("hub", Method::GET, "/api/v1", true),
            // The parts do not run into each other.
            ("hu", Method::GET, "b/api", true),
        ];
        for (cluster, method, path, is_new) in cases {
            let checked = gateway.pass(cluster, &method, path).check(&sent);
            assert_eq!(checked.is_ok(), is_new, "{cluster} {method} {path}");
        }
    }

    #[test]
    fn a_request_passes_few_gateways_and_one_gateway_a_few_times() {
        let gateway = GatewayId::default();
        let passes: [fn(&GatewayId, usize) -> GatewayPass; 2] = [
            |_, _| pass(&GatewayId::default()),
            |gateway, passed| gateway.pass("prod", &Method::GET, &"/a".repeat(passed + 1)),
        ];
        for next in passes {
            let mut sent = HeaderMap::new();
            for passed in 0..MAX_PASSES {
                assert_eq!(next(&gateway, passed).check(&sent), Ok(()), "{passed}");
                next(&gateway, passed).append_to(&mut sent);
            }
            assert_eq!(next(&gateway, MAX_PASSES).check(&sent), Err(ForwardingLoop::TooManyPasses));
        }
    }
}
