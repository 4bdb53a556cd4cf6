//! Errors of claim rules, mappings and user rules, without those of their expressions.

use portcullis_cel::{Environment, Expression, ResultType};
use portcullis_openid::jwt::keys::JwsAlgorithm;
use serde_json::{Value, json};

use super::{Case, authenticator, check, overlay, read};
use crate::authn::oidc::settings::{
    AttributeMapping, ClaimRule, ExpressionRule, IssuerSettings, JwtAuthenticator,
};

#[test]
fn claim_rules_are_judged() {
    let cases: &[Case<'_>] = &[
        (
            "nothing",
            json!([{}]),
            "jwt[0].claimValidationRules[0]: Required value: claim or expression is required",
        ),
        (
            "both",
            json!([{"claim": "claim", "expression": "expression"}]),
            "jwt[0].claimValidationRules[0]: Invalid value: \"claim\": claim and expression can't both be set",
        ),
        (
            "a message of a claim",
            json!([{"claim": "claim", "message": "message"}]),
            "jwt[0].claimValidationRules[0].message: Invalid value: \"message\": may not be specified when claim is set",
        ),
        (
            "a value of an expression",
            json!([{"expression": "claims.foo == 'bar'", "requiredValue": "value"}]),
            "jwt[0].claimValidationRules[0].requiredValue: Invalid value: \"value\": may not be specified when \
             expression is set",
        ),
        (
            "a claim twice",
            json!([{"claim": "claim"}, {"claim": "claim", "requiredValue": "other"}]),
            "jwt[0].claimValidationRules[1].claim: Duplicate value: \"claim\"",
        ),
        (
            "an expression twice",
            json!([{"expression": "claims.foo == 'bar'"}, {"expression": "claims.foo == 'bar'"}]),
            "jwt[0].claimValidationRules[1].expression: Duplicate value: \"claims.foo == 'bar'\"",
        ),
        ("an expression", json!([{"expression": "claims.foo == 'bar'", "message": "no"}]), ""),
        (
            "several",
            json!([
                {"claim": "claim1", "requiredValue": "value1"},
                {"claim": "claim2", "requiredValue": "claims.email_verified"},
                {"expression": "has(claims.email_verified)"},
            ]),
            "",
        ),
    ];
    check(&["claimValidationRules"], cases);
}

#[test]
fn user_rules_are_judged() {
    let cases: &[Case<'_>] = &[
        ("nothing", json!([{}]), "jwt[0].userValidationRules[0].expression: Required value"),
        (
            "an expression twice",
            json!([{"expression": "user.username == 'foo'"}, {"expression": "user.username == 'foo'"}]),
            "jwt[0].userValidationRules[1].expression: Duplicate value: \"user.username == 'foo'\"",
        ),
        (
            "several",
            json!([
                {"expression": "user.username == 'foo'"},
                {"expression": "!user.username.startsWith('system:')", "message": "names of the system are its own"},
            ]),
            "",
        ),
    ];
    check(&["userValidationRules"], cases);
}

#[test]
fn mappings_are_judged() {
    let both = "Invalid value: \"\": claim and expression can't both be set";
    let prefix = "Invalid value: \"prefix\": may not be specified when expression is set";
    let no_prefix = "Required value: prefix is required when claim is set. It can be set to an empty string to disable \
                     prefixing";
    let cases: &[(&str, &str, Value, &str)] = &[
        ("username", "", json!({"claim": "claim", "expression": "claims.username"}), both),
        ("username", "", json!({}), "Required value: claim or expression is required"),
        ("username", "", json!({"prefix": "prefix"}), "Required value: claim or expression is required"),
        ("username", ".prefix", json!({"expression": "claims.username", "prefix": "prefix"}), prefix),
        ("username", ".prefix", json!({"claim": "claim"}), no_prefix),
        ("username", "", json!({"claim": "claim", "prefix": ""}), ""),
        ("groups", "", json!({"claim": "claim", "expression": "claims.groups"}), both),
        ("groups", "", json!({}), ""),
        ("groups", ".prefix", json!({"expression": "claims.groups", "prefix": "prefix"}), prefix),
        ("groups", ".prefix", json!({"claim": "claim"}), no_prefix),
        ("groups", "", json!({"claim": "claim", "prefix": ""}), ""),
        ("uid", "", json!({"claim": "claim", "expression": "claims.uid"}), both),
        ("uid", "", json!({"claim": "claim"}), ""),
        ("uid", "", json!({"expression": "claims.uid"}), ""),
    ];
    for (part, field, given, expected) in cases {
        let mut mapping =
            if *part == "username" { json!({"claim": null, "prefix": null}) } else { json!({}) };
        overlay(&mut mapping, given);
        let expected = match *expected {
            "" => String::new(),
            expected => format!("jwt[0].claimMappings.{part}{field}: {expected}"),
        };
        check(&["claimMappings", part], &[(&format!("{part} {given}"), mapping, &expected)]);
    }
}

