//! The recording of one session, as its tunnel sees it: events become lines at once, in their order.
//!
//! A recording shows what is missing in it. A session that must be recorded ends instead.

use std::sync::Arc;

use portcullis_sessions::decoder::{SessionEvent, Side};
use portcullis_sessions::policy::{RecordingLevel, SessionDecision};
use portcullis_sessions::recording::Recorder;
use portcullis_sessions::recording::metadata::{SessionEnd, SessionStart};
use portcullis_sessions::storage::PartForm;
use portcullis_system::text::shortened;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::failures::RecordingFailure;
use super::queue::{Ending, LineKind};
use super::writer::QueuedSession;

/// The form of a recording that has the documents alone.
pub(super) const FORM_WITHOUT_CONTENT: PartForm = PartForm::JsonLines;
/// The most bytes that one byte of the session becomes in a line: a control character is six in JSON.
const MAX_ESCAPED: usize = 6;
/// The most bytes of the lines of an event beside its text: times, codes, the header.
const MAX_LINE_OVERHEAD: usize = 4 << 10;
/// The most characters of the title, which is in the header.
const MAX_TITLE: usize = 256;
/// The reason of a session whose request was sent, and that has ended before the API server responded: its command may run.
const UNANSWERED: &str = "unanswered";
/// Marks a gap.
const GAP: &str = "the recording could not keep up";

/// The recording of a session. Dropped before the request was sent, or after the API server has refused it, it is removed.
#[derive(Debug)]
pub(crate) struct SessionRecording {
    /// `None`: only the documents are stored.
    recorder: Option<Recorder>,
    has_input: bool,
    queue: QueuedSession,
    is_required: bool,
    /// Whether the API server may run the command.
    is_sent: bool,
    /// When the session was opened.
    opened: Option<Instant>,
    /// The sender of what is left out since the last line.
    gap: Option<Side>,
    has_ended: bool,
}

/// Makes the lines of a session.
pub(super) fn recorder(start: &SessionStart, started: u64, has_input: bool) -> Recorder {
    if start.tty {
        let title = shortened(&format!("{}/{}", start.namespace, start.pod), MAX_TITLE);
        Recorder::of_terminal(started, &title, has_input)
    } else {
        Recorder::of_channels(started, has_input)
    }
}

impl SessionRecording {
    pub(super) fn new(recorder: Option<Recorder>, queue: QueuedSession, decision: SessionDecision) -> Self {
        let SessionDecision { level, required: is_required, .. } = decision;
        let has_input = level == RecordingLevel::InputAndOutput;
        let (is_sent, opened, gap, has_ended) = (false, None, None, false);
        Self { recorder, has_input, queue, is_required, is_sent, opened, gap, has_ended }
    }

    /// The name of the recording.
    pub(crate) fn name(&self) -> &str {
        self.queue.name()
    }

    /// The request is about to be sent: from now on the command may run, whatever becomes of the client.
    // threat: unrecorded-session
    pub(crate) fn sent(&mut self) {
        self.is_sent = true;
    }

    /// The API server has responded that there is no session.
    pub(crate) fn refused(&mut self) {
        self.is_sent = false;
    }

    /// The session is open: times count from now.
    pub(crate) fn open(&mut self) {
        self.opened.get_or_insert_with(Instant::now);
    }

    /// Is cancelled when the session must be recorded and cannot be any more. `None` where it need not be.
    pub(crate) fn failed(&self) -> Option<CancellationToken> {
        self.is_required.then(|| self.queue.lines().failed())
    }

    /// Completes when the events of another read of the tunnel can be recorded, or cannot in time; `None` if that is so already. A
    /// session that need not be recorded does not wait.
    // threat: unrecorded-session
    pub(crate) fn room(&self) -> Option<impl Future<Output = ()> + Send + use<>> {
        let lines = self.queue.lines();
        let must_wait = self.is_required && self.recorder.is_some() && !lines.has_room();
        let lines = must_wait.then(|| Arc::clone(lines))?;
        let recorded = self.queue.recorded().clone();
        Some(async move {
            if lines.room().await.is_err() {
                recorded.note(&RecordingFailure::Slow);
            }
        })
    }

