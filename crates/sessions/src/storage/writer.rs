//! Writes a session in parts.

use std::io;
use std::time::Duration;

use super::chain::{ChainHash, Link};
use super::name::PartForm;
use super::{ObjectName, RecordingStore, SessionName};
use crate::recording::metadata::{SessionEnd, SessionStart};

/// When a part ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartLimits {
    /// The size from which on a part is written.
    pub size: usize,
    /// The time after which a part is written: a killed gateway loses no more.
    pub age: Duration,
}

impl Default for PartLimits {
    fn default() -> Self {
        Self { size: 256 << 10, age: Duration::from_secs(5) }
    }
}

/// Writes the objects of one session. It is blocking, as the store is.
#[derive(Debug)]
pub struct SessionWriter<S> {
    store: S,
    session: SessionName,
    form: PartForm,
    limits: PartLimits,
    head: ChainHash,
    parts: u32,
    /// The lines of the next part, and when its first one came.
    pending: Vec<u8>,
    since: Option<Duration>,
}

impl<S: RecordingStore> SessionWriter<S> {
    /// Begins a session: writes its first document.
    pub fn begin(
        store: S,
        session: SessionName,
        start: &SessionStart,
        form: PartForm,
        limits: PartLimits,
    ) -> io::Result<Self> {
        let (head, pending) = (ChainHash::default(), Vec::new());
        let mut writer = Self { store, session, form, limits, head, parts: 0, pending, since: None };
        writer.put(ObjectName::Start, &start.to_json())?;
        Ok(writer)
    }

    /// Takes whole lines at a time of any clock that does not go back. Writes a part when it is due; returns whether it did. After an
    /// error the part is still pending, and the next call tries again.
    pub fn write(&mut self, now: Duration, lines: &[u8]) -> io::Result<bool> {
        if !lines.is_empty() {
            self.since.get_or_insert(now);
            self.pending.extend_from_slice(lines);
        }
        let is_old = self.since.is_some_and(|since| now.saturating_sub(since) >= self.limits.age);
        if self.pending.len() < self.limits.size && !is_old {
            return Ok(false);
        }
        self.flush()
    }

    /// Writes the pending lines as a part, if there are any; returns whether it did.
    pub fn flush(&mut self) -> io::Result<bool> {
        if self.pending.is_empty() {
            return Ok(false);
        }
        let lines = std::mem::take(&mut self.pending);
        let written = self.put(ObjectName::Part(self.parts, self.form), &lines);
        if let Err(error) = written {
            self.pending = lines;
            return Err(error);
        }
        self.parts += 1;
        self.since = None;
        Ok(true)
    }

    /// Ends the session: writes the pending lines and the last document. Returns the last hash of the chain.
    pub fn end(mut self, end: &SessionEnd) -> io::Result<ChainHash> {
        self.flush()?;
        let end = SessionEnd { parts: u64::from(self.parts), ..end.clone() };
        self.put(ObjectName::End, &end.to_json())?;
        Ok(self.head)
    }

    fn put(&mut self, object: ObjectName, content: &[u8]) -> io::Result<()> {
        let link = Link::new(self.head, &object, content);
        // One that an attempt before has written, whose link could not be.
        match self.store.put(&self.session, &object, content) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.is_stored(object, content) => {
            }
            put => put?,
        }
        self.store.put(&self.session, &object.link(), &link.to_line())?;
        self.head = self.head.next(&object, content);
        Ok(())
    }

    fn is_stored(&self, object: ObjectName, content: &[u8]) -> bool {
        object != ObjectName::Start
            && self.store.get(&self.session, &object).is_ok_and(|stored| stored.as_deref() == Some(content))
    }

    /// The name of the session.
    pub fn session(&self) -> &SessionName {
        &self.session
    }

    /// The last hash of the chain.
    pub fn head(&self) -> ChainHash {
        self.head
    }

    /// The number of bytes that are not written yet.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }
}
