//! A fake API server that records the requests it receives.

use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http::{HeaderMap, Request, Response, Version};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::crypto::aws_lc_rs::default_provider;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::go_server::{GoServer, MAX_FRAME_SIZE};
use crate::messages::{BoxedBody, ResponseFuture, full};
use crate::pki::Issued;
use crate::test_pki::Pki;

/// ALPN protocols of a backend with HTTP/2 and HTTP/1.1.
pub const H2: &[&[u8]] = &[b"h2", b"http/1.1"];
/// ALPN protocol of a backend with HTTP/1.1 only.
pub const H1: &[&[u8]] = &[b"http/1.1"];

/// The maximum of requests that a client resets before the server accepts them, as in Go's server; h2 allows 20.
// Go: net/http/h2_bundle.go, scheduleHandler; kube-apiserver allows 250 streams
const MAX_PENDING_RESETS: usize = 4 * 250;

/// A request as the backend received it, without its body.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    /// The path with its query.
    pub target: String,
    /// The version of HTTP.
    pub version: Version,
    /// Its headers.
    pub headers: HeaderMap,
}

impl ReceivedRequest {
    /// Every value of a header, in order.
    pub fn all(&self, name: &str) -> Vec<String> {
        self.headers
            .get_all(name)
            .iter()
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect()
    }
}

/// A server that requires the gateway's certificate, records requests and calls a test's closure for the responses.
pub struct FakeBackend {
    /// The address of the server.
    pub address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
    seen: Arc<Mutex<VecDeque<ReceivedRequest>>>,
    task: tokio::task::JoinHandle<()>,
}

/// A response without an error.
struct Infallibly(ResponseFuture);

impl Future for Infallibly {
    type Output = Result<Response<BoxedBody>, std::convert::Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
        self.0.as_mut().poll(cx).map(Ok)
    }
}

impl Drop for FakeBackend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FakeBackend {
    /// A backend that answers `200 ok` to all requests.
    pub async fn plain(pki: &Pki) -> Self {
        Self::start(pki, H2, |_| Box::pin(async { Response::new(full("ok")) })).await
    }

    /// A backend with these ALPN protocols that calls `answer` for each request.
    pub async fn start(
        pki: &Pki,
        alpn: &[&[u8]],
        answer: impl Fn(Request<Incoming>) -> ResponseFuture + Send + Sync + 'static,
    ) -> Self {
        Self::with_self_check(pki, alpn, crate::self_check::answer, answer).await
    }

    /// A backend that calls `self_check` for the gateway's self-check, and `answer` for other requests.
    pub async fn with_self_check(
        pki: &Pki,
        alpn: &[&[u8]],
        self_check: impl Fn(&Request<Incoming>) -> Option<Response<BoxedBody>> + Send + Sync + 'static,
        answer: impl Fn(Request<Incoming>) -> ResponseFuture + Send + Sync + 'static,
    ) -> Self {
        let issued = pki.servers.server(&["backend.test"]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(pki.front.cert.clone()).unwrap();
        let provider = Arc::new(default_provider());
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .unwrap();
        Self::serve(listener, tls_server(verifier, &issued, alpn), self_check, answer)
    }

    /// A server on this listener that requests no client certificate, for issuers and webhooks.
    pub fn without_client_auth(
        pki: &Pki,
        listener: TcpListener,
        answer: impl Fn(Request<Incoming>) -> ResponseFuture + Send + Sync + 'static,
    ) -> Self {
        Self::named(pki, "127.0.0.1", listener, answer)
    }

    /// The same with another name in its certificate.
    pub fn named(
        pki: &Pki,
        name: &str,
        listener: TcpListener,
        answer: impl Fn(Request<Incoming>) -> ResponseFuture + Send + Sync + 'static,
    ) -> Self {
        let verifier = rustls::server::WebPkiClientVerifier::no_client_auth();
        Self::serve(listener, tls_server(verifier, &pki.servers.server(&[name]), H2), |_| None, answer)
    }

    fn serve(
        listener: TcpListener,
        config: rustls::ServerConfig,
        self_check: impl Fn(&Request<Incoming>) -> Option<Response<BoxedBody>> + Send + Sync + 'static,
        answer: impl Fn(Request<Incoming>) -> ResponseFuture + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(VecDeque::new()));
        let record = Arc::clone(&seen);
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (self_check, answer) = (Arc::new(self_check), Arc::new(answer));
        let accepted = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&accepted);
        let ended = Arc::new(AtomicUsize::new(0));
        let counted_ends = Arc::clone(&ended);
        let task = tokio::spawn(async move {
            // Connections are aborted with the server.
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).ok();
                counted.fetch_add(1, Ordering::SeqCst);
                let (acceptor, record) = (acceptor.clone(), Arc::clone(&record));
                let (self_check, answer) = (Arc::clone(&self_check), Arc::clone(&answer));
                let ended = Arc::clone(&counted_ends);
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                        if let Some(own) = self_check(&request) {
                            let own: ResponseFuture = Box::pin(std::future::ready(own));
                            return Infallibly(own);
                        }
                        record.lock().unwrap().push_back(ReceivedRequest {
                            target: request
                                .uri()
                                .path_and_query()
                                .map(ToString::to_string)
                                .unwrap_or_default(),
                            version: request.version(),
                            headers: request.headers().clone(),
                        });
                        let answering = answer(request);
                        Infallibly(answering)
                    });
                    let io = TokioIo::new(GoServer::new(stream, http2, ended));
                    if http2 {
                        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                            .max_header_list_size(4 << 20)
                            .max_frame_size(MAX_FRAME_SIZE)
                            // h2 counts the reset of an unread body as a local error.
                            .max_local_error_reset_streams(None)
                            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
                            .serve_connection(io, service)
                            .await
                            .ok();
                    } else {
                        hyper::server::conn::http1::Builder::new()
                            .max_headers(8192)
                            .max_buf_size(2 << 20)
                            .serve_connection(io, service)
                            .with_upgrades()
                            .await
                            .ok();
                    }
                });
            }
        });
        Self { address, accepted, ended, seen, task }
    }

    /// The number of accepted connections.
    pub fn connections(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// The number of connections that the server closed due to the header of a request.
    pub fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }

    /// Takes the oldest request.
    pub fn take(&self) -> Option<ReceivedRequest> {
        self.seen.lock().unwrap().pop_front()
    }

    /// The number of received requests that were not taken.
    pub fn pending(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

fn tls_server(
    verifier: Arc<dyn rustls::server::danger::ClientCertVerifier>,
    issued: &Issued,
    alpn: &[&[u8]],
) -> rustls::ServerConfig {
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(issued.chain.clone(), issued.key.clone_key())
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config
}
