//! Load with a constant number of requests in progress, over keep-alive connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::wire::{ClientCodec, Received, RequestTemplate};

/// The address of a server, and the TLS settings to connect to it.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) address: SocketAddr,
    pub(crate) tls: Arc<ClientConfig>,
}

/// The number of connections, and of requests in progress on each.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) http2: bool,
    pub(crate) connections: usize,
    pub(crate) streams: usize,
}

/// A TLS connection with its HTTP codec.
pub(crate) struct Connection {
    stream: TlsStream<TcpStream>,
    codec: Box<dyn ClientCodec>,
    input: Vec<u8>,
    out: Vec<u8>,
}

impl Connector {
    pub(crate) fn server_name() -> ServerName<'static> {
        ServerName::try_from("localhost").unwrap()
    }

    /// The TLS settings with the ALPN protocol of the HTTP version.
    pub(crate) fn tls_for(&self, http2: bool) -> Arc<ClientConfig> {
        let mut tls = ClientConfig::clone(&self.tls);
        let protocol: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
        tls.alpn_protocols = vec![protocol.to_vec()];
        Arc::new(tls)
    }

    /// Opens a connection for requests that are copies of `template`.
    pub(crate) async fn connect(
        &self,
        tls: Arc<ClientConfig>,
        template: &RequestTemplate,
        http2: bool,
    ) -> Connection {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let stream = TlsConnector::from(tls).connect(Self::server_name(), stream).await.unwrap();
        let negotiated = stream.get_ref().1.alpn_protocol();
        assert!(!http2 || negotiated == Some(b"h2"), "ALPN did not select HTTP/2");
        let (mut codec, mut out) = (template.codec(http2), Vec::new());
        codec.write_preface(&mut out);
        Connection { stream, codec, input: vec![0; 64 << 10], out }
    }
}

impl Connection {
    /// Adds `requests` requests to the output buffer.
    pub(crate) fn queue_requests(&mut self, requests: usize) {
        for _ in 0..requests {
            self.codec.write_request(&mut self.out);
        }
    }

    /// Writes the output buffer, then reads once.
    pub(crate) async fn exchange(&mut self) -> Received {
        if !self.out.is_empty() {
            self.stream.write_all(&self.out).await.unwrap();
            self.stream.flush().await.unwrap();
            self.out.clear();
        }
        let length = self.stream.read(&mut self.input).await.unwrap();
        assert!(length > 0, "the server closed a connection");
        self.codec.receive(&self.input[..length], &mut self.out)
    }

    /// Sends a TLS `close_notify` and shuts the connection down.
    pub(crate) async fn close(mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Keeps `streams` requests in progress until `until`, then waits for the last responses. Returns the number of
    /// responses.
    async fn send_until(&mut self, streams: usize, until: Instant) -> usize {
        self.queue_requests(streams);
        let (mut answered, mut open) = (0, streams);
        while open > 0 {
            let responses = self.exchange().await.responses;
            answered += responses;
            if Instant::now() < until {
                self.queue_requests(responses);
            } else {
                open -= responses;
            }
        }
        answered
    }
}

/// Idle connections, reused for the warm-up and the measurement.
pub(crate) struct LoadGenerator {
    connections: Vec<Connection>,
    streams: usize,
}

impl LoadGenerator {
    pub(crate) async fn connect(connector: &Connector, template: &RequestTemplate, shape: Shape) -> Self {
        let tls = connector.tls_for(shape.http2);
        let mut connections = Vec::new();
        for _ in 0..shape.connections {
            connections.push(connector.connect(Arc::clone(&tls), template, shape.http2).await);
        }
        Self { connections, streams: shape.streams }
    }

    /// Sends requests on all connections for `time`. Returns the number of responses.
    pub(crate) async fn run_for(&mut self, time: Duration) -> usize {
        let (until, streams) = (Instant::now() + time, self.streams);
        let mut tasks = JoinSet::new();
        for mut connection in self.connections.drain(..) {
            tasks.spawn(async move {
                let answered = connection.send_until(streams, until).await;
                (connection, answered)
            });
        }
        let (connections, answered): (Vec<_>, Vec<_>) = tasks.join_all().await.into_iter().unzip();
        self.connections = connections;
        answered.into_iter().sum()
    }
}
