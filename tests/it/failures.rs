//! Responses to misbehaving clients, and to clients of a misbehaving backend.

use http::{Response, StatusCode};
use hyper::body::Frame;
use testkit::body::fed;
use testkit::client::Client;
use testkit::{FakeBackend, Gateway, H1, H2, Pki, full, in_time, status, text};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::gateway::InProcess as _;

#[tokio::test]
async fn an_unreachable_backend_is_a_503_with_retry_after() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let flags = testkit::flags(&pki, backend.address);
    drop(backend);
    let gateway = Gateway::with(flags);
    let alice = pki.clients.leaf().cn("alice").issue();
    let response = gateway.http2(Some(&alice)).await.get("/api", &[]).await;
    assert_eq!(response.headers()["retry-after"], "1");
    assert_eq!(response.headers()["cache-control"], "no-cache, private");
    assert_eq!(response.headers().get_all("audit-id").iter().count(), 1);
    let (code, body) = status(response).await;
    assert_eq!(
        (code, body["reason"].as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, Some("ServiceUnavailable"))
    );
    assert!(
        !body.to_string().contains("127.0.0.1"),
        "the response contains the address of the backend: {body}"
    );
}

#[tokio::test]
async fn a_backend_that_refuses_the_gateways_credential_is_a_502() {
    let pki = Pki::new();
    let backend = FakeBackend::start(&pki, H2, |request: http::Request<_>| {
        let behind_authentication = request.uri().path() == "/apis/aggregated.example.com/v1/x";
        Box::pin(async move {
            let mut response = Response::builder().status(401);
            if behind_authentication {
                response = response.header("x-kubernetes-pf-flowschema-uid", "1");
            }
            response.body(full("who?")).unwrap()
        })
    })
    .await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    for (path, expected) in [
        ("/api/v1/pods", StatusCode::BAD_GATEWAY),
        ("/apis/aggregated.example.com/v1/x", StatusCode::UNAUTHORIZED),
        ("/api/v1/namespaces/n/services/s/proxy/login", StatusCode::UNAUTHORIZED),
        // A 401 of a kubelet, or one that an API server without priority and fairness relays.
        ("/api/v1/namespaces/n/pods/p/log", StatusCode::UNAUTHORIZED),
        ("/api/v1/namespaces/n/pods/p/exec", StatusCode::UNAUTHORIZED),
        ("/apis/another.example.com/v1/x", StatusCode::UNAUTHORIZED),
    ] {
        let response = gateway.http2(Some(&alice)).await.get(path, &[("audit-id", "find-me")]).await;
        assert_eq!(response.status(), expected, "{path}");
        assert_eq!(response.headers()["audit-id"], "find-me");
        let body = text(response).await;
        if expected == StatusCode::BAD_GATEWAY {
            assert!(body.contains("find-me"), "{body}");
        }
    }
    for protocol in ["SPDY/3.1", "websocket"] {
        let path = "/api/v1/namespaces/n/pods/p/exec";
        let upgrade = [("connection", "Upgrade"), ("upgrade", protocol)];
        let response = gateway.http1(Some(&alice)).await.get(path, &upgrade).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{protocol}");
    }
    assert_eq!(gateway.count("portcullis_backend_errors_total{cause=\"refused_identity\"}").await, 1);
}

// The backend's timeout for the request starts later than the gateway's.
#[tokio::test]
async fn the_backends_own_504_is_forwarded_after_the_gateways_deadline() {
    for http2 in [false, true] {
        let pki = Pki::new();
        let (opened, mut feeds) = tokio::sync::mpsc::unbounded_channel();
        let backend = FakeBackend::start(&pki, H2, move |request: http::Request<_>| {
            if request.uri().path() != "/api/v1/pods" {
                return Box::pin(std::future::pending());
            }
            let (feed, body, _) = fed();
            opened.send(feed).unwrap();
            Box::pin(async { Response::builder().status(504).body(body).unwrap() })
        })
        .await;
        let gateway = Gateway::start(&pki, &backend);
        let alice = pki.clients.leaf().cn("alice").issue();
        let mut client = Client::connect(&gateway, http2, Some(&alice)).await;
        let late = client.get("/api/v1/pods?timeout=1s", &[]).await;
        assert_eq!(late.status(), StatusCode::GATEWAY_TIMEOUT);
        // Once this later request has timed out, the timeout of the first has passed too.
        let other = gateway.http2(Some(&alice)).await.get("/api/v1/nodes?timeout=1s", &[]).await;
        assert_eq!(other.status(), StatusCode::GATEWAY_TIMEOUT);
        let feed = in_time(feeds.recv()).await.unwrap();
        feed.send(Frame::data(bytes::Bytes::from_static(b"the backend's words"))).unwrap();
        drop(feed);
        assert_eq!(text(late).await, "the backend's words", "HTTP/2: {http2}");
    }
}

