//! Admission webhooks: `m1` and `v1` with failurePolicy `Fail`, `m2` (which may be called again) and `v2` with `Ignore` and reviews of v1beta1, and
//! others that select some requests only (`admission.rs`). The answers are in the objects: `outside/admission.rs`.
//!
//! The reviews that the webhooks receive are compared as well, and the stored object is read afterwards.

mod equivalents;
mod mutations;
mod patches;
mod policies;
mod requests;
mod resources;
mod reviews;
mod written;

use serde_json::{Value, json};

use crate::admission::SELECTED_NAMESPACE;
use crate::case::{BOTH, Case, Declared, ExpectedReviews, H1, case};

const GROUP: &str = "admission";
const MAPS: &str = "/api/v1/namespaces/twin/configmaps";
const RUNNING: &str = "/api/v1/namespaces/twin-fixed/pods/placed";
const WIDGETS: &str = "/apis/twin.test/v1/namespaces/twin/widgets";
const OWN: &str = "/api/v1/namespaces/twin/configmaps/{unique}";

pub(crate) fn cases() -> Vec<Case> {
    let all =
        [answers(), warnings(), operations(), selections(), conditions(), bodies(), connections(), agnhost()];
    let more = [
        patches::cases(),
        resources::cases(),
        requests::cases(),
        reviews::cases(),
        equivalents::cases(),
        policies::cases(),
        mutations::cases(),
    ];
    let mut cases: Vec<Case> = all.into_iter().chain(more).flatten().map(Case::by_admission).collect();
    for name in UNREVIEWED {
        cases.iter_mut().find(|case| case.name == *name).expect("a case of this name").reviews =
            ExpectedReviews::None;
    }
    for (name, id, status) in DECLARED {
        let case = cases.iter_mut().find(|case| case.name == *name).expect("a case of this name");
        let only_reviews = ONLY_REVIEWS.contains(id);
        case.declared = Some(Declared { id, status: *status, only_reviews, only_by_decision: false });
    }
    cases.extend(written::cases().into_iter().map(|case| case.by_admission().with_managed_fields()));
    cases
}

/// The cases in which the API server calls no webhooks.
const UNREVIEWED: &[&str] = &[
    "a namespace that does not exist",
    "a wrong dry run",
    "an unknown field, strictly",
    "another namespace",
    "no JSON",
    "a user who may not create it",
    "a user who may not create a map",
    "a deletion of an object that is absent",
    "an object that is absent",
    "a patch of an object that is absent",
    "an unknown patch type",
    "a custom resource that is not served",
    "a group that is not served",
    "a connection as a dry run",
];

/// The differences in what webhooks see, behind equal responses.
const ONLY_REVIEWS: &[&str] = &["D-admission-prepared", "D-admission-refused-first", "D-admission-tokens"];

/// The cases that a gateway cannot answer alike, with its last status.
const DECLARED: &[(&str, &str, u16)] = &[
    ("m1 answers extra-field", "D-admission-unknown-fields", 200),
    ("m2 answers extra-field", "D-admission-unknown-fields", 200),
    ("m1 answers type", "D-admission-types", 404),
    ("m2 answers type", "D-admission-types", 404),
    ("a new event: a field of another type", "D-admission-types", 404),
    ("new: a field of another type", "D-admission-types", 404),
    ("m1 answers garbage", "D-admission-answer", 404),
    ("v1 answers garbage", "D-admission-answer", 404),
    ("a lease is replaced: allowed", "D-admission-refused-first", 200),
    ("a lease is replaced: changed", "D-admission-refused-first", 200),
    ("a lease is replaced: denied", "D-admission-refused-first", 200),
    ("a custom resource is replaced: allowed", "D-admission-refused-first", 200),
    ("a custom resource is replaced: changed", "D-admission-refused-first", 200),
    ("a custom resource is replaced: denied", "D-admission-refused-first", 200),
    ("a refusal of the API server in protobuf", "D-admission-refused-first", 422),
    ("an invalid object", "D-admission-refused-first", 422),
    ("an old resourceVersion", "D-admission-refused-first", 409),
    ("a name that is taken", "D-admission-refused-warnings", 409),
    ("a namespace object by its own labels", "D-admission-prepared", 403),
    ("a namespace object without the labels", "D-admission-prepared", 201),
    ("a namespace object with a new label", "D-admission-prepared", 403),
    ("a namespace object is not of scope Namespaced", "D-admission-prepared", 201),
    ("a pod", "D-admission-prepared", 201),
    ("a pod with resources as a whole", "D-admission-prepared", 201),
    ("a pod with resources as a whole by apply", "D-admission-prepared", 200),
    ("a pod that gets resources as a whole by a patch", "D-admission-prepared", 200),
    ("a pod that gets resources as a whole by PUT", "D-admission-prepared", 200),
    ("an eviction", "D-admission-prepared", 403),
    ("a binding", "D-admission-prepared", 403),
    ("a scale that is replaced", "D-admission-prepared", 200),
    ("a scale that is patched and denied", "D-admission-prepared", 200),
    ("a custom resource with a scale", "D-admission-prepared", 200),
    ("a custom resource with an unknown field", "D-admission-unknown-fields", 200),
    ("a status of a custom resource", "D-admission-prepared", 200),
    ("a token", "D-admission-tokens", 403),
    ("a wrong dry run", "D-admission-dry-run", 422),
    ("a denial in YAML", "D-yaml-style", 422),
    ("a widget is replaced without its version", "D-admission-refused-first", 422),
    ("a scale that is not valid", "D-admission-refused-first", 422),
    ("a patch of a new object: kind", "D-admission-kind", 404),
    ("a patch of a changed object: kind", "D-admission-kind", 200),
    ("a patch of a new object: null", "D-admission-nulls", 200),
    ("a patch of a changed object: null", "D-admission-nulls", 200),
    ("a patch of a new object: no-value", "D-admission-nulls", 200),
    ("a patch of a changed object: no-value", "D-admission-nulls", 200),
    ("a patch of a new object: deletion", "D-admission-clients-write", 200),
    ("a patch of a new object: owners", "D-admission-clients-write", 200),
    ("a widget is created by applying: changed in an unknown field", "D-admission-unknown-fields", 200),
    ("a widget is created: changed in an unknown field", "D-admission-unknown-fields", 200),
    ("a widget is replaced: changed in an unknown field", "D-admission-unknown-fields", 200),
    ("a widget is patched: changed in an unknown field", "D-admission-unknown-fields", 200),
    ("a scaler of v2: metrics of memory alone", "D-admission-scaler-metrics", 200),
    ("new: metrics of memory alone", "D-admission-scaler-metrics", 200),
    ("new: metrics in an annotation alone", "D-admission-scaler-metrics", 200),
    ("new: an unknown field of a webhook", "D-admission-unknown-fields", 200),
    ("new: a behavior that a webhook removes", "D-admission-scaler-metrics", 200),
    ("a scale of a widget of v2", "D-admission-prepared", 200),
    ("policy fails: a namespace", "D-admission-prepared", 422),
    ("mutation patch-type: a new map", "D-admission-types", 404),
    ("mutation patch-type-open: a new map", "D-admission-types", 404),
    ("mutation unkeyed: a deployment", "D-admission-prepared", 404),
    ("mutation patch-null: a new map", "D-admission-nulls", 200),
    ("mutation sidecar: a deployment", "D-admission-prepared", 200),
    ("mutation patch-container: a deployment", "D-admission-prepared", 200),
    ("mutation patch-unknown: a custom resource", "D-admission-unknown-fields", 200),
];

