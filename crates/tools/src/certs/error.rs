//! The error of a `portcullis certs` command.

use std::process::ExitCode;

use super::super::{BAD_CONFIGURATION, print_error};

/// The text names the file or flag, the cause and a fix.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// The command line is invalid.
    #[error("{0}")]
    Usage(String),
    /// The command failed.
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
    /// A failure that concerns `subject`, mostly a file.
    pub(super) fn about(subject: impl std::fmt::Display, problem: impl std::fmt::Display) -> Self {
        Self::Failed(format!("{subject}: {problem}"))
    }

    /// Prints the error to standard error, and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        print_error(&self.to_string());
        match self {
            Self::Usage(_) => ExitCode::from(BAD_CONFIGURATION),
            Self::Failed(_) => ExitCode::FAILURE,
        }
    }
}
