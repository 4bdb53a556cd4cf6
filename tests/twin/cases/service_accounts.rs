//! Service account tokens with an expiry, bound to audiences and objects.

mod bindings;

use serde_json::{Value, json};

use super::credentials::{ALL, GO, by};
use crate::audit::WARNED_BEFORE;
use crate::case::{BOTH, Case};
use crate::mint::{Jwt, jwt};

const GROUP: &str = "service_account";
const ISSUER: &str = "https://kubernetes.default.svc";
const ROBOT: &str = "system:serviceaccount:twin-tokens:robot";
const GROUPS: [&str; 3] = ["system:serviceaccounts", "system:serviceaccounts:twin-tokens", ALL];

/// A valid token of the service account `robot`.
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

/// A token with these references in addition to the service account, or in place of it.
fn refers(to: Value) -> Jwt {
    let mut claim = json!({"namespace": "twin-tokens",
        "serviceaccount": {"name": "robot", "uid": "{uid:serviceaccounts/robot}"}});
    if let (Value::Object(claim), Value::Object(to)) = (&mut claim, to) {
        claim.extend(to);
    }
    robot().with(json!({"kubernetes.io": claim}))
}

fn valid(name: &str, token: Jwt) -> Case {
    by(GROUP, name, token).accepted(ROBOT, &GROUPS)
}

fn rejected(name: &str, token: Jwt, reason: &str) -> Case {
    by(GROUP, name, token).refused(reason)
}

/// Expects that the service account authenticator ignores the token.
fn foreign(name: &str, token: Jwt) -> Case {
    by(GROUP, name, token).unknown()
}

