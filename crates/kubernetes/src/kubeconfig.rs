//! Kubeconfig files, as client-go reads them. They may contain credentials: no error quotes a file.

use kube::config::{Kubeconfig, KubeconfigError};
use serde_json::Value;

use crate::yaml;

/// The lists of a kubeconfig, and the member of their items beside the name.
const LISTS: [(&str, &str); 3] = [("clusters", "cluster"), ("users", "user"), ("contexts", "context")];

/// Parses a kubeconfig: of a repeated key the last value counts, `null` is the zero value, and unknown fields are left out. The
/// error shows only the position.
// client-go: tools/clientcmd/loader.go, Load
pub fn parse(text: &str) -> Result<Kubeconfig, String> {
    as_client_go(text).ok_or_else(|| match Kubeconfig::from_yaml(text) {
        // The parser of kube knows the place of an error.
        Err(error) => unreadable(&error),
        Ok(_) => "it is not a kubeconfig: it has several documents, another kind than Config of v1, or a value that is no text".to_owned(),
    })
}

fn as_client_go(text: &str) -> Option<Kubeconfig> {
    let mut value = yaml::last_value(text.as_bytes()).ok()?;
    if value.is_null() {
        return Some(Kubeconfig::default());
    }
    without_nulls(&mut value);
    let is = |field: &str, expected: &str| match value.get(field) {
        Some(Value::String(text)) => text.is_empty() || text == expected,
        other => other.is_none(),
    };
    if !is("kind", "Config") || !is("apiVersion", "v1") {
        return None;
    }
    for (list, member) in LISTS {
        let items = value.get_mut(list).and_then(Value::as_array_mut);
        for item in items.into_iter().flatten().filter_map(Value::as_object_mut) {
            item.entry("name").or_insert_with(|| "".into());
            let inner = item.entry(member).or_insert_with(|| Value::Object(serde_json::Map::new()));
            if let (true, Some(context)) = (member == "context", inner.as_object_mut()) {
                context.entry("cluster").or_insert_with(|| "".into());
            }
        }
    }
    serde_json::from_value(value).ok()
}

/// Removes the members that are `null`.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

/// Describes why a kubeconfig cannot be parsed. Shows only the position: the parser's error would quote the lines
/// around it, secrets included.
pub fn unreadable(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(error) => match error.location() {
            Some(place) => {
                let (line, column) = (place.line(), place.column());
                format!("it is not a kubeconfig in YAML: syntax error at line {line}, column {column}")
            }
            None => "it is not a kubeconfig in YAML".to_owned(),
        },
        error => error.to_string(),
    }
}
