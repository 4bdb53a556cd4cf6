//! Errors of expressions, and of user names from unverified email addresses.

use portcullis_go::quote::Quoted;
use serde_json::{Value, json};

use super::{Case, check, overlay};

const UNVERIFIED: &str = "claims.email_verified must be used in claimMappings.username.expression or \
                          claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when \
                          claims.email is used in claimMappings.username.expression";

/// Changes that take the user name from this expression.
fn named(expression: &str, rest: &Value) -> Value {
    let mut changes =
        json!({"claimMappings": {"username": {"claim": null, "prefix": null, "expression": expression}}});
    overlay(&mut changes, rest);
    changes
}

#[test]
fn addresses_are_names_only_if_verified() {
    let extra = |value: &str| json!({"claimMappings": {"extra": [{"key": "panda.io/foo", "valueExpression": value}]}});
    let rule = |expression: &str| json!({"claimValidationRules": [{"expression": expression}]});
    let joined = "['yay', string(claims.email), 'panda'].join(' ')";
    // The expression of the user name, further changes, and whether the result is valid.
    let cases: &[(&str, Value, bool)] = &[
        ("claims.email", json!({}), false),
        ("claims.email_", json!({}), true),
        (joined, json!({}), false),
        ("claims.?email", json!({}), false),
        ("{claims.?email: \"panda\"}", json!({}), false),
        ("{\"fancy\": claims.?email}", json!({}), false),
        ("[\"a\"].map(i, i + claims.email)", json!({}), false),
        (joined, rule("string(claims.email_verified) == \"panda\""), true),
        (joined, extra("claims.email_verified.upperAscii()"), true),
        (joined, extra("claims.?email_verified"), true),
        ("claims.?email_verified.orValue(true) ? claims.email : claims.sub", json!({}), true),
        ("claims.?email_verified.orValue(false) ? claims.email : claims.sub", json!({}), true),
        ("{claims.?email: \"panda\"}", rule("claims.?email_verified.orValue(true) == true"), true),
        ("has(claims.email) ? claims.email : claims.sub", extra("claims.extra"), false),
        ("claims.email.trim()", extra("claims.extra"), false),
        ("claims.email", extra("claims.email_verified"), true),
        (
            "claims.email",
            extra("has(claims.email_verified) ? string(claims.email_verified) : \"false\""),
            true,
        ),
        (
            "claims.email",
            extra("has(claims.email_verified_) ? string(claims.email_verified_) : \"false\""),
            false,
        ),
        ("claims.email", rule("has(claims.email_verified)"), true),
        ("claims.email", rule("has(claims.email_verified_)"), false),
        (
            "claims.email",
            json!({"claimValidationRules": [{"claim": "a", "requiredValue": "claims.email_verified"}]}),
            false,
        ),
        ("claims.other.claims.email", json!({}), true),
        ("claims['email']", json!({}), true),
        ("claims.username", extra("claims.extra"), true),
    ];
    for (name, rest, is_valid) in cases {
        let expected = if *is_valid {
            String::new()
        } else {
            let value = Quoted(name);
            format!("jwt[0].claimMappings.username.expression: Invalid value: {value}: {UNVERIFIED}")
        };
        check(&[], &[(name, named(name, rest), &expected)]);
    }
}

#[test]
fn expressions_are_compiled() {
    let undeclared = "Invalid value: \"foo.bar\": compilation failed: ERROR: <input>:1:1: undeclared reference to \
                      'foo' (in container '')\n | foo.bar\n | ^";
    let rules = |expression: &str| json!([{"expression": expression}]);
    let mapping = |part: &str, expression: &str| match part {
        "username" => named(expression, &json!({})),
        part => json!({"claimMappings": {part: {"expression": expression}}}),
    };
    let extra =
        json!({"claimMappings": {"extra": [{"key": "example.org/foo", "valueExpression": "foo.bar"}]}});
    let cases: &[(&str, Value, &str)] = &[
        ("claimMappings.username.expression", mapping("username", "foo.bar"), undeclared),
        ("claimMappings.groups.expression", mapping("groups", "foo.bar"), undeclared),
        ("claimMappings.uid.expression", mapping("uid", "foo.bar"), undeclared),
        ("claimMappings.extra[0].valueExpression", extra, undeclared),
        ("claimValidationRules[0].expression", json!({"claimValidationRules": rules("foo.bar")}), undeclared),
        ("userValidationRules[0].expression", json!({"userValidationRules": rules("foo.bar")}), undeclared),
        (
            "claimValidationRules[0].expression",
            json!({"claimValidationRules": rules("claims.a == 1 &&\n\t'e' in foo")}),
            "Invalid value: \"claims.a == 1 &&\\n\\t'e' in foo\": compilation failed: ERROR: <input>:2:9: undeclared \
             reference to 'foo' (in container '')\n |  'e' in foo\n | ........^",
        ),
        (
            "claimValidationRules[0].expression",
            json!({"claimValidationRules": rules("claims.foo")}),
            "Invalid value: \"claims.foo\": must evaluate to bool",
        ),
        (
            "userValidationRules[0].expression",
            json!({"userValidationRules": rules("user.username")}),
            "Invalid value: \"user.username\": must evaluate to bool",
        ),
    ];
    for (field, given, error) in cases {
        check(&[], &[(field, given.clone(), &format!("jwt[0].{field}: {error}"))]);
    }
}

#[test]
fn an_invalid_mapping_gives_one_error() {
    let mut changes = named("claims.email", &json!({}));
    overlay(&mut changes["claimMappings"]["username"], &json!({"prefix": "a"}));
    let error = "jwt[0].claimMappings.username.prefix: Invalid value: \"a\": may not be specified when expression is set";
    check(&[], &[("a prefix of an expression", changes, error)]);
}

/// An invalid rule verifies no address.
#[test]
fn an_expression_that_does_not_compile_does_not_count() {
    let rule = json!({"claimValidationRules": [{"expression": "claims.?email_verified.orValue(true)"}]});
    let name = "{claims.?email: \"panda\"}";
    let expected = format!(
        "[jwt[0].claimValidationRules[0].expression: Invalid value: \"claims.?email_verified.orValue(true)\": must \
         evaluate to bool, jwt[0].claimMappings.username.expression: Invalid value: \"{{claims.?email: \
         \\\"panda\\\"}}\": {UNVERIFIED}]"
    );
    let cases: &[Case<'_>] = &[("a rule", named(name, &rule), &expected)];
    check(&[], cases);
}
