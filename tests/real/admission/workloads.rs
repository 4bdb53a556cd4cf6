//! The control plane behind the webhooks: controllers create pods, the scheduler binds them to a node, and the garbage collector and the
//! namespace controller delete them. There is no kubelet, so no pod ever runs.

use serde_json::{Value, json};

use super::clusters::{CONTROLLER_MANAGER, Clusters, Program, SCHEDULER};
use super::webhooks::Review;
use super::{Command, Declared, judge, remove, reviewed, stored};
use crate::servers::RealServers;

const NAMESPACE: &str = "work";

/// Without those that wait for a kubelet or for the cloud.
const CONTROLLERS: &str = "--controllers=serviceaccount-controller,namespace-controller,garbage-collector-controller,\
                           deployment-controller,replicaset-controller,statefulset-controller,daemonset-controller,\
                           job-controller,cronjob-controller";

/// What controllers create, in a stable state.
const RESOURCES: &str =
    "deployments,replicasets,statefulsets,daemonsets,jobs,cronjobs,pods,controllerrevisions";

/// D-admission-prepared.
const PREPARED: &[Declared] = &[("stamp", "CREATE", "pods", "/object/status")];

const NODE: &str = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}, "status": {
    "allocatable": {"cpu": "64", "memory": "64Gi", "pods": "110"}, "capacity": {"cpu": "64", "memory": "64Gi", "pods": "110"},
    "conditions": [{"type": "Ready", "status": "True"}]}}"#;

pub(super) fn run(servers: &RealServers, clusters: &Clusters) -> Result<(), String> {
    let programs = servers.programs()?;
    let kubectl = |arguments: &str| Command::new(Program::Kubectl, arguments);
    let in_namespace = |arguments: &str| kubectl(&format!("--namespace={NAMESPACE} {arguments}"));
    let _components = clusters.both(|side| {
        let flags = [CONTROLLERS, "--use-service-account-credentials"];
        Ok([
            side.component(&programs.kube_controller_manager, CONTROLLER_MANAGER, &flags)?,
            side.component(&programs.kube_scheduler, SCHEDULER, &[])?,
        ])
    })?;
    let objects = manifest();
    let created = [
        kubectl("create -f -").stdin(NODE),
        // A new node has it until its kubelet is ready.
        kubectl("taint node node node.kubernetes.io/not-ready:NoSchedule-"),
        kubectl(&format!("create namespace {NAMESPACE}")),
        in_namespace("wait serviceaccount/default --for=create --timeout=60s"),
        in_namespace("apply -f -").stdin(&objects),
        in_namespace("create job started --from=cronjob/yearly"),
        in_namespace("wait deployment/front --for=jsonpath={.status.replicas}=2 --timeout=60s"),
        in_namespace("scale deployment/front --replicas=3"),
        in_namespace("wait deployment/front --for=jsonpath={.status.replicas}=3 --timeout=60s"),
        in_namespace(
            "wait deployment/kept deployment/unplaced --for=jsonpath={.status.replicas}=1 --timeout=60s",
        ),
        in_namespace("wait statefulset/store --for=jsonpath={.status.currentReplicas}=1 --timeout=60s"),
        in_namespace("wait daemonset/agent --for=jsonpath={.status.currentNumberScheduled}=1 --timeout=60s"),
        in_namespace("wait job/once job/started --for=jsonpath={.status.active}=1 --timeout=60s"),
        in_namespace(
            "wait deployment/refused --for=jsonpath={.status.conditions[0].reason}=ReplicaSetCreateError --timeout=60s",
        ),
        in_namespace("wait pods -l placed=yes --for=condition=PodScheduled --timeout=60s"),
        in_namespace(
            "wait pods -l placed=no --for=jsonpath={.status.conditions[0].reason}=Unschedulable --timeout=60s",
        ),
    ];
    let deleted = [
        in_namespace("delete deployment/kept --cascade=orphan --timeout=60s"),
        // Its pod is on no node, so it needs no kubelet to end.
        in_namespace("delete deployment/unplaced --cascade=foreground --timeout=60s"),
        in_namespace("delete deployment/front deployment/refused --timeout=60s"),
        in_namespace("wait replicasets -l part=front --for=delete --timeout=60s"),
        in_namespace(
            "wait pods -l part=front --for=jsonpath={.metadata.deletionGracePeriodSeconds}=30 --timeout=60s",
        ),
        in_namespace(
            "delete statefulsets,daemonsets,jobs,cronjobs,replicasets --all --cascade=orphan --timeout=60s",
        ),
        in_namespace("delete pods --all --force --grace-period=0 --timeout=60s"),
        kubectl(&format!("delete namespace {NAMESPACE} --timeout=60s")),
        kubectl("delete node node"),
    ];
    let mut found = Vec::new();
    for command in created {
        found.extend(command.run(clusters)?);
    }
    found.extend(stored(clusters, NAMESPACE, RESOURCES)?);
    for command in deleted {
        found.extend(command.run(clusters)?);
    }
    found.extend(reviewed(clusters, PREPARED, of_component)?);
    judge(found)
}

