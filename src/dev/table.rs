//! `Table` responses, which give `kubectl get` the columns of a real cluster.
// kubernetes: pkg/printers/internalversion/printers.go

use portcullis_go::time::Time;
use portcullis_system::clock::UnixTime;
use serde_json::{Map, Value, json};

use super::json::text;
use super::resources::ResourceType;

/// Whether the first media type of an `Accept` header is a `Table`.
pub(super) fn is_requested(accept: &str) -> bool {
    let first = accept.split(',').next().unwrap_or_default();
    ["as=Table", "v=v1", "g=meta.k8s.io"]
        .iter()
        .all(|wanted| first.split(';').any(|parameter| parameter.trim() == *wanted))
}

/// The `Table` of some objects. Every row has its whole object, whatever the client's `includeObject`.
pub(super) fn of<'a>(
    resource: &ResourceType,
    objects: impl IntoIterator<Item = &'a Value>,
    revision: &str,
    now: UnixTime,
) -> Value {
    let definitions = resource.columns.iter().map(|name| {
        let kind = if ["Data", "Secrets"].contains(name) { "integer" } else { "string" };
        let format = if *name == "Name" { "name" } else { "" };
        json!({"name": name, "type": kind, "format": format, "description": "", "priority": 0})
    });
    let rows = objects.into_iter().map(|object| {
        let cells = resource.columns.iter().map(|name| cell(name, object, now)).collect::<Vec<_>>();
        json!({"cells": cells, "object": object})
    });
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": revision},
        "columnDefinitions": definitions.collect::<Vec<_>>(), "rows": rows.collect::<Vec<_>>(),
    })
}

fn cell(column: &str, object: &Value, now: UnixTime) -> Value {
    let list = |pointer: &str| object.pointer(pointer).and_then(Value::as_array);
    let entries = |pointer: &str| object.pointer(pointer).and_then(Value::as_object).map_or(0, Map::len);
    let field = |pointer: &str| object.pointer(pointer).cloned().unwrap_or_default();
    match column {
        "Name" => field("/metadata/name"),
        "Age" => match Time::parse_rfc3339(text(object, "/metadata/creationTimestamp")) {
            Some(created) => age(now.saturating_sub(created.since_epoch()).as_secs()).into(),
            None => "<unknown>".into(),
        },
        "Data" => (entries("/data") + entries("/binaryData")).into(),
        "Secrets" => list("/secrets").map_or(0, Vec::len).into(),
        "Role" => format!("{}/{}", text(object, "/roleRef/kind"), text(object, "/roleRef/name")).into(),
        "Status" => field("/status/phase"),
        "Type" => field("/type"),
        "SignerName" => field("/spec/signerName"),
        "Requestor" => field("/spec/username"),
        "RequestedDuration" => field("/spec/expirationSeconds").as_u64().map_or("<none>".into(), age).into(),
        "Condition" => {
            let conditions = list("/status/conditions").into_iter().flatten();
            let types = conditions.map(|condition| text(condition, "/type")).collect::<Vec<_>>();
            if types.is_empty() { "Pending".into() } else { types.join(",").into() }
        }
        _ => Value::Null,
    }
}

/// An age in kubectl's units, cut to the largest.
fn age(seconds: u64) -> String {
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
    fn ages_have_the_units_of_kubectl() {
        for (seconds, want) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (3600, "60m"),
            (10_800, "3h"),
            (86_400, "24h"),
            (864_000, "10d"),
        ] {
            assert_eq!(age(seconds), want, "{seconds}");
        }
    }

    #[test]
    fn only_the_first_media_type_can_request_a_table() {
        for (accept, want) in [
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", true),
            ("application/json;as=Table;v=v1beta1;g=meta.k8s.io", false),
            ("application/json, application/json;as=Table;v=v1;g=meta.k8s.io", false),
            ("", false),
        ] {
            assert_eq!(is_requested(accept), want, "{accept}");
        }
    }
}