#[test]
fn keys_of_extra_attributes_are_judged() {
    let reserved = "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use";
    let cases: &[(&str, &str)] = &[
        ("", "Required value"),
        ("foo", "Invalid value: \"foo\": must be a domain-prefixed path (such as \"acme.io/foo\")"),
        ("/foo", "Invalid value: \"/foo\": must be a domain-prefixed path (such as \"acme.io/foo\")"),
        (
            "example.org/",
            "Invalid value: \"example.org/\": must be a domain-prefixed path (such as \"acme.io/foo\")",
        ),
        ("example.org/Foo", "Invalid value: \"example.org/Foo\": must be lowercase"),
        ("example.org/a/b~c:d%41", ""),
        (
            "-a.org/foo",
            "Invalid value: \"-a.org\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
             characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex \
             used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        ),
        (
            "a.org/f o",
            "Invalid value: \"f o\": Invalid path (regex used for validation is \
             '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')",
        ),
        ("k8s.io/foo", reserved),
        ("example.k8s.io/foo", reserved),
        ("kubernetes.io/foo", reserved),
        ("example.kubernetes.io/foo", reserved),
        ("ak8s.io/foo", ""),
        ("example.ak8s.io/foo", ""),
        ("bkubernetes.io/foo", ""),
        ("example.bkubernetes.io/foo", ""),
        ("example.org/k8s.io/foo", ""),
    ];
    for (key, expected) in cases {
        let expected = match *expected {
            "" => String::new(),
            error if error == reserved => {
                format!("jwt[0].claimMappings.extra[0].key: Invalid value: \"{key}\": {reserved}")
            }
            error => format!("jwt[0].claimMappings.extra[0].key: {error}"),
        };
        let given = json!([{"key": key, "valueExpression": "claims.extra"}]);
        check(&["claimMappings", "extra"], &[(key, given, &expected)]);
    }
    let long = format!("{}/foo", ["a".repeat(63).as_str(); 4].join("."));
    let error = format!(
        "jwt[0].claimMappings.extra[0].key: Invalid value: \"{}\": must be no more than 253 bytes",
        long.trim_end_matches("/foo")
    );
    let given = |keys: &[&str], value: &str| -> Value {
        keys.iter().map(|key| json!({"key": key, "valueExpression": value})).collect()
    };
    let cases: &[Case<'_>] = &[
        ("a long domain", given(&[&long], "claims.extra"), &error),
        (
            "one twice",
            given(&["example.org/foo", "example.org/foo"], "claims.extra"),
            "jwt[0].claimMappings.extra[1].key: Duplicate value: \"example.org/foo\"",
        ),
        (
            "no value",
            given(&["example.org/foo"], ""),
            "jwt[0].claimMappings.extra[0].valueExpression: Required value",
        ),
    ];
    check(&["claimMappings", "extra"], cases);
}

#[test]
fn every_field_of_an_issuer_reaches_the_settings() {
    let given = authenticator(&json!({
        "issuer": {
            "discoveryURL": "https://inside/discovery",
            "audiences": ["a", "b"],
            "audienceMatchPolicy": "MatchAny",
        },
        "claimValidationRules": [
            {"claim": "hd", "requiredValue": "example.com"},
            {"claim": "empty"},
            {"expression": "claims.ok == true", "message": "not ok"},
        ],
        "claimMappings": {
            "username": {"claim": "name", "prefix": "oidc:"},
            "groups": {"expression": "claims.roles"},
            "uid": {"claim": "id"},
            "extra": [{"key": "example.org/team", "valueExpression": "claims.team"}],
        },
        "userValidationRules": [{"expression": "user.username != 'x'"}],
    }));
    let compiled = |text: &str, environment, result| Expression::compile(text, environment, result).unwrap();
    let expected = JwtAuthenticator {
        issuer: IssuerSettings {
            url: "https://issuer-url".to_owned(),
            discovery_url: Some("https://inside/discovery".to_owned()),
            certificate_authority: None,
            audiences: vec!["a".to_owned(), "b".to_owned()],
        },
        algorithms: JwsAlgorithm::ALL.to_vec(),
        claim_rules: vec![
            ClaimRule::Required { claim: "hd".to_owned(), value: "example.com".to_owned() },
            ClaimRule::Required { claim: "empty".to_owned(), value: String::new() },
            ClaimRule::Expression(ExpressionRule {
                expression: compiled("claims.ok == true", Environment::CLAIMS, ResultType::Bool),
                message: "not ok".to_owned(),
            }),
        ],
        username: AttributeMapping::Claim { name: "name".to_owned(), prefix: "oidc:".to_owned() },
        groups: Some(AttributeMapping::Expression(compiled(
            "claims.roles",
            Environment::CLAIMS,
            ResultType::Any,
        ))),
        uid: Some(AttributeMapping::Claim { name: "id".to_owned(), prefix: String::new() }),
        extra: vec![(
            "example.org/team".to_owned(),
            compiled("claims.team", Environment::CLAIMS, ResultType::Any),
        )],
        user_rules: vec![ExpressionRule {
            expression: compiled("user.username != 'x'", Environment::USER, ResultType::Bool),
            message: String::new(),
        }],
    };
    let given = read(&json!({"jwt": [given]}), &[]).unwrap();
    assert_eq!(given, [expected]);
}
