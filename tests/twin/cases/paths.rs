//! Unusual paths, queries and methods: the gateway must forward them byte for byte, or reject them like kube-apiserver.

use crate::case::{Case, H1, case, get};

const MAP: &str = "/api/v1/namespaces/twin-fixed/configmaps/alpha";

pub(crate) fn cases() -> Vec<Case> {
    let by = |cert: &'static str, name: &str, target: &str| get("paths", name, target).cert(cert);
    let alice = |name: &str, target: &str| by("alice", name, target);
    let admin = |name: &str, target: &str| by("admin", name, target);
    let method = |name: &str, method: &str, target: &str| case("methods", name, method, target).cert("alice");
    vec![
        alice("usual", MAP).answers(200),
        alice("trailing slash", "/api/v1/namespaces/twin-fixed/configmaps/alpha/").answers(200),
        alice("double slash in front", "//api/v1/namespaces/twin-fixed/configmaps/alpha").answers(404),
        alice("double slash within", "/api/v1/namespaces//twin-fixed/configmaps/alpha").answers(403),
        alice("double slash before the resource", "/api/v1//namespaces/twin-fixed/configmaps/alpha").answers(403),
        admin("double slash as admin", "/api/v1//pods").answers(404),
        alice("escaped slash", "/api/v1/namespaces/twin-fixed/configmaps%2Falpha").answers(200),
        alice("escaped slash in the name", "/api/v1/namespaces/twin-fixed/configmaps/a%2Fb").answers(403),
        alice("escaped letter", "/api/v1/namespaces/twin-fixed/configmaps/%61lpha").answers(200),
        alice("escaped resource", "/api/v1/namespaces/twin-fixed/%63onfigmaps/alpha").answers(200),
        alice("doubly escaped letter", "/api/v1/namespaces/twin-fixed/configmaps/%2561lpha").answers(400),
        alice("dot dot", "/api/v1/namespaces/twin-fixed/configmaps/../secrets/hidden").answers(403),
        alice("escaped dot dot", "/api/v1/namespaces/twin-fixed/configmaps/%2e%2e/secrets").answers(403),
        admin("dot dot as admin", "/api/v1/namespaces/default/../../namespaces/twin").answers(404),
        alice("dot", "/api/v1/namespaces/twin-fixed/./configmaps").answers(403),
        alice("semicolon", "/api/v1/namespaces/twin-fixed/configmaps/alpha;x=y").answers(404),
        alice("escaped NUL", "/api/v1/namespaces/twin-fixed/configmaps/al%00pha").answers(404),
        alice("escaped newline", "/api/v1/namespaces/twin-fixed/configmaps/al%0apha").answers(404),
        alice("escaped percent", "/api/v1/namespaces/twin-fixed/configmaps/al%25pha").answers(400),
        alice("escaped unicode", "/api/v1/namespaces/twin-fixed/configmaps/%E2%98%83").answers(404),
        alice("escaped bytes that are not UTF-8", "/api/v1/namespaces/twin-fixed/configmaps/%ff").answers(404),
        alice("plus", "/api/v1/namespaces/twin-fixed/configmaps/al+pha").answers(404),
        alice("escaped question mark", "/api/v1/namespaces/twin-fixed/configmaps/alpha%3Fwatch=1").answers(404),
        alice("characters that need no escape", "/api/v1/namespaces/twin-fixed/configmaps/a!$&'()*,:@=~_-.").answers(404),
        alice("quotes and brackets", "/api/v1/namespaces/twin-fixed/configmaps/%22%3Ca%3E%22").answers(404),
        alice("pipes", "/api/v1/namespaces/twin-fixed/configmaps/a|b").answers(404),
        alice("upper case resource", "/api/v1/namespaces/twin-fixed/ConfigMaps/alpha").answers(403),
        alice("unknown resource", "/api/v1/namespaces/twin-fixed/gizmos").answers(403),
        admin("unknown resource as admin", "/api/v1/namespaces/twin-fixed/gizmos").answers(404),
        admin("unknown group as admin", "/apis/example.com/v1/gizmos").answers(404),
        admin("unknown path as admin", "/nowhere").answers(404),
        alice("unknown path", "/nowhere").answers(403),
        alice("root", "/").answers(403),
        admin("root as admin", "/").answers(200).any_body("the list of paths has the post-start hooks of its authenticators"),
        alice("api", "/api").answers(200),
        alice("api with slash", "/api/").answers(200),
        alice("core discovery", "/api/v1").answers(200),
        alice("groups", "/apis").answers(200),
        alice("aggregated discovery", "/apis")
            .header(
                "Accept",
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json",
            )
            .answers(200)
            .contains("APIGroupDiscoveryList"),
        alice("version", "/version").answers(200),
        get("paths", "anonymous version", "/version").answers(200),
        get("paths", "anonymous discovery", "/api").answers(403),
        alice("openapi v3 index", "/openapi/v3").answers(200),
        alice("openapi v3 group", "/openapi/v3/apis/apps/v1").answers(200),
        alice("subresource", "/api/v1/namespaces/twin-fixed/pods/idle/status").answers(200),
        admin("subresource as admin", "/api/v1/namespaces/twin-fixed/pods/idle/status").answers(200),
        admin("unknown subresource", "/api/v1/namespaces/twin-fixed/pods/idle/gizmo").answers(404),
        alice("namespace is its own", "/api/v1/namespaces/twin-fixed").answers(200),
        alice("cluster scope", "/api/v1/nodes").answers(403).contains("at the cluster scope"),
        alice("named and forbidden", "/api/v1/nodes/twin-node").answers(403).contains(r#"nodes \"twin-node\" is forbidden"#),
        alice("group and forbidden", "/apis/apps/v1/namespaces/default/deployments/x")
            .answers(403)
            .contains(r#"deployments.apps \"x\" is forbidden"#),
        // The deprecated watch prefix, and timeouts.
        alice("watch prefix too short", "/api/v1/watch").answers(500),
        get("paths", "watch prefix too short, anonymous", "/api/v1/watch").answers(500),
        alice("watch prefix with markup", "/api/v1/watch?x=<b>").only(H1).answers(500).declared("D-target-characters", 400),
        alice("watch prefix", "/api/v1/watch/namespaces/twin-fixed/configmaps?resourceVersion=0&timeoutSeconds=1&labelSelector=none")
            .answers(200),
        alice("proxy prefix too short", "/api/v1/proxy").answers(500),
        alice("malformed timeout", &format!("{MAP}?timeout=foo")).answers(400).contains("invalid timeout"),
        get("paths", "invalid timeout, anonymous", &format!("{MAP}?timeout=5")).answers(400).contains("missing unit"),
        get("paths", "invalid timeout with an invalid token", &format!("{MAP}?timeout=5s5")).bearer("tok-none").answers(400),
        alice("valid timeout", &format!("{MAP}?timeout=20s")).answers(200),
        alice("zero timeout", &format!("{MAP}?timeout=0s")).answers(200),
        alice("negative timeout", &format!("{MAP}?timeout=-1s")).answers(200),
        alice("empty timeout", &format!("{MAP}?timeout=")).answers(200),
        alice("second timeout invalid", &format!("{MAP}?timeout=1m&timeout=foo")).answers(200),
        alice("watch ignores an invalid timeout", "/api/v1/namespaces/twin-fixed/configmaps?watch=1&timeout=foo&timeoutSeconds=1&labelSelector=none")
            .answers(200),
        alice("watch with a name", &format!("{MAP}?watch=true")).lines(1).answers(200),
        alice("watch false", "/api/v1/namespaces/twin-fixed/configmaps?watch=false&limit=1").answers(200),
        alice("watch empty", "/api/v1/namespaces/twin-fixed/configmaps?watch=&timeoutSeconds=1&labelSelector=none").answers(200),
        // Queries.
        alice("invalid label selector", "/api/v1/namespaces/twin-fixed/configmaps?labelSelector=%21%21").answers(400),
        alice("invalid field selector", "/api/v1/namespaces/twin-fixed/configmaps?fieldSelector=spec.x%3Dy").answers(400),
        alice("invalid limit", "/api/v1/namespaces/twin-fixed/configmaps?limit=x").answers(400),
        alice("invalid resource version", "/api/v1/namespaces/twin-fixed/configmaps?resourceVersion=x").answers(400),
        alice("invalid escape in the query", &format!("{MAP}?x=%zz")).answers(200),
        alice("semicolon in the query", &format!("{MAP}?a=1;b=2")).answers(200),
        alice("empty query", &format!("{MAP}?")).answers(200),
        alice("two question marks", &format!("{MAP}?a?b")).answers(200),
        alice("query of ten thousand bytes", &format!("{MAP}?x={}", "y".repeat(10_000))).answers(200),
        alice("name selected by field", "/api/v1/namespaces/twin-fixed/configmaps?fieldSelector=metadata.name%3Dalpha&resourceVersion={rv}&resourceVersionMatch=Exact")
            .answers(200)
            .lacks("beta"),
        // Methods.
        method("HEAD of an object", "HEAD", MAP).answers(405),
        method("HEAD of a list", "HEAD", "/api/v1/namespaces/twin-fixed/configmaps").answers(405),
        method("HEAD of version", "HEAD", "/version").answers(403),
        method("OPTIONS of an object", "OPTIONS", MAP).answers(403).contains("cannot  resource"),
        method("OPTIONS of an object as admin", "OPTIONS", MAP).cert("admin").answers(405),
        method("TRACE", "TRACE", MAP).answers(403),
        method("unknown method", "FROB", MAP).answers(403),
        method("unknown method as admin", "FROB", MAP).cert("admin").answers(405),
        method("unknown method on a plain path", "FROB", "/version").answers(403).contains("cannot frob path"),
        method("lower case method", "get", MAP).answers(403),
        method("POST to an object", "POST", MAP).json("{}").answers(405),
        method("PUT to a collection", "PUT", "/api/v1/namespaces/twin-fixed/configmaps").json("{}").answers(405),
        method("PATCH of a collection", "PATCH", "/api/v1/namespaces/twin-fixed/configmaps")
            .body("application/merge-patch+json", b"{}")
            .answers(405),
        method("DELETE of a missing object", "DELETE", "/api/v1/namespaces/twin-fixed/configmaps/none").answers(404),
        method("DELETE of a collection, dry", "DELETE", "/api/v1/namespaces/twin-fixed/configmaps?dryRun=All&labelSelector=none")
            .answers(200),
        method("DELETE of version", "DELETE", "/version").answers(403),
        method("POST of version as admin", "POST", "/version").cert("admin").answers(405),
    ]
}
