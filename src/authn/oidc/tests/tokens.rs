//! Claims: accepted and refused tokens, and the resulting users.

use portcullis_kubernetes::user::{CREDENTIAL_ID_KEY, UserInfo};
use serde_json::{Value, json};

use super::support::{NOW, authenticate_claims, claim, claims, settings, user, without};
use crate::authn::oidc::settings::{ClaimRule, JwtAuthenticator};

type Case = (&'static str, fn(&mut JwtAuthenticator), Value, Result<Option<UserInfo>, &'static str>);

async fn check(cases: Vec<Case>) {
    let mut wrong = Vec::new();
    for (name, change, claims, expected) in cases {
        let mut settings = settings();
        change(&mut settings);
        let found = authenticate_claims(settings, &claims).await;
        if found != expected.map_err(str::to_owned) {
            wrong.push(format!("{name}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn of_email(settings: &mut JwtAuthenticator) {
    settings.username = claim("email", "");
}

fn with_groups(settings: &mut JwtAuthenticator) {
    settings.groups = Some(claim("groups", ""));
}

fn with_uid(settings: &mut JwtAuthenticator) {
    settings.uid = Some(claim("id", ""));
}

fn of_two_audiences(settings: &mut JwtAuthenticator) {
    settings.issuer.audiences = vec!["other".to_owned(), "my-client".to_owned()];
}

fn of_example_com(settings: &mut JwtAuthenticator) {
    let rule =
        |claim: &str, value: &str| ClaimRule::Required { claim: claim.to_owned(), value: value.to_owned() };
    settings.claim_rules = vec![rule("hd", "example.com"), rule("sub", "test")];
}

#[expect(clippy::unnecessary_wraps, reason = "an expected verdict")]
fn ok(name: &str) -> Result<Option<UserInfo>, &'static str> {
    Ok(Some(user(name, &[])))
}

#[tokio::test]
async fn user_names() {
    fn prefixed(settings: &mut JwtAuthenticator) {
        settings.username = claim("username", "oidc:");
    }
    let email = |more| without(&["username"], &more);
    check(vec![
        ("a claim", |_| (), claims(&json!({})), ok("jane")),
        ("a prefix", prefixed, claims(&json!({})), ok("oidc:jane")),
        ("no claim", |_| (), without(&["username"], &json!({})), Err("oidc: parse username claims \"username\": claim not present")),
        ("a number", |_| (), claims(&json!({"username": 5})), Err("oidc: parse username claims \"username\": json: cannot unmarshal number into Go value of type string")),
        ("empty", |_| (), claims(&json!({"username": ""})), ok("")),
        ("empty with a prefix", prefixed, claims(&json!({"username": ""})), ok("oidc:")),
        ("null", prefixed, claims(&json!({"username": null})), ok("oidc:")),
        ("of the system", |_| (), claims(&json!({"username": "system:admin"})), ok("system:admin")),
        ("email", of_email, email(json!({"email": "jane@example.com", "email_verified": true})), ok("jane@example.com")),
        ("email, without email_verified", of_email, email(json!({"email": "jane@example.com"})), ok("jane@example.com")),
        ("email, not verified", of_email, email(json!({"email": "jane@example.com", "email_verified": false})), Err("oidc: email not verified")),
        ("email, verified as a string", of_email, email(json!({"email": "jane@example.com", "email_verified": "true"})), Err("oidc: parse 'email_verified' claim: json: cannot unmarshal string into Go value of type bool")),
        ("email, null", of_email, email(json!({"email": "jane@example.com", "email_verified": null})), Err("oidc: email not verified")),
        ("another claim needs no verified email", |_| (), claims(&json!({"email_verified": false})), ok("jane")),
    ])
    .await;
}

#[tokio::test]
async fn groups() {
    fn prefixed(settings: &mut JwtAuthenticator) {
        settings.groups = Some(claim("groups", "oidc:"));
        settings.username = claim("username", "oidc:");
    }
    let is = |groups: &[&str]| Ok(Some(user("jane", groups)));
    check(vec![
        ("not configured", |_| (), claims(&json!({"groups": ["a"]})), is(&[])),
        ("a list", with_groups, claims(&json!({"groups": ["team1", "team2"]})), is(&["team1", "team2"])),
        ("text", with_groups, claims(&json!({"groups": "team1"})), is(&["team1"])),
        ("none", with_groups, claims(&json!({})), is(&[])),
        ("null", with_groups, claims(&json!({"groups": null})), is(&[])),
        ("an empty list", with_groups, claims(&json!({"groups": []})), is(&[])),
        ("an empty text", with_groups, claims(&json!({"groups": ""})), is(&[""])),
        ("null in a list", with_groups, claims(&json!({"groups": ["a", null]})), is(&["a", ""])),
        ("twice the same", with_groups, claims(&json!({"groups": ["a", "a"]})), is(&["a", "a"])),
        ("a number", with_groups, claims(&json!({"groups": 42})), Err("oidc: parse groups claim \"groups\": json: cannot unmarshal number into Go value of type string")),
        ("a number in a list", with_groups, claims(&json!({"groups": [42]})), Err("oidc: parse groups claim \"groups\": json: cannot unmarshal array into Go value of type string")),
        ("an object", with_groups, claims(&json!({"groups": {"a": "b"}})), Err("oidc: parse groups claim \"groups\": json: cannot unmarshal object into Go value of type string")),
        ("a prefix", prefixed, claims(&json!({"groups": ["team1", ""]})), Ok(Some(user("oidc:jane", &["oidc:team1", "oidc:"])))),
    ])
    .await;
}

#[tokio::test]
async fn uids_and_extra() {
    let mut with_id = user("jane", &[]);
    with_id.uid = Some("1234".to_owned());
    let mut with_jti = user("jane", &[]);
    with_jti.extra.insert(CREDENTIAL_ID_KEY.to_owned(), vec!["JTI=1234".to_owned()]);
    check(vec![
        ("uid", with_uid, claims(&json!({"id": "1234"})), Ok(Some(with_id))),
        ("no uid", with_uid, claims(&json!({})), Err("oidc: parse uid claim \"id\": claim not present")),
        (
            "a number as uid",
            with_uid,
            claims(&json!({"id": 5})),
            Err("oidc: parse uid claim \"id\": json: cannot unmarshal number into Go value of type string"),
        ),
        ("an empty uid", with_uid, claims(&json!({"id": ""})), ok("jane")),
        ("sub is not used as uid", |_| (), claims(&json!({"sub": "1234"})), ok("jane")),
        ("jti", |_| (), claims(&json!({"jti": "1234"})), Ok(Some(with_jti))),
        ("a number as jti", |_| (), claims(&json!({"jti": 1234})), ok("jane")),
        ("an empty jti", |_| (), claims(&json!({"jti": ""})), ok("jane")),
    ])
    .await;
}

#[tokio::test]
async fn required_claims() {
    check(vec![
        ("all there", of_example_com, claims(&json!({"hd": "example.com", "sub": "test"})), ok("jane")),
        (
            "one is missing",
            of_example_com,
            claims(&json!({"sub": "test"})),
            Err("oidc: required claim hd not present in ID token"),
        ),
        (
            "another value",
            of_example_com,
            claims(&json!({"hd": "example.org", "sub": "test"})),
            Err("oidc: required claim hd value does not match. Got = example.org, want = example.com"),
        ),
        (
            "a list",
            of_example_com,
            claims(&json!({"hd": ["example.com"], "sub": "test"})),
            Err("oidc: parse claim hd: json: cannot unmarshal array into Go value of type string"),
        ),
    ])
    .await;
}

#[tokio::test]
async fn audiences() {
    const ONE: Result<Option<UserInfo>, &str> =
        Err("oidc: verify token: oidc: expected audience \"my-client\" got [\"other-client\"]");
    const SEVERAL: Result<Option<UserInfo>, &str> = Err(
        "oidc: verify token: oidc: expected audience in [\"my-client\" \"other\"] got [\"no\" \"never\"]",
    );
    check(vec![
        ("another one", |_| (), claims(&json!({"aud": "other-client"})), ONE),
        ("another one in a list", |_| (), claims(&json!({"aud": ["other-client"]})), ONE),
        ("one of a list", |_| (), claims(&json!({"aud": ["not-my-client", "my-client"]})), ok("jane")),
        (
            "none",
            |_| (),
            without(&["aud"], &json!({})),
            Err("oidc: verify token: oidc: expected audience \"my-client\" got []"),
        ),
        (
            "null",
            |_| (),
            claims(&json!({"aud": null})),
            Err("oidc: verify token: oidc: expected audience \"my-client\" got [\"\"]"),
        ),
        (
            "of another case",
            |_| (),
            claims(&json!({"aud": "My-Client"})),
            Err("oidc: verify token: oidc: expected audience \"my-client\" got [\"My-Client\"]"),
        ),
        ("several expected", of_two_audiences, claims(&json!({})), ok("jane")),
        ("several match", of_two_audiences, claims(&json!({"aud": ["my-client", "other"]})), ok("jane")),
        ("none of several", of_two_audiences, claims(&json!({"aud": ["no", "never"]})), SEVERAL),
        (
            "expiry is checked before several audiences",
            of_two_audiences,
            claims(&json!({"aud": "no", "exp": NOW - 3600})),
            Err("oidc: verify token: oidc: token is expired (Token Expiry: 2023-11-14 21:13:20 +0000 UTC)"),
        ),
        (
            "a single audience is checked before expiry",
            |_| (),
            claims(&json!({"aud": "other-client", "exp": NOW - 3600})),
            ONE,
        ),
    ])
    .await;
}

#[tokio::test]
async fn times() {
    const NEVER: &str =
        "oidc: verify token: oidc: token is expired (Token Expiry: 0001-01-01 00:00:00 +0000 UTC)";
    const EARLY: &str = "oidc: verify token: oidc: current time 2023-11-14 22:13:20 +0000 UTC before the nbf (not before) time: 2023-11-14 22:14:21 +0000 UTC";
    let number = Err(
        "oidc: verify token: oidc: failed to unmarshal claims: json: invalid number literal, trying to unmarshal a text into Number (claim \"exp\")",
    );
    check(vec![
        ("just not expired", |_| (), claims(&json!({"exp": NOW})), ok("jane")),
        ("just expired", |_| (), claims(&json!({"exp": NOW - 1})), Err("oidc: verify token: oidc: token is expired (Token Expiry: 2023-11-14 22:13:19 +0000 UTC)")),
        ("a fraction is cut off", |_| (), claims(&json!({"exp": 1_700_000_000.9})), ok("jane")),
        ("text", |_| (), claims(&json!({"exp": "1700000000"})), ok("jane")),
        ("no number", |_| (), claims(&json!({"exp": "tomorrow"})), number.clone()),
        ("null", |_| (), claims(&json!({"exp": null})), number),
        ("no expiry", |_| (), without(&["exp"], &json!({})), Err(NEVER)),
        ("nbf now", |_| (), claims(&json!({"nbf": NOW})), ok("jane")),
        ("nbf in a minute", |_| (), claims(&json!({"nbf": NOW + 60})), ok("jane")),
        ("nbf in more", |_| (), claims(&json!({"nbf": NOW + 61})), Err(EARLY)),
        ("nbf null", |_| (), claims(&json!({"nbf": null})), ok("jane")),
        ("iat in the future", |_| (), claims(&json!({"iat": NOW + 3600})), ok("jane")),
        ("sub of the wrong type", |_| (), claims(&json!({"sub": 5})), Err("oidc: verify token: oidc: failed to unmarshal claims: json: cannot unmarshal number into Go value of type string (claim \"sub\")")),
    ])
    .await;
    for far in [i64::MAX, i64::MIN] {
        let found = authenticate_claims(settings(), &claims(&json!({"exp": far}))).await.unwrap_err();
        assert!(found.starts_with("oidc: verify token: oidc: token is expired"), "{found}");
    }
    let found = authenticate_claims(settings(), &claims(&json!({"exp": 1e300}))).await.unwrap_err();
    assert!(found.starts_with("oidc: verify token: oidc: token is expired"), "{found}");
}

#[tokio::test]
async fn issuers() {
    fn google(settings: &mut JwtAuthenticator) {
        settings.issuer.url = "https://accounts.google.com".to_owned();
    }
    check(vec![
        ("another one", |_| (), claims(&json!({"iss": "https://example.com"})), Ok(None)),
        ("with a trailing slash", |_| (), claims(&json!({"iss": "https://issuer.example/"})), Ok(None)),
        ("none", |_| (), without(&["iss"], &json!({})), Ok(None)),
        ("a list", |_| (), claims(&json!({"iss": ["https://issuer.example"]})), Ok(None)),
        (
            "the right issuer but another client",
            |_| (),
            claims(&json!({"aud": "other-client"})),
            Err("oidc: verify token: oidc: expected audience \"my-client\" got [\"other-client\"]"),
        ),
        (
            "of Google, before discovery",
            google,
            claims(&json!({"iss": "accounts.google.com"})),
            Err("oidc: authenticator not initialized"),
        ),
    ])
    .await;
}