#[tokio::test]
async fn a_redirect_is_forwarded_and_not_followed() {
    let pki = Pki::new();
    let backend = FakeBackend::start(&pki, H2, |_| {
        Box::pin(async {
            Response::builder().status(302).header("location", "https://elsewhere/").body(full("")).unwrap()
        })
    })
    .await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    let response = gateway.http2(Some(&alice)).await.get("/api", &[]).await;
    assert_eq!(response.status(), StatusCode::FOUND);
    assert_eq!(response.headers()["location"], "https://elsewhere/");
    backend.take().unwrap();
    assert_eq!(backend.pending(), 0);
}

#[tokio::test]
async fn a_backend_that_never_answers_is_a_504_in_kube_apiservers_odd_shape() {
    let pki = Pki::new();
    let backend = FakeBackend::start(&pki, H2, |_| Box::pin(std::future::pending())).await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    let response = gateway.http2(Some(&alice)).await.get("/api/v1/pods?timeout=50ms", &[]).await;
    assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
    let body = text(response).await;
    assert!(body.starts_with("{\"metadata\":{},\"status\":\"Failure\",\"message\":\"Timeout: "), "{body}");
}

#[tokio::test]
async fn a_truncated_response_is_truncated_for_the_client_too() {
    let pki = Pki::new();
    let backend = FakeBackend::start(&pki, H1, |_| {
        Box::pin(async { Response::builder().header("content-length", "1000").body(full("short")).unwrap() })
    })
    .await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    let response = gateway.http1(Some(&alice)).await.send(testkit::get("/api", &[])).await;
    // No response, or an incomplete body; never a truncated response that looks complete.
    if let Ok(response) = response {
        use http_body_util::BodyExt as _;
        assert!(
            response.status() == StatusCode::BAD_GATEWAY
                || in_time(response.into_body().collect()).await.is_err()
        );
    }
}

