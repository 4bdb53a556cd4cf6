//! Misbehaving backends: each failure gets its error response, and other requests are not disturbed.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http::{Request, Response, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use testkit::body::fed;
use testkit::client::Client;
use testkit::frames::{
    self, CONTINUATION, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, SETTINGS, frame, ok, reset,
};
use testkit::gateway_process::GatewayProcess;
use testkit::pki::{Ca, Issued};
use testkit::wire::{acceptor_with, bare, bare_with, head};
use testkit::{Gateway, H1, H2, Pki, ResponseFuture, flags, full, get, in_time, status, text, until};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpSocket};

use super::GatewayWithBystanders;
use crate::gateway::InProcess as _;

/// RFC 9113, section 6.5.2
const MAX_CONCURRENT_STREAMS: u16 = 3;

/// Responds to each request.
fn answers(kind: u8, id: u32, _: &[u8]) -> Vec<u8> {
    if kind == HEADERS { ok(id) } else { Vec::new() }
}

// Go's server resets the stream of an upload after its response; other servers wait for the end of the upload.
#[tokio::test]
async fn uploads_that_continue_after_their_response_do_not_use_up_the_streams_of_others() {
    let pki = Pki::new();
    let address = frames::backend(&pki, &[(MAX_CONCURRENT_STREAMS, 10)], |_| answers).await;
    let gateway = Gateway::with(flags(&pki, address));
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut client = gateway.http2(Some(&alice)).await;
    let mut uploads = Vec::new();
    for _ in 0..40 {
        let (upload, body, _) = fed();
        upload.send(Frame::data(bytes::Bytes::from_static(b"u"))).unwrap();
        let request = Request::post("/api/v1/x").body(body).unwrap();
        assert_eq!(client.send(request).await.unwrap().status(), StatusCode::OK);
        uploads.push(upload);
    }
    let mut other = gateway.http1(Some(&alice)).await;
    assert_eq!(in_time(other.send(get("/api/v1/x", &[]))).await.unwrap().status(), StatusCode::OK);
}

/// A TCP listener that sends these bytes on every connection and closes it.
async fn tcp(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                stream.readable().await.ok();
                stream.write_all(answer).await.ok();
            });
        }
    });
    address
}

async fn tls(issued: &Issued) -> SocketAddr {
    let (address, mut streams) = bare_with(acceptor_with(issued, H2)).await;
    tokio::spawn(async move { while streams.recv().await.is_some() {} });
    address
}

/// An HTTP/1.1 backend that responds with these bytes and closes the connection.
async fn http1(pki: &Pki, answer: Vec<u8>) -> SocketAddr {
    let (address, mut streams) = bare(pki, H1).await;
    tokio::spawn(async move {
        while let Some(mut stream) = streams.recv().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                head(&mut stream).await.ok();
                stream.write_all(&answer).await.ok();
                stream.shutdown().await.ok();
            });
        }
    });
    address
}

/// An HTTP/2 backend that responds to every request with these frames.
async fn http2(pki: &Pki, answer: fn(u32) -> Vec<u8>) -> SocketAddr {
    let each = move |kind, id, _: &[u8]| if kind == HEADERS { answer(id) } else { Vec::new() };
    frames::backend(pki, &[], move |_| each).await
}

/// Checks that a gateway process with this backend responds with `code`, and that its log contains `why`.
async fn refused(name: &str, pki: &Pki, backend: SocketAddr, code: StatusCode, why: &str) {
    let mut command = Command::new(crate::gateway::PORTCULLIS);
    command.arg("serve").args(flags(pki, backend));
    let process = GatewayProcess::serve(command).await;
    let gateway = &process.gateway;
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut client = gateway.http2(Some(&alice)).await;
    for _ in 0..2 {
        let response = client.get("/api/v1/pods", &[("audit-id", "find-me")]).await;
        let (answered, body) = status(response).await;
        assert_eq!((answered, body["kind"].as_str()), (code, Some("Status")), "{name}: {body}");
        assert!(!body.to_string().contains("127.0.0.1"), "{name}: {body}");
    }
    let (_, log) = process.end().await;
    let line = log.lines().find(|line| line.contains("no answer from the backend"));
    let line = line.unwrap_or_else(|| panic!("{name}: the failure is not logged:\n{log}"));
    assert!(line.contains("find-me") && line.contains(why), "{name}: {line}");
}

