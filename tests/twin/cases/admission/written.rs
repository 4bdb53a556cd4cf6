//! What is stored of a write, in every form that a client may send, and who manages it: `managedFields` are compared as well.

use serde_json::{Value, json};

use super::{MAPS, OWN, WIDGETS, by_admin, create, kinds, map};
use crate::case::Case;

/// A certificate signing request in PEM, in base64.
const REQUEST: &str = include_str!("request.base64");
const WIDGET: &str = "/apis/twin.test/v1/namespaces/twin/widgets/{unique}";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// What webhooks do: nothing, change the object, and change it in the second phase's sight.
const CHANGES: [(&str, &str); 2] = [("reviewed", ""), ("changed", "m1=label;m2=annotation;")];

pub(super) fn cases() -> Vec<Case> {
    [
        nulls(),
        managers(),
        applied(),
        generated(),
        every_kind(),
        subresources(),
        services(),
        pins(),
        encodings(),
    ]
    .concat()
}

fn read(case: Case, path: &str) -> Case {
    case.then("GET", path).answers(200)
}

fn annotated(mut object: Value, asks: &str) -> Value {
    object["metadata"]["annotations"] = json!({"asks": asks});
    object
}

/// Nulls in lists and in free fields of a custom resource.
fn nulls() -> Vec<Case> {
    let list = json!([{"name": "a", "mode": null}, {"name": "b"}, {"name": "c", "mode": "private"}]);
    let free = json!([{"a": null, "b": [null, {"c": null}]}, null, {}, [], 1.5, 1e3]);
    let spec = json!({"listeners": list, "free": free});
    let widget = |asks: &str, spec: &Value| {
        annotated(
            json!({"apiVersion": "twin.test/v1", "kind": "Widget", "metadata": {"name": "{unique}"}, "spec": spec}),
            asks,
        )
    };
    let apply = format!("{WIDGET}?fieldManager=twin&force=true");
    let mut cases = Vec::new();
    for (what, asks) in CHANGES {
        let name = |how: &str| format!("nulls in lists, {how}: {what}");
        let first = |how: &str| {
            by_admin(&name(how), "POST", WIDGETS).json(&widget("", &spec).to_string()).answers(201)
        };
        let own = |case: Case, status: u16| read(case.answers(status), WIDGET);
        cases.push(own(
            by_admin(&name("created"), "POST", WIDGETS).json(&widget(asks, &spec).to_string()),
            201,
        ));
        cases.push(own(
            by_admin(&name("created by applying"), "PATCH", &apply)
                .body(APPLY, widget(asks, &spec).to_string().as_bytes()),
            201,
        ));
        cases.push(own(
            first("applied").then("PATCH", &apply).body(APPLY, widget(asks, &spec).to_string().as_bytes()),
            200,
        ));
        let mut replacement = widget(asks, &json!({"listeners": [list[0], list[0]], "free": free}));
        replacement["metadata"]["resourceVersion"] = json!("{version}");
        cases.push(own(first("replaced").then("PUT", WIDGET).json(&replacement.to_string()), 200));
        let patch =
            annotated(json!({"spec": {"listeners": [list[0], list[1]], "free": {"x": [{"y": null}]}}}), asks);
        cases
            .push(own(first("patched").then("PATCH", WIDGET).body(MERGE, patch.to_string().as_bytes()), 200));
        let operations = json!([
            {"op": "add", "path": "/spec/listeners/0", "value": {"name": "d", "mode": null}},
            {"op": "add", "path": "/spec/free/0/d", "value": [null]},
            {"op": "add", "path": "/metadata/annotations", "value": {"asks": asks}},
        ]);
        cases.push(own(
            first("patched in JSON")
                .then("PATCH", WIDGET)
                .body(JSON_PATCH, operations.to_string().as_bytes()),
            200,
        ));
    }
    cases
}

