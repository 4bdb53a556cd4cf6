//! Below HTTP: a backend whose bytes the test writes, and the kernel's state of a connection.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client};

use crate::pki::Issued;
use crate::self_check;
use crate::test_pki::Pki;
use crate::tls::{identified, tls_client};
use crate::waiting::in_time;

/// The TLS handshake of a client that accepts any server certificate.
pub async fn handshake_over(
    name: ServerName<'static>,
    stream: TcpStream,
    alpn: &[u8],
    identity: Option<&Issued>,
) -> std::io::Result<client::TlsStream<TcpStream>> {
    let mut config = identified(tls_client(rustls::DEFAULT_VERSIONS), identity);
    config.alpn_protocols = vec![alpn.to_vec()];
    in_time(TlsConnector::from(Arc::new(config)).connect(name, stream)).await
}

/// TLS of a backend that does not request a client certificate.
pub fn acceptor(pki: &Pki, alpn: &[&[u8]]) -> TlsAcceptor {
    acceptor_with(&pki.servers.server(&["backend.test"]), alpn)
}

/// The same with this certificate.
pub fn acceptor_with(issued: &Issued, alpn: &[&[u8]]) -> TlsAcceptor {
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(issued.chain.clone(), issued.key.clone_key())
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

/// A backend of bare TLS connections. The connections before the end of the gateway's self-check belong to it and are
/// answered here.
pub async fn bare(pki: &Pki, alpn: &[&[u8]]) -> (SocketAddr, mpsc::UnboundedReceiver<TlsStream<TcpStream>>) {
    bare_with(acceptor(pki, alpn)).await
}

/// The same with this TLS.
pub async fn bare_with(acceptor: TlsAcceptor) -> (SocketAddr, mpsc::UnboundedReceiver<TlsStream<TcpStream>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (accepted, streams) = mpsc::unbounded_channel();
    let answered = Arc::new(AtomicBool::new(false));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if !answered.load(Ordering::SeqCst) {
                tokio::spawn(answer_questions(acceptor.clone(), stream, Arc::clone(&answered)));
                continue;
            }
            let (acceptor, accepted) = (acceptor.clone(), accepted.clone());
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    accepted.send(stream).ok();
                }
            });
        }
    });
    (address, streams)
}

/// Answers the gateway's self-check on a connection, and sets the flag at its last request.
pub async fn answer_questions(acceptor: TlsAcceptor, stream: TcpStream, answered: Arc<AtomicBool>) {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        if request.method() == http::Method::GET {
            answered.store(true, Ordering::SeqCst);
        }
        let answer = self_check::answer(&request).ok_or("only the gateway's own questions are answered here");
        std::future::ready(answer)
    });
    let Ok(stream) = acceptor.accept(stream).await else { return };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        server.serve_connection(TokioIo::new(stream), service).await.ok();
    } else {
        let server = hyper::server::conn::http1::Builder::new();
        server.serve_connection(TokioIo::new(stream), service).await.ok();
    }
}

/// Reads the header of an HTTP/1.1 request or response, and nothing after it.
pub async fn head(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(in_time(stream.read_u8()).await?);
    }
    Ok(String::from_utf8(head).unwrap())
}

/// One end of a TCP connection in the kernel.
pub struct Socket {
    queues: String,
    timer: String,
    inode: String,
}

impl Socket {
    /// The end at port `local` of the connection with port `remote`, if it exists.
    pub fn find(local: u16, remote: u16) -> Option<Self> {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let (local, remote) = (format!(":{local:04X}"), format!(":{remote:04X}"));
        table.lines().find_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let found = fields.len() > 9 && fields[1].ends_with(&local) && fields[2].ends_with(&remote);
            found.then(|| Self {
                queues: fields[4].to_owned(),
                timer: fields[5].to_owned(),
                inode: fields[9].to_owned(),
            })
        })
    }

    /// Whether a process holds the socket: sockets that are not accepted yet, or closed, have no inode.
    pub fn is_held(&self) -> bool {
        self.inode != "0"
    }

    /// Whether the process has read all received bytes.
    pub fn is_read(&self) -> bool {
        self.queues.ends_with(":00000000")
    }

    /// Whether the kernel sends TCP keep-alive probes.
    pub fn is_kept_alive(&self) -> bool {
        self.timer.starts_with("02:")
    }
}

/// The remote ports of all connections that a process holds at port `local`.
pub fn held(local: u16) -> HashSet<u16> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let local = format!(":{local:04X}");
    let remote_port = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let held = fields.len() > 9 && fields[1].ends_with(&local) && fields[9] != "0";
        let remote = held.then(|| u16::from_str_radix(fields[2].rsplit(':').next().unwrap(), 16).unwrap());
        // The remote port of a listener is 0.
        remote.filter(|port| *port != 0)
    };
    table.lines().filter_map(remote_port).collect()
}

/// Whether a process holds the end at port `local` of the connection with port `remote`.
pub fn is_held(local: u16, remote: u16) -> bool {
    Socket::find(local, remote).is_some_and(|socket| socket.is_held())
}
