//! What probes see.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Method, Request, StatusCode};
use testkit::config_reload::replace;
use testkit::{Backend, Gateway, H2, Pki, empty, flags, full, in_time, kubeconfig, text};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use crate::gateway::InProcess as _;

/// What the port for metrics answers to a path: its code and its text.
async fn probe(gateway: &Gateway, path: &str) -> (u16, String) {
    let answer = gateway.metrics(path).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn probes_are_answered_without_a_backend_where_it_does_not_matter() {
    let pki = Pki::new();
    let backend = Backend::plain(&pki).await;
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
    // Noticed by the next request.
    let response = gateway.http1(Some(&alice)).await.get("/api", &[]).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let (code, said) = probe(&gateway, "/readyz").await;
    let failed = "[+]ping ok\n[+]poststarthook/self-check ok\n[-]clusters failed: reason withheld\n[+]poststarthook/token-issuers ok\n[+]shutdown ok\n\
                  [-]cluster-backend failed: reason withheld\nreadyz check failed\n";
    assert_eq!((code, said.as_str()), (500, failed));
    let (code, said) = probe(&gateway, "/readyz/cluster-backend").await;
    assert_eq!(code, 500);
    assert!(said.starts_with(&format!("internal server error: cannot connect to {address}: ")), "{said}");
    assert_eq!(probe(&gateway, "/livez").await, ok);
    // A check that is left out does not count.
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

/// Passes connections on to `backend`. While `hangs_up` is set, those that are new are ended at once; open ones go on.
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

/// A gateway that is taken out of service gets no requests, so none of them can find out that its API server is there.
#[tokio::test]
async fn readiness_comes_back_after_a_dial_that_failed_without_another_request() {
    let pki = Pki::new();
    let backend = Backend::plain(&pki).await;
    let hangs_up = Arc::new(AtomicBool::new(false));
    let relay = relay(backend.address, Arc::clone(&hangs_up)).await;
    let gateway = Gateway::with(flags(&pki, relay));
    gateway.checked().await;
    assert_eq!(probe(&gateway, "/readyz").await.0, 200);
    hangs_up.store(true, Ordering::SeqCst);
    // Anonymous requests have connections of their own, so this one is dialled for.
    let refused = gateway.http1(None).await.get("/api", &[]).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    hangs_up.store(false, Ordering::SeqCst);
    in_time(async { while probe(&gateway, "/readyz").await.0 != 200 {} }).await;
    in_time(async { while probe(&gateway, "/readyz/cluster-backend").await.0 != 200 {} }).await;
    assert_eq!(backend.pending(), 0, "there was no other request");
}

/// Not ready while users of an issuer would be refused for want of its keys; clients with other credentials are served.
#[tokio::test]
async fn an_issuer_that_is_not_known_yet_keeps_the_start_from_being_ready() {
    let pki = Pki::new();
    let backend = Backend::plain(&pki).await;
    let mut given = flags(&pki, backend.address);
    // Without a listener.
    given.push("--oidc-issuer-url=https://127.0.0.1:1".to_owned());
    given.push("--oidc-client-id=kubernetes".to_owned());
    let gateway = Gateway::with(given);
    gateway.checked().await;
    let verbose = "[+]ping ok\n[+]poststarthook/self-check ok\n[+]clusters ok\n\
                   [-]poststarthook/token-issuers failed: reason withheld\n[+]shutdown ok\n\
                   [-]cluster-backend/issuer-0 failed: reason withheld\n[+]cluster-backend ok\n\
                   readyz check failed\n";
    assert_eq!(probe(&gateway, "/readyz").await, (500, verbose.to_owned()));
    let (code, said) = probe(&gateway, "/readyz/cluster-backend/issuer-0").await;
    assert_eq!(code, 500);
    assert!(said.contains("https://127.0.0.1:1"), "{said}");
    assert_eq!(probe(&gateway, "/livez").await.0, 200);
    let alice = pki.clients.leaf().cn("alice").issue();
    assert_eq!(gateway.http1(Some(&alice)).await.get("/api", &[]).await.status(), StatusCode::OK);
}

/// The API server says who may see a single check; the gateway says what there is to see.
#[tokio::test]
async fn single_checks_of_the_gateway_are_shown_to_those_whom_the_backend_lets_through() {
    let pki = Pki::new();
    // As kube-apiserver: refuses all but alice, and knows checks of its own.
    let backend = Backend::start(&pki, H2, |request: Request<hyper::body::Incoming>| {
        let alice = request.headers()["x-remote-user"] == "alice";
        let (code, said) = match request.uri().path() {
            _ if !alice => (403, "forbidden"),
            "/livez/etcd" | "/readyz/shutdown" => (200, "ok from the backend"),
            "/readyz/failing" => (500, "internal server error: failing"),
            _ => (404, "404 page not found\n"),
        };
        Box::pin(async move { http::Response::builder().status(code).body(full(said)).unwrap() })
    })
    .await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    let bob = pki.clients.leaf().cn("bob").issue();
    for (path, code, said) in [
        ("/readyz/cluster-backend", 200, "ok"),
        ("/livez/etcd", 200, "ok from the backend"),
        ("/readyz/failing", 500, "internal server error: failing"),
        ("/readyz/cluster-none", 404, "404 page not found\n"),
        ("/livez/cluster-backend", 404, "404 page not found\n"),
    ] {
        let response = gateway.http1(Some(&alice)).await.get(path, &[]).await;
        assert_eq!((response.status().as_u16(), text(response).await.as_str()), (code, said), "{path}");
        let response = gateway.http1(Some(&bob)).await.get(path, &[]).await;
        assert_eq!((response.status().as_u16(), text(response).await.as_str()), (403, "forbidden"), "{path}");
    }
    // An impersonated user is authorized, not its impersonator; verbs other than get are for the backend to authorize.
    let response = gateway.http1(Some(&alice)).await.get("/livez", &[("impersonate-user", "bob")]).await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND, "the backend was asked");
    let post = Request::builder().method(Method::POST).uri("/livez").body(empty()).unwrap();
    let response = in_time(gateway.http1(Some(&bob)).await.send(post)).await.unwrap();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
}

/// A cluster that is added says nothing of whether the others are served, and nothing to their users.
#[tokio::test]
async fn another_cluster_is_neither_a_reason_to_fail_nor_shown_to_users() {
    let pki = Pki::new();
    let backend = Backend::start(&pki, H2, |_| {
        let unknown = http::Response::builder().status(404).body(full("404 page not found\n"));
        Box::pin(async { unknown.unwrap() })
    })
    .await;
    flags(&pki, backend.address);
    // Never answers a handshake, so its first check takes its time.
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
    let (code, said) = probe(&gateway, "/readyz?verbose").await;
    assert_eq!(code, 200);
    assert!(said.contains("[+]cluster-one ok\n[-]cluster-two failed: reason withheld\n"), "{said}");

    let mut client = gateway.http1(None).await;
    let token = [("authorization", "Bearer good-token")];
    let said = text(client.get("/one/readyz?verbose", &token).await).await;
    assert!(said.contains("[+]cluster-one ok\n") && !said.contains("two"), "{said}");
    for (path, expected) in
        [("/one/readyz/cluster-one", "ok"), ("/one/readyz/cluster-two", "404 page not found\n")]
    {
        assert_eq!(text(client.get(path, &token).await).await, expected, "{path}");
    }
}
