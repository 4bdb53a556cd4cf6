//! The proxies of the comparison, each in its own process: the gateway, HAProxy and nginx.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::gateway_process::GatewayProcess;

use crate::child;
use crate::setup::CommonSetup;

const HAPROXY: &str = include_str!("haproxy.cfg");
const NGINX: &str = include_str!("nginx.conf");
/// How long HAProxy or nginx may take to accept connections.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// The command that installs HAProxy and nginx on Debian.
const INSTALL: [&str; 5] = ["apt-get", "install", "-y", "haproxy", "nginx-light"];

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProxyKind {
    /// The gateway.
    #[value(name = "portcullis")]
    Gateway,
    /// Another build of the gateway, from `--baseline`.
    #[value(skip)]
    Baseline,
    /// HAProxy with HTTP/1.1 to the backend.
    HaproxyHttp1,
    /// HAProxy with HTTP/2 to the backend.
    HaproxyHttp2,
    /// nginx.
    Nginx,
}

impl ProxyKind {
    /// Compared by default, if installed.
    const DEFAULT: [Self; 4] = [Self::Gateway, Self::HaproxyHttp1, Self::HaproxyHttp2, Self::Nginx];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gateway => "portcullis",
            Self::Baseline => "baseline",
            Self::HaproxyHttp1 => "haproxy-http1",
            Self::HaproxyHttp2 => "haproxy-http2",
            Self::Nginx => "nginx",
        }
    }

    pub(crate) fn is_gateway(self) -> bool {
        matches!(self, Self::Gateway | Self::Baseline)
    }

    /// The path of the installed program. The setup knows those of the gateway's builds.
    fn program(self) -> Option<String> {
        let name = match self {
            Self::Gateway | Self::Baseline => return None,
            Self::HaproxyHttp1 | Self::HaproxyHttp2 => "haproxy",
            Self::Nginx => "nginx",
        };
        let path = std::env::var("PATH").unwrap_or_default();
        // Debian installs them in `sbin`, which is only in root's `PATH`.
        let mut places =
            path.split(':').chain(["/usr/sbin", "/usr/local/sbin"]).map(|place| format!("{place}/{name}"));
        places.find(|place| Path::new(place).is_file())
    }

    /// The program's name and version, if it is installed.
    pub(crate) fn version(self) -> Option<String> {
        if self == Self::Gateway {
            return Some(concat!("portcullis ", env!("CARGO_PKG_VERSION")).to_owned());
        }
        let program = self.program()?;
        let output = Command::new(&program).arg("-v").output().ok()?;
        // nginx writes to standard error: `HAProxy version 2.6.12-1 2026/10/17 …`, `nginx version: nginx/1.22.1`.
        let text = String::from_utf8([output.stdout, output.stderr].concat()).ok()?;
        let is_number = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
        let number = text.lines().next()?.split([' ', '/']).find(is_number)?;
        Some(format!("{} {number}", program.rsplit('/').next()?))
    }

    /// Those of the wanted proxies (all, if none is named) whose programs are not installed.
    pub(crate) fn missing(wanted: &[Self]) -> Vec<Self> {
        let is_wanted = |kind: &Self| wanted.is_empty() || wanted.contains(kind);
        Self::DEFAULT.into_iter().filter(|kind| is_wanted(kind) && kind.version().is_none()).collect()
    }

    /// Those whose programs are installed. Reports the missing ones on standard error.
    pub(crate) fn installed(wanted: &[Self]) -> Vec<Self> {
        let missing = Self::missing(wanted);
        for kind in &missing {
            eprintln!("SKIPPED: {} is not installed", kind.name());
        }
        if !missing.is_empty() {
            eprintln!("To compare with all proxies: {}, or run this with --install", INSTALL.join(" "));
        }
        let is_measured = |kind: &Self| wanted.is_empty() || wanted.contains(kind);
        Self::DEFAULT.into_iter().filter(|kind| is_measured(kind) && !missing.contains(kind)).collect()
    }
}

/// Installs HAProxy and nginx.
pub(crate) fn install() {
    let done = Command::new(INSTALL[0]).args(&INSTALL[1..]).stdout(Stdio::null()).status();
    assert!(done.is_ok_and(|done| done.success()), "`{}` failed", INSTALL.join(" "));
}

/// A running proxy.
pub(crate) enum Proxy {
    Gateway(Box<GatewayProcess>),
    Other(OtherProcess),
}

/// HAProxy or nginx. Killed when this is dropped.
pub(crate) struct OtherProcess {
    child: Child,
    address: SocketAddr,
}

impl Proxy {
    pub(crate) async fn start(kind: ProxyKind, setup: &CommonSetup) -> Self {
        let directory = setup.pki.directory.path().display().to_string();
        let (name, template) = match kind {
            ProxyKind::Gateway => return Self::gateway_with(setup, &[]).await,
            ProxyKind::Baseline => return Self::gateway(setup.baseline.as_ref().unwrap(), setup, &[]).await,
            ProxyKind::HaproxyHttp1 | ProxyKind::HaproxyHttp2 => ("haproxy.cfg", HAPROXY),
            ProxyKind::Nginx => ("nginx.conf", NGINX),
        };
        let address = free_address();
        let config = template
            .replace("{threads}", &setup.threads.to_string())
            .replace("{port}", &address.port().to_string())
            .replace("{directory}", &directory)
            .replace("{backend}", &setup.backend.to_string())
            .replace("{alpn}", if kind == ProxyKind::HaproxyHttp2 { "h2" } else { "http/1.1" });
        let config = setup.pki.write(&format!("{}-{name}", address.port()), config);
        let mut command = child::command(kind.program().unwrap());
        match kind {
            ProxyKind::Nginx => command.arg("-p").arg(&directory).arg("-c"),
            _ => command.args(["-db", "-f"]),
        };
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
        Self::gateway(&setup.program, setup, flags).await
    }

    async fn gateway(program: &Path, setup: &CommonSetup, flags: &[String]) -> Self {
        Self::serve(child::command(program), setup, flags).await
    }

    /// Starts the gateway by this command, which begins its command line.
    pub(crate) async fn serve(mut command: Command, setup: &CommonSetup, flags: &[String]) -> Self {
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
