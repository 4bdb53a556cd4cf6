//! What providers answer to a refresh that they refuse, in their own words, for a user at a terminal and for a pipe.

use super::*;

/// What a refusal means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// Log in again; the refresh token may still be good.
    Refused,
    /// Log in again; the refresh token is not.
    Forgotten,
    /// Wait.
    Temporary,
}

use Meaning::{Forgotten, Refused, Temporary};

struct Row {
    provider: &'static str,
    /// Where the words stand.
    source: &'static str,
    status: u16,
    body: &'static str,
    meaning: Meaning,
    /// A part of the message.
    words: &'static str,
}

const ROWS: &[Row] = &[
    Row {
        provider: "Dex: the token was revoked, or claimed twice",
        source: "dexidp/dex server/refreshhandlers.go, getRefreshTokenFromStorage",
        status: 400,
        body: r#"{"error":"invalid_request","error_description":"Refresh token is invalid or has already been claimed by another client."}"#,
        meaning: Refused,
        words: "(invalid_request: Refresh token is invalid or has already been claimed by another client.)",
    },
    Row {
        provider: "Dex: the token has expired",
        source: "dexidp/dex server/refreshhandlers.go, expiredErr",
        status: 400,
        body: r#"{"error":"invalid_request","error_description":"Refresh token expired."}"#,
        meaning: Refused,
        words: "(invalid_request: Refresh token expired.)",
    },
    Row {
        provider: "Dex: its storage or its connector fails",
        source: "dexidp/dex server/refreshhandlers.go, newInternalServerError",
        status: 500,
        body: r#"{"error":"invalid_request"}"#,
        meaning: Temporary,
        words: "500 Internal Server Error (invalid_request)",
    },
    Row {
        provider: "Entra ID: a second factor is needed now",
        source: "learn.microsoft.com/entra/identity-platform/reference-error-codes, AADSTS50076",
        status: 400,
        body: r#"{"error":"interaction_required","error_description":"AADSTS50076: Due to a configuration change made by your administrator, or because you moved to a new location, you must use multi-factor authentication to access the resource.","error_codes":[50076],"suberror":"basic_action"}"#,
        meaning: Refused,
        words: "(interaction_required: AADSTS50076: Due to a configuration change",
    },
    Row {
        provider: "Entra ID: a login is wanted every few hours",
        source: "github.com/Azure/azure-cli/issues/16209, AADSTS70043",
        status: 400,
        body: r#"{"error":"interaction_required","error_description":"AADSTS70043: The refresh token has expired or is invalid due to sign-in frequency checks by conditional access.","error_codes":[70043]}"#,
        meaning: Refused,
        words: "(interaction_required: AADSTS70043",
    },
    Row {
        provider: "Entra ID: the password was changed",
        source: "github.com/Azure/kubelogin/issues/101, AADSTS50173",
        status: 400,
        body: r#"{"error":"invalid_grant","error_description":"AADSTS50173: The provided grant has expired due to it being revoked, a fresh auth token is needed.","error_codes":[50173]}"#,
        meaning: Forgotten,
        words: "(invalid_grant: AADSTS50173",
    },
    Row {
        provider: "Entra ID: the token was not used for too long",
        source: "nango.dev/blog/microsoft-oauth-refresh-token-invalid-grant, AADSTS700082",
        status: 400,
        body: r#"{"error":"invalid_grant","error_description":"AADSTS700082: The refresh token has expired due to inactivity.","error_codes":[700082]}"#,
        meaning: Forgotten,
        words: "(invalid_grant: AADSTS700082",
    },
    Row {
        provider: "Entra ID: overloaded",
        source: "learn.microsoft.com/entra/identity-platform/reference-error-codes, temporarily_unavailable",
        status: 400,
        body: r#"{"error":"temporarily_unavailable","error_description":"The server is temporarily too busy to handle the request."}"#,
        meaning: Temporary,
        words: "overloaded or under maintenance",
    },
    Row {
        provider: "Keycloak: the session has ended",
        source: "keycloak/keycloak services/…/protocol/oidc/TokenManager.java",
        status: 400,
        body: r#"{"error":"invalid_grant","error_description":"Session not active"}"#,
        meaning: Forgotten,
        words: "(invalid_grant: Session not active)",
    },
    Row {
        provider: "Keycloak: the token has expired",
        source: "keycloak/keycloak services/…/protocol/oidc/TokenManager.java",
        status: 400,
        body: r#"{"error":"invalid_grant","error_description":"Token is not active"}"#,
        meaning: Forgotten,
        words: "(invalid_grant: Token is not active)",
    },
    Row {
        provider: "Keycloak: all tokens of before were revoked",
        source: "github.com/keycloak/keycloak/issues/37900",
        status: 400,
        body: r#"{"error":"invalid_grant","error_description":"Stale token"}"#,
        meaning: Forgotten,
        words: "(invalid_grant: Stale token)",
    },
    Row {
        provider: "Keycloak: the session has lost its client",
        source: "github.com/keycloak/keycloak/issues/20392",
        status: 400,
        body: r#"{"error":"invalid_grant","error_description":"Session doesn't have required client"}"#,
        meaning: Forgotten,
        words: "(invalid_grant: Session doesn't have required client)",
    },
    Row {
        provider: "Okta",
        source: "github.com/okta/okta-react-native/issues/109",
        status: 400,
        body: r#"{"error":"invalid_grant","error_description":"The refresh token is invalid or expired."}"#,
        meaning: Forgotten,
        words: "(invalid_grant: The refresh token is invalid or expired.)",
    },
    Row {
        provider: "Google",
        source: "workos.com/blog/invalid-grant-oauth-errors-by-provider",
        status: 400,
        body: r#"{"error": "invalid_grant", "error_description": "Token has been expired or revoked."}"#,
        meaning: Forgotten,
        words: "(invalid_grant: Token has been expired or revoked.)",
    },
    Row {
        provider: "GitLab, which uses Doorkeeper",
        source: "doorkeeper-gem/doorkeeper config/locales/en.yml",
        status: 400,
        body: r#"{"error":"invalid_grant","error_description":"The provided authorization grant is invalid, expired, revoked, does not match the redirection URI used in the authorization request, or was issued to another client."}"#,
        meaning: Forgotten,
        words: "(invalid_grant: The provided authorization grant is invalid",
    },
    Row {
        provider: "Auth0",
        source: "auth0/Auth0.Android AuthenticationException.kt, isRefreshTokenDeleted and isInvalidRefreshToken",
        status: 403,
        body: r#"{"error":"invalid_grant","error_description":"Unknown or invalid refresh token."}"#,
        meaning: Forgotten,
        words: "(invalid_grant: Unknown or invalid refresh token.)",
    },
    Row {
        provider: "LemonLDAP::NG 2.16",
        source: "seen: the end of a session",
        status: 400,
        body: r#"{"error":"invalid_request"}"#,
        meaning: Refused,
        words: "the provider does not renew this login (invalid_request)",
    },
    Row {
        provider: "Authlib",
        source: "github.com/lepture/authlib/issues/112",
        status: 400,
        body: r#"{"error":"invalid_request","error_description":"Invalid \"refresh_token\" in request."}"#,
        meaning: Refused,
        words: "(invalid_request: Invalid \"refresh_token\" in request.)",
    },
    Row {
        provider: "Ory Hydra",
        source: "github.com/ory/hydra/issues/3004",
        status: 401,
        body: r#"{"error":"token_inactive"}"#,
        meaning: Refused,
        words: "(token_inactive)",
    },
    Row {
        provider: "Better Auth, before 2026",
        source: "github.com/better-auth/better-auth/pull/8103",
        status: 400,
        body: r#"{"error":"invalid_request","error_description":"session not found"}"#,
        meaning: Refused,
        words: "(invalid_request: session not found)",
    },
    Row {
        provider: "Spring Authorization Server 7: a public client has no refresh",
        source: "seen: an empty answer",
        status: 401,
        body: "",
        meaning: Refused,
        words: "the provider does not renew this login: the provider answers 401 Unauthorized",
    },
    Row {
        provider: "the client was removed",
        source: "RFC 6749, section 5.2",
        status: 401,
        body: r#"{"error":"invalid_client"}"#,
        meaning: Refused,
        words: "(invalid_client)",
    },
    Row {
        provider: "an error page",
        source: "of any server",
        status: 400,
        body: "<!doctype html><title>Bad request</title>",
        meaning: Refused,
        words: "400 Bad Request with a web page",
    },
    Row {
        provider: "an error with the status of a success",
        source: "golang.org/x/oauth2 internal/token.go: some unorthodox servers",
        status: 200,
        body: r#"{"error":"invalid_grant"}"#,
        meaning: Forgotten,
        words: "(invalid_grant)",
    },
    Row {
        provider: "a code of its own",
        source: "RFC 6749, section 8.5",
        status: 400,
        body: r#"{"error":"mfa_required"}"#,
        meaning: Refused,
        words: "(mfa_required)",
    },
    Row {
        provider: "a balancer",
        source: "of any server",
        status: 502,
        body: "<html>Bad gateway",
        meaning: Temporary,
        words: "502 Bad Gateway with a web page",
    },
    Row {
        provider: "a rate limit",
        source: "RFC 6585, section 4",
        status: 429,
        body: "",
        meaning: Temporary,
        words: "429 Too Many Requests",
    },
    Row {
        provider: "a rate limit in other words",
        source: "RFC 8628, section 3.5",
        status: 400,
        body: r#"{"error":"slow_down"}"#,
        meaning: Temporary,
        words: "asks too often",
    },
    Row {
        provider: "its own failure",
        source: "RFC 6749, section 4.1.2.1",
        status: 400,
        body: r#"{"error":"server_error"}"#,
        meaning: Temporary,
        words: "internal error",
    },
    Row {
        provider: "the page of a network that wants a login of its own",
        source: "of any hotel",
        status: 200,
        body: "<html>Welcome",
        meaning: Temporary,
        words: "a web page instead of JSON",
    },
];

