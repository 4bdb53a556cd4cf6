//! Configuration errors. Each names the key, the file, the problem and the fix; all are reported together.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// One configuration error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ConfigError {
    /// The flag (`--client-ca-file`) or key path (`clusters[0].name`).
    pub key: String,
    /// The position of the key in the configuration file; `None` for a flag.
    pub position: Option<FilePosition>,
    /// The file that the key names, if the error is in that file.
    pub file: Option<PathBuf>,
    /// The problem; kube-apiserver's own text where it has one.
    pub problem: String,
    /// How to fix it.
    pub fix: Option<String>,
}

impl ConfigError {
    /// An error in the value of a flag or key.
    pub fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { key: key.into(), position: None, file: None, problem: problem.into(), fix: None }
    }

    /// Adds the file that has the error.
    #[must_use]
    pub fn in_file(mut self, file: &Path) -> Self {
        self.file = Some(file.to_owned());
        self
    }

    /// Adds the fix.
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

/// A position in the configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FilePosition {
    /// The file.
    pub file: PathBuf,
    /// The line of the key, or of the nearest enclosing key if it is missing. The first line is 1.
    pub line: u64,
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// All errors of a configuration.
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
