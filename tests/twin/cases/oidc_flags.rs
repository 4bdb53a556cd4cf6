//! JSON Web Tokens of the issuer in `--oidc-*` flags.

use serde_json::{Value, json};

use super::credentials::{ALL, by};
use crate::authenticators::token;
use crate::case::Case;
use crate::mint::Jwt;

const GROUP: &str = "oidc_flags";
const JANE: &str = "{issuer}/flags#jane";

fn jane(claims: Value) -> Jwt {
    token("flags").with(json!({"hd": "example.com", "tier": "gold"})).with(claims)
}

fn valid(name: &str, jwt: Jwt, groups: &[&str]) -> Case {
    by(GROUP, name, jwt).by_flags().accepted(JANE, &[groups, &[ALL]].concat())
}

fn rejected(name: &str, jwt: Jwt, reason: &str) -> Case {
    by(GROUP, name, jwt).by_flags().refused(reason)
}

pub(crate) fn cases() -> Vec<Case> {
    let algorithm = |got: &str| {
        format!(
            r#"oidc: verify token: oidc: id token signed with unsupported algorithm, expected ["RS256"] got "{got}""#
        )
    };
    let unknown = |name: &str, jwt: Jwt| by(GROUP, name, jwt).by_flags().unknown();
    vec![
        valid("the issuer is the prefix", jane(json!({})), &[]),
        valid("groups", jane(json!({"groups": ["a", "b"]})), &["oidc:a", "oidc:b"]),
        valid("one group", jane(json!({"groups": "a"})), &["oidc:a"]),
        valid("token id", jane(json!({"jti": "t-1"})), &[]).contains("JTI=t-1"),
        valid("audience among others", jane(json!({"aud": ["x", "portcullis"]})), &[]),
        valid("email does not matter", jane(json!({"email": "j@example.com", "email_verified": false})), &[]),
        valid("no key id", jane(json!({})).head("kid", Value::Null), &[]),
        by(GROUP, "system names get the prefix", jane(json!({"sub": "system:admin"})))
            .by_flags()
            .accepted("{issuer}/flags#system:admin", &[ALL]),
        by(GROUP, "empty user name", jane(json!({"sub": ""}))).by_flags().accepted("{issuer}/flags#", &[ALL]),
        rejected("RS384", jane(json!({})).alg("RS384"), &algorithm("RS384")),
        rejected("PS256", jane(json!({})).alg("PS256"), &algorithm("PS256")),
        rejected("ES256", jane(json!({})).key("issuer-p256"), &algorithm("ES256")),
        rejected("alg none", jane(json!({})).alg("none"), &algorithm("none")),
        rejected("HS256 with the public key", jane(json!({})).alg("HS256"), &algorithm("HS256")),
        rejected("strange key", jane(json!({})).key("strange"), "failed to verify id token signature"),
        rejected("expired", jane(json!({"exp": "{now-25}"})), "oidc: token is expired"),
        rejected(
            "foreign audience",
            jane(json!({"aud": "other"})),
            r#"oidc: expected audience "portcullis" got ["other"]"#,
        ),
        rejected(
            "first required claim missing",
            jane(json!({})).without("hd"),
            "oidc: required claim hd not present in ID token",
        ),
        rejected(
            "second required claim missing",
            jane(json!({})).without("tier"),
            "oidc: required claim tier not present in ID token",
        ),
        rejected(
            "required claim differs",
            jane(json!({"tier": "silver"})),
            "oidc: required claim tier value does not match. Got = silver, want = gold",
        ),
        rejected(
            "no user name",
            jane(json!({})).without("sub"),
            r#"oidc: parse username claims "sub": claim not present"#,
        ),
        unknown("issuer of the other servers", jane(json!({"iss": "{issuer}/plain"}))),
        unknown("issuer with a slash", jane(json!({"iss": "{issuer}/flags/"}))),
    ]
}
