//! `portcullis certs log monitor`: lists what is new in a log. Keeps the last checkpoint, so that the next run finds out whether
//! the log was rewritten.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use portcullis_tlog::checkpoint::Checkpoint;
use portcullis_tlog::verify::{check_continues, verified};

use super::super::error::CommandError;
use super::super::files::NewFiles;
use super::super::table;
use super::LogSourceFlags;
use super::entries::EntryRow;
use super::verify::earlier;
use crate::output::{Output, print};

const HEADING: [&str; 6] = ["INDEX", "LOGGED", "SIGNER", "SUBJECT", "NAMES", "UNTIL"];

/// The flags of `portcullis certs log monitor`.
#[derive(Debug, Clone, Args)]
pub struct LogMonitorFlags {
    #[command(flatten)]
    log: LogSourceFlags,
    /// List only certificates with this name: a CommonName, DNS name, address, URI or email address, with one `*` at the
    /// beginning or the end. Repeatable.
    #[arg(long, value_name = "PATTERN")]
    name: Vec<String>,
    /// The file of the last checkpoint, which the command creates and replaces: list only what is new since, and fail if the
    /// log was rewritten. Keep it where the writer of the log cannot change it.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

pub(super) fn run(flags: &LogMonitorFlags) -> Result<ExitCode, CommandError> {
    reported(flags, print)
}

/// Reports what is new by `print`.
pub(super) fn reported(
    flags: &LogMonitorFlags,
    print: impl FnOnce(&str) -> ExitCode,
) -> Result<ExitCode, CommandError> {
    let (log, verifier) = flags.log.open()?;
    let last = match &flags.state {
        Some(state) if !super::super::authority::is_missing(state) => earlier(&verifier, state)?,
        _ => Checkpoint::empty(verifier.name()),
    };
    let mut rows = Vec::new();
    let (checkpoint, note) = verified(&log, &verifier, |index, entry| {
        if index >= last.size {
            let row = EntryRow::of(index, entry);
            rows.extend(Some(row).filter(|row| row.matches(&flags.name)));
        }
        Ok(())
    })?;
    check_continues(&log, &last, &checkpoint)?;
    let text = flags.output.rendered(&rows).unwrap_or_else(|| {
        if rows.is_empty() {
            return "no certificates\n".to_owned();
        }
        table::columns(HEADING, rows.iter().map(EntryRow::cells))
    });
    let printed = print(&text);
    // After they were printed, and only then: what a reader has not got is listed again.
    if let Some(state) = flags.state.as_ref().filter(|_| printed == ExitCode::SUCCESS) {
        let mut files = NewFiles::new(true);
        files.stage_public(state, &note)?;
        files.commit()?;
    }
    Ok(printed)
}
