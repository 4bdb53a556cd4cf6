//! PROXY protocol: which connections begin with a header, and where the client's address of the header counts.

mod compared;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::StatusCode;
use portcullis::internal::ClientLimits;
use rustls_pki_types::ServerName;
use testkit::pki::Issued;
use testkit::wire::handshake_over;
use testkit::{FakeBackend, Gateway, H2, Pki, flags, full, in_time};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::gateway::{InProcess as _, resolved};

const LINE: &[u8] = b"PROXY TCP4 192.0.2.7 10.0.0.1 12345 443\r\n";
/// The address of a load balancer, from which tests connect. 127.0.0.1 is no load balancer.
const BALANCER: &str = "127.0.0.2";
const OTHER_BALANCER: &str = "127.0.0.3";
const DIRECT: &str = "127.0.0.1";

/// A header of version 2.
fn v2(version_and_command: u8, family_and_transport: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n", &[version_and_command, family_and_transport][..], &length, rest].concat()
}

/// A header of version 2 that names a client.
fn v2_naming(client: &str) -> Vec<u8> {
    let client: SocketAddr = client.parse().unwrap();
    let (family, addresses) = match client.ip() {
        IpAddr::V4(ip) => (0x11, [&ip.octets()[..], &[10, 0, 0, 1]].concat()),
        IpAddr::V6(ip) => (0x21, [&ip.octets()[..], &[0; 16]].concat()),
    };
    v2(0x21, family, &[&addresses[..], &client.port().to_be_bytes(), &443_u16.to_be_bytes()].concat())
}

struct Setup {
    pki: Pki,
    backend: FakeBackend,
    gateway: Gateway,
}

impl Setup {
    async fn new(version: &str, limit: impl FnOnce(&mut ClientLimits)) -> Self {
        let pki = Pki::new();
        let answer = |_| -> testkit::ResponseFuture { Box::pin(async { http::Response::new(full("ok")) }) };
        let backend = FakeBackend::start(&pki, H2, answer).await;
        let mut flags = flags(&pki, backend.address);
        flags.push(format!("--proxy-protocol={version}"));
        flags.push("--proxy-protocol-trusted-networks=127.0.0.2/31,2001:db8::/32".to_owned());
        let gateway = Gateway::limited(flags, limit);
        gateway.checked().await;
        while backend.take().is_some() {}
        Self { pki, backend, gateway }
    }

