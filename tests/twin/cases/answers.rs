//! Response formats: negotiated errors, pretty printing, tables, protobuf, compression, audit IDs, warnings.

use crate::case::{Case, case, get, whoami};

const MAP: &str = "/api/v1/namespaces/twin-fixed/configmaps/alpha";
const LIST: &str = "/api/v1/namespaces/twin-fixed/configmaps?labelSelector=parity&resourceVersion={rv}&resourceVersionMatch=Exact";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Each error in each media type.
fn errors() -> Vec<Case> {
    let kinds: [(&str, &str, Option<&'static str>, u16); 4] = [
        ("401", MAP, Some("expired"), 401),
        ("403", "/api/v1/nodes/twin-node", Some("alice"), 403),
        ("403 anonymous", "/api/v1/secrets", None, 403),
        ("404", "/api/v1/namespaces/twin-fixed/configmaps/none", Some("alice"), 404),
    ];
    let accepts = [
        ("yaml", "application/yaml"),
        ("protobuf", PROTOBUF),
        ("html", "text/html"),
        ("cbor", "application/cbor"),
        ("table", TABLE),
        ("table or json", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),
        ("anything", "*/*"),
        ("any application", "application/*"),
        ("preference", "application/json;q=0.1, application/yaml;q=0.9"),
        ("partial metadata", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"),
        ("charset", "application/json; charset=utf-8"),
        ("garbage", ";;;"),
        ("empty", ""),
        ("browser", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
    ];
    let mut cases = Vec::new();
    for (kind, target, cert, status) in kinds {
        for (form, accept) in accepts {
            let case = get("negotiation", &format!("{kind} as {form}"), target).header("Accept", accept);
            let case = match cert {
                Some(cert) => case.cert(cert),
                None => case,
            };
            // An unsupported media type never turns an authentication or authorisation error into a 406.
            let unacceptable =
                status == 404 && matches!(form, "html" | "cbor" | "garbage" | "any application");
            cases.push(case.answers(if unacceptable { 406 } else { status }));
        }
    }
    cases
}

fn pretty() -> Vec<Case> {
    let forbidden = |name: &str, query: &str| {
        get("pretty", name, &format!("/api/v1/nodes/twin-node{query}")).cert("alice")
    };
    let unauthorized =
        |name: &str, query: &str| get("pretty", name, &format!("{MAP}{query}")).bearer("tok-none");
    let found = |name: &str, query: &str| get("pretty", name, &format!("{MAP}{query}")).cert("alice");
    let mut cases = Vec::new();
    for (name, query, agent, indented) in [
        ("curl", "", "curl/8.5.0", true),
        ("wget", "", "Wget/1.21", true),
        ("browser", "", "Mozilla/5.0 (X11)", true),
        ("other agent", "", "kubectl/v1.36.3", false),
        ("curl in another case", "", "Curl/8", false),
        ("requested", "?pretty=true", "x", true),
        ("requested with 1", "?pretty=1", "x", true),
        ("refused", "?pretty=false", "curl/8", false),
        ("junk", "?pretty=junk", "curl/8", false),
        ("bare", "?pretty", "curl/8", true),
        ("bare and no agent", "?pretty", "x", false),
        ("first of two", "?pretty=true&pretty=false", "x", true),
    ] {
        for (kind, case, status) in [
            ("403", forbidden(&format!("403, {name}"), query), 403),
            ("401", unauthorized(&format!("401, {name}"), query), 401),
            ("200", found(&format!("200, {name}"), query), 200),
        ] {
            let case = case.header("User-Agent", agent).answers(status);
            let case = if indented { case.contains("{\n  \"kind\"") } else { case.lacks("{\n  \"kind\"") };
            // The 403 for all queries; the 401 and the 200 only for some.
            if kind == "403" || query.is_empty() || name == "requested" {
                cases.push(case);
            }
        }
    }
    cases
}

fn forms() -> Vec<Case> {
    let alice = |name: &str, target: &str| get("forms", name, target).cert("alice");
    vec![
        alice("object as yaml", MAP)
            .header("Accept", "application/yaml")
            .answers(200)
            .contains("kind: ConfigMap"),
        alice("object as protobuf", MAP).header("Accept", PROTOBUF).answers(200),
        alice("object as table", MAP).header("Accept", TABLE).answers(200).contains(r#""kind":"Table""#),
        alice("list", LIST).answers(200).contains("epsilon"),
        alice("list as table", LIST).header("Accept", TABLE).answers(200).contains(r#""kind":"Table""#),
        alice("list as protobuf", LIST).header("Accept", PROTOBUF).answers(200),
        alice("list as protobuf table", LIST)
            .header("Accept", "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io")
            .answers(406),
        alice("list as yaml", LIST).header("Accept", "application/yaml").answers(200),
        alice("list of metadata", LIST)
            .header("Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
            .answers(200)
            .contains("PartialObjectMetadataList")
            .lacks(r#""data":"#),
        alice("object as html", MAP).header("Accept", "text/html").answers(406),
        alice("list in chunks", "/api/v1/namespaces/twin-fixed/configmaps?limit=2")
            .answers(200)
            .contains("remainingItemCount")
            .then("GET", "/api/v1/namespaces/twin-fixed/configmaps?limit=2&continue={continue}")
            .answers(200)
            .then("GET", "/api/v1/namespaces/twin-fixed/configmaps?limit=2&continue={continue}")
            .answers(200)
            .lacks("remainingItemCount"),
        alice("broken continue token", "/api/v1/namespaces/twin-fixed/configmaps?limit=2&continue=xyz")
            .answers(400),
        alice("gzip of a large object", "/api/v1/namespaces/twin-fixed/configmaps/large")
            .header("Accept-Encoding", "gzip")
            .answers(200)
            .contains("0123456789abcdef"),
        alice("large object without gzip", "/api/v1/namespaces/twin-fixed/configmaps/large")
            .answers(200)
            .contains("0123456789abcdef"),
        alice("small object is not compressed", MAP).header("Accept-Encoding", "gzip").answers(200),
        alice("gzip among others", "/api/v1/namespaces/twin-fixed/configmaps/large")
            .header("Accept-Encoding", "br, gzip;q=0.5, deflate")
            .answers(200),
        alice("gzip refused", "/api/v1/namespaces/twin-fixed/configmaps/large")
            .header("Accept-Encoding", "identity")
            .answers(200),
        alice("range is ignored", MAP).header("Range", "bytes=0-10").answers(200),
        alice("if none match is ignored", MAP).header("If-None-Match", "*").answers(200),
        alice("openapi has an etag", "/openapi/v3/api/v1").answers(200),
        alice("openapi by its etag", "/openapi/v2").header("If-None-Match", "\"0\"").answers(200),
        // Audit IDs: echoed or generated.
        alice("audit id is echoed", MAP).header("Audit-ID", "my-own-id").answers(200),
        alice("audit id with blanks", MAP).header("Audit-ID", "one two  three").answers(200),
        alice("audit id of three hundred bytes", MAP).header("Audit-ID", &"i".repeat(300)).answers(200),
        alice("first audit id", MAP).header("Audit-ID", "one").header("Audit-ID", "two").answers(200),
        alice("empty audit id", MAP).header("Audit-ID", "").answers(200),
        whoami("forms", "audit id of a 401").bearer("tok-none").header("Audit-ID", "mine").unauthorized(),
        get("forms", "audit id of a 403", "/api/v1/secrets").header("Audit-ID", "mine").answers(403),
        get("forms", "audit id of a 500", "/api/v1/watch").header("Audit-ID", "mine").answers(500),
        // Warnings.
        alice(
            "warning of a deprecated kind",
            "/api/v1/namespaces/twin-fixed/endpoints?resourceVersion={rv}&resourceVersionMatch=Exact",
        )
        .answers(200),
        case(
            "forms",
            "warning of an unknown field",
            "POST",
            "/api/v1/namespaces/twin/configmaps?fieldValidation=Warn&dryRun=All",
        )
        .cert("alice")
        .json(r#"{"metadata":{"name":"{unique}"},"dada":{},"data":{"a":"b"}}"#)
        .answers(201),
        alice("warning of an extra blank in the credential", MAP)
            .header("Authorization", "Bearer  tok-alice")
            .answers(200),
        // CORS is not enabled.
        alice("origin", MAP).header("Origin", "https://example.com").answers(200),
        case("forms", "preflight", "OPTIONS", MAP)
            .header("Origin", "https://example.com")
            .header("Access-Control-Request-Method", "GET")
            .answers(403),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    [errors(), pretty(), forms()].concat()
}
