//! Compares errors with kube-apiserver's. The cases are those of
//! `k8s.io/apiserver/pkg/apis/apiserver/validation/validation_test.go`, except for feature gates.

mod cel;
mod decode;
mod issuer;
mod rules;

use portcullis_cel::CelGo;
use portcullis_openid::jwt::keys::JwsAlgorithm;
use serde_json::{Value, json};

use super::AuthenticationConfiguration;
use super::validation::validate;
use crate::authn::oidc::settings::JwtAuthenticator;
use crate::config::apiserver_config::decode::decode;

/// The name of the case, the input, and the expected error; empty if the input is valid.
type Case<'a> = (&'a str, Value, &'a str);

/// A valid issuer with `changes` applied.
fn authenticator(changes: &Value) -> Value {
    let mut authenticator = json!({
        "issuer": {"url": "https://issuer-url", "audiences": ["audience"]},
        "claimMappings": {"username": {"claim": "sub", "prefix": "prefix"}},
    });
    overlay(&mut authenticator, changes);
    authenticator
}

/// Merges maps key by key; `null` removes a key.
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
    let (configuration, _) = decode::<AuthenticationConfiguration>(document.to_string().as_bytes())
        .map_err(|error| error.problem)?;
    let disallowed: Vec<String> = disallowed.iter().map(|&issuer| issuer.to_owned()).collect();
    validate(&configuration, &disallowed, &JwsAlgorithm::ALL, CelGo::REFERENCE).map_err(|errors| {
        assert!(errors.iter().all(|error| !error.fix.is_empty()), "every error needs a fix: {errors:?}");
        // apimachinery: pkg/util/errors/errors.go, aggregate.Error
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        if let [one] = texts.as_slice() { one.clone() } else { format!("[{}]", texts.join(", ")) }
    })
}

/// The error of an issuer; empty if it is valid.
fn error_of(changes: &Value, disallowed: &[&str]) -> String {
    read(&json!({"jwt": [authenticator(changes)]}), disallowed).err().unwrap_or_default()
}

/// Applies each case to an issuer below these keys, and compares the error. Reports all that differ.
fn check(below: &[&str], cases: &[Case<'_>]) {
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|(name, given, expected)| {
            let changes = below.iter().rev().fold(given.clone(), |inner, key| json!({*key: inner}));
            let actual = error_of(&changes, &[]);
            (actual != *expected).then(|| format!("{name}:\n  actual   {actual}\n  expected {expected}"))
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
    let disabled = "anonymous.conditions: Invalid value: [{\"Path\":\"/a\\\"\\u003c\"}]: enabled should be set to true \
                    when conditions are defined";
    let discovery = "https://discovery-url/.well-known/openid-configuration";
    let cases: &[Case<'_>] = &[
        ("no issuer", json!({}), ""),
        ("an empty list", json!({"jwt": []}), ""),
        ("nothing wrong", two(json!({}), json!({"issuer": {"url": "https://other"}})), ""),
        ("the maximum number of issuers", many(64), ""),
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
        ("conditions and enabled: false", conditions(json!(false)), disabled),
        ("conditions without enabled", conditions(Value::Null), disabled),
    ];
    for (name, fields, expected) in cases {
        assert_eq!(read(fields, &[]).err().unwrap_or_default(), *expected, "{name}");
    }
}

#[test]
fn an_issuer_of_service_account_tokens_is_disallowed() {
    assert_eq!(
        error_of(&json!({}), &["b", "a", "https://issuer-url", "c", "a"]),
        "jwt[0].issuer.url: Invalid value: \"https://issuer-url\": URL must not overlap with disallowed issuers: \
         [a b c https://issuer-url]"
    );
    let found_at = json!({"issuer": {"url": "https://other", "discoveryURL": "https://issuer-url"}});
    assert_eq!(error_of(&found_at, &["https://issuer-url"]), "", "a discovery URL is not an issuer URL");
    assert_eq!(error_of(&json!({}), &["https://issuer-url/"]), "", "issuers are compared as strings");
}
