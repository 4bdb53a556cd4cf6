//! `portcullis sessions verify`: walks the hash chain of sessions.

use std::process::ExitCode;

use clap::Args;
use portcullis_sessions::storage::verify::{Verification, verify};
use portcullis_sessions::storage::{RecordingDirectory, SessionName};
use serde::Serialize;

use super::reading::ListPrinter;
use super::{DirectoryFlags, OutputFlags};
use crate::certs::error::CommandError;
use crate::certs::progress::Spinner;
use crate::output::print_error;

pub(super) const HEADING: [&str; 5] = ["NAME", "STATE", "PARTS", "BYTES", "HEAD"];

/// The flags of `portcullis sessions verify`.
#[derive(Debug, Clone, Args)]
pub struct SessionVerifyFlags {
    #[command(flatten)]
    directory: DirectoryFlags,
    /// The names of the sessions, or their audit IDs.
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    names: Vec<String>,
    /// Verify all sessions in the directory.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    pub(super) output: OutputFlags,
}

/// The state of the hash chain of a session.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChainReport {
    pub(super) state: ChainState,
    parts: u64,
    bytes: u64,
    /// The last hash; absent after a problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) problems: Vec<String>,
}

/// The state of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum ChainState {
    /// It is as it was written, to its end.
    Whole,
    /// The same, but it has no end: the session goes on, or the gateway was killed and its last part is lost.
    OpenOrCutOff,
    /// Objects are missing or were changed.
    Damaged,
}

/// A session of the list.
#[derive(Debug, Serialize)]
struct SessionChain<'a> {
    name: &'a str,
    #[serde(flatten)]
    chain: &'a ChainReport,
}

pub(super) fn run(flags: &SessionVerifyFlags) -> Result<ExitCode, CommandError> {
    let directory = flags.directory.open()?;
    let sessions = flags.directory.sessions(&directory)?;
    let mut is_good = true;
    let report = |problem: &str| {
        is_good = false;
        print_error(problem);
    };
    let printer = ListPrinter::to_stdout(flags.output.output, HEADING);
    let printed = flags.verified(&directory, &sessions, printer, report);
    Ok(if is_good { printed } else { ExitCode::FAILURE })
}

impl SessionVerifyFlags {
    /// Verifies the sessions, prints their states, and reports each problem.
    pub(super) fn verified(
        &self,
        directory: &RecordingDirectory,
        sessions: &[SessionName],
        mut printer: ListPrinter<'_, 5>,
        mut report: impl FnMut(&str),
    ) -> ExitCode {
        let mut wanted = Vec::new();
        for name in &self.names {
            match self.directory.find(sessions, name) {
                Ok(name) => wanted.push(name),
                Err(error) => report(&error.to_string()),
            }
        }
        let sessions = if self.all { sessions } else { &wanted };
        let mut rest = sessions.iter().peekable();
        while rest.peek().is_some() && printer.is_open() {
            let spinner = Spinner::new("verifying");
            let mut problems = Vec::new();
            while !printer.is_full()
                && let Some(name) = rest.next()
            {
                spinner.set_message(&format!("verifying {name}, {} to go", rest.len()));
                match ChainReport::of(directory, name) {
                    Ok(chain) => {
                        problems.extend(chain.problems.iter().map(|problem| format!("{name}: {problem}")));
                        printer.add(&SessionChain { name: name.as_str(), chain: &chain }, chain.cells(name));
                    }
                    Err(error) => problems.push(error.to_string()),
                }
                // The problems of one session are bounded by its objects.
                if problems.len() >= super::reading::BLOCK {
                    break;
                }
            }
            drop(spinner);
            printer.print_block();
            for problem in &problems {
                report(problem);
            }
        }
        printer.finish(if self.all { "no sessions recorded yet\n" } else { "" })
    }
}

impl ChainReport {
    pub(super) fn of(directory: &RecordingDirectory, name: &SessionName) -> Result<Self, CommandError> {
        let Verification { parts, bytes, has_ended, head, problems } =
            verify(directory, name).map_err(|error| CommandError::about(name, error))?;
        let state = match (problems.is_empty(), has_ended) {
            (false, _) => ChainState::Damaged,
            (true, true) => ChainState::Whole,
            (true, false) => ChainState::OpenOrCutOff,
        };
        let head = problems.is_empty().then(|| head.to_hex());
        Ok(Self { state, parts, bytes, head, problems: problems.iter().map(ToString::to_string).collect() })
    }

    fn state_text(&self) -> String {
        match (self.state, self.parts) {
            (ChainState::Whole, _) => "whole".to_owned(),
            (ChainState::OpenOrCutOff, 0) => "open, or cut off before its first part".to_owned(),
            (ChainState::OpenOrCutOff, 1) => "open, or cut off after 1 part".to_owned(),
            (ChainState::OpenOrCutOff, parts) => format!("open, or cut off after {parts} parts"),
            (ChainState::Damaged, _) => "damaged".to_owned(),
        }
    }

    fn cells(&self, name: &SessionName) -> [String; 5] {
        let head = self.head.clone().unwrap_or_else(|| "-".to_owned());
        [name.to_string(), self.state_text(), self.parts.to_string(), self.bytes.to_string(), head]
    }

    /// The rows of `show`.
    pub(super) fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = vec![("hash chain", self.state_text()), ("parts", self.parts.to_string())];
        rows.extend(self.head.clone().map(|head| ("head", head)));
        rows.extend(self.problems.iter().map(|problem| ("problem", problem.clone())));
        rows
    }
}
