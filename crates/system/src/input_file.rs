//! Reads the files that the operator names in the configuration: regular files of bounded size only.
//!
//! A FIFO or a terminal could block the reader for ever, a device such as `/dev/zero` never ends, and opening some
//! devices changes their state. The reader refuses them by file type before it opens them. kube-apiserver opens any
//! path (`os.ReadFile`).
// threat: endless-file

use std::fs::{self, FileType};
use std::io::{self, Read as _};
use std::path::Path;

use crate::platform::{open_input, special_kind};

/// Enough for a hundred thousand tokens or five thousand certificates.
pub const MAX_FILE_SIZE: u64 = 16 << 20;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadFileError {
    /// The operating system returned an error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not a regular file.
    #[error("is {0}, not a regular file")]
    NotRegular(&'static str),
    /// The file is larger than [`MAX_FILE_SIZE`].
    #[error("is larger than {} MiB", MAX_FILE_SIZE >> 20)]
    TooLarge,
}

impl ReadFileError {
    /// The fix to suggest to the operator.
    pub fn fix(&self) -> &'static str {
        match self {
            Self::Io(_) => "give a readable file",
            Self::NotRegular(_) => "give a regular file, or a symbolic link to one",
            Self::TooLarge => "give a smaller file",
        }
    }
}

/// Reads a whole file.
pub fn read(path: &Path) -> Result<Vec<u8>, ReadFileError> {
    check_kind(fs::metadata(path)?.file_type())?;
    // The path may name another file by now: opening it must not block on a FIFO, and must not acquire a controlling
    // terminal.
    let mut file = open_input(path)?;
    check_kind(file.metadata()?.file_type())?;
    let mut content = Vec::new();
    let length = file.by_ref().take(MAX_FILE_SIZE + 1).read_to_end(&mut content)?;
    if u64::try_from(length).is_ok_and(|length| length <= MAX_FILE_SIZE) {
        Ok(content)
    } else {
        Err(ReadFileError::TooLarge)
    }
}

fn check_kind(kind: FileType) -> Result<(), ReadFileError> {
    let name = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        "a directory"
    } else {
        special_kind(kind)
    };
    Err(ReadFileError::NotRegular(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(path: &Path) -> String {
        read(path).unwrap_err().to_string()
    }

    #[cfg(unix)]
    #[test]
    fn only_regular_files_are_read() {
        use std::os::unix::net::UnixListener;

        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), rustix::fs::Mode::RUSR).unwrap();
        let _listener = UnixListener::bind(path("socket")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("zero")).unwrap();
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        fs::write(path("file"), "content").unwrap();
        assert_eq!(
            error_of(&path("fifo")),
            "is a FIFO (a named pipe, or what a shell makes of <(…)), not a regular file"
        );
        assert_eq!(error_of(&path("socket")), "is a socket, not a regular file");
        assert_eq!(error_of(&path("zero")), "is a device, not a regular file");
        assert_eq!(error_of(directory.path()), "is a directory, not a regular file");
        assert_eq!(read(&path("link")).unwrap(), b"content");
    }

    #[test]
    fn the_size_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file = fs::File::create(&path).unwrap();
        file.set_len(MAX_FILE_SIZE).unwrap();
        assert_eq!(read(&path).unwrap().len(), 16 << 20);
        file.set_len(MAX_FILE_SIZE + 1).unwrap();
        assert_eq!(error_of(&path), "is larger than 16 MiB");
    }
}
