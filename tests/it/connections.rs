//! Backend and client connections: establishment, failure, reuse and closing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use testkit::body::fed;
use testkit::frames::{self, DATA, END_HEADERS, END_STREAM, HEADERS, frame, header_block, ok, read_frame};
use testkit::wire::{Socket, acceptor, answer_questions, bare, head, is_held};
use testkit::{FakeBackend, Gateway, H1, H2, Pki, empty, flags, full, get, in_time, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::gateway::InProcess as _;

#[tokio::test]
async fn an_abandoned_connection_attempt_does_not_fail_a_later_request() {
    let pki = Pki::new();
    let acceptor = acceptor(&pki, H2);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let gateway = Gateway::with(flags(&pki, address));
    let alice = pki.clients.leaf().cn("alice").issue();
    let (own, _) = in_time(listener.accept()).await.unwrap();
    tokio::spawn(answer_questions(acceptor.clone(), own, Arc::default()));
    let mut client = gateway.http1(Some(&alice)).await;
    let pending = tokio::spawn(async move { client.send(get("/api", &[])).await.map(|_| ()) });
    // The backend delays the handshake until the client has disconnected, and then closes the connection.
    let (hanging, gateway_address) = in_time(listener.accept()).await.unwrap();
    pending.abort();
    gateway.until_counted("apiserver_request_total{code=\"499\",verb=\"GET\"} 1").await;
    drop(hanging);
    until("the end of the attempt", || !is_held(gateway_address.port(), address.port())).await;

    // From now on the backend completes handshakes.
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let stream = acceptor.accept(stream).await.unwrap();
        let service = service_fn(|_| async { Ok::<_, std::convert::Infallible>(Response::new(full("ok"))) });
        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service)
            .await
            .ok();
    });
    let response = gateway.http1(Some(&alice)).await.get("/api", &[]).await;
    assert_eq!(response.status(), StatusCode::OK);
}

// h2 closes a connection after a hundred empty DATA frames, and the backend may be another gateway. h2 discards such
// frames of a client.
#[tokio::test]
async fn empty_data_frames_are_not_forwarded_to_the_shared_connection() {
    let pki = Pki::new();
    let empties = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&empties);
    let address = frames::backend(&pki, &[], move |_| {
        let count = Arc::clone(&counted);
        move |kind, id, payload: &[u8]| {
            count.fetch_add(usize::from(kind == DATA && payload.is_empty()), Ordering::SeqCst);
            if kind == DATA && payload == b"x" { ok(id) } else { Vec::new() }
        }
    })
    .await;
    let gateway = Gateway::with(flags(&pki, address));
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut client = gateway.frames(Some(&alice), 65_535).await;
    let head = frame(HEADERS, END_HEADERS, 1, &header_block("POST", "/api/v1/x"));
    let upload = [head, frame(DATA, 0, 1, b"").repeat(90), frame(DATA, END_STREAM, 1, b"x")].concat();
    in_time(client.write_all(&upload)).await.unwrap();
    while in_time(read_frame(&mut client)).await.unwrap().0 != HEADERS {}
    assert_eq!(empties.load(Ordering::SeqCst), 0);
}

// HTTP/2 allows several cookie fields; HTTP/1.1 allows one.
#[tokio::test]
async fn cookies_are_joined_over_http1() {
    let pki = Pki::new();
    let backend = FakeBackend::start(&pki, H1, |_| Box::pin(async { Response::new(full("ok")) })).await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    for identity in [None, Some(&alice)] {
        let mut client = gateway.http2(identity).await;
        client.get("/api", &[("cookie", "a=1"), ("cookie", "b=2; c=3"), ("cookie", "d=4")]).await;
        assert_eq!(backend.take().unwrap().all("cookie"), ["a=1; b=2; c=3; d=4"]);
    }
}

