//! Distributed claims.

use std::sync::Arc;

use futures_util::future::join_all;
use portcullis_kubernetes::user::UserInfo;
use serde_json::{Value, json};
use tokio::time::{Duration, advance, timeout};

use super::support::{
    CONFIGURATION, FakeWeb, ISSUER, NOW, OTHER_RSA, RSA, authenticate, authenticator, claim, claims,
    settings, user,
};
use crate::authn::AuthnError;
use crate::authn::oidc::settings::JwtAuthenticator;

const GROUPS: &str = "https://issuer.example/groups";
const OTHER: &str = "https://other.example";
const OTHER_CONFIGURATION: &str = "https://other.example/.well-known/openid-configuration";
const OTHER_KEYS: &str = "https://other.example/keys";

fn of_groups(name: &str) -> JwtAuthenticator {
    let mut settings = settings();
    settings.groups = Some(claim(name, ""));
    settings
}

/// Claims of a token whose groups are distributed.
fn elsewhere(more: &Value) -> Value {
    let mut claims = claims(&json!({
        "_claim_names": {"groups": "src1"},
        "_claim_sources": {"src1": {"endpoint": GROUPS, "access_token": "groups_token"}},
    }));
    claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    claims
}

/// The endpoint's response: a token with these additional claims.
fn answer(more: &Value) -> String {
    RSA.token("RS256", &claims(more))
}

async fn authenticate_with(
    settings: JwtAuthenticator,
    web: &Arc<FakeWeb>,
    claims: &Value,
) -> Result<Option<UserInfo>, String> {
    let authenticator = authenticator(settings, web).await;
    authenticate(&*authenticator, &RSA.token("RS256", claims)).await.map_err(|error| error.to_string())
}

