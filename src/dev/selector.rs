//! Which objects of a collection are meant. Any field can be selected by; a real server knows a few of each kind.

use serde_json::Value;

use super::ask::Ask;
use super::json::{at, text};
use crate::http::status::Status;
use crate::request::selector::{LabelOperator, LabelRequirement, parse_fields, parse_labels};

/// A label and a field selector. Owned text, since watches outlive their request.
#[derive(Debug, Clone, Default)]
pub(super) struct Selector {
    labels: Vec<LabelRequirement>,
    fields: String,
}

impl Selector {
    pub(super) fn parse(ask: &Ask<'_>) -> Result<Self, Status> {
        Self::read(&ask.parameter("labelSelector"), &ask.parameter("fieldSelector"))
    }

    fn read(labels: &str, fields: &str) -> Result<Self, Status> {
        let bad = |error| Status::bad_request(format!("unable to parse requirement: {error}"));
        parse_fields(fields).map_err(bad)?;
        Ok(Self { labels: parse_labels(labels).map_err(bad)?, fields: fields.to_owned() })
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let labels = at(object, "/metadata/labels");
        self.labels.iter().all(|wanted| accepts(wanted, labels.get(&wanted.key).and_then(Value::as_str)))
            && parse_fields(&self.fields).is_ok_and(|fields| {
                fields.iter().all(|wanted| {
                    let path = format!("/{}", wanted.field.replace('.', "/"));
                    (text(object, &path) == wanted.value) == wanted.equals
                })
            })
    }
}

fn accepts(wanted: &LabelRequirement, label: Option<&str>) -> bool {
    let listed = label.is_some_and(|label| wanted.values.iter().any(|value| value == label));
    match wanted.operator {
        LabelOperator::In | LabelOperator::Equals => listed,
        LabelOperator::NotIn | LabelOperator::NotEquals => !listed,
        LabelOperator::Exists => label.is_some(),
        LabelOperator::DoesNotExist => label.is_none(),
        // Numbers in labels are left to real servers.
        LabelOperator::GreaterThan | LabelOperator::LessThan => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const CASES: &[(&str, &str, Option<bool>)] = &[
        ("", "", Some(true)),
        ("app=web", "", Some(true)),
        ("app==web,tier!=back", "", Some(true)),
        ("app=db", "", Some(false)),
        ("none!=x", "", Some(true)),
        ("app in (db, web)", "", Some(true)),
        ("app notin (db,web),tier", "", Some(false)),
        ("tier,!none", "", Some(true)),
        ("!tier", "", Some(false)),
        ("none", "", Some(false)),
        ("app in db", "", None),
        ("", "metadata.name=a,metadata.namespace=n", Some(true)),
        ("", "metadata.name!=a", Some(false)),
        ("", "type=Opaque", Some(true)),
        ("", "type", None),
    ];

    #[test]
    fn selectors_choose_as_kubernetes_does() {
        let object = json!({
            "metadata": {"name": "a", "namespace": "n", "labels": {"app": "web", "tier": "front"}},
            "type": "Opaque",
        });
        for (labels, fields, want) in CASES {
            let got = Selector::read(labels, fields).ok().map(|selector| selector.matches(&object));
            assert_eq!(got, *want, "{labels:?} {fields:?}");
        }
    }
}
