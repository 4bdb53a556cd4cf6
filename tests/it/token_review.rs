//! Token reviews: the gateway answers for tokens that the API server does not know.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Frame;
use serde_json::{Value, json};
use testkit::body::fed;
use testkit::pki::Issued;
use testkit::{FakeBackend, Gateway, H2, Pki, flags, full, in_time, status};

use crate::gateway::InProcess as _;

const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const JSON: &str = "application/json";

/// The backend's next response: status code, content type, body.
type Canned = (StatusCode, &'static str, Vec<u8>);

struct Fixture {
    _backend: FakeBackend,
    gateway: Gateway,
    alice: Issued,
    canned: Arc<Mutex<Canned>>,
}

impl Fixture {
    async fn new(flag: Option<&str>) -> Self {
        let pki = Pki::new();
        let canned = Arc::new(Mutex::new((StatusCode::OK, JSON, Vec::new())));
        let next = Arc::clone(&canned);
        let backend = FakeBackend::start(&pki, H2, move |_| {
            let (code, content_type, body) = next.lock().unwrap().clone();
            let answer = Response::builder().status(code).header("content-type", content_type);
            let answer = answer.header("x-of-the-backend", "1").body(full(body)).unwrap();
            Box::pin(async { answer })
        })
        .await;
        let flags = flags(&pki, backend.address).into_iter().chain(flag.map(str::to_owned));
        let gateway = Gateway::with(flags.collect());
        let alice = pki.clients.leaf().cn("alice").issue();
        Self { _backend: backend, gateway, alice, canned }
    }

    /// The response to a POST by alice, with this response of the backend.
    async fn post(&self, path: &str, canned: Canned) -> (StatusCode, HeaderMap, Vec<u8>) {
        *self.canned.lock().unwrap() = canned;
        let request = Request::post(path).header("content-type", JSON).body(full("{}")).unwrap();
        let answer = self.gateway.http2(Some(&self.alice)).await.send(request).await.unwrap();
        let (head, body) = answer.into_parts();
        let body = in_time(body.collect()).await.unwrap().to_bytes().to_vec();
        let length = head.headers.get("content-length").map(|length| length.to_str().unwrap().to_owned());
        assert!(length.is_none_or(|length| length == body.len().to_string()));
        assert_eq!(head.headers["x-of-the-backend"], "1");
        (head.status, head.headers, body)
    }

    /// The status of a review that the backend answers with `status`.
    async fn review(&self, spec: Value, status: Value) -> Value {
        let theirs = review(&spec, &status);
        let (code, _, body) = self.post(PATH, (StatusCode::CREATED, JSON, line(&theirs))).await;
        assert_eq!(code, StatusCode::CREATED);
        let mut ours: Value = serde_json::from_slice(&body).unwrap();
        let status = ours["status"].take();
        assert_eq!(ours, Value::Object(without_status(theirs)));
        status
    }
}

fn review(spec: &Value, status: &Value) -> Value {
    let metadata = json!({"creationTimestamp": null, "managedFields": [{"manager": "kubectl"}]});
    json!({
        "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": metadata,
        "spec": spec, "status": status,
    })
}

fn without_status(mut review: Value) -> serde_json::Map<String, Value> {
    review["status"] = Value::Null;
    review.as_object().unwrap().clone()
}

fn line(value: &Value) -> Vec<u8> {
    format!("{value}\n").into_bytes()
}

fn carol() -> Value {
    json!({"username": "carol", "uid": "7", "groups": ["a", "b", "system:authenticated"]})
}

#[tokio::test]
async fn the_gateway_reviews_tokens_that_the_api_server_does_not_know() {
    let fixture = Fixture::new(None).await;
    let refused = || json!({"user": {}, "error": "invalid bearer token"});
    for (token, refused) in [
        ("good-token", refused()),
        ("good-token", json!({})),
        // Parsed like the `Authorization` header.
        ("good-token and more", refused()),
    ] {
        let status = fixture.review(json!({"token": token}), refused).await;
        assert_eq!(status, json!({"authenticated": true, "user": carol()}), "{token}");
    }
}

#[tokio::test]
async fn other_responses_of_the_api_server_are_forwarded_unchanged() {
    let fixture = Fixture::new(None).await;
    let answer = |spec: Value, status: Value| line(&review(&spec, &status));
    let known = || json!({"token": "good-token"});
    let theirs = json!({"authenticated": true, "user": {"username": "system:serviceaccount:a:b"}});
    let forbidden = json!({"kind": "Status", "code": 403, "reason": "Forbidden"});
    let other_kind = json!({"kind": "Status", "spec": known(), "status": {}});
    let created = StatusCode::CREATED;
    let cases: Vec<(&str, &str, StatusCode, &str, Vec<u8>)> = vec![
        ("known", PATH, created, JSON, answer(known(), theirs)),
        ("forbidden", PATH, StatusCode::FORBIDDEN, JSON, line(&forbidden)),
        ("bad", PATH, StatusCode::BAD_REQUEST, JSON, answer(known(), json!({}))),
        ("not created", PATH, StatusCode::OK, JSON, answer(known(), json!({}))),
        ("no token", PATH, created, JSON, answer(json!({}), json!({}))),
        ("empty token", PATH, created, JSON, answer(json!({"token": ""}), json!({}))),
        ("no token of a header", PATH, created, JSON, answer(json!({"token": " good-token"}), json!({}))),
        ("another kind", PATH, created, JSON, line(&other_kind)),
        ("no object", PATH, created, JSON, b"[]".to_vec()),
        ("no JSON", PATH, created, JSON, b"{".to_vec()),
        ("no known encoding", PATH, created, "application/cbor", answer(known(), json!({}))),
        (
            "another version",
            "/apis/authentication.k8s.io/v1beta1/tokenreviews",
            created,
            JSON,
            answer(known(), json!({})),
        ),
        ("another group", "/apis/example.com/v1/tokenreviews", created, JSON, answer(known(), json!({}))),
        (
            "another resource",
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            created,
            JSON,
            answer(known(), json!({})),
        ),
        (
            "a namespace",
            "/apis/authentication.k8s.io/v1/namespaces/a/tokenreviews",
            created,
            JSON,
            answer(known(), json!({})),
        ),
        (
            "a subresource",
            "/apis/authentication.k8s.io/v1/tokenreviews/a/b",
            created,
            JSON,
            answer(known(), json!({})),
        ),
    ];
    for (case, path, code, content_type, body) in cases {
        let (found_code, headers, found) = fixture.post(path, (code, content_type, body.clone())).await;
        assert_eq!((found_code, &headers["content-type"]), (code, &content_type.parse().unwrap()), "{case}");
        assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&body), "{case}");
    }
}

