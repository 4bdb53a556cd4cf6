//! `portcullis sessions show`: everything about one session.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Args;
use portcullis_sessions::recording::metadata::{SessionEnd, SessionStart, SessionUser};
use portcullis_sessions::storage::{RecordingDirectory, SessionName};
use serde::Serialize;

use super::reading::for_terminal;
use super::summary::{SessionState, SessionSummary, duration, kind, place, size};
use super::verify::ChainReport;
use super::{OutputFlags, SessionFlags};
use crate::certs::error::CommandError;
use crate::certs::progress::with_spinner;
use crate::output::{Output, print, print_error};
use crate::table;
use crate::terminal::plain;

/// The flags of `portcullis sessions show`.
#[derive(Debug, Clone, Args)]
pub struct SessionShowFlags {
    #[command(flatten)]
    session: SessionFlags,
    #[command(flatten)]
    output: OutputFlags,
}

/// A session and its hash chain.
#[derive(Debug, Serialize)]
struct SessionReport {
    #[serde(flatten)]
    session: SessionSummary,
    chain: ChainReport,
}

pub(super) fn run(flags: &SessionShowFlags) -> Result<ExitCode, CommandError> {
    let (directory, name) = flags.session.open()?;
    let (text, problems) = report(&directory, &name, flags.output.output)?;
    for problem in &problems {
        print_error(problem);
    }
    let printed = print(&for_terminal(&text, std::io::stdout().is_terminal()));
    Ok(if problems.is_empty() { printed } else { ExitCode::FAILURE })
}

/// The text of a session, and the problems of its documents.
pub(super) fn report(
    directory: &RecordingDirectory,
    name: &SessionName,
    output: Output,
) -> Result<(String, Vec<String>), CommandError> {
    let chain = with_spinner("verifying the recording", || ChainReport::of(directory, name))?;
    let (session, problems) = SessionSummary::read(directory, name);
    let report = SessionReport { session, chain };
    Ok((output.rendered(&report).unwrap_or_else(|| report.text()), problems))
}

impl SessionReport {
    fn text(&self) -> String {
        let Self { session, chain } = self;
        let mut rows = vec![("name", session.name.clone())];
        let (user, impersonated) = session.users();
        for (role, user) in [("user", user), ("impersonated user", impersonated)] {
            let Some(SessionUser { name, groups }) = user else { continue };
            rows.push((role, plain(name).into_owned()));
            rows.extend(groups.iter().enumerate().map(|(index, group)| {
                let label = match (index, role) {
                    (0, "user") => "groups",
                    (0, _) => "impersonated groups",
                    _ => "",
                };
                (label, plain(group).into_owned())
            }));
        }
        if let Some(start) = &session.start {
            rows.extend(start_rows(start));
        }
        match &session.end {
            Some(end) => rows.extend(end_rows(end)),
            None if session.state == SessionState::OpenOrCutOff => {
                let written = session.recording.last_written.as_ref();
                let written = written.map(|time| format!("; last part written {time}")).unwrap_or_default();
                rows.push(("end", format!("none: open, or cut off{written}")));
            }
            None => {}
        }
        rows.push(("recording", size(session.recording.bytes)));
        rows.extend(chain.rows());
        table::facts(rows)
    }
}

fn start_rows(start: &SessionStart) -> Vec<(&'static str, String)> {
    // A JSON list: the borders of arguments with blanks show.
    let command = serde_json::to_string(&start.command).unwrap_or_default();
    let rows = [
        ("credential", start.credential_id.clone().unwrap_or_default()),
        ("audit ID", start.audit_id.clone()),
        ("cluster", start.cluster.clone()),
        ("pod", place(start)),
        ("kind", kind(start)),
        ("standard input", if start.stdin { "connected".to_owned() } else { String::new() }),
        ("command", if start.command.is_empty() { String::new() } else { command }),
        ("level", start.level.clone()),
        ("start", start.start.clone()),
    ];
    rows.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

fn end_rows(end: &SessionEnd) -> Vec<(&'static str, String)> {
    let incomplete = end.incomplete.then_some("something of the session is not recorded");
    let number = |count: u64| if count > 0 { count.to_string() } else { String::new() };
    let rows = [
        ("end", end.end.clone()),
        ("duration", duration(end.duration_milliseconds)),
        ("reason", end.reason.clone()),
        ("exit code", end.exit_code.map(|code| code.to_string()).unwrap_or_default()),
        ("message", end.message.clone().unwrap_or_default()),
        ("bytes of the client", end.client_bytes.to_string()),
        ("bytes of the server", end.server_bytes.to_string()),
        ("connections", number(end.connections)),
        ("incomplete", incomplete.unwrap_or_default().to_owned()),
    ];
    rows.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}
