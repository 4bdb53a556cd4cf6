//! The gateway as a process of its own: what it logs, and signals to it.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Gateway, until};

pub struct Process {
    pub gateway: Gateway,
    pub child: Child,
    log: Arc<Mutex<Vec<Value>>>,
}

impl Process {
    /// Starts it with these flags.
    pub async fn start(flags: impl IntoIterator<Item = String>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command.arg("serve").args(flags);
        Self::serve(command).await
    }

    /// Runs `command`, which ends in `serve` and its flags, until it serves and has looked at its backend.
    pub async fn serve(mut command: Command) -> Self {
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
        let said = |message: &str| -> Option<Value> {
            let begins =
                |event: &&Value| event["message"].as_str().is_some_and(|said| said.starts_with(message));
            log.lock().unwrap().iter().find(begins).cloned()
        };
        // Its backend was looked at, or cannot be: requests are answered as they will be.
        let looked = ["self-check passed", "this API server cannot be"];
        let serving = || log.lock().unwrap().iter().find(|event| event["message"] == "serving").cloned();
        let ready = || serving().is_some() && looked.iter().any(|message| said(message).is_some());
        until("the check of the backend", ready).await;
        let serving = serving().unwrap();
        let text = |key: &str| serving[key].as_str().unwrap().to_owned();
        let metrics = text("metrics");
        let metrics = metrics.strip_prefix("Some(").and_then(|rest| rest.strip_suffix(')'));
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let gateway = Gateway {
            server: None,
            address: address(&text("address")),
            metrics: metrics.map(address),
            checked: true.into(),
        };
        Self { gateway, child, log }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Every line of the log so far whose message holds `part`.
    pub fn said(&self, part: &str) -> Vec<String> {
        let log = self.log.lock().unwrap();
        let messages = log.iter().filter_map(|event| event["message"].as_str().or(event.as_str()));
        messages.filter(|message| message.contains(part)).map(str::to_owned).collect()
    }

    /// Asks it to end; gives how it did, and the whole log.
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

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