/// Objects of every kind that a controller makes pods of.
fn manifest() -> String {
    let template = |part: &str, placed: bool, more: Value| {
        let mut spec = json!({"containers": [{"name": "main", "image": "example.com/work:1"}]});
        if !placed {
            spec["nodeSelector"] = json!({"absent": "yes"});
        }
        for (field, value) in more["spec"].as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        let mut labels = json!({"part": part, "placed": if placed { "yes" } else { "no" }});
        for (label, value) in more["labels"].as_object().into_iter().flatten() {
            labels[label] = value.clone();
        }
        json!({"metadata": {"labels": labels}, "spec": spec})
    };
    let object = |group: &str, kind: &str, name: &str, spec: Value| json!({"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec});
    let selected = |kind: &str, name: &str, more: Value, template: Value| {
        let mut spec = more;
        spec["selector"] = json!({"matchLabels": {"part": name}});
        spec["template"] = template;
        object("apps/v1", kind, name, spec)
    };
    let once = json!({"spec": {"restartPolicy": "Never"}});
    let items = [
        selected("Deployment", "front", json!({"replicas": 2}), template("front", true, Value::Null)),
        selected("Deployment", "kept", json!({}), template("kept", true, Value::Null)),
        selected("Deployment", "unplaced", json!({}), template("unplaced", false, Value::Null)),
        selected(
            "Deployment",
            "refused",
            json!({}),
            template("refused", true, json!({"labels": {"denied": "yes"}})),
        ),
        selected(
            "StatefulSet",
            "store",
            json!({"serviceName": "store"}),
            template("store", true, Value::Null),
        ),
        selected("DaemonSet", "agent", json!({}), template("agent", true, Value::Null)),
        object("batch/v1", "Job", "once", json!({"template": template("once", true, once.clone())})),
        object(
            "batch/v1",
            "CronJob",
            "yearly",
            json!({"schedule": "@yearly", "jobTemplate": {"spec": {"template": template("started", true, once)}}}),
        ),
    ];
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// What is equal in any order of events: whole creations and bindings, and that there was a change or a deletion.
fn of_component(review: &Review) -> Option<Value> {
    let request = &review.request;
    let user = request["userInfo"]["username"].as_str().unwrap_or_default();
    let is_component = [CONTROLLER_MANAGER, SCHEDULER].contains(&user)
        || user.starts_with("system:serviceaccount:kube-system:");
    let resource = request["resource"]["resource"].as_str().unwrap_or_default();
    if !is_component || ["events", "leases"].contains(&resource) {
        return None;
    }
    let mut shown = request.clone();
    shown["uid"] = Value::Null;
    // D-admission-managed-fields: some controllers may create objects, but not patch them.
    remove(&mut shown, "/object/metadata/managedFields");
    // D-admission-tokens: a `TokenRequest` is shown as the client has sent it.
    if request["operation"] != "CREATE" || request["subResource"] == "token" {
        (shown["object"], shown["oldObject"]) = (Value::Null, Value::Null);
    }
    Some(shown)
}
