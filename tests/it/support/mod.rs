//! A gateway in this process, a small real server behind it, and clients that can send odd things: what the other
//! modules of these tests are written with.

use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use clap::Parser;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use portcullis::config::ConfigErrors;
use portcullis::config::flags::ServeFlags;
use portcullis::config::resolve::{ResolvedConfig, resolve};
use portcullis::config::settings::ClientLimits;
use portcullis::config::source::ConfigSource;
use portcullis::server::Server;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::pki::{Ca, Issued};
use go_server::{GoServer, MAX_FRAME_SIZE};

pub mod accounts;
pub mod asked;
pub mod body;
pub mod client;
pub mod cluster;
pub mod frames;
pub mod generation;
pub mod go;
pub mod go_server;
pub mod issuer;
pub mod large;
pub mod others;
pub mod process;
pub mod questions;
pub mod wire;

/// What a backend offers: HTTP/2 too, or HTTP/1.1 alone.
pub const H2: &[&[u8]] = &[b"h2", b"http/1.1"];
pub const H1: &[&[u8]] = &[b"http/1.1"];

/// How long anything here may take; reached only by a test that fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Requests of one connection that are taken back before they are begun, as Go's server bears them; h2 bears 20.
// Go: net/http/h2_bundle.go, scheduleHandler; 250 streams are what kube-apiserver allows
const MOST_UNBEGUN: usize = 4 * 250;

pub type BoxedError = Box<dyn std::error::Error + Send + Sync>;
pub type BoxedBody = BoxBody<Bytes, BoxedError>;
pub type Answering = Pin<Box<dyn Future<Output = Response<BoxedBody>> + Send>>;

/// Waits, but not forever.
pub async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("it should have happened by now")
}

/// Waits until something holds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "{what} never happened");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub fn full(bytes: impl Into<Bytes>) -> BoxedBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

pub fn empty() -> BoxedBody {
    Empty::new().map_err(|never| match never {}).boxed()
}

/// The authorities of one test.
pub struct Pki {
    pub directory: tempfile::TempDir,
    pub servers: Ca,
    pub clients: Ca,
    pub front: Ca,
    pub client_front: Ca,
}

impl Pki {
    pub fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            servers: Ca::new("servers"),
            clients: Ca::new("clients"),
            front: Ca::new("front"),
            client_front: Ca::new("front proxies of clients"),
        }
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub fn write_pair(&self, name: &str, issued: &Issued) -> (PathBuf, PathBuf) {
        (
            self.write(&format!("{name}.crt"), issued.cert_pem()),
            self.write(&format!("{name}.key"), issued.key_pem()),
        )
    }
}

/// What the backend received, without its body.
#[derive(Debug, Clone)]
pub struct Seen {
    pub target: String,
    pub version: Version,
    pub headers: HeaderMap,
}

impl Seen {
    /// Every value of a header, in order.
    pub fn all(&self, name: &str) -> Vec<String> {
        self.headers
            .get_all(name)
            .iter()
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect()
    }
}

/// A server that requires the gateway's certificate, records what it gets and answers as it is told.
pub struct Backend {
    pub address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
    seen: Arc<Mutex<VecDeque<Seen>>>,
    task: tokio::task::JoinHandle<()>,
}

/// An answer that never fails.
struct Served(Answering);

