//! Bodies, watches and closed connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Frame;
use testkit::body::{Frames, fed, gone, whole};
use testkit::{FakeBackend, Gateway, H1, H2, Pki, full, get, in_time, text, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::gateway::InProcess as _;

const WATCH: &str = "/api/v1/pods?watch=true";

/// A backend that responds to each watch with a body whose frames the test sends.
async fn watching(
    pki: &Pki,
    alpn: &'static [&'static [u8]],
) -> (FakeBackend, mpsc::UnboundedReceiver<(Frames, Arc<AtomicBool>)>) {
    let (started, watches) = mpsc::unbounded_channel();
    let backend = FakeBackend::start(pki, alpn, move |_| {
        let (sender, body, gone) = fed();
        started.send((sender, gone)).unwrap();
        Box::pin(async { Response::builder().header("content-type", "application/json").body(body).unwrap() })
    })
    .await;
    (backend, watches)
}

#[tokio::test]
async fn a_watch_delivers_its_header_and_each_event_at_once_and_ends_with_its_client() {
    for alpn in [H1, H2] {
        for http2 in [false, true] {
            let pki = Pki::new();
            let (backend, mut watches) = watching(&pki, alpn).await;
            let gateway = Gateway::start(&pki, &backend);
            let alice = pki.clients.leaf().cn("alice").issue();
            let (response, client) = if http2 {
                let mut client = gateway.http2(Some(&alice)).await;
                (client.get(WATCH, &[]).await, client.task)
            } else {
                let mut client = gateway.http1(Some(&alice)).await;
                (client.get(WATCH, &[]).await, client.task)
            };
            assert_eq!(
                response.headers()["content-type"],
                "application/json",
                "the header arrives before any event"
            );
            let (events, gone) = in_time(watches.recv()).await.unwrap();
            let mut body = response.into_body();
            for event in ["{\"a\":1}\n", "{\"b\":2}\n"] {
                events.send(Frame::data(Bytes::from(event))).unwrap();
                let frame = in_time(body.frame()).await.unwrap().unwrap();
                assert_eq!(frame.into_data().unwrap(), event);
            }
            assert!(!gone.load(Ordering::SeqCst));
            drop(body);
            client.abort();
            until("the end of the watch at the backend", || gone.load(Ordering::SeqCst)).await;
        }
    }
}

#[tokio::test]
async fn a_client_that_disconnects_before_the_response_cancels_the_request() {
    for alpn in [H1, H2] {
        let pki = Pki::new();
        let (cancellations, mut requests) = mpsc::unbounded_channel();
        let backend = FakeBackend::start(&pki, alpn, move |_| {
            let (cancelled, guard) = gone();
            cancellations.send(cancelled).unwrap();
            Box::pin(async move {
                let _guard = guard;
                std::future::pending().await
            })
        })
        .await;
        let gateway = Gateway::start(&pki, &backend);
        let alice = pki.clients.leaf().cn("alice").issue();
        let mut client = gateway.http1(Some(&alice)).await;
        let pending = tokio::spawn(async move { client.send(get("/api", &[])).await.map(|_| client) });
        let cancelled = in_time(requests.recv()).await.unwrap();
        pending.abort();
        until("the cancellation", || cancelled.load(Ordering::SeqCst)).await;
    }
}

#[tokio::test]
async fn bodies_and_response_trailers_are_forwarded() {
    for alpn in [H1, H2] {
        let pki = Pki::new();
        let backend = FakeBackend::start(&pki, alpn, |request: Request<hyper::body::Incoming>| {
            Box::pin(async move {
                let collected = request.into_body().collect().await.unwrap();
                let (sender, body, _) = fed();
                sender.send(Frame::data(collected.to_bytes())).unwrap();
                let mut trailers = HeaderMap::new();
                trailers.insert("x-sum", http::HeaderValue::from_static("42"));
                sender.send(Frame::trailers(trailers)).unwrap();
                Response::builder().header("trailer", "x-sum").body(body).unwrap()
            })
        })
        .await;
        let gateway = Gateway::start(&pki, &backend);
        let alice = pki.clients.leaf().cn("alice").issue();
        let mut client = gateway.http2(Some(&alice)).await;
        let (sender, body, _) = fed();
        let request = Request::builder().method("POST").uri("/api/v1/x").header("te", "trailers");
        let payload = vec![7_u8; 3 << 20];
        sender.send(Frame::data(Bytes::from(payload.clone()))).unwrap();
        drop(sender);
        let response = client.send(request.body(body).unwrap()).await.unwrap();
        let collected = in_time(response.into_body().collect()).await.unwrap();
        assert_eq!(collected.trailers().unwrap()["x-sum"], "42", "{alpn:?}");
        assert_eq!(collected.to_bytes(), payload);
    }
}

