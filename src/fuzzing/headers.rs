//! Headers: validation of requests, removal of credentials, and forwarding of identities.

use http::header::{
    AUTHORIZATION, CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_PROTOCOL,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{Method, Request, Version};
use portcullis_go::url::decode_path;
use portcullis_http::identity::{Identity, IdentityMode, UnencodableIdentity};
use portcullis_http::identity_headers::{FRONT_PROXY_PREFIX, IMPERSONATE_PREFIX};
use portcullis_http::loop_detection::GatewayId;
use portcullis_kubernetes::user::UserInfo;

use super::certificates::front_proxy;
use crate::pipeline::audit_id::AUDIT_ID;
use crate::pipeline::forward::{ForwardContext, write_trusted_headers};
use crate::request::credentials::{BEARER_PROTOCOL_PREFIX, Credentials};
use crate::request::wellformed::{MalformedRequest, check};

/// A configured front-proxy header besides `X-Remote-*`.
const CUSTOM: &str = "x-auth-name";

/// The input is a request in the format of HTTP/1.1, without a body; the version may also be `HTTP/2.0`.
pub fn wellformed(data: &[u8]) {
    let (first, rest) = data
        .split_at_checked(data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len()))
        .unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or("/"));
    let version = match words.next() {
        Some("HTTP/1.0") => Version::HTTP_10,
        Some("HTTP/2.0") => Version::HTTP_2,
        _ => Version::HTTP_11,
    };
    let Ok(mut request) = Request::builder().method(method).uri(target).version(version).body(()) else {
        return;
    };
    *request.headers_mut() = lines(rest);
    let verdict = check(&request);

    let headers = request.headers();
    let hosts: Vec<_> = headers.get_all(HOST).iter().map(HeaderValue::as_bytes).collect();
    let codings: Vec<_> = headers.get_all(TRANSFER_ENCODING).iter().map(HeaderValue::as_bytes).collect();
    let path = decode_path(request.uri().path());
    if verdict.is_ok() {
        assert!(request.method() != Method::CONNECT && path.is_ok(), "{request:?}");
        assert!(matches!(hosts.as_slice(), [] | [_]), "{request:?}");
        assert!(version != Version::HTTP_11 || request.uri().authority().is_some() || hosts.len() == 1);
        let blank =
            |host: &[u8]| host.iter().any(|byte| byte.is_ascii_whitespace() || b"/?#@\\\"".contains(byte));
        assert!(!hosts.iter().any(|host| blank(host)), "{request:?}");
        if let (Some(authority), [host]) = (request.uri().authority(), hosts.as_slice()) {
            assert!(authority.as_str().as_bytes().eq_ignore_ascii_case(host), "{request:?}");
        }
        assert!(codings.iter().all(|coding| coding.eq_ignore_ascii_case(b"chunked")), "{request:?}");
    }
    // Validation and decoding agree about malformed escapes.
    assert!(verdict != Err(MalformedRequest::BadEscape) || path.is_err(), "{request:?}");
    // An unrelated header does not change the verdict.
    request.headers_mut().append("x-unrelated", HeaderValue::from_static("1"));
    assert_eq!(check(&request), verdict);
}

/// The input is a list of header lines.
pub fn credentials(data: &[u8]) {
    let sent = lines(data);
    let custom = |name: &HeaderName| name == CUSTOM;
    let mut left = sent.clone();
    let (taken, impersonate) = Credentials::take_from(&mut left, custom);

    for name in left.keys() {
        assert!(
            !is_identity_header(name) && name != CUSTOM && name != AUTHORIZATION,
            "{name} was not removed"
        );
    }
    let unrelated = |name: &HeaderName| {
        !is_identity_header(name) && ![AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL].contains(name) && name != CUSTOM
    };
    assert_eq!(only(&left, unrelated), only(&sent, unrelated));
    // Protocols without a bearer token stay byte for byte.
    let protocols = |name: &HeaderName| name == SEC_WEBSOCKET_PROTOCOL;
    assert!(!has_bearer_protocol(&left), "a bearer token was not removed");
    assert!(has_bearer_protocol(&sent) || only(&left, protocols) == only(&sent, protocols));
    // Headers in the canonical spelling are returned completely and in order.
    let front_proxy = |name: &HeaderName| name.as_str().starts_with(FRONT_PROXY_PREFIX) || name == CUSTOM;
    assert_eq!(only(&taken.front_proxy, |_| true), only(&sent, front_proxy));
    let asked = |name: &HeaderName| name.as_str().starts_with(IMPERSONATE_PREFIX);
    assert_eq!(impersonate.is_empty(), only(&sent, asked).is_empty());
    let mut restored = HeaderMap::new();
    impersonate.restore_into(&mut restored);
    assert_eq!(only(&restored, |_| true), only(&sent, asked));
    let first = sent.get(AUTHORIZATION).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    assert_eq!(taken.authorization, first);
    let websocket = sent.contains_key(CONNECTION) && sent.contains_key(UPGRADE) && has_bearer_protocol(&sent);
    assert!(websocket || taken.websocket_protocols.is_empty());

    let before = left.clone();
    let (again, impersonate) = Credentials::take_from(&mut left, custom);
    assert!(left == before && impersonate.is_empty(), "a second pass removed something");
    assert!(again.authorization.is_none() && again.front_proxy.is_empty());
    assert!(again.websocket_protocols.is_empty());
}