/// Who manages fields that webhooks set, and managers that clients set themselves.
fn managers() -> Vec<Case> {
    let mut cases = vec![read(create("who manages the fields that webhooks change", "m1=label;", 201), OWN)];
    for kind in kinds() {
        let own = kind.own();
        let change = |asks: &str| {
            let mut patch = (kind.patch)();
            patch["metadata"] = json!({"annotations": {"asks": asks}});
            patch.to_string()
        };
        let asks = "m1=label;m2=annotation;";
        let first = |how: &str| {
            by_admin(
                &format!("managers of {}: {how}", kind.name),
                "POST",
                &format!("{}?fieldManager=one", kind.collection),
            )
            .json(&kind.with("").to_string())
            .answers(201)
        };
        let patched = first("patched")
            .then("PATCH", &format!("{own}?fieldManager=two"))
            .body(MERGE, change(asks).as_bytes())
            .answers(200);
        cases.push(read(patched, &own));
        let mut replacement = kind.with(asks);
        replacement["metadata"]["resourceVersion"] = json!("{version}");
        let replaced = first("replaced")
            .then("PUT", &format!("{own}?fieldManager=two"))
            .json(&replacement.to_string())
            .answers(200);
        cases.push(read(replaced, &own));
        let apply = |manager: &str| format!("{own}?fieldManager={manager}&force=true");
        let applied = first("applied")
            .then("PATCH", &apply("two"))
            .body(APPLY, kind.with(asks).to_string().as_bytes())
            .answers(200)
            .then("PATCH", &apply("three"))
            .body(APPLY, kind.with(asks).to_string().as_bytes())
            .answers(200)
            .then("PATCH", &apply("two"))
            .body(APPLY, kind.with(asks).to_string().as_bytes())
            .answers(200);
        cases.push(read(applied, &own));
    }
    for (what, asks) in CHANGES {
        let migrated = json!([{"manager": "new", "operation": "Apply", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:a": {}}}}]);
        // client-go: util/csaupgrade/upgrade.go, UpgradeManagedFieldsPatch
        let operations = json!([{"op": "replace", "path": "/metadata/managedFields", "value": migrated},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": "{version}"}]);
        let first = |how: &str| {
            by_admin(&format!("managers are {how}: {what}"), "POST", &format!("{MAPS}?fieldManager=old"))
                .json(&map(asks).to_string())
                .answers(201)
        };
        let migrate = first("migrated")
            .then("PATCH", OWN)
            .body(JSON_PATCH, operations.to_string().as_bytes())
            .answers(200)
            .then("PATCH", &format!("{OWN}?fieldManager=new"))
            .body(
                APPLY,
                br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}"},"data":{"b":"2"}}"#,
            )
            .answers(200);
        cases.push(read(migrate, OWN));
        let reset = first("reset")
            .then("PATCH", &format!("{OWN}?fieldManager=new"))
            .body(MERGE, br#"{"metadata":{"managedFields":[{}]},"data":{"b":"2"}}"#)
            .answers(200);
        cases.push(read(reset, OWN));
    }
    cases
}

fn pod_spec() -> Value {
    json!({"containers": [{"name": "c", "image": "x"}], "restartPolicy": "Never"})
}

/// Objects with what the API server adds and generates, of a kind and its path.
fn workloads() -> Vec<(&'static str, String, Value)> {
    let labels = json!({"app": "a"});
    let template =
        json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "x"}]}});
    let object = |version: &str, kind: &str, spec: Value| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "{unique}"}, "spec": spec});
    let selected = json!({"selector": {"matchLabels": labels}, "template": template});
    let job = json!({"template": {"spec": pod_spec()}});
    let mut stateful = selected.clone();
    stateful["serviceName"] = json!("s");
    let apps = |resource: &str| format!("/apis/apps/v1/namespaces/twin/{resource}");
    let batch = |resource: &str| format!("/apis/batch/v1/namespaces/twin/{resource}");
    vec![
        ("a pod", "/api/v1/namespaces/twin/pods".to_owned(), object("v1", "Pod", pod_spec())),
        ("a job", batch("jobs"), object("batch/v1", "Job", job.clone())),
        (
            "a cron job",
            batch("cronjobs"),
            object("batch/v1", "CronJob", json!({"schedule": "@daily", "jobTemplate": {"spec": job}})),
        ),
        ("a deployment", apps("deployments"), object("apps/v1", "Deployment", selected.clone())),
        ("a daemon set", apps("daemonsets"), object("apps/v1", "DaemonSet", selected)),
        ("a stateful set", apps("statefulsets"), object("apps/v1", "StatefulSet", stateful)),
    ]
}

/// Webhooks see what the API server adds to such objects before it stores them, and no defaults of a container that another webhook
/// adds.
fn prepared(kind: &str, what: &str, case: Case, status: u16) -> Case {
    let is_prepared = ["a pod", "a job", "a daemon set"].contains(&kind) || what.contains("container");
    if is_prepared { case.declared_reviews("D-admission-prepared", status) } else { case }
}

