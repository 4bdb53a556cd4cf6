//! Request info: every request target is parsed, or answered with 500, and the result equals a model of
//! kube-apiserver's algorithm.

use std::time::Duration;

use http::{Method, StatusCode};
use portcullis_go::url::decode_path;
use portcullis_go::url::query;
use portcullis_kubernetes::selectors::{LabelOperator, LabelRequirement, parse_fields, parse_labels};
use portcullis_kubernetes::status::Status;

use super::escape::{model as unescaped, one_mark_per_byte};
use crate::request::deadline::deadline;
use crate::request::info::{RequestInfo, RequestKind};

const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);

/// The input is a method and a request target: `GET /api/v1/pods?watch=1`.
pub fn request_info(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (method, target) = text.split_once(' ').unwrap_or(("GET", &text));
    let Ok(method) = Method::from_bytes(method.as_bytes()) else { return };
    let (raw_path, query) =
        target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
    for (_, value) in query::pairs(query.unwrap_or_default()) {
        selectors_round_trip(&value);
    }
    let expected_path = unescaped(raw_path, false).map(|bytes| one_mark_per_byte(&bytes));
    let path = decode_path(raw_path).ok();
    assert_eq!(path.as_deref(), expected_path.as_deref(), "{target:?}");
    let Some(path) = path else { return };

    let expected = model(&method, &path);
    let found = RequestInfo::parse(&method, &path, query);
    assert_eq!(found.is_ok(), expected.is_some(), "{method} {path:?}");
    if let (Ok(info), Some((verb, fields))) = (&found, &expected) {
        assert_eq!(info.path(), path);
        matches_the_model(info, verb, fields.as_ref(), query);
        ends_in_time(info, query);
        slashes_around_a_path_are_ignored(&method, &path, query, info);
    }
    if let Err(error) = found {
        let status = Status::internal_error_text(target, &error.message(raw_path, query));
        assert_eq!(status.code, StatusCode::INTERNAL_SERVER_ERROR);
    }
}

/// The resource of the model: group, namespace, resource, name, subresource, parts.
type ModelFields = [String; 6];

fn matches_the_model(info: &RequestInfo, verb: &str, fields: Option<&ModelFields>, query: Option<&str>) {
    assert_eq!(info.resource().is_some(), fields.is_some(), "{info:?}");
    let (Some(resource), Some([group, namespace, kind, name, subresource, parts])) =
        (info.resource(), fields)
    else {
        assert_eq!((info.kind(), info.verb()), (RequestKind::NonResource, verb), "{info:?}");
        return;
    };
    let found = [resource.group, resource.namespace, resource.resource, resource.subresource, resource.parts];
    assert_eq!(found, [group, namespace, kind, subresource, parts].map(String::as_str), "{info:?}");
    // Only the query can turn a list into a watch, and name a single object of a list.
    let watches = verb == "list" && query.is_some_and(|query| query::first(query, "watch").is_some());
    assert!(info.verb() == verb || info.verb() == "watch" && watches, "{info:?}");
    assert_eq!(resource.name, name, "{info:?}");
    if info.object_name() != name {
        assert!(name.is_empty() && verb == "list" && query.is_some(), "{info:?}");
        let segment = !matches!(info.object_name(), "." | "..") && !info.object_name().contains(['/', '%']);
        assert!(segment, "not a valid path segment: {info:?}");
    }
    if !matches!(info.verb(), "list" | "watch" | "deletecollection") {
        assert!(resource.field_selector.is_empty() && resource.label_selector.is_empty(), "{info:?}");
    }
}

fn ends_in_time(info: &RequestInfo, query: Option<&str>) {
    let Ok(deadline) = deadline(info, query, REQUEST_TIMEOUT) else {
        assert!(!info.is_long_running() && query.is_some(), "{info:?}");
        return;
    };
    match deadline {
        None => assert!(info.is_long_running(), "{info:?}"),
        Some(time) => assert!(Duration::ZERO < time && time <= REQUEST_TIMEOUT, "{info:?}: {time:?}"),
    }
}

