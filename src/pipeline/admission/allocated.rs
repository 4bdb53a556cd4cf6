//! What the API server decides anew in each request, so that a dry run shows other values than the write stores: the UID, times,
//! generated names, the addresses and ports of a Service.
//!
//! | what | where |
//! |---|---|
//! | `uid`, `creationTimestamp`, `resourceVersion`, `generation` | `metadata` |
//! | the object's own UID and name, of a new object | a Job's selector and the labels of its pods, which are its own if it has none |
//! | the current time | conditions of an APIService or a CertificateSigningRequest, `lastPhaseTransitionTime` of a PersistentVolume, `timeAdded` of a DeviceTaintRule |
//! | `kube-api-access-XXXXX` | the volume of a Pod with the token of its ServiceAccount |
//! | `clusterIP`, `clusterIPs`, `nodePort`, `healthCheckNodePort` | a Service. A dry run makes up node ports that a write would refuse |
//! | entries of `resources` that the client does not set | a new Pod as a whole, from those of its containers, after the mutating phase |
// kubernetes: pkg/registry, plugin/pkg/admission/serviceaccount/admission.go, pkg/registry/core/service/portallocator/operation.go

use portcullis_go::time::Time;
use prost::encoding::encode_varint;
use serde_json::{Map, Value};

use super::document::{MANAGED_FIELDS, SERVER_FIELDS, managed_fields, metadata};
use super::reviewer::kind_of;
use super::splice::Encoding;

/// The fields of a Service that the API server allocates, and how protobuf tags those that are numbers.
const ALLOCATED: [&str; 4] = ["clusterIP", "clusterIPs", NODE_PORT.0, HEALTH_CHECK_PORT.0];
// api: core/v1/generated.proto, ServicePort and ServiceSpec
const NODE_PORT: (&str, u8) = ("nodePort", 5 << 3);
const HEALTH_CHECK_PORT: (&str, u8) = ("healthCheckNodePort", 12 << 3);

/// The volume that holds the token of a service account.
// kubernetes: plugin/pkg/admission/serviceaccount/admission.go, ServiceAccountVolumeName
const TOKEN_VOLUME: &str = "kube-api-access-";
/// What the API server appends to a name that it generates.
// apiserver: pkg/storage/names/generate.go
const GENERATED_LENGTH: usize = 5;
const GENERATED_LETTERS: &str = "bcdfghjklmnpqrstvwxz2456789";

/// The labels that the API server generates for the pods of a Job.
// api: batch/v1/types.go, ControllerUidLabel and JobNameLabel
const CONTROLLER_UID_LABELS: [&str; 2] = ["batch.kubernetes.io/controller-uid", "controller-uid"];
const JOB_NAME_LABELS: [&str; 2] = ["batch.kubernetes.io/job-name", "job-name"];

/// The longest time between the dry run and the write. Beyond it, a time is no longer that of the request.
const MAX_SECONDS: u64 = 600;
/// The longest body of a Service in which its values are searched.
const MAX_SEARCHED_BYTES: usize = 64 << 10;

/// Whether the API server has stored what was reviewed, except for what it decides anew in each request.
pub(super) fn is_stored(reviewed: &Value, stored: &Value) -> bool {
    let comparison = Comparison {
        uids: [metadata(reviewed, "uid"), metadata(stored, "uid")],
        allocates: is_service(reviewed) && is_service(stored),
    };
    let (Value::Object(reviewed), Value::Object(stored)) = (reviewed, stored) else { return false };
    comparison.fields(reviewed, stored, |field, reviewed, stored| match (field, reviewed, stored) {
        ("metadata", Value::Object(reviewed), Value::Object(stored)) => comparison.metadata(reviewed, stored),
        _ => comparison.is_same(reviewed, stored),
    })
}

/// A comparison of a reviewed object with the stored one.
struct Comparison<'a> {
    uids: [&'a str; 2],
    /// Whether fields are allocated by their names.
    allocates: bool,
}

