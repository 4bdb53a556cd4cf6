//! Connections whose failures are results, not panics.

use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use testkit::pki::Issued;
use testkit::wire::handshake_over;
use testkit::{BoxedBody, get};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Mutex;
use tokio_rustls::client::TlsStream;

/// A TLS connection to the gateway. The caller limits its time, to less than the time that a test may wait.
pub(crate) async fn tls(
    gateway: SocketAddr,
    alpn: &[u8],
    identity: Option<&Issued>,
) -> io::Result<TlsStream<TcpStream>> {
    tls_over(TcpStream::connect(gateway).await?, alpn, identity).await
}

/// A socket of the attacker, who has another network than the operator's clients and probes.
pub(crate) fn attackers_socket() -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::new(127, 0, 0, 2), 0).into())?;
    Ok(socket)
}

/// A TLS connection over an open one.
pub(crate) async fn tls_over(
    stream: TcpStream,
    alpn: &[u8],
    identity: Option<&Issued>,
) -> io::Result<TlsStream<TcpStream>> {
    stream.set_nodelay(true)?;
    handshake_over("localhost".try_into().unwrap(), stream, alpn, identity).await
}

/// The text of the first cause.
pub(crate) fn cause(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), cause)
}

/// The sender of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

/// A connection of either version.
pub(crate) enum Sender {
    One(http1::SendRequest<BoxedBody>),
    Two(http2::SendRequest<BoxedBody>),
}

impl Sender {
    pub(crate) async fn connect(
        gateway: SocketAddr,
        version: Version,
        identity: Option<&Issued>,
    ) -> Result<Self, String> {
        let alpn: &[u8] = if version == Version::Http2 { b"h2" } else { b"http/1.1" };
        let stream = tls(gateway, alpn, identity).await.map_err(|error| cause(&error))?;
        let io = TokioIo::new(stream);
        Ok(match version {
            Version::Http1 => {
                let (sender, connection) = http1::handshake(io).await.map_err(|error| cause(&error))?;
                tokio::spawn(connection);
                Self::One(sender)
            }
            Version::Http2 => {
                let handshake = http2::handshake(TokioExecutor::new(), io).await;
                let (sender, connection) = handshake.map_err(|error| cause(&error))?;
                tokio::spawn(connection);
                Self::Two(sender)
            }
        })
    }

    /// The response to a GET request.
    pub(crate) async fn get(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<Response<Incoming>, String> {
        let answer = match self {
            Self::One(sender) => {
                let mut request = get(path, headers);
                request.headers_mut().insert("host", "localhost".parse().unwrap());
                sender.ready().await.map_err(|error| cause(&error))?;
                sender.send_request(request).await
            }
            Self::Two(sender) => {
                sender.ready().await.map_err(|error| cause(&error))?;
                sender.send_request(absolute(path, headers)).await
            }
        };
        answer.map_err(|error| cause(&error))
    }
}

fn absolute(path: &str, headers: &[(&str, &str)]) -> Request<BoxedBody> {
    get(&format!("https://localhost{path}"), headers)
}

/// An HTTP/2 connection that is opened again when it has ended.
pub(crate) struct SharedConnection {
    gateway: SocketAddr,
    identity: Option<Arc<Issued>>,
    sender: Mutex<Option<http2::SendRequest<BoxedBody>>>,
}

impl SharedConnection {
    pub(crate) fn new(gateway: SocketAddr, identity: Option<&Arc<Issued>>) -> Arc<Self> {
        Arc::new(Self { gateway, identity: identity.cloned(), sender: Mutex::default() })
    }

    /// The response to a GET request.
    pub(crate) async fn get(
        &self,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<Response<Incoming>, String> {
        self.sender().await?.get(path, headers).await
    }

    async fn sender(&self) -> Result<Sender, String> {
        let mut kept = self.sender.lock().await;
        if let Some(sender) = kept.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(Sender::Two(sender.clone()));
        }
        let new = Sender::connect(self.gateway, Version::Http2, self.identity.as_deref()).await?;
        if let Sender::Two(sender) = &new {
            *kept = Some(sender.clone());
        }
        Ok(new)
    }
}