type Case = (&'static str, Value, Result<&'static [&'static str], &'static str>);

async fn check(body: &str, cases: Vec<Case>) {
    let mut wrong = Vec::new();
    for (name, claims, expected) in cases {
        let web = FakeWeb::of_issuer(&[RSA.jwk("key")]);
        web.serve(GROUPS, body);
        let found = authenticate_with(of_groups("groups"), &web, &claims).await;
        if found != expected.map(|groups| Some(user("jane", groups))).map_err(str::to_owned) {
            wrong.push(format!("{name}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn groups_come_from_the_claim_source() {
    const TEAMS: Result<&[&str], &str> = Ok(&["team1", "team2"]);
    let source = |more: Value| elsewhere(&json!({"_claim_sources": {"src1": more}}));
    check(
        &answer(&json!({"groups": ["team1", "team2"]})),
        vec![
            ("one endpoint", elsewhere(&json!({})), TEAMS),
            ("a claim in the token wins", elsewhere(&json!({"groups": ["here"]})), Ok(&["here"])),
            ("so does null", elsewhere(&json!({"groups": null})), Ok(&[])),
            ("aggregated", source(json!({"JWT": "some.other.token"})), Ok(&[])),
            ("no endpoint", source(json!({"endpoint": ""})), Ok(&[])),
            ("another claim", elsewhere(&json!({"_claim_names": {"rabbits": "src1"}})), Ok(&[])),
            ("no names", elsewhere(&json!({"_claim_names": null})), Ok(&[])),
            (
                "an unknown source",
                elsewhere(&json!({"_claim_names": {"groups": "nobody"}})),
                Err("oidc: verify token: oidc: source does not exist"),
            ),
            (
                "no sources",
                elsewhere(&json!({"_claim_sources": null})),
                Err("oidc: verify token: oidc: source does not exist"),
            ),
            (
                "no source",
                elsewhere(&json!({"_claim_names": {"groups": ""}})),
                Err("oidc: verify token: oidc: failed to obtain source from claim name"),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn responses_are_verified_like_tokens() {
    let list = json!({"groups": ["team1"]});
    let with = |more: Value| {
        let mut all = list.clone();
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        answer(&all)
    };
    let cases: Vec<(String, Result<&'static [&'static str], &'static str>)> = vec![
        (format!("{}\n", with(json!({}))), Ok(&["team1"])),
        (with(json!({"groups": "team1"})), Ok(&["team1"])),
        (
            answer(&json!({})),
            Err(
                "oidc: could not expand distributed claims: jwt returned by distributed claim endpoint \"https://issuer.example/groups\" did not contain claim: groups",
            ),
        ),
        (
            with(json!({"aud": "your-client"})),
            Err(
                "oidc: could not expand distributed claims: verify distributed claim token: oidc: expected audience \"my-client\" got [\"your-client\"]",
            ),
        ),
        (
            with(json!({"exp": NOW - 3600})),
            Err(
                "oidc: could not expand distributed claims: verify distributed claim token: oidc: token is expired (Token Expiry: 2023-11-14 21:13:20 +0000 UTC)",
            ),
        ),
        (
            OTHER_RSA.token("RS256", &claims(&list)),
            Err(
                "oidc: could not expand distributed claims: verify distributed claim token: failed to verify signature: failed to verify id token signature",
            ),
        ),
        (
            RSA.token("PS256", &claims(&list)),
            Err(
                "oidc: could not expand distributed claims: verify distributed claim token: oidc: id token signed with unsupported algorithm, expected [\"RS256\"] got \"PS256\"",
            ),
        ),
        (
            list.to_string(),
            Err(
                "oidc: could not expand distributed claims: getting untrusted issuer from endpoint https://issuer.example/groups failed for claim \"groups\": malformed token",
            ),
        ),
    ];
    for (body, expected) in cases {
        check(&body, vec![("", elsewhere(&json!({})), expected)]).await;
    }
}

#[tokio::test]
async fn the_access_token_is_sent_to_its_endpoint_only() {
    let web = FakeWeb::of_issuer(&[RSA.jwk("key")]);
    web.serve("https://issuer.example/rabbits", &answer(&json!({"rabbits": ["team1"]})));
    let names = json!({
        "_claim_names": {"rabbits": "src1", "groups": "src2"},
        "_claim_sources": {
            "src1": {"endpoint": "https://issuer.example/rabbits", "access_token": "rabbits_token"},
            "src2": {"endpoint": GROUPS, "access_token": "groups_token"},
        },
    });
    let found = authenticate_with(of_groups("rabbits"), &web, &claims(&names)).await;
    assert_eq!(found, Ok(Some(user("jane", &["team1"]))));
    assert_eq!(web.bearers("https://issuer.example/rabbits"), [Some("rabbits_token".to_owned())]);
    assert_eq!(web.bearers(CONFIGURATION), [None]);
    assert_eq!(web.requests_for(GROUPS), 0);

    let mut settings = settings();
    settings.groups = Some(claim("rabbits", "groups:"));
    let found = authenticate_with(settings, &web, &claims(&names)).await;
    assert_eq!(found, Ok(Some(user("jane", &["groups:team1"]))));
}

#[tokio::test]
async fn an_unreachable_endpoint_is_reported() {
    let web = FakeWeb::of_issuer(&[RSA.jwk("key")]);
    for (answer, expected) in [
        (Some((500, "")), "error while getting distributed claim JWT: 500 Internal Server Error"),
        (Some((302, "")), "error while getting distributed claim JWT: 302 Found"),
        (Some((227, "")), "error while getting distributed claim JWT: 227"),
        (None, "cannot be reached"),
    ] {
        match answer {
            Some((status, body)) => web.answer(GROUPS, status, body),
            None => web.fail(GROUPS, "cannot be reached"),
        }
        let authenticator = authenticator(of_groups("groups"), &web).await;
        let error =
            authenticate(&*authenticator, &RSA.token("RS256", &elsewhere(&json!({})))).await.unwrap_err();
        let prefix =
            "oidc: could not expand distributed claims: while getting distributed claim \"groups\": ";
        assert_eq!(error.to_string(), format!("{prefix}{expected}"));
        assert!(error.is_unavailable(), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_may_have_another_issuer() {
    let web = FakeWeb::of_issuer(&[RSA.jwk("key")]);
    let list = json!({"iss": OTHER, "groups": ["team1"]});
    web.serve(GROUPS, &OTHER_RSA.token("RS256", &claims(&list)));
    let authenticator = authenticator(of_groups("groups"), &web).await;
    let token = RSA.token("RS256", &elsewhere(&json!({})));
    let unknown = "oidc: could not expand distributed claims: verifying untrusted issuer https://other.example failed: verifier not initialized for issuer: \"https://other.example\"";
    for _ in 0..3 {
        assert_eq!(authenticate(&*authenticator, &token).await.unwrap_err().to_string(), unknown);
    }
    assert_eq!(web.requests_for(OTHER_CONFIGURATION), 1, "one attempt in ten seconds");
    web.serve(OTHER_CONFIGURATION, &json!({"issuer": OTHER, "jwks_uri": OTHER_KEYS}).to_string());
    web.serve(OTHER_KEYS, &json!({"keys": [OTHER_RSA.jwk("key")]}).to_string());
    assert_eq!(authenticate(&*authenticator, &token).await.unwrap_err().to_string(), unknown);
    advance(Duration::from_secs(10)).await;
    assert_eq!(authenticate(&*authenticator, &token).await, Ok(Some(user("jane", &["team1"]))));

    // The other issuer may sign a claim, not an ID token of this issuer.
    let forged = OTHER_RSA.token("RS256", &claims(&json!({"iss": ISSUER})));
    assert!(authenticate(&*authenticator, &forged).await.is_err());
    assert_eq!(authenticate(&*authenticator, &OTHER_RSA.token("RS256", &claims(&list))).await, Ok(None));
}

#[tokio::test]
async fn the_number_of_claim_issuers_is_limited() {
    let web = FakeWeb::of_issuer(&[RSA.jwk("key")]);
    let authenticator = authenticator(of_groups("groups"), &web).await;
    let token = RSA.token("RS256", &elsewhere(&json!({})));
    for number in 0..100 {
        let issuer = format!("{OTHER}/{number}");
        web.serve(GROUPS, &OTHER_RSA.token("RS256", &claims(&json!({"iss": issuer, "groups": ["a"]}))));
        assert!(authenticate(&*authenticator, &token).await.is_err());
    }
    let requests = (0..100)
        .map(|n| web.requests_for(&format!("{OTHER}/{n}/.well-known/openid-configuration")))
        .sum::<usize>();
    assert_eq!(requests, 64);
}

/// Serves a claim issuer and its response.
fn serve_other(web: &FakeWeb, issuer: &str) {
    let claims = claims(&json!({"iss": issuer, "groups": ["team1"]}));
    web.serve(GROUPS, &OTHER_RSA.token("RS256", &claims));
    let keys = format!("{issuer}/keys");
    let configuration = json!({"issuer": issuer, "jwks_uri": keys});
    web.serve(&format!("{issuer}/.well-known/openid-configuration"), &configuration.to_string());
    web.serve(&keys, &json!({"keys": [OTHER_RSA.jwk("key")]}).to_string());
}

#[tokio::test(start_paused = true)]
async fn issuers_without_a_verified_token_are_evicted_first() {
    let web = FakeWeb::of_issuer(&[RSA.jwk("key")]);
    let authenticator = authenticator(of_groups("groups"), &web).await;
    let token = RSA.token("RS256", &elsewhere(&json!({})));
    serve_other(&web, OTHER);
    assert_eq!(authenticate(&*authenticator, &token).await, Ok(Some(user("jane", &["team1"]))));
    for number in 0..100 {
        let issuer = format!("{OTHER}/{number}");
        web.serve(GROUPS, &OTHER_RSA.token("RS256", &claims(&json!({"iss": issuer, "groups": ["a"]}))));
        assert!(authenticate(&*authenticator, &token).await.is_err());
    }
    serve_other(&web, "https://new.example");
    assert!(
        authenticate(&*authenticator, &token).await.is_err(),
        "no issuer is evicted within ten seconds of its last use"
    );
    advance(Duration::from_secs(10)).await;
    assert_eq!(authenticate(&*authenticator, &token).await, Ok(Some(user("jane", &["team1"]))));
    // The issuer with a verified token is still cached: discovery does not run again.
    serve_other(&web, OTHER);
    assert_eq!(authenticate(&*authenticator, &token).await, Ok(Some(user("jane", &["team1"]))));
    assert_eq!(web.requests_for(OTHER_CONFIGURATION), 1);
}

#[tokio::test(start_paused = true)]
async fn revoked_keys_of_claim_issuers_are_removed_by_the_periodic_refresh() {
    let web = FakeWeb::of_issuer(&[RSA.jwk("key")]);
    let authenticator = authenticator(of_groups("groups"), &web).await;
    let token = RSA.token("RS256", &elsewhere(&json!({})));
    serve_other(&web, OTHER);
    assert_eq!(authenticate(&*authenticator, &token).await, Ok(Some(user("jane", &["team1"]))));
    // Also after a settings change: the refresh of the first authenticator serves the second one.
    let changed = authenticator.with_settings(of_groups("groups"));
    web.serve(OTHER_KEYS, &json!({"keys": []}).to_string());
    let beside = async {
        tokio::time::sleep(Duration::from_secs(301)).await;
        for authenticator in [&*authenticator, &changed] {
            let error = authenticate(authenticator, &token).await.unwrap_err().to_string();
            assert!(error.ends_with("failed to verify id token signature"), "{error}");
        }
    };
    tokio::select! {
        () = authenticator.keep_fresh() => {}
        () = beside => {}
    }
}

#[tokio::test]
async fn errors_do_not_quote_a_possible_access_token() {
    let names = json!({"groups": "src1"});
    for (names, sources, expected) in [
        (json!("hunter2"), json!({}), "_claim_names"),
        (json!({"groups": ["hunter2"]}), json!({}), "_claim_names"),
        (names.clone(), json!("hunter2"), "_claim_sources"),
        (names.clone(), json!({"src1": "hunter2"}), "_claim_sources"),
        (names.clone(), json!({"src1": [GROUPS, "hunter2", null]}), "_claim_sources"),
        (names.clone(), json!({"src1": {"endpoint": GROUPS, "access_token": ["hunter2"]}}), "_claim_sources"),
    ] {
        let web = FakeWeb::of_issuer(&[RSA.jwk("key")]);
        let more = json!({"_claim_names": names, "_claim_sources": sources});
        let error = authenticate_with(of_groups("groups"), &web, &claims(&more)).await.unwrap_err();
        let text = format!("{expected} has the wrong type");
        assert_eq!(error, format!("oidc: verify token: oidc: failed to unmarshal claims: {text}"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_hangs_delays_a_limited_number_of_tokens() {
    let web = FakeWeb::of_issuer(&[RSA.jwk("key")]);
    let authenticator = authenticator(of_groups("groups"), &web).await;
    web.hang(GROUPS);
    let token = RSA.token("RS256", &elsewhere(&json!({})));
    let requests = (0..100).map(|_| timeout(Duration::from_secs(1), authenticate(&*authenticator, &token)));
    let (hung, refused): (Vec<_>, Vec<_>) = join_all(requests).await.into_iter().partition(Result::is_err);
    assert_eq!((hung.len(), refused.len()), (32, 68));
    let error = "oidc: could not expand distributed claims: too many tokens are waiting for the distributed claim \"groups\"";
    let error = AuthnError::Unavailable(error.to_owned());
    assert!(refused.iter().all(|refused| *refused == Ok(Err(error.clone()))));
    let plain = RSA.token("RS256", &claims(&json!({"groups": ["a"]})));
    assert_eq!(authenticate(&*authenticator, &plain).await, Ok(Some(user("jane", &["a"]))));
}
