//! Tokens that only the TokenReview webhook authenticates: its responses, the number of calls, and the cache.

use serde_json::{Value, json};

use super::credentials::{ALL, GO, by};
use crate::authenticators::token;
use crate::case::{BOTH, Case};
use crate::mint::Token;
use crate::outside::script;

const GROUP: &str = "webhook";

fn hook(name: &str, answers: &Value) -> Case {
    by(GROUP, name, Token::from(script(answers).as_str()))
}

/// A response that authenticates this user.
fn user(user: Value) -> Value {
    json!({"status": {"authenticated": true, "user": user}})
}

/// A response with the number of calls as the group.
fn counted() -> Value {
    user(json!({"username": "jane", "groups": ["call {calls}"]}))
}

fn is_jane(name: &str, answers: &Value) -> Case {
    hook(name, answers).accepted("jane", &[ALL])
}

fn jane() -> Value {
    user(json!({"username": "jane"}))
}

fn users() -> Vec<Case> {
    let full = json!({"username": "jane", "uid": "u-1", "groups": ["b", "a"], "extra": {"twin.example/k": ["v1", "v2"]}});
    let named = |name: &str, given: Value| hook(name, &json!([user(given)]));
    vec![
        named("user", full)
            .only(BOTH)
            .accepted("jane", &["b", "a", ALL])
            .contains(r#""uid":"u-1""#)
            .contains(r#""twin.example/k":["v1","v2"]"#),
        is_jane("name alone", &json!([jane()])).lacks(r#""uid""#),
        named("system name and group", json!({"username": "system:admin", "groups": ["system:masters"]}))
            .accepted("system:admin", &["system:masters", ALL]),
        named("anonymous", json!({"username": "system:anonymous"})).answers(403),
        named("authenticated group is not added twice", json!({"username": "jane", "groups": [ALL, "a"]}))
            .accepted("jane", &[ALL, "a"]),
        named("repeated groups", json!({"username": "jane", "groups": ["a", "b", "a"]}))
            .accepted("jane", &["a", "b", "a", ALL]),
        named("empty group", json!({"username": "jane", "groups": ["", "a"]}))
            .is("jane", &["", "a", ALL])
            .declared("D-empty-group", 201),
        named("groups null", json!({"username": "jane", "groups": null, "extra": null}))
            .accepted("jane", &[ALL]),
        named("extra in upper case", json!({"username": "jane", "extra": {"Twin.Example/K": ["v"]}}))
            .accepted("jane", &[ALL])
            .contains("Twin.Example/K"),
        named("extra without values", json!({"username": "jane", "extra": {"twin.example/k": []}}))
            .is("jane", &[ALL])
            .any_body("header identities cannot carry a key without a value"),
        named("empty value in an extra", json!({"username": "jane", "extra": {"twin.example/k": ["", "v"]}}))
            .accepted("jane", &[ALL]),
        named("names beyond ASCII", json!({"username": "Zoë ☃", "groups": ["größe"]}))
            .accepted("Zoë ☃", &["größe", ALL]),
        named("unknown fields", json!({"username": "jane", "colour": "red"})).accepted("jane", &[ALL]),
        named("no name", json!({"groups": ["a"]})).is("", &["a", ALL]).declared("D-no-name", 401),
        hook("no user", &json!([{"status": {"authenticated": true}}]))
            .is("", &[ALL])
            .declared("D-no-name", 401),
        is_jane(
            "an error beside a user",
            &json!([{"status": {"authenticated": true, "error": "what?", "user": {"username": "jane"}}}]),
        ),
        is_jane("status 201", &json!([{"code": 201, "status": jane()["status"]}])),
        hook(
            "request of the webhook",
            &json!([user(
                json!({"username": "jane", "groups": ["{version}", "{path}?{query}", "{audiences}"]})
            )]),
        )
        .accepted(
            "jane",
            &[
                "authentication.k8s.io/v1beta1",
                "/webhook/reviews?timeout=30s",
                "https://api.twin.example+second.twin",
                ALL,
            ],
        ),
        hook(
            "flags request of the webhook",
            &json!([user(json!({"username": "jane", "groups": ["{version}", "{audiences}"]}))]),
        )
        .by_flags()
        .accepted(
            "jane",
            &["authentication.k8s.io/v1", "https://kubernetes.default.svc+https://old.issuer.example", ALL],
        ),
    ]
}

fn audiences() -> Vec<Case> {
    let with = |audiences: Value| json!([{"status": {"authenticated": true, "audiences": audiences, "user": {"username": "jane"}}}]);
    vec![
        is_jane("audience of ours", &with(json!(["second.twin"]))).contains(r#""audiences":["second.twin"]"#),
        is_jane("audiences in another order", &with(json!(["second.twin", "x", "https://api.twin.example"])))
            .contains(r#""audiences":["second.twin","https://api.twin.example"]"#),
        is_jane("no audiences are ours", &with(json!([])))
            .contains(r#""audiences":["https://api.twin.example","second.twin"]"#),
        hook("foreign audience", &with(json!(["elsewhere"]))).unknown(),
        hook("empty audience", &with(json!([""]))).unknown(),
        hook(
            "foreign audience with an error",
            &json!([{"status": {
            "authenticated": false, "audiences": ["elsewhere"], "error": "what?"}}]),
        )
        .unknown(),
    ]
}

fn refusals() -> Vec<Case> {
    let denied = json!({"status": {"authenticated": false}});
    vec![
        hook("denied", &json!([denied])).unknown(),
        hook("denied with a user", &json!([{"status": {"authenticated": false, "user": {"username": "jane"}}}])).unknown(),
        hook("empty status", &json!([{"status": {}}])).unknown(),
        hook("denied with an error", &json!([{"status": {"authenticated": false, "error": "the moon is full"}}]))
            .refused("[invalid bearer token, the moon is full]"),
        by(GROUP, "not called for other tokens", "tok-none").unknown(),
        hook("authenticated is a string", &json!([{"status": {"authenticated": "true", "user": {"username": "jane"}}}])).refused("").any_body(GO),
        hook("answer is not JSON", &json!([{"code": 200, "body": "garbage"}])).refused("").any_body(GO),
        hook("answer is empty", &json!([{"code": 200, "body": ""}])).refused("").any_body(GO),
        hook("answer is another kind", &json!([{"code": 200, "body": {"apiVersion": "v1", "kind": "Pod"}}])).refused("").any_body(GO),
        hook("answer is a Status", &json!([{"code": 200, "body": {"apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "no"}}])).refused("").any_body(GO),
        hook("answer of another version", &json!([{"apiVersion": "authentication.k8s.io/v1", "status": jane()["status"]}])).unauthorized(),
        hook("answer of no version", &json!([{"apiVersion": "", "status": jane()["status"]}])).is("jane", &[ALL]),
    ]
}

fn memory() -> Vec<Case> {
    let denied = json!({"status": {"authenticated": false}});
    let failed = json!({"status": {"authenticated": false, "error": "the moon is full"}});
    let call = |case: Case, calls: usize| case.is("jane", &[&format!("call {calls}"), ALL]);
    // Rejected at first; the next request causes the given call.
    let refused_once = |name: &str, first: Value, calls: usize| {
        call(hook(name, &json!([first, counted()])).unauthorized().then_by("t"), calls)
    };
    let status = |code: u16| json!({"code": code, "body": ""});
    let mut cases = vec![
        call(call(hook("success is remembered", &json!([counted()])), 1).then_by("t"), 1),
        hook("denial is remembered", &json!([denied, jane()])).unauthorized().then_by("t").unauthorized(),
        call(
            hook("flags denial is not remembered", &json!([denied, counted()]))
                .by_flags()
                .unauthorized()
                .then_by("t"),
            2,
        ),
        refused_once("an error is not remembered", failed, 2),
        call(hook("500 is tried again", &json!([status(500), status(500), status(500), counted()])), 4),
        call(
            hook(
                "500 is tried five times",
                &json!([status(500), status(500), status(500), status(500), status(500), counted()]),
            )
            .unauthorized()
            .then_by("t"),
            6,
        ),
        call(hook("502 is tried again", &json!([status(502), counted()])), 2),
        call(hook("504 is tried again", &json!([status(504), counted()])), 2),
        call(hook("429 is tried again", &json!([status(429), counted()])), 2),
        call(
            hook(
                "429 with a hint is tried again",
                &json!([{"code": 429, "headers": {"Retry-After": "1"}, "body": ""}, counted()]),
            ),
            2,
        ),
        call(
            hook(
                "503 with a hint is tried again",
                &json!([{"code": 503, "headers": {"Retry-After": "1"}, "body": ""}, counted()]),
            ),
            2,
        ),
    ];
    for code in [503, 400, 401, 403, 404, 409, 422] {
        cases.push(refused_once(&format!("{code} is not tried again"), status(code), 2));
    }
    for code in [301, 302, 303] {
        let moved = json!({"code": code, "headers": {"Location": "/webhook/elsewhere"}, "body": ""});
        cases.push(hook(&format!("redirect {code}"), &json!([moved, counted()])).unauthorized());
    }
    let moved = json!({"code": 307, "headers": {"Location": "/webhook/elsewhere"}, "body": ""});
    cases.push(call(hook("redirect 307", &json!([moved, counted()])), 2).declared("D-redirects", 401));
    cases
}

/// The webhook's response counts, even if other authenticators have rejected the token.
fn after_others() -> Vec<Case> {
    let hooked = |issuer: &str| token(issuer).with(json!({"hook": [jane()]}));
    vec![
        by(GROUP, "after an unknown issuer", hooked("nobody")).accepted("jane", &[ALL]),
        by(GROUP, "after an issuer that refuses", hooked("plain").with(json!({"exp": "{now-60}"}))).accepted("jane", &[ALL]),
        by(GROUP, "after an issuer that is down", hooked("down")).accepted("jane", &[ALL]),
        by(GROUP, "not after an issuer that accepts", hooked("plain").with(json!({"sub": "joan"}))).accepted("plain:joan", &[ALL]),
        by(GROUP, "after a service account that is refused",
            super::service_accounts::robot().with(json!({"exp": "{now-600}", "hook": [jane()]}))).accepted("jane", &[ALL]),
        by(GROUP, "its error is reported with those of others",
            hooked("plain").with(json!({"exp": 1, "hook": [{"status": {"authenticated": false, "error": "the moon is full"}}]})))
            .refused("oidc: verify token: oidc: token is expired").contains("the moon is full"),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    [users(), audiences(), refusals(), memory(), after_others()].concat()
}
