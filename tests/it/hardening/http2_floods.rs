//! HTTP/2 clients that send frames which cost the gateway or the backend more than the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use std::time::Duration;

use http::{Response, StatusCode};
use portcullis::internal::ClientLimits;
use testkit::frames::{
    self, CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, GOAWAY, HEADERS, PING,
    PRIORITY, PROTOCOL_ERROR, RST_STREAM, SETTINGS, frame, header_block, ok, read_frame, request, reset,
    window_update,
};
use testkit::wire::is_held;
use testkit::{FakeBackend, Gateway, H2, Pki, ResponseFuture, flags, full, get, in_time, until};
use tokio::io::{AsyncRead, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use super::GatewayWithBystanders;
use crate::gateway::InProcess as _;

// The response to a cancelled request may already be in flight. h2 counts its frames as errors of the backend once it
// has forgotten the stream, and closes a connection after 1024 of them.
#[tokio::test]
async fn responses_to_cancelled_requests_do_not_end_the_shared_connection() {
    let pki = Pki::new();
    let (requests_seen, cancelled) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let release = Arc::new(AtomicBool::new(false));
    let counts = (Arc::clone(&requests_seen), Arc::clone(&cancelled), Arc::clone(&release));
    let address = frames::backend(&pki, &[], move |_| {
        let (requests_seen, cancelled, release) = counts.clone();
        move |kind, id, payload| match kind {
            HEADERS if release.load(Ordering::SeqCst) => [ok(1), ok(id)].concat(),
            HEADERS => {
                requests_seen.fetch_add(1, Ordering::SeqCst);
                Vec::new()
            }
            RST_STREAM if payload == CANCEL.to_be_bytes() => {
                cancelled.fetch_add(1, Ordering::SeqCst);
                ok(id)
            }
            _ => Vec::new(),
        }
    })
    .await;
    let gateway = Gateway::with(flags(&pki, address));
    let alice = pki.clients.leaf().cn("alice").issue();
    let bob = pki.clients.leaf().cn("bob").issue();
    let mut patient = gateway.http1(Some(&bob)).await;
    let waiting = tokio::spawn(async move { patient.get("/api/v1/pods", &[]).await.status() });
    until("bob's request", || requests_seen.load(Ordering::SeqCst) == 1).await;
    for round in 0..30 {
        let mut client = gateway.frames(Some(&alice), 65_535).await;
        let ids = (0..50).map(|index| 2 * index + 1);
        let requests: Vec<_> = ids.clone().flat_map(|id| request(id, "/api/v1/pods")).collect();
        in_time(client.write_all(&requests)).await.unwrap();
        until("alice's requests", || requests_seen.load(Ordering::SeqCst) == 1 + 50 * (round + 1)).await;
        let resets: Vec<_> = ids.flat_map(|id| reset(id, CANCEL)).collect();
        in_time(client.write_all(&resets)).await.unwrap();
        until("their end", || cancelled.load(Ordering::SeqCst) == 50 * (round + 1)).await;
    }
    release.store(true, Ordering::SeqCst);
    let last = gateway.http1(Some(&alice)).await.get("/api/v1/pods", &[]).await;
    assert_eq!(last.status(), StatusCode::OK);
    assert_eq!(in_time(waiting).await.unwrap(), StatusCode::OK, "bob's request failed with the connection");
    let again = gateway.http1(Some(&bob)).await.send(get("/api/v1/pods", &[])).await.unwrap();
    assert_eq!(again.status(), StatusCode::OK);
}

/// A backend that never responds, and counts the requests.
async fn unanswered(extra: &[&str]) -> (GatewayWithBystanders, Arc<AtomicU32>) {
    let reached = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&reached);
    let answer = move |_| -> ResponseFuture {
        count.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::pending())
    };
    (GatewayWithBystanders::with(extra, |_| {}, answer).await, reached)
}

