//! What kube-apiserver says of a file, said here too. The rows are those of
//! `k8s.io/apiserver/pkg/apis/apiserver/validation/validation_test.go`, but for features that can be turned off.

mod cel;
mod decode;
mod issuer;
mod rules;

use serde_json::{Value, json};

use super::decode::decode;
use super::validation::validate;
use crate::authn::jwt::keys::Algorithm;
use crate::authn::oidc::settings::JwtAuthenticator;

/// What it is; what is given; what is said, nothing if it is right.
type Case<'a> = (&'a str, Value, &'a str);

/// An issuer with nothing wrong, and `changes` laid over it.
fn authenticator(changes: &Value) -> Value {
    let mut authenticator = json!({
        "issuer": {"url": "https://issuer-url", "audiences": ["audience"]},
        "claimMappings": {"username": {"claim": "sub", "prefix": "prefix"}},
    });
    overlay(&mut authenticator, changes);
    authenticator
}

/// Maps are laid over each other key by key; `null` removes.
fn overlay(into: &mut Value, changes: &Value) {
    match (into, changes) {
        (Value::Object(into), Value::Object(changes)) => {
            for (key, change) in changes {
                if change.is_null() {
                    into.remove(key);
                } else {
                    overlay(into.entry(key.as_str()).or_insert(Value::Null), change);
                }
            }
        }
        (into, changes) => *into = changes.clone(),
    }
}

fn read(fields: &Value, disallowed: &[&str]) -> Result<Vec<JwtAuthenticator>, String> {
    let mut document =
        json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration"});
    overlay(&mut document, fields);
    let (configuration, _) = decode(document.to_string().as_bytes()).map_err(|error| error.problem)?;
    let disallowed: Vec<String> = disallowed.iter().map(|&issuer| issuer.to_owned()).collect();
    validate(&configuration, &disallowed, &Algorithm::ALL).map_err(|errors| {
        assert!(errors.iter().all(|error| !error.fix.is_empty()), "a way out of everything: {errors:?}");
        // apimachinery: pkg/util/errors/errors.go, aggregate.Error
        let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
        if let [one] = said.as_slice() { one.clone() } else { format!("[{}]", said.join(", ")) }
    })
}

/// What is said of an issuer.
fn said(changes: &Value, disallowed: &[&str]) -> String {
    read(&json!({"jwt": [authenticator(changes)]}), disallowed).err().unwrap_or_default()
}

/// Each case is laid over an issuer below these keys. All that differ are told.
fn check(below: &[&str], cases: &[Case<'_>]) {
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|(name, given, expected)| {
            let changes = below.iter().rev().fold(given.clone(), |inner, key| json!({*key: inner}));
            let said = said(&changes, &[]);
            (said != *expected).then(|| format!("{name}:\n  said     {said}\n  expected {expected}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_are_judged_as_a_whole() {
    let two = |one: Value, other: Value| json!({"jwt": [authenticator(&one), authenticator(&other)]});
    let many = |count: usize| {
        let issuers = (0..count).map(|n| authenticator(&json!({"issuer": {"url": format!("https://{n}")}})));
        json!({"jwt": issuers.collect::<Value>()})
    };
    let conditions =
        |enabled: Value| json!({"anonymous": {"enabled": enabled, "conditions": [{"path": "/a\"<"}]}});
    let disabled = "anonymous.conditions: Invalid value: [{\"Path\":\"/a\\\"<\"}]: enabled should be set to true \
                    when conditions are defined";
    let discovery = "https://discovery-url/.well-known/openid-configuration";
    let cases: &[Case<'_>] = &[
        ("no issuer", json!({}), ""),
        ("an empty list", json!({"jwt": []}), ""),
        ("nothing wrong", two(json!({}), json!({"issuer": {"url": "https://other"}})), ""),
        ("as many as there may be", many(64), ""),
        ("one too many", many(65), "jwt: Too many: 65: must have at most 64 items"),
        (
            "an issuer twice",
            two(json!({}), json!({})),
            "jwt[1].issuer.url: Duplicate value: \"https://issuer-url\"",
        ),
        (
            "a discovery document twice",
            two(
                json!({"issuer": {"discoveryURL": discovery}}),
                json!({"issuer": {"discoveryURL": discovery, "url": "https://different-issuer-url"}}),
            ),
            "jwt[1].issuer.discoveryURL: Duplicate value: \
             \"https://discovery-url/.well-known/openid-configuration\"",
        ),
        (
            "mistakes in two issuers",
            two(json!({"issuer": {"url": "invalid-url"}}), json!({"issuer": {"audiences": []}})),
            "[jwt[0].issuer.url: Invalid value: \"invalid-url\": URL scheme must be https, \
             jwt[1].issuer.audiences: Required value: at least one jwt[1].issuer.audiences is required]",
        ),
        (
            "anonymous requests",
            json!({"anonymous": {"enabled": true, "conditions": [{"path": "/livez"}]}}),
            "",
        ),
        ("no anonymous requests", json!({"anonymous": {"enabled": false}}), ""),
        ("conditions of nothing", conditions(json!(false)), disabled),
        ("conditions, and not said whether", conditions(Value::Null), disabled),
    ];
    for (name, fields, expected) in cases {
        assert_eq!(read(fields, &[]).err().unwrap_or_default(), *expected, "{name}");
    }
}

#[test]
fn an_issuer_of_service_account_tokens_is_nobody_elses() {
    assert_eq!(
        said(&json!({}), &["b", "a", "https://issuer-url", "c", "a"]),
        "jwt[0].issuer.url: Invalid value: \"https://issuer-url\": URL must not overlap with disallowed issuers: \
         [a b c https://issuer-url]"
    );
    let found_at = json!({"issuer": {"url": "https://other", "discoveryURL": "https://issuer-url"}});
    assert_eq!(said(&found_at, &["https://issuer-url"]), "", "a discovery document is no issuer");
    assert_eq!(said(&json!({}), &["https://issuer-url/"]), "", "another text is another issuer");
}
