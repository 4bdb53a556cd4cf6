//! Requests without a credential have a limited share of the backend connections and a limited duration.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
use testkit::body::fed;
use testkit::frames;
use testkit::wire::{bare, head};
use testkit::{Gateway, H1, Pki, empty, flags, in_time, until};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::watch;

use crate::gateway::InProcess as _;

/// An HTTP/1.1 backend that holds its responses until `release`, and does not read request bodies.
struct HeldBackend {
    address: SocketAddr,
    /// The number of open connections, and its maximum.
    open: watch::Receiver<usize>,
    most: Arc<AtomicUsize>,
    release: watch::Sender<bool>,
}

impl HeldBackend {
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

// An anonymous client's TLS connection must not cause a mutually authenticated backend connection per stream, not even
// by request bodies that continue after their response has ended. Go's client closes a connection with such a body.
#[tokio::test]
async fn anonymous_streams_share_a_few_connections_and_are_all_answered() {
    for (kind, method) in [("readOnly", "GET"), ("mutating", "POST")] {
        let pki = Pki::new();
        let mut backend = HeldBackend::start(&pki).await;
        let gateway = Gateway::with(flags(&pki, backend.address));
        let mut clients = Vec::new();
        for host in 1..=5 {
            clients.push(gateway.http2_from(host).await);
        }
        let (mut responses, mut uploads) = (Vec::new(), Vec::new());
        for number in 0..90 {
            let mut sender = clients[number % 5].sender.clone();
            let (upload, unfinished, _) = fed();
            uploads.push(upload);
            let body = if method == "POST" { unfinished } else { empty() };
            let mut request =
                Request::builder().method(method).uri(format!("https://{}/api", gateway.address));
            if method == "POST" {
                // More than the gateway buffers.
                request = request.header("content-length", "1000000");
            }
            let request = request.body(body).unwrap();
            responses.push(tokio::spawn(async move {
                sender.ready().await.unwrap();
                sender.send_request(request).await.unwrap().status()
            }));
        }
        let waiting = format!("apiserver_current_inflight_requests{{request_kind=\"{kind}\"}} 90");
        gateway.until_counted(&waiting).await;
        in_time(backend.open.wait_for(|open| *open >= 32)).await.unwrap();
        backend.release.send_replace(true);
        for answer in responses {
            assert_eq!(in_time(answer).await.unwrap(), StatusCode::OK, "{method}");
        }
        assert_eq!(backend.most.load(Ordering::SeqCst), 32, "{method}");
    }
}

// A few anonymous connections can carry hundreds of streams.
#[tokio::test]
async fn anonymous_requests_beyond_the_queue_are_refused_at_once() {
    let pki = Pki::new();
    let backend = HeldBackend::start(&pki).await;
    let gateway = Gateway::with(flags(&pki, backend.address));
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
    // The gateway sends 32 and queues 512.
    gateway.until_counted("apiserver_request_total{code=\"429\",verb=\"GET\"} 176").await;
    // Had the refused ones waited, the queue would be empty by now.
    assert_eq!(
        gateway.count("apiserver_current_inflight_requests{request_kind=\"readOnly\"}").await,
        32 + 512
    );
}

/// An HTTP/1.1 backend that never responds to proxy requests, but to all others, and the number of proxy requests.
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
                        let answer =
                            format!("HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n{}", " ".repeat(60_000));
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    } else if head.contains("/chunked") || head.contains("/long") {
                        let length = if head.contains("/long") { 400_000 } else { 60_000 };
                        let answer = format!(
                            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{length:x}\r\n{}\r\n0\r\n\r\n",
                            " ".repeat(length)
                        );
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
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

// Go's server reads the rest of a request body before it sends the response, so kube-apiserver would never answer
// these.
#[tokio::test]
async fn anonymous_requests_with_stalled_bodies_do_not_block_others() {
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
    // Complete bodies are forwarded.
    for upload in &uploads {
        upload.send(Frame::data("}".into())).ok();
    }
    drop(uploads);
    until("the first requests", || stalled.load(Ordering::SeqCst) == 32).await;
}

#[tokio::test]
async fn unread_anonymous_responses_do_not_block_others() {
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
        assert_eq!(response.status(), StatusCode::OK, "{path}: the slots of this address are free");
    }
}

/// A response that is too long to be buffered holds its slot no longer than the request timeout, although the client
/// never opens its window.
#[tokio::test]
async fn long_anonymous_responses_that_are_not_read_end_with_the_request_timeout() {
    let pki = Pki::new();
    let (address, _) = stalled_pods(&pki).await;
    let gateway = Gateway::with([flags(&pki, address), vec!["--request-timeout=3s".to_owned()]].concat());
    let mut attackers = Vec::new();
    for _ in 0..8 {
        let mut attacker = gateway.frames(None, 0).await;
        attacker.write_all(&frames::request(1, "/long")).await.unwrap();
        let headers = loop {
            let (kind, _, payload) = in_time(frames::read_frame(&mut attacker)).await.unwrap();
            if kind == frames::HEADERS {
                break payload;
            }
        };
        assert_eq!(headers.first(), Some(&frames::STATUS_200), "the backend's response, not a refusal");
        attackers.push(attacker);
    }
    let code = async || gateway.http2_from(1).await.get("/version", &[]).await.status();
    in_time(async { while code().await != StatusCode::OK {} }).await;
}

#[tokio::test]
async fn stalled_anonymous_requests_do_not_block_other_clients() {
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
    until("the client's share", || stalled.load(Ordering::SeqCst) >= 8).await;
    // The last request on the attacker's connection, which has a credential.
    let last = attacker.get("/api", &[("authorization", "Bearer good-token")]).await;
    assert_eq!(last.status(), StatusCode::OK);
    for host in 2..6 {
        let response = gateway.http2_from(host).await.get("/version", &[]).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(stalled.load(Ordering::SeqCst), 8, "the client exceeds its share");
    }
}

#[tokio::test]
async fn an_anonymous_long_running_request_ends_with_the_request_timeout() {
    let pki = Pki::new();
    let (address, _) = stalled_pods(&pki).await;
    let gateway = Gateway::with([flags(&pki, address), vec!["--request-timeout=3s".to_owned()]].concat());
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut patient = gateway.http2(Some(&alice)).await;
    let patient = tokio::spawn(async move { patient.get(STALLED, &[]).await.status() });
    let answered = gateway.http2_from(1).await.get(STALLED, &[]).await;
    assert_eq!(answered.status(), StatusCode::GATEWAY_TIMEOUT);
    let watch = gateway.http2_from(1).await.get("/api/v1/pods?watch=1", &[]).await;
    assert_eq!(watch.status(), StatusCode::OK);
    assert!(in_time(watch.into_body().collect()).await.is_err(), "the watch continues");
    assert!(!patient.is_finished(), "a client with a credential may wait");
}
