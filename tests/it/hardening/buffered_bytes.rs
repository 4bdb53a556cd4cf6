//! Clients that make the gateway hold bytes, as many as they can: what the largest owner holds is given up, and nothing else.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use testkit::body::{Frames, endless, fed};
use testkit::client::Client;
use testkit::frames::{self, CONTINUATION, HEADERS, frame};
use testkit::pki::Issued;
use testkit::{FakeBackend, Gateway, H1, H2, Pki, ResponseFuture, flags, full, in_time, text, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::gateway::InProcess as _;
use crate::management_cluster::{DOCUMENT, Management, flags as management_flags, inline_at, trusted};

/// `--max-buffered-bytes`.
const LIMIT: usize = 4 << 20;
/// The streams of one connection.
const STREAMS: usize = 100;
/// Responses that never end.
const ENDLESS: &str = "/api/v1/pods?watch=true";
const RESETS: &str = "portcullis_buffer_limit_resets_total";

/// A gateway with two users, of whom `mallory` holds all that she can.
struct Setup {
    pki: Pki,
    gateway: Gateway,
    mallory: Issued,
    alice: Issued,
}

impl Setup {
    fn start(pki: Pki, backend: SocketAddr) -> Self {
        let mut flags = flags(&pki, backend);
        flags.push(format!("--max-buffered-bytes={LIMIT}"));
        let gateway = Gateway::with(flags);
        let [mallory, alice] = ["mallory", "alice"].map(|name| pki.clients.leaf().cn(name).issue());
        Self { pki, gateway, mallory, alice }
    }

    async fn resets(&self, owner: &str) -> u64 {
        self.gateway.count(&format!("{RESETS}{{owner=\"{owner}\"}}")).await
    }

    /// Waits until something of an owner of this kind was given up, and all hold less than the limit.
    async fn until_given_up(&self, owner: &str) {
        let begin = format!("{RESETS}{{owner=\"{owner}\"}} ");
        self.gateway.until_counted_as(&begin, |line| line.starts_with(&begin)).await;
        let held =
            |line: &str| -> Option<usize> { line.strip_prefix("portcullis_buffered_bytes ")?.parse().ok() };
        self.gateway
            .until_counted_as("fewer bytes", |line| held(line).is_some_and(|held| held <= LIMIT))
            .await;
    }
}

/// Whether a body ends with an error. It is read to its end.
async fn fails(mut body: Incoming) -> bool {
    loop {
        match in_time(body.frame()).await {
            Some(Ok(_)) => {}
            Some(Err(_)) => return true,
            None => return false,
        }
    }
}

/// Reads that much more of a body than any buffer holds.
async fn goes_on(body: &mut Incoming) {
    let mut left: usize = 2 << 20;
    while left > 0 {
        let frame = in_time(body.frame()).await.expect("it goes on").expect("it goes on");
        left = left.saturating_sub(frame.into_data().unwrap().len());
    }
}

// threat: buffered-bytes-flood
#[tokio::test]
async fn responses_that_are_not_read_are_reset_for_the_user_with_the_most() {
    for alpn in [H2, H1] {
        let pki = Pki::new();
        let answer = |_| -> ResponseFuture { Box::pin(async { Response::new(endless().0) }) };
        let backend = FakeBackend::start(&pki, alpn, answer).await;
        let setup = Setup::start(pki, backend.address);
        let mut calm = Client::narrow(&setup.gateway, true, Some(&setup.alice)).await;
        let mut stalled = calm.get(ENDLESS, &[]).await.into_body();
        let mut client = Client::narrow(&setup.gateway, true, Some(&setup.mallory)).await;
        let mut flood = Vec::new();
        for _ in 0..STREAMS - 1 {
            flood.push(client.get(ENDLESS, &[]).await);
        }
        setup.until_given_up("user").await;
        let reset = setup.resets("user").await;
        assert!((1..=99).contains(&reset), "{reset}");
        goes_on(&mut stalled).await;
        drop(calm);
        drop(stalled);
        // Those that were reset have an error at their end, which comes before the end of the others.
        let failed = Arc::new(AtomicUsize::new(0));
        for response in flood {
            let failed = Arc::clone(&failed);
            tokio::spawn(async move {
                if fails(response.into_body()).await {
                    failed.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        until("the errors", || failed.load(Ordering::SeqCst) > 0).await;
        assert_eq!(client.get("/api", &[]).await.status(), StatusCode::OK, "the connection goes on");
    }
}

#[tokio::test]
async fn connections_over_http1_that_are_not_read_end_for_the_user_with_the_most() {
    let pki = Pki::new();
    let answer = |_| -> ResponseFuture { Box::pin(async { Response::new(endless().0) }) };
    let backend = FakeBackend::start(&pki, H2, answer).await;
    let setup = Setup::start(pki, backend.address);
    let mut calm = Client::narrow(&setup.gateway, false, Some(&setup.alice)).await;
    let mut stalled = calm.get(ENDLESS, &[]).await.into_body();
    let mut flood = Vec::new();
    for _ in 0..30 {
        let mut client = Client::narrow(&setup.gateway, false, Some(&setup.mallory)).await;
        let response = client.get(ENDLESS, &[]).await;
        flood.push((client, response));
    }
    setup.until_given_up("user").await;
    goes_on(&mut stalled).await;
    let reset = usize::try_from(setup.resets("user").await).unwrap();
    assert!(reset < flood.len(), "{reset}");
}

/// A backend that reads no body, until the test lets it.
async fn deaf(
    pki: &Pki,
    alpn: &[&[u8]],
) -> (FakeBackend, Arc<tokio::sync::watch::Sender<bool>>, Arc<AtomicUsize>) {
    let hears = Arc::new(tokio::sync::watch::Sender::new(false));
    let begun = Arc::<AtomicUsize>::default();
    let (listening, count) = (Arc::clone(&hears), Arc::clone(&begun));
    let answer = move |request: Request<Incoming>| -> ResponseFuture {
        let mut hears = listening.subscribe();
        count.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            hears.wait_for(|hears| *hears).await.ok();
            let read = request.into_body().collect().await.map(|body| body.to_bytes().len());
            Response::new(full(read.map_or_else(|error| error.to_string(), |length| length.to_string())))
        })
    };
    (FakeBackend::start(pki, alpn, answer).await, hears, begun)
}

/// An upload whose response has no deadline, with this many pieces that are there at once.
fn upload(pieces: usize) -> (Frames, Request<testkit::BoxedBody>) {
    const PIECE: Bytes = Bytes::from_static(&[b'x'; 16_384]);
    let (frames, body, _) = fed();
    for _ in 0..pieces {
        frames.send(Frame::data(PIECE)).unwrap();
    }
    (frames, Request::post("/api/v1/namespaces/n/services/s/proxy/x").body(body).unwrap())
}

#[tokio::test]
async fn uploads_that_are_not_read_are_refused_for_the_user_with_the_most() {
    for alpn in [H2, H1] {
        let pki = Pki::new();
        let (backend, hears, begun) = deaf(&pki, alpn).await;
        let setup = Setup::start(pki, backend.address);
        let mut calm = setup.gateway.http2(Some(&setup.alice)).await;
        let (frames, request) = upload(20);
        let waiting = tokio::spawn(async move {
            let response = calm.sender.send_request(with_host(request)).await.unwrap();
            text(response).await
        });
        until("the upload", || begun.load(Ordering::SeqCst) == 1).await;
        let mut flood = Vec::new();
        let client = setup.gateway.http2(Some(&setup.mallory)).await;
        for _ in 0..STREAMS - 1 {
            // More than sockets hold.
            let (frames, request) = upload(640);
            let mut sender = client.sender.clone();
            let response = tokio::spawn(async move { sender.send_request(with_host(request)).await });
            flood.push((frames, response));
        }
        setup.until_given_up("user").await;
        drop(frames);
        hears.send_replace(true);
        assert_eq!(in_time(waiting).await.unwrap(), (20 * 16_384).to_string(), "{alpn:?}");
        let mut refused = 0;
        for (frames, response) in flood {
            drop(frames);
            let response = in_time(response).await.unwrap();
            // Not 429, after which clients send it again: the application may have done it.
            refused += u64::from(response.is_ok_and(|response| response.status() == StatusCode::BAD_GATEWAY));
        }
        let reset = setup.resets("user").await;
        assert!(refused >= 1 && reset >= refused, "{refused} of {reset}");
    }
}

fn with_host(request: Request<testkit::BoxedBody>) -> Request<testkit::BoxedBody> {
    let (mut head, body) = request.into_parts();
    head.uri = format!("https://localhost{}", head.uri.path()).parse().unwrap();
    Request::from_parts(head, body)
}

/// The length of a large header.
const LARGE: usize = 400_000;

/// A connection with large windows, of which the test reads nothing.
async fn unread(gateway: &Gateway, identity: &Issued) -> TlsStream<TcpStream> {
    let mut stream = gateway.frames(Some(identity), 1 << 20).await;
    in_time(stream.write_all(&frames::window_update(0, 1 << 30))).await.unwrap();
    stream
}

#[tokio::test]
async fn headers_that_a_client_does_not_read_wait_and_are_given_up() {
    let pki = Pki::new();
    let answered = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&answered);
    let answer = move |_| -> ResponseFuture {
        count.fetch_add(1, Ordering::SeqCst);
        let mut response = Response::new(full("ok"));
        let large = HeaderValue::try_from("x".repeat(LARGE)).unwrap();
        response.headers_mut().insert("x-large", large);
        Box::pin(async { response })
    };
    let backend = FakeBackend::start(&pki, H2, answer).await;
    let setup = Setup::start(pki, backend.address);
    let mut stream = unread(&setup.gateway, &setup.mallory).await;
    // More than sockets hold, beside the limit. One after the other: the headers of many at once would be those of the API server.
    for id in 0..30 {
        let sent = in_time(stream.write_all(&frames::request(2 * id + 1, "/api/v1/pods"))).await;
        let is_answered = || answered.load(Ordering::SeqCst) > usize::try_from(id).unwrap();
        tokio::select! {
            () = until("the answer", is_answered), if sent.is_ok() => {}
            () = setup.until_given_up("user") => break,
        }
    }
    setup.until_given_up("user").await;
    let mut calm = setup.gateway.http2(Some(&setup.alice)).await;
    for _ in 0..5 {
        let response = calm.get("/api/v1/pods", &[]).await;
        assert_eq!(response.headers()["x-large"].len(), LARGE);
    }
    drop(stream);
}

// Before a client has authenticated, its network counts.
#[tokio::test]
async fn request_headers_that_never_end_are_given_up() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let setup = Setup::start(pki, backend.address);
    let mut calm = setup.gateway.http2(Some(&setup.alice)).await;
    assert_eq!(calm.get("/api", &[]).await.status(), StatusCode::OK);
    let begin = [frame(HEADERS, 0, 1, &frames::header_block("GET", "/api")), endless_block(1, 60)].concat();
    let mut ended = Vec::new();
    for _ in 0..6 {
        let mut stream = setup.gateway.frames(None, 65_535).await;
        in_time(stream.write_all(&begin)).await.unwrap();
        ended.push(tokio::spawn(async move { stream.read_to_end(&mut Vec::new()).await.is_ok() }));
    }
    setup.until_given_up("network").await;
    until("the end of a connection", || ended.iter().any(tokio::task::JoinHandle::is_finished)).await;
    assert_eq!(calm.get("/api", &[]).await.status(), StatusCode::OK);
    assert_eq!(setup.resets("user").await, 0);
}

/// CONTINUATION frames of a header block that does not end: one field, whose value would be longer.
fn endless_block(stream: u32, count: usize) -> Vec<u8> {
    // RFC 7541: a literal with a new name, and a value of 16 MiB.
    let field = frame(CONTINUATION, 0, stream, &[0x40, 1, b'x', 0x7f, 0x81, 0xff, 0xff, 0x07]);
    [field, frame(CONTINUATION, 0, stream, &[b'x'; 16_384]).repeat(count)].concat()
}

#[tokio::test]
async fn response_headers_that_never_end_are_given_up_for_the_tenant() {
    let pki = Pki::new();
    let begun = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&begun);
    let flood = frames::backend(&pki, &[], move |_| {
        let count = Arc::clone(&count);
        move |kind, id, _| {
            if kind != HEADERS {
                return Vec::new();
            }
            count.fetch_add(1, Ordering::SeqCst);
            [frame(HEADERS, 0, id, &[frames::STATUS_200]), endless_block(id, 3)].concat()
        }
    })
    .await;
    let backend = FakeBackend::plain(&pki).await;
    let management = Management::start(&pki).await;
    let users: Vec<String> = (0..10).map(|user| format!("token-{user},user-{user},{user}\n")).collect();
    management.put(
        "flood",
        &[("value", &inline_at(&pki, flood)), ("cluster", DOCUMENT), ("tokens", &users.concat())],
    );
    let calm =
        [("value", &*inline_at(&pki, backend.address)), ("cluster", DOCUMENT), ("tokens", "two,carol,7\n")];
    management.put("calm", &calm);
    let mut flags = management_flags(&pki, management.server.address);
    // A block of more frames ends its connection.
    flags.push(format!("--max-buffered-bytes={}", LIMIT / 16));
    let gateway = Gateway::with(flags);
    for name in ["flood", "calm"] {
        trusted(&gateway, name).await;
    }
    let mallory = pki.clients.leaf().cn("mallory").issue();
    let setup = Setup { alice: pki.clients.leaf().cn("alice").issue(), mallory, gateway, pki };
    let mut waiting = Vec::new();
    for user in 0..10 {
        let mut client = setup.gateway.http2(None).await;
        waiting.push(tokio::spawn(async move {
            let headers = [("authorization", &*format!("Bearer token-{user}"))];
            client.get("/clusters/flood/api/v1/namespaces/n/pods/p/log?follow=true", &headers).await.status()
        }));
    }
    setup.until_given_up("tenant").await;
    let mut client = Client::connect(&setup.gateway, true, None).await;
    let code = client.code_at("/clusters/calm/api", &[("authorization", "Bearer two")]).await;
    assert_eq!(code, StatusCode::OK);
    assert!(begun.load(Ordering::SeqCst) >= 3 && setup.pki.directory.path().exists());
    let ended = || waiting.iter().any(tokio::task::JoinHandle::is_finished);
    until("the end of a request", ended).await;
}
