//! Tokens of service accounts that expire and are bound to audiences and objects.

mod bindings;

use serde_json::{Value, json};

use super::credentials::{ALL, GO, by};
use crate::case::{BOTH, Case};
use crate::mint::{Jwt, jwt};

const GROUP: &str = "service_account";
const ISSUER: &str = "https://kubernetes.default.svc";
const ROBOT: &str = "system:serviceaccount:twin-tokens:robot";
const GROUPS: [&str; 3] = ["system:serviceaccounts", "system:serviceaccounts:twin-tokens", ALL];

/// A good token of the service account `robot`.
pub(super) fn robot() -> Jwt {
    jwt(
        "accounts",
        json!({
            "iss": ISSUER, "aud": ["https://api.twin.example"], "sub": ROBOT,
            "exp": "{now+3600}", "iat": "{now-5}", "nbf": "{now-5}", "jti": "0f1e",
            "kubernetes.io": {"namespace": "twin-tokens",
                "serviceaccount": {"name": "robot", "uid": "{uid:serviceaccounts/robot}"}},
        }),
    )
}

/// The same with these references beside the service account, or in its place.
fn refers(to: Value) -> Jwt {
    let mut claim = json!({"namespace": "twin-tokens",
        "serviceaccount": {"name": "robot", "uid": "{uid:serviceaccounts/robot}"}});
    if let (Value::Object(claim), Value::Object(to)) = (&mut claim, to) {
        claim.extend(to);
    }
    robot().with(json!({"kubernetes.io": claim}))
}

fn good(name: &str, token: Jwt) -> Case {
    by(GROUP, name, token).accepted(ROBOT, &GROUPS)
}

fn bad(name: &str, token: Jwt, why: &str) -> Case {
    by(GROUP, name, token).refused(why)
}

/// Not taken for a token of a service account at all.
fn foreign(name: &str, token: Jwt) -> Case {
    by(GROUP, name, token).unknown()
}

