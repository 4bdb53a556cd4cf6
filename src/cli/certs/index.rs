//! What a certificate authority has signed: one line of JSON for each certificate, in a file beside the authority's
//! certificate. A line is on disk before its certificate is handed out, so the file may name one that nobody has, but
//! no certificate is missing in it. Lines are only ever added.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::print_error;

/// How long a command waits for another one that writes to the same index.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// No line is longer: a request has at most 64 KiB.
const MAX_LINE: u64 = 256 * 1024;

/// One certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct IndexEntry {
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
    /// SHA-256 of the certificate of the authority that has signed it: a file beside `client-ca.crt` also holds what the
    /// authorities before it have signed. Older lines have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) issuer_sha256: Option<String>,
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
    /// Another command has it, and does not end.
    #[error(
        "{}: another command writes to it since {} s; end that command, or look who holds the file (fuser, lslocks)",
        path.display(),
        waited.as_secs()
    )]
    Locked {
        /// The index.
        path: PathBuf,
        /// For how long.
        waited: Duration,
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
pub(super) struct IssuanceIndex {
    pub(super) path: PathBuf,
}

impl IssuanceIndex {
    /// That of the authority with this certificate: `client-ca.index.jsonl` beside `client-ca.crt`.
    pub(super) fn beside(certificate: &Path) -> Self {
        Self { path: certificate.with_extension("index.jsonl") }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a line for each, and returns when they are on disk.
    pub(super) fn record(&self, entries: &[IndexEntry]) -> Result<(), IndexError> {
        self.record_within(entries, LOCK_TIMEOUT)
    }

    fn record_within(&self, entries: &[IndexEntry], patience: Duration) -> Result<(), IndexError> {
        let failed = |source| self.failed(source);
        let mut file = self.locked(patience)?;
        let mut lines = if self.ends_well(&mut file)? { String::new() } else { "\n".to_owned() };
        for entry in entries {
            lines += &serde_json::to_string(entry).map_err(|error| failed(error.into()))?;
            lines.push('\n');
        }
        file.write_all(lines.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        // The first line makes the file, and a file is lost with its name.
        let directory = super::files::directory_of(&self.path);
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)
    }

    /// The file, which no other command writes to until it is closed.
    fn locked(&self, patience: Duration) -> Result<File, IndexError> {
        let failed = |source| self.failed(source);
        let mut waited = Duration::ZERO;
        loop {
            let open = OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(&self.path);
            let file = open.map_err(failed)?;
            match file.try_lock() {
                // An editor may have put another file in its place meanwhile.
                Ok(()) if self.is_at_its_place(&file).map_err(failed)? => return Ok(file),
                Ok(()) => continue,
                Err(TryLockError::Error(error)) => return Err(failed(error)),
                Err(TryLockError::WouldBlock) if waited >= patience => {
                    return Err(IndexError::Locked { path: self.path.clone(), waited });
                }
                Err(TryLockError::WouldBlock) => {}
            }
            if waited.is_zero() {
                print_error(&format!(
                    "{}: waiting for another command that writes to it",
                    self.path.display()
                ));
            }
            std::thread::sleep(LOCK_POLL_INTERVAL);
            waited += LOCK_POLL_INTERVAL;
        }
    }

    fn is_at_its_place(&self, file: &File) -> io::Result<bool> {
        let (opened, found) = (file.metadata()?, std::fs::metadata(&self.path)?);
        Ok((opened.dev(), opened.ino()) == (found.dev(), found.ino()))
    }

    /// Whether the last line is ended; an error if it is no entry. The lines before it were looked at when they were last.
    fn ends_well(&self, file: &mut File) -> Result<bool, IndexError> {
        let mut tail = Vec::new();
        let length = file.seek(SeekFrom::End(0)).map_err(|source| self.failed(source))?;
        file.seek(SeekFrom::Start(length.saturating_sub(MAX_LINE)))
            .and_then(|_| file.read_to_end(&mut tail))
            .map_err(|source| self.failed(source))?;
        let is_ended = tail.last().is_none_or(|last| *last == b'\n');
        let last = tail.trim_ascii_end().rsplit(|octet| *octet == b'\n').next().unwrap_or_default();
        if !last.is_empty() && serde_json::from_slice::<IndexEntry>(last).is_err() {
            // The number of the line is in the error of a reading from the beginning.
            self.read()?;
        }
        Ok(is_ended)
    }

    fn failed(&self, source: io::Error) -> IndexError {
        IndexError::Io { path: self.path.clone(), source }
    }

    /// Every entry, oldest first; none if nothing was signed yet.
    pub(super) fn read(&self) -> Result<Vec<IndexEntry>, IndexError> {
        match File::open(&self.path) {
            Ok(mut file) => self.entries(&mut file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(self.failed(source)),
        }
    }

    fn entries(&self, file: &mut File) -> Result<Vec<IndexEntry>, IndexError> {
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|source| self.failed(source))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let entries = lines.map(|(number, line)| {
            serde_json::from_str(line).map_err(|error| IndexError::Damaged {
                path: self.path.clone(),
                line: number + 1,
                problem: error.to_string(),
            })
        });
        entries.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(serial: &str) -> IndexEntry {
        IndexEntry {
            serial: serial.to_owned(),
            subject: "CN=alice".to_owned(),
            alt_names: Vec::new(),
            profile: "client".to_owned(),
            issued_at: "2026-01-01T00:00:00Z".to_owned(),
            not_after: "2027-01-01T00:00:00Z".to_owned(),
            sha256: "00".to_owned(),
            issuer_sha256: Some("01".to_owned()),
        }
    }

    #[test]
    fn entries_of_commands_that_run_at_once_are_all_there() {
        let directory = tempfile::tempdir().unwrap();
        let certificate = directory.path().join("client-ca.crt");
        assert_eq!(IssuanceIndex::beside(&certificate).read().unwrap(), []);
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let certificate = &certificate;
                scope.spawn(move || {
                    for number in 0..8 {
                        IssuanceIndex::beside(certificate)
                            .record(&[entry(&format!("{writer}{number}"))])
                            .unwrap();
                    }
                });
            }
        });
        let index = IssuanceIndex::beside(&certificate);
        let mut serials: Vec<_> = index.read().unwrap().into_iter().map(|entry| entry.serial).collect();
        serials.sort();
        serials.dedup();
        assert_eq!(serials.len(), 64);
        assert!(index.path().ends_with("client-ca.index.jsonl"));
    }

    #[test]
    fn a_damaged_line_is_told_and_nothing_is_added() {
        let directory = tempfile::tempdir().unwrap();
        let index = IssuanceIndex::beside(&directory.path().join("ca.crt"));
        index.record(&[entry("01")]).unwrap();
        let good = std::fs::read_to_string(index.path()).unwrap();
        std::fs::write(index.path(), format!("{good}{{\"serial\":\"0")).unwrap();
        let error = index.record(&[entry("02")]).unwrap_err().to_string();
        assert!(error.contains("ca.index.jsonl: line 2 is not an entry"), "{error}");
        // An editor may have left out the last line's end.
        std::fs::write(index.path(), good.trim_end()).unwrap();
        index.record(&[entry("02")]).unwrap();
        assert_eq!(index.read().unwrap(), [entry("01"), entry("02")]);
    }

    /// A child of another test may have the lock until it is another program.
    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn a_command_that_never_ends_holds_up_no_other_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let index = IssuanceIndex::beside(&directory.path().join("ca.crt"));
        index.record(&[entry("01")]).unwrap();
        let held = index.locked(SOON).unwrap();
        let error = index.record_within(&[entry("02")], Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("ca.index.jsonl: another command writes to it"), "{error}");
        drop(held);
        index.record_within(&[entry("02")], SOON).unwrap();
        assert_eq!(index.read().unwrap().len(), 2);
    }

    #[test]
    fn a_line_goes_into_the_file_that_has_the_name() {
        let directory = tempfile::tempdir().unwrap();
        let index = IssuanceIndex::beside(&directory.path().join("ca.crt"));
        index.record(&[entry("01")]).unwrap();
        // An editor has the lock of a file that it replaces.
        let held = index.locked(SOON).unwrap();
        std::fs::copy(index.path(), directory.path().join("new")).unwrap();
        std::fs::rename(directory.path().join("new"), index.path()).unwrap();
        index.record_within(&[entry("02")], SOON).unwrap();
        drop(held);
        assert_eq!(index.read().unwrap().len(), 2);
    }

    #[test]
    fn a_line_is_added_without_a_look_at_those_before_the_last() {
        let directory = tempfile::tempdir().unwrap();
        let index = IssuanceIndex::beside(&directory.path().join("ca.crt"));
        index.record(&[entry("01")]).unwrap();
        let good = std::fs::read_to_string(index.path()).unwrap();
        std::fs::write(index.path(), format!("no entry\n{good}")).unwrap();
        index.record(&[entry("02")]).unwrap();
        assert!(index.read().unwrap_err().to_string().contains("line 1 is not an entry"));
    }
}
