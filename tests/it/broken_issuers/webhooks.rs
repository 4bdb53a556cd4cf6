//! Webhooks: invalid and late responses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Response;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use testkit::body::endless;
use testkit::{FakeBackend, Pki, ResponseFuture, in_time};
use tokio::net::TcpListener;

use super::{LoggedGateway, elsewhere, ready, target};

const JSON: &str = "application/json";
const V1: &str = "authentication.k8s.io/v1";

/// The token, which selects the webhook's response; the status code; the expected log message.
const CASES: &[(&str, u16, &str)] = &[
    ("token-that-is-good", 200, ""),
    ("token-for-garbage", 401, "the answer is not a TokenReview: line 1, column "),
    ("token-for-html", 401, "the answer is not a TokenReview: line 1, column 1 is wrong"),
    ("token-for-truncated", 401, "the answer is not a TokenReview"),
    ("token-for-a-list", 401, "the answer is not a TokenReview"),
    ("token-for-nothing", 401, "0-length response with status code: 200"),
    ("token-for-another-kind", 401, "the answer is \\\"Pod\\\" of "),
    ("token-for-another-version", 401, "of \\\"authentication.k8s.io/v1beta1\\\", not a TokenReview of"),
    ("token-for-nobody", 401, "the webhook authenticated a user without a name"),
    ("token-for-a-redirect", 401, "answered with a redirect (302 Found), which is not followed"),
    ("token-for-no-end", 401, "is larger than 1048576 bytes"),
    ("token-that-is-quoted", 401, "[the token] is bad"),
];

fn review(version: &str, kind: &str, status: &Value) -> String {
    json!({"apiVersion": version, "kind": kind, "status": status}).to_string()
}

fn reviewed(token: &str, target: &FakeBackend) -> ResponseFuture {
    let good = json!({"authenticated": true, "user": {"username": "wanda"}});
    let body = match token {
        "token-that-is-good" => review(V1, "TokenReview", &good),
        "token-for-garbage" => format!("\u{1}{token}\u{2}"),
        "token-for-html" => format!("<html>{token}</html>"),
        "token-for-truncated" => review(V1, "TokenReview", &good).replace("}}", ""),
        "token-for-a-list" => json!([{"status": good}]).to_string(),
        "token-for-nothing" => String::new(),
        "token-for-another-kind" => review(V1, "Pod", &good),
        "token-for-another-version" => review("authentication.k8s.io/v1beta1", "TokenReview", &good),
        "token-for-nobody" => review(V1, "TokenReview", &json!({"authenticated": true, "user": {}})),
        "token-that-is-quoted" => review(V1, "TokenReview", &json!({"error": format!("{token} is bad")})),
        "token-for-a-redirect" => return elsewhere(target),
        "token-for-no-end" => return Box::pin(async { Response::new(endless().0) }),
        _ => return Box::pin(std::future::pending()),
    };
    ready(200, JSON, body)
}

#[tokio::test]
async fn invalid_webhook_responses_are_plain_401s() {
    let pki = Pki::new();
    let elsewhere = target(&pki).await;
    let never = Arc::clone(&elsewhere);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let webhook = FakeBackend::without_client_auth(&pki, listener, move |request| {
        let never = Arc::clone(&never);
        Box::pin(async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let review: Value = serde_json::from_slice(&body).unwrap();
            reviewed(review["spec"]["token"].as_str().unwrap(), &never).await
        })
    });
    let file = pki.write(
        "webhook.kubeconfig",
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: b}}}}]\n\
             clusters: [{{name: b, cluster: {{server: 'https://{}/review', certificate-authority: servers-ca.crt}}}}]\n",
            webhook.address
        ),
    );
    let flags = [
        format!("--authentication-token-webhook-config-file={}", file.display()),
        "--authentication-token-webhook-version=v1".to_owned(),
        "-v=5".to_owned(),
    ];
    let setup = LoggedGateway::new(&pki, flags).await;
    let before = setup.most_memory();
    // One call hangs while all others are processed; its client does not wait beyond its own timeout.
    let hanging = async {
        let began = Instant::now();
        assert_eq!(in_time(setup.code("/api?timeout=500ms", "token-that-hangs")).await, 401);
        assert!(began.elapsed() < Duration::from_secs(15), "it took {:?}", began.elapsed());
    };
    let others = async {
        for (token, code, _) in CASES {
            assert_eq!(in_time(setup.code("/api", token)).await, *code, "{token}");
            setup.others_are_served().await;
        }
    };
    tokio::join!(hanging, others);
    let grown = setup.most_memory() - before;
    assert!(grown < 64 << 10, "endless answers are read: {grown} KiB");
    assert_eq!(elsewhere.connections(), 0, "a redirect was followed");
    assert_eq!(setup.code("/api", "token-that-is-good").await, 200);
    let expected: Vec<&str> = CASES.iter().map(|case| case.2).collect();
    let tokens: Vec<&str> = CASES.iter().map(|case| case.0).chain(["token-that-hangs"]).collect();
    setup.logged(&expected, &tokens).await;
}
