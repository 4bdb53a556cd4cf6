//! Tokens that nobody has issued, and clients that send them as fast as they are answered.

use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::future::join_all;
use http::{Request, Version};
use http_body_util::BodyExt as _;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use uuid::Uuid;

use super::scene::Scene;
use crate::support::issuer::now;
use crate::support::{BoxedBody, accounts, empty, tls_client};

/// Requests at once on a connection of HTTP/2, of which each is the last one.
pub const AT_ONCE: usize = 20;
const LARGE: usize = 64 << 10;

#[derive(Clone)]
pub struct Forger {
    issuer: String,
    made: usize,
}

impl Forger {
    /// One that begins with the shape of this number.
    pub fn new(scene: &Scene, first: usize) -> Self {
        Self { issuer: scene.issuer.url.clone(), made: first }
    }

    /// A token of the next shape.
    fn token(&mut self) -> String {
        self.made += 1;
        let id = Uuid::new_v4().simple().to_string();
        let of = |issuer: &str| json!({"iss": issuer, "aud": "flooded", "sub": id, "exp": now() + 3600});
        match self.made % 7 {
            0 => id,
            1 => format!("{}.{}", &id[..6], &id[16..]),
            2 => jwt(&json!({"alg": "ES256", "kid": id}), &of(&self.issuer)),
            3 => jwt(&json!({"alg": "ES256", "kid": "k"}), &of(&self.issuer)),
            4 => jwt(&json!({"alg": "ES256", "kid": "k"}), &of("https://elsewhere.test")),
            5 => jwt(&json!({"alg": "ES256"}), &of(accounts::ISSUER)),
            _ => id.repeat(LARGE / id.len()),
        }
    }

    fn request(&mut self, gateway: SocketAddr, version: Version) -> Request<BoxedBody> {
        let uri =
            if version == Version::HTTP_2 { format!("https://{gateway}/api") } else { "/api".to_owned() };
        let request = Request::get(uri).header("authorization", format!("Bearer {}", self.token()));
        let request = match version {
            Version::HTTP_2 => request,
            _ => request.header("host", gateway.to_string()),
        };
        request.body(empty()).unwrap()
    }

    /// One request after another on one connection; how many were answered.
    pub async fn over_http1(mut self, gateway: SocketAddr, end: watch::Receiver<bool>) -> u64 {
        let mut answered = 0;
        while !*end.borrow() {
            let Some(stream) = connect(gateway, b"http/1.1").await else { continue };
            let Ok((mut sender, connection)) = http1::handshake(TokioIo::new(stream)).await else { continue };
            tokio::spawn(connection);
            while !*end.borrow() && sender.ready().await.is_ok() {
                let request = self.request(gateway, Version::HTTP_11);
                let Ok(answer) = sender.send_request(request).await else { break };
                assert_eq!(answer.status(), 401);
                answered += u64::from(answer.into_body().collect().await.is_ok());
            }
        }
        answered
    }

    /// Many at once on one connection after another; how many were answered.
    pub async fn over_http2(mut self, gateway: SocketAddr, end: watch::Receiver<bool>) -> u64 {
        let mut answered = 0;
        while !*end.borrow() {
            let Some(stream) = connect(gateway, b"h2").await else { continue };
            let builder = http2::Builder::new(TokioExecutor::new());
            let Ok((sender, connection)) = builder.handshake(TokioIo::new(stream)).await else { continue };
            tokio::spawn(connection);
            let requests = (0..AT_ONCE).map(|_| {
                let mut sender = sender.clone();
                let request = self.request(gateway, Version::HTTP_2);
                async move { sender.send_request(request).await }
            });
            for answer in join_all(requests).await.into_iter().flatten() {
                assert_eq!(answer.status(), 401);
                answered += 1;
            }
        }
        answered
    }
}

/// What looks like a JSON Web Token.
fn jwt(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signature: Vec<u8> = (0..4).flat_map(|_| Uuid::new_v4().into_bytes()).collect();
    format!("{}.{}.{}", part(header), part(claims), URL_SAFE_NO_PAD.encode(signature))
}

async fn connect(gateway: SocketAddr, alpn: &[u8]) -> Option<TlsStream<TcpStream>> {
    let mut config = tls_client(rustls::DEFAULT_VERSIONS).with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    let stream = TcpStream::connect(gateway).await.ok()?;
    stream.set_nodelay(true).ok()?;
    TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), stream).await.ok()
}
