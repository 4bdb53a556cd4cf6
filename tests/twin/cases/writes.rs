//! Writes: content types, validation, conflicts, patches, apply, dry run, large bodies, tokens.

use crate::case::{BOTH, Case, H1, case};

const GROUP: &str = "writes";
const MAPS: &str = "/api/v1/namespaces/twin/configmaps";
const OWN: &str = "/api/v1/namespaces/twin/configmaps/{unique}";
const MAP: &str = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}"},"data":{"a":"1"}}"#;

/// The difference in length between a unique name and its placeholder.
const UNIQUE_IS_LONGER: usize = 10 - "{unique}".len();

fn post(name: &str, target: &str) -> Case {
    case(GROUP, name, "POST", target).cert("alice")
}

fn create(name: &str) -> Case {
    post(name, MAPS).json(MAP).answers(201)
}

pub(crate) fn cases() -> Vec<Case> {
    let large = |bytes: usize| {
        format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"large-one"}},"data":{{"a":"{}"}}}}"#,
            "x".repeat(bytes)
        )
    };
    let chunked = |name: &str, body: &str| {
        let mut raw = format!(
            "POST {MAPS} HTTP/1.1\r\nHost: {{addr}}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        raw.push_str(body);
        post(name, MAPS).raw(raw.as_bytes())
    };
    vec![
        create("create, read, replace, delete")
            .contains(r#""name":"{unique}""#.replace("{unique}", "uniq").trim_end_matches('"'))
            .then("GET", OWN)
            .answers(200)
            .then("PUT", OWN)
            .json(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}"},"data":{"a":"2"}}"#)
            .answers(200)
            .contains(r#""a":"2""#)
            .then("PUT", OWN)
            .json(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}","resourceVersion":"1"}}"#)
            .answers(409)
            .then("DELETE", OWN)
            .answers(200)
            .contains(r#""status":"Success""#)
            .then("DELETE", OWN)
            .answers(404),
        create("create twice").then("POST", MAPS).json(MAP).answers(409).contains("AlreadyExists"),
        create("delete with a body")
            .then("DELETE", OWN)
            .json(r#"{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"other"}}"#)
            .answers(409)
            .then("DELETE", OWN)
            .json(r#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Foreground"}"#)
            .answers(200),
        create("patches")
            .then("PATCH", OWN)
            .body("application/merge-patch+json", br#"{"data":{"b":"2"}}"#)
            .answers(200)
            .then("PATCH", OWN)
            .body("application/json-patch+json", br#"[{"op":"remove","path":"/data/a"}]"#)
            .answers(200)
            .lacks(r#""a":"1""#)
            .then("PATCH", OWN)
            .body("application/strategic-merge-patch+json", br#"{"metadata":{"labels":{"l":"m"}}}"#)
            .answers(200)
            .then("PATCH", OWN)
            .body("application/json-patch+json", br#"[{"op":"remove","path":"/data/zzz"}]"#)
            .answers(422)
            .then("PATCH", OWN)
            .body("application/json", b"{}")
            .answers(415)
            .then("PATCH", OWN)
            .body("application/merge-patch+json", b"{")
            .answers(400),
        post("apply", MAPS)
            .json(MAP)
            .answers(201)
            .then("PATCH", &format!("{OWN}?fieldManager=one"))
            .body("application/apply-patch+yaml", b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{unique}\"}\ndata: {c: \"3\"}\n")
            .answers(200)
            .then("PATCH", &format!("{OWN}?fieldManager=two"))
            .body("application/apply-patch+yaml", b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{unique}\"}\ndata: {c: \"4\"}\n")
            .answers(409)
            .then("PATCH", &format!("{OWN}?fieldManager=two&force=true"))
            .body("application/apply-patch+yaml", b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{unique}\"}\ndata: {c: \"4\"}\n")
            .answers(200),
        case(GROUP, "apply creates", "PATCH", &format!("{OWN}?fieldManager=one"))
            .cert("alice")
            .body("application/apply-patch+yaml", b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{unique}\"}\n")
            .answers(201),
        case(GROUP, "apply without manager", "PATCH", OWN)
            .cert("alice")
            .body("application/apply-patch+yaml", b"apiVersion: v1\nkind: ConfigMap\n")
            .answers(422),
        case(GROUP, "apply that cannot be read", "PATCH", &format!("{OWN}?fieldManager=one"))
            .cert("alice")
            .body("application/apply-patch+yaml", b"a: [")
            .answers(400),
        post("dry run", &format!("{MAPS}?dryRun=All")).json(MAP).answers(201).then("GET", OWN).answers(404),
        post("unknown dry run", &format!("{MAPS}?dryRun=Some")).json(MAP).answers(422),
        post("generated name", MAPS)
            .json(r#"{"metadata":{"generateName":"gen-"}}"#)
            .answers(201)
            .any_body("the name is random"),
        post("strict with an unknown field", &format!("{MAPS}?fieldValidation=Strict"))
            .json(r#"{"metadata":{"name":"{unique}"},"dada":{}}"#)
            .answers(400),
        post("strict with a duplicate field", &format!("{MAPS}?fieldValidation=Strict"))
            .json(r#"{"metadata":{"name":"{unique}"},"data":{"a":"1","a":"2"}}"#)
            .answers(400),
        post("invalid name", MAPS).json(r#"{"metadata":{"name":"Bad_Name"}}"#).answers(422),
        post("wrong kind", MAPS).json(r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}"#).answers(400),
        post("wrong namespace", MAPS).json(r#"{"metadata":{"name":"{unique}","namespace":"default"}}"#).answers(400),
        post("missing namespace", "/api/v1/namespaces/none/configmaps").cert("admin").json(MAP).answers(404),
        post("not JSON", MAPS).json("{").answers(400),
        post("empty body", MAPS).json("").answers(400),
        post("null", MAPS).json("null").answers(422),
        post("yaml", MAPS).body("application/yaml", b"metadata: {name: \"{unique}\"}\n").answers(201),
        post("charset", MAPS).body("application/json; charset=utf-8", MAP.as_bytes()).answers(201),
        post("text", MAPS).body("text/plain", MAP.as_bytes()).answers(415),
        post("form", MAPS).body("application/x-www-form-urlencoded", b"a=b").answers(415),
        post("junk protobuf", MAPS).body("application/vnd.kubernetes.protobuf", b"k8s\0\xff\xff").answers(400),
        post("unparsable content type", MAPS).body(";", MAP.as_bytes()).answers(415),
        post("forbidden", MAPS).cert("nobody").json(MAP).answers(403),
        post("forbidden with a body that is not JSON", MAPS).cert("nobody").json("{").answers(403),
        post("unauthorized with a body", MAPS).cert("expired").json(MAP).unauthorized(),
        post("two mebibytes", MAPS).json(&large(2 << 20)).answers(422),
        post("four mebibytes", MAPS).json(&large(4 << 20)).answers(413),
        post("one mebibyte unauthorized", MAPS).only(H1).cert("expired").json(&large(1 << 20)).unauthorized(),
        post("subject access review", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
            .json(r#"{"spec":{"resourceAttributes":{"namespace":"twin","verb":"create","resource":"configmaps"}}}"#)
            .answers(201)
            .contains(r#""allowed":true"#),
        post("rules review", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews")
            .json(r#"{"spec":{"namespace":"twin"}}"#)
            .answers(201)
            .any_body("the order of the rules is random"),
        post("token request", "/api/v1/namespaces/twin/serviceaccounts/default/token")
            .cert("admin")
            .json(r#"{"spec":{"expirationSeconds":3600}}"#)
            .answers(201)
            .contains("token")
            .any_body("the token is another each time"),
        post("token request forbidden", "/api/v1/namespaces/twin/serviceaccounts/default/token")
            .cert("nobody")
            .json("{}")
            .answers(403),
        post("binding of rights one does not have", "/apis/rbac.authorization.k8s.io/v1/namespaces/twin/rolebindings")
            .json(concat!(
                r#"{"metadata":{"name":"{unique}"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","#,
                r#""kind":"ClusterRole","name":"cluster-admin"}}"#
            ))
            .answers(403),
        // Framing of the body.
        chunked("chunked", &format!("{:x}\r\n{MAP}\r\n0\r\n\r\n", MAP.len() + UNIQUE_IS_LONGER))
            .answers(201),
        chunked("chunked with trailer", "3\r\n{ }\r\n0\r\nX-Remote-User: admin\r\n\r\n").answers(422),
        chunked("broken chunk size", "zz\r\n{}\r\n0\r\n\r\n").answers(500).declared("D-broken-body", 400),
        post("expect continue", MAPS).only(H1).header("Expect", "100-continue").json(MAP).answers(201),
        post("expect continue unauthorized", MAPS)
            .only(H1)
            .cert("expired")
            .header("Expect", "100-continue")
            .json(MAP)
            .unauthorized(),
        post("unknown expectation", MAPS).only(H1).header("Expect", "200-maybe").json(MAP).answers(417),
        post("body over both versions", MAPS).only(BOTH).json(MAP).answers(201),
    ]
}
