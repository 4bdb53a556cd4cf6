//! The options of connections: `PodExecOptions` and the like, which webhooks see as the object.
// apimachinery: pkg/conversion/queryparams; apiserver: pkg/endpoints/handlers/get.go, getRequestOptions

use http::uri::PathAndQuery;
use portcullis_go::quote::Quoted;
use portcullis_go::url::{escape, query};
use serde_json::{Map, Value};

use super::options::bool_of;
use super::subject::Subject;

/// Why webhooks are not shown a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoOptions {
    /// An aggregated API server answers the upgrade, and its options are unknown.
    Foreign,
    /// The API server refuses the query with 400, before it asks its webhooks.
    Refused(String),
}

/// The options object of a connection, with its kind. `path` is the decoded path of the request.
pub(super) fn options(subject: &Subject, path: &str, parts: &str, raw: &str) -> Result<Value, NoOptions> {
    let kind = match (subject.resource.resource.as_str(), subject.subresource.as_str()) {
        ("pods", "exec") => "PodExecOptions",
        ("pods", "attach") => "PodAttachOptions",
        ("pods", "portforward") => "PodPortForwardOptions",
        ("pods", "proxy") => "PodProxyOptions",
        ("services", "proxy") => "ServiceProxyOptions",
        ("nodes", "proxy") => "NodeProxyOptions",
        _ => return Err(NoOptions::Foreign),
    };
    let mut options = Map::new();
    options.insert("kind".to_owned(), kind.into());
    options.insert("apiVersion".to_owned(), "v1".into());
    match kind {
        "PodExecOptions" | "PodAttachOptions" => stream_options(&mut options, kind, raw),
        "PodPortForwardOptions" => {
            let ports = ports(raw).map_err(NoOptions::Refused)?;
            if !ports.is_empty() {
                options.insert("ports".to_owned(), ports.into());
            }
        }
        _ => {
            let path = proxied_path(path, parts);
            if !path.is_empty() {
                options.insert("path".to_owned(), path.into());
            }
        }
    }
    Ok(Value::Object(options))
}

/// The ports, each of which may be a list. What Go refuses here is refused: otherwise a client could choose a form that no webhook
/// sees.
// apimachinery: pkg/apis/meta/v1/conversion.go, Convert_Slice_string_To_Slice_int32
// threat: unreviewed-write
fn ports(raw: &str) -> Result<Vec<Value>, String> {
    let values: Vec<String> = values(raw, "ports").collect();
    values.iter().flat_map(|value| value.split(',')).map(|port| port_of(port).map(Value::from)).collect()
}

// Go: strconv.ParseUint(port, 10, 16)
fn port_of(port: &str) -> Result<u16, String> {
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = port.parse::<u16>().ok().filter(|_| is_number);
    parsed.ok_or_else(|| {
        let cause = if is_number { "value out of range" } else { "invalid syntax" };
        format!("cannot convert to []int32: strconv.ParseUint: parsing {}: {cause}", Quoted(port))
    })
}

fn stream_options(options: &mut Map<String, Value>, kind: &str, raw: &str) {
    for name in ["stdin", "stdout", "stderr", "tty"] {
        if query::first(raw, name).is_some_and(|value| bool_of(&value)) {
            options.insert(name.to_owned(), true.into());
        }
    }
    if let Some(container) = query::first(raw, "container").filter(|name| !name.is_empty()) {
        options.insert("container".to_owned(), container.into_owned().into());
    }
    if kind == "PodExecOptions" {
        let command: Vec<Value> = values(raw, "command").map(Value::from).collect();
        let command = if command.is_empty() { Value::Null } else { command.into() };
        options.insert("command".to_owned(), command);
    }
}

fn values<'a>(raw: &'a str, name: &'a str) -> impl Iterator<Item = String> + 'a {
    query::pairs(raw).filter(move |(key, _)| key == name).map(|(_, value)| value.into_owned())
}

/// The path behind `proxy`, with a slash at its beginning, and at its end if the request's has one.
fn proxied_path(path: &str, parts: &str) -> String {
    let behind = parts.splitn(4, '/').nth(3).unwrap_or_default();
    let mut proxied =
        if behind.is_empty() { String::new() } else { format!("/{}", behind.trim_start_matches('/')) };
    if path.ends_with('/') && !proxied.ends_with('/') {
        proxied.push('/');
    }
    proxied
}

