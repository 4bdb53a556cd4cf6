//! The attacker as a process of its own, which runs when the machine is idle (`SCHED_IDLE`): what it does itself, on another machine,
//! would take no processor time from the gateway. Both processes exchange lines.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::attack::Attack;
use super::secret::SecretText;

/// How long the attacker may take for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Lines to the attacker.
pub(crate) const BEGIN: &str = "begin";
pub(crate) const END: &str = "end";

/// What the attacker must know of the gateway.
#[derive(Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) gateway: SocketAddr,
    /// A token of a user of the operator's cluster.
    pub(crate) user_token: String,
}

pub(crate) struct AttackerProcess {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl AttackerProcess {
    /// Starts it. Its API servers run; returns the Secret for them.
    pub(crate) async fn start(attack: Attack) -> (Self, SecretText) {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new("chrt")
            .args(["--idle", "0"])
            .arg(program)
            .args(["--attacker", &attack.name()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Self { child, input, output };
        let secret = serde_json::from_str(&process.answer().await).unwrap();
        (process, secret)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    pub(crate) async fn aim(&mut self, target: &Target) {
        self.send(&serde_json::to_string(target).unwrap()).await;
    }

    pub(crate) async fn begin(&mut self) {
        self.send(BEGIN).await;
    }

    /// Ends it. Returns what it has done.
    pub(crate) async fn end(mut self) -> String {
        self.send(END).await;
        let done = self.answer().await;
        self.child.kill().await.ok();
        done
    }

    async fn send(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        self.input.flush().await.unwrap();
    }

    async fn answer(&mut self) -> String {
        let line = timeout(ANSWER_TIMEOUT, self.output.next_line()).await.expect("the attacker answers");
        line.unwrap().expect("the attacker runs")
    }
}
