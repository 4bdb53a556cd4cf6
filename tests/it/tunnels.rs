//! Upgrades: establishing tunnels, data in both directions, and closing both ends when either closes.

use http::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use testkit::wire::{Socket, bare, head, is_held};
use testkit::{BoxedBody, FakeBackend, Gateway, H1, H2, Pki, empty, flags, full, get, in_time, text, until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::gateway::InProcess as _;

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

/// A backend that switches to the protocol `answered` and then echoes. It answers requests without an upgrade with nothing.
pub(crate) async fn echoing(pki: &Pki, answered: &'static str) -> FakeBackend {
    FakeBackend::start(pki, H2, move |mut request: Request<hyper::body::Incoming>| {
        if !request.headers().contains_key("upgrade") {
            return Box::pin(async { Response::new(empty()) });
        }
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
        let mut tunnel = TokioIo::new(in_time(hyper::upgrade::on(response)).await.unwrap());
        tunnel.write_all(b"hello").await.unwrap();
        let mut echoed = [0; 5];
        in_time(tunnel.read_exact(&mut echoed)).await.unwrap();
        assert_eq!(&echoed, b"hello");
        tunnel.shutdown().await.unwrap();
        assert_eq!(in_time(tunnel.read(&mut echoed)).await.unwrap(), 0, "closing one side closes the other");
    }
}

#[tokio::test]
async fn no_tunnel_opens_without_the_requested_101() {
    let pki = Pki::new();
    let alice = pki.clients.leaf().cn("alice").issue();

    let other = echoing(&pki, "h2c").await;
    let gateway = Gateway::start(&pki, &other);
    let response = gateway.http1(Some(&alice)).await.send(upgrade_request("websocket")).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_GATEWAY, "another protocol");

    let refusing = FakeBackend::start(&pki, H2, |_| {
        Box::pin(async { Response::builder().status(403).body(full("no")).unwrap() })
    })
    .await;
    let gateway = Gateway::start(&pki, &refusing);
    let mut client = gateway.http1(Some(&alice)).await;
    let response = client.send(upgrade_request("websocket")).await.unwrap();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert_eq!(text(response).await, "no", "a refusal is an answer like any other");

    // An upgrade to an unsupported protocol is not forwarded.
    let response = gateway.http1(Some(&alice)).await.send(upgrade_request("h2c")).await.unwrap();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    refusing.take().unwrap();
    let seen = refusing.take().unwrap();
    assert_eq!(seen.all("upgrade"), Vec::<String>::new());
    assert_eq!(seen.all("connection"), Vec::<String>::new());
}

/// An open tunnel, of which the test holds both ends.
struct Tunnel {
    client: tokio_rustls::client::TlsStream<TcpStream>,
    backend: tokio_rustls::server::TlsStream<TcpStream>,
    /// The ports of the client's connection: the gateway's, then the client's.
    in_front: (u16, u16),
    /// The ports of the backend's connection: the gateway's, then the backend's.
    behind: (u16, u16),
    _gateway: Gateway,
    _pki: Pki,
}

impl Tunnel {
    async fn open() -> Self {
        let pki = Pki::new();
        let (address, mut streams) = bare(&pki, H1).await;
        let gateway = Gateway::with(flags(&pki, address));
        let alice = pki.clients.leaf().cn("alice").issue();
        let mut client = gateway.tls(b"http/1.1", Some(&alice)).await;
        let upgrade = "GET /api/v1/namespaces/n/pods/p/exec HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n\
            Upgrade: websocket\r\n\r\n";
        client.write_all(upgrade.as_bytes()).await.unwrap();
        let mut backend = in_time(streams.recv()).await.unwrap();
        head(&mut backend).await.unwrap();
        let switching =
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        backend.write_all(switching.as_bytes()).await.unwrap();
        assert!(head(&mut client).await.unwrap().starts_with("HTTP/1.1 101 "));
        let client_port = client.get_ref().0.local_addr().unwrap().port();
        let gateway_port = backend.get_ref().0.peer_addr().unwrap().port();
        Self {
            client,
            backend,
            in_front: (gateway.address.port(), client_port),
            behind: (gateway_port, address.port()),
            _gateway: gateway,
            _pki: pki,
        }
    }
}

// apimachinery, pkg/util/proxy/upgradeaware.go, tryUpgrade: the end of either direction closes both.
#[tokio::test]
async fn a_tunnel_ends_when_the_backend_closes_it() {
    let mut tunnel = Tunnel::open().await;
    tunnel.backend.write_all(b"bye").await.unwrap();
    tunnel.backend.shutdown().await.unwrap();
    drop(tunnel.backend);
    let mut rest = Vec::new();
    in_time(tunnel.client.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(rest, b"bye", "data in flight arrives");
    // The client keeps its socket open without sending; the gateway closes its own.
    let (gateway, client) = tunnel.in_front;
    until("the end of the client's connection", || !is_held(gateway, client)).await;
}

#[tokio::test]
async fn a_tunnel_that_its_client_closed_does_not_wait_for_the_backend_forever() {
    let mut tunnel = Tunnel::open().await;
    // Sends close_notify, then FIN.
    tunnel.client.shutdown().await.unwrap();
    drop(tunnel.client);
    // The backend does not close the connection.
    let (gateway, backend) = tunnel.behind;
    until("the end of the backend's connection", || !is_held(gateway, backend)).await;
}

// Go's listener and dialer enable TCP keep-alive (15 s), which detects a vanished peer also under a tunnel or an idle
// HTTP/1.1 watch, which have no pings.
#[tokio::test]
async fn idle_connections_use_tcp_keep_alive_on_both_sides() {
    let tunnel = Tunnel::open().await;
    for (side, (local, remote)) in [("client", tunnel.in_front), ("backend", tunnel.behind)] {
        // Until the last data is acknowledged, the socket's timer is the retransmission timer.
        until(&format!("keep-alive on the side of the {side}"), || {
            Socket::find(local, remote).is_some_and(|socket| socket.is_kept_alive())
        })
        .await;
    }
}
