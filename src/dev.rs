//! `portcullis dev`: the gateway with an embedded backend, to try it with kubectl on one machine.
//!
//! Creates a PKI, starts a small in-memory backend, and then the gateway in front of it, with the flags of
//! `portcullis serve`. All listeners are on 127.0.0.1 and close with the process.
//!
//! | file | purpose |
//! |---|---|
//! | [`pki`] | the throw-away PKI, and the kubeconfigs |
//! | [`server`], [`https`] | the in-memory API server: a request, and the listener |
//! | [`auth`], [`request`], [`objects`], [`store`], [`watch`] | what the API server does with a request |
//! | [`resources`], [`discovery`], [`table`], [`protobuf`], [`json`] | the resources it has, and their forms |
//! | [`full`] | `--full`: a second cluster, and the configuration of a gateway with everything |
//! | [`provider`], [`webhook`] | the OpenID provider and the admission webhook of `--full` |
//! | [`announce`], [`terminal`] | the commands that are printed to paste |
//! | [`tour`] | `--tour`: runs them one after another, and says what each shows |

mod announce;
mod auth;
mod discovery;
mod full;
mod https;
mod json;
mod objects;
mod pki;
mod protobuf;
mod provider;
mod request;
mod resources;
mod server;
mod store;
mod table;
mod terminal;
pub(crate) mod tour;
mod watch;
mod webhook;

use std::error::Error;
use std::fmt;
use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use announce::Announcement;
use full::Full;
pub(crate) use pki::DevPaths;
use pki::{DevPki, FRONT_PROXY_NAME, file_error};
use portcullis_system::clock::Clock;
use server::DemoServer;
use terminal::Painter;

/// The options of `portcullis dev`.
#[derive(Debug, Clone, clap::Args)]
pub struct DevOptions {
    /// Where to keep the PKI and the kubeconfig. The next start uses them again.
    #[arg(long, value_name = "DIR", default_value = ".portcullis")]
    pub dir: PathBuf,
    /// The gateway's port on 127.0.0.1. 0 picks a free one. With --full the page and the provider have the next two.
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub port: u16,
    /// Start two clusters, an OpenID provider without passwords, the page of a user's clusters, an admission webhook and
    /// an audit log, too.
    #[arg(long)]
    pub full: bool,
    /// Run eleven commands one after another, say what each shows, and end. Implies --full.
    #[arg(long)]
    pub tour: bool,
}