/// Creates three config maps with one label, of which the second one may not be deleted.
fn collection(name: &str) -> Case {
    let map = |of: &str, asks: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
            "name": format!("{{unique}}-{of}"), "labels": {"x": "{unique}"}, "annotations": {"asks": asks}}})
        .to_string()
    };
    let case = by_admin(name, "POST", MAPS).json(&map("a", "")).answers(201);
    let case = case.then("POST", MAPS).json(&map("b", "vdelete=deny;")).answers(201);
    case.then("POST", MAPS).json(&map("c", "")).answers(201)
}

/// A request of the administrator.
fn by_admin(name: &str, method: &str, target: &str) -> Case {
    case(GROUP, name, method, target).cert("admin").only(H1)
}

/// A config map with these answers of webhooks.
fn map(asks: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "{unique}", "annotations": {"asks": asks}}, "data": {"a": "1"}})
}

fn create(name: &str, asks: &str, status: u16) -> Case {
    by_admin(name, "POST", MAPS)
        .json(&map(asks).to_string())
        .answers(status)
        .then("GET", OWN)
        .answers(if status == 201 { 200 } else { 404 })
}

/// Each answer of a mutating and a validating webhook of both failure policies and versions, to a CREATE.
fn answers() -> Vec<Case> {
    // The status if it is the answer of m1, m2, v1, v2.
    let table: &[(&str, [u16; 4])] = &[
        ("allow", [201, 201, 201, 201]),
        ("deny", [403, 403, 403, 403]),
        ("deny-bare", [400, 400, 400, 400]),
        ("deny-empty", [400, 400, 400, 400]),
        ("deny-reason", [400, 400, 400, 400]),
        ("deny-success", [400, 400, 400, 400]),
        ("deny-code", [429, 429, 429, 429]),
        ("deny-599", [599, 599, 599, 599]),
        ("deny-details", [422, 422, 422, 422]),
        ("deny-409", [409, 409, 409, 409]),
        ("deny-504", [504, 504, 504, 504]),
        ("warn", [201, 201, 201, 201]),
        ("warn-deny", [400, 400, 400, 400]),
        ("warn-odd", [201, 201, 201, 201]),
        ("warn-long", [201, 201, 201, 201]),
        ("warn-longer", [201, 201, 201, 201]),
        ("warn-many", [201, 201, 201, 201]),
        ("annotate", [201, 201, 201, 201]),
        ("nulls", [201, 201, 201, 201]),
        ("unknown", [201, 201, 201, 201]),
        ("label", [201, 201, 500, 201]),
        ("annotation", [201, 201, 500, 201]),
        ("remove", [201, 201, 500, 201]),
        ("data", [201, 201, 500, 201]),
        ("noop", [201, 201, 500, 201]),
        ("same", [201, 201, 500, 201]),
        ("test", [500, 500, 500, 201]),
        ("missing", [500, 500, 500, 201]),
        ("unknown-op", [500, 500, 500, 201]),
        ("type", [500, 500, 500, 201]),
        ("extra-field", [201, 201, 500, 201]),
        ("invalid", [422, 422, 500, 201]),
        ("undecodable", [500, 201, 500, 201]),
        ("object-patch", [500, 201, 500, 201]),
        ("base64", [500, 201, 500, 201]),
        ("patch-only", [500, 201, 500, 201]),
        ("type-only", [500, 201, 500, 201]),
        ("merge", [500, 201, 500, 201]),
        ("empty-type", [500, 201, 500, 201]),
        ("absent", [500, 201, 500, 201]),
        ("uid", [500, 201, 500, 201]),
        ("no-uid", [500, 201, 500, 201]),
        ("untyped", [500, 201, 500, 201]),
        ("beta", [500, 201, 500, 201]),
        ("stable", [201, 201, 201, 201]),
        ("future", [500, 201, 500, 201]),
        ("wrong-kind", [500, 201, 500, 201]),
        ("status", [500, 201, 500, 201]),
        ("list", [500, 201, 500, 201]),
        ("text", [500, 201, 500, 201]),
        ("garbage", [500, 201, 500, 201]),
        ("empty", [500, 201, 500, 201]),
        ("nothing", [500, 201, 500, 201]),
        ("created", [201, 201, 201, 201]),
        ("code-207", [500, 201, 500, 201]),
        ("code-400", [500, 201, 500, 201]),
        ("code-403", [500, 201, 500, 201]),
        ("code-404", [500, 201, 500, 201]),
        ("code-429", [500, 201, 500, 201]),
        ("code-500", [500, 201, 500, 201]),
        ("code-503", [500, 201, 500, 201]),
        ("status-500", [500, 201, 500, 201]),
        ("status-404", [500, 201, 500, 201]),
        ("close", [500, 201, 500, 201]),
        ("slow", [500, 201, 500, 201]),
    ];
    table
        .iter()
        .flat_map(|(answer, statuses)| {
            ["m1", "m2", "v1", "v2"].into_iter().zip(*statuses).map(move |(webhook, status)| {
                create(&format!("{webhook} answers {answer}"), &format!("{webhook}={answer};"), status)
            })
        })
        .collect()
}

