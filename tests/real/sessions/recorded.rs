//! A recorded session as `portcullis sessions` reads it.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::portcullis;

/// A session that has ended.
pub(super) struct Recorded {
    directory: PathBuf,
    /// Its entry in the list.
    session: Value,
}

/// The streams of a session without a terminal.
#[derive(Default)]
pub(super) struct Channels {
    pub(super) stdin: Vec<u8>,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    /// The codes and the data of all other events.
    pub(super) others: Vec<(String, Value)>,
}

/// The streams of a session with a terminal.
pub(super) struct Terminal {
    /// Columns and rows, such as `80x24`.
    pub(super) size: String,
    pub(super) input: String,
    pub(super) output: String,
}

impl Recorded {
    pub(super) fn new(directory: PathBuf, session: Value) -> Self {
        Self { directory, session }
    }

    fn name(&self) -> &str {
        self.session["name"].as_str().unwrap()
    }

    /// Its last document.
    pub(super) fn end(&self) -> &Value {
        &self.session["end"]
    }

    /// Whether it has ended so, as the list and `show` say.
    pub(super) fn ended(
        &self,
        reason: &str,
        code: Option<u8>,
        client_bytes: usize,
        server_bytes: usize,
    ) -> Result<(), String> {
        let end = self.end();
        let has =
            |key: &str, expected: Value| if end[key] == expected { Ok(()) } else { Err(end.to_string()) };
        has("reason", reason.into())?;
        has("exitCode", code.into())?;
        has("clientBytes", client_bytes.into())?;
        has("serverBytes", server_bytes.into())?;
        let shown = String::from_utf8(portcullis(&self.directory, "show", &[self.name()])?).unwrap();
        let line = |name: &str, value: &str| {
            shown.lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.trim() == value))
        };
        let is_shown = line("hash chain", "whole")
            && line("level", "InputAndOutput")
            && line("reason", reason)
            && code.is_none_or(|code| line("exit code", &code.to_string()));
        if is_shown { Ok(()) } else { Err(shown) }
    }

    fn exported(&self) -> Result<Vec<Value>, String> {
        let lines = portcullis(&self.directory, "export", &[self.name(), "--format", "recorded"])?;
        let lines = String::from_utf8(lines).map_err(|error| error.to_string())?;
        lines
            .lines()
            .map(|line| serde_json::from_str(line).map_err(|error| format!("{error}: {line}")))
            .collect()
    }

    pub(super) fn channels(&self) -> Result<Channels, String> {
        let mut channels = Channels::default();
        for event in self.exported()?.into_iter().skip(1) {
            let (code, data) = (event[1].as_str().unwrap(), &event[2]);
            let stream = match code {
                "stdin" => &mut channels.stdin,
                "stdout" => &mut channels.stdout,
                "stderr" => &mut channels.stderr,
                other => {
                    channels.others.push((other.to_owned(), data.clone()));
                    continue;
                }
            };
            match data.as_str() {
                Some(text) => stream.extend(text.bytes()),
                None => stream.extend(STANDARD.decode(data["base64"].as_str().unwrap()).unwrap()),
            }
        }
        let is_gap = |code: &str| matches!(code, "skipped" | "unreadable" | "failed");
        match channels.others.iter().find(|(code, _)| is_gap(code)) {
            Some(gap) => Err(format!("{gap:?}")),
            None => Ok(channels),
        }
    }

    pub(super) fn terminal(&self) -> Result<Terminal, String> {
        let lines = self.exported()?;
        let term = &lines[0]["term"];
        let mut terminal = Terminal {
            size: format!("{}x{}", term["cols"], term["rows"]),
            input: String::new(),
            output: String::new(),
        };
        for event in &lines[1..] {
            let data = event[2].as_str().unwrap();
            match event[1].as_str().unwrap() {
                "i" => terminal.input.push_str(data),
                "o" => terminal.output.push_str(data),
                "x" => {}
                _ => return Err(event.to_string()),
            }
        }
        Ok(terminal)
    }
}
