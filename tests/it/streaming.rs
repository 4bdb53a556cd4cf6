//! Bodies, watches, upgrades and the ends of connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::support::{Backend, BoxedBody, Gateway, Pki, empty, full, get, soon, text, until};

const H2: &[&[u8]] = &[b"h2", b"http/1.1"];
const H1: &[&[u8]] = &[b"http/1.1"];
const WATCH: &str = "/api/v1/pods?watch=true";

type Frames = mpsc::UnboundedSender<Frame<Bytes>>;

/// A body that the test feeds; the flag is set when the receiver is gone.
fn fed() -> (Frames, BoxedBody, Arc<AtomicBool>) {
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let (sender, receiver) = mpsc::unbounded_channel();
    let gone = Arc::new(AtomicBool::new(false));
    let flag = Flag(Arc::clone(&gone));
    let stream = futures_util::stream::unfold((receiver, flag), |(mut receiver, flag)| async move {
        let frame = receiver.recv().await?;
        Some((Ok::<_, Box<dyn std::error::Error + Send + Sync>>(frame), (receiver, flag)))
    });
    (sender, StreamBody::new(stream).boxed_unsync_into(), gone)
}

trait IntoBoxed {
    fn boxed_unsync_into(self) -> BoxedBody;
}

impl<S> IntoBoxed for StreamBody<S>
where
    S: futures_util::Stream<Item = Result<Frame<Bytes>, Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static,
{
    fn boxed_unsync_into(self) -> BoxedBody {
        // The stream is polled by one task only; the lock lends it the `Sync` that the box asks for.
        struct Locked<B>(std::sync::Mutex<std::pin::Pin<Box<B>>>);
        impl<B: http_body::Body> http_body::Body for Locked<B> {
            type Data = B::Data;
            type Error = B::Error;
            fn poll_frame(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Result<Frame<B::Data>, B::Error>>> {
                self.0.lock().unwrap().as_mut().poll_frame(cx)
            }
        }
        Locked(std::sync::Mutex::new(Box::pin(self))).boxed()
    }
}

/// A backend that gives each watch a body that the test feeds.
async fn watching(
    pki: &Pki,
    alpn: &'static [&'static [u8]],
) -> (Backend, mpsc::UnboundedReceiver<(Frames, Arc<AtomicBool>)>) {
    let (started, watches) = mpsc::unbounded_channel();
    let backend = Backend::start(pki, alpn, move |_| {
        let (sender, body, gone) = fed();
        started.send((sender, gone)).unwrap();
        Box::pin(async { Response::builder().header("content-type", "application/json").body(body).unwrap() })
    })
    .await;
    (backend, watches)
}

#[tokio::test]
async fn a_watch_shows_its_headers_first_then_each_event_and_ends_with_its_client() {
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
                "headers come before any event"
            );
            let (events, gone) = soon(watches.recv()).await.unwrap();
            let mut body = response.into_body();
            for event in ["{\"a\":1}\n", "{\"b\":2}\n"] {
                events.send(Frame::data(Bytes::from(event))).unwrap();
                let frame = soon(body.frame()).await.unwrap().unwrap();
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
async fn a_client_that_leaves_before_the_answer_cancels_the_request() {
    for alpn in [H1, H2] {
        let pki = Pki::new();
        let cancelled = Arc::new(AtomicBool::new(false));
        let arrived = Arc::new(AtomicBool::new(false));
        let (flag, seen) = (Arc::clone(&cancelled), Arc::clone(&arrived));
        let backend = Backend::start(&pki, alpn, move |_| {
            struct OnDrop(Arc<AtomicBool>);
            impl Drop for OnDrop {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::SeqCst);
                }
            }
            let guard = OnDrop(Arc::clone(&flag));
            let seen = Arc::clone(&seen);
            Box::pin(async move {
                let _guard = guard;
                seen.store(true, Ordering::SeqCst);
                std::future::pending().await
            })
        })
        .await;
        let gateway = Gateway::start(&pki, &backend);
        let alice = pki.clients.leaf().cn("alice").issue();
        let mut client = gateway.http1(Some(&alice)).await;
        let asking = tokio::spawn(async move { client.send(get("/api", &[])).await.map(|_| client) });
        until("the request at the backend", || arrived.load(Ordering::SeqCst)).await;
        asking.abort();
        until("the cancellation", || cancelled.load(Ordering::SeqCst)).await;
    }
}

