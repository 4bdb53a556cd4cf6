use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, StatusCode};
use portcullis_kubernetes::rest::MAX_ERROR_TEXT;

use std::time::Duration;

use super::*;

fn answer(code: u16, body: &str, retry_after: Option<&'static str>) -> HttpsResponse {
    let mut headers = HeaderMap::new();
    if let Some(seconds) = retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from_static(seconds));
    }
    HttpsResponse { status: StatusCode::from_u16(code).unwrap(), headers, body: Bytes::from(body.to_owned()) }
}

fn token() -> BearerToken {
    BearerToken::new("t0k3n")
}

struct Case {
    name: &'static str,
    code: u16,
    retry_after: Option<&'static str>,
    body: &'static str,
    /// The expected error text.
    text: &'static str,
    /// The expected minimum delay in seconds before a retry.
    retry_in: Option<u64>,
}

/// Defaults of the cases.
const CASE: Case = Case { name: "", code: 200, retry_after: None, body: "", text: "", retry_in: None };

const CASES: &[Case] = &[
    Case {
        name: "500",
        code: 500,
        body: "HTTP Error\n",
        text: "an error on the server (\"HTTP Error\") has prevented the request from succeeding",
        retry_in: Some(0),
        ..CASE
    },
    Case {
        name: "502, without a reason of its own",
        code: 502,
        text: "an error on the server (\"unknown\") has prevented the request from succeeding",
        retry_in: Some(0),
        ..CASE
    },
    Case {
        name: "504",
        code: 504,
        text: "the server was unable to return a response in the time allotted, but may still be processing the request",
        retry_in: Some(0),
        ..CASE
    },
    Case {
        name: "429",
        code: 429,
        text: "the server has received too many requests and has asked us to try again later",
        retry_in: Some(0),
        ..CASE
    },
    Case {
        name: "503 without Retry-After",
        code: 503,
        text: "the server is currently unable to handle the request",
        ..CASE
    },
    Case {
        name: "503 with Retry-After",
        code: 503,
        retry_after: Some("3"),
        text: "the server is currently unable to handle the request",
        retry_in: Some(3),
        ..CASE
    },
    Case {
        name: "503 with a date in Retry-After",
        code: 503,
        retry_after: Some("Wed, 21 Oct 2026 07:28:00 GMT"),
        text: "the server is currently unable to handle the request",
        ..CASE
    },
    Case {
        name: "404",
        code: 404,
        body: "nobody",
        text: "the server could not find the requested resource",
        ..CASE
    },
    Case {
        name: "401",
        code: 401,
        text: "the server has asked for the client to provide credentials",
        ..CASE
    },
    Case { name: "403", code: 403, body: "not you", text: "not you", ..CASE },
    Case {
        name: "a code without a message of its own",
        code: 418,
        text: "the server responded with the status code 418 but did not return more information",
        ..CASE
    },
    Case {
        name: "207 is not a success",
        code: 207,
        body: r#"{"status":{"authenticated":true,"user":{"username":"mallory"}}}"#,
        text: "the server responded with the status code 207 but did not return more information",
        ..CASE
    },
    Case {
        name: "a Status takes precedence over the code",
        code: 500,
        body: r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":"Forbidden","code":403}"#,
        text: "no",
        ..CASE
    },
    Case {
        name: "a Status with a hint",
        code: 503,
        body: r#"{"kind":"Status","status":"Failure","message":"later","reason":"ServiceUnavailable","details":{"retryAfterSeconds":7},"code":503}"#,
        text: "later",
        retry_in: Some(7),
        ..CASE
    },
    Case {
        name: "a Status with details but no delay",
        code: 504,
        body: r#"{"kind":"Status","status":"Failure","message":"later","reason":"ServerTimeout","details":{},"code":500}"#,
        text: "later",
        retry_in: Some(0),
        ..CASE
    },
    Case {
        name: "a Status without a reason",
        code: 500,
        body: r#"{"kind":"Status","status":"Failure","message":"oh","code":500}"#,
        text: "oh",
        retry_in: Some(0),
        ..CASE
    },
    Case {
        name: "empty",
        code: 204,
        text: "0-length response with status code: 204 and content type: application/json",
        ..CASE
    },
    Case {
        name: "an HTML page",
        body: "<html>my-s3cr3t</html>",
        text: "the answer is not a TokenReview: line 1, column 1 is wrong",
        ..CASE
    },
    Case {
        name: "a truncated response",
        body: r#"{"status":{"authenticated":true,"user":{"username":"mall"#,
        text: "the answer is not a TokenReview: line 1, column 56 is wrong",
        ..CASE
    },
    Case {
        name: "a response with trailing data",
        body: r#"{"status":{"authenticated":true}} {}"#,
        text: "the answer is not a TokenReview: line 1, column 35 is wrong",
        ..CASE
    },
    Case {
        name: "a duplicate member",
        body: r#"{"status":{"authenticated":false,"authenticated":true}}"#,
        text: "the answer is not a TokenReview: line 1, column 48 is wrong",
        ..CASE
    },
    Case {
        name: "a string for a boolean",
        body: r#"{"status":{"authenticated":"true"}}"#,
        text: "the answer is not a TokenReview: line 1, column 33 is wrong",
        ..CASE
    },
    Case {
        name: "a list for the TokenReview",
        body: r#"["TokenReview","authentication.k8s.io/v1",[true,["mallory"]]]"#,
        text: "the answer is not a TokenReview: line 1, column 0 is wrong",
        ..CASE
    },
    Case {
        name: "a list for the status",
        body: r#"{"status":[true,["mallory"]]}"#,
        text: "the answer is not a TokenReview: line 1, column 10 is wrong",
        ..CASE
    },
    Case {
        name: "another kind",
        body: r#"{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"authenticated":true}}"#,
        text: "the answer is \"SubjectAccessReview\" of \"authorization.k8s.io/v1\", not a TokenReview of \
               authentication.k8s.io/v1",
        ..CASE
    },
    Case {
        name: "another version",
        body: r#"{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1beta1","status":{"authenticated":true}}"#,
        text: "the answer is \"TokenReview\" of \"authentication.k8s.io/v1beta1\", not a TokenReview of \
               authentication.k8s.io/v1",
        ..CASE
    },
    Case {
        name: "a Status as a success",
        body: r#"{"kind":"Status","apiVersion":"v1","status":{}}"#,
        text: "the answer is \"Status\" of \"v1\", not a TokenReview of authentication.k8s.io/v1",
        ..CASE
    },
];

