//! Health probes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Method, Request, StatusCode};
use testkit::config_reload::replace;
use testkit::{FakeBackend, Gateway, H2, Pki, empty, flags, full, in_time, kubeconfig, text};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use crate::gateway::InProcess as _;

/// The status code and the body of a path on the metrics port.
async fn probe(gateway: &Gateway, path: &str) -> (u16, String) {
    let answer = gateway.metrics(path).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn liveness_probes_succeed_without_a_backend() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let mut given = flags(&pki, backend.address);
    given.push("--livez-grace-period=1h".to_owned());
    let gateway = Gateway::with(given);
    gateway.checked().await;
    let ok = (200, "ok".to_owned());
    for path in
        ["/livez", "/healthz", "/readyz", "/readyz/cluster-backend", "/livez/ping", "/readyz/shutdown"]
    {
        assert_eq!(probe(&gateway, path).await, ok, "{path}");
    }
    for path in ["/readyz/none", "/readyz/", "/livez/cluster-backend", "/livez/etcd"] {
        assert_eq!(probe(&gateway, path).await.0, 404, "{path}");
    }
    let verbose = "[+]ping ok\n[+]poststarthook/self-check ok\n[+]clusters ok\n[+]poststarthook/token-issuers ok\n[+]shutdown ok\n\
                   [+]cluster-backend ok\nreadyz check passed\n";
    assert_eq!(probe(&gateway, "/readyz?verbose").await, (200, verbose.to_owned()));
    let excluded = "[+]ping excluded: ok\n[+]poststarthook/self-check ok\n\
                    warn: some health checks cannot be excluded: no matches for \"a\",\"b\"\nlivez check passed\n";
    let query = "/livez?exclude=b&verbose&exclude=ping&exclude=a";
    assert_eq!(probe(&gateway, query).await, (200, excluded.to_owned()));

    let address = backend.address;
    let alice = pki.clients.leaf().cn("alice").issue();
    drop(backend);
    // The next request detects the failure.
    let response = gateway.http1(Some(&alice)).await.get("/api", &[]).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let (code, body) = probe(&gateway, "/readyz").await;
    let failed = "[+]ping ok\n[+]poststarthook/self-check ok\n[-]clusters failed: reason withheld\n[+]poststarthook/token-issuers ok\n[+]shutdown ok\n\
                  [-]cluster-backend failed: reason withheld\nreadyz check failed\n";
    assert_eq!((code, body.as_str()), (500, failed));
    let (code, body) = probe(&gateway, "/readyz/cluster-backend").await;
    assert_eq!(code, 500);
    assert!(body.starts_with(&format!("internal server error: cannot connect to {address}: ")), "{body}");
    assert_eq!(probe(&gateway, "/livez").await, ok);
    // An excluded check does not count.
    assert_eq!(probe(&gateway, "/readyz?exclude=clusters").await, ok);

    // The same on the main port, for all clients.
    let response = gateway.http1(None).await.get("/readyz", &[]).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    assert_eq!(response.headers()["cache-control"], "no-cache, private");
    assert!(response.headers().contains_key("audit-id"));
    assert_eq!(text(response).await, failed);
    let response = gateway.http1(None).await.get("/livez", &[]).await;
    assert_eq!((response.status(), text(response).await.as_str()), (StatusCode::OK, "ok"));
    let refused = gateway.http1(None).await.get("/livez", &[("authorization", "Bearer wrong")]).await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
}

/// Relays connections to `backend`. While `hangs_up` is set, new connections are closed at once; open ones continue.
async fn relay(backend: SocketAddr, hangs_up: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            if !hangs_up.load(Ordering::SeqCst) {
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(backend).await.unwrap();
                    copy_bidirectional(&mut client, &mut server).await.ok();
                });
            }
        }
    });
    address
}

/// An unready gateway gets no requests, so the self-check must detect that its API server is back.
#[tokio::test]
async fn readiness_recovers_without_further_requests_after_a_failed_dial() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let hangs_up = Arc::new(AtomicBool::new(false));
    let relay = relay(backend.address, Arc::clone(&hangs_up)).await;
    let gateway = Gateway::with(flags(&pki, relay));
    gateway.checked().await;
    assert_eq!(probe(&gateway, "/readyz").await.0, 200);
    hangs_up.store(true, Ordering::SeqCst);
    // Anonymous requests use separate connections, so the gateway dials for this one.
    let refused = gateway.http1(None).await.get("/api", &[]).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    hangs_up.store(false, Ordering::SeqCst);
    in_time(async { while probe(&gateway, "/readyz").await.0 != 200 {} }).await;
    in_time(async { while probe(&gateway, "/readyz/cluster-backend").await.0 != 200 {} }).await;
    assert_eq!(backend.pending(), 0, "there was no other request");
}