    /// A TCP connection from this address.
    async fn connect(&self, from: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        let stream = in_time(socket.connect(self.gateway.address)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// A TCP connection that begins with these bytes, in pieces.
    async fn begun(&self, from: &str, header: &[u8], piece: usize) -> TcpStream {
        let mut stream = self.connect(from).await;
        for piece in header.chunks(piece) {
            in_time(stream.write_all(piece)).await.unwrap();
            tokio::task::yield_now().await;
        }
        stream
    }

    /// Sends a request behind a header; returns the client's address as the backend receives it.
    async fn source(
        &self,
        from: &str,
        header: &[u8],
        alpn: &[u8],
        identity: Option<&Issued>,
    ) -> Option<String> {
        let stream = self.begun(from, header, usize::MAX).await;
        self.source_over(stream, alpn, identity).await
    }

    async fn source_over(&self, stream: TcpStream, alpn: &[u8], identity: Option<&Issued>) -> Option<String> {
        let name = ServerName::try_from("localhost").unwrap();
        let tls = in_time(handshake_over(name, stream, alpn, identity)).await.ok()?;
        let headers: &[_] = if identity.is_some() { &[] } else { &[("authorization", "Bearer good-token")] };
        let response = if alpn == b"h2" {
            self.gateway.http2_over(tls).await.get("/api", headers).await
        } else {
            self.gateway.http1_over(tls).await.get("/api", headers).await
        };
        assert_eq!(response.status(), StatusCode::OK);
        let seen = self.backend.take().unwrap();
        let user = if identity.is_some() { "alice" } else { "carol" };
        assert_eq!(seen.all("x-remote-user"), [user]);
        Some(seen.all("x-forwarded-for").join(" + "))
    }

    fn alice(&self) -> Issued {
        self.pki.clients.leaf().cn("alice").issue()
    }

    async fn refused(&self, reason: &str) -> u64 {
        self.gateway.count(&format!("portcullis_proxy_protocol_errors_total{{reason=\"{reason}\"}}")).await
    }
}

/// Waits for the end of a connection, which gets no answer.
async fn ends(mut stream: TcpStream) {
    let mut answer = Vec::new();
    in_time(stream.read_to_end(&mut answer)).await.ok();
    assert_eq!(answer, b"");
}

#[tokio::test]
async fn the_client_has_the_address_of_the_header() {
    let setup = Setup::new("any", |_| {}).await;
    let alice = setup.alice();
    let cases = [
        (LINE.to_vec(), "192.0.2.7"),
        (b"PROXY TCP6 2001:DB8::7 ::1 1 2\r\n".to_vec(), "2001:db8::7"),
        (b"PROXY TCP6 ::ffff:192.0.2.8 ::1 1 2\r\n".to_vec(), "192.0.2.8"),
        (v2_naming("192.0.2.9:7"), "192.0.2.9"),
        (v2_naming("[2001:db8::9]:7"), "2001:db8::9"),
        (v2_naming("[::ffff:192.0.2.10]:7"), "192.0.2.10"),
        (v2_naming("127.0.0.1:7"), "127.0.0.1"),
    ];
    for (header, expected) in &cases {
        for alpn in [&b"http/1.1"[..], b"h2"] {
            for identity in [None, Some(&alice)] {
                let source = setup.source(BALANCER, header, alpn, identity).await;
                assert_eq!(source.as_deref(), Some(*expected), "{}", header.escape_ascii());
            }
        }
    }
}

#[tokio::test]
async fn a_header_may_arrive_byte_by_byte() {
    let setup = Setup::new("any", |_| {}).await;
    for header in [LINE.to_vec(), v2_naming("192.0.2.7:1")] {
        let stream = setup.begun(BALANCER, &header, 1).await;
        assert_eq!(setup.source_over(stream, b"h2", None).await.as_deref(), Some("192.0.2.7"));
    }
}

#[tokio::test]
async fn without_an_address_the_load_balancer_is_the_client() {
    let setup = Setup::new("any", |_| {}).await;
    let headers = [
        b"PROXY UNKNOWN\r\n".to_vec(),
        b"PROXY UNKNOWN 192.0.2.7 10.0.0.1 1 2\r\n".to_vec(),
        v2(0x20, 0x00, b""),
        v2(0x20, 0x11, &[9; 12]),
        v2(0x21, 0x00, b""),
        v2(0x21, 0x31, &[b'a'; 216]),
    ];
    for header in headers {
        let source = setup.source(BALANCER, &header, b"h2", None).await;
        assert_eq!(source.as_deref(), Some(BALANCER), "{}", header.escape_ascii());
    }
}

#[tokio::test]
async fn a_load_balancer_without_a_valid_header_is_refused() {
    let setup = Setup::new("v2", |_| {}).await;
    let mut malformed = 0;
    for bytes in [
        b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03aaaaaaaa".to_vec(),
        b"GET /api HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        v2(0x31, 0x11, &[9; 12]),
        v2(0x21, 0x11, &[9; 11]),
        v2(0x21, 0x11, &[&[9; 12][..], &[1, 0xff, 0xff]].concat()),
        v2(0x21, 0x11, &[9; 5000]),
    ] {
        ends(setup.begun(BALANCER, &bytes, usize::MAX).await).await;
        malformed += 1;
        assert_eq!(setup.refused("malformed").await, malformed, "{}", bytes.escape_ascii());
    }
    ends(setup.begun(BALANCER, LINE, usize::MAX).await).await;
    assert_eq!(setup.refused("unaccepted_version").await, 1);
    // TLS without a header does not get a handshake.
    assert_eq!(setup.source(BALANCER, b"", b"h2", None).await, None);
    assert_eq!(setup.backend.pending(), 0);
}

#[tokio::test]
async fn other_clients_connect_without_a_header_and_cannot_send_one() {
    let setup = Setup::new("any", |_| {}).await;
    assert_eq!(setup.source(DIRECT, b"", b"h2", None).await.as_deref(), Some(DIRECT));
    for (count, header) in [(1, LINE.to_vec()), (2, v2_naming("192.0.2.7:1"))] {
        assert_eq!(setup.source(DIRECT, &header, b"h2", None).await, None);
        // The connection is closed before it is counted.
        let line = format!("portcullis_proxy_protocol_errors_total{{reason=\"untrusted\"}} {count}");
        setup.gateway.until_counted(&line).await;
    }
    assert_eq!(setup.backend.pending(), 0);
}

/// The header of the load balancer counts, and a second one is not part of TLS.
#[tokio::test]
async fn a_client_cannot_add_a_header_behind_the_load_balancers() {
    let setup = Setup::new("any", |_| {}).await;
    let both = [LINE, &v2_naming("10.9.9.9:1")].concat();
    assert_eq!(setup.source(BALANCER, &both, b"h2", None).await, None);
    assert_eq!(setup.backend.pending(), 0);
}

#[tokio::test]
async fn a_silent_load_balancer_is_disconnected_in_time() {
    let setup = Setup::new("any", |limits| limits.proxy_header_timeout = Duration::from_millis(300)).await;
    let mut slow = Vec::new();
    for header in [&b""[..], b"PROXY ", b"PROXY TCP4 192.0.2.7 10.0.0.1", &v2_naming("192.0.2.7:1")[..27]] {
        slow.push(setup.begun(BALANCER, header, usize::MAX).await);
    }
    for stream in slow {
        ends(stream).await;
    }
    assert_eq!(setup.refused("timeout").await, 4);
}

/// The limits of a small gateway: 16 connections may be unauthenticated, and as many may wait for their header.
fn few(limits: &mut ClientLimits) {
    limits.max_connections = std::num::NonZeroUsize::new(64);
    limits.proxy_header_timeout = Duration::from_hours(1);
    limits.header_timeout = Duration::from_hours(1);
}

/// A host in a trusted network opens connections and sends nothing.
#[tokio::test]
async fn silent_connections_of_one_load_balancer_do_not_lock_out_another() {
    let setup = Setup::new("any", few).await;
    let mut silent = Vec::new();
    for _ in 0..16 {
        silent.push(setup.begun(BALANCER, b"PROXY ", usize::MAX).await);
    }
    for _ in 0..3 {
        let source = setup.source(OTHER_BALANCER, LINE, b"h2", None).await;
        assert_eq!(source.as_deref(), Some("192.0.2.7"));
        // Direct clients have another quota.
        assert_eq!(setup.source(DIRECT, b"", b"h2", None).await.as_deref(), Some(DIRECT));
    }
    ends(silent.remove(0)).await;
}

/// A client behind the load balancer opens connections and sends nothing. It is counted by its own address.
#[tokio::test]
async fn silent_connections_of_one_client_do_not_lock_out_another_behind_the_same_load_balancer() {
    let setup = Setup::new("any", few).await;
    let mut silent = Vec::new();
    for port in 1..=16 {
        silent.push(setup.begun(BALANCER, &v2_naming(&format!("192.0.2.66:{port}")), usize::MAX).await);
    }
    setup.gateway.until_counted("portcullis_proxy_protocol_connections_total 16").await;
    let refused = "portcullis_refused_connections_total{reason=\"unauthenticated_limit\"} 1";
    ends(setup.begun(BALANCER, &v2_naming("192.0.2.66:99"), usize::MAX).await).await;
    setup.gateway.until_counted(refused).await;
    let source = setup.source(BALANCER, LINE, b"h2", None).await;
    assert_eq!(source.as_deref(), Some("192.0.2.7"));
    ends(silent.remove(0)).await;
}

#[test]
fn the_configuration_is_checked() {
    let pki = Pki::new();
    let base = flags(&pki, SocketAddr::from(([127, 0, 0, 1], 6443)));
    let error = |extra: &[&str]| {
        let given = base.iter().cloned().chain(extra.iter().map(ToString::to_string));
        resolved(given).map(|_| ()).map_err(|errors| errors.to_string())
    };
    let networks = "--proxy-protocol-trusted-networks=";
    assert_eq!(error(&["--proxy-protocol=off"]), Ok(()));
    assert_eq!(error(&["--proxy-protocol=any", &format!("{networks}10.0.0.0/8,2001:db8::/32")]), Ok(()));
    for (given, expected) in [
        (vec!["--proxy-protocol=v1".to_owned()], "is required with --proxy-protocol"),
        (vec![format!("{networks}10.0.0.0/8")], "--proxy-protocol: is required with"),
        (
            vec!["--proxy-protocol=v2".to_owned(), format!("{networks}10.0.0.1")],
            "\"10.0.0.1\" is not a network in CIDR",
        ),
        (vec!["--proxy-protocol=v2".to_owned(), format!("{networks}10.0.0.1/8")], "has address bits beyond"),
        (
            vec!["--proxy-protocol=v2".to_owned(), format!("{networks}0.0.0.0/0")],
            "lets every client claim any",
        ),
        (vec!["--proxy-protocol=v2".to_owned(), format!("{networks}::/0")], "lets every client claim any"),
    ] {
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        let found = error(&given).unwrap_err();
        assert!(found.contains(expected), "{given:?}: {found}");
    }
}
