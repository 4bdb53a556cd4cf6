//! Who makes a request, with which options and encodings: what reviews and responses show of it.

use serde_json::{Value, json};

use super::{GROUP, MAPS, OWN, by_admin, map};
use crate::case::{Case, H1, case};

const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Patches that cannot be decoded.
const UNDECODABLE: [(&str, &str, &str); 5] = [
    ("a JSON patch that ends early", "application/json-patch+json", "[{"),
    ("a merge patch that ends early", MERGE, "{"),
    ("a strategic merge patch that ends early", "application/strategic-merge-patch+json", "{"),
    ("an applied configuration that ends early", APPLY, "a: ["),
    ("an applied configuration with a tab", APPLY, "a:\n\tb: c"),
];
const PODS: &str = "/api/v1/namespaces/twin/pods";

pub(super) fn cases() -> Vec<Case> {
    [
        users(),
        refusals(),
        versions(),
        applied(),
        deletions(),
        encodings(),
        connections(),
        dry_runs(),
        undecodable(),
    ]
    .concat()
}

fn created(name: &str) -> Case {
    by_admin(name, "POST", MAPS).json(&map("").to_string()).answers(201)
}

fn asking(asks: &str, more: Value) -> String {
    let mut object = more;
    object["metadata"]["annotations"] = json!({"asks": asks});
    object.to_string()
}

/// The user in the reviews.
fn users() -> Vec<Case> {
    let impersonated = |name: &str| {
        by_admin(name, "POST", MAPS)
            .header("Impersonate-User", "bob")
            .header("Impersonate-Group", "system:masters")
            .header("Impersonate-Group", "testers")
    };
    let proxied = |name: &str| {
        case(GROUP, name, "POST", MAPS)
            .cert("front-proxy")
            .only(H1)
            .header("X-Remote-User", "carol")
            .header("X-Remote-Group", "system:masters")
    };
    let body = map("m1=label;v2=warn;").to_string();
    vec![
        impersonated("an impersonated user").json(&body).answers(201),
        impersonated("an impersonated user with a uid and extra values")
            .header("Impersonate-Uid", "uid-bob")
            .header("Impersonate-Extra-Acme.io%2Fscopes", "view")
            .header("Impersonate-Extra-Acme.io%2Fscopes", "edit")
            .json(&body)
            .answers(201),
        proxied("a user of a front proxy").json(&body).answers(201),
        proxied("a user of a front proxy with a uid and extra values")
            .header("X-Remote-Uid", "u-7")
            .header("X-Remote-Extra-Scopes", "one")
            .header("X-Remote-Extra-Scopes", "two")
            .json(&body)
            .answers(201),
        case(GROUP, "a user with a token", "POST", MAPS)
            .only(H1)
            .bearer("tok-alice")
            .json(&body)
            .answers(201),
        case(GROUP, "a user without a uid", "POST", MAPS)
            .only(H1)
            .bearer("tok-admin")
            .json(&body)
            .answers(201),
        case(GROUP, "a user of many groups", "POST", MAPS)
            .cert("many-groups")
            .only(H1)
            .json(&body)
            .answers(403)
            .unreviewed(),
        case(GROUP, "a user with a certificate", "POST", MAPS)
            .cert("alice")
            .only(H1)
            .json(&body)
            .answers(201),
    ]
}