fn slashes_around_a_path_are_ignored(method: &Method, path: &str, query: Option<&str>, info: &RequestInfo) {
    let more = RequestInfo::parse(method, &format!("//{path}//"), query);
    let more = more.as_ref().map(|more| (more.verb(), more.resource()));
    assert_eq!(more, Ok((info.verb(), info.resource())), "{path:?}");
}

/// kube-apiserver's algorithm on a list of segments. `None` for an invalid path.
// apiserver: pkg/endpoints/request/requestinfo.go
fn model(method: &Method, path: &str) -> Option<(String, Option<ModelFields>)> {
    let trimmed = path.trim_matches('/');
    let mut parts: Vec<&str> = if trimmed.is_empty() { vec![] } else { trimmed.split('/').collect() };
    let groupless = parts.first() == Some(&"api");
    let enough = if groupless { 3 } else { 4 };
    if parts.len() < enough || !(groupless || parts.first() == Some(&"apis")) {
        return Some((method.as_str().to_lowercase(), None));
    }
    let at = |parts: &[&str], index: usize| (*parts.get(index).unwrap_or(&"")).to_owned();
    let group = if groupless { String::new() } else { at(&parts, 1) };
    parts.drain(..enough - 1);
    let mut verb = match method.as_str() {
        "POST" => "create",
        "GET" | "HEAD" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    };
    if matches!(parts.first(), Some(&("watch" | "proxy"))) {
        if parts.len() < 2 {
            return None;
        }
        verb = parts.remove(0);
    }
    let mut namespace = String::new();
    if parts.first() == Some(&"namespaces") && parts.len() > 1 {
        namespace = at(&parts, 1);
        if parts.len() > 2 && !matches!(parts.get(2), Some(&("status" | "finalize"))) {
            parts.drain(..2);
        }
    }
    let (resource, name) = (at(&parts, 0), at(&parts, 1));
    let subresource = if verb == "proxy" { String::new() } else { at(&parts, 2) };
    if name.is_empty() {
        verb = match verb {
            "get" => "list",
            "delete" => "deletecollection",
            verb => verb,
        };
    }
    Some((verb.to_owned(), Some([group, namespace, resource, name, subresource, parts.join("/")])))
}

/// A parsed selector round-trips.
fn selectors_round_trip(selector: &str) {
    if let Ok(fields) = parse_fields(selector) {
        let terms: Vec<String> = fields
            .iter()
            .map(|term| {
                let value = term.value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
                format!("{}{}{value}", term.field, if term.equals { "==" } else { "!=" })
            })
            .collect();
        let written = terms.join(",");
        let again = parse_fields(&written).ok();
        let again = again.as_ref().map(|terms| {
            assert_eq!(terms.len(), fields.len(), "{selector:?}, {written:?}");
            fields.iter().all(|term| terms.contains(term))
        });
        assert_eq!(again, Some(true), "{selector:?}, {written:?}");
    }
    if let Ok(labels) = parse_labels(selector) {
        let written = labels.iter().map(written).collect::<Vec<_>>().join(",");
        assert_eq!(parse_labels(&written), Ok(labels), "{selector:?}, {written:?}");
    }
}

fn written(label: &LabelRequirement) -> String {
    let (key, values) = (&label.key, label.values.join(","));
    match label.operator {
        LabelOperator::In => format!("{key} in ({values})"),
        LabelOperator::NotIn => format!("{key} notin ({values})"),
        LabelOperator::Equals => format!("{key}={values}"),
        LabelOperator::NotEquals => format!("{key}!={values}"),
        LabelOperator::Exists => key.clone(),
        LabelOperator::DoesNotExist => format!("!{key}"),
        LabelOperator::GreaterThan => format!("{key}>{values}"),
        LabelOperator::LessThan => format!("{key}<{values}"),
    }
}
