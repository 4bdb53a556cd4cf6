//! JSON Web Tokens of the issuers in an `AuthenticationConfiguration`: signatures, times, audiences, and claims without
//! expressions.

use serde_json::{Value, json};

use super::credentials::{ALL, GO, by};
use crate::authenticators::token;
use crate::case::{BOTH, Case};
use crate::mint::Jwt;
use crate::outside::MOVED;

const GROUP: &str = "oidc";

/// Expects the user jane without groups.
fn valid(name: &str, jwt: Jwt) -> Case {
    by(GROUP, name, jwt).accepted("plain:jane", &[ALL])
}

fn rejected(name: &str, jwt: Jwt, reason: &str) -> Case {
    by(GROUP, name, jwt).refused(reason)
}

fn plain() -> Jwt {
    token("plain")
}

fn signatures() -> Vec<Case> {
    let unsigned = "failed to verify signature: failed to verify id token signature";
    let algorithm = "oidc: verify token: oidc: id token signed with unsupported algorithm, expected [";
    let crypto = "oidc: verify token: ";
    vec![
        valid("good", plain()).only(BOTH).lacks(r#""uid""#).lacks(r#""extra""#),
        valid("RS384", plain().alg("RS384")),
        valid("RS512", plain().alg("RS512")),
        valid("PS256", plain().alg("PS256")),
        valid("PS384", plain().alg("PS384")),
        valid("PS512", plain().alg("PS512")),
        valid("ES256", plain().key("issuer-p256")),
        valid("ES384", plain().key("issuer-p384")),
        valid("ES512", plain().key("issuer-p521")),
        valid("second RSA key", plain().key("issuer-rsa2")),
        valid("no key id", plain().key("issuer-rsa2").head("kid", Value::Null)),
        valid("empty key id", plain().head("kid", json!(""))),
        valid("no key id ES384", plain().key("issuer-p384").head("kid", Value::Null)),
        rejected("EdDSA", plain().key("issuer-ed25519"), algorithm),
        rejected("HS256 with the public key", plain().alg("HS256"), algorithm),
        rejected("alg none", plain().alg("none"), algorithm),
        rejected("alg in lower case", plain().alg("rs256"), algorithm),
        rejected("no alg", plain().head("alg", Value::Null), ""),
        rejected("strange key", plain().key("strange"), unsigned),
        rejected(
            "strange key with a known key id",
            plain().key("strange").head("kid", json!("{kid:issuer-rsa}")),
            unsigned,
        ),
        rejected("strange key without a key id", plain().key("strange").head("kid", Value::Null), unsigned),
        rejected("key id of another key", plain().head("kid", json!("{kid:issuer-rsa2}")), unsigned),
        rejected(
            "key id of a key of another type",
            plain().head("kid", json!("{kid:issuer-p256}")),
            unsigned,
        ),
        rejected("key of service accounts", plain().key("accounts"), unsigned),
        rejected("ES256 label on an RSA key", plain().alg("ES256"), unsigned),
        rejected("RS256 label on an ECDSA key", plain().key("issuer-p256").alg("RS256"), unsigned),
        rejected(
            "payload changed",
            plain().twist(|text| {
                let parts: Vec<&str> = text.split('.').collect();
                let payload = parts[1];
                let changed = if payload.ends_with('A') { "B" } else { "A" };
                format!("{}.{}{changed}.{}", parts[0], &payload[..payload.len() - 1], parts[2])
            }),
            "",
        ),
        rejected(
            "no signature",
            plain().twist(|text| format!("{}.", text.rsplit_once('.').unwrap_or_default().0)),
            crypto,
        ),
        rejected("longer signature", plain().twist(|text| format!("{text}AAAA")), crypto),
        by(GROUP, "two parts", plain().twist(|text| text.rsplit_once('.').unwrap_or_default().0.to_owned()))
            .unknown(),
        by(GROUP, "four parts", plain().twist(|text| format!("{text}.e30"))).unknown(),
        rejected("padded signature", plain().twist(|text| format!("{text}==")), crypto).any_body(GO),
        rejected("critical header", plain().head("crit", json!(["x"])).head("x", json!(1)), crypto),
        valid("another type in the header", plain().head("typ", json!("at+jwt"))),
        valid("key in the header is not used", plain().head("jku", json!("https://evil.example/keys"))),
        by(GROUP, "rotated key", token("rotating").key("rotated")).accepted("rotating:jane", &[ALL]),
        rejected("key that never was", token("rotating").key("strange"), unsigned),
    ]
}

fn issuers() -> Vec<Case> {
    let iss = |value: &str| plain().with(json!({"iss": value}));
    let unknown = |name: &str, jwt: Jwt| by(GROUP, name, jwt).unknown();
    vec![
        unknown("unknown issuer", iss("{issuer}/nobody")),
        unknown("issuer with a slash", iss("{issuer}/plain/")),
        unknown("issuer in another case", iss("{issuer}/Plain")),
        unknown("issuer without a scheme", iss("127.0.0.1/plain")),
        unknown("empty issuer", iss("")),
        unknown("no issuer", plain().without("iss")),
        unknown("issuer is a list", plain().with(json!({"iss": ["{issuer}/plain"]}))),
        unknown("issuer in upper-case name", plain().without("iss").with(json!({"Iss": "{issuer}/nobody"}))),
        by(GROUP, "issuer that ends with a slash", token("slash/")).accepted("slash/:jane", &[ALL]),
        unknown("issuer that should end with a slash", token("slash")),
        by(GROUP, "discovery elsewhere", token(MOVED)).accepted("moved:jane", &[ALL]),
        unknown("the address of discovery is not an issuer", token("moved")),
        rejected("issuer is down", token("down"), "oidc: authenticator not initialized"),
        rejected("issuer names no keys", token("silent"), "oidc: authenticator not initialized"),
        rejected("issuer calls itself another", token("liar"), "oidc: authenticator not initialized"),
        unknown("the name that an untrusted issuer gives", iss("https://somebody-else.example")),
        rejected(
            "keys cannot be had",
            token("keyless"),
            "oidc: verify token: failed to verify signature: fetching keys",
        )
        .any_body("the words of Go's HTTP client"),
        rejected(
            "claims of another issuer",
            token("email"),
            r#"oidc: parse username claims "email": claim not present"#,
        ),
    ]
}

fn times_and_audiences() -> Vec<Case> {
    let claim = |name: &str, value: Value| plain().with(json!({name: value}));
    let aud = |value: Value| plain().with(json!({"aud": value}));
    let multi = |value: Value| token("multi").with(json!({"aud": value}));
    let by_multi = |name: &str, value: Value| by(GROUP, name, multi(value)).accepted("multi:jane", &[ALL]);
    let expired = "oidc: verify token: oidc: token is expired (Token Expiry: ";
    let early = "oidc: verify token: oidc: current time ";
    vec![
        rejected("expired", claim("exp", json!("{now-25}")), expired),
        rejected(
            "expired long ago",
            claim("exp", json!(1)),
            "oidc: token is expired (Token Expiry: 1970-01-01 00:00:01 +0000 UTC)",
        ),
        rejected("no expiry", plain().without("exp"), expired),
        rejected("expiry null", claim("exp", Value::Null), "oidc: failed to unmarshal claims").any_body(GO),
        rejected("expiry zero", claim("exp", json!(0)), expired),
        valid("expiry is a numeric string", claim("exp", json!("4000000000"))),
        rejected(
            "expiry is a word",
            claim("exp", json!("tomorrow")),
            "oidc: verify token: oidc: failed to unmarshal claims",
        )
        .any_body(GO),
        valid("expiry with a fraction", claim("exp", json!(4_000_000_000.5))),
        valid("expiry in the far future", claim("exp", json!(9_000_000_000_i64))),
        valid("not yet valid within leeway", claim("nbf", json!("{now+35}"))),
        rejected("not yet valid beyond leeway", claim("nbf", json!("{now+90}")), early)
            .any_body("it holds the time of the check"),
        valid("not-before null", claim("nbf", Value::Null)),
        valid("issued in the future", claim("iat", json!("{now+6000}"))),
        valid("no issue time", plain().without("iat")),
        rejected("issue time is a word", claim("iat", json!("today")), "oidc: failed to unmarshal claims")
            .any_body(GO),
        valid("audience among others", aud(json!(["other", "portcullis"]))),
        valid("audience as a list of one", aud(json!(["portcullis"]))),
        rejected(
            "foreign audience",
            aud(json!("other")),
            r#"oidc: verify token: oidc: expected audience "portcullis" got ["other"]"#,
        ),
        rejected("no audience", plain().without("aud"), r#"oidc: expected audience "portcullis" got []"#),
        rejected("empty list of audiences", aud(json!([])), r#"oidc: expected audience "portcullis" got []"#),
        rejected(
            "audience in another case",
            aud(json!("Portcullis")),
            r#"oidc: expected audience "portcullis" got ["Portcullis"]"#,
        ),
        rejected("audience is a number", aud(json!(5)), "oidc: failed to unmarshal claims").any_body(GO),
        rejected(
            "API audience is not an audience",
            aud(json!("https://api.twin.example")),
            "oidc: expected audience",
        ),
        rejected(
            "authorised party is not an audience",
            aud(json!("other")).with(json!({"azp": "portcullis"})),
            "oidc: expected audience",
        ),
        by_multi("first of several audiences", json!("first")),
        by_multi("second of several audiences", json!(["second"])),
        by_multi("one of several audiences among others", json!(["other", "second"])),
        rejected(
            "none of several audiences",
            multi(json!(["portcullis"])),
            r#"oidc: verify token: oidc: expected audience in ["first" "second"] got ["portcullis"]"#,
        ),
        rejected(
            "no audience of several",
            token("multi").without("aud"),
            r#"oidc: expected audience in ["first" "second"] got []"#,
        ),
        rejected(
            "none of several audiences, and expired",
            multi(json!(["x"])).with(json!({"exp": "{now-25}"})),
            expired,
        ),
        rejected(
            "foreign audience before expiry",
            aud(json!("other")).with(json!({"exp": "{now-25}"})),
            "oidc: expected audience",
        ),
        rejected(
            "strange key before audience",
            aud(json!("other")).key("strange"),
            "failed to verify id token signature",
        ),
    ]
}

fn names_and_groups() -> Vec<Case> {
    let sub = |value: Value| plain().with(json!({"sub": value}));
    let groups = |value: Value| plain().with(json!({"groups": value}));
    let by_groups = |name: &str, value: Value, expected: &[&str]| {
        by(GROUP, name, groups(value)).accepted("plain:jane", &[expected, &[ALL]].concat())
    };
    let username = r#"oidc: parse username claims "sub": "#;
    vec![
        rejected("no user name", plain().without("sub"), &format!("{username}claim not present")),
        rejected("user name is a number", sub(json!(5)), "oidc: failed to unmarshal claims").any_body(GO),
        rejected("user name is a list", sub(json!(["jane"])), "oidc: failed to unmarshal claims")
            .any_body(GO),
        by(GROUP, "user name null", sub(Value::Null)).accepted("plain:", &[ALL]),
        by(GROUP, "empty user name", sub(json!(""))).accepted("plain:", &[ALL]),
        by(GROUP, "user name beyond ASCII", sub(json!("Zoë ☃"))).accepted("plain:Zoë ☃", &[ALL]),
        by(GROUP, "user name with a colon", sub(json!("system:admin")))
            .accepted("plain:system:admin", &[ALL]),
        by(
            GROUP,
            "user name in another case of the claim",
            plain().without("sub").with(json!({"Sub": "jane"})),
        )
        .refused(&format!("{username}claim not present")),
        by_groups("groups", json!(["a", "b"]), &["g:a", "g:b"]),
        by_groups("one group as a string", json!("a"), &["g:a"]),
        by_groups("empty list of groups", json!([]), &[]),
        by_groups("groups null", Value::Null, &[]),
        by_groups("repeated groups", json!(["a", "b", "a"]), &["g:a", "g:b", "g:a"]),
        by_groups("an empty group gets the prefix", json!(["", "a"]), &["g:", "g:a"]),
        by_groups("group null in a list", json!(["a", null]), &["g:a", "g:"]),
        by_groups("system groups get the prefix", json!(["system:masters"]), &["g:system:masters"]),
        rejected("groups are a number", groups(json!(5)), r#"oidc: parse groups claim "groups": "#)
            .any_body(GO),
        rejected("groups are numbers", groups(json!([5])), r#"oidc: parse groups claim "groups": "#)
            .any_body(GO),
        rejected(
            "groups are an object",
            groups(json!({"a": true})),
            r#"oidc: parse groups claim "groups": "#,
        )
        .any_body(GO),
        by(
            GROUP,
            "no prefix, system names are allowed",
            token("bare").with(json!({"sub": "system:admin", "groups": ["system:masters"]})),
        )
        .accepted("system:admin", &["system:masters", ALL]),
        by(GROUP, "no prefix, empty user name", token("bare").with(json!({"sub": ""})))
            .is("", &[ALL])
            .declared("D-no-name", 401),
        by(GROUP, "no prefix, empty group", token("bare").with(json!({"groups": ["", "a"]})))
            .is("jane", &["", "a", ALL])
            .declared("D-empty-group", 201),
        by(
            GROUP,
            "no prefix, authenticated group is not added twice",
            token("bare").with(json!({"groups": [ALL, "a"]})),
        )
        .accepted("jane", &[ALL, "a"]),
        by(GROUP, "no prefix, anonymous", token("bare").with(json!({"sub": "system:anonymous"})))
            .answers(403),
        by(GROUP, "token id", plain().with(json!({"jti": "t-1"})))
            .accepted("plain:jane", &[ALL])
            .contains(r#""extra":{"authentication.kubernetes.io/credential-id":["JTI=t-1"]}"#),
        valid("token id is a number", plain().with(json!({"jti": 5}))).lacks(r#""extra""#),
        valid("empty token id", plain().with(json!({"jti": ""}))).lacks(r#""extra""#),
        valid(
            "a claim of service accounts",
            plain().with(json!({"kubernetes.io": {"namespace": "kube-system"}})),
        ),
        by(
            GROUP,
            "claim given twice, the last one counts",
            plain().raw(
                r#"{"iss":"{issuer}/plain","aud":"portcullis","exp":4000000000,"sub":"jane","sub":"joan"}"#,
            ),
        )
        .accepted("plain:joan", &[ALL]),
    ]
}

fn email() -> Vec<Case> {
    let email = |claims: Value| token("email").with(json!({"email": "jane@example.com"})).with(claims);
    let valid =
        |name: &str, claims: Value| by(GROUP, name, email(claims)).accepted("jane@example.com", &[ALL]);
    let rejected = |name: &str, claims: Value, reason: &str| by(GROUP, name, email(claims)).refused(reason);
    vec![
        valid("email", json!({})),
        valid("email verified", json!({"email_verified": true})),
        rejected("email not verified", json!({"email_verified": false}), "oidc: email not verified"),
        rejected("email verified null", json!({"email_verified": null}), "oidc: email not verified"),
        rejected(
            "email verified is a string",
            json!({"email_verified": "true"}),
            "oidc: parse 'email_verified' claim: ",
        )
        .any_body(GO),
        rejected(
            "email verified is a number",
            json!({"email_verified": 1}),
            "oidc: parse 'email_verified' claim: ",
        )
        .any_body(GO),
        rejected(
            "email is a list",
            json!({"email": ["jane@example.com"]}),
            r#"oidc: parse username claims "email": "#,
        )
        .any_body(GO),
        by(GROUP, "email and roles", email(json!({"roles": ["r1", "r2"], "groups": ["ignored"]})))
            .accepted("jane@example.com", &["r1", "r2", ALL]),
        by(GROUP, "verification concerns no other claim", plain().with(json!({"email_verified": false})))
            .accepted("plain:jane", &[ALL]),
    ]
}

fn required() -> Vec<Case> {
    let full = || token("required").with(json!({"hd": "example.com", "blank": "", "oid": "o-1"}));
    let rejected = |name: &str, jwt: Jwt, reason: &str| by(GROUP, name, jwt).refused(reason);
    vec![
        by(GROUP, "required claims", full()).accepted("required:jane", &[ALL]).contains(r#""uid":"o-1""#),
        by(GROUP, "empty uid", full().with(json!({"oid": ""})))
            .accepted("required:jane", &[ALL])
            .lacks(r#""uid""#),
        rejected(
            "required claim missing",
            full().without("hd"),
            "oidc: required claim hd not present in ID token",
        ),
        rejected(
            "required claim differs",
            full().with(json!({"hd": "example.org"})),
            "oidc: required claim hd value does not match. Got = example.org, want = example.com",
        ),
        rejected(
            "required claim in another case",
            full().with(json!({"hd": "Example.com"})),
            "oidc: required claim hd value does not match",
        ),
        rejected(
            "required claim is a list",
            full().with(json!({"hd": ["example.com"]})),
            "oidc: parse claim hd: ",
        )
        .any_body(GO),
        rejected(
            "required empty claim missing",
            full().without("blank"),
            "oidc: required claim blank not present in ID token",
        ),
        rejected(
            "required empty claim is not empty",
            full().with(json!({"blank": " "})),
            "oidc: required claim blank value does not match",
        ),
        rejected("no uid", full().without("oid"), r#"oidc: parse uid claim "oid": claim not present"#),
        rejected("uid is a number", full().with(json!({"oid": 7})), r#"oidc: parse uid claim "oid": "#)
            .any_body(GO),
        rejected("uid before required claims", full().without("oid").without("hd"), "oidc: parse uid claim"),
    ]
}

/// Claim names in other spellings, and repeated claims, as Go's JSON library reads them.
fn spelling() -> Vec<Case> {
    let token = |members: &str| {
        plain().raw(&format!(
            r#"{{"iss":"{{issuer}}/plain","aud":"portcullis","exp":4000000000,"sub":"jane",{members}}}"#
        ))
    };
    let valid = |name: &str, members: &str| by(GROUP, name, token(members)).accepted("plain:jane", &[ALL]);
    let rejected = |name: &str, members: &str| by(GROUP, name, token(members)).refused("").any_body(GO);
    vec![
        rejected("another audience in another case", r#""AUD":"other""#),
        valid("the last audience counts", r#""aud":"other","Aud":"portcullis""#),
        rejected("an end that is past in another case", r#""Exp":1"#),
        valid("the last end counts", r#""exp":1,"EXP":4000000000"#),
        rejected("a beginning in another case", r#""NBF":4000000000"#),
        valid("a not-before that is overridden", r#""nbf":4000000000,"NBF":null"#),
        rejected("a subject in another case is a number", r#""SUB":5"#),
        rejected("a subject with a long s is a number", "\"\u{17f}ub\":5"),
        rejected("a nonce in another case is a list", r#""Nonce":[]"#),
        rejected("a subject that was a number before", r#""sub":5,"sub":"jane""#),
        valid("an issuer that is null the second time", r#""iss":null"#),
        rejected("an end that was null before", r#""exp":null,"exp":4000000000"#),
        rejected("audience null the second time", r#""aud":null"#),
        by(GROUP, "another issuer in another case", token(r#""ISS":"https://other.example""#)).unknown(),
        valid("the last issuer counts", r#""iss":"https://other.example","Iss":"{issuer}/plain""#),
        by(GROUP, "header with a nonce that is a number", plain().head("nonce", json!(5)))
            .refused("")
            .any_body(GO),
        by(GROUP, "header with a key that cannot be read", plain().head("jwk", json!({"kty": "AKP"})))
            .refused("")
            .any_body(GO),
        by(GROUP, "header with a broken certificate", plain().head("x5c", json!(["e30="])))
            .refused("")
            .any_body(GO),
        by(GROUP, "header with a certificate that is not a list", plain().head("x5c", json!("e30=")))
            .refused("")
            .any_body(GO),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    [signatures(), issuers(), times_and_audiences(), names_and_groups(), email(), required(), spelling()]
        .concat()
}