/// The problems of a row.
async fn problems(row: &Row, is_terminal: bool) -> Vec<String> {
    let setup = Setup::new().await;
    let settings = setup.device();
    setup.ask(&settings, true).await.unwrap();
    setup.pass(LIFETIME);
    *setup.state.refusal.lock().unwrap() = Some((row.status, row.body));
    let outcome = setup.ask(&settings, is_terminal).await;
    let kept = setup.entry(&settings).read().await.unwrap().unwrap().refresh_token;
    let mut problems = Vec::new();
    let mut expect = |is_so: bool, what: &str| {
        if !is_so {
            problems.push(format!("{} ({}), terminal {is_terminal}: {what}", row.provider, row.source));
        }
    };
    if is_terminal && row.meaning != Temporary {
        expect(outcome.is_ok() && setup.logins() == 2, &format!("no new login: {outcome:?}"));
        return problems;
    }
    let error = outcome.unwrap_err();
    let message = error.to_string();
    expect(setup.logins() == 1, "a login");
    expect(message.contains(row.words), &message);
    expect(message.contains("portcullis login"), "no fix");
    expect(!message.contains("an error of portcullis"), "an accusation");
    expect(
        matches!(error, LoginError::LoginRequired(_)) == (row.meaning != Temporary),
        "another kind of error",
    );
    expect(
        message.contains("the login is kept") == (row.meaning == Temporary),
        "says another thing of the login",
    );
    expect(kept.is_some() == (row.meaning != Forgotten), "another refresh token");
    // Once the provider renews again, it is as before.
    *setup.state.refusal.lock().unwrap() = None;
    let renewed = setup.ask(&settings, false).await.is_ok();
    expect(renewed == (row.meaning != Forgotten), "the next refresh");
    problems
}