impl Future for Served {
    type Output = Result<Response<BoxedBody>, std::convert::Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
        self.0.as_mut().poll(cx).map(Ok)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Backend {
    /// Answers `200 ok` to everything.
    pub async fn plain(pki: &Pki) -> Self {
        Self::start(pki, H2, |_| Box::pin(async { Response::new(full("ok")) })).await
    }

    pub async fn start(
        pki: &Pki,
        alpn: &[&[u8]],
        answer: impl Fn(Request<Incoming>) -> Answering + Send + Sync + 'static,
    ) -> Self {
        Self::start_saying(pki, alpn, questions::answer, answer).await
    }

    /// One that answers the gateway's own questions as `say` tells.
    pub async fn start_saying(
        pki: &Pki,
        alpn: &[&[u8]],
        say: impl Fn(&Request<Incoming>) -> Option<Response<BoxedBody>> + Send + Sync + 'static,
        answer: impl Fn(Request<Incoming>) -> Answering + Send + Sync + 'static,
    ) -> Self {
        let issued = pki.servers.server(&["backend.test"]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from(pem_to_der(&pki.front.cert_pem()))).unwrap();
        let provider = Arc::new(default_provider());
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .unwrap();
        Self::serve(listener, tls_server(verifier, &issued, alpn), say, answer)
    }

    /// One that asks for no certificate, at this listener: what an issuer or a webhook is made of.
    pub fn of_everybody(
        pki: &Pki,
        listener: TcpListener,
        answer: impl Fn(Request<Incoming>) -> Answering + Send + Sync + 'static,
    ) -> Self {
        let verifier = rustls::server::WebPkiClientVerifier::no_client_auth();
        Self::serve(listener, tls_server(verifier, &pki.servers.server(&["127.0.0.1"]), H2), |_| None, answer)
    }

    fn serve(
        listener: TcpListener,
        config: rustls::ServerConfig,
        say: impl Fn(&Request<Incoming>) -> Option<Response<BoxedBody>> + Send + Sync + 'static,
        answer: impl Fn(Request<Incoming>) -> Answering + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(VecDeque::new()));
        let record = Arc::clone(&seen);
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (say, answer) = (Arc::new(say), Arc::new(answer));
        let accepted = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&accepted);
        let ended = Arc::new(AtomicUsize::new(0));
        let counted_ends = Arc::clone(&ended);
        let task = tokio::spawn(async move {
            // They end with it.
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).ok();
                counted.fetch_add(1, Ordering::SeqCst);
                let (acceptor, record) = (acceptor.clone(), Arc::clone(&record));
                let (say, answer) = (Arc::clone(&say), Arc::clone(&answer));
                let ended = Arc::clone(&counted_ends);
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                        if let Some(own) = say(&request) {
                            let own: Answering = Box::pin(std::future::ready(own));
                            return Served(own);
                        }
                        record.lock().unwrap().push_back(Seen {
                            target: request
                                .uri()
                                .path_and_query()
                                .map(ToString::to_string)
                                .unwrap_or_default(),
                            version: request.version(),
                            headers: request.headers().clone(),
                        });
                        let answering = answer(request);
                        Served(answering)
                    });
                    let io = TokioIo::new(GoServer::new(stream, http2, ended));
                    if http2 {
                        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                            .max_header_list_size(4 << 20)
                            .max_frame_size(MAX_FRAME_SIZE)
                            // A body that nobody reads counts as one.
                            .max_local_error_reset_streams(None)
                            .max_pending_accept_reset_streams(MOST_UNBEGUN)
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

    /// How many connections were made to it so far.
    pub fn connections(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// How many connections it ended because of the header of one request.
    pub fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }

    /// The oldest request that was not taken yet.
    pub fn take(&self) -> Option<Seen> {
        self.seen.lock().unwrap().pop_front()
    }

    /// How many requests came and were not taken.
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

/// A gateway in this process, or what is known of one in another.
pub struct Gateway {
    pub server: Option<Server>,
    pub address: SocketAddr,
    pub metrics: Option<SocketAddr>,
    pub checked: AtomicBool,
}

#[derive(Parser)]
pub struct Flags {
    #[command(flatten)]
    pub serve: ServeFlags,
}

/// The flags of a gateway with every method on: certificates, tokens `good-token` (carol, groups a and b, uid 7) and
/// `nameless`, front proxies named `proxy`.
pub fn flags(pki: &Pki, backend: SocketAddr) -> Vec<String> {
    let (cert, key) = pki.write_pair("gateway", &pki.servers.server(&["localhost"]));
    let front = pki.front.leaf().cn("portcullis").issue();
    let (front_cert, front_key) = pki.write_pair("front", &front);
    let server_ca = pki.write("servers-ca.crt", pki.servers.cert_pem());
    let client_ca = pki.write("clients-ca.crt", pki.clients.cert_pem());
    let front_ca = pki.write("client-front-ca.crt", pki.client_front.cert_pem());
    let tokens = pki.write(
        "tokens.csv",
        "good-token,carol,7,\"a,b\"\nnameless,,8\nmasters,padded,9,\"system:masters \"\n",
    );
    let kubeconfig =
        pki.write("backend.kubeconfig", kubeconfig(backend, &server_ca, &front_cert, &front_key));
    let path = |path: &Path| path.display().to_string();
    [
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        "--metrics-bind-address=127.0.0.1:0",
        "--workers=1",
        "--requestheader-allowed-names=proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-uid-headers=X-Remote-Uid",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
    ]
    .into_iter()
    .map(str::to_owned)
    .chain([
        format!("--tls-cert-file={}", path(&cert)),
        format!("--tls-private-key-file={}", path(&key)),
        format!("--client-ca-file={}", path(&client_ca)),
        format!("--token-auth-file={}", path(&tokens)),
        format!("--requestheader-client-ca-file={}", path(&front_ca)),
        format!("--backend-kubeconfig={}", path(&kubeconfig)),
    ])
    .collect()
}

pub fn kubeconfig(backend: SocketAddr, ca: &Path, cert: &Path, key: &Path) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: b, cluster: {{server: 'https://{backend}', certificate-authority: {}, tls-server-name: backend.test}}}}]\n\
         users: [{{name: u, user: {{client-certificate: {}, client-key: {}}}}}]\n\
         contexts: [{{name: c, context: {{cluster: b, user: u}}}}]\n",
        ca.display(),
        cert.display(),
        key.display()
    )
}

