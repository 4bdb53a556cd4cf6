//! Authorization webhooks: `first` and `last` with failurePolicy `NoOpinion`, between them `second` with `Deny` and
//! reviews of v1beta1, without a cache. The answers are in the requests: `outside/authorization.rs`.

use crate::case::case as request;
use crate::case::{Case, get, whoami};

const GROUP: &str = "authorization";
const DENIED: &str = "is forbidden: User \\\"webhooks\\\" cannot";

pub(crate) fn cases() -> Vec<Case> {
    let all =
        [answers(), orders(), reviews(), conditions(), users(), caches(), impersonation(), differences()];
    all.concat().into_iter().map(Case::by_webhooks).collect()
}

/// A GET of a config map that does not exist, with these answers.
fn asked(name: &str, answers: &str) -> Case {
    let target = format!("/api/v1/namespaces/twin/configmaps/{answers}");
    get(GROUP, name, &target).bearer("tok-authorized")
}

/// Each answer of each webhook.
fn answers() -> Vec<Case> {
    let missing = "not found";
    // The answer, and the status with which a request ends if it is that of `first`, `second`, `last`.
    let table: &[(&str, [u16; 3], Option<&'static str>)] = &[
        ("allow", [404, 404, 404], None),
        ("deny", [403, 403, 403], None),
        ("none", [404, 404, 403], None),
        ("both", [500, 500, 500], None),
        ("evaluation", [404, 404, 403], None),
        ("allowevaluation", [404, 404, 404], None),
        ("null", [404, 404, 403], None),
        ("nulls", [404, 404, 403], None),
        ("unknown", [404, 404, 404], None),
        ("nostatus", [404, 404, 403], None),
        ("bare", [404, 404, 404], None),
        ("created", [404, 404, 404], None),
        ("wrongkind", [404, 500, 500], Some("D-webhook-errors")),
        ("wrongversion", [404, 500, 500], Some("D-webhook-errors")),
        ("list", [404, 500, 500], Some("D-webhook-errors")),
        ("string", [404, 500, 500], Some("D-webhook-errors")),
        ("text", [404, 500, 500], Some("D-webhook-errors")),
        ("empty", [404, 500, 500], None),
        ("statusforbidden", [404, 500, 500], None),
        ("statuslater", [404, 500, 500], None),
        ("statusinternal", [404, 500, 500], None),
        ("close", [404, 500, 500], Some("D-webhook-errors")),
        ("silent", [404, 500, 500], None),
        ("400", [404, 500, 500], None),
        ("401", [404, 500, 500], None),
        ("403", [404, 500, 500], None),
        ("404", [404, 500, 500], None),
        ("409", [404, 500, 500], None),
        ("418", [404, 500, 500], None),
        ("422", [404, 500, 500], None),
        ("429", [404, 500, 500], None),
        ("500", [404, 500, 500], None),
        ("502", [404, 500, 500], None),
        ("503", [404, 500, 500], None),
        ("504", [404, 500, 500], None),
    ];
    let mut cases = Vec::new();
    for (answer, statuses, declared) in table {
        for (webhook, status) in ["first", "second", "last"].into_iter().zip(statuses) {
            let case = asked(&format!("{webhook} answers {answer}"), &format!("{webhook}.{answer}"))
                .answers(*status);
            cases.push(match (*status, declared) {
                (404, _) => case.contains(missing),
                (403, _) => case.contains(DENIED),
                (_, Some(id)) => case.declared(id, *status),
                (_, None) if *answer == "silent" => {
                    case.any_body("Go's text depends on where the timeout strikes")
                }
                _ => case.contains("Internal Server Error"),
            });
        }
    }
    cases
}

/// The first decision counts; without one, reasons and errors are joined.
fn orders() -> Vec<Case> {
    let of = |answers: &str| asked(answers, answers);
    vec![
        of("first.allow--last.deny").answers(404),
        of("first.deny--last.allow").answers(403).contains("first says deny"),
        of("second.allow--last.deny").answers(404),
        of("second.deny--last.allow").answers(403).contains("second says deny"),
        of("first.none--last.allow").answers(404),
        of("first.none--second.none--last.none")
            .answers(403)
            .contains("first says none")
            .contains("second says none")
            .contains("last says none"),
        of("first.none--second.deny").answers(403).lacks("first says none"),
        of("first.404--last.none").answers(500),
        of("first.404--last.404").answers(500),
        of("first.404--last.403").answers(500),
        of("first.404--last.deny").answers(403).contains("last says deny"),
        of("first.404--second.404").answers(500),
        of("first.403--second.allow").answers(404),
        of("first.both--last.allow").answers(500),
        of("second.500--last.allow").answers(500),
        of("first.500--second.allow").answers(404),
    ]
}

/// What the webhooks receive.
fn reviews() -> Vec<Case> {
    let mut cases = Vec::new();
    for webhook in ["first", "second", "last"] {
        let echo = format!("{webhook}.echo");
        let mut add = |method: &str, target: String| {
            let name = format!("review of {method} {target}");
            cases.push(request(GROUP, &name, method, &target).bearer("tok-authorized").answers(403));
        };
        for method in ["GET", "PUT", "PATCH", "DELETE"] {
            add(method, format!("/api/v1/namespaces/twin/configmaps/{echo}"));
        }
        for target in [
            format!("/api/v1/namespaces/{echo}"),
            format!("/api/v1/namespaces/{echo}/configmaps"),
            format!("/api/v1/namespaces/{echo}/configmaps?watch=true"),
            format!("/api/v1/watch/namespaces/{echo}/pods"),
            format!("/api/v1/namespaces/{echo}/pods/p/log?container=c"),
            format!("/api/v1/namespaces/{echo}/pods/p/proxy/a/b"),
            format!("/api/v1/nodes/{echo}"),
            format!("/api/v1/nodes/{echo}/proxy/healthz"),
            format!("/apis/apps/v1/namespaces/{echo}/deployments/d/scale"),
            format!("/apis/apps/v1/namespaces/{echo}/deployments?labelSelector=a%3Db"),
            format!("/apis/none.example/v7/things/{echo}"),
            format!("/apis/none.example/v7/namespaces/{echo}/things/x/sub"),
            format!("/{echo}"),
            format!("/healthz/{echo}"),
            format!("/apis/{echo}"),
            format!("/some/path/{echo}?query=1"),
        ] {
            add("GET", target);
        }
        add("POST", format!("/api/v1/namespaces/{echo}/pods"));
        add("POST", format!("/api/v1/namespaces/{echo}/pods/p/eviction"));
        add("DELETE", format!("/api/v1/namespaces/{echo}/pods"));
        add("HEAD", format!("/{echo}"));
        add("OPTIONS", format!("/{echo}"));
        for (number, selectors) in [
            "labelSelector=a%3Db%2Cc!%3Dd",
            "labelSelector=a%20in%20(x%2Cy)%2Cb%20notin%20(z)%2Cc%2C!d",
            "labelSelector=a%3E1%2Cb%3C2",
            "labelSelector=a%3E1%2Cb%3D2",
            "labelSelector=broken%3D%3D%3D",
            "labelSelector=a%20in%20()",
            "labelSelector=&fieldSelector=",
            "fieldSelector=metadata.name%3Dx",
            "fieldSelector=metadata.namespace!%3Dx%2Cspec.nodeName%3D%3Dn",
            "fieldSelector=broken",
            "fieldSelector=a%3D%5C%2Cb",
            "fieldSelector=%3Da",
            "labelSelector=a%3Db&labelSelector=c%3Dd",
            "fieldSelector=a%3Db&labelSelector=c%3Dd&limit=5",
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("review of selectors {number} by {webhook}");
            let target = format!("/api/v1/namespaces/{echo}/pods?{selectors}");
            cases.push(get(GROUP, &name, &target).bearer("tok-authorized").answers(403));
        }
    }
    cases
}

/// The conditions under which a webhook is asked.
fn conditions() -> Vec<Case> {
    let path = |name: &str, path: &str| get(GROUP, name, path).bearer("tok-authorized");
    vec![
        asked("excluded", "skip-first--first.deny").answers(404),
        asked("the second excluded", "skip-second--second.deny").answers(404),
        asked("another is asked", "skip-first--first.deny--second.deny").answers(403).contains("second says"),
        path("an error and an allowing webhook", "/first-fails").answers(404),
        path("an error and a denying webhook", "/first-fails/last.deny").answers(403),
        path("an error and no opinion", "/first-fails/last.none")
            .answers(500)
            .contains("cel evaluation error"),
        path("an error with failurePolicy Deny", "/second-fails")
            .answers(500)
            .contains("cel evaluation error"),
        get(GROUP, "excluded by a group", "/api/v1/namespaces/twin/configmaps/first.deny--second.deny")
            .bearer("tok-nowebhook")
            .answers(404),
        get(GROUP, "no condition", "/api/v1/namespaces/twin/configmaps/first.deny--last.deny")
            .bearer("tok-nowebhook")
            .answers(403)
            .contains("last says deny"),
    ]
}

/// Kinds of users, and requests that the gateway answers itself.
fn users() -> Vec<Case> {
    let target = "/api/v1/namespaces/twin/configmaps/last.echo";
    let by = |name: &str, token: &str| get(GROUP, name, target).bearer(token).answers(403);
    let health = |path: &str| get(GROUP, &format!("health {path}"), path).bearer("tok-authorized");
    vec![
        by("unusual names", "tok-unicode"),
        by("no uid", "tok-no-uid"),
        get(GROUP, "anonymous", target).answers(403),
        get(GROUP, "a certificate", target).cert("alice").answers(403),
        get(GROUP, "masters", "/api/v1/namespaces/twin/configmaps/last.deny").cert("admin").answers(404),
        get(GROUP, "masters by token", "/api/v1/namespaces/twin/configmaps/last.deny")
            .bearer("tok-admin")
            .answers(404),
        get(GROUP, "unauthenticated first", target).bearer("unknown").unauthorized(),
        health("/healthz/last.deny").answers(403),
        health("/readyz/last.none").answers(403),
        health("/version").answers(200),
        whoami(GROUP, "a review of oneself").bearer("tok-authorized").answers(201),
    ]
}

/// A webhook is asked again only when its answer has ended.
fn caches() -> Vec<Case> {
    let twice = |name: &str, target: &str| {
        let case = get(GROUP, name, target).bearer("tok-authorized").answers(403).contains("call 1");
        case.then("GET", target).bearer("tok-authorized").answers(403)
    };
    vec![
        twice("a refusal is cached", "/api/v1/namespaces/{unique}/pods/first.count").contains("call 1"),
        twice("without a cache it is asked again", "/api/v1/namespaces/{unique}/pods/second.count")
            .contains("call 2"),
        twice(
            "another query is another request to the client alone",
            "/api/v1/namespaces/{unique}/pods/last.count",
        )
        .contains("call 1")
        .then("GET", "/api/v1/namespaces/{unique}/pods/last.count?pretty=1")
        .bearer("tok-authorized")
        .answers(403)
        .contains("call 1")
        .then("DELETE", "/api/v1/namespaces/{unique}/pods/last.count")
        .bearer("tok-authorized")
        .answers(403)
        .contains("call 1"),
        twice("versions are apart", "/apis/apps/v1/namespaces/{unique}/deployments/last.count")
            .contains("call 1")
            .then("GET", "/apis/apps/v1beta1/namespaces/{unique}/deployments/last.count")
            .bearer("tok-authorized")
            .answers(403)
            .contains("call 1"),
    ]
}

/// The webhooks decide on impersonation too, and then on the impersonated user's request.
fn impersonation() -> Vec<Case> {
    let echo = "/api/v1/namespaces/twin/configmaps/last.echo";
    let by_admin =
        |name: &str| get(GROUP, name, echo).cert("admin").header("Impersonate-User", "bob").answers(403);
    let by_user = |name: &str, user: &str| {
        whoami(GROUP, name).bearer("tok-authorized").header("Impersonate-User", user)
    };
    vec![
        by_admin("an impersonated user").contains("bob"),
        by_admin("with groups, uid and extra")
            .header("Impersonate-Group", "dev")
            .header("Impersonate-Group", "authorized")
            .header("Impersonate-Uid", "7")
            .header("Impersonate-Extra-acme.io%2fscopes", "view")
            .header("Impersonate-Extra-acme.io%2fscopes", "edit"),
        by_admin("masters are asked for no one").header("Impersonate-Group", "system:masters").answers(404),
        by_user("a webhook allows it", "bob").header("Impersonate-Group", "authorized").answers(201),
        by_user("a webhook denies the user", "first.deny").answers(403).contains("first says deny"),
        by_user("no webhook allows the user", "last.none").answers(403).contains("last says none"),
        by_user("a webhook denies a group", "bob")
            .header("Impersonate-Group", "a")
            .header("Impersonate-Group", "second.deny")
            .answers(403)
            .contains("second says deny"),
        by_user("a webhook allows all groups at once", "bob")
            .header("Impersonate-Group", "a")
            .header("Impersonate-Group", "b")
            .header("Impersonate-Group", "c")
            .header("Impersonate-Group", "d")
            .header("Impersonate-Group", "first.deny")
            .answers(201),
        by_user("a webhook fails", "last.404").answers(403).contains("could not find"),
        by_user("a webhook denies the uid", "bob").header("Impersonate-Uid", "first.deny").answers(403),
    ]
}

/// The gateway narrows access: the backend's authorizers decide as well. It follows no redirect.
fn differences() -> Vec<Case> {
    let target = "/api/v1/namespaces/kube-system/configmaps/first.allow";
    vec![
        get(GROUP, "allowed by a webhook alone", target)
            .bearer("tok-alice")
            .answers(404)
            .declared("D-authorization-narrows", 403),
        get(GROUP, "an anonymous user that a webhook allows", target)
            .answers(404)
            .declared("D-authorization-narrows", 403),
        asked("second answers redirect", "second.redirect").answers(404).declared("D-redirects", 500),
    ]
}
