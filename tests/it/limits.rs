//! What one peer can cost the others: unread answers, connections of nobody in particular, header without measure.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
use testkit::body::{endless, fed};
use testkit::frames;
use testkit::wire::{bare, head};
use testkit::{Backend, Gateway, H1, H2, Pki, empty, flags, full, get, in_time, text, until};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{mpsc, watch};

use crate::gateway::InProcess as _;

// kube-apiserver aborts the connection (HTTP/1.1) or the stream (HTTP/2) when the timeout filter's time is up, also
// when the handler is blocked in a write to a client that does not read.
#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off_at_the_deadline() {
    let pki = Pki::new();
    let (told, mut bodies) = mpsc::unbounded_channel();
    let backend = Backend::start(&pki, H2, move |request: Request<_>| {
        if request.uri().path() == "/api" {
            return Box::pin(async { Response::new(full("ok")) });
        }
        let (body, gone) = endless();
        told.send(gone).unwrap();
        Box::pin(async { Response::new(body) })
    })
    .await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut http1 = gateway.http1(Some(&alice)).await;
    let mut http2 = gateway.http2(Some(&alice)).await;
    // Connects, so that the deadline is not that of a handshake.
    text(http2.get("/api", &[]).await).await;
    let path = "/api/v1/pods?timeout=400ms";
    for (version, response) in
        [("HTTP/1.1", http1.get(path, &[]).await), ("HTTP/2", http2.get(path, &[]).await)]
    {
        assert_eq!(response.status(), StatusCode::OK);
        let gone = in_time(bodies.recv()).await.unwrap();
        until(&format!("the end of the backend's stream, {version}"), || gone.load(Ordering::SeqCst)).await;
        assert!(in_time(response.into_body().collect()).await.is_err(), "{version}: it looks whole");
    }
}

/// A backend of HTTP/1.1 that answers once it is told to, whether it has read a request whole or not.
struct Holding {
    address: SocketAddr,
    /// Connections that are open, and the most there were at once.
    open: watch::Receiver<usize>,
    most: Arc<AtomicUsize>,
    release: watch::Sender<bool>,
}

impl Holding {
    async fn start(pki: &Pki) -> Self {
        let (address, mut streams) = bare(pki, H1).await;
        let (opening, open) = watch::channel(0);
        let (release, released) = watch::channel(false);
        let most = Arc::new(AtomicUsize::new(0));
        let peak = Arc::clone(&most);
        tokio::spawn(async move {
            while let Some(mut stream) = streams.recv().await {
                opening.send_modify(|open| *open += 1);
                peak.fetch_max(*opening.borrow(), Ordering::SeqCst);
                let (opening, mut released) = (opening.clone(), released.clone());
                tokio::spawn(async move {
                    while head(&mut stream).await.is_ok() {
                        released.wait_for(|released| *released).await.unwrap();
                        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
                    }
                    opening.send_modify(|open| *open -= 1);
                });
            }
        });
        Self { address, open, most, release }
    }
}

// One TLS connection of anybody must not cost the gateway and the backend a mutually authenticated connection for each
// of its streams, also not by bodies that go on when their answer has ended. Go's client closes such a connection.
#[tokio::test]
async fn anonymous_streams_share_a_few_connections_and_all_get_their_turn() {
    for (kind, method) in [("readOnly", "GET"), ("mutating", "POST")] {
        let pki = Pki::new();
        let mut backend = Holding::start(&pki).await;
        let gateway = Gateway::with(flags(&pki, backend.address));
        let mut clients = Vec::new();
        for host in 1..=5 {
            clients.push(gateway.http2_from(host).await);
        }
        let (mut asking, mut uploads) = (Vec::new(), Vec::new());
        for number in 0..90 {
            let mut sender = clients[number % 5].sender.clone();
            let (upload, unfinished, _) = fed();
            uploads.push(upload);
            let body = if method == "POST" { unfinished } else { empty() };
            let mut request =
                Request::builder().method(method).uri(format!("https://{}/api", gateway.address));
            if method == "POST" {
                // More than is waited for.
                request = request.header("content-length", "1000000");
            }
            let request = request.body(body).unwrap();
            asking.push(tokio::spawn(async move {
                sender.ready().await.unwrap();
                sender.send_request(request).await.unwrap().status()
            }));
        }
        let waiting = format!("apiserver_current_inflight_requests{{request_kind=\"{kind}\"}} 90");
        gateway.until_counted(&waiting).await;
        in_time(backend.open.wait_for(|open| *open >= 32)).await.unwrap();
        backend.release.send_replace(true);
        for answer in asking {
            assert_eq!(in_time(answer).await.unwrap(), StatusCode::OK, "{method}");
        }
        assert_eq!(backend.most.load(Ordering::SeqCst), 32, "{method}");
    }
}