/// Configurations that create and change objects, in JSON and YAML, and of two managers.
fn applied() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, collection, object) in workloads() {
        let own = format!("{collection}/{{unique}}");
        let apply = format!("{own}?fieldManager=twin&force=true");
        let asks = [
            ("reviewed", ""),
            ("changed", "m1=label;m2=annotation;"),
            ("with a side container", "m1=sidecar;"),
        ];
        for (what, asks) in
            asks.into_iter().filter(|(_, asks)| kind != "a cron job" || !asks.contains("side"))
        {
            let configuration = annotated(object.clone(), asks).to_string();
            let case = |how: &str| by_admin(&format!("{kind} is {how}: {what}"), "PATCH", &apply);
            let again = |case: Case| {
                let case = case
                    .answers(201)
                    .then("PATCH", &apply)
                    .body(APPLY, configuration.as_bytes())
                    .answers(200);
                prepared(kind, what, read(case, &own), 200)
            };
            cases.push(again(case("applied twice").body(APPLY, configuration.as_bytes())));
            // No JSON, for its comment.
            let yaml = format!("# {{unique}}\n{configuration}\n");
            cases.push(again(case("applied in YAML").body(APPLY, yaml.as_bytes())));
            let dry = format!("{apply}&dryRun=All");
            let dry = by_admin(&format!("{kind} is applied in a dry run: {what}"), "PATCH", &dry);
            cases.push(prepared(kind, what, dry.body(APPLY, configuration.as_bytes()).answers(201), 201));
        }
    }
    let labelled = |asks: &str, label: &str| {
        let mut object = annotated(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{unique}"}}),
            asks,
        );
        object["metadata"]["labels"] = json!({label: "yes"});
        object.to_string()
    };
    let apply = format!("{OWN}?fieldManager=one");
    cases.push(read(
        by_admin("a webhook removes the only label", "PATCH", &apply)
            .body(APPLY, labelled("m1=unlabel;", "only-one").as_bytes())
            .answers(201)
            .then("PATCH", &apply)
            .body(APPLY, labelled("m1=unlabel;", "only-one").as_bytes())
            .answers(200),
        OWN,
    ));
    cases.push(read(
        by_admin("kubectl applies what it has annotated", "POST", MAPS)
            .json(&last_applied().to_string())
            .answers(201)
            .then("PATCH", &format!("{OWN}?fieldManager=kubectl&force=true"))
            .body(APPLY, map("").to_string().as_bytes())
            .answers(200)
            .then("PATCH", &format!("{OWN}?fieldManager=kubectl&force=true"))
            .body(APPLY, map("m1=label;").to_string().as_bytes())
            .answers(200),
        OWN,
    ));
    cases
}

/// A config map that `kubectl apply` has created.
fn last_applied() -> Value {
    let mut object = map("");
    let text = object.to_string();
    object["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = json!(text);
    object
}

/// Generated names, in every encoding of a body.
fn generated() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, collection, object) in workloads() {
        for (what, asks) in CHANGES {
            let mut object = annotated(object.clone(), asks);
            object["metadata"].as_object_mut().expect("an object").remove("name");
            object["metadata"]["generateName"] = json!("{unique}-");
            let case = |how: &str| {
                by_admin(&format!("{kind} of a generated name in {how}: {what}"), "POST", &collection)
            };
            let ends = |case: Case| prepared(kind, what, case.answers(201), 201);
            cases.push(ends(case("JSON").json(&object.to_string())));
            cases.push(ends(case("YAML").body(YAML, format!("# YAML\n{object}\n").as_bytes())));
            let mut named = annotated(object, asks);
            named["metadata"]["name"] = json!("{unique}");
            cases.push(ends(case("YAML beside its own").body(YAML, format!("# YAML\n{named}\n").as_bytes())));
        }
    }
    for (what, asks) in CHANGES {
        let metadata = |name: &Protobuf| {
            Protobuf::default()
                .message(2, name)
                .message(12, &Protobuf::default().text(1, "asks").text(2, asks))
        };
        let prefix = Protobuf(b"{unique}-".to_vec());
        let container = Protobuf::default().text(1, "c").text(2, "x");
        let pod = Protobuf::default().message(2, &container).text(3, "Never");
        let template = Protobuf::default().message(1, &Protobuf::default()).message(2, &pod);
        let job = Protobuf::default()
            .message(1, &metadata(&prefix))
            .message(2, &Protobuf::default().message(6, &template));
        let pod = Protobuf::default().message(1, &metadata(&prefix)).message(2, &pod);
        for (kind, version, path, object) in [
            ("Job", "batch/v1", "/apis/batch/v1/namespaces/twin/jobs", job),
            ("Pod", "v1", "/api/v1/namespaces/twin/pods", pod),
        ] {
            cases.push(
                by_admin(&format!("a {kind} of a generated name in protobuf: {what}"), "POST", path)
                    .body(PROTOBUF, &object.envelope(version, kind))
                    .answers(201)
                    .declared_reviews("D-admission-prepared", 201),
            );
        }
        let replacement = Protobuf::default()
            .message(
                1,
                &Protobuf::default()
                    .text(1, "{unique}")
                    .message(12, &Protobuf::default().text(1, "asks").text(2, asks)),
            )
            .message(2, &Protobuf::default().text(1, "b").text(2, "2"));
        cases.push(read(
            by_admin(&format!("a replacement in protobuf: {what}"), "POST", MAPS)
                .json(&map("").to_string())
                .answers(201)
                .then("PUT", OWN)
                .body(PROTOBUF, &replacement.envelope("v1", "ConfigMap"))
                .answers(200),
            OWN,
        ));
    }
    cases
}

