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

use std::fs::{File, TryLockError};
use std::future::Future;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use tokio::sync::oneshot;

use crate::clock::Clock;
use announce::Announcement;
use backend::{Backend, BackendError};
use pki::{FRONT_PROXY_NAME, Paths, PkiError};

/// The options of `portcullis dev`.
#[derive(Debug, Clone, clap::Args)]
pub struct DevOptions {
    /// Where to keep the PKI and the kubeconfig; used again by the next start
    #[arg(long, value_name = "DIR", default_value = ".portcullis")]
    pub dir: PathBuf,
    /// The gateway's port on 127.0.0.1; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub port: u16,
}

/// Why `portcullis dev` did not start, or ended. Every text says what to do.
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
    /// The PKI.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The backend.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// Standard output, or a file.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The gateway's own error.
    #[error("the gateway: {0}")]
    Gateway(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Runs until `gateway` ends, which it does on Ctrl-C.
///
/// `gateway` is given the flags of `portcullis serve`; it serves until it is told to stop, and says through the sender
/// when it accepts connections. Only then the text is printed: every line of it can be pasted at once.
pub async fn run<G, F, E>(
    options: &DevOptions,
    out: &mut (impl Write + Send),
    color: bool,
    gateway: G,
) -> Result<(), DevError>
where
    G: FnOnce(Vec<String>, oneshot::Sender<()>) -> F,
    F: Future<Output = Result<(), E>>,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let paths = Paths::new(&options.dir);
    let clock = Clock::system();
    let port = free_port(options.port)?;
    pki::make_dir(paths.dir())?;
    // Held until the end: two gateways would overwrite each other's kubeconfig.
    let _lock = lock(paths.dir())?;
    let pki = pki::open(&paths, clock.now())?;
    let backend = Backend::start(&paths, clock).await?;
    pki::write_kubeconfigs(&paths, port, backend.address().port())?;
    let flags = gateway_flags(&paths, port);
    let announcement = Announcement {
        paths: &paths,
        port,
        pki,
        backend: backend.address(),
        flags: &flags,
        color,
    };

    let (ready, is_ready) = oneshot::channel();
    let gateway = gateway(flags.clone(), ready);
    tokio::pin!(gateway);
    tokio::select! {
        ended = &mut gateway => return ended.map_err(|error| DevError::Gateway(error.into())),
        ready = is_ready => if ready.is_ok() {
            write!(out, "{announcement}")?;
            out.flush()?;
        },
    }
    gateway.await.map_err(|error| DevError::Gateway(error.into()))?;
    writeln!(
        out,
        "\nStopped. Nothing is left running; the files stay in {}.",
        paths.dir().display()
    )?;
    Ok(())
}

/// The flags of the gateway: those that `portcullis serve` takes, so that the printed command line is the truth.
pub fn gateway_flags(paths: &Paths, port: u16) -> Vec<String> {
    let file = |path: PathBuf| path.display().to_string();
    [
        ("bind-address", Ipv4Addr::LOCALHOST.to_string()),
        ("secure-port", port.to_string()),
        ("tls-cert-file", file(paths.pki("gateway.crt"))),
        ("tls-private-key-file", file(paths.pki("gateway.key"))),
        ("client-ca-file", file(paths.pki("client-ca.crt"))),
        ("token-auth-file", file(paths.tokens())),
        (
            "requestheader-client-ca-file",
            file(paths.pki("front-proxy-ca.crt")),
        ),
        ("requestheader-allowed-names", FRONT_PROXY_NAME.to_owned()),
        ("requestheader-username-headers", "X-Remote-User".to_owned()),
        ("requestheader-group-headers", "X-Remote-Group".to_owned()),
        ("requestheader-extra-headers-prefix", "X-Remote-Extra-".to_owned()),
        ("backend-kubeconfig", file(paths.backend_kubeconfig())),
    ]
    .into_iter()
    .map(|(flag, value)| format!("--{flag}={value}"))
    .collect()
}

/// The port, if nobody has it. It is looked at before anything is written; the gateway takes it a moment later.
fn free_port(port: u16) -> Result<u16, DevError> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => DevError::PortTaken(port),
        _ => DevError::Port(port, error),
    })?;
    Ok(bound.local_addr()?.port())
}

fn lock(dir: &Path) -> Result<File, DevError> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(dir.join("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(DevError::DirTaken(dir.to_owned())),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}
