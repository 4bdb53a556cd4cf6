//! How a recording is stored: in parts that are written once, so that a killed writer loses at most its last part, and with
//! a hash chain, so that a missing or changed part shows.
//!
//! A session `NAME` has these objects, in the order in which they are written:
//!
//! | object | content |
//! |---|---|
//! | `session.json` | who did what where ([`SessionStart`](crate::recording::metadata::SessionStart)) |
//! | `000000.cast`, `000001.cast`, … | the parts: whole lines of the recording; `.jsonl` for a session without a terminal |
//! | `end.json` | how it ended ([`SessionEnd`](crate::recording::metadata::SessionEnd)) |
//!
//! After each object its link is written, `session.link`, `000000.link`, …: a line of JSON with the object's name, size and
//! SHA-256, and with the hash of the link ([`chain`]). `cat NAME/*.cast` is the recording.
//!
//! A hash chain shows a change of some objects. With access to all of them a new chain can be made, which only a copy of
//! [`SessionWriter::head`] at another place shows, such as in the audit log.

pub mod chain;
mod directory;
mod name;
pub mod verify;
mod writer;

use std::io;
use std::sync::Arc;

pub use directory::RecordingDirectory;
pub use directory::StoredParts;
pub use name::{ObjectName, PartForm, SessionName};
pub use writer::{PartLimits, SessionWriter};

/// The maximum size of an object.
pub const MAX_OBJECT: usize = 16 << 20;

/// A place for recordings: a directory or an object store.
pub trait RecordingStore: Send + Sync {
    /// Writes an object, which is there as a whole or not at all, and for good when this returns. Fails if it exists.
    fn put(&self, session: &SessionName, object: &ObjectName, content: &[u8]) -> io::Result<()>;

    /// Reads an object; `None` if there is none. Fails if it is larger than [`MAX_OBJECT`].
    fn get(&self, session: &SessionName, object: &ObjectName) -> io::Result<Option<Vec<u8>>>;

    /// The objects of a session. Other files are left out.
    fn objects(&self, session: &SessionName) -> io::Result<Vec<ObjectName>>;

    /// The sessions, from the oldest. Other files are left out.
    fn sessions(&self) -> io::Result<Vec<SessionName>>;

    /// Removes a session that did not begin: it has its first document and no other object. A store that removes nothing keeps
    /// it.
    fn discard(&self, _session: &SessionName) -> io::Result<()> {
        Ok(())
    }
}

impl<S: RecordingStore + ?Sized> RecordingStore for Arc<S> {
    fn put(&self, session: &SessionName, object: &ObjectName, content: &[u8]) -> io::Result<()> {
        (**self).put(session, object, content)
    }

    fn get(&self, session: &SessionName, object: &ObjectName) -> io::Result<Option<Vec<u8>>> {
        (**self).get(session, object)
    }

    fn objects(&self, session: &SessionName) -> io::Result<Vec<ObjectName>> {
        (**self).objects(session)
    }

    fn sessions(&self) -> io::Result<Vec<SessionName>> {
        (**self).sessions()
    }

    fn discard(&self, session: &SessionName) -> io::Result<()> {
        (**self).discard(session)
    }
}

#[cfg(test)]
mod tests;