#[tokio::test]
async fn an_unreachable_backend_is_a_503_and_its_cause_is_logged() {
    let pki = Pki::new();
    let now = 1_700_000_000;
    let expired = pki.servers.leaf().san_dns("backend.test").expired(now).issue();
    // Bound but not listening: connections are refused, and no other process can take the port.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let closed = socket.local_addr().unwrap();
    for (name, backend, why) in [
        ("no listener", closed, "Connection refused"),
        ("plain HTTP", tcp(b"HTTP/1.0 400 Bad Request\r\n\r\nnot here\n").await, "InvalidContentType"),
        ("hangs up", tcp(b"").await, "TLS handshake with"),
        (
            "another name",
            tls(&pki.servers.server(&["other.test"])).await,
            "is valid for other.test, not backend.test",
        ),
        ("expired", tls(&expired).await, "expired"),
        ("another CA", tls(&Ca::new("others").server(&["backend.test"])).await, "unknown authority"),
    ] {
        refused(name, &pki, backend, StatusCode::SERVICE_UNAVAILABLE, why).await;
    }
}

#[tokio::test]
async fn an_invalid_response_is_a_502_and_its_cause_is_logged() {
    let pki = Pki::new();
    let large = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(2 << 20));
    let switch = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
    for (name, backend, why) in [
        (
            "half a header",
            http1(&pki, b"HTTP/1.1 200 OK\r\ncontent-".to_vec()).await,
            "before message completed",
        ),
        ("no HTTP", http1(&pki, b"SSH-2.0-OpenSSH_9.9\r\n".to_vec()).await, "invalid HTTP version"),
        ("a large header", http1(&pki, large.into_bytes()).await, "too large"),
        ("an unrequested upgrade", http1(&pki, switch.to_vec()).await, "switched"),
        ("a reset", http2(&pki, |id| reset(id, 2)).await, "unexpected internal error"),
        (
            "no status",
            http2(&pki, |id| frame(HEADERS, END_HEADERS | END_STREAM, id, b"")).await,
            "protocol error",
        ),
        (
            "a GOAWAY with an error",
            http2(&pki, |_| frame(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 2])).await,
            "internal",
        ),
    ] {
        refused(name, &pki, backend, StatusCode::BAD_GATEWAY, why).await;
    }
}

/// Informational responses over HTTP/2, with the status 103.
fn early_hints(id: u32, count: usize) -> Vec<u8> {
    // RFC 7541: a literal whose name is entry 8 of the static table, `:status`.
    frame(HEADERS, END_HEADERS, id, &[8, 3, b'1', b'0', b'3']).repeat(count)
}

/// A request that has no deadline.
const WATCH: &str = "/api/v1/pods?watch=true";

// threat: endless-informational-responses
#[tokio::test]
async fn a_request_has_at_most_ten_informational_responses() {
    let pki = Pki::new();
    let bytes = |count: usize, last: &str| {
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n".repeat(count);
        format!("{hints}{last}").into_bytes()
    };
    let last = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    for (name, backend, code) in [
        ("HTTP/2, ten", http2(&pki, |id| [early_hints(id, 10), ok(id)].concat()).await, StatusCode::OK),
        ("HTTP/2, eleven", http2(&pki, |id| early_hints(id, 11)).await, StatusCode::BAD_GATEWAY),
        ("HTTP/1.1, ten", http1(&pki, bytes(10, last)).await, StatusCode::OK),
        ("HTTP/1.1, eleven", http1(&pki, bytes(11, last)).await, StatusCode::BAD_GATEWAY),
        ("HTTP/1.1, endless", endless_hints(&pki).await, StatusCode::BAD_GATEWAY),
    ] {
        let gateway = Gateway::with(flags(&pki, backend));
        let alice = pki.clients.leaf().cn("alice").issue();
        let mut client = gateway.http2(Some(&alice)).await;
        let response = in_time(client.get(WATCH, &[])).await;
        assert_eq!(response.status(), code, "{name}");
        let failed = u64::from(code == StatusCode::BAD_GATEWAY);
        let counted = "portcullis_backend_errors_total{cause=\"informational_responses\"}";
        assert_eq!(gateway.count(counted).await, failed, "{name}");
    }
}

