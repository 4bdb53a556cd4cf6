//! What a certificate authority has signed: one line of JSON for each certificate, in a file beside the authority's
//! certificate. A line is on disk before its certificate is handed out, so the file may name one that nobody has, but
//! no certificate is missing in it. Lines are only ever added.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry {
    /// The serial number, in hexadecimal.
    pub(super) serial: String,
    pub(super) subject: String,
    /// DNS names and addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) alt_names: Vec<String>,
    pub(super) profile: String,
    /// RFC 3339, as the following.
    pub(super) issued_at: String,
    pub(super) not_after: String,
    /// Of the whole certificate, in hexadecimal.
    pub(super) sha256: String,
}

/// Why the index does not take or give an entry.
#[derive(Debug, thiserror::Error)]
pub(super) enum IndexError {
    /// The system refuses.
    #[error("{}: {source}; a certificate that is not recorded there is not handed out", path.display())]
    Io {
        /// The index.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line of it is no entry.
    #[error(
        "{}: line {line} is not an entry: {problem}; mend it, or remove the line if it was cut off (its certificate \
         was then never handed out)",
        path.display()
    )]
    Damaged {
        /// The index.
        path: PathBuf,
        /// The first such line, from one.
        line: usize,
        /// What the parser said.
        problem: String,
    },
}

/// The file of one authority.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) path: PathBuf,
}

impl Index {
    /// That of the authority with this certificate: `client-ca.index.jsonl` beside `client-ca.crt`.
    pub(super) fn beside(certificate: &Path) -> Self {
        Self { path: certificate.with_extension("index.jsonl") }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a line, and returns when it is on disk.
    pub(super) fn record(&self, entry: &Entry) -> Result<(), IndexError> {
        let failed = |source| IndexError::Io { path: self.path.clone(), source };
        let open = OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(&self.path);
        let mut file = open.map_err(failed)?;
        // Of several commands at once one writes; the lock ends with the file.
        file.lock().map_err(failed)?;
        let (_, ends_well) = self.entries(&mut file)?;
        let mut line = if ends_well { String::new() } else { "\n".to_owned() };
        line += &serde_json::to_string(entry).map_err(|error| failed(error.into()))?;
        line.push('\n');
        file.write_all(line.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        // The first line makes the file, and a file is lost with its name.
        let directory = super::files::directory_of(&self.path);
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)
    }

    /// The whole file with further entries, for a new authority that is written with its index at once.
    pub(super) fn with(&self, entries: &[Entry]) -> Result<String, IndexError> {
        let all = self.read()?;
        let lines = all.iter().chain(entries).map(|entry| Ok(serde_json::to_string(entry)? + "\n"));
        lines
            .collect::<Result<_, serde_json::Error>>()
            .map_err(|error| IndexError::Io { path: self.path.clone(), source: error.into() })
    }

    /// Every entry, oldest first; none if nothing was signed yet.
    pub(super) fn read(&self) -> Result<Vec<Entry>, IndexError> {
        match File::open(&self.path) {
            Ok(mut file) => self.entries(&mut file).map(|(entries, _)| entries),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(IndexError::Io { path: self.path.clone(), source }),
        }
    }

    /// The entries, and whether the last line is ended.
    fn entries(&self, file: &mut File) -> Result<(Vec<Entry>, bool), IndexError> {
        let mut text = String::new();
        file.read_to_string(&mut text)
            .map_err(|source| IndexError::Io { path: self.path.clone(), source })?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let entries = lines.map(|(number, line)| {
            serde_json::from_str(line).map_err(|error| IndexError::Damaged {
                path: self.path.clone(),
                line: number + 1,
                problem: error.to_string(),
            })
        });
        Ok((entries.collect::<Result<_, _>>()?, text.is_empty() || text.ends_with('\n')))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(serial: &str) -> Entry {
        Entry {
            serial: serial.to_owned(),
            subject: "CN=alice".to_owned(),
            alt_names: Vec::new(),
            profile: "client".to_owned(),
            issued_at: "2026-01-01T00:00:00Z".to_owned(),
            not_after: "2027-01-01T00:00:00Z".to_owned(),
            sha256: "00".to_owned(),
        }
    }

    #[test]
    fn entries_of_commands_that_run_at_once_are_all_there() {
        let directory = tempfile::tempdir().unwrap();
        let certificate = directory.path().join("client-ca.crt");
        assert_eq!(Index::beside(&certificate).read().unwrap(), []);
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let certificate = &certificate;
                scope.spawn(move || {
                    for number in 0..8 {
                        Index::beside(certificate).record(&entry(&format!("{writer}{number}"))).unwrap();
                    }
                });
            }
        });
        let index = Index::beside(&certificate);
        let mut serials: Vec<_> = index.read().unwrap().into_iter().map(|entry| entry.serial).collect();
        serials.sort();
        serials.dedup();
        assert_eq!(serials.len(), 64);
        assert!(index.path().ends_with("client-ca.index.jsonl"));
    }

    #[test]
    fn a_damaged_line_is_told_and_nothing_is_added() {
        let directory = tempfile::tempdir().unwrap();
        let index = Index::beside(&directory.path().join("ca.crt"));
        index.record(&entry("01")).unwrap();
        let good = std::fs::read_to_string(index.path()).unwrap();
        std::fs::write(index.path(), format!("{good}{{\"serial\":\"0")).unwrap();
        let error = index.record(&entry("02")).unwrap_err().to_string();
        assert!(error.contains("ca.index.jsonl: line 2 is not an entry"), "{error}");
        // An editor may have left out the last line's end.
        std::fs::write(index.path(), good.trim_end()).unwrap();
        index.record(&entry("02")).unwrap();
        assert_eq!(index.read().unwrap(), [entry("01"), entry("02")]);
    }
}