/// A backend that reports the body of each request, also after the client has disconnected. It responds at the end of
/// the body, or starts the response before.
async fn collecting(
    pki: &Pki,
    alpn: &[&[u8]],
    early: bool,
) -> (FakeBackend, mpsc::UnboundedReceiver<Result<Vec<u8>, String>>) {
    let (bodies_read, bodies) = mpsc::unbounded_channel();
    let backend = FakeBackend::start(pki, alpn, move |request: Request<hyper::body::Incoming>| {
        let bodies_read = bodies_read.clone();
        let (answering, body, _) = fed();
        let reading = tokio::spawn(async move {
            bodies_read.send(whole(request.version(), request.into_body()).await).unwrap();
            drop(answering);
        });
        Box::pin(async move {
            if !early {
                reading.await.unwrap();
            }
            Response::new(body)
        })
    })
    .await;
    (backend, bodies)
}

// A truncated manifest may be a valid manifest.
#[tokio::test]
async fn a_truncated_http1_body_is_never_complete_to_the_backend() {
    let post = "POST /api/v1/namespaces/n/configmaps HTTP/1.1\r\nHost: a\r\n";
    for alpn in [H1, H2] {
        let pki = Pki::new();
        let (backend, mut bodies) = collecting(&pki, alpn, false).await;
        let gateway = Gateway::start(&pki, &backend);
        let alice = pki.clients.leaf().cn("alice").issue();
        for (case, rest) in [
            ("half of the length", "Content-Length: 20\r\n\r\n0123456789"),
            ("no last chunk", "Transfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n"),
            ("half a chunk", "Transfer-Encoding: chunked\r\n\r\n14\r\n0123456789"),
            ("no chunk size", "Transfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\nnonsense\r\n\r\n"),
            ("no end of a chunk", "Transfer-Encoding: chunked\r\n\r\n1\r\n0123456789\r\n0\r\n\r\n"),
        ] {
            let mut client = gateway.tls(b"http/1.1", Some(&alice)).await;
            client.write_all(format!("{post}{rest}").as_bytes()).await.unwrap();
            until("the request at the backend", || backend.take().is_some()).await;
            client.shutdown().await.unwrap();
            let body = in_time(bodies.recv()).await.unwrap();
            assert!(body.is_err(), "{case}, {alpn:?}: {body:?}");
            let mut answer = Vec::new();
            // The gateway need not wait for the client's close_notify.
            in_time(client.read_to_end(&mut answer)).await.ok();
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{case}, {alpn:?}: {answer}");
        }
    }
}

#[tokio::test]
async fn a_reset_http2_body_is_never_complete_to_the_backend() {
    for (alpn, early) in [(H1, false), (H1, true), (H2, false), (H2, true)] {
        let pki = Pki::new();
        let (backend, mut bodies) = collecting(&pki, alpn, early).await;
        let gateway = Gateway::start(&pki, &backend);
        let alice = pki.clients.leaf().cn("alice").issue();
        for reason in [h2::Reason::NO_ERROR, h2::Reason::CANCEL, h2::Reason::INTERNAL_ERROR] {
            let stream = gateway.tls(b"h2", Some(&alice)).await;
            let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
            let connection = tokio::spawn(connection);
            let uri = format!("https://{}/api/v1/namespaces/n/configmaps", gateway.address);
            let request = Request::post(uri).body(()).unwrap();
            let (response, mut sending) = client.send_request(request, false).unwrap();
            sending.send_data(Bytes::from_static(b"0123456789"), false).unwrap();
            until("the request at the backend", || backend.take().is_some()).await;
            let _answered = if early { Some(in_time(response).await.unwrap()) } else { None };
            sending.send_reset(reason);
            let body = in_time(bodies.recv()).await.unwrap();
            assert!(body.is_err(), "{reason:?}, {alpn:?}, answered early {early}: {body:?}");
            connection.abort();
        }
    }
}

/// A body with a wrong content-length could let a part of it be read as the next request.
#[tokio::test]
async fn an_http2_body_with_a_wrong_content_length_is_never_complete_to_the_backend() {
    for alpn in [H1, H2] {
        let pki = Pki::new();
        let (backend, mut bodies) = collecting(&pki, alpn, false).await;
        let gateway = Gateway::start(&pki, &backend);
        let alice = pki.clients.leaf().cn("alice").issue();
        let mut whole = 0;
        for (lengths, is_true) in [
            (&["5"][..], false),
            (&["20"], false),
            (&["0"], false),
            (&["10", "5"], false),
            (&["+10"], false),
            (&["-10"], false),
            (&["ten"], false),
            (&["10, 11"], false),
            (&["99999999999999999999999"], false),
            (&["10"], true),
        ] {
            let stream = gateway.tls(b"h2", Some(&alice)).await;
            let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
            let connection = tokio::spawn(connection);
            let uri = format!("https://{}/api/v1/namespaces/n/configmaps", gateway.address);
            let mut request = Request::post(uri);
            for length in lengths {
                request = request.header("content-length", *length);
            }
            let (response, mut sending) = client.send_request(request.body(()).unwrap(), false).unwrap();
            // A gateway that has already refused the request stops reading.
            sending.send_data(Bytes::from_static(b"0123456789"), true).ok();
            let answer = in_time(response).await;
            assert_eq!(
                answer.is_ok_and(|answer| answer.status().is_success()),
                is_true,
                "{lengths:?}, {alpn:?}"
            );
            connection.abort();
            whole += usize::from(is_true);
        }
        drop((gateway, backend));
        let mut arrived = 0;
        while let Some(body) = in_time(bodies.recv()).await {
            arrived += usize::from(body.is_ok());
        }
        assert_eq!(arrived, whole, "{alpn:?}");
    }
}

