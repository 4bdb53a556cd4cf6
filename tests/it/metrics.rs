//! Metrics after real traffic: client connections, connections to endpoints, balancing, reloads.

use std::net::SocketAddr;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use testkit::body::fed;
use testkit::config_reload::replace;
use testkit::frames::{REFUSED_STREAM, reset};
use testkit::{BoxedBody, FakeBackend, Gateway, H1, H2, Pki, ResponseFuture, flags, full, in_time, text};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::balancing::freezable;
use crate::connections::answering;
use crate::endpoints::{at, trusts_at};
use crate::gateway::InProcess as _;
use crate::tunnels::echoing;

const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");
const WATCH: &str = "/api/v1/pods?watch=true";

/// Watches never end; other requests are answered at once.
fn watched(request: &Request<Incoming>) -> Response<BoxedBody> {
    let is_watch = request.uri().query() == Some("watch=true");
    Response::new(if is_watch { pending() } else { full("ok") })
}

/// A body that never ends and has no byte.
fn pending() -> BoxedBody {
    let (sender, body, _) = fed();
    std::mem::forget(sender);
    body
}

async fn backend(pki: &Pki, alpn: &[&[u8]]) -> FakeBackend {
    let answer = |request: Request<Incoming>| -> ResponseFuture {
        let response = watched(&request);
        Box::pin(async move { response })
    };
    FakeBackend::start(pki, alpn, answer).await
}

/// A series of an endpoint of the cluster `c`, with the labels after `endpoint`.
fn series(metric: &str, endpoint: SocketAddr, labels: &str) -> String {
    format!("{metric}{{cluster=\"c\",endpoint=\"{endpoint}\"{labels}}}")
}

#[tokio::test]
async fn client_connections_are_counted_while_they_are_open() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    let (one, mut other) = (gateway.http1(None).await, gateway.http2(None).await);
    gateway.until_counted("portcullis_client_connections{protocol=\"http/1.1\"} 1").await;
    gateway.until_counted("portcullis_client_connections{protocol=\"h2\"} 1").await;
    assert_eq!(other.get("/api", &[TOKEN]).await.status(), StatusCode::OK);
    drop((one, other));
    gateway.until_counted("portcullis_client_connections{protocol=\"http/1.1\"} 0").await;
    gateway.until_counted("portcullis_client_connections{protocol=\"h2\"} 0").await;
    assert_eq!(gateway.count("portcullis_tls_handshake_duration_seconds_count").await, 2);
}

/// Over HTTP/2, and as a tunnel; `hardening/descriptors.rs` has those over HTTP/1.1.
#[tokio::test]
async fn connections_to_api_servers_are_counted_by_owner() {
    let pki = Pki::new();
    let backend = echoing(&pki, "websocket").await;
    let gateway = Gateway::start(&pki, &backend);
    let of_users = |count: usize| format!("portcullis_backend_connections{{owner=\"user\"}} {count}");
    let mut client = gateway.http1(None).await;
    assert!(gateway.count("portcullis_backend_connections{owner=\"gateway\"}").await > 0, "the self-check");
    gateway.until_counted(&of_users(0)).await;
    for _ in 0..2 {
        text(client.get("/api", &[TOKEN]).await).await;
        gateway.until_counted(&of_users(1)).await;
    }
    let headers = [TOKEN, ("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-key", "AAAA")];
    let request = testkit::get("/api/v1/namespaces/n/pods/p/exec?command=sh", &headers);
    let response = client.send(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let tunnel = in_time(hyper::upgrade::on(response)).await.unwrap();
    gateway.until_counted(&of_users(2)).await;
    drop(tunnel);
    gateway.until_counted(&of_users(1)).await;
}

#[tokio::test]
async fn failed_handshakes_are_counted_by_cause() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::start(&pki, &backend);
    gateway.checked().await;
    for (bytes, cause) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "plain_http"),
        (b"\x16\x03\x01\x00\x04\x02\x00\x00\x00", "malformed"),
        (b"PROXY TCP4 1.1.1.1 1.1.1.2 1 2\r\n", "untrusted_header"),
        (b"SSH-2.0-x\r\n", "not_tls"),
        (b"", "closed"),
    ] {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        in_time(stream.read_to_end(&mut Vec::new())).await.ok();
        gateway
            .until_counted(&format!("portcullis_tls_handshake_failures_total{{cause=\"{cause}\"}} 1"))
            .await;
    }
    gateway.until_counted("apiserver_tls_handshake_errors_total 5").await;
    // A client that shares no protocol, and one that does not trust the gateway's certificate.
    let name = rustls_pki_types::ServerName::try_from("localhost").unwrap();
    let with = |alpn: &[u8], roots: rustls::RootCertStore| {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let mut config = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![alpn.to_vec()];
        tokio_rustls::TlsConnector::from(std::sync::Arc::new(config))
    };
    for (alpn, cause) in [(&b"spdy"[..], "incompatible"), (b"h2", "alert")] {
        let stream = TcpStream::connect(gateway.address).await.unwrap();
        let connector = with(alpn, rustls::RootCertStore::empty());
        in_time(connector.connect(name.clone(), stream)).await.unwrap_err();
        gateway
            .until_counted(&format!("portcullis_tls_handshake_failures_total{{cause=\"{cause}\"}} 1"))
            .await;
    }
}

