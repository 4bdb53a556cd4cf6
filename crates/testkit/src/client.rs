//! A client of either version of HTTP.

use std::net::{Ipv4Addr, SocketAddr};

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::TokioExecutor;
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::client::TlsStream;

use crate::connection::{Http1, Http2};
use crate::gateway::Gateway;
use crate::messages::{BoxedBody, get, text};
use crate::pki::Issued;
use crate::wire::handshake_over;

/// The receive window of a [narrow](Client::narrow) client.
const NARROW: u32 = 64 << 10;

/// A connection of either version.
pub enum Client {
    /// HTTP/1.1.
    One(Http1),
    /// HTTP/2.
    Two(Http2),
}

impl Gateway {
    /// A connection over HTTP/2 of a client without a credential, from the IP address 127.0.0.`host`.
    pub async fn http2_from(&self, host: u8) -> Http2 {
        self.checked().await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 0, host), 0))).unwrap();
        let stream = socket.connect(self.address).await.unwrap();
        let stream = handshake_over("localhost".try_into().unwrap(), stream, b"h2", None).await.unwrap();
        self.http2_over(stream).await
    }
}

impl Client {
    /// Connects over TLS.
    pub async fn connect(gateway: &Gateway, http2: bool, identity: Option<&Issued>) -> Self {
        let alpn: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
        Self::over(gateway, gateway.tls(alpn, identity).await).await
    }

    /// Connects with small receive windows per response, for any number of responses.
    pub async fn narrow(gateway: &Gateway, http2: bool, identity: Option<&Issued>) -> Self {
        gateway.checked().await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(NARROW).unwrap();
        let stream = socket.connect(gateway.address).await.unwrap();
        let alpn: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
        let stream = handshake_over("localhost".try_into().unwrap(), stream, alpn, identity).await.unwrap();
        if !http2 {
            return Self::One(gateway.http1_over(stream).await);
        }
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(NARROW).initial_connection_window_size(NARROW << 8);
        Self::Two(gateway.http2_by(&builder, stream).await)
    }

    /// The version of HTTP that the handshake has negotiated.
    pub async fn over(gateway: &Gateway, stream: TlsStream<TcpStream>) -> Self {
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            return Self::Two(gateway.http2_over(stream).await);
        }
        Self::One(gateway.http1_over(stream).await)
    }

    /// The response to a request.
    pub async fn send(&mut self, request: Request<BoxedBody>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::One(client) => client.send(request).await,
            Self::Two(client) => client.send(request).await,
        }
    }

    /// The response to a GET request.
    pub async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Response<Incoming> {
        self.send(get(path, headers)).await.unwrap()
    }

    /// The status code of a request to `/api`; its response is read to the end.
    pub async fn code(&mut self, headers: &[(&str, &str)]) -> StatusCode {
        self.code_at("/api", headers).await
    }

    /// The status code of a GET request; its response is read to the end.
    pub async fn code_at(&mut self, path: &str, headers: &[(&str, &str)]) -> StatusCode {
        let response = self.get(path, headers).await;
        let code = response.status();
        text(response).await;
        code
    }
}
