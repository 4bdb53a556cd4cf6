//! Why a log cannot be read or written.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a log cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There is no log.
    #[error("{}: there is no log, since it has no file `checkpoint`; create one with: portcullis certs log init", .0.display())]
    NoLog(PathBuf),
    /// There is one already.
    #[error("{}: there is a log already", .0.display())]
    Exists(PathBuf),
    /// A file of the log is not what it must be.
    #[error("{}: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A key is not usable.
    #[error("{}: {problem}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Another process holds the lock.
    #[error("{}: another process has locked it for {} s", path.display(), waited.as_secs())]
    Locked {
        /// The lock.
        path: PathBuf,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The certificate does not fit into an entry.
    #[error("the certificate with its details takes {0} bytes in the log, more than the 65535 of an entry")]
    TooLarge(usize),
    /// What a checkpoint or proof states is not so.
    #[error("{0}")]
    Mismatch(String),
}

impl LogError {
    pub(crate) fn io(path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { path: path.clone(), source }
    }

    pub(crate) fn damaged(path: &Path, problem: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), problem: problem.into() }
    }
}
