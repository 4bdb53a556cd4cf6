//! Graceful shutdown as clients see it, step by step.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode, Version};
use http_body_util::BodyExt as _;
use testkit::body::{Frames, fed};
use testkit::frames::{DATA, read_frame, request};
use testkit::{FakeBackend, Gateway, H2, Pki, TEST_TIMEOUT, flags, full, get, in_time, text, until};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use crate::gateway::InProcess as _;

/// A gateway and a backend. The test sends the events of watches, and `/held` responds after `release`.
struct DrainedGateway {
    pki: Pki,
    backend: FakeBackend,
    gateway: Gateway,
    watches: mpsc::UnboundedReceiver<Frames>,
    release: watch::Sender<bool>,
}

impl DrainedGateway {
    async fn with(more: &[&str]) -> Self {
        let pki = Pki::new();
        let (opened, watches) = mpsc::unbounded_channel();
        let (release, released) = watch::channel(false);
        let backend = FakeBackend::start(&pki, H2, move |request: Request<hyper::body::Incoming>| {
            if request.uri().query() == Some("watch=true") {
                let (frames, body, _) = fed();
                frames.send(http_body::Frame::data("event\n".into())).unwrap();
                opened.send(frames).unwrap();
                return Box::pin(async { http::Response::new(body) });
            }
            let mut released = released.clone();
            let held = request.uri().path() == "/held";
            Box::pin(async move {
                if held {
                    released.wait_for(|released| *released).await.unwrap();
                }
                http::Response::new(full("ok"))
            })
        })
        .await;
        let mut given = flags(&pki, backend.address);
        given.extend(more.iter().map(ToString::to_string));
        let gateway = Gateway::with(given);
        gateway.checked().await;
        Self { pki, backend, gateway, watches, release }
    }

    /// Begins the shutdown; the task ends with it.
    fn shut_down(&mut self) -> tokio::task::JoinHandle<()> {
        let server = self.gateway.take_server();
        tokio::task::spawn_blocking(move || server.shut_down())
    }

