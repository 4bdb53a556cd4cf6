//! An API server or a gateway: a process that is terminated, killed, stopped and started again at its port.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::real::{START_TIMEOUT, ServerProcess};

/// How long a graceful shutdown may take.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// One process of a kind.
pub struct Member {
    /// Its name, such as `server-0`.
    pub name: String,
    /// The address for clients.
    pub address: SocketAddr,
    dir: PathBuf,
    program: PathBuf,
    flags: Vec<String>,
    starts: usize,
    process: Option<ServerProcess>,
}

impl Member {
    /// A process that is not started yet.
    pub fn new(name: String, address: SocketAddr, dir: &Path, program: &Path, flags: Vec<String>) -> Self {
        let (dir, program) = (dir.to_owned(), program.to_owned());
        Self { name, address, dir, program, flags, starts: 0, process: None }
    }

    /// Starts it, with a log of its own.
    pub fn start(&mut self) -> Result<(), String> {
        self.starts += 1;
        let name = format!("{}.{}", self.name, self.starts);
        self.process = Some(ServerProcess::start(&self.dir, &name, &self.program, &self.flags)?);
        Ok(())
    }

    /// Makes the next start one of another program.
    pub fn set_program(&mut self, program: &Path) {
        program.clone_into(&mut self.program);
    }

    /// The log of the last start.
    pub fn log(&self) -> String {
        let log = self.process.as_ref().map(|process| std::fs::read(process.log()).unwrap_or_default());
        String::from_utf8_lossy(&log.unwrap_or_default()).into_owned()
    }

    /// Waits until `ready` holds.
    pub async fn until(&mut self, what: &str, mut ready: impl AsyncFnMut() -> bool) -> Result<(), String> {
        let deadline = Instant::now() + START_TIMEOUT;
        while !ready().await {
            if let Some(process) = &mut self.process {
                process.check()?;
            }
            if Instant::now() > deadline {
                let tail = self.process.as_ref().map(ServerProcess::log_tail).unwrap_or_default();
                return Err(format!("{}: not {what} in time\n{tail}", self.name));
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<(), String> {
        self.process.as_ref().ok_or("not started")?.signal(signal)
    }

    /// Waits until it has ended. Returns how long that took.
    pub async fn until_ended(&mut self) -> Result<Duration, String> {
        let began = Instant::now();
        let process = self.process.as_mut().ok_or("not started")?;
        while !process.has_ended() {
            if began.elapsed() > SHUTDOWN_TIMEOUT {
                return Err(format!("{} does not end:\n{}", self.name, process.log_tail()));
            }
            sleep(POLL_INTERVAL).await;
        }
        self.process = None;
        Ok(began.elapsed())
    }
}
