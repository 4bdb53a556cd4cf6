//! Reads the files that a person names on the command line: regular files of bounded size, and the pipes that a shell makes of
//! `<(…)`. A device such as `/dev/zero` has no end, and a FIFO may have no writer: each is an error instead of a command
//! that hangs.
// threat: endless-file

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use portcullis_system::input_file::{self, MAX_FILE_SIZE, ReadFileError};
use secrecy::zeroize::Zeroizing;

use pipes::{is_fifo, open};

/// How long a FIFO may have no writer, and how long all waits for its writer may take.
const WRITER_TIMEOUT: Duration = Duration::from_secs(10);
const PIPE_TIMEOUT: Duration = Duration::from_mins(1);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Why a file that a person named cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NamedFileError {
    /// It is neither a regular file nor a pipe, too large, or the operating system returned an error.
    #[error(transparent)]
    File(#[from] ReadFileError),
    /// No process has opened the pipe for writing.
    #[error("is a FIFO without a writer: nothing came for {} s", .0.as_secs())]
    NoWriter(Duration),
    /// The writer keeps the pipe open and is silent.
    #[error("is a FIFO that its writer has not closed within {} s", .0.as_secs())]
    Open(Duration),
}

impl From<io::Error> for NamedFileError {
    fn from(error: io::Error) -> Self {
        Self::File(ReadFileError::Io(error))
    }
}

/// Reads a whole file, or a pipe until its writer closes it.
pub(crate) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, NamedFileError> {
    if is_fifo(fs::metadata(path)?.file_type()) {
        return read_pipe(path, WRITER_TIMEOUT, PIPE_TIMEOUT);
    }
    Ok(Zeroizing::new(input_file::read(path)?))
}

/// Reads a whole file; `None` if there is none.
pub(crate) fn read_if_present(path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, NamedFileError> {
    match read(path) {
        Err(NamedFileError::File(ReadFileError::Io(error))) if error.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        read => read.map(Some),
    }
}

/// Reads standard input to its end. A person at a terminal ends it with Ctrl-D.
pub(crate) fn read_standard_input() -> Result<Zeroizing<Vec<u8>>, NamedFileError> {
    let mut content = Zeroizing::new(Vec::new());
    io::stdin().lock().take(MAX_FILE_SIZE + 1).read_to_end(&mut content)?;
    check_size(&content)?;
    Ok(content)
}

fn check_size(content: &[u8]) -> Result<(), NamedFileError> {
    let is_bounded = u64::try_from(content.len()).is_ok_and(|length| length <= MAX_FILE_SIZE);
    if is_bounded { Ok(()) } else { Err(ReadFileError::TooLarge.into()) }
}

/// Opens without blocking, since a FIFO without a writer would block for ever.
fn read_pipe(
    path: &Path,
    writer_timeout: Duration,
    timeout: Duration,
) -> Result<Zeroizing<Vec<u8>>, NamedFileError> {
    let mut pipe = open(path)?;
    if !is_fifo(pipe.metadata()?.file_type()) {
        // Another process has replaced it since.
        return Err(ReadFileError::NotRegular("no longer the FIFO that it was").into());
    }
    let (mut content, mut waited) = (Zeroizing::new(Vec::new()), Duration::ZERO);
    loop {
        match read_available(&mut pipe, &mut content)? {
            PipeState::Ended if !content.is_empty() => return Ok(content),
            // Without a writer so far, and with a writer that has written nothing, the system reports an end.
            PipeState::Ended if waited >= writer_timeout => {
                return Err(NamedFileError::NoWriter(writer_timeout));
            }
            PipeState::Open if waited >= timeout => return Err(NamedFileError::Open(timeout)),
            PipeState::Ended | PipeState::Open => {}
        }
        std::thread::sleep(POLL_INTERVAL);
        waited += POLL_INTERVAL;
    }
}

enum PipeState {
    Ended,
    Open,
}

/// Reads what is in a pipe now.
fn read_available(pipe: &mut File, content: &mut Vec<u8>) -> Result<PipeState, NamedFileError> {
    let mut buffer = Zeroizing::new([0; 8192]);
    loop {
        match pipe.read(buffer.as_mut_slice()) {
            Ok(0) => return Ok(PipeState::Ended),
            Ok(length) => content.extend_from_slice(buffer.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(PipeState::Open),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        check_size(content)?;
    }
}

#[cfg(unix)]
mod pipes {
    use std::fs::{File, FileType, OpenOptions};
    use std::io;
    use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
    use std::path::Path;

    use rustix::fs::OFlags;

    pub(super) fn is_fifo(kind: FileType) -> bool {
        kind.is_fifo()
    }

    /// Opens a file without waiting for a writer, and without acquiring a controlling terminal.
    pub(super) fn open(path: &Path) -> io::Result<File> {
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        OpenOptions::new().read(true).custom_flags(flags).open(path)
    }
}

/// Other systems have no pipes among their files.
#[cfg(not(unix))]
mod pipes {
    use std::fs::{File, FileType};
    use std::io;
    use std::path::Path;

    pub(super) fn is_fifo(_: FileType) -> bool {
        false
    }

    pub(super) fn open(path: &Path) -> io::Result<File> {
        File::open(path)
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::io::Write as _;
    use std::path::PathBuf;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    const MOMENT: Duration = Duration::from_millis(40);
    const LONG: Duration = Duration::from_mins(10);

    fn fifo(directory: &tempfile::TempDir) -> PathBuf {
        let path = directory.path().join("fifo");
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        path
    }

    #[test]
    fn devices_and_directories_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in [
            (Path::new("/dev/zero"), "is a device"),
            (directory.path(), "is a directory, not a regular file"),
        ] {
            let error = read(path).unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
        assert!(read_if_present(&directory.path().join("absent")).unwrap().is_none());
    }

    #[test]
    fn a_pipe_is_read_until_its_writer_closes_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = fifo(&directory);
        // More than a pipe holds at once.
        let sent = vec![7; 300_000];
        let received = std::thread::scope(|scope| {
            scope.spawn(|| File::options().write(true).open(&path).unwrap().write_all(&sent).unwrap());
            read_pipe(&path, LONG, LONG).unwrap()
        });
        assert_eq!(*received, sent);
    }

    #[test]
    fn a_pipe_without_a_writer_or_without_an_end_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = fifo(&directory);
        let error = read_pipe(&path, MOMENT, LONG).unwrap_err();
        assert!(matches!(error, NamedFileError::NoWriter(_)), "{error}");
        // Both ends in one process: opening does not block.
        let mut open = File::options().read(true).write(true).open(&path).unwrap();
        let error = read_pipe(&path, LONG, MOMENT).unwrap_err();
        assert!(matches!(error, NamedFileError::Open(_)), "{error}");
        open.write_all(b"half").unwrap();
        let error = read_pipe(&path, LONG, MOMENT).unwrap_err();
        assert!(matches!(error, NamedFileError::Open(_)), "{error}");
    }

    #[test]
    fn a_pipe_that_is_written_without_end_is_too_large() {
        let directory = tempfile::tempdir().unwrap();
        let path = fifo(&directory);
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut pipe = File::options().write(true).open(&path).unwrap();
                // Ends with the reader.
                while pipe.write_all(&[0; 4096]).is_ok() {}
            });
            read_pipe(&path, LONG, LONG).unwrap_err()
        });
        assert!(matches!(error, NamedFileError::File(ReadFileError::TooLarge)), "{error}");
    }
}
