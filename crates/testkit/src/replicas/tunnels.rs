//! Tunnels by `exec` to a kubelet that echoes. Each API server has a client certificate of its own for kubelets, so a
//! tunnel knows the server that it goes through.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsAcceptor;

use super::balancer::Balancer;
use super::record::{Kind, Operation, Outcome, Recorder, StreamEnd};
use crate::pki::{Ca, Issued};

/// The path of the `exec` request.
const EXEC: &str = "/api/v1/namespaces/load-0/pods/tunnelled/exec?command=echo&stdin=true&stdout=true";
const ECHO_INTERVAL: Duration = Duration::from_millis(250);
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);
/// The longest response header.
const MAX_HEAD: usize = 16 << 10;

/// The kubelet's server.
pub(super) struct EchoKubelet {
    /// Its port.
    pub(super) port: u16,
    task: JoinHandle<()>,
}

impl EchoKubelet {
    /// Starts a kubelet that expects one of these client certificates.
    pub(super) async fn start(authority: &Ca, serving: &Issued, clients: &[Issued]) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(authority.cert.clone()).unwrap();
        let provider = Arc::new(default_provider());
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
            Arc::new(roots),
            Arc::clone(&provider),
        )
        .build()
        .unwrap();
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(serving.chain.clone(), serving.key.clone_key())
            .unwrap();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let known: Arc<Vec<CertificateDer<'static>>> =
            Arc::new(clients.iter().map(|issued| issued.leaf().clone()).collect());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, known) = (acceptor.clone(), Arc::clone(&known));
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).cloned();
                    let server = known.iter().position(|one| Some(one) == certificate.as_ref());
                    echo(&mut stream, server.unwrap_or_default()).await.ok();
                });
            }
        });
        Self { port, task }
    }
}

impl Drop for EchoKubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Switches protocols, sends the number of the API server, and echoes.
async fn echo<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, server: usize) -> std::io::Result<()> {
    let asked = read_head(stream).await?.to_lowercase();
    let protocol = if asked.contains("upgrade: websocket") { "websocket" } else { "SPDY/3.1" };
    let head =
        format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_u64(u64::try_from(server).unwrap()).await?;
    stream.flush().await?;
    loop {
        let number = stream.read_u64().await?;
        stream.write_u64(number).await?;
        stream.flush().await?;
    }
}

async fn read_head<S: AsyncRead + Unpin>(stream: &mut S) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") && bytes.len() < MAX_HEAD {
        bytes.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A client that holds a tunnel, and opens another one when it ends.
pub struct Tunnel {
    open: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Tunnel {
    /// Starts to hold a tunnel.
    pub fn start(balancer: Arc<Balancer>, recorder: Arc<Recorder>, echoes: Arc<AtomicUsize>) -> Self {
        let open = Arc::new(AtomicUsize::new(0));
        let is_open = Arc::clone(&open);
        let task = tokio::spawn(async move {
            loop {
                hold(&balancer, &recorder, &echoes, &is_open).await;
                is_open.store(0, Ordering::SeqCst);
                sleep(RECONNECT_PAUSE).await;
            }
        });
        Self { open, task }
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst) == 1
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn hold(balancer: &Balancer, recorder: &Recorder, echoes: &AtomicUsize, is_open: &AtomicUsize) {
    let started = Instant::now();
    let (gateway, mut stream) = balancer.connect(false).await;
    let request = format!(
        "POST {EXEC} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n"
    );
    let opening = async {
        stream.write_all(request.as_bytes()).await?;
        let head = read_head(&mut stream).await?;
        if !head.starts_with("HTTP/1.1 101 ") {
            let code = head.get(9..12).and_then(|code| StatusCode::from_bytes(code.as_bytes()).ok());
            return Ok(Err(Outcome::Status(code.unwrap_or_default(), head)));
        }
        let server = usize::try_from(stream.read_u64().await?).unwrap_or_default();
        Ok::<_, std::io::Error>(Ok(server))
    };
    let (server, outcome) = match opening.await {
        Ok(Ok(server)) => (Some(server), Outcome::Success),
        Ok(Err(outcome)) => (None, outcome),
        Err(error) => (None, Outcome::Broken(error.to_string())),
    };
    let (kind, http2, broken, ended) = (Kind::Tunnel, false, Vec::new(), Instant::now());
    recorder.add(Operation { kind, http2, started, ended, gateway, broken, outcome });
    let Some(server) = server else { return };
    is_open.store(1, Ordering::SeqCst);
    let is_clean = exchange(&mut stream, echoes).await.is_ok();
    let (server, at) = (Some(server), Instant::now());
    recorder.add_end(StreamEnd { kind, gateway, server, is_clean, at });
}

/// Sends numbers and expects each one back.
async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    echoes: &AtomicUsize,
) -> std::io::Result<()> {
    for number in 0.. {
        stream.write_u64(number).await?;
        stream.flush().await?;
        if stream.read_u64().await? != number {
            return Err(std::io::Error::other("another number came back"));
        }
        echoes.fetch_add(1, Ordering::Relaxed);
        sleep(ECHO_INTERVAL).await;
    }
    Ok(())
}
