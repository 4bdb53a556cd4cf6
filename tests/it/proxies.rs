//! Issuers and webhooks that only a proxy can reach, and the backend, which is reached directly.

use std::process::Command;
use std::time::Duration;

use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use testkit::gateway_process::GatewayProcess;
use testkit::issuer::{KEYS, SigningKey, key_set, respond};
use testkit::proxy_server::{CONNECTED, ProxyKind, ProxyServer};
use testkit::{FakeBackend, Pki, flags, in_time, now, until};
use tokio::net::TcpListener;

use crate::gateway::PORTCULLIS;

/// A token webhook that authenticates wanda.
async fn token_webhook(pki: &Pki) -> FakeBackend {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    FakeBackend::named(pki, "hook.test", listener, |request| {
        Box::pin(async {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let review: Value = serde_json::from_slice(&body).unwrap();
            let is_known = review["spec"]["token"] == "wandas-token";
            let status = json!({"authenticated": is_known, "user": {"username": "wanda"}});
            let answer =
                json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status});
            respond(200, "application/json", answer.to_string())
        })
    })
}

#[tokio::test]
async fn issuers_and_webhooks_are_reached_through_their_proxies() {
    const ISSUER: &str = "https://issuer.test";
    let (pki, key) = (Pki::new(), SigningKey::new("k"));
    let document = json!({"issuer": ISSUER, "jwks_uri": format!("{ISSUER}{KEYS}")}).to_string();
    let keys = key_set(&[&key]).to_string();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let issuer = FakeBackend::named(&pki, "issuer.test", listener, move |request| {
        let body = if request.uri().path() == KEYS { keys.clone() } else { document.clone() };
        Box::pin(async { respond(200, "application/json", body) })
    });
    let webhook = token_webhook(&pki).await;
    let of_environment = ProxyServer::start(ProxyKind::Connect(CONNECTED), issuer.address).await;
    let of_webhook = ProxyServer::start(ProxyKind::Connect(CONNECTED), webhook.address).await;
    let backend = FakeBackend::plain(&pki).await;

    let mut given = flags(&pki, backend.address);
    let kubeconfig = pki.write(
        "webhook.kubeconfig",
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: b}}}}]\n\
             clusters: [{{name: b, cluster: {{server: 'https://hook.test/authenticate', \
             certificate-authority: servers-ca.crt, proxy-url: 'http://me:s3cr3t@{}'}}}}]\n",
            of_webhook.address
        ),
    );
    given.extend([
        format!("--oidc-issuer-url={ISSUER}"),
        "--oidc-client-id=here".to_owned(),
        "--oidc-signing-algs=ES256".to_owned(),
        "--oidc-username-prefix=-".to_owned(),
        format!("--oidc-ca-file={}", pki.directory.path().join("servers-ca.crt").display()),
        format!("--authentication-token-webhook-config-file={}", kubeconfig.display()),
        "--authentication-token-webhook-version=v1".to_owned(),
    ]);
    let mut command = Command::new(PORTCULLIS);
    command.env("HTTPS_PROXY", format!("http://user:s3cr3t@{}", of_environment.address));
    command.env("NO_PROXY", "other.test").arg("serve").args(given);
    let process = GatewayProcess::serve(command).await;
    let claims = json!({"iss": ISSUER, "aud": "here", "sub": "dora", "exp": now() + 3600});
    let code = async |token: &str| {
        let bearer = format!("Bearer {token}");
        let mut client = process.gateway.http2(None).await;
        client.get("/api", &[("authorization", &bearer)]).await.status().as_u16()
    };
    let dora = key.sign(&claims);
    in_time(async {
        while code(&dora).await != 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert_eq!(code("wandas-token").await, 200);
    assert_eq!(code("no-token").await, 401);

    let heads = of_environment.take();
    assert!(!heads.is_empty(), "the issuer is reached through the proxy");
    for head in &heads {
        assert!(head.starts_with("CONNECT issuer.test:443 HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("Proxy-Authorization: Basic dXNlcjpzM2NyM3Q=\r\n"), "{head}");
    }
    let heads = of_webhook.take();
    assert!(
        !heads.is_empty() && heads.iter().all(|head| head.starts_with("CONNECT hook.test:443 ")),
        "{heads:?}"
    );
    let (_, log) = process.end().await;
    assert!(!log.contains("s3cr3t"), "{log}");
}

#[tokio::test]
async fn an_unreachable_proxy_is_named_in_the_log_without_its_password() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    // Bound but not listening: no other process gets the port.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let proxy = socket.local_addr().unwrap();
    let mut given = flags(&pki, backend.address);
    given.extend(["--oidc-issuer-url=https://issuer.test".to_owned(), "--oidc-client-id=here".to_owned()]);
    let mut command = Command::new(PORTCULLIS);
    command.env("https_proxy", format!("user:s3cr3t@{proxy}")).arg("serve").args(given);
    let process = GatewayProcess::serve(command).await;
    until("the failed discovery", || !process.said("OIDC discovery failed").is_empty()).await;
    let (_, log) = process.end().await;
    assert!(log.contains(&format!("the proxy http://{proxy}: ")) && !log.contains("s3cr3t"), "{log}");
}