#[tokio::test]
async fn every_refusal_of_a_refresh_leads_to_a_login_and_no_failure_that_passes_does() {
    let mut failures = Vec::new();
    for row in ROWS {
        for is_terminal in [true, false] {
            failures.extend(problems(row, is_terminal).await);
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// A proxy may refuse what the provider would renew.
#[tokio::test]
async fn a_token_that_is_still_valid_is_used_where_nobody_can_be_asked() {
    for refusal in [(403, "<html>Blocked by the proxy"), (400, r#"{"error":"invalid_grant"}"#)] {
        let setup = Setup::new().await;
        let settings = setup.device();
        setup.ask(&settings, true).await.unwrap();
        *setup.state.refusal.lock().unwrap() = Some(refusal);
        setup.pass(LIFETIME - 30);
        for _ in 0..2 {
            assert_eq!(setup.number(&settings, false).await, 0, "{refusal:?}: the same token");
        }
        setup.pass(30);
        let error = setup.ask(&settings, false).await.unwrap_err();
        assert!(matches!(error, LoginError::LoginRequired(_)), "{refusal:?}: {error}");
        assert_eq!(setup.logins(), 1);
    }
}

#[tokio::test]
async fn a_login_that_fails_after_a_refusal_leaves_the_refresh_token() {
    let setup = Setup::new().await;
    let settings = setup.device();
    setup.ask(&settings, true).await.unwrap();
    setup.pass(LIFETIME);
    *setup.state.refusal.lock().unwrap() = Some((400, r#"{"error":"interaction_required"}"#));
    setup.replace_document("/device", b"{}".to_vec());
    setup.ask(&settings, true).await.unwrap_err();
    let kept = setup.entry(&settings).read().await.unwrap().unwrap();
    assert_eq!(kept.refresh_token, Some(SecretText::new("refresh-0")));
}

#[tokio::test]
async fn a_provider_that_renews_no_id_token_is_named_with_the_lifetime_of_a_login() {
    let setup = Setup::new().await;
    let settings = setup.device();
    setup.ask(&settings, true).await.unwrap();
    setup.pass(LIFETIME);
    *setup.state.refusal.lock().unwrap() =
        Some((200, r#"{"access_token":"a","token_type":"Bearer","refresh_token":""}"#));
    let error = setup.ask(&settings, false).await.unwrap_err().to_string();
    for part in [
        "renews no ID token at a refresh",
        "a login ends with its token, after 10 minutes",
        "portcullis login",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let kept = setup.entry(&settings).read().await.unwrap().unwrap();
    assert_eq!(kept.refresh_token, Some(SecretText::new("refresh-0")), "an empty one is none");
    setup.ask(&settings, true).await.unwrap();
    assert_eq!(setup.logins(), 2);
}
