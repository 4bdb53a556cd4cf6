//! A running gateway as its clients see it, and the flags that most tests start one with.

use std::any::Any;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::connection::{Http1, Http2};
use crate::metrics::sum_metric;
use crate::pki::Issued;
use crate::test_pki::Pki;
use crate::tls::{identified, tls_client};
use crate::waiting::{TEST_TIMEOUT, in_time};

/// The longest pause between two looks at all metrics.
const MAX_METRICS_PAUSE: Duration = Duration::from_millis(40);

/// A gateway in this process, or the addresses of a gateway in another process.
pub struct Gateway {
    /// The address for clients.
    pub address: SocketAddr,
    /// The address of the metrics port.
    pub metrics: Option<SocketAddr>,
    checked: AtomicBool,
    /// The server in this process, which stops when this is dropped.
    server: Option<Box<dyn Any + Send + Sync>>,
}

/// The flags of a gateway with client certificates, the tokens `good-token` (carol, groups a and b, uid 7) and
/// `nameless`, and front proxies named `proxy`.
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

/// The flags of a gateway with several clusters. Writes its serving certificate for `names`, `NAME.kubeconfig` for each
/// backend (host and port, optionally with a path), and the configuration file, which ends in `clusters`, a list in
/// YAML.
pub fn cluster_flags(pki: &Pki, names: &[&str], backends: &[(&str, String)], clusters: &str) -> Vec<String> {
    let (cert, key) = pki.write_pair("front", &pki.front.leaf().cn("portcullis").issue());
    let ca = pki.write("servers-ca.crt", pki.servers.cert_pem());
    for (name, backend) in backends {
        pki.write(&format!("{name}.kubeconfig"), kubeconfig(backend, &ca, &cert, &key));
    }
    pki.write_pair("gateway", &pki.servers.server(names));
    let head = "apiVersion: portcullis.dev/v1alpha1
kind: GatewayConfiguration
serving: {bindAddress: 127.0.0.1, securePort: 0, tlsCertFile: gateway.crt, tlsPrivateKeyFile: gateway.key}
operation: {metricsBindAddress: '127.0.0.1:0', workers: 1}
clusters:
";
    let file = pki.write("gateway.yaml", format!("{head}{clusters}"));
    vec![format!("--config={}", file.display())]
}

/// The gateway's kubeconfig for a backend, with its front-proxy certificate.
pub fn kubeconfig(backend: impl Display, ca: &Path, cert: &Path, key: &Path) -> String {
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

impl Gateway {
    /// A gateway in another process, whose self-check has ended.
    pub fn at(address: SocketAddr, metrics: Option<SocketAddr>) -> Self {
        Self { address, metrics, checked: true.into(), server: None }
    }

    /// A gateway in this process, which stops when `server` is dropped.
    pub fn in_process(
        address: SocketAddr,
        metrics: Option<SocketAddr>,
        server: impl Any + Send + Sync,
    ) -> Self {
        Self { address, metrics, checked: false.into(), server: Some(Box::new(server)) }
    }

    /// The server in this process, if it is a `T`.
    pub fn running<T: Any>(&self) -> Option<&T> {
        self.server.as_ref()?.downcast_ref()
    }

    /// Takes the server in this process, if it is a `T`.
    pub fn take_running<T: Any>(&mut self) -> Option<T> {
        self.server.take()?.downcast().ok().map(|server| *server)
    }

    /// The response of the metrics port to a GET, with its header.
    pub async fn metrics(&self, path: &str) -> String {
        self.admin(path, "").await
    }

    /// The metrics in the format that this `Accept` asks for, with the header of the response.
    pub async fn metrics_as(&self, accept: &str) -> String {
        self.admin("/metrics", &format!("Accept: {accept}\r\n")).await
    }

    /// The response of the metrics port to a GET with these header lines, with its header.
    pub async fn admin(&self, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(self.metrics.unwrap()).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{headers}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        in_time(stream.read_to_string(&mut answer)).await.unwrap();
        answer
    }

    /// Waits for the end of the self-check, until which the gateway answers 503.
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

    /// The value of a metric with its labels, 0 if it is missing.
    pub async fn count(&self, metric: &str) -> u64 {
        let metrics = self.metrics("/metrics").await;
        let value = metrics.lines().find_map(|line| line.strip_prefix(metric)?.trim().parse().ok());
        value.unwrap_or_default()
    }

    /// The sum of a metric over all series with these labels.
    pub async fn count_all(&self, metric: &str, labels: &[&str]) -> u64 {
        sum_metric(&self.metrics("/metrics").await, metric, labels)
    }

    /// Waits until the metrics contain this line.
    pub async fn until_counted(&self, line: &str) {
        self.until_counted_as(line, |found| found == line).await;
    }

    /// Waits until a line of the metrics satisfies `holds`; `line` names it in the failure.
    pub async fn until_counted_as(&self, line: &str, holds: impl Fn(&str) -> bool) {
        let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
        // All metrics are written each time, which takes processor time from the other tests.
        let mut pause = Duration::from_millis(5);
        loop {
            let metrics = self.metrics("/metrics").await;
            if metrics.lines().any(&holds) {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{line} never appeared in\n{metrics}");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_METRICS_PAUSE);
        }
    }

    /// A TLS connection to the gateway.
    pub async fn tls(&self, alpn: &[u8], identity: Option<&Issued>) -> TlsStream<TcpStream> {
        self.tls_as(ServerName::try_from("localhost").unwrap(), alpn, identity).await
    }

    /// A TLS connection with this server name (SNI).
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

    /// A TLS connection with these settings.
    pub async fn tls_with(
        &self,
        name: ServerName<'static>,
        config: Arc<rustls::ClientConfig>,
    ) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        in_time(TlsConnector::from(config).connect(name, stream)).await.unwrap()
    }

    /// Whether a server that is still starting already completes TLS handshakes.
    pub async fn serves_tls(&self) -> bool {
        let config = Arc::new(identified(tls_client(rustls::DEFAULT_VERSIONS), None));
        let Ok(stream) = TcpStream::connect(self.address).await else { return false };
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(config).connect(name, stream).await.is_ok()
    }

    /// A TLS handshake with a certificate resolver.
    pub async fn handshake(&self, resolver: Arc<dyn rustls::client::ResolvesClientCert>) {
        let config = tls_client(rustls::DEFAULT_VERSIONS).with_client_cert_resolver(resolver);
        self.tls_with(ServerName::try_from("localhost").unwrap(), Arc::new(config)).await;
    }

    /// A connection over HTTP/1.1.
    pub async fn http1(&self, identity: Option<&Issued>) -> Http1 {
        self.http1_over(self.tls(b"http/1.1", identity).await).await
    }

    /// HTTP/1.1 on a TLS connection.
    pub async fn http1_over(&self, stream: TlsStream<TcpStream>) -> Http1 {
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let task = tokio::spawn(async move {
            connection.with_upgrades().await.ok();
        });
        Http1 { sender, task, address: self.address }
    }

    /// A connection over HTTP/2.
    pub async fn http2(&self, identity: Option<&Issued>) -> Http2 {
        self.http2_over(self.tls(b"h2", identity).await).await
    }

    /// HTTP/2 on a TLS connection.
    pub async fn http2_over(&self, stream: TlsStream<TcpStream>) -> Http2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        self.http2_by(builder.max_header_list_size(4 << 20), stream).await
    }

    /// HTTP/2 with these settings.
    pub(crate) async fn http2_by(
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