// A few connections of anybody can carry hundreds of streams each.
#[tokio::test]
async fn more_anonymous_requests_than_may_wait_are_refused_at_once() {
    let pki = Pki::new();
    let backend = Holding::start(&pki).await;
    let gateway = Gateway::with(flags(&pki, backend.address));
    let started = Instant::now();
    let mut clients = Vec::new();
    for host in 1..=8 {
        let client = gateway.http2_from(host).await;
        for _ in 0..90 {
            let mut sender = client.sender.clone();
            let uri = format!("https://{}/api", gateway.address);
            tokio::spawn(async move {
                sender.ready().await?;
                sender.send_request(Request::get(uri).body(empty()).unwrap()).await.map(drop)
            });
        }
        clients.push(client);
    }
    // 32 are sent and 512 wait.
    gateway.until_counted("apiserver_request_total{code=\"429\",verb=\"GET\"} 176").await;
    assert!(started.elapsed() < Duration::from_secs(5), "they had to wait");
}

/// A backend of HTTP/1.1 that answers what is not proxied, and never what is.
async fn stalled_pods(pki: &Pki) -> (SocketAddr, Arc<AtomicUsize>) {
    let (address, mut streams) = bare(pki, H1).await;
    let stalled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&stalled);
    tokio::spawn(async move {
        while let Some(mut stream) = streams.recv().await {
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                while let Ok(head) = head(&mut stream).await {
                    if head.contains("watch=1") {
                        stream
                            .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nevent\r\n")
                            .await
                            .unwrap();
                    } else if head.contains("/large") {
                        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n{:60000}", "");
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    } else if head.contains("/chunked") {
                        let answer = format!(
                            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nea60\r\n{:60000}\r\n0\r\n\r\n",
                            ""
                        );
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    } else if head.contains("/proxy/") {
                        count.fetch_add(1, Ordering::SeqCst);
                    } else {
                        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
                    }
                }
            });
        }
    });
    (address, stalled)
}

const STALLED: &str = "/api/v1/namespaces/x/pods/y/proxy/";

// Go's server reads on in a body before it sends an answer that is ready, so kube-apiserver would never answer these.
#[tokio::test]
async fn anonymous_requests_whose_body_does_not_come_lock_out_nobody() {
    let pki = Pki::new();
    let (address, stalled) = stalled_pods(&pki).await;
    let gateway = Gateway::with(flags(&pki, address));
    let (mut attackers, mut uploads) = (Vec::new(), Vec::new());
    for host in 1..=8 {
        let attacker = gateway.http2_from(host).await;
        for number in 0..20 {
            let mut sender = attacker.sender.clone();
            let (upload, body, _) = fed();
            upload.send(Frame::data("{".into())).unwrap();
            uploads.push(upload);
            let mut request =
                Request::post(format!("https://{}/api/v1/namespaces/x/pods/proxy/", gateway.address));
            if number % 2 == 0 {
                request = request.header("content-length", "2");
            }
            tokio::spawn(async move {
                sender.ready().await?;
                sender.send_request(request.body(body).unwrap()).await.map(drop)
            });
        }
        attackers.push(attacker);
    }
    gateway.until_counted("apiserver_current_inflight_requests{request_kind=\"mutating\"} 160").await;
    let mut upgrades = Vec::new();
    for _ in 0..8 {
        let mut upgrade = gateway.tls(b"http/1.1", None).await;
        let request = "POST /api/v1/namespaces/x/pods/proxy/ HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n\
                       Upgrade: websocket\r\nContent-Length: 1\r\n\r\n";
        upgrade.write_all(request.as_bytes()).await.unwrap();
        upgrades.push(upgrade);
    }
    gateway.until_counted("apiserver_current_inflight_requests{request_kind=\"mutating\"} 168").await;
    for host in 1..=9 {
        let response = gateway.http2_from(host).await.get("/version", &[]).await;
        assert_eq!(response.status(), StatusCode::OK);
    }
    assert_eq!(stalled.load(Ordering::SeqCst), 0);
    // Those that come are sent.
    for upload in &uploads {
        upload.send(Frame::data("}".into())).ok();
    }
    drop(uploads);
    until("the first ones", || stalled.load(Ordering::SeqCst) == 32).await;
}