/// Several webhooks together.
fn warnings() -> Vec<Case> {
    vec![
        create("warnings of all webhooks", "m1=warn;m2=warn-odd;v1=warn;v2=warn-odd;", 201),
        create("a warning before a denial", "m1=warn;v1=deny;", 403),
        create("a warning beside a failure", "m1=warn;m2=code-500;v1=code-500;", 500),
        create("a webhook is called again", "m1=label;m2=annotation;", 201),
        create("a later webhook sees the change of an earlier one", "m1=third;m3=annotation;", 201),
        create("a change by the last one", "m2=label;m4=annotation;", 201),
        create("a validating webhook is selected by a change", "m1=pick;vobject=deny;", 403),
        create("a change and a denial", "m1=label;v1=deny;", 403),
        create("a change and a failure that is ignored", "m1=data;v2=close;", 201),
        create("mutating webhooks before validating ones", "m1=deny;v1=deny;", 403),
        by_admin("a long name of a warning over HTTP/2", "POST", MAPS)
            .only(BOTH)
            .json(&map("v1=warn;m1=label;").to_string())
            .answers(201),
    ]
}

/// An object of a kind, with the path of its collection; `{unique}` is its name.
struct Kind {
    name: &'static str,
    collection: &'static str,
    object: fn() -> Value,
    /// A field that a merge patch changes.
    patch: fn() -> Value,
}

fn kinds() -> Vec<Kind> {
    vec![
        Kind {
            name: "a config map",
            collection: MAPS,
            object: || json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"}}),
            patch: || json!({"data": {"b": "2"}}),
        },
        Kind {
            name: "a deployment",
            collection: "/apis/apps/v1/namespaces/twin/deployments",
            object: || {
                json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"selector": {"matchLabels": {"a": "b"}},
                    "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}}})
            },
            patch: || json!({"spec": {"replicas": 3}}),
        },
        Kind {
            name: "a service account",
            collection: "/api/v1/namespaces/twin/serviceaccounts",
            object: || json!({"apiVersion": "v1", "kind": "ServiceAccount"}),
            patch: || json!({"automountServiceAccountToken": false}),
        },
        Kind {
            name: "a cluster role",
            collection: "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            object: || {
                json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                    "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]})
            },
            patch: || json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
        },
        Kind {
            name: "a lease",
            collection: "/apis/coordination.k8s.io/v1/namespaces/twin/leases",
            object: || json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": "a"}}),
            patch: || json!({"spec": {"holderIdentity": "b"}}),
        },
        Kind {
            name: "a secret",
            collection: "/api/v1/namespaces/twin/secrets",
            object: || json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"a": "b"}}),
            patch: || json!({"stringData": {"c": "d"}}),
        },
        Kind {
            name: "a custom resource",
            collection: WIDGETS,
            object: || json!({"apiVersion": "twin.test/v1", "kind": "Widget", "spec": {"replicas": 1}}),
            patch: || json!({"spec": {"replicas": 3}}),
        },
    ]
}

impl Kind {
    fn with(&self, asks: &str) -> Value {
        let mut object = (self.object)();
        object["metadata"] = json!({"name": "{unique}", "annotations": {"asks": asks}});
        object
    }

    fn own(&self) -> String {
        format!("{}/{{unique}}", self.collection)
    }
}

