//! Where a request comes from, and what for, as audit events name it.

use std::borrow::Cow;
use std::net::IpAddr;

use http::header::{HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Uri};
use portcullis_audit::event::ObjectReference;

use crate::go::url::escaped_path;
use crate::request::info::RequestInfo;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
// apiserver: pkg/audit/request.go
const MAX_USER_AGENT: usize = 1024;
const TRUNCATED: &str = "...TRUNCATED";

/// The addresses from which a request came. Only an authenticated front proxy may name others than its own.
// apimachinery: pkg/util/net/http.go, SourceIPs
// threat: forged-sender
pub(super) fn source_ips(headers: &HeaderMap, peer: IpAddr, is_from_front_proxy: bool) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    if is_from_front_proxy {
        let first =
            |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        addresses.extend(
            first(&X_FORWARDED_FOR).split(',').filter_map(|address| address.trim().parse::<IpAddr>().ok()),
        );
        if let Ok(address) = first(&X_REAL_IP).parse::<IpAddr>()
            && !addresses.contains(&address)
        {
            addresses.push(address);
        }
    }
    if addresses.last() != Some(&peer) {
        addresses.push(peer);
    }
    for address in &mut addresses {
        *address = address.to_canonical();
    }
    addresses
}

/// The `User-Agent` header, cut if it is long.
// apiserver: pkg/audit/request.go, maybeTruncateUserAgent
pub(super) fn user_agent(headers: &HeaderMap) -> String {
    let agent = headers.get(USER_AGENT).map(HeaderValue::as_bytes).unwrap_or_default();
    match agent.get(..MAX_USER_AGENT) {
        Some(start) if agent.len() > MAX_USER_AGENT => {
            format!("{}{TRUNCATED}", String::from_utf8_lossy(start))
        }
        _ => text(agent),
    }
}

/// A header's value as Go's JSON has it.
pub(super) fn text(value: &[u8]) -> String {
    // Nearly every value is UTF-8, which is checked faster than it is replaced.
    str::from_utf8(value).map_or_else(|_| String::from_utf8_lossy(value).into_owned(), str::to_owned)
}

/// The verb. That of nearly every request needs no memory.
pub(super) fn verb(info: &RequestInfo) -> Cow<'static, str> {
    const VERBS: [&str; 8] =
        ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
    let verb = info.verb();
    let known = VERBS.into_iter().find(|known| *known == verb);
    known.map_or_else(|| Cow::Owned(verb.to_owned()), Cow::Borrowed)
}

/// The path and query.
// Go: net/url/url.go, RequestURI
pub(super) fn request_uri(uri: &Uri) -> String {
    let path = escaped_path(uri.path());
    match uri.query() {
        Some(query) => [&*path, "?", query].concat(),
        None => path.into_owned(),
    }
}

/// The object that the path names.
pub(super) fn object_ref(info: &RequestInfo) -> Option<ObjectReference> {
    let resource = info.resource()?;
    Some(ObjectReference {
        resource: resource.resource.to_owned(),
        namespace: resource.namespace.to_owned(),
        name: info.object_name().to_owned(),
        api_group: resource.group.to_owned(),
        api_version: resource.version.to_owned(),
        subresource: resource.subresource.to_owned(),
        ..ObjectReference::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::testing::headers;

    #[test]
    fn only_a_front_proxy_names_other_addresses() {
        let sent = headers(&[("X-Forwarded-For", "1.1.1.1, x, 2001:db8::1"), ("X-Real-Ip", "3.3.3.3")]);
        let peer: IpAddr = "10.0.0.1".parse().unwrap();
        let found = |headers, is_trusted| {
            let found = source_ips(headers, peer, is_trusted);
            found.iter().map(IpAddr::to_string).collect::<Vec<_>>()
        };
        assert_eq!(found(&sent, false), ["10.0.0.1"]);
        assert_eq!(found(&sent, true), ["1.1.1.1", "2001:db8::1", "3.3.3.3", "10.0.0.1"]);
        let own = headers(&[("X-Forwarded-For", "10.0.0.1"), ("X-Real-Ip", "10.0.0.1")]);
        assert_eq!(found(&own, true), ["10.0.0.1"]);
    }

    #[test]
    fn a_long_user_agent_is_cut() {
        let long = "a".repeat(1025);
        assert_eq!(
            user_agent(&headers(&[("User-Agent", &long)])),
            format!("{}{TRUNCATED}", "a".repeat(1024))
        );
        let kept = "a".repeat(1024);
        assert_eq!(user_agent(&headers(&[("User-Agent", &kept)])), kept);
        assert_eq!(user_agent(&HeaderMap::new()), "");
    }
}
