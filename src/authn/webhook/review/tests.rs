use bytes::Bytes;
use http::{HeaderMap, HeaderValue};

use super::*;

fn answer(code: u16, body: &str, retry_after: Option<&'static str>) -> Answer {
    let mut headers = HeaderMap::new();
    if let Some(seconds) = retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from_static(seconds));
    }
    Answer { status: StatusCode::from_u16(code).unwrap(), headers, body: Bytes::from(body.to_owned()) }
}

fn token() -> BearerToken {
    BearerToken::new("t0k3n")
}

struct Case {
    name: &'static str,
    code: u16,
    retry_after: Option<&'static str>,
    body: &'static str,
    /// What is logged.
    text: &'static str,
    /// The least seconds to wait, if it is worth asking again.
    again: Option<u64>,
}

/// What goes for most of them.
const CASE: Case = Case { name: "", code: 200, retry_after: None, body: "", text: "", again: None };

const CASES: &[Case] = &[
    Case {
        name: "500",
        code: 500,
        body: "HTTP Error\n",
        text: "an error on the server (\"HTTP Error\") has prevented the request from succeeding",
        again: Some(0),
        ..CASE
    },
    Case {
        name: "502, of a class that has no reason of its own",
        code: 502,
        text: "an error on the server (\"unknown\") has prevented the request from succeeding",
        again: Some(0),
        ..CASE
    },
    Case {
        name: "504",
        code: 504,
        text: "the server was unable to return a response in the time allotted, but may still be processing the request",
        again: Some(0),
        ..CASE
    },
    Case {
        name: "429",
        code: 429,
        text: "the server has received too many requests and has asked us to try again later",
        again: Some(0),
        ..CASE
    },
    Case {
        name: "503 says nothing of later",
        code: 503,
        text: "the server is currently unable to handle the request",
        ..CASE
    },
    Case {
        name: "503 with Retry-After",
        code: 503,
        retry_after: Some("3"),
        text: "the server is currently unable to handle the request",
        again: Some(3),
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
        name: "a code without words of its own",
        code: 418,
        text: "the server responded with the status code 418 but did not return more information",
        ..CASE
    },
    Case {
        name: "207 is no success",
        code: 207,
        body: r#"{"status":{"authenticated":true,"user":{"username":"mallory"}}}"#,
        text: "the server responded with the status code 207 but did not return more information",
        ..CASE
    },
    Case {
        name: "a Status decides, not the code",
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
        again: Some(7),
        ..CASE
    },
    Case {
        name: "a Status that asks for a delay without saying which",
        code: 504,
        body: r#"{"kind":"Status","status":"Failure","message":"later","reason":"ServerTimeout","details":{},"code":500}"#,
        text: "later",
        again: Some(0),
        ..CASE
    },
    Case {
        name: "a Status without a reason",
        code: 500,
        body: r#"{"kind":"Status","status":"Failure","message":"oh","code":500}"#,
        text: "oh",
        again: Some(0),
        ..CASE
    },
    Case {
        name: "nothing",
        code: 204,
        text: "0-length response with status code: 204 and content type: application/json",
        ..CASE
    },
    Case {
        name: "a page",
        body: "<html>my-s3cr3t</html>",
        text: "the answer is no TokenReview: line 1, column 1 is wrong",
        ..CASE
    },
    Case {
        name: "half an answer",
        body: r#"{"status":{"authenticated":true,"user":{"username":"mall"#,
        text: "the answer is no TokenReview: line 1, column 56 is wrong",
        ..CASE
    },
    Case {
        name: "an answer and more",
        body: r#"{"status":{"authenticated":true}} {}"#,
        text: "the answer is no TokenReview: line 1, column 35 is wrong",
        ..CASE
    },
    Case {
        name: "twice",
        body: r#"{"status":{"authenticated":false,"authenticated":true}}"#,
        text: "the answer is no TokenReview: line 1, column 48 is wrong",
        ..CASE
    },
    Case {
        name: "a text for a truth",
        body: r#"{"status":{"authenticated":"true"}}"#,
        text: "the answer is no TokenReview: line 1, column 33 is wrong",
        ..CASE
    },
    Case {
        name: "a list of what is in an answer",
        body: r#"["TokenReview","authentication.k8s.io/v1",[true,["mallory"]]]"#,
        text: "the answer is no TokenReview: line 1, column 0 is wrong",
        ..CASE
    },
    Case {
        name: "a list within an answer",
        body: r#"{"status":[true,["mallory"]]}"#,
        text: "the answer is no TokenReview: line 1, column 10 is wrong",
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
fn what_is_no_answer_is_trouble() {
    let mut wrong = Vec::new();
    for case in CASES {
        let got = read(Version::V1, &token(), &answer(case.code, case.body, case.retry_after));
        let again = case.again.map(Duration::from_secs);
        if got != Err(Trouble { text: case.text.to_owned(), again }) {
            wrong.push(format!("{}: {got:?}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn an_answer_is_taken_as_it_is() {
    let body = r#"{"kind":"TokenReview","apiVersion":"VERSION","metadata":{},"spec":{"token":"t"},"more":1,
        "status":{"authenticated":true,"user":{"username":"a b","uid":"7","groups":["x","","x"],
        "extra":{"Foo":["1","2"],"none":null}},"audiences":["api"],"error":"e"}}"#;
    let expected = Status {
        _object: Object {},
        authenticated: true,
        user: User {
            _object: Object {},
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
    for version in [Version::V1, Version::V1Beta1] {
        let body = body.replace("VERSION", version.api_version());
        assert_eq!(read(version, &token(), &answer(201, &body, None)).unwrap(), expected, "{version:?}");
    }
}

#[test]
fn an_answer_may_leave_out_what_it_is() {
    for body in ["{}", r#"{"status":null}"#, r#"{"kind":null,"status":{"user":null,"audiences":null}}"#] {
        assert_eq!(
            read(Version::V1, &token(), &answer(200, body, None)).unwrap(),
            Status::default(),
            "{body}"
        );
    }
}

#[test]
fn a_question_has_audiences_only_if_there_are_some() {
    let token = BearerToken::new("t\"0");
    let audiences = ["a", "b"].map(|name| Audience(name.to_owned()));
    let written = |audiences: &[Audience], version| {
        String::from_utf8(question(version, &token, audiences).unwrap()).unwrap()
    };
    assert_eq!(
        written(&audiences, Version::V1),
        r#"{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","metadata":{},"spec":{"token":"t\"0","audiences":["a","b"]},"status":{}}"#
    );
    assert_eq!(
        written(&[], Version::V1Beta1),
        r#"{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1beta1","metadata":{},"spec":{"token":"t\"0"},"status":{}}"#
    );
}

#[test]
fn no_half_of_the_token_is_left_where_a_text_is_cut() {
    for before in LONGEST_TEXT - 5..=LONGEST_TEXT {
        let body = format!("{}t0k3n and more", "x".repeat(before));
        for code in [403, 500] {
            let Err(Trouble { text, .. }) = read(Version::V1, &token(), &answer(code, &body, None)) else {
                panic!("{code} is no answer");
            };
            assert!(!text.contains("t0"), "{before} {code}: {}", &text[before.min(text.len())..]);
        }
    }
    assert_eq!(redacted(&token(), &"ä".repeat(LONGEST_TEXT)).len(), LONGEST_TEXT);
}
