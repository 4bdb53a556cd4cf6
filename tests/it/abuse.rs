//! What a hostile or unlucky peer may do, and what holds all the same.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::crypto::aws_lc_rs::default_provider;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::support::{Backend, BoxedBody, Gateway, Pki, flags, full, get, soon, text, until};

const H2: &[&[u8]] = &[b"h2", b"http/1.1"];
const H1: &[&[u8]] = &[b"http/1.1"];

/// TLS as a backend of these tests does it; possession of a certificate is not looked at.
fn acceptor(pki: &Pki, alpn: &[&[u8]]) -> TlsAcceptor {
    let issued = pki.servers.server(&["backend.test"]);
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(issued.chain.clone(), issued.key.clone_key())
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

/// A backend of bare TLS connections, which the test answers byte by byte.
async fn bare(
    pki: &Pki,
    alpn: &'static [&'static [u8]],
) -> (SocketAddr, mpsc::UnboundedReceiver<TlsStream<TcpStream>>) {
    let acceptor = acceptor(pki, alpn);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (accepted, streams) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, accepted) = (acceptor.clone(), accepted.clone());
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    accepted.send(stream).ok();
                }
            });
        }
    });
    (address, streams)
}

/// A body without end; the flag is set when its receiver is gone.
fn endless() -> (BoxedBody, Arc<AtomicBool>) {
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let gone = Arc::new(AtomicBool::new(false));
    let flag = Flag(Arc::clone(&gone));
    let stream = futures_util::stream::unfold(flag, |flag| async move {
        tokio::task::yield_now().await;
        let chunk = Bytes::from(vec![b'x'; 16_384]);
        Some((Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Frame::data(chunk)), flag))
    });
    (StreamBody::new(stream).boxed(), gone)
}

// kube-apiserver aborts the connection (HTTP/1.1) or the stream (HTTP/2) when the timeout filter's time is up, also
// when the handler is blocked in a write to a client that does not read.
#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off_at_the_deadline() {
    let mut held = Vec::new();
    for http2 in [false, true] {
        let pki = Pki::new();
        let (told, mut bodies) = mpsc::unbounded_channel();
        let backend = Backend::start(&pki, H2, move |_| {
            let (body, gone) = endless();
            told.send(gone).unwrap();
            Box::pin(async { Response::new(body) })
        })
        .await;
        let gateway = Gateway::start(&pki, &backend);
        let alice = pki.clients.leaf().cn("alice").issue();
        let path = "/api/v1/pods?timeout=1s";
        let stalled = if http2 {
            let mut client = gateway.http2(Some(&alice)).await;
            (Some(client.get(path, &[]).await), None)
        } else {
            let mut client = gateway.http1(Some(&alice)).await;
            (Some(client.get(path, &[]).await), Some(client))
        };
        let gone = soon(bodies.recv()).await.unwrap();
        let started = std::time::Instant::now();
        while !gone.load(Ordering::SeqCst) && started.elapsed() < Duration::from_secs(8) {
            sleep(Duration::from_millis(50)).await;
        }
        if !gone.load(Ordering::SeqCst) {
            held.push(if http2 { "HTTP/2" } else { "HTTP/1.1" });
        }
        drop(stalled);
    }
    assert!(
        held.is_empty(),
        "8 s after a deadline of 1 s a client that does not read holds its backend stream: {held:?}"
    );
}

// One TLS connection of anybody must not cost the gateway and the backend a mutually authenticated connection for each
// of its streams.
#[tokio::test]
async fn anonymous_streams_of_one_client_do_not_open_a_backend_connection_each() {
    let pki = Pki::new();
    let (address, mut streams) = bare(&pki, H2).await;
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Some(stream) = streams.recv().await {
            count.fetch_add(1, Ordering::SeqCst);
            kept.push(stream);
        }
    });
    let gateway = Gateway::with(flags(&pki, address));
    let client = gateway.http2(None).await;
    let mut asking = Vec::new();
    for _ in 0..90 {
        let mut sender = client.sender.clone();
        let request = get(&format!("https://{}/api", gateway.address), &[]);
        asking.push(tokio::spawn(async move {
            sender.ready().await.ok();
            sender.send_request(request).await.ok();
        }));
    }
    sleep(Duration::from_secs(4)).await;
    let opened = opened.load(Ordering::SeqCst);
    assert!(opened <= 32, "{opened} connections to the backend for one of an unknown client");
    asking.iter().for_each(tokio::task::JoinHandle::abort);
}