/// The gateway is not ready while it lacks the keys of an issuer; clients with other credentials are served.
#[tokio::test]
async fn the_gateway_is_not_ready_before_issuer_discovery() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let mut given = flags(&pki, backend.address);
    // An issuer without a listener.
    given.push("--oidc-issuer-url=https://127.0.0.1:1".to_owned());
    given.push("--oidc-client-id=kubernetes".to_owned());
    let gateway = Gateway::with(given);
    gateway.checked().await;
    let verbose = "[+]ping ok\n[+]poststarthook/self-check ok\n[+]clusters ok\n\
                   [-]poststarthook/token-issuers failed: reason withheld\n[+]shutdown ok\n\
                   [-]cluster-backend/issuer-0 failed: reason withheld\n[+]cluster-backend ok\n\
                   readyz check failed\n";
    assert_eq!(probe(&gateway, "/readyz").await, (500, verbose.to_owned()));
    let (code, body) = probe(&gateway, "/readyz/cluster-backend/issuer-0").await;
    assert_eq!(code, 500);
    assert!(body.contains("https://127.0.0.1:1"), "{body}");
    assert_eq!(probe(&gateway, "/livez").await.0, 200);
    let alice = pki.clients.leaf().cn("alice").issue();
    assert_eq!(gateway.http1(Some(&alice)).await.get("/api", &[]).await.status(), StatusCode::OK);
}

/// The API server authorizes the access to single checks of the gateway.
#[tokio::test]
async fn single_checks_are_shown_to_users_that_the_backend_authorizes() {
    let pki = Pki::new();
    // Authorizes only alice, and has its own checks, as kube-apiserver does.
    let backend = FakeBackend::start(&pki, H2, |request: Request<hyper::body::Incoming>| {
        let alice = request.headers()["x-remote-user"] == "alice";
        let (code, body) = match request.uri().path() {
            _ if !alice => (403, "forbidden"),
            "/livez/etcd" | "/readyz/shutdown" => (200, "ok from the backend"),
            "/readyz/failing" => (500, "internal server error: failing"),
            _ => (404, "404 page not found\n"),
        };
        Box::pin(async move { http::Response::builder().status(code).body(full(body)).unwrap() })
    })
    .await;
    let mut flags = flags(&pki, backend.address);
    flags.push("--impersonation=backend".to_owned());
    let gateway = Gateway::with(flags);
    let alice = pki.clients.leaf().cn("alice").issue();
    let bob = pki.clients.leaf().cn("bob").issue();
    for (path, code, body) in [
        ("/readyz/cluster-backend", 200, "ok"),
        ("/livez/etcd", 200, "ok from the backend"),
        ("/readyz/failing", 500, "internal server error: failing"),
        ("/readyz/cluster-none", 404, "404 page not found\n"),
        ("/livez/cluster-backend", 404, "404 page not found\n"),
    ] {
        let response = gateway.http1(Some(&alice)).await.get(path, &[]).await;
        assert_eq!((response.status().as_u16(), text(response).await.as_str()), (code, body), "{path}");
        let response = gateway.http1(Some(&bob)).await.get(path, &[]).await;
        assert_eq!((response.status().as_u16(), text(response).await.as_str()), (403, "forbidden"), "{path}");
    }
    // The impersonated user is authorized, not the impersonator. The backend authorizes verbs other than get.
    let response = gateway.http1(Some(&alice)).await.get("/livez", &[("impersonate-user", "bob")]).await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND, "the backend authorized the request");
    let post = Request::builder().method(Method::POST).uri("/livez").body(empty()).unwrap();
    let response = in_time(gateway.http1(Some(&bob)).await.send(post)).await.unwrap();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
}

