//! What a request is about: its verb and the resource, or the path that is no resource.
//!
//! Follows `k8s.io/apiserver/pkg/endpoints/request/requestinfo.go` step by step, since authorization, admission, audit
//! and limits all stand on it, here and again in the API server behind. It reads the *decoded* path: the request
//! itself is forwarded as it came. Everything is kept as ranges of that one path, so that a request costs one or two
//! allocations.
//!
//! A path need not be UTF-8 once it is decoded. It is then given with U+FFFD for each bad byte (see
//! [`crate::go::url`]): the same text that kube-apiserver sends to a webhook or writes into an audit event. Code that
//! compares a path with a configured one and lets something in must not match on U+FFFD.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use http::Method;

use super::selector;
use crate::go::url::{self, query};
use crate::http::status::{Attempt, AttemptTarget};

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestInfo {
    path: Box<str>,
    verb: Cow<'static, str>,
    spans: Option<Spans>,
    is_long_running: bool,
}

/// What a request is aimed at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// A resource of the API. (Whether it exists is for the API server to say.)
    Resource(Resource<'a>),
    /// Anything else: discovery, health, version, …
    NonResource,
}

/// A resource as a path names it. An empty text stands for what the path does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resource<'a> {
    /// `api` or `apis`.
    pub api_prefix: &'a str,
    /// The API group; empty for the core group.
    pub group: &'a str,
    /// The API version.
    pub version: &'a str,
    /// The namespace; for a namespace itself its own name.
    pub namespace: &'a str,
    /// The resource, such as `pods`.
    pub resource: &'a str,
    /// The subresource, such as `exec`.
    pub subresource: &'a str,
    /// The name of the object in the path. See [`RequestInfo::object_name`] for the one that is authorised.
    pub name: &'a str,
    /// The path from the resource on, its segments joined by slashes.
    pub parts: &'a str,
    /// The field selector as it was given, if the verb honours one.
    pub field_selector: &'a str,
    /// The label selector as it was given, if the verb honours one.
    pub label_selector: &'a str,
}

/// A path that begins like a resource and cannot be one. Answered 500, before authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unable to determine kind and namespace from url")]
pub struct RequestInfoError;

/// Where in the path the parts of a resource are, and what came from the query.
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
    field_selector: Box<str>,
    label_selector: Box<str>,
    /// Whether `limit` and `timeoutSeconds` are numbers: otherwise upstream reads no field selector.
    has_numbers: bool,
    /// The name that the field selector requires, once it is asked for: most requests are never authorised here.
    selected_name: OnceLock<Box<str>>,
}

/// Prefix, group, version, verb, `namespaces`, namespace, resource, name, subresource: no more segments are told apart.
const MOST_SEGMENTS: usize = 9;

// kubernetes: cmd/kube-apiserver/app/server.go — the sets given to BasicLongRunningRequestCheck
const LONG_RUNNING_VERBS: [&str; 2] = ["watch", "proxy"];
const LONG_RUNNING_SUBRESOURCES: [&str; 5] = ["attach", "exec", "proxy", "log", "portforward"];

impl RequestInfo {
    /// Reads method, decoded path and raw query.
    // threat: path-other-reading
    pub fn parse(method: &Method, decoded_path: &str, query: Option<&str>) -> Result<Self, RequestInfoError> {
        let non_resource = |verb: Cow<'static, str>| {
            let is_long_running =
                decoded_path.starts_with("/debug/pprof/") || LONG_RUNNING_VERBS.contains(&&*verb);
            Ok(Self { path: decoded_path.into(), verb, spans: None, is_long_running })
        };
        let mut segments = [const { 0..0 }; MOST_SEGMENTS];
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
            // After the name of a namespace comes a resource in it, unless it is a subresource of the namespace.
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
            let options = ListOptions::read(query.unwrap_or_default());
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

    /// The verb in Kubernetes' sense; for a non-resource the method in lower case. Empty for a method that means
    /// nothing on resources.
    pub fn verb(&self) -> &str {
        &self.verb
    }

