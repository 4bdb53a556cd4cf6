//! OIDC discovery, key rotation, metrics and traces.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::{Duration, Instant, advance, timeout};

use super::support::{
    CONFIGURATION, FakeWeb, ISSUER, KEYS, Key, OTHER_RSA, RSA, authenticate, authenticator, claims, new,
    settings, user,
};
use crate::authn::oidc::settings::JwtAuthenticator;
use crate::authn::testing::TestRequest;
use crate::authn::trace::{AuthnTrace, Check, StepOutcome};
use crate::authn::{AuthnError, BearerToken, TokenAuthenticator as _};
use crate::metrics::Metrics;

fn configuration(issuer: &str) -> String {
    json!({"issuer": issuer, "jwks_uri": KEYS}).to_string()
}

#[tokio::test]
async fn the_discovery_document_is_below_the_issuer_or_at_the_discovery_url() {
    const DISCOVERY: &str = "https://inside.example/c/d/.well-known/openid-configuration";
    for (issuer, discovery, found_at) in [
        (ISSUER, None, CONFIGURATION),
        ("https://issuer.example/", None, CONFIGURATION),
        ("https://issuer.example/a/b", None, "https://issuer.example/a/b/.well-known/openid-configuration"),
        ("https://issuer.example//", None, "https://issuer.example//.well-known/openid-configuration"),
        (ISSUER, Some(DISCOVERY), DISCOVERY),
        ("https://issuer.example/a/b", Some(DISCOVERY), DISCOVERY),
        ("https://issuer.example/a/b/", Some(DISCOVERY), DISCOVERY),
        (ISSUER, Some("https://inside.example"), "https://inside.example"),
    ] {
        let web = Arc::new(FakeWeb::default());
        web.serve(found_at, &configuration(issuer));
        web.serve_keys(&[RSA.jwk("key")]);
        let mut settings = settings();
        settings.issuer.url = issuer.to_owned();
        settings.issuer.discovery_url = discovery.map(str::to_owned);
        let authenticator = authenticator(settings, &web).await;
        assert_eq!(authenticator.health(), Ok(()), "{issuer} {discovery:?}");
        let token = RSA.token("RS256", &claims(&json!({"iss": issuer})));
        assert_eq!(authenticate(&*authenticator, &token).await, Ok(Some(user("jane", &[]))), "{issuer}");
    }
}

#[tokio::test]
async fn google_has_two_issuer_spellings() {
    let url = "https://accounts.google.com";
    let web = Arc::new(FakeWeb::default());
    web.serve("https://accounts.google.com/.well-known/openid-configuration", &configuration(url));
    web.serve_keys(&[RSA.jwk("key")]);
    let mut settings = settings();
    settings.issuer.url = url.to_owned();
    let google = authenticator(settings, &web).await;
    for issuer in ["accounts.google.com", url] {
        let token = RSA.token("RS256", &claims(&json!({"iss": issuer})));
        assert_eq!(authenticate(&*google, &token).await, Ok(Some(user("jane", &[]))), "{issuer}");
    }
    for issuer in ["http://accounts.google.com", "https://accounts.google.com/", "Accounts.google.com"] {
        let token = RSA.token("RS256", &claims(&json!({"iss": issuer})));
        assert_eq!(authenticate(&*google, &token).await, Ok(None), "{issuer}");
    }
}

