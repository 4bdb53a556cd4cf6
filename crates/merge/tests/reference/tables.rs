//! Hand-written inputs.

use serde_json::{Value, json};

type Pair = (Value, Value);

fn object(api_version: &str, kind: &str, mut rest: Value) -> Value {
    rest["apiVersion"] = api_version.into();
    rest["kind"] = kind.into();
    rest
}

/// Path of a document, object, patch.
pub(crate) fn built_in() -> Vec<(&'static str, Value, Value)> {
    let mut cases = Vec::new();
    let mut add = |path: &'static str,
                   api_version: &str,
                   kind: &str,
                   original: &Value,
                   patches: Vec<Value>| {
        for patch in patches {
            cases.push((path, object(api_version, kind, original.clone()), object(api_version, kind, patch)));
        }
    };
    add("api/v1", "v1", "Pod", &pod(), pod_patches());
    add("apis/apps/v1", "apps/v1", "Deployment", &deployment(), deployment_patches());
    add("api/v1", "v1", "Service", &service(), service_patches());
    add(
        "api/v1",
        "v1",
        "ConfigMap",
        &json!({"metadata": {"name": "c", "labels": {"a": "1"}}, "data": {"x": "1", "y": "2"}}),
        vec![
            json!({"data": {"x": "3", "z": "4"}}),
            json!({"data": {"x": 3}}),
            json!({"data": {"x": null}}),
            json!({"data": null}),
            json!({"data": {}}),
            json!({"binaryData": {"b": "AA=="}, "immutable": true}),
            json!({"immutable": "yes"}),
            json!({"Data": {}}),
            json!({"metadata": {"annotations": {"n": "v"}, "labels": {"a": "2", "b": "3"}}}),
            json!({"metadata": {"finalizers": ["f", "g"]}}),
            json!({"metadata": {"creationTimestamp": null}}),
        ],
    );
    add(
        "apis/autoscaling/v2",
        "autoscaling/v2",
        "HorizontalPodAutoscaler",
        &json!({"spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "D", "name": "d"},
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]}}),
        vec![
            json!({"spec": {"minReplicas": 2, "maxReplicas": 5}}),
            json!({"spec": {"scaleTargetRef": {"name": "e"}}}),
            json!({"spec": {"metrics": [{"type": "Resource", "resource": {"name": "memory", "target": {"type": "Value", "value": "1Gi"}}}]}}),
            json!({"spec": {"behavior": {"scaleDown": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 3}]}}}}),
            json!({"spec": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 3}}}}),
        ],
    );
    add(
        "apis/networking.k8s.io/v1",
        "networking.k8s.io/v1",
        "Ingress",
        &json!({"spec": {"rules": [{"host": "a", "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"number": 1}}}}]}}]}}),
        vec![
            json!({"spec": {"ingressClassName": "c", "defaultBackend": {"service": {"name": "s", "port": {"name": "p"}}}}}),
            json!({"spec": {"defaultBackend": {"resource": {"kind": "K", "name": "n"}}}}),
            json!({"spec": {"tls": [{"hosts": ["a"], "secretName": "t"}]}}),
            json!({"spec": {"rules": []}}),
            json!({"spec": {"rules": null}}),
        ],
    );
    add(
        "apis/networking.k8s.io/v1",
        "networking.k8s.io/v1",
        "NetworkPolicy",
        &json!({"spec": {"podSelector": {"matchLabels": {"a": "b"}}, "policyTypes": ["Ingress"]}}),
        vec![
            json!({"spec": {"podSelector": {}}}),
            json!({"spec": {"podSelector": {"matchLabels": {"c": "d"}}}}),
            json!({"spec": {"policyTypes": ["Egress"], "ingress": [{"ports": [{"port": 80}]}]}}),
            json!({"spec": {"ingress": [{"from": [{"ipBlock": {"cidr": "x", "except": ["y"]}}]}]}}),
        ],
    );
    add(
        "apis/apiextensions.k8s.io/v1",
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        &definition(),
        vec![
            json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": {"properties": {"b": {"type": "string"}}}}}]}}),
            json!({"spec": {"scope": "Cluster", "names": {"kind": "L"}}}),
            json!({"spec": {"names": {"shortNames": ["s"], "categories": ["all"]}}}),
            json!({"spec": {"conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"url": "u"}, "conversionReviewVersions": ["v1"]}}}}),
            json!({"spec": {"unknown": 1}}),
        ],
    );
    cases.extend(other_kinds());
    cases
}

fn other_kinds() -> Vec<(&'static str, Value, Value)> {
    let pod = object("v1", "Pod", json!({}));
    vec![
        ("api/v1", pod.clone(), object("v1", "Service", json!({}))),
        ("api/v1", pod.clone(), object("apps/v1", "Pod", json!({}))),
        ("api/v1", object("v9", "Pod", json!({})), object("v9", "Pod", json!({}))),
        ("api/v1", object("a/b/c", "Pod", json!({})), object("v1", "Pod", json!({}))),
        ("apis/apps/v1", pod.clone(), pod),
    ]
}

fn pod() -> Value {
    json!({
        "metadata": {"name": "p", "labels": {"a": "b"}, "finalizers": ["x", "y"], "managedFields": [{"manager": "m"}],
            "ownerReferences": [{"uid": "1", "name": "o", "kind": "K", "apiVersion": "v1"}]},
        "spec": {
            "initContainers": [{"name": "i", "image": "i:1"}],
            "containers": [
                {"name": "a", "image": "a:1", "env": [{"name": "E", "value": "1"}, {"name": "F", "value": "2"}],
                 "args": ["--x"], "resources": {"requests": {"cpu": "1", "memory": 5}, "limits": {"cpu": 2}},
                 "ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "UDP", "name": "u"}],
                 "volumeMounts": [{"mountPath": "/a", "name": "v"}],
                 "livenessProbe": {"httpGet": {"port": "web"}}},
                {"name": "b", "image": "b:1"},
                {"name": "c", "image": "c:1"}
            ],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "tolerations": [{"key": "k", "operator": "Exists"}],
            "nodeSelector": {"disk": "ssd"},
            "imagePullSecrets": [{"name": "s"}],
            "securityContext": {"runAsUser": 5}
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "podIPs": [{"ip": "1"}]}
    })
}

fn pod_patches() -> Vec<Value> {
    let containers = |list: Value| json!({"spec": {"containers": list}});
    let first = |mut rest: Value| {
        rest["name"] = "a".into();
        json!({"spec": {"containers": [rest]}})
    };
    vec![
        json!({}),
        json!({"metadata": {"name": "p", "labels": {"c": "d"}, "annotations": {"n": "v"}}}),
        json!({"metadata": {"labels": {"a": 1, "b": true, "c": [], "d": {}, "e": null}}}),
        json!({"metadata": {"finalizers": ["z"]}}),
        json!({"metadata": {"finalizers": ["y", "x"]}}),
        json!({"metadata": {"finalizers": ["z", "z"]}}),
        json!({"metadata": {"finalizers": [["z"], {}, null]}}),
        json!({"metadata": {"ownerReferences": [{"uid": "1", "controller": true}]}}),
        json!({"metadata": {"ownerReferences": [{"name": "o"}]}}),
        json!({"metadata": {"managedFields": []}}),
        json!({"metadata": null, "spec": null}),
        json!({"metadata": [], "spec": "x"}),
        containers(json!([{"name": "d", "image": "d:1"}])),
        containers(json!([{"name": "c"}, {"name": "a", "image": "a:2"}])),
        containers(json!([{"name": "c"}, {"name": "x"}, {"name": "b"}, {"name": "y"}, {"name": "a"}])),
        containers(json!([{"name": "b"}, {"name": "b"}])),
        containers(json!([{"image": "a:1"}])),
        containers(json!([{"name": "z"}, null, {"name": 1}])),
        containers(json!(["a"])),
        containers(json!({"name": "a"})),
        containers(json!([])),
        containers(json!(null)),
        first(
            json!({"env": [{"name": "G", "value": "3"}, {"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "f"}}}]}),
        ),
        first(json!({"env": [{"name": "E", "valueFrom": {"secretKeyRef": {"key": "f", "name": "s"}}}]})),
        first(json!({"env": [{"name": "E", "value": 5}, {"name": "F", "unknown": 1, "value": {}}]})),
        first(json!({"args": ["--y"], "command": ["x"]})),
        first(json!({"args": null})),
        first(
            json!({"resources": {"limits": {"cpu": "3", "memory": "1Gi", "x": 1.5}, "claims": [{"name": "c"}]}}),
        ),
        first(json!({"resources": {"limits": {"cpu": {"a": 1}, "memory": [1]}}})),
        first(json!({"ports": [{"containerPort": 80, "name": "http"}]})),
        first(
            json!({"ports": [{"containerPort": 80, "protocol": "UDP", "hostPort": 1}, {"containerPort": 81}]}),
        ),
        first(json!({"ports": [{"containerPort": 80.0, "protocol": "UDP", "hostPort": 1.5}]})),
        first(json!({"ports": [{"containerPort": 80}, {"containerPort": 80, "protocol": "TCP"}]})),
        first(json!({"ports": [{"protocol": "TCP"}, {"hostPort": 1}]})),
        first(
            json!({"volumeMounts": [{"mountPath": "/a", "readOnly": true}, {"mountPath": "/b", "name": "v"}]}),
        ),
        first(json!({"livenessProbe": {"httpGet": {"port": 80}}})),
        first(json!({"livenessProbe": {"httpGet": {"port": {}}}})),
        first(json!({"livenessProbe": {"httpGet": {"httpHeaders": [{"name": "a", "value": "b"}]}}})),
        first(json!({"securityContext": {"capabilities": {"add": ["X"]}}})),
        first(json!({"stdin": "true", "tty": 1, "stdinOnce": [], "image": true})),
        json!({"spec": {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "w", "configMap": {"name": "m"}}]}}),
        json!({"spec": {"volumes": [{"name": "w", "projected": {"sources": []}}]}}),
        json!({"spec": {"tolerations": [{"key": "x"}]}}),
        json!({"spec": {"tolerations": []}}),
        json!({"spec": {"nodeSelector": {"disk": "hdd"}}}),
        json!({"spec": {"nodeSelector": {}}}),
        json!({"spec": {"imagePullSecrets": [{"name": "t"}, {"name": "s"}]}}),
        json!({"spec": {"imagePullSecrets": [{}]}}),
        json!({"spec": {"imagePullSecrets": [{"name": ""}]}}),
        json!({"spec": {"securityContext": {"runAsUser": 6, "fsGroup": 7, "supplementalGroups": [1]}}}),
        json!({"spec": {"topologySpreadConstraints": [{"topologyKey": "z", "whenUnsatisfiable": "w", "maxSkew": 1,
            "labelSelector": {"matchLabels": {"a": "b"}}}]}}),
        json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}}}),
        json!({"spec": {"hostAliases": [{"ip": "1", "hostnames": ["h"]}]}}),
        json!({"spec": {"overhead": {"cpu": "1"}, "priority": 1, "terminationGracePeriodSeconds": 1.5, "hostNetwork": false}}),
        json!({"spec": {"serviceAccountName": "s", "bogus": 1, "another": 2}}),
        json!({"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "X", "status": "True"}], "podIPs": [{"ip": "2"}]}}),
        json!({"spec": {"containers": [{"name": {"q": [1, "x", null]}, "image": 1}]}}),
        json!({"spec": {"hostname": {"a": [1, 1.5, null, true, "x\ny"], "b": {}}, "hostPID": {"a": [1, null], "b": "c"}}}),
    ]
}

fn deployment() -> Value {
    json!({
        "metadata": {"name": "d"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"a": "b"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a:1"}]}}
        }
    })
}

fn deployment_patches() -> Vec<Value> {
    vec![
        json!({"spec": {"replicas": 5}}),
        json!({"spec": {"replicas": "5"}}),
        json!({"spec": {"replicas": 5.5}}),
        json!({"spec": {"replicas": null}}),
        json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": "50%"}}}}),
        json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": true}}}}),
        json!({"spec": {"strategy": {"rollingUpdate": null}}}),
        json!({"spec": {"selector": {"matchLabels": {"c": "d"}}}}),
        json!({"spec": {"template": {"spec": {"containers": [{"name": "sidecar", "image": "s"}, {"name": "a", "image": "a:2"}]}}}}),
        json!({"spec": {"template": {"spec": {"initContainers": [{"name": "mesh", "restartPolicy": "Always"}]}}}}),
        json!({"spec": {"template": {"metadata": {"annotations": {"x": "y"}, "creationTimestamp": null}}}}),
        json!({"metadata": {"managedFields": null, "creationTimestamp": 5}}),
    ]
}

fn service() -> Value {
    json!({"spec": {"ports": [{"port": 80, "protocol": "TCP", "name": "web"}, {"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"},
        {"port": 53, "protocol": "UDP", "name": "again"}],
        "selector": {"a": "b"}, "externalIPs": ["1"], "clusterIPs": ["c"]}})
}

fn service_patches() -> Vec<Value> {
    let ports = |list: Value| json!({"spec": {"ports": list}});
    vec![
        ports(json!([{"port": 80, "targetPort": "x"}])),
        ports(json!([{"port": 80, "targetPort": 8080, "protocol": "UDP"}])),
        ports(json!([{"port": 53, "protocol": "UDP", "nodePort": 5}])),
        ports(json!([{"port": 443}, {"port": 53, "name": "dns"}, {"port": 80}])),
        ports(json!([{"targetPort": 1}])),
        ports(json!([{"protocol": "SCTP"}])),
        ports(json!([{"port": null}])),
        ports(json!([{"port": "80"}])),
        json!({"spec": {"selector": {"c": "d"}}}),
        json!({"spec": {"externalIPs": ["2"]}}),
        json!({"spec": {"type": "LoadBalancer", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1}}}}),
        json!({"status": {"conditions": [{"type": "X"}], "loadBalancer": {"ingress": [{"ip": "1"}]}}}),
    ]
}

fn definition() -> Value {
    json!({"spec": {"group": "g", "scope": "Namespaced", "names": {"kind": "K", "plural": "ks"},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"a": {"type": "object",
                "properties": {"b": {"items": {"type": "string"}, "type": "array", "x-kubernetes-list-type": "set"}}}}}}}]}})
}

