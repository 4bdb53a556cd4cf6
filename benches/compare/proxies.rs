//! The proxies that are compared, each a process of its own: the gateway, and what it is measured against.

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
/// How long a competitor may take to serve.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// What installs the others on Debian.
const INSTALL: [&str; 5] = ["apt-get", "install", "-y", "haproxy", "nginx-light"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Gateway,
    /// Another build of the gateway, given with `--baseline`.
    Baseline,
    /// With HTTP/1.1 to the backend.
    HaproxyHttp1,
    /// With HTTP/2 to the backend.
    HaproxyHttp2,
    Nginx,
}

impl Kind {
    /// Those that are always compared, if they are installed.
    const ALWAYS: [Self; 4] = [Self::Gateway, Self::HaproxyHttp1, Self::HaproxyHttp2, Self::Nginx];

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

    /// Its program, where it is; the gateway's is built with this, and the baseline's is an option.
    fn program(self) -> Option<String> {
        let name = match self {
            Self::Gateway => return Some(env!("CARGO_BIN_EXE_portcullis").to_owned()),
            Self::Baseline => return None,
            Self::HaproxyHttp1 | Self::HaproxyHttp2 => "haproxy",
            Self::Nginx => "nginx",
        };
        let path = std::env::var("PATH").unwrap_or_default();
        // Debian keeps them where only root looks.
        let mut places =
            path.split(':').chain(["/usr/sbin", "/usr/local/sbin"]).map(|place| format!("{place}/{name}"));
        places.find(|place| Path::new(place).is_file())
    }

    /// The program's name and version, if it is there.
    pub(crate) fn version(self) -> Option<String> {
        if self == Self::Gateway {
            return Some(concat!("portcullis ", env!("CARGO_PKG_VERSION")).to_owned());
        }
        let program = self.program()?;
        let said = Command::new(&program).arg("-v").output().ok()?;
        // nginx says it on standard error: `HAProxy version 2.6.12-1 2026/10/17 …`, `nginx version: nginx/1.22.1`.
        let said = String::from_utf8([said.stdout, said.stderr].concat()).ok()?;
        let is_number = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
        let number = said.lines().next()?.split([' ', '/']).find(is_number)?;
        Some(format!("{} {number}", program.rsplit('/').next()?))
    }

    /// Those whose programs are not there.
    pub(crate) fn missing() -> impl Iterator<Item = Self> {
        Self::ALWAYS.into_iter().filter(|kind| kind.version().is_none())
    }

    /// The others; who is left out is said.
    pub(crate) fn present() -> Vec<Self> {
        let missing: Vec<Self> = Self::missing().collect();
        for kind in &missing {
            eprintln!("LEFT OUT: {} is not installed", kind.name());
        }
        if !missing.is_empty() {
            eprintln!("To compare with all proxies: {}, or run this with --install", INSTALL.join(" "));
        }
        Self::ALWAYS.into_iter().filter(|kind| !missing.contains(kind)).collect()
    }
}

/// Installs those that are missing.
pub(crate) fn install() {
    let done = Command::new(INSTALL[0]).args(&INSTALL[1..]).stdout(Stdio::null()).status();
    assert!(done.is_ok_and(|done| done.success()), "`{}` failed", INSTALL.join(" "));
}

/// One that serves.
pub(crate) enum Proxy {
    Gateway(Box<GatewayProcess>),
    Other { child: Child, address: SocketAddr },
}

impl Proxy {
    pub(crate) async fn start(kind: Kind, setup: &CommonSetup) -> Self {
        let directory = setup.pki.directory.path().display().to_string();
        let program = match (kind, &setup.baseline) {
            (Kind::Baseline, Some(baseline)) => baseline.display().to_string(),
            _ => kind.program().unwrap(),
        };
        let mut command = child::command(&program);
        let (name, template) = match kind {
            Kind::Gateway | Kind::Baseline => {
                command.arg("serve").args(&setup.flags);
                return Self::Gateway(Box::new(GatewayProcess::serve(command).await));
            }
            Kind::HaproxyHttp1 | Kind::HaproxyHttp2 => ("haproxy.cfg", HAPROXY),
            Kind::Nginx => ("nginx.conf", NGINX),
        };
        let address = free_address();
        let config = template
            .replace("{threads}", &setup.threads.to_string())
            .replace("{port}", &address.port().to_string())
            .replace("{directory}", &directory)
            .replace("{backend}", &setup.backend.to_string())
            .replace("{alpn}", if kind == Kind::HaproxyHttp2 { "h2" } else { "http/1.1" });
        let config = setup.pki.write(&format!("{}-{name}", address.port()), config);
        match kind {
            Kind::Nginx => command.arg("-p").arg(&directory).arg("-c"),
            _ => command.args(["-db", "-f"]),
        };
        let said = setup.pki.directory.path().join(format!("{}-{name}.log", address.port()));
        let log = File::create(&said).unwrap();
        let child =
            command.arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut proxy = Self::Other { child, address };
        proxy.serves(kind, &said).await;
        proxy
    }

    async fn serves(&mut self, kind: Kind, said: &Path) {
        let deadline = Instant::now() + START_TIMEOUT;
        while tokio::net::TcpStream::connect(self.address()).await.is_err() {
            if let Self::Other { child, .. } = self {
                let ended = child.try_wait().unwrap();
                let said = || std::fs::read_to_string(said).unwrap();
                assert!(ended.is_none(), "{} ended: {}", kind.name(), said());
            }
            assert!(Instant::now() < deadline, "{} does not serve", kind.name());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::Gateway(process) => process.gateway.address,
            Self::Other { address, .. } => *address,
        }
    }

    pub(crate) fn id(&self) -> u32 {
        match self {
            Self::Gateway(process) => process.id(),
            Self::Other { child, .. } => child.id(),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Self::Other { child, .. } = self {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// An address without a listener.
fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}
