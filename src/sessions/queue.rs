//! The lines of a recording, between the tunnel that makes them and the task that stores them.
//!
//! Where there is no room, in the session or in the share of its owner, lines are left out. The tunnel of a session that must be
//! recorded waits for [`LineQueue::room`] before it reads, as it would end otherwise; no other tunnel waits.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use portcullis_limits::budget::BudgetPermit;
use portcullis_sessions::recording::metadata::SessionEnd;
use portcullis_sessions::storage::PartLimits;
use portcullis_system::sync::lock;
use tokio::sync::Notify;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// The bytes of one session that are not stored yet.
// threat: recording-gap
pub(super) const MAX_SESSION_BYTES: usize = 1 << 20;
/// Those of them that content cannot take: an exit code and the mark of a gap still find room.
const RESERVED_BYTES: usize = 64 << 10;

/// The bytes of content that a session can have.
const MAX_CONTENT_BYTES: usize = MAX_SESSION_BYTES - RESERVED_BYTES;
/// Room for the lines of one read of a tunnel, which is of 8 KiB: a message of three bytes can become a line of ninety.
pub(super) const READ_BYTES: usize = 320 << 10;
/// The most that one event of a read takes until its lines are written.
const EVENT_BYTES: usize = 64 << 10;
/// How long a tunnel waits for room.
const ROOM_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a tunnel looks for room in the share of its owner, which other sessions free, too.
const ROOM_INTERVAL: Duration = Duration::from_millis(100);

/// Whether lines have content of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineKind {
    Content,
    Other,
}

/// How a recording ends.
#[derive(Debug)]
pub(super) enum Ending {
    /// The session has ended.
    Ended(Box<SessionEnd>),
    /// It was never opened, and its command has not run: the recording is removed.
    NotOpened,
}

/// The lines of one session.
#[derive(Debug)]
pub(super) struct LineQueue {
    limits: PartLimits,
    state: Mutex<QueueState>,
    /// Wakes the task that stores them.
    wake: Notify,
    /// Wakes the tunnel that waits for room.
    freed: Notify,
    ended: CancellationToken,
    failed: CancellationToken,
}

#[derive(Debug)]
struct QueueState {
    lines: Vec<u8>,
    /// When the first of them came.
    since: Option<Instant>,
    /// The bytes that are not stored yet: the lines, and those that are being stored.
    held: BudgetPermit,
    /// Whether lines are left out.
    has_gap: bool,
    is_incomplete: bool,
    ending: Option<Ending>,
    /// Whether nothing is recorded any more.
    is_closed: bool,
}

impl LineQueue {
    /// No lines. What they hold counts in `held`.
    pub(super) fn new(held: BudgetPermit) -> Self {
        let state = QueueState {
            lines: Vec::new(),
            since: None,
            held,
            has_gap: false,
            is_incomplete: false,
            ending: None,
            is_closed: false,
        };
        Self {
            limits: PartLimits::default(),
            state: state.into(),
            wake: Notify::new(),
            freed: Notify::new(),
            ended: CancellationToken::new(),
            failed: CancellationToken::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        lock(&self.state)
    }

    /// Lets `write` append at most `most` bytes; `false`, and nothing is appended, if there is no room for so many.
    pub(super) fn append(&self, most: usize, kind: LineKind, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut state = self.state();
        if state.is_closed {
            return true;
        }
        let limit = match kind {
            LineKind::Content => MAX_CONTENT_BYTES,
            LineKind::Other => MAX_SESSION_BYTES,
        };
        if state.held.places().saturating_add(most) > limit || !state.held.grow(most) {
            return false;
        }
        let QueueState { lines, since, held, .. } = &mut *state;
        let before = lines.len();
        write(lines);
        let unused = most.saturating_sub(lines.len() - before);
        held.lower(held.places().saturating_sub(unused));
        let is_due = before < self.limits.size && lines.len() >= self.limits.size;
        let begins = !lines.is_empty() && since.is_none();
        if begins {
            *since = Some(Instant::now());
        }
        drop(state);
        if begins || is_due {
            self.wake.notify_one();
        }
        true
    }

    /// Whether the lines of another read have room, or need none.
    pub(super) fn has_room(&self) -> bool {
        let state = self.state();
        if state.is_closed || state.ending.is_some() || self.failed.is_cancelled() {
            return true;
        }
        let held = state.held.places();
        // The share of a tenant among many may have no more.
        let wanted = if held == 0 { EVENT_BYTES } else { READ_BYTES };
        held.saturating_add(READ_BYTES) <= MAX_CONTENT_BYTES && state.held.could_grow(wanted)
    }

    /// Waits until there is room. Without any in time, the session has failed.
    pub(super) async fn room(&self) -> Result<(), Elapsed> {
        let room = async {
            loop {
                let freed = self.freed.notified();
                if self.has_room() {
                    return;
                }
                tokio::select! {
                    () = freed => {}
                    () = self.failed.cancelled() => {}
                    () = sleep(ROOM_INTERVAL) => {}
                }
            }
        };
        let waited = timeout(ROOM_TIMEOUT, room).await;
        if waited.is_err() {
            self.fail();
        }
        waited
    }

    /// Notes that lines are left out. Returns whether they are the first ones of the session.
    pub(super) fn note_gap(&self) -> bool {
        let mut state = self.state();
        state.is_incomplete = true;
        !std::mem::replace(&mut state.has_gap, true)
    }

    /// Notes that a part of the stream could not be read.
    pub(super) fn note_unread(&self) {
        self.state().is_incomplete = true;
    }

    /// Whether something of the session is not in its lines.
    pub(super) fn is_incomplete(&self) -> bool {
        self.state().is_incomplete
    }

    /// Ends the recording: nothing is appended from now on.
    pub(super) fn end(&self, ending: Ending) {
        self.state().ending.get_or_insert(ending);
        self.ended.cancel();
        self.wake.notify_one();
    }

    /// Completes when the recording has ended.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// The session has to end: it must be recorded, and is not.
    pub(super) fn fail(&self) {
        self.failed.cancel();
    }

    /// Is cancelled when the session has to end.
    pub(super) fn failed(&self) -> CancellationToken {
        self.failed.clone()
    }

    /// Waits until lines are to be stored: there are enough, the first one is old, or the recording has ended.
    pub(super) async fn due(&self) {
        loop {
            let at = {
                let state = self.state();
                if state.ending.is_some() || state.lines.len() >= self.limits.size {
                    return;
                }
                state.since.map(|since| since + self.limits.age)
            };
            match at {
                Some(at) if at <= Instant::now() => return,
                Some(at) => {
                    tokio::select! {
                        () = sleep_until(at) => return,
                        () = self.wake.notified() => {}
                    }
                }
                None => self.wake.notified().await,
            }
        }
    }

    /// Takes the lines to store, and how the recording ends, if it does. The bytes count until [`Self::stored`].
    pub(super) fn take(&self) -> (Vec<u8>, Option<Ending>) {
        let mut state = self.state();
        state.since = None;
        (std::mem::take(&mut state.lines), state.ending.take())
    }

    /// All lines that were taken are stored.
    pub(super) fn stored(&self) {
        let mut state = self.state();
        let waiting = state.lines.len();
        state.held.lower(waiting);
        drop(state);
        self.freed.notify_waiters();
    }

    /// Gives the recording up: releases what it holds, and records nothing any more.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.lines = Vec::new();
        state.held.release();
    }
}