#[tokio::test]
async fn the_clients_own_identity_is_not_the_reviewed_one() {
    let fixture = Fixture::new(None).await;
    for (theirs, both) in [
        ("invalid bearer token", "invalid bearer token"),
        ("[invalid bearer token, token is expired]", "[invalid bearer token, token is expired]"),
        ("token is expired", "[token is expired, invalid bearer token]"),
        ("", "invalid bearer token"),
    ] {
        let status = fixture.review(json!({"token": "other"}), json!({"user": {}, "error": theirs})).await;
        assert_eq!(status, json!({"user": {}, "error": both}));
    }
}

#[tokio::test]
async fn a_token_is_reviewed_for_the_requested_audiences() {
    let fixture = Fixture::new(Some("--api-audiences=api,second")).await;
    let cases: &[(&[&str], &[&str])] = &[
        (&[], &["api", "second"]),
        (&["api"], &["api"]),
        (&["other", "second", "api"], &["second", "api"]),
        (&["other"], &[]),
    ];
    for (requested, valid_for) in cases {
        let spec = json!({"token": "good-token", "audiences": requested});
        let status = fixture.review(spec, json!({"user": {}})).await;
        let expected = match valid_for {
            [] => json!({"user": {}, "error": "invalid bearer token"}),
            audiences => json!({"authenticated": true, "user": carol(), "audiences": audiences}),
        };
        assert_eq!(status, expected, "{requested:?}");
    }
}

#[tokio::test]
async fn the_response_has_the_format_of_the_api_servers_response() {
    let fixture = Fixture::new(None).await;
    let refused = review(&json!({"token": "good-token"}), &json!({"user": {}}));
    let mut valid = refused.clone();
    valid["status"] = json!({"authenticated": true, "user": carol()});
    let post = async |content_type, body| {
        let (code, headers, body) = fixture.post(PATH, (StatusCode::CREATED, content_type, body)).await;
        assert_eq!(code, StatusCode::CREATED);
        assert_eq!(headers["content-type"], content_type);
        body
    };
    // Fields have the order of kube-apiserver, not the alphabetical one.
    let expected = concat!(
        r#"{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","#,
        r#""metadata":{"creationTimestamp":null,"managedFields":[{"manager":"kubectl"}]},"#,
        r#""spec":{"token":"good-token"},"status":{"authenticated":true,"#,
        r#""user":{"username":"carol","uid":"7","groups":["a","b","system:authenticated"]}}}"#,
        "\n"
    );
    let answer = post("application/json; charset=utf-8", line(&refused)).await;
    assert_eq!(String::from_utf8(answer).unwrap(), expected);
    let answer = post(JSON, serde_json::to_string_pretty(&refused).unwrap().into_bytes()).await;
    let answer = String::from_utf8(answer).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&answer).unwrap(), valid);
    assert!(answer.starts_with("{\n  \"kind\": \"TokenReview\",\n  \"apiVersion\": "), "{answer}");

    let yaml = "apiVersion: authentication.k8s.io/v1\nkind: TokenReview\nmetadata:\n  creationTimestamp: null\n  \
                managedFields:\n  - manager: kubectl\nspec:\n  token: good-token\nstatus:\n  user: {}\n";
    let answer = post("application/yaml", yaml.as_bytes().to_vec()).await;
    assert_eq!(serde_saphyr::from_slice::<Value>(&answer).unwrap(), valid);
}

