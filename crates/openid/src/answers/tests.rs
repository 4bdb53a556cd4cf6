//! Answers of providers, good and bad.

use serde_json::json;

use super::*;

const ISSUER: &str = "https://issuer.test";

fn answer(status: u16, content_type: Option<&'static str>, body: &'static str) -> ProviderAnswer<'static> {
    ProviderAnswer { status: StatusCode::from_u16(status).unwrap(), content_type, body: body.as_bytes() }
}

/// A good answer: the access token, the lifetime, whether there are a refresh token and an ID token.
type Read = (&'static str, Option<u64>, bool, bool);

#[test]
fn tokens_are_read_as_x_oauth2_reads_them() {
    const FORM: Option<&str> = Some("application/x-www-form-urlencoded; charset=utf-8");
    const JSON: Option<&str> = Some("application/json;charset=UTF-8");
    let cases: &[(&str, ProviderAnswer<'_>, Option<Read>)] = &[
        (
            "plain",
            answer(200, JSON, r#"{"access_token":"a","token_type":"Bearer","expires_in":60}"#),
            Some(("a", Some(60), false, false)),
        ),
        (
            "a lifetime as text",
            answer(200, JSON, r#"{"access_token":"a","expires_in":"3600"}"#),
            Some(("a", Some(3600), false, false)),
        ),
        (
            "a lifetime with a fraction",
            answer(200, JSON, r#"{"access_token":"a","expires_in":1.5}"#),
            Some(("a", None, false, false)),
        ),
        (
            "a lifetime of ages",
            answer(200, JSON, r#"{"access_token":"a","expires_in":99999999999}"#),
            Some(("a", Some(MAX_SECONDS), false, false)),
        ),
        (
            "a negative lifetime",
            answer(200, JSON, r#"{"access_token":"a","expires_in":-1}"#),
            Some(("a", None, false, false)),
        ),
        (
            "null members",
            answer(
                200,
                JSON,
                r#"{"access_token":"a","token_type":null,"expires_in":null,"refresh_token":null,"id_token":null,"scope":null}"#,
            ),
            Some(("a", None, false, false)),
        ),
        (
            "empty members",
            answer(200, JSON, r#"{"access_token":"a","token_type":"","refresh_token":"","id_token":""}"#),
            Some(("a", None, false, false)),
        ),
        (
            "both tokens",
            answer(200, None, r#"{"access_token":"a","refresh_token":"r","id_token":"i"}"#),
            Some(("a", None, true, true)),
        ),
        (
            "names in another case",
            answer(200, None, r#"{"Access_Token":"a","REFRESH_TOKEN":"r","ID_TOKEN":"i"}"#),
            Some(("a", None, true, false)),
        ),
        (
            "another status of success",
            answer(201, JSON, r#"{"access_token":"a"}"#),
            Some(("a", None, false, false)),
        ),
        (
            "a web page's type",
            answer(200, Some("text/html"), r#"{"access_token":"a"}"#),
            Some(("a", None, false, false)),
        ),
        (
            "a form",
            answer(200, FORM, "access_token=a&expires_in=60&id_token=i%2b"),
            Some(("a", Some(60), false, true)),
        ),
        (
            "a form as text",
            answer(200, Some("text/plain"), "access_token=a&refresh_token=r"),
            Some(("a", None, true, false)),
        ),
        (
            "JSON as text",
            answer(
                200,
                Some("text/plain; charset=utf-8"),
                "\n {\"access_token\":\"a=b&c\",\"refresh_token\":\"r\"}",
            ),
            Some(("a=b&c", None, true, false)),
        ),
        (
            "JSON as a form",
            answer(200, FORM, r#"{"access_token":"a","expires_in":60}"#),
            Some(("a", Some(60), false, false)),
        ),
        (
            "a form with a name in another case",
            answer(200, FORM, "access_token=a&Refresh_Token=r"),
            Some(("a", None, false, false)),
        ),
        ("no access token", answer(200, JSON, r#"{"id_token":"i"}"#), None),
        ("an empty access token", answer(200, JSON, r#"{"access_token":"","id_token":"i"}"#), None),
        ("a number", answer(200, JSON, r#"{"access_token":5}"#), None),
        (
            "a refresh token of another type",
            answer(200, JSON, r#"{"access_token":"a","refresh_token":{}}"#),
            None,
        ),
        ("a list", answer(200, JSON, r#"["a"]"#), None),
        ("null", answer(200, JSON, "null"), None),
        ("nothing", answer(200, JSON, ""), None),
        ("an error with 200", answer(200, JSON, r#"{"access_token":"a","error":"invalid_grant"}"#), None),
        ("tokens with 400", answer(400, JSON, r#"{"access_token":"a"}"#), None),
    ];
    let mut failures = Vec::new();
    for (name, answer, expected) in cases {
        let found = tokens(*answer).ok();
        let read = found.as_ref().map(|tokens| {
            let lifetime = tokens.expires_in.map(|lifetime| lifetime.as_secs());
            (
                tokens.access_token.expose(),
                lifetime,
                tokens.refresh_token.is_some(),
                tokens.id_token.is_some(),
            )
        });
        if read != *expected {
            failures.push(format!("{name}: {read:?}"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn only_a_bearer_token_is_a_token_for_the_cluster() {
    for (kind, is_bearer) in [
        (json!("Bearer"), true),
        (json!("BEARER"), true),
        (json!(null), true),
        (json!(""), true),
        (json!("mac"), false),
    ] {
        let body = json!({"access_token": "a", "token_type": kind}).to_string();
        let read =
            tokens(ProviderAnswer { status: StatusCode::OK, content_type: None, body: body.as_bytes() });
        assert_eq!(read.unwrap().bearer_token().is_some(), is_bearer, "{kind}");
    }
}

#[test]
fn an_error_has_its_code_whatever_its_status_and_type() {
    let cases: &[(ProviderAnswer<'_>, Option<&str>, bool)] = &[
        (
            answer(400, None, r#"{"error":"invalid_grant","error_description":"of the test"}"#),
            Some("invalid_grant"),
            false,
        ),
        (answer(401, None, ""), None, false),
        (answer(400, None, "<html>"), None, false),
        (
            answer(400, Some("text/plain"), "error=invalid_grant&error_description=x"),
            Some("invalid_grant"),
            false,
        ),
        (answer(400, Some("text/plain"), r#"{"error":"invalid_grant"}"#), Some("invalid_grant"), false),
        (answer(200, None, r#"{"error":"invalid_grant"}"#), Some("invalid_grant"), false),
        (answer(400, None, r#"{"error":{"code":"invalid_grant"}}"#), None, false),
        (answer(400, None, r#"{"error":"temporarily_unavailable"}"#), Some("temporarily_unavailable"), true),
        (answer(400, None, r#"{"error":"slow_down"}"#), Some("slow_down"), true),
        (answer(500, None, r#"{"error":"invalid_request"}"#), Some("invalid_request"), true),
        (answer(502, None, "<html>"), None, true),
        (answer(429, None, ""), None, true),
        (answer(408, None, ""), None, true),
        (answer(404, None, "{}"), None, false),
    ];
    for (answer, code, is_temporary) in cases {
        let Err(FailedAnswer::Error(error)) = tokens(*answer) else { panic!("{answer:?}") };
        assert_eq!(error.refusal.as_ref().map(|refusal| refusal.code.as_str()), *code, "{error}");
        assert_eq!(error.is_temporary(), *is_temporary, "{error}");
    }
    assert_eq!(tokens(answer(200, None, " \n<!doctype html>")).unwrap_err(), FailedAnswer::WebPage);
}

#[test]
fn device_codes_are_read_as_they_are_written() {
    let read = |body: &Value| {
        let body = body.to_string();
        device_authorization(ProviderAnswer {
            status: StatusCode::OK,
            content_type: None,
            body: body.as_bytes(),
        })
    };
    let plain = json!({"device_code": "d", "user_code": "u", "verification_uri": "https://v.test", "expires_in": 600});
    let with = |changes: Value| {
        let mut changed = plain.clone();
        changed.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        changed
    };
    let seconds = |value: Value| read(&with(json!({"interval": value}))).unwrap().interval.as_secs();
    assert_eq!(
        [seconds(json!(null)), seconds(json!(7)), seconds(json!("7")), seconds(json!(0))],
        [5, 7, 7, 5]
    );
    assert_eq!(read(&with(json!({"expires_in": "900"}))).unwrap().expires_in, Some(Duration::from_mins(15)));
    assert_eq!(read(&with(json!({"expires_in": null}))).unwrap().expires_in, None);
    let old = read(&with(json!({"verification_uri": null, "verification_url": "https://old.test"}))).unwrap();
    assert_eq!(old.verification_uri, "https://old.test");
    let complete =
        json!({"verification_uri_complete": "https://v.test?c=u", "verification_url": "https://old.test"});
    let complete = read(&with(complete)).unwrap();
    assert_eq!(complete.verification_uri, "https://v.test");
    assert_eq!(complete.verification_uri_complete.as_deref(), Some("https://v.test?c=u"));
    // x/oauth2: deviceauth.go, retrieveDeviceAuth: whatever the label
    for label in ["text/plain", "text/html", "application/x-www-form-urlencoded"] {
        let body = plain.to_string();
        let labelled =
            ProviderAnswer { status: StatusCode::OK, content_type: Some(label), body: body.as_bytes() };
        assert_eq!(device_authorization(labelled).unwrap().user_code, "u", "{label}");
    }
    for missing in ["device_code", "user_code", "verification_uri"] {
        assert_eq!(read(&with(json!({missing: null}))).unwrap_err(), FailedAnswer::Unreadable(missing));
    }
}

#[test]
fn a_document_may_have_members_that_are_null() {
    let names = [
        "authorization_endpoint",
        "token_endpoint",
        "jwks_uri",
        "device_authorization_endpoint",
        "revocation_endpoint",
        "revocation_endpoint_auth_methods_supported",
        "end_session_endpoint",
        "scopes_supported",
        "token_endpoint_auth_methods_supported",
        "authorization_response_iss_parameter_supported",
    ];
    let mut document = json!({"issuer": ISSUER});
    let empty = ProviderDocument::parse(document.to_string().as_bytes(), ISSUER).unwrap();
    for name in names {
        document[name] = Value::Null;
    }
    assert_eq!(ProviderDocument::parse(document.to_string().as_bytes(), ISSUER), Ok(empty));
    // Of another type: what a login needs is an error, the rest counts as absent.
    for (name, is_needed) in [
        ("token_endpoint", true),
        ("jwks_uri", true),
        ("scopes_supported", false),
        ("end_session_endpoint", false),
    ] {
        let document = json!({"issuer": ISSUER, name: 5}).to_string();
        assert_eq!(ProviderDocument::parse(document.as_bytes(), ISSUER).is_err(), is_needed, "{name}");
    }
    let texts = json!({"issuer": ISSUER, "scopes_supported": ["openid", null, 5, "offline_access"],
        "authorization_response_iss_parameter_supported": "true"});
    let texts = ProviderDocument::parse(texts.to_string().as_bytes(), ISSUER).unwrap();
    assert_eq!(texts.scopes, ["openid", "offline_access"]);
    assert!(texts.has_issuer_in_redirects);
}

#[test]
fn what_a_provider_writes_is_harmless_and_short_in_errors() {
    let long = format!("\u{1b}[2J{}", "x".repeat(500_000));
    for document in
        [json!({"issuer": long}), json!([long]), json!({"issuer": ISSUER, "jwks_uri": {long.as_str(): 1}})]
    {
        let problem = ProviderDocument::parse(document.to_string().as_bytes(), ISSUER).unwrap_err();
        assert!(!problem.contains('\u{1b}') && problem.len() < 1000, "{} bytes", problem.len());
    }
    let body = json!({"error": long, "error_description": long}).to_string();
    let refused =
        tokens(ProviderAnswer { status: StatusCode::BAD_REQUEST, content_type: None, body: body.as_bytes() });
    let refused = refused.unwrap_err().to_string();
    assert!(!refused.contains('\u{1b}') && refused.len() < 1500, "{} bytes", refused.len());
}

/// An answer that cannot be read may have tokens all the same.
#[test]
fn no_part_of_a_token_is_in_an_error() {
    for body in [
        r#"{"id_token":"secret"}"#,
        r#"{"access_token":["secret"]}"#,
        r#"{"access_token":"secret""#,
        r#"{"access_token":"secret","refresh_token":7}"#,
    ] {
        let error = tokens(answer(200, None, body)).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }
}
