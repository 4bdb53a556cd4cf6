//! `CreateOptions`, `UpdateOptions` and `DeleteOptions`, as webhooks and match conditions see them.
// apimachinery: pkg/apis/meta/v1/{types,conversion}.go; apiserver: pkg/endpoints/handlers/{create,update,patch,delete}.go

use std::borrow::Cow;

use portcullis_admission::Operation;
use serde_json::{Map, Value};

use crate::go::url::query;

const API_VERSION: &str = "meta.k8s.io/v1";
/// The fields of `DeleteOptions`.
const DELETE_FIELDS: [&str; 6] = [
    "gracePeriodSeconds",
    "preconditions",
    "orphanDependents",
    "propagationPolicy",
    "dryRun",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
];

/// The options of a write, from its query. A patch has those of an update.
pub(super) fn write_options(operation: Operation, raw: &str) -> Value {
    let kind = if operation == Operation::Create { "CreateOptions" } else { "UpdateOptions" };
    let mut options = typed(kind);
    let dry_run = dry_run_values(raw);
    if !dry_run.is_empty() {
        options.insert("dryRun".to_owned(), dry_run.into_iter().map(Cow::into_owned).collect());
    }
    for name in ["fieldManager", "fieldValidation"] {
        if let Some(value) = query::first(raw, name).filter(|value| !value.is_empty()) {
            options.insert(name.to_owned(), value.into_owned().into());
        }
    }
    Value::Object(options)
}

fn dry_run_values(raw: &str) -> Vec<Cow<'_, str>> {
    query::pairs(raw).filter(|(name, _)| name == "dryRun").map(|(_, value)| value).collect()
}

/// The `DeleteOptions` in a query that the API server has accepted.
pub(super) fn delete_options_of_query(raw: &str) -> Map<String, Value> {
    let mut options = Map::new();
    let first = |name| query::first(raw, name);
    let mut set = |name: &str, value: Value| options.insert(name.to_owned(), value);
    if let Some(seconds) = first("gracePeriodSeconds").and_then(|text| text.parse::<i64>().ok()) {
        set("gracePeriodSeconds", seconds.into());
    }
    for name in ["orphanDependents", "ignoreStoreReadErrorWithClusterBreakingPotential"] {
        if let Some(value) = first(name) {
            set(name, bool_of(&value).into());
        }
    }
    if let Some(policy) = first("propagationPolicy") {
        set("propagationPolicy", policy.into_owned().into());
    }
    let dry_run = dry_run_values(raw);
    if !dry_run.is_empty() {
        set("dryRun", dry_run.into_iter().map(Cow::into_owned).collect());
    }
    let preconditions: Map<String, Value> = ["uid", "resourceVersion"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), first(name)?.into_owned().into())))
        .collect();
    if !preconditions.is_empty() {
        set("preconditions", preconditions.into());
    }
    options
}

/// The value of a boolean parameter.
// apimachinery: pkg/runtime/conversion.go, Convert_Slice_string_To_bool
pub(super) fn bool_of(value: &str) -> bool {
    !(value == "0" || value.eq_ignore_ascii_case("false"))
}

/// `DeleteOptions` as webhooks see them.
pub(super) fn reviewed_delete_options(options: &Map<String, Value>) -> Value {
    let mut reviewed = typed("DeleteOptions");
    for field in DELETE_FIELDS {
        if let Some(value) = options.get(field).filter(|value| !value.is_null()) {
            reviewed.insert(field.to_owned(), value.clone());
        }
    }
    Value::Object(reviewed)
}

fn typed(kind: &str) -> Map<String, Value> {
    [("kind", kind), ("apiVersion", API_VERSION)]
        .map(|(name, value)| (name.to_owned(), value.into()))
        .into_iter()
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_of_writes_come_from_the_query() {
        assert_eq!(
            write_options(
                Operation::Create,
                "fieldManager=a%2Fb&fieldValidation=Strict&dryRun=All&pretty=1&fieldManager=c"
            ),
            json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "dryRun": ["All"],
                "fieldManager": "a/b", "fieldValidation": "Strict"})
        );
        assert_eq!(
            write_options(Operation::Update, "force=true"),
            json!({"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1"})
        );
    }

    #[test]
    fn options_of_deletions_come_from_the_query_or_the_body() {
        let query = "gracePeriodSeconds=0&orphanDependents=&propagationPolicy=Orphan&uid=u&dryRun=All&x=y";
        let options = delete_options_of_query(query);
        assert_eq!(
            reviewed_delete_options(&options),
            json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "gracePeriodSeconds": 0,
                "orphanDependents": true, "propagationPolicy": "Orphan", "preconditions": {"uid": "u"}, "dryRun": ["All"]})
        );
        let body =
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "unknown": 1, "gracePeriodSeconds": null});
        assert_eq!(
            reviewed_delete_options(body.as_object().unwrap()),
            json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"})
        );
    }
}