/// One object of each kind: what the API server decides anew in a write is no difference to the dry run, or there would be another
/// review.
fn every_kind() -> Vec<Case> {
    let core = |resource: &str| format!("/api/v1/namespaces/twin/{resource}");
    let of = |group: &str, resource: &str| format!("/apis/{group}/namespaces/twin/{resource}");
    let cluster = |group: &str, resource: &str| format!("/apis/{group}/{resource}");
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let template =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}});
    let objects = [
        (
            core("replicationcontrollers"),
            "v1",
            "ReplicationController",
            json!({"spec": {"selector": {"a": "b"}, "template": template}}),
        ),
        (core("podtemplates"), "v1", "PodTemplate", json!({"template": template})),
        (core("persistentvolumeclaims"), "v1", "PersistentVolumeClaim", json!({"spec": claim})),
        (
            core("limitranges"),
            "v1",
            "LimitRange",
            json!({"spec": {"limits": [{"type": "PersistentVolumeClaim", "min": {"storage": "1"}}]}}),
        ),
        (
            core("resourcequotas"),
            "v1",
            "ResourceQuota",
            json!({"spec": {"hard": {"count/gadgets.twin.test": "1000"}}}),
        ),
        (
            core("endpoints"),
            "v1",
            "Endpoints",
            json!({"subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]}]}),
        ),
        (
            core("events"),
            "v1",
            "Event",
            json!({"involvedObject": {"namespace": "twin"}, "reason": "r", "type": "Normal"}),
        ),
        (
            core("secrets"),
            "v1",
            "Secret",
            json!({"type": "kubernetes.io/service-account-token", "stringData": {"a": "b"}}),
        ),
        (
            "/api/v1/persistentvolumes".to_owned(),
            "v1",
            "PersistentVolume",
            json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}}),
        ),
        ("/api/v1/nodes".to_owned(), "v1", "Node", json!({"spec": {"unschedulable": true}})),
        ("/api/v1/namespaces".to_owned(), "v1", "Namespace", json!({})),
        (
            of("apps/v1", "replicasets"),
            "apps/v1",
            "ReplicaSet",
            json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}),
        ),
        (
            of("apps/v1", "controllerrevisions"),
            "apps/v1",
            "ControllerRevision",
            json!({"revision": 1, "data": {"a": null}}),
        ),
        (
            of("policy/v1", "poddisruptionbudgets"),
            "policy/v1",
            "PodDisruptionBudget",
            json!({"spec": {"minAvailable": 1}}),
        ),
        (
            of("networking.k8s.io/v1", "networkpolicies"),
            "networking.k8s.io/v1",
            "NetworkPolicy",
            json!({"spec": {"podSelector": {}}}),
        ),
        (
            of("networking.k8s.io/v1", "ingresses"),
            "networking.k8s.io/v1",
            "Ingress",
            json!({"spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}}),
        ),
        (
            of("discovery.k8s.io/v1", "endpointslices"),
            "discovery.k8s.io/v1",
            "EndpointSlice",
            json!({"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}]}),
        ),
        (
            of("events.k8s.io/v1", "events"),
            "events.k8s.io/v1",
            "Event",
            json!({"eventTime": "2026-01-01T00:00:00.000000Z", "regarding": {"namespace": "twin"}, "reason": "r", "type": "Normal",
                "action": "a", "reportingController": "twin.test/c", "reportingInstance": "i"}),
        ),
        (
            of("rbac.authorization.k8s.io/v1", "roles"),
            "rbac.authorization.k8s.io/v1",
            "Role",
            json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
        ),
        (
            of("rbac.authorization.k8s.io/v1", "rolebindings"),
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}, "subjects": []}),
        ),
        (
            cluster("scheduling.k8s.io/v1", "priorityclasses"),
            "scheduling.k8s.io/v1",
            "PriorityClass",
            json!({"value": 1}),
        ),
        (
            cluster("node.k8s.io/v1", "runtimeclasses"),
            "node.k8s.io/v1",
            "RuntimeClass",
            json!({"handler": "h"}),
        ),
        (
            cluster("storage.k8s.io/v1", "storageclasses"),
            "storage.k8s.io/v1",
            "StorageClass",
            json!({"provisioner": "twin.test/p"}),
        ),
        (cluster("storage.k8s.io/v1", "csidrivers"), "storage.k8s.io/v1", "CSIDriver", json!({"spec": {}})),
        (
            cluster("networking.k8s.io/v1", "ingressclasses"),
            "networking.k8s.io/v1",
            "IngressClass",
            json!({"spec": {"controller": "twin.test/c"}}),
        ),
        (
            cluster("certificates.k8s.io/v1", "certificatesigningrequests"),
            "certificates.k8s.io/v1",
            "CertificateSigningRequest",
            json!({"spec": {"signerName": "example.com/x", "usages": ["client auth"], "request": REQUEST}}),
        ),
        (
            cluster("flowcontrol.apiserver.k8s.io/v1", "prioritylevelconfigurations"),
            "flowcontrol.apiserver.k8s.io/v1",
            "PriorityLevelConfiguration",
            json!({"spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 0, "limitResponse": {"type": "Reject"}}}}),
        ),
    ];
    let mut cases = Vec::new();
    for (collection, version, kind, content) in objects {
        for (what, asks) in CHANGES {
            let mut object = content.clone();
            (object["apiVersion"], object["kind"]) = (json!(version), json!(kind));
            let name = if kind == "CSIDriver" { "{unique}.twin.test" } else { "{unique}" };
            object["metadata"] = json!({"name": name, "annotations": {"asks": asks}});
            if kind == "Secret" {
                object["metadata"]["annotations"]["kubernetes.io/service-account.name"] = json!("default");
            }
            if kind == "Event" {
                object["metadata"]["namespace"] = json!("twin");
            }
            let case = by_admin(&format!("a {kind} of {version} is created: {what}"), "POST", &collection)
                .json(&object.to_string())
                .answers(201);
            let case = read(case, &format!("{collection}/{name}"));
            let is_prepared = PREPARED.contains(&kind);
            cases.push(if is_prepared { case.declared_reviews("D-admission-prepared", 200) } else { case });
        }
    }
    cases
}

/// The kinds to which the API server adds something before it stores them, which webhooks see.
const PREPARED: &[&str] =
    &["PersistentVolumeClaim", "PersistentVolume", "Namespace", "CertificateSigningRequest"];

/// Tokens, evictions and bindings in protobuf, which no dry run shows.
fn subresources() -> Vec<Case> {
    let pods = "/api/v1/namespaces/twin/pods";
    let mut cases = Vec::new();
    for (what, asks, ok) in
        [("allowed", "", true), ("denied", "v1=deny;", false), ("changed", "m1=annotation;", true)]
    {
        let status = if ok { 201 } else { 403 };
        let metadata = Protobuf::default()
            .text(1, "{unique}")
            .text(3, "twin")
            .message(12, &Protobuf::default().text(1, "asks").text(2, asks));
        let of_pod = |name: &str, subresource: &str, body: &[u8]| {
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "{unique}"}, "spec": pod_spec()});
            by_admin(&format!("{name} in protobuf: {what}"), "POST", pods)
                .json(&pod.to_string())
                .answers(201)
                .then("POST", &format!("{pods}/{{unique}}/{subresource}"))
                .body(PROTOBUF, body)
                .answers(status)
                .declared_reviews("D-admission-prepared", status)
        };
        let eviction = Protobuf::default().message(1, &metadata).envelope("policy/v1", "Eviction");
        cases.push(of_pod("an eviction", "eviction", &eviction));
        let target = Protobuf::default().text(1, "Node").text(3, "twin-node");
        let binding = Protobuf::default().message(1, &metadata).message(2, &target).envelope("v1", "Binding");
        cases.push(of_pod("a binding", "binding", &binding));
        if what != "changed" {
            let spec = Protobuf::default().text(1, &format!("{asks}{{unique}}"));
            let token =
                Protobuf::default().message(2, &spec).envelope("authentication.k8s.io/v1", "TokenRequest");
            cases.push(
                by_admin(
                    &format!("a token in protobuf: {what}"),
                    "POST",
                    "/api/v1/namespaces/twin/serviceaccounts/default/token",
                )
                .body(PROTOBUF, &token)
                .answers(status)
                .any_body("a token")
                .declared_reviews("D-admission-tokens", status),
            );
        }
    }
    cases
}

