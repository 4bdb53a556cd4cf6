//! Parses the verb and the resource, or the non-resource path, of a request.
//!
//! Follows `k8s.io/apiserver/pkg/endpoints/request/requestinfo.go` step by step: authorization, admission, audit and
//! limits depend on the result, here and again in the backend. It reads the *decoded* path; the request itself is
//! forwarded unchanged. The result stores ranges of that path, so that a request costs one or two allocations.
//!
//! A decoded path may not be UTF-8. It then contains U+FFFD for each invalid byte (see [`crate::go::escape`]), as in
//! kube-apiserver's webhook requests and audit events. Code that grants access by comparing a path with a configured
//! one must not match on U+FFFD.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::ops::Range;

use http::Method;

use super::selector;
use crate::go::query;
use crate::http::status::{Attempt, AttemptTarget};

/// Verb and resource of a request, or its non-resource path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestInfo {
    path: Box<str>,
    verb: Cow<'static, str>,
    spans: Option<Spans>,
    is_long_running: bool,
}

/// Whether a request is for a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind<'a> {
    /// A path of the resource API. The resource need not exist.
    Resource(RequestResource<'a>),
    /// Any other path: discovery, health, version, …
    NonResource,
}

/// A resource as named by a path. Absent parts are empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestResource<'a> {
    /// `api` or `apis`.
    pub api_prefix: &'a str,
    /// The API group; empty for the core group.
    pub group: &'a str,
    /// The API version.
    pub version: &'a str,
    /// The namespace; for a Namespace object its own name.
    pub namespace: &'a str,
    /// The resource, such as `pods`.
    pub resource: &'a str,
    /// The subresource, such as `exec`.
    pub subresource: &'a str,
    /// The name of the object, from the path or, in a list, from the field selector.
    pub name: &'a str,
    /// The path from the resource on, its segments joined by slashes.
    pub parts: &'a str,
    /// The unparsed field selector, for verbs that support one.
    pub field_selector: &'a str,
    /// The unparsed label selector, for verbs that support one.
    pub label_selector: &'a str,
}

/// A path that begins like a resource but cannot be one. Answered with 500, before authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unable to determine kind and namespace from url")]
pub struct RequestInfoError;

/// Positions of a resource's parts in the path, and values from the query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Spans {
    api_prefix: Range<usize>,
    group: Range<usize>,
    version: Range<usize>,
    namespace: Range<usize>,
    resource: Range<usize>,
    subresource: Range<usize>,
    name: Range<usize>,
    parts: Range<usize>,
    selected_name: Box<str>,
    field_selector: Box<str>,
    label_selector: Box<str>,
}

/// Prefix, group, version, verb, `namespaces`, namespace, resource, name, subresource; further segments have no
/// meaning.
const MAX_SEGMENTS: usize = 9;

// kubernetes: cmd/kube-apiserver/app/server.go — the sets given to BasicLongRunningRequestCheck
const LONG_RUNNING_VERBS: [&str; 2] = ["watch", "proxy"];
const LONG_RUNNING_SUBRESOURCES: [&str; 5] = ["attach", "exec", "proxy", "log", "portforward"];

impl RequestInfo {
    /// Parses method, decoded path and raw query.
    // threat: path-other-reading
    pub fn parse(method: &Method, decoded_path: &str, query: Option<&str>) -> Result<Self, RequestInfoError> {
        let non_resource = |verb: Cow<'static, str>| {
            let is_long_running =
                decoded_path.starts_with("/debug/pprof/") || LONG_RUNNING_VERBS.contains(&&*verb);
            Ok(Self { path: decoded_path.into(), verb, spans: None, is_long_running })
        };
        let mut segments = [const { 0..0 }; MAX_SEGMENTS];
        let (count, end) = split(decoded_path, &mut segments);
        let text = |range: &Range<usize>| decoded_path.get(range.clone()).unwrap_or_default();

        let mut rest = segments.get(..count).unwrap_or_default();
        let mut spans = Spans::default();
        let (api_prefix, group, version) = match rest {
            [prefix, version, after @ ..] if text(prefix) == "api" && !after.is_empty() => {
                rest = after;
                (prefix, &(0..0), version)
            }
            [prefix, group, version, after @ ..] if text(prefix) == "apis" && !after.is_empty() => {
                rest = after;
                (prefix, group, version)
            }
            _ => return non_resource(lower_case(method)),
        };
        spans.api_prefix = api_prefix.clone();
        spans.group = group.clone();
        spans.version = version.clone();

        let from_path = match rest {
            [verb, after @ ..] if matches!(text(verb), "watch" | "proxy") => {
                if after.is_empty() {
                    return Err(RequestInfoError);
                }
                rest = after;
                Some(if text(verb) == "watch" { "watch" } else { "proxy" })
            }
            _ => None,
        };
        let mut verb = from_path.unwrap_or_else(|| verb_of(method));

