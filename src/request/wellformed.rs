//! Refuses malformed and ambiguous requests before any other processing: two HTTP parsers could read them differently
//! (request smuggling), so none is ever forwarded.
//!
//! `..`, `//` and escapes in the path are well-formed and forwarded byte for byte; only in front of a backend with a path
//! prefix are dot segments refused (`pipeline::forward::prefix`).

use http::header::{EXPECT, HOST, TRANSFER_ENCODING};
use http::uri::Authority;
use http::{HeaderName, HeaderValue, Method, Request, Version};

use portcullis_go::octets::{Octets, octets};
use portcullis_go::url::decode_path;
use portcullis_http::limits::MAX_HEADER_LINES;

/// Why a request is refused as malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedRequest {
    /// HTTP/1.1 without a Host header.
    #[error("missing required Host header")]
    NoHost,
    /// Several Host headers: two parsers could pick different ones.
    #[error("too many Host headers")]
    ManyHosts,
    /// A Host header or authority with invalid characters.
    #[error("malformed Host header")]
    BadHost,
    /// A header name that is not a token. The `http` crate allows `"` in a name; Go resets the stream because of it,
    /// and frames that follow end the connection, which other requests share.
    #[error("invalid header name")]
    BadHeaderName,
    /// The request target or `:authority` names another host than the header.
    #[error("Host header differs from the request target")]
    HostMismatch,
    /// A host without a scheme, which only CONNECT has (RFC 9112, section 3.2.3), an invalid scheme or, over HTTP/2, a
    /// query without a path.
    #[error("invalid request target")]
    BadTarget,
    /// The gateway is not a forward proxy.
    #[error("CONNECT is not supported")]
    Connect,
    /// A `%` without two hexadecimal digits.
    #[error("invalid URL escape in the path")]
    BadEscape,
    /// A transfer coding other than `chunked`: the gateway would have to decode it, but forwards bodies unchanged.
    #[error("unsupported transfer encoding")]
    TransferCoding,
    /// The header exceeds the limit of the gateway or of the backend.
    #[error("header too large")]
    HeaderTooLarge,
    /// An `Expect` header without `100-continue`.
    #[error("unknown expectation")]
    Expectation,
}

/// Checks a request, independent of its client.
// threat: request-smuggling
pub fn check<B>(request: &Request<B>) -> Result<(), MalformedRequest> {
    if request.method() == Method::CONNECT {
        return Err(MalformedRequest::Connect);
    }
    if request.headers().len() > MAX_HEADER_LINES {
        return Err(MalformedRequest::HeaderTooLarge);
    }
    if !request.headers().keys().all(is_token) {
        return Err(MalformedRequest::BadHeaderName);
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(MalformedRequest::ManyHosts);
    }
    let authority = request.uri().authority();
    // net/url: ParseRequestURI, getScheme
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    };
    if authority.is_some() && !request.uri().scheme_str().is_some_and(is_scheme) {
        return Err(MalformedRequest::BadTarget);
    }
    // Over HTTP/2 Go resets the stream for these: userinfo_in_authority, bad_path.
    if authority.is_some_and(|authority| !is_host(authority.as_str().as_bytes())) {
        return Err(MalformedRequest::BadHost);
    }
    let has_path = request.uri().path_and_query().is_none_or(|target| !target.as_str().starts_with('?'));
    if request.version() == Version::HTTP_2 && !has_path {
        return Err(MalformedRequest::BadTarget);
    }
    let same = |host: &HeaderValue, authority: &Authority| {
        host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes())
    };
    match (host, authority) {
        // Required even with an absolute request target: RFC 9112, section 3.2.
        (None, _) if request.version() == Version::HTTP_11 => return Err(MalformedRequest::NoHost),
        (Some(host), _) if !is_host(host.as_bytes()) => return Err(MalformedRequest::BadHost),
        (Some(host), Some(authority)) if !same(host, authority) => {
            return Err(MalformedRequest::HostMismatch);
        }
        _ => {}
    }
    let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
    if codings.next().is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
        || codings.next().is_some()
    {
        return Err(MalformedRequest::TransferCoding);
    }
    let continues = |value: &HeaderValue| {
        value
            .as_bytes()
            .split(|byte| *byte == b',')
            .any(|token| token.trim_ascii().eq_ignore_ascii_case(b"100-continue"))
    };
    // Go's server checks `Expect` only over HTTP/1.
    if request.version() < Version::HTTP_2
        && request.headers().get(EXPECT).is_some_and(|value| !value.is_empty() && !continues(value))
    {
        return Err(MalformedRequest::Expectation);
    }
    decode_path(request.uri().path()).map(|_| ()).map_err(|_| MalformedRequest::BadEscape)
}

/// The characters Go allows in a Host header.
// golang.org/x/net/http/httpguts: ValidHostHeader
fn is_host(value: &[u8]) -> bool {
    static ALLOWED: Octets = octets!(|octet| octet.is_ascii_alphanumeric()
        || matches!(
            octet,
            b'!' | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'('
                | b')'
                | b'*'
                | b'+'
                | b','
                | b'-'
                | b'.'
                | b':'
                | b';'
                | b'='
                | b'['
                | b']'
                | b'_'
                | b'~'
        ));
    ALLOWED.has_all_of(value)
}

