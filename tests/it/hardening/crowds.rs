//! More connections than the limits allow, and clients that occupy them.

use std::net::SocketAddr;
use std::time::Duration;

use http::Response;
use testkit::pki::Issued;
use testkit::wire::{handshake_over, head, held};
use testkit::{FakeBackend, Gateway, H2, Http1, Pki, ResponseFuture, flags, full, get, in_time, text, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::GatewayWithBystanders;
use crate::gateway::InProcess as _;

fn ok() -> ResponseFuture {
    Box::pin(async { Response::new(full("ok")) })
}

/// A connection from another IP address than the other clients'.
async fn from_elsewhere(gateway: &Gateway) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 66], 0))).unwrap();
    in_time(socket.connect(gateway.address)).await.unwrap()
}

/// Reads until the gateway closes the connection.
async fn closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    in_time(stream.read_to_end(&mut rest)).await.ok();
    assert!(rest.is_empty(), "{rest:?}");
}

/// How many of these connections the gateway has not closed.
fn open<'a>(gateway: &Gateway, streams: impl Iterator<Item = &'a TcpStream>) -> usize {
    let held = held(gateway.address.port());
    streams.filter(|stream| held.contains(&stream.local_addr().unwrap().port())).count()
}

/// The bytes of clients that never complete a handshake: none, the first byte, half of a `ClientHello`.
const BEGINNINGS: [&[u8]; 3] = [b"", &[22], &[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]];

#[tokio::test]
async fn a_peer_with_many_silent_connections_does_not_lock_out_others() {
    for beginning in BEGINNINGS {
        let setup = GatewayWithBystanders::with(&["--max-connections=40"], |_| {}, |_| ok()).await;
        let mut silent = Vec::new();
        for _ in 0..200 {
            let mut stream = from_elsewhere(&setup.gateway).await;
            stream.write_all(beginning).await.ok();
            silent.push(stream);
        }
        setup.others.go_on().await;
        until("the end of what is too much", || open(&setup.gateway, silent.iter()) <= 16).await;
        setup.others.were_undisturbed().await;
        let metrics = setup.gateway.metrics("/metrics").await;
        let refused = "portcullis_refused_connections_total{reason=\"unauthenticated_limit\"} ";
        assert!(metrics.contains(refused), "{metrics}");
    }
}

// Handshakes without a certificate and anonymous requests cost a client next to nothing.
#[tokio::test]
async fn a_peer_with_many_anonymous_connections_does_not_lock_out_others() {
    let setup = GatewayWithBystanders::with(&["--max-connections=40"], |_| {}, |_| ok()).await;
    let mut anonymous = Vec::new();
    for index in 0..60 {
        let stream = from_elsewhere(&setup.gateway).await;
        // A connection beyond the limit is closed before its handshake completes.
        let Ok(mut stream) = handshake_over("localhost".try_into().unwrap(), stream, b"http/1.1", None).await
        else {
            continue;
        };
        if index % 2 == 0 {
            stream.write_all(b"GET /version HTTP/1.1\r\nHost: a\r\n\r\n").await.ok();
            head(&mut stream).await.ok();
        }
        anonymous.push(stream);
    }
    setup.others.go_on().await;
    let streams = || anonymous.iter().map(|stream| stream.get_ref().0);
    until("the end of what is too much", || open(&setup.gateway, streams()) <= 16).await;
    setup.others.were_undisturbed().await;
}

/// A connection with an answered request, as soon as the limits allow one.
async fn known(gateway: &Gateway, identity: &Issued) -> Http1 {
    in_time(async {
        loop {
            let stream = TcpStream::connect(gateway.address).await.unwrap();
            if let Ok(stream) =
                handshake_over("localhost".try_into().unwrap(), stream, b"http/1.1", Some(identity)).await
            {
                let mut client = gateway.http1_over(stream).await;
                if let Ok(response) = client.send(get("/api", &[])).await {
                    assert_eq!(text(response).await, "ok");
                    return client;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_and_open_ones_continue() {
    let pki = Pki::new();
    let backend = FakeBackend::start(&pki, H2, |_| ok()).await;
    // With more, some would be left to clients that have not authenticated yet.
    let flags = flags(&pki, backend.address).into_iter().chain(["--max-connections=1".to_owned()]);
    let gateway = Gateway::with(flags.collect());
    let alice = pki.clients.leaf().cn("alice").issue();
    gateway.checked().await;
    let mut client = known(&gateway, &alice).await;
    for _ in 0..3 {
        closed(&mut TcpStream::connect(gateway.address).await.unwrap()).await;
    }
    let metrics = gateway.metrics("/metrics").await;
    let refused = "portcullis_refused_connections_total{reason=\"max_connections\"} ";
    assert!(metrics.contains(refused), "{metrics}");
    assert_eq!(text(client.get("/api", &[]).await).await, "ok");
    // Closing a connection makes room for another.
    client.task.abort();
    known(&gateway, &alice).await;
}