#[tokio::test]
async fn anonymous_answers_that_are_not_read_lock_out_nobody() {
    let pki = Pki::new();
    let (address, _) = stalled_pods(&pki).await;
    let gateway = Gateway::with(flags(&pki, address));
    let mut attackers = Vec::new();
    for path in ["/large", "/chunked"] {
        for _ in 0..8 {
            let mut attacker = gateway.frames(None, 0).await;
            attacker.write_all(&frames::request(1, path)).await.unwrap();
            while in_time(frames::read_frame(&mut attacker)).await.unwrap().0 != frames::HEADERS {}
            attackers.push(attacker);
        }
        let response = gateway.http2_from(1).await.get("/version", &[]).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}: the places of this address are free");
    }
}

#[tokio::test]
async fn stalled_anonymous_requests_of_one_client_lock_out_no_other() {
    let pki = Pki::new();
    let (address, stalled) = stalled_pods(&pki).await;
    let gateway = Gateway::with(flags(&pki, address));
    let mut attacker = gateway.http2_from(1).await;
    for _ in 0..90 {
        let mut sender = attacker.sender.clone();
        let uri = format!("https://{}{STALLED}", gateway.address);
        tokio::spawn(async move {
            sender.ready().await?;
            sender.send_request(Request::post(uri).body(empty()).unwrap()).await.map(drop)
        });
    }
    until("its share", || stalled.load(Ordering::SeqCst) >= 8).await;
    // Behind all of them on their connection, and by a client with a credential.
    let last = attacker.get("/api", &[("authorization", "Bearer good-token")]).await;
    assert_eq!(last.status(), StatusCode::OK);
    for host in 2..6 {
        let response = gateway.http2_from(host).await.get("/version", &[]).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(stalled.load(Ordering::SeqCst), 8, "no more than its share");
    }
}

#[tokio::test]
async fn an_anonymous_request_ends_with_the_request_timeout_though_it_may_run_long() {
    let pki = Pki::new();
    let (address, _) = stalled_pods(&pki).await;
    let gateway = Gateway::with([flags(&pki, address), vec!["--request-timeout=1s".to_owned()]].concat());
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut patient = gateway.http2(Some(&alice)).await;
    let patient = tokio::spawn(async move { patient.get(STALLED, &[]).await.status() });
    let answered = gateway.http2_from(1).await.get(STALLED, &[]).await;
    assert_eq!(answered.status(), StatusCode::GATEWAY_TIMEOUT);
    let watch = gateway.http2_from(1).await.get("/api/v1/pods?watch=1", &[]).await;
    assert_eq!(watch.status(), StatusCode::OK);
    assert!(in_time(watch.into_body().collect()).await.is_err(), "it goes on");
    assert!(!patient.is_finished(), "a client with a credential may wait");
}

