//! Where a request comes from, and what for, as audit events name it.

use std::borrow::Cow;
use std::net::IpAddr;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::SystemTime;

use http::header::{HeaderName, HeaderValue, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderMap, Request};
use portcullis_audit::event::ObjectReference;
use portcullis_go::url::escaped_path;

use super::Facts;
use super::objects::Metadata;
use crate::request::info::RequestInfo;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
// apiserver: pkg/audit/request.go
const MAX_USER_AGENT: usize = 1024;
const TRUNCATED: &str = "...TRUNCATED";

/// What a request's events say of where it comes from and what it is for. Holds what the request holds, but of a long-running
/// one a copy; events borrow it.
#[derive(Debug)]
pub(super) struct Source {
    audit_id: HeaderValue,
    /// The path and query; `None` if the target is an authority.
    target: Option<PathAndQuery>,
    pub(super) info: Arc<RequestInfo>,
    user_agent: Option<HeaderValue>,
    peer: IpAddr,
    /// All addresses, if there are others than the peer's.
    forwarded: Vec<IpAddr>,
    /// When the request was received.
    pub(super) received: SystemTime,
}

impl Source {
    pub(super) fn of<B>(facts: Facts<'_>, request: &Request<B>) -> Self {
        let Facts { peer, is_from_front_proxy, .. } = facts;
        let headers = request.headers();
        let (target, user_agent) = (request.uri().path_and_query(), headers.get(USER_AGENT));
        let (target, user_agent) = if facts.info.is_long_running() {
            (target.map(detached), user_agent.map(detached_value))
        } else {
            (target.cloned(), user_agent.cloned())
        };
        Self {
            audit_id: facts.audit_id,
            target,
            info: Arc::clone(facts.info),
            user_agent,
            peer: peer.to_canonical(),
            forwarded: forwarded(headers, peer, is_from_front_proxy),
            received: SystemTime::UNIX_EPOCH + facts.received,
        }
    }

    pub(super) fn audit_id(&self) -> Cow<'_, str> {
        text(&self.audit_id)
    }

    /// The path and query.
    // Go: net/url/url.go, RequestURI
    pub(super) fn request_uri(&self) -> Cow<'_, str> {
        let Some(target) = &self.target else { return Cow::default() };
        let path = escaped_path(target.path());
        match target.query() {
            None => path,
            // An absolute target may have no path: Go writes a slash.
            Some(_) if matches!(path, Cow::Borrowed(_)) && target.as_str().starts_with('/') => {
                target.as_str().into()
            }
            Some(query) => [&*path, "?", query].concat().into(),
        }
    }

    /// The addresses from which the request came, the client's first.
    pub(super) fn addresses(&self) -> Cow<'_, [IpAddr]> {
        let all = if self.forwarded.is_empty() { from_ref(&self.peer) } else { &self.forwarded };
        Cow::Borrowed(all)
    }

    /// The `User-Agent` header, cut if it is long.
    // apiserver: pkg/audit/request.go, maybeTruncateUserAgent
    pub(super) fn user_agent(&self) -> Cow<'_, str> {
        let Some(agent) = &self.user_agent else { return Cow::default() };
        match agent.as_bytes().get(..MAX_USER_AGENT) {
            Some(start) if agent.len() > MAX_USER_AGENT => {
                format!("{}{TRUNCATED}", String::from_utf8_lossy(start)).into()
            }
            _ => text(agent),
        }
    }

    /// The object that the path names, completed by the one in the body.
    pub(super) fn object_ref<'a>(&'a self, body: &'a Metadata) -> Option<ObjectReference<'a>> {
        let resource = self.info.resource()?;
        let first = |path: &'a str, body: &'a str| if path.is_empty() { body.into() } else { path.into() };
        Some(ObjectReference {
            resource: resource.resource.into(),
            namespace: first(resource.namespace, &body.namespace),
            name: first(self.info.object_name(), &body.name),
            uid: (&*body.uid).into(),
            api_group: resource.group.into(),
            api_version: resource.version.into(),
            resource_version: (&*body.resource_version).into(),
            subresource: resource.subresource.into(),
        })
    }
}

/// The addresses in the header of a request, then the peer's; none if the request has no others. Only an authenticated front
/// proxy may name others than its own.
// apimachinery: pkg/util/net/http.go, SourceIPs
// threat: forged-sender
fn forwarded(headers: &HeaderMap, peer: IpAddr, is_from_front_proxy: bool) -> Vec<IpAddr> {
    if !is_from_front_proxy {
        return Vec::new();
    }
    let first =
        |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut addresses: Vec<IpAddr> = first(&X_FORWARDED_FOR)
        .split(',')
        .filter_map(|address| address.trim().parse::<IpAddr>().ok())
        .collect();
    if let Ok(address) = first(&X_REAL_IP).parse::<IpAddr>()
        && !addresses.contains(&address)
    {
        addresses.push(address);
    }
    if addresses.last() != Some(&peer) {
        addresses.push(peer);
    }
    for address in &mut addresses {
        *address = address.to_canonical();
    }
    addresses
}

