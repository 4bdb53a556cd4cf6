//! Which requests may share a connection to the backend. The rules ensure that no client can end a connection that
//! carries another client's requests.
//!
//! A connection that ends takes every request on it along, and there are two ways to end one. Go's server ends an
//! HTTP/2 connection for a header that is too large or malformed and continues in a CONTINUATION frame. h2 ends one for
//! a response that it cannot read, and pods, nodes and aggregated API servers choose their responses freely. Hence:
//!
//! - Requests share HTTP/2 connections only if their header fits into one frame of kube-apiserver, however it is
//!   encoded ([`MAX_SHARED_HEADER`]; trailers are not forwarded). No Go server with default limits ends a connection
//!   for such a header.
//! - A request with a larger header uses HTTP/1.1 alone, and is never retried after its connection broke. Users have
//!   fair shares of the memory for such headers.
//! - Responses of the API server itself share two lanes: short requests, and watches, whose readers may stall.
//! - API groups that kube-apiserver does not serve itself may belong to an aggregated API server. A keyed hash spreads
//!   them over lanes of their own, custom resources included, which look the same.
//! - Responses that the API server relays from pods and nodes (logs, `proxy`) share a lane only within one user.
//!   Each upgrade has its own connection.
//! - Anonymous requests use HTTP/1.1, because kube-apiserver ends an HTTP/2 connection that carries one. Client
//!   addresses have fair shares of these connections.

// threat: shared-connection-requests
// threat: shared-connection-answers

use std::net::IpAddr;

use http::Request;
use http::uri::{Authority, PathAndQuery};
use portcullis_http::body::Body;
use portcullis_http::limits::{FIELD_OVERHEAD, header_list_size};
use portcullis_http::peer::client_network;

use crate::request::info::RequestInfo;

/// The largest header on a shared connection, as HTTP/2 counts it. HPACK turns a byte into 28 bits at worst, so it has
/// at most 224 KiB on the wire; kube-apiserver accepts frames of 256 KiB, Go's server 1 MiB.
// apiserver: pkg/server/secure_serving.go, resourceBody99Percentile; RFC 7541, appendix B; RFC 9113, section 6.5.2
pub(crate) const MAX_SHARED_HEADER: usize = 64 << 10;

/// Which connections a request may share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharingClass<'a> {
    /// A short request that the API server answers itself.
    Short,
    /// A watch that the API server answers itself.
    Long,
    /// A request that an aggregated API server may answer.
    Extension {
        /// Its API group.
        group: &'a str,
        /// Whether it is long-running.
        is_long: bool,
    },
    /// A request that a pod or a node answers.
    Relayed {
        /// The user who makes it.
        user: &'a str,
    },
    /// A request whose header is too large for a shared connection.
    Alone {
        /// The user who makes it.
        user: &'a str,
        /// The size of the header.
        header: usize,
    },
    /// A request without a credential.
    Anonymous {
        /// The client's address.
        client: IpAddr,
    },
}

impl<'a> SharingClass<'a> {
    /// The class of a request. `user` is `None` if it is anonymous; `header` is the size of its header.
    // threat: floods
    pub(crate) fn of(info: &'a RequestInfo, user: Option<&'a str>, client: IpAddr, header: usize) -> Self {
        let Some(user) = user else {
            return Self::Anonymous { client: client_network(client) };
        };
        if header > MAX_SHARED_HEADER {
            return Self::Alone { user, header };
        }
        if info.is_relayed() {
            return Self::Relayed { user };
        }
        match (extension_group(info.path()), info.is_long_running()) {
            (Some(group), is_long) => Self::Extension { group, is_long },
            (None, true) => Self::Long,
            (None, false) => Self::Short,
        }
    }
}

impl SharingClass<'_> {
    /// Whether only the API server itself chooses the response, so that a broken connection is its own failure. The
    /// owner of a pod or of an aggregated API server could break connections at will.
    // threat: shared-connection-answers
    pub(crate) fn is_answered_by_backend(self) -> bool {
        matches!(self, Self::Short | Self::Long)
    }
}

/// The size of a request header in an HTTP/2 header list, pseudo-header fields included.
pub(crate) fn header_size(request: &Request<Body>) -> usize {
    let uri = request.uri();
    let pseudo = [
        request.method().as_str().len() + ":method".len(),
        "https".len() + ":scheme".len(),
        uri.authority().map_or(0, |authority: &Authority| authority.as_str().len()) + ":authority".len(),
        uri.path_and_query().map_or(0, |path: &PathAndQuery| path.as_str().len()) + ":path".len(),
    ];
    let pseudo: usize = pseudo.iter().map(|length| length + FIELD_OVERHEAD).sum();
    header_list_size(request.headers()).saturating_add(pseudo)
}