/// Every operation on several kinds, allowed, changed and denied.
fn operations() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in kinds() {
        let own = kind.own();
        for (what, asks, ok) in [
            ("allowed", "", true),
            ("changed", "m1=label;m2=annotation;", true),
            ("denied", "v1=deny;", false),
        ] {
            let name = |operation: &str| format!("{} is {operation}: {what}", kind.name);
            let status = |code: u16| if ok { code } else { 403 };
            let first = |case: &str| {
                by_admin(&name(case), "POST", kind.collection).json(&kind.with("").to_string()).answers(201)
            };
            let with_patch = |more: Value| {
                let mut patch = more;
                patch["metadata"] = json!({"annotations": {"asks": asks}});
                patch.to_string()
            };
            cases.push(
                by_admin(&name("created"), "POST", kind.collection)
                    .json(&kind.with(asks).to_string())
                    .answers(status(201))
                    .then("GET", &own)
                    .answers(if ok { 200 } else { 404 }),
            );
            let mut replaced = kind.with(asks);
            for (field, value) in (kind.patch)().as_object().expect("an object") {
                if field != "spec" {
                    replaced[field] = value.clone();
                }
            }
            cases.push(
                first("replaced")
                    .then("PUT", &own)
                    .json(&replaced.to_string())
                    .answers(if matches!(kind.name, "a lease" | "a custom resource") {
                        422
                    } else {
                        status(200)
                    })
                    .then("GET", &own)
                    .answers(200),
            );
            cases.push(
                first("patched (merge)")
                    .then("PATCH", &own)
                    .body("application/merge-patch+json", with_patch((kind.patch)()).as_bytes())
                    .answers(status(200))
                    .then("GET", &own)
                    .answers(200),
            );
            cases.push(
                first("patched (strategic)")
                    .then("PATCH", &own)
                    .body("application/strategic-merge-patch+json", with_patch((kind.patch)()).as_bytes())
                    .answers(if kind.name == "a custom resource" { 415 } else { status(200) })
                    .then("GET", &own)
                    .answers(200),
            );
            let operations = json!([{"op": "add", "path": "/metadata/annotations", "value": {"asks": asks}},
                {"op": "add", "path": "/metadata/labels", "value": {"x": "y"}}]);
            cases.push(
                first("patched (JSON)")
                    .then("PATCH", &own)
                    .body("application/json-patch+json", operations.to_string().as_bytes())
                    .answers(status(200))
                    .then("GET", &own)
                    .answers(200),
            );
            let apply = format!("{own}?fieldManager=twin");
            cases.push(
                by_admin(&name("applied (created)"), "PATCH", &apply)
                    .body("application/apply-patch+yaml", kind.with(asks).to_string().as_bytes())
                    .answers(status(201))
                    .then("GET", &own)
                    .answers(if ok { 200 } else { 404 }),
            );
            cases.push(
                by_admin(&name("applied (changed)"), "PATCH", &apply)
                    .body("application/apply-patch+yaml", kind.with("").to_string().as_bytes())
                    .answers(201)
                    .then("PATCH", &apply)
                    .body("application/apply-patch+yaml", kind.with(asks).to_string().as_bytes())
                    .answers(status(200))
                    .then("GET", &own)
                    .answers(200),
            );
        }
        cases.extend(deletions(&kind));
    }
    cases
}

/// `DeleteOptions` with the policy `Background`, in an `Unknown` of Kubernetes' protobuf.
const DELETE_OPTIONS: &[u8] =
    b"k8s\0\x0a\x13\x0a\x02v1\x12\x0dDeleteOptions\x12\x0c\x22\x0aBackground\x1a\0\x22\0";

fn deletions(kind: &Kind) -> Vec<Case> {
    let own = kind.own();
    let mut cases = Vec::new();
    for (what, asks, status) in
        [("allowed", "", 200), ("denied", "vdelete=deny;", 403), ("changed", "mdelete=label;", 500)]
    {
        let after = if status == 200 { 404 } else { 200 };
        let created = |how: &str| {
            by_admin(&format!("{} is deleted {how}: {what}", kind.name), "POST", kind.collection)
                .json(&kind.with(asks).to_string())
                .answers(201)
        };
        let gone = |case: Case| case.answers(status).then("GET", &own).answers(after);
        let body = r#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}"#;
        cases.push(gone(created("without a body").then("DELETE", &own)));
        cases.push(gone(created("with a body").then("DELETE", &own).json(body)));
        cases.push(gone(
            created("with a body in protobuf")
                .then("DELETE", &own)
                .body("application/vnd.kubernetes.protobuf", DELETE_OPTIONS),
        ));
        cases.push(
            created("with a wrong precondition")
                .then("DELETE", &own)
                .json(r#"{"preconditions":{"uid":"other"}}"#)
                .answers(409),
        );
        cases.push(
            created("as a dry run")
                .then("DELETE", &format!("{own}?dryRun=All&gracePeriodSeconds=5"))
                .answers(status)
                .then("GET", &own)
                .answers(200),
        );
    }
    cases
}

/// Selectors, rules and scopes.
fn selections() -> Vec<Case> {
    let labelled = |labels: Value, asks: &str| {
        let mut object = map(asks);
        object["metadata"]["labels"] = labels;
        object.to_string()
    };
    let selected = format!("/api/v1/namespaces/{SELECTED_NAMESPACE}/configmaps");
    let namespace = |labels: Value, asks: &str| {
        json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "{unique}", "labels": labels, "annotations": {"asks": asks}}})
        .to_string()
    };
    let maps = |name: &str, labels: Value, asks: &str, status: u16| {
        by_admin(name, "POST", MAPS).json(&labelled(labels, asks)).answers(status)
    };
    vec![
        by_admin("a namespace that is selected", "POST", &selected).json(&map("vnamespace=deny;").to_string()).answers(403),
        by_admin("a namespace that an expression does not select", "POST", &selected)
            .json(&map("vexpression=deny;").to_string())
            .answers(201),
        by_admin("a namespace that is not selected", "POST", MAPS).json(&map("vnamespace=deny;").to_string()).answers(201),
        by_admin("a namespace that an expression selects", "POST", MAPS)
            .json(&map("vexpression=deny;").to_string())
            .answers(403),
        by_admin("a namespace object by its own labels", "POST", "/api/v1/namespaces")
            .json(&namespace(json!({"environment": "production"}), "vnamespace=deny;"))
            .answers(403),
        by_admin("a namespace object without the labels", "POST", "/api/v1/namespaces")
            .json(&namespace(json!({}), "vnamespace=deny;"))
            .answers(201),
        by_admin("a namespace object with a new label", "POST", "/api/v1/namespaces")
            .json(&namespace(json!({}), ""))
            .answers(201)
            .then("PATCH", "/api/v1/namespaces/{unique}")
            .body(
                "application/merge-patch+json",
                br#"{"metadata":{"labels":{"environment":"production"},"annotations":{"asks":"vnamespace=deny;"}}}"#,
            )
            .answers(403),
        by_admin("a namespace that does not exist", "POST", "/api/v1/namespaces/absent-one/configmaps")
            .json(&map("").to_string())
            .answers(404),
        maps("an object that is selected", json!({"pick": "yes"}), "vobject=deny;", 403),
        maps("an object with another value", json!({"pick": "no"}), "vobject=deny;", 201),
        maps("an old object that is selected", json!({"pick": "true"}), "", 201)
            .then("PATCH", OWN)
            .body(
                "application/merge-patch+json",
                br#"{"metadata":{"labels":null,"annotations":{"asks":"vobject=deny;"}}}"#,
            )
            .answers(403),
        maps("a webhook that is away", json!({"closed": "vdown"}), "", 500),
        maps("a webhook that is away and ignored", json!({"closed": "vdownignored"}), "", 201),
        by_admin("a cluster role is of scope Cluster", "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles")
            .json(r#"{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"{unique}","annotations":{"a":"vcluster=deny;"}},"rules":[{"apiGroups":[""],"resources":["nodes"],"verbs":["get"]}]}"#)
            .answers(403),
        maps("a config map is not of scope Cluster", json!({}), "vcluster=deny;", 201),
        maps("a config map is of scope Namespaced", json!({}), "vnamespaced=deny;", 403),
        by_admin("a namespace object is not of scope Namespaced", "POST", "/api/v1/namespaces")
            .json(&namespace(json!({}), "vnamespaced=deny;"))
            .answers(201),
        by_admin("another version than an exact rule's", "POST", "/apis/autoscaling/v2/namespaces/twin/horizontalpodautoscalers")
            .json(&json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "{unique}", "annotations": {"asks": "vexact=deny;"}},
                "spec": {"maxReplicas": 2, "scaleTargetRef": {"kind": "Deployment", "name": "x", "apiVersion": "apps/v1"}}}).to_string())
            .answers(201),
        by_admin("the version of an exact rule", "POST", "/apis/autoscaling/v1/namespaces/twin/horizontalpodautoscalers")
            .json(&json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "{unique}", "annotations": {"asks": "vexact=deny;"}},
                "spec": {"maxReplicas": 2, "scaleTargetRef": {"kind": "Deployment", "name": "x", "apiVersion": "apps/v1"}}}).to_string())
            .answers(403),
    ]
}

