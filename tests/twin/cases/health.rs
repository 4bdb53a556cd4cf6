//! Health endpoints need authentication and authorisation like all other paths.

use crate::case::{Case, case, get};

pub(crate) fn cases() -> Vec<Case> {
    let all = |name: &str, target: &str| get("health", name, target);
    let prober = |name: &str, target: &str| all(name, target).cert("prober");
    let hooks = "the list of checks is the server's own";
    vec![
        all("livez", "/livez").answers(200).contains("ok"),
        all("readyz", "/readyz").answers(200).contains("ok"),
        all("healthz", "/healthz").answers(200).contains("ok"),
        prober("livez as a user", "/livez").answers(200),
        all("livez with an unknown token", "/livez").bearer("tok-none").unauthorized(),
        all("livez with an expired certificate", "/livez").cert("expired").unauthorized(),
        all("readyz with basic", "/readyz").header("Authorization", "Basic eDp5").answers(200),
        all("escaped letter", "/%6civez").answers(200),
        all("trailing slash", "/livez/").answers(403),
        all("HEAD by anonymous", "/livez").answers(200),
        case("health", "HEAD of livez by anonymous", "HEAD", "/livez").answers(403),
        case("health", "POST of livez by anonymous", "POST", "/livez").answers(403),
        case("health", "HEAD of livez by masters", "HEAD", "/livez").cert("admin").answers(200),
        case("health", "POST of livez by masters", "POST", "/livez").cert("admin").answers(200),
        case("health", "OPTIONS of livez by masters", "OPTIONS", "/livez").cert("admin").answers(200),
        all("verbose", "/livez?verbose").answers(200).contains("livez check passed").any_body(hooks),
        all("verbose with a value", "/readyz?verbose=false").answers(200).contains("[+]").any_body(hooks),
        all("unknown exclude", "/livez?exclude=none").answers(200).contains("ok"),
        all("excluded ping", "/livez?exclude=ping").answers(200),
        all("single check by anonymous", "/livez/ping").answers(403),
        prober("single check", "/livez/ping").answers(200),
        prober("single check log", "/livez/log").answers(200),
        prober("single check etcd", "/livez/etcd").answers(200),
        prober("single check of readyz", "/readyz/etcd").answers(200),
        prober("single check of healthz", "/healthz/etcd").answers(200),
        prober("single check, verbose", "/livez/etcd?verbose").answers(200),
        prober("single check with slash", "/livez/etcd/").answers(404),
        prober("unknown check", "/livez/none").answers(404),
        prober("post-start hook", "/livez/poststarthook/rbac/bootstrap-roles").answers(200),
        prober("informer sync is of readyz alone", "/livez/informer-sync").answers(404),
        prober("informer sync", "/readyz/informer-sync").answers(200),
        prober("shutdown", "/readyz/shutdown").answers(200),
        prober("a check of the gateway's own", "/readyz/cluster-backend")
            .answers(404)
            .declared("D-own-checks", 200),
        prober("a request that has passed many gateways", "/livez")
            .header("CDN-Loop", &["portcullis-a"; 8].join(","))
            .answers(200)
            .declared("D-gateway-loop", 508),
        all("a check of the gateway's own by anonymous", "/readyz/cluster-backend").answers(403),
        prober("a cluster is not a check of livez", "/livez/cluster-backend").answers(404),
        all("a check that only the server has is not excluded", "/livez?exclude=etcd&verbose")
            .answers(200)
            .contains("livez check passed")
            .any_body(hooks),
        all("metrics by anonymous", "/metrics").answers(403),
        prober("metrics", "/metrics").answers(200).any_body("figures"),
        all("livez as yaml", "/livez").header("Accept", "application/yaml").answers(200),
        all("audit id", "/livez").header("Audit-ID", "mine").answers(200),
        prober("by impersonation", "/livez/ping")
            .cert("admin")
            .header("Impersonate-User", "eve")
            .answers(403),
    ]
}