#[tokio::test]
async fn stalled_watches_do_not_stop_other_requests() {
    let pki = Pki::new();
    let (started, mut watches) = mpsc::unbounded_channel();
    let backend = Backend::start(&pki, H2, move |request: Request<_>| {
        if request.uri().query() == Some("watch=true") {
            let (sender, body, gone) = fed();
            started.send((sender, gone)).unwrap();
            return Box::pin(async { Response::new(body) });
        }
        Box::pin(async { Response::new(full(vec![b'x'; 100_000])) })
    })
    .await;
    let gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut stalled = Vec::new();
    for _ in 0..40 {
        let mut client = gateway.http1(Some(&alice)).await;
        let response = client.get(WATCH, &[]).await;
        let (events, _) = soon(watches.recv()).await.unwrap();
        // Far more than every window on the way: the reader never reads.
        for _ in 0..400 {
            events.send(Frame::data(Bytes::from(vec![b'e'; 16_384]))).unwrap();
        }
        stalled.push((client, response, events));
    }
    let mut client = gateway.http2(Some(&alice)).await;
    for _ in 0..10 {
        assert_eq!(text(client.get("/api/v1/pods", &[]).await).await.len(), 100_000);
    }
    let live = client.get(WATCH, &[]).await;
    let (events, _) = soon(watches.recv()).await.unwrap();
    events.send(Frame::data(Bytes::from_static(b"event"))).unwrap();
    assert_eq!(soon(live.into_body().frame()).await.unwrap().unwrap().into_data().unwrap(), "event");
}

#[tokio::test]
async fn bodies_and_trailers_pass_both_ways() {
    for alpn in [H1, H2] {
        let pki = Pki::new();
        let backend = Backend::start(&pki, alpn, |request: Request<hyper::body::Incoming>| {
            Box::pin(async move {
                let collected = request.into_body().collect().await.unwrap();
                let trailer = collected.trailers().and_then(|trailers| trailers.get("x-sum")).cloned();
                let (sender, body, _) = fed();
                sender.send(Frame::data(collected.to_bytes())).unwrap();
                let mut trailers = HeaderMap::new();
                trailers.insert("x-sum", trailer.unwrap_or(http::HeaderValue::from_static("none")));
                sender.send(Frame::trailers(trailers)).unwrap();
                Response::builder().header("trailer", "x-sum").body(body).unwrap()
            })
        })
        .await;
        let gateway = Gateway::start(&pki, &backend);
        let alice = pki.clients.leaf().cn("alice").issue();
        let mut client = gateway.http2(Some(&alice)).await;
        let (sender, body, _) = fed();
        let request = Request::builder()
            .method("POST")
            .uri("/api/v1/x")
            .header("te", "trailers")
            .header("trailer", "x-sum");
        let payload = vec![7_u8; 3 << 20];
        sender.send(Frame::data(Bytes::from(payload.clone()))).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", http::HeaderValue::from_static("42"));
        sender.send(Frame::trailers(trailers)).unwrap();
        drop(sender);
        let response = client.send(request.body(body).unwrap()).await.unwrap();
        let collected = soon(response.into_body().collect()).await.unwrap();
        assert_eq!(collected.trailers().unwrap()["x-sum"], "42", "{alpn:?}");
        assert_eq!(collected.to_bytes(), payload);
    }
}

fn upgrade_request(protocol: &str) -> Request<BoxedBody> {
    get(
        "/api/v1/namespaces/n/pods/p/exec?command=sh",
        &[
            ("connection", "Upgrade"),
            ("upgrade", protocol),
            ("x-remote-user", "eve"),
            ("sec-websocket-key", "AAAA"),
        ],
    )
}

/// A backend that switches to `answered` and then echoes.
async fn echoing(pki: &Pki, answered: &'static str) -> Backend {
    Backend::start(pki, H2, move |mut request: Request<hyper::body::Incoming>| {
        let upgrading = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let Ok(upgraded) = upgrading.await else { return };
            let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded));
            tokio::io::copy(&mut read, &mut write).await.ok();
            write.shutdown().await.ok();
        });
        Box::pin(async move {
            Response::builder()
                .status(StatusCode::SWITCHING_PROTOCOLS)
                .header("connection", "Upgrade")
                .header("upgrade", answered)
                .body(empty())
                .unwrap()
        })
    })
    .await
}

