//! Table output, so that `kubectl get` shows the columns of a real cluster
//! (`kubernetes/pkg/printers/internalversion/printers.go`).

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::json::{at, set, text};
use super::resources::Resource;

/// How much of each object a row carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Include {
    None,
    Metadata,
    Object,
}

/// A wish for Table output.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    include: Include,
}

impl Table {
    /// Whether an `Accept` header and `?includeObject=` ask for a table, and of what kind.
    pub(super) fn wanted(accept: &str, include: &str) -> Option<Self> {
        let first = accept.split(',').next().unwrap_or_default();
        let parameter = |wanted: &str| first.split(';').any(|part| part.trim() == wanted);
        let include = match include {
            "None" => Include::None,
            "Object" => Include::Object,
            _ => Include::Metadata,
        };
        (parameter("as=Table") && parameter("v=v1") && parameter("g=meta.k8s.io")).then_some(Self { include })
    }

    /// The table of some objects. `columns` is false after the first event of a watch.
    pub(super) fn render<'a>(
        self,
        resource: &Resource,
        objects: impl Iterator<Item = &'a Value>,
        revision: Option<&str>,
        columns: bool,
        now: Timestamp,
    ) -> Value {
        let names = columns_of(resource);
        let definitions = names.iter().filter(|_| columns).map(|name| {
            json!({
                "name": name, "type": if *name == "Data" || *name == "Secrets" { "integer" } else { "string" },
                "format": if *name == "Name" { "name" } else { "" }, "description": "", "priority": 0,
            })
        });
        let rows = objects.map(|object| {
            let cells = names.iter().map(|name| cell(name, object, now)).collect::<Vec<_>>();
            let mut row = json!({"cells": cells});
            match self.include {
                Include::None => {}
                Include::Object => set(&mut row, "/object", object.clone()),
                Include::Metadata => {
                    set(
                        &mut row,
                        "/object",
                        json!({
                            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                            "metadata": at(object, "/metadata"),
                        }),
                    );
                }
            }
            row
        });
        let metadata = revision.map_or_else(|| json!({}), |revision| json!({"resourceVersion": revision}));
        json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            "columnDefinitions": definitions.collect::<Vec<_>>(), "rows": rows.collect::<Vec<_>>(),
        })
    }
}

fn columns_of(resource: &Resource) -> &'static [&'static str] {
    match resource.plural {
        "configmaps" => &["Name", "Data", "Age"],
        "events" => &["Last Seen", "Type", "Reason", "Object", "Message"],
        "namespaces" => &["Name", "Status", "Age"],
        "secrets" => &["Name", "Type", "Data", "Age"],
        "serviceaccounts" => &["Name", "Secrets", "Age"],
        "certificatesigningrequests" => {
            &["Name", "Age", "SignerName", "Requestor", "RequestedDuration", "Condition"]
        }
        "leases" => &["Name", "Holder", "Age"],
        _ => &["Name", "Age"],
    }
}

fn cell(column: &str, object: &Value, now: Timestamp) -> Value {
    let count = |field: &str| {
        let field = object.get(field).unwrap_or(&Value::Null);
        field
            .as_object()
            .map(serde_json::Map::len)
            .or_else(|| field.as_array().map(Vec::len))
            .unwrap_or_default()
    };
    match column {
        "Name" => at(object, "/metadata/name").clone(),
        "Age" => age(at(object, "/metadata/creationTimestamp"), now).into(),
        "Data" => (count("data") + count("binaryData")).into(),
        "Secrets" => count("secrets").into(),
        "Status" => at(object, "/status/phase").clone(),
        "Type" => at(object, "/type").clone(),
        "SignerName" => at(object, "/spec/signerName").clone(),
        "Requestor" => at(object, "/spec/username").clone(),
        "RequestedDuration" => match at(object, "/spec/expirationSeconds").as_u64() {
            Some(seconds) => human(seconds).into(),
            None => "<none>".into(),
        },
        "Condition" => condition(object).into(),
        "Holder" => at(object, "/spec/holderIdentity").clone(),
        "Last Seen" => age(at(object, "/lastTimestamp"), now).into(),
        "Reason" => at(object, "/reason").clone(),
        "Object" => {
            let involved = at(object, "/involvedObject");
            let text = |field: &str| text(involved, field);
            format!("{}/{}", text("/kind").to_lowercase(), text("/name")).into()
        }
        "Message" => at(object, "/message").clone(),
        _ => Value::Null,
    }
}

/// The words of kubectl's CSR column.
fn condition(object: &Value) -> String {
    let status = at(object, "/status");
    let types = at(status, "/conditions").as_array().into_iter().flatten();
    let mut words = types.filter_map(|condition| at(condition, "/type").as_str()).collect::<Vec<_>>();
    if words.is_empty() {
        words.push("Pending");
    }
    if at(status, "/certificate").as_str().is_some_and(|certificate| !certificate.is_empty()) {
        words.push("Issued");
    }
    words.join(",")
}

fn age(time: &Value, now: Timestamp) -> String {
    match time.as_str().and_then(|text| text.parse::<Timestamp>().ok()) {
        Some(time) => human(u64::try_from(now.as_second() - time.as_second()).unwrap_or_default()),
        None => "<unknown>".to_owned(),
    }
}

/// A duration as kubectl shows ages.
// apimachinery: pkg/util/duration/duration.go, HumanDuration
fn human(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |big: u64, unit: char, small: u64, small_unit: char| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{small_unit}") }
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        () if hours < 48 => format!("{hours}h"),
        () if hours < 192 => two(days, 'd', hours % 24, 'h'),
        () if days < 730 => format!("{days}d"),
        () if days < 2920 => two(days / 365, 'y', days % 365, 'd'),
        () => format!("{}y", days / 365),
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
            (125, "2m5s"),
            (3600, "60m"),
            (10_800, "3h"),
            (12_000, "3h20m"),
            (86_400, "24h"),
            (180_000, "2d2h"),
            (864_000, "10d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
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
            assert_eq!(Table::wanted(accept, "").is_some(), want, "{accept}");
        }
    }
}