/// A backend that responds with 200, except to the first request of each of its first connections, of this number, which gets
/// `instead`.
pub(crate) async fn answering(pki: &Pki, instead: fn(u32) -> Vec<u8>, times: u32) -> SocketAddr {
    frames::backend(pki, &[], move |number| {
        let mut instead = (number < times).then_some(instead);
        move |kind, id, _| match kind {
            HEADERS => instead.take().unwrap_or(ok)(id),
            _ => Vec::new(),
        }
    })
    .await
}

// RFC 9113, 6.8 and 8.7: a stream above GOAWAY's last stream ID, or reset with REFUSED_STREAM, was not processed. Go's
// client sends such a request again, so kubectl apply does not fail due to `--goaway-chance` or a restart.
#[tokio::test]
async fn an_unprocessed_write_is_sent_again_with_its_body() {
    let goaway: fn(u32) -> Vec<u8> = |_| frame(7, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 0]);
    let refused: fn(u32) -> Vec<u8> = |id| frame(3, 0, id, &7_u32.to_be_bytes());
    for (name, refusal) in [("GOAWAY", goaway), ("REFUSED_STREAM", refused)] {
        let refused_always = (StatusCode::SERVICE_UNAVAILABLE, Some("1"));
        for (length, times, expected) in [
            (0, 1, (StatusCode::OK, None)),
            (100_000, 1, (StatusCode::OK, None)),
            (0, 6, (StatusCode::OK, None)),
            (2, 6, (StatusCode::OK, None)),
            (0, 7, refused_always),
            (2, 7, refused_always),
        ] {
            // A refused stream concerns no other one of its connection.
            if name == "REFUSED_STREAM" && times > 1 {
                continue;
            }
            let pki = Pki::new();
            let address = answering(&pki, refusal, times).await;
            let gateway = Gateway::with(flags(&pki, address));
            let alice = pki.clients.leaf().cn("alice").issue();
            let request =
                Request::post("/api/v1/namespaces/n/configmaps").body(full(vec![b' '; length])).unwrap();
            let response = gateway.http1(Some(&alice)).await.send(request).await.unwrap();
            let hint = response.headers().get("retry-after").map(|value| value.to_str().unwrap());
            assert_eq!((response.status(), hint), expected, "{name}, {length} bytes");
        }
    }
}

// RFC 9113, 8.1: after a complete response a server may reset the stream of an unwanted upload with NO_ERROR; Go's
// does. With any other error code the response is incomplete.
#[tokio::test]
async fn a_response_that_ended_before_its_stream_was_reset_is_complete() {
    type Answer = fn(u32) -> Vec<u8>;
    // Status 200 without content-length, and with content-length 9 and 99.
    const PLAIN: &[u8] = &[0x88];
    const NINE: &[u8] = &[0x88, 0x0f, 0x0d, 0x01, b'9'];
    const MORE: &[u8] = &[0x88, 0x0f, 0x0d, 0x02, b'9', b'9'];
    let cases: [(&str, &str, Answer, bool); 6] = [
        ("upload", "length known", |id| early(id, NINE, 1), true),
        ("upload", "length unknown", |id| early(id, PLAIN, 1), true),
        ("upload", "length unknown, no end", |id| early(id, PLAIN, 0), false),
        ("upload", "length not reached", |id| early(id, MORE, 0), false),
        ("read", "no end", |id| early(id, PLAIN, 0), false),
        ("read", "length reached, no end", |id| early(id, NINE, 0), true),
    ];
    for (kind, name, answer, whole) in cases {
        let pki = Pki::new();
        let address = answering(&pki, answer, u32::MAX).await;
        let gateway = Gateway::with(flags(&pki, address));
        let alice = pki.clients.leaf().cn("alice").issue();
        let (upload, endless, _) = fed();
        upload.send(hyper::body::Frame::data(bytes::Bytes::from_static(b"u"))).unwrap();
        let request = match kind {
            "upload" => Request::post("/api/v1/x").body(endless).unwrap(),
            _ => Request::get("/api/v1/x").body(full("")).unwrap(),
        };
        let mut client = gateway.http2(Some(&alice)).await;
        // The reset of an incomplete response may overtake its header.
        let body = match in_time(client.send(request)).await {
            Ok(response) => in_time(response.into_body().collect()).await,
            Err(error) => Err(error),
        };
        assert_eq!(body.is_ok(), whole, "{kind}, {name}: {body:?}");
        if let Ok(body) = body {
            assert_eq!(body.to_bytes(), "too large", "{kind}, {name}");
        }
        drop(upload);
    }
}