/// The target of a connection with changed options. `None` if they cannot be expressed: another path is another request.
pub(super) fn target(current: &PathAndQuery, before: &Value, after: &Value) -> Option<PathAndQuery> {
    let (old, new) = (before.as_object()?, after.as_object()?);
    if old.get("path") != new.get("path") {
        return None;
    }
    let known = ["stdin", "stdout", "stderr", "tty", "container", "command", "ports"];
    let raw = current.query().unwrap_or_default();
    let mut pairs: Vec<(String, String)> = query::pairs(raw)
        .filter(|(name, _)| !known.contains(&&**name))
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
        .collect();
    for name in known {
        match new.get(name) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(Value::Bool(true)) => pairs.push((name.to_owned(), "true".to_owned())),
            Some(Value::String(text)) => pairs.push((name.to_owned(), text.clone())),
            Some(Value::Array(items)) => {
                for item in items {
                    let text =
                        item.as_str().map(str::to_owned).or_else(|| Some(item.as_i64()?.to_string()))?;
                    pairs.push((name.to_owned(), text));
                }
            }
            Some(_) => return None,
        }
    }
    let escaped = |text: &str| escape(text.as_bytes(), |byte| byte.is_ascii_alphanumeric());
    let pairs: Vec<String> =
        pairs.iter().map(|(name, value)| format!("{}={}", escaped(name), escaped(value))).collect();
    format!("{}?{}", current.path(), pairs.join("&")).parse().ok()
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::json;

    use super::super::subject::Action;
    use super::*;
    use crate::request::info::RequestInfo;

    fn of(target: &str) -> Result<Value, NoOptions> {
        let target: PathAndQuery = target.parse().unwrap();
        let info = RequestInfo::parse(&Method::GET, target.path(), target.query()).unwrap();
        let resource = info.resource().unwrap();
        let subject = Subject::new(Action::Connect, &resource);
        options(&subject, info.path(), resource.parts, target.query().unwrap_or_default())
    }

    #[test]
    fn options_are_those_of_the_query_and_the_path() {
        let pod = "/api/v1/namespaces/n/pods/p";
        let cases = [
            (
                "exec?command=a&command=b%20c&stdin=true&stdout=&tty=0&stderr=False&container=x&y=z",
                json!({"kind": "PodExecOptions", "apiVersion": "v1", "stdin": true, "stdout": true, "container": "x",
                    "command": ["a", "b c"]}),
            ),
            ("exec", json!({"kind": "PodExecOptions", "apiVersion": "v1", "command": null})),
            (
                "attach?tty=yes&command=a",
                json!({"kind": "PodAttachOptions", "apiVersion": "v1", "tty": true}),
            ),
            (
                "portforward?ports=1&ports=2",
                json!({"kind": "PodPortForwardOptions", "apiVersion": "v1", "ports": [1, 2]}),
            ),
            (
                "portforward?ports=80,081&ports=65535,80",
                json!({"kind": "PodPortForwardOptions", "apiVersion": "v1", "ports": [80, 81, 65535, 80]}),
            ),
            ("proxy", json!({"kind": "PodProxyOptions", "apiVersion": "v1"})),
            ("proxy/", json!({"kind": "PodProxyOptions", "apiVersion": "v1", "path": "/"})),
            ("proxy/a/b?c=d", json!({"kind": "PodProxyOptions", "apiVersion": "v1", "path": "/a/b"})),
            ("proxy/a/b/", json!({"kind": "PodProxyOptions", "apiVersion": "v1", "path": "/a/b/"})),
        ];
        for (rest, expected) in cases {
            assert_eq!(of(&format!("{pod}/{rest}")).unwrap(), expected, "{rest}");
        }
        for (ports, port, cause) in [
            ("x", "x", "invalid syntax"),
            ("80,", "", "invalid syntax"),
            ("", "", "invalid syntax"),
            ("%2B80", "+80", "invalid syntax"),
            ("-1", "-1", "invalid syntax"),
            ("8_0", "8_0", "invalid syntax"),
            ("80,65536", "65536", "value out of range"),
            ("99999999999999999999999", "99999999999999999999999", "value out of range"),
        ] {
            let text = format!("cannot convert to []int32: strconv.ParseUint: parsing \"{port}\": {cause}");
            assert_eq!(of(&format!("{pod}/portforward?ports={ports}")), Err(NoOptions::Refused(text)));
        }
        let expected = json!({"kind": "NodeProxyOptions", "apiVersion": "v1", "path": "/metrics"});
        assert_eq!(of("/api/v1/nodes/n/proxy/metrics").unwrap(), expected);
    }

    #[test]
    fn changed_options_change_the_query_only() {
        let current: PathAndQuery = "/p?command=a&stdin=true&other=1".parse().unwrap();
        let before = json!({"command": ["a"], "stdin": true});
        let after = json!({"command": ["b c", "&"], "container": "x"});
        let changed = target(&current, &before, &after).unwrap();
        assert_eq!(changed.as_str(), "/p?other=1&container=x&command=b%20c&command=%26");
        assert_eq!(target(&current, &before, &json!({"path": "/x"})), None);
    }
}