/// What a command line resolves to.
pub fn resolved(flags: impl IntoIterator<Item = String>) -> Result<ResolvedConfig, ConfigErrors> {
    let parsed = Flags::parse_from(std::iter::once("serve".to_owned()).chain(flags));
    resolve(&parsed.serve, &mut portcullis::config::inputs::ConfigInputs::default())
}

impl Gateway {
    /// In front of `backend`, with [`flags`].
    pub fn start(pki: &Pki, backend: &Backend) -> Self {
        Self::with(flags(pki, backend.address))
    }

    pub fn with(flags: Vec<String>) -> Self {
        Self::limited(flags, |_| {})
    }

    /// One whose limits a test can reach.
    pub fn limited(flags: Vec<String>, limit: impl FnOnce(&mut ClientLimits)) -> Self {
        let parsed = Flags::parse_from(std::iter::once("serve".to_owned()).chain(flags));
        let mut source = ConfigSource::new(parsed.serve);
        let mut resolved = source.load().unwrap_or_else(|errors| panic!("{errors}"));
        limit(&mut resolved.settings.serving.limits);
        let server = Server::start(&resolved.settings, source).unwrap();
        Self {
            address: server.address(),
            metrics: server.metrics_address(),
            server: Some(server),
            checked: AtomicBool::new(false),
        }
    }

    /// What the port for metrics answers, header and all.
    pub async fn metrics(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.metrics.unwrap()).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        soon(stream.read_to_string(&mut answer)).await.unwrap();
        answer
    }

    /// Waits until the gateway has looked at its backend: before, it answers 503.
    pub async fn checked(&self) {
        if self.metrics.is_none() || self.checked.load(Ordering::Relaxed) {
            return;
        }
        self.until_counted_as("portcullis_endpoint_trusted{", |line| {
            line.starts_with("portcullis_endpoint_trusted{")
        })
        .await;
        self.checked.store(true, Ordering::Relaxed);
    }

    /// The value of a metric with its labels, 0 if there is none.
    pub async fn count(&self, metric: &str) -> u64 {
        let metrics = self.metrics("/metrics").await;
        let value = metrics.lines().find_map(|line| line.strip_prefix(metric)?.trim().parse().ok());
        value.unwrap_or_default()
    }

    /// The sum of a metric over all series with these labels.
    pub async fn count_all(&self, metric: &str, labels: &[&str]) -> u64 {
        sum(&self.metrics("/metrics").await, metric, labels)
    }

    /// Waits until the metrics have this line.
    pub async fn until_counted(&self, line: &str) {
        self.until_counted_as(line, |found| found == line).await;
    }

    pub async fn until_counted_as(&self, line: &str, holds: impl Fn(&str) -> bool) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let metrics = self.metrics("/metrics").await;
            if metrics.lines().any(&holds) {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{line} never came up in\n{metrics}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A TLS connection to the gateway.
    pub async fn tls(&self, alpn: &[u8], identity: Option<&Issued>) -> TlsStream<TcpStream> {
        self.tls_as(ServerName::try_from("localhost").unwrap(), alpn, identity).await
    }

    /// A TLS connection that asks for a server name.
    pub async fn tls_as(
        &self,
        name: ServerName<'static>,
        alpn: &[u8],
        identity: Option<&Issued>,
    ) -> TlsStream<TcpStream> {
        self.checked().await;
        let mut config = identified(tls_client(rustls::DEFAULT_VERSIONS), identity);
        config.alpn_protocols = vec![alpn.to_vec()];
        self.tls_with(name, Arc::new(config)).await
    }

    /// A TLS connection by the test's own settings.
    pub async fn tls_with(
        &self,
        name: ServerName<'static>,
        config: Arc<rustls::ClientConfig>,
    ) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        soon(TlsConnector::from(config).connect(name, stream)).await.unwrap()
    }

    /// A handshake with a resolver of the test's, and nothing more.
    pub async fn handshake(&self, resolver: Arc<dyn rustls::client::ResolvesClientCert>) {
        let config = tls_client(rustls::DEFAULT_VERSIONS).with_client_cert_resolver(resolver);
        self.tls_with(ServerName::try_from("localhost").unwrap(), Arc::new(config)).await;
    }

    pub async fn http1(&self, identity: Option<&Issued>) -> Http1 {
        self.http1_over(self.tls(b"http/1.1", identity).await).await
    }

    pub async fn http1_over(&self, stream: TlsStream<TcpStream>) -> Http1 {
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let task = tokio::spawn(async move {
            connection.with_upgrades().await.ok();
        });
        Http1 { sender, task, address: self.address }
    }

    pub async fn http2(&self, identity: Option<&Issued>) -> Http2 {
        self.http2_over(self.tls(b"h2", identity).await).await
    }

    pub async fn http2_over(&self, stream: TlsStream<TcpStream>) -> Http2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        self.http2_by(builder.max_header_list_size(4 << 20), stream).await
    }

    /// One with settings of the test's.
    pub async fn http2_by(
        &self,
        builder: &http2::Builder<TokioExecutor>,
        stream: TlsStream<TcpStream>,
    ) -> Http2 {
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        let task = tokio::spawn(async move {
            connection.await.ok();
        });
        Http2 { sender, task, address: self.address }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.server.take());
    }
}