/// Schemas of a type `A`, good and bad.
pub(crate) fn schemas() -> Vec<Value> {
    let property = |schema: Value| json!({"type": "object", "properties": {"x": {"type": "object", "properties": {"y": schema}}}});
    let mut schemas = vec![
        json!({}),
        json!({"type": null}),
        json!({"type": []}),
        json!({"type": ["object", "null"]}),
        json!({"type": [null, "object"]}),
        json!({"type": "null"}),
        json!({"type": 5}),
        json!({"type": ["object", 5]}),
        json!({"format": 5}),
        json!({"properties": []}),
        json!({"properties": {"a": null}}),
        json!({"properties": {"a": 5}}),
        json!({"properties": {"a": []}}),
        json!({"properties": {"a": ["#"]}}),
        json!(["#"]),
        json!({"allOf": [["#"]]}),
        json!({"$serde_json::private::RawValue": "{}"}),
        json!({"x-kubernetes-list-type": {"$serde_json::private::RawValue": "\"set\""}, "type": "array", "items": {}}),
        json!({"properties": null, "items": null, "allOf": null, "additionalProperties": null, "format": null}),
        json!({"additionalProperties": 5}),
        json!({"allOf": {}}),
        json!({"allOf": [5]}),
        json!({"allOf": [null]}),
        json!({"$ref": 5}),
        json!({"$ref": null}),
        json!({"$ref": "#"}),
        json!({"$ref": "#/components/schemas/A"}),
        json!({"x-kubernetes-group-version-kind": "x"}),
        json!({"x-kubernetes-group-version-kind": [5, {"group": "g"}, {"group": "g", "version": 1, "kind": "k"}]}),
        json!({"x-kubernetes-preserve-unknown-fields": "true"}),
    ];
    for inner in [
        json!({"type": "array"}),
        json!({"type": "array", "items": []}),
        json!({"type": "array", "items": [{"type": "string"}]}),
        json!({"type": "array", "items": true}),
        json!({"type": "array", "items": 5}),
        json!({"type": "array", "items": "x"}),
        json!({"type": "array", "items": null}),
        json!({"items": []}),
        json!({"type": "array", "items": {"type": "what"}}),
        json!({"type": "array", "items": {}, "x-kubernetes-list-type": "bag"}),
        json!({"type": "array", "items": {}, "x-kubernetes-list-type": null}),
        json!({"type": "array", "items": {}, "x-kubernetes-list-type": 1_000_000}),
        json!({"type": "array", "items": {}, "x-kubernetes-list-type": ["a", {"b": 1.5, "a": null}]}),
        json!({"type": "array", "items": {}, "x-kubernetes-list-type": "map"}),
        json!({"type": "array", "items": {}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": "a"}),
        json!({"type": "array", "items": {}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": null}),
        json!({"type": "array", "items": {}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": {"a": [1, "b", null, true, 1e21]}}),
        json!({"type": "array", "items": {}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", 5]}),
        json!({"type": "array", "items": {}, "x-kubernetes-patch-strategy": "replace"}),
        json!({"type": "array", "items": {}, "x-kubernetes-patch-strategy": 5}),
        json!({"type": "array", "items": {}, "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": 5}),
        json!({"type": "array", "items": {}, "x-kubernetes-patch-strategy": "merge,retainKeys", "x-kubernetes-patch-merge-key": "a"}),
        json!({"type": "array", "items": {}, "x-kubernetes-patch-strategy": "retainKeys"}),
        json!({"type": "object", "x-kubernetes-map-type": "set"}),
        json!({"type": "object", "x-kubernetes-map-type": null}),
        json!({"$ref": "#/components/schemas/B", "x-kubernetes-map-type": {}}),
        json!({"$ref": "#/components/schemas/", "type": "bad"}),
        json!({"additionalProperties": {"type": "array", "items": {"additionalProperties": {"type": "bad"}}}}),
        json!({"X-Kubernetes-List-Type": "bag", "type": "array", "items": {}}),
    ] {
        schemas.push(property(inner.clone()));
        schemas.push(inner);
    }
    schemas
}

/// Documents, good and bad.
pub(crate) fn texts() -> &'static [&'static str] {
    &[
        "",
        "null x",
        "[]",
        "{\"components\": 5}",
        "{\"components\": {\"schemas\": 5}}",
        "{\"components\": {\"schemas\": []}}",
        "{\"components\": {\"schemas\": {\"a\": 5}}}",
        "{\"components\": {\"schemas\": {}}}",
        "{\"components\": {}}",
        "{\"components\": {\"schemas\": null}}",
        "{\"components\": {\"schemas\": {\"a\": {\"type\": \"string\"}, \"a\": {}}}}",
        "{\"components\": {\"schemas\": {\"a\": {\"properties\": {\"b\": {}, \"b\": {}}}}}}",
        "{\"components\": {\"schemas\": {\"a\": {\"type\": \"string\", \"type\": \"string\"}}}}",
        "{\"components\": {\"schemas\": {\"a\": {\"type\": \"string\"}}}",
        "{\"components\": {\"schemas\": {\"a\": {\"type\": \"string\"}}}} {}",
    ]
}

/// Schemas with a kind `Root`, and objects and patches for it.
pub(crate) fn odd() -> Vec<(Value, Vec<Pair>)> {
    let root =
        |field: Value| json!({"type": "object", "properties": {"apiVersion": {}, "kind": {}, "f": field}});
    let with = |left: Value, right: Value| (json!({"f": left}), json!({"f": right}));
    let every_pair = || {
        let values = [
            json!(null),
            json!(1),
            json!("a"),
            json!(true),
            json!([]),
            json!(["a"]),
            json!(["a", "a"]),
            json!({}),
            json!({"a": 1}),
            json!({"a": {"b": 1}}),
            json!([{"name": "a"}]),
            json!([{"name": "a", "x": 1}, {"name": "a", "x": 2}, {"name": "b"}]),
            json!([{"name": "b", "x": null}, {"name": "a"}]),
            json!([{"x": 1}]),
            json!([null]),
            json!([1, 1.0, 2]),
            json!({"name": {"a": 1}}),
            json!([{"name": {"a": [1, null]}}]),
            json!([{"name": null}]),
            json!([{"name": 1}, {"name": 2.0}]),
            json!([{"name": 1.0, "x": "y"}]),
        ];
        let mut pairs = Vec::new();
        for left in &values {
            for right in &values {
                pairs.push(with(left.clone(), right.clone()));
            }
        }
        pairs
    };
    let named = json!({"type": "object", "properties": {"name": {}, "x": {}}});
    let fields = [
        json!({}),
        json!({"x-kubernetes-list-type": "set"}),
        json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": named}),
        json!({"x-kubernetes-map-type": "atomic", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "x"], "items": named}),
        json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
        json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {"$ref": "#/components/schemas/Missing"}}),
        json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {"type": "string"}}),
        json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []}),
        json!({"$ref": "#/components/schemas/List", "x-kubernetes-map-type": "granular"}),
        json!({"$ref": "#/components/schemas/List", "x-kubernetes-map-type": "atomic"}),
        json!({"$ref": "#/components/schemas/List"}),
        json!({"$ref": "#/components/schemas/Text", "x-kubernetes-map-type": "atomic"}),
        json!({"$ref": "#/components/schemas/Alias"}),
        json!({"$ref": "List"}),
        json!({"$ref": "#"}),
        json!({"allOf": [{"$ref": "#/components/schemas/List"}, {}]}),
        json!({"allOf": [{"$ref": "#/components/schemas/Any"}], "x-kubernetes-map-type": "granular"}),
        json!({"type": "array", "items": {"$ref": "#/components/schemas/List", "x-kubernetes-map-type": "granular"}}),
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "properties": {"name": {"default": 1}, "x": {"$ref": "#/components/schemas/List", "x-kubernetes-map-type": "granular"}}}}),
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["x", "name"],
            "items": {"type": "object", "properties": {"name": {"default": "a"}, "x": {"default": 123_456_789.5}}}}),
        json!({"type": "object", "additionalProperties": false}),
        json!({"type": "object", "additionalProperties": true}),
        json!({"type": "object", "additionalProperties": {"type": "integer"}, "properties": {"a": {"type": "object"}}}),
        json!({"type": "object", "properties": {"z": {"type": "string"}}, "x-kubernetes-preserve-unknown-fields": true}),
        json!({"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.api.resource.Quantity"}),
        json!({"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.runtime.RawExtension"}),
        json!({"$ref": "#/components/schemas/__untyped_atomic_"}),
        json!({"$ref": "#/components/schemas/__untyped_deduced_"}),
        json!({"type": "string"}),
        json!({"type": "integer", "x-kubernetes-map-type": "bad"}),
        json!({"type": "boolean"}),
        json!({"type": "string", "format": "int-or-string"}),
    ];
    let fields = fields.into_iter().map(|field| {
        let schemas = json!({
            "Root": root(field), "Text": {"type": "string"}, "Alias": {"$ref": "#/components/schemas/List"},
            "List": {"type": "array", "items": named, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
            "Any": {"x-kubernetes-list-type": "set"}, "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": "string"},
            "io.k8s.apimachinery.pkg.runtime.RawExtension": {"type": "object"}, "__untyped_atomic_": {"type": "integer"},
        });
        (schemas, every_pair())
    });
    let roots = [
        json!({"type": "string"}),
        json!({"$ref": "#/components/schemas/Missing"}),
        json!({}),
        json!({"type": "array", "items": {}}),
    ];
    let roots =
        roots.into_iter().map(|root| (json!({"Root": root}), vec![(json!({"a": [1]}), json!({"a": {}}))]));
    fields.chain(roots).collect()
}
