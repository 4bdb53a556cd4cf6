//! The real binary, as a process of its own.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

use super::{PATIENCE, soon};

/// A gateway that logs JSON.
pub struct Process {
    child: Child,
    pub address: SocketAddr,
    log: Option<JoinHandle<String>>,
}

impl Process {
    /// Runs `command`, which ends in `serve` and its flags, until it serves and has looked at its backend.
    pub async fn serve(mut command: Command) -> Self {
        let mut child =
            command.arg("--logging-format=json").stderr(Stdio::piped()).spawn().expect("the gateway starts");
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let reading = tokio::task::spawn_blocking(move || {
            let mut log = String::new();
            let (mut address, mut looked) = (None, false);
            loop {
                let start = log.len();
                assert!(lines.read_line(&mut log).unwrap() > 0, "it ended:\n{log}");
                let event: serde_json::Value = serde_json::from_str(&log[start..]).unwrap();
                if event["message"] == "serving" {
                    address = Some(event["address"].as_str().unwrap().parse().unwrap());
                }
                // Its backend was looked at, or cannot be: requests are answered as they will be.
                let said = ["identities arrive as they are", "this API server cannot be checked"];
                looked |= said.iter().any(|said| event["message"].as_str().unwrap().starts_with(said));
                if let (Some(address), true) = (address, looked) {
                    let rest = std::thread::spawn(move || {
                        lines.read_to_string(&mut log).unwrap();
                        log
                    });
                    return (address, rest);
                }
            }
        });
        let (address, log) = soon(reading).await.unwrap();
        Self { child, address, log: Some(log) }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it by a signal. How it ended, and everything it logged.
    pub async fn terminate(mut self) -> (ExitStatus, String) {
        let kill = Command::new("kill").args(["-TERM", &self.id().to_string()]).status().unwrap();
        assert!(kill.success());
        let log = self.log.take().unwrap();
        let ended = tokio::task::spawn_blocking(move || (self.child.wait().unwrap(), log.join().unwrap()));
        tokio::time::timeout(PATIENCE, ended).await.expect("it ends").unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
    }
}