#[tokio::test]
async fn a_tunnel_opens_after_an_exact_101_and_carries_bytes_both_ways() {
    for protocol in ["websocket", "SPDY/3.1"] {
        let pki = Pki::new();
        let backend = echoing(&pki, protocol).await;
        let gateway = Gateway::start(&pki, &backend);
        let alice = pki.clients.leaf().cn("alice").issue();
        let mut client = gateway.http1(Some(&alice)).await;
        let response = client.send(upgrade_request(protocol)).await.unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(response.headers()["upgrade"], protocol);
        let seen = backend.take().unwrap();
        assert_eq!(seen.all("x-remote-user"), ["alice"]);
        assert_eq!(seen.all("upgrade"), [protocol]);
        let mut tunnel = TokioIo::new(soon(hyper::upgrade::on(response)).await.unwrap());
        tunnel.write_all(b"hello").await.unwrap();
        let mut echoed = [0; 5];
        soon(tunnel.read_exact(&mut echoed)).await.unwrap();
        assert_eq!(&echoed, b"hello");
        tunnel.shutdown().await.unwrap();
        assert_eq!(soon(tunnel.read(&mut echoed)).await.unwrap(), 0, "the end of one side ends the other");
    }
}

#[tokio::test]
async fn no_tunnel_without_the_101_that_was_asked_for() {
    let pki = Pki::new();
    let alice = pki.clients.leaf().cn("alice").issue();

    let other = echoing(&pki, "h2c").await;
    let gateway = Gateway::start(&pki, &other);
    let response = gateway.http1(Some(&alice)).await.send(upgrade_request("websocket")).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_GATEWAY, "another protocol");

    let refusing = Backend::start(&pki, H2, |_| {
        Box::pin(async { Response::builder().status(403).body(full("no")).unwrap() })
    })
    .await;
    let gateway = Gateway::start(&pki, &refusing);
    let mut client = gateway.http1(Some(&alice)).await;
    let response = client.send(upgrade_request("websocket")).await.unwrap();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert_eq!(text(response).await, "no", "a refusal is an answer like any other");

    // A protocol that we do not tunnel is not even asked for.
    let response = gateway.http1(Some(&alice)).await.send(upgrade_request("h2c")).await.unwrap();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    refusing.take().unwrap();
    let seen = refusing.take().unwrap();
    assert_eq!(seen.all("upgrade"), Vec::<String>::new());
    assert_eq!(seen.all("connection"), Vec::<String>::new());
}

#[tokio::test]
async fn an_anonymous_or_refused_http2_request_ends_its_connection() {
    let pki = Pki::new();
    let backend = Backend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    for headers in [&[][..], &[("authorization", "Bearer nonsense")][..]] {
        let mut client = gateway.http2(None).await;
        let response = client.get("/api", headers).await;
        assert!(!response.headers().contains_key("connection"));
        text(response).await;
        soon(client.task).await.unwrap();
    }
    // An authenticated one does not; nor does HTTP/1.1.
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut client = gateway.http2(Some(&alice)).await;
    text(client.get("/api", &[]).await).await;
    text(client.get("/api", &[]).await).await;
    let mut client = gateway.http1(None).await;
    text(client.get("/api", &[]).await).await;
    text(client.get("/api", &[]).await).await;
}

#[tokio::test]
async fn requests_in_progress_finish_after_a_signal_to_end() {
    let pki = Pki::new();
    let (backend, mut watches) = watching(&pki, H2).await;
    let mut gateway = Gateway::start(&pki, &backend);
    let alice = pki.clients.leaf().cn("alice").issue();
    let mut client = gateway.http2(Some(&alice)).await;
    let response = client.get("/api/v1/pods", &[]).await;
    let (events, _) = soon(watches.recv()).await.unwrap();
    let server = gateway.server.take().unwrap();
    let address = server.address();
    let ending = tokio::task::spawn_blocking(move || server.shut_down());
    // New connections are refused once the listener is gone, and the old one still serves its request.
    until("the end of the listener", || std::net::TcpStream::connect(address).is_err()).await;
    events.send(Frame::data(Bytes::from_static(b"done"))).unwrap();
    drop(events);
    assert_eq!(text(response).await, "done");
    soon(ending).await.unwrap();
}