/// A message in protobuf, in which `{unique}` stands for ten characters.
#[derive(Default, Clone)]
struct Protobuf(Vec<u8>);

impl Protobuf {
    /// Its length when the placeholders are filled.
    fn len(&self) -> u8 {
        let placeholders = String::from_utf8_lossy(&self.0).matches("{unique}").count();
        u8::try_from(self.0.len() + 2 * placeholders).expect("a short message")
    }

    /// Adds a field.
    fn message(mut self, number: u8, content: &Self) -> Self {
        let length = content.len();
        assert!(length < 128, "a length of one byte");
        self.0.extend([number << 3 | 2, length]);
        self.0.extend(&content.0);
        self
    }

    fn text(self, number: u8, text: &str) -> Self {
        self.message(number, &Self(text.as_bytes().to_vec()))
    }

    /// The object as a body.
    fn envelope(&self, version: &str, kind: &str) -> Vec<u8> {
        let meta = Self::default().text(1, version).text(2, kind);
        let mut body = b"k8s\0".to_vec();
        body.extend(Self::default().message(1, &meta).message(2, self).text(3, "").text(4, "").0);
        body
    }
}

/// Services: the API server allocates their addresses and ports, in a dry run others than in a write.
fn services() -> Vec<Case> {
    let collection = "/api/v1/namespaces/twin/services";
    let own = format!("{collection}/{{unique}}");
    let service = |asks: &str, kind: &str| {
        annotated(
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "{unique}"},
                "spec": {"type": kind, "selector": {"a": "b"}, "ports": [{"name": "one", "port": 80}, {"name": "two", "port": 81}]}}),
            asks,
        )
    };
    let mut cases = Vec::new();
    for (what, asks) in CHANGES {
        let apply = format!("{own}?fieldManager=twin&force=true");
        for kind in ["ClusterIP", "NodePort", "LoadBalancer"] {
            let name = |how: &str| format!("a service of type {kind} is {how}: {what}");
            let first = |how: &str| {
                by_admin(&name(how), "POST", collection)
                    .json(&service("", "ClusterIP").to_string())
                    .answers(201)
            };
            let ends = |case: Case, status: u16| {
                // kube-apiserver begins again if the address or the port that it has drawn is taken meanwhile.
                read(case.answers(status).uncompared_reviews(), &own)
            };
            cases.push(ends(
                by_admin(&name("created"), "POST", collection).json(&service(asks, kind).to_string()),
                201,
            ));
            cases.push(ends(
                by_admin(&name("created in YAML"), "POST", collection)
                    .body(YAML, format!("# YAML\n{}\n", service(asks, kind)).as_bytes()),
                201,
            ));
            cases.push(ends(
                by_admin(&name("created by applying"), "PATCH", &apply)
                    .body(APPLY, service(asks, kind).to_string().as_bytes()),
                201,
            ));
            cases.push(ends(
                first("applied")
                    .then("PATCH", &apply)
                    .body(APPLY, service(asks, kind).to_string().as_bytes()),
                200,
            ));
            cases.push(ends(first("replaced").then("PUT", &own).json(&service(asks, kind).to_string()), 200));
            let patch = annotated(json!({"spec": {"type": kind}}), asks).to_string();
            for (how, content_type) in [("patched", MERGE), ("patched strategically", STRATEGIC)] {
                cases.push(ends(first(how).then("PATCH", &own).body(content_type, patch.as_bytes()), 200));
            }
            let operations = json!([{"op": "replace", "path": "/spec/type", "value": kind},
                {"op": "add", "path": "/metadata/annotations", "value": {"asks": asks}},
                {"op": "add", "path": "/spec/ports/-", "value": {"name": "three", "port": 82}}]);
            cases.push(ends(
                first("patched in JSON")
                    .then("PATCH", &own)
                    .body(JSON_PATCH, operations.to_string().as_bytes()),
                200,
            ));
        }
    }
    cases
}

