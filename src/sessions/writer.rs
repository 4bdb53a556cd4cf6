//! Stores a recording: its first document before the session opens, then its lines in parts, then its last document.
//!
//! What blocks runs on threads of the store. After an error the next part is tried again with the same lines; a part that could
//! not be stored at the end of the session is lost.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use portcullis_limits::Owner;
use portcullis_sessions::recording::metadata::{SessionEnd, SessionStart};
use portcullis_sessions::storage::chain::ChainHash;
use portcullis_sessions::storage::{PartForm, PartLimits, RecordingStore, SessionName, SessionWriter};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::info;

use super::failures::RecordingFailure;
use super::queue::{Ending, LineQueue};
use super::store::{self, SessionStore};
use super::{SessionParts, timestamp};

/// How long the first document may take: the client waits for it.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one part may take before it counts as a failure.
const STORE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long after an error the next attempt follows.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How often the removal of a recording is tried while others wait for the store.
const MAX_DISCARD_ATTEMPTS: u32 = 20;
/// The task decides when a part is written.
const WHEN_FLUSHED: PartLimits = PartLimits { size: usize::MAX, age: Duration::MAX };

type Writer = SessionWriter<Arc<dyn RecordingStore>>;

/// A session that is recorded.
#[derive(Debug, Clone)]
pub(super) struct RecordedSession {
    pub(super) session: SessionName,
    pub(super) owner: Owner,
    pub(super) store: Arc<SessionStore>,
    pub(super) parts: Arc<SessionParts>,
    pub(super) cluster: Arc<str>,
}

/// The same with its lines, which a task stores.
#[derive(Debug)]
pub(super) struct QueuedSession {
    recorded: RecordedSession,
    lines: Arc<LineQueue>,
}

/// A recording that is not stored to its end.
#[derive(Debug)]
struct Unfinished(watch::Sender<usize>);

