//! Audit events at each level of the policy (`audit.rs`), over what clients do. A front proxy names the users, so that each
//! request matches the rule of one group.

use crate::case::{Case, H1, case};

const GROUP: &str = "audit";
const MAPS: &str = "/api/v1/namespaces/twin/configmaps";
const OWN: &str = "/api/v1/namespaces/twin/configmaps/{unique}";
const MAP: &str = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}"},"data":{"a":"1","html":"<&>\u2028"}}"#;
const MERGE: &str = "application/merge-patch+json";
const SECRETS: &str = "/api/v1/namespaces/twin/secrets";

/// The groups for which the policy has rules.
const LEVELS: [&str; 7] = ["none", "metadata", "request", "managed", "unmanaged", "complete", "received"];

/// A request of a member of the group for a level.
trait Audited: Sized {
    fn at(self, level: &str) -> Self;
}

impl Audited for Case {
    fn at(self, level: &str) -> Self {
        self.header("X-Remote-User", "auditee-{unique}")
            .header("X-Remote-Uid", "uid-7")
            .header("X-Remote-Group", &format!("audit-{level}"))
            .header("X-Remote-Group", "system:masters")
            .header("X-Remote-Extra-Scopes", "<one>")
    }
}

fn first(name: &str, level: &str, method: &str, target: &str) -> Case {
    let case =
        case(GROUP, &format!("{level}: {name}"), method, target).cert("front-proxy").only(H1).by_audit();
    if level == "none" { case.unaudited() } else { case }.at(level)
}