/// An HTTP/1.1 backend whose informational responses never end.
async fn endless_hints(pki: &Pki) -> SocketAddr {
    let (address, mut streams) = bare(pki, H1).await;
    tokio::spawn(async move {
        while let Some(mut stream) = streams.recv().await {
            tokio::spawn(async move {
                head(&mut stream).await.ok();
                while stream.write_all(b"HTTP/1.1 103 Early Hints\r\n\r\n").await.is_ok() {}
            });
        }
    });
    address
}

// Only the stream is reset: the others of the connection go on.
#[tokio::test]
async fn informational_responses_of_one_request_end_no_other() {
    let pki = Pki::new();
    let (begun, mut resets) = tokio::sync::mpsc::unbounded_channel();
    let address = frames::backend(&pki, &[], move |_| {
        let begun = begun.clone();
        move |kind, id, payload| {
            match (kind, id) {
                (HEADERS, 1) => begun.send((id, 0)).unwrap(),
                (HEADERS, _) => return early_hints(id, 1000),
                (RST_STREAM, _) => {
                    begun.send((id, u32::from(payload[3]))).unwrap();
                    return ok(1);
                }
                _ => {}
            }
            Vec::new()
        }
    })
    .await;
    let gateway = Gateway::with(flags(&pki, address));
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut waiting = gateway.http2(Some(&alice)).await;
    let waiting = tokio::spawn(async move { waiting.get(WATCH, &[]).await.status() });
    assert_eq!(in_time(resets.recv()).await, Some((1, 0)));
    let mut client = gateway.http2(Some(&alice)).await;
    assert_eq!(client.get(WATCH, &[]).await.status(), StatusCode::BAD_GATEWAY);
    assert_eq!(in_time(resets.recv()).await, Some((3, frames::CANCEL)));
    assert_eq!(in_time(waiting).await.unwrap(), StatusCode::OK);
}

// RFC 9112, section 6.3: the coding overrides the length, which would cut the response short.
#[tokio::test]
async fn a_response_with_a_transfer_coding_and_a_length_is_whole() {
    let pki = Pki::new();
    let both =
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let backend = http1(&pki, both.as_bytes().to_vec()).await;
    let gateway = Gateway::with(flags(&pki, backend));
    let alice = pki.clients.leaf().cn("alice").issue();
    for http2 in [false, true] {
        let mut client = Client::connect(&gateway, http2, Some(&alice)).await;
        let response = client.get("/api/v1/pods", &[]).await;
        assert!(!response.headers().contains_key("content-length"), "{:?}", response.headers());
        assert_eq!(text(response).await, "hello");
    }
}

// RFC 9110, section 6.2: the version is that of the sender's own connection.
#[tokio::test]
async fn a_response_over_http_1_0_reaches_the_client_over_its_own_version() {
    let pki = Pki::new();
    for answer in ["HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.0 200 OK\r\n\r\nhello"] {
        let backend = http1(&pki, answer.as_bytes().to_vec()).await;
        let gateway = Gateway::with(flags(&pki, backend));
        let alice = pki.clients.leaf().cn("alice").issue();
        let mut client = gateway.http1(Some(&alice)).await;
        for _ in 0..2 {
            let response = client.get("/api/v1/pods", &[]).await;
            assert_eq!(response.version(), Version::HTTP_11, "{answer}");
            assert_eq!(text(response).await, "hello", "{answer}");
        }
    }
}

/// The backend's handling of the requests of the misbehaving client.
type Misbehaviour = fn(Request<Incoming>) -> ResponseFuture;

fn breaking_off() -> ResponseFuture {
    Box::pin(async {
        let broken = futures_util::stream::iter([
            Ok(Frame::data(bytes::Bytes::from_static(b"part"))),
            Err(testkit::BoxedError::from("broken")),
        ]);
        Response::new(http_body_util::StreamBody::new(broken).boxed())
    })
}