// CVE-2023-44487 (rapid reset): each reset request costs the backend work, but does not count against the client's
// streams.
#[tokio::test]
async fn a_client_that_resets_request_after_request_loses_its_connection() {
    let (setup, reached) = unanswered(&[]).await;
    let mut client = setup.gateway.frames(Some(&setup.alice), 65_535).await;
    let (local, remote) = (setup.gateway.address.port(), client.get_ref().0.local_addr().unwrap().port());
    let mut reset_count = 0;
    // The limiter regains far fewer than ten resets in the time of one round.
    while is_held(local, remote) {
        let ids = (reset_count..reset_count + 10).map(|index| 2 * index + 1);
        let requests: Vec<_> = ids.clone().flat_map(|id| request(id, "/api/v1/pods")).collect();
        client.write_all(&requests).await.ok();
        reset_count += 10;
        until("the requests at the backend", || {
            reached.load(Ordering::SeqCst) >= reset_count || !is_held(local, remote)
        })
        .await;
        let resets: Vec<_> = ids.flat_map(|id| reset(id, CANCEL)).collect();
        client.write_all(&resets).await.ok();
        assert!(reset_count < 1000, "the connection stays open");
    }
    // Twice the number of concurrent streams.
    assert!(reset_count >= 40, "only {reset_count} requests were reset");
    assert_eq!(reason_of_goaway(&mut client).await, Some(ENHANCE_YOUR_CALM));
    setup.gateway.until_counted("portcullis_reset_limit_closed_connections_total 1").await;
    setup.others.were_undisturbed().await;
}

#[tokio::test]
async fn requests_that_are_reset_at_once_do_not_reach_the_backend() {
    let (setup, reached) = unanswered(&[]).await;
    let flood = |ids: std::ops::Range<u32>| -> Vec<u8> {
        let ids = ids.map(|index| 2 * index + 1);
        ids.flat_map(|id| [request(id, "/api/v1/pods"), reset(id, CANCEL)].concat()).collect()
    };
    let mut client = setup.gateway.frames(Some(&setup.alice), 65_535).await;
    client.write_all(&flood(0..15)).await.unwrap();
    // The gateway does not parse the targets of reset requests.
    setup.gateway.until_counted("apiserver_request_total{code=\"499\",verb=\"other\"} 15").await;
    assert_eq!(reached.load(Ordering::SeqCst), 0);
    // h2 closes a connection with ENHANCE_YOUR_CALM after more than 20 resets of requests that were not accepted yet.
    client.write_all(&flood(15..2000)).await.ok();
    let goaway = loop {
        let (kind, _, payload) = in_time(read_frame(&mut client)).await.unwrap();
        if kind == GOAWAY {
            break payload;
        }
    };
    assert_eq!(goaway[4..8], ENHANCE_YOUR_CALM.to_be_bytes());
    assert!(reached.load(Ordering::SeqCst) < 100);
    setup.others.were_undisturbed().await;
}

// Their tasks would take the thread until each of them has been polled.
#[tokio::test]
async fn of_the_requests_that_come_together_one_begins_at_a_time() {
    let pki = Pki::new();
    let backend = FakeBackend::start(&pki, H2, |_| Box::pin(async { Response::new(full("ok")) })).await;
    let gateway = Gateway::with(flags(&pki, backend.address));
    let [alice, bob] = ["alice", "bob"].map(|name| pki.clients.leaf().cn(name).issue());
    let burst: Vec<_> = (0..100).flat_map(|index| request(2 * index + 1, "/api/v1/pods")).collect();
    let mut positions = Vec::new();
    // Both arrive before the thread looks, or the second one after the burst, if the machine is slow.
    for _ in 0..20 {
        let mut many = gateway.frames(Some(&alice), 65_535).await;
        let mut one = gateway.frames(Some(&bob), 65_535).await;
        many.write_all(&burst).await.unwrap();
        one.write_all(&request(1, "/api/v1/nodes")).await.unwrap();
        let mut paths = Vec::new();
        until("all requests", || {
            paths.extend(std::iter::from_fn(|| backend.take()).map(|request| request.target));
            paths.len() > 100
        })
        .await;
        let position = paths.iter().position(|path| path == "/api/v1/nodes").unwrap();
        if (1..70).contains(&position) {
            return;
        }
        positions.push(position);
    }
    panic!("after so many of the burst: {positions:?}");
}

// A client may cancel all that it has sent, also before the gateway has begun it.
#[tokio::test]
async fn a_client_that_cancels_a_burst_keeps_its_connection() {
    let (setup, reached) = unanswered(&[]).await;
    let mut client = setup.gateway.frames(Some(&setup.alice), 65_535).await;
    let ids = (0..100).map(|index| 2 * index + 1);
    let requests: Vec<_> = ids.clone().flat_map(|id| request(id, "/api/v1/pods")).collect();
    in_time(client.write_all(&requests)).await.unwrap();
    until("the first of them", || reached.load(Ordering::SeqCst) > 0).await;
    let resets: Vec<_> = ids.flat_map(|id| reset(id, CANCEL)).collect();
    in_time(client.write_all(&resets)).await.unwrap();
    in_time(client.write_all(&frame(PING, 0, 0, &[7; 8]))).await.unwrap();
    loop {
        let (kind, _, payload) = in_time(read_frame(&mut client)).await.unwrap();
        assert_ne!(kind, GOAWAY, "{payload:?}");
        if kind == PING && payload == [7; 8] {
            break;
        }
    }
}