fn identity() -> Vec<Case> {
    vec![
        good("good", robot())
            .only(BOTH)
            .contains(r#""uid":"{uid:serviceaccounts/robot}""#)
            .contains(r#"{"authentication.kubernetes.io/credential-id":["JTI=0f1e"]}"#),
        good("no token id", robot().without("jti")).lacks(r#""extra""#),
        good("empty token id", robot().with(json!({"jti": ""}))).lacks(r#""extra""#),
        good("sub does not matter", robot().with(json!({"sub": "system:serviceaccount:kube-system:admin"}))),
        good("no sub", robot().without("sub")),
        good("unknown claims", robot().with(json!({"groups": ["system:masters"], "username": "admin"}))),
        by(
            GROUP,
            "another account",
            refers(json!({"serviceaccount": {"name": "other", "uid": "{uid:serviceaccounts/other}"}})),
        )
        .accepted("system:serviceaccount:twin-tokens:other", &GROUPS),
        good("system groups in the claim", refers(json!({"groups": ["system:masters"]}))),
    ]
}

fn signatures() -> Vec<Case> {
    let crypto = "go-jose/go-jose: error in cryptographic primitive";
    let none = "invalid signature, no keys found";
    vec![
        good("RS256", robot().key("accounts-rsa")),
        good("RS384", robot().key("accounts-rsa").alg("RS384")),
        good("RS512", robot().key("accounts-rsa").alg("RS512")),
        good("PS256", robot().key("accounts-rsa").alg("PS256")),
        good("PS384", robot().key("accounts-rsa").alg("PS384")),
        good("PS512", robot().key("accounts-rsa").alg("PS512")),
        good("ES384", robot().key("accounts-p384")),
        good("ES512", robot().key("accounts-p521")),
        good("key from a private key file", robot().key("accounts-private")),
        good("no key id", robot().head("kid", Value::Null)),
        good("empty key id", robot().head("kid", json!(""))),
        good("no key id RS256", robot().key("accounts-rsa").head("kid", Value::Null)),
        bad("unknown key id", robot().head("kid", json!("nobody")), none),
        bad("key id of another key", robot().head("kid", json!("{kid:accounts-rsa}")), crypto),
        bad("strange key", robot().key("strange-p256"), none),
        bad("strange key without key id", robot().key("strange-p256").head("kid", Value::Null), crypto),
        bad(
            "strange key with a known key id",
            robot().key("strange-p256").head("kid", json!("{kid:accounts}")),
            crypto,
        ),
        bad(
            "strange RSA key with a known key id",
            robot().key("strange").head("kid", json!("{kid:accounts-rsa}")),
            crypto,
        ),
        bad("alg none", robot().key("accounts-rsa").alg("none"), crypto),
        bad(
            "alg none without key id",
            robot().key("accounts-rsa").alg("none").head("kid", Value::Null),
            crypto,
        ),
        bad("alg None", robot().key("accounts-rsa").alg("None").twist(without_signature), crypto),
        bad("HS256 with the public key", robot().key("accounts-rsa").alg("HS256"), crypto),
        bad("EdDSA label", robot().key("accounts-rsa").alg("EdDSA"), crypto),
        bad("unknown alg", robot().key("accounts-rsa").alg("RS1"), crypto),
        bad("alg in lower case", robot().key("accounts-rsa").alg("rs256"), crypto),
        bad("ES384 label on an ES256 signature", robot().alg("ES384"), crypto),
        bad("RS256 label on an ES256 signature", robot().alg("RS256"), crypto),
    ]
}

fn without_signature(text: String) -> String {
    let (signed, _) = text.rsplit_once('.').unwrap_or_default();
    format!("{signed}.")
}

fn shapes() -> Vec<Case> {
    let crypto = "go-jose/go-jose: error in cryptographic primitive";
    vec![
        bad("no signature", robot().twist(without_signature), crypto),
        bad("cut signature", robot().twist(|mut text| { text.truncate(text.len() - 6); text }), crypto),
        bad("longer signature", robot().twist(|text| format!("{text}AAAA")), crypto),
        foreign("padded", robot().twist(|text| format!("{text}=="))),
        foreign("two parts", robot().twist(|text| text.rsplit_once('.').unwrap_or_default().0.to_owned())),
        foreign("four parts", robot().twist(|text| format!("{text}.e30"))),
        foreign("newline in the payload", robot().raw("{\"iss\":\"https://kubernetes.default.svc\"}\n").twist(|text| text.replacen('.', ".=", 1))),
        bad("payload changed", robot().twist(|text| {
            let mut parts: Vec<&str> = text.split('.').collect();
            parts[1] = "eyJpc3MiOiJodHRwczovL2t1YmVybmV0ZXMuZGVmYXVsdC5zdmMifQ";
            parts.join(".")
        }), crypto),
        foreign("payload is not JSON", robot().raw("iss")),
        foreign("payload is an array", robot().raw("[]")),
        foreign("payload is null", robot().raw("null")),
        foreign("empty payload", robot().raw("")),
        foreign("header is not base64", robot().twist(|text| format!("!{text}"))),
        bad("unknown critical header", robot().head("crit", json!(["x"])).head("x", json!(1)), crypto),
        good("another type in the header", robot().head("typ", json!("at+jwt"))),
        good("key in the header is ignored", robot().head("x5u", json!("https://evil.example"))),
        bad("header says it is not base64", robot().head("b64", json!(false)).head("crit", json!(["b64"])), crypto),
        bad("issuer given twice", robot().raw(concat!(
            r#"{"iss":"https://nobody.example","iss":"https://kubernetes.default.svc","aud":"https://api.twin.example","kubernetes.io":{"namespace":"twin-tokens","#,
            r#""serviceaccount":{"name":"robot","uid":"{uid:serviceaccounts/robot}"}}}"#)), "json: duplicate key 'iss' in object").any_body(GO),
        foreign("issuer given twice, the last one is foreign", robot().raw(concat!(
            r#"{"iss":"https://kubernetes.default.svc","iss":"https://nobody.example","aud":"https://api.twin.example","kubernetes.io":{"namespace":"twin-tokens","#,
            r#""serviceaccount":{"name":"robot","uid":"{uid:serviceaccounts/robot}"}}}"#))),
        bad("names of claims in another case", robot().without("iss").with(json!({"ISS": ISSUER})), "token issuer \"\" is invalid"),
        by(GROUP, "JSON serialisation", robot().twist(|text| {
            let parts: Vec<&str> = text.split('.').collect();
            format!(r#"{{"payload":"{}","protected":"{}","signature":"{}"}}"#, parts[1], parts[0], parts[2])
        })).unauthorized(),

    ]
}

fn issuers_and_audiences() -> Vec<Case> {
    let aud = |value: Value| robot().with(json!({"aud": value}));
    vec![
        good("second issuer", robot().with(json!({"iss": "https://old.issuer.example"}))),
        foreign("foreign issuer", robot().with(json!({"iss": "https://nobody.example"}))),
        foreign("issuer with a slash", robot().with(json!({"iss": "https://kubernetes.default.svc/"}))),
        foreign("issuer in another case", robot().with(json!({"iss": "https://Kubernetes.default.svc"}))),
        foreign("no issuer", robot().without("iss")),
        foreign("empty issuer", robot().with(json!({"iss": ""}))),
        foreign("issuer is a list", robot().with(json!({"iss": [ISSUER]}))),
        bad(
            "issuer of secret tokens",
            robot().with(json!({"iss": "kubernetes/serviceaccount"})),
            "namespace claim is missing",
        ),
        good("audience as a string", aud(json!("https://api.twin.example"))),
        good("second audience", aud(json!(["second.twin"]))),
        good("both audiences", aud(json!(["second.twin", "https://api.twin.example"]))),
        good("one audience of several", aud(json!(["elsewhere", "second.twin"]))),
        good("no audience", robot().without("aud")),
        good("empty list of audiences", aud(json!([]))),
        bad("audience null", aud(Value::Null), "go-jose").any_body(GO),
        bad(
            "foreign audience",
            aud(json!(["elsewhere"])),
            r#"token audiences ["elsewhere"] is invalid for the target audiences ["https://api.twin.example" "second.twin"]"#,
        ),
        bad("issuer for an audience", aud(json!([ISSUER])), "token audiences"),
        bad("empty audience", aud(json!([""])), r#"token audiences [""] is invalid"#),
        bad(
            "audience in another case",
            aud(json!(["https://API.twin.example"])),
            "is invalid for the target audiences",
        ),
        bad(
            "audience with a slash",
            aud(json!(["https://api.twin.example/"])),
            "is invalid for the target audiences",
        ),
        bad(
            "audience is a number",
            aud(json!(5)),
            "go-jose/go-jose/jwt: expected string or array value to unmarshal to Audience",
        )
        .any_body(GO),
        bad(
            "audience is a list of numbers",
            aud(json!([5])),
            "go-jose/go-jose/jwt: expected string or array value to unmarshal to Audience",
        )
        .any_body(GO),
        bad(
            "audience is an object",
            aud(json!({})),
            "go-jose/go-jose/jwt: expected string or array value to unmarshal to Audience",
        )
        .any_body(GO),
        bad(
            "foreign audience before expiry",
            aud(json!(["elsewhere"])).with(json!({"exp": "{now-600}"})),
            "token audiences",
        ),
    ]
}

fn times() -> Vec<Case> {
    let (late, early, future) = (
        "service account token has expired",
        "service account token is not valid yet",
        "service account token is issued in the future",
    );
    let at = |claim: &str, value: Value| robot().with(json!({claim: value}));
    vec![
        bad("expired", at("exp", json!("{now-600}")), late),
        good("expired within leeway", at("exp", json!("{now-25}"))),
        bad("expired beyond leeway", at("exp", json!("{now-85}")), late),
        good("no expiry", robot().without("exp")),
        bad("expired in 1970", at("exp", json!(1)), late),
        bad("expiry zero is 1970", at("exp", json!(0)), late),
        bad("expiry negative", at("exp", json!(-5)), late),
        good("expiry null", at("exp", Value::Null)),
        good("expiry with a fraction", at("exp", json!(4_000_000_000.5))),
        good("expiry in the far future", at("exp", json!(9_000_000_000_i64))),
        bad(
            "expiry is a string",
            at("exp", json!("4000000000")),
            "go-jose/go-jose/jwt: expected number value to unmarshal NumericDate",
        )
        .any_body(GO),
        bad("expiry is too large", at("exp", json!(1e30)), late).declared("D-token-dates", 201),
        good("expiry with an exponent", robot().raw(&at_exponent())),
        bad("not yet valid", at("nbf", json!("{now+600}")), early),
        good("not yet valid within leeway", at("nbf", json!("{now+35}"))),
        bad("not yet valid beyond leeway", at("nbf", json!("{now+120}")), early),
        good("no not-before", robot().without("nbf")),
        bad("issued in the future", at("iat", json!("{now+600}")), future),
        good("issued within leeway", at("iat", json!("{now+35}"))),
        bad("issued beyond leeway", at("iat", json!("{now+120}")), future),
        good("no issue time", robot().without("iat")),
        bad(
            "expiry before not-before",
            at("exp", json!("{now-600}")).with(json!({"nbf": "{now+600}"})),
            early,
        ),
        good("warning time is past", refers(json!({"warnafter": "{now-600}"}))),
        good("warning time is to come", refers(json!({"warnafter": "{now+600}"}))),
        good("warning time zero", refers(json!({"warnafter": 0}))),
        bad(
            "warning time is a string",
            refers(json!({"warnafter": "soon"})),
            "go-jose/go-jose/jwt: expected number value to unmarshal NumericDate",
        )
        .any_body(GO),
    ]
}

fn at_exponent() -> String {
    concat!(
        r#"{"iss":"https://kubernetes.default.svc","exp":4e9,"aud":"https://api.twin.example","kubernetes.io":{"namespace":"twin-tokens","#,
        r#""serviceaccount":{"name":"robot","uid":"{uid:serviceaccounts/robot}"}}}"#
    )
    .to_owned()
}

pub(crate) fn cases() -> Vec<Case> {
    [identity(), signatures(), shapes(), issuers_and_audiences(), times(), bindings::cases()].concat()
}
