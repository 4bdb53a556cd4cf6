//! Opens the records of a CA: its index and its revocations, beside its certificate. Their content is decided by whoever
//! asks for a certificate, so a record must not be written through another user's link, and a FIFO under its name must not
//! keep a command waiting: where a group shares a CA, each of its members can place both.
// threat: planted-link, endless-file

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use portcullis_system::platform;
use serde::de::DeserializeOwned;

use super::link::{LinkError, resolve};

/// More than half a million certificates.
const MAX_SIZE: u64 = 256 << 20;
/// Upper bound of a line: a request has at most 64 KiB.
const MAX_LINE: u64 = 256 * 1024;

/// Why a record is not opened or read.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordFileError {
    /// Another user can have placed a link on the way.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// It is not a regular file, too large, or a system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The record.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// The entries of a record, and the number of the first line that is none, from 1, with the parser's error.
pub(super) fn readable<T: DeserializeOwned>(text: &str) -> (Vec<T>, Option<(usize, serde_json::Error)>) {
    let (mut entries, mut damaged) = (Vec::new(), None);
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match serde_json::from_str(line) {
            Ok(entry) => entries.push(entry),
            Err(error) => drop(damaged.get_or_insert((index + 1, error))),
        }
    }
    (entries, damaged)
}

/// An opened record.
#[derive(Debug)]
pub(super) struct RecordFile {
    pub(super) file: File,
    /// Its path without symbolic links.
    pub(super) path: PathBuf,
}

impl RecordFile {
    /// Opens a record for reading and appending; a new one is for the user alone.
    pub(super) fn append(path: &Path) -> Result<Self, RecordFileError> {
        let found = resolve(path)?;
        Self::open(path, found, OpenOptions::new().create(true).read(true).append(true))
    }

