//! The proxies of the comparison, each in its own process.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use testkit::gateway_process::GatewayProcess;

use crate::child;
use crate::setup::CommonSetup;

const HAPROXY: &str = include_str!("haproxy.cfg");
const NGINX: &str = include_str!("nginx.conf");
const ENVOY: &str = include_str!("envoy.yaml");
/// How long another proxy may take to accept connections.
const START_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProxyKind {
    /// The gateway.
    #[value(name = "portcullis")]
    Gateway,
    /// Another build of the gateway, from `--baseline`.
    Baseline,
    /// HAProxy with HTTP/1.1 to the backend.
    HaproxyHttp1,
    /// HAProxy with HTTP/2 to the backend.
    HaproxyHttp2,
    /// A newer HAProxy with HTTP/1.1 to the backend.
    NewerHaproxyHttp1,
    /// A newer HAProxy with HTTP/2 to the backend.
    NewerHaproxyHttp2,
    /// nginx.
    Nginx,
    /// Envoy, which sends the whole subject of the certificate as the user, and no group of it.
    Envoy,
}

impl ProxyKind {
    /// All, in the order of the columns.
    pub(crate) const ALL: [Self; 8] = [
        Self::Gateway,
        Self::Baseline,
        Self::HaproxyHttp1,
        Self::HaproxyHttp2,
        Self::NewerHaproxyHttp1,
        Self::NewerHaproxyHttp2,
        Self::Nginx,
        Self::Envoy,
    ];

    /// The builds and configurations of HAProxy, of which the faster one counts.
    pub(crate) const HAPROXIES: [Self; 4] =
        [Self::HaproxyHttp1, Self::HaproxyHttp2, Self::NewerHaproxyHttp1, Self::NewerHaproxyHttp2];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gateway => "portcullis",
            Self::Baseline => "baseline",
            Self::HaproxyHttp1 => "haproxy-http1",
            Self::HaproxyHttp2 => "haproxy-http2",
            Self::NewerHaproxyHttp1 => "newer-haproxy-http1",
            Self::NewerHaproxyHttp2 => "newer-haproxy-http2",
            Self::Nginx => "nginx",
            Self::Envoy => "envoy",
        }
    }

    pub(crate) fn is_gateway(self) -> bool {
        matches!(self, Self::Gateway | Self::Baseline)
    }

    /// Whether it speaks HTTP/2 to the backend, if it can be told.
    fn backend_protocol(self) -> &'static str {
        match self {
            Self::HaproxyHttp2 | Self::NewerHaproxyHttp2 => "h2",
            _ => "http/1.1",
        }
    }
}

/// A running proxy.
pub(crate) enum Proxy {
    Gateway(Box<GatewayProcess>),
    Other(OtherProcess),
}

/// HAProxy, nginx or Envoy. Killed when this is dropped.
pub(crate) struct OtherProcess {
    child: Child,
    address: SocketAddr,
}

impl Proxy {
    pub(crate) async fn start(kind: ProxyKind, setup: &CommonSetup) -> Self {
        let directory = setup.pki.directory.path().display().to_string();
        let (name, template) = match kind {
            ProxyKind::Gateway | ProxyKind::Baseline => return Self::gateway(kind, setup, &[]).await,
            ProxyKind::Nginx => ("nginx.conf", NGINX),
            ProxyKind::Envoy => ("envoy.yaml", ENVOY),
            _ => ("haproxy.cfg", HAPROXY),
        };
        let address = free_address();
        let config = template
            .replace("{threads}", &setup.threads.to_string())
            .replace("{port}", &address.port().to_string())
            .replace("{directory}", &directory)
            .replace("{backend}", &setup.backend.to_string())
            .replace("{backend_port}", &setup.backend.port().to_string())
            .replace("{alpn}", kind.backend_protocol());
        let config = setup.pki.write(&format!("{}-{name}", address.port()), config);
        let program = setup.programs.of(kind).unwrap();
        let mut command = child::command(&program);
        match kind {
            ProxyKind::Nginx => command.arg("-p").arg(&directory).arg("-c"),
            ProxyKind::Envoy => {
                let threads = setup.threads.to_string();
                command.args([
                    "--log-level",
                    "warn",
                    "--use-dynamic-base-id",
                    "--concurrency",
                    &threads,
                    "-c",
                ])
            }
            _ => command.args(["-db", "-f"]),
        };
        // The newer HAProxy brings the libraries that it was linked with.
        command.env("LD_LIBRARY_PATH", program.with_file_name("lib"));
        let log_path = setup.pki.directory.path().join(format!("{}-{name}.log", address.port()));
        let log = File::create(&log_path).unwrap();
        let child =
            command.arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut process = OtherProcess { child, address };
        process.wait_until_ready(kind, &log_path).await;
        Self::Other(process)
    }

    /// The gateway with further flags.
    pub(crate) async fn gateway_with(setup: &CommonSetup, flags: &[String]) -> Self {
        Self::gateway(ProxyKind::Gateway, setup, flags).await
    }

    async fn gateway(build: ProxyKind, setup: &CommonSetup, flags: &[String]) -> Self {
        let mut command = child::command(setup.programs.of(build).unwrap());
        command.arg("serve").args(&setup.flags).args(flags);
        Self::Gateway(Box::new(GatewayProcess::serve(command).await))
    }

    /// Ends the proxy; the gateway as an operator does, so that it can write what it has collected.
    pub(crate) async fn end(self) {
        if let Self::Gateway(process) = self {
            let (status, log) = process.end().await;
            assert!(status.success(), "the gateway failed: {log}");
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::Gateway(process) => process.gateway.address,
            Self::Other(process) => process.address,
        }
    }

    pub(crate) fn process_id(&self) -> u32 {
        match self {
            Self::Gateway(process) => process.id(),
            Self::Other(process) => process.child.id(),
        }
    }
}

impl OtherProcess {
    async fn wait_until_ready(&mut self, kind: ProxyKind, log_path: &Path) {
        let deadline = Instant::now() + START_TIMEOUT;
        while tokio::net::TcpStream::connect(self.address).await.is_err() {
            let exited = self.child.try_wait().unwrap();
            let log = || std::fs::read_to_string(log_path).unwrap();
            assert!(exited.is_none(), "{} exited: {}", kind.name(), log());
            assert!(Instant::now() < deadline, "{} does not accept connections", kind.name());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A free local address.
fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}
