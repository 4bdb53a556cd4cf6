//! Servers that all tests of a run share.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Runtime;

use super::{Programs, Source};

/// Servers that start when the first test needs them, and their directory.
#[derive(Debug)]
pub struct SharedServers<T> {
    target: &'static str,
    source: Source,
    runtime: Runtime,
    started: OnceLock<Result<(T, PathBuf), String>>,
    reported: AtomicBool,
}

impl<T> SharedServers<T> {
    /// Servers of the test program `target`.
    pub fn new(target: &'static str, source: Source) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a tokio runtime");
        Self { target, source, runtime, started: OnceLock::new(), reported: AtomicBool::new(false) }
    }

    /// The runtime on which tests talk to the servers.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Starts the servers in a new directory on the first call; concurrent calls wait for it. A failure is reported
    /// once.
    pub fn get_or_start(
        &self,
        start: impl FnOnce(&Runtime, Programs, &Path) -> Result<T, String>,
    ) -> Result<&T, String> {
        let start = || {
            let programs = self.source.programs()?;
            let dir = tempfile::Builder::new()
                .prefix(&format!("portcullis-{}-", self.target))
                .tempdir()
                .map_err(|error| error.to_string())?
                .keep();
            let servers = start(&self.runtime, programs, &dir)
                .map_err(|error| format!("the servers do not start: {error}\nlogs: {}", dir.display()))?;
            Ok((servers, dir))
        };
        match self.started.get_or_init(start) {
            Ok((servers, _)) => Ok(servers),
            Err(_) if self.reported.swap(true, Ordering::Relaxed) => {
                Err("the servers do not start; another test of this run says why".to_owned())
            }
            Err(error) => Err(error.clone()),
        }
    }

    /// Ends the servers and removes their directory, unless their logs are to be kept.
    pub fn finish(self, keep_logs: bool) {
        let Some(Ok((servers, dir))) = self.started.into_inner() else { return };
        drop(servers);
        if keep_logs {
            eprintln!("{}: the logs of the servers are kept in {}", self.target, dir.display());
        } else if let Err(error) = fs::remove_dir_all(&dir) {
            eprintln!("{}: cannot remove {}: {error}", self.target, dir.display());
        }
    }
}
