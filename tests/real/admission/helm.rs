//! A release of a chart with one object of each kind that people deploy: installed, changed, refused, rolled back and removed.

use serde_json::Value;
use testkit::paths::workspace_root;

use super::clusters::{Clusters, OPERATOR, Program};
use super::webhooks::Review;
use super::{Command, Declared, judge, reviewed, stored};

const CHART: &str = "tests/real/admission/chart";

/// Everything that the chart has, and the secrets of the release.
const RESOURCES: &str = "deployments,statefulsets,daemonsets,replicasets,jobs,cronjobs,pods,services,configmaps,secrets,\
                         serviceaccounts,roles,rolebindings,poddisruptionbudgets,horizontalpodautoscalers,networkpolicies,\
                         ingresses,persistentvolumeclaims";

/// D-admission-prepared.
const PREPARED: &[Declared] = &[
    ("stamp", "CREATE", "namespaces", "/object/spec/finalizers"),
    (
        "stamp",
        "CREATE",
        "daemonsets",
        "/object/metadata/annotations/deprecated.daemonset.template.generation",
    ),
    ("stamp", "CREATE", "jobs", "/object/spec/selector"),
    ("stamp", "CREATE", "jobs", "/object/spec/template/metadata/labels/batch.kubernetes.io~1controller-uid"),
    ("stamp", "CREATE", "jobs", "/object/spec/template/metadata/labels/batch.kubernetes.io~1job-name"),
    ("stamp", "CREATE", "jobs", "/object/spec/template/metadata/labels/controller-uid"),
    ("stamp", "CREATE", "jobs", "/object/spec/template/metadata/labels/job-name"),
    ("stamp", "CREATE", "pods", "/object/status"),
    ("stamp", "CREATE", "services", "/object/spec/clusterIP"),
    ("stamp", "CREATE", "services", "/object/spec/clusterIPs"),
    ("stamp", "CREATE", "services", "/object/spec/ipFamilies"),
    ("stamp", "CREATE", "services", "/object/spec/ipFamilyPolicy"),
    ("stamp", "CREATE", "services", "/object/spec/ports/0/nodePort"),
    (
        "stamp",
        "UPDATE",
        "daemonsets",
        "/object/metadata/annotations/deprecated.daemonset.template.generation",
    ),
    ("allow", "CREATE", "persistentvolumeclaims", "/object/status"),
    ("deny", "CREATE", "persistentvolumeclaims", "/object/status"),
    // Of a pod that is on no node.
    ("allow", "DELETE", "pods", "/oldObject/metadata/deletionGracePeriodSeconds"),
    ("allow", "DELETE", "pods", "/oldObject/metadata/deletionTimestamp"),
    ("allow", "DELETE", "pods", "/oldObject/metadata/generation"),
];

/// The default of Helm 4.
pub(super) fn on_the_server(clusters: &Clusters) -> Result<(), String> {
    release(clusters, "applied", "--server-side=true")
}

/// The way of Helm 3, which Helm 4 still has.
pub(super) fn from_the_client(clusters: &Clusters) -> Result<(), String> {
    release(clusters, "patched", "--server-side=false")
}

fn release(clusters: &Clusters, namespace: &str, method: &str) -> Result<(), String> {
    let chart = workspace_root().join(CHART);
    let helm = |arguments: &str| {
        let arguments = arguments.replace("CHART", &chart.display().to_string());
        Command::new(Program::Helm, format!("{arguments} --namespace={namespace}"))
    };
    let kubectl =
        |arguments: &str| Command::new(Program::Kubectl, format!("{arguments} --namespace={namespace}"));
    let on_the_server = method.ends_with("true");
    let changed = "--set=image=example.com/shop:2,greeting=welcome,extra=true";
    let scaled = helm("upgrade web CHART --set=replicas=4");
    let writes = [
        helm(&format!("install web CHART --create-namespace {method}")),
        helm(&format!("upgrade web CHART {changed}")),
        helm(&format!("upgrade web CHART {changed} --set=labels.denied=yes"))
            .fails("the label denied is not allowed"),
        helm("rollback web 1"),
        // Another manager changes a field of the release.
        kubectl("scale deployment/web-front --replicas=3"),
        if on_the_server { scaled.fails("conflict with \"kubectl\"") } else { scaled },
        helm(if on_the_server {
            "upgrade web CHART --set=replicas=4 --force-conflicts"
        } else {
            "upgrade web CHART --set=replicas=5"
        }),
        // Its claims are left, which wait for their controller.
        helm("uninstall web --keep-history"),
    ];
    let reads = [
        helm("history web"),
        helm("get manifest web"),
        helm("install web CHART").fails("cannot reuse a name"),
    ];
    let mut found = Vec::new();
    for write in writes {
        found.extend(write.run(clusters)?);
        let differences = stored(clusters, namespace, RESOURCES)?;
        found.extend(differences.into_iter().map(|text| format!("stored after {}: {text}", write.arguments)));
    }
    for read in reads {
        found.extend(read.run(clusters)?);
    }
    found.extend(reviewed(clusters, PREPARED, |review| of_operator(review, namespace))?);
    judge(found)
}

/// A review of a write of the operator in the namespace.
fn of_operator(review: &Review, namespace: &str) -> Option<Value> {
    let mut request = review.request.clone();
    if request["userInfo"]["username"] != OPERATOR || request["namespace"] != namespace {
        return None;
    }
    request["uid"] = Value::Null;
    Some(request)
}
