//! Parses the verb and the resource, or the non-resource path, of a request.
//!
//! Follows `k8s.io/apiserver/pkg/endpoints/request/requestinfo.go` step by step: authorization, admission, audit and
//! limits depend on the result, here and again in the backend. It reads the *decoded* path; the request itself is
//! forwarded unchanged. The result stores ranges of that path, so that a request costs one or two allocations.
//!
//! A decoded path may not be UTF-8. It then contains U+FFFD for each invalid byte (see [`portcullis_go::url`]), as in
//! kube-apiserver's webhook requests and audit events. Code that grants access by comparing a path with a configured
//! one must not match on U+FFFD.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use http::Method;

use portcullis_go::url::{self, query};
use portcullis_kubernetes::selectors;
use portcullis_kubernetes::status::{Attempt, AttemptTarget};

/// Verb and resource of a request, or its non-resource path.
#[derive(Debug, Clone)]
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
    /// The name of the object in the path; [`RequestInfo::object_name`] is the authorized one.
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
#[derive(Debug, Clone, Default)]
struct Spans {
    api_prefix: Range<usize>,
    group: Range<usize>,
    version: Range<usize>,
    namespace: Range<usize>,
    resource: Range<usize>,
    subresource: Range<usize>,
    name: Range<usize>,
    parts: Range<usize>,
    field_selector: Box<str>,
    label_selector: Box<str>,
    /// Whether `limit` and `timeoutSeconds` are numbers; otherwise kube-apiserver ignores the field selector.
    has_numbers: bool,
    /// The name that the field selector requires, parsed on first use.
    selected_name: OnceLock<Box<str>>,
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

        // Paths that name their verb never honoured selectors reliably, so they carry none.
        if spans.name.is_empty() && from_path.is_none() && matches!(verb, "get" | "delete") {
            let options = ListOptions::parse(query.unwrap_or_default());
            verb = match verb {
                "delete" => "deletecollection",
                _ if options.is_watch() => "watch",
                _ => "list",
            };
            spans.has_numbers = options.has_numbers();
            spans.field_selector = options.fields.unwrap_or_default().into();
            spans.label_selector = options.labels.unwrap_or_default().into();
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

    /// Whether the request is for a resource.
    pub fn is_resource(&self) -> bool {
        self.spans.is_some()
    }

    /// The field selector and the label selector, unparsed; `None` if the request is for no resource.
    pub fn selectors(&self) -> Option<(&str, &str)> {
        self.spans.as_ref().map(|spans| (&*spans.field_selector, &*spans.label_selector))
    }

    /// The resource, for a resource request.
    // Inlined, so that a caller pays for the parts that it uses.
    #[inline]
    pub fn resource(&self) -> Option<RequestResource<'_>> {
        let spans = self.spans.as_ref()?;
        let text = |range: &Range<usize>| {
            if range.is_empty() { "" } else { self.path.get(range.clone()).unwrap_or_default() }
        };
        Some(RequestResource {
            api_prefix: text(&spans.api_prefix),
            group: text(&spans.group),
            version: text(&spans.version),
            namespace: text(&spans.namespace),
            resource: text(&spans.resource),
            subresource: text(&spans.subresource),
            name: text(&spans.name),
            parts: text(&spans.parts),
            field_selector: &spans.field_selector,
            label_selector: &spans.label_selector,
        })
    }

    /// The name of the object that is authorized: the one in the path or, of a list or watch, the one that the field
    /// selector requires. Empty if there is none.
    // apiserver: requestinfo.go, NewRequestInfo
    pub fn object_name(&self) -> &str {
        let Some(spans) = &self.spans else { return "" };
        let name = self.path.get(spans.name.clone()).unwrap_or_default();
        if !name.is_empty() || !matches!(self.verb(), "list" | "watch") || !spans.has_numbers {
            return name;
        }
        spans.selected_name.get_or_init(|| {
            let (fields, labels) = (&spans.field_selector, &spans.label_selector);
            let fields =
                selectors::parse_fields(fields).ok().filter(|_| selectors::parse_labels(labels).is_ok());
            let name = fields.and_then(|fields| selectors::required_field_value(&fields, "metadata.name"));
            name.filter(|name| is_path_segment(name)).unwrap_or_default().into()
        })
    }

    /// Whether the request is long-running: without deadline and in-flight limit.
    // apiserver: pkg/server/filters/longrunning.go
    pub fn is_long_running(&self) -> bool {
        self.is_long_running
    }

    /// Whether the API server relays the request to a pod, node or service: `exec`, `log`, `proxy` and the like.
    pub fn is_relayed(&self) -> bool {
        self.is_long_running && self.verb() != "watch" && self.is_resource()
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
            RequestKind::Resource(RequestResource { group, resource, subresource, namespace, .. }) => {
                AttemptTarget::Resource { group, resource, subresource, namespace, name: self.object_name() }
            }
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
    /// The message of the response, with the URL as Go prints it. Not escaped for HTML; the response escapes it.
    // apiserver: pkg/endpoints/filters/requestinfo.go
    pub fn message(self, raw_path: &str, query: Option<&str>) -> String {
        let path = url::escaped_path(raw_path);
        let (mark, query) = query.map_or(("", ""), |query| ("?", query));
        format!("failed to create RequestInfo: {self}, {path}{mark}{query}")
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

/// The list options in a query: the first value of each parameter.
#[derive(Default)]
struct ListOptions<'a> {
    watch: Option<Cow<'a, str>>,
    fields: Option<Cow<'a, str>>,
    labels: Option<Cow<'a, str>>,
    limit: Option<Cow<'a, str>>,
    timeout: Option<Cow<'a, str>>,
}

impl<'a> ListOptions<'a> {
    fn parse(query: &'a str) -> Self {
        let mut options = Self::default();
        for (key, value) in query::pairs(query) {
            let first = match &*key {
                "watch" => &mut options.watch,
                "fieldSelector" => &mut options.fields,
                "labelSelector" => &mut options.labels,
                "limit" => &mut options.limit,
                "timeoutSeconds" => &mut options.timeout,
                _ => continue,
            };
            first.get_or_insert(value);
        }
        options
    }

    fn has_numbers(&self) -> bool {
        [&self.limit, &self.timeout].into_iter().flatten().all(|value| value.parse::<i64>().is_ok())
    }

    // apiserver: requestinfo.go — decoding metainternalversion.ListOptions, and the fallback
    fn is_watch(&self) -> bool {
        let Some(watch) = self.watch.as_deref() else { return false };
        if watch == "0" || watch.eq_ignore_ascii_case("false") {
            return false;
        }
        // Go's `EqualFold` also folds the long s, but applies only if the whole query decodes. The selectors are parsed
        // here for that spelling alone.
        let is_decoded = || {
            self.has_numbers()
                && selectors::parse_fields(self.fields.as_deref().unwrap_or_default()).is_ok()
                && selectors::parse_labels(self.labels.as_deref().unwrap_or_default()).is_ok()
        };
        !(watch.replace('ſ', "s").eq_ignore_ascii_case("false") && is_decoded())
    }
}

// apimachinery: pkg/api/validate/content/path.go, IsPathSegmentName
fn is_path_segment(name: &str) -> bool {
    name != "." && name != ".." && !name.contains(['/', '%'])
}

#[cfg(test)]
mod tests;