/// A backend that lets TCP connections hang while the flag is set, and is well afterwards.
async fn hanging(pki: &Pki) -> (SocketAddr, Arc<AtomicBool>, Arc<AtomicUsize>) {
    let acceptor = acceptor(pki, H2);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let hangs = Arc::new(AtomicBool::new(true));
    let accepted = Arc::new(AtomicUsize::new(0));
    let (flag, count) = (Arc::clone(&hangs), Arc::clone(&accepted));
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            if flag.load(Ordering::SeqCst) {
                kept.push(stream);
                continue;
            }
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let service = hyper::service::service_fn(|_| async {
                    Ok::<_, std::convert::Infallible>(Response::new(full("ok")))
                });
                hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await
                    .ok();
            });
        }
    });
    (address, hangs, accepted)
}

#[tokio::test]
async fn a_failure_to_connect_that_nobody_waited_for_is_not_told_to_a_later_request() {
    let pki = Pki::new();
    let (address, hangs, accepted) = hanging(&pki).await;
    let gateway = Gateway::with(flags(&pki, address));
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut client = gateway.http1(Some(&alice)).await;
    let asking = tokio::spawn(async move { client.send(get("/api", &[])).await.map(|_| ()) });
    until("the connection", || accepted.load(Ordering::SeqCst) == 1).await;
    asking.abort();
    // The handshake with the backend is given up after 10 s; nobody is waiting for it any more.
    sleep(Duration::from_secs(12)).await;
    hangs.store(false, Ordering::SeqCst);
    sleep(Duration::from_millis(200)).await;
    let response = gateway.http1(Some(&alice)).await.get("/api", &[]).await;
    assert_eq!(
        response.status(),
        StatusCode::OK,
        "the backend is well, and it was not even asked: {} connections",
        accepted.load(Ordering::SeqCst)
    );
}

