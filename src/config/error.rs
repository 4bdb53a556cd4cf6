//! Configuration errors. Each names the key, the file, the problem and the fix; all are reported together.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::management_cluster::is_in_secret;

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
    /// An error in the value of a flag or key. The user and password of a URL are left out of the problem.
    pub fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        let problem = without_credentials(problem.into());
        Self { key: key.into(), position: None, file: None, problem, fix: None }
    }

    /// Adds the file that has the error.
    #[must_use]
    pub fn in_file(mut self, file: &Path) -> Self {
        self.file = Some(file.to_owned());
        self
    }

    /// Whether the error is in a file of the gateway, which no tenant writes.
    pub(crate) fn is_in_file_of_operator(&self) -> bool {
        self.file.as_deref().is_some_and(|file| !is_in_secret(file))
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

/// The text without the part before the last `@` of each URL in it. A password may have any character, also those that
/// end the host of a valid URL.
// threat: password-in-error
fn without_credentials(text: String) -> String {
    if !text.contains("://") {
        return text;
    }
    let mut rest = text.as_str();
    let mut clean = String::with_capacity(text.len());
    while let Some((before, url)) = rest.split_once("://") {
        let end = url.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`')).unwrap_or(url.len());
        let (url, after) = url.split_at_checked(end).unwrap_or((url, ""));
        clean.push_str(before);
        clean.push_str("://");
        match url.rsplit_once('@') {
            Some((_, host)) => clean.extend(["…@", host]),
            None => clean.push_str(url),
        }
        rest = after;
    }
    clean.push_str(rest);
    clean
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_has_the_password_of_a_url() {
        let cases = [
            ("server \"https://user:s3cret@host:6443/x\": no", "server \"https://…@host:6443/x\": no"),
            ("\"https://u:s3/cr@et?@host\" and http://s3cret@two", "\"https://…@host\" and http://…@two"),
            ("https://host/path is fine, a@b.c too", "https://host/path is fine, a@b.c too"),
            ("https://a https://s3cret@b", "https://a https://…@b"),
            ("https://s3cret://s3cret@b", "https://…@b"),
            ("://", "://"),
        ];
        for (problem, expected) in cases {
            assert_eq!(ConfigError::new("key", problem).problem, expected);
        }
    }
}
