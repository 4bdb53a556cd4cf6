//! Which objects of a collection are meant.

use serde_json::Value;

use super::ask::Ask;
use super::json::{at, text};
use crate::request::selector::{
    FieldRequirement, LabelOperator, LabelRequirement, parse_fields, parse_labels,
};
use crate::status::Status;

/// A label and a field selector. Owned text, since watches outlive their request.
#[derive(Debug, Clone, Default)]
pub(super) struct Selector {
    labels: Vec<LabelRequirement>,
    fields: String,
}

impl Selector {
    pub(super) fn parse(ask: &Ask<'_>) -> Result<Self, Status> {
        let bad = |error| Status::bad_request(format!("unable to parse requirement: {error}"));
        let labels = parse_labels(&ask.parameter("labelSelector")).map_err(bad)?;
        let fields = ask.parameter("fieldSelector").into_owned();
        for FieldRequirement { field, .. } in parse_fields(&fields).map_err(bad)? {
            if !["metadata.name", "metadata.namespace"].contains(&field)
                && !ask.resource.fields.contains(&field)
            {
                return Err(Status::bad_request(format!("field label not supported: {field}")));
            }
        }
        Ok(Self { labels, fields })
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let labels = at(object, "/metadata/labels");
        self.labels
            .iter()
            .all(|wanted| accepts(wanted, labels.get(&wanted.key).and_then(Value::as_str)))
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
    let compare = |ordering| {
        let (label, value) = (
            label.and_then(|label| label.parse::<i64>().ok()),
            wanted.values.first(),
        );
        label
            .zip(value.and_then(|value| value.parse().ok()))
            .is_some_and(|(label, value)| label.cmp(&value) == ordering)
    };
    match wanted.operator {
        LabelOperator::In | LabelOperator::Equals => listed,
        LabelOperator::NotIn | LabelOperator::NotEquals => !listed,
        LabelOperator::Exists => label.is_some(),
        LabelOperator::DoesNotExist => label.is_none(),
        LabelOperator::GreaterThan => compare(std::cmp::Ordering::Greater),
        LabelOperator::LessThan => compare(std::cmp::Ordering::Less),
    }
}