fn of_level(level: &'static str) -> Vec<Case> {
    let first = |name: &str, method: &str, target: &str| first(name, level, method, target);
    let created = |name: &str| first(name, "POST", MAPS).json(MAP).answers(201);
    let pods = "/api/v1/namespaces/twin-fixed/pods";
    vec![
        first("get", "GET", "/api/v1/namespaces/twin-fixed/configmaps/alpha").answers(200),
        first("get as table", "GET", "/api/v1/namespaces/twin-fixed/configmaps/alpha")
            .header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
            .answers(200),
        first("get of metadata", "GET", "/api/v1/namespaces/twin-fixed/configmaps/alpha")
            .header("Accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
            .answers(200),
        first("get pretty", "GET", "/api/v1/namespaces/twin-fixed/configmaps/alpha?pretty=true").answers(200),
        first("list", "GET", "/api/v1/namespaces/twin-fixed/configmaps?labelSelector=parity").answers(200),
        first("list in parts", "GET", "/api/v1/namespaces/twin-fixed/configmaps?limit=1").answers(200),
        first("list of one", "GET", "/api/v1/namespaces/twin-fixed/configmaps?fieldSelector=metadata.name%3Dalpha")
            .answers(200),
        first("list of cluster", "GET", "/api/v1/namespaces?labelSelector=none").answers(200),
        first("absent", "GET", "/api/v1/namespaces/twin/configmaps/none").answers(404),
        first("unknown resource", "GET", "/api/v1/namespaces/twin/unknowns").answers(404),
        first("unknown path", "GET", "/nothing/here").answers(404),
        first("discovery", "GET", "/apis/batch/v1").answers(200),
        first("version", "GET", "/version").answers(200),
        first("bad field selector", "GET", "/api/v1/namespaces/twin/configmaps?fieldSelector=spec.x%3Dy").answers(400),
        first("unacceptable", "GET", "/api/v1/namespaces/twin/configmaps/none").header("Accept", "text/html").answers(406),
        created("create"),
        created("create twice").then("POST", MAPS).at(level).json(MAP).answers(409),
        first("create invalid", "POST", MAPS).json(r#"{"metadata":{"name":"Bad_Name"}}"#).answers(422),
        first("create not JSON", "POST", MAPS).json("{").answers(400),
        first("create without a kind", "POST", MAPS).json(r#"{"metadata":{"name":"{unique}"}}"#).answers(201),
        first("create with names twice", "POST", MAPS)
            .json(r#"{"metadata":{"name":"other","name":"{unique}","name":null},"metadata":{"labels":{"a":"b"}}}"#)
            .answers(201),
        first("create with a uid", "POST", MAPS)
            .json(r#"{"metadata":{"name":"{unique}","uid":"01234567-89ab-cdef-0123-456789abcdef","generation":3}}"#)
            .answers(201),
        first("create with a resourceVersion", "POST", MAPS)
            .json(r#"{"metadata":{"name":"{unique}","resourceVersion":"7"}}"#)
            .answers(500),
        first("create with managed fields", "POST", MAPS)
            .json(r#"{"metadata":{"name":"{unique}","managedFields":[{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{}}}]},"data":{"a":"b"}}"#)
            .answers(201),
        first("create as dry run", "POST", &format!("{MAPS}?dryRun=All&fieldManager=someone")).json(MAP).answers(201),
        first("create in another namespace", "POST", MAPS)
            .json(r#"{"metadata":{"name":"{unique}","namespace":"default"}}"#)
            .answers(400),
        created("replace").then("PUT", OWN).at(level).json(MAP).answers(200),
        created("replace at a version").then("PUT", OWN).at(level)
            .json(r#"{"metadata":{"name":"{unique}","resourceVersion":"1","uid":"01234567-89ab-cdef-0123-456789abcdef"}}"#)
            .answers(409),
        first("replace absent", "PUT", OWN).json(MAP).answers(404),
        created("patch").then("PATCH", OWN).at(level).body(MERGE, br#"{"data":{"b":"2"}}"#).answers(200),
        created("patch strategically").then("PATCH", OWN).at(level)
            .body("application/strategic-merge-patch+json", br#"{"metadata":{"labels":{"l":"m"}}}"#)
            .answers(200),
        created("patch by operations").then("PATCH", OWN).at(level)
            .body("application/json-patch+json", br#"[{"op":"remove","path":"/data/a"}]"#)
            .answers(200),
        created("patch that fails").then("PATCH", OWN).at(level)
            .body("application/json-patch+json", br#"[{"op":"remove","path":"/data/none"}]"#)
            .answers(422),
        first("apply in JSON", "PATCH", &format!("{OWN}?fieldManager=one"))
            .body("application/apply-patch+yaml", br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{unique}"}}"#)
            .answers(201),
        first("apply in YAML", "PATCH", &format!("{OWN}?fieldManager=one"))
            .body("application/apply-patch+yaml", b"# applied\nkind: ConfigMap\napiVersion: v1\nmetadata:\n  name: \"{unique}\"\ndata:\n  z: \"1\"\n  a: |\n    two\n    lines\n")
            .answers(201),
        first("apply that cannot be read", "PATCH", &format!("{OWN}?fieldManager=one"))
            .body("application/apply-patch+yaml", b"a: [")
            .answers(400),
        created("patch that cannot be read").then("PATCH", OWN).at(level).body(MERGE, b"{").answers(400),
        created("delete").then("DELETE", OWN).at(level).answers(200),
        created("delete with options").then("DELETE", OWN).at(level)
            .json(r#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background","gracePeriodSeconds":0}"#)
            .answers(200),
        created("delete with a query").then("DELETE", &format!("{OWN}?propagationPolicy=Orphan")).at(level).answers(200),
        first("delete absent", "DELETE", OWN).answers(404),
        created("delete of many").then("DELETE", &format!("{MAPS}?fieldSelector=metadata.name%3D{{unique}}")).at(level).answers(200),
        first("a secret", "POST", SECRETS).json(r#"{"metadata":{"name":"{unique}"},"data":{"a":"Yg=="}}"#).answers(201),
        first("a pod with defaults", "POST", "/api/v1/namespaces/twin/pods")
            .json(r#"{"metadata":{"name":"{unique}"},"spec":{"containers":[{"name":"c","image":"i"}],"automountServiceAccountToken":false}}"#)
            .answers(201)
            .then("DELETE", "/api/v1/namespaces/twin/pods/{unique}?gracePeriodSeconds=0").at(level)
            .answers(200),
        first("a token", "POST", "/api/v1/namespaces/twin/serviceaccounts/default/token")
            .json(r#"{"spec":{"expirationSeconds":3600}}"#)
            .answers(201)
            .any_body("the token is another each time"),
        first("a review", "POST", "/apis/authentication.k8s.io/v1/tokenreviews").json(r#"{"spec":{"token":"x"}}"#).answers(201),
        first("an access review", "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews")
            .json(r#"{"spec":{"user":"a","resourceAttributes":{"verb":"get","resource":"pods"}}}"#)
            .answers(201)
            .any_body("its reason names any binding"),
        first("a watch", "GET", "/api/v1/namespaces/twin-fixed/configmaps?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dalpha")
            .answers(200),
        first("a watch that the client ends", "GET", "/api/v1/namespaces/twin-fixed/configmaps?watch=1&fieldSelector=metadata.name%3Dalpha")
            .lines(1)
            .answers(200),
        first("a watch that is refused", "GET", "/api/v1/namespaces/twin-fixed/configmaps?watch=1&fieldSelector=spec.x%3Dy").answers(400),
        first("a log of an absent pod", "GET", &format!("{pods}/none/log")).answers(404),
        first("impersonation", "GET", "/api/v1/namespaces/twin-fixed/configmaps/alpha")
            .header("Impersonate-User", "bob-{unique}")
            .header("Impersonate-Group", "devs")
            .header("Impersonate-Extra-Why", "audit")
            .answers(200),
        first("addresses", "GET", "/api/v1/namespaces/twin-fixed/configmaps/alpha")
            .header("X-Forwarded-For", "1.1.1.1, junk, 2001:db8::1")
            .header("X-Real-Ip", "2.2.2.2")
            .header("User-Agent", &"agent ".repeat(200))
            .answers(200),
        first("no method", "POST", "/api/v1/namespaces/twin-fixed/configmaps/alpha").json(MAP).answers(405),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = LEVELS.into_iter().flat_map(of_level).collect();
    let alpha = "/api/v1/namespaces/twin-fixed/configmaps/alpha";
    let of = |name: &str, target: &str| case(GROUP, name, "GET", target).by_audit();
    // These fail before a client is authenticated.
    cases.extend([
        of("bad timeout", &format!("{alpha}?timeout=never")).cert("alice").answers(400),
        of("no credentials", alpha).answers(403),
        of("basic", alpha).header("Authorization", "Basic YTpi").answers(403),
        of("unknown token", alpha).bearer("unknown").unauthorized(),
        of("unknown token, unacceptable", alpha).bearer("unknown").header("Accept", "text/html").answers(401),
        of("unknown token and basic", alpha)
            .header("Authorization", "bearer  x y")
            .header("Accept", "a/b")
            .answers(403),
        of("expired certificate", alpha).cert("expired").unauthorized(),
        of("expired certificate, unacceptable", &format!("{alpha}?access_token=x"))
            .cert("expired")
            .header("Accept", "text/html")
            .answers(401),
        of("watch with an expired certificate", "/api/v1/configmaps?watch=1").cert("expired").unauthorized(),
    ]);
    cases
}