    /// Records an event, or that it is left out.
    pub(crate) fn record(&mut self, event: &SessionEvent<'_>) {
        let Some(opened) = self.opened.filter(|_| !self.has_ended) else { return };
        let Some(recorder) = &mut self.recorder else { return };
        let Some((side, kind, size)) = measured(event, self.has_input) else { return };
        let elapsed = opened.elapsed();
        if matches!(event, SessionEvent::Unreadable { .. } | SessionEvent::Skipped { .. }) {
            self.queue.lines().note_unread();
        }
        if let SessionEvent::Unreadable { why, .. } = event {
            self.queue.note(&RecordingFailure::Unreadable(why));
            if self.is_required {
                self.queue.lines().fail();
            }
        }
        let most = size.saturating_mul(MAX_ESCAPED).saturating_add(2 * MAX_LINE_OVERHEAD);
        let gap = self.gap;
        let is_recorded = self.queue.lines().append(most, kind, |lines| {
            if let Some(from) = gap {
                recorder.record(elapsed, &SessionEvent::Skipped { from, why: GAP }, lines);
            }
            recorder.record(elapsed, event, lines);
        });
        if is_recorded {
            self.gap = None;
            return;
        }
        self.gap.get_or_insert(side);
        if self.queue.lines().note_gap() {
            self.queue.note(&RecordingFailure::Slow);
        }
        // What is left out cannot be recorded later.
        if self.is_required {
            self.queue.lines().fail();
        }
    }

    /// Records a line that the gateway has written to the user, beside the content of the session. Without room it is left out.
    pub(crate) fn notice(&mut self, text: &str) {
        let Some(opened) = self.opened.filter(|_| !self.has_ended) else { return };
        let Some(recorder) = &mut self.recorder else { return };
        let most = text.len().saturating_mul(MAX_ESCAPED).saturating_add(MAX_LINE_OVERHEAD);
        let elapsed = opened.elapsed();
        self.queue.lines().append(most, LineKind::Content, |lines| recorder.notice(elapsed, text, lines));
    }

    /// The session has ended. `end` lacks the time.
    pub(crate) fn end(&mut self, end: SessionEnd) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let end = SessionEnd { end: self.queue.now(), ..end };
        if let (Some(recorder), Some(opened)) = (&mut self.recorder, self.opened) {
            let (elapsed, gap) = (opened.elapsed(), self.gap.take());
            let is_recorded = self.queue.lines().append(2 * MAX_LINE_OVERHEAD, LineKind::Other, |lines| {
                if let Some(from) = gap {
                    recorder.record(elapsed, &SessionEvent::Skipped { from, why: GAP }, lines);
                }
                recorder.finish(elapsed, lines);
            });
            if !is_recorded {
                self.queue.lines().note_gap();
            }
        }
        let end = SessionEnd { incomplete: self.queue.lines().is_incomplete(), ..end };
        self.queue.lines().end(Ending::Ended(Box::new(end)));
    }
}

impl Drop for SessionRecording {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        if self.opened.is_none() && !self.is_sent {
            self.queue.lines().end(Ending::NotOpened);
            return;
        }
        let reason = if self.opened.is_some() { "gateway" } else { UNANSWERED };
        self.end(SessionEnd { reason: reason.to_owned(), ..SessionEnd::default() });
    }
}

/// The sender of an event, whether it has content, and the size of its text; `None` if it has no line.
fn measured(event: &SessionEvent<'_>, has_input: bool) -> Option<(Side, LineKind, usize)> {
    Some(match event {
        SessionEvent::Forwarded { .. } | SessionEvent::WebSocketClosed { .. } => return None,
        SessionEvent::Input(_) if !has_input => return None,
        SessionEvent::Input(bytes) => (Side::Client, LineKind::Content, bytes.len()),
        SessionEvent::Output { bytes, .. } => (Side::Server, LineKind::Content, bytes.len()),
        SessionEvent::Failed { message } => (Side::Server, LineKind::Other, message.len()),
        SessionEvent::Exit { .. } => (Side::Server, LineKind::Other, 0),
        SessionEvent::Skipped { from, .. } | SessionEvent::Unreadable { from, .. } => {
            (*from, LineKind::Content, 0)
        }
        // A client can make as many as it likes.
        SessionEvent::InputEnded
        | SessionEvent::Resize { .. }
        | SessionEvent::ConnectionOpened { .. }
        | SessionEvent::ConnectionClosed { .. } => (Side::Client, LineKind::Content, 0),
    })
}
