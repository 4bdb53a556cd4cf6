//! Flood clients that send the next request as soon as they receive a response.

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::join_all;
use http::{Request, Version};
use http_body_util::BodyExt as _;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use testkit::{BoxedBody, empty, tls_client};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Concurrent requests on an HTTP/2 connection, which is then closed.
pub(crate) const CONCURRENCY: usize = 20;

/// Sends requests with the tokens that `token` returns, or without one.
#[derive(Clone)]
pub(crate) struct Sender<F> {
    pub(crate) gateway: SocketAddr,
    pub(crate) token: F,
    /// Allowed status codes of the responses.
    pub(crate) codes: &'static [u16],
    pub(crate) end: watch::Receiver<bool>,
}

impl<F: FnMut() -> Option<String>> Sender<F> {
    fn request(&mut self, version: Version) -> Request<BoxedBody> {
        let gateway = self.gateway;
        let request = match version {
            Version::HTTP_2 => Request::get(format!("https://{gateway}/api")),
            _ => Request::get("/api").header("host", gateway.to_string()),
        };
        let request = match (self.token)() {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        };
        request.body(empty()).unwrap()
    }

    fn is_running(&self) -> bool {
        !*self.end.borrow()
    }

    /// Sends one request after another on one connection. Returns the number of responses.
    pub(crate) async fn over_http1(mut self) -> u64 {
        let mut answered = 0;
        while self.is_running() {
            let Some(stream) = connect(self.gateway, b"http/1.1").await else { continue };
            let Ok((mut sender, connection)) = http1::handshake(TokioIo::new(stream)).await else { continue };
            tokio::spawn(connection);
            while self.is_running() && sender.ready().await.is_ok() {
                let request = self.request(Version::HTTP_11);
                let Ok(answer) = sender.send_request(request).await else { break };
                assert!(self.codes.contains(&answer.status().as_u16()), "{answer:?}");
                answered += u64::from(answer.into_body().collect().await.is_ok());
            }
        }
        answered
    }

    /// Sends concurrent requests on one connection after another. Returns the number of responses.
    pub(crate) async fn over_http2(mut self) -> u64 {
        let mut answered = 0;
        while self.is_running() {
            let Some(stream) = connect(self.gateway, b"h2").await else { continue };
            let builder = http2::Builder::new(TokioExecutor::new());
            let Ok((sender, connection)) = builder.handshake(TokioIo::new(stream)).await else { continue };
            tokio::spawn(connection);
            let requests = (0..CONCURRENCY).map(|_| {
                let mut sender = sender.clone();
                let request = self.request(Version::HTTP_2);
                async move { sender.send_request(request).await }
            });
            for answer in join_all(requests).await.into_iter().flatten() {
                assert!(self.codes.contains(&answer.status().as_u16()), "{answer:?}");
                answered += 1;
            }
        }
        answered
    }
}

async fn connect(gateway: SocketAddr, alpn: &[u8]) -> Option<TlsStream<TcpStream>> {
    let mut config = tls_client(rustls::DEFAULT_VERSIONS).with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    let stream = TcpStream::connect(gateway).await.ok()?;
    stream.set_nodelay(true).ok()?;
    TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), stream).await.ok()
}