        if let [namespaces, namespace, after @ ..] = rest
            && text(namespaces) == "namespaces"
        {
            spans.namespace = namespace.clone();
            // After the name of a namespace follows a resource in it, or a subresource of the namespace.
            if after.first().is_some_and(|next| !matches!(text(next), "status" | "finalize")) {
                rest = after;
            }
        }
        if let Some(resource) = rest.first() {
            spans.parts = resource.start..end;
            spans.resource = resource.clone();
        }
        if let Some(name) = rest.get(1) {
            spans.name = name.clone();
        }
        if let Some(subresource) = rest.get(2)
            && verb != "proxy"
        {
            spans.subresource = subresource.clone();
        }

        if spans.name.is_empty() && verb == "get" {
            let options = ListOptions::parse(query.unwrap_or_default());
            verb = if options.watch { "watch" } else { "list" };
            spans.selected_name = options.name.unwrap_or_default().into();
        }
        if spans.name.is_empty() && verb == "delete" {
            verb = "deletecollection";
        }
        // kube-apiserver ignores selectors of paths that name their verb, such as /watch/.
        if from_path.is_none()
            && matches!(verb, "list" | "watch" | "deletecollection")
            && let Some(query) = query
        {
            spans.field_selector = query::first(query, "fieldSelector").unwrap_or_default().into();
            spans.label_selector = query::first(query, "labelSelector").unwrap_or_default().into();
        }
        let is_long_running = LONG_RUNNING_VERBS.contains(&verb)
            || LONG_RUNNING_SUBRESOURCES.contains(&text(&spans.subresource));
        Ok(Self { path: decoded_path.into(), verb: Cow::Borrowed(verb), spans: Some(spans), is_long_running })
    }

    /// The Kubernetes verb; for a non-resource path the method in lower case. Empty for a method without a meaning for
    /// resources.
    pub fn verb(&self) -> &str {
        &self.verb
    }

    /// The whole decoded path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether the request is for a resource.
    pub fn kind(&self) -> RequestKind<'_> {
        self.resource().map_or(RequestKind::NonResource, RequestKind::Resource)
    }

    /// The resource, for a resource request.
    pub fn resource(&self) -> Option<RequestResource<'_>> {
        let spans = self.spans.as_ref()?;
        let text = |range: &Range<usize>| self.path.get(range.clone()).unwrap_or_default();
        let name = text(&spans.name);
        Some(RequestResource {
            api_prefix: text(&spans.api_prefix),
            group: text(&spans.group),
            version: text(&spans.version),
            namespace: text(&spans.namespace),
            resource: text(&spans.resource),
            subresource: text(&spans.subresource),
            name: if name.is_empty() { &spans.selected_name } else { name },
            parts: text(&spans.parts),
            field_selector: &spans.field_selector,
            label_selector: &spans.label_selector,
        })
    }

    /// Whether the request is long-running: without deadline and in-flight limit.
    // apiserver: pkg/server/filters/longrunning.go
    pub fn is_long_running(&self) -> bool {
        self.is_long_running
    }

    /// Whether the API server relays the request to a pod, node or service: `exec`, `log`, `proxy` and the like.
    pub fn is_relayed(&self) -> bool {
        self.is_long_running && self.verb() != "watch" && self.resource().is_some()
    }

    /// Whether the request counts against the limit for writes.
    // apiserver: pkg/server/filters/maxinflight.go, nonMutatingRequestVerbs
    pub fn is_mutating(&self) -> bool {
        !matches!(self.verb(), "get" | "list" | "watch")
    }

    /// The request as described by a refusal.
    pub fn attempt<'a>(&'a self, user: &'a str) -> Attempt<'a> {
        let on = match self.kind() {
            RequestKind::NonResource => AttemptTarget::Path(&self.path),
            RequestKind::Resource(RequestResource {
                group, resource, subresource, namespace, name, ..
            }) => AttemptTarget::Resource { group, resource, subresource, namespace, name },
        };
        Attempt { user, verb: self.verb(), on }
    }
}

impl<'a> RequestResource<'a> {
    /// The path segments from the resource on.
    pub fn segments(&self) -> impl Iterator<Item = &'a str> {
        self.parts.split('/')
    }
}

impl RequestInfoError {
    /// The message of the answer, with the URL as Go prints it. Not escaped for HTML; the answer escapes it.
    // apiserver: pkg/endpoints/filters/requestinfo.go
    pub fn message(&self, raw_path: &str, query: Option<&str>) -> String {
        let url = print_url(raw_path, query);
        format!("failed to create RequestInfo: {self}, {url}")
    }
}

