//! A proxy with CONNECT, or of SOCKS 5, that leads every connection to one server, whatever host is asked for.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

/// A running proxy.
#[derive(Debug)]
pub struct ProxyServer {
    /// Where it listens.
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

/// How clients speak to a proxy.
#[derive(Clone)]
pub enum ProxyKind {
    /// CONNECT; the response to it.
    Connect(&'static str),
    /// CONNECT over TLS.
    ConnectByTls(Arc<rustls::ServerConfig>),
    /// SOCKS 5, with a user and password.
    Socks,
}

/// The response of a proxy that connects.
pub const CONNECTED: &str = "HTTP/1.1 200 Connection established\r\n\r\n";
/// The response of a proxy that wants a password.
pub const UNAUTHENTICATED: &str =
    "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n";

impl ProxyServer {
    /// A proxy on loopback, in front of the server at `target`.
    pub async fn start(kind: ProxyKind, target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (kind, record) = (kind.clone(), Arc::clone(&record));
                connections.spawn(async move {
                    // A client that goes away is none of its concern.
                    match kind {
                        ProxyKind::Connect(response) => connect(stream, target, response, &record).await.ok(),
                        ProxyKind::ConnectByTls(config) => {
                            let stream = TlsAcceptor::from(config).accept(stream).await.ok()?;
                            connect(stream, target, CONNECTED, &record).await.ok()
                        }
                        ProxyKind::Socks => socks(stream, target, &record).await.ok(),
                    }
                });
            }
        });
        Self { address, requests, task }
    }

    /// The requests since the last call: heads of CONNECT, or the user, password and host of SOCKS.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

impl Drop for ProxyServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connect(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    target: SocketAddr,
    response: &str,
    requests: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
    }
    requests.lock().unwrap().push(String::from_utf8_lossy(&head).into_owned());
    client.write_all(response.as_bytes()).await?;
    client.flush().await?;
    if response != CONNECTED {
        return client.shutdown().await;
    }
    let mut server = TcpStream::connect(target).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}

// RFC 1928 and RFC 1929
async fn socks(
    mut client: TcpStream,
    target: SocketAddr,
    requests: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    async fn text(client: &mut TcpStream) -> std::io::Result<String> {
        let length = client.read_u8().await?;
        let mut text = vec![0; length.into()];
        client.read_exact(&mut text).await?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
    assert_eq!(client.read_u8().await?, 5);
    text(&mut client).await?;
    client.write_all(&[5, 2]).await?;
    assert_eq!(client.read_u8().await?, 1);
    let (user, password) = (text(&mut client).await?, text(&mut client).await?);
    client.write_all(&[1, 0]).await?;
    let mut request = [0; 4];
    client.read_exact(&mut request).await?;
    assert_eq!(request, [5, 1, 0, 3], "a connection to a name, which the proxy resolves");
    let host = text(&mut client).await?;
    let port = client.read_u16().await?;
    requests.lock().unwrap().push(format!("{user} {password} {host}:{port}"));
    client.write_all(&[5, 0, 0, 1, 127, 0, 0, 1, 0, 1]).await?;
    let mut server = TcpStream::connect(target).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}
