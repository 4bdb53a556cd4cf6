//! What is wrong with a configuration: each error names the flag, the file, and the way out; all are shown together.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ConfigError {
    /// The flag (`--client-ca-file`) or key path the error is about.
    pub key: String,
    /// Where the configuration file has the key, if it is in one.
    pub position: Option<Position>,
    /// The file that was read, if the error is in one.
    pub file: Option<PathBuf>,
    /// What is wrong; kube-apiserver's own words where it has them.
    pub problem: String,
    /// What to do about it.
    pub fix: Option<String>,
}

impl ConfigError {
    /// An error in the value of a flag or a key.
    pub fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { key: key.into(), position: None, file: None, problem: problem.into(), fix: None }
    }

    /// The same error, in a file.
    #[must_use]
    pub fn in_file(mut self, file: &Path) -> Self {
        self.file = Some(file.to_owned());
        self
    }

    /// The same error, with the way out.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(position) = &self.position {
            write!(f, "{position}: ")?;
        }
        write!(f, "{}: ", self.key)?;
        if let Some(file) = &self.file {
            write!(f, "{}: ", file.display())?;
        }
        f.write_str(&self.problem)?;
        match &self.fix {
            Some(fix) => write!(f, "\n      fix: {fix}"),
            None => Ok(()),
        }
    }
}

/// A place in the configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Position {
    /// The file.
    pub file: PathBuf,
    /// The line of the key, or of the nearest one around a key that is missing; the first is 1.
    pub line: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// Everything that is wrong, and what is only odd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        write!(f, "the configuration has {count} error{}:", if count == 1 { "" } else { "s" })?;
        self.0.iter().try_for_each(|error| write!(f, "\n  - {error}"))
    }
}

impl std::error::Error for ConfigErrors {}