impl Unfinished {
    fn new(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl QueuedSession {
    pub(super) fn name(&self) -> &str {
        self.recorded.session.as_str()
    }

    pub(super) fn recorded(&self) -> &RecordedSession {
        &self.recorded
    }

    pub(super) fn lines(&self) -> &Arc<LineQueue> {
        &self.lines
    }
}

impl Deref for QueuedSession {
    type Target = RecordedSession;

    fn deref(&self) -> &RecordedSession {
        &self.recorded
    }
}

impl RecordedSession {
    /// The time, as documents have it.
    pub(super) fn now(&self) -> String {
        timestamp(self.parts.clock.now())
    }

    /// Logs and counts a failure.
    pub(super) fn note(&self, failure: &RecordingFailure) {
        self.parts.failures.note(&self.cluster, self.store.name(), failure);
    }

    /// Stores the first document, and starts the task that stores the rest.
    pub(super) async fn begin(
        self,
        start: SessionStart,
        form: PartForm,
        is_required: bool,
    ) -> Result<QueuedSession, RecordingFailure> {
        let until = Instant::now() + BEGIN_TIMEOUT;
        let thread = self.store.thread(&self.owner, until).await?;
        let lines = Arc::new(LineQueue::new(self.parts.memory.reserve(self.owner.clone())));
        // If the client is gone, or the thread comes too late, the task removes what it finds.
        let mut unopened = UnopenedGuard(Some(Arc::clone(&lines)));
        let (recorded, queue) = (self.clone(), Arc::clone(&lines));
        let (sender, begun) = oneshot::channel();
        // The handle is not needed: the result comes by the channel.
        drop(store::run(thread, &self.parts.runtime, move || {
            sender.send(recorded.begin_task(&start, form, queue, is_required)).ok();
        }));
        match timeout_at(until, begun).await {
            Ok(Ok(begun)) => begun?,
            Ok(Err(_)) => return Err(RecordingFailure::Panicked),
            Err(_) => return Err(RecordingFailure::TimedOut),
        }
        unopened.0 = None;
        Ok(QueuedSession { recorded: self, lines })
    }

    /// Stores the first document, and starts the task. It blocks.
    fn begin_task(
        self,
        start: &SessionStart,
        form: PartForm,
        lines: Arc<LineQueue>,
        is_required: bool,
    ) -> io::Result<()> {
        let (store, session) = (self.store.blocking(), self.session.clone());
        let begun = Writer::begin(Arc::clone(&store), session.clone(), start, form, WHEN_FLUSHED);
        let writer = match begun {
            Ok(writer) => writer,
            Err(error) => {
                // What is there already is of another session.
                if error.kind() != io::ErrorKind::AlreadyExists {
                    store.discard(&session).ok();
                }
                return Err(error);
            }
        };
        let (runtime, unfinished) = (self.parts.runtime.clone(), Unfinished::new(&self.parts.unfinished));
        let task = WriterTask { recorded: self, lines, is_required, _unfinished: unfinished };
        runtime.spawn(task.run(writer));
        Ok(())
    }
}

/// Ends a recording whose session is given up while it begins.
struct UnopenedGuard(Option<Arc<LineQueue>>);

impl Drop for UnopenedGuard {
    fn drop(&mut self) {
        if let Some(lines) = &self.0 {
            lines.end(Ending::NotOpened);
        }
    }
}

/// Stores the lines of one session.
struct WriterTask {
    recorded: RecordedSession,
    lines: Arc<LineQueue>,
    is_required: bool,
    _unfinished: Unfinished,
}

/// What is left after an attempt to store lines.
enum Attempt {
    /// All is stored.
    Stored(Box<Writer>),
    /// All is stored, with the end, whose link has this hash.
    Ended(ChainHash),
    /// The lines wait in the writer.
    Failed(Box<Writer>, RecordingFailure),
    /// The writer is lost.
    Lost(RecordingFailure),
}

impl WriterTask {
    async fn run(self, writer: Writer) {
        let mut writer = Box::new(writer);
        loop {
            // What could not be stored waits in the writer.
            if writer.pending() == 0 {
                self.lines.due().await;
            }
            let (lines, ending) = self.lines.take();
            let end = match ending {
                Some(Ending::NotOpened) => return self.discard().await,
                Some(Ending::Ended(end)) => Some(end),
                None => None,
            };
            let is_end = end.is_some();
            let failure = match self.store(writer, lines, end).await {
                Attempt::Stored(next) => {
                    self.lines.stored();
                    writer = next;
                    continue;
                }
                Attempt::Ended(head) => {
                    let result = if self.lines.is_incomplete() { "incomplete" } else { "complete" };
                    let (cluster, session) = (&*self.recorded.cluster, self.recorded.session.as_str());
                    // A copy of the hash where the store is not: who can change the store can make a chain anew.
                    info!(cluster, session, result, head = head.to_hex(), "session recorded");
                    return self.finish(result);
                }
                Attempt::Failed(next, failure) if !is_end => {
                    self.fail(&failure);
                    writer = next;
                    // After the end, the last attempt follows at once.
                    tokio::select! {
                        () = sleep(RETRY_INTERVAL) => {}
                        () = self.lines.ended() => {}
                    }
                    continue;
                }
                Attempt::Failed(_, failure) | Attempt::Lost(failure) => failure,
            };
            self.fail(&failure);
            return self.finish("incomplete");
        }
    }

    /// Logs and counts a failure, and ends a session that must be recorded.
    fn fail(&self, failure: &RecordingFailure) {
        self.recorded.note(failure);
        // A recording with a part that comes late has no gap yet.
        if self.is_required {
            self.lines.fail();
        }
    }

    fn finish(&self, result: &'static str) {
        self.lines.close();
        self.recorded.parts.metrics.sessions.recorded(result);
    }

    /// Stores lines as a part, and the end.
    async fn store(&self, writer: Box<Writer>, lines: Vec<u8>, end: Option<Box<SessionEnd>>) -> Attempt {
        let RecordedSession { store, owner, parts, .. } = &self.recorded;
        let is_end = end.is_some();
        let mut writer = writer;
        let thread = match store.thread(owner, Instant::now() + STORE_TIMEOUT).await {
            Ok(thread) => thread,
            Err(refused) => {
                // Appends alone, which does not block.
                return match writer.write(Duration::ZERO, &lines) {
                    Ok(_) => Attempt::Failed(writer, refused.into()),
                    Err(error) => Attempt::Failed(writer, error.into()),
                };
            }
        };
        let mut storing = store::run(thread, &parts.runtime, move || {
            let written = writer.write(Duration::ZERO, &lines).and_then(|_| writer.flush());
            match (written, end) {
                (Err(error), _) => Attempt::Failed(writer, error.into()),
                (Ok(_), None) => Attempt::Stored(writer),
                (Ok(_), Some(end)) => match writer.end(&end) {
                    Ok(head) => Attempt::Ended(head),
                    Err(error) => Attempt::Lost(error.into()),
                },
            }
        });
        if let Ok(stored) = timeout(STORE_TIMEOUT, &mut storing).await {
            return stored.unwrap_or(Attempt::Lost(RecordingFailure::Panicked));
        }
        if !is_end {
            self.fail(&RecordingFailure::TimedOut);
            // While the session goes on, the store may answer yet.
            tokio::select! {
                stored = &mut storing => return stored.unwrap_or(Attempt::Lost(RecordingFailure::Panicked)),
                () = self.lines.ended() => {}
            }
            if let Ok(stored) = timeout(STORE_TIMEOUT, storing).await {
                return stored.unwrap_or(Attempt::Lost(RecordingFailure::Panicked));
            }
        }
        // The thread goes on, and counts until the store answers.
        Attempt::Lost(RecordingFailure::TimedOut)
    }

    /// Removes the recording of a session that was not opened.
    async fn discard(&self) {
        let RecordedSession { store, owner, parts, session, .. } = &self.recorded;
        let mut attempts = 0;
        let thread = loop {
            match store.thread(owner, Instant::now() + STORE_TIMEOUT).await {
                Ok(thread) => break thread,
                // What is left shows as a session that has not ended.
                Err(_) if attempts == MAX_DISCARD_ATTEMPTS => return,
                Err(_) => attempts += 1,
            }
            sleep(RETRY_INTERVAL).await;
        };
        let (store, session) = (store.blocking(), session.clone());
        let removing = store::run(thread, &parts.runtime, move || store.discard(&session));
        timeout(STORE_TIMEOUT, removing).await.ok();
    }
}