/// Sends bytes and returns everything received.
async fn raw(gateway: &Gateway, bytes: &[u8]) -> String {
    let mut stream = gateway.tls(b"http/1.1", None).await;
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match in_time(stream.read(&mut buffer)).await {
            Ok(0) | Err(_) => break,
            Ok(read) => answer.extend_from_slice(&buffer[..read]),
        }
        let text = String::from_utf8_lossy(&answer);
        if !text.contains("onnection: close") && text.contains("\r\n\r\n") {
            break;
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn ambiguous_requests_are_a_400_and_never_forwarded() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    for (request, expected) in [
        ("GET /api HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400 Bad Request"),
        ("GET /api HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "400 Bad Request"),
        ("GET /api HTTP/1.1\r\n\r\n", "400 Bad Request: missing required Host header"),
        ("GET /api HTTP/1.1\r\nHost: a b\r\n\r\n", "400 Bad Request: malformed Host header"),
        ("GET https://b/api HTTP/1.1\r\nHost: a\r\n\r\n", "400 Bad Request: Host header differs"),
        ("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", "400 Bad Request: CONNECT is not supported"),
        ("GET /a%zz HTTP/1.1\r\nHost: a\r\n\r\n", "400 Bad Request"),
        (
            "GET /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
            "",
        ),
        (
            "GET /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
            "400 Bad Request",
        ),
        ("GET /a HTTP/1.1\r\nHost: a\r\nBad Name: x\r\n\r\n", "400 Bad Request"),
        ("nonsense\r\n\r\n", "400 Bad Request"),
    ] {
        let answer = raw(&gateway, request.as_bytes()).await;
        assert!(answer.contains(expected), "{request:?} was answered {answer:?}");
    }
    while let Some(seen) = backend.take() {
        // With both framings, hyper and Go use chunked, and the content-length is not forwarded.
        assert_eq!(seen.target, "/a");
        assert!(
            !seen.headers.contains_key("content-length") || !seen.headers.contains_key("transfer-encoding")
        );
    }
}

#[tokio::test]
async fn many_and_large_headers_pass_up_to_gos_limits() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    // A user's 200 groups are 200 lines to the backend, beside as many lines of the client.
    let mut leaf = pki.clients.leaf().cn("alice");
    for group in 0..250 {
        leaf = leaf.org(&format!("group-{group}"));
    }
    let alice = leaf.issue();
    let names: Vec<String> = (0..250).map(|index| format!("x-line-{index}")).collect();
    let headers: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    for http2 in [false, true] {
        let response = if http2 {
            gateway.http2(Some(&alice)).await.get("/api", &headers).await
        } else {
            gateway.http1(Some(&alice)).await.get("/api", &headers).await
        };
        assert_eq!(response.status(), StatusCode::OK);
        let seen = backend.take().unwrap();
        assert_eq!(seen.all("x-remote-group").len(), 251);
        assert!(seen.headers.contains_key("x-line-249"));
    }
    let large = "x".repeat(900 << 10);
    let response = gateway.http1(Some(&alice)).await.get("/api", &[("x-large", &large)]).await;
    assert_eq!(response.status(), StatusCode::OK);
    let too_large = format!("GET /api HTTP/1.1\r\nHost: a\r\nX-Large: {}\r\n\r\n", "x".repeat(2 << 20));
    let answer = raw(&gateway, too_large.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431") || answer.is_empty(), "{answer:.80}");
}

#[tokio::test]
async fn metrics_have_kube_apiservers_names_and_are_served_in_plain_http() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    text(gateway.http2(Some(&alice)).await.get("/api/v1/pods", &[]).await).await;
    status(gateway.http1(None).await.get("/api", &[("authorization", "Bearer nonsense")]).await).await;
    // A request counts when its response has ended.
    for line in [
        "apiserver_request_total{code=\"200\",verb=\"LIST\"} 1",
        "apiserver_request_total{code=\"401\",verb=\"GET\"} 1",
    ] {
        gateway.until_counted(line).await;
    }
    let metrics = gateway.metrics("/metrics").await;
    assert!(metrics.starts_with("HTTP/1.1 200 "), "{metrics}");
    for line in [
        "authentication_attempts{result=\"success\"} 1",
        "authentication_attempts{result=\"error\"} 1",
        "authenticated_user_requests{username=\"other\"} 1",
        "apiserver_current_inflight_requests{request_kind=\"readOnly\"} 0",
        "apiserver_client_certificate_expiration_seconds_count 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is missing in\n{metrics}");
    }
    assert!(gateway.metrics("/other").await.starts_with("HTTP/1.1 404 "));
}

#[tokio::test]
async fn the_handshake_names_the_accepted_client_cas() {
    #[derive(Debug)]
    struct Hints(std::sync::Mutex<Vec<Vec<u8>>>);
    impl rustls::client::ResolvesClientCert for Hints {
        fn resolve(
            &self,
            hints: &[&[u8]],
            _: &[rustls::SignatureScheme],
        ) -> Option<std::sync::Arc<rustls::sign::CertifiedKey>> {
            *self.0.lock().unwrap() = hints.iter().map(|hint| hint.to_vec()).collect();
            None
        }

        fn has_certs(&self) -> bool {
            true
        }
    }
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let hints = std::sync::Arc::new(Hints(std::sync::Mutex::default()));
    gateway.handshake(hints.clone()).await;
    let hints = hints.0.lock().unwrap();
    let named =
        |name: &str| hints.iter().any(|hint| hint.windows(name.len()).any(|part| part == name.as_bytes()));
    assert!(named("clients") && named("front proxies of clients"), "{hints:?}");
}

#[tokio::test]
async fn the_backend_gets_one_host_in_the_form_of_its_protocol() {
    for alpn in [H2, &[b"http/1.1".as_slice()][..]] {
        let pki = Pki::new();
        let backend = FakeBackend::start(&pki, alpn, |request: http::Request<_>| {
            let host = request.headers().get("host").map_or("none", |host| host.to_str().unwrap()).to_owned();
            let target = request.uri().to_string();
            Box::pin(async move { Response::new(full(format!("{host} {target}"))) })
        })
        .await;
        let gateway = Gateway::start(&pki, &backend);
        let alice = pki.clients.leaf().cn("alice").issue();
        let mut client = gateway.http1(Some(&alice)).await;
        let received = text(client.get("/api?x=1", &[("host", "gateway.example")]).await).await;
        let expected =
            if alpn == H2 { "none https://gateway.example/api?x=1" } else { "gateway.example /api?x=1" };
        assert_eq!(received, expected);
    }
}