/// A response in one write: header, data, and `RST_STREAM` with `NO_ERROR`.
fn early(id: u32, header: &[u8], data_flags: u8) -> Vec<u8> {
    let reset = frame(3, 0, id, &0_u32.to_be_bytes());
    [frame(1, 0x4, id, header), frame(0, data_flags, id, b"too large"), reset].concat()
}

// RFC 9112, 3.2.1: the origin-form of a target consists of path and query.
#[tokio::test]
async fn an_http1_backend_gets_the_target_as_the_client_sent_it() {
    for target in ["GET /api/v1?x=%2F", "OPTIONS *"] {
        let pki = Pki::new();
        let (address, mut streams) = bare(&pki, H1).await;
        let gateway = Gateway::with(flags(&pki, address));
        let mut client = gateway.tls(b"http/1.1", None).await;
        client.write_all(format!("{target} HTTP/1.1\r\nHost: api.example\r\n\r\n").as_bytes()).await.unwrap();
        let received = head(&mut in_time(streams.recv()).await.unwrap()).await.unwrap();
        assert_eq!(received.lines().next(), Some(format!("{target} HTTP/1.1").as_str()), "{received}");
    }
}

#[tokio::test]
async fn a_backend_that_closes_after_the_handshake_is_not_dialled_in_a_loop() {
    for path in ["/api/v1/pods", "/api/v1/pods?watch=true"] {
        let pki = Pki::new();
        let (address, mut streams) = bare(&pki, H2).await;
        let dialled = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&dialled);
        tokio::spawn(async move {
            while let Some(mut stream) = streams.recv().await {
                count.fetch_add(1, Ordering::SeqCst);
                stream.shutdown().await.ok();
            }
        });
        let gateway = Gateway::with(flags(&pki, address));
        let alice = pki.clients.leaf().cn("alice").issue();
        let response = gateway.http1(Some(&alice)).await.get(path, &[]).await;
        let gone = [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE].contains(&response.status());
        assert!(gone, "{path}: {}", response.status());
        // Up to three dials per connection, three connections per attempt, two attempts per read.
        let dialled = dialled.load(Ordering::SeqCst);
        assert!((1..=18).contains(&dialled), "{path}: dialled {dialled} times");
    }
}

// Go: net/http Server.Shutdown closes connections without input for 5 s.
#[tokio::test]
async fn connections_without_a_request_do_not_delay_the_shutdown() {
    for handshake in [false, true] {
        let pki = Pki::new();
        let backend = FakeBackend::plain(&pki).await;
        let mut gateway = Gateway::start(&pki, &backend);
        let (mut begun, mut ready) = (None, None);
        let client = if handshake {
            ready.insert(gateway.tls(b"http/1.1", None).await).get_ref().0
        } else {
            let stream = begun.insert(TcpStream::connect(gateway.address).await.unwrap());
            // The first byte of a handshake.
            stream.write_all(&[22]).await.unwrap();
            stream
        };
        let (local, remote) = (gateway.address.port(), client.local_addr().unwrap().port());
        until("the worker accepts the connection", || {
            Socket::find(local, remote).is_some_and(|socket| socket.is_held() && socket.is_read())
        })
        .await;
        let server = gateway.take_server();
        in_time(tokio::task::spawn_blocking(move || server.shut_down())).await.unwrap();
    }
}

