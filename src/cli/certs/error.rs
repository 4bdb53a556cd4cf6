//! Why a command of `portcullis certs` did not do its work, told to whoever typed it.

use std::process::ExitCode;

use super::super::{BAD_CONFIGURATION, print_error};

/// What went wrong; the text names the file or flag, and what to do.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum CommandError {
    /// The command line asks for what cannot be.
    #[error("{0}")]
    Usage(String),
    /// The work could not be done.
    #[error("{0}")]
    Failed(String),
}

impl From<super::files::FileError> for CommandError {
    fn from(error: super::files::FileError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<super::index::IndexError> for CommandError {
    fn from(error: super::index::IndexError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl CommandError {
    /// The work on `subject`, mostly a file, could not be done.
    pub(super) fn about(subject: impl std::fmt::Display, problem: impl std::fmt::Display) -> Self {
        Self::Failed(format!("{subject}: {problem}"))
    }

    /// Says it on standard error.
    pub(in crate::cli) fn tell(&self) -> ExitCode {
        print_error(&self.to_string());
        match self {
            Self::Usage(_) => ExitCode::from(BAD_CONFIGURATION),
            Self::Failed(_) => ExitCode::FAILURE,
        }
    }
}