/// Reads until the connection ends; returns the error code of a GOAWAY.
async fn reason_of_goaway(client: &mut (impl AsyncRead + Unpin)) -> Option<u32> {
    let mut reason = None;
    while let Ok((kind, _, payload)) = in_time(read_frame(client)).await {
        if kind == GOAWAY {
            reason = Some(u32::from_be_bytes([payload[4], payload[5], payload[6], payload[7]]));
        }
    }
    reason
}

/// The first frames, and the frame that is then repeated.
type Flood = (Vec<u8>, Vec<u8>);

fn post(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &header_block("POST", "/api/v1/x"))
}

/// Sends frames until the connection ends, while reading. Returns the error code of the gateway's GOAWAY.
async fn flood(client: TlsStream<TcpStream>, (first, again): Flood) -> Option<u32> {
    let (mut read, mut write) = tokio::io::split(client);
    let many = again.repeat((16 << 10) / again.len());
    let sending = tokio::spawn(async move {
        write.write_all(&first).await.ok();
        while write.write_all(&many).await.is_ok() {}
    });
    let reason = reason_of_goaway(&mut read).await;
    in_time(sending).await.unwrap();
    reason
}

#[tokio::test]
async fn floods_of_frames_end_only_their_own_connection() {
    let calm = Some(ENHANCE_YOUR_CALM);
    let floods: [(&str, Flood, Option<u32>); 9] = [
        (
            "CONTINUATION",
            (frame(HEADERS, 0, 1, &header_block("GET", "/api")), frame(CONTINUATION, 0, 1, b"")),
            calm,
        ),
        ("empty DATA", (post(1), frame(DATA, 0, 1, b"")), calm),
        ("trailers that do not end", (post(1), frame(HEADERS, END_HEADERS, 1, b"")), Some(PROTOCOL_ERROR)),
        ("malformed requests", (Vec::new(), Vec::new()), calm),
        // Answered or free frames are accepted until the idle timeout for connections without a request.
        ("PING", (Vec::new(), frame(PING, 0, 0, b"12345678")), None),
        ("SETTINGS", (Vec::new(), frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255])), None),
        ("empty SETTINGS", (Vec::new(), frame(SETTINGS, 0, 0, b"")), None),
        ("WINDOW_UPDATE", (Vec::new(), window_update(0, 1)), None),
        ("PRIORITY", (Vec::new(), frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 16])), None),
    ];
    let limit = |limits: &mut ClientLimits| limits.header_timeout = Duration::from_secs(2);
    let setup = GatewayWithBystanders::with(&[], limit, |_| Box::pin(std::future::pending())).await;
    for (name, (first, mut again), expected) in floods {
        if again.is_empty() {
            // Headers without a path, each on its own stream.
            again = (0..500)
                .flat_map(|id| frame(HEADERS, END_HEADERS | END_STREAM, 2 * id + 1, &[0x82]))
                .collect();
        }
        let client = setup.gateway.frames(Some(&setup.alice), 65_535).await;
        let reason = in_time(flood(client, (first, again))).await;
        assert_eq!(reason, expected, "{name}");
        setup.others.go_on().await;
    }
    setup.others.were_undisturbed().await;
}

// The gateway reads no further frames while its acknowledgements wait for the client to read them.
#[tokio::test]
async fn a_flood_stalls_while_the_client_does_not_read_acknowledgements() {
    for again in [frame(PING, 0, 0, b"12345678"), frame(SETTINGS, 0, 0, b"")] {
        let setup = GatewayWithBystanders::with(&[], |_| {}, |_| Box::pin(std::future::pending())).await;
        let mut client = setup.gateway.frames(Some(&setup.alice), 65_535).await;
        client.write_all(&request(1, "/api/v1/pods?watch=true")).await.unwrap();
        let many = again.repeat((64 << 10) / again.len());
        let mut sent = 0;
        while timeout(Duration::from_secs(1), client.write_all(&many)).await.is_ok() {
            sent += many.len();
            assert!(sent < 64 << 20, "the gateway continues to read");
        }
        setup.others.were_undisturbed().await;
    }
}