impl Comparison<'_> {
    fn metadata(&self, reviewed: &Map<String, Value>, stored: &Map<String, Value>) -> bool {
        let of_server = |field: &String| SERVER_FIELDS.contains(&field.as_str()) || field == MANAGED_FIELDS;
        let without = |fields: &Map<String, Value>| {
            let others = fields.iter().filter(|(field, _)| !of_server(field));
            others.map(|(field, value)| (field.clone(), value.clone())).collect::<Map<_, _>>()
        };
        self.fields(&without(reviewed), &without(stored), |_, reviewed, stored| {
            self.is_same(reviewed, stored)
        })
    }

    fn fields(
        &self,
        reviewed: &Map<String, Value>,
        stored: &Map<String, Value>,
        is_same: impl Fn(&str, &Value, &Value) -> bool,
    ) -> bool {
        let is_compared = |field: &str| !self.allocates || !ALLOCATED.contains(&field);
        let count = |fields: &Map<String, Value>| fields.keys().filter(|field| is_compared(field)).count();
        count(reviewed) == count(stored)
            && reviewed
                .iter()
                .filter(|(field, _)| is_compared(field))
                .all(|(field, value)| stored.get(field).is_some_and(|stored| is_same(field, value, stored)))
    }

    fn is_same(&self, reviewed: &Value, stored: &Value) -> bool {
        match (reviewed, stored) {
            (Value::Object(reviewed), Value::Object(stored)) => {
                self.fields(reviewed, stored, |_, reviewed, stored| self.is_same(reviewed, stored))
            }
            (Value::Array(reviewed), Value::Array(stored)) => {
                reviewed.len() == stored.len()
                    && reviewed.iter().zip(stored).all(|(reviewed, stored)| self.is_same(reviewed, stored))
            }
            (Value::String(reviewed), Value::String(stored)) => self.is_same_text(reviewed, stored),
            _ => reviewed == stored,
        }
    }

    fn is_same_text(&self, reviewed: &str, stored: &str) -> bool {
        reviewed == stored
            || !reviewed.is_empty() && [reviewed, stored] == self.uids
            || [reviewed, stored].iter().all(|name| is_token_volume(name))
            || are_times_of_one_request(reviewed, stored)
    }
}

fn is_service(object: &Value) -> bool {
    let kind = kind_of(object);
    kind.group.is_empty() && kind.kind == "Service"
}

fn is_token_volume(name: &str) -> bool {
    name.strip_prefix(TOKEN_VOLUME).is_some_and(is_generated)
}

/// Whether the API server may have generated this end of a name.
pub(super) fn is_generated(suffix: &str) -> bool {
    suffix.len() == GENERATED_LENGTH && suffix.chars().all(|c| GENERATED_LETTERS.contains(c))
}

fn are_times_of_one_request(one: &str, other: &str) -> bool {
    match (Time::parse_rfc3339(one), Time::parse_rfc3339(other)) {
        (Some(one), Some(other)) => one.seconds.abs_diff(other.seconds) <= MAX_SECONDS,
        _ => false,
    }
}

/// The request by which a dry run has shown an object.
pub(super) struct Origin<'a> {
    /// The object before webhooks have changed it.
    pub(super) shown: &'a Value,
    /// The stored object, if there is one.
    pub(super) old: Option<&'a Value>,
    /// What the client has sent.
    pub(super) encoding: Encoding,
    pub(super) body: &'a [u8],
}

impl Origin<'_> {
    /// Removes what the dry run has allocated or generated, so that the API server does it in the write: values that neither the
    /// client nor a webhook has set, and that the stored object does not have.
    pub(super) fn remove_allocated(&self, object: &mut Value) {
        let uid = metadata(self.shown, "uid");
        if self.old.is_none() && !uid.is_empty() {
            remove_generated_labels(self.shown, object, uid);
            remove_uid(object, uid);
        }
        if !is_service(object) {
            return;
        }
        let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
        for (field, tag) in [("clusterIP", None), (HEALTH_CHECK_PORT.0, Some(HEALTH_CHECK_PORT.1))] {
            let place = [field];
            if spec.get(field).is_some_and(|value| self.is_allocated(value, &place, tag)) {
                spec.remove(field);
            }
        }
        if let Some(addresses) = spec.get_mut("clusterIPs").and_then(Value::as_array_mut) {
            addresses.retain(|address| !self.is_allocated(address, &["clusterIPs"], None));
            if addresses.is_empty() {
                spec.remove("clusterIPs");
            }
        }
        for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(port) = port.as_object_mut() else { continue };
            let (field, tag) = NODE_PORT;
            if port.get(field).is_some_and(|value| self.is_allocated(value, &["ports", field], Some(tag))) {
                port.remove(field);
            }
        }
    }

    /// Whether the dry run has allocated this value of a Service. `tag` is how protobuf marks a number.
    fn is_allocated(&self, value: &Value, place: &[&str], tag: Option<u8>) -> bool {
        let has = |object: &Value| object.get("spec").is_some_and(|spec| is_at(spec, place, value));
        has(self.shown) && !self.old.is_some_and(has) && !self.is_named(value, tag)
    }

    /// Whether the client's body names the value, or is too long to be searched for each of its ports.
    // threat: large-review
    fn is_named(&self, value: &Value, tag: Option<u8>) -> bool {
        if self.body.len() > MAX_SEARCHED_BYTES {
            return true;
        }
        let contains = |part: &[u8]| self.body.windows(part.len().max(1)).any(|window| window == part);
        match (value, self.encoding, tag) {
            (Value::Number(number), Encoding::Protobuf, Some(tag)) => {
                let mut field = vec![tag];
                encode_varint(number.as_u64().unwrap_or_default(), &mut field);
                contains(&field)
            }
            (Value::Number(number), ..) => contains(number.to_string().as_bytes()),
            (Value::String(text), ..) => contains(text.as_bytes()),
            _ => true,
        }
    }
}