// RFC 9110, section 5.6.2
fn is_token(name: &HeaderName) -> bool {
    static ALLOWED: Octets = octets!(|octet| octet.is_ascii_alphanumeric()
        || matches!(
            octet,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        ));
    ALLOWED.has_all_of(name.as_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_and_ambiguous_requests_are_refused() {
        struct Case {
            name: &'static str,
            method: Method,
            uri: &'static str,
            version: Version,
            hosts: &'static [&'static str],
            expected: Result<(), MalformedRequest>,
        }
        let get = |name, uri, version, hosts, expected| Case {
            name,
            method: Method::GET,
            uri,
            version,
            hosts,
            expected,
        };
        let cases = [
            get("plain", "/api", Version::HTTP_11, &["a"], Ok(())),
            get("port", "/api", Version::HTTP_11, &["a.b-c:6443"], Ok(())),
            get("IPv6", "/api", Version::HTTP_11, &["[::1]:6443"], Ok(())),
            get("no host", "/api", Version::HTTP_11, &[], Err(MalformedRequest::NoHost)),
            get("no host in 1.0", "/api", Version::HTTP_10, &[], Ok(())),
            get("empty host", "/api", Version::HTTP_11, &[""], Ok(())),
            get("two hosts", "/api", Version::HTTP_11, &["a", "a"], Err(MalformedRequest::ManyHosts)),
            get("odd host", "/api", Version::HTTP_11, &["a b"], Err(MalformedRequest::BadHost)),
            get("absolute, same", "https://a/api", Version::HTTP_11, &["A"], Ok(())),
            get(
                "absolute, other",
                "https://a/api",
                Version::HTTP_11,
                &["b"],
                Err(MalformedRequest::HostMismatch),
            ),
            get("absolute, no host", "https://a/api", Version::HTTP_11, &[], Err(MalformedRequest::NoHost)),
            get("absolute, no host in 1.0", "https://a/api", Version::HTTP_10, &[], Ok(())),
            get("a host for a target", "a", Version::HTTP_11, &["a"], Err(MalformedRequest::BadTarget)),
            get(
                "a host and a port for a target",
                "a:443",
                Version::HTTP_11,
                &["a:443"],
                Err(MalformedRequest::BadTarget),
            ),
            get(
                "a digit before the scheme",
                "8http://a/api",
                Version::HTTP_11,
                &["a"],
                Err(MalformedRequest::BadTarget),
            ),
            get(
                "a tilde in the scheme",
                "ht~p://a/api",
                Version::HTTP_11,
                &["a"],
                Err(MalformedRequest::BadTarget),
            ),
            get("authority alone", "https://a/api", Version::HTTP_2, &[], Ok(())),
            get(
                "authority and other host",
                "https://a/api",
                Version::HTTP_2,
                &["b"],
                Err(MalformedRequest::HostMismatch),
            ),
            get(
                "a user in the authority",
                "https://u@a/api",
                Version::HTTP_2,
                &[],
                Err(MalformedRequest::BadHost),
            ),
            get(
                "a query without a path",
                "https://a?b=c",
                Version::HTTP_2,
                &[],
                Err(MalformedRequest::BadTarget),
            ),
            get("the same over HTTP/1.1", "https://a?b=c", Version::HTTP_11, &["a"], Ok(())),
            get("good escapes", "/a%2Fb%7e", Version::HTTP_11, &["a"], Ok(())),
            get("bad escape", "/a%zz", Version::HTTP_11, &["a"], Err(MalformedRequest::BadEscape)),
            get("cut escape", "/a%2", Version::HTTP_11, &["a"], Err(MalformedRequest::BadEscape)),
            get(
                "percent behind a percent",
                "/a%%41",
                Version::HTTP_11,
                &["a"],
                Err(MalformedRequest::BadEscape),
            ),
            get("cut by a percent", "/a%4%41", Version::HTTP_11, &["a"], Err(MalformedRequest::BadEscape)),
            get("one after the other", "/%41%42", Version::HTTP_11, &["a"], Ok(())),
            get("the second is bad", "/%41%4", Version::HTTP_11, &["a"], Err(MalformedRequest::BadEscape)),
            get("lone percent", "/a%", Version::HTTP_11, &["a"], Err(MalformedRequest::BadEscape)),
            get("bad escape in the query", "/a?b=%zz", Version::HTTP_11, &["a"], Ok(())),
            Case {
                name: "CONNECT",
                method: Method::CONNECT,
                uri: "a:443",
                version: Version::HTTP_11,
                hosts: &["a:443"],
                expected: Err(MalformedRequest::Connect),
            },
        ];
        let mut failures = Vec::new();
        for case in cases {
            let mut request =
                Request::builder().method(case.method).uri(case.uri).version(case.version).body(()).unwrap();
            for host in case.hosts {
                request.headers_mut().append(HOST, HeaderValue::from_str(host).unwrap());
            }
            let result = check(&request);
            if result != case.expected {
                failures.push(format!("{}: {result:?}", case.name));
            }
        }
        assert!(failures.is_empty(), "{failures:#?}");
    }

    #[test]
    fn a_header_name_is_a_token() {
        for byte in 0x21..=0x7e_u8 {
            let Ok(name) = HeaderName::from_bytes(&[b'x', byte]) else { continue };
            let request = Request::builder().uri("/").header(HOST, "a").header(name, "1").body(()).unwrap();
            let expected = if byte == b'"' { Err(MalformedRequest::BadHeaderName) } else { Ok(()) };
            assert_eq!(check(&request), expected, "{}", char::from(byte));
        }
    }
}
