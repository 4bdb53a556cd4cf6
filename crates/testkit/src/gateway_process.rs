//! The gateway as a process: its log, and signals.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::gateway::Gateway;
use crate::waiting::{TEST_TIMEOUT, until, until_within};

/// A running gateway and its log.
pub struct GatewayProcess {
    /// The addresses of the gateway.
    pub gateway: Gateway,
    /// Its page, if it has one.
    pub page: Option<Gateway>,
    /// The process.
    pub child: Child,
    log: Arc<Mutex<Vec<Value>>>,
}

impl GatewayProcess {
    /// Starts `program`, the path of the binary, with these flags.
    pub async fn start(program: impl AsRef<OsStr>, flags: impl IntoIterator<Item = String>) -> Self {
        let mut command = Command::new(program);
        command.arg("serve").args(flags);
        Self::serve(command).await
    }

    /// Starts `command`, which ends in `serve` and its flags, and waits until its self-check has ended.
    pub async fn serve(command: Command) -> Self {
        Self::serve_within(TEST_TIMEOUT, command).await
    }

    /// The same for a gateway that may take this long, since another program executes its instructions one by one.
    pub async fn serve_within(limit: Duration, mut command: Command) -> Self {
        let mut child = command.arg("--logging-format=json").stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let event = serde_json::from_str(&line).unwrap_or(Value::String(line));
                kept.lock().unwrap().push(event);
            }
        });
        let logged = |message: &str| -> Option<Value> {
            let begins =
                |event: &&Value| event["message"].as_str().is_some_and(|text| text.starts_with(message));
            log.lock().unwrap().iter().find(begins).cloned()
        };
        // The self-check has passed or failed, so requests get their final responses.
        let outcomes =
            ["self-check passed", "self-check failed, endpoint unreachable", "self-check inconclusive"];
        let serving = || log.lock().unwrap().iter().find(|event| event["message"] == "serving").cloned();
        let ready = || serving().is_some() && outcomes.iter().any(|message| logged(message).is_some());
        until_within(limit, "the self-check of the backend", ready).await;
        let serving = serving().unwrap();
        let text = |key: &str| serving[key].as_str().unwrap().to_owned();
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let optional = |key: &str| {
            let text = text(key);
            text.strip_prefix("Some(").and_then(|rest| rest.strip_suffix(')')).map(address)
        };
        let gateway = Gateway::at(address(&text("address")), optional("metrics"));
        Self { gateway, page: optional("page").map(|page| Gateway::at(page, None)), child, log }
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The log lines so far whose message contains `part`.
    pub fn said(&self, part: &str) -> Vec<String> {
        let log = self.log.lock().unwrap();
        let messages = log.iter().filter_map(|event| event["message"].as_str().or(event.as_str()));
        messages.filter(|message| message.contains(part)).map(str::to_owned).collect()
    }

    /// Stops the process with SIGTERM; returns its exit status and the whole log.
    pub async fn end(mut self) -> (ExitStatus, String) {
        self.signal(Signal::TERM);
        let mut ended = None;
        until("the end", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some() && Arc::strong_count(&self.log) == 1
        })
        .await;
        let log = self.log.lock().unwrap();
        let lines: Vec<String> = log.iter().map(ToString::to_string).collect();
        (ended.unwrap(), lines.join("\n"))
    }
}

impl Drop for GatewayProcess {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