// All of these share connections with the well-behaved clients' requests.
#[tokio::test]
async fn requests_that_a_backend_mishandles_do_not_disturb_others() {
    // `None` is a truncated response.
    let cases: [(&str, Misbehaviour, &[Option<StatusCode>]); 5] = [
        ("never answers", |_| Box::pin(std::future::pending()), &[Some(StatusCode::GATEWAY_TIMEOUT)]),
        (
            "never reads the body",
            |request| {
                Box::pin(async move {
                    let _unread = request;
                    std::future::pending().await
                })
            },
            &[Some(StatusCode::GATEWAY_TIMEOUT)],
        ),
        ("breaks off", |_| breaking_off(), &[None, Some(StatusCode::BAD_GATEWAY)]),
        (
            "a header that is too large",
            |_| {
                Box::pin(async {
                    Response::builder().header("x", "x".repeat(2 << 20)).body(full("")).unwrap()
                })
            },
            &[Some(StatusCode::BAD_GATEWAY)],
        ),
        (
            "trailers like an identity",
            |_| {
                Box::pin(async {
                    let (frames, body, _) = fed();
                    let mut trailers = http::HeaderMap::new();
                    trailers.insert("x-remote-user", http::HeaderValue::from_static("eve"));
                    frames.send(Frame::trailers(trailers)).unwrap();
                    Response::new(body)
                })
            },
            &[Some(StatusCode::OK)],
        ),
    ];
    for (name, misbehave, expected) in cases {
        let setup = GatewayWithBystanders::with(&[], |_| {}, misbehave).await;
        for _ in 0..5 {
            let mut client = setup.gateway.http2(Some(&setup.alice)).await;
            let late = expected.contains(&Some(StatusCode::GATEWAY_TIMEOUT));
            let path = if late { "/api/v1/x?timeout=300ms" } else { "/api/v1/x" };
            let request = Request::post(path).body(full(vec![b'x'; 1 << 20])).unwrap();
            let answered = match client.send(request).await {
                Ok(response) => {
                    let code = response.status();
                    in_time(response.into_body().collect()).await.ok().map(|_| code)
                }
                Err(_) => None,
            };
            assert!(expected.contains(&answered), "{name}: {answered:?}");
            setup.others.go_on().await;
        }
        setup.others.were_undisturbed().await;
    }
}

#[tokio::test]
async fn a_backend_that_sends_goaway_after_each_response_is_dialled_again_each_time() {
    let pki = Pki::new();
    let dialled = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&dialled);
    let address = frames::backend(&pki, &[], move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        |kind, id: u32, _: &[u8]| match kind {
            // The last stream ID is that of this request.
            HEADERS => [ok(id), frame(GOAWAY, 0, 0, &[id.to_be_bytes(), [0; 4]].concat())].concat(),
            _ => Vec::new(),
        }
    })
    .await;
    let gateway = Gateway::with(flags(&pki, address));
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut client = gateway.http2(Some(&alice)).await;
    for _ in 0..20 {
        let request = Request::post("/api/v1/x").body(full("{}")).unwrap();
        assert_eq!(client.send(request).await.unwrap().status(), StatusCode::OK);
    }
    let dialled = dialled.load(Ordering::SeqCst);
    assert!((20..=40).contains(&dialled), "dialled {dialled} times for 20 requests");
}