#[tokio::test]
async fn protobuf_is_answered_in_protobuf() {
    let field = |number: u8, bytes: &[u8]| -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
    };
    // Go's encoder writes all fields that are not lists, and the last two fields of the envelope.
    let envelope = |status: &[u8], end: &[u8]| {
        let meta = [field(1, b"authentication.k8s.io/v1"), field(2, b"TokenReview")].concat();
        // A name, and an unknown field.
        let metadata = [field(1, b"n"), field(15, b"unknown")].concat();
        let review = [field(1, &metadata), field(2, &field(1, b"good-token")), field(3, status)].concat();
        [&b"k8s\0"[..], &field(1, &meta), &field(2, &review), end].concat()
    };
    let refused = [vec![1 << 3, 0], field(2, b""), field(3, b"invalid bearer token")].concat();
    let user = [field(1, b"carol"), field(2, b"7"), field(3, b"a"), field(3, b"b")].concat();
    let user = [user, field(3, b"system:authenticated")].concat();
    let valid = [vec![1 << 3, 1], field(2, &user), field(3, b"")].concat();

    let fixture = Fixture::new(None).await;
    let content_type = "application/vnd.kubernetes.protobuf";
    let canned = (StatusCode::CREATED, content_type, envelope(&refused, b""));
    let (code, headers, body) = fixture.post(PATH, canned).await;
    assert_eq!((code, &headers["content-type"]), (StatusCode::CREATED, &content_type.parse().unwrap()));
    assert_eq!(
        String::from_utf8_lossy(&body),
        String::from_utf8_lossy(&envelope(&valid, &[field(3, b""), field(4, b"")].concat()))
    );
}

#[tokio::test]
async fn a_response_that_is_too_long_or_never_ends_is_an_error() {
    let pki = Pki::new();
    let (sender, endless, _gone) = fed();
    sender.send(Frame::data(Bytes::from_static(b"{"))).unwrap();
    let mut bodies = vec![endless, full(vec![b' '; 17 << 20])];
    let next = Mutex::new(move || bodies.pop().unwrap());
    let backend = FakeBackend::start(&pki, H2, move |_| {
        let body = (next.lock().unwrap())();
        Box::pin(async { Response::builder().status(StatusCode::CREATED).body(body).unwrap() })
    })
    .await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut client = gateway.http2(Some(&alice)).await;
    for (query, expected) in [("", StatusCode::BAD_GATEWAY), ("?timeout=1s", StatusCode::GATEWAY_TIMEOUT)] {
        let request = Request::post(format!("{PATH}{query}")).body(full("{}")).unwrap();
        assert_eq!(status(client.send(request).await.unwrap()).await.0, expected, "{query}");
    }
}

#[tokio::test]
async fn a_denied_user_is_not_authenticated_by_a_review() {
    let directory = tempfile::tempdir().unwrap();
    let denied = directory.path().join("denied");
    let lines = "user=carol\nuser=system:serviceaccount:a:b\nJTI=7fb8\n";
    std::fs::write(&denied, lines).unwrap();
    let fixture = Fixture::new(Some(&format!("--credential-deny-list-file={}", denied.display()))).await;
    let refused = |line: usize| json!({"user": {}, "error": format!("the credential is on the deny list, line {line}")});
    // A token that the gateway knows.
    assert_eq!(fixture.review(json!({"token": "good-token"}), json!({"user": {}})).await, refused(1));
    // Tokens that the API server knows.
    let key = "authentication.kubernetes.io/credential-id";
    for (user, expected) in [
        (json!({"username": "system:serviceaccount:a:b", "uid": "1", "groups": ["g"]}), Some(2)),
        (json!({"username": "system:serviceaccount:a:c", "extra": {key: ["JTI=7fb8"]}}), Some(3)),
        (json!({"username": "system:serviceaccount:a:c", "extra": {key: ["JTI=7fb9"]}}), None),
    ] {
        let theirs = json!({"authenticated": true, "user": user, "audiences": ["api"]});
        let ours = fixture.review(json!({"token": "other"}), theirs.clone()).await;
        assert_eq!(ours, expected.map_or(theirs, refused), "{user}");
    }
    let yaml = "apiVersion: authentication.k8s.io/v1\nkind: TokenReview\nspec:\n  token: t\n\
                status:\n  authenticated: true\n  user:\n    username: carol\n";
    let (_, _, body) = fixture.post(PATH, (StatusCode::CREATED, "application/yaml", yaml.into())).await;
    let ours: Value = serde_saphyr::from_slice(&body).unwrap();
    assert_eq!(ours["status"], refused(1));
    // An encoding that the gateway cannot read could hide a denied user.
    let request = Request::post(PATH).header("content-type", JSON).body(full("{}")).unwrap();
    *fixture.canned.lock().unwrap() = (StatusCode::CREATED, "application/cbor", b"\xd9\xd9\xf7".to_vec());
    let answer = fixture.gateway.http2(Some(&fixture.alice)).await.send(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
    // Forms of the response without a status pass.
    let table = line(&json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "rows": []}));
    let (code, _, body) =
        fixture.post(PATH, (StatusCode::CREATED, "application/json;as=Table", table.clone())).await;
    assert_eq!((code, body), (StatusCode::CREATED, table));
}
