//! The API servers of all tests: the flags that they share, and the wait until one is ready.

use std::net::SocketAddr;
use std::path::Path;

use super::{Programs, ServerProcess, eventually, free_ports, retry_on_collision};

/// The names of the headers in which API servers accept identities from front proxies, as kubeadm sets them, and that of UIDs.
pub const IDENTITY_HEADERS: [&str; 4] = [
    "--requestheader-username-headers=X-Remote-User",
    "--requestheader-uid-headers=X-Remote-Uid",
    "--requestheader-group-headers=X-Remote-Group",
    "--requestheader-extra-headers-prefix=X-Remote-Extra-",
];

/// A kube-apiserver that is to be started, on the loopback interface.
///
/// `dir` contains `server.crt` and `server.key`, with which it serves, and `sa.key`, with which it signs tokens of service
/// accounts. It gets the log, `NAME.log`.
#[derive(Debug, Clone, Copy)]
pub struct ApiServer<'a> {
    /// The programs of the run.
    pub programs: &'a Programs,
    /// The directory of the run.
    pub dir: &'a Path,
    /// Its name in the files of the run.
    pub name: &'a str,
    /// The port of its etcd.
    pub etcd_port: u16,
}

impl ApiServer<'_> {
    /// Starts it with further flags and waits until `is_ready`.
    ///
    /// # Errors
    /// It cannot be started, ends, or is not ready in time; with the end of its log.
    pub async fn start(
        self,
        more: &[String],
        mut is_ready: impl AsyncFnMut(SocketAddr) -> bool,
    ) -> Result<(SocketAddr, ServerProcess), String> {
        retry_on_collision(async || {
            let [port] = free_ports()?;
            let mut process = self.start_at(port, more)?;
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            eventually(self.name, async || {
                process.check()?;
                Ok(is_ready(address).await)
            })
            .await
            .map_err(|error| format!("{error}\n{}", process.log_tail()))?;
            Ok((address, process))
        })
        .await
    }

    /// Starts it at this port, with further flags, and does not wait.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_at(self, port: u16, more: &[String]) -> Result<ServerProcess, String> {
        ServerProcess::start(self.dir, self.name, &self.programs.kube_apiserver, self.flags(port, more))
    }

    /// All its flags.
    pub fn flags(self, port: u16, more: &[String]) -> Vec<String> {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let mut flags = vec![
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--cert-dir={}", file(self.name)),
            format!("--tls-cert-file={}", file("server.crt")),
            format!("--tls-private-key-file={}", file("server.key")),
            format!("--service-account-signing-key-file={}", file("sa.key")),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            // The addresses are those of one machine.
            "--endpoint-reconciler-type=none".to_owned(),
        ];
        flags.extend_from_slice(more);
        flags
    }
}

/// The flags of an API server that is the only issuer of its service accounts' tokens; `dir` contains their public key,
/// `sa.pub`.
pub fn account_flags(dir: &Path) -> [String; 2] {
    [
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", dir.join("sa.pub").display()),
    ]
}