#[tokio::test]
async fn health_reports_the_discovery_error() {
    let unhealthy = |text: &str| {
        Err(format!("oidc: authenticator for issuer \"https://issuer.example\" is not healthy: {text}"))
    };
    let web = Arc::new(FakeWeb::default());
    let first = new(settings(), &web, &Metrics::new());
    assert_eq!(
        first.health(),
        unhealthy("oidc: authenticator for issuer \"https://issuer.example\" is not initialized")
    );
    let cases = [
        (404, "", "404 Not Found"),
        (302, "", "302 Found"),
        (204, "", "204 No Content"),
        (
            200,
            "",
            "oidc: failed to decode provider discovery object: EOF while parsing a value at line 1 column 0",
        ),
        (
            200,
            r#"["https://issuer.example","https://issuer.example/keys"]"#,
            "oidc: failed to decode provider discovery object: invalid type: sequence, expected an object at line 1 column 0",
        ),
        (
            200,
            "{}",
            "oidc: issuer did not match the issuer returned by provider, expected \"https://issuer.example\" got \"\"",
        ),
        (
            200,
            r#"{"issuer":"https://issuer.example/","jwks_uri":"https://issuer.example/keys"}"#,
            "oidc: issuer did not match the issuer returned by provider, expected \"https://issuer.example\" got \"https://issuer.example/\"",
        ),
        (200, r#"{"issuer":"https://issuer.example"}"#, "provider did not return JWKS URL"),
        (200, r#"{"issuer":"https://issuer.example","jwks_uri":""}"#, "provider did not return JWKS URL"),
        (200, r#"{"issuer":"https://issuer.example","jwks_uri":null}"#, "provider did not return JWKS URL"),
    ];
    for (status, body, expected) in cases {
        web.answer(CONFIGURATION, status, body);
        let authenticator = authenticator(settings(), &web).await;
        assert_eq!(authenticator.health(), unhealthy(expected), "{status} {body}");
        let found = authenticate(&*authenticator, &RSA.token("RS256", &claims(&json!({})))).await;
        assert_eq!(found, Err(AuthnError::Unavailable("oidc: authenticator not initialized".to_owned())));
        assert_eq!(authenticate(&*authenticator, "opaque").await, Ok(None));
    }
    web.fail(CONFIGURATION, "cannot be reached");
    assert_eq!(authenticator(settings(), &web).await.health(), unhealthy("cannot be reached"));
}

#[tokio::test]
async fn keys_at_an_http_url_of_the_issuers_host_are_fetched_by_tls() {
    const INSIDE: &str = "https://inside.example:8443/.well-known/openid-configuration";
    for (listed, discovery, fetched) in [
        ("http://issuer.example/keys", None, KEYS),
        ("http://ISSUER.example:80/keys", None, KEYS),
        ("http://issuer.example:8080/keys", None, KEYS),
        ("http://inside.example/keys?a=b", Some(INSIDE), "https://inside.example:8443/keys?a=b"),
        // Not by plain HTTP from any other host: `HttpsClient` refuses the URL.
        ("http://other.example/keys", None, "http://other.example/keys"),
        ("http://issuer.example.other/keys", None, "http://issuer.example.other/keys"),
        ("http://inside.example/keys", None, "http://inside.example/keys"),
    ] {
        let web = Arc::new(FakeWeb::default());
        let document = json!({"issuer": ISSUER, "jwks_uri": listed}).to_string();
        web.serve(discovery.unwrap_or(CONFIGURATION), &document);
        let mut settings = settings();
        settings.issuer.discovery_url = discovery.map(str::to_owned);
        let authenticator = authenticator(settings, &web).await;
        authenticate(&*authenticator, &RSA.token("RS256", &claims(&json!({})))).await.ok();
        assert_eq!(web.requests_for(fetched), 1, "{listed}");
    }
}

#[tokio::test(start_paused = true)]
async fn discovery_is_retried_until_it_succeeds() {
    let web = Arc::new(FakeWeb::default());
    let authenticator = new(settings(), &web, &Metrics::new());
    let run = tokio::spawn({
        let authenticator = Arc::clone(&authenticator);
        async move { authenticator.run().await }
    });
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(25) {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(web.requests_for(CONFIGURATION), 3);
    web.serve(CONFIGURATION, &configuration(ISSUER));
    web.serve_keys(&[RSA.jwk("key")]);
    run.await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 30);
    assert_eq!(authenticator.health(), Ok(()));
    assert_eq!(web.requests_for(KEYS), 0, "keys are fetched for the first token");
    let token = RSA.token("RS256", &claims(&json!({})));
    assert_eq!(authenticate(&*authenticator, &token).await, Ok(Some(user("jane", &[]))));
}

#[tokio::test(start_paused = true)]
async fn keys_are_rotated_and_kept_while_the_issuer_is_unreachable() {
    let web = FakeWeb::of_issuer(&[RSA.jwk("old")]);
    let authenticator = authenticator(settings(), &web).await;
    let body = claims(&json!({})).to_string();
    let old = RSA.token_of(&json!({"alg": "RS256", "kid": "old"}), body.as_bytes());
    let fresh = OTHER_RSA.token_of(&json!({"alg": "RS256", "kid": "new"}), body.as_bytes());
    let jane = Ok(Some(user("jane", &[])));
    assert_eq!(authenticate(&*authenticator, &old).await, jane);
    assert_eq!(authenticate(&*authenticator, &old).await, jane);
    assert_eq!(web.requests_for(KEYS), 1, "cached keys are not fetched again");

    web.serve_keys(&[RSA.jwk("old"), OTHER_RSA.jwk("new")]);
    advance(Duration::from_millis(1)).await;
    assert_eq!(authenticate(&*authenticator, &fresh).await, jane);
    assert_eq!(web.requests_for(KEYS), 2);

    web.fail(KEYS, "cannot be reached");
    web.fail(CONFIGURATION, "cannot be reached");
    advance(Duration::from_hours(24)).await;
    assert_eq!(authenticate(&*authenticator, &old).await, jane);
    assert_eq!(authenticate(&*authenticator, &fresh).await, jane);
    let unknown = RSA.token_of(&json!({"alg": "RS256", "kid": "third"}), body.as_bytes());
    let found = authenticate(&*authenticator, &unknown).await.unwrap_err();
    assert!(found.is_unavailable(), "{found:?}");
    assert_eq!(
        found.to_string(),
        "oidc: verify token: failed to verify signature: fetching keys oidc: get keys failed cannot be reached"
    );
    for (status, body, expected) in [
        (500, "", "oidc: get keys failed: 500 Internal Server Error"),
        (200, "", "failed to decode keys: EOF while parsing a value at line 1 column 0"),
    ] {
        web.answer(KEYS, status, body);
        advance(Duration::from_millis(1)).await;
        let found = authenticate(&*authenticator, &unknown).await.unwrap_err().to_string();
        assert_eq!(
            found,
            format!("oidc: verify token: failed to verify signature: fetching keys {expected}")
        );
        assert_eq!(authenticate(&*authenticator, &old).await, jane, "{expected}");
    }

    web.serve_keys(&[OTHER_RSA.jwk("new")]);
    advance(Duration::from_millis(1)).await;
    assert!(authenticate(&*authenticator, &unknown).await.is_err());
    assert!(authenticate(&*authenticator, &old).await.is_err(), "a revoked key");
}

#[tokio::test(start_paused = true)]
async fn a_revoked_key_is_removed_by_the_periodic_refresh() {
    let web = FakeWeb::of_issuer(&[RSA.jwk("old"), OTHER_RSA.jwk("new")]);
    let authenticator = authenticator(settings(), &web).await;
    let body = claims(&json!({})).to_string();
    let token = |key: &Key, id: &str| key.token_of(&json!({"alg": "RS256", "kid": id}), body.as_bytes());
    let (old, fresh) = (token(&RSA, "old"), token(&OTHER_RSA, "new"));
    let jane = Ok(Some(user("jane", &[])));
    assert_eq!(authenticate(&*authenticator, &old).await, jane);
    web.serve_keys(&[OTHER_RSA.jwk("new")]);
    timeout(Duration::from_mins(6), authenticator.keep_fresh()).await.unwrap_err();
    assert!(authenticate(&*authenticator, &old).await.is_err());
    assert_eq!(authenticate(&*authenticator, &fresh).await, jane);
}

#[tokio::test]
async fn metrics_label_the_issuer_by_its_hash() {
    // printf %s https://issuer.example | sha256sum
    const HASH: &str = "sha256:ffb55acfff1cbc1b78adb75565bb3ff6e96ee5b7830905fe7feadc7d97736da8";
    let metrics = Metrics::new();
    let web = FakeWeb::of_issuer(&[RSA.jwk("key")]);
    let authenticator = new(settings(), &web, &metrics);
    authenticator.provider.initialize().await;
    let lines = || {
        let (text, _) = metrics.render();
        let ours = |line: &&str| {
            line.contains("jwt_authenticator")
                && !line.starts_with('#')
                && !line.contains("_bucket")
                && !line.contains("_sum")
        };
        text.lines().filter(ours).map(str::to_owned).collect::<Vec<_>>()
    };
    authenticate(&*authenticator, "opaque").await.unwrap();
    authenticate(&*authenticator, &RSA.token("RS256", &claims(&json!({"iss": "https://example.com"}))))
        .await
        .unwrap();
    assert_eq!(lines(), Vec::<String>::new(), "tokens of other issuers are not counted");

    authenticate(&*authenticator, &RSA.token("RS256", &claims(&json!({})))).await.unwrap();
    authenticate(&*authenticator, &RSA.token("RS256", &claims(&json!({"exp": 0})))).await.unwrap_err();
    let name = "apiserver_authentication_jwt_authenticator";
    let first = lines();
    let expected = |result: &str| {
        format!(
            "{name}_jwks_fetch_last_timestamp_seconds{{jwt_issuer_hash=\"{HASH}\",result=\"{result}\"}} 1700000000"
        )
    };
    assert!(first.contains(&expected("success")), "{first:?}");
    assert!(!first.contains(&expected("failure")), "{first:?}");
    for result in ["success", "failure"] {
        let count =
            format!("{name}_latency_seconds_count{{jwt_issuer_hash=\"{HASH}\",result=\"{result}\"}} 1");
        assert!(first.contains(&count), "{first:?}");
    }
    let info = |lines: &[String]| {
        lines.iter().filter(|line| line.contains("key_set_info")).cloned().collect::<Vec<_>>()
    };
    assert_eq!(info(&first).len(), 1, "{first:?}");

    web.serve_keys(&[RSA.jwk("key"), OTHER_RSA.jwk("new")]);
    let body = claims(&json!({})).to_string();
    let fresh = OTHER_RSA.token_of(&json!({"alg": "RS256", "kid": "new"}), body.as_bytes());
    authenticate(&*authenticator, &fresh).await.unwrap();
    let second = lines();
    assert_eq!(info(&second).len(), 1, "{second:?}");
    assert_ne!(info(&second), info(&first));

    web.serve(KEYS, "no key set");
    let unknown = OTHER_RSA.token_of(&json!({"alg": "RS256", "kid": "third"}), body.as_bytes());
    authenticate(&*authenticator, &unknown).await.unwrap_err();
    let third = lines();
    assert!(third.contains(&expected("failure")), "{third:?}");
    assert_eq!(info(&third), info(&second), "the last key set that could be parsed");

    let again = new(settings(), &web, &metrics);
    drop(authenticator);
    assert_eq!(lines(), third, "the issuer is still configured");
    drop(again);
    assert!(lines().is_empty(), "{:?}", lines());
}

#[tokio::test]
async fn every_check_is_traced_without_the_token() {
    let mut settings: JwtAuthenticator = settings();
    settings.groups = Some(super::support::claim("groups", ""));
    let web = FakeWeb::of_issuer(&[RSA.jwk("key")]);
    let authenticator = authenticator(settings, &web).await;
    let good = claims(&json!({"groups": ["a"], "jti": "1"}));
    let steps = async |claims: &Value| {
        let mut request = TestRequest::new();
        request.trace = AuthnTrace::with_steps();
        let token = RSA.token("RS256", claims);
        let input = request.input();
        authenticator.authenticate(&BearerToken::new(token.as_str()), input.for_tokens()).await.ok();
        let noted = request.trace.take().steps;
        let signature = token.rsplit_once('.').unwrap().1;
        assert!(!format!("{noted:?}").contains(signature), "{noted:?}");
        noted
    };
    let noted = steps(&good).await;
    let names: Vec<_> = noted.iter().map(|step| step.check.to_string()).collect();
    assert_eq!(
        names,
        [
            "iss",
            "initialized",
            "token",
            "algorithm",
            "signature",
            "claims",
            "aud",
            "exp",
            "nbf",
            "username",
            "groups",
            "uid",
            "extra"
        ]
    );
    assert!(noted.iter().all(|step| step.authenticator == "jwt https://issuer.example"), "{noted:?}");
    assert!(noted.iter().all(|step| step.outcome != StepOutcome::Failed), "{noted:?}");

    let noted = steps(&claims(&json!({"aud": "other"}))).await;
    let last = noted.last().unwrap();
    assert_eq!((&last.check, last.outcome), (&Check::Audience, StepOutcome::Failed));
    assert_eq!(last.detail, "oidc: expected audience \"my-client\" got [\"other\"]");

    let noted = steps(&claims(&json!({"iss": "https://example.com"}))).await;
    assert_eq!(noted.len(), 1);
    assert_eq!((noted[0].check.to_string().as_str(), noted[0].outcome), ("iss", StepOutcome::NotApplicable));
}
