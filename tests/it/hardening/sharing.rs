//! Backend connections that clients share: no request or response of one client ends such a connection.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use testkit::body::{Frames, fed, whole};
use testkit::frames::{self, CONTINUATION, END_HEADERS, HEADERS, frame, ok};
use testkit::large_headers::{forms, longest, with_trailers};
use testkit::{
    BoxedBody, Gateway, Http2, Pki, ResponseFuture, empty, flags, full, get, in_time, status, text, until,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::GatewayWithBystanders;
use crate::gateway::InProcess as _;

const WATCH: &str = "/api/v1/pods?watch=true";
/// A path that the backend forbids to the attacker.
const FORBIDDEN: &str = "/api/v1/secrets?watch=1";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// A setup with another client's watches, whose events the test sends.
struct SharedWatches {
    setup: GatewayWithBystanders,
    feeds: Arc<Mutex<Vec<Frames>>>,
    watches: Vec<Response<Incoming>>,
    _watcher: Http2,
}

impl SharedWatches {
    async fn start(count: usize) -> Self {
        let feeds = Arc::new(Mutex::new(Vec::new()));
        let fed_by = Arc::clone(&feeds);
        let answer = move |request: Request<Incoming>| -> ResponseFuture {
            match request.uri().path_and_query().map(http::uri::PathAndQuery::as_str) {
                Some(WATCH) => {
                    let (feed, body, _) = fed();
                    fed_by.lock().unwrap().push(feed);
                    Box::pin(async { Response::new(body) })
                }
                Some(REVIEWS) => Box::pin(async {
                    whole(request.version(), request.into_body()).await.ok();
                    Response::new(full("reviewed"))
                }),
                _ => Box::pin(async { Response::builder().status(403).body(full("no")).unwrap() }),
            }
        };
        let setup = GatewayWithBystanders::with(&[], |_| {}, answer).await;
        let bob = setup.pki.clients.leaf().cn("bob").issue();
        let mut watcher = setup.gateway.http2(Some(&bob)).await;
        let mut watches = Vec::new();
        for _ in 0..count {
            watches.push(watcher.get(WATCH, &[]).await);
        }
        Self { setup, feeds, watches, _watcher: watcher }
    }

    /// Checks that every watch delivers the next event, and that no connection was closed.
    async fn are_undisturbed(&mut self, after: &str) {
        for feed in self.feeds.lock().unwrap().iter() {
            feed.send(Frame::data(Bytes::from_static(b"event")))
                .unwrap_or_else(|_| panic!("{after}: a watch has ended"));
        }
        for watch in &mut self.watches {
            let event = in_time(watch.body_mut().frame()).await;
            let event = event.and_then(Result::ok).and_then(|frame| frame.into_data().ok());
            assert_eq!(event.as_deref(), Some(&b"event"[..]), "{after}");
        }
        assert_eq!(self.setup.backend.ended(), 0, "{after}");
        self.setup.others.go_on().await;
    }
}

// Go's server closes the connection for a header that is too large, or invalid and continued in another frame.
#[tokio::test]
async fn no_header_of_one_client_ends_the_watches_of_another() {
    let mut watched = SharedWatches::start(4).await;
    for (name, request, expected) in forms(FORBIDDEN) {
        let mut client = watched.setup.gateway.tls(b"http/1.1", Some(&watched.setup.alice)).await;
        in_time(client.write_all(&request)).await.unwrap();
        let mut answer = [0; 12];
        in_time(client.read_exact(&mut answer)).await.unwrap();
        watched.are_undisturbed(name).await;
        assert_eq!(answer[9..], *expected.to_string().as_bytes(), "{name}");
    }
    watched.setup.others.were_undisturbed().await;
}

// Go's server resets the stream of an invalid header without opening it. Any further frame on that stream, such as one
// byte of a body, closes the connection, and so do trailers on a closed stream.
#[tokio::test]
async fn no_invalid_header_of_one_client_ends_the_watches_of_another() {
    let mut watched = SharedWatches::start(2).await;
    let mut client = watched.setup.gateway.http2(Some(&watched.setup.alice)).await;
    let wrong_name = |length: usize| {
        let mut request = get(FORBIDDEN, &[]);
        let name = HeaderName::from_lowercase(b"x\"y").unwrap();
        request.headers_mut().insert(name, HeaderValue::from_static("1"));
        request.headers_mut().insert("z", HeaderValue::from_bytes(&longest(length)).unwrap());
        request
    };
    let targets = [
        ("a user in the authority", get(FORBIDDEN, &[("host", "u@h")])),
        ("no path", Request::get("https://h?watch=1").body(empty()).unwrap()),
    ];
    let mut cases: Vec<(String, Request<BoxedBody>)> = [10, 60_000, 200_000]
        .map(|length| (format!("a wrong name and {length} bytes"), wrong_name(length)))
        .into();
    cases.extend(targets.map(|(name, request)| (name.to_owned(), request)));
    for (name, request) in cases {
        let (head, _) = request.into_parts();
        for has_body in [false, true] {
            let body = if has_body { with_trailers("/", false).into_body() } else { empty() };
            let response = client.send(Request::from_parts(head.clone(), body)).await.unwrap();
            watched.are_undisturbed(&name).await;
            assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{name}");
        }
    }
}

#[tokio::test]
async fn no_trailers_of_one_client_end_the_watches_or_the_writes_of_another() {
    let mut watched = SharedWatches::start(2).await;
    let mut client = watched.setup.gateway.http2(Some(&watched.setup.alice)).await;
    // One response is sent after the body was read, one at once.
    for (path, expected) in [(REVIEWS, StatusCode::OK), (FORBIDDEN, StatusCode::FORBIDDEN)] {
        for large in [false, true] {
            let response = client.send(with_trailers(path, large)).await.unwrap();
            watched.are_undisturbed("trailers").await;
            assert_eq!(response.status(), expected);
        }
    }
    watched.setup.others.were_undisturbed().await;
}

/// Too large for a shared connection, and an eighth of a user's quota for such headers.
const LARGE: usize = 1_000_000;

#[tokio::test]
async fn a_read_with_a_large_header_is_not_retried_when_its_connection_breaks() {
    let sent = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&sent);
    let setup = GatewayWithBystanders::with(
        &[],
        |_| {},
        move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            // Drops the connection.
            Box::pin(async { std::panic::resume_unwind(Box::new(())) })
        },
    )
    .await;
    let mut client = setup.gateway.http2(Some(&setup.alice)).await;
    let large = "x".repeat(LARGE);
    let response = client.get("/api/v1/pods", &[("x-large", &large)]).await;
    assert_eq!(status(response).await.0, StatusCode::BAD_GATEWAY);
    assert_eq!(sent.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_client_with_many_large_headers_is_limited_to_its_share_of_connections() {
    let open = Arc::new(Mutex::new(Vec::new()));
    let opened = Arc::clone(&open);
    let setup = GatewayWithBystanders::with(
        &[],
        |_| {},
        move |_| {
            let (feed, body, _) = fed();
            opened.lock().unwrap().push(feed);
            Box::pin(async { Response::new(body) })
        },
    )
    .await;
    let mut client = setup.gateway.http2(Some(&setup.alice)).await;
    let large = "x".repeat(LARGE);
    let mut watches = Vec::new();
    for _ in 0..8 {
        let watch = client.get(WATCH, &[("x-large", &large)]).await;
        assert_eq!(watch.status(), StatusCode::OK);
        watches.push(watch);
    }
    let refused = client.get(WATCH, &[("x-large", &large)]).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    // Another client's requests are answered, and so are those with small headers.
    let bob = setup.pki.clients.leaf().cn("bob").issue();
    let mut other = setup.gateway.http2(Some(&bob)).await;
    assert_eq!(other.get(WATCH, &[("x-large", &large)]).await.status(), StatusCode::OK);
    assert_eq!(client.get(WATCH, &[]).await.status(), StatusCode::OK);
    // A request that ends frees its part of the quota.
    drop(watches.pop());
    assert_eq!(client.get(WATCH, &[("x-large", &large)]).await.status(), StatusCode::OK);
    setup.others.were_undisturbed().await;
}

/// A response with a header name so long that h2 closes the connection. Go sends names of any length.
fn unreadable(id: u32) -> Vec<u8> {
    // RFC 7541: status 200, then a literal whose name has 70,000 bytes.
    let mut block = vec![0x88, 0x00, 0x7f, 0xf1, 0xa1, 0x04];
    block.extend(vec![b'n'; 70_000]);
    block.extend([1, b'v']);
    let mut parts = block.chunks(16_384).peekable();
    let mut bytes = frame(HEADERS, 0, id, parts.next().unwrap());
    while let Some(part) = parts.next() {
        let flags = if parts.peek().is_none() { END_HEADERS } else { 0 };
        bytes.extend(frame(CONTINUATION, flags, id, part));
    }
    bytes
}

// Pods, nodes and aggregated API servers control their responses, which kube-apiserver relays.
#[tokio::test]
async fn a_relayed_response_ends_no_request_of_another_client() {
    let evil = [
        "/api/v1/namespaces/n/services/evil/proxy/",
        "/api/v1/namespaces/n/pods/evil/log?follow=true",
        "/apis/evil.example.com/v1/things",
        "/apis/evil.example.com/v1/things?watch=1",
        "/apis/evil.example.com/v1",
        "/openapi/v3/apis/evil.example.com/v1",
    ];
    let honest_paths = ["/api/v1/namespaces/n/pods/one/log?follow=true", "/api/v1/pods", WATCH];
    for (attack, honest) in evil.into_iter().flat_map(|attack| honest_paths.map(|honest| (attack, honest))) {
        let pki = Pki::new();
        let (requests, by) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (counted, noted) = (Arc::clone(&requests), Arc::clone(&by));
        let address = frames::backend(&pki, &[], move |number| {
            let (count, by) = (Arc::clone(&counted), Arc::clone(&noted));
            move |kind, id, _| {
                if kind != HEADERS {
                    return Vec::new();
                }
                by.lock().unwrap().push(number);
                match count.fetch_add(1, Ordering::SeqCst) {
                    0 => Vec::new(),
                    1 => unreadable(id),
                    _ => [ok(1), ok(id)].concat(),
                }
            }
        })
        .await;
        let gateway = Gateway::with(flags(&pki, address));
        let bob = pki.clients.leaf().cn("bob").issue();
        let mut client = gateway.http1(Some(&bob)).await;
        let waiting = tokio::spawn(async move { client.get(honest, &[]).await.status() });
        until("bob's request", || requests.load(Ordering::SeqCst) == 1).await;
        let mallory = pki.clients.leaf().cn("mallory").issue();
        let mut client = gateway.http1(Some(&mallory)).await;
        let request = Request::builder().method(Method::POST).uri(attack).body(empty()).unwrap();
        let code = client.send(request).await.unwrap().status();
        assert_eq!(code, StatusCode::BAD_GATEWAY, "{attack}");
        let again = gateway.http1(Some(&bob)).await.get(honest, &[]).await;
        assert_eq!(again.status(), StatusCode::OK, "{attack}, {honest}");
        assert_eq!(in_time(waiting).await.unwrap(), StatusCode::OK, "{attack}, {honest}");
        let by = by.lock().unwrap();
        assert_eq!(by[0], by[2], "{attack}: bob's connection was closed, {honest}");
    }
}

#[tokio::test]
async fn relayed_requests_of_one_client_share_a_connection() {
    let pki = Pki::new();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let address = frames::backend(&pki, &[], move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        |kind, id, _: &[u8]| if kind == HEADERS { ok(id) } else { Vec::new() }
    })
    .await;
    let gateway = Gateway::with(flags(&pki, address));
    for (name, expected) in [("alice", 1), ("bob", 2), ("alice", 2)] {
        let client = pki.clients.leaf().cn(name).issue();
        let mut client = gateway.http2(Some(&client)).await;
        for _ in 0..5 {
            text(client.get("/api/v1/namespaces/n/pods/one/log", &[]).await).await;
        }
        assert_eq!(connections.load(Ordering::SeqCst), expected, "{name}");
    }
}
