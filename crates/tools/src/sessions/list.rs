//! `portcullis sessions list`: one line for each session, the newest first. Holds a block of rows at a time, however many
//! sessions there are.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use portcullis_go::time::Time;
use portcullis_sessions::recording::metadata::SessionStart;
use portcullis_sessions::storage::{RecordingDirectory, SessionName};
use portcullis_system::clock::{Clock, UnixTime};

use super::reading::ListPrinter;
use super::summary::SessionSummary;
use super::{DirectoryFlags, OutputFlags};
use crate::certs::error::CommandError;
use crate::certs::flags::life;
use crate::certs::progress::Spinner;
use crate::output::print_error;

pub(super) const HEADING: [&str; 11] =
    ["NAME", "START", "DURATION", "USER", "AS", "CLUSTER", "POD", "KIND", "END", "LEVEL", "SIZE"];

/// The flags of `portcullis sessions list`.
#[derive(Debug, Clone, Args)]
pub struct SessionListFlags {
    #[command(flatten)]
    directory: DirectoryFlags,
    /// List only sessions of this user, also those in which the user was impersonated.
    #[arg(long, value_name = "NAME", help_heading = "Filters")]
    user: Option<String>,
    /// List only sessions of this cluster, by its name in the gateway's configuration.
    #[arg(long, value_name = "NAME", help_heading = "Filters")]
    cluster: Option<String>,
    /// List only sessions in this namespace.
    #[arg(long, value_name = "NAME", help_heading = "Filters")]
    namespace: Option<String>,
    /// List only sessions in this pod.
    #[arg(long, value_name = "NAME", help_heading = "Filters")]
    pod: Option<String>,
    /// List only sessions that started after this time, such as 2026-01-02T15:04:05Z, or after a time ago, such as 2h or 30d.
    #[arg(long, value_name = "TIME", value_parser = bound, help_heading = "Filters")]
    since: Option<TimeBound>,
    /// List only sessions that started before this time, in the same form.
    #[arg(long, value_name = "TIME", value_parser = bound, help_heading = "Filters")]
    until: Option<TimeBound>,
    #[command(flatten)]
    pub(super) output: OutputFlags,
}

/// A time, or a duration before now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeBound {
    Ago(Duration),
    At(UnixTime),
}

/// Parses the value of `--since`.
pub(super) fn bound(text: &str) -> Result<TimeBound, String> {
    if let Some(time) = Time::parse_rfc3339(text) {
        return Ok(TimeBound::At(time.since_epoch()));
    }
    let ago = life(text).map(TimeBound::Ago);
    ago.map_err(|_| "give a time such as 2026-01-02T15:04:05Z, or how long ago, such as 2h or 30d".to_owned())
}

impl TimeBound {
    fn at(self, now: UnixTime) -> UnixTime {
        match self {
            Self::Ago(ago) => now.saturating_sub(ago),
            Self::At(time) => time,
        }
    }
}

pub(super) fn run(flags: &SessionListFlags) -> Result<ExitCode, CommandError> {
    let directory = flags.directory.open()?;
    let sessions = flags.directory.sessions(&directory)?;
    let mut problems = false;
    let report = |problem: &str| {
        problems = true;
        print_error(problem);
    };
    let printer = ListPrinter::to_stdout(flags.output.output, HEADING);
    let printed = flags.listed(&directory, &sessions, Clock::system().now(), printer, report);
    Ok(if problems { ExitCode::FAILURE } else { printed })
}

impl SessionListFlags {
    /// Prints the sessions, and reports each document that cannot be read.
    pub(super) fn listed(
        &self,
        directory: &RecordingDirectory,
        sessions: &[SessionName],
        now: UnixTime,
        mut printer: ListPrinter<'_, 11>,
        mut report: impl FnMut(&str),
    ) -> ExitCode {
        // From the name, before a document is read.
        let (since, until) = (self.since.map(|bound| bound.at(now)), self.until.map(|bound| bound.at(now)));
        let is_in_time = |name: &&SessionName| {
            let started = name.started();
            started.is_none_or(|started| {
                since.is_none_or(|since| started >= since) && until.is_none_or(|until| started < until)
            })
        };
        let mut wanted = sessions.iter().rev().filter(is_in_time).peekable();
        while wanted.peek().is_some() && printer.is_open() {
            let spinner = Spinner::new("reading the recordings");
            let mut unreadable = Vec::new();
            while !printer.is_full()
                && let Some(name) = wanted.next()
            {
                let (session, problems) = SessionSummary::read(directory, name);
                unreadable.extend(problems);
                if self.is_wanted(&session) {
                    printer.add(&session, session.cells());
                }
                if unreadable.len() >= super::reading::BLOCK {
                    break;
                }
            }
            // Its line is cleared before others are printed.
            drop(spinner);
            for problem in &unreadable {
                report(problem);
            }
            printer.print_block();
        }
        let is_filtered = self.has_filter() || since.is_some() || until.is_some();
        printer.finish(if is_filtered { "no such sessions\n" } else { "no sessions recorded yet\n" })
    }

    fn has_filter(&self) -> bool {
        [&self.user, &self.cluster, &self.namespace, &self.pod].into_iter().any(Option::is_some)
    }

    fn is_wanted(&self, session: &SessionSummary) -> bool {
        // One whose first document cannot be read may be of any user. Its problem is reported.
        let Some(start) = &session.start else { return !self.has_filter() };
        let SessionStart { cluster, namespace, pod, .. } = start;
        let (user, impersonated) = session.users();
        let is_user = self
            .user
            .as_ref()
            .is_none_or(|wanted| [user, impersonated].into_iter().flatten().any(|user| user.name == *wanted));
        let others = [(&self.cluster, cluster), (&self.namespace, namespace), (&self.pod, pod)];
        is_user
            && others.into_iter().all(|(wanted, found)| wanted.as_ref().is_none_or(|wanted| wanted == found))
    }
}
