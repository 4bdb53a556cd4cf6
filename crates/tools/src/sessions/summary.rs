//! A session by its documents and the sizes of its files, without its recording.

use std::time::Duration;

use portcullis_go::duration::format_duration;
use portcullis_go::time;
use portcullis_sessions::recording::metadata::{DocumentError, SessionEnd, SessionStart, SessionUser};
use portcullis_sessions::storage::{
    ObjectName, PartForm, RecordingDirectory, RecordingStore as _, SessionName, StoredParts,
};
use portcullis_system::text::shortened;
use serde::Serialize;

use crate::terminal::plain;

/// The maximum length of a text in a table.
const MAX_CELL: usize = 100;

/// A session.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SessionSummary {
    pub(super) name: String,
    pub(super) state: SessionState,
    /// The time in the name, which no client can choose.
    #[serde(skip)]
    started: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) start: Option<SessionStart>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) end: Option<SessionEnd>,
    pub(super) recording: RecordingFiles,
}

/// How far a session has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum SessionState {
    /// It has ended.
    Ended,
    /// It has no end: it goes on, or the gateway was killed.
    OpenOrCutOff,
    /// A document cannot be read.
    Unreadable,
}

/// The parts of a recording.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecordingFiles {
    #[serde(skip_serializing_if = "Option::is_none")]
    form: Option<&'static str>,
    parts: u64,
    pub(super) bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) last_written: Option<String>,
}

impl SessionSummary {
    /// Reads the documents of a session, and the sizes of its parts. Returns also the problems of those that cannot be read.
    pub(super) fn read(directory: &RecordingDirectory, session: &SessionName) -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        let start = document(directory, session, ObjectName::Start, SessionStart::from_json, &mut problems);
        if start.is_none() && problems.is_empty() {
            problems.push(format!("{session}: {} is missing", ObjectName::Start));
        }
        let end = document(directory, session, ObjectName::End, SessionEnd::from_json, &mut problems);
        let state = match end {
            _ if !problems.is_empty() => SessionState::Unreadable,
            Some(_) => SessionState::Ended,
            None => SessionState::OpenOrCutOff,
        };
        let parts = directory.parts(session).unwrap_or_else(|error| {
            problems.push(format!("{session}: {error}"));
            StoredParts::default()
        });
        let (name, started) = (session.to_string(), session.started());
        (Self { name, state, started, start, end, recording: parts.into() }, problems)
    }

    /// The authenticated user, and the impersonated one, if there is one.
    pub(super) fn users(&self) -> (Option<&SessionUser>, Option<&SessionUser>) {
        match &self.start {
            Some(SessionStart { user, client: Some(client), .. }) => (Some(client), Some(user)),
            Some(SessionStart { user, .. }) => (Some(user), None),
            None => (None, None),
        }
    }

    /// The row of the list.
    pub(super) fn cells(&self) -> [String; 11] {
        let (user, impersonated) = self.users();
        let of_start = |text: fn(&SessionStart) -> String| self.start.as_ref().map(text);
        let cell = |text: Option<String>| {
            text.filter(|text| !text.is_empty())
                .map_or_else(|| "-".to_owned(), |text| shortened(&text, MAX_CELL))
        };
        [
            self.name.clone(),
            cell(self.started.map(time::format_since_epoch)),
            cell(self.end.as_ref().map(|end| duration(end.duration_milliseconds))),
            cell(user.map(|user| plain(&user.name).into_owned())),
            cell(impersonated.map(|user| plain(&user.name).into_owned())),
            cell(of_start(|start| start.cluster.clone())),
            cell(of_start(place)),
            cell(of_start(kind)),
            self.end_text(),
            cell(of_start(|start| start.level.clone())),
            size(self.recording.bytes),
        ]
    }

    /// How it has ended, or that it has not.
    fn end_text(&self) -> String {
        match (self.state, &self.end) {
            (SessionState::OpenOrCutOff, _) => "open or cut off".to_owned(),
            (_, Some(SessionEnd { reason, exit_code: Some(code), .. })) => {
                format!("{} {code}", shortened(reason, MAX_CELL))
            }
            (_, Some(SessionEnd { reason, .. })) => shortened(reason, MAX_CELL),
            (SessionState::Unreadable | SessionState::Ended, None) => "unreadable".to_owned(),
        }
    }
}

impl From<StoredParts> for RecordingFiles {
    fn from(StoredParts { count, bytes, form, last_written }: StoredParts) -> Self {
        let form = form.map(|form| match form {
            PartForm::Cast => "asciicast",
            PartForm::JsonLines => "channels",
        });
        Self { form, parts: count, bytes, last_written: last_written.map(time::format_since_epoch) }
    }
}

/// A document of a session; `None` if there is none, or if it cannot be read, which is a problem.
fn document<D>(
    directory: &RecordingDirectory,
    session: &SessionName,
    object: ObjectName,
    parse: impl Fn(&[u8]) -> Result<D, DocumentError>,
    problems: &mut Vec<String>,
) -> Option<D> {
    let read = match directory.get(session, &object) {
        Ok(content) => parse(&content?).map_err(|error| format!("{session}: {object} {error}")),
        Err(error) => Err(format!("{session}: {object} cannot be read: {error}")),
    };
    read.map_err(|problem| problems.push(problem)).ok()
}

/// Namespace, pod and container.
pub(super) fn place(start: &SessionStart) -> String {
    let container = start.container.as_ref().map(|container| format!("/{container}")).unwrap_or_default();
    format!("{}/{}{container}", start.namespace, start.pod)
}

/// The subresource, and whether it has a terminal.
pub(super) fn kind(start: &SessionStart) -> String {
    format!("{}{}", start.subresource, if start.tty { " tty" } else { "" })
}

/// A duration as the audit log has it.
pub(super) fn duration(milliseconds: u64) -> String {
    format_duration(i64::try_from(milliseconds.saturating_mul(1_000_000)).unwrap_or(i64::MAX))
}

/// A number of bytes in the largest unit of which there are two.
pub(super) fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(bits, _)| bytes >> bits >= 2);
    unit.map_or_else(|| format!("{bytes} B"), |(bits, unit)| format!("{} {unit}", bytes >> bits))
}
