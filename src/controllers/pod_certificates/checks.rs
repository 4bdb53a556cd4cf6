//! Whether the pod, the service account and the node of a request exist, with the UIDs in it, and belong together.
//!
//! The API server checks the same when a kubelet creates a request (`plugin/pkg/admission/noderestriction`), but it does not check
//! the requests of other clients, and an object may be deleted since.

use std::time::Duration;

use portcullis_system::clock::UnixTime;
use serde_json::Value;

use super::decision::Refusal;
use super::objects::{ReadObject, RequestObjects, deletion, field};
use super::request::PodRequest;

/// How long after its deletion an object counts as existing, as for bound tokens.
// kubernetes: pkg/serviceaccount/claims.go
const LEEWAY: Duration = Duration::from_mins(1);
/// The annotation of mirror pods.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The objects of a request, checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckedObjects<'a> {
    pub(super) pod: &'a Value,
    pub(super) service_account: &'a Value,
    pub(super) node: &'a Value,
    pub(super) namespace: Option<&'a Value>,
}

/// Whether a volume of the pod has a certificate of this signer.
fn mounts(pod: &Value, signer: &str) -> bool {
    let mut sources =
        list(pod, ["spec", "volumes"]).flat_map(|volume| list(volume, ["projected", "sources"]));
    sources.any(|source| field(source, &["podCertificate", "signerName"]) == signer)
}

fn list<'a>(object: &'a Value, path: [&str; 2]) -> impl Iterator<Item = &'a Value> {
    let list = path.iter().try_fold(object, |value, key| value.get(key)).and_then(Value::as_array);
    list.into_iter().flatten()
}

/// Checks the objects of a request.
// threat: pod-certificate-identity
pub(super) fn check_objects<'a>(
    request: &PodRequest,
    objects: &'a RequestObjects,
    now: UnixTime,
) -> Result<CheckedObjects<'a>, Refusal> {
    let (spec, namespace) = (&request.spec, &request.metadata.namespace);
    let pod = check_pod(request, &objects.pod, now)?;
    let account_name = format!("{namespace}/{}", spec.service_account_name);
    let of_pod = field(pod, &["spec", "serviceAccountName"]);
    if of_pod != spec.service_account_name {
        let message = format!(
            "pod {namespace}/{} runs as service account {of_pod:?}, not as {:?}",
            spec.pod_name, spec.service_account_name
        );
        return Err(Refusal::denied("ServiceAccountMismatch", message));
    }
    // NodeRestriction checks it since 1.37, and only of nodes.
    if !mounts(pod, &spec.signer_name) {
        let message = format!(
            "pod {namespace}/{} has no volume with a certificate of the signer {:?}",
            spec.pod_name, spec.signer_name
        );
        return Err(Refusal::denied("VolumeNotFound", message));
    }
    let account = Subject { kind: "service account", name: &account_name, reason: "ServiceAccountNotFound" };
    let service_account = account.check(&objects.service_account, &spec.service_account_uid, now)?;
    let node = Subject { kind: "node", name: &spec.node_name, reason: "NodeNotFound" };
    let node = node.check(&objects.node, &spec.node_uid, now)?;
    let namespace = match &objects.namespace {
        None => None,
        Some(ReadObject::Found(object)) => Some(object),
        Some(_) => {
            let message = format!("namespace {namespace} does not exist, or is too large");
            return Err(Refusal::denied("NamespaceNotFound", message));
        }
    };
    Ok(CheckedObjects { pod, service_account, node, namespace })
}

/// Checks the pod of a request: it exists, runs, and does so on the node of the request.
// threat: pod-certificate-deleted-pod
pub(super) fn check_pod<'a>(
    request: &PodRequest,
    pod: &'a ReadObject,
    now: UnixTime,
) -> Result<&'a Value, Refusal> {
    let spec = &request.spec;
    let name = format!("{}/{}", request.metadata.namespace, spec.pod_name);
    let pod = Subject { kind: "pod", name: &name, reason: "PodNotFound" }.check(pod, &spec.pod_uid, now)?;
    let runs_on = field(pod, &["spec", "nodeName"]);
    if runs_on != spec.node_name {
        let message = if runs_on.is_empty() {
            format!("pod {name} is not assigned to a node")
        } else {
            format!("pod {name} runs on node {runs_on:?}, not on {:?}", spec.node_name)
        };
        return Err(Refusal::denied("NodeMismatch", message));
    }
    if pod.pointer("/metadata/annotations").and_then(|annotations| annotations.get(MIRROR)).is_some() {
        let message = format!("pod {name} is a mirror pod, which has no service account");
        return Err(Refusal::denied("MirrorPod", message));
    }
    let phase = field(pod, &["status", "phase"]);
    if matches!(phase, "Succeeded" | "Failed") {
        return Err(Refusal::denied("PodTerminated", format!("pod {name} has ended: its phase is {phase}")));
    }
    Ok(pod)
}

/// An object that a request names.
struct Subject<'a> {
    kind: &'static str,
    name: &'a str,
    /// The reason if it does not exist.
    reason: &'static str,
}

impl Subject<'_> {
    fn check<'a>(&self, read: &'a ReadObject, uid: &str, now: UnixTime) -> Result<&'a Value, Refusal> {
        let Self { kind, name, reason } = self;
        let object = match read {
            ReadObject::Found(object) => object,
            ReadObject::Gone => {
                return Err(Refusal::denied(reason, format!("{kind} {name} does not exist")));
            }
            ReadObject::TooLarge => {
                let message = format!("{kind} {name} has more than 1 MiB of JSON, or too many values");
                return Err(Refusal::failed("ObjectTooLarge", message));
            }
        };
        let found = field(object, &["metadata", "uid"]);
        if found != uid || uid.is_empty() {
            let message =
                format!("{kind} {name} has UID {found:?}, not {uid:?}: it was deleted and created again");
            return Err(Refusal::denied(reason, message));
        }
        if deletion(object).is_some_and(|deleted| deleted.saturating_add(LEEWAY) < now) {
            return Err(Refusal::denied(reason, format!("{kind} {name} has been deleted")));
        }
        Ok(object)
    }
}