    async fn refuses_connections(&self) {
        let address = self.gateway.address;
        let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
        while TcpStream::connect(address).await.is_ok() {
            assert!(tokio::time::Instant::now() < deadline, "connections are still accepted");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn watches_end_cleanly_after_the_grace_period_by_default() {
    let extra = ["--shutdown-grace-period=4s", "--shutdown-watch-termination-grace-period=0s"];
    let mut setup = DrainedGateway::with(&extra).await;
    let alice = setup.pki.clients.leaf().cn("alice").issue();
    let mut ends = Vec::new();
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let watch = if version == Version::HTTP_2 {
            let mut client = setup.gateway.http2(Some(&alice)).await;
            let response = client.get("/api/v1/pods?watch=true", &[]).await;
            (response, Some(client), None)
        } else {
            let mut client = setup.gateway.http1(Some(&alice)).await;
            let response = client.get("/api/v1/pods?watch=true", &[]).await;
            (response, None, Some(client))
        };
        let frames = in_time(setup.watches.recv()).await.unwrap();
        ends.push((version, watch, frames));
    }
    let mut held = setup.gateway.http1(Some(&alice)).await;
    let pending = tokio::spawn(async move { held.send(get("/held", &[])).await });
    setup.gateway.until_counted("apiserver_current_inflight_requests{request_kind=\"readOnly\"} 1").await;
    let ended = setup.shut_down();
    setup.refuses_connections().await;

    setup.release.send(true).unwrap();
    let response = in_time(pending).await.unwrap().unwrap();
    assert_eq!(
        response.headers()["connection"],
        "close",
        "the client must open a new connection for its next request"
    );
    assert_eq!(text(response).await, "ok");
    for (.., frames) in &ends {
        // The watch is still open.
        frames.send(http_body::Frame::data("last event\n".into())).unwrap();
    }
    for (version, (response, _http2, _http1), _frames) in ends {
        let whole = in_time(response.into_body().collect()).await;
        let whole = whole.unwrap_or_else(|error| panic!("{version:?} was cut off: {error}")).to_bytes();
        assert_eq!(whole, "event\nlast event\n", "{version:?}");
    }
    in_time(ended).await.unwrap();
}

/// Watches end without waiting for slow requests or for the grace period, since a terminating pod has 30 s.
#[tokio::test]
async fn watches_end_cleanly_while_other_requests_are_in_progress() {
    let extra = ["--shutdown-grace-period=1h", "--shutdown-watch-termination-grace-period=1s"];
    let mut setup = DrainedGateway::with(&extra).await;
    let alice = setup.pki.clients.leaf().cn("alice").issue();
    let mut held = setup.gateway.http1(Some(&alice)).await;
    let pending = tokio::spawn(async move { held.send(get("/held", &[])).await });
    setup.gateway.until_counted("apiserver_current_inflight_requests{request_kind=\"readOnly\"} 1").await;
    let mut shared = setup.gateway.http2(Some(&alice)).await;
    let mut watches = Vec::new();
    for index in 0..30 {
        // Half of the watches use separate HTTP/1.1 connections.
        let mut single = (index % 2 == 0).then_some(setup.gateway.http1(Some(&alice)).await);
        let response = match &mut single {
            Some(client) => client.get("/api/v1/pods?watch=true", &[]).await,
            None => shared.get("/api/v1/pods?watch=true", &[]).await,
        };
        watches.push((response, single, in_time(setup.watches.recv()).await.unwrap()));
    }
    let ended = setup.shut_down();
    for (response, _client, _frames) in watches {
        let version = response.version();
        let whole = in_time(response.into_body().collect()).await;
        let whole = whole.unwrap_or_else(|error| panic!("{version:?} was cut off: {error}")).to_bytes();
        assert_eq!(whole, "event\n", "{version:?}");
    }
    assert!(!ended.is_finished(), "a request is in progress");
    setup.release.send(true).unwrap();
    assert_eq!(text(in_time(pending).await.unwrap().unwrap()).await, "ok");
    in_time(ended).await.unwrap();
}

/// A client whose watch ends watches again on the same connection. It has had no `Connection: close` yet, so a connection
/// that was closed at that moment would break its next request.
#[tokio::test]
async fn a_connection_that_has_just_become_idle_stays_open_for_the_next_request() {
    let extra = ["--shutdown-grace-period=1h", "--shutdown-watch-termination-grace-period=0s"];
    let mut setup = DrainedGateway::with(&extra).await;
    let alice = setup.pki.clients.leaf().cn("alice").issue();
    let mut clients = Vec::new();
    for _ in 0..40 {
        let mut client = setup.gateway.http1(Some(&alice)).await;
        let response = client.get("/api/v1/pods?watch=true", &[]).await;
        clients.push((client, response, in_time(setup.watches.recv()).await.unwrap()));
    }
    let ended = setup.shut_down();
    setup.refuses_connections().await;
    let mut pending = Vec::new();
    // Idle connections are closed a second after the shutdown began.
    for (mut client, response, frames) in clients {
        drop(frames);
        assert_eq!(text(response).await, "event\n");
        pending.push(tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            client.send(get("/api", &[])).await.map(|response| response.headers()["connection"] == "close")
        }));
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    for pending in pending {
        assert!(in_time(pending).await.unwrap().expect("no request breaks"));
    }
    in_time(ended).await.unwrap();
}

/// A client with an incomplete header does not delay the shutdown either.
#[tokio::test]
async fn a_client_that_never_ends_its_header_does_not_delay_the_shutdown() {
    let mut setup = DrainedGateway::with(&["--shutdown-grace-period=1h"]).await;
    let mut client = setup.gateway.tls(b"http/1.1", None).await;
    client.write_all(b"G").await.unwrap();
    in_time(setup.shut_down()).await.unwrap();
}

/// A client that ignores GOAWAY does not delay the shutdown.
#[tokio::test]
async fn a_client_that_ignores_goaway_does_not_delay_the_shutdown() {
    let mut setup = DrainedGateway::with(&["--shutdown-grace-period=1h"]).await;
    let alice = setup.pki.clients.leaf().cn("alice").issue();
    let mut client = setup.gateway.frames(Some(&alice), 65_535).await;
    client.write_all(&request(1, "/api")).await.unwrap();
    loop {
        let (kind, _, payload) = in_time(read_frame(&mut client)).await.unwrap();
        if kind == DATA && payload == b"ok" {
            break;
        }
    }
    in_time(setup.shut_down()).await.unwrap();
}

#[tokio::test]
async fn during_the_shutdown_delay_requests_succeed_and_readyz_fails() {
    let mut setup = DrainedGateway::with(&["--shutdown-delay-duration=1h"]).await;
    let alice = setup.pki.clients.leaf().cn("alice").issue();
    let mut open = setup.gateway.http1(Some(&alice)).await;
    let force_shutdown = setup.gateway.server().force_shutdown();
    let ended = setup.shut_down();
    let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
    loop {
        let response = open.get("/readyz", &[]).await;
        let (code, body) = (response.status(), text(response).await);
        if code == StatusCode::INTERNAL_SERVER_ERROR {
            assert!(
                body.contains("[-]shutdown failed: reason withheld\nreadyz check failed\n")
                    || body.contains("[-]shutdown failed"),
                "{body}"
            );
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "readyz still succeeds");
    }
    for path in ["/livez", "/healthz", "/api"] {
        let response = open.get(path, &[]).await;
        assert_eq!(response.headers().get("connection"), None, "{path}");
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        text(response).await;
    }
    let response = setup.gateway.http1(Some(&alice)).await.get("/api", &[]).await;
    assert_eq!(response.status(), StatusCode::OK, "new connections are served");
    force_shutdown.trigger();
    in_time(ended).await.unwrap();
}

#[tokio::test]
async fn with_send_retry_after_new_requests_get_a_429() {
    let mut setup =
        DrainedGateway::with(&["--shutdown-send-retry-after", "--shutdown-grace-period=1h"]).await;
    let alice = setup.pki.clients.leaf().cn("alice").issue();
    let mut held = setup.gateway.http1(Some(&alice)).await;
    let pending = tokio::spawn(async move { held.send(get("/held", &[])).await });
    setup.gateway.until_counted("apiserver_current_inflight_requests{request_kind=\"readOnly\"} 1").await;
    let ended = setup.shut_down();
    let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
    let refused = loop {
        let response = setup.gateway.http1(Some(&alice)).await.get("/api", &[]).await;
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            break response;
        }
        assert!(tokio::time::Instant::now() < deadline, "new requests are still accepted");
    };
    assert_eq!(refused.headers()["retry-after"], "5");
    assert_eq!(refused.headers()["connection"], "close");
    assert_eq!(text(refused).await, "The apiserver is shutting down, please try again later.\n");
    for (path, header) in [("/livez", ("x", "y")), ("/api", ("user-agent", "kube-apiserver/v1.36"))] {
        let response = setup.gateway.http1(Some(&alice)).await.get(path, &[header]).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
    }
    setup.release.send(true).unwrap();
    assert_eq!(text(in_time(pending).await.unwrap().unwrap()).await, "ok");
    in_time(ended).await.unwrap();
    setup.refuses_connections().await;
}

