//! `portcullis dev`: the gateway on a machine with nothing else, to try it with kubectl.
//!
//! Makes a throw-away PKI, starts a small in-memory backend and then the real gateway in front of it, with the same
//! flags that `portcullis serve` takes. Everything listens on 127.0.0.1 and ends with the process.

mod access;
mod announce;
mod ask;
pub mod backend;
mod discovery;
mod identity;
mod json;
mod objects;
pub mod pki;
mod protobuf;
mod resources;
mod reviews;
mod selector;
mod store;
mod table;
mod watch;

use std::fmt;
use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::clock::Clock;
use announce::Announcement;
use backend::{Backend, BackendError};
use pki::{FRONT_PROXY_NAME, Paths, Pki, PkiError};

/// The options of `portcullis dev`.
#[derive(Debug, Clone, clap::Args)]
pub struct DevOptions {
    /// Where to keep the PKI and the kubeconfig. The next start uses them again.
    #[arg(long, value_name = "DIR", default_value = ".portcullis")]
    pub dir: PathBuf,
    /// The gateway's port on 127.0.0.1. 0 picks a free one.
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub port: u16,
}

/// Why `portcullis dev` did not start. Every text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum DevError {
    /// The port is taken.
    #[error("port {0} of 127.0.0.1 is in use; choose another with --port, or --port 0 for any free one")]
    PortTaken(u16),
    /// The port cannot be used.
    #[error("port {0} of 127.0.0.1: {1}; choose another with --port")]
    Port(u16, io::Error),
    /// Another one runs with the same directory.
    #[error("another `portcullis dev` is using {}; choose another directory with --dir", .0.display())]
    DirTaken(PathBuf),
    /// The directory holds something else.
    #[error("{} holds files that `portcullis dev` did not make; choose another directory with --dir", .0.display())]
    DirForeign(PathBuf),
    /// The directory cannot be used.
    #[error("{}: {source}", path.display())]
    Dir {
        /// The directory or its lock file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The PKI.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The backend.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Everything but the gateway: the PKI, the files, the running backend. Dropping it ends the backend.
#[derive(Debug)]
pub struct Dev {
    paths: Paths,
    port: u16,
    pki: Pki,
    backend: Backend,
    /// Held to the end: two gateways would overwrite each other's kubeconfig.
    _lock: File,
}

impl Dev {
    /// Makes or finds the PKI, starts the backend and writes the kubeconfigs. The gateway comes next, with
    /// [`gateway_flags`](Self::gateway_flags).
    pub async fn start(options: &DevOptions, clock: Clock) -> Result<Self, DevError> {
        let paths = Paths::new(&options.dir);
        // Looked at before anything is written; the gateway takes it a moment later.
        let port = free_port(options.port)?;
        let lock = lock(paths.dir())?;
        let pki = pki::open(&paths, clock.now())?;
        let backend = Backend::start(&paths, clock).await?;
        pki::write_kubeconfigs(&paths, port, backend.address().port())?;
        Ok(Self { paths, port, pki, backend, _lock: lock })
    }

    /// The files.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Where the backend listens.
    pub fn backend_address(&self) -> SocketAddr {
        self.backend.address()
    }

    /// The flags of the gateway: those that `portcullis serve` takes, so that the printed command line is the truth.
    pub fn gateway_flags(&self) -> Vec<String> {
        gateway_flags(&self.paths, self.port)
    }

    /// The text to print once the gateway serves: then every line of it can be pasted at once.
    pub fn announcement(&self, metrics: Option<SocketAddr>, color: bool) -> impl fmt::Display {
        let Self { paths, port, pki, backend, .. } = self;
        let flags = self.gateway_flags();
        Announcement { paths, port: *port, pki: *pki, backend: backend.address(), metrics, flags, color }
    }
}

fn gateway_flags(paths: &Paths, port: u16) -> Vec<String> {
    let file = |path: PathBuf| path.display().to_string();
    [
        ("bind-address", Ipv4Addr::LOCALHOST.to_string()),
        ("secure-port", port.to_string()),
        ("tls-cert-file", file(paths.pki("gateway.crt"))),
        ("tls-private-key-file", file(paths.pki("gateway.key"))),
        ("client-ca-file", file(paths.pki("client-ca.crt"))),
        ("token-auth-file", file(paths.tokens())),
        ("requestheader-client-ca-file", file(paths.pki("front-proxy-ca.crt"))),
        ("requestheader-allowed-names", FRONT_PROXY_NAME.to_owned()),
        ("requestheader-username-headers", "X-Remote-User".to_owned()),
        ("requestheader-uid-headers", "X-Remote-Uid".to_owned()),
        ("requestheader-group-headers", "X-Remote-Group".to_owned()),
        ("requestheader-extra-headers-prefix", "X-Remote-Extra-".to_owned()),
        ("backend-kubeconfig", file(paths.backend_kubeconfig())),
        ("enable-bootstrap-token-auth", "true".to_owned()),
        // Alone here, they need no lease.
        ("controllers", "tokencleaner,bootstrapsigner".to_owned()),
        ("leader-elect", "false".to_owned()),
        // The usual port may belong to a gateway that is meant seriously.
        ("metrics-bind-address", "127.0.0.1:0".to_owned()),
    ]
    .into_iter()
    .map(|(flag, value)| format!("--{flag}={value}"))
    .collect()
}

fn free_port(port: u16) -> Result<u16, DevError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => DevError::PortTaken(port),
        _ => DevError::Port(port, error),
    };
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(failed)?;
    bound.local_addr().map(|address| address.port()).map_err(failed)
}

/// Makes the directory if need be, and takes it. The lock file also marks it as ours: it is about to be filled with
/// keys and a `.gitignore`, which would be a nasty surprise in a project's directory.
fn lock(dir: &Path) -> Result<File, DevError> {
    let path = dir.join("lock");
    let failed = |source| DevError::Dir { path: path.clone(), source };
    pki::make_dir(dir)?;
    if !path.try_exists().map_err(failed)? && fs::read_dir(dir).map_err(failed)?.next().is_some() {
        return Err(DevError::DirForeign(dir.to_owned()));
    }
    fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(failed)?;
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(DevError::DirTaken(dir.to_owned())),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}
