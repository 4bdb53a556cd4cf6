//! Clients that send or read slowly, or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use testkit::body::{endless, whole};
use testkit::frames::{
    self, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, frame, read_frame, request, window_update,
};
use testkit::wire::{head, is_held};
use testkit::{BoxedBody, BoxedError, Gateway, Pki, ResponseFuture, flags, full, in_time, text, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::GatewayWithBystanders;
use crate::gateway::InProcess as _;

/// Sends a byte at intervals until the gateway closes the connection.
async fn drip(stream: &mut TlsStream<TcpStream>) {
    let (mut read, mut write) = tokio::io::split(stream);
    let dripping = async {
        while write.write_all(b"x").await.is_ok() {
            write.flush().await.ok();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let mut rest = Vec::new();
    let ended = async { read.read_to_end(&mut rest).await };
    in_time(async {
        tokio::select! {
            () = dripping => {}
            _ = ended => {}
        }
    })
    .await;
}

fn ok() -> ResponseFuture {
    Box::pin(async { Response::new(full("ok")) })
}

// Go: net/http Server.ReadHeaderTimeout starts at the first byte of a request; further bytes do not extend it.
#[tokio::test]
async fn a_slowly_sent_header_ends_its_connection() {
    for first in [true, false] {
        let limit = |limits: &mut portcullis::internal::ClientLimits| {
            // It applies to the well-behaved clients too, which may be slow on a busy machine.
            limits.header_timeout = Duration::from_secs(2);
        };
        let setup = GatewayWithBystanders::with(&[], limit, |_| ok()).await;
        let mut client = setup.gateway.tls(b"http/1.1", Some(&setup.alice)).await;
        if !first {
            client.write_all(b"GET /api HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
            assert!(head(&mut client).await.unwrap().starts_with("HTTP/1.1 200 "));
            let mut body = [0; 2];
            in_time(client.read_exact(&mut body)).await.unwrap();
        }
        client.write_all(b"GET /api HTTP/1.1\r\nHost: a\r\nx: ").await.unwrap();
        drip(&mut client).await;
        setup.others.were_undisturbed().await;
    }
}

#[tokio::test]
async fn a_slowly_sent_body_is_limited_by_the_request_timeout() {
    let (bodies_read, mut bodies) = tokio::sync::mpsc::unbounded_channel();
    let answer = move |request: http::Request<hyper::body::Incoming>| -> ResponseFuture {
        let bodies_read = bodies_read.clone();
        Box::pin(async move {
            let reading = tokio::spawn(async move {
                bodies_read.send(whole(request.version(), request.into_body()).await).unwrap();
            });
            reading.await.unwrap();
            Response::new(full("ok"))
        })
    };
    let setup = GatewayWithBystanders::with(&[], |_| {}, answer).await;
    let mut client = setup.gateway.tls(b"http/1.1", Some(&setup.alice)).await;
    let post = "POST /api/v1/namespaces/n/configmaps?timeout=2s HTTP/1.1\r\nHost: a\r\n\
        Content-Length: 1000000\r\n\r\n";
    client.write_all(post.as_bytes()).await.unwrap();
    let (mut read, mut write) = tokio::io::split(client);
    let dripping = tokio::spawn(async move {
        while write.write_all(b"x").await.is_ok() && write.flush().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(head(&mut read).await.unwrap().starts_with("HTTP/1.1 504 "));
    let body = in_time(bodies.recv()).await.unwrap();
    assert!(body.is_err(), "a truncated body reached the backend as a complete one");
    in_time(dripping).await.unwrap();
    setup.others.were_undisturbed().await;
}

#[tokio::test]
async fn a_client_that_never_reads_is_disconnected_after_the_request_timeout() {
    let limit = |limits: &mut portcullis::internal::ClientLimits| {
        limits.header_timeout = Duration::from_secs(2);
        limits.idle_timeout = Duration::from_secs(2);
    };
    let setup =
        GatewayWithBystanders::with(&[], limit, |_| Box::pin(async { Response::new(endless().0) })).await;
    let path = "/api/v1/pods?timeout=2s";
    let mut http1 = setup.gateway.tls(b"http/1.1", Some(&setup.alice)).await;
    http1.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await.unwrap();
    assert!(head(&mut http1).await.unwrap().starts_with("HTTP/1.1 200 "));
    // An empty window, and one larger than the kernel's buffers.
    let mut no_window = setup.gateway.frames(Some(&setup.alice), 0).await;
    no_window.write_all(&request(1, path)).await.unwrap();
    let mut not_read = setup.gateway.frames(Some(&setup.alice), (1 << 31) - 1).await;
    let all = [window_update(0, (1 << 31) - 65_536), request(1, path)].concat();
    not_read.write_all(&all).await.unwrap();
    while in_time(read_frame(&mut no_window)).await.unwrap().0 != HEADERS {}
    while in_time(read_frame(&mut not_read)).await.unwrap().0 != HEADERS {}
    setup.gateway.until_counted("apiserver_request_total{code=\"200\",verb=\"LIST\"} 3").await;
    for (name, client) in [("HTTP/1.1", &http1), ("no window", &no_window), ("not read", &not_read)] {
        let (local, remote) = (setup.gateway.address.port(), client.get_ref().0.local_addr().unwrap().port());
        until(&format!("the end of the connection, {name}"), || !is_held(local, remote)).await;
    }
    setup.others.were_undisturbed().await;
}

/// An endless body that counts the bytes that were read from it.
fn counted(taken: &Arc<AtomicUsize>) -> BoxedBody {
    let taken = Arc::clone(taken);
    let stream = unfold(taken, |taken| async move {
        taken.fetch_add(16_384, Ordering::Relaxed);
        tokio::task::yield_now().await;
        Some((Ok::<_, BoxedError>(Frame::data(Bytes::from(vec![b'x'; 16_384]))), taken))
    });
    StreamBody::new(stream).boxed()
}

/// Waits until reading stops, and returns the number of bytes read.
async fn settled(taken: &AtomicUsize) -> usize {
    let mut before = usize::MAX;
    in_time(async {
        while before != taken.load(Ordering::Relaxed) {
            before = taken.load(Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    })
    .await;
    before
}

#[tokio::test]
async fn unread_watches_are_buffered_within_bounds_and_block_no_other_request() {
    let taken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&taken);
    let setup = GatewayWithBystanders::with(
        &[],
        |_| {},
        move |_| {
            let body = counted(&count);
            Box::pin(async { Response::new(body) })
        },
    )
    .await;
    let watch = "/api/v1/pods?watch=true";
    // Streams of one connection, with the default window, and with an unbounded window on an unread connection.
    for (name, window, connection_window, streams, bound) in [
        ("a common window", 65_535, 0, 90, 256 << 10),
        ("no measure", (1 << 31) - 1, (1 << 31) - 65_536, 90, 320 << 10),
    ] {
        taken.store(0, Ordering::Relaxed);
        let mut client = setup.gateway.frames(Some(&setup.alice), window).await;
        let mut all = Vec::new();
        if connection_window > 0 {
            all.extend(window_update(0, connection_window));
        }
        for stream in 0..streams {
            all.extend(request(2 * stream + 1, watch));
        }
        client.write_all(&all).await.unwrap();
        until("the first bytes", || taken.load(Ordering::Relaxed) > 0).await;
        let each = settled(&taken).await / usize::try_from(streams).unwrap();
        assert!(each < bound, "{name}: {each} bytes for each stream");
        // A stream on another connection to the gateway, which the client reads, continues.
        let mut reader = setup.gateway.http2(Some(&setup.alice)).await;
        let mut live = reader.get(watch, &[]).await.into_body();
        for _ in 0..200 {
            in_time(live.frame()).await.unwrap().unwrap();
        }
        setup.others.go_on().await;
    }
    // One watch per connection; the bound includes the kernel's buffers.
    taken.store(0, Ordering::Relaxed);
    let mut clients = Vec::new();
    for _ in 0..20 {
        let mut client = setup.gateway.http1(Some(&setup.alice)).await;
        let response = client.get(watch, &[]).await;
        clients.push((client, response));
    }
    let each = settled(&taken).await / clients.len();
    assert!(each < 12 << 20, "{each} bytes for each connection");
    let response = setup.gateway.http1(Some(&setup.alice)).await.get(super::CALM, &[]).await;
    assert_eq!(response.status(), StatusCode::OK);
    text(response).await;
    setup.others.were_undisturbed().await;
}

// The log of a pod that writes single bytes consists of frames that cost far more than their content. h2 closes the
// connection when too many of them are queued.
#[tokio::test]
async fn unread_small_frames_of_a_pod_log_end_no_watch() {
    let pki = Pki::new();
    let (requests_seen, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (requests_seen, Arc::clone(&ended));
    let address = frames::backend(&pki, &[], move |_| {
        let (requests_seen, ended) = counts.clone();
        move |kind, id, _: &[u8]| {
            ended.fetch_add(usize::from(kind == GOAWAY), Ordering::SeqCst);
            let begin = frame(HEADERS, END_HEADERS, id, &[0x88]);
            match (kind, requests_seen.fetch_add(usize::from(kind == HEADERS), Ordering::SeqCst)) {
                (HEADERS, 0) => begin,
                (HEADERS, 1) => [begin, frame(DATA, 0, id, b"x").repeat(60_000)].concat(),
                (HEADERS, 2) => [begin, frame(DATA, END_STREAM, 1, b"still there")].concat(),
                _ => Vec::new(),
            }
        }
    })
    .await;
    let gateway = Gateway::with(flags(&pki, address));
    let alice = pki.clients.leaf().cn("alice").issue();
    let bob = pki.clients.leaf().cn("bob").issue();
    let watch = "/api/v1/pods?watch=true";
    let mut patient = gateway.http1(Some(&bob)).await;
    let events = patient.get(watch, &[]).await;
    let mut stalled = gateway.frames(Some(&alice), 0).await;
    stalled.write_all(&request(1, "/api/v1/namespaces/n/pods/p/log?follow=true")).await.unwrap();
    until("the end of the pod log's connection", || ended.load(Ordering::SeqCst) == 1).await;
    let mut other = gateway.http1(Some(&bob)).await;
    let _other = other.get(watch, &[]).await;
    assert_eq!(text(events).await, "still there");
}
