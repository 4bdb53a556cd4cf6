//! Table output, so that `kubectl get` shows the columns of a real cluster
//! (`kubernetes/pkg/printers/internalversion/printers.go`).

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::json::{at, text};
use super::resources::Resource;

/// Whether an `Accept` header asks for a table.
pub(super) fn wanted(accept: &str) -> bool {
    let first = accept.split(',').next().unwrap_or_default();
    let parameter = |wanted: &str| first.split(';').any(|part| part.trim() == wanted);
    parameter("as=Table") && parameter("v=v1") && parameter("g=meta.k8s.io")
}

/// The table of some objects. Every row carries its whole object, whatever the client asked for.
pub(super) fn of<'a>(
    resource: &Resource,
    objects: impl Iterator<Item = &'a Value>,
    revision: &str,
    now: Timestamp,
) -> Value {
    let columns = resource.columns();
    let definitions = columns.iter().map(|name| {
        let kind = if ["Data", "Secrets"].contains(name) { "integer" } else { "string" };
        let format = if *name == "Name" { "name" } else { "" };
        json!({"name": name, "type": kind, "format": format, "description": "", "priority": 0})
    });
    let rows = objects.map(|object| {
        let cells = columns.iter().map(|name| cell(name, object, now)).collect::<Vec<_>>();
        json!({"cells": cells, "object": object})
    });
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": revision},
        "columnDefinitions": definitions.collect::<Vec<_>>(), "rows": rows.collect::<Vec<_>>(),
    })
}

/// The table of one object.
pub(super) fn of_one(resource: &Resource, object: &Value, now: Timestamp) -> Value {
    of(resource, std::iter::once(object), text(object, "/metadata/resourceVersion"), now)
}

fn cell(column: &str, object: &Value, now: Timestamp) -> Value {
    let count = |field: &str| {
        let field = at(object, field);
        field.as_object().map_or_else(|| field.as_array().map_or(0, Vec::len), serde_json::Map::len)
    };
    match column {
        "Name" => at(object, "/metadata/name").clone(),
        "Age" => match text(object, "/metadata/creationTimestamp").parse::<Timestamp>() {
            Ok(time) => human(u64::try_from(now.as_second() - time.as_second()).unwrap_or_default()).into(),
            Err(_) => "<unknown>".into(),
        },
        "Data" => (count("/data") + count("/binaryData")).into(),
        "Secrets" => count("/secrets").into(),
        "Role" => format!("{}/{}", text(object, "/roleRef/kind"), text(object, "/roleRef/name")).into(),
        "Status" => at(object, "/status/phase").clone(),
        "Type" => at(object, "/type").clone(),
        "SignerName" => at(object, "/spec/signerName").clone(),
        "Requestor" => at(object, "/spec/username").clone(),
        "RequestedDuration" => {
            at(object, "/spec/expirationSeconds").as_u64().map_or_else(|| "<none>".to_owned(), human).into()
        }
        "Condition" => {
            let conditions = at(object, "/status/conditions").as_array().into_iter().flatten();
            let types = conditions.map(|condition| text(condition, "/type")).collect::<Vec<_>>();
            if types.is_empty() { "Pending".into() } else { types.join(",").into() }
        }
        _ => Value::Null,
    }
}

/// A duration as kubectl shows ages, cut to its largest unit.
fn human(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..10_800 => format!("{}m", seconds / 60),
        10_800..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectl_writes_them() {
        for (seconds, want) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (3600, "60m"),
            (10_800, "3h"),
            (86_400, "24h"),
            (864_000, "10d"),
        ] {
            assert_eq!(human(seconds), want, "{seconds}");
        }
    }

    #[test]
    fn only_the_first_choice_decides_on_a_table() {
        for (accept, want) in [
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", true),
            ("application/json;as=Table;v=v1beta1;g=meta.k8s.io", false),
            ("application/json, application/json;as=Table;v=v1;g=meta.k8s.io", false),
            ("", false),
        ] {
            assert_eq!(wanted(accept), want, "{accept}");
        }
    }
}
