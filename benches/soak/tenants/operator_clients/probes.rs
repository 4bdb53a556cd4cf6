//! Probes of both ports, as the kubelet and load balancers send them: a connection each.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::ClientContext;
use crate::tenants::connection::tls;
use crate::tenants::figures::PROBE_TIMEOUT;
use crate::tenants::outcomes::ClientKind;

const PROBE_INTERVAL: Duration = Duration::from_secs(1);
const ENDPOINTS: [&str; 2] = ["/livez", "/readyz"];

impl ClientContext {
    pub(super) async fn probe_regularly(self) {
        let each = |context: Self| async move {
            let probes = ENDPOINTS.map(|path| {
                let (metrics, main) = (context.site.process.gateway.metrics, context.site.address());
                let path_of_own = format!("/own{path}");
                let context = &context;
                async move {
                    context.probe(ClientKind::MetricsProbe, on_metrics_port(metrics.unwrap(), path)).await;
                    context.probe(ClientKind::Probe, on_main_port(main, &path_of_own)).await;
                }
            });
            futures_util::future::join_all(probes).await;
        };
        self.regularly(PROBE_INTERVAL, each).await;
    }

    async fn probe(&self, kind: ClientKind, probe: impl Future<Output = std::io::Result<String>>) {
        let started = Instant::now();
        let error = match timeout(PROBE_TIMEOUT, probe).await {
            Ok(Ok(answer)) if answer.starts_with("HTTP/1.1 200") => None,
            Ok(Ok(answer)) => Some(answer.lines().next().unwrap_or_default().to_owned()),
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("no answer in time".to_owned()),
        };
        self.outcomes.record(kind, started.elapsed(), error);
    }
}

async fn on_metrics_port(address: SocketAddr, path: &str) -> std::io::Result<String> {
    ask(TcpStream::connect(address).await?, path).await
}

async fn on_main_port(address: SocketAddr, path: &str) -> std::io::Result<String> {
    ask(tls(address, b"http/1.1", None).await?, path).await
}

/// The response to a GET request.
async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, path: &str) -> std::io::Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    // A server may close without the end of TLS.
    let read = stream.read_to_end(&mut answer).await;
    if answer.is_empty() {
        read?;
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
