//! Writes a session in parts.

use std::io;
use std::time::Duration;

use super::chain::{ChainHash, Link};
use super::name::PartForm;
use super::{MAX_OBJECT, ObjectName, RecordingStore, SessionName};
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
    /// The part that could not be written: its bytes may be stored already, so they stay as they are.
    unwritten: Option<Vec<u8>>,
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
        let mut writer =
            Self { store, session, form, limits, head, parts: 0, pending, since: None, unwritten: None };
        writer.put(ObjectName::Start, &start.to_json())?;
        Ok(writer)
    }

    /// Takes whole lines at a time of any clock that does not go back. Writes a part when it is due; returns whether it did. After an
    /// error the part is still pending, and the next part or [`Self::flush`] tries again. Beyond [`MAX_OBJECT`] of pending lines, the lines of the call
    /// are lost, with an error of the kind `StorageFull`.
    pub fn write(&mut self, now: Duration, lines: &[u8]) -> io::Result<bool> {
        let mut has_written = false;
        if self.pending.len().saturating_add(lines.len()) > MAX_OBJECT {
            has_written = self.flush().unwrap_or(false);
            if self.pending.len().saturating_add(lines.len()) > MAX_OBJECT {
                return Err(io::Error::new(
                    io::ErrorKind::StorageFull,
                    "too much of the recording is unwritten",
                ));
            }
        }
        if !lines.is_empty() {
            self.since.get_or_insert(now);
            self.pending.extend_from_slice(lines);
        }
        let is_old = self.since.is_some_and(|since| now.saturating_sub(since) >= self.limits.age);
        if self.pending() < self.limits.size && !is_old {
            return Ok(has_written);
        }
        self.flush()
    }

    /// Writes the pending lines as parts, if there are any; returns whether it did.
    pub fn flush(&mut self) -> io::Result<bool> {
        let retried = self.write_part()?;
        if self.pending.is_empty() {
            return Ok(retried);
        }
        self.unwritten = Some(std::mem::take(&mut self.pending));
        self.since = None;
        self.write_part()
    }

    fn write_part(&mut self) -> io::Result<bool> {
        let Some(lines) = self.unwritten.take() else { return Ok(false) };
        if let Err(error) = self.put(ObjectName::Part(self.parts, self.form), &lines) {
            self.unwritten = Some(lines);
            return Err(error);
        }
        self.parts += 1;
        Ok(true)
    }

    /// Ends the session: writes the pending lines and the last document. Returns the last hash of the chain. May be tried again after an
    /// error, with the same document.
    pub fn end(&mut self, end: &SessionEnd) -> io::Result<ChainHash> {
        self.flush()?;
        let end = SessionEnd { parts: u64::from(self.parts), ..end.clone() };
        self.put(ObjectName::End, &end.to_json())?;
        Ok(self.head)
    }

    fn put(&mut self, object: ObjectName, content: &[u8]) -> io::Result<()> {
        let link = Link::new(self.head, &object, content);
        self.put_once(object, content)?;
        self.put_once(object.link(), &link.to_line())?;
        self.head = self.head.next(&object, content);
        Ok(())
    }

    /// Writes an object, unless an attempt before has: one that failed afterwards, or whose link did.
    fn put_once(&self, object: ObjectName, content: &[u8]) -> io::Result<()> {
        match self.store.put(&self.session, &object, content) {
            // The first objects of a session are of this writer alone.
            Err(error)
                if error.kind() == io::ErrorKind::AlreadyExists && object.link() != ObjectName::StartLink =>
            {
                let stored = self.store.get(&self.session, &object)?;
                if stored.as_deref() == Some(content) { Ok(()) } else { Err(error) }
            }
            put => put,
        }
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
        self.pending.len() + self.unwritten.as_ref().map_or(0, Vec::len)
    }
}

#[cfg(test)]
mod tests;