#[tokio::test]
async fn a_request_that_its_client_cancelled_is_counted_as_499() {
    let pki = Pki::new();
    let backend = FakeBackend::start(&pki, H2, |_| Box::pin(std::future::pending())).await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut client = gateway.http1(Some(&alice)).await;
    let pending = tokio::spawn(async move { client.send(get("/api/v1/pods", &[])).await.map(|_| ()) });
    until("the request at the backend", || backend.pending() == 1).await;
    pending.abort();
    gateway.until_counted("apiserver_request_total{code=\"499\",verb=\"LIST\"} 1").await;
    let metrics = gateway.metrics("/metrics").await;
    let counted: Vec<_> =
        metrics.lines().filter(|line| line.starts_with("apiserver_request_total{")).collect();
    assert_eq!(counted.len(), 1, "{counted:?}");
}

// After a restart, all informers of a cluster reopen their watches at once.
#[tokio::test]
async fn more_watches_than_three_connections_can_carry_are_all_answered() {
    let pki = Pki::new();
    let (opened, mut watches) = tokio::sync::mpsc::unbounded_channel();
    let backend = FakeBackend::start(&pki, H2, move |_| {
        let (events, body, _) = fed();
        opened.send(events).unwrap();
        Box::pin(async { Response::new(body) })
    })
    .await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut responses = Vec::new();
    // A client connection has 100 streams; a backend connection uses four fifths of 200.
    for _ in 0..6 {
        let client = gateway.http2(Some(&alice)).await;
        for _ in 0..100 {
            let mut sender = client.sender.clone();
            let uri = format!("https://{}/api/v1/pods?watch=true", gateway.address);
            responses.push(tokio::spawn(async move {
                sender.ready().await.unwrap();
                sender.send_request(Request::get(uri).body(empty()).unwrap()).await.unwrap()
            }));
        }
    }
    let mut open = Vec::new();
    for answer in responses {
        let answer = in_time(answer).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "after {} others", open.len());
        open.push((answer, in_time(watches.recv()).await.unwrap()));
    }
}

// RFC 9112, section 9.3: an HTTP/1.0 client reuses a connection only after a response with `Connection: keep-alive`.
#[tokio::test]
async fn an_http10_client_gets_connection_keep_alive() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    for identity in [Some(&alice), None] {
        let mut stream = gateway.tls(b"http/1.1", identity).await;
        for _ in 0..2 {
            stream.write_all(b"GET /api HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await.unwrap();
            let answer = head(&mut stream).await.unwrap().to_ascii_lowercase();
            assert!(answer.starts_with("http/1.0 200 "), "{answer}");
            assert!(answer.contains("connection: keep-alive\r\n"), "{answer}");
            let mut body = [0; 2];
            in_time(stream.read_exact(&mut body)).await.unwrap();
        }
        stream.write_all(b"GET /api HTTP/1.0\r\n\r\n").await.unwrap();
        let mut rest = String::new();
        in_time(stream.read_to_string(&mut rest)).await.unwrap();
        assert!(!rest.to_ascii_lowercase().contains("keep-alive"), "{rest}");
    }
}

/// An application behind the `proxy` subresource sends 103, which no server library here can forward (D-informational).
#[tokio::test]
async fn informational_responses_are_not_forwarded() {
    let pki = Pki::new();
    // RFC 7541, section 6.2.2: `:status` by its index, 103.
    let early = |id| frame(HEADERS, END_HEADERS, id, b"\x08\x03103");
    let address = frames::backend(&pki, &[], move |_| {
        move |kind, id, _| if kind == HEADERS { [early(id), ok(id)].concat() } else { Vec::new() }
    })
    .await;
    let gateway = Gateway::with(flags(&pki, address));
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut stream = gateway.tls(b"http/1.1", Some(&alice)).await;
    stream.write_all(b"GET /api/v1/namespaces/n/pods/p/proxy/ HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let answer = head(&mut stream).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