#[tokio::test]
async fn connections_and_streams_of_an_endpoint_are_counted_by_lane() {
    let pki = Pki::new();
    let backend = backend(&pki, H2).await;
    let endpoint = backend.address;
    let gateway = at(&pki, &[endpoint]);
    trusts_at(&gateway, endpoint, true).await;
    let mut client = gateway.http2(None).await;
    text(client.get("/api", &[TOKEN]).await).await;
    let watch = client.get(WATCH, &[TOKEN]).await;
    let is = async |metric: &str, labels: &str, value: u64| {
        gateway.until_counted(&format!("{} {value}", series(metric, endpoint, labels))).await;
    };
    is("portcullis_endpoint_connections", ",lane=\"short\"", 1).await;
    is("portcullis_endpoint_connections", ",lane=\"watch\"", 1).await;
    is("portcullis_endpoint_streams", ",lane=\"watch\"", 1).await;
    is("portcullis_endpoint_picks_total", ",kind=\"request\"", 1).await;
    is("portcullis_endpoint_picks_total", ",kind=\"watch\"", 1).await;
    is("portcullis_endpoint_dials_total", ",result=\"connected\"", 2).await;
    is("portcullis_endpoint_waiting_requests", "", 0).await;
    for histogram in
        ["portcullis_backend_dial_duration_seconds", "portcullis_backend_connection_wait_duration_seconds"]
    {
        gateway.until_counted(&format!("{histogram}_count{{cluster=\"c\"}} 2")).await;
    }
    drop(watch);
    is("portcullis_endpoint_streams", ",lane=\"watch\"", 0).await;
    // The self-check's own connections are not among them.
    let sum = gateway.count_all("portcullis_endpoint_connections", &[]).await;
    assert_eq!(sum, 2);
    drop(backend);
    is("portcullis_endpoint_connections", ",lane=\"short\"", 0).await;
    is("portcullis_endpoint_connections", ",lane=\"watch\"", 0).await;
}

#[tokio::test]
async fn connections_over_http1_and_of_tunnels_are_counted() {
    let pki = Pki::new();
    let backend = backend(&pki, H1).await;
    let endpoint = backend.address;
    let gateway = at(&pki, &[endpoint]);
    trusts_at(&gateway, endpoint, true).await;
    let watch = gateway.http2(None).await.get(WATCH, &[TOKEN]).await;
    let line = series("portcullis_endpoint_connections", endpoint, ",lane=\"http1\"");
    gateway.until_counted(&format!("{line} 1")).await;
    drop(watch);
    gateway.until_counted(&format!("{line} 0")).await;
}

