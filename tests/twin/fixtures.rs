//! The objects in the cluster: namespaces, objects for reads, nodes with the fake kubelet, and RBAC.
//!
//! Cases read in `twin-fixed` and write in `twin`, so that reads give the same result on every server at any time.

pub(crate) mod credentials;
mod impersonation;

use serde_json::{Value, json};

use crate::admission::SELECTED_NAMESPACE;
use crate::authorizers::AUTHORIZED;

/// Paths with the object to post, the status to patch, or `null` to delete. All exist before the resource version
/// `{rv}`.
pub(crate) fn objects(kubelet_port: u16) -> Vec<(String, Value)> {
    let mut objects = Vec::new();
    for name in ["twin", "twin-fixed", SELECTED_NAMESPACE] {
        let mut namespace = core("namespaces", "Namespace", name, None, json!({}));
        if name == SELECTED_NAMESPACE {
            namespace.1["metadata"]["labels"] = json!({"environment": "production"});
        }
        objects.push(namespace);
        objects.push(core("serviceaccounts", "ServiceAccount", "default", Some(name), json!({})));
    }
    for (number, name) in ["alpha", "beta", "gamma", "delta", "epsilon"].into_iter().enumerate() {
        let mut object = core(
            "configmaps",
            "ConfigMap",
            name,
            Some("twin-fixed"),
            json!({"data": {"number": number.to_string(), "text": "one\ntwo\n", "html": "<a&b>"}}),
        );
        object.1["metadata"]["labels"] = json!({"parity": if number % 2 == 0 { "even" } else { "odd" }});
        objects.push(object);
    }
    // More than 128 KiB, from which the server compresses responses.
    objects.push(core(
        "configmaps",
        "ConfigMap",
        "large",
        Some("twin-fixed"),
        json!({"data": {"filler": "0123456789abcdef".repeat(16_000)}}),
    ));
    objects.push(core(
        "secrets",
        "Secret",
        "hidden",
        Some("twin-fixed"),
        json!({"stringData": {"password": "swordfish"}}),
    ));
    // kube-apiserver 1.36 forwards WebSockets to kubelets that declare support, and translates them to SPDY for others.
    for (name, features) in
        [("twin-node", json!([])), ("twin-node-modern", json!(["ExtendWebSocketsToKubelet"]))]
    {
        objects.push(core(
            "nodes",
            "Node",
            name,
            None,
            json!({"status": {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
                "conditions": [{"type": "Ready", "status": "True"}],
                "declaredFeatures": features,
            }}),
        ));
    }
    let container = json!([{"name": "main", "image": "example.com/none"}]);
    objects.push(core(
        "pods",
        "Pod",
        "idle",
        Some("twin-fixed"),
        json!({"spec": {"containers": container, "automountServiceAccountToken": false}}),
    ));
    objects.push(core(
        "pods",
        "Pod",
        "placed",
        Some("twin-fixed"),
        json!({"spec": {"nodeName": "twin-node", "containers": container, "automountServiceAccountToken": false}}),
    ));
    // kubectl forwards ports only of running pods, and new pods are pending.
    for (name, node) in [("running", "twin-node"), ("modern", "twin-node-modern")] {
        objects.push(core(
            "pods",
            "Pod",
            name,
            Some("twin-fixed"),
            json!({"spec": {"nodeName": node, "containers": container, "automountServiceAccountToken": false}}),
        ));
        objects.push((
            format!("/api/v1/namespaces/twin-fixed/pods/{name}/status"),
            json!({"status": {"phase": "Running"}}),
        ));
    }
    objects.push(widgets());
    objects.extend(credentials::objects());
    // Only kube-controller-manager, which does not run here, aggregates the rules of `edit` and `view`.
    for namespace in ["twin", "twin-fixed"] {
        objects.push(binding("devs-edit", Some(namespace), "system:aggregate-to-edit", "Group", "devs"));
        objects.push(binding("devs-view", Some(namespace), "system:aggregate-to-view", "Group", "devs"));
        objects.push(binding("bob-view", Some(namespace), "system:aggregate-to-view", "User", "bob"));
    }
    objects.push(binding("twin-viewers", None, "system:aggregate-to-view", "Group", "viewers"));
    objects.push(role(
        "twin-updater",
        &json!([{"apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"], "verbs": ["get", "create", "update"]}]),
    ));
    objects.push(binding("twin-updater", None, "twin-updater", "User", "updater"));
    objects.push(role(
        "twin-prober",
        &json!([{"nonResourceURLs": ["/livez/*", "/readyz/*", "/healthz/*", "/metrics"], "verbs": ["get", "head", "post"]}]),
    ));
    objects.push(binding("twin-probers", None, "twin-prober", "Group", "probers"));
    // Permissions for constrained impersonation, which 1.36 checks first …
    objects.push(role(
        "twin-impersonator",
        &json!([
            {"apiGroups": ["authentication.k8s.io"], "resources": ["users"], "verbs": ["impersonate:user-info"],
             "resourceNames": ["bob"]},
            {"apiGroups": ["authentication.k8s.io"], "resources": ["groups"], "verbs": ["impersonate:user-info"],
             "resourceNames": ["g1", "g2"]},
            {"apiGroups": ["authentication.k8s.io"], "resources": ["uids"], "verbs": ["impersonate:user-info"],
             "resourceNames": ["uid-bob"]},
            {"apiGroups": ["authentication.k8s.io"], "resources": ["userextras/acme.io/scopes"],
             "verbs": ["impersonate:user-info"], "resourceNames": ["view"]},
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["impersonate-on:user-info:create",
             "impersonate-on:user-info:get", "impersonate-on:user-info:list"]},
        ]),
    ));
    objects.push(binding("twin-impersonators", None, "twin-impersonator", "Group", "impersonators"));
    // The gateway's permissions: to read objects of tokens, to patch a label of token secrets, to ask who may impersonate, and how
    // custom resources are converted.
    objects.push(role(
        "twin-gateway",
        &json!([
            {"apiGroups": [""], "resources": ["secrets", "serviceaccounts", "pods", "nodes", "namespaces"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["patch"]},
            {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
            {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get"]},
        ]),
    ));
    objects.push(binding("twin-gateway", None, "twin-gateway", "User", "system:portcullis"));
    // A service account that may create TokenReviews.
    let mut delegator = binding("twin-delegator", None, "system:auth-delegator", "ServiceAccount", "other");
    delegator.1["subjects"] =
        json!([{"kind": "ServiceAccount", "namespace": credentials::NAMESPACE, "name": "other"}]);
    objects.push(delegator);
    // … and for impersonation without constraints.
    objects.push(role(
        "twin-legacy-impersonator",
        &json!([
            {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"],
             "resourceNames": ["bob", "system:anonymous"]},
            {"apiGroups": [""], "resources": ["groups"], "verbs": ["impersonate"],
             "resourceNames": ["g1", "g2", "system:masters"]},
            {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["impersonate"],
             "resourceNames": ["default"]},
            {"apiGroups": ["authentication.k8s.io"], "resources": ["uids"], "verbs": ["impersonate"]},
            {"apiGroups": ["authentication.k8s.io"], "resources": ["userextras/scopes"], "verbs": ["impersonate"]},
        ]),
    ));
    objects.push(binding("twin-legacy", None, "twin-legacy-impersonator", "User", "legacy-impersonator"));
    objects.extend(impersonation::objects());
    objects.push(binding("twin-authorized", None, "cluster-admin", "Group", AUTHORIZED));
    objects
}

/// A custom resource in two versions, with the subresources `status` and `scale`.
fn widgets() -> (String, Value) {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}, "color": {"type": "string", "default": "blue", "maxLength": 20},
            "parts": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            "listeners": {"type": "array", "items": {"type": "object", "properties": {
                "name": {"type": "string"}, "mode": {"type": "string", "nullable": true, "default": "public"}}}},
            "free": {"x-kubernetes-preserve-unknown-fields": true}}},
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "phase": {"type": "string"}}}}});
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}}})
    };
    let object = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.twin.test"}, "spec": {
            "group": "twin.test", "scope": "Namespaced",
            "names": {"kind": "Widget", "listKind": "WidgetList", "plural": "widgets", "singular": "widget"},
            "versions": [version("v1", true), version("v2", false)]}});
    ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(), object)
}

fn core(resource: &str, kind: &str, name: &str, namespace: Option<&str>, rest: Value) -> (String, Value) {
    let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
    if let (Value::Object(object), Value::Object(rest)) = (&mut object, rest) {
        object.extend(rest);
    }
    let path = match namespace {
        Some(namespace) => format!("/api/v1/namespaces/{namespace}/{resource}"),
        None => format!("/api/v1/{resource}"),
    };
    (path, object)
}

fn role(name: &str, rules: &Value) -> (String, Value) {
    let object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules,
    });
    ("/apis/rbac.authorization.k8s.io/v1/clusterroles".to_owned(), object)
}

/// A binding to a cluster role: in the namespace, or for the whole cluster.
fn binding(name: &str, namespace: Option<&str>, role: &str, kind: &str, subject: &str) -> (String, Value) {
    let (path, binding_kind) = match namespace {
        Some(namespace) => {
            (format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"), "RoleBinding")
        }
        None => ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings".to_owned(), "ClusterRoleBinding"),
    };
    let object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": binding_kind, "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": subject}],
    });
    (path, object)
}