/// Whether the value is at a place, also in a list.
fn is_at(object: &Value, place: &[&str], value: &Value) -> bool {
    match (object, place) {
        (Value::Array(items), _) => items.iter().any(|item| is_at(item, place, value)),
        (_, []) => object == value,
        (_, [field, rest @ ..]) => object.get(field).is_some_and(|inner| is_at(inner, rest, value)),
    }
}

/// Removes the generated labels of a Job's pods from the Job itself, which has the labels of its pods if the client gives it none.
// kubernetes: pkg/apis/batch/v1/defaults.go, SetDefaults_Job; pkg/registry/batch/job/strategy.go, generateSelector
fn remove_generated_labels(shown: &Value, object: &mut Value, uid: &str) {
    let labels = |at: &str| shown.pointer(at).and_then(Value::as_object);
    let Some(of_pods) = labels("/spec/template/metadata/labels") else { return };
    let generated = CONTROLLER_UID_LABELS.iter().any(|label| of_pods.get(*label) == Some(&Value::from(uid)));
    if kind_of(shown).kind != "Job" || !generated || labels("/metadata/labels") != Some(of_pods) {
        return;
    }
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let Some(own) = metadata.get_mut("labels").and_then(Value::as_object_mut) else { return };
    let names = CONTROLLER_UID_LABELS.iter().chain(&JOB_NAME_LABELS);
    for name in names {
        if own.get(*name).is_some_and(|value| of_pods.get(*name) == Some(value)) {
            own.remove(*name);
        }
    }
    if own.is_empty() {
        metadata.remove("labels");
    }
}

/// Removes the entries of the `resources` of a Pod as a whole by which the API server has completed it: those that no manager has
/// set, and that the stored object does not have. It adds up the containers of a new Pod, and of one that is resized, after webhooks
/// have changed them, from 1.37 on; before, the entries have a manager.
// kubernetes: pkg/registry/core/pod/strategy.go, PrepareForCreate and podResizeStrategy.PrepareForUpdate;
// pkg/api/pod/util.go, DefaultPodLevelResources
pub(super) fn remove_completed_resources(object: &mut Value, old: Option<&Value>) {
    let kind = kind_of(object);
    if !kind.group.is_empty() || kind.kind != "Pod" || object.pointer("/spec/resources").is_none() {
        return;
    }
    let Some(managers) = managed_fields(object).and_then(Value::as_array).cloned() else { return };
    let Some(resources) = object.pointer_mut("/spec/resources").and_then(Value::as_object_mut) else {
        return;
    };
    for field in ["requests", "limits"] {
        let Some(quantities) = resources.get_mut(field).and_then(Value::as_object_mut) else { continue };
        let stored = old.and_then(|old| old.get("spec")?.get("resources")?.get(field));
        quantities.retain(|name, quantity| {
            let place = ["spec", "resources", field, name.as_str()];
            stored.is_some_and(|stored| stored.get(name) == Some(quantity))
                || managers.iter().any(|manager| is_managed(manager, &place))
        });
        if quantities.is_empty() {
            resources.remove(field);
        }
    }
}

/// Whether an entry of `managedFields` has the field at a place.
fn is_managed(manager: &Value, place: &[&str]) -> bool {
    let fields = manager.get("fieldsV1");
    place.iter().fold(fields, |fields, name| fields?.get(format!("f:{name}"))).is_some()
}

