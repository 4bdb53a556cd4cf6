//! Request targets: refusals, path, query, and the requested resource.

use http::header::HOST;
use http::{Method, Request};
use portcullis::internal::RequestInfo;
use portcullis::internal::check_well_formed;
use portcullis::internal::decode_path;
use portcullis::internal::query_pairs;
use serde_json::Value;
use testkit::random::Rng;

use super::{Compared, lists, octets, soup};

const METHODS: &[&str] =
    &["GET", "GET", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "get", "X"];
const STARTS: &[&str] = &[
    "/",
    "/",
    "/api/v1",
    "/apis/apps/v1",
    "/api/v1/namespaces/o",
    "/apis/g/v1/watch/namespaces/o",
    "//api/v1",
    "/api//v1",
    "/api/v1/namespaces/o/pods",
    "",
    "http://a",
    "https://a/api",
    "http://b/",
    "a",
    "*",
    "/%61pi/v1",
    "http:",
    "ht~p://a/api",
    "h+t-t.p2://a/api",
    "//a/api",
];
const PATH: &[&str] = &[
    "/api",
    "/apis",
    "/v1",
    "/apps",
    "/watch",
    "/proxy",
    "/namespaces",
    "/namespaces/o",
    "/status",
    "/finalize",
    "/pods",
    "/exec",
    "/log",
    "/x",
    "/é",
    "/",
    "//",
    "/.",
    "/..",
    "%2F",
    "%2f",
    "%2e",
    "%25",
    "%",
    "%4",
    "%zz",
    "%ff",
    "%00",
    "+",
    ";",
    ":",
    "@",
    "!",
    "$",
    "'",
    "(",
    "~",
    "#",
    "<",
    "\"",
    "\\",
    "^",
    "`",
    "{",
    "|",
    "[",
    "&",
    "=",
    ",",
];
const QUERY: &[&str] = &[
    "?",
    "?",
    "&",
    "&",
    "=",
    ";",
    "watch=",
    "watch",
    "wat%63h=",
    "1",
    "0",
    "true",
    "false",
    "t",
    "limit=",
    "timeoutSeconds=",
    "fieldSelector=",
    "fieldSelector=metadata.name%3Da",
    "fieldSelector=metadata.name=",
    "labelSelector=",
    "metadata.name",
    "%3D",
    "%3d",
    "==",
    "!",
    "%2C",
    "%5C",
    "\\",
    ",",
    "%",
    "%zz",
    "+",
    "%20",
    "a",
    "b",
    "é",
    "%ff",
    "#",
    "resourceVersion=",
    "allowWatchBookmarks=x",
    "watch=%00",
    "&watch=1",
    "name=",
];

#[derive(Debug)]
pub(super) struct Input {
    pub(super) method: &'static str,
    target: Vec<u8>,
}

impl Input {
    /// D-fragment: the fragment is not forwarded.
    pub(super) fn forwarded(&self) -> &[u8] {
        self.target.split(|byte| *byte == b'#').next().unwrap_or_default()
    }
}

impl AsRef<[u8]> for Input {
    fn as_ref(&self) -> &[u8] {
        &self.target
    }
}

pub(super) fn any(rng: &mut Rng) -> Input {
    let method = *rng.pick(METHODS);
    let mut target = rng.pick(STARTS).as_bytes().to_vec();
    target.extend(soup(rng, PATH, 8));
    if !rng.one_in(3) {
        target.push(b'?');
        target.extend(soup(rng, QUERY, 10));
    }
    if rng.one_in(10) && !target.is_empty() {
        let at = rng.below(target.len());
        // Not characters that end the request line, which another parser handles.
        target[at] = match rng.byte() {
            b' ' | b'\r' | b'\n' => b'/',
            byte => byte,
        };
    }
    Input { method, target }
}

/// Targets that only we refuse: the ids of `docs/conformance.md`.
fn declared(target: &[u8]) -> Option<&'static str> {
    // D-target-characters
    let Ok(text) = std::str::from_utf8(target) else { return Some("stricter: characters") };
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    if path.contains(['<', '>', '`']) || query.contains(['<', '>', '"']) {
        return Some("stricter: characters");
    }
    if text.starts_with('/') {
        return None;
    }
    let (_, rest) = text.split_once(':')?;
    match rest.strip_prefix("//") {
        // D-host-mismatch
        Some(rest) if rest.split(['/', '?', '#']).next() != Some("a") => Some("stricter: host"),
        Some(_) => None,
        // D-target-form
        None => Some("stricter: no host"),
    }
}