/// Splits the path, without slashes at both ends, into its first segments. Returns their number, at most the length of
/// `segments`, and the end of the last segment of the whole path.
// apiserver: requestinfo.go, splitPath
fn split(path: &str, segments: &mut [Range<usize>]) -> (usize, usize) {
    let end = path.trim_end_matches('/').len();
    let start = path.len() - path.trim_start_matches('/').len();
    let Some(inner) = path.get(start..end).filter(|inner| !inner.is_empty()) else {
        return (0, end);
    };
    let mut count = 0;
    let mut at = start;
    for (segment, slot) in inner.as_bytes().split(|byte| *byte == b'/').zip(segments) {
        *slot = at..at + segment.len();
        at += segment.len() + 1;
        count += 1;
    }
    (count, end)
}

fn lower_case(method: &Method) -> Cow<'static, str> {
    match *method {
        Method::GET => "get".into(),
        Method::POST => "post".into(),
        Method::PUT => "put".into(),
        Method::PATCH => "patch".into(),
        Method::DELETE => "delete".into(),
        Method::HEAD => "head".into(),
        Method::OPTIONS => "options".into(),
        _ => method.as_str().to_lowercase().into(),
    }
}

fn verb_of(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::GET | Method::HEAD => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// The list options in a query.
#[derive(Default)]
struct ListOptions {
    watch: bool,
    /// The name the field selector requires.
    name: Option<String>,
}

impl ListOptions {
    // apiserver: requestinfo.go — decoding metainternalversion.ListOptions and what follows when that fails
    fn parse(query: &str) -> Self {
        if query.is_empty() {
            return Self::default();
        }
        let (mut watch, mut fields, mut labels) = (None, None, None);
        let (mut limit, mut timeout) = (None, None);
        for (key, value) in query::pairs(query) {
            let first = match &*key {
                "watch" => &mut watch,
                "fieldSelector" => &mut fields,
                "labelSelector" => &mut labels,
                "limit" => &mut limit,
                "timeoutSeconds" => &mut timeout,
                _ => continue,
            };
            first.get_or_insert(value);
        }
        let number =
            |value: &Option<Cow<'_, str>>| value.as_deref().is_none_or(|value| value.parse::<i64>().is_ok());
        let labels_fit = labels.as_deref().is_none_or(|labels| selector::parse_labels(labels).is_ok());
        let fields = selector::parse_fields(fields.as_deref().unwrap_or_default());
        match fields {
            Ok(fields) if number(&limit) && number(&timeout) && labels_fit => Self {
                watch: watch.is_some_and(|value| value != "0" && !is_false(&value)),
                name: selector::required_field_value(&fields, "metadata.name")
                    .filter(|name| is_path_segment(name))
                    .map(Cow::into_owned),
            },
            _ => Self {
                watch: watch.is_some_and(|value| value != "0" && value.to_lowercase() != "false"),
                name: None,
            },
        }
    }
}

/// Whether Go's `EqualFold` finds the value equal to `false`; it also folds the long s.
fn is_false(value: &str) -> bool {
    value.chars().map(|c| if c == 'ſ' { 's' } else { c.to_ascii_lowercase() }).eq("false".chars())
}

// apimachinery: pkg/api/validate/content/path.go, IsPathSegmentName
fn is_path_segment(name: &str) -> bool {
    name != "." && name != ".." && !name.contains(['/', '%'])
}

/// Prints a URL as Go does: unchanged if all bytes are valid in a path, else escaped again.
// net/url: URL.String and EscapedPath
fn print_url(raw_path: &str, query: Option<&str>) -> String {
    let unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte);
    let is_valid = |byte: u8| unreserved(byte) || b"!'()*[]%".contains(&byte);
    let mut url = if raw_path.bytes().all(is_valid) {
        raw_path.to_owned()
    } else {
        let mut url = String::with_capacity(raw_path.len() + 16);
        // Decodes existing escapes, then escapes every byte that needs it.
        let mut rest = raw_path.as_bytes();
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            let byte = match (byte, after) {
                (b'%', [high, low, after @ ..]) => {
                    rest = after;
                    let digits = [*high, *low];
                    std::str::from_utf8(&digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok())
                }
                (byte, _) => Some(byte),
            };
            match byte {
                Some(byte) if unreserved(byte) => url.push(char::from(byte)),
                Some(byte) => {
                    // Writing to a String cannot fail.
                    let _ = write!(url, "%{byte:02X}");
                }
                None => {}
            }
        }
        url
    };
    if let Some(query) = query {
        url.push('?');
        url.push_str(query);
    }
    url
}

#[cfg(test)]
mod tests;