/// Removes the fields whose value is the UID of the dry run's object, which no other one has.
fn remove_uid(value: &mut Value, uid: &str) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| value.as_str() != Some(uid));
            fields.values_mut().for_each(|value| remove_uid(value, uid));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| remove_uid(item, uid)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(kind: &str, uid: &str, more: &Value) -> Value {
        let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "n", "uid": uid,
            "resourceVersion": uid, "managedFields": [uid]}});
        for (field, value) in more.as_object().unwrap() {
            object[field] = value.clone();
        }
        object
    }

    #[test]
    fn what_the_api_server_decides_anew_is_no_difference() {
        let pod = |name: &str| json!({"spec": {"volumes": [{"name": name}]}});
        let cases = [
            ("Pod", json!({"a": null}), json!({"a": null}), true),
            ("Pod", json!({"a": null}), json!({}), false),
            ("Pod", json!({}), json!({"a": 1}), false),
            ("Pod", json!({"a": [1, {"b": null}]}), json!({"a": [1, {}]}), false),
            ("Job", json!({"spec": {"l": "one"}}), json!({"spec": {"l": "two"}}), true),
            ("Job", json!({"spec": {"l": "two"}}), json!({"spec": {"l": "one"}}), false),
            ("Pod", pod("kube-api-access-bcdfg"), pod("kube-api-access-24567"), true),
            ("Pod", pod("kube-api-access-bcdfg"), pod("other"), false),
            ("Pod", json!({"t": "2026-01-02T03:04:05Z"}), json!({"t": "2026-01-02T03:04:59Z"}), true),
            ("Pod", json!({"t": "2026-01-02T03:04:05Z"}), json!({"t": "2026-01-02T04:04:05Z"}), false),
            (
                "Service",
                json!({"spec": {"clusterIP": "10.0.0.1", "ports": [{"nodePort": 32769}]}}),
                json!({"spec": {"clusterIP": "10.0.0.2", "clusterIPs": [], "ports": [{"nodePort": 30001}]}}),
                true,
            ),
            (
                "Service",
                json!({"spec": {"ports": [{"port": 1}]}}),
                json!({"spec": {"ports": [{"port": 2}]}}),
                false,
            ),
            (
                "Pod",
                json!({"spec": {"clusterIP": "10.0.0.1"}}),
                json!({"spec": {"clusterIP": "10.0.0.2"}}),
                false,
            ),
        ];
        for (kind, reviewed, stored, expected) in cases {
            let (reviewed, stored) = (object(kind, "one", &reviewed), object(kind, "two", &stored));
            assert_eq!(is_stored(&reviewed, &stored), expected, "{reviewed} {stored}");
        }
        let renamed = json!({"metadata": {"name": "other"}});
        assert!(
            !is_stored(&json!({"metadata": {"name": "n"}}), &renamed) && !is_stored(&json!([]), &json!([]))
        );
    }

    #[test]
    fn allocated_values_are_removed_unless_someone_has_set_them() {
        let service = |spec: Value| object("Service", "u", &json!({"spec": spec}));
        let shown = service(
            json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7", "fd00::7"], "healthCheckNodePort": 32770,
            "ports": [{"port": 1, "nodePort": 30080}, {"port": 2, "nodePort": 30081}]}),
        );
        let without = |body: &[u8], encoding, old: Option<&Value>, changed: Value| {
            let mut changed = service(changed);
            Origin { shown: &shown, old, encoding, body }.remove_allocated(&mut changed);
            changed["spec"].clone()
        };
        let spec = shown["spec"].clone();
        assert_eq!(
            without(b"", Encoding::Json, None, spec.clone()),
            json!({"ports": [{"port": 1}, {"port": 2}]})
        );
        assert_eq!(
            without(br#"{"nodePort": 30080, "clusterIP": "10.0.0.7"}"#, Encoding::Json, None, spec.clone()),
            json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"], "ports": [{"port": 1, "nodePort": 30080}, {"port": 2}]})
        );
        // 30081 in protobuf.
        assert_eq!(
            without(&[0x28, 0x81, 0xeb, 0x01], Encoding::Protobuf, None, spec.clone()),
            json!({"ports": [{"port": 1}, {"port": 2, "nodePort": 30081}]})
        );
        assert_eq!(without(b"", Encoding::Other, Some(&shown), spec.clone()), spec);
        // A webhook's own.
        let mut of_webhook = spec;
        of_webhook["ports"][1]["nodePort"] = json!(31000);
        assert_eq!(
            without(b"", Encoding::Json, None, of_webhook)["ports"],
            json!([{"port": 1}, {"port": 2, "nodePort": 31000}])
        );
        let job = json!({"spec": {"selector": {"matchLabels": {"controller-uid": "u"}}, "template": {"labels": {"a": "u", "b": "c"}}}});
        let shown = object("Job", "u", &job);
        let mut changed = shown.clone();
        Origin { shown: &shown, old: None, encoding: Encoding::Json, body: b"" }
            .remove_allocated(&mut changed);
        assert_eq!(
            changed["spec"],
            json!({"selector": {"matchLabels": {}}, "template": {"labels": {"b": "c"}}})
        );
        let mut changed = shown.clone();
        Origin { shown: &shown, old: Some(&shown), encoding: Encoding::Json, body: b"" }
            .remove_allocated(&mut changed);
        assert_eq!(changed, shown);
    }

    #[test]
    fn a_pod_keeps_the_resources_that_the_client_sets() {
        let resources = json!({"requests": {"cpu": "1", "memory": "100Mi"}, "limits": {"memory": "100Mi"}});
        let without = |kind: &str, managed: Value| {
            let mut shown = object(kind, "u", &json!({"spec": {"resources": resources}}));
            shown["metadata"]["managedFields"] = managed;
            remove_completed_resources(&mut shown, None);
            shown["spec"]["resources"].clone()
        };
        let managed = |fields: Value| {
            json!([{"manager": "m", "fieldsV1": {"f:status": {}}},
                {"manager": "n", "fieldsV1": {"f:spec": {"f:resources": fields}}}])
        };
        let cpu = json!({".": {}, "f:requests": {".": {}, "f:cpu": {}}});
        assert_eq!(without("Pod", managed(cpu.clone())), json!({"requests": {"cpu": "1"}}));
        assert_eq!(without("Service", managed(cpu)), resources);
        let all = json!({"f:requests": {"f:cpu": {}, "f:memory": {}}, "f:limits": {"f:memory": {}}});
        assert_eq!(without("Pod", managed(all)), resources);
        // The API server does not say who has set what.
        assert_eq!(without("Pod", json!([])), resources);
        assert_eq!(without("Pod", Value::Null), resources);
    }

    #[test]
    fn a_resized_pod_keeps_the_resources_that_are_stored() {
        let pod = |resources: Value| object("Pod", "u", &json!({"spec": {"resources": resources}}));
        let mut shown = pod(
            json!({"requests": {"cpu": "1", "memory": "20Mi"}, "limits": {"cpu": "2", "memory": "20Mi"}}),
        );
        shown["metadata"]["managedFields"] = json!([{"manager": "m", "subresource": "resize", "fieldsV1": {"f:spec": {"f:resources": {"f:requests": {"f:cpu": {}}}}}}]);
        let old = pod(json!({"requests": {"cpu": "3", "memory": "10Mi"}, "limits": {"cpu": "2"}}));
        remove_completed_resources(&mut shown, Some(&old));
        assert_eq!(shown["spec"]["resources"], json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}));
    }

    #[test]
    fn a_job_keeps_the_labels_of_its_pods_except_the_generated_ones() {
        let generated = json!({"part": "once", "controller-uid": "u", "job-name": "n",
            "batch.kubernetes.io/controller-uid": "u", "batch.kubernetes.io/job-name": "n"});
        let job = |labels: &Value, of_pods: &Value| {
            let mut job =
                object("Job", "u", &json!({"spec": {"template": {"metadata": {"labels": of_pods}}}}));
            job["metadata"]["labels"] = labels.clone();
            job
        };
        let labels_of = |shown: &Value, added: bool| {
            let mut changed = shown.clone();
            if added {
                changed["metadata"]["labels"]["added"] = json!("yes");
            }
            Origin { shown, old: None, encoding: Encoding::Json, body: b"" }.remove_allocated(&mut changed);
            changed["metadata"]["labels"].clone()
        };
        let mut without_part = generated.clone();
        without_part.as_object_mut().unwrap().remove("part");
        assert_eq!(labels_of(&job(&generated, &generated), true), json!({"part": "once", "added": "yes"}));
        assert_eq!(labels_of(&job(&generated, &generated), false), json!({"part": "once"}));
        assert_eq!(labels_of(&job(&without_part, &without_part), true), json!({"added": "yes"}));
        assert_eq!(labels_of(&job(&without_part, &without_part), false), Value::Null);
        // Not generated: the client has chosen the selector.
        let own = json!({"job-name": "n", "part": "once"});
        assert_eq!(labels_of(&job(&own, &own), false), own);
    }
}