/// A request that waits for a connection shows as one, and so does a failed attempt to connect.
#[tokio::test]
async fn waiting_requests_and_failed_dials_are_counted() {
    let pki = Pki::new();
    let backend = backend(&pki, H2).await;
    let (address, freeze) = freezable(backend.address).await;
    let gateway = at(&pki, &[address]);
    trusts_at(&gateway, address, true).await;
    freeze.send_replace(true);
    let mut client = gateway.http1(None).await;
    let pending = tokio::spawn(async move { client.get("/api", &[TOKEN]).await.status() });
    let waiting = series("portcullis_endpoint_waiting_requests", address, "");
    gateway.until_counted(&format!("{waiting} 1")).await;
    freeze.send_replace(false);
    assert_eq!(in_time(pending).await.unwrap(), StatusCode::OK);
    gateway.until_counted(&format!("{waiting} 0")).await;

    // A server of another cluster takes over the address: its certificate is not accepted.
    let other = Pki::new();
    let refusing = FakeBackend::plain(&other).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (relay, target) = (listener.local_addr().unwrap(), backend.address);
    let (turn, turned) = tokio::sync::watch::channel(target);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let target = *turned.borrow();
            let mut server = TcpStream::connect(target).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await.ok() });
        }
    });
    let gateway = at(&pki, &[relay]);
    trusts_at(&gateway, relay, true).await;
    turn.send_replace(refusing.address);
    let mut client = gateway.http1(None).await;
    in_time(client.get("/api", &[TOKEN])).await;
    let failed = series("portcullis_endpoint_dials_total", relay, ",result=\"tls\"");
    gateway.until_counted_as(&failed, |line| line.starts_with(&failed) && !line.ends_with(" 0")).await;
}

/// Reads that were in progress at an endpoint which dies are sent again, and counted with the cause. The endpoint is
/// ejected; once another process answers at its address, it returns.
#[tokio::test]
async fn retries_ejections_and_returns_are_counted() {
    let pki = Pki::new();
    let first = backend(&pki, H2).await;
    let second = backend(&pki, H2).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let relay = listener.local_addr().unwrap();
    let (turn, turned) = tokio::sync::watch::channel(true);
    let target = first.address;
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut turned = turned.clone();
            tokio::spawn(async move {
                if !*turned.borrow_and_update() {
                    return;
                }
                let mut server = TcpStream::connect(target).await.unwrap();
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                    _ = turned.wait_for(|is_up| !is_up) => {}
                }
            });
        }
    });
    let gateway = at(&pki, &[relay, second.address]);
    trusts_at(&gateway, relay, true).await;
    trusts_at(&gateway, second.address, true).await;
    let mut client = gateway.http2(None).await;
    let picks = series("portcullis_endpoint_picks_total", relay, ",kind=\"request\"");
    in_time(async {
        while gateway.count(&picks).await == 0 {
            text(client.get("/api", &[TOKEN]).await).await;
        }
    })
    .await;
    turn.send_replace(false);
    let ejected = format!(
        "portcullis_endpoint_ejections_total{{cause=\"connect\",cluster=\"c\",endpoint=\"{relay}\"}}"
    );
    in_time(async {
        while gateway.count(&ejected).await == 0 {
            assert_eq!(client.get("/api", &[TOKEN]).await.status(), StatusCode::OK);
        }
    })
    .await;
    turn.send_replace(true);
    trusts_at(&gateway, relay, true).await;
    let returned = series("portcullis_endpoint_returns_total", relay, "");
    in_time(async {
        while gateway.count(&returned).await == 0 {
            text(client.get("/api", &[TOKEN]).await).await;
        }
    })
    .await;
}

/// The API server refuses a stream before it processes it.
#[tokio::test]
async fn retries_are_counted_by_cause() {
    let pki = Pki::new();
    let address = answering(&pki, |stream| reset(stream, REFUSED_STREAM), 1).await;
    let gateway = at(&pki, &[address]);
    trusts_at(&gateway, address, true).await;
    let request = Request::builder().method(Method::GET).uri("/api").header(TOKEN.0, TOKEN.1);
    let response = gateway.http1(None).await.send(request.body(full("")).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    gateway
        .until_counted(
            "portcullis_backend_retries_total{cause=\"not_processed\",cluster=\"c\",result=\"sent\"} 1",
        )
        .await;
}

#[tokio::test]
async fn reloads_are_timed() {
    let pki = Pki::new();
    let backend = FakeBackend::plain(&pki).await;
    let gateway = Gateway::with(flags(&pki, backend.address));
    gateway.checked().await;
    let timed = "portcullis_config_reload_duration_seconds_count";
    assert_eq!(gateway.count(timed).await, 0, "the start is no reload");
    replace(&pki.directory.path().join("tokens.csv"), "good-token,dave,7\n");
    gateway.until_counted_as(timed, |line| line.starts_with(timed) && !line.ends_with(" 0")).await;
}