/// The input is an identity with a field per line (`user alice`, `uid 42`, `group ops`, `extra key=value`), a blank
/// line, and the headers of a client. A leading `!` selects `Impersonate-*`. `␊` stands for a line feed.
pub fn forwarded_identity(data: &[u8]) {
    let (mode, data) = match data.strip_prefix(b"!") {
        Some(rest) => (IdentityMode::Impersonate, rest),
        None => (IdentityMode::RequestHeader, data),
    };
    let blank = data.windows(2).position(|pair| pair == b"\n\n").unwrap_or(data.len());
    let (identity, header) = data.split_at_checked(blank).unwrap_or_default();
    let user = Identity::from(user(&String::from_utf8_lossy(identity)));
    let sent = lines(header);

    // The backend receives the same identity as from a client without headers.
    let (mut headers, mut without_client_headers) = (sent.clone(), HeaderMap::new());
    let written = write_identity(&mut headers, &user, mode);
    assert_eq!(written, write_identity(&mut without_client_headers, &user, mode));
    if written.is_err() {
        let is_changed = mode == IdentityMode::Impersonate && user.group_added_by_impersonation().is_some();
        assert!(is_changed || !plain(&user), "a valid identity was refused: {user:?}");
        return;
    }
    let identity_headers = only(&headers, is_identity_header);
    assert_eq!(
        identity_headers,
        only(&without_client_headers, is_identity_header),
        "client headers leaked into the identity: {sent:?}"
    );
    let expected = if mode == IdentityMode::Impersonate { IMPERSONATE_PREFIX } else { FRONT_PROXY_PREFIX };
    assert!(
        identity_headers.iter().all(|(name, _)| name.as_str().starts_with(expected)),
        "{identity_headers:?}"
    );
    assert!(!headers.contains_key(CONNECTION) && !headers.contains_key(UPGRADE));
    // Writing the identity again removes nothing.
    let mut again = headers.clone();
    assert_eq!(write_identity(&mut again, &user, mode), Ok(()));
    assert_eq!(again, headers);
    if mode == IdentityMode::RequestHeader {
        let (credentials, _) = Credentials::take_from(&mut headers, |_| false);
        let read = front_proxy(&credentials);
        assert_eq!(read.as_deref(), Some(&as_read(UserInfo::clone(&user))));
    }
}

fn write_identity(
    headers: &mut HeaderMap,
    user: &Identity,
    mode: IdentityMode,
) -> Result<(), UnencodableIdentity> {
    let context = ForwardContext {
        peer: &HeaderValue::from_static("127.0.0.1"),
        client: std::net::Ipv4Addr::LOCALHOST.into(),
        audit_id: &HeaderValue::from_static("audit"),
        gateway_id: &GatewayId::default(),
        spans: None,
    };
    write_trusted_headers(headers, &user.clone().encode(mode)?, None, (context, None), false);
    assert_eq!(headers.get_all(AUDIT_ID).iter().count(), 1);
    Ok(())
}

fn has_bearer_protocol(headers: &HeaderMap) -> bool {
    let bearer = |part: &[u8]| part.trim_ascii().starts_with(BEARER_PROTOCOL_PREFIX.as_bytes());
    let lines = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).any(bearer)
}

/// Whether a backend might take the header for an identity header; some treat `_` and `.` as `-`.
fn is_identity_header(name: &HeaderName) -> bool {
    let name = name.as_str().replace(['_', '.'], "-");
    name.starts_with("x-remote-") || name.starts_with("impersonate-")
}

/// The identity as the backend reads it: without empty fields.
fn as_read(mut user: UserInfo) -> UserInfo {
    user.uid = user.uid.filter(|uid| !uid.is_empty());
    user.groups.retain(|group| !group.is_empty());
    user.extra.retain(|_, values| !values.is_empty());
    user
}

/// Whether headers can carry the identity without encoding.
fn plain(user: &UserInfo) -> bool {
    let plain = |text: &String| text.bytes().all(|byte| byte.is_ascii_graphic());
    let texts = user.uid.iter().chain(&user.groups).chain(user.extra.values().flatten());
    !user.name.is_empty() && plain(&user.name) && texts.into_iter().all(plain)
}

fn user(text: &str) -> UserInfo {
    let mut user = UserInfo::default();
    for line in text.split('\n') {
        let line = line.replace('␊', "\n");
        let (field, value) = line.split_once(' ').unwrap_or((&line, ""));
        match field {
            "user" => value.clone_into(&mut user.name),
            "uid" => user.uid = Some(value.to_owned()),
            "group" => user.groups.push(value.to_owned()),
            "extra" => {
                let (key, value) =
                    value.split_once('=').map_or((value, None), |(key, value)| (key, Some(value)));
                let values = user.extra.entry(key.to_owned()).or_default();
                values.extend(value.map(str::to_owned));
            }
            _ => {}
        }
    }
    user
}

/// Parses header lines `name: value`; skips malformed ones.
fn lines(text: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in text.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = line.split_at_checked(colon).unwrap_or_default();
        let value = HeaderValue::from_bytes(value.get(1..).unwrap_or_default().trim_ascii());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), value) {
            headers.append(name, value);
        }
    }
    headers
}

/// The headers that match, stably sorted by name.
fn only(headers: &HeaderMap, wanted: impl Fn(&HeaderName) -> bool) -> Vec<(HeaderName, HeaderValue)> {
    let lines = headers.iter().filter(|(name, _)| wanted(name));
    let mut lines: Vec<_> = lines.map(|(name, value)| (name.clone(), value.clone())).collect();
    lines.sort_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
    lines
}
