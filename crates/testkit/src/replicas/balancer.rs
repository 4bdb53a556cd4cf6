//! A layer-4 load balancer, as a Service is one: new connections go to the gateways in turn whose readiness probe
//! succeeded last, and to another one if a gateway does not accept them. Open connections stay where they are.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::messages::BoxedBody;
use crate::pki::Issued;
use crate::tls::{identified, tls_client};

/// Between two readiness probes. The manifests in `deploy` have 2 s and one failure.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a client waits for a connection before it tries again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);

/// The gateways behind one address.
pub struct Balancer {
    gateways: Arc<Vec<Target>>,
    next: AtomicUsize,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
    /// Connections that a gateway did not accept, so that the client connected to the other one.
    pub refused: AtomicUsize,
    probes: Vec<JoinHandle<()>>,
}

struct Target {
    address: SocketAddr,
    health: SocketAddr,
    is_ready: AtomicBool,
}

/// A sender of requests on one connection.
#[derive(Clone)]
pub enum Sender {
    /// HTTP/1.1; the connection is not shared.
    Http1(Arc<tokio::sync::Mutex<hyper::client::conn::http1::SendRequest<BoxedBody>>>),
    /// HTTP/2.
    Http2(hyper::client::conn::http2::SendRequest<BoxedBody>),
}

impl Balancer {
    /// A balancer over gateways, given their addresses for clients and for probes, for clients with this certificate.
    pub fn start(gateways: &[(SocketAddr, SocketAddr)], user: &Issued) -> Self {
        let target = |(address, health): &(SocketAddr, SocketAddr)| Target {
            address: *address,
            health: *health,
            is_ready: AtomicBool::new(true),
        };
        let gateways: Arc<Vec<Target>> = Arc::new(gateways.iter().map(target).collect());
        let probe = |index: usize| {
            let gateways = Arc::clone(&gateways);
            tokio::spawn(async move {
                let target = &gateways[index];
                loop {
                    target.is_ready.store(is_ready(target.health).await, Ordering::SeqCst);
                    sleep(PROBE_INTERVAL).await;
                }
            })
        };
        let probes = (0..gateways.len()).map(probe).collect();
        let config = |alpn: &[u8]| {
            let mut config = identified(tls_client(rustls::DEFAULT_VERSIONS), Some(user));
            config.alpn_protocols = vec![alpn.to_vec()];
            Arc::new(config)
        };
        let (http1, http2) = (config(b"http/1.1"), config(b"h2"));
        Self { gateways, next: AtomicUsize::new(0), http1, http2, refused: AtomicUsize::new(0), probes }
    }

    /// Whether new connections go to this gateway.
    pub fn is_ready(&self, gateway: usize) -> bool {
        self.gateways[gateway].is_ready.load(Ordering::SeqCst)
    }

    /// The address of the gateway for the next connection. If none is ready, each is tried.
    fn next(&self) -> (usize, SocketAddr) {
        let count = self.gateways.len();
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let indices = || (first..first + count).map(|index| index % count);
        let index = indices().find(|index| self.is_ready(*index)).unwrap_or(first % count);
        (index, self.gateways[index].address)
    }

    /// A TLS connection to one of the gateways, and its index.
    pub async fn connect(&self, http2: bool) -> (usize, TlsStream<TcpStream>) {
        loop {
            let (index, address) = self.next();
            let config = Arc::clone(if http2 { &self.http2 } else { &self.http1 });
            let connecting = async {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                TlsConnector::from(config).connect(ServerName::try_from("localhost").unwrap(), stream).await
            };
            if let Ok(Ok(stream)) = timeout(CONNECT_TIMEOUT, connecting).await {
                return (index, stream);
            }
            self.refused.fetch_add(1, Ordering::Relaxed);
            sleep(RECONNECT_PAUSE).await;
        }
    }

    /// HTTP on a connection to one of the gateways, and its index.
    pub async fn sender(&self, http2: bool) -> (usize, Sender) {
        loop {
            let (index, stream) = self.connect(http2).await;
            let io = TokioIo::new(stream);
            if http2 {
                let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
                let Ok((sender, connection)) = builder.max_header_list_size(1 << 20).handshake(io).await
                else {
                    continue;
                };
                tokio::spawn(connection);
                return (index, Sender::Http2(sender));
            }
            let Ok((sender, connection)) = hyper::client::conn::http1::handshake(io).await else { continue };
            tokio::spawn(connection);
            return (index, Sender::Http1(Arc::new(tokio::sync::Mutex::new(sender))));
        }
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.probes.iter().for_each(JoinHandle::abort);
    }
}

/// Whether `/readyz` of a gateway is 200.
pub(super) async fn is_ready(health: SocketAddr) -> bool {
    let probe = get(health, "/readyz");
    matches!(timeout(PROBE_TIMEOUT, probe).await, Ok(Ok(answer)) if answer.starts_with("HTTP/1.1 200 "))
}

/// The response of a gateway's address for probes and metrics.
pub(super) async fn get(health: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(health).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