/// The API group of a path, unless kube-apiserver serves the group itself.
// kube-aggregator: pkg/apiserver/apiserver.go, AddAPIService; pkg/controllers/openapiv3
pub(crate) fn extension_group(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("/apis/").or_else(|| path.strip_prefix("/openapi/v3/apis/"))?;
    let group = rest.split('/').next().filter(|group| !group.is_empty())?;
    (!is_built_in(group)).then_some(group)
}

/// Whether kube-apiserver serves the group itself.
// kubernetes: pkg/controlplane/instance.go, the API groups of 1.37, and those of apiextensions and kube-aggregator
pub(crate) fn is_built_in(group: &str) -> bool {
    matches!(
        group,
        "admissionregistration.k8s.io"
            | "apiextensions.k8s.io"
            | "apiregistration.k8s.io"
            | "apps"
            | "authentication.k8s.io"
            | "authorization.k8s.io"
            | "autoscaling"
            | "batch"
            | "certificates.k8s.io"
            | "coordination.k8s.io"
            | "discovery.k8s.io"
            | "events.k8s.io"
            | "flowcontrol.apiserver.k8s.io"
            | "internal.apiserver.k8s.io"
            | "lifecycle.k8s.io"
            | "networking.k8s.io"
            | "node.k8s.io"
            | "policy"
            | "rbac.authorization.k8s.io"
            | "resource.k8s.io"
            | "scheduling.k8s.io"
            | "storage.k8s.io"
            | "storagemigration.k8s.io"
    )
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn info(target: &str) -> RequestInfo {
        let (path, query) =
            target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        RequestInfo::parse(&Method::GET, path, query).unwrap()
    }

    #[test]
    fn each_request_has_the_class_that_isolates_it() {
        let user = "alice";
        let group = "metrics.k8s.io";
        let cases = [
            ("/api/v1/pods", SharingClass::Short),
            ("/version", SharingClass::Short),
            ("/apis", SharingClass::Short),
            ("/apis/apps/v1/deployments", SharingClass::Short),
            ("/openapi/v3/apis/apps/v1", SharingClass::Short),
            ("/api/v1/pods?watch=1", SharingClass::Long),
            ("/apis/rbac.authorization.k8s.io/v1/watch/roles", SharingClass::Long),
            ("/apis/metrics.k8s.io", SharingClass::Extension { group, is_long: false }),
            ("/apis/metrics.k8s.io/v1beta1/nodes", SharingClass::Extension { group, is_long: false }),
            ("/openapi/v3/apis/metrics.k8s.io/v1beta1", SharingClass::Extension { group, is_long: false }),
            ("/apis/metrics.k8s.io/v1beta1/nodes?watch=1", SharingClass::Extension { group, is_long: true }),
            ("/api/v1/namespaces/n/pods/p/log", SharingClass::Relayed { user }),
            ("/api/v1/namespaces/n/services/s/proxy/x", SharingClass::Relayed { user }),
            ("/api/v1/nodes/n/proxy/metrics?watch=1", SharingClass::Relayed { user }),
            (
                "/apis/subresources.kubevirt.io/v1/namespaces/n/virtualmachines/v/proxy",
                SharingClass::Relayed { user },
            ),
        ];
        for (target, expected) in cases {
            let info = info(target);
            assert_eq!(SharingClass::of(&info, Some(user), CLIENT, MAX_SHARED_HEADER), expected, "{target}");
            let large = SharingClass::of(&info, Some(user), CLIENT, MAX_SHARED_HEADER + 1);
            assert_eq!(large, SharingClass::Alone { user, header: MAX_SHARED_HEADER + 1 }, "{target}");
            let anonymous = SharingClass::of(&info, None, CLIENT, MAX_SHARED_HEADER + 1);
            assert_eq!(anonymous, SharingClass::Anonymous { client: CLIENT }, "{target}");
        }
    }

    #[test]
    fn every_part_of_the_header_counts() {
        let request = |method: &str, host: &str, path: &str, value: &str| {
            let uri = format!("https://{host}{path}");
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            Request::builder().method(method).uri(uri).header("x", value).body(Body::empty()).unwrap()
        };
        let small = header_size(&request("GET", "a", "/", ""));
        let long = "x".repeat(1000);
        for larger in [
            request(&format!("GET{long}"), "a", "/", ""),
            request("GET", &format!("a{long}"), "/", ""),
            request("GET", "a", &format!("/{long}"), ""),
            request("GET", "a", "/", &long),
        ] {
            assert_eq!(header_size(&larger), small + 1000);
        }
    }

    #[test]
    fn a_client_is_identified_by_its_network() {
        let cases = [
            ("10.0.0.1", "10.0.0.1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ];
        for (client, expected) in cases {
            assert_eq!(
                client_network(client.parse().unwrap()),
                expected.parse::<IpAddr>().unwrap(),
                "{client}"
            );
        }
    }
}
