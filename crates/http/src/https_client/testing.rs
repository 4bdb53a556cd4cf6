//! A small HTTPS server with configurable responses, which records its requests.

#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "only tests use it"
)]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use http_body_util::Full;
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use portcullis_pki::x509::{CaBundle, CertificateKeyPair};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use testkit::pki::{Ca, Issued};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::client_tls::TrustedRoots;

pub const H2: &[&[u8]] = &[b"h2", b"http/1.1"];
pub const H1: &[&[u8]] = &[b"http/1.1"];

/// A response; an error closes the connection.
pub type Reply = Result<http::Response<BoxBody<Bytes, Infallible>>, std::io::Error>;

/// A request that the server received.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    pub method: Method,
    pub target: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// The server, which stops when this is dropped.
pub struct TestServer {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    asked: Arc<Mutex<Vec<RecordedRequest>>>,
    task: JoinHandle<()>,
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub fn full(body: impl Into<Bytes>) -> BoxBody<Bytes, Infallible> {
    Full::new(body.into()).boxed()
}

pub fn reply(status: u16, body: impl Into<Bytes>) -> Reply {
    Ok(http::Response::builder().status(status).body(full(body)).unwrap())
}

/// `HttpsClient` settings that trust `ca`.
pub fn trusting(ca: &Ca) -> ClientTls {
    ClientTls::trusting(TrustedRoots::from_bundle(CaBundle::from_pem(ca.cert_pem().as_bytes()).unwrap()))
}

/// `HttpsClient` settings that trust `ca` and present a certificate.
pub fn showing(own: &Issued, ca: &Ca) -> ClientTls {
    let pair = CertificateKeyPair::from_pem(own.cert_pem().as_bytes(), own.key_pem().as_bytes()).unwrap();
    ClientTls { client_certificate: Some(pair), ..trusting(ca) }
}

fn roots(ca: &Ca) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(ca.as_leaf().chain[0].clone()).unwrap();
    roots
}

/// TLS settings of a server, which requires client certificates signed by `clients`, if given.
pub fn serving(own: &Issued, clients: Option<&Ca>, alpn: &[&[u8]]) -> ServerConfig {
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match clients {
        Some(ca) => builder.with_client_cert_verifier(
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots(ca)), provider).build().unwrap(),
        ),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(own.chain.clone(), own.key.clone_key()).unwrap();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config
}

impl TestServer {
    /// A server on loopback, with a certificate for `127.0.0.1` and `::1` by `ca`.
    pub async fn of(
        ca: &Ca,
        alpn: &[&[u8]],
        answer: impl Fn(&RecordedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let config = serving(&ca.server(&["127.0.0.1", "::1"]), None, alpn);
        Self::start(config, "127.0.0.1:0", move |asked| {
            let reply = answer(&asked);
            Box::pin(async { reply })
        })
        .await
    }

    pub async fn start(
        config: ServerConfig,
        address: &str,
        answer: impl Fn(RecordedRequest) -> BoxFuture<'static, Reply> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, asked) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (counted, noted) = (Arc::clone(&connections), Arc::clone(&asked));
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let answer = Arc::new(answer);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                let (acceptor, noted, answer) = (acceptor.clone(), Arc::clone(&noted), Arc::clone(&answer));
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    let service = service_fn(move |request: Request<Incoming>| {
                        let (noted, answer) = (Arc::clone(&noted), Arc::clone(&answer));
                        async move {
                            let (head, body) = request.into_parts();
                            let asked = RecordedRequest {
                                method: head.method,
                                target: head
                                    .uri
                                    .path_and_query()
                                    .map(ToString::to_string)
                                    .unwrap_or_default(),
                                headers: head.headers,
                                body: body.collect().await.map_err(std::io::Error::other)?.to_bytes(),
                            };
                            noted.lock().unwrap().push(asked.clone());
                            answer(asked).await
                        }
                    });
                    let io = TokioIo::new(stream);
                    if is_http2 {
                        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        server.serve_connection(io, service).await.ok();
                    } else {
                        let mut server = hyper::server::conn::http1::Builder::new();
                        server.max_headers(4096).serve_connection(io, service).await.ok();
                    }
                });
            }
        });
        Self { address, connections, asked, task }
    }

    /// The URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    /// The number of accepted connections.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// The requests since the last call.
    pub fn take(&self) -> Vec<RecordedRequest> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}