pub struct Http1 {
    pub sender: hyper::client::conn::http1::SendRequest<BoxedBody>,
    pub task: tokio::task::JoinHandle<()>,
    address: SocketAddr,
}

pub struct Http2 {
    pub sender: http2::SendRequest<BoxedBody>,
    pub task: tokio::task::JoinHandle<()>,
    address: SocketAddr,
}

impl Http1 {
    pub async fn send(&mut self, request: Request<BoxedBody>) -> hyper::Result<Response<Incoming>> {
        let (mut head, body) = request.into_parts();
        head.headers.entry("host").or_insert_with(|| self.address.to_string().parse().unwrap());
        soon(self.sender.ready()).await?;
        soon(self.sender.send_request(Request::from_parts(head, body))).await
    }

    pub async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Response<Incoming> {
        self.send(get(path, headers)).await.unwrap()
    }
}

impl Http2 {
    /// The same connection, for requests beside those of this one.
    pub fn share(&self) -> Self {
        let task = tokio::spawn(std::future::ready(()));
        Self { sender: self.sender.clone(), task, address: self.address }
    }

    pub async fn send(&mut self, request: Request<BoxedBody>) -> hyper::Result<Response<Incoming>> {
        let (mut head, body) = request.into_parts();
        let path = head.uri.path_and_query().map(|target| target.as_str().to_owned()).unwrap_or_default();
        let host = head.headers.remove("host");
        let host = host.map_or_else(|| self.address.to_string(), |host| host.to_str().unwrap().to_owned());
        head.uri = format!("https://{host}{path}").parse().unwrap();
        soon(self.sender.ready()).await?;
        soon(self.sender.send_request(Request::from_parts(head, body))).await
    }

    pub async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Response<Incoming> {
        self.send(get(path, headers)).await.unwrap()
    }
}

pub fn get(path: &str, headers: &[(&str, &str)]) -> Request<BoxedBody> {
    let mut request = Request::builder().uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(empty()).unwrap()
}

pub async fn text(response: Response<Incoming>) -> String {
    let bytes = soon(response.into_body().collect()).await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The sum of a metric over all series with these labels, in the text that a server tells its metrics in.
pub fn sum(metrics: &str, metric: &str, labels: &[&str]) -> u64 {
    let of_metric = |line: &&str| line.strip_prefix(metric).is_some_and(|rest| rest.starts_with('{'));
    let labelled = |line: &&str| labels.iter().all(|label| line.contains(label));
    let value = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
    metrics.lines().filter(of_metric).filter(labelled).filter_map(value).sum()
}

/// The code and the `Status` body of a refusal.
pub async fn status(response: Response<Incoming>) -> (StatusCode, serde_json::Value) {
    let code = response.status();
    let body = text(response).await;
    (code, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{code} {body:?}: {error}")))
}

fn pem_to_der(pem: &str) -> Vec<u8> {
    use rustls_pki_types::pem::PemObject as _;
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec()
}

pub type TlsClient = rustls::ConfigBuilder<rustls::ClientConfig, rustls::client::WantsClientCert>;

/// The beginnings of a client that takes any server for the gateway.
pub fn tls_client(versions: &[&'static rustls::SupportedProtocolVersion]) -> TlsClient {
    tls_client_by(default_provider(), versions)
}

/// One whose cryptography is chosen.
pub fn tls_client_by(
    provider: CryptoProvider,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> TlsClient {
    rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer))
}

/// The client, with a certificate if it has one.
pub fn identified(client: TlsClient, identity: Option<&Issued>) -> rustls::ClientConfig {
    match identity {
        Some(issued) => client.with_client_auth_cert(issued.chain.clone(), issued.key.clone_key()).unwrap(),
        None => client.with_no_client_auth(),
    }
}

/// The gateway's own certificate is not what these tests are about.
#[derive(Debug)]
pub struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