#[tokio::test]
async fn more_header_lines_than_are_read_are_refused_over_http2() {
    let pki = Pki::new();
    let backend = Backend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    let digits = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut request = get("/api", &[]);
    // http::HeaderMap holds 24,576 names and panics at the next.
    for index in 0..24_574_usize {
        let name = [digits[10 + index / 1296], digits[index / 36 % 36], digits[index % 36]];
        let name = http::HeaderName::from_bytes(&name).unwrap();
        request.headers_mut().insert(name, http::HeaderValue::from_static(""));
    }
    let mut client = gateway.http2(Some(&alice)).await;
    let response = client.send(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    assert_eq!(backend.pending(), 0);
}

// kube-apiserver takes 1 MiB of header on both versions, in however many CONTINUATION frames.
#[tokio::test]
async fn large_headers_pass_over_http2_too() {
    let pki = Pki::new();
    let backend = Backend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    for first in [true, false] {
        for kib in [64, 100, 200, 900] {
            let case = format!("{kib} KiB, first on its connection: {first}");
            let mut client = gateway.http2(Some(&alice)).await;
            if !first {
                text(client.get("/api", &[]).await).await;
                backend.take().unwrap();
            }
            // What Huffman coding makes longer, while it still fits into what the header may be on the wire.
            let large = if kib < 900 { "\\^~|".repeat(kib << 8) } else { "x".repeat(kib << 10) };
            let response = client.send(get("/api", &[("x-large", &large)])).await.expect(&case);
            assert_eq!(response.status(), StatusCode::OK, "{case}");
            assert!(backend.take().unwrap().headers["x-large"] == large.as_str(), "{case}: it is another");
        }
    }
}

/// RFC 9113, 6.5.2: what a header costs of `SETTINGS_MAX_HEADER_LIST_SIZE`.
fn list_size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}

// Go's server takes 1 MiB and 320 bytes; past that it ends the connection, with the streams of everybody else
// (golang.org/x/net/http2, Framer.readMetaFrame; MaxHeaderBytes is 1 MiB in kube-apiserver).
#[tokio::test]
async fn no_header_goes_to_the_shared_connection_that_would_make_the_backend_end_it() {
    let pki = Pki::new();
    let backend = Backend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    let value = "~".repeat(240);
    // HTTP/1.1 counts 4 bytes beside the name and the value of a line, HTTP/2 counts 32.
    for (lines, expected) in [(3600, StatusCode::OK), (4000, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)] {
        let names: Vec<String> = (0..lines).map(|index| format!("x-line-{index}")).collect();
        let headers: Vec<_> = names.iter().map(|name| (name.as_str(), value.as_str())).collect();
        let response = gateway.http1(Some(&alice)).await.get("/api", &headers).await;
        assert_eq!(response.status(), expected, "{lines} lines");
        let forwarded = backend.take().map(|seen| list_size(&seen.headers));
        assert_eq!(forwarded.is_some(), expected == StatusCode::OK, "{lines} lines");
        assert!(forwarded.is_none_or(|size| size <= (1 << 20) + 320), "{forwarded:?}");
    }
}

/// The URI type has this limit (D-target-length).
#[tokio::test]
async fn a_target_beyond_65534_bytes_is_refused() {
    let pki = Pki::new();
    let backend = Backend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    for (length, code) in [(65_534, "HTTP/1.1 200 "), (65_535, "HTTP/1.1 414 ")] {
        let mut stream = gateway.tls(b"http/1.1", Some(&alice)).await;
        let target = format!("/api?{}", "x".repeat(length - "/api?".len()));
        let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = head(&mut stream).await.unwrap();
        assert!(answer.starts_with(code), "{length}: {answer}");
    }
    // No URI of the client's library is that long, either.
    let mut raw = gateway.frames(Some(&alice), 65_535).await;
    for (stream, length) in [(1, 65_534), (3, 65_535)] {
        raw.write_all(&frames::long_request(stream, length)).await.unwrap();
        let answer = loop {
            let (kind, of, payload) = in_time(frames::read_frame(&mut raw)).await.unwrap();
            if of == stream && [frames::HEADERS, frames::RST_STREAM].contains(&kind) {
                break (kind, payload);
            }
        };
        if length == 65_534 {
            // RFC 7541, appendix A: `:status: 200`.
            assert_eq!((answer.0, answer.1[0]), (frames::HEADERS, 0x88));
        } else {
            assert_eq!(answer, (frames::RST_STREAM, frames::PROTOCOL_ERROR.to_be_bytes().to_vec()));
        }
    }
}