/// Requests that the server refuses before it calls webhooks.
fn refusals() -> Vec<Case> {
    let body = map("m1=deny;v1=deny;").to_string();
    let by = |name: &str, user: &'static str, method: &str, target: &str| {
        case(GROUP, &format!("a refusal: {name}"), method, target).cert(user).only(H1)
    };
    let pod = "/api/v1/namespaces/twin-fixed/pods/placed";
    // Refused before it has come, as before it is read.
    let unsent = format!(
        "POST {MAPS} HTTP/1.1\r\nHost: {{addr}}\r\nContent-Type: application/json\r\nContent-Length: 3145728\r\n\
         Connection: close\r\n\r\n[1"
    );
    let unsent = unsent.as_bytes();
    let large = format!("{{\"data\": \"{}\"}}", "x".repeat(100_000));
    let cases = vec![
        by("a body that does not come", "viewer", "POST", MAPS).raw(unsent).answers(403),
        case(GROUP, "a refusal: a body that does not come of an anonymous client", "POST", MAPS)
            .only(H1)
            .raw(unsent)
            .answers(403),
        by("a large body", "viewer", "POST", MAPS).json(&large).answers(403),
        by("creation", "viewer", "POST", MAPS).json(&body).answers(403),
        by("creation as a dry run", "viewer", "POST", &format!("{MAPS}?dryRun=All")).json(&body).answers(403),
        by("replacement", "viewer", "PUT", OWN).json(&body).answers(403),
        by("patch", "viewer", "PATCH", OWN).body(MERGE, b"{}").answers(403),
        by("applied configuration", "viewer", "PATCH", &format!("{OWN}?fieldManager=t")).body(APPLY, body.as_bytes()).answers(403),
        by("deletion", "viewer", "DELETE", OWN).answers(403),
        by("deletion with options in YAML", "viewer", "DELETE", OWN)
            .body("application/yaml", b"kind: DeleteOptions\n")
            .answers(403),
        by("deletion of a collection", "viewer", "DELETE", MAPS).answers(403),
        by("connection", "viewer", "GET", &format!("{pod}/exec?command={{unique}}&stdout=true")).websocket("v4.channel.k8s.io", &[]).answers(403),
        by("proxy", "viewer", "GET", &format!("{pod}/proxy/{{unique}}")).answers(403),
        by("token", "viewer", "POST", "/api/v1/namespaces/twin/serviceaccounts/default/token").json("{}").answers(403),
        by("eviction", "viewer", "POST", &format!("{pod}/eviction")).json(&body).answers(403),
        by("anonymous", "stranger", "POST", MAPS).json(&body).answers(401),
        by("impersonation", "alice", "POST", MAPS).header("Impersonate-User", "zoe").json(&body).answers(403),
        by("a collection that takes no object", "admin", "POST", OWN).json(&body).answers(405),
        by("an unknown resource", "admin", "POST", "/api/v1/namespaces/twin/gizmos").json(&body).answers(404),
        by("an unknown version", "admin", "POST", "/api/v7/namespaces/twin/configmaps").json(&body).answers(404),
        by("another kind", "admin", "POST", MAPS).json(r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"{unique}"}}"#).answers(400),
        by("another name", "admin", "PUT", OWN).json(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"other"}}"#).answers(400),
        by("an empty body", "admin", "POST", MAPS).json("").answers(400),
        by("a content type", "admin", "POST", MAPS).body("text/plain", b"x").answers(415),
        by("a body of more than 3 MiB", "admin", "POST", MAPS)
            .json(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{unique}"}, "data": {"a": "x".repeat(3 << 20)}}).to_string())
            .answers(413),
        by("a patch of more than 3 MiB", "admin", "PATCH", OWN).body(MERGE, format!(r#"{{"data":{{"a":"{}"}}}}"#, "x".repeat(3 << 20)).as_bytes()).answers(413),
        by("a field validation", "admin", "POST", &format!("{MAPS}?fieldValidation=Odd")).json(&body).answers(422),
        by("an applied configuration without a manager", "admin", "PATCH", OWN).body(APPLY, body.as_bytes()).answers(422),
        by("options of a deletion", "admin", "DELETE", OWN).json("{").answers(400).declared("D-admission-delete-options", 400),
    ];
    cases.into_iter().map(Case::unreviewed).collect()
}

/// `resourceVersion` and concurrent changes.
fn versions() -> Vec<Case> {
    let replacement = |version: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "{unique}", "resourceVersion": version}, "data": {"b": "2"}})
        .to_string()
    };
    vec![
        with_version(created("the current version"), "PUT", &json!({"data": {"b": "2"}}), "m1=label;", 200),
        with_version(created("nothing is changed"), "PUT", &json!({"data": {"a": "1"}}), "", 200),
        created("an old version in a patch")
            .then("PATCH", OWN)
            .body(MERGE, br#"{"metadata":{"resourceVersion":"1"},"data":{"a":"2"}}"#)
            .answers(409)
            .declared_reviews("D-admission-refused-first", 409),
        created("the current version in a patch")
            .then("PATCH", OWN)
            .body(MERGE, br#"{"metadata":{"resourceVersion":"{version}"},"data":{"a":"2"}}"#)
            .answers(200),
        created("a version that is no number").then("PUT", OWN).json(&replacement("x")).answers(500).declared_reviews("D-admission-refused-first", 500),
        created("another uid")
            .then("PATCH", OWN)
            .body(MERGE, br#"{"metadata":{"uid":"other"}}"#)
            .answers(422)
            .declared_reviews("D-admission-refused-first", 422),
        by_admin("a version in a new object", "POST", MAPS)
            .json(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}","resourceVersion":"1"}}"#)
            .answers(500),
        created("an immutable object")
            .then("PATCH", OWN)
            .body(MERGE, br#"{"immutable":true}"#)
            .answers(200)
            .then("PATCH", OWN)
            .body(MERGE, br#"{"data":{"a":"2"}}"#)
            .answers(422)
            .declared_reviews("D-admission-refused-first", 422),
        created("a webhook changes an immutable object")
            .then("PATCH", OWN)
            .body(MERGE, br#"{"immutable":true}"#)
            .answers(200)
            .then("PATCH", OWN)
            .body(MERGE, asking("m1=data;", json!({})).as_bytes())
            .answers(422),
    ]
}

/// Replaces the config map with its current version.
fn with_version(case: Case, method: &str, more: &Value, asks: &str, status: u16) -> Case {
    let mut object = map(asks);
    object["metadata"]["resourceVersion"] = json!("{version}");
    object["data"] = more["data"].clone();
    case.then(method, OWN).json(&object.to_string()).answers(status).then("GET", OWN).answers(200)
}

/// Applied configurations of several managers.
fn applied() -> Vec<Case> {
    let configuration = |asks: &str, data: Value| {
        let mut object = map(asks);
        object["data"] = data;
        object.to_string()
    };
    let by = |manager: &str| format!("{OWN}?fieldManager={manager}");
    let start = |name: &str| {
        by_admin(name, "PATCH", &by("first"))
            .body(APPLY, configuration("", json!({"a": "1"})).as_bytes())
            .answers(201)
    };
    let mut cases = Vec::new();
    for (what, asks) in [("", ""), (", and a webhook changes it", "m1=annotation;")] {
        let second = configuration(asks, json!({"a": "2"}));
        cases.push(
            start(&format!("a conflict of managers{what}"))
                .then("PATCH", &by("second"))
                .body(APPLY, second.as_bytes())
                .answers(409),
        );
        cases.push(
            start(&format!("a forced configuration{what}"))
                .then("PATCH", &format!("{}&force=true", by("second")))
                .body(APPLY, second.as_bytes())
                .answers(200)
                .then("GET", OWN)
                .answers(200),
        );
        cases.push(
            start(&format!("a field is given up{what}"))
                .then("PATCH", &by("first"))
                .body(APPLY, configuration(asks, json!({"b": "2"})).as_bytes())
                .answers(200)
                .then("GET", OWN)
                .answers(200),
        );
        cases.push(
            start(&format!("the same again{what}"))
                .then("PATCH", &by("first"))
                .body(APPLY, configuration(asks, json!({"a": "1"})).as_bytes())
                .answers(200)
                .then("GET", OWN)
                .answers(200),
        );
    }
    cases.push(
        by_admin("an applied configuration with a version of an absent object", "PATCH", &by("first"))
            .body(APPLY, br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}","resourceVersion":"1"}}"#)
            .answers(201),
    );
    cases
}

/// Deletions with finalizers, preconditions and grace.
fn deletions() -> Vec<Case> {
    let finalized = |name: &str| {
        let mut object = map("");
        object["metadata"]["finalizers"] = json!(["twin.test/keep"]);
        by_admin(name, "POST", MAPS).json(&object.to_string()).answers(201)
    };
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "{unique}"},
        "spec": {"nodeName": "twin-node", "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "x"}]}});
    let own_pod = format!("{PODS}/{{unique}}");
    let placed = |name: &str| {
        by_admin(name, "POST", PODS)
            .json(&pod.to_string())
            .answers(201)
            .declared_reviews("D-admission-prepared", 200)
    };
    let release = br#"{"metadata":{"finalizers":null}}"#;
    vec![
        finalized("a deletion that waits for a finalizer")
            .then("DELETE", OWN)
            .answers(200)
            .then("GET", OWN)
            .answers(200),
        finalized("the last finalizer is removed")
            .then("DELETE", OWN)
            .answers(200)
            .then("PATCH", OWN)
            .body(MERGE, release)
            .answers(200)
            .then("GET", OWN)
            .answers(404),
        finalized("a second deletion that waits")
            .then("DELETE", OWN)
            .answers(200)
            .then("DELETE", OWN)
            .answers(200),
        finalized("a webhook keeps the finalizer")
            .then("DELETE", OWN)
            .answers(200)
            .then("PATCH", OWN)
            .body(MERGE, br#"{"metadata":{"finalizers":null,"annotations":{"asks":"v1=deny;"}}}"#)
            .answers(403)
            .then("GET", OWN)
            .answers(200),
        created("a deletion in the foreground")
            .then("DELETE", &format!("{OWN}?propagationPolicy=Foreground"))
            .answers(200)
            .then("GET", OWN)
            .answers(200),
        created("a deletion of another version")
            .then("DELETE", &format!("{OWN}?resourceVersion=1"))
            .answers(409)
            .any_body("it names the version"),
        created("a deletion of the current version")
            .then("DELETE", OWN)
            .json(r#"{"preconditions":{"resourceVersion":"{version}"}}"#)
            .answers(200),
        created("a deletion as a dry run of its body")
            .then("DELETE", OWN)
            .json(r#"{"dryRun":["All"]}"#)
            .answers(200)
            .then("GET", OWN)
            .answers(200),
        created("a body of a deletion against its query")
            .then("DELETE", &format!("{OWN}?dryRun=All"))
            .json("{}")
            .answers(200)
            .then("GET", OWN)
            .answers(404),
        created("a deletion with options in YAML")
            .then("DELETE", OWN)
            .body("application/yaml", b"kind: DeleteOptions\napiVersion: v1\npropagationPolicy: Orphan\n")
            .answers(200)
            .declared("D-admission-delete-options", 400),
        created("a deletion with options in protobuf")
            .then("DELETE", OWN)
            .body(PROTOBUF, message("DeleteOptions", &field(4, "Background")).as_bytes())
            .header("Accept", "application/json")
            .answers(200),
        created("options of a deletion in another version")
            .then("DELETE", OWN)
            .json(r#"{"kind":"DeleteOptions","apiVersion":"meta.k8s.io/v1","gracePeriodSeconds":0}"#)
            .answers(200),
        created("unknown options of a deletion")
            .then("DELETE", OWN)
            .json(r#"{"unknown":1,"orphanDependents":false}"#)
            .answers(200),
        placed("a pod is deleted with less grace")
            .then("DELETE", &format!("{own_pod}?gracePeriodSeconds=5"))
            .answers(200),
        created("a deletion with negative grace")
            .then("DELETE", &format!("{OWN}?gracePeriodSeconds=-5"))
            .answers(200),
        by_admin("a namespace is deleted", "POST", "/api/v1/namespaces")
            .json(r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"{unique}"}}"#)
            .answers(201)
            .then("DELETE", "/api/v1/namespaces/{unique}")
            .answers(200)
            .declared_reviews("D-admission-prepared", 200),
        placed("a pod is deleted with grace")
            .then("DELETE", &own_pod)
            .answers(200)
            .then("GET", &own_pod)
            .answers(200),
        placed("a pod is deleted at once")
            .then("DELETE", &format!("{own_pod}?gracePeriodSeconds=0"))
            .answers(200)
            .then("GET", &own_pod)
            .answers(404)
            .repeated_reviews()
            .declared_reviews("D-admission-prepared", 404),
    ]
}

/// A field of a protobuf message, whose placeholder is as long as its value.
fn field(number: u8, value: &str) -> String {
    let length = value.replace("{unique}", "uniq000000").len();
    assert!(length < 128, "a length of one byte");
    let length = u8::try_from(length).expect("a byte");
    format!("{}{}{value}", char::from(number << 3 | 2), char::from(length))
}

/// A config map in protobuf.
// apimachinery: pkg/runtime/generated.proto, Unknown; api: core/v1/generated.proto, ConfigMap
fn protobuf(asks: &str) -> String {
    let entry = |key: &str, value: &str| field(1, key) + &field(2, value);
    let metadata = field(1, "{unique}") + &field(12, &entry("asks", asks));
    let object = field(1, &metadata) + &field(2, &entry("a", "1"));
    message("ConfigMap", &object)
}

/// An object of a kind of v1.
fn message(kind: &str, object: &str) -> String {
    let kind = field(1, "v1") + &field(2, kind);
    format!("k8s\0{}{}", field(1, &kind), field(2, object))
}

/// Bodies and responses that are no JSON objects.
fn encodings() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, asks, status) in [
        ("allowed", "", 201),
        ("changed", "m1=label;", 201),
        ("denied", "v1=deny;", 403),
        ("warned of", "m1=warn;", 201),
    ] {
        cases.push(
            by_admin(&format!("a body in protobuf: {what}"), "POST", MAPS)
                .body(PROTOBUF, protobuf(asks).as_bytes())
                .header("Accept", "application/json")
                .answers(status)
                .then("GET", OWN)
                .answers(if status == 201 { 200 } else { 404 }),
        );
        for (form, accept) in [
            (
                "only metadata",
                "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json",
            ),
            ("YAML", "application/yaml"),
            ("a table", "application/json;as=Table;v=v1;g=meta.k8s.io"),
        ] {
            let case = by_admin(&format!("a response as {form}: {what}"), "POST", MAPS)
                .header("Accept", accept)
                .json(&map(asks).to_string())
                .answers(status);
            cases.push(match (form, status) {
                ("YAML", 201) => case.any_body("managedFields are not compared"),
                ("YAML", _) => case.declared("D-yaml-style", status),
                _ => case,
            });
        }
        cases.push(
            by_admin(&format!("an indented response: {what}"), "POST", &format!("{MAPS}?pretty=true"))
                .json(&map(asks).to_string())
                .answers(status),
        );
    }
    cases.extend([
        by_admin("an encoding that is not known", "POST", MAPS).header("Accept", "text/html").json(&map("").to_string()).answers(406).unreviewed(),
        by_admin("a body without a content type", "POST", MAPS).json_without_type(&map("m1=label;").to_string()).answers(201),
        by_admin("a body without its kind", "POST", MAPS)
            .json(r#"{"metadata":{"name":"{unique}","annotations":{"asks":"m1=label;"}},"data":{"a":"1"}}"#)
            .answers(201)
            .then("GET", OWN)
            .answers(200),
        by_admin("a body with its namespace", "POST", MAPS)
            .json(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}","namespace":"twin","annotations":{"asks":"m1=label;"}}}"#)
            .answers(201),
        by_admin("duplicate keys, strictly", "POST", &format!("{MAPS}?fieldValidation=Strict"))
            .json(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}"},"data":{"a":"1"},"data":{"a":"2"}}"#)
            .answers(400)
            .unreviewed(),
        by_admin("duplicate keys and a change", "POST", MAPS)
            .json(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}","annotations":{"asks":"m1=label;"}},"data":{"a":"1"},"data":{"a":"2"}}"#)
            .answers(201)
            .then("GET", OWN)
            .answers(200),
        by_admin("unknown fields and a change", "POST", MAPS)
            .json(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}","annotations":{"asks":"m1=label;"}},"Data":{"a":"1"},"unknown":{"b":"2"}}"#)
            .answers(201)
            .then("GET", OWN)
            .answers(200),
        by_admin("unusual text", "POST", MAPS)
            .json(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}","annotations":{"asks":"m1=label;"}},"data":{"a":"<&> \u2028 \u0000 ☃ \ud83d\ude00","b":""},"binaryData":{"c":"AAEC"}}"#)
            .answers(201)
            .then("GET", OWN)
            .answers(200),
    ]);
    cases
}

/// Connections to pods and nodes, with the answers in their options.
fn connections() -> Vec<Case> {
    let pod = "/api/v1/namespaces/twin-fixed/pods/placed";
    let stream =
        |name: &str, target: &str, protocol: &str| by_admin(name, "GET", target).websocket(protocol, &[]);
    let exec = |what: &str, asks: &str| {
        let target = format!("{pod}/exec?command=echo&command={{unique}}{asks}&stdout=true");
        stream(&format!("exec: {what}"), &target, "v5.channel.k8s.io")
    };
    let mut cases = vec![
        exec("allowed", "").answers(101).contains("ran echo"),
        exec("warned of", "&command=v1%3Dwarn%3B").answers(101),
        exec("changed", "&command=m1%3Dcommand%3B").answers(101).contains("more words"),
        exec("denied", "&command=v1%3Ddeny%3B").answers(403),
        exec("denied with details", "&command=m1%3Ddeny-details%3B").answers(422),
        exec("a failure", "&command=v1%3Dcode-500%3B").answers(500),
        exec("a failure that is ignored", "&command=v2%3Dcode-500%3B").answers(101),
        exec("a patch that does not apply", "&command=m1%3Dlabel%3B").answers(500),
        stream(
            "attach: an absent container",
            &format!("{pod}/attach?stdout=true&container={{unique}}"),
            "v5.channel.k8s.io",
        )
        .answers(400),
    ];
    for (what, asks, denied) in [("allowed", "", false), ("denied", "v1=deny;", true)] {
        for (method, target) in [
            ("GET", "/api/v1/namespaces/twin/services/{unique}:80/proxy/"),
            ("POST", "/api/v1/namespaces/twin/pods/{unique}/proxy/a/"),
            ("PUT", "/api/v1/nodes/{unique}/proxy/b"),
            ("DELETE", "/api/v1/namespaces/twin/services/{unique}/proxy/c"),
            ("PATCH", "/api/v1/namespaces/twin/pods/{unique}/proxy/d"),
        ] {
            let kind = if target.contains("nodes") {
                "a node"
            } else if target.contains("pods") {
                "a pod"
            } else {
                "a service"
            };
            let target = format!("{target}{asks}?q=1");
            let status = match kind {
                _ if denied => 403,
                // It has no endpoints, whether it exists or not; with a port it is looked for first.
                "a service" if !target.contains(":80") => 503,
                _ => 404,
            };
            cases.push(
                by_admin(&format!("{method} by a proxy to {kind}: {what}"), method, &target).answers(status),
            );
        }
    }
    cases
}

/// Patches that cannot be decoded, which the API server refuses before it reads the object.
fn undecodable() -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, content_type, body) in UNDECODABLE {
        let patch = |case: Case| case.body(content_type, body.as_bytes()).answers(400);
        // Others than applied configurations have no manager of their own.
        let target = if content_type == APPLY { format!("{OWN}?fieldManager=twin") } else { OWN.to_owned() };
        let absent = by_admin(&format!("{what}, of an absent object"), "PATCH", &target);
        cases.push(patch(absent).unreviewed());
        cases.push(patch(created(&format!("{what}, of an object")).then("PATCH", &target)));
    }
    cases
}

/// `dryRun=All` of the client.
fn dry_runs() -> Vec<Case> {
    let labelled = |asks: &str| {
        let mut object = map(asks);
        object["metadata"]["labels"] = json!({"only": "mdry"});
        object.to_string()
    };
    let dry = |target: &str| format!("{target}?dryRun=All");
    let mut cases = vec![
        by_admin("a webhook without side effects in a dry run", "POST", &dry(MAPS))
            .json(&labelled("mdry=label;"))
            .answers(201)
            .then("GET", OWN)
            .answers(404),
        by_admin("a webhook with side effects", "POST", MAPS).json(&labelled("mdry=label;")).answers(201),
    ];
    for (what, asks, status) in [
        ("allowed", "", 200),
        ("changed", "m1=label;", 200),
        ("denied", "v1=deny;", 403),
        ("warned of", "v1=warn;", 200),
    ] {
        let dry_of = |how: &str| created(&format!("a dry run of {how}: {what}"));
        let unchanged = |case: Case| case.answers(status).then("GET", OWN).answers(200);
        cases.push(unchanged(
            dry_of("a replacement").then("PUT", &dry(OWN)).json(&asking(asks, map(""))).answers(status),
        ));
        cases.push(unchanged(
            dry_of("a patch").then("PATCH", &dry(OWN)).body(MERGE, asking(asks, json!({})).as_bytes()),
        ));
        cases.push(unchanged(
            dry_of("an applied configuration")
                .then("PATCH", &format!("{OWN}?dryRun=All&fieldManager=twin&force=true"))
                .body(
                    APPLY,
                    asking(
                        asks,
                        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{unique}"}}),
                    )
                    .as_bytes(),
                ),
        ));
        cases.push(
            by_admin(&format!("a dry run of a generated name: {what}"), "POST", &dry(MAPS))
                .json(&asking(asks, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "{unique}-"}})))
                .answers(if status == 200 { 201 } else { status }),
        );
    }
    cases
}
