//! `portcullis sessions`: lists, shows, plays, exports and verifies recorded sessions of exec, attach and port-forward. Reads
//! a directory of recordings and changes nothing in it.
//!
//! A session chose most of the text of its recording, and a recording may have been changed since. So no text of it reaches a
//! terminal that could obey it, and each object that cannot be read is named and hides no other.
// threat: hostile-recording

mod export;
mod list;
mod play;
mod reading;
mod show;
mod summary;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use portcullis_sessions::storage::{RecordingDirectory, RecordingStore as _, SessionName};

use crate::certs::error::CommandError;
use crate::output::Output;

/// The maximum number of names in an error.
const MAX_NAMES: usize = 5;

/// The examples of `portcullis sessions --help`.
pub const EXAMPLE: &str = "\
Examples:
  portcullis sessions list --directory /var/lib/portcullis/sessions --since 2h
  portcullis sessions play --directory /var/lib/portcullis/sessions 2c7bb2b6-1f6f-4b3c-9c0b-55a1f0d3e4b2
  portcullis sessions verify --directory /var/lib/portcullis/sessions --all";

/// The commands of `portcullis sessions`.
#[derive(Debug, Clone, Subcommand)]
pub enum SessionsCommand {
    /// List sessions, the newest first.
    ///
    /// Exits 1 if a document of a session cannot be read; the others are listed.
    #[command(
        after_help = "Example:\n  portcullis sessions list --directory /var/lib/portcullis/sessions --user alice --since 24h"
    )]
    List(list::SessionListFlags),
    /// Show a session: user, pod, command, how it ended, and the state of its hash chain.
    #[command(
        after_help = "Example:\n  portcullis sessions show --directory /var/lib/portcullis/sessions 2c7bb2b6-1f6f-4b3c-9c0b-55a1f0d3e4b2"
    )]
    Show(show::SessionShowFlags),
    /// Play a session on the terminal, as it went.
    ///
    /// Leaves out the control sequences beyond colours, cursor and screen. Ctrl-C ends it. Writes the output of the session
    /// to standard output, and of a session without a terminal its error output to standard error; at once if standard output is not a
    /// terminal. Exits 1 if the recording is damaged; the rest is played.
    #[command(
        after_help = "Example:\n  portcullis sessions play --directory /var/lib/portcullis/sessions --speed 2 --idle-limit 2s \\\n    2c7bb2b6-1f6f-4b3c-9c0b-55a1f0d3e4b2"
    )]
    Play(play::SessionPlayFlags),
    /// Export a session as one file: an asciicast for `asciinema play` and web players, or text.
    ///
    /// Exits 1 if the recording is damaged; the rest is exported.
    #[command(
        after_help = "Example:\n  portcullis sessions export --directory /var/lib/portcullis/sessions 2c7bb2b6-1f6f-4b3c-9c0b-55a1f0d3e4b2 \\\n    -o alice.cast"
    )]
    Export(export::SessionExportFlags),
    /// Verify the hash chain of sessions: find parts that are missing or were changed.
    ///
    /// A session without an end is open, or its gateway was killed: that is no problem. Exits 1 if there are problems.
    #[command(
        after_help = "Example:\n  portcullis sessions verify --directory /var/lib/portcullis/sessions --all"
    )]
    Verify(verify::SessionVerifyFlags),
}

impl SessionsCommand {
    /// Runs the command.
    pub fn run(&self) -> ExitCode {
        let done = match self {
            Self::List(flags) => list::run(flags),
            Self::Show(flags) => show::run(flags),
            Self::Play(flags) => play::run(flags),
            Self::Export(flags) => export::run(flags),
            Self::Verify(flags) => verify::run(flags),
        };
        done.unwrap_or_else(|error: CommandError| error.report())
    }
}

/// The directory of the recordings.
#[derive(Debug, Clone, Args)]
struct DirectoryFlags {
    /// The directory of the recordings. Only the user who writes them can read it.
    #[arg(long, value_name = "DIR")]
    directory: PathBuf,
}

/// One session.
#[derive(Debug, Clone, Args)]
struct SessionFlags {
    #[command(flatten)]
    directory: DirectoryFlags,
    /// The name of the session, or its audit ID.
    #[arg(value_name = "NAME")]
    name: String,
}

/// The output format of a command with a table.
#[derive(Debug, Clone, Args)]
struct OutputFlags {
    /// The output format.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

impl DirectoryFlags {
    fn open(&self) -> Result<RecordingDirectory, CommandError> {
        RecordingDirectory::open_existing(&self.directory).map_err(|error| self.failed(error))
    }

    /// The names of all sessions, from the oldest.
    fn sessions(&self, directory: &RecordingDirectory) -> Result<Vec<SessionName>, CommandError> {
        directory.sessions().map_err(|error| self.failed(error))
    }

    fn failed(&self, error: std::io::Error) -> CommandError {
        CommandError::about(self.directory.display(), error)
    }

    /// The session with this name or audit ID. A client can choose its audit ID, and several sessions may have the same.
    fn find(&self, sessions: &[SessionName], wanted: &str) -> Result<SessionName, CommandError> {
        if let Some(name) = SessionName::parse(wanted)
            && sessions.binary_search(&name).is_ok()
        {
            return Ok(name);
        }
        let found: Vec<&SessionName> = sessions.iter().filter(|name| name.audit_id() == wanted).collect();
        match found.as_slice() {
            [name] => Ok((*name).clone()),
            [] => Err(CommandError::about(
                wanted,
                format!(
                    "is no session in {0}; `portcullis sessions list --directory {0}` prints their names",
                    self.directory.display()
                ),
            )),
            several => {
                let names: Vec<&str> = several.iter().take(MAX_NAMES).map(|name| name.as_str()).collect();
                let rest = if several.len() > MAX_NAMES { ", …" } else { "" };
                let (count, names) = (several.len(), names.join(", "));
                Err(CommandError::about(
                    wanted,
                    format!("is the audit ID of {count} sessions; give the name of one: {names}{rest}"),
                ))
            }
        }
    }
}

impl SessionFlags {
    fn open(&self) -> Result<(RecordingDirectory, SessionName), CommandError> {
        let directory = self.directory.open()?;
        let name = self.directory.find(&self.directory.sessions(&directory)?, &self.name)?;
        Ok((directory, name))
    }
}

#[cfg(test)]
mod tests;