pub(super) fn judge(input: &Input, answer: &Value) -> Compared {
    let go = answer["error"].as_str().filter(|error| !error.is_empty());
    let request =
        Request::builder().method(input.method).uri(input.target.as_slice()).header(HOST, "a").body(()).ok();
    let Some(request) = request.filter(|request| check_well_formed(request).is_ok()) else {
        return match (go, declared(&input.target)) {
            (Some(_), _) => Ok("refused"),
            (None, Some(difference)) => Ok(difference),
            // D-fragment: the `http` crate accepts an asterisk only as the whole target.
            (None, None) if input.target.starts_with(b"*#") => Ok("stricter: characters"),
            (None, None) => Err(format!("refused, and Go reads {answer}")),
        };
    };
    if let Some(error) = go {
        return Err(format!("{} is read, and Go refuses it: {error}", request.uri()));
    }
    let text = |bytes: Vec<u8>| with_one_mark_per_byte(&bytes);
    let path = decode_path(request.uri().path()).unwrap().into_owned();
    if octets(&answer["path"]).is_empty() && path == "/" && request.uri().authority().is_some() {
        // D-target-form
        return Ok("no path");
    }
    if path != text(octets(&answer["path"])) {
        return Err(format!("path {path:?}, Go {:?}", text(octets(&answer["path"]))));
    }
    let raw_query = request.uri().query().unwrap_or_default();
    if raw_query.as_bytes() != octets(&answer["rawQuery"]) {
        return Err(format!("query {raw_query:?}, Go {:?}", text(octets(&answer["rawQuery"]))));
    }
    let mut pairs: Vec<[String; 2]> =
        query_pairs(raw_query).map(|(key, value)| [key.into_owned(), value.into_owned()]).collect();
    let mut expected: Vec<[String; 2]> = answer["query"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| {
            let [key, value] = <[Vec<u8>; 2]>::try_from(lists(pair)).unwrap();
            [text(key), text(value)]
        })
        .collect();
    // The values of a key stay in order.
    pairs.sort_by(|one, other| one[0].cmp(&other[0]));
    expected.sort_by(|one, other| one[0].cmp(&other[0]));
    if pairs != expected {
        return Err(format!("pairs {pairs:?}, Go {expected:?}"));
    }
    info(&request, &path, answer)
}

fn info(request: &Request<()>, path: &str, answer: &Value) -> Compared {
    let method = Method::from_bytes(request.method().as_str().as_bytes()).unwrap();
    let go_error = answer["infoError"].as_str().unwrap();
    let info = match RequestInfo::parse(&method, path, request.uri().query()) {
        Ok(info) if go_error.is_empty() => info,
        Err(error) if !go_error.is_empty() => {
            let message = error.message(request.uri().path(), request.uri().query());
            let wanted = format!("failed to create RequestInfo: {go_error}");
            // D-target-form
            let is_absolute = request.uri().authority().is_some();
            return if message == wanted || is_absolute {
                Ok("no request info")
            } else {
                Err(format!("{message}, Go {wanted}"))
            };
        }
        other => return Err(format!("{other:?}, Go {go_error:?}")),
    };
    let mut fields = vec![info.verb().to_owned(), info.path().to_owned()];
    match info.resource() {
        Some(resource) => {
            fields.extend(
                [
                    resource.api_prefix,
                    resource.group,
                    resource.version,
                    resource.namespace,
                    resource.resource,
                    resource.subresource,
                    info.object_name(),
                    resource.field_selector,
                    resource.label_selector,
                ]
                .map(str::to_owned),
            );
            fields.extend(resource.segments().filter(|_| !resource.parts.is_empty()).map(str::to_owned));
        }
        None => fields.extend((0..9).map(|_| String::new())),
    }
    let mut expected: Vec<String> = serde_json::from_value(answer["info"].clone()).unwrap();
    let is_resource = answer["isResource"].as_bool().unwrap();
    if !is_resource {
        // Kubernetes keeps the parts that it parsed before it gave up; no rule uses them.
        expected.truncate(2);
        expected.extend((0..9).map(|_| String::new()));
    }
    if is_resource == info.resource().is_some() && fields == expected {
        return Ok(if is_resource { "resource" } else { "other path" });
    }
    Err(format!("{fields:?}, Go {expected:?}"))
}

/// Bytes that are not UTF-8, as Go's JSON encodes them.
fn with_one_mark_per_byte(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    text
}