/// A failing cluster that is added does not make the gateway unready and is not shown to users of other clusters.
#[tokio::test]
async fn an_added_failing_cluster_neither_fails_readyz_nor_is_shown_to_users() {
    let pki = Pki::new();
    let backend = FakeBackend::start(&pki, H2, |_| {
        let unknown = http::Response::builder().status(404).body(full("404 page not found\n"));
        Box::pin(async { unknown.unwrap() })
    })
    .await;
    flags(&pki, backend.address);
    // Never completes a handshake, so its first self-check is slow.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let directory = pki.directory.path();
    let [ca, cert, key] = ["servers-ca.crt", "front.crt", "front.key"].map(|name| directory.join(name));
    pki.write("mute.kubeconfig", kubeconfig(mute.local_addr().unwrap(), &ca, &cert, &key));
    let file = directory.join("gateway.yaml");
    let write = |more: &str| {
        let content = format!(
            "apiVersion: portcullis.dev/v1alpha1
kind: GatewayConfiguration
serving: {{bindAddress: 127.0.0.1, securePort: 0, tlsCertFile: gateway.crt, tlsPrivateKeyFile: gateway.key}}
operation: {{metricsBindAddress: '127.0.0.1:0', workers: 1, livezGracePeriod: 0s}}
authentication: {{tokenAuthFile: tokens.csv}}
clusters:
- {{name: one, kubeconfig: backend.kubeconfig, match: {{pathPrefix: /one}}}}
{more}"
        );
        replace(&file, content);
    };
    write("");
    let gateway = Gateway::with(vec![format!("--config={}", file.display())]);
    gateway.checked().await;
    let ok = (200, "ok".to_owned());
    assert_eq!(probe(&gateway, "/livez").await, ok);
    write("- {name: two, kubeconfig: mute.kubeconfig, match: {pathPrefix: /two}}\n");
    gateway.server().reload();
    gateway.reloaded(1).await;
    for path in ["/livez", "/readyz"] {
        assert_eq!(probe(&gateway, path).await, ok, "{path}");
    }
    let (code, body) = probe(&gateway, "/readyz?verbose").await;
    assert_eq!(code, 200);
    assert!(body.contains("[+]cluster-one ok\n[-]cluster-two failed: reason withheld\n"), "{body}");

    let mut client = gateway.http1(None).await;
    let token = [("authorization", "Bearer good-token")];
    let body = text(client.get("/one/readyz?verbose", &token).await).await;
    assert!(body.contains("[+]cluster-one ok\n") && !body.contains("two"), "{body}");
    for (path, expected) in
        [("/one/readyz/cluster-one", "ok"), ("/one/readyz/cluster-two", "404 page not found\n")]
    {
        assert_eq!(text(client.get(path, &token).await).await, expected, "{path}");
    }
}

/// A reload shows the status of the clusters to clients on other machines, here behind a proxy on this one, and hides it again.
#[tokio::test]
async fn the_status_of_the_clusters_is_shown_to_others_while_it_is_configured() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    flags(&pki, backend.address);
    let file = pki.directory.path().join("gateway.yaml");
    let write = |exposed: bool| {
        let content = format!(
            "apiVersion: portcullis.dev/v1alpha1
kind: GatewayConfiguration
serving: {{bindAddress: 127.0.0.1, securePort: 0, tlsCertFile: gateway.crt, tlsPrivateKeyFile: gateway.key}}
operation: {{metricsBindAddress: '127.0.0.1:0', workers: 1, metricsExposeClusterStatus: {exposed}}}
authentication: {{tokenAuthFile: tokens.csv}}
clusters: [{{name: one, kubeconfig: backend.kubeconfig}}]
"
        );
        replace(&file, content);
    };
    write(false);
    let gateway = Gateway::with(vec![format!("--config={}", file.display())]);
    gateway.checked().await;
    for (generation, exposed) in [(1, false), (2, true), (3, false)] {
        if generation > 1 {
            write(exposed);
            gateway.server().reload();
            gateway.reloaded(generation - 1).await;
        }
        let code = if exposed { "HTTP/1.1 200" } else { "HTTP/1.1 403" };
        let forwarded = gateway.admin("/clusters", "X-Forwarded-For: 192.0.2.1\r\n").await;
        assert!(forwarded.starts_with(code), "{generation}: {forwarded}");
        assert_eq!(forwarded.contains("\"one\""), exposed, "{generation}: {forwarded}");
        let local = gateway.metrics("/clusters").await;
        assert!(local.starts_with("HTTP/1.1 200") && local.contains("\"one\""), "{generation}: {local}");
    }
}