/// Preconditions, dry runs and subresources.
fn pins() -> Vec<Case> {
    let created = |name: &str| by_admin(name, "POST", MAPS).json(&map("").to_string()).answers(201);
    let lease = "/apis/coordination.k8s.io/v1/namespaces/twin/leases/{unique}?dryRun=All";
    let absent = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "{unique}"}, "spec": {}});
    let mut cases = vec![
        created("a deletion with empty preconditions")
            .then("DELETE", &format!("{OWN}?uid=&resourceVersion="))
            .answers(200)
            .then("GET", OWN)
            .answers(404),
        created("a deletion with options of another type")
            .then("DELETE", OWN)
            .body(MERGE, b"{}")
            .answers(415),
    ];
    for (what, asks) in CHANGES {
        cases.push(
            by_admin(&format!("a dry run of a PUT that would create: {what}"), "PUT", lease)
                .json(&annotated(absent.clone(), asks).to_string())
                .answers(201),
        );
        let status =
            json!({"metadata": {"annotations": {"asks": asks}}, "status": {"replicas": 2}}).to_string();
        let deployments = "/apis/apps/v1/namespaces/twin/deployments";
        let own = format!("{deployments}/{{unique}}");
        let deployment = &workloads()[3].2;
        let case = read(
            by_admin(&format!("managers of a status: {what}"), "POST", deployments)
                .json(&deployment.to_string())
                .answers(201)
                .then("PATCH", &format!("{own}/status?fieldManager=two"))
                .body(MERGE, status.as_bytes())
                .answers(200),
            &own,
        );
        cases.push(if asks.is_empty() { case } else { case.declared("D-admission-managed-fields", 200) });
    }
    let widget =
        json!({"apiVersion": "twin.test/v1", "kind": "Widget", "metadata": {"name": "{unique}"}, "spec": {}});
    cases.push(
        read(
            by_admin("the first scale of a custom resource", "POST", WIDGETS)
                .json(&widget.to_string())
                .answers(201)
                .then("PATCH", &format!("{WIDGET}/scale"))
                .body(MERGE, br#"{"spec":{"replicas":3}}"#)
                .answers(200),
            WIDGET,
        )
        .declared_reviews("D-admission-prepared", 200),
    );
    cases
}

/// What the client accepts.
fn encodings() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, asks) in CHANGES {
        for (encoding, accept) in [
            ("YAML", YAML),
            ("protobuf", PROTOBUF),
            ("a table", "application/json;as=Table;v=v1;g=meta.k8s.io"),
            ("metadata", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"),
            ("JSON or anything", "application/json, */*"),
            ("protobuf or JSON", "application/vnd.kubernetes.protobuf,application/json"),
        ] {
            let name = |how: &str| format!("the response to {how} in {encoding}: {what}");
            let ends = |case: Case| {
                if encoding.starts_with("protobuf") {
                    case.any_body("it has a resourceVersion")
                } else {
                    case
                }
            };
            cases.push(ends(
                by_admin(&name("a creation"), "POST", MAPS)
                    .header("Accept", accept)
                    .json(&map(asks).to_string())
                    .answers(201),
            ));
            cases.push(ends(
                by_admin(&name("a patch"), "POST", MAPS)
                    .json(&map("").to_string())
                    .answers(201)
                    .then("PATCH", OWN)
                    .header("Accept", accept)
                    .body(MERGE, json!({"metadata": {"annotations": {"asks": asks}}}).to_string().as_bytes())
                    .answers(200),
            ));
        }
    }
    cases
}