fn identity() -> Vec<Case> {
    vec![
        valid("good", robot())
            .only(BOTH)
            .contains(r#""uid":"{uid:serviceaccounts/robot}""#)
            .contains(r#"{"authentication.kubernetes.io/credential-id":["JTI=0f1e"]}"#),
        valid("no token id", robot().without("jti")).lacks(r#""extra""#),
        valid("empty token id", robot().with(json!({"jti": ""}))).lacks(r#""extra""#),
        valid("sub does not matter", robot().with(json!({"sub": "system:serviceaccount:kube-system:admin"}))),
        valid("no sub", robot().without("sub")),
        valid("unknown claims", robot().with(json!({"groups": ["system:masters"], "username": "admin"}))),
        by(
            GROUP,
            "another account",
            refers(json!({"serviceaccount": {"name": "other", "uid": "{uid:serviceaccounts/other}"}})),
        )
        .accepted("system:serviceaccount:twin-tokens:other", &GROUPS),
        valid("system groups in the claim", refers(json!({"groups": ["system:masters"]}))),
    ]
}

fn signatures() -> Vec<Case> {
    let crypto = "go-jose/go-jose: error in cryptographic primitive";
    let none = "invalid signature, no keys found";
    vec![
        valid("RS256", robot().key("accounts-rsa")),
        valid("RS384", robot().key("accounts-rsa").alg("RS384")),
        valid("RS512", robot().key("accounts-rsa").alg("RS512")),
        valid("PS256", robot().key("accounts-rsa").alg("PS256")),
        valid("PS384", robot().key("accounts-rsa").alg("PS384")),
        valid("PS512", robot().key("accounts-rsa").alg("PS512")),
        valid("ES384", robot().key("accounts-p384")),
        valid("ES512", robot().key("accounts-p521")),
        valid("key from a private key file", robot().key("accounts-private")),
        valid("no key id", robot().head("kid", Value::Null)),
        valid("empty key id", robot().head("kid", json!(""))),
        valid("no key id RS256", robot().key("accounts-rsa").head("kid", Value::Null)),
        rejected("unknown key id", robot().head("kid", json!("nobody")), none),
        rejected("key id of another key", robot().head("kid", json!("{kid:accounts-rsa}")), crypto),
        rejected("strange key", robot().key("strange-p256"), none),
        rejected("strange key without key id", robot().key("strange-p256").head("kid", Value::Null), crypto),
        rejected(
            "strange key with a known key id",
            robot().key("strange-p256").head("kid", json!("{kid:accounts}")),
            crypto,
        ),
        rejected(
            "strange RSA key with a known key id",
            robot().key("strange").head("kid", json!("{kid:accounts-rsa}")),
            crypto,
        ),
        rejected("alg none", robot().key("accounts-rsa").alg("none"), crypto),
        rejected(
            "alg none without key id",
            robot().key("accounts-rsa").alg("none").head("kid", Value::Null),
            crypto,
        ),
        rejected("alg None", robot().key("accounts-rsa").alg("None").twist(without_signature), crypto),
        rejected("HS256 with the public key", robot().key("accounts-rsa").alg("HS256"), crypto),
        rejected("EdDSA label", robot().key("accounts-rsa").alg("EdDSA"), crypto),
        rejected("unknown alg", robot().key("accounts-rsa").alg("RS1"), crypto),
        rejected("alg in lower case", robot().key("accounts-rsa").alg("rs256"), crypto),
        rejected("ES384 label on an ES256 signature", robot().alg("ES384"), crypto),
        rejected("RS256 label on an ES256 signature", robot().alg("RS256"), crypto),
    ]
}

fn without_signature(text: String) -> String {
    let (signed, _) = text.rsplit_once('.').unwrap_or_default();
    format!("{signed}.")
}

fn shapes() -> Vec<Case> {
    let crypto = "go-jose/go-jose: error in cryptographic primitive";
    vec![
        rejected("no signature", robot().twist(without_signature), crypto),
        rejected("cut signature", robot().twist(|mut text| { text.truncate(text.len() - 6); text }), crypto),
        rejected("longer signature", robot().twist(|text| format!("{text}AAAA")), crypto),
        foreign("padded", robot().twist(|text| format!("{text}=="))),
        foreign("two parts", robot().twist(|text| text.rsplit_once('.').unwrap_or_default().0.to_owned())),
        foreign("four parts", robot().twist(|text| format!("{text}.e30"))),
        foreign("newline in the payload", robot().raw("{\"iss\":\"https://kubernetes.default.svc\"}\n").twist(|text| text.replacen('.', ".=", 1))),
        rejected("payload changed", robot().twist(|text| {
            let mut parts: Vec<&str> = text.split('.').collect();
            parts[1] = "eyJpc3MiOiJodHRwczovL2t1YmVybmV0ZXMuZGVmYXVsdC5zdmMifQ";
            parts.join(".")
        }), crypto),
        foreign("payload is not JSON", robot().raw("iss")),
        foreign("payload is an array", robot().raw("[]")),
        foreign("payload is null", robot().raw("null")),
        foreign("empty payload", robot().raw("")),
        foreign("header is not base64", robot().twist(|text| format!("!{text}"))),
        rejected("unknown critical header", robot().head("crit", json!(["x"])).head("x", json!(1)), crypto),
        valid("another type in the header", robot().head("typ", json!("at+jwt"))),
        valid("key in the header is ignored", robot().head("x5u", json!("https://evil.example"))),
        rejected("header says it is not base64", robot().head("b64", json!(false)).head("crit", json!(["b64"])), crypto),
        rejected("issuer given twice", robot().raw(concat!(
            r#"{"iss":"https://nobody.example","iss":"https://kubernetes.default.svc","aud":"https://api.twin.example","kubernetes.io":{"namespace":"twin-tokens","#,
            r#""serviceaccount":{"name":"robot","uid":"{uid:serviceaccounts/robot}"}}}"#)), "json: duplicate key 'iss' in object").any_body(GO),
        foreign("issuer given twice, the last one is foreign", robot().raw(concat!(
            r#"{"iss":"https://kubernetes.default.svc","iss":"https://nobody.example","aud":"https://api.twin.example","kubernetes.io":{"namespace":"twin-tokens","#,
            r#""serviceaccount":{"name":"robot","uid":"{uid:serviceaccounts/robot}"}}}"#))),
        rejected("names of claims in another case", robot().without("iss").with(json!({"ISS": ISSUER})), "token issuer \"\" is invalid"),
        by(GROUP, "JSON serialisation", robot().twist(|text| {
            let parts: Vec<&str> = text.split('.').collect();
            format!(r#"{{"payload":"{}","protected":"{}","signature":"{}"}}"#, parts[1], parts[0], parts[2])
        })).unauthorized(),

    ]
}

fn issuers_and_audiences() -> Vec<Case> {
    let aud = |value: Value| robot().with(json!({"aud": value}));
    vec![
        valid("second issuer", robot().with(json!({"iss": "https://old.issuer.example"}))),
        foreign("foreign issuer", robot().with(json!({"iss": "https://nobody.example"}))),
        foreign("issuer with a slash", robot().with(json!({"iss": "https://kubernetes.default.svc/"}))),
        foreign("issuer in another case", robot().with(json!({"iss": "https://Kubernetes.default.svc"}))),
        foreign("no issuer", robot().without("iss")),
        foreign("empty issuer", robot().with(json!({"iss": ""}))),
        foreign("issuer is a list", robot().with(json!({"iss": [ISSUER]}))),
        rejected(
            "issuer of secret tokens",
            robot().with(json!({"iss": "kubernetes/serviceaccount"})),
            "namespace claim is missing",
        ),
        valid("audience as a string", aud(json!("https://api.twin.example"))),
        valid("second audience", aud(json!(["second.twin"]))),
        valid("both audiences", aud(json!(["second.twin", "https://api.twin.example"]))),
        valid("one audience of several", aud(json!(["elsewhere", "second.twin"]))),
        valid("no audience", robot().without("aud")),
        valid("empty list of audiences", aud(json!([]))),
        rejected("audience null", aud(Value::Null), "go-jose").any_body(GO),
        rejected(
            "foreign audience",
            aud(json!(["elsewhere"])),
            r#"token audiences ["elsewhere"] is invalid for the target audiences ["https://api.twin.example" "second.twin"]"#,
        ),
        rejected("issuer for an audience", aud(json!([ISSUER])), "token audiences"),
        rejected("empty audience", aud(json!([""])), r#"token audiences [""] is invalid"#),
        rejected(
            "audience in another case",
            aud(json!(["https://API.twin.example"])),
            "is invalid for the target audiences",
        ),
        rejected(
            "audience with a slash",
            aud(json!(["https://api.twin.example/"])),
            "is invalid for the target audiences",
        ),
        rejected(
            "audience is a number",
            aud(json!(5)),
            "go-jose/go-jose/jwt: expected string or array value to unmarshal to Audience",
        )
        .any_body(GO),
        rejected(
            "audience is a list of numbers",
            aud(json!([5])),
            "go-jose/go-jose/jwt: expected string or array value to unmarshal to Audience",
        )
        .any_body(GO),
        rejected(
            "audience is an object",
            aud(json!({})),
            "go-jose/go-jose/jwt: expected string or array value to unmarshal to Audience",
        )
        .any_body(GO),
        rejected(
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
        rejected("expired", at("exp", json!("{now-600}")), late),
        valid("expired within leeway", at("exp", json!("{now-25}"))),
        rejected("expired beyond leeway", at("exp", json!("{now-85}")), late),
        valid("no expiry", robot().without("exp")),
        rejected("expired in 1970", at("exp", json!(1)), late),
        rejected("expiry zero is 1970", at("exp", json!(0)), late),
        rejected("expiry negative", at("exp", json!(-5)), late),
        valid("expiry null", at("exp", Value::Null)),
        valid("expiry with a fraction", at("exp", json!(4_000_000_000.5))),
        valid("expiry in the far future", at("exp", json!(9_000_000_000_i64))),
        rejected(
            "expiry is a string",
            at("exp", json!("4000000000")),
            "go-jose/go-jose/jwt: expected number value to unmarshal NumericDate",
        )
        .any_body(GO),
        rejected("expiry is too large", at("exp", json!(1e30)), late).declared("D-token-dates", 201),
        valid("expiry with an exponent", robot().raw(&at_exponent())),
        rejected("not yet valid", at("nbf", json!("{now+600}")), early),
        valid("not yet valid within leeway", at("nbf", json!("{now+35}"))),
        rejected("not yet valid beyond leeway", at("nbf", json!("{now+120}")), early),
        valid("no not-before", robot().without("nbf")),
        rejected("issued in the future", at("iat", json!("{now+600}")), future),
        valid("issued within leeway", at("iat", json!("{now+35}"))),
        rejected("issued beyond leeway", at("iat", json!("{now+120}")), future),
        valid("no issue time", robot().without("iat")),
        rejected(
            "expiry before not-before",
            at("exp", json!("{now-600}")).with(json!({"nbf": "{now+600}"})),
            early,
        ),
        valid("warning time is past", refers(json!({"warnafter": format!("{{now-{WARNED_BEFORE}}}")}))),
        valid("warning time is to come", refers(json!({"warnafter": "{now+600}"}))),
        valid("warning time zero", refers(json!({"warnafter": 0}))),
        rejected(
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