/// A copy of path and query. The original may be a part of a buffer of more than 1 MiB, which a watch would keep for hours.
fn detached(target: &PathAndQuery) -> PathAndQuery {
    PathAndQuery::try_from(target.as_str()).unwrap_or_else(|_| target.clone())
}

/// The same of a header's value.
fn detached_value(value: &HeaderValue) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| value.clone())
}

/// A header's value as Go's JSON has it.
fn text(value: &HeaderValue) -> Cow<'_, str> {
    let value = value.as_bytes();
    // Nearly every value is UTF-8, which is checked faster than it is replaced.
    str::from_utf8(value).map_or_else(|_| String::from_utf8_lossy(value), Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use http::{Method, Uri};

    use super::*;

    fn source(headers: &[(&str, &str)], target: &str, is_from_front_proxy: bool) -> Source {
        let headers = portcullis_http::testing::headers(headers);
        let uri: Uri = target.parse().unwrap();
        let peer = "10.0.0.1".parse().unwrap();
        Source {
            audit_id: HeaderValue::from_static("id"),
            info: RequestInfo::parse(&Method::GET, uri.path(), uri.query()).unwrap().into(),
            target: uri.path_and_query().cloned(),
            user_agent: headers.get(USER_AGENT).cloned(),
            peer,
            forwarded: forwarded(&headers, peer, is_from_front_proxy),
            received: SystemTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn only_a_front_proxy_names_other_addresses() {
        let sent = [("X-Forwarded-For", "1.1.1.1, x, 2001:db8::1"), ("X-Real-Ip", "3.3.3.3")];
        let found = |sent: &[(&str, &str)], is_trusted| {
            let source = source(sent, "/", is_trusted);
            source.addresses().iter().map(IpAddr::to_string).collect::<Vec<_>>()
        };
        assert_eq!(found(&sent, false), ["10.0.0.1"]);
        assert_eq!(found(&sent, true), ["1.1.1.1", "2001:db8::1", "3.3.3.3", "10.0.0.1"]);
        let own = [("X-Forwarded-For", "10.0.0.1"), ("X-Real-Ip", "10.0.0.1")];
        assert_eq!(found(&own, true), ["10.0.0.1"]);
        assert_eq!(found(&[], true), ["10.0.0.1"]);
    }

    #[test]
    fn a_long_user_agent_is_cut() {
        let long = "a".repeat(1025);
        let cut = format!("{}{TRUNCATED}", "a".repeat(1024));
        assert_eq!(source(&[("User-Agent", &long)], "/", false).user_agent(), cut);
        let kept = "a".repeat(1024);
        assert_eq!(source(&[("User-Agent", &kept)], "/", false).user_agent(), kept);
        assert_eq!(source(&[], "/", false).user_agent(), "");
    }

    #[test]
    fn the_target_is_written_as_go_writes_it() {
        for (target, written) in [
            ("/api/v1/pods", "/api/v1/pods"),
            ("/api/v1/pods?limit=1&x=%zz", "/api/v1/pods?limit=1&x=%zz"),
            ("/a%2fb", "/a%2fb"),
            // Go keeps no escape beside a character that it would escape.
            ("/a%2fb|c", "/a/b%7Cc"),
            ("/a%2fb|c?x=%2f", "/a/b%7Cc?x=%2f"),
            ("http://host?x=1", "/?x=1"),
        ] {
            assert_eq!(source(&[], target, false).request_uri(), written, "{target}");
        }
    }

    #[test]
    fn a_copy_keeps_no_buffer_of_the_header() {
        let head = bytes::Bytes::from(b"/api/v1/pods?watch=1 kubectl".to_vec());
        let target = PathAndQuery::from_maybe_shared(head.slice(..20)).unwrap();
        let agent = HeaderValue::from_maybe_shared(head.slice(21..)).unwrap();
        let copies = (detached(&target), detached_value(&agent));
        assert_eq!(copies, (target.clone(), agent.clone()));
        drop((target, agent));
        assert!(head.is_unique());
    }

    #[test]
    fn the_body_names_what_the_path_does_not() {
        let body = Metadata {
            name: "web".to_owned(),
            namespace: "other".to_owned(),
            uid: "7".to_owned(),
            resource_version: "4".to_owned(),
        };
        let source = source(&[], "/api/v1/namespaces/team/pods", false);
        let object = source.object_ref(&body).unwrap();
        assert_eq!((&*object.namespace, &*object.name), ("team", "web"));
        assert_eq!((&*object.uid, &*object.resource_version, &*object.api_version), ("7", "4", "v1"));
    }
}
