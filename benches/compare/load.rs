//! Connections that stay, with always as many requests in progress.

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

use crate::wire::{Ask, Heard, Wire};

/// The proxy, and the client.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    pub(crate) tls: Arc<ClientConfig>,
}

/// How many connections, and how many requests are in progress on each.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) http2: bool,
    pub(crate) connections: usize,
    pub(crate) streams: usize,
}

/// A connection with what is said on it.
pub(crate) struct Connection {
    stream: TlsStream<TcpStream>,
    wire: Box<dyn Wire>,
    input: Vec<u8>,
    out: Vec<u8>,
}

impl Door {
    pub(crate) fn server_name() -> ServerName<'static> {
        ServerName::try_from("localhost").unwrap()
    }

    /// The settings of connections of this version of HTTP.
    pub(crate) fn tls_for(&self, http2: bool) -> Arc<ClientConfig> {
        let mut tls = ClientConfig::clone(&self.tls);
        let protocol: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
        tls.alpn_protocols = vec![protocol.to_vec()];
        Arc::new(tls)
    }

    /// A new connection on which `ask` will be asked.
    pub(crate) async fn connect(&self, tls: Arc<ClientConfig>, ask: &Ask, http2: bool) -> Connection {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let stream = TlsConnector::from(tls).connect(Self::server_name(), stream).await.unwrap();
        let agreed = stream.get_ref().1.alpn_protocol();
        assert!(!http2 || agreed == Some(b"h2"), "HTTP/2 was not agreed on");
        let (mut wire, mut out) = (ask.wire(http2), Vec::new());
        wire.greet(&mut out);
        Connection { stream, wire, input: vec![0; 64 << 10], out }
    }
}

impl Connection {
    /// Makes so many requests at once, and no more.
    pub(crate) fn ask(&mut self, requests: usize) {
        for _ in 0..requests {
            self.wire.ask(&mut self.out);
        }
    }

    /// Sends what there is to send, and takes what comes.
    pub(crate) async fn turn(&mut self) -> Heard {
        if !self.out.is_empty() {
            self.stream.write_all(&self.out).await.unwrap();
            self.stream.flush().await.unwrap();
            self.out.clear();
        }
        let length = self.stream.read(&mut self.input).await.unwrap();
        assert!(length > 0, "the server closed a connection");
        self.wire.hear(&self.input[..length], &mut self.out)
    }

    /// Takes leave.
    pub(crate) async fn close(mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Keeps requests in progress until then; gives how many were answered. None is left over.
    async fn keep_asking(&mut self, streams: usize, until: Instant) -> usize {
        self.ask(streams);
        let (mut answered, mut open) = (0, streams);
        while open > 0 {
            let answers = self.turn().await.answers;
            answered += answers;
            if Instant::now() < until {
                self.ask(answers);
            } else {
                open -= answers;
            }
        }
        answered
    }
}

/// Connections that wait for their turn.
pub(crate) struct Crowd {
    connections: Vec<Connection>,
    streams: usize,
}

impl Crowd {
    pub(crate) async fn connect(door: &Door, ask: &Ask, shape: Shape) -> Self {
        let tls = door.tls_for(shape.http2);
        let mut connections = Vec::new();
        for _ in 0..shape.connections {
            connections.push(door.connect(Arc::clone(&tls), ask, shape.http2).await);
        }
        Self { connections, streams: shape.streams }
    }

    /// As many requests as are answered in that time.
    pub(crate) async fn ask_for(&mut self, time: Duration) -> usize {
        let (until, streams) = (Instant::now() + time, self.streams);
        let mut tasks = JoinSet::new();
        for mut connection in self.connections.drain(..) {
            tasks.spawn(async move {
                let answered = connection.keep_asking(streams, until).await;
                (connection, answered)
            });
        }
        let (connections, answered): (Vec<_>, Vec<_>) = tasks.join_all().await.into_iter().unzip();
        self.connections = connections;
        answered.into_iter().sum()
    }
}