/// A rolling restart on one port: a second gateway takes over, and no request fails.
#[tokio::test]
async fn a_second_gateway_takes_over_without_a_failed_request() {
    let mut setup = DrainedGateway::with(&[
        "--permit-port-sharing",
        "--shutdown-delay-duration=300ms",
        "--shutdown-grace-period=5s",
    ])
    .await;
    let port = format!("--secure-port={}", setup.gateway.address.port());
    let mut given = flags(&setup.pki, setup.backend.address);
    given.extend(["--permit-port-sharing".to_owned(), port]);
    let second = Gateway::with(given);
    second.checked().await;
    let alice = Arc::new(setup.pki.clients.leaf().cn("alice").issue());

    let gateway = Arc::new(std::mem::replace(&mut setup.gateway, Gateway::at(second.address, None)));
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let answered = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut clients = Vec::new();
    for index in 0..12 {
        let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
        let (alice, address) = (Arc::clone(&alice), second.address);
        clients.push(tokio::spawn(async move {
            let side = Gateway::at(address, None);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                if index % 2 == 0 {
                    // Go's client stops using a connection after `Connection: close`.
                    let mut client = side.http1(Some(&alice)).await;
                    for _ in 0..20 {
                        let response = client.send(get("/api", &[])).await.expect("no request fails");
                        assert_eq!(response.status(), StatusCode::OK);
                        let closes = response.headers().contains_key("connection");
                        text(response).await;
                        answered.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        if closes {
                            break;
                        }
                    }
                } else {
                    let mut client = side.http2(Some(&alice)).await;
                    for _ in 0..20 {
                        // A request that was not sent yet is sent on another connection.
                        let Ok(()) = in_time(client.sender.ready()).await else { break };
                        match client.send(get("/api", &[])).await {
                            Ok(response) => {
                                assert_eq!(response.status(), StatusCode::OK);
                                text(response).await;
                                answered.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                            }
                            Err(error) if error.is_canceled() || is_refused(&error) => break,
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                }
            }
        }));
    }
    let count = || answered.load(std::sync::atomic::Ordering::Relaxed);
    until("some requests", || count() > 200).await;
    let server = Arc::try_unwrap(gateway).ok().unwrap().take_server();
    let ended = tokio::task::spawn_blocking(move || server.shut_down());
    tokio::time::timeout(Duration::from_secs(20), ended).await.unwrap().unwrap();
    let before = count();
    until("requests to the second", || count() > before + 200).await;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for client in clients {
        in_time(client).await.unwrap();
    }
}

/// Whether the server declares that it did not process the request.
fn is_refused(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| {
        cause.is_go_away() || cause.reason() == Some(h2::Reason::REFUSED_STREAM) || cause.is_io()
    })
}
