//! A parsed request for a resource, and its label and field selectors.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use portcullis_go::url::query;
use portcullis_kubernetes::selectors::{
    FieldRequirement, LabelOperator, LabelRequirement, parse_fields, parse_labels,
};
use portcullis_kubernetes::status::Status;
use portcullis_kubernetes::user::UserInfo;
use serde_json::Value;

use super::json::text;
use super::resources::ResourceType;
use super::store::{ObjectKey, ObjectStore};
use super::table;

/// A request for a resource. Parts that the path does not have are empty. It owns its text because a watch outlives the
/// HTTP request.
#[derive(Debug)]
pub(super) struct ResourceRequest {
    pub(super) store: Arc<ObjectStore>,
    pub(super) user: UserInfo,
    pub(super) verb: String,
    pub(super) resource: &'static ResourceType,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) subresource: String,
    pub(super) query: String,
    pub(super) selector: ObjectSelector,
    /// Whether the client accepts a `Table`.
    pub(super) table: bool,
    /// The media type of the body, without parameters.
    pub(super) media_type: String,
    pub(super) body: Bytes,
}

impl ResourceRequest {
    /// The key of the object with this name.
    pub(super) fn key(&self, name: &str) -> ObjectKey {
        ObjectKey { plural: self.resource.plural, namespace: self.namespace.clone(), name: name.to_owned() }
    }

    /// The first value of a query parameter; empty if there is none.
    pub(super) fn parameter(&self, key: &str) -> Cow<'_, str> {
        query::first(&self.query, key).unwrap_or_default()
    }

    /// The object as the client requests it. A `Status` is never a `Table`.
    pub(super) fn render(&self, object: &Value) -> Value {
        if !self.table || text(object, "/kind") != self.resource.kind {
            return object.clone();
        }
        table::of(self.resource, [object], text(object, "/metadata/resourceVersion"), self.store.clock.now())
    }
}

/// A label and a field selector. Unlike kube-apiserver, it selects by any field.
#[derive(Debug)]
pub(super) struct ObjectSelector {
    labels: Vec<LabelRequirement>,
    fields: String,
}

impl ObjectSelector {
    pub(super) fn parse(labels: &str, fields: &str) -> Result<Self, Status> {
        let bad = |error| Status::bad_request(format!("unable to parse requirement: {error}"));
        parse_fields(fields).map_err(bad)?;
        Ok(Self { labels: parse_labels(labels).map_err(bad)?, fields: fields.to_owned() })
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let labels = object.pointer("/metadata/labels");
        let has_field = |required: &FieldRequirement<'_>| {
            let pointer = format!("/{}", required.field.replace('.', "/"));
            (text(object, &pointer) == required.value) == required.equals
        };
        let has_label = |required: &LabelRequirement| {
            let label = labels.and_then(|labels| labels.get(&required.key)?.as_str());
            let is_listed = label.is_some_and(|label| required.values.iter().any(|value| value == label));
            match required.operator {
                LabelOperator::In | LabelOperator::Equals => is_listed,
                LabelOperator::NotIn | LabelOperator::NotEquals => !is_listed,
                LabelOperator::Exists => label.is_some(),
                LabelOperator::DoesNotExist => label.is_none(),
                // Not implemented.
                LabelOperator::GreaterThan | LabelOperator::LessThan => false,
            }
        };
        let fields = parse_fields(&self.fields).unwrap_or_default();
        self.labels.iter().all(has_label) && fields.iter().all(has_field)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
    fn selectors_match_as_in_kubernetes() {
        let object = json!({
            "metadata": {"name": "a", "namespace": "n", "labels": {"app": "web", "tier": "front"}},
            "type": "Opaque",
        });
        for (labels, fields, want) in CASES {
            let got = ObjectSelector::parse(labels, fields).ok().map(|selector| selector.matches(&object));
            assert_eq!(got, *want, "{labels:?} {fields:?}");
        }
    }
}