/// `matchConditions`.
fn conditions() -> Vec<Case> {
    let annotated = |annotations: Value, labels: Value| {
        let mut object = map("");
        object["metadata"]["annotations"] = annotations;
        object["metadata"]["labels"] = labels;
        object.to_string()
    };
    let maps = |name: &str, annotations: Value, labels: Value, status: u16| {
        by_admin(name, "POST", MAPS).json(&annotated(annotations, labels)).answers(status)
    };
    vec![
        maps("a condition that is true", json!({"condition": "x", "asks": "m4=deny;"}), json!({}), 403),
        maps(
            "a condition that is false",
            json!({"condition": "skip-m4", "asks": "m4=deny;"}),
            json!({}),
            201,
        ),
        maps("a condition that fails", json!({"fails": "yes"}), json!({}), 403),
        maps(
            "an authorizer that allows everything",
            json!({"asks": "vauthorizer=deny;"}),
            json!({"authorizer": "delete"}),
            201,
        ),
        maps("an object without the label", json!({"asks": "vauthorizer=deny;"}), json!({}), 201),
        case(GROUP, "an authorizer that does not allow", "POST", MAPS)
            .cert("alice")
            .only(H1)
            .json(&annotated(json!({"asks": "vauthorizer=deny;"}), json!({"authorizer": "fly"})))
            .answers(201),
        case(GROUP, "an authorizer that allows alice", "POST", MAPS)
            .cert("alice")
            .only(H1)
            .json(&annotated(json!({"asks": "vauthorizer=deny;"}), json!({"authorizer": "create"})))
            .answers(403),
    ]
}