/// Why `portcullis dev` did not start.
#[derive(Debug, thiserror::Error)]
pub enum DevError {
    /// The port is in use.
    #[error(
        "port {0} of 127.0.0.1, for {1}, is in use; choose another with --port, or --port 0 for any free one"
    )]
    PortTaken(u16, &'static str),
    /// The system refuses the port.
    #[error("port {0} of 127.0.0.1, for {1}: {2}; choose another with --port")]
    Port(u16, &'static str, io::Error),
    /// The page and the provider of `--full` need the next two ports.
    #[error("--port {0} leaves no ports for the page and the provider of --full; choose a lower one")]
    PortTooHigh(u16),
    /// Another process uses the directory.
    #[error("another `portcullis dev` is using {}; choose another directory with --dir", .0.display())]
    DirTaken(PathBuf),
    /// The directory has files of another program.
    #[error("{} holds files that `portcullis dev` did not make; choose another directory with --dir", .0.display())]
    DirForeign(PathBuf),
    /// A file or directory cannot be read or written.
    #[error("{}: {}", .0.display(), .1)]
    File(PathBuf, io::Error),
    /// A file of the existing PKI is missing or invalid; with the problem and the directory of the PKI.
    #[error("{}: {}; to start afresh remove the directory {}", .0.display(), .1, .2.display())]
    DamagedPki(PathBuf, String, PathBuf),
    /// A key, a certificate or a token cannot be created.
    #[error("making the PKI: {0}")]
    CreatePki(Box<dyn Error + Send + Sync>),
    /// The backend did not start.
    #[error("the embedded backend cannot start: {0}")]
    Backend(Box<dyn Error + Send + Sync>),
}

/// The PKI, the files and the running backend; everything except the gateway. Dropping it stops the backend.
#[derive(Debug)]
pub struct Dev {
    paths: DevPaths,
    port: u16,
    pki: DevPki,
    server: DemoServer,
    /// The further parts of `--full`.
    full: Option<Full>,
    /// Two gateways would overwrite each other's kubeconfig.
    _lock: File,
}

impl Dev {
    /// Loads or creates the PKI, starts the backend and writes the kubeconfigs. The caller starts the gateway with
    /// [`gateway_flags`](Self::gateway_flags).
    pub async fn start(options: &DevOptions, clock: Clock) -> Result<Self, DevError> {
        let paths = DevPaths::new(&options.dir);
        // Before anything is written. Held until all servers run, so that none of them gets a port of another; then the
        // gateway binds its own.
        let gateway = bind(options.port, "the gateway")?;
        let others = if options.full || options.tour { Some(bind_others(options.port)?) } else { None };
        let lock = lock(paths.dir())?;
        let pki = pki::open(&paths, clock.now())?;
        let server = DemoServer::start(&paths, clock.clone(), &[]).await.map_err(DevError::Backend)?;
        pki::write_backend_kubeconfig(&paths.backend_kubeconfig(), server.address().port())?;
        let port = local_port(&gateway);
        let mut clusters = vec![("portcullis-dev", format!("https://127.0.0.1:{port}"))];
        let mut full = None;
        if let Some((page, provider)) = others {
            let started = Full::start(&paths, local_port(&page), provider, clock).await;
            let started = started.map_err(DevError::Backend)?;
            started.write_files(&paths, port)?;
            clusters = ["blue", "green"].map(|name| (name, cluster_url(port, name))).to_vec();
            full = Some(started);
        }
        pki::write_kubeconfig(&paths, &clusters)?;
        Ok(Self { paths, port, pki, server, full, _lock: lock })
    }

    /// The files.
    pub fn paths(&self) -> &DevPaths {
        &self.paths
    }

    /// The address of the backend.
    pub fn backend_address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The gateway's flags for `portcullis serve`.
    pub fn gateway_flags(&self) -> Vec<String> {
        let Self { paths, port, .. } = self;
        let file = |flag: &str, path: PathBuf| format!("--{flag}={}", path.display());
        if self.full.is_some() {
            return vec![file("config", paths.gateway_config())];
        }
        vec![
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            file("tls-cert-file", paths.pki("gateway.crt")),
            file("tls-private-key-file", paths.pki("gateway.key")),
            file("client-ca-file", paths.pki("client-ca.crt")),
            file("token-auth-file", paths.tokens()),
            file("requestheader-client-ca-file", paths.pki("front-proxy-ca.crt")),
            format!("--requestheader-allowed-names={FRONT_PROXY_NAME}"),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-uid-headers=X-Remote-Uid".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            file("backend-kubeconfig", paths.backend_kubeconfig()),
            "--enable-bootstrap-token-auth=true".to_owned(),
            // There is one replica, so the controllers need no lease.
            "--controllers=tokencleaner,bootstrapsigner".to_owned(),
            "--leader-elect=false".to_owned(),
            // Another gateway may use the default port.
            "--metrics-bind-address=127.0.0.1:0".to_owned(),
        ]
    }

    /// The text to print when the gateway serves.
    pub fn announcement(&self, metrics: Option<SocketAddr>, color: bool) -> impl fmt::Display {
        Announcement { dev: self, metrics, painter: Painter { color } }
    }
}

/// The URL of a cluster of `--full`.
fn cluster_url(port: u16, cluster: &str) -> String {
    format!("https://127.0.0.1:{port}/clusters/{cluster}")
}

/// Binds a port, for `user`.
fn bind(port: u16, user: &'static str) -> Result<TcpListener, DevError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => DevError::PortTaken(port, user),
        _ => DevError::Port(port, user, error),
    })
}

/// Binds the ports of the page and of the provider: the two after the gateway's, or free ones.
fn bind_others(port: u16) -> Result<(TcpListener, TcpListener), DevError> {
    let after = |count| match port {
        0 => Ok(0),
        port => port.checked_add(count).ok_or(DevError::PortTooHigh(port)),
    };
    Ok((bind(after(1)?, "the page")?, bind(after(2)?, "the provider")?))
}

fn local_port(listener: &TcpListener) -> u16 {
    listener.local_addr().map_or(0, |address| address.port())
}

/// Creates the directory if it does not exist, and locks it. The lock file also marks it as a directory of
/// `portcullis dev`: a project's directory must not get keys and a `.gitignore`.
fn lock(dir: &Path) -> Result<File, DevError> {
    let path = dir.join("lock");
    let failed = file_error(&path);
    pki::make_dir(dir)?;
    if !path.try_exists().map_err(&failed)? && fs::read_dir(dir).map_err(&failed)?.next().is_some() {
        return Err(DevError::DirForeign(dir.to_owned()));
    }
    fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(&failed)?;
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(&failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(DevError::DirTaken(dir.to_owned())),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}