// kube-apiserver sends GOAWAY on every connection when it shuts down; watches continue for a while.
#[tokio::test]
async fn a_request_gets_a_new_connection_if_all_others_received_goaway() {
    let pki = Pki::new();
    let going = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&going);
    let address = frames::backend(&pki, &[(MAX_CONCURRENT_STREAMS, 3)], move |number| {
        let (count, mut leaving) = (Arc::clone(&counted), false);
        // The first eight connections get two watches each; the last one answers.
        let end = if number < 8 { 0 } else { END_STREAM };
        move |kind, id, payload| match kind {
            HEADERS => frame(HEADERS, END_HEADERS | end, id, &[0x88]),
            RST_STREAM => {
                leaving = true;
                let last = [3_u32.to_be_bytes(), [0; 4]].concat();
                // An acknowledgement of SETTINGS shows that the gateway has read the preceding GOAWAY.
                [frame(GOAWAY, 0, 0, &last), frame(SETTINGS, 0, 0, b"")].concat()
            }
            SETTINGS if leaving && payload.is_empty() => {
                count.fetch_add(1, Ordering::SeqCst);
                Vec::new()
            }
            _ => Vec::new(),
        }
    })
    .await;
    let gateway = Gateway::with(flags(&pki, address));
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut watches = Vec::new();
    for _ in 0..16 {
        let mut client = gateway.http1(Some(&alice)).await;
        watches.push((client.get("/api/v1/pods?watch=true", &[]).await, client));
    }
    // Closes one of the two watches of each connection.
    let mut index = 0;
    watches.retain(|(_, client)| {
        index += 1;
        if index % 2 == 0 {
            client.task.abort();
        }
        index % 2 == 1
    });
    until("GOAWAY on all connections", || going.load(Ordering::SeqCst) == 8).await;
    let request = Request::post("/api/v1/namespaces/n/services/s/proxy/x").body(full("{}")).unwrap();
    let response = gateway.http1(Some(&alice)).await.send(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_backend_that_allows_one_stream_or_none_delays_requests_without_redials() {
    let late = StatusCode::GATEWAY_TIMEOUT;
    // Requests that are sent before the backend's SETTINGS arrive are answered.
    for (settings, expected) in [
        (&[(MAX_CONCURRENT_STREAMS, 1)], &[StatusCode::OK][..]),
        (&[(MAX_CONCURRENT_STREAMS, 0)], &[StatusCode::OK, late]),
    ] {
        let most = settings[0].1;
        let pki = Pki::new();
        let dialled = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&dialled);
        let address = frames::backend(&pki, settings, move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            answers
        })
        .await;
        let gateway = Gateway::with(flags(&pki, address));
        let alice = pki.clients.leaf().cn("alice").issue();
        let mut responses = Vec::new();
        for _ in 0..20 {
            let mut client = gateway.http1(Some(&alice)).await;
            responses.push(tokio::spawn(async move {
                client.get("/api/v1/pods?timeout=500ms", &[]).await.status()
            }));
        }
        for answer in responses {
            let answered = in_time(answer).await.unwrap();
            assert!(expected.contains(&answered), "{most} streams: {answered}");
        }
        let dialled = dialled.load(Ordering::SeqCst);
        assert!(dialled <= 40, "{most} streams: dialled {dialled} times for 20 requests");
    }
}

// kube-apiserver can relay such a header from an aggregated API server, whose connections users share: 10 MiB in lines of four
// bytes.
#[tokio::test]
async fn a_response_header_with_millions_of_lines_is_a_502_and_ends_no_other_request() {
    const RELAYED: &str = "/apis/metrics.example.com/v1/nodes";
    let pki = Pki::new();
    let requests_seen = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&requests_seen);
    let address = frames::backend(&pki, &[], move |_| {
        let count = Arc::clone(&counted);
        move |kind, id, _| match (kind, count.fetch_add(u32::from(kind == HEADERS), Ordering::SeqCst)) {
            (HEADERS, 1) => {
                // RFC 7541: status 200, a field that is added to the dynamic table, and references to it.
                let first = frame(HEADERS, 0, id, &[0x88, 0x40, 1, b'a', 0]);
                let more = frame(CONTINUATION, 0, id, &[0xbe; 16_384]).repeat((10 << 20) / 4 / 16_384);
                [first, more, frame(CONTINUATION, END_HEADERS, id, b"")].concat()
            }
            (HEADERS, 2) => [ok(1), ok(id)].concat(),
            _ => Vec::new(),
        }
    })
    .await;
    let gateway = Gateway::with(flags(&pki, address));
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut waiting = gateway.http1(Some(&alice)).await;
    let waiting = tokio::spawn(async move { waiting.get(RELAYED, &[]).await.status() });
    until("the first request", || requests_seen.load(Ordering::SeqCst) == 1).await;
    let mut client = gateway.http1(Some(&alice)).await;
    let large = client.send(Request::post(RELAYED).body(full("")).unwrap()).await.unwrap();
    assert_eq!(large.status(), StatusCode::BAD_GATEWAY);
    let mut client = gateway.http1(Some(&alice)).await;
    assert_eq!(client.get(RELAYED, &[]).await.status(), StatusCode::OK);
    assert_eq!(in_time(waiting).await.unwrap(), StatusCode::OK);
}