    /// The whole decoded path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What the request is aimed at.
    pub fn target(&self) -> Target<'_> {
        self.resource().map_or(Target::NonResource, Target::Resource)
    }

    /// The resource, if the request is aimed at one.
    pub fn resource(&self) -> Option<Resource<'_>> {
        let spans = self.spans.as_ref()?;
        let text = |range: &Range<usize>| self.path.get(range.clone()).unwrap_or_default();
        Some(Resource {
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

    /// The name of the object that is authorised: the one in the path or, of a list or a watch, the one that the field
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
            let name = selector::parse_fields(fields).ok().filter(|_| selector::parse_labels(labels).is_ok());
            let name = name.and_then(|fields| selector::required_field_value(&fields, "metadata.name"));
            name.filter(|name| is_path_segment(name)).unwrap_or_default().into()
        })
    }

    /// Whether the request may last as long as it likes: no deadline, no in-flight limit.
    // apiserver: pkg/server/filters/longrunning.go
    pub fn is_long_running(&self) -> bool {
        self.is_long_running
    }

    /// Whether it is not the API server that answers, but a pod or who runs it, through the API server.
    pub fn is_relayed(&self) -> bool {
        self.is_long_running && self.verb() != "watch" && self.resource().is_some()
    }

    /// Whether the request counts against the limit for writes.
    // apiserver: pkg/server/filters/maxinflight.go, nonMutatingRequestVerbs
    pub fn is_mutating(&self) -> bool {
        !matches!(self.verb(), "get" | "list" | "watch")
    }

    /// The request as the text of a refusal names it.
    pub fn attempt<'a>(&'a self, user: &'a str) -> Attempt<'a> {
        let on = match self.target() {
            Target::NonResource => AttemptTarget::Path(&self.path),
            Target::Resource(Resource { group, resource, subresource, namespace, .. }) => {
                AttemptTarget::Resource { group, resource, subresource, namespace, name: self.object_name() }
            }
        };
        Attempt { user, verb: self.verb(), on }
    }
}

impl<'a> Resource<'a> {
    /// The segments of the path from the resource on.
    pub fn segments(&self) -> impl Iterator<Item = &'a str> {
        self.parts.split('/')
    }
}

impl RequestInfoError {
    /// The message of the answer, which names the URL as Go prints it. Not made safe against HTML: the answer is.
    // apiserver: pkg/endpoints/filters/requestinfo.go
    pub fn message(&self, raw_path: &str, query: Option<&str>) -> String {
        let path = url::escaped_path(raw_path);
        let (mark, query) = query.map_or(("", ""), |query| ("?", query));
        format!("failed to create RequestInfo: {self}, {path}{mark}{query}")
    }
}

/// Cuts the path, slashes at both ends taken off, into its first segments. Returns how many there are, at most the
/// length of `segments`, and where the last one of the whole path ends.
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

/// The first value of each parameter of a list.
#[derive(Default)]
struct ListOptions<'a> {
    watch: Option<Cow<'a, str>>,
    fields: Option<Cow<'a, str>>,
    labels: Option<Cow<'a, str>>,
    limit: Option<Cow<'a, str>>,
    timeout: Option<Cow<'a, str>>,
}

impl<'a> ListOptions<'a> {
    fn read(query: &'a str) -> Self {
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

    // apiserver: requestinfo.go — decoding metainternalversion.ListOptions and what follows when that fails
    fn is_watch(&self) -> bool {
        let Some(watch) = self.watch.as_deref() else { return false };
        if watch == "0" || watch.eq_ignore_ascii_case("false") {
            return false;
        }
        // Go's `EqualFold` takes the long s for an s, but only if all of the query can be decoded. The selectors are
        // read here for that spelling alone.
        let is_decoded = || {
            self.has_numbers()
                && selector::parse_fields(self.fields.as_deref().unwrap_or_default()).is_ok()
                && selector::parse_labels(self.labels.as_deref().unwrap_or_default()).is_ok()
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
