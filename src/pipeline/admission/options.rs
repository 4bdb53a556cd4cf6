//! `CreateOptions`, `UpdateOptions` and `DeleteOptions`, as webhooks and match conditions see them.
// apimachinery: pkg/apis/meta/v1/{types,conversion}.go; apiserver: pkg/endpoints/handlers/{create,update,patch,delete}.go

use std::borrow::Cow;

use bytes::Bytes;
use portcullis_admission::{GroupVersionResource, Operation};
use portcullis_go::url::query;
use portcullis_kubernetes::encoding::Envelope;
use prost::Message;
use serde_json::{Map, Value};

use super::document::{metadata, parse_unambiguous};

const API_VERSION: &str = "meta.k8s.io/v1";
const GRACE_PERIOD: &str = "gracePeriodSeconds";
const PRECONDITIONS: &str = "preconditions";
/// The fields of `DeleteOptions`.
const DELETE_FIELDS: [&str; 6] = [
    GRACE_PERIOD,
    PRECONDITIONS,
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
    if let Some(seconds) = first(GRACE_PERIOD).and_then(|text| text.parse::<i64>().ok()) {
        set(GRACE_PERIOD, seconds.into());
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
        set(PRECONDITIONS, preconditions.into());
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
    let preconditions = options.entry(PRECONDITIONS).or_insert(Value::Null);
    if preconditions.is_null() {
        *preconditions = Value::Object(Map::new());
    }
    preconditions.as_object_mut()?.extend(pins);
    options.entry("kind").or_insert_with(|| "DeleteOptions".into());
    options.entry("apiVersion").or_insert_with(|| "v1".into());
    serde_json::to_vec(&options).ok().map(Bytes::from)
}

/// `DeleteOptions` of the deletion of `old` as webhooks see them: with what the API server has filled in before it asks them.
pub(super) fn reviewed_delete_options(
    options: &Map<String, Value>,
    resource: &GroupVersionResource,
    old: &Value,
) -> Value {
    let mut reviewed = typed("DeleteOptions");
    for field in DELETE_FIELDS {
        if let Some(value) = options.get(field).filter(|value| !value.is_null()) {
            reviewed.insert(field.to_owned(), value.clone());
        }
    }
    match (resource.group.as_str(), resource.resource.as_str()) {
        ("", "namespaces") | ("apiextensions.k8s.io", "customresourcedefinitions") => {
            fill_in_uid(&mut reviewed, old);
        }
        ("", "pods") => fill_in_grace_period(&mut reviewed, old),
        _ => replace_negative_grace_period(&mut reviewed),
    }
    Value::Object(reviewed)
}

/// Namespaces and definitions of custom resources are deleted by their UID.
// kubernetes: pkg/registry/core/namespace/storage/storage.go, Delete
// apiextensions-apiserver: pkg/registry/customresourcedefinition/etcd.go, Delete
fn fill_in_uid(options: &mut Map<String, Value>, old: &Value) {
    let preconditions = options.entry(PRECONDITIONS).or_insert_with(|| Value::Object(Map::new()));
    if let Some(preconditions) = preconditions.as_object_mut() {
        let uid = preconditions.entry("uid").or_insert(Value::Null);
        if uid.is_null() {
            *uid = metadata(old, "uid").into();
        }
    }
}

// apiserver: pkg/registry/rest/delete.go, BeforeDelete
fn replace_negative_grace_period(options: &mut Map<String, Value>) {
    if let Some(seconds) = options.get_mut(GRACE_PERIOD)
        && seconds.as_i64().is_some_and(|seconds| seconds < 0)
    {
        *seconds = 1.into();
    }
}

/// A pod has the time that it asks for, unless it does not run.
// kubernetes: pkg/registry/core/pod/strategy.go, CheckGracefulDelete
fn fill_in_grace_period(options: &mut Map<String, Value>, pod: &Value) {
    replace_negative_grace_period(options);
    if !metadata(pod, "deletionTimestamp").is_empty() {
        return;
    }
    let text = |of: &str, field: &str| pod.get(of).and_then(|of| of.get(field)?.as_str()).unwrap_or_default();
    let runs =
        !text("spec", "nodeName").is_empty() && !matches!(text("status", "phase"), "Failed" | "Succeeded");
    let own = || pod.get("spec").and_then(|spec| spec.get("terminationGracePeriodSeconds")?.as_i64());
    let asked = options.get(GRACE_PERIOD).and_then(Value::as_i64).or_else(own).unwrap_or_default();
    let seconds = match asked {
        _ if !runs => 0,
        ..0 => 1,
        asked => asked,
    };
    options.insert(GRACE_PERIOD.to_owned(), seconds.into());
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
            reviewed(&options, "configmaps", &json!({})),
            json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "gracePeriodSeconds": 0,
                "orphanDependents": true, "propagationPolicy": "Orphan", "preconditions": {"uid": "u"}, "dryRun": ["All"]})
        );
        assert!(delete_options_of_query("uid=&resourceVersion=").is_empty());
        let body =
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "unknown": 1, "gracePeriodSeconds": null});
        assert_eq!(
            reviewed(body.as_object().unwrap(), "configmaps", &json!({})),
            json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"})
        );
    }

    fn reviewed(options: &Map<String, Value>, resource: &str, old: &Value) -> Value {
        let group = if resource == "customresourcedefinitions" { "apiextensions.k8s.io" } else { "" };
        let resource = GroupVersionResource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
        };
        reviewed_delete_options(options, &resource, old)
    }

    #[test]
    fn the_grace_period_of_a_pod_is_filled_in() {
        let running = json!({"spec": {"nodeName": "n", "terminationGracePeriodSeconds": 30}, "status": {"phase": "Running"}});
        let with = |pod: &Value, more: Value| {
            let mut pod = pod.clone();
            for (field, value) in more.as_object().unwrap() {
                for (name, value) in value.as_object().unwrap() {
                    pod[field][name] = value.clone();
                }
            }
            pod
        };
        let table = [
            (running.clone(), json!({}), json!(30)),
            (running.clone(), json!({"gracePeriodSeconds": 5}), json!(5)),
            (running.clone(), json!({"gracePeriodSeconds": 0}), json!(0)),
            (running.clone(), json!({"gracePeriodSeconds": -3}), json!(1)),
            (with(&running, json!({"spec": {"terminationGracePeriodSeconds": -3}})), json!({}), json!(1)),
            (with(&running, json!({"spec": {"terminationGracePeriodSeconds": null}})), json!({}), json!(0)),
            (with(&running, json!({"spec": {"nodeName": ""}})), json!({"gracePeriodSeconds": 5}), json!(0)),
            (with(&running, json!({"status": {"phase": "Failed"}})), json!({}), json!(0)),
            (with(&running, json!({"status": {"phase": "Succeeded"}})), json!({}), json!(0)),
            (
                with(&running, json!({"metadata": {"deletionTimestamp": "x"}})),
                json!({"gracePeriodSeconds": 5}),
                json!(5),
            ),
            (with(&running, json!({"metadata": {"deletionTimestamp": "x"}})), json!({}), Value::Null),
        ];
        for (pod, options, expected) in table {
            let reviewed = reviewed(options.as_object().unwrap(), "pods", &pod);
            assert_eq!(reviewed["gracePeriodSeconds"], expected, "{pod} {options}");
        }
        let negative = json!({"gracePeriodSeconds": -3});
        let reviewed = |resource| reviewed(negative.as_object().unwrap(), resource, &json!({}));
        assert_eq!(reviewed("configmaps")["gracePeriodSeconds"], 1);
        assert_eq!(reviewed("namespaces")["gracePeriodSeconds"], -3);
    }

    #[test]
    fn the_uid_of_a_namespace_is_a_precondition() {
        let old = json!({"metadata": {"uid": "u"}});
        let version = json!({"preconditions": {"resourceVersion": "3"}});
        for resource in ["namespaces", "customresourcedefinitions"] {
            assert_eq!(reviewed(&Map::new(), resource, &old)["preconditions"], json!({"uid": "u"}));
            assert_eq!(
                reviewed(version.as_object().unwrap(), resource, &old)["preconditions"],
                json!({"resourceVersion": "3", "uid": "u"})
            );
        }
        assert_eq!(reviewed(&Map::new(), "configmaps", &old)["preconditions"], Value::Null);
    }
}
