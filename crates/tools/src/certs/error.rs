//! The error of a `portcullis certs` command.

use std::process::ExitCode;

use super::super::{BAD_CONFIGURATION, print_error};
use crate::interrupt::TerminationSignal;

/// The text names the file or flag, the cause and a fix.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// The command line is invalid.
    #[error("{0}")]
    Usage(String),
    /// The command failed.
    #[error("{0}")]
    Failed(String),
    /// A signal has ended the command.
    #[error("{text}")]
    Interrupted {
        /// The text.
        text: String,
        /// The signal.
        signal: TerminationSignal,
    },
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

impl From<super::record_file::RecordFileError> for CommandError {
    fn from(error: super::record_file::RecordFileError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl CommandError {
    /// A failure that concerns `subject`, mostly a file.
    pub(crate) fn about(subject: impl std::fmt::Display, problem: impl std::fmt::Display) -> Self {
        Self::Failed(format!("{subject}: {problem}"))
    }

    /// Prints the error to standard error, and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        print_error(&self.to_string());
        match self {
            Self::Usage(_) => ExitCode::from(BAD_CONFIGURATION),
            Self::Failed(_) => ExitCode::FAILURE,
            Self::Interrupted { signal, .. } => signal.exit_code(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_tells_what_ended_the_command() {
        let interrupted = |signal| CommandError::Interrupted { text: "a: interrupted".to_owned(), signal };
        for (error, code) in [
            (CommandError::Failed("a".to_owned()), 1),
            (interrupted(TerminationSignal::Hangup), 129),
            (interrupted(TerminationSignal::Interrupt), 130),
            (interrupted(TerminationSignal::Terminate), 143),
        ] {
            assert_eq!(format!("{:?}", error.report()), format!("{:?}", ExitCode::from(code)));
        }
    }
}