async fn read_frame(stream: &mut TlsStream<TcpStream>) -> std::io::Result<(u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await?;
    let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).await?;
    Ok((head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Answers the first request of a connection: `refusal` is sent instead of an answer, if there is one.
async fn answer_raw(mut stream: TlsStream<TcpStream>, refusal: Option<fn(u32) -> Vec<u8>>) {
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await.unwrap();
    stream.write_all(&frame(4, 0, 0, &[])).await.unwrap();
    while let Ok((kind, id, payload)) = read_frame(&mut stream).await {
        let answer = match kind {
            4 if payload.is_empty() => continue,
            4 => frame(4, 1, 0, &[]),
            1 => refusal.map_or_else(|| frame(1, 0x5, id, &[0x88]), |refusal| refusal(id)),
            6 => frame(6, 1, 0, &payload),
            _ => continue,
        };
        stream.write_all(&answer).await.unwrap();
        stream.flush().await.unwrap();
    }
}

// RFC 9113, 6.8 and 8.7: a stream above GOAWAY's last one, or refused with REFUSED_STREAM, was not processed; Go's
// client sends such a request again, so kubectl apply never notices `--goaway-chance` or a restart.
#[tokio::test]
async fn a_write_that_the_backend_provably_did_not_process_is_not_a_502() {
    let goaway: fn(u32) -> Vec<u8> = |_| frame(7, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 0]);
    let refused: fn(u32) -> Vec<u8> = |id| frame(3, 0, id, &7_u32.to_be_bytes());
    let mut bad = Vec::new();
    for (name, refusal) in [("GOAWAY", goaway), ("REFUSED_STREAM", refused)] {
        for body in ["", "{}"] {
            let pki = Pki::new();
            let (address, mut streams) = bare(&pki, H2).await;
            tokio::spawn(async move {
                let mut first = true;
                while let Some(stream) = streams.recv().await {
                    tokio::spawn(answer_raw(stream, first.then_some(refusal)));
                    first = false;
                }
            });
            let gateway = Gateway::with(flags(&pki, address));
            let alice = pki.clients.leaf().cn("alice").issue();
            let request = Request::post("/api/v1/namespaces/n/configmaps").body(full(body)).unwrap();
            let response = gateway.http1(Some(&alice)).await.send(request).await.unwrap();
            let hint = response.headers().contains_key("retry-after");
            if !(response.status().is_success() || hint) {
                bad.push(format!("{name} body {body:?}: {} without Retry-After", response.status()));
            }
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

// RFC 9112, 3.2.1: a client that speaks to an origin server sends path and query alone.
#[tokio::test]
async fn an_http1_backend_gets_the_target_as_the_client_sent_it() {
    for (sent, expected) in
        [("GET /api/v1?x=%2F", "GET /api/v1?x=%2F HTTP/1.1"), ("OPTIONS *", "OPTIONS * HTTP/1.1")]
    {
        let pki = Pki::new();
        let (address, mut streams) = bare(&pki, H1).await;
        let gateway = Gateway::with(flags(&pki, address));
        let mut client = gateway.tls(b"http/1.1", None).await;
        client.write_all(format!("{sent} HTTP/1.1\r\nHost: api.example\r\n\r\n").as_bytes()).await.unwrap();
        let mut stream = soon(streams.recv()).await.unwrap();
        let mut buffer = vec![0; 8192];
        let read = soon(stream.read(&mut buffer)).await.unwrap();
        let received = String::from_utf8_lossy(&buffer[..read]).into_owned();
        assert_eq!(received.lines().next(), Some(expected), "{received}");
    }
}

#[tokio::test]
async fn trailers_carry_no_identity_to_the_backend() {
    for alpn in [H1, H2] {
        let pki = Pki::new();
        let (told, mut trailers) = mpsc::unbounded_channel();
        let backend = Backend::start(&pki, alpn, move |request: Request<hyper::body::Incoming>| {
            let told = told.clone();
            Box::pin(async move {
                let collected = request.into_body().collect().await.unwrap();
                told.send(collected.trailers().cloned().unwrap_or_default()).unwrap();
                Response::new(full("ok"))
            })
        })
        .await;
        let gateway = Gateway::start(&pki, &backend);
        let alice = pki.clients.leaf().cn("alice").issue();
        let mut sent = HeaderMap::new();
        for name in ["x-remote-user", "x-remote-group", "impersonate-user", "authorization", "x-sum"] {
            sent.insert(name, "system:masters".parse().unwrap());
        }
        let frames = [Frame::data(Bytes::from_static(b"{}")), Frame::trailers(sent)]
            .map(Ok::<_, Box<dyn std::error::Error + Send + Sync>>);
        let request = Request::post("/api/v1/namespaces/n/configmaps")
            .header("trailer", "x-remote-user, x-remote-group, impersonate-user, authorization, x-sum")
            .body(StreamBody::new(futures_util::stream::iter(frames)).boxed())
            .unwrap();
        let response = gateway.http2(Some(&alice)).await.send(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let received = soon(trailers.recv()).await.unwrap();
        let mut names: Vec<_> = received.keys().map(ToString::to_string).collect();
        names.sort();
        assert_eq!(names, ["x-sum"], "{alpn:?}");
    }
}

#[tokio::test]
async fn as_many_headers_as_http2_lets_in_do_not_make_a_handler_panic() {
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
    // So that the client knows how large a frame may be.
    text(client.get("/api", &[]).await).await;
    sleep(Duration::from_millis(100)).await;
    let answer = client.send(request).await;
    eprintln!("many headers: {:?}", answer.as_ref().map(Response::status));
    if let Ok(response) = answer {
        let status = response.status();
        assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{}", text(response).await);
    }
}

#[tokio::test]
async fn a_backend_that_hangs_up_after_the_handshake_is_not_dialled_in_a_loop() {
    for watch in ["", "?watch=true"] {
        let pki = Pki::new();
        let (address, mut streams) = bare(&pki, H2).await;
        let count = Arc::new(AtomicUsize::new(0));
        let counting = Arc::clone(&count);
        tokio::spawn(async move {
            while let Some(mut stream) = streams.recv().await {
                counting.fetch_add(1, Ordering::SeqCst);
                stream.shutdown().await.ok();
            }
        });
        let gateway = Gateway::with(flags(&pki, address));
        let alice = pki.clients.leaf().cn("alice").issue();
        let mut client = gateway.http1(Some(&alice)).await;
        let path = format!("/api/v1/pods{watch}");
        let asking = tokio::time::timeout(
            Duration::from_secs(5),
            client.sender.send_request({
                let mut request = get(&path, &[]);
                request.headers_mut().insert("host", "a".parse().unwrap());
                request
            }),
        )
        .await;
        let dialled = count.load(Ordering::SeqCst);
        let status = asking.map(|answer| answer.map(|response| response.status()).ok()).ok();
        eprintln!("{path}: dialled {dialled}, {status:?}");
        assert!(dialled <= 12, "{path}: dialled {dialled} times, answered {status:?}");
        assert!(status.is_some(), "{path}: no answer after {dialled} connections");
    }
}

#[tokio::test]
async fn a_bearer_subprotocol_is_taken_out_whatever_stands_beside_it() {
    let pki = Pki::new();
    let backend = Backend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let mut client = gateway.tls(b"http/1.1", None).await;
    client
        .write_all(
            b"GET /api HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: \
              base64url.bearer.authorization.k8s.io.Z29vZC10b2tlbg, caf\xc3\xa9\r\n\r\n",
        )
        .await
        .unwrap();
    let mut buffer = [0; 4096];
    soon(client.read(&mut buffer)).await.unwrap();
    if let Some(seen) = backend.take() {
        let protocols = seen.all("sec-websocket-protocol");
        assert!(
            !protocols.concat().contains("bearer.authorization"),
            "as {:?}, the token of carol went to the backend: {protocols:?}",
            seen.all("x-remote-user")
        );
    }
}

// apimachinery, pkg/util/proxy/upgradeaware.go, tryUpgrade: the end of either direction ends both.
#[tokio::test]
async fn a_tunnel_ends_when_the_backend_closes_it() {
    let pki = Pki::new();
    let (address, mut streams) = bare(&pki, H1).await;
    let gateway = Gateway::with(flags(&pki, address));
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut client = gateway.tls(b"http/1.1", Some(&alice)).await;
    client
        .write_all(
            b"GET /api/v1/namespaces/n/pods/p/exec HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: \
              websocket\r\n\r\n",
        )
        .await
        .unwrap();
    let mut stream = soon(streams.recv()).await.unwrap();
    let mut buffer = [0; 4096];
    soon(stream.read(&mut buffer)).await.unwrap();
    stream
        .write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nbye",
        )
        .await
        .unwrap();
    stream.shutdown().await.unwrap();
    drop(stream);
    let mut rest = Vec::new();
    soon(client.read_to_end(&mut rest)).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    // The client saw the end and keeps its socket, silently. The gateway must not: an orphan has no inode.
    let port = client.get_ref().0.local_addr().unwrap().port();
    let kept = socket(gateway.address.port(), port).is_some_and(|fields| fields[9] != "0");
    assert!(!kept, "the gateway still holds the client's side of the tunnel");
}

/// What the kernel knows of the socket between two local ports.
fn socket(local: u16, remote: u16) -> Option<Vec<String>> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let (local, remote) = (format!(":{local:04X}"), format!(":{remote:04X}"));
    table.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        (fields.len() > 9 && fields[1].ends_with(&local) && fields[2].ends_with(&remote)).then_some(fields)
    })
}

/// The timer of a socket; 2 is keep-alive.
fn timer(local: u16, remote: u16) -> Option<String> {
    Some(socket(local, remote)?[5].split(':').next()?.to_owned())
}

// Go's listener and dialer keep TCP connections alive (15 s): a peer that vanished without a word is noticed, also
// under a tunnel or a quiet HTTP/1.1 watch, where nobody pings.
#[tokio::test]
async fn quiet_connections_are_kept_alive_by_tcp_on_both_sides() {
    let pki = Pki::new();
    let (address, mut streams) = bare(&pki, H1).await;
    let gateway = Gateway::with(flags(&pki, address));
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut client = gateway.tls(b"http/1.1", Some(&alice)).await;
    client
        .write_all(b"GET /api/v1/namespaces/n/pods/p/exec HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        .await
        .unwrap();
    let mut stream = soon(streams.recv()).await.unwrap();
    let mut buffer = [0; 4096];
    soon(stream.read(&mut buffer)).await.unwrap();
    stream
        .write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        .await
        .unwrap();
    soon(client.read(&mut buffer)).await.unwrap();
    sleep(Duration::from_millis(500)).await;
    let client_port = client.get_ref().0.local_addr().unwrap().port();
    let gateway_port = stream.get_ref().0.peer_addr().unwrap().port();
    assert_eq!(
        (timer(gateway.address.port(), client_port), timer(gateway_port, address.port())),
        (Some("02".to_owned()), Some("02".to_owned())),
        "(client side, backend side)"
    );
}

// Go: net/http Server.Shutdown closes connections on which nothing has come for 5 s.
#[tokio::test]
async fn connections_without_a_request_do_not_hold_up_the_end() {
    let mut slow = Vec::new();
    for case in ["no handshake", "no request"] {
        let pki = Pki::new();
        let backend = Backend::plain(&pki).await;
        let mut gateway = Gateway::start(&pki, &backend);
        let _bare;
        let _ready;
        if case == "no handshake" {
            _bare = TcpStream::connect(gateway.address).await.unwrap();
        } else {
            _ready = gateway.tls(b"http/1.1", None).await;
        }
        sleep(Duration::from_millis(200)).await;
        let server = gateway.server.take().unwrap();
        let ending = tokio::task::spawn_blocking(move || server.shut_down());
        if tokio::time::timeout(Duration::from_secs(8), ending).await.is_err() {
            slow.push(case);
        }
    }
    assert!(slow.is_empty(), "more than 8 s: {slow:?}");
}

#[tokio::test]
async fn a_request_whose_client_left_is_not_counted_as_a_200() {
    let pki = Pki::new();
    let backend = Backend::start(&pki, H2, |_| Box::pin(std::future::pending())).await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut client = gateway.http1(Some(&alice)).await;
    let asking = tokio::spawn(async move { client.send(get("/api/v1/pods", &[])).await.map(|_| ()) });
    until("the request at the backend", || backend.pending() == 1).await;
    asking.abort();
    sleep(Duration::from_millis(500)).await;
    let address = gateway.server.as_ref().unwrap().metrics_address().unwrap();
    let mut metrics = TcpStream::connect(address).await.unwrap();
    metrics.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    soon(metrics.read_to_string(&mut answer)).await.unwrap();
    let counted: Vec<_> =
        answer.lines().filter(|line| !line.starts_with('#') && line.contains("code=\"200\"")).collect();
    assert!(counted.is_empty(), "{counted:?}");
}

#[tokio::test]
async fn a_tunnel_whose_client_has_finished_does_not_wait_for_the_backend_for_ever() {
    let pki = Pki::new();
    let (address, mut streams) = bare(&pki, H1).await;
    let gateway = Gateway::with(flags(&pki, address));
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut client = gateway.tls(b"http/1.1", Some(&alice)).await;
    client
        .write_all(b"GET /api/v1/namespaces/n/pods/p/exec HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        .await
        .unwrap();
    let mut stream = soon(streams.recv()).await.unwrap();
    let mut buffer = [0; 4096];
    soon(stream.read(&mut buffer)).await.unwrap();
    stream
        .write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        .await
        .unwrap();
    soon(client.read(&mut buffer)).await.unwrap();
    // As a client does that closes: TLS's end, then TCP's.
    client.shutdown().await.unwrap();
    drop(client);
    sleep(Duration::from_secs(2)).await;
    // A backend that does not end by itself. An orphan has no inode.
    let port = stream.get_ref().0.peer_addr().unwrap().port();
    let kept = socket(port, address.port()).is_some_and(|fields| fields[9] != "0");
    assert!(!kept, "the gateway still holds the backend's side of the tunnel 2 s after the client has gone");
}

// kube-apiserver takes 1 MiB of header on both versions, in however many CONTINUATION frames.
#[tokio::test]
async fn large_headers_pass_over_http2_too() {
    let mut refused = Vec::new();
    for settled in [true, false] {
        for kib in [64, 100, 200, 900] {
            let pki = Pki::new();
            let backend = Backend::plain(&pki).await;
            let gateway = Gateway::start(&pki, &backend);
            let alice = pki.clients.leaf().cn("alice").issue();
            let mut client = gateway.http2(Some(&alice)).await;
            if settled {
                text(client.get("/api", &[]).await).await;
                sleep(Duration::from_millis(100)).await;
            }
            // What Huffman coding makes longer, while it still fits into what the header may be on the wire.
            let large = if kib < 900 { "\\^~|".repeat(kib << 8) } else { "x".repeat(kib << 10) };
            match client.send(get("/api", &[("x-large", &large)])).await {
                Ok(response) if response.status() == StatusCode::OK => {}
                Ok(response) => refused.push(format!("{kib} KiB, settled {settled}: {}", response.status())),
                Err(error) => refused.push(format!("{kib} KiB, settled {settled}: {error:?}")),
            }
        }
    }
    assert!(refused.is_empty(), "{refused:#?}");
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
    let names: Vec<String> = (0..4000).map(|index| format!("x-line-{index}")).collect();
    let headers: Vec<_> = names.iter().map(|name| (name.as_str(), value.as_str())).collect();
    let response = gateway.http1(Some(&alice)).await.get("/api", &headers).await;
    let status = response.status();
    if let Some(seen) = backend.take() {
        let size = list_size(&seen.headers);
        assert!(size <= (1 << 20) + 320, "{size} bytes of header were forwarded, answered {status}");
    }
}
