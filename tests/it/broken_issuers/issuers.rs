//! Issuers: availability, and the documents that they publish.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Response, StatusCode};
use serde_json::{Value, json};
use testkit::body::endless;
use testkit::client::Client;
use testkit::issuer::{CONFIGURATION, Issuer, KEYS, SigningKey, key_set};
use testkit::now;
use testkit::{FakeBackend, Pki, ResponseFuture, TEST_TIMEOUT, in_time, until};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;

use super::{LoggedGateway, elsewhere, ready, target};

const JSON: &str = "application/json";

/// The flags of one issuer.
fn one(pki: &Pki, url: &str) -> Vec<String> {
    let authority = pki.write("servers-ca.crt", pki.servers.cert_pem());
    vec![
        format!("--oidc-issuer-url={url}"),
        format!("--oidc-ca-file={}", authority.display()),
        "--oidc-client-id=kubernetes".to_owned(),
        "--oidc-username-prefix=-".to_owned(),
        "--oidc-signing-algs=ES256".to_owned(),
    ]
}

fn claims(issuer: &str, id: &str) -> Value {
    json!({"iss": issuer, "aud": "kubernetes", "sub": "dora", "exp": now() + 3600, "jti": id})
}

#[tokio::test]
async fn an_issuer_that_starts_late_is_discovered_then() {
    let pki = Pki::new();
    let key = SigningKey::new("first");
    // Bound, but not listening yet.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("https://{}", socket.local_addr().unwrap());
    let setup = LoggedGateway::new(&pki, one(&pki, &url)).await;
    let token = key.sign(&claims(&url, "1"));
    let began = Instant::now();
    assert_eq!(setup.code("/api", &token).await, 401);
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "the start waits for the issuer: {:?}",
        began.elapsed()
    );
    setup.others_are_served().await;

    let _issuer = Issuer::at(&pki, socket.listen(16).unwrap(), &[&key]);
    in_time(async {
        while setup.code("/api", &token).await != 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    setup.others_are_served().await;
    setup.logged(&["OIDC discovery failed", "Connection refused"], &[&token]).await;
}

/// One of several issuers at the same server, each below its own path.
struct Member {
    name: &'static str,
    code: u16,
    /// The expected log message.
    logged: &'static str,
}

const MEMBERS: &[Member] = &[
    Member { name: "good", code: 200, logged: "" },
    // go-oidc ignores the content type too.
    Member { name: "plain", code: 200, logged: "" },
    Member { name: "silent", code: 401, logged: "oidc: authenticator not initialized" },
    Member { name: "html", code: 401, logged: "oidc: failed to decode provider discovery object: " },
    Member {
        name: "moved",
        code: 401,
        logged: "answered with a redirect (302 Found), which is not followed",
    },
    Member { name: "other", code: 401, logged: "oidc: issuer did not match the issuer returned by provider" },
    Member { name: "endless", code: 401, logged: "is larger than 1048576 bytes" },
    Member { name: "keyless", code: 401, logged: "provider did not return JWKS URL" },
    Member { name: "broken", code: 401, logged: "503 Service Unavailable" },
    Member { name: "html-keys", code: 401, logged: "failed to decode keys: " },
    Member { name: "moved-keys", code: 401, logged: "oidc: get keys failed " },
    Member { name: "endless-keys", code: 401, logged: "oidc: get keys failed " },
    Member { name: "broken-keys", code: 401, logged: "oidc: get keys failed: 503 Service Unavailable" },
    Member { name: "no-keys", code: 401, logged: "failed to verify id token signature" },
];

/// The response of the server of all issuers.
fn published(path: &str, url: &str, keys: &str, target: &FakeBackend) -> ResponseFuture {
    let name = path.split('/').nth(1).unwrap_or_default();
    let issuer = format!("{url}/{name}");
    let configuration = json!({"issuer": issuer, "jwks_uri": format!("{issuer}{KEYS}")}).to_string();
    let html = "<!DOCTYPE html><html><body>sign in</body></html>";
    match (name, path.ends_with(CONFIGURATION)) {
        ("silent", _) => Box::pin(std::future::pending()),
        ("html", true) | ("html-keys", false) => ready(200, "text/html", html),
        ("moved", true) | ("moved-keys", false) => elsewhere(target),
        ("other", true) => ready(200, JSON, configuration.replace("/other\"", "/another\"")),
        ("endless", true) | ("endless-keys", false) => Box::pin(async { Response::new(endless().0) }),
        ("keyless", true) => ready(200, JSON, json!({"issuer": issuer}).to_string()),
        ("broken", true) | ("broken-keys", false) => ready(503, "text/plain", "later"),
        ("no-keys", false) => ready(200, JSON, r#"{"keys": []}"#),
        ("plain", true) => ready(200, "text/plain", configuration),
        ("plain", false) => ready(200, "text/html", keys.to_owned()),
        (_, true) => ready(200, JSON, configuration),
        (_, false) => ready(200, JSON, keys.to_owned()),
    }
}

#[tokio::test]
async fn invalid_documents_of_an_issuer_affect_only_its_own_tokens() {
    let pki = Pki::new();
    let key = SigningKey::new("first");
    let (elsewhere, keys) = (target(&pki).await, key_set(&[&key]).to_string());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let (own, never) = (url.clone(), Arc::clone(&elsewhere));
    let _server = FakeBackend::without_client_auth(&pki, listener, move |request| {
        published(request.uri().path(), &own, &keys, &never)
    });
    let mut file =
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n".to_owned();
    let authority = serde_json::to_string(&pki.servers.cert_pem()).unwrap();
    for Member { name, .. } in MEMBERS {
        writeln!(
            file,
            "- issuer: {{url: '{url}/{name}', audiences: [kubernetes], certificateAuthority: {authority}}}\n  \
             claimMappings: {{username: {{claim: sub, prefix: ''}}}}"
        )
        .unwrap();
    }
    let file = pki.write("issuers.yaml", file);
    let setup =
        LoggedGateway::new(&pki, [format!("--authentication-config={}", file.display()), "-v=5".to_owned()])
            .await;
    let before = setup.most_memory();

    let mut tokens = Vec::new();
    for Member { name, code, .. } in MEMBERS {
        let token = key.sign(&claims(&format!("{url}/{name}"), "1"));
        let began = Instant::now();
        let mut found = setup.code("/api", &token).await;
        // Discovery of the valid issuers takes time.
        while *code == 200 && found == 401 && began.elapsed() < TEST_TIMEOUT {
            found = setup.code("/api", &token).await;
        }
        assert_eq!(found, *code, "{name}");
        assert!(began.elapsed() < Duration::from_secs(10), "{name} took {:?}", began.elapsed());
        setup.others_are_served().await;
        tokens.push(token);
    }
    let grown = setup.most_memory() - before;
    assert!(grown < 64 << 10, "endless answers are read: {grown} KiB");
    assert_eq!(elsewhere.connections(), 0, "a redirect was followed");
    let expected: Vec<&str> = MEMBERS.iter().map(|member| member.logged).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    setup.logged(&expected, &tokens).await;
}

#[tokio::test]
async fn a_slow_issuer_delays_only_its_own_tokens() {
    let pki = Pki::new();
    let key = SigningKey::new("first");
    let issuer = Issuer::start(&pki, &[&key]).await;
    let (release, released) = watch::channel(false);
    let keys = key_set(&[&key]).to_string();
    issuer.answers(KEYS, move || {
        let (mut released, keys) = (released.clone(), keys.clone());
        Box::pin(async move {
            released.wait_for(|released| *released).await.ok();
            ready(200, JSON, keys).await
        })
    });
    let setup = LoggedGateway::new(&pki, one(&pki, &issuer.url)).await;
    let token = key.sign(&claims(&issuer.url, "1"));
    let keys_requested = || issuer.server.pending() >= 2;
    // Requests wait only after discovery has succeeded.
    let slow = async {
        loop {
            let code = setup.code("/api", &token).await;
            if code != 401 {
                return code;
            }
        }
    };
    let others = async {
        until("the request for the keys", keys_requested).await;
        setup.others_are_served().await;
        // A request with a shorter timeout gets its own response.
        assert_eq!(
            in_time(setup.code("/api?timeout=300ms", &key.sign(&claims(&issuer.url, "2")))).await,
            401
        );
        release.send(true).unwrap();
    };
    let (code, ()) = in_time(Box::pin(async { tokio::join!(slow, others) })).await;
    assert_eq!(code, 200);
    setup.logged(&[], &[&token]).await;
}

#[tokio::test]
async fn no_request_fails_while_keys_are_rotated() {
    let pki = Pki::new();
    let mut old = SigningKey::new("key-0");
    let issuer = Issuer::start(&pki, &[&old]).await;
    let began = Instant::now();
    let setup = LoggedGateway::new(&pki, one(&pki, &issuer.url)).await;
    let first = old.sign(&claims(&issuer.url, "first"));
    in_time(async { while setup.code("/api", &first).await != 200 {} }).await;
    let connection = setup.process.gateway.http2(None).await;
    for round in 1..=3 {
        let new = SigningKey::new(&format!("key-{round}"));
        issuer.is(&issuer.url, &[&old, &new]);
        // The new key has signed no token before; each token is new, so it is not cached.
        let tokens = (0..40).map(|index| {
            let key = if index % 2 == 0 { &old } else { &new };
            key.sign(&claims(&issuer.url, &format!("{round}-{index}")))
        });
        let tokens: Vec<String> = tokens.collect();
        let codes = tokens.iter().map(|token| {
            let mut client = Client::Two(connection.share());
            async move { client.code(&[("authorization", &format!("Bearer {token}"))]).await }
        });
        let codes: Vec<StatusCode> = in_time(futures_util::future::join_all(codes)).await;
        assert!(codes.iter().all(|code| *code == 200), "round {round}: {codes:?}");
        old = new;
    }
    // One request for the configuration, one for the first keys, one for each rotation; on a busy machine one per second.
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    let requests = issuer.server.pending();
    assert!(
        (5..=5.max(2 + seconds)).contains(&requests),
        "the issuer received {requests} requests in {seconds} s"
    );
}