/// Bodies, options and encodings.
fn bodies() -> Vec<Case> {
    let named = |asks: &str| map(asks).to_string();
    let post = |name: &str, query: &str, body: &str, status: u16| {
        by_admin(name, "POST", &format!("{MAPS}?{query}")).json(body).answers(status)
    };
    // A pod of which a webhook changes the container in a resize, with more of its `spec`.
    let limited = |more: Value| {
        let memory = json!({"memory": "30Mi"});
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "{unique}", "annotations": {"asks": "m1=limited;"}},
            "spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "x",
                "resources": {"limits": memory, "requests": memory}}]}});
        for (field, value) in more.as_object().expect("an object") {
            pod["spec"][field] = value.clone();
        }
        pod.to_string()
    };
    let pod = |asks: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "{unique}", "annotations": {"asks": asks}},
            "spec": {"containers": [{"name": "c", "image": "x"}]}})
        .to_string()
    };
    let pods = "/api/v1/namespaces/twin/pods";
    let deployment = "/apis/apps/v1/namespaces/twin/deployments";
    let deployed = |name: &str| {
        let Kind { object, .. } = &kinds()[1];
        let mut object = object();
        object["metadata"] = json!({"name": "{unique}"});
        by_admin(name, "POST", deployment).json(&object.to_string()).answers(201)
    };
    let widget = |name: &str, asks: &str| {
        by_admin(name, "POST", WIDGETS)
            .json(
                &json!({"apiVersion": "twin.test/v1", "kind": "Widget",
                "metadata": {"name": "{unique}", "annotations": {"asks": asks}}, "spec": {"replicas": 1}})
                .to_string(),
            )
            .answers(201)
    };
    let scale = format!("{deployment}/{{unique}}/scale");
    let scaled = |asks: &str| {
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale",
            "metadata": {"name": "{unique}", "namespace": "twin", "annotations": {"asks": asks}}, "spec": {"replicas": 2}})
        .to_string()
    };
    let mut cases = vec![
        post("a dry run of the client", "dryRun=All", &named("m1=label;v1=warn;"), 201).then("GET", OWN).answers(404),
        post("a field manager", "fieldManager=someone&fieldValidation=Strict", &named("m1=label;"), 201).then("GET", OWN).answers(200),
        post("a wrong dry run", "dryRun=Some", &named(""), 422),
        post(
            "an unknown field with a warning",
            "",
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}","annotations":{"asks":"m1=warn;"}},"unknown":1}"#,
            201,
        ),
        post(
            "an unknown field, strictly",
            "fieldValidation=Strict",
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}"},"unknown":1}"#,
            400,
        ),
        post(
            "a duplicate key",
            "",
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}"},"data":{"a":"1"},"data":{"a":"2"}}"#,
            201,
        )
        .then("GET", OWN)
        .answers(200),
        post("no JSON", "", "{", 400),
        post("another namespace", "", r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}","namespace":"other"}}"#, 400),
        by_admin("YAML", "POST", MAPS)
            .body("application/yaml", b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {unique}\n  annotations: {asks: 'm1=label;'}\n")
            .answers(201)
            .then("GET", OWN)
            .answers(200),
        by_admin("YAML that is not changed", "POST", MAPS)
            .body("application/yaml", b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {unique}\n  annotations: {asks: 'v1=warn;'}\n")
            .answers(201)
            .then("GET", OWN)
            .answers(200),
        by_admin("an answer in protobuf", "POST", MAPS)
            .header("Accept", "application/vnd.kubernetes.protobuf,application/json")
            .json(&named("m1=label;"))
            .answers(201)
            .any_body("it has a resourceVersion"),
        by_admin("a denial in protobuf", "POST", MAPS)
            .header("Accept", "application/vnd.kubernetes.protobuf,application/json")
            .json(&named("v1=deny-details;"))
            .answers(422),
        by_admin("a denial in YAML", "POST", MAPS)
            .header("Accept", "application/yaml")
            .json(&named("v1=deny-details;"))
            .answers(422),
        by_admin("a refusal of the API server in protobuf", "POST", MAPS)
            .header("Accept", "application/vnd.kubernetes.protobuf,application/json")
            .json(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"Not A Name {unique}"}}"#)
            .answers(422),
        by_admin("an answer as a table", "POST", MAPS)
            .header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
            .json(&named("m1=label;"))
            .answers(201),
        case(GROUP, "a user who may not create it", "POST", "/api/v1/namespaces/twin/serviceaccounts/default/token")
            .cert("viewer")
            .only(H1)
            .json(r#"{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":["{unique}"]}}"#)
            .answers(403),
        case(GROUP, "a user who may not create a map", "POST", MAPS).cert("viewer").only(H1).json(&named("m1=deny;")).answers(403),
        by_admin("an invalid object", "POST", MAPS)
            .json(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"Not A Name {unique}"}}"#)
            .answers(422),
        by_admin("a name that is taken", "POST", MAPS)
            .json(&named(""))
            .answers(201)
            .then("POST", MAPS)
            .json(&named("m1=warn;"))
            .answers(409),
        by_admin("an old resourceVersion", "POST", MAPS)
            .json(&named(""))
            .answers(201)
            .then("PUT", OWN)
            .json(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}","resourceVersion":"1"}}"#)
            .answers(409),
        by_admin("a lease that PUT creates", "PUT", "/apis/coordination.k8s.io/v1/namespaces/twin/leases/{unique}")
            .json(r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"{unique}","annotations":{"asks":"m1=label;"}},"spec":{}}"#)
            .answers(201)
            .then("GET", "/apis/coordination.k8s.io/v1/namespaces/twin/leases/{unique}")
            .answers(200),
        by_admin("an object that is absent", "PUT", OWN).json(&named("")).answers(404),
        by_admin("a patch of an object that is absent", "PATCH", OWN)
            .body("application/merge-patch+json", b"{}")
            .answers(404),
        by_admin("a deletion of an object that is absent", "DELETE", OWN).answers(404),
        by_admin("a patch that changes nothing", "POST", MAPS)
            .json(&named(""))
            .answers(201)
            .then("PATCH", OWN)
            .body("application/merge-patch+json", br#"{"data":{"a":"1"}}"#)
            .answers(200)
            .then("GET", OWN)
            .answers(200),
        by_admin("a patch with a test that fails", "POST", MAPS)
            .json(&named(""))
            .answers(201)
            .then("PATCH", OWN)
            .body("application/json-patch+json", br#"[{"op":"test","path":"/data/a","value":"2"}]"#)
            .answers(422),
        by_admin("an unknown patch type", "PATCH", OWN).body("application/patch", b"{}").answers(415),
        deployed("a scale that is replaced")
            .then("PUT", &scale)
            .json(&scaled(""))
            .answers(200)
            .then("GET", &scale)
            .answers(200),
        deployed("a scale that is patched and denied")
            .then("PATCH", &scale)
            .body(
                "application/merge-patch+json",
                br#"{"metadata":{"annotations":{"asks":"vscale=deny;"}},"spec":{"replicas":2}}"#,
            )
            .answers(200),
        deployed("a status that is patched")
            .then("PATCH", &format!("{deployment}/{{unique}}/status"))
            .body(
                "application/merge-patch+json",
                br#"{"metadata":{"annotations":{"asks":"vstatus=deny;"}},"status":{"replicas":2}}"#,
            )
            .answers(403),
        widget("a custom resource with a scale", "")
            .then("PUT", &format!("{WIDGETS}/{{unique}}/scale"))
            .json(&scaled(""))
            .answers(200)
            .then("GET", &format!("{WIDGETS}/{{unique}}"))
            .answers(200),
        widget("a status of a custom resource", "")
            .then("PATCH", &format!("{WIDGETS}/{{unique}}/status"))
            .body("application/merge-patch+json", br#"{"metadata":{"annotations":{"asks":"vstatus=deny;"}},"status":{"replicas":2}}"#)
            .answers(200)
            .then("PATCH", &format!("{WIDGETS}/{{unique}}/status"))
            .body("application/merge-patch+json", br#"{"status":{"replicas":3}}"#)
            .answers(200)
            .then("GET", &format!("{WIDGETS}/{{unique}}"))
            .answers(200),
        widget("a custom resource with an unknown field", "m1=extra-field;").then("GET", &format!("{WIDGETS}/{{unique}}")).answers(200),
        by_admin("a custom resource that is not served", "POST", "/apis/twin.test/v1/namespaces/twin/gadgets")
            .json(r#"{"apiVersion":"twin.test/v1","kind":"Gadget","metadata":{"name":"{unique}"}}"#)
            .answers(404),
        by_admin("a group that is not served", "POST", "/apis/absent.test/v1/namespaces/twin/gadgets")
            .json(r#"{"apiVersion":"absent.test/v1","kind":"Gadget","metadata":{"name":"{unique}"}}"#)
            .answers(404),
        by_admin("a pod", "POST", pods).json(&pod("m1=label;")).answers(201),
        by_admin("a pod with resources as a whole", "POST", pods)
            .json(
                &json!({"apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": "{unique}", "annotations": {"asks": "m1=limited-sidecar;"}},
                    "spec": {"resources": {"requests": {"cpu": "100m"}}, "containers": [{"name": "c", "image": "x",
                        "resources": {"limits": {"memory": "30Mi"}}}]}})
                .to_string(),
            )
            .answers(201),
        by_admin("a pod with resources as a whole by apply", "PATCH", &format!("{pods}/{{unique}}?fieldManager=twin"))
            .body(
                "application/apply-patch+yaml",
                json!({"apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": "{unique}", "annotations": {"asks": "m1=limited-sidecar;"}},
                    "spec": {"resources": {"requests": {"cpu": "100m"}}, "containers": [{"name": "c", "image": "x",
                        "resources": {"limits": {"memory": "30Mi"}}}]}})
                .to_string()
                .as_bytes(),
            )
            .answers(201)
            .then("GET", &format!("{pods}/{{unique}}"))
            .answers(200),
        by_admin("a pod that gets resources as a whole by a patch", "POST", pods)
            .json(&limited(json!({})))
            .answers(201)
            .then("PATCH", &format!("{pods}/{{unique}}/resize"))
            .body("application/merge-patch+json", br#"{"spec":{"resources":{"requests":{"cpu":"100m"}}}}"#)
            .answers(200)
            .then("GET", &format!("{pods}/{{unique}}"))
            .answers(200),
        by_admin("a pod that gets resources as a whole by PUT", "POST", pods)
            .json(&limited(json!({})))
            .answers(201)
            .then("PUT", &format!("{pods}/{{unique}}/resize"))
            .json(&limited(json!({"resources": {"requests": {"cpu": "100m"}}})))
            .answers(200)
            .then("GET", &format!("{pods}/{{unique}}"))
            .answers(200),
        by_admin("an eviction", "POST", pods)
            .json(&pod(""))
            .answers(201)
            .then("POST", &format!("{pods}/{{unique}}/eviction"))
            .json(r#"{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"{unique}","namespace":"twin","annotations":{"asks":"vpods=deny;"}}}"#)
            .answers(403),
        by_admin("a binding", "POST", pods)
            .json(&pod(""))
            .answers(201)
            .then("POST", &format!("{pods}/{{unique}}/binding"))
            .json(r#"{"apiVersion":"v1","kind":"Binding","metadata":{"name":"{unique}","annotations":{"asks":"vpods=deny;"}},"target":{"apiVersion":"v1","kind":"Node","name":"twin-node"}}"#)
            .answers(403),
        by_admin("a token", "POST", "/api/v1/namespaces/twin/serviceaccounts/default/token")
            .json(r#"{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":["v1=deny;{unique}"],"expirationSeconds":3600}}"#)
            .answers(403),
        by_admin("an access review", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
            .json(r#"{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"get","resource":"v1=deny;{unique}"}}}"#)
            .answers(201)
            .unreviewed(),
        by_admin("deletion of a collection", "POST", MAPS)
            .json(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}","labels":{"x":"{unique}"}}}"#)
            .answers(201)
            .then("DELETE", &format!("{MAPS}?labelSelector=x%3D{{unique}}"))
            .answers(200)
            .then("GET", OWN)
            .answers(404),
        collection("deletion of a collection, one of which is denied")
            .then("DELETE", &format!("{MAPS}?labelSelector=x%3D{{unique}}"))
            .answers(403)
            .then("GET", &format!("{OWN}-a"))
            .answers(404)
            .then("GET", &format!("{OWN}-b"))
            .answers(200)
            .then("GET", &format!("{OWN}-c"))
            .answers(200),
        collection("deletion of a collection as a dry run")
            .then("DELETE", &format!("{MAPS}?labelSelector=x%3D{{unique}}&dryRun=All"))
            .answers(403)
            .then("GET", &format!("{OWN}-a"))
            .answers(200),
        collection("deletion of a collection of one name that is denied")
            .then("DELETE", &format!("{MAPS}?fieldSelector=metadata.name%3D{{unique}}-b"))
            .answers(403)
            .then("DELETE", &format!("{MAPS}?fieldSelector=metadata.name%3D{{unique}}-c"))
            .json(r#"{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}"#)
            .answers(200)
            .then("GET", &format!("{OWN}-c"))
            .answers(404),
        by_admin("deletion of a collection of nothing", "DELETE", &format!("{MAPS}?labelSelector=x%3D{{unique}}"))
            .answers(200)
            .unreviewed(),
        by_admin("a configuration that is applied in YAML", "PATCH", &format!("{OWN}?fieldManager=twin"))
            .body("application/apply-patch+yaml", b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{unique}'}\n")
            .answers(201),
    ];
    for (name, asks, status) in
        [("a generated name", "v1=warn;", 201), ("a generated name and a change", "m1=label;", 201)]
    {
        cases.push(
            by_admin(name, "POST", MAPS)
                .json(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "{unique}-", "annotations": {"asks": asks}}}).to_string())
                .answers(status)
                .any_body("the name is random"),
        );
    }
    cases
}

/// The webhook of Kubernetes' end-to-end tests.
fn agnhost() -> Vec<Case> {
    let map = |path: &str, data: Value| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{unique}", "labels": {"agnhost": path}}, "data": data})
            .to_string()
    };
    let post = |name: &str, path: &str, data: Value, status: u16| {
        let after = if status == 201 { 200 } else { 404 };
        by_admin(name, "POST", MAPS).json(&map(path, data)).answers(status).then("GET", OWN).answers(after)
    };
    vec![
        post("a change by agnhost", "mutating-configmaps", json!({"mutation-start": "yes"}), 201)
            .then("PUT", OWN)
            .json(&map("mutating-configmaps", json!({"mutation-start": "yes", "mutation-stage-1": "yes"})))
            .answers(200)
            .then("GET", OWN)
            .answers(200),
        post("no change by agnhost", "mutating-configmaps", json!({"a": "b"}), 201),
        post("a label of agnhost", "add-label", json!({"a": "b"}), 201),
        post("a config map that agnhost allows", "configmaps", json!({"webhook-e2e-test": "allowed"}), 201)
            .then("PATCH", OWN)
            .body(
                "application/strategic-merge-patch+json",
                br#"{"data":{"webhook-e2e-test":"webhook-disallow"}}"#,
            )
            .answers(400)
            .then("PATCH", OWN)
            .body("application/merge-patch+json", br#"{"data":{"other":"value"}}"#)
            .answers(200)
            .then("DELETE", OWN)
            .answers(200),
        post(
            "a config map that agnhost denies",
            "configmaps",
            json!({"webhook-e2e-test": "webhook-disallow"}),
            400,
        ),
        post("agnhost always denies", "always-deny", json!({}), 400),
    ]
}

/// Connections.
fn connections() -> Vec<Case> {
    let exec = |name: &str, query: &str, status: u16| {
        by_admin(name, "GET", &format!("/api/v1/namespaces/twin/pods/{{unique}}/exec?{query}"))
            .websocket("v4.channel.k8s.io", &[])
            .answers(status)
    };
    let port_forward = |name: &str, ports: &str, status: u16| {
        let case = by_admin(
            name,
            "GET",
            &format!("/api/v1/namespaces/twin/pods/{{unique}}/portforward?ports={ports}"),
        )
        .websocket("v4.channel.k8s.io", &[])
        .answers(status);
        // A query that is refused is not reviewed.
        if status == 400 { case.unreviewed() } else { case }
    };
    vec![
        by_admin(
            "a connection",
            "GET",
            &format!("{RUNNING}/exec?command=echo&command=hello&command={{unique}}&stdout=true"),
        )
        .websocket("v5.channel.k8s.io", &[])
        .answers(101)
        .contains("ran echo hello"),
        by_admin(
            "a connection whose options a webhook changes",
            "GET",
            &format!("{RUNNING}/exec?command=echo&command=m1%3Dreplaced-command%3B{{unique}}&stdout=true"),
        )
        .websocket("v4.channel.k8s.io", &[])
        .answers(101)
        .contains("ran echo changed"),
        exec("a connection to an absent pod", "command=a&stdout=true", 404),
        exec(
            "a connection that is denied",
            "command=v1%3Ddeny%3B&stdout=true&stdin=1&tty=yes&container=c",
            403,
        ),
        exec("a connection that a subresource rule denies", "command=vpods%3Ddeny%3B", 403),
        exec("a connection as a dry run", "command=a&dryRun=All", 400),
        by_admin(
            "a port-forward that is denied",
            "GET",
            "/api/v1/namespaces/twin/pods/{unique}/portforward?ports=80",
        )
        .websocket("v4.channel.k8s.io", &[])
        .answers(404),
        port_forward("a port-forward with a list of ports", "80,81&ports=065535", 404),
        port_forward("a port-forward with a port that is no number", "80,x", 400),
        port_forward("a port-forward with a port with a sign", "%2B80", 400),
        port_forward("a port-forward with an empty port", "80,", 400),
        port_forward("a port-forward with a port that is too large", "80,65536", 400),
        by_admin(
            "a proxy to an absent service",
            "GET",
            "/api/v1/namespaces/twin/services/{unique}/proxy/v1=deny;/x?a=b",
        )
        .answers(403),
        by_admin("a proxy with a body", "POST", "/api/v1/namespaces/twin/services/{unique}/proxy/x")
            .json("{}")
            .answers(503),
    ]
}
