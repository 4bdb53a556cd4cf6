//! A client of either version of HTTP.

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::{BoxedBody, Gateway, Http1, Http2, get, text};
use crate::pki::Issued;

pub enum Client {
    One(Http1),
    Two(Http2),
}

impl Client {
    pub async fn connect(gateway: &Gateway, http2: bool, identity: Option<&Issued>) -> Self {
        let alpn: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
        Self::over(gateway, gateway.tls(alpn, identity).await).await
    }

    /// What the handshake agreed on.
    pub async fn over(gateway: &Gateway, stream: TlsStream<TcpStream>) -> Self {
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            return Self::Two(gateway.http2_over(stream).await);
        }
        Self::One(gateway.http1_over(stream).await)
    }

    pub async fn send(&mut self, request: Request<BoxedBody>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::One(client) => client.send(request).await,
            Self::Two(client) => client.send(request).await,
        }
    }

    pub async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Response<Incoming> {
        self.send(get(path, headers)).await.unwrap()
    }

    /// Ends the connection where it is, whatever it carries.
    pub fn abort(&self) {
        match self {
            Self::One(client) => client.task.abort(),
            Self::Two(client) => client.task.abort(),
        }
    }

    /// What comes of a request; its answer is read to the end.
    pub async fn code(&mut self, headers: &[(&str, &str)]) -> StatusCode {
        self.code_at("/api", headers).await
    }

    /// What comes of a request for a path; its answer is read to the end.
    pub async fn code_at(&mut self, path: &str, headers: &[(&str, &str)]) -> StatusCode {
        let response = self.get(path, headers).await;
        let code = response.status();
        text(response).await;
        code
    }
}
