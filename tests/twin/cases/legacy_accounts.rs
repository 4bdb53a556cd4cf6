//! Legacy service account tokens, which do not expire and are stored in secrets.

use serde_json::{Value, json};

use super::credentials::{ALL, APART, GO, by};
use crate::case::{BOTH, Case};
use crate::fixtures::credentials::legacy;
use crate::mint::Token;

const GROUP: &str = "legacy_account";
const ROBOT: &str = "system:serviceaccount:twin-tokens:robot";
const GROUPS: [&str; 3] = ["system:serviceaccounts", "system:serviceaccounts:twin-tokens", ALL];
const PREFIX: &str = "kubernetes.io/serviceaccount/";
const WARNING: &str = "Use tokens from the TokenRequest API or manually created secret-based tokens instead of auto-generated secret-based tokens.";

/// A case with the token of this secret.
fn kept(name: &str, secret: &str) -> Case {
    by(GROUP, name, format!("{{made:{secret}}}").as_str())
}

fn valid(name: &str, secret: &str) -> Case {
    kept(name, secret).accepted(ROBOT, &GROUPS).lacks(r#""extra""#)
}

fn rejected(name: &str, secret: &str, reason: &str) -> Case {
    kept(name, secret).refused(reason)
}

fn secrets() -> Vec<Case> {
    let gone = "Token has been invalidated";
    vec![
        valid("good", "legacy-good").only(BOTH).contains(r#""uid":"{uid:serviceaccounts/robot}""#),
        valid("expiry is not looked at", "legacy-expired"),
        valid("not-before is not looked at", "legacy-early"),
        valid("audience of ours", "legacy-audience"),
        rejected(
            "foreign audience",
            "legacy-foreign-audience",
            r#"token audiences ["elsewhere"] is invalid"#,
        ),
        valid("RS256", "legacy-rsa"),
        valid("token id is not a credential id", "legacy-jti"),
        valid("secret of another type", "legacy-opaque"),
        kept("listed in the account, with a warning", "legacy-auto")
            .is(ROBOT, &GROUPS)
            .warns(WARNING)
            .reviewed(),
        rejected(
            "marked as invalid",
            "legacy-marked",
            concat!(
                "the token in secret twin-tokens/legacy-marked for service account twin-tokens/robot has been marked invalid. ",
                "Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the ",
                "'kubernetes.io/legacy-token-invalid-since' label from the secret to temporarily allow use of this token"
            ),
        ),
        rejected("secret that is being deleted", "legacy-leaving", gone),
        rejected("deleted secret", "legacy-gone", gone),
        rejected("sub missing", "legacy-no-sub", "sub claim is missing"),
        rejected(
            "uid of the account differs",
            "legacy-wrong-uid",
            "ServiceAccount UID ({uid:serviceaccounts/robot}) does not match claim (0-0-0)",
        ),
        rejected("deleted account", "legacy-gone-account", r#"serviceaccounts "fleeting" not found"#),
        rejected(
            "account that is being deleted",
            "legacy-leaving-account",
            "ServiceAccount twin-tokens/leaving has been deleted",
        ),
        recorded("use is recorded", "legacy-used"),
        recorded("use of a listed token is recorded", "legacy-auto"),
        recorded("use of a marked token is recorded", "legacy-marked"),
    ]
}

/// The use of a token changes a label of its secret, so each side has its own secret.
fn recorded(name: &str, secret: &str) -> Case {
    let used = kept(name, &format!("{secret}-{{side}}"));
    let used = if secret == "legacy-marked" { used.unauthorized() } else { used.is(ROBOT, &GROUPS) };
    used.then(
        "GET",
        &format!(
            "/api/v1/namespaces/twin-tokens/secrets?fieldSelector=metadata.name%3D{secret}-{{side}}\
             &labelSelector=kubernetes.io/legacy-token-last-used&includeObject=None"
        ),
    )
    .cert("admin")
    .header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
    .answers(200)
    .contains(&format!(r#""{secret}-{{side}}""#))
}

fn claims() -> Vec<Case> {
    let base = || legacy("legacy-good");
    let of = |name: &str, token: crate::mint::Jwt, reason: &str| {
        by(GROUP, name, Token::from(token)).refused(reason)
    };
    let with = |claim: &str, value: Value| base().with(json!({ format!("{PREFIX}{claim}"): value }));
    let sub = |value: &str| base().with(json!({"sub": value}));
    let without = |claim: &str| base().without(&format!("{PREFIX}{claim}"));
    vec![
        of("signed anew", base(), "Token does not match server's copy"),
        of("secret of another token", legacy("legacy-rsa"), "Token does not match server's copy"),
        of("no such secret", legacy("legacy-none"), "Token has been invalidated"),
        of(
            "secret that holds no token",
            with("secret.name", json!("held")),
            "Token does not match server's copy",
        ),
        of("sub empty", sub(""), "sub claim is missing"),
        of("namespace missing", without("namespace"), "namespace claim is missing"),
        of("secret name missing", without("secret.name"), "secretName claim is missing"),
        of("account name missing", without("service-account.name"), "serviceAccountName claim is missing"),
        of("account uid missing", without("service-account.uid"), "serviceAccountUID claim is missing"),
        of("sub before the others", without("namespace").without("sub"), "sub claim is missing"),
        of("sub of another account", sub("system:serviceaccount:twin-tokens:other"), "sub claim is invalid"),
        of("sub of another namespace", sub("system:serviceaccount:twin:robot"), "sub claim is invalid"),
        of("sub is a bare name", sub("robot"), "sub claim is invalid"),
        of(
            "sub with one part more",
            sub("system:serviceaccount:twin-tokens:robot:x"),
            "sub claim is invalid",
        ),
        of("sub is a number", base().with(json!({"sub": 5})), "json: cannot unmarshal number").any_body(GO),
        of("namespace is a number", with("namespace", json!(5)), "json: cannot unmarshal number")
            .any_body(GO),
        of(
            "claims of the new kind alone",
            super::service_accounts::robot().with(json!({"iss": "kubernetes/serviceaccount"})),
            "namespace claim is missing",
        ),
        of(
            "issuer of bound tokens",
            base().with(json!({"iss": "https://kubernetes.default.svc"})),
            "resource name may not be empty",
        ),
        of("strange key", base().key("strange-p256"), "invalid signature, no keys found"),
        by(GROUP, "issuer in another case", base().with(json!({"iss": "Kubernetes/ServiceAccount"})))
            .unknown(),
        by(GROUP, "issuer with a slash", base().with(json!({"iss": "kubernetes/serviceaccount/"}))).unknown(),
    ]
}

/// `--service-account-lookup=false`.
fn without_lookup() -> Vec<Case> {
    let flags = |case: Case| case.by_flags();
    let made = |name: &str, secret: &str| flags(kept(&format!("without lookup {name}"), secret));
    let of = |name: &str, token: crate::mint::Jwt| {
        flags(by(GROUP, &format!("without lookup {name}"), Token::from(token)))
    };
    vec![
        made("good", "legacy-good").accepted(ROBOT, &GROUPS),
        made("deleted secret", "legacy-gone").accepted(ROBOT, &GROUPS),
        made("marked as invalid", "legacy-marked").accepted(ROBOT, &GROUPS),
        made("no warning for a listed one", "legacy-auto").accepted(ROBOT, &GROUPS),
        made("deleted account", "legacy-gone-account")
            .accepted("system:serviceaccount:twin-tokens:fleeting", &GROUPS),
        made("the claimed uid is the uid", "legacy-wrong-uid")
            .accepted(ROBOT, &GROUPS)
            .contains(r#""uid":"0-0-0""#),
        of("signed anew", legacy("legacy-good")).accepted(ROBOT, &GROUPS),
        of(
            "sub of another account",
            legacy("x").with(json!({"sub": "system:serviceaccount:twin-tokens:other"})),
        )
        .refused("sub claim is invalid"),
        of("account uid missing", legacy("x").without(&format!("{PREFIX}service-account.uid")))
            .refused("serviceAccountUID claim is missing"),
        of("audience of the other servers", legacy("x").with(json!({"aud": ["https://api.twin.example"]})))
            .refused("is invalid for the target audiences"),
        of("strange key", legacy("x").key("strange-p256")).refused("invalid signature, no keys found"),
    ]
    .into_iter()
    .map(|case| case.any_body(APART))
    .collect()
}

pub(crate) fn cases() -> Vec<Case> {
    [secrets(), claims(), without_lookup()].concat()
}
