//! Recordings in a directory, which only its owner can enter.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use portcullis_system::platform::{create_private_directory, open_input, sync_directory};

use super::{MAX_OBJECT, ObjectName, PartForm, RecordingStore, SessionName};

/// A directory with a directory for each session.
#[derive(Debug, Clone)]
pub struct RecordingDirectory {
    path: PathBuf,
}

/// The parts of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoredParts {
    /// Their number.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their form; `None` if there is no part.
    pub form: Option<PartForm>,
    /// When the last one was written, since 1970.
    pub last_written: Option<Duration>,
}

impl RecordingDirectory {
    /// Opens the directory for reading. Fails if there is none.
    pub fn open_existing(path: &Path) -> io::Result<Self> {
        if !fs::metadata(path)?.is_dir() {
            return Err(io::Error::from(io::ErrorKind::NotADirectory));
        }
        Ok(Self { path: path.to_owned() })
    }

    /// The parts of a session as files, without their content.
    pub fn parts(&self, session: &SessionName) -> io::Result<StoredParts> {
        let mut stored = StoredParts::default();
        for entry in fs::read_dir(self.session(session))? {
            let entry = entry?;
            let object = entry.file_name().to_str().and_then(ObjectName::parse);
            let Some(ObjectName::Part(_, form)) = object else { continue };
            let metadata = entry.metadata()?;
            if metadata.is_file() {
                let written = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
                stored.count += 1;
                stored.bytes += metadata.len();
                stored.form = Some(form);
                stored.last_written = stored.last_written.max(written);
            }
        }
        Ok(stored)
    }

    /// Opens the directory; creates it if there is none.
    pub fn open(path: &Path) -> io::Result<Self> {
        create_private_directory(path)?;
        Ok(Self { path: path.to_owned() })
    }

    /// The directory, which exists.
    pub fn existing(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    fn session(&self, session: &SessionName) -> PathBuf {
        self.path.join(session.as_str())
    }

    /// The directory of a session for writing. The first document creates it.
    fn writable(&self, session: &SessionName, object: ObjectName) -> io::Result<PathBuf> {
        let directory = self.session(session);
        if object == ObjectName::Start && !directory.try_exists()? {
            // One that was removed is not made again: its volume may be gone.
            fs::metadata(&self.path)?;
            create_private_directory(&directory)?;
            sync_directory(&self.path)?;
        }
        // Not a link to another place.
        if !fs::symlink_metadata(&directory)?.is_dir() {
            return Err(io::Error::other("is not a directory"));
        }
        Ok(directory)
    }
}

impl RecordingStore for RecordingDirectory {
    fn put(&self, session: &SessionName, object: &ObjectName, content: &[u8]) -> io::Result<()> {
        let directory = self.writable(session, *object)?;
        // It has the mode 0600.
        let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(&directory)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist_noclobber(directory.join(object.to_string()))?;
        sync_directory(&directory)
    }

    fn get(&self, session: &SessionName, object: &ObjectName) -> io::Result<Option<Vec<u8>>> {
        let file = match open_input(&self.session(session).join(object.to_string())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("is not a regular file"));
        }
        let mut content = Vec::new();
        let limit = u64::try_from(MAX_OBJECT).unwrap_or(u64::MAX);
        file.take(limit + 1).read_to_end(&mut content)?;
        if content.len() > MAX_OBJECT {
            return Err(io::Error::other("is larger than any object of a recording"));
        }
        Ok(Some(content))
    }

    fn objects(&self, session: &SessionName) -> io::Result<Vec<ObjectName>> {
        names(&self.session(session), ObjectName::parse)
    }

    fn sessions(&self) -> io::Result<Vec<SessionName>> {
        names(&self.path, SessionName::parse)
    }

    fn discard(&self, session: &SessionName) -> io::Result<()> {
        let objects = self.objects(session)?;
        if objects.iter().any(|object| !matches!(object, ObjectName::Start | ObjectName::StartLink)) {
            return Err(io::Error::other("has begun"));
        }
        let directory = self.session(session);
        // A document without its link is a session whose writer was killed.
        for object in objects.iter().rev() {
            fs::remove_file(directory.join(object.to_string()))?;
        }
        fs::remove_dir(&directory)?;
        sync_directory(&self.path)
    }
}

fn names<N: Ord>(directory: &Path, parse: impl Fn(&str) -> Option<N>) -> io::Result<Vec<N>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.extend(entry?.file_name().to_str().and_then(&parse));
    }
    names.sort();
    Ok(names)
}
