//! `CreateOptions`, `UpdateOptions` and `DeleteOptions`, as webhooks and match conditions see them.
// apimachinery: pkg/apis/meta/v1/{types,conversion}.go; apiserver: pkg/endpoints/handlers/{create,update,patch,delete}.go

use std::borrow::Cow;

use bytes::Bytes;
use portcullis_admission::Operation;
use portcullis_go::url::query;
use portcullis_kubernetes::encoding::Envelope;
use prost::Message;
use serde_json::{Map, Value};

use super::document::{metadata, parse_unambiguous};

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

/// Whether the client's request, which the API server has accepted, stores nothing.
pub(super) fn is_dry_run(raw: &str) -> bool {
    dry_run_values(raw).iter().any(|value| !value.is_empty())
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
        // apimachinery: pkg/apis/meta/v1/conversion.go, Convert_url_Values_To_v1_DeleteOptions
        .filter_map(|name| Some((name.to_owned(), first(name).filter(|value| !value.is_empty())?)))
        .map(|(name, value)| (name, value.into_owned().into()))
        .collect();
    if !preconditions.is_empty() {
        set("preconditions", preconditions.into());
    }
    options
}

/// The `DeleteOptions` in a body: JSON that every parser reads alike, or protobuf.
pub(super) fn delete_options_of_body(body: &[u8]) -> Result<Map<String, Value>, String> {
    if let Some(Envelope { raw, .. }) = Envelope::read(body) {
        let message = DeleteOptionsMessage::decode(raw.as_slice()).map_err(|error| error.to_string())?;
        // A field that is not known here would be lost.
        if message.encode_to_vec() != raw {
            return Err("the gateway does not know all fields of the DeleteOptions".to_owned());
        }
        return Ok(message.into());
    }
    match parse_unambiguous(body) {
        Ok(Value::Object(options)) => {
            let is_odd = |key: &String| {
                DELETE_FIELDS.iter().any(|field| key != field && key.eq_ignore_ascii_case(field))
            };
            match options.keys().find(|key| is_odd(key)) {
                Some(key) => Err(format!("{key:?} differs from a field of DeleteOptions in case only")),
                None => Ok(options),
            }
        }
        Ok(_) => Err("the DeleteOptions are not an object".to_owned()),
        Err(error) => Err(format!("the gateway reads DeleteOptions in JSON and protobuf only: {error}")),
    }
}

// apimachinery: pkg/apis/meta/v1/generated.proto, DeleteOptions
#[derive(Clone, PartialEq, Message)]
struct DeleteOptionsMessage {
    #[prost(int64, optional, tag = "1")]
    grace_period_seconds: Option<i64>,
    #[prost(message, optional, tag = "2")]
    preconditions: Option<PreconditionsMessage>,
    #[prost(bool, optional, tag = "3")]
    orphan_dependents: Option<bool>,
    #[prost(string, optional, tag = "4")]
    propagation_policy: Option<String>,
    #[prost(string, repeated, tag = "5")]
    dry_run: Vec<String>,
    #[prost(bool, optional, tag = "6")]
    ignore_store_read_error: Option<bool>,
}

// apimachinery: pkg/apis/meta/v1/generated.proto, Preconditions
#[derive(Clone, PartialEq, Message)]
struct PreconditionsMessage {
    #[prost(string, optional, tag = "1")]
    uid: Option<String>,
    #[prost(string, optional, tag = "2")]
    resource_version: Option<String>,
}

impl From<DeleteOptionsMessage> for Map<String, Value> {
    fn from(message: DeleteOptionsMessage) -> Self {
        let given = message.preconditions.map(|given| {
            let fields = [("uid", given.uid), ("resourceVersion", given.resource_version)];
            let given: Self = fields
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?.into())))
                .collect();
            Value::Object(given)
        });
        let [grace, preconditions, orphan, policy, dry_run, ignore] = DELETE_FIELDS;
        let dry_run_values = (!message.dry_run.is_empty()).then(|| Value::from(message.dry_run));
        let fields = [
            (grace, message.grace_period_seconds.map(Value::from)),
            (preconditions, given),
            (orphan, message.orphan_dependents.map(Value::from)),
            (policy, message.propagation_policy.map(Value::from)),
            (dry_run, dry_run_values),
            (ignore, message.ignore_store_read_error.map(Value::from)),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

/// The value of a boolean parameter.
// apimachinery: pkg/runtime/conversion.go, Convert_Slice_string_To_bool
pub(super) fn bool_of(value: &str) -> bool {
    // Go: strings.EqualFold, in which a long s is an s
    !(value == "0" || value.replace('ſ', "s").eq_ignore_ascii_case("false"))
}

/// `DeleteOptions` in JSON that delete this object alone, as it is.
pub(super) fn pinned_options(mut options: Map<String, Value>, old: &Value) -> Option<Bytes> {
    let pins = ["uid", "resourceVersion"].map(|field| (field.to_owned(), metadata(old, field).into()));
    let preconditions = options.entry("preconditions").or_insert(Value::Null);
    if preconditions.is_null() {
        *preconditions = Value::Object(Map::new());
    }
    preconditions.as_object_mut()?.extend(pins);
    options.entry("kind").or_insert_with(|| "DeleteOptions".into());
    options.entry("apiVersion").or_insert_with(|| "v1".into());
    serde_json::to_vec(&options).ok().map(Bytes::from)
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
    fn options_in_protobuf_are_read_if_all_fields_are_known() {
        let message = DeleteOptionsMessage {
            grace_period_seconds: Some(0),
            preconditions: Some(PreconditionsMessage { uid: Some("u".to_owned()), resource_version: None }),
            propagation_policy: Some("Orphan".to_owned()),
            dry_run: vec!["All".to_owned()],
            ..DeleteOptionsMessage::default()
        };
        let body = Envelope::of("v1", "DeleteOptions", &message).to_bytes();
        assert_eq!(
            Value::Object(delete_options_of_body(&body).unwrap()),
            json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "u"}, "propagationPolicy": "Orphan", "dryRun": ["All"]})
        );
        // Field 7 does not exist yet.
        let mut newer = Envelope::of("v1", "DeleteOptions", &message);
        newer.raw.extend([0x38, 1]);
        assert!(delete_options_of_body(&newer.to_bytes()).is_err());
        assert!(delete_options_of_body(b"{\"dryrun\": []}").is_err());
        assert!(delete_options_of_body(b"null").is_err() && delete_options_of_body(b"a: b").is_err());
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
        assert!(delete_options_of_query("uid=&resourceVersion=").is_empty());
        let body =
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "unknown": 1, "gracePeriodSeconds": null});
        assert_eq!(
            reviewed_delete_options(body.as_object().unwrap()),
            json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"})
        );
    }
}
