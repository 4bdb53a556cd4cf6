//! Member names in other cases, duplicate members, and headers, compared with Go's JSON libraries.

use serde_json::{Value, json};

use super::support::{FakeWeb, RSA, authenticate, authenticator, claim, settings};

/// Whether a token is accepted; `members` follow the members of a valid payload.
async fn is_accepted(header: &Value, members: &str) -> bool {
    let mut settings = settings();
    settings.groups = Some(claim("groups", ""));
    let payload = format!(
        r#"{{"iss": "https://issuer.example", "username": "jane", "aud": "my-client", "exp": 1700003600{members}}}"#
    );
    let token = RSA.token_of(header, payload.as_bytes());
    let authenticator = authenticator(settings, &FakeWeb::of_issuer(&[RSA.jwk("key")])).await;
    matches!(authenticate(&*authenticator, &token).await, Ok(Some(_)))
}

async fn check_members(cases: &[(&str, bool)]) {
    let mut wrong = Vec::new();
    for (members, expected) in cases {
        if is_accepted(&json!({"alg": "RS256", "kid": "key"}), &format!(", {members}")).await != *expected {
            wrong.push(format!("{members}: not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn the_last_spelling_of_a_known_claim_counts() {
    check_members(&[
        (r#""AUD": "other""#, false),
        (r#""aud": "other", "AUD": "my-client""#, true),
        (r#""AUD": "my-client", "aud": "other""#, false),
        (r#""Exp": 1600000000"#, false),
        (r#""exp": 1600000000, "EXP": 1700003600"#, true),
        (r#""NBF": 1700003000"#, false),
        (r#""nbf": 1700003000, "NBF": null"#, true),
        (r#""ISS": "https://other.example""#, false),
        (r#""iss": "https://other.example", "i\u017fs": "https://issuer.example""#, true),
        (r#""SUB": 5"#, false),
        (r#""\u017fub": 5"#, false),
        (r#""Nonce": []"#, false),
        (r#""AT_HASH": 5"#, false),
        (r#""USERNAME": 5"#, true),
        // Every occurrence must have the right type, and null leaves a string unchanged.
        (r#""sub": 5, "sub": "jane""#, false),
        (r#""iss": 5, "iss": "https://issuer.example""#, false),
        (r#""iss": null"#, true),
        (r#""exp": null, "exp": 1700003600"#, false),
        (r#""aud": null"#, false),
    ])
    .await;
}

#[tokio::test]
async fn distributed_claims_without_a_source_are_refused() {
    check_members(&[
        (r#""_claim_names": {}"#, false),
        (r#""_claim_names": null"#, false),
        (r#""_claim_names": {}, "groups": []"#, true),
        (r#""_claim_names": {}, "_claim_sources": {}"#, true),
        (r#""_claim_names": null, "_claim_sources": null"#, true),
        (r#""_CLAIM_NAMES": {}"#, true),
        (r#""_CLAIM_NAMES": {"groups": "s"}"#, false),
        (r#""_claim_names": {"groups": "s"}, "_claim_sources": {"s": {}}"#, true),
        (r#""_claim_names": {"groups": "s"}, "_claim_sources": {"s": {"ENDPOINT": "https://issuer.example/no"}}"#, false),
        (
            r#""_claim_names": {"groups": "s"}, "_claim_sources": {"s": {"endpoint": "https://issuer.example/no", "ENDPOINT": ""}}"#,
            true,
        ),
        (r#""_claim_names": {"groups": "s"}, "_CLAIM_SOURCES": {"s": {}}"#, false),
        (r#""_claim_names": {"a": 5, "a": "s"}, "_claim_sources": {"s": {}}"#, false),
        (r#""_claim_names": {"a": "s"}, "_claim_sources": {"s": {"JWT": 5}}"#, false),
        (r#""groups": [], "_claim_names": {"a": "s"}, "_claim_sources": {"s": {"JWT": 5}}"#, true),
        // A member of the wrong type fails even if a duplicate follows.
        (r#""_claim_names": {}, "_claim_sources": {"s": {"JWT": 5}, "s": {}}"#, false),
        (r#""_claim_names": {}, "_claim_sources": {"s": {}, "s": {"JWT": 5}}"#, false),
        (r#""_claim_names": {}, "_claim_sources": {"s": {"JWT": 5}}, "_claim_sources": {"s": {}}"#, true),
    ])
    .await;
}

/// Names that `serde_json` uses internally have no special meaning.
#[tokio::test]
async fn internal_names_of_serde_json_are_ordinary_members() {
    check_members(&[
        (r#""groups": ["admins"]"#, true),
        (r#""groups": {"$serde_json::private::RawValue": "[\"admins\"]"}"#, false),
        (r#""groups": [{"$serde_json::private::RawValue": "\"admins\""}]"#, false),
        (r#""groups": {"$serde_json::private::Number": "5"}"#, false),
        (r#""aud": {"$serde_json::private::RawValue": "\"my-client\""}"#, false),
        (r#""username": {"$serde_json::private::RawValue": "\"root\""}"#, false),
        (r#""exp": {"$serde_json::private::RawValue": "1700003600"}"#, false),
        (r#""other": {"$serde_json::private::RawValue": "no JSON"}"#, true),
    ])
    .await;
}

#[tokio::test]
async fn headers_that_go_cannot_read_are_refused() {
    let with = |name: &str, value: Value| json!({"alg": "RS256", "kid": "key", name: value});
    let cases = [
        (with("nonce", json!("a")), true),
        (with("nonce", Value::Null), true),
        (with("nonce", json!(5)), false),
        (with("x5c", Value::Null), true),
        (with("x5c", json!([])), true),
        (with("x5c", json!("e30=")), false),
        (with("x5c", json!(["e30="])), false),
        (with("jwk", Value::Null), true),
        (with("jwk", json!({"kty": "AKP"})), false),
        (with("jwk", RSA.jwk("key")), false),
        (with("other", json!({"a": [5]})), true),
    ];
    for (header, expected) in cases {
        assert_eq!(is_accepted(&header, "").await, expected, "{header}");
    }
}