#[test]
fn responses_without_a_verdict_are_errors() {
    let mut wrong = Vec::new();
    for case in CASES {
        let got = read(TokenReviewVersion::V1, &token(), &answer(case.code, case.body, case.retry_after));
        let retry_after = case.retry_in.map(Duration::from_secs);
        let got = got.map_err(|error| (error.text, error.retry_after));
        if got != Err((case.text.to_owned(), retry_after)) {
            wrong.push(format!("{}: {got:?}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_response_is_decoded_unchanged() {
    let body = r#"{"kind":"TokenReview","apiVersion":"VERSION","metadata":{},"spec":{"token":"t"},"more":1,
        "status":{"authenticated":true,"user":{"username":"a b","uid":"7","groups":["x","","x"],
        "extra":{"Foo":["1","2"],"none":null}},"audiences":["api"],"error":"e"}}"#;
    let expected = ReviewedStatus {
        _object: ObjectOnly {},
        authenticated: true,
        user: ReviewedUser {
            _object: ObjectOnly {},
            username: "a b".to_owned(),
            uid: "7".to_owned(),
            groups: ["x", "", "x"].map(str::to_owned).to_vec(),
            extra: BTreeMap::from([
                ("Foo".to_owned(), Some(vec!["1".to_owned(), "2".to_owned()])),
                ("none".to_owned(), None),
            ]),
        },
        audiences: vec!["api".to_owned()],
        error: "e".to_owned(),
    };
    for version in [TokenReviewVersion::V1, TokenReviewVersion::V1Beta1] {
        let body = body.replace("VERSION", version.api_version());
        assert_eq!(read(version, &token(), &answer(201, &body, None)).unwrap(), expected, "{version:?}");
    }
}

#[test]
fn kind_version_and_status_are_optional() {
    for body in ["{}", r#"{"status":null}"#, r#"{"kind":null,"status":{"user":null,"audiences":null}}"#] {
        assert_eq!(
            read(TokenReviewVersion::V1, &token(), &answer(200, body, None)).unwrap(),
            ReviewedStatus::default(),
            "{body}"
        );
    }
}

#[test]
fn a_request_without_audiences_omits_the_field() {
    let token = BearerToken::new("t\"0");
    let audiences = ["a", "b"].map(|name| Audience(name.to_owned()));
    let written = |audiences: &[Audience], version| {
        String::from_utf8(request_body(version, &token, audiences).unwrap()).unwrap()
    };
    assert_eq!(
        written(&audiences, TokenReviewVersion::V1),
        r#"{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","metadata":{},"spec":{"token":"t\"0","audiences":["a","b"]},"status":{}}"#
    );
    assert_eq!(
        written(&[], TokenReviewVersion::V1Beta1),
        r#"{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1beta1","metadata":{},"spec":{"token":"t\"0"},"status":{}}"#
    );
}

#[test]
fn truncation_leaves_no_part_of_the_token() {
    for before in MAX_ERROR_TEXT - 5..=MAX_ERROR_TEXT {
        let body = format!("{}t0k3n and more", "x".repeat(before));
        for code in [403, 500] {
            let Err(WebhookError { text, .. }) =
                read(TokenReviewVersion::V1, &token(), &answer(code, &body, None))
            else {
                panic!("{code} is not a verdict");
            };
            assert!(!text.contains("t0"), "{before} {code}: {text}");
        }
    }
    assert_eq!(redacted(&token(), &"ä".repeat(MAX_ERROR_TEXT)).len(), MAX_ERROR_TEXT);
}