#[tokio::test]
async fn an_anonymous_or_refused_http2_request_ends_its_connection() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    for headers in [&[][..], &[("authorization", "Bearer nonsense")][..]] {
        let mut client = gateway.http2(None).await;
        let response = client.get("/api", headers).await;
        assert!(!response.headers().contains_key("connection"));
        text(response).await;
        in_time(client.task).await.unwrap();
    }
    // An authenticated request keeps its connection, and so does HTTP/1.1.
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut client = gateway.http2(Some(&alice)).await;
    text(client.get("/api", &[]).await).await;
    text(client.get("/api", &[]).await).await;
    let mut client = gateway.http1(None).await;
    text(client.get("/api", &[]).await).await;
    text(client.get("/api", &[]).await).await;
}

#[tokio::test]
async fn requests_in_progress_finish_after_sigterm() {
    let pki = Pki::new();
    let (backend, mut watches) = watching(&pki, H2).await;
    let mut gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut client = gateway.http2(Some(&alice)).await;
    let response = client.get("/api/v1/pods", &[]).await;
    let (events, _) = in_time(watches.recv()).await.unwrap();
    let server = gateway.take_server();
    let address = server.address();
    let ending = tokio::task::spawn_blocking(move || server.shut_down());
    // New connections are refused once the listener is closed, while the request on the old one completes.
    until("the end of the listener", || std::net::TcpStream::connect(address).is_err()).await;
    events.send(Frame::data(Bytes::from_static(b"done"))).unwrap();
    drop(events);
    assert_eq!(text(response).await, "done");
    in_time(ending).await.unwrap();
}

// RFC 9110, 9.3.2; Go's client treats DATA as an error there.
#[tokio::test]
async fn a_response_to_head_has_no_body_also_if_the_gateway_generates_it() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    for (path, expected) in [("/api", 200), ("/api?timeout=x", 400)] {
        let request = || Request::head(path).body(full("")).unwrap();
        for response in [
            gateway.http1(Some(&alice)).await.send(request()).await.unwrap(),
            gateway.http2(Some(&alice)).await.send(request()).await.unwrap(),
        ] {
            assert_eq!(response.status(), expected, "{path}");
            assert!(response.headers().contains_key("content-length"), "{path}: {response:?}");
            let body = in_time(response.into_body().collect()).await.map(http_body_util::Collected::to_bytes);
            assert!(body.as_ref().is_ok_and(Bytes::is_empty), "{path}: {body:?}");
        }
    }
}

/// For HTTP libraries that read the first member of a compressed watch alone.
#[tokio::test]
async fn watches_of_named_clients_are_not_compressed() {
    const LIST: &str = "/api/v1/pods";
    for (prefixes, agent, path, is_compressed) in [
        ("", "python-httpx/0.28.1", WATCH, true),
        ("python-httpx/,okhttp/", "python-httpx/0.28.1", WATCH, false),
        ("python-httpx/,okhttp/", "okhttp/5.3.2", WATCH, false),
        ("python-httpx/,okhttp/", "kubectl/v1.37.2 okhttp/", WATCH, true),
        ("python-httpx/,okhttp/", "python-httpx/0.28.1", LIST, true),
        ("*", "", WATCH, false),
        ("*", "kubectl/v1.37.2", LIST, true),
    ] {
        let pki = Pki::new();
        let backend = FakeBackend::start(&pki, H2, |_| Box::pin(async { Response::new(full("")) })).await;
        let mut flags = testkit::flags(&pki, backend.address);
        if !prefixes.is_empty() {
            flags.push(format!("--backend-uncompressed-watches={prefixes}"));
        }
        let gateway = Gateway::with(flags);
        let headers =
            [("authorization", "Bearer good-token"), ("accept-encoding", "gzip"), ("user-agent", agent)];
        text(gateway.http2(None).await.get(path, &headers).await).await;
        let seen = backend.take().unwrap();
        let accepted = seen.headers.get("accept-encoding").map(|value| value.to_str().unwrap());
        assert_eq!(accepted, is_compressed.then_some("gzip"), "{prefixes} {agent} {path}");
    }
}