    /// All text of a record; `None` if there is none.
    pub(super) fn read(path: &Path) -> Result<Option<String>, RecordFileError> {
        let found = resolve(path)?;
        match Self::open(path, found, OpenOptions::new().read(true)) {
            Ok(mut opened) => opened.text().map(Some).map_err(at(path)),
            Err(RecordFileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// `named`: the path for errors. A link that was placed since `found` was resolved is not followed.
    fn open(named: &Path, found: PathBuf, options: &mut OpenOptions) -> Result<Self, RecordFileError> {
        let file = platform::open_private(options, &found).map_err(at(named))?;
        let metadata = file.metadata().map_err(at(named))?;
        if !metadata.is_file() {
            let kind = platform::special_kind(metadata.file_type());
            return Err(at(named)(io::Error::other(format!("is {kind}, not a regular file"))));
        }
        if metadata.len() > MAX_SIZE {
            return Err(at(named)(too_large()));
        }
        Ok(Self { file, path: found })
    }

    /// The text from the cursor on.
    pub(super) fn text(&mut self) -> io::Result<String> {
        let mut text = String::new();
        let length = self.file.by_ref().take(MAX_SIZE + 1).read_to_string(&mut text)?;
        if u64::try_from(length).is_ok_and(|length| length <= MAX_SIZE) { Ok(text) } else { Err(too_large()) }
    }

    /// Whether the path still names the file.
    pub(super) fn is_in_place(&self) -> io::Result<bool> {
        platform::is_at(&self.file, &self.path)
    }

    /// Appends what `write` writes, and syncs the file. If that fails, such as on a full disk, takes back what was written: a part
    /// of a line would make the record unreadable. The caller holds the lock.
    pub(super) fn append_with(&mut self, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        let written = write(&mut self.file).and_then(|()| self.sync());
        if written.is_err() {
            // Best effort: the error is reported, and the next writer finds the part of a line.
            drop(self.file.set_len(length).and_then(|()| self.file.sync_all()));
        }
        written
    }

    /// The end of the file: at most `MAX_LINE` octets.
    pub(super) fn tail(&mut self) -> io::Result<Vec<u8>> {
        let mut tail = Vec::new();
        let length = self.file.seek(SeekFrom::End(0))?;
        self.file.seek(SeekFrom::Start(length.saturating_sub(MAX_LINE)))?;
        self.file.by_ref().take(MAX_LINE).read_to_end(&mut tail)?;
        Ok(tail)
    }

    /// Removes a last line that has no line feed and that `is_entry` refuses: its writer was stopped before its end, and so has
    /// reported no success. Returns whether there was one. The caller holds the lock.
    pub(super) fn drop_torn_line(&mut self, is_entry: impl FnOnce(&[u8]) -> bool) -> io::Result<bool> {
        let length = self.file.metadata()?.len();
        let tail = self.tail()?;
        let last = tail.rsplit(|octet| *octet == b'\n').next().unwrap_or_default();
        let last_length = u64::try_from(last.len()).unwrap_or(u64::MAX);
        // A longer line was written by no program of ours.
        let has_begin = last.len() < tail.len() || last_length == length;
        if last.is_empty() || !has_begin || is_entry(last) {
            return Ok(false);
        }
        self.file.set_len(length.saturating_sub(last_length))?;
        self.file.sync_all()?;
        Ok(true)
    }

    /// Writes the file to disk, and its entry in the directory: the first line creates it.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()?;
        platform::sync_directory(super::files::directory_of(&self.path))
    }
}

fn too_large() -> io::Error {
    io::Error::other(format!("is larger than {} MiB", MAX_SIZE >> 20))
}

fn at(path: &Path) -> impl Fn(io::Error) -> RecordFileError {
    let path = path.to_owned();
    move |source| RecordFileError::Io { path: path.clone(), source }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    /// The errors of appending to a record and of reading it.
    fn errors(path: &Path) -> [String; 2] {
        [RecordFile::append(path).unwrap_err().to_string(), RecordFile::read(path).unwrap_err().to_string()]
    }

    #[test]
    fn only_a_regular_file_is_a_record_and_a_fifo_makes_nobody_wait() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        mkfifoat(CWD, path("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
        symlink("fifo", path("link-to-fifo")).unwrap();
        symlink("/dev/null", path("device")).unwrap();
        for (name, text) in [("fifo", "is a FIFO"), ("link-to-fifo", "is a FIFO"), ("device", "is a device")]
        {
            for error in errors(&path(name)) {
                assert!(error.contains(&format!("{name}: {text}")), "{error}");
            }
        }
        fs::create_dir(path("directory")).unwrap();
        RecordFile::append(&path("directory")).unwrap_err();
        RecordFile::read(&path("directory")).unwrap_err();
    }

    #[test]
    fn the_size_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record");
        File::create(&path).unwrap().set_len(MAX_SIZE + 1).unwrap();
        for error in errors(&path) {
            assert!(error.ends_with("record: is larger than 256 MiB"), "{error}");
        }
    }

    #[test]
    fn a_part_of_a_line_is_taken_back_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record");
        fs::write(&path, "one\n").unwrap();
        let mut record = RecordFile::append(&path).unwrap();
        let full_disk = |file: &mut File| {
            file.write_all(b"two\nthr")?;
            Err(io::Error::other("no space left"))
        };
        assert_eq!(record.append_with(full_disk).unwrap_err().to_string(), "no space left");
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\n");
        record.append_with(|file| file.write_all(b"two\nthr")).unwrap();
        assert!(!record.drop_torn_line(|line| line == b"thr").unwrap(), "an editor dropped the line feed");
        assert!(record.drop_torn_line(|_| false).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        assert!(!record.drop_torn_line(|_| false).unwrap(), "a whole line is not removed");
        fs::write(&path, "on").unwrap();
        assert!(RecordFile::append(&path).unwrap().drop_torn_line(|_| false).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
        // Longer than any line.
        fs::write(&path, vec![b'a'; 300 * 1024]).unwrap();
        assert!(!RecordFile::append(&path).unwrap().drop_torn_line(|_| false).unwrap());
    }

    #[test]
    fn links_of_the_user_are_followed_and_one_that_appears_later_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        assert_eq!(RecordFile::read(&path("absent")).unwrap(), None);
        symlink("kept", path("link")).unwrap();
        assert_eq!(RecordFile::read(&path("link")).unwrap(), None);
        drop(RecordFile::append(&path("link")).unwrap());
        assert_eq!(RecordFile::read(&path("link")).unwrap().as_deref(), Some(""));
        assert!(path("kept").is_file());
        symlink("other", path("late")).unwrap();
        RecordFile::open(&path("late"), path("late"), OpenOptions::new().create(true).append(true))
            .unwrap_err();
        assert!(!path("other").exists());
    }
}
